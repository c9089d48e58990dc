#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/background.h"
#include "model/export.h"
#include "train/snapshot_priv.h"

#define PIECE_BYTES ((size_t)1 << 20)
#define TEMP ".tmp-" /* in the name of a directory: nothing that counts */

/* A trainer as it stands, or a copy of it. */
typedef struct image {
    const ml_spec *spec;
    ml_weights weights, set[ML_STATE_SETS];
    bool own_master;
    int64_t n_step, n_sample;
} image;

struct ml_saver {
    ml_saver_opts opts;
    image image;
    int64_t iteration;
    ml_text state; /* state.json */
    void *stage;   /* what an image was copied to */
    size_t stage_bytes;
    ml_background job;
    ml_arena arena; /* of one save */
};

/* --- what is saved ---------------------------------------------------------- */

static image image_of(ml_trainer *t) {
    const ml_optimizer *o = ml_trainer_optimizer(t);
    return (image){ .spec = o->spec,
                    .weights = *o->weights,
                    .set = { o->master, o->moment1, o->moment2 },
                    .own_master = o->own_master,
                    .n_step = o->n_step,
                    .n_sample = ml_trainer_samples(t) };
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

static void copy_set(ml_saver *s, ml_backend *be, ml_weights *w, unsigned char **at) {
    ml_tensor *t = ML_NEW(&s->arena, ml_tensor, w->n);

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
    w->be = NULL; /* in our own memory */
}

/* From here on the trainer may go on. */
static ml_status copy_image(ml_saver *s, ml_backend *be, ml_err *err) {
    image *m = &s->image;
    size_t bytes = set_bytes(&m->weights);
    unsigned char *at;

    for (int k = 0; k < ML_STATE_SETS; k++)
        bytes += set_bytes(&m->set[k]);
    if (bytes > s->stage_bytes) {
        free(s->stage);
        s->stage = malloc(bytes);
        s->stage_bytes = s->stage ? bytes : 0;
    }
    if (!s->stage)
        return ml_fail(err, ML_ENOMEM,
                       "no memory for a copy of %.1f GiB to save from: save without "
                       "--async-save",
                       (double)bytes / 0x1p30);
    at = s->stage;
    copy_set(s, be, &m->weights, &at);
    for (int k = 0; k < ML_STATE_SETS; k++)
        copy_set(s, be, &m->set[k], &at);
    return be->dev->sync(be->stream, err);
}

/* --- tensors ---------------------------------------------------------------- */

/* A master is stored where the checkpoint's own copy of the weight loses bits. */
static bool stored(const ml_saver *s, int k, int32_t i, int32_t e) {
    const image *m = &s->image;
    const ml_st_tensor *t;
    char name[512];

    if (!m->set[k].t[i].data || !m->set[ML_STATE_MOMENT1].t[i].data)
        return false;
    if (k != ML_STATE_MASTER || m->own_master)
        return true;
    t = ml_checkpoint_find(
        s->opts.from, ml_str_of(ml_param_name(&m->spec->param[i], e, name, sizeof name)),
        NULL);
    return !t || t->dtype != ML_ST_F32;
}

/* Calls fn for every tensor of the file, in its order. */
typedef ml_status each_fn(ml_saver *s, void *ud, int k, int32_t i, int32_t e, ml_err *err);

static ml_status each_tensor(ml_saver *s, each_fn *fn, void *ud, ml_err *err) {
    ml_status st = ML_OK;
    for (int k = 0; k < ML_STATE_SETS; k++)
        for (int32_t i = 0; i < s->image.spec->n_param; i++)
            for (int32_t e = 0; e < s->image.spec->param[i].n_stack && st == ML_OK; e++)
                if (stored(s, k, i, e))
                    st = fn(s, ud, k, i, e, err);
    return st;
}

typedef struct tensor_list {
    ml_st_tensor *t;
    int32_t n;
} tensor_list;

static ml_status count_tensor(ml_saver *s, void *ud, int k, int32_t i, int32_t e,
                              ml_err *err) {
    (void)s, (void)k, (void)i, (void)e, (void)err;
    ((tensor_list *)ud)->n++;
    return ML_OK;
}

static ml_status declare_tensor(ml_saver *s, void *ud, int k, int32_t i, int32_t e,
                                ml_err *err) {
    tensor_list *l = ud;
    const ml_param *p = &s->image.spec->param[i];
    char name[600];

    (void)err;
    ml_snapshot_tensor(name, sizeof name, k, p, e);
    l->t[l->n++] =
        (ml_st_tensor){ .name = ml_str_of(ml_arena_printf(&s->arena, "%s", name)),
                        .dtype = ML_ST_F32,
                        .n_dim = p->n_dim,
                        .shape = { p->shape[0], p->n_dim == 2 ? p->shape[1] : 0 } };
    return ML_OK;
}

typedef struct tensor_writer {
    ml_st_writer *out;
    int32_t at;
    float *piece;
    size_t piece_bytes;
} tensor_writer;

static ml_status write_tensor(ml_saver *s, void *ud, int k, int32_t i, int32_t e,
                              ml_err *err) {
    tensor_writer *w = ud;
    const ml_param *p = &s->image.spec->param[i];
    int64_t rows = p->n_dim == 2 ? p->shape[0] : 1;
    size_t row_bytes = (size_t)(p->n_dim == 2 ? p->shape[1] : p->shape[0]) * sizeof(float);
    int64_t step = (int64_t)(PIECE_BYTES / row_bytes);
    ml_status st = ML_OK;

    step = step < 1 ? 1 : step;
    if ((size_t)step * row_bytes > w->piece_bytes) {
        w->piece_bytes = (size_t)step * row_bytes;
        w->piece = ml_arena_take(&s->arena, 1, w->piece_bytes);
    }
    for (int64_t r = 0; r < rows && st == ML_OK; r += step) {
        int64_t n = rows - r < step ? rows - r : step;
        ml_weights_unpack(&s->image.set[k], i, e, r, n, ML_F32, w->piece);
        st = ml_st_write(w->out, w->at, (size_t)r * row_bytes, w->piece,
                         (size_t)n * row_bytes, err);
    }
    w->at++;
    return st;
}

static ml_status write_tensors(ml_saver *s, const char *dir, ml_err *err) {
    const char *path = ml_arena_printf(&s->arena, "%s/%s", dir, ML_SNAPSHOT_TENSORS);
    tensor_list l = { 0 };
    tensor_writer w = { 0 };
    ml_status st = each_tensor(s, count_tensor, &l, err);

    l.t = ML_NEW(&s->arena, ml_st_tensor, l.n);
    l.n = 0;
    if (st == ML_OK)
        st = each_tensor(s, declare_tensor, &l, err);
    if (st == ML_OK)
        st = ml_st_create(&w.out, path, &(ml_st_layout){ .n = l.n, .tensor = l.t }, err);
    if (st != ML_OK)
        return st;
    st = each_tensor(s, write_tensor, &w, err);
    if (st == ML_OK)
        return ml_st_commit(w.out, err);
    ml_st_abort(w.out);
    return st;
}

/* --- the directory ---------------------------------------------------------- */

static ml_status write_text(ml_saver *s, const char *dir, const char *name,
                            const ml_text *text, ml_err *err) {
    return ml_file_replace(ml_arena_printf(&s->arena, "%s/%s", dir, name),
                           (ml_str){ text->ptr, text->len }, err);
}

static ml_status write_sums(ml_saver *s, const char *dir, ml_err *err) {
    ml_names names;
    ml_text sums = { 0 };
    ml_status st = ml_dir_list(&names, dir, &s->arena, err);

    for (int32_t i = 0; i < names.n && st == ML_OK; i++)
        if (strcmp(names.name[i], ML_SNAPSHOT_SUMS) != 0)
            st = ml_snapshot_sum(&sums, dir, names.name[i], err);
    if (st == ML_OK)
        st = write_text(s, dir, ML_SNAPSHOT_SUMS, &sums, err);
    ml_text_release(&sums);
    return st;
}

static ml_status write_files(ml_saver *s, const char *dir, ml_err *err) {
    ml_export_opts hf = { .dir = dir, .keep_dtype = true };
    ml_status st = ml_dir_make(dir, err);

    if (st == ML_OK)
        st = ml_export_hf(&s->image.weights, s->image.spec, s->opts.from, &hf, err);
    if (st == ML_OK)
        st = write_tensors(s, dir, err);
    if (st == ML_OK)
        st = write_text(s, dir, ML_SNAPSHOT_STATE, &s->state, err);
    if (st == ML_OK)
        st = write_sums(s, dir, err);
    return st == ML_OK ? ml_dir_sync(dir, err) : st;
}

/* One of the same number is there when a run was resumed before it: the two change places in
 * one call, so that at no moment there is none. */
static ml_status put_in_place(const char *temp, const char *path, ml_err *err) {
    struct stat sb;
    bool replace = stat(path, &sb) == 0;
    int failed = replace ? renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_EXCHANGE)
                         : rename(temp, path);

    if (failed)
        return ml_fail(err, ML_EIO, "%s: cannot be renamed to %s: %s", temp, path,
                       strerror(errno));
    return replace ? ml_dir_remove(temp, err) : ML_OK;
}

/* The number of "iter_0000012", or ML_NONE for any other name. */
static int64_t number_of(const char *name) {
    char *end;
    long long n;

    if (strncmp(name, "iter_", 5) != 0 || name[5] < '0' || name[5] > '9')
        return ML_NONE;
    n = strtoll(name + 5, &end, 10);
    return *end ? ML_NONE : n;
}

/* A directory that is being removed must not look like a snapshot. */
static ml_status remove_snapshot(ml_saver *s, const char *name, ml_err *err) {
    const char *path = ml_arena_printf(&s->arena, "%s/%s", s->opts.dir, name);
    const char *temp = ml_arena_printf(&s->arena, "%s" TEMP "old", path);

    if (rename(path, temp) != 0)
        return ml_fail(err, ML_EIO, "%s: cannot be renamed to %s: %s", path, temp,
                       strerror(errno));
    return ml_dir_remove(temp, err);
}

static ml_status remove_older(ml_saver *s, ml_err *err) {
    ml_names names;
    ml_status st;
    int32_t n_kept = 0;

    if (!s->opts.keep_last)
        return ML_OK;
    st = ml_dir_list(&names, s->opts.dir, &s->arena, err);
    for (int32_t i = names.n - 1; i >= 0 && st == ML_OK; i--) {
        int64_t n = number_of(names.name[i]);
        if (n == ML_NONE || n > s->iteration)
            continue;
        if (n_kept++ >= s->opts.keep_last)
            st = remove_snapshot(s, names.name[i], err);
    }
    return st;
}

static ml_status write_snapshot(void *ud, ml_err *err) {
    ml_saver *s = ud;
    const char *path = ml_snapshot_path(&s->arena, s->opts.dir, s->iteration);
    const char *temp = ml_arena_printf(&s->arena, "%s" TEMP "%ld", path, (long)getpid());
    ml_text number = { 0 };
    ml_status st = write_files(s, temp, err);

    if (st == ML_OK)
        st = put_in_place(temp, path, err);
    else
        ml_dir_remove(temp, NULL);
    if (st == ML_OK)
        st = ml_dir_sync(s->opts.dir, err);
    ml_text_printf(&number, "%lld", (long long)s->iteration);
    if (st == ML_OK)
        st = write_text(s, s->opts.dir, ML_SNAPSHOT_TRACKER, &number, err);
    ml_text_release(&number);
    return st == ML_OK ? remove_older(s, err) : st;
}

/* --- life ------------------------------------------------------------------- */

static ml_status remove_leftovers(ml_saver *s, ml_err *err) {
    ml_names names;
    ml_status st = ml_dir_list(&names, s->opts.dir, &s->arena, err);

    for (int32_t i = 0; i < names.n && st == ML_OK; i++)
        if (strncmp(names.name[i], "iter_", 5) == 0 && strstr(names.name[i], TEMP))
            st = ml_dir_remove(
                ml_arena_printf(&s->arena, "%s/%s", s->opts.dir, names.name[i]), err);
    return st;
}

ml_status ml_saver_open(ml_saver **out, const ml_saver_opts *opts, ml_err *err) {
    ml_saver *s = calloc(1, sizeof *s);
    ml_status st;

    if (!s)
        return ml_fail(err, ML_ENOMEM, "no memory for a saver");
    s->opts = *opts;
    ml_arena_init(&s->arena, "a save");
    st = ml_dir_make(opts->dir, err);
    if (st == ML_OK)
        st = remove_leftovers(s, err);
    if (st == ML_OK)
        *out = s;
    else
        ml_saver_close(s);
    return st;
}

static void describe(ml_saver *s, const ml_save_state *state) {
    s->state.len = 0;
    ml_text_printf(&s->state,
                   "{\n \"iteration\": %lld,\n \"optimizer_step\": %lld,\n \"samples\": "
                   "%lld,\n \"weight_version\": %llu,\n",
                   (long long)state->iteration, (long long)s->image.n_step,
                   (long long)s->image.n_sample,
                   (unsigned long long)s->image.weights.version);
    ml_text_printf(&s->state, " \"data\": %.*s,\n \"config\": %.*s\n}\n",
                   (int)state->data.len, state->data.ptr, (int)state->config.len,
                   state->config.ptr);
}

ml_status ml_saver_save(ml_saver *s, ml_trainer *t, const ml_save_state *state,
                        ml_err *err) {
    ml_status st = ml_saver_wait(s, err);

    if (st != ML_OK)
        return st;
    ml_arena_release(&s->arena);
    ml_arena_init(&s->arena, "a save");
    s->image = image_of(t);
    s->iteration = state->iteration;
    describe(s, state);
    if (!s->opts.async)
        return write_snapshot(s, err);
    st = copy_image(s, ml_trainer_optimizer(t)->be, err);
    return st == ML_OK ? ml_background_start(&s->job, write_snapshot, s, err) : st;
}

ml_status ml_saver_wait(ml_saver *s, ml_err *err) {
    return ml_background_wait(&s->job, err);
}

void ml_saver_close(ml_saver *s) {
    if (!s)
        return;
    ml_saver_wait(s, NULL);
    ml_text_release(&s->state);
    free(s->stage);
    ml_arena_release(&s->arena);
    free(s);
}
