#include "backend/cpu/v16_c.h"

#include "backend/cpu/kern_body.inc"
