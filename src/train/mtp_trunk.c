#include "train/mtp_trunk.h"

#include "base/bug.h"

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

static bool is_divided(const ml_mesh *mesh) {
    return mesh && mesh->sizes.gather > 1;
}

void ml_mtp_trunk_open(ml_mtp_trunk *out, const ml_spec *m, const ml_spec *trunk,
                       const ml_weights *of, const ml_mesh *mesh, ml_backend *be,
                       ml_arena *a) {
    *out = (ml_mtp_trunk){ .spec = trunk, .of = of };
    if (!is_divided(mesh))
        return;
    out->rank = mesh->rank;
    ml_shard_map_init(&out->map, a, trunk, be->linear, &mesh->sizes, NULL);
    ml_ranks_open(&out->ranks, mesh->group[ML_GROUP_GATHER], be);
    out->member = ML_NEW(a, int32_t, ml_mesh_world(&mesh->sizes));
    ml_mesh_members(out->member, &mesh->sizes, mesh->rank, ML_GROUP_GATHER);
    out->param = ML_NEW(a, int32_t, m->n_param);
    out->theirs = ML_NEW(a, int32_t, m->n_param);
    for (int32_t i = 0; i < m->n_param; i++) {
        int32_t member, theirs;
        if (!m->param[i].of_trunk)
            continue;
        theirs = ml_spec_find(trunk, ml_str_of(m->param[i].name), &member);
        ML_BUG_IF(theirs == ML_NONE || !ml_shard_is_gathered(&out->map, theirs));
        out->param[out->n] = i;
        out->theirs[out->n++] = theirs;
    }
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

    if (!x->n)
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

/* Copies this rank's part to its place among those of the others. */
static void put_own(const ml_mtp_trunk *x, int32_t param, const ml_rank_span *to) {
    ml_tensor part =
        ml_weights_view(x->of, param, ml_shard_resident(&x->map, param, x->rank));

    if (to->bytes)
        x->ranks.be->dev->copy(x->ranks.be->stream, to->data, part.data, to->bytes);
}

ml_status ml_mtp_trunk_gather(ml_mtp_trunk *x, const ml_weights *module, ml_err *err) {
    int32_t n_rank = x->n ? x->ranks.comm->size : 0;
    ml_rank_spans s;
    ml_status st;
    ml_arena a;

    if (!x->n)
        return ML_OK;
    ml_arena_init(&a, "parts of embedding and LM head");
    s = ml_ranks_spans(&x->ranks, &a, x->n, false);
    for (int32_t i = 0; i < x->n; i++)
        for (int32_t k = 0; k < n_rank; k++) {
            ml_rank_span *to = &s.span[(int64_t)i * n_rank + k];
            ml_tensor t =
                ml_shard_view(&module->t[x->param[i]],
                              ml_shard_resident(&x->map, x->theirs[i], x->member[k]));
            *to = (ml_rank_span){ t.data, ml_tensor_bytes(&t) };
            if (x->member[k] == x->rank)
                put_own(x, x->theirs[i], to);
        }
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
