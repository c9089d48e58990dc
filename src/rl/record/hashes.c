#include "rl/record/hashes.h"

#include <stdlib.h>
#include <string.h>

#include "base/checksum.h"

enum { PIECE = 16 << 20 }; /* bytes per copy from the device */

static ml_status hash_device(uint64_t *crc, const ml_backend *be, const char *from,
                             size_t bytes, ml_err *err) {
    char *piece = malloc(PIECE);
    ml_status st = ML_OK;

    if (!piece)
        return ml_fail(err, ML_ENOMEM, "out of memory for the hash of the weights");
    for (size_t at = 0; at < bytes && st == ML_OK; at += PIECE) {
        size_t left = bytes - at, n = left < PIECE ? left : PIECE;
        be->dev->copy_out(be->stream, piece, from + at, n);
        st = be->dev->sync(be->stream, err);
        *crc = ml_crc64(*crc, piece, n);
    }
    free(piece);
    return st;
}

static ml_status hash_bytes(uint64_t *crc, const ml_weights *w, const void *from,
                            size_t bytes, ml_err *err) {
    if (w->be && !w->be->dev->host)
        return hash_device(crc, w->be, from, bytes, err);
    *crc = ml_crc64(*crc, from, bytes);
    return ML_OK;
}

static bool is_skipped(const ml_skip *skip, int32_t i) {
    for (int32_t k = 0; k < skip->n; k++)
        if (strstr(skip->spec->param[i].name, skip->part[k]))
            return true;
    return false;
}

ml_status ml_hash_weights(uint64_t *out, const ml_weights *w, const ml_skip *skip,
                          ml_err *err) {
    ml_status st = ML_OK;

    *out = 0;
    if (!skip || skip->n == 0)
        return hash_bytes(out, w, w->buf.ptr, w->buf.bytes, err);
    for (int32_t i = 0; i < w->n && st == ML_OK; i++)
        if (!is_skipped(skip, i))
            st = hash_bytes(out, w, w->t[i].data, ml_tensor_bytes(&w->t[i]), err);
    return st;
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
