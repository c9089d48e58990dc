#include "train/mtp_trunk.h"

#include "model/mtp.h"

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

static bool is_divided(const ml_mesh *mesh) {
    return mesh && (mesh->sizes.gather > 1 || mesh->sizes.size[ML_MESH_PP] > 1);
}

/* The rank of another stage that has this one's place in it. */
static int32_t rank_in(const ml_mtp_trunk *x, int32_t rank, int32_t stage) {
    return rank % x->map.n_place + stage * x->map.n_place;
}

/* The stage from which the last one takes a parameter: itself, if it has it. */
static int32_t source_of(const ml_mtp_trunk *x, int32_t param) {
    int32_t stage = x->last;

    while (stage > 0 && !x->map.has[(int64_t)param * (x->last + 1) + stage])
        stage--;
    return stage;
}

static void add_param(ml_mtp_trunk *x, int32_t param, int32_t theirs) {
    int32_t from = source_of(x, theirs);

    if (from == x->last && !ml_shard_is_gathered(&x->map, theirs))
        return;
    x->param[x->n] = param;
    x->theirs[x->n] = theirs;
    x->from[x->n++] = from;
}

void ml_mtp_trunk_open(ml_mtp_trunk *out, const ml_spec *m, const ml_spec *trunk,
                       const ml_weights *of, const ml_mesh *mesh, const int32_t *stage,
                       ml_backend *be, ml_arena *a) {
    *out = (ml_mtp_trunk){ .spec = trunk, .of = of };
    if (!is_divided(mesh))
        return;
    out->rank = mesh->rank;
    out->stage = mesh->at[ML_MESH_PP];
    out->last = mesh->sizes.size[ML_MESH_PP] - 1;
    out->pipe = mesh->group[ML_GROUP_PP];
    ml_shard_map_init(&out->map, a, trunk, be->linear, &mesh->sizes, stage);
    ml_ranks_open(&out->ranks, mesh->group[ML_GROUP_GATHER], be);
    out->member = ML_NEW(a, int32_t, ml_mesh_world(&mesh->sizes));
    ml_mesh_members(out->member, &mesh->sizes, mesh->rank, ML_GROUP_GATHER);
    out->param = ML_NEW(a, int32_t, m->n_param);
    out->theirs = ML_NEW(a, int32_t, m->n_param);
    out->from = ML_NEW(a, int32_t, m->n_param);
    for (int32_t i = 0; i < m->n_param; i++)
        if (m->param[i].of_trunk)
            add_param(out, i, ml_mtp_trunk_param(m, i, trunk));
}

void ml_mtp_trunk_close(ml_mtp_trunk *x) {
    ml_mtp_trunk_release(x);
    ml_ranks_close(&x->ranks);
    *x = (ml_mtp_trunk){ 0 };
}

/* A copy, without memory.  A tied table has the trunk's layout, whatever the module alone would
 * have. */
static ml_tensor copy_of(const ml_mtp_trunk *x, int32_t i) {
    int32_t theirs = x->theirs[i];

    return ml_weights_tensor(&x->spec->param[theirs], x->of->t[theirs].dtype,
                             x->ranks.be->linear);
}

ml_status ml_mtp_trunk_take(ml_mtp_trunk *x, ml_weights *module, ml_err *err) {
    size_t bytes = 0, at = 0;
    ml_status st;

    if (!x->n || x->stage != x->last)
        return ML_OK;
    for (int32_t i = 0; i < x->n; i++) {
        ml_tensor t = copy_of(x, i);
        bytes += align64(ml_tensor_bytes(&t));
    }
    st = x->ranks.be->dev->alloc(x->ranks.be->dev, &x->buf, bytes, ML_MEM_WEIGHT, err);
    for (int32_t i = 0; i < x->n && st == ML_OK; i++) {
        ml_tensor t = copy_of(x, i);
        t.data = (unsigned char *)x->buf.ptr + at;
        module->t[x->param[i]] = t;
        at += align64(ml_tensor_bytes(&t));
    }
    return st;
}

void ml_mtp_trunk_release(ml_mtp_trunk *x) {
    if (x->buf.dev)
        x->buf.dev->free(&x->buf);
    x->buf = (ml_buf){ 0 };
}

/* The part of parameter i that a rank of the last stage has or takes. */
static ml_shard_range part_of(const ml_mtp_trunk *x, int32_t i, int32_t rank) {
    return ml_shard_resident(&x->map, x->theirs[i], rank_in(x, rank, x->from[i]));
}

/* This rank's part of parameter i goes to its place among those of the others, or to the last
 * stage. */
static ml_status put_own(const ml_mtp_trunk *x, int32_t i, const ml_rank_span *to,
                         ml_err *err) {
    ml_stream *stream = x->ranks.be->stream;
    ml_tensor part, bytes;

    if (x->stage == x->last && x->from[i] != x->last) {
        bytes = ml_comm_bytes(to->data, to->bytes);
        return to->bytes ? x->pipe->recv(x->pipe, stream, &bytes, x->from[i], err) : ML_OK;
    }
    part = ml_weights_view(x->of, x->theirs[i], part_of(x, i, x->rank));
    if (!ml_tensor_bytes(&part))
        return ML_OK;
    if (x->stage == x->last) {
        x->ranks.be->dev->copy(stream, to->data, part.data, to->bytes);
        return ML_OK;
    }
    bytes = ml_comm_bytes(part.data, ml_tensor_bytes(&part));
    return x->pipe->send(x->pipe, stream, &bytes, x->last, err);
}

/* Other stages send what the last one does not have. */
static ml_status send_own(const ml_mtp_trunk *x, ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0; i < x->n && st == ML_OK; i++)
        if (x->from[i] == x->stage)
            st = put_own(x, i, NULL, err);
    return st;
}

ml_status ml_mtp_trunk_gather(ml_mtp_trunk *x, const ml_weights *module, ml_err *err) {
    int32_t n_rank = x->n ? x->ranks.comm->size : 0;
    ml_status st = ML_OK;
    ml_rank_spans s;
    ml_arena a;

    if (!x->n)
        return ML_OK;
    if (x->stage != x->last)
        return send_own(x, err);
    ml_arena_init(&a, "parts of embedding and LM head");
    s = ml_ranks_spans(&x->ranks, &a, x->n, false);
    for (int32_t i = 0; i < x->n; i++)
        for (int32_t k = 0; k < n_rank && st == ML_OK; k++) {
            ml_rank_span *to = &s.span[(int64_t)i * n_rank + k];
            ml_tensor t =
                ml_shard_view(&module->t[x->param[i]], part_of(x, i, x->member[k]));
            *to = (ml_rank_span){ t.data, ml_tensor_bytes(&t) };
            if (x->member[k] == x->rank)
                st = put_own(x, i, to, err);
        }
    if (st == ML_OK)
        st = ml_ranks_gather(&x->ranks, &s, err);
    ml_arena_release(&a);
    return st;
}

size_t ml_mtp_trunk_bytes(const ml_spec *m, const ml_checkpoint *c, ml_weight_dtype dtype,
                          const ml_mesh *mesh, ml_layout linear) {
    size_t bytes = 0;

    for (int32_t i = 0; i < m->n_param && is_divided(mesh); i++)
        if (m->param[i].of_trunk) {
            ml_tensor t = ml_weights_tensor(
                &m->param[i], ml_weights_param_dtype(&m->param[i], c, dtype), linear);
            bytes += align64(ml_tensor_bytes(&t));
        }
    return bytes;
}
