/* kv.h - the bytes of a paged KV cache, for plans that do not keep pages of their own.
 *
 * One buffer; attention op number a (in the order of the spec) has its key pages and
 * value pages in it, laid out as ops.h says.  Which page belongs to whom is not known
 * here. */
#ifndef ML_MODEL_KV_H
#define ML_MODEL_KV_H

#include "backend/backend.h"
#include "model/spec.h"

typedef struct ml_kv {
    ml_buf buf;
    int32_t n_page;
    size_t *k_at, *v_at; /* [spec->n_attn] byte offsets, in the arena given at open */
} ml_kv;

size_t ml_kv_bytes(const ml_spec *s, int32_t n_page);
ml_status ml_kv_open(ml_kv *kv, const ml_spec *s, int32_t n_page, ml_backend *be,
                     ml_arena *a, ml_err *err);
void ml_kv_close(ml_kv *kv);

#endif
