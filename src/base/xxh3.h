/* xxh3.h - XXH3 with 128 bits, without a seed: a fast checksum of bytes in memory. */
#ifndef ML_BASE_XXH3_H
#define ML_BASE_XXH3_H

#include <stddef.h>
#include <stdint.h>

typedef struct ml_u128 {
    uint64_t low, high; /* written as one number, high comes first */
} ml_u128;

ml_u128 ml_xxh3_128(const void *bytes, size_t n);

#endif
