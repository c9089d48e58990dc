#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/json.h"
#include "base/log.h"
#include "train/snapshot_priv.h"

#define PIECE_VALUES ((int64_t)1 << 18)

/* --- checksums -------------------------------------------------------------- */

ml_str ml_snapshot_listed(ml_str line) {
    for (int i = 0; i < 2 && line.len; i++) {
        const char *space = memchr(line.ptr, ' ', line.len);
        size_t n = space ? (size_t)(space - line.ptr) + 1 : line.len;
        line = (ml_str){ line.ptr + n, line.len - n };
    }
    return line;
}

static ml_status check_line(const char *path, ml_str line, const char *name, ml_err *err) {
    ml_text found = { 0 };
    ml_status st = ml_snapshot_sum(&found, path, name, err);

    if (st == ML_OK && (found.len != line.len + 1 || memcmp(found.ptr, line.ptr, line.len)))
        st = ml_fail(err, ML_EFORMAT,
                     "%s/%s is damaged: checksum or size differ from those it was saved "
                     "with; load an older snapshot with --ckpt-step",
                     path, name);
    ml_text_release(&found);
    return st;
}

/* The files of the directory, and which of them the checksums list. */
typedef struct listing {
    ml_names names;
    bool *seen; /* [names.n] */
} listing;

/* Finds the name at the end of a line among the files; no file may be listed twice. */
static ml_status find_listed(listing *l, int32_t *out, const char *path, ml_str line,
                             ml_err *err) {
    ml_str name = ml_snapshot_listed(line);

    for (*out = 0; *out < l->names.n; ++*out)
        if (ml_str_is(name, l->names.name[*out]) && !l->seen[*out])
            return ML_OK;
    return ml_fail(err, ML_EFORMAT,
                   "%s/" ML_SNAPSHOT_SUMS
                   " lists \"%.*s\", which is not a file of the snapshot, or is listed "
                   "twice: the snapshot is damaged; load another one with --ckpt-step",
                   path, (int)name.len, name.ptr);
}

static ml_status check_lines(const char *path, ml_str sums, listing *l, ml_err *err) {
    ml_status st = ML_OK;

    for (size_t at = 0, n; st == ML_OK && at < sums.len; at += n + 1) {
        const char *end = memchr(sums.ptr + at, '\n', sums.len - at);
        ml_str line;
        int32_t i;
        n = end ? (size_t)(end - sums.ptr) - at : sums.len - at;
        line = (ml_str){ sums.ptr + at, n };
        st = find_listed(l, &i, path, line, err);
        if (st == ML_OK)
            st = check_line(path, line, l->names.name[i], err);
        if (st == ML_OK)
            l->seen[i] = true;
    }
    for (int32_t i = 0; i < l->names.n && st == ML_OK; i++)
        if (!l->seen[i] && strcmp(l->names.name[i], ML_SNAPSHOT_SUMS) != 0)
            st = ml_fail(err, ML_EFORMAT,
                         "%s/%s is not listed in " ML_SNAPSHOT_SUMS
                         ": move it out of the snapshot, or load another one with "
                         "--ckpt-step",
                         path, l->names.name[i]);
    return st;
}

ml_status ml_snapshot_check(const char *path, ml_err *err) {
    ml_text name = { 0 };
    ml_file f = { 0 };
    listing l = { 0 };
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "files of a snapshot");
    ml_text_printf(&name, "%s/%s", path, ML_SNAPSHOT_SUMS);
    st = ml_snapshot_files(&l.names, path, &a, err);
    if (st == ML_OK)
        st = ml_file_map(&f, name.ptr, err);
    if (st == ML_OK) {
        l.seen = ML_NEW(&a, bool, l.names.n + 1);
        st = check_lines(path, f.bytes, &l, err);
    }
    ml_file_unmap(&f);
    ml_text_release(&name);
    ml_arena_release(&a);
    return st;
}

/* --- tensors ---------------------------------------------------------------- */

/* The rows of a tensor of the file that are in the strip, into the set. */
static void load_strip(const ml_weights *w, int32_t i, const ml_strip *s,
                       const ml_st_tensor *t, float *piece) {
    int64_t cols = w->t[i].shape[1], step = PIECE_VALUES / cols;

    step = step < 1 ? 1 : step;
    for (int64_t r = 0; r < s->n; r += step) {
        int64_t n = s->n - r < step ? s->n - r : step;
        memcpy(piece, (const char *)t->data + (size_t)((s->row + r) * cols) * sizeof *piece,
               (size_t)(n * cols) * sizeof *piece);
        ml_weights_pack(w, i, 0, s->at + r, n, piece);
    }
}

static ml_status check_tensor(const ml_param *p, const ml_st_file *f, const ml_st_tensor *t,
                              ml_err *err) {
    if (t->dtype == ML_ST_F32 && t->n_dim == p->n_dim && t->shape[0] == p->shape[0] &&
        (p->n_dim == 1 || t->shape[1] == p->shape[1]))
        return ML_OK;
    return ml_fail(err, ML_EFORMAT,
                   "%s: the shape or dtype of tensor %s differs from the model's", f->path,
                   t->name.ptr);
}

static int64_t widest(const ml_spec *s) {
    int64_t most = PIECE_VALUES;
    for (int32_t i = 0; i < s->n_param; i++) {
        const ml_param *p = &s->param[i];
        int64_t cols = p->n_dim == 2 ? p->shape[1] : p->shape[0];
        most = cols > most ? cols : most;
    }
    return most;
}

/* Explains why a tensor of the set is missing. */
static const char *why_missing(int k) {
    return k == ML_STATE_REFERENCE
               ? "the run that saved it had no --ref-update-interval"
               : "the run that saved it had another --optimizer or --freeze, or "
                 "--no-save-optim: restart the optimizer with --no-load-optim";
}

/* A set to load: matrices of rows (ml_shard_view), a range of each parameter. */
typedef struct destination {
    ml_weights w;
    const ml_shard_range *range; /* [n_param] */
} destination;

static ml_param param_of(int k, const ml_optimizer *o, int32_t i) {
    return k == ML_STATE_REFERENCE ? o->spec->param[i] : ml_optimizer_state_param(o, k, i);
}

/* A strip of the set.  Masters may be missing: then the checkpoint's weights are exact. */
static ml_status load_tensor(int k, const destination *d, const ml_optimizer *o, int32_t i,
                             const ml_strip *s, const ml_st_file *f, float *piece,
                             ml_err *err) {
    const ml_param p = param_of(k, o, i);
    const ml_st_tensor *t;
    char name[600];
    ml_status st;

    ml_snapshot_tensor(name, sizeof name, k, &p, s->member);
    t = ml_st_find(f, ml_str_of(name));
    if (!t && k == ML_STATE_MASTER)
        return ML_OK;
    if (!t)
        return ml_fail(err, ML_EFORMAT, "%s: tensor %s is missing: %s", f->path, name,
                       why_missing(k));
    st = check_tensor(&p, f, t, err);
    if (st == ML_OK) {
        load_strip(&d->w, i, s, t, piece);
        ml_st_forget(f, t); /* drop the file's pages: keeping them would hold the state
                               twice */
    }
    return st;
}

static ml_status load_param(int k, const destination *d, const ml_optimizer *o, int32_t i,
                            const ml_st_file *f, float *piece, ml_err *err) {
    const ml_param p = param_of(k, o, i);
    ml_status st = ML_OK;
    ml_strip s = { 0 };

    while (st == ML_OK && d->w.t[i].data &&
           ml_strip_next(&s, &p, o->be->linear, d->range[i]))
        st = load_tensor(k, d, o, i, &s, f, piece, err);
    return st;
}

/* A moment that is stored in another format than f32: from f32. */
static ml_status load_converted(int k, const destination *d, ml_optimizer *o, int32_t i,
                                const ml_st_file *f, float *piece, ml_err *err) {
    const ml_param p = param_of(k, o, i);
    ml_tensor whole = ml_weights_tensor(&p, ML_F32, o->be->linear);
    float *data = calloc((size_t)d->range[i].n + 1, sizeof *data);
    destination wide = *d;
    ml_status st;
    ml_arena a;

    if (!data)
        return ml_fail(err, ML_ENOMEM, "out of memory for reading %s", f->path);
    ml_arena_init(&a, "a moment");
    whole.data = data;
    wide.w.t = ML_NEW(&a, ml_tensor, d->w.n);
    wide.w.t[i] = ml_shard_view(&whole, (ml_shard_range){ 0, d->range[i].n });
    st = load_param(k, &wide, o, i, f, piece, err);
    if (st == ML_OK)
        ml_optimizer_store_state(o, k, i, data);
    ml_arena_release(&a);
    free(data);
    return st;
}

static ml_status load_set(int k, const destination *d, ml_optimizer *o, const ml_st_file *f,
                          float *piece, ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0; i < d->w.n && st == ML_OK; i++)
        if (k != ML_STATE_REFERENCE && d->w.t[i].data && ml_optimizer_converts(o, k, i))
            st = load_converted(k, d, o, i, f, piece, err);
        else
            st = load_param(k, d, o, i, f, piece, err);
    return st;
}

/* This rank's ranges of the state, or all of a set that every rank has. */
static destination own_ranges(const ml_optimizer *o, int k, const ml_weights *w,
                              ml_arena *a) {
    ml_shard_range *range = ML_NEW(a, ml_shard_range, w->n + 1);

    for (int32_t i = 0; i < w->n; i++)
        range[i] = ml_optimizer_state_range(o, k, i, o->ranks.comm->rank);
    return (destination){ *w, range };
}

static destination everything(const ml_weights *w, const bool *skip, ml_arena *a) {
    ml_shard_range *range = ML_NEW(a, ml_shard_range, w->n + 1);
    destination d = { *w, range };

    d.w.t = ML_NEW(a, ml_tensor, w->n + 1);
    for (int32_t i = 0; i < w->n; i++) {
        if (skip && skip[i])
            continue;
        range[i] = ml_weights_range(w, i);
        d.w.t[i] = ml_weights_view(w, i, range[i]);
    }
    return d;
}

static ml_status open_tensors(ml_st_file **out, const char *name, ml_err *err) {

    if (access(name, F_OK) != 0)
        return ml_fail(err, ML_EIO,
                       "%s does not exist: the snapshot was saved with --no-save-optim; "
                       "restart the optimizer with --no-load-optim",
                       name);
    return ml_st_open(out, name, err);
}

/* The state of an optimizer, unless no_optim, and a reference, unless it is NULL. */
static ml_status load_tensors(const char *path, ml_optimizer *o, ml_weights *ref,
                              bool no_optim, ml_arena *a, ml_err *err) {
    destination set[ML_STATE_SETS] = { 0 };
    float *piece;
    ml_st_file *f = NULL;
    ml_status st;

    if (ref)
        set[ML_STATE_REFERENCE] = everything(ref, NULL, a);
    if (!no_optim) {
        set[ML_STATE_MASTER] = o->own_master ? own_ranges(o, ML_STATE_MASTER, &o->master, a)
                                             : everything(o->weights, o->frozen, a);
        set[ML_STATE_MOMENT1] = own_ranges(o, ML_STATE_MOMENT1, &o->moment1, a);
        set[ML_STATE_MOMENT2] = own_ranges(o, ML_STATE_MOMENT2, &o->moment2, a);
    } else if (!ref) {
        return ML_OK;
    }
    piece = malloc((size_t)widest(o->spec) * sizeof *piece);
    if (!piece)
        return ml_fail(err, ML_ENOMEM, "out of memory for reading %s", path);
    st = open_tensors(&f, path, err);
    for (int k = 0; k < ML_STATE_SETS && st == ML_OK; k++)
        st = load_set(k, &set[k], o, f, piece, err);
    ml_st_close(f);
    free(piece);
    return st;
}

/* Of a run that did not train the module there is no state: it begins. */
static ml_status load_mtp(const char *path, const ml_snapshot_into *into, ml_arena *a,
                          ml_err *err) {
    ml_mtp_trainer *m = ml_trainer_mtp(into->trainer);
    const char *name = ml_arena_printf(a, "%s/" ML_SNAPSHOT_MTP, path);

    if (!m || into->no_optim)
        return ML_OK;
    if (access(name, F_OK) != 0) {
        ml_log(ML_LOG_WARN,
               "%s does not exist: the optimizer of the module that drafts begins", name);
        return ML_OK;
    }
    return load_tensors(name, &m->optimizer, NULL, false, a, err);
}

/* --- counters --------------------------------------------------------------- */

static ml_status number(int64_t *out, const ml_json *state, const char *key,
                        const char *path, ml_err *err) {
    if (ml_json_i64(ml_json_get(state, key), out) && *out >= 0)
        return ML_OK;
    return ml_fail(err, ML_EFORMAT, "%s: expected a whole number as \"%s\"", path, key);
}

static ml_str span(const ml_json *v, ml_str src) {
    return v ? (ml_str){ src.ptr + v->begin, v->end - v->begin } : (ml_str){ "{}", 2 };
}

static ml_status load_state(const char *path, const ml_snapshot_into *into,
                            ml_save_state *out, ml_arena *a, ml_err *err) {
    const char *name = ml_arena_printf(a, "%s/%s", path, ML_SNAPSHOT_STATE);
    ml_optimizer *o = ml_trainer_optimizer(into->trainer);
    const ml_json *state = NULL;
    int64_t n_sample = 0, version = 0;
    ml_file f = { 0 };
    ml_str src;
    ml_status st = ml_file_map(&f, name, err);

    if (st != ML_OK)
        return st;
    src = (ml_str){ ml_arena_str(a, f.bytes.ptr, f.bytes.len), f.bytes.len };
    ml_file_unmap(&f);
    st = ml_json_parse(&state, a, src, name, err);
    if (st == ML_OK)
        st = number(&out->iteration, state, "iteration", name, err);
    if (st == ML_OK)
        st = number(&o->n_step, state, "optimizer_step", name, err);
    if (st == ML_OK)
        st = number(&n_sample, state, "samples", name, err);
    if (st == ML_OK)
        st = number(&version, state, "weight_version", name, err);
    if (st != ML_OK)
        return st;
    if (into->no_optim)
        o->n_step = 0;
    if (ml_trainer_mtp(into->trainer) && !into->no_optim &&
        ml_json_get(state, "mtp_optimizer_step")) {
        st = number(&ml_trainer_mtp(into->trainer)->optimizer.n_step, state,
                    "mtp_optimizer_step", name, err);
        if (st != ML_OK)
            return st;
    }
    ml_trainer_set_samples(into->trainer, n_sample);
    ml_trainer_set_version(into->trainer, (uint64_t)version);
    out->data = span(ml_json_get(state, "data"), src);
    out->config = span(ml_json_get(state, "config"), src);
    return ML_OK;
}

ml_status ml_snapshot_load(const char *path, const ml_snapshot_into *into,
                           ml_save_state *state, ml_arena *a, ml_err *err) {
    ml_status st = load_tensors(ml_arena_printf(a, "%s/" ML_SNAPSHOT_TENSORS, path),
                                ml_trainer_optimizer(into->trainer), into->ref,
                                into->no_optim, a, err);

    if (st == ML_OK)
        st = load_mtp(path, into, a, err);
    return st == ML_OK ? load_state(path, into, state, a, err) : st;
}
