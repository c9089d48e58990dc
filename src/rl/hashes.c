#include "rl/hashes.h"

#include <stdlib.h>

#include "base/crc64.h"

enum { PIECE = 16 << 20 }; /* bytes that are copied out of a device at a time */

static ml_status hash_device(uint64_t *out, const ml_weights *w, ml_err *err) {
    ml_device *dev = w->be->dev;
    char *piece = malloc(PIECE);
    ml_status st = ML_OK;

    if (!piece)
        return ml_fail(err, ML_ENOMEM, "there is no memory to look at the weights");
    for (size_t at = 0; at < w->buf.bytes && st == ML_OK; at += PIECE) {
        size_t left = w->buf.bytes - at, n = left < PIECE ? left : PIECE;
        dev->copy_out(w->be->stream, piece, (const char *)w->buf.ptr + at, n);
        st = dev->sync(w->be->stream, err);
        *out = ml_crc64(*out, piece, n);
    }
    free(piece);
    return st;
}

ml_status ml_hash_weights(uint64_t *out, const ml_weights *w, ml_err *err) {
    *out = 0;
    if (w->be && !w->be->dev->host)
        return hash_device(out, w, err);
    *out = ml_crc64(0, w->buf.ptr, w->buf.bytes);
    return ML_OK;
}

static uint64_t add_array(uint64_t crc, const void *x, int32_t n, size_t size) {
    return x && n ? ml_crc64(crc, x, (size_t)n * size) : crc;
}

uint64_t ml_hash_samples(const ml_sample *const *s, int64_t n) {
    uint64_t crc = 0;

    for (int64_t i = 0; i < n; i++) {
        const ml_sample *x = s[i];
        crc = add_array(crc, x->token, x->n_token, sizeof *x->token);
        crc = add_array(crc, x->mask, x->n_response, sizeof *x->mask);
        crc = add_array(crc, x->logprob, x->n_response, sizeof *x->logprob);
        crc = add_array(crc, x->version, x->n_response, sizeof *x->version);
        crc = ml_crc64(crc, &x->reward, sizeof x->reward);
    }
    return crc;
}
