#include "io/torch_weights.h"

#include <string.h>

#include "io/quant.h"

/* A view of floats whose elements are not next to each other. */
typedef struct strided {
    ml_quant base;
    ml_torch_tensor t;
} strided;

static void read_strided(const ml_quant *base, int64_t at, int64_t step, int64_t n,
                         float *out) {
    const ml_torch_tensor *t = &((const strided *)base)->t;

    for (int64_t i = 0; i < n; i++) {
        uint16_t h;
        if (t->dtype == ML_ST_F32) {
            ml_torch_read(t, at + i * step, 1, &out[i]);
            continue;
        }
        ml_torch_read(t, at + i * step, 1, &h);
        out[i] = t->dtype == ML_ST_BF16 ? ml_bf16_to_f32(h) : ml_f16_to_f32(h);
    }
}

ml_status ml_torch_weights_set(ml_st_tensor *t, const ml_torch_tensor *from, ml_arena *a,
                               const char *path, ml_err *err) {
    bool floats =
        from->dtype == ML_ST_F32 || from->dtype == ML_ST_BF16 || from->dtype == ML_ST_F16;

    t->dtype = from->dtype;
    t->n_dim = from->n_dim;
    memcpy(t->shape, from->shape, sizeof t->shape);
    t->data = from->data;
    t->bytes = from->bytes;
    if (from->contiguous)
        return ML_OK;
    if (floats) {
        strided *s = ML_NEW(a, strided, 1);
        *s = (strided){ .base.read = read_strided, .t = *from };
        t->quant = &s->base;
        return ML_OK;
    }
    return ml_fail(
        err, ML_EUNSUP,
        "%s: tensor %s is a view with strides of %s; supported are F32, BF16 and "
        "F16",
        path, t->name.ptr, ml_st_dtype_name(t->dtype));
}

static void close_torch(void *f) {
    ml_torch_close(f);
}

static ml_status add_tensor(ml_st_file *f, ml_st_tensor *t, const ml_torch_file *from,
                            const ml_pickle *key, const ml_pickle *value, ml_err *err) {
    ml_torch_tensor own;
    ml_status st = ml_torch_tensor_of(&own, from, value, err);

    if (st != ML_OK)
        return st;
    t->name =
        (ml_str){ ml_arena_str(&f->arena, key->text.ptr, key->text.len), key->text.len };
    if (!ml_map_add(&f->by_name, t->name, f->n))
        return ml_fail(err, ML_EFORMAT, "%s: tensor \"%.200s\" is stored twice", f->path,
                       t->name.ptr);
    t->offset = (size_t)((const char *)own.data - from->image.ptr);
    f->n++;
    return ml_torch_weights_set(t, &own, &f->arena, f->path, err);
}

static const ml_pickle *state_of(const ml_pickle *root) {
    const ml_pickle *inner = ml_pickle_get(root, "state_dict");
    const ml_pickle *d = ml_pickle_items(inner ? inner : root);
    return d && d->type == ML_PICKLE_DICT ? d : NULL;
}

static ml_status list_tensors(ml_st_file *f, ml_st_tensor *t, const ml_torch_file *from,
                              const ml_pickle *d, ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0; i + 1 < d->n && st == ML_OK; i += 2)
        if (d->item[i]->type == ML_PICKLE_STR && ml_torch_is_tensor(d->item[i + 1]))
            st = add_tensor(f, &t[f->n], from, d->item[i], d->item[i + 1], err);
    return st;
}

ml_status ml_torch_weights_open(ml_st_file **out, const char *path, ml_err *err) {
    ml_torch_file *from = NULL;
    const ml_pickle *d;
    ml_st_tensor *t;
    ml_st_file *f;
    ml_status st = ml_torch_open(&from, path, err);

    if (st != ML_OK)
        return st;
    d = state_of(from->root);
    if (!d) {
        st = ml_fail(err, ML_EFORMAT, "%s has %s; a dict of tensors was expected", path,
                     ml_pickle_what(from->root));
        ml_torch_close(from);
        return st;
    }
    f = ml_st_new(path, d->n / 2, &t);
    f->held = from;
    f->release = close_torch;
    f->file = from->file; /* unmapped with the list */
    from->file = (ml_file){ 0 };
    st = list_tensors(f, t, from, d, err);
    if (st == ML_OK)
        *out = f;
    else
        ml_st_close(f);
    return st;
}
