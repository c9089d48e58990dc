/* With instruction scheduling before register allocation, all broadcasts of a tile come
 * first and spill accumulators. */
#if !defined(__clang__)
#pragma GCC optimize("no-schedule-insns")
#endif

#include "backend/cpu/arm/v16_neon.h"

#include "backend/cpu/kern_body.inc"
