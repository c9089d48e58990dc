#include "model/kv.h"

/* Bytes per row of a value with this axis, 0 for other values. */
static size_t row_bytes(const ml_spec *s, const ml_backend *be, int32_t value,
                        ml_axis axis) {
    const ml_value *v = &s->value[value];
    return v->axis == axis ? (size_t)v->width * ml_dtype_bytes(ml_value_dtype(v, be->act))
                           : 0;
}

/* Values begin at multiples of it: kernels of a device access several numbers at a time. */
static size_t aligned(size_t bytes) {
    return (bytes + 63) & ~(size_t)63;
}

static size_t all_rows_bytes(const ml_spec *s, const ml_backend *be, ml_axis axis) {
    size_t bytes = 0;
    for (int32_t i = 0; i < s->n_value; i++)
        bytes += row_bytes(s, be, i, axis);
    return bytes;
}

size_t ml_kv_bytes(const ml_spec *s, const ml_backend *be, int32_t n_page) {
    return all_rows_bytes(s, be, ML_PER_PAGE) * (size_t)n_page;
}

size_t ml_kv_slot_bytes(const ml_spec *s, const ml_backend *be) {
    return all_rows_bytes(s, be, ML_PER_SLOT);
}

ml_status ml_kv_open(ml_kv *kv, const ml_spec *s, int32_t n_page, int32_t n_slot,
                     ml_backend *be, ml_arena *a, ml_err *err) {
    size_t at = 0;

    *kv =
        (ml_kv){ .n_page = n_page, .n_slot = n_slot, .at = ML_NEW(a, size_t, s->n_value) };
    for (int32_t i = 0; i < s->n_value; i++) {
        kv->at[i] = at;
        at = aligned(at + row_bytes(s, be, i, ML_PER_PAGE) * (size_t)n_page +
                     row_bytes(s, be, i, ML_PER_SLOT) * (size_t)n_slot);
    }
    return be->dev->alloc(be->dev, &kv->buf, at, ML_MEM_KV, err);
}

void ml_kv_close(ml_kv *kv) {
    if (kv->buf.dev)
        kv->buf.dev->free(&kv->buf);
    *kv = (ml_kv){ 0 };
}

static void copy_rows(const ml_kv *kv, const ml_spec *s, ml_backend *be, ml_axis axis,
                      int32_t to, int32_t from) {
    for (int32_t i = 0; i < s->n_value; i++) {
        size_t bytes = row_bytes(s, be, i, axis);
        unsigned char *rows = (unsigned char *)kv->buf.ptr + kv->at[i];
        if (bytes)
            be->dev->copy(be->stream, rows + (size_t)to * bytes,
                          rows + (size_t)from * bytes, bytes);
    }
}

void ml_kv_copy_page(const ml_kv *kv, const ml_spec *s, ml_backend *be, int32_t to,
                     int32_t from) {
    copy_rows(kv, s, be, ML_PER_PAGE, to, from);
}

void ml_kv_copy_slot(const ml_kv *kv, const ml_spec *s, ml_backend *be, int32_t to,
                     int32_t from) {
    copy_rows(kv, s, be, ML_PER_SLOT, to, from);
}
