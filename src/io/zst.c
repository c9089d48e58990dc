#include "io/zst.h"

#include <stdlib.h>
#include <zstd.h>

#include "base/file.h"

#define LEVEL 3

ml_status ml_zst_pack(ml_text *out, ml_str bytes, int level, ml_err *err) {
    size_t cap = ZSTD_compressBound(bytes.len), n;
    char *packed = malloc(cap);
    ml_status st = ML_OK;

    if (!packed)
        return ml_fail(err, ML_ENOMEM, "out of memory for compressing %zu bytes",
                       bytes.len);
    n = ZSTD_compress(packed, cap, bytes.ptr, bytes.len, level);
    if (ZSTD_isError(n))
        st = ml_fail(err, ML_EIO, "zstd: %s", ZSTD_getErrorName(n));
    else
        ml_text_add(out, packed, n);
    free(packed);
    return st;
}

ml_status ml_zst_write(const char *path, ml_str bytes, ml_err *err) {
    ml_text packed = { 0 };
    ml_status st = ml_zst_pack(&packed, bytes, LEVEL, err);

    if (st == ML_OK)
        st = ml_file_replace(path, (ml_str){ packed.ptr, packed.len }, err);
    else
        ml_err_prefix(err, "%s", path);
    ml_text_release(&packed);
    return st;
}

static ml_status unpack(ml_zst_sink *sink, void *ud, ZSTD_DCtx *ctx, const ml_file *f,
                        ml_err *err) {
    ZSTD_inBuffer in = { f->bytes.ptr, f->bytes.len, 0 };
    const size_t stretch = (size_t)1 << 26;
    char piece[1 << 16];
    size_t left = 1; /* bytes zstd still expects of a frame; an empty file is not a frame */
    size_t forgotten = 0;
    bool full = false;
    ml_status st = ML_OK;

    while (st == ML_OK && (in.pos < in.size || full)) {
        ZSTD_outBuffer to = { .size = sizeof piece };
        to.dst = piece;
        left = ZSTD_decompressStream(ctx, &to, &in);
        if (ZSTD_isError(left))
            return ml_fail(err, ML_EFORMAT, "%s: not a complete zstd file: %s", f->path,
                           ZSTD_getErrorName(left));
        st = sink(ud, (ml_str){ piece, to.pos }, err);
        full = to.pos == sizeof piece; /* there may be more output without more input */
        if (in.pos - forgotten > stretch) {
            ml_file_forget(f, forgotten, in.pos - forgotten);
            forgotten = in.pos;
        }
    }
    if (st != ML_OK)
        return st;
    return left ? ml_fail(err, ML_EFORMAT, "%s: the zstd file is truncated", f->path)
                : ML_OK;
}

ml_status ml_zst_stream(const char *path, ml_zst_sink *sink, void *ud, ml_err *err) {
    ml_file f = { 0 };
    ZSTD_DCtx *ctx;
    ml_status st = ml_file_map(&f, path, err);

    if (st != ML_OK)
        return st;
    ctx = ZSTD_createDCtx();
    st = ctx ? unpack(sink, ud, ctx, &f, err)
             : ml_fail(err, ML_ENOMEM, "out of memory for zstd");
    ZSTD_freeDCtx(ctx);
    ml_file_unmap(&f);
    return st;
}

typedef struct text_sink {
    ml_text *out;
    const char *path;
    size_t max;
} text_sink;

static ml_status add_text(void *ud, ml_str piece, ml_err *err) {
    const text_sink *s = ud;

    if (s->out->len + piece.len > s->max)
        return ml_fail(err, ML_EFORMAT, "%s contains more than %zu bytes", s->path, s->max);
    ml_text_add(s->out, piece.ptr, piece.len);
    return ML_OK;
}

ml_status ml_zst_read(ml_text *out, const char *path, size_t max, ml_err *err) {
    text_sink s = { out, path, max };
    return ml_zst_stream(path, add_text, &s, err);
}

ml_status ml_zst_unpack(void **out, size_t *n, ml_str frame, size_t most, ml_err *err) {
    unsigned long long size = ZSTD_getFrameContentSize(frame.ptr, frame.len);
    void *bytes;

    if (size == ZSTD_CONTENTSIZE_UNKNOWN) /* written by a streaming encoder */
        size = most;
    if (size == ZSTD_CONTENTSIZE_ERROR)
        return ml_fail(err, ML_EFORMAT, "is not a zstd frame");
    if (size > most)
        return ml_fail(err, ML_EFORMAT, "has %llu bytes; expected at most %zu", size, most);
    bytes = malloc((size_t)size + 1);
    if (!bytes)
        return ml_fail(err, ML_ENOMEM, "has %llu bytes: out of memory", size);
    *n = ZSTD_decompress(bytes, (size_t)size, frame.ptr, frame.len);
    if (ZSTD_isError(*n)) {
        free(bytes);
        return ml_fail(err, ML_EFORMAT, "is damaged: zstd: %s", ZSTD_getErrorName(*n));
    }
    *out = bytes;
    return ML_OK;
}

struct ml_zst_decoder {
    ZSTD_DCtx *ctx;
};

int64_t ml_zst_decode(ml_zst_decoder **d, void *out, size_t n, ml_str frames) {
    size_t got;

    if (!*d)
        *d = calloc(1, sizeof **d);
    if (*d && !(*d)->ctx)
        (*d)->ctx = ZSTD_createDCtx();
    if (!*d || !(*d)->ctx)
        return -1;
    got = ZSTD_decompressDCtx((*d)->ctx, out, n, frames.ptr, frames.len);
    return ZSTD_isError(got) ? -1 : (int64_t)got;
}

void ml_zst_decoder_free(ml_zst_decoder *d) {
    if (d)
        ZSTD_freeDCtx(d->ctx);
    free(d);
}
