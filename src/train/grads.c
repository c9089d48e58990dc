#include "train/grads.h"

int32_t ml_grads_tied_table(const ml_spec *s) {
    for (int32_t i = 0; i < s->n_node; i++)
        if (s->node[i].op == ML_OP_EMBED && s->node[i].w[0] == s->node[s->n_node - 1].w[0])
            return s->node[i].w[0];
    return ML_NONE;
}

/* Elements of a gradient here. */
static int64_t count_of(const ml_spec *s, int32_t param, const ml_shard_range *range) {
    ml_tensor t = ml_weights_tensor(&s->param[param], ML_F32, ML_PANELS);
    return range ? range[param].n : (int64_t)(ml_tensor_bytes(&t) / sizeof(float));
}

static size_t embed_bytes(const ml_spec *s, const ml_shard_range *range, int64_t n_token) {
    int32_t table = ml_grads_tied_table(s);
    int64_t n = table == ML_NONE ? 0 : count_of(s, table, range), used;

    if (!n || !n_token)
        return (size_t)n * sizeof(float);
    used = n_token * ML_LANES * s->param[table].shape[1]; /* a panel for each token */
    return (size_t)(used < n ? used : n) * sizeof(float);
}

/* Gradients of the nodes that use the parameters of earlier ones; `at` receives their
 * offsets, -1: none, unless it is NULL. */
static size_t again_bytes(const ml_spec *s, const ml_shard_range *range, int64_t *at) {
    size_t bytes = 0;

    for (int32_t i = 0; at && i < s->n_param; i++)
        at[i] = -1;
    for (int32_t i = 0; i < s->n_node; i++)
        for (int k = 0; s->node[i].again && k < ML_OP_W; k++) {
            int32_t w = s->node[i].w[k];
            if (w == ML_NONE || s->param[w].frozen || !count_of(s, w, range))
                continue;
            if (at)
                at[w] = (int64_t)bytes;
            bytes += ((size_t)count_of(s, w, range) * sizeof(float) + 63) & ~(size_t)63;
        }
    return bytes;
}

size_t ml_grads_bytes(const ml_spec *s, const ml_shard_range *range, int64_t n_token) {
    return ml_weights_part_bytes(s, NULL, ML_WEIGHT_F32, range) +
           embed_bytes(s, range, n_token) + again_bytes(s, range, NULL);
}

static ml_status take_again(ml_grads *g, ml_arena *a, ml_err *err) {
    int32_t n = g->spec->n_param;
    int64_t *at = ML_NEW(a, int64_t, n);
    size_t bytes = again_bytes(g->spec, g->sum.range, at);
    ml_status st = ML_OK;

    if (bytes)
        st = g->be->dev->alloc(g->be->dev, &g->again_buf, bytes, ML_MEM_GRAD, err);
    if (!bytes || st != ML_OK)
        return st;
    g->again = ML_NEW(a, ml_tensor, n);
    for (int32_t i = 0; i < n; i++)
        if (at[i] >= 0) {
            g->again[i] = g->sum.t[i];
            g->again[i].data = (char *)g->again_buf.ptr + at[i];
        }
    return ML_OK;
}

ml_status ml_grads_open(ml_grads *out, const ml_spec *s, const ml_shard_range *range,
                        bool embeds, ml_backend *be, ml_arena *a, ml_err *err) {
    size_t bytes = embeds ? embed_bytes(s, range, 0) : 0;
    ml_status st;

    *out = (ml_grads){ .spec = s, .be = be, .fresh = true };
    st = ml_weights_zeros_part(&out->sum, s, range, be, a, err);
    if (st == ML_OK && bytes) {
        st = be->dev->alloc(be->dev, &out->embed_buf, bytes, ML_MEM_GRAD, err);
        out->embed = out->sum.t[ml_grads_tied_table(s)];
        out->embed.data = out->embed_buf.ptr;
    }
    if (st == ML_OK && bytes && be->dev->zero_sparse)
        be->dev->zero_sparse(&out->embed_buf);
    if (st == ML_OK)
        st = take_again(out, a, err);
    if (st != ML_OK)
        ml_grads_close(out);
    return st;
}

ml_status ml_grads_open_lora(ml_grads *out, ml_lora *l, ml_err *err) {
    ml_status st = ml_lora_take_grads(l, err);

    *out = (ml_grads){ .spec = &l->spec, .be = l->be, .lora = l, .sum = l->grads };
    out->sum.buf.dev = NULL; /* not owned */
    return st;
}

void ml_grads_close(ml_grads *g) {
    if (g->lora)
        ml_lora_free_grads(g->lora);
    ml_weights_close(&g->sum);
    if (g->embed_buf.dev)
        g->embed_buf.dev->free(&g->embed_buf);
    if (g->again_buf.dev)
        g->again_buf.dev->free(&g->again_buf);
    *g = (ml_grads){ 0 };
}

static void zero(ml_grads *g, const ml_buf *b) {
    if (b->ptr)
        g->be->optim->zero(g->be->stream, b->ptr, b->bytes);
}

/* A table's gradient as an embedding has rows for the tokens that occur, which are few. */
void ml_grads_zero(ml_grads *g) {
    if (g->lora)
        ml_lora_zero_grads(g->lora);
    if (g->lora || g->fresh) {
        g->fresh = false;
        return;
    }
    zero(g, &g->sum.buf);
    zero(g, &g->again_buf);
    if (g->embed_buf.ptr && g->be->dev->zero_sparse)
        g->be->dev->zero_sparse(&g->embed_buf);
    else
        zero(g, &g->embed_buf);
}

void ml_grads_bind(const ml_grads *g, ml_run *run) {
    run->grads = g->lora ? NULL : &g->sum;
    run->head_grad = g->lora && g->lora->head != ML_NONE ? &g->sum.t[g->lora->head] : NULL;
    run->embed_grad = g->embed_buf.ptr ? &g->embed : NULL;
    run->again_grads = g->again_buf.ptr ? g->again : NULL;
}

void ml_grads_join(ml_grads *g) {
    const ml_shard_range *range = g->sum.range;

    if (g->lora)
        ml_lora_join_grads(g->lora);
    for (int32_t i = 0; g->again_buf.ptr && i < g->spec->n_param; i++)
        if (g->again[i].data)
            g->be->optim->add(
                g->be->stream, g->sum.t[i].data, g->again[i].data,
                range ? range[i].n
                      : (int64_t)(ml_tensor_bytes(&g->again[i]) / sizeof(float)));
    if (g->embed_buf.ptr)
        g->be->optim->add(g->be->stream, g->sum.t[ml_grads_tied_table(g->spec)].data,
                          g->embed_buf.ptr, (int64_t)(g->embed_buf.bytes / sizeof(float)));
}
