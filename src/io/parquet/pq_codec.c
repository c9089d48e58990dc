#include "io/parquet/pq_codec.h"

#include <brotli/decode.h>
#include <lz4.h>
#include <snappy-c.h>
#include <string.h>
#include <zlib.h>

#include "io/parquet/pq_meta.h"
#include "io/zst.h"

/* The most bytes that one compressed byte expands to.  Brotli's has no such limit; a page of
 * equal values is the most that occurs. */
static const struct {
    const char *name;
    size_t most;
} codecs[] = {
    [ML_PQ_UNCOMPRESSED] = { "UNCOMPRESSED", 1 },
    [ML_PQ_SNAPPY] = { "SNAPPY", 64 },
    [ML_PQ_GZIP] = { "GZIP", 1100 },
    [ML_PQ_LZO] = { NULL, 0 },
    [ML_PQ_BROTLI] = { "BROTLI", (size_t)1 << 20 },
    [ML_PQ_LZ4_HADOOP] = { "LZ4", 256 },
    [ML_PQ_ZSTD] = { "ZSTD", (size_t)1 << 16 },
    [ML_PQ_LZ4_RAW] = { "LZ4_RAW", 256 },
};
enum { N_CODEC = sizeof codecs / sizeof *codecs };

const char *ml_pq_codec_name(int codec) {
    return codec >= 0 && codec < N_CODEC ? codecs[codec].name : NULL;
}

bool ml_pq_codec_can_hold(int codec, size_t n, size_t stored) {
    if (!ml_pq_codec_name(codec))
        return false;
    if (codec == ML_PQ_UNCOMPRESSED)
        return n == stored;
    return n / codecs[codec].most <= stored;
}

/* Each returns the number of bytes written, or -1. */

static int64_t snappy(void *out, size_t n, ml_str in) {
    size_t got = n, claimed;

    if (snappy_uncompressed_length(in.ptr, in.len, &claimed) != SNAPPY_OK || claimed > n)
        return -1;
    return snappy_uncompress(in.ptr, in.len, out, &got) == SNAPPY_OK ? (int64_t)got : -1;
}

/* One member or several, gzip's header or zlib's. */
static int64_t gzip(void *out, size_t n, ml_str in) {
    z_stream z = { .next_in = (Bytef *)(uintptr_t)in.ptr,
                   .avail_in = (uInt)in.len,
                   .next_out = out,
                   .avail_out = (uInt)n };
    int r;

    if (inflateInit2(&z, 15 + 32) != Z_OK)
        return -1;
    do {
        r = inflate(&z, Z_FINISH);
        if (r == Z_STREAM_END && z.avail_in && inflateReset(&z) == Z_OK)
            r = Z_OK;
    } while (r == Z_OK);
    inflateEnd(&z);
    return r == Z_STREAM_END ? (int64_t)(n - z.avail_out) : -1;
}

static int64_t brotli(void *out, size_t n, ml_str in) {
    size_t got = n;
    return BrotliDecoderDecompress(in.len, (const uint8_t *)in.ptr, &got, out) ==
                   BROTLI_DECODER_RESULT_SUCCESS
               ? (int64_t)got
               : -1;
}

static int64_t lz4(void *out, size_t n, ml_str in) {
    return LZ4_decompress_safe(in.ptr, out, (int)in.len, (int)n);
}

static uint32_t be32(const char *p) {
    const unsigned char *b = (const unsigned char *)p;
    return (uint32_t)b[0] << 24 | (uint32_t)b[1] << 16 | (uint32_t)b[2] << 8 | b[3];
}

/* Hadoop's blocks; other writers of this codec wrote a bare LZ4 block. */
static int64_t lz4_hadoop(void *out, size_t n, ml_str in) {
    size_t at = 0, done = 0;

    while (in.len - at >= 8) {
        size_t plain = be32(in.ptr + at), packed = be32(in.ptr + at + 4);
        if (packed > in.len - at - 8 || plain > n - done ||
            lz4((char *)out + done, plain, (ml_str){ in.ptr + at + 8, packed }) !=
                (int64_t)plain)
            break;
        at += 8 + packed;
        done += plain;
    }
    return at == in.len ? (int64_t)done : lz4(out, n, in);
}

static int64_t decode(int codec, struct ml_zst_decoder **zstd, void *out, size_t n,
                      ml_str in) {
    switch (codec) {
    case ML_PQ_SNAPPY: return snappy(out, n, in);
    case ML_PQ_GZIP: return gzip(out, n, in);
    case ML_PQ_BROTLI: return brotli(out, n, in);
    case ML_PQ_LZ4_HADOOP: return lz4_hadoop(out, n, in);
    case ML_PQ_LZ4_RAW: return lz4(out, n, in);
    case ML_PQ_ZSTD: return ml_zst_decode(zstd, out, n, in);
    default: return -1;
    }
}

ml_status ml_pq_unpack(int codec, struct ml_zst_decoder **zstd, void *out, size_t n,
                       ml_str stored, ml_err *err) {
    int64_t got;

    if (codec == ML_PQ_UNCOMPRESSED) {
        memcpy(out, stored.ptr, n);
        return ML_OK;
    }
    got = decode(codec, zstd, out, n, stored);
    if (got < 0)
        return ml_fail(err, ML_EFORMAT,
                       "the page's %zu bytes are not valid %s data of %zu bytes",
                       stored.len, ml_pq_codec_name(codec), n);
    if ((size_t)got != n)
        return ml_fail(err, ML_EFORMAT,
                       "the page has %lld bytes after decompression; its header says %zu",
                       (long long)got, n);
    return ML_OK;
}
