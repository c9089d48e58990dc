/* kv.h - memory of the KV cache and recurrent states, for plans with kv_shared.
 *
 * One buffer.  Each value of the spec with a row per KV page (keys, values) or per state
 * slot (recurrent layers) has its rows in it, in the layout of ops.h.  This module does
 * not track the owners of pages and slots. */
#ifndef ML_MODEL_KV_H
#define ML_MODEL_KV_H

#include "backend/backend.h"
#include "model/spec.h"

typedef struct ml_kv {
    ml_buf buf;
    int32_t n_page, n_slot;
    size_t *at; /* [spec->n_value] byte offsets of page and slot values; in open's arena */
} ml_kv;

/* Bytes of n KV pages; of one state slot, 0 for a model without recurrent layers. */
size_t ml_kv_bytes(const ml_spec *s, const ml_backend *be, int32_t n_page);
size_t ml_kv_slot_bytes(const ml_spec *s, const ml_backend *be);

ml_status ml_kv_open(ml_kv *kv, const ml_spec *s, int32_t n_page, int32_t n_slot,
                     ml_backend *be, ml_arena *a, ml_err *err);
void ml_kv_close(ml_kv *kv);

/* Copies the keys and values of all layers from one page to another. */
void ml_kv_copy_page(const ml_kv *kv, const ml_spec *s, ml_backend *be, int32_t to,
                     int32_t from);
/* Copies the state of all recurrent layers from one slot to another. */
void ml_kv_copy_slot(const ml_kv *kv, const ml_spec *s, ml_backend *be, int32_t to,
                     int32_t from);

#endif
