/* checksum.h - checksums: CRCs, and those of weight deltas by name, as text.
 *
 * thread: any. */
#ifndef ML_BASE_CHECKSUM_H
#define ML_BASE_CHECKSUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/* CRC-32C (Castagnoli), the checksum of records.  Bit by bit, without a table: records are
 * short. */
uint32_t ml_crc32c(const void *bytes, size_t n);

/* CRC-64/XZ, the checksum of files.  Continues from crc, which is 0 for the first piece. */
uint64_t ml_crc64(uint64_t crc, const void *bytes, size_t n);
/* The CRC-64 of two strings one after the other, from their own; n: bytes of the second. */
uint64_t ml_crc64_join(uint64_t first, uint64_t second, size_t n);
/* Of a whole string; that of a long one is computed by several threads. */
uint64_t ml_crc64_of(ml_str bytes);

typedef enum ml_checksum {
    ML_CHECKSUM_XXH3, /* XXH3, 128 bits: fast */
    ML_CHECKSUM_BLAKE3,
    ML_CHECKSUM_ADLER32, /* weak, but available everywhere */
    ML_N_CHECKSUM
} ml_checksum;

#define ML_CHECKSUM_TEXT 65 /* size of the longest, with its NUL */

/* "xxh3-128", "blake3", "adler32", in the order of the enumeration; NULL-terminated. */
extern const char *const ml_checksum_name[ML_N_CHECKSUM + 1];
/* False: no checksum has that name. */
bool ml_checksum_find(ml_checksum *out, ml_str name);

/* Lower-case hexadecimal digits. */
void ml_checksum_write(char out[ML_CHECKSUM_TEXT], ml_checksum how, const void *bytes,
                       size_t n);

#endif
