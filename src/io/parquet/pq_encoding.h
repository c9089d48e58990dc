/* pq_encoding.h - the encodings of parquet's levels and values.
 *
 * A decoder reads n values from the bytes [*p, end) and advances *p past them; false: the
 * bytes end early, or are not of this encoding.  It reads nothing outside the bytes and
 * writes n values.
 *
 * thread: any; no state. */
#ifndef ML_IO_PARQUET_PQ_ENCODING_H
#define ML_IO_PARQUET_PQ_ENCODING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

/* Runs of RLE and bit-packed values of `width` bits (at most 8, or 32). */
bool ml_pq_hybrid_u8(const uint8_t **p, const uint8_t *end, int width, uint8_t *out,
                     int64_t n);
bool ml_pq_hybrid_u32(const uint8_t **p, const uint8_t *end, int width, uint32_t *out,
                      int64_t n);

/* Bits in order of significance from the low end (booleans) or, in old files, from the high
 * end (levels encoded as BIT_PACKED). */
bool ml_pq_bits(const uint8_t **p, const uint8_t *end, uint8_t *out, int64_t n);
bool ml_pq_bit_packed(const uint8_t **p, const uint8_t *end, int width, uint8_t *out,
                      int64_t n);

/* DELTA_BINARY_PACKED; out[0], out[stride], ... are written. */
bool ml_pq_delta(const uint8_t **p, const uint8_t *end, int64_t *out, size_t stride,
                 int64_t n);

/* Byte arrays are views of the bytes.  PLAIN and DELTA_LENGTH_BYTE_ARRAY. */
bool ml_pq_plain_bytes(const uint8_t **p, const uint8_t *end, ml_str *out, int64_t n);
bool ml_pq_delta_length(const uint8_t **p, const uint8_t *end, ml_str *out, int64_t n);
/* DELTA_BYTE_ARRAY; the values are assembled in *mem, which the caller frees, also after a
 * failure; more than max bytes are a failure. */
bool ml_pq_delta_bytes(const uint8_t **p, const uint8_t *end, ml_str *out, int64_t n,
                       char **mem, size_t *mem_len, size_t max);

/* BYTE_STREAM_SPLIT of values of `width` bytes. */
bool ml_pq_stream_split(const uint8_t **p, const uint8_t *end, int32_t width, uint8_t *out,
                        int64_t n);

#endif
