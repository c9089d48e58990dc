#include "io/zst.h"

#include <stdlib.h>
#include <zstd.h>

#include "base/file.h"

#define LEVEL 3

ml_status ml_zst_write(const char *path, ml_str bytes, ml_err *err) {
    size_t cap = ZSTD_compressBound(bytes.len), n;
    char *packed = malloc(cap);
    ml_status st;

    if (!packed)
        return ml_fail(err, ML_ENOMEM, "%s: no memory to compress %zu bytes", path,
                       bytes.len);
    n = ZSTD_compress(packed, cap, bytes.ptr, bytes.len, LEVEL);
    st = ZSTD_isError(n)
             ? ml_fail(err, ML_EIO, "%s: zstd says: %s", path, ZSTD_getErrorName(n))
             : ml_file_replace(path, (ml_str){ packed, n }, err);
    free(packed);
    return st;
}

static ml_status unpack(ml_text *out, ZSTD_DCtx *ctx, const ml_file *f, size_t max,
                        ml_err *err) {
    ZSTD_inBuffer in = { f->bytes.ptr, f->bytes.len, 0 };
    char piece[1 << 16];
    size_t left = 1; /* what zstd still expects of a frame; an empty file is no frame */
    bool full = false;

    while (in.pos < in.size || full) {
        ZSTD_outBuffer to = { piece, sizeof piece, 0 };
        left = ZSTD_decompressStream(ctx, &to, &in);
        if (ZSTD_isError(left))
            return ml_fail(err, ML_EFORMAT, "%s: not a whole zstd file: %s", f->path,
                           ZSTD_getErrorName(left));
        if (out->len + to.pos > max)
            return ml_fail(err, ML_EFORMAT, "%s: holds more than %zu bytes", f->path, max);
        ml_text_add(out, piece, to.pos);
        full = to.pos == sizeof piece; /* there may be more without more input */
    }
    return left ? ml_fail(err, ML_EFORMAT, "%s: the zstd file is cut short", f->path)
                : ML_OK;
}

ml_status ml_zst_read(ml_text *out, const char *path, size_t max, ml_err *err) {
    ml_file f = { 0 };
    ZSTD_DCtx *ctx;
    ml_status st = ml_file_map(&f, path, err);

    if (st != ML_OK)
        return st;
    ctx = ZSTD_createDCtx();
    st = ctx ? unpack(out, ctx, &f, max, err)
             : ml_fail(err, ML_ENOMEM, "no memory for zstd");
    ZSTD_freeDCtx(ctx);
    ml_file_unmap(&f);
    return st;
}
