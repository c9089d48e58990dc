/* crc32c.h - the checksum of records: CRC-32C (Castagnoli). */
#ifndef ML_BASE_CRC32C_H
#define ML_BASE_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Bit by bit, without a table: records are short. */
uint32_t ml_crc32c(const void *bytes, size_t n);

#endif
