#include "model/kv.h"

/* Bytes of n_page rows of a page value. */
static size_t value_bytes(const ml_spec *s, int32_t value, int32_t n_page) {
    const ml_value *v = &s->value[value];
    return (size_t)v->width * ml_dtype_bytes(v->dtype) * (size_t)n_page;
}

size_t ml_kv_bytes(const ml_spec *s, int32_t n_page) {
    size_t bytes = 0;
    for (int32_t i = 0; i < s->n_node; i++)
        if (s->node[i].op == ML_OP_ATTN)
            bytes += value_bytes(s, s->node[i].out[2], n_page) +
                     value_bytes(s, s->node[i].out[3], n_page);
    return bytes;
}

ml_status ml_kv_open(ml_kv *kv, const ml_spec *s, int32_t n_page, ml_backend *be,
                     ml_arena *a, ml_err *err) {
    size_t at = 0;
    int32_t n = 0;

    *kv = (ml_kv){ .n_page = n_page,
                   .k_at = ML_NEW(a, size_t, s->n_attn),
                   .v_at = ML_NEW(a, size_t, s->n_attn) };
    for (int32_t i = 0; i < s->n_node; i++) {
        if (s->node[i].op != ML_OP_ATTN)
            continue;
        kv->k_at[n] = at;
        at += value_bytes(s, s->node[i].out[2], n_page);
        kv->v_at[n++] = at;
        at += value_bytes(s, s->node[i].out[3], n_page);
    }
    return be->dev->alloc(be->dev, &kv->buf, at, ML_MEM_KV, err);
}

void ml_kv_close(ml_kv *kv) {
    if (kv->buf.dev)
        kv->buf.dev->free(&kv->buf);
    *kv = (ml_kv){ 0 };
}
