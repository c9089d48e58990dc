#include "backend/cpu/arm/v16_neon.h"

#include "backend/cpu/kern_body.inc"
