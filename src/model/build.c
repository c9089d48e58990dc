#include "model/build.h"

#include <stdio.h>
#include <string.h>

#include "base/bug.h"

/* Arrays grow by doubling inside the spec's arena; the abandoned copies are kilobytes. */
static void *grown(ml_builder *b, void *old, int32_t n, int32_t *cap, size_t size) {
    void *p;
    if (n < *cap)
        return old;
    *cap = *cap ? *cap * 2 : 64;
    p = ml_arena_take(&b->spec->arena, (size_t)*cap, size);
    if (n)
        memcpy(p, old, (size_t)n * size);
    return p;
}

int32_t ml_build_value(ml_builder *b, ml_value v) {
    ml_spec *s = b->spec;
    s->value = grown(b, s->value, s->n_value, &b->cap_value, sizeof *s->value);
    s->value[s->n_value] = v;
    return s->n_value++;
}

int32_t ml_build_param(ml_builder *b, ml_param p) {
    ml_spec *s = b->spec;
    s->param = grown(b, s->param, s->n_param, &b->cap_param, sizeof *s->param);
    s->param[s->n_param] = p;
    return s->n_param++;
}

/* Appends a node without inputs, outputs or weights; the caller fills them in. */
ml_node *ml_build_node(ml_builder *b, ml_op_id op) {
    ml_spec *s = b->spec;
    ml_node *n;
    s->node = grown(b, s->node, s->n_node, &b->cap_node, sizeof *s->node);
    n = &s->node[s->n_node++];
    *n = (ml_node){ .op = op, .layer = b->layer };
    for (int i = 0; i < ML_OP_IN; i++)
        n->in[i] = ML_NONE;
    for (int i = 0; i < ML_OP_OUT; i++)
        n->out[i] = ML_NONE;
    for (int i = 0; i < ML_OP_W; i++)
        n->w[i] = ML_NONE;
    return n;
}

int32_t ml_build_rows(ml_builder *b, int32_t mul, int64_t width) {
    return ml_build_value(b, (ml_value){ ML_PER_TOKEN, mul, width, ML_F32 });
}

/* Statistics, tables and weights of a sum: f32 on every backend. */
int32_t ml_build_exact(ml_builder *b, ml_axis axis, int64_t width) {
    return ml_build_value(b, (ml_value){ axis, 1, width, ML_F32, true });
}

static int32_t like(ml_builder *b, int32_t x) {
    ml_value v = b->spec->value[x];
    return ml_build_value(b, v);
}

static const char *scoped(ml_builder *b, const char *name) {
    if (b->layer == ML_NONE)
        return ml_arena_printf(&b->spec->arena, "%s", name);
    if (b->unnumbered)
        return ml_arena_printf(&b->spec->arena, "%s.%s", b->layers, name);
    return ml_arena_printf(&b->spec->arena, "%s.%d.%s",
                           b->layers ? b->layers : "model.layers", b->layer, name);
}

const char *ml_build_name(ml_builder *b, const char *name, const char *suffix) {
    char full[256];
    snprintf(full, sizeof full, "%s%s", name, suffix);
    return scoped(b, full);
}

/* Rows `first` .. of a larger matrix (or vector) called whole + suffix. */
static ml_part *rows_part(ml_builder *b, const ml_linear_opts *o, const char *suffix,
                          int64_t cols) {
    ml_part *p;
    if (!o->whole)
        return NULL;
    p = ML_NEW(&b->spec->arena, ml_part, 1);
    *p = (ml_part){ .name = ml_build_name(b, o->whole, suffix),
                    .n_dim = cols ? 2 : 1,
                    .shape = { o->whole_out, cols },
                    .at = o->first_out * (cols ? cols : 1),
                    .row = cols,
                    .col = 1 };
    return p;
}

static int32_t vector_param(ml_builder *b, const char *name, int64_t n, ml_shard shard) {
    return ml_build_param(b, (ml_param){ .name = name,
                                         .n_stack = 1,
                                         .n_dim = 1,
                                         .shape = { n, 1 },
                                         .layout = ML_ROWS,
                                         .shard = shard });
}

static int32_t matrix_param(ml_builder *b, const char *name, int64_t rows, int64_t cols,
                            ml_layout layout, ml_shard shard) {
    return ml_build_param(b, (ml_param){ .name = name,
                                         .n_stack = 1,
                                         .n_dim = 2,
                                         .shape = { rows, cols },
                                         .layout = layout,
                                         .shard = shard });
}

void ml_build_begin_layer(ml_builder *b, int32_t layer) {
    b->layer = layer;
}

void ml_build_end_layer(ml_builder *b) {
    b->layer = ML_NONE;
}

int64_t ml_build_width(const ml_builder *b, int32_t value) {
    return b->spec->value[value].width;
}

int32_t ml_build_table(ml_builder *b, const char *name, int64_t n_row, int64_t width,
                       float scale) {
    ml_node *n = ml_build_node(b, ML_OP_EMBED);
    int32_t out = ml_build_rows(b, 1, width);

    n->w[0] = matrix_param(b, scoped(b, name), n_row, width, ML_ROWS, ML_SHARD_VOCAB);
    n->out[0] = out;
    n->attr.embed_scale = scale;
    return out;
}

int32_t ml_build_embed(ml_builder *b, const char *name, float scale) {
    ml_spec *s = b->spec;
    int32_t out = ml_build_table(b, name, s->n_vocab, s->n_hidden, scale);

    if (s->tied) /* also the LM head, so it has the layout of the head */
        s->param[s->node[0].w[0]].layout = ML_PANELS;
    return out;
}

int32_t ml_build_linear(ml_builder *b, int32_t x, ml_linear_opts o) {
    ml_spec *s = b->spec;
    ml_node *n = ml_build_node(b, ML_OP_LINEAR);
    int32_t out = ml_build_rows(b, b->spec->value[x].mul, o.n_out);
    n->in[0] = x;
    n->out[0] = out;
    n->w[0] = matrix_param(b, ml_build_name(b, o.name, o.bare ? "" : ".weight"), o.n_out,
                           ml_build_width(b, x), ML_PANELS, o.shard);
    s->param[n->w[0]].part = rows_part(b, &o, ".weight", ml_build_width(b, x));
    s->param[n->w[0]].frozen = o.frozen;
    s->param[n->w[0]].keep_f32 = o.keep_f32;
    s->value[out].exact = o.f32_out;
    if (!o.bias)
        return out;
    n->w[1] = vector_param(b, ml_build_name(b, o.name, ".bias"), o.n_out,
                           o.shard == ML_SHARD_COL ? ML_SHARD_COL : ML_SHARD_NONE);
    s->param[n->w[1]].part = rows_part(b, &o, ".bias", 0);
    return out;
}

int32_t ml_build_norm(ml_builder *b, int32_t x, const char *name, float eps, int32_t width,
                      bool plus_one) {
    ml_node *n = ml_build_node(b, ML_OP_RMSNORM);
    int32_t out = like(b, x);
    ML_BUG_IF(ml_build_width(b, x) % width != 0);
    n->in[0] = x;
    n->out[0] = out;
    if (name)
        n->w[0] = vector_param(b, ml_build_name(b, name, ".weight"), width, ML_SHARD_NONE);
    n->attr.norm.eps = eps;
    n->attr.norm.width = width;
    n->attr.norm.plus_one = plus_one;
    return out;
}

/* Cosines and sines are computed once per batch and set of frequencies, at first use. */
static int32_t rope_table(ml_builder *b, const ml_rope *rope) {
    ml_node *n;
    int32_t out;

    for (int32_t i = 0; i < b->n_rope; i++)
        if (b->rope_of[i] == rope)
            return b->rope_table[i];
    ML_BUG_IF(b->n_rope == (int32_t)(sizeof b->rope_of / sizeof *b->rope_of));
    n = ml_build_node(b, ML_OP_ROPE_TABLE);
    out = ml_build_exact(b, ML_PER_TOKEN, rope->dim);
    n->layer = ML_NONE;
    n->out[0] = out;
    n->attr.rope.rope = rope;
    n->attr.rope.dim = rope->dim;
    b->rope_of[b->n_rope] = rope;
    b->rope_table[b->n_rope++] = out;
    return out;
}

int32_t ml_build_rope(ml_builder *b, int32_t x, const ml_rope *rope, int32_t head_dim,
                      bool interleaved) {
    int32_t table = rope_table(b, rope);
    ml_node *n = ml_build_node(b, ML_OP_ROPE);
    int32_t out = like(b, x);
    n->in[0] = x;
    n->in[1] = table;
    n->out[0] = out;
    n->attr.rope.rope = rope;
    n->attr.rope.head_dim = head_dim;
    n->attr.rope.dim = rope->dim;
    n->attr.rope.interleaved = interleaved;
    return out;
}

int32_t ml_build_rope_tail(ml_builder *b, int32_t x, const ml_rope *rope, int32_t head_dim,
                           bool inverse) {
    int32_t out = ml_build_rope(b, x, rope, head_dim, true);
    ml_node *n = &b->spec->node[b->spec->n_node - 1];

    n->attr.rope.at = head_dim - rope->dim;
    n->attr.rope.inverse = inverse;
    return out;
}

static ml_shared_kv new_pages(ml_builder *b, int64_t keys, int64_t values) {
    ml_shared_kv p = { ML_NONE, ML_NONE };
    p.keys = ml_build_value(b, (ml_value){ ML_PER_PAGE, 1, keys * ML_PAGE, ML_F32 });
    if (values)
        p.values =
            ml_build_value(b, (ml_value){ ML_PER_PAGE, 1, values * ML_PAGE, ML_F32 });
    return p;
}

int32_t ml_build_attn(ml_builder *b, int32_t q, int32_t k, int32_t v, ml_attn_opts o) {
    ml_node *n = ml_build_node(b, ML_OP_ATTN);
    int32_t n_head = (int32_t)(ml_build_width(b, q) / o.head_dim);
    int32_t n_kv = (int32_t)(ml_build_width(b, k) / o.head_dim);
    int32_t e = o.value_dim ? o.value_dim : o.head_dim;
    int64_t padded = (e + ML_LANES - 1) / ML_LANES * ML_LANES;
    int32_t out = ml_build_rows(b, 1, (int64_t)n_head * e);
    ml_shared_kv own = { ML_NONE, ML_NONE }, *pages = o.pages ? o.pages : &own;

    ML_BUG_IF(n_kv < 1 || n_head % n_kv != 0);
    n->in[0] = q;
    n->in[1] = k;
    n->in[2] = v;
    n->out[0] = out;
    n->out[1] = ml_build_exact(b, ML_PER_TOKEN, 2 * (int64_t)n_head);
    if (pages->keys == ML_NONE)
        *pages =
            new_pages(b, (int64_t)n_kv * o.head_dim, o.value_in_key ? 0 : n_kv * padded);
    n->out[2] = pages->keys;
    n->out[3] = pages->values;
    if (o.sink)
        n->w[0] = vector_param(b, ml_build_name(b, o.sink, ""), n_head, ML_SHARD_COL);
    n->attr.attn.n_head = n_head;
    n->attr.attn.n_kv = n_kv;
    n->attr.attn.head_dim = o.head_dim;
    n->attr.attn.value_dim = e;
    n->attr.attn.window = o.window;
    n->attr.attn.chunk = o.chunk;
    n->attr.attn.scale = o.scale;
    n->attr.attn.softcap = o.softcap;
    return out;
}

int32_t ml_build_head_linear(ml_builder *b, int32_t x, const char *name, int32_t n_head,
                             int64_t n_out, ml_part *part) {
    ml_node *n = ml_build_node(b, ML_OP_HEAD_LINEAR);
    int32_t out = ml_build_rows(b, 1, n_head * n_out);

    n->in[0] = x;
    n->out[0] = out;
    n->attr.n_head = n_head;
    n->w[0] =
        ml_build_param(b, (ml_param){ .name = ml_build_name(b, name, "."),
                                      .name_after = ".weight",
                                      .n_stack = n_head,
                                      .n_dim = 2,
                                      .shape = { n_out, ml_build_width(b, x) / n_head },
                                      .layout = ML_PANELS,
                                      .shard = ML_SHARD_COL,
                                      .part = part });
    return out;
}

int32_t ml_build_concat(ml_builder *b, int32_t x, int32_t y, int32_t n_head) {
    ml_node *n = ml_build_node(b, ML_OP_CONCAT);
    int32_t out = ml_build_rows(b, 1, ml_build_width(b, x) + ml_build_width(b, y));

    n->in[0] = x;
    n->in[1] = y;
    n->out[0] = out;
    n->attr.n_head = n_head;
    return out;
}

int32_t ml_build_add(ml_builder *b, int32_t x, int32_t y) {
    ml_node *n = ml_build_node(b, ML_OP_ADD);
    int32_t out = like(b, x);
    n->in[0] = x;
    n->in[1] = y;
    n->out[0] = out;
    return out;
}

int32_t ml_build_scale(ml_builder *b, int32_t x, float by) {
    ml_node *n = ml_build_node(b, ML_OP_SCALE);
    int32_t out = like(b, x);
    n->in[0] = x;
    n->out[0] = out;
    n->attr.scale = by;
    return out;
}

int32_t ml_build_scale_param(ml_builder *b, int32_t x, const char *name) {
    int32_t out = ml_build_scale(b, x, 1.0f);
    int32_t w = vector_param(b, scoped(b, name), 1, ML_SHARD_NONE);
    b->spec->param[w].frozen = true;
    b->spec->node[b->spec->n_node - 1].w[0] = w;
    return out;
}

int32_t ml_build_glu(ml_builder *b, int32_t gate, int32_t up, ml_act act) {
    ml_node *n = ml_build_node(b, ML_OP_GLU);
    ml_value v = b->spec->value[gate];
    int32_t out;

    if (up == ML_NONE)
        v.width /= 2;
    out = ml_build_value(b, v);
    n->in[0] = gate;
    n->in[1] = up;
    n->out[0] = out;
    n->attr.glu.act = act;
    n->attr.glu.fused = up == ML_NONE;
    return out;
}

int32_t ml_build_swiglu(ml_builder *b, int32_t gate, int32_t up, float limit) {
    int32_t out = ml_build_glu(b, gate, up, ML_ACT_SILU);

    b->spec->node[b->spec->n_node - 1].attr.glu.limit = limit;
    return out;
}

void ml_build_head(ml_builder *b, int32_t x, const char *name, bool tied, float softcap) {
    ml_spec *s = b->spec;
    ml_node *n;

    if (s->critic) {
        int32_t value = ml_build_linear(
            b, x,
            (ml_linear_opts){ .name = s->reward ? ML_REWARD_HEAD : ML_VALUE_HEAD,
                              .n_out = 1,
                              .bias = !s->reward });
        s->value[value].exact = true;
        s->tied = false; /* nothing shares the embedding */
        return;
    }
    n = ml_build_node(b, ML_OP_LMHEAD);
    n->in[0] = x;
    n->w[0] = tied ? s->node[0].w[0]
                   : matrix_param(b, ml_build_name(b, name, ".weight"), s->n_vocab,
                                  s->n_hidden, ML_PANELS, ML_SHARD_VOCAB);
    n->out[0] = ml_build_exact(b, ML_PER_LOSS, 1);
    n->out[1] = ml_build_exact(b, ML_PER_LOSS, 1);
    n->out[2] = ml_build_exact(b, ML_PER_LOSS, 2);
    n->out[3] = ml_build_exact(b, ML_PER_LOSS, s->n_vocab);
    n->attr.logit_softcap = softcap;
}
