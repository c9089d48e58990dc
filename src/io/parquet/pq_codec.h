/* pq_codec.h - decompresses the pages of parquet files.
 *
 * thread: one owner. */
#ifndef ML_IO_PARQUET_PQ_CODEC_H
#define ML_IO_PARQUET_PQ_CODEC_H

#include "base/err.h"
#include "base/str.h"

/* Whether n bytes can be the content of `stored` compressed bytes: a limit on what a header
 * may claim.  Also false for an unknown codec. */
bool ml_pq_codec_can_hold(int codec, size_t n, size_t stored);

/* "SNAPPY", or NULL: not a codec that is read. */
const char *ml_pq_codec_name(int codec);

/* Fills out[n]; content of another length is an error.  *zstd is a decoder that is made when
 * it is needed first, NULL before; ml_zst_decoder_free releases it.  The caller prefixes the
 * message with the place. */
struct ml_zst_decoder;
ml_status ml_pq_unpack(int codec, struct ml_zst_decoder **zstd, void *out, size_t n,
                       ml_str stored, ml_err *err);

#endif
