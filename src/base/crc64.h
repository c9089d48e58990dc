/* crc64.h - a checksum for files: CRC-64/XZ. */
#ifndef ML_BASE_CRC64_H
#define ML_BASE_CRC64_H

#include <stddef.h>
#include <stdint.h>

/* Continues from crc, which is 0 for the first piece. */
uint64_t ml_crc64(uint64_t crc, const void *bytes, size_t n);

#endif
