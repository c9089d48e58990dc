#include "model/specs/decoder.h"

#include <math.h>
#include <string.h>

#define MAX_WIDTH (1 << 20) /* larger widths are not plausible */
#define MAX_VOCAB (1 << 24)
#define MAX_LAYER 1024
#define MAX_HEAD 4096

static ml_act read_act(ml_builder *b, const char *key, const char *def) {
    const char *act = ml_hf_config_str(b->config, key, def);
    if (!strcmp(act, "silu") || !strcmp(act, "swish"))
        return ML_ACT_SILU;
    if (!strcmp(act, "gelu_pytorch_tanh"))
        return ML_ACT_GELU_TANH;
    ml_hf_config_fail(b->config, ML_EUNSUP,
                      "%s: \"%s\" is \"%s\"; supported are silu and gelu_pytorch_tanh",
                      b->config->path, key, act);
    return ML_ACT_SILU;
}

void ml_decoder_read(ml_builder *b, ml_decoder *d, const ml_decoder_defaults *def) {
    ml_hf_config *c = b->config;
    ml_spec *s = b->spec;
    int64_t each;

    *d = (ml_decoder){ 0 };
    s->n_vocab = ml_hf_config_int(c, "vocab_size", ML_HF_REQUIRED, 1, MAX_VOCAB);
    d->n_hidden = ml_hf_config_int(c, "hidden_size", ML_HF_REQUIRED, 1, MAX_WIDTH);
    if (!def->inner_by_layer)
        d->n_inner =
            ml_hf_config_int(c, "intermediate_size",
                             def->n_inner ? def->n_inner : ML_HF_REQUIRED, 1, MAX_WIDTH);
    d->n_layer = (int32_t)ml_hf_config_int(
        c, "num_hidden_layers", def->n_layer ? def->n_layer : ML_HF_REQUIRED, 1, MAX_LAYER);
    d->n_head =
        (int32_t)ml_hf_config_int(c, "num_attention_heads", ML_HF_REQUIRED, 1, MAX_HEAD);
    d->n_kv = (int32_t)ml_hf_config_int(c, "num_key_value_heads",
                                        def->n_kv ? def->n_kv : d->n_head, 1, MAX_HEAD);
    each = d->n_hidden / d->n_head; /* 0 if the config is invalid */
    d->head_dim = (int32_t)ml_hf_config_int(c, "head_dim",
                                            def->head_dim ? def->head_dim
                                            : each > 0    ? each
                                                          : 1,
                                            1, 1024);
    d->eps = (float)ml_hf_config_num(c, def->eps_key ? def->eps_key : "rms_norm_eps",
                                     def->eps, 0, 1);
    d->act = read_act(b, def->act_key, def->act);
    if (d->n_head % d->n_kv != 0) {
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s: num_attention_heads (%d) is not a multiple of "
                          "num_key_value_heads (%d)",
                          c->path, d->n_head, d->n_kv);
        d->n_kv = d->n_head; /* keeps the following rows consistent */
    }
    if (d->head_dim % 2 != 0)
        ml_hf_config_fail(c, ML_EFORMAT, "%s: head_dim (%d) is odd; rotary needs pairs",
                          c->path, d->head_dim);
    d->scale = (float)(1.0 / sqrt((double)d->head_dim));
    s->n_hidden = d->n_hidden;
    s->n_layer = d->n_layer;
    s->max_position = ml_hf_config_int(c, "max_position_embeddings", 0, 0, INT64_MAX);
    s->tied = ml_hf_config_bool(c, "tie_word_embeddings", def->tied);
    s->n_nextn = (int32_t)ml_hf_config_int(c, "num_nextn_predict_layers", 0, 0, MAX_LAYER);
}

int32_t ml_decoder_norm(ml_builder *b, const ml_decoder *d, int32_t x, const char *name) {
    return ml_build_norm(b, x, name, d->eps, (int32_t)d->n_hidden, d->norm_plus_one);
}

/* n heads of q, k or v; in a fused projection they follow `first` other heads. */
static int32_t heads(ml_builder *b, const ml_decoder *d, int32_t x, const char *name,
                     int32_t n, int32_t first) {
    return ml_build_linear(
        b, x,
        (ml_linear_opts){ .name = name,
                          .n_out = (int64_t)n * d->head_dim,
                          .bias = d->qkv_bias,
                          .shard = ML_SHARD_COL,
                          .whole = d->fused_qkv ? "self_attn.qkv_proj" : NULL,
                          .whole_out = (int64_t)(d->n_head + 2 * d->n_kv) * d->head_dim,
                          .first_out = (int64_t)first * d->head_dim });
}

static int32_t norm_heads(ml_builder *b, const ml_decoder *d, int32_t x, const char *name) {
    if (d->qk_norm == ML_QK_NORM_NONE || d->qk_norm == ML_QK_NORM_ROTATED)
        return x;
    return ml_build_norm(b, x, name, d->eps,
                         d->qk_norm == ML_QK_NORM_HEAD ? d->head_dim
                                                       : (int32_t)ml_build_width(b, x),
                         d->norm_plus_one);
}

/* Rotates queries and keys, and normalizes them where that follows. */
static void rotate(ml_builder *b, const ml_decoder *d, const ml_rope *rope, int32_t *q,
                   int32_t *k) {
    if (rope) {
        *q = ml_build_rope(b, *q, rope, d->head_dim, d->rope_interleaved);
        *k = ml_build_rope(b, *k, rope, d->head_dim, d->rope_interleaved);
    } else if (d->temper) {
        *q = ml_build_rope(b, *q, d->temper, d->head_dim, d->rope_interleaved);
    }
    if (d->qk_norm != ML_QK_NORM_ROTATED)
        return;
    *q = ml_build_norm(b, *q, NULL, d->eps, d->head_dim, false);
    *k = ml_build_norm(b, *k, NULL, d->eps, d->head_dim, false);
}

/* The first or second half of each double-width head. */
static int32_t half_heads(ml_builder *b, const ml_decoder *d, int32_t x, int64_t at) {
    return ml_build_slice(
        b, x, (ml_slice_opts){ .n_group = d->n_head, .part = { { at, d->head_dim } } });
}

int32_t ml_decoder_attn(ml_builder *b, const ml_decoder *d, int32_t x, const ml_rope *rope,
                        int32_t window) {
    int32_t q = heads(b, d, x, "self_attn.q_proj", d->n_head * (d->attn_gate ? 2 : 1), 0);
    int32_t k = heads(b, d, x, "self_attn.k_proj", d->n_kv, d->n_head);
    int32_t v = heads(b, d, x, "self_attn.v_proj", d->n_kv, d->n_head + d->n_kv), o;
    int32_t gate = ML_NONE;

    if (d->attn_gate) {
        gate = half_heads(b, d, q, d->head_dim);
        q = half_heads(b, d, q, 0);
    }
    q = norm_heads(b, d, q, "self_attn.q_norm");
    k = norm_heads(b, d, k, "self_attn.k_norm");
    rotate(b, d, rope, &q, &k);
    o = ml_build_attn(b, q, k, v,
                      (ml_attn_opts){ .head_dim = d->head_dim,
                                      .window = window,
                                      .chunk = d->chunk,
                                      .scale = d->scale,
                                      .softcap = d->attn_softcap,
                                      .sink = d->sink });
    if (d->attn_gate)
        o = ml_build_glu(b, gate, o, ML_ACT_SIGMOID);
    return ml_build_linear(b, o,
                           (ml_linear_opts){ .name = "self_attn.o_proj",
                                             .n_out = d->n_hidden,
                                             .bias = d->o_bias,
                                             .shard = ML_SHARD_ROW });
}

/* down(act(gate(x)) * up(x)), with parameters prefix.gate_proj etc. */
static int32_t mlp(ml_builder *b, const ml_decoder *d, int32_t x, const char *prefix,
                   int64_t n_inner) {
    ml_arena *a = &b->spec->arena;
    ml_linear_opts o = { .n_out = n_inner, .bias = d->mlp_bias, .shard = ML_SHARD_COL };
    int32_t gate, up;

    if (d->fused_mlp) {
        o.name = ml_arena_printf(a, "%s.gate_up_proj", prefix);
        o.n_out = 2 * n_inner;
        gate = ml_build_linear(b, x, o);
        up = ML_NONE;
    } else {
        o.name = ml_arena_printf(a, "%s.gate_proj", prefix);
        gate = ml_build_linear(b, x, o);
        o.name = ml_arena_printf(a, "%s.up_proj", prefix);
        up = ml_build_linear(b, x, o);
    }
    return ml_build_linear(
        b, ml_build_glu(b, gate, up, d->act),
        (ml_linear_opts){ .name = ml_arena_printf(a, "%s.down_proj", prefix),
                          .n_out = d->n_hidden,
                          .bias = d->mlp_bias,
                          .shard = ML_SHARD_ROW });
}

int32_t ml_decoder_ffn(ml_builder *b, const ml_decoder *d, int32_t x, const ml_ffn *f) {
    int32_t y, shared;

    if (!f->moe)
        return mlp(b, d, x, f->mlp ? f->mlp : "mlp", d->n_inner);
    y = ml_build_moe(b, x, x, *f->moe);
    if (!f->shared)
        return y;
    shared = mlp(b, d, x, f->shared, f->n_shared);
    if (f->shared_gate) {
        ml_linear_opts gate = { .name = f->shared_gate, .n_out = 1 };
        shared = ml_build_row_gate(b, ml_build_linear(b, x, gate), shared);
    }
    return ml_build_add(b, y, shared);
}

const char *const ml_carried_mtp[] = { "mtp.", NULL };

const ml_norm_names ml_pre_norms = { .before_attn = "input_layernorm",
                                     .before_ffn = "post_attention_layernorm" };

static int32_t named_norm(ml_builder *b, const ml_decoder *d, int32_t x, const char *name) {
    return name ? ml_decoder_norm(b, d, x, name) : x;
}

int32_t ml_decoder_layer(ml_builder *b, const ml_decoder *d, int32_t x, ml_layer_opts o) {
    const ml_norm_names *norms = o.norms ? o.norms : &ml_pre_norms;
    int32_t h = named_norm(b, d, x, norms->before_attn);

    h = o.mla ? ml_mla_attn(b, d, o.mla, h) : ml_decoder_attn(b, d, h, o.rope, o.window);
    x = ml_build_add(b, x, named_norm(b, d, h, norms->after_attn));
    h = named_norm(b, d, x, norms->before_ffn);
    h = ml_decoder_ffn(b, d, h, &o.ffn);
    return ml_build_add(b, x, named_norm(b, d, h, norms->after_ffn));
}

const ml_mtp_names ml_mtp_nextn = { .inside = true,
                                    .embed_norm = "enorm",
                                    .hidden_norm = "hnorm",
                                    .project = "eh_proj",
                                    .norm = "shared_head.norm" };

int32_t ml_decoder_embed_again(ml_builder *b) {
    int32_t out = ml_build_rows(b, 1, b->spec->n_hidden);
    ml_node *n = ml_build_node(b, ML_OP_EMBED);

    n->w[0] = b->spec->node[0].w[0];
    n->attr = b->spec->node[0].attr;
    n->out[0] = out;
    return out;
}

static void begin_mtp_layer(ml_builder *b, const ml_mtp_names *m, int32_t index) {
    b->layers = m->layers;
    ml_build_begin_layer(b, index);
}

static void take_of_trunk(ml_param *p) {
    p->of_trunk = p->frozen = true;
}

/* Parameters of the trunk are not trained; the module's layer is its only one. */
static void finish_mtp(ml_spec *s) {
    const ml_node *head = &s->node[s->n_node - 1];

    take_of_trunk(&s->param[s->node[0].w[0]]);
    take_of_trunk(&s->param[head->w[0]]);
    s->module = (ml_module_io){
        .hidden = head->in[0], .own = 1, .n_vocab = s->n_vocab, .n_hidden = s->n_hidden
    };
    s->n_layer = 1;
    s->n_nextn = 0;
    for (int i = 0; i < ML_N_ROUTING; i++)
        s->route[i].n_layer = s->route[i].n_layer ? 1 : 0;
    for (int32_t i = 0; i < s->n_node; i++) {
        s->node[i].layer = s->node[i].layer == ML_NONE ? ML_NONE : 0;
        s->node[i].route_layer = 0;
    }
    s->mtp = true;
}

/* norm(layer(project([norm(embedding of the next token); norm(hidden state)]))) and the
 * trunk's head; some families project the two in the other order.  The layer is built like
 * the trunk's last one. */
static void build_mtp(ml_builder *b, const ml_decoder *d, ml_layer_fn *layer,
                      const void *ud, const ml_model_opts *o) {
    const ml_mtp_names *m = o->mtp;
    int32_t hidden = ml_build_embed(b, "model.embed_tokens.weight",
                                    o->embed_scale == 0.0f ? 1.0f : o->embed_scale);
    int32_t x = ml_decoder_embed_again(b), index = m->layers ? 0 : d->n_layer;

    if (m->inside)
        begin_mtp_layer(b, m, index);
    x = ml_decoder_norm(b, d, x, m->embed_norm);
    hidden = ml_decoder_norm(b, d, hidden, m->hidden_norm);
    x = m->hidden_first ? ml_build_concat(b, hidden, x, 1)
                        : ml_build_concat(b, x, hidden, 1);
    x = ml_build_linear(b, x, (ml_linear_opts){ .name = m->project, .n_out = d->n_hidden });
    if (!m->inside)
        begin_mtp_layer(b, m, index);
    x = layer(b, d, x, d->n_layer - 1, ud);
    if (!m->inside)
        ml_build_end_layer(b);
    x = ml_decoder_norm(b, d, x, m->norm);
    ml_build_end_layer(b);
    ml_build_head(b, x, "lm_head", b->spec->tied, o->logit_softcap);
    finish_mtp(b->spec);
}

void ml_decoder_model(ml_builder *b, const ml_decoder *d, ml_layer_fn *layer,
                      const void *ud, ml_model_opts o) {
    int32_t x;

    if (b->mtp && o.mtp && (o.mtp->layers || b->spec->n_nextn)) {
        build_mtp(b, d, layer, ud, &o);
        return;
    }
    x = ml_build_embed(b, "model.embed_tokens.weight",
                       o.embed_scale == 0.0f ? 1.0f : o.embed_scale);
    if (o.begin)
        o.begin(b, d, x, ud);
    for (int32_t i = 0; i < d->n_layer; i++) {
        ml_build_begin_layer(b, i);
        x = layer(b, d, x, i, ud);
        ml_build_end_layer(b);
    }
    ml_build_head(b, ml_decoder_norm(b, d, x, "model.norm"), "lm_head", b->spec->tied,
                  o.logit_softcap);
}

/* Keys of layers that attend to a part of the keys: their name in layer_types, and the
 * key of their size. */
typedef struct part_type {
    const char *type, *size_key;
} part_type;

static const part_type sliding_type = { "sliding_attention", "sliding_window" };
static const part_type chunked_type = { "chunked_attention", "attention_chunk_size" };

static const int32_t *sizes_from_types(ml_builder *b, int32_t *out, int32_t n_layer,
                                       int32_t size, const part_type *part,
                                       const ml_json *types) {
    ml_hf_config *c = b->config;
    const ml_json *t = types->child;

    if (types->type != ML_JSON_ARRAY || types->n != n_layer) {
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s:%u: \"layer_types\" must be an array of %d strings", c->path,
                          types->line, n_layer);
        return out;
    }
    for (int32_t i = 0; i < n_layer; i++, t = t->next) {
        bool partial = ml_str_is(t->text, part->type);
        if (t->type != ML_JSON_STRING ||
            (!partial && !ml_str_is(t->text, "full_attention")))
            ml_hf_config_fail(
                c, ML_EUNSUP,
                "%s:%u: \"layer_types\" has \"%.*s\" for layer %d; supported are "
                "full_attention and %s",
                c->path, t->line, (int)t->text.len, t->text.ptr, i, part->type);
        if (partial && !size)
            ml_hf_config_fail(c, ML_EFORMAT, "%s:%u: layer %d is %s but no \"%s\" is set",
                              c->path, t->line, i, part->type, part->size_key);
        out[i] = partial ? size : 0;
    }
    return out;
}

static const int32_t *sizes_read(ml_builder *b, int32_t n_layer, int32_t size,
                                 const part_type *part,
                                 bool (*partial)(int32_t layer, const void *arg),
                                 const void *arg) {
    const ml_json *types = ml_hf_config_get(b->config, "layer_types");
    int32_t *out = ML_NEW(&b->spec->arena, int32_t, n_layer);

    if (types)
        return sizes_from_types(b, out, n_layer, size, part, types);
    for (int32_t i = 0; i < n_layer; i++)
        out[i] = partial(i, arg) ? size : 0;
    return out;
}

const int32_t *ml_windows_read(ml_builder *b, int32_t n_layer, int32_t window,
                               bool (*sliding)(int32_t layer, const void *arg),
                               const void *arg) {
    return sizes_read(b, n_layer, window, &sliding_type, sliding, arg);
}

const int32_t *ml_chunks_read(ml_builder *b, int32_t n_layer, int32_t chunk,
                              bool (*chunked)(int32_t layer, const void *arg),
                              const void *arg) {
    return sizes_read(b, n_layer, chunk, &chunked_type, chunked, arg);
}

int32_t ml_window_or_none(ml_builder *b, int32_t def) {
    const ml_json *v = ml_json_get(b->config->root, "sliding_window");
    if (v && v->type == ML_JSON_NULL)
        def = 0;
    return (int32_t)ml_hf_config_int(b->config, "sliding_window", def, 1, INT32_MAX);
}

bool ml_every_layer(int32_t layer, const void *arg) {
    (void)layer, (void)arg;
    return true;
}

static bool from_layer(int32_t layer, const void *first) {
    return layer >= *(const int64_t *)first;
}

const int32_t *ml_windows_read_qwen(ml_builder *b, int32_t n_layer) {
    ml_hf_config *c = b->config;
    bool use = ml_hf_config_bool(c, "use_sliding_window", false);
    int32_t window = ml_window_or_none(b, 4096);
    int64_t first = ml_hf_config_int(c, "max_window_layers", 28, 0, INT32_MAX);
    return ml_windows_read(b, n_layer, use ? window : 0, from_layer, &first);
}
