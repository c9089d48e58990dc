/* blake3.h - BLAKE3 of bytes in memory: a cryptographic hash. */
#ifndef ML_BASE_BLAKE3_H
#define ML_BASE_BLAKE3_H

#include <stddef.h>
#include <stdint.h>

#define ML_BLAKE3_BYTES 32

void ml_blake3(uint8_t out[ML_BLAKE3_BYTES], const void *bytes, size_t n);

#endif
