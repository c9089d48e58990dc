#include "backend/cpu/x86/v16_avx2.h"

#include "backend/cpu/kern_body.inc"
