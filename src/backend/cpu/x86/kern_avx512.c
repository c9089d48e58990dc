#include "backend/cpu/x86/v16_avx512.h"

#include "backend/cpu/kern_body.inc"
