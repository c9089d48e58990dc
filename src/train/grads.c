#include "train/grads.h"

#include <string.h>

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

size_t ml_grads_bytes(const ml_spec *s, const ml_shard_range *range, bool embeds,
                      int64_t n_token) {
    return ml_weights_part_bytes(s, NULL, ML_WEIGHT_F32, range) +
           (embeds ? embed_bytes(s, range, n_token) : 0) + again_bytes(s, range, NULL);
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

/* A part of the table (range) is the sum of what other ranks' tokens add, too. */
static ml_status take_embed(ml_grads *g, ml_arena *a, ml_err *err) {
    const ml_device *dev = g->be->dev;
    size_t bytes = embed_bytes(g->spec, g->sum.range, 0);
    ml_status st;

    if (!bytes)
        return ML_OK;
    st = g->be->dev->alloc(g->be->dev, &g->embed_buf, bytes, ML_MEM_GRAD, err);
    if (st != ML_OK)
        return st;
    g->embed = g->sum.t[ml_grads_tied_table(g->spec)];
    g->embed.data = g->embed_buf.ptr;
    if (dev->zero_sparse)
        dev->zero_sparse(&g->embed_buf);
    if (dev->zero_sparse && dev->host && !g->sum.range && g->embed.layout == ML_PANELS) {
        g->n_panel = (int64_t)(bytes / ml_tensor_panel_bytes(&g->embed));
        g->used = ML_NEW(a, bool, g->n_panel);
        g->resident = ML_NEW(a, bool, g->n_panel);
    }
    return ML_OK;
}

ml_status ml_grads_open(ml_grads *out, const ml_spec *s, const ml_shard_range *range,
                        bool embeds, ml_backend *be, ml_arena *a, ml_err *err) {
    ml_status st;

    *out = (ml_grads){ .spec = s, .be = be, .fresh = true };
    out->unwritten = ML_NEW(a, bool, s->n_param);
    st = ml_weights_zeros_part(&out->sum, s, range, be, a, err);
    if (st == ML_OK && embeds)
        st = take_embed(out, a, err);
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

/* Panel i of `embed` is that of 16 tokens. */
static float *embed_panel(const ml_grads *g, int64_t i) {
    return (float *)((char *)g->embed_buf.ptr +
                     (size_t)i * ml_tensor_panel_bytes(&g->embed));
}

/* The end of the run of used panels that begins with panel i, or i. */
static int64_t used_end(const ml_grads *g, int64_t i) {
    while (i < g->n_panel && g->used[i])
        i++;
    return i;
}

/* Whether most of the memory is that of panels that are no longer used. */
static bool is_stale(const ml_grads *g) {
    int64_t used = 0, resident = 0;

    for (int64_t i = 0; i < g->n_panel; i++) {
        used += g->used[i];
        resident += g->resident[i];
    }
    return resident > 2 * used;
}

/* A table's gradient as an embedding has panels for the tokens that occur, which are few.  They
 * keep their memory, since new pages cost more than zeroing them, unless many others have some. */
static void zero_embed(ml_grads *g) {
    if (!g->embed_buf.ptr)
        return;
    if (!g->be->dev->zero_sparse) {
        zero(g, &g->embed_buf);
        return;
    }
    if (!g->used || is_stale(g)) {
        g->be->dev->zero_sparse(&g->embed_buf);
        if (g->used) {
            memset(g->used, 0, (size_t)g->n_panel * sizeof *g->used);
            memset(g->resident, 0, (size_t)g->n_panel * sizeof *g->resident);
        }
        return;
    }
    for (int64_t i = 0, end; i < g->n_panel; i = end + 1) {
        end = used_end(g, i);
        if (end > i)
            g->be->optim->zero(g->be->stream, embed_panel(g, i),
                               (size_t)(end - i) * ml_tensor_panel_bytes(&g->embed));
    }
    memset(g->used, 0, (size_t)g->n_panel * sizeof *g->used);
}

void ml_grads_zero(ml_grads *g) {
    if (g->lora)
        ml_lora_zero_grads(g->lora);
    if (g->lora || g->fresh) {
        g->fresh = false;
        return;
    }
    if (g->unwritten)
        memset(g->unwritten, true, (size_t)g->spec->n_param * sizeof *g->unwritten);
    zero(g, &g->again_buf);
    zero_embed(g);
}

void ml_grads_fill(ml_grads *g) {
    for (int32_t i = 0; g->unwritten && i < g->spec->n_param; i++) {
        const ml_tensor *t = &g->sum.t[i];
        if (g->unwritten[i] && t->data)
            g->be->optim->zero(g->be->stream, t->data, ml_tensor_bytes(t));
        g->unwritten[i] = false;
    }
}

/* Tokens past the end of a table have its first row (EMBED). */
static void mark_panels(ml_grads *g, const ml_rows *rows) {
    for (int32_t t = 0; g->used && t < rows->n_token; t++) {
        int64_t row = rows->id[t] < g->embed.shape[0] ? rows->id[t] : 0;
        g->used[row / ML_LANES] = g->resident[row / ML_LANES] = true;
    }
}

void ml_grads_bind(ml_grads *g, ml_run *run) {
    mark_panels(g, run->rows);
    run->grads = g->lora ? NULL : &g->sum;
    run->head_grad = g->lora && g->lora->head != ML_NONE ? &g->sum.t[g->lora->head] : NULL;
    run->embed_grad = g->embed_buf.ptr ? &g->embed : NULL;
    run->again_grads = g->again_buf.ptr ? g->again : NULL;
    run->unwritten = g->unwritten;
}

static void join_embed(ml_grads *g) {
    size_t bytes = g->used ? ml_tensor_panel_bytes(&g->embed) : g->embed_buf.bytes;
    int64_t n = (int64_t)(bytes / sizeof(float));
    float *sum;

    if (!g->embed_buf.ptr)
        return;
    sum = g->sum.t[ml_grads_tied_table(g->spec)].data;
    if (!g->used)
        g->be->optim->add(g->be->stream, sum, g->embed_buf.ptr, n);
    for (int64_t i = 0, end; i < g->n_panel; i = end + 1) {
        end = used_end(g, i);
        if (end > i)
            g->be->optim->add(g->be->stream, sum + i * n, embed_panel(g, i), (end - i) * n);
    }
}

void ml_grads_join(ml_grads *g) {
    const ml_shard_range *range = g->sum.range;

    if (g->lora)
        ml_lora_join_grads(g->lora);
    ml_grads_fill(g);
    for (int32_t i = 0; g->again_buf.ptr && i < g->spec->n_param; i++)
        if (g->again[i].data)
            g->be->optim->add(
                g->be->stream, g->sum.t[i].data, g->again[i].data,
                range ? range[i].n
                      : (int64_t)(ml_tensor_bytes(&g->again[i]) / sizeof(float)));
    join_embed(g);
}
