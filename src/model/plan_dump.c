#include "model/plan_dump.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "io/safetensors.h"

/* A tensor of the file being assembled; its bytes are a copy. */
typedef struct dumped {
    ml_st_tensor as;
    struct dumped *next;
} dumped;

struct ml_plan_dump {
    char *dir, *filter;
    ml_backend *be; /* of the current run */
    ml_arena arena; /* of the current run: */
    dumped *first, **last;
    int32_t n;
    pthread_mutex_t lock; /* protects the following fields */
    int64_t rollout, number;
    ml_status st;
    ml_err err;
};

ml_status ml_plan_dump_open(ml_plan_dump **out, const char *dir, const char *filter,
                            ml_err *err) {
    ml_plan_dump *d = calloc(1, sizeof *d);

    if (!d)
        return ml_fail(err, ML_ENOMEM, "out of memory for dumping tensors");
    pthread_mutex_init(&d->lock, NULL);
    ml_arena_init(&d->arena, "a dump of tensors");
    d->last = &d->first;
    d->dir = strdup(dir);
    d->filter = filter ? strdup(filter) : NULL;
    *out = d;
    return ml_dir_make(dir, err);
}

void ml_plan_dump_close(ml_plan_dump *d) {
    if (!d)
        return;
    ml_arena_release(&d->arena);
    pthread_mutex_destroy(&d->lock);
    free(d->dir);
    free(d->filter);
    free(d);
}

void ml_plan_dump_round(ml_plan_dump *d, int64_t rollout) {
    pthread_mutex_lock(&d->lock);
    d->rollout = rollout;
    d->number = 0;
    pthread_mutex_unlock(&d->lock);
}

ml_status ml_plan_dump_check(ml_plan_dump *d, ml_err *err) {
    ml_status st;

    pthread_mutex_lock(&d->lock);
    st = d->st;
    if (st != ML_OK)
        *err = d->err;
    pthread_mutex_unlock(&d->lock);
    return st;
}

/* --- a run ---------------------------------------------------------------------- */

static void add(ml_plan_dump *d, const char *name, ml_dtype dtype, int32_t n_dim,
                const int64_t *shape, const void *from, bool on_device, size_t bytes) {
    dumped *x = ML_NEW(&d->arena, dumped, 1);
    void *copy = ml_arena_take(&d->arena, bytes + 1, 1);

    if (on_device) {
        d->be->dev->copy_out(d->be->stream, copy, from, bytes);
        d->be->dev->sync(d->be->stream, NULL); /* the run's own sync reports failures */
    } else {
        memcpy(copy, from, bytes);
    }
    x->as = (ml_st_tensor){ .name = ml_str_of(name),
                            .dtype = ml_st_from_dtype(dtype),
                            .n_dim = n_dim,
                            .data = copy,
                            .bytes = bytes };
    memcpy(x->as.shape, shape, (size_t)n_dim * sizeof *shape);
    *d->last = x;
    d->last = &x->next;
    d->n++;
}

static void add_rows(ml_plan_dump *d, const char *name, const int32_t *v, int32_t n) {
    int64_t shape = n;
    add(d, name, ML_I32, 1, &shape, v, false, (size_t)n * sizeof *v);
}

void ml_plan_dump_begin(ml_plan_dump *d, const ml_rows *rows, ml_backend *be) {
    d->be = be;
    add_rows(d, "ids", rows->id, rows->n_token);
    add_rows(d, "pos", rows->pos, rows->n_token);
    add_rows(d, "seq_start", rows->seq_start, rows->n_seq + 1);
}

/* An op is named after its first weight, if it has one. */
static const char *name_of(ml_plan_dump *d, const ml_spec *s, int32_t node, int k,
                           bool grad) {
    const ml_node *n = &s->node[node];
    const char *weight = n->w[0] != ML_NONE ? s->param[n->w[0]].name : NULL;

    return ml_arena_printf(&d->arena, "%s%04d.%s%s%s%s", grad ? "grad." : "", node,
                           ml_op_infos[n->op].name, weight ? "." : "", weight ? weight : "",
                           k ? ml_arena_printf(&d->arena, ".%d", k) : "");
}

void ml_plan_dump_value(ml_plan_dump *d, const ml_spec *s, int32_t node, int k, bool grad,
                        const ml_tensor *t) {
    const char *name;

    if (!t->data || t->layout != ML_ROWS || ml_tensor_count(t) == 0)
        return;
    name = name_of(d, s, node, k, grad);
    if (!d->filter || strstr(name, d->filter))
        add(d, name, t->dtype, t->n_dim, t->shape, t->data, true, ml_tensor_bytes(t));
}

static ml_status write_tensors(const ml_plan_dump *d, const char *path,
                               const ml_st_tensor *list, ml_err *err) {
    ml_st_layout layout = { .n = d->n, .tensor = list };
    ml_st_writer *w;
    ml_status st = ml_st_create(&w, path, &layout, err);

    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < d->n && st == ML_OK; i++)
        st = ml_st_write(w, i, 0, list[i].data, list[i].bytes, err);
    if (st == ML_OK)
        return ml_st_commit(w, err);
    ml_st_abort(w);
    return st;
}

static ml_status write_file(ml_plan_dump *d, ml_err *err) {
    ml_st_tensor *list = ML_NEW(&d->arena, ml_st_tensor, d->n + 1);
    const char *dir =
        ml_arena_printf(&d->arena, "%s/rollout_%lld", d->dir, (long long)d->rollout);
    ml_status st = ml_dir_make(dir, err);
    int32_t n = 0;

    for (const dumped *x = d->first; x; x = x->next)
        list[n++] = x->as;
    if (st == ML_OK)
        st = write_tensors(d,
                           ml_arena_printf(&d->arena, "%s/%06lld.safetensors", dir,
                                           (long long)d->number++),
                           list, err);
    return st;
}

void ml_plan_dump_end(ml_plan_dump *d) {
    pthread_mutex_lock(&d->lock);
    if (d->st == ML_OK)
        d->st = write_file(d, &d->err);
    pthread_mutex_unlock(&d->lock);
    ml_arena_release(&d->arena);
    ml_arena_init(&d->arena, "a dump of tensors");
    d->first = NULL;
    d->last = &d->first;
    d->n = 0;
}
