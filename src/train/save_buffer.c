#include <stdlib.h>

#include "model/source.h"
#include "train/snapshot_priv.h"

#define PIECE_BYTES ((size_t)1 << 20)

/* --- view and copy ---------------------------------------------------------- */

void ml_save_buffer_take(ml_save_buffer *m, ml_trainer *t, const ml_checkpoint *from,
                         const ml_weights *ref, bool optim) {
    const ml_optimizer *o = ml_trainer_optimizer(t);
    ml_save_buffer now = { .spec = o->spec,
                           .from = from,
                           .weights = *o->weights,
                           .own_master = o->own_master,
                           .n_step = o->n_step,
                           .n_sample = ml_trainer_samples(t),
                           .stage = m->stage,
                           .stage_bytes = m->stage_bytes };

    if (optim) {
        now.set[ML_STATE_MASTER] = o->master;
        now.set[ML_STATE_MOMENT1] = o->moment1;
        now.set[ML_STATE_MOMENT2] = o->moment2;
    }
    if (ref)
        now.set[ML_STATE_REFERENCE] = *ref;
    *m = now;
}

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

static size_t set_bytes(const ml_weights *w) {
    size_t bytes = 0;
    for (int32_t i = 0; i < w->n; i++)
        bytes += w->t[i].data ? align64(ml_tensor_bytes(&w->t[i])) : 0;
    return bytes;
}

static void copy_set(ml_weights *w, ml_backend *be, ml_arena *a, unsigned char **at) {
    ml_tensor *t = ML_NEW(a, ml_tensor, w->n + 1);

    for (int32_t i = 0; i < w->n; i++) {
        size_t bytes = ml_tensor_bytes(&w->t[i]);
        t[i] = w->t[i];
        if (!t[i].data)
            continue;
        be->dev->copy_out(be->stream, *at, t[i].data, bytes);
        t[i].data = *at;
        *at += align64(bytes);
    }
    w->t = t;
    w->be = NULL; /* in host memory */
}

ml_status ml_save_buffer_copy(ml_save_buffer *m, ml_backend *be, ml_arena *a, ml_err *err) {
    size_t bytes = set_bytes(&m->weights);
    unsigned char *at;

    for (int k = 0; k < ML_STATE_SETS; k++)
        bytes += set_bytes(&m->set[k]);
    if (bytes > m->stage_bytes) {
        free(m->stage);
        m->stage = malloc(bytes);
        m->stage_bytes = m->stage ? bytes : 0;
    }
    if (!m->stage)
        return ml_fail(err, ML_ENOMEM,
                       "out of memory for a save buffer of %.1f GiB: remove --async-save",
                       (double)bytes / 0x1p30);
    at = m->stage;
    copy_set(&m->weights, be, a, &at);
    for (int k = 0; k < ML_STATE_SETS; k++)
        copy_set(&m->set[k], be, a, &at);
    return be->dev->sync(be->stream, err);
}

void ml_save_buffer_release(ml_save_buffer *m) {
    free(m->stage);
    *m = (ml_save_buffer){ 0 };
}

/* --- tensors ---------------------------------------------------------------- */

/* A file being written. */
typedef struct tensor_file {
    const ml_save_buffer *image;
    ml_arena *arena;
    ml_st_tensor *t; /* [n] */
    int32_t n, at;
    ml_st_writer *out;
    float *piece;
    size_t piece_bytes;
} tensor_file;

/* A master is stored if the checkpoint's copy of the weight loses bits. */
static bool stored(const ml_save_buffer *m, int k, int32_t i, int32_t e) {
    const ml_st_tensor *t;
    char name[512];

    if (!m->set[k].n || !m->set[k].t[i].data)
        return false;
    if (k != ML_STATE_MASTER)
        return true;
    if (!m->set[ML_STATE_MOMENT1].t[i].data) /* frozen */
        return false;
    if (m->own_master)
        return true;
    if (ml_param_is_value_head(&m->spec->param[i])) /* always f32 on disk */
        return false;
    t = ml_checkpoint_find(
        m->from, ml_str_of(ml_param_name(&m->spec->param[i], e, name, sizeof name)), NULL);
    return !t || t->dtype != ML_ST_F32;
}

/* Calls fn for every tensor of the file, in its order. */
typedef ml_status each_fn(tensor_file *f, int k, int32_t i, int32_t e, ml_err *err);

static ml_status each_tensor(tensor_file *f, each_fn *fn, ml_err *err) {
    const ml_spec *s = f->image->spec;
    ml_status st = ML_OK;

    for (int k = 0; k < ML_STATE_SETS; k++)
        for (int32_t i = 0; i < s->n_param; i++)
            for (int32_t e = 0; e < s->param[i].n_stack && st == ML_OK; e++)
                if (stored(f->image, k, i, e))
                    st = fn(f, k, i, e, err);
    return st;
}

static ml_status count_tensor(tensor_file *f, int k, int32_t i, int32_t e, ml_err *err) {
    (void)k, (void)i, (void)e, (void)err;
    f->n++;
    return ML_OK;
}

static ml_status declare_tensor(tensor_file *f, int k, int32_t i, int32_t e, ml_err *err) {
    const ml_param *p = &f->image->spec->param[i];
    char name[600];

    (void)err;
    ml_snapshot_tensor(name, sizeof name, k, p, e);
    f->t[f->at++] =
        (ml_st_tensor){ .name = ml_str_of(ml_arena_printf(f->arena, "%s", name)),
                        .dtype = ML_ST_F32,
                        .n_dim = p->n_dim,
                        .shape = { p->shape[0], p->n_dim == 2 ? p->shape[1] : 0 } };
    return ML_OK;
}

static ml_status write_tensor(tensor_file *f, int k, int32_t i, int32_t e, ml_err *err) {
    const ml_param *p = &f->image->spec->param[i];
    int64_t rows = p->n_dim == 2 ? p->shape[0] : 1;
    size_t row_bytes = (size_t)(p->n_dim == 2 ? p->shape[1] : p->shape[0]) * sizeof(float);
    int64_t step = (int64_t)(PIECE_BYTES / row_bytes);
    ml_status st = ML_OK;

    step = step < 1 ? 1 : step;
    if ((size_t)step * row_bytes > f->piece_bytes) {
        f->piece_bytes = (size_t)step * row_bytes;
        f->piece = ml_arena_take(f->arena, 1, f->piece_bytes);
    }
    for (int64_t r = 0; r < rows && st == ML_OK; r += step) {
        int64_t n = rows - r < step ? rows - r : step;
        ml_weights_unpack(&f->image->set[k], i, e, r, n, ML_F32, f->piece);
        st = ml_st_write(f->out, f->at, (size_t)r * row_bytes, f->piece,
                         (size_t)n * row_bytes, err);
    }
    f->at++;
    return st;
}

ml_status ml_save_buffer_write(const ml_save_buffer *m, const char *dir, ml_arena *a,
                               ml_err *err) {
    const char *path = ml_arena_printf(a, "%s/%s", dir, ML_SNAPSHOT_TENSORS);
    tensor_file f = { .image = m, .arena = a };
    ml_status st = each_tensor(&f, count_tensor, err);

    if (f.n == 0)
        return st;
    f.t = ML_NEW(a, ml_st_tensor, f.n);
    each_tensor(&f, declare_tensor, err);
    st = ml_st_create(&f.out, path, &(ml_st_layout){ .n = f.n, .tensor = f.t }, err);
    if (st != ML_OK)
        return st;
    f.at = 0;
    st = each_tensor(&f, write_tensor, err);
    if (st == ML_OK)
        return ml_st_commit(f.out, err);
    ml_st_abort(f.out);
    return st;
}
