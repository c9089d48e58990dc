#include "train/optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/moments.h"
#include "base/bug.h"
#include "base/mmap_offload.h"
#include "train/freeze.h"

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

/* --- memory ----------------------------------------------------------------- */

static int32_t rank_of(const ml_optimizer_opts *opts) {
    return opts->mesh ? opts->mesh->rank : 0;
}

static void map_for(ml_shard_map *out, ml_arena *a, const ml_spec *s, ml_layout linear,
                    const ml_optimizer_opts *opts) {
    if (opts->mesh)
        ml_shard_map_init(out, a, s, linear, &opts->mesh->sizes, opts->stage);
    else
        ml_shard_map_one(out, a, s, linear);
}

static bool *find_frozen(ml_arena *a, const ml_spec *s, const ml_optimizer_opts *opts) {
    bool *frozen = ML_NEW(a, bool, s->n_param + 1);
    for (int32_t i = 0; i < s->n_param; i++)
        frozen[i] = ml_freeze_fits(opts->freeze, &s->param[i]);
    return frozen;
}

/* Parts of the state that exist: masters only of bf16 weights. */
static int first_kind(bool bf16) {
    return bf16 ? ML_STATE_MASTER : ML_STATE_MOMENT1;
}

static size_t state_bytes(const ml_spec *s, const ml_optimizer_opts *opts,
                          const ml_shard_map *m, const bool *frozen, bool bf16) {
    size_t bytes = 0;

    for (int32_t i = 0; i < m->n_param; i++)
        for (int k = first_kind(bf16); k < ML_STATE_KINDS && !frozen[i]; k++) {
            ml_tensor t = ml_optim_rule_state(&opts->rule, s, i, k, m->linear,
                                              ml_shard_owned(m, i, rank_of(opts)));
            bytes += align64(ml_tensor_bytes(&t));
        }
    return bytes;
}

/* The larger of the two layouts, each of which is divided in its own way. */
size_t ml_optimizer_bytes(const ml_spec *s, const ml_optimizer_opts *opts, bool bf16) {
    size_t most = 0;
    bool *frozen;
    ml_arena a;

    ml_arena_init(&a, "a shard map");
    frozen = find_frozen(&a, s, opts);
    for (int layout = ML_ROWS; layout <= ML_PANELS; layout++) {
        ml_shard_map map;
        size_t bytes;
        map_for(&map, &a, s, (ml_layout)layout, opts);
        bytes = state_bytes(s, opts, &map, frozen, bf16);
        most = bytes > most ? bytes : most;
    }
    ml_arena_release(&a);
    return most;
}

size_t ml_optimizer_saved_bytes(const ml_spec *s, const ml_optimizer_opts *opts,
                                bool bf16) {
    ml_optimizer_opts wide = *opts;

    wide.rule.format1 = wide.rule.format2 = ML_MOMENT_F32;
    return ml_optimizer_bytes(s, &wide, bf16);
}

size_t ml_optimizer_scratch_bytes(const ml_spec *s, const ml_optimizer_opts *opts,
                                  ml_backend *be) {
    return ml_optim_rule_scratch(&opts->rule, s, be);
}

static bool any_bf16(const ml_weights *w) {
    for (int32_t i = 0; i < w->n; i++)
        if (w->t[i].dtype == ML_BF16)
            return true;
    return false;
}

ml_shard_range ml_optimizer_range(const ml_optimizer *o, int32_t param, int32_t rank) {
    return o->frozen[param] ? (ml_shard_range){ 0 } : ml_shard_owned(&o->map, param, rank);
}

static ml_shard_range own_range(const ml_optimizer *o, int32_t i) {
    return ml_optimizer_range(o, i, rank_of(&o->opts));
}

static ml_tensor own_view(const ml_optimizer *o, const ml_weights *w, int32_t i) {
    return ml_weights_view(w, i, own_range(o, i));
}

static ml_weights empty_set(ml_optimizer *o) {
    int32_t n = o->spec->n_param;
    return (ml_weights){ .n = n, .t = ML_NEW(&o->arena, ml_tensor, n), .be = o->be };
}

/* --- state outside the device ------------------------------------------------ */

enum { STATE_KINDS = 3, STAGED = 1 << 22 }; /* master and two moments */

static int64_t piece_of(const ml_optimizer_opts *o) {
    return o->offload_piece ? o->offload_piece : STAGED;
}

bool ml_optimizer_is_staged(const ml_optimizer_opts *o, const ml_device *dev) {
    return !dev->host && (o->offload_dir || o->offload_host);
}

size_t ml_optimizer_stage_bytes(const ml_optimizer_opts *o) {
    return (size_t)piece_of(o) * STATE_KINDS * sizeof(float);
}

size_t ml_optimizer_exchange_bytes(const ml_spec *s, const ml_optimizer_opts *o) {
    const ml_mesh_sizes *m = o->mesh ? &o->mesh->sizes : NULL;
    int32_t stage = m ? ml_mesh_world(m) / m->size[ML_MESH_PP] : 1, experts;

    if (!m)
        return 0;
    experts = m->ep * (s->adapter ? 1 : m->etp);
    return ml_ranks_stage_bytes(stage / (s->adapter ? 1 : m->gather)) +
           (experts > 1 ? ml_ranks_stage_bytes(stage / experts) : 0);
}

static float *stage_at(const ml_optimizer *o, int kind) {
    return (float *)o->stage.ptr + kind * piece_of(&o->opts);
}

static void fill_staged(ml_optimizer *o, int32_t param) {
    const ml_tensor w = own_view(o, o->weights, param);
    size_t size = ml_dtype_bytes(w.dtype);
    int64_t n = (int64_t)(ml_tensor_bytes(&w) / size), piece = piece_of(&o->opts);
    float *master = o->master.t[param].data;

    for (int64_t at = 0; at < n; at += piece) {
        ml_tensor part = { .data = (char *)w.data + (size_t)at * size,
                           .dtype = w.dtype,
                           .n_dim = 1,
                           .shape = { n - at < piece ? n - at : piece } };
        o->be->optim->widen(o->be->stream, stage_at(o, 0), &part);
        o->be->dev->copy_out(o->be->stream, master + at, stage_at(o, 0),
                             (size_t)part.shape[0] * sizeof(float));
    }
}

/* A parameter's master and moments are adjacent, so that a step reads memory once,
 * sequentially. */
static void carve(ml_optimizer *o, unsigned char *at) {
    ml_weights *sets[] = { &o->master, &o->moment1, &o->moment2 };

    for (int32_t i = 0; i < o->spec->n_param; i++) {
        ml_shard_range own = own_range(o, i);
        for (int k = first_kind(o->own_master); k < ML_STATE_KINDS; k++) {
            ml_tensor t =
                ml_optim_rule_state(&o->opts.rule, o->spec, i, k, o->be->linear, own);
            if (!ml_tensor_bytes(&t))
                continue;
            t.data = at;
            sets[k]->t[i] = t;
            at += align64(ml_tensor_bytes(&t));
        }
        if (!o->own_master && own.n)
            o->master.t[i] = own_view(o, o->weights, i);
    }
}

/* Initializes the masters from the weights. */
static void fill_masters(ml_optimizer *o) {
    for (int32_t i = 0; i < o->spec->n_param; i++) {
        ml_tensor w = own_view(o, o->weights, i);
        if (o->master.t[i].data && o->stage.dev)
            fill_staged(o, i);
        else if (o->master.t[i].data)
            o->be->optim->widen(o->be->stream, o->master.t[i].data, &w);
    }
}

static int64_t blocks_of(int64_t n) {
    return (n + ML_NORM_BLOCK - 1) / ML_NORM_BLOCK;
}

/* Blocks of a parameter before those of a place, or of all places. */
static int64_t blocks_before(const ml_shard_map *m, int32_t param, int32_t place) {
    const ml_shard_range *of = m->range + (int64_t)param * m->n_place;
    int64_t n = 0;

    for (int32_t k = 0; k < place; k++)
        n += blocks_of(of[k].n);
    return n;
}

/* Sums of squares: of each tensor, and of all blocks of all tensors.  first: the tensor's
 * first block, and at last the number of all blocks. */
typedef struct squares {
    double *sum, *block;
    int64_t *first;
} squares;

static squares squares_of(const ml_optimizer *o) {
    size_t n = (size_t)o->spec->n_param;
    squares q = { .sum = o->block_buf.ptr };

    q.first = (int64_t *)(q.sum + n);
    q.block = (double *)(q.first + n + 1);
    return q;
}

static size_t squares_bytes(const ml_optimizer *o, int64_t n_block) {
    return (2 * (size_t)o->spec->n_param + 1 + (size_t)n_block) * sizeof(double);
}

static ml_status take_blocks(ml_optimizer *o, ml_err *err) {
    const int32_t n = o->spec->n_param;
    int64_t *first = ML_NEW(&o->arena, int64_t, n + 1);
    ml_device *dev = o->be->dev;
    ml_status st;

    for (int32_t i = 0; i < n; i++)
        first[i + 1] =
            first[i] + (o->frozen[i] ? 0 : blocks_before(&o->map, i, o->map.n_place));
    st = dev->alloc(dev, &o->block_buf, squares_bytes(o, first[n]), ML_MEM_OPTIM, err);
    if (st == ML_OK)
        dev->copy_in(o->be->stream, squares_of(o).first, first,
                     (size_t)(n + 1) * sizeof *first);
    return st;
}

static ml_status take_scratch(ml_optimizer *o, ml_err *err) {
    size_t bytes = ml_optimizer_scratch_bytes(o->spec, &o->opts, o->be);

    return bytes ? o->be->dev->alloc(o->be->dev, &o->scratch, bytes, ML_MEM_OPTIM, err)
                 : ML_OK;
}

static ml_status take_host(ml_optimizer *o, ml_err *err) {
    o->host = o->be->dev->host_alloc(o->bytes);
    if (!o->host)
        return ml_fail(err, ML_ENOMEM,
                       "out of host memory for %.1f GiB of optimizer state: remove "
                       "--optimizer-cpu-offload, or use --optimizer-offload-dir",
                       (double)o->bytes / 0x1p30);
    memset(o->host, 0, o->bytes);
    return ML_OK;
}

static ml_status take_state(ml_optimizer *o, ml_err *err) {
    ml_device *dev = o->be->dev;
    bool staged = ml_optimizer_is_staged(&o->opts, dev);
    ml_status st;

    if (o->opts.offload_dir)
        st = ml_mmap_offload_open(&o->mmap, o->bytes, o->opts.offload_dir, err);
    else if (staged)
        st = take_host(o, err);
    else
        st = dev->alloc(dev, &o->buf, o->bytes, ML_MEM_OPTIM, err);
    if (st == ML_OK && staged)
        st = dev->alloc(dev, &o->stage, ml_optimizer_stage_bytes(&o->opts), ML_MEM_OPTIM,
                        err);
    return st;
}

/* The ranks that exchange gradients and weights; NULL: one. */
static ml_comm *group_of(const ml_optimizer *o, bool divided) {
    const ml_mesh *m = o->opts.mesh;
    return m ? m->group[ml_shard_sum_group(&o->map, divided)] : NULL;
}

ml_status ml_optimizer_open(ml_optimizer *out, const ml_spec *s, ml_weights *w,
                            ml_backend *be, const ml_optimizer_opts *opts, ml_err *err) {
    ml_optimizer *o = out;
    ml_status st;

    *o = (ml_optimizer){ .opts = *opts, .spec = s, .weights = w, .be = be };
    ml_arena_init(&o->arena, "optimizer");
    ml_ranks_open(&o->ranks, opts->mesh ? opts->mesh->world : NULL, be);
    o->frozen = find_frozen(&o->arena, s, opts);
    o->square = ML_NEW(&o->arena, double, s->n_param);
    o->factor = ML_NEW(&o->arena, double, s->n_param);
    map_for(&o->map, &o->arena, s, be->linear, opts);
    ml_ranks_open(&o->same, group_of(o, false), be);
    ml_ranks_open(&o->experts, group_of(o, true), be);
    st = ml_freeze_check(opts->freeze, s, err);
    if (st == ML_OK && !opts->no_state)
        st = ml_optim_rule_check(&opts->rule, be, err);
    if (st == ML_OK) {
        o->own_master = any_bf16(w);
        o->bytes = opts->no_state ? 0 : ml_optimizer_bytes(s, opts, o->own_master);
        st = opts->no_state ? ML_OK : take_state(o, err);
    }
    if (st == ML_OK && !opts->no_state)
        st = take_blocks(o, err);
    if (st == ML_OK && !opts->no_state)
        st = take_scratch(o, err);
    if (st != ML_OK) {
        ml_optimizer_close(o);
        return st;
    }
    if (opts->no_state)
        return ML_OK;
    o->master = empty_set(o);
    o->moment1 = empty_set(o);
    o->moment2 = empty_set(o);
    carve(o, o->mmap ? o->mmap : o->host ? o->host : o->buf.ptr);
    if (o->own_master)
        fill_masters(o);
    return ML_OK;
}

void ml_optimizer_close(ml_optimizer *o) {
    if (o->buf.dev)
        o->buf.dev->free(&o->buf);
    if (o->block_buf.dev)
        o->block_buf.dev->free(&o->block_buf);
    if (o->scratch.dev)
        o->scratch.dev->free(&o->scratch);
    ml_mmap_offload_close(o->mmap, o->bytes);
    if (o->stage.dev)
        o->stage.dev->free(&o->stage);
    if (o->host)
        o->be->dev->host_free(o->host);
    if (o->away)
        o->be->dev->host_free(o->away);
    ml_ranks_close(&o->ranks);
    ml_ranks_close(&o->same);
    ml_ranks_close(&o->experts);
    if (o->arena.tag)
        ml_arena_release(&o->arena);
    *o = (ml_optimizer){ 0 };
}

ml_status ml_optimizer_release(ml_optimizer *o, ml_err *err) {
    ml_device *dev = o->be->dev;
    ml_status st;

    if (!dev->host_alloc || !o->buf.dev)
        return ML_OK;
    if (!o->away)
        o->away = dev->host_alloc(o->bytes);
    if (!o->away)
        return ml_fail(err, ML_ENOMEM,
                       "out of host memory for %.1f GiB of optimizer state while "
                       "generating: remove --offload-train",
                       (double)o->bytes / 0x1p30);
    dev->copy_out(o->be->stream, o->away, o->buf.ptr, o->bytes);
    st = dev->sync(o->be->stream, err);
    if (st == ML_OK) {
        dev->free(&o->buf);
        o->is_away = true;
    }
    return st;
}

ml_status ml_optimizer_take(ml_optimizer *o, ml_err *err) {
    ml_device *dev = o->be->dev;
    ml_status st;

    if (!o->is_away)
        return ML_OK;
    st = dev->alloc(dev, &o->buf, o->bytes, ML_MEM_OPTIM, err);
    if (st != ML_OK)
        return st;
    dev->copy_in(o->be->stream, o->buf.ptr, o->away, o->bytes);
    carve(o, o->buf.ptr);
    o->is_away = false;
    return dev->sync(o->be->stream, err);
}

static void zero_set(const ml_optimizer *o, const ml_weights *w) {
    for (int32_t i = 0; i < w->n; i++)
        if (w->t[i].data && o->stage.dev)
            memset(w->t[i].data, 0, ml_tensor_bytes(&w->t[i]));
        else if (w->t[i].data)
            o->be->optim->zero(o->be->stream, w->t[i].data, ml_tensor_bytes(&w->t[i]));
}

void ml_optimizer_reset(ml_optimizer *o) {
    zero_set(o, &o->moment1);
    zero_set(o, &o->moment2);
    o->n_step = 0;
}

/* --- a step ----------------------------------------------------------------- */

/* Counts the non-finite values of a gradient, in pieces. */
static int64_t count_bad(const ml_optimizer *o, const float *x, int64_t n) {
    enum { PIECE = 4096 };
    float piece[PIECE];
    int64_t bad = 0;

    for (int64_t at = 0; at < n; at += PIECE) {
        int64_t part = n - at < PIECE ? n - at : PIECE;
        o->be->dev->copy_out(o->be->stream, piece, x + at, (size_t)part * sizeof *x);
        for (int64_t i = 0; i < part; i++)
            bad += !isfinite(piece[i]);
    }
    return bad;
}

/* The ranges of a set that the ranks of a group own. */
static ml_rank_spans spans_of(const ml_optimizer *o, ml_arena *a, const ml_ranks *ranks,
                              ml_mesh_group group, const ml_weights *w) {
    ml_rank_spans s = ml_ranks_spans(ranks, a, o->map.n_param, false);
    int32_t *member = ML_NEW(a, int32_t, o->map.n_rank);
    int32_t n = ml_mesh_members(member, &o->map.mesh, rank_of(&o->opts), group);

    for (int32_t i = 0; i < o->map.n_param; i++)
        for (int32_t k = 0; k < n && ml_shard_group(&o->map, i) == group; k++) {
            ml_tensor t = ml_weights_view(w, i, ml_optimizer_range(o, i, member[k]));
            s.span[(int64_t)i * n + k] = (ml_rank_span){ t.data, ml_tensor_bytes(&t) };
        }
    return s;
}

/* Among the ranks with the same part of the weights, and those with the same experts. */
typedef ml_status exchange_fn(ml_ranks *r, const ml_rank_spans *s, ml_err *err);

static ml_status exchange(ml_optimizer *o, exchange_fn *fn, const ml_weights *w,
                          ml_err *err) {
    ml_status st = ML_OK;
    ml_rank_spans s;
    ml_arena a;

    ml_arena_init(&a, "ranges of all ranks");
    if (o->same.comm->size > 1) {
        s = spans_of(o, &a, &o->same, ml_shard_sum_group(&o->map, false), w);
        st = fn(&o->same, &s, err);
    }
    if (st == ML_OK && o->map.mesh.ep * o->map.mesh.etp > 1) {
        s = spans_of(o, &a, &o->experts, ml_shard_sum_group(&o->map, true), w);
        st = fn(&o->experts, &s, err);
    }
    ml_arena_release(&a);
    return st;
}

ml_status ml_optimizer_reduce(ml_optimizer *o, const ml_weights *grads, bool whole,
                              ml_err *err) {
    ml_status st = exchange(o, ml_ranks_reduce, grads, err);
    return st == ML_OK && whole ? exchange(o, ml_ranks_gather, grads, err) : st;
}

static ml_shard_range common_range(ml_shard_range a, ml_shard_range b) {
    int64_t begin = a.begin > b.begin ? a.begin : b.begin;
    int64_t end = a.begin + a.n < b.begin + b.n ? a.begin + a.n : b.begin + b.n;

    return (ml_shard_range){ begin, end > begin ? end - begin : 0 };
}

/* kind: of the state whose ranges these are. */
static ml_status collect(const ml_optimizer *o, int kind, int32_t param,
                         ml_shard_range want, const ml_tensor *mine, ml_stream *stream,
                         void *to, ml_err *err) {
    ml_comm *c = o->ranks.comm;
    size_t size = ml_dtype_bytes(mine->dtype);
    ml_status st = ML_OK;

    for (int32_t r = 0; r < c->size && st == ML_OK; r++) {
        ml_shard_range own = ml_optim_rule_state_range(&o->opts.rule, o->spec, param, kind,
                                                       ml_shard_owned(&o->map, param, r));
        ml_shard_range x = common_range(own, want);
        size_t bytes = (size_t)x.n * size;
        char *from = mine->data, *at = to;
        ml_tensor part;
        if (!bytes || (c->rank > 0 && r != c->rank))
            continue;
        if (r == c->rank)
            from += (size_t)(x.begin - own.begin) * size;
        if (c->rank == 0)
            at += (size_t)x.begin * size;
        part = ml_comm_bytes(c->rank > 0 ? from : at, bytes);
        if (c->rank > 0)
            st = c->send(c, stream, &part, 0, err);
        else if (r > 0)
            st = c->recv(c, NULL, &part, r, err);
        else
            o->be->dev->copy_out(o->be->stream, at, from, bytes);
    }
    return st;
}

static const ml_shard_range everything = { 0, INT64_MAX };

ml_status ml_optimizer_collect(const ml_optimizer *o, int32_t param, const ml_tensor *mine,
                               ml_stream *stream, void *to, ml_err *err) {
    return collect(o, ML_STATE_MASTER, param, everything, mine, stream, to, err);
}

ml_status ml_optimizer_collect_part(const ml_optimizer *o, int32_t param,
                                    ml_shard_range want, const ml_tensor *mine,
                                    ml_stream *stream, void *to, ml_err *err) {
    return collect(o, ML_STATE_MASTER, param, want, mine, stream, to, err);
}

/* --- the state in f32 --------------------------------------------------------- */

ml_param ml_optimizer_state_param(const ml_optimizer *o, int kind, int32_t param) {
    return ml_optim_rule_state_param(&o->opts.rule, o->spec, param, kind);
}

ml_shard_range ml_optimizer_state_range(const ml_optimizer *o, int kind, int32_t param,
                                        int32_t rank) {
    return ml_optim_rule_state_range(&o->opts.rule, o->spec, param, kind,
                                     ml_optimizer_range(o, param, rank));
}

bool ml_optimizer_converts(const ml_optimizer *o, int kind, int32_t param) {
    ml_optimizer_kind rule = ml_optim_rule_of(&o->opts.rule, o->spec, param);
    return ml_optim_rule_format(&o->opts.rule, rule, kind) != ML_MOMENT_F32;
}

static const ml_tensor *moment_of(const ml_optimizer *o, int kind, int32_t param) {
    return kind == ML_STATE_MOMENT1 ? &o->moment1.t[param] : &o->moment2.t[param];
}

static ml_moment stored_moment(const ml_optimizer *o, int kind, int32_t param) {
    ml_shard_range own = own_range(o, param);
    ml_optimizer_kind rule = ml_optim_rule_of(&o->opts.rule, o->spec, param);

    return (ml_moment){ .format = ml_optim_rule_format(&o->opts.rule, rule, kind),
                        .data = moment_of(o, kind, param)->data,
                        .n = own.n,
                        .second = kind == ML_STATE_MOMENT2,
                        .first = (uint64_t)own.begin };
}

void ml_optimizer_store_state(ml_optimizer *o, int kind, int32_t param, const float *from) {
    ml_moment m = stored_moment(o, kind, param);
    ml_moment_store(&m, 0, m.n, from);
}

ml_status ml_optimizer_collect_state(const ml_optimizer *o, int kind, int32_t param,
                                     void *to, ml_err *err) {
    ml_moment m = stored_moment(o, kind, param);
    ml_tensor mine = *moment_of(o, kind, param);
    float *wide = NULL;
    ml_status st;

    mine.dtype = ML_F32; /* also of a rank that owns nothing of it */
    if (ml_optimizer_converts(o, kind, param)) {
        wide = malloc((size_t)(m.n + 1) * sizeof *wide);
        if (!wide)
            return ml_fail(err, ML_ENOMEM, "out of memory for %.1f GiB of optimizer state",
                           (double)m.n * sizeof *wide / 0x1p30);
        ml_moment_load(wide, &m, 0, m.n);
        mine.data = wide;
    }
    st = collect(o, kind, param, everything, &mine,
                 o->buf.dev && !wide ? o->be->stream : NULL, to, err);
    free(wide);
    return st;
}

/* All ranks get the blocks of all others. */
static ml_status gather_blocks(ml_optimizer *o, double *block, ml_err *err) {
    const ml_shard_map *m = &o->map;
    ml_rank_span *out;
    ml_rank_spans s;
    ml_status st;
    ml_arena a;

    if (m->n_rank == 1)
        return ML_OK;
    ml_arena_init(&a, "blocks of all ranks");
    s = ml_ranks_spans(&o->ranks, &a, m->n_param, false);
    out = s.span;
    for (int32_t i = 0; i < m->n_param; i++) {
        for (int32_t r = 0; r < m->n_rank; r++)
            *out++ = (ml_rank_span){ block + blocks_before(m, i, ml_shard_place(m, i, r)),
                                     (size_t)blocks_of(ml_optimizer_range(o, i, r).n) *
                                         sizeof *block };
        block += o->frozen[i] ? 0 : blocks_before(m, i, m->n_place);
    }
    st = ml_ranks_gather(&o->ranks, &s, err);
    ml_arena_release(&a);
    return st;
}

/* Sums of squares of all blocks, tensor after tensor: each rank computes those of its
 * ranges. */
static ml_status square_blocks(ml_optimizer *o, const ml_weights *grads, ml_err *err) {
    const ml_shard_map *m = &o->map;
    double *block = squares_of(o).block;
    int64_t at = 0;

    for (int32_t i = 0; i < grads->n; i++) {
        ml_tensor own = own_view(o, grads, i);
        int64_t first = blocks_before(m, i, ml_shard_place(m, i, rank_of(&o->opts)));
        if (o->frozen[i])
            continue;
        if (own.data)
            o->be->optim->square_sums(o->be->stream, block + at + first, own.data,
                                      own_range(o, i).n);
        at += blocks_before(m, i, m->n_place);
    }
    return gather_blocks(o, block, err);
}

/* The device adds up the blocks: there are a million for 4e9 weights, and a GPU would wait
 * 3 ms for the host to do it. */
static void sum_blocks(ml_optimizer *o) {
    const squares q = squares_of(o);
    const int32_t n = o->spec->n_param;

    o->be->optim->sum_blocks(o->be->stream, q.sum, q.block, q.first, n);
    o->be->dev->copy_out(o->be->stream, o->square, q.sum, (size_t)n * sizeof *q.sum);
}

static ml_status count_all_bad(ml_optimizer *o, const ml_weights *grads, ml_update *out,
                               ml_err *err) {
    ml_tensor own = own_view(o, grads, out->bad_param);
    int64_t mine = count_bad(o, own.data, own_range(o, out->bad_param).n), *all;
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "bad gradients");
    all = ML_NEW(&a, int64_t, o->map.n_rank);
    st = ml_ranks_collect(&o->ranks, all, &mine, sizeof mine, err);
    for (int32_t k = 0; k < o->map.n_rank; k++)
        out->n_bad += all[k];
    ml_arena_release(&a);
    return st;
}

static double sum_of_squares(const ml_optimizer *o) {
    double sum = 0;

    for (int32_t i = 0; i < o->spec->n_param; i++)
        if (!o->frozen[i])
            sum += o->rules ? o->square[i] * o->factor[i] * o->factor[i] : o->square[i];
    return sum;
}

/* Sums the blocks of a tensor, then tensors in the order of the spec.  The
 * squares of finite f32 cannot overflow in f64: an infinite or NaN sum means a bad
 * gradient.  Backward runs from the last parameter to the first and propagates a fault:
 * the last bad one is its origin. */
static ml_status measure(ml_optimizer *o, const ml_weights *grads, double scale,
                         ml_update *out, ml_err *err) {
    ml_status st = square_blocks(o, grads, err);

    if (st != ML_OK)
        return st;
    sum_blocks(o);
    for (int32_t i = 0; i < grads->n; i++)
        if (!isfinite(o->square[i]))
            out->bad_param = i;
    if (o->rules)
        ml_grad_rules_factors(o->factor, o->rules, o->spec, o->square, scale);
    out->grad_norm = sqrt(sum_of_squares(o)) * fabs(scale);
    return out->bad_param == ML_NONE ? ML_OK : count_all_bad(o, grads, out, err);
}

static ml_optim_param param_at(const ml_optimizer *o, const ml_weights *grads, int32_t i) {
    ml_tensor weight = own_view(o, o->weights, i), grad = own_view(o, grads, i);
    ml_optimizer_kind rule = ml_optim_rule_of(&o->opts.rule, o->spec, i);

    return (ml_optim_param){
        .n = own_range(o, i).n,
        .master = o->master.t[i].data,
        .moment1 = o->moment1.t[i].data,
        .moment2 = o->moment2.t[i].data,
        .format1 = ml_optim_rule_format(&o->opts.rule, rule, ML_STATE_MOMENT1),
        .format2 = ml_optim_rule_format(&o->opts.rule, rule, ML_STATE_MOMENT2),
        .step = (uint64_t)o->n_step,
        .id = (uint64_t)i,
        .first = (uint64_t)own_range(o, i).begin,
        .grad = grad.data,
        .dtype = weight.dtype,
        .pairs = ml_tensor_has_pairs(&weight),
        .weight = o->own_master ? weight.data : NULL,
    };
}

static void update_param(ml_optimizer *o, int32_t i, const ml_optim_param *p,
                         const ml_optim_rule_step *step) {
    ml_optim_rule_update(&o->opts.rule, o->spec, i, o->be, p, step, o->scratch.ptr);
}

/* For each piece: copies it to the device, updates it, copies it back. */
static void update_staged(ml_optimizer *o, int32_t i, const ml_optim_param *p,
                          const ml_optim_rule_step *step) {
    float *home[] = { o->own_master ? p->master : NULL, p->moment1, p->moment2 };

    for (int64_t at = 0; at < p->n; at += piece_of(&o->opts)) {
        ml_optim_param part = *p;
        float **here[] = { &part.master, &part.moment1, &part.moment2 };
        part.n = p->n - at < piece_of(&o->opts) ? p->n - at : piece_of(&o->opts);
        part.grad += at;
        if (p->weight)
            part.weight = (char *)p->weight + (size_t)at * ml_dtype_bytes(p->dtype);
        else
            part.master += at;
        for (int k = 0; k < STATE_KINDS; k++)
            if (home[k]) {
                *here[k] = stage_at(o, k);
                o->be->dev->copy_in(o->be->stream, *here[k], home[k] + at,
                                    (size_t)part.n * sizeof(float));
            }
        update_param(o, i, &part, step);
        for (int k = 0; k < STATE_KINDS; k++)
            if (home[k])
                o->be->dev->copy_out(o->be->stream, home[k] + at, *here[k],
                                     (size_t)part.n * sizeof(float));
    }
}

ml_status ml_optimizer_step(ml_optimizer *o, const ml_weights *grads, double lr,
                            double weight_decay, double grad_scale, ml_update *out,
                            ml_err *err) {
    double limit = o->rules ? o->rules->clip_grad : o->opts.clip_grad;
    ml_status st;

    *out = (ml_update){ .clip = 1.0, .bad_param = ML_NONE };
    st = measure(o, grads, grad_scale, out, err);
    if (st != ML_OK || out->bad_param != ML_NONE)
        return st;
    if (limit > 0 && limit / (out->grad_norm + 1e-6) < 1.0)
        out->clip = limit / (out->grad_norm + 1e-6);
    o->n_step++;
    for (int32_t i = 0; i < grads->n; i++) {
        ml_optim_param p = param_at(o, grads, i);
        ml_optim_rule_step step = {
            .number = o->n_step,
            .lr = lr,
            .weight_decay = o->spec->param[i].n_dim == 1 ? 0.0 : weight_decay,
            .grad_scale = grad_scale * out->clip * (o->rules ? o->factor[i] : 1.0)
        };
        if (p.n)
            (o->stage.dev ? update_staged : update_param)(o, i, &p, &step);
    }
    st = exchange(o, ml_ranks_gather, o->weights, err);
    o->weights->version++;
    out->applied = st == ML_OK;
    return st;
}
