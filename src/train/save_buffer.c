#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "model/source.h"
#include "train/snapshot_priv.h"

#define PIECE_BYTES ((size_t)1 << 20)

/* --- view and copy ---------------------------------------------------------- */

/* The tensors of parameters that are trained, as matrices of rows. */
static ml_weights rows_of(const ml_weights *w, const bool *skip, ml_arena *a) {
    ml_weights out = *w;

    out.t = ML_NEW(a, ml_tensor, w->n + 1);
    for (int32_t i = 0; i < w->n; i++)
        if (!skip || !skip[i])
            out.t[i] = ml_shard_view(&w->t[i], ml_shard_range_whole(&w->t[i]));
    return out;
}

/* What this rank owns of each parameter of a set, as rows. */
static ml_weights owned_of(const ml_optimizer *o, const ml_weights *w, ml_arena *a) {
    ml_weights out = *w;

    out.t = ML_NEW(a, ml_tensor, w->n + 1);
    for (int32_t i = 0; i < w->n; i++)
        out.t[i] = ml_weights_view(w, i, ml_shard_owned(&o->map, i, o->ranks.comm->rank));
    return out;
}

void ml_save_buffer_take(ml_save_buffer *m, ml_optimizer *o, const ml_lora *lora,
                         const ml_checkpoint *from, const ml_weights *ref, bool optim,
                         ml_arena *a) {
    bool several = o->ranks.comm->size > 1;
    ml_save_buffer now = { .spec = o->spec,
                           .lora = lora,
                           .file = ML_SNAPSHOT_TENSORS,
                           .from = from,
                           .optim = o,
                           .weights = *o->weights,
                           .own_master = o->own_master,
                           .n_step = o->n_step,
                           .stage = m->stage,
                           .stage_bytes = m->stage_bytes,
                           .space = m->space,
                           .space_bytes = m->space_bytes };

    if (optim) {
        now.set[ML_STATE_MASTER] =
            several || o->own_master ? o->master : rows_of(o->weights, o->frozen, a);
        now.set[ML_STATE_MOMENT1] = o->moment1;
        now.set[ML_STATE_MOMENT2] = o->moment2;
        now.divided[ML_STATE_MASTER] = several;
        now.divided[ML_STATE_MOMENT1] = several || o->opts.rule.format1 != ML_MOMENT_F32;
        now.divided[ML_STATE_MOMENT2] = several || o->opts.rule.format2 != ML_MOMENT_F32;
    }
    if (ref) {
        now.divided[ML_STATE_REFERENCE] = ref->range != NULL;
        now.set[ML_STATE_REFERENCE] =
            ref->range ? owned_of(o, ref, a) : rows_of(ref, NULL, a);
    }
    *m = now;
}

void ml_save_buffer_take_mtp(ml_save_buffer *m, ml_mtp_trainer *t,
                             const ml_checkpoint *from, bool optim, ml_arena *a) {
    ml_tensor *own = ML_NEW(a, ml_tensor, t->spec.n_param);

    ml_save_buffer_take(m, &t->optimizer, NULL, t->head ? t->head : from, NULL, optim, a);
    m->file = ML_SNAPSHOT_MTP;
    for (int32_t i = 0; i < t->spec.n_param; i++)
        if (t->weights.range[i].n)
            own[i] = t->weights.t[i];
    m->weights.t = own;
    m->weights.range = NULL; /* every rank has all of its own */
}

static bool writes(const ml_save_buffer *m) {
    return m->optim->ranks.comm->rank == 0;
}

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

/* A parameter's state in a set as a parameter. */
static ml_param state_param(const ml_save_buffer *m, int k, int32_t i) {
    return k == ML_STATE_REFERENCE ? m->spec->param[i]
                                   : ml_optimizer_state_param(m->optim, k, i);
}

/* Whether a parameter has state in a set. */
static bool has_state(const ml_save_buffer *m, int k, int32_t i) {
    if (m->divided[k])
        return k == ML_STATE_REFERENCE ||
               (!m->optim->frozen[i] && state_param(m, k, i).n_stack);
    return m->set[k].t[i].data != NULL;
}

/* All rows of a parameter's state; of a divided set, without data. */
static ml_tensor whole_rows(const ml_save_buffer *m, int k, int32_t i) {
    const ml_optimizer *o = m->optim;
    const ml_param p = state_param(m, k, i);
    ml_tensor t;

    if (!m->divided[k])
        return m->set[k].t[i];
    t = ml_weights_tensor(&p, k == ML_STATE_REFERENCE ? m->set[k].t[i].dtype : ML_F32,
                          o->be->linear);
    return ml_shard_view(&t, ml_shard_range_whole(&t));
}

static ml_status fetch(const ml_save_buffer *m, int k, int32_t i, void *to, ml_err *err) {
    const ml_optimizer *o = m->optim;
    bool is_weight = k == ML_STATE_REFERENCE || (k == ML_STATE_MASTER && !o->own_master);
    ml_tensor mine = m->set[k].t[i];

    if (k == ML_STATE_MOMENT1 || k == ML_STATE_MOMENT2)
        return ml_optimizer_collect_state(o, k, i, to, err);
    if (k != ML_STATE_REFERENCE)
        mine.dtype = ML_F32; /* also of a rank that owns nothing of it */
    return ml_optimizer_collect(o, i, &mine, o->buf.dev || is_weight ? o->be->stream : NULL,
                                to, err);
}

/* Bytes of all rows of a set. */
static size_t set_bytes(const ml_save_buffer *m, int k) {
    size_t bytes = 0;
    for (int32_t i = 0; i < m->set[k].n; i++) {
        ml_tensor t = whole_rows(m, k, i);
        bytes += has_state(m, k, i) ? align64(ml_tensor_bytes(&t)) : 0;
    }
    return bytes;
}

static ml_status copy_set(ml_save_buffer *m, int k, ml_arena *a, unsigned char **at,
                          ml_err *err) {
    ml_backend *be = m->optim->be;
    ml_tensor *t = ML_NEW(a, ml_tensor, m->set[k].n + 1);
    ml_status st = ML_OK;

    for (int32_t i = 0; i < m->set[k].n && st == ML_OK; i++) {
        if (!has_state(m, k, i))
            continue;
        t[i] = whole_rows(m, k, i);
        if (m->divided[k])
            st = fetch(m, k, i, *at, err);
        else if (writes(m))
            be->dev->copy_out(be->stream, *at, t[i].data, ml_tensor_bytes(&t[i]));
        t[i].data = *at;
        *at += writes(m) ? align64(ml_tensor_bytes(&t[i])) : 0;
    }
    m->set[k].t = t;
    m->set[k].be = NULL; /* in host memory */
    m->divided[k] = false;
    return st;
}

static bool has_parts(const ml_save_buffer *m) {
    return m->weights.range != NULL;
}

static ml_tensor whole_weight(const ml_save_buffer *m, int32_t i) {
    const ml_tensor *t = &m->weights.t[i];
    return has_parts(m)
               ? ml_weights_tensor(&m->spec->param[i], t->dtype, m->optim->be->linear)
               : *t;
}

static ml_status copy_weights(ml_save_buffer *m, ml_arena *a, unsigned char **at,
                              ml_err *err) {
    const ml_optimizer *o = m->optim;
    ml_tensor *t = ML_NEW(a, ml_tensor, m->weights.n + 1);
    ml_status st = ML_OK;

    for (int32_t i = 0; i < m->weights.n && st == ML_OK; i++) {
        ml_shard_range own = ml_shard_owned(&o->map, i, o->ranks.comm->rank);
        ml_tensor mine = ml_weights_view(&m->weights, i, own);
        t[i] = whole_weight(m, i);
        if (has_parts(m))
            st = ml_optimizer_collect(o, i, &mine, o->be->stream, *at, err);
        else if (writes(m))
            o->be->dev->copy_out(o->be->stream, *at, t[i].data, ml_tensor_bytes(&t[i]));
        t[i].data = *at;
        *at += writes(m) ? align64(ml_tensor_bytes(&t[i])) : 0;
    }
    m->weights.t = t;
    m->weights.be = NULL; /* in host memory */
    m->weights.range = NULL;
    return st;
}

static ml_status grow_stage(ml_save_buffer *m, bool all, ml_err *err) {
    size_t bytes = 0;

    for (int32_t i = 0; i < m->weights.n; i++) {
        ml_tensor t = whole_weight(m, i);
        bytes += align64(ml_tensor_bytes(&t));
    }
    for (int k = 0; k < ML_STATE_SETS && all; k++)
        bytes += set_bytes(m, k);
    if (bytes > m->stage_bytes) {
        free(m->stage);
        m->stage = malloc(bytes);
        m->stage_bytes = m->stage ? bytes : 0;
    }
    if (!m->stage)
        return ml_fail(err, ML_ENOMEM, "out of memory for a save buffer of %.1f GiB%s",
                       (double)bytes / 0x1p30, all ? ": remove --async-save" : "");
    return ML_OK;
}

/* all: the optimizer's state and the reference, too. */
static ml_status copy(ml_save_buffer *m, bool all, ml_arena *a, ml_err *err) {
    ml_status st = writes(m) ? grow_stage(m, all, err) : ML_OK;
    unsigned char *at = m->stage;

    st = ml_ranks_agree(&m->optim->ranks, st, err);
    if (st == ML_OK)
        st = copy_weights(m, a, &at, err);
    for (int k = 0; k < ML_STATE_SETS && st == ML_OK && all; k++)
        st = copy_set(m, k, a, &at, err);
    return st == ML_OK ? m->optim->be->dev->sync(m->optim->be->stream, err) : st;
}

ml_status ml_save_buffer_copy(ml_save_buffer *m, ml_arena *a, ml_err *err) {
    return copy(m, true, a, err);
}

/* --- weights tensor by tensor ------------------------------------------------ */

/* A tensor that rank 0 asks for: a member of a parameter; ML_NONE: all members.  param
 * ML_NONE: it needs no more. */
typedef struct request {
    int32_t param, member;
} request;

static ml_status reserve(ml_save_buffer *m, size_t bytes, ml_err *err) {
    void *p;

    if (bytes <= m->space_bytes)
        return ML_OK;
    if (m->space)
        munmap(m->space, m->space_bytes);
    m->space = NULL;
    m->space_bytes = 0;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE,
             MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (p == MAP_FAILED)
        return ml_fail(err, ML_ENOMEM,
                       "cannot reserve %.1f GiB of addresses for a save: %s",
                       (double)bytes / 0x1p30, strerror(errno));
    m->space = p;
    m->space_bytes = bytes;
    return ML_OK;
}

static ml_status stream_weights(ml_save_buffer *m, ml_arena *a, ml_err *err) {
    ml_tensor *t = ML_NEW(a, ml_tensor, m->weights.n + 1);
    size_t bytes = 0;
    ml_status st;

    for (int32_t i = 0; i < m->weights.n; i++) {
        t[i] = whole_weight(m, i);
        bytes += align64(ml_tensor_bytes(&t[i]));
    }
    st = writes(m) ? reserve(m, bytes, err) : ML_OK;
    bytes = 0;
    for (int32_t i = 0; i < m->weights.n && st == ML_OK; i++) {
        t[i].data = writes(m) ? (char *)m->space + bytes : NULL;
        bytes += align64(ml_tensor_bytes(&t[i]));
    }
    m->streamed = true;
    m->parts = m->weights;
    m->weights.t = t;
    m->weights.be = NULL; /* in host memory */
    m->weights.range = NULL;
    return ml_ranks_agree(&m->optim->ranks, st, err);
}

/* An adapter is small. */
ml_status ml_save_buffer_fetch(ml_save_buffer *m, ml_arena *a, ml_err *err) {
    if (!has_parts(m))
        return ML_OK;
    return m->lora ? copy(m, false, a, err) : stream_weights(m, a, err);
}

/* Rank 0 says what it asks for; the others listen. */
static ml_status say(ml_save_buffer *m, request *q, ml_err *err) {
    ml_comm *c = m->optim->ranks.comm;
    ml_tensor t = ml_comm_bytes(q, sizeof *q);

    return c->bcast(c, NULL, &t, 0, err);
}

/* The elements of a request. */
static ml_shard_range range_of(const ml_save_buffer *m, request q) {
    const ml_tensor *t = &m->weights.t[q.param];
    ml_shard_range r = ml_shard_range_whole(t);

    if (q.member != ML_NONE) {
        r.n /= m->spec->param[q.param].n_stack;
        r.begin = q.member * r.n;
    }
    return r;
}

typedef ml_status request_fn(ml_save_buffer *m, request q, ml_err *err);

static ml_status each_request(ml_save_buffer *m, const ml_named *t, request_fn *fn,
                              ml_err *err) {
    ml_status st = ML_OK;

    if (t->member != ML_NONE)
        return fn(m, (request){ t->param, t->member }, err);
    for (int32_t i = t->param; i != ML_NONE && st == ML_OK;
         i = m->spec->param[i].part->next)
        st = fn(m, (request){ i, ML_NONE }, err);
    return st;
}

static ml_status collect_request(ml_save_buffer *m, request q, ml_err *err) {
    ml_optimizer *o = m->optim;
    ml_shard_range own = ml_shard_owned(&o->map, q.param, o->ranks.comm->rank);
    ml_tensor mine = ml_weights_view(&m->parts, q.param, own);

    mine.dtype = m->weights.t[q.param].dtype; /* also of a rank that has nothing of it */
    return ml_optimizer_collect_part(o, q.param, range_of(m, q), &mine, o->be->stream,
                                     m->weights.t[q.param].data, err);
}

static ml_status ask(ml_save_buffer *m, request q, ml_err *err) {
    ml_status st = say(m, &q, err);
    return st == ML_OK ? collect_request(m, q, err) : st;
}

/* Gives the memory of what was written back: the pages that are inside. */
static ml_status drop(ml_save_buffer *m, request q, ml_err *err) {
    ml_shard_range r = range_of(m, q);
    const ml_tensor *t = &m->weights.t[q.param];
    size_t size = ml_dtype_bytes(t->dtype), page = (size_t)sysconf(_SC_PAGESIZE);
    size_t first = (size_t)((char *)t->data - (char *)m->space) + (size_t)r.begin * size;
    size_t begin = (first + page - 1) / page * page;
    size_t end = (first + (size_t)r.n * size) / page * page;

    (void)err;
    if (begin < end)
        madvise((char *)m->space + begin, end - begin, MADV_DONTNEED);
    return ML_OK;
}

static void drop_last(ml_save_buffer *m) {
    if (m->last.name)
        each_request(m, &m->last, drop, NULL);
    m->last.name = NULL;
}

ml_status ml_save_buffer_bring(void *ud, const ml_named *t, ml_err *err) {
    ml_save_buffer *m = ud;
    ml_device *dev = m->optim->be->dev;
    ml_status st;

    drop_last(m);
    m->last = *t;
    st = each_request(m, t, ask, err);
    return st == ML_OK ? dev->sync(m->optim->be->stream, err) : st;
}

ml_status ml_save_buffer_end(ml_save_buffer *m, ml_err *err) {
    drop_last(m);
    return m->streamed ? say(m, &(request){ ML_NONE, ML_NONE }, err) : ML_OK;
}

ml_status ml_save_buffer_serve(ml_save_buffer *m, ml_err *err) {
    ml_status st = ML_OK;
    request q = { 0 };

    while (m->streamed && st == ML_OK && q.param != ML_NONE) {
        st = say(m, &q, err);
        if (st == ML_OK && q.param != ML_NONE)
            st = collect_request(m, q, err);
    }
    return st;
}

void ml_save_buffer_release(ml_save_buffer *m) {
    free(m->stage);
    if (m->space)
        munmap(m->space, m->space_bytes);
    *m = (ml_save_buffer){ 0 };
}

/* --- tensors ---------------------------------------------------------------- */

/* A file being written. */
typedef struct tensor_file {
    ml_save_buffer *image;
    ml_arena *arena;
    ml_st_tensor *t; /* [n] */
    int32_t n, at;
    ml_st_writer *out;
    float *piece;
    size_t piece_bytes;
    void *whole; /* a parameter's state from all ranks */
    size_t whole_bytes;
} tensor_file;

/* A master is stored if the checkpoint's copy of the weight loses bits. */
static bool stored(const ml_save_buffer *m, int k, int32_t i, int32_t e) {
    const ml_st_tensor *t;
    char name[512];

    if (!has_state(m, k, i))
        return false;
    if (k != ML_STATE_MASTER || m->own_master)
        return true;
    if (ml_param_is_value_head(&m->spec->param[i])) /* always f32 on disk */
        return false;
    if (m->lora) /* so are adapters */
        return false;
    t = ml_checkpoint_find(
        m->from, ml_str_of(ml_param_name(&m->spec->param[i], e, name, sizeof name)), NULL);
    return !t || t->dtype != ML_ST_F32;
}

/* Calls fn for every tensor of the file, in its order: a member of a parameter of set k,
 * and its rows. */
typedef ml_status each_fn(tensor_file *f, int k, int32_t i, const ml_strip *s, ml_err *err);

static ml_status each_tensor(tensor_file *f, each_fn *fn, ml_err *err) {
    const ml_save_buffer *m = f->image;
    ml_status st = ML_OK;

    for (int k = 0; k < ML_STATE_SETS; k++)
        for (int32_t i = 0; i < m->set[k].n && st == ML_OK; i++) {
            const ml_param p = state_param(m, k, i);
            ml_tensor rows = whole_rows(m, k, i);
            ml_strip s = { 0 };
            while (st == ML_OK && has_state(m, k, i) &&
                   ml_strip_next(&s, &p, m->optim->be->linear, ml_shard_range_whole(&rows)))
                if (stored(m, k, i, s.member))
                    st = fn(f, k, i, &s, err);
        }
    return st;
}

static ml_status count_tensor(tensor_file *f, int k, int32_t i, const ml_strip *s,
                              ml_err *err) {
    (void)k, (void)i, (void)s, (void)err;
    f->n++;
    return ML_OK;
}

static ml_status declare_tensor(tensor_file *f, int k, int32_t i, const ml_strip *s,
                                ml_err *err) {
    const ml_param p = state_param(f->image, k, i);
    char name[600];

    (void)err;
    ml_snapshot_tensor(name, sizeof name, k, &p, s->member);
    f->t[f->at++] =
        (ml_st_tensor){ .name = ml_str_of(ml_arena_printf(f->arena, "%s", name)),
                        .dtype = ML_ST_F32,
                        .n_dim = p.n_dim,
                        .shape = { p.shape[0], p.n_dim == 2 ? p.shape[1] : 0 } };
    return ML_OK;
}

/* Gets a parameter of a divided set from all ranks. */
static ml_status fetch_whole(tensor_file *f, int k, int32_t i, ml_err *err) {
    ml_tensor rows = whole_rows(f->image, k, i);
    size_t bytes = ml_tensor_bytes(&rows);

    if (writes(f->image) && bytes > f->whole_bytes) {
        free(f->whole);
        f->whole = malloc(bytes);
        f->whole_bytes = f->whole ? bytes : 0;
        if (!f->whole)
            return ml_fail(err, ML_ENOMEM,
                           "out of memory for %.1f GiB of optimizer state of other ranks",
                           (double)bytes / 0x1p30);
    }
    return fetch(f->image, k, i, f->whole, err);
}

static void read_rows(const tensor_file *f, int k, int32_t i, int64_t row, int64_t n) {
    const ml_save_buffer *m = f->image;
    ml_tensor rows = whole_rows(m, k, i);
    ml_weights one = { .t = &rows, .n = 1 };

    if (m->divided[k]) {
        rows.data = f->whole;
        ml_weights_unpack(&one, 0, 0, row, n, ML_F32, f->piece);
    } else {
        ml_weights_unpack(&m->set[k], i, 0, row, n, ML_F32, f->piece);
    }
}

static ml_status write_tensor(tensor_file *f, int k, int32_t i, const ml_strip *s,
                              ml_err *err) {
    size_t row_bytes = (size_t)whole_rows(f->image, k, i).shape[1] * sizeof(float);
    int64_t step = (int64_t)(PIECE_BYTES / row_bytes);
    ml_status st = ML_OK;

    if (f->image->divided[k] && s->member == 0)
        st = fetch_whole(f, k, i, err);
    if (!writes(f->image))
        return st;
    step = step < 1 ? 1 : step;
    if ((size_t)step * row_bytes > f->piece_bytes) {
        f->piece_bytes = (size_t)step * row_bytes;
        f->piece = ml_arena_take(f->arena, 1, f->piece_bytes);
    }
    for (int64_t r = 0; r < s->n && st == ML_OK; r += step) {
        int64_t n = s->n - r < step ? s->n - r : step;
        read_rows(f, k, i, s->at + r, n);
        st = ml_st_write(f->out, f->at, (size_t)r * row_bytes, f->piece,
                         (size_t)n * row_bytes, err);
    }
    f->at++;
    return st;
}

static ml_status create_file(tensor_file *f, const char *dir, ml_err *err) {
    const char *path = ml_arena_printf(f->arena, "%s/%s", dir, f->image->file);

    f->t = ML_NEW(f->arena, ml_st_tensor, f->n);
    each_tensor(f, declare_tensor, err);
    f->at = 0;
    return ml_st_create(&f->out, path, &(ml_st_layout){ .n = f->n, .tensor = f->t }, err);
}

ml_status ml_save_buffer_write(ml_save_buffer *m, const char *dir, ml_arena *a,
                               ml_err *err) {
    tensor_file f = { .image = m, .arena = a };
    ml_status st = each_tensor(&f, count_tensor, err);

    if (f.n == 0)
        return st;
    if (writes(m))
        st = create_file(&f, dir, err);
    if (st == ML_OK)
        st = each_tensor(&f, write_tensor, err);
    free(f.whole);
    if (!f.out)
        return st;
    if (st == ML_OK)
        return ml_st_commit(f.out, err);
    ml_st_abort(f.out);
    return st;
}
