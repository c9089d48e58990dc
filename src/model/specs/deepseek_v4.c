/* DeepSeek-V4: hyper-connections between several residual streams; attention of all heads
 * to one key, which is also the value, in a sliding window and, in most layers, to keys
 * that are compressed from several rows; experts with sqrt(softplus) scores, in the first
 * layers selected by token id.
 *
 * Parameters have the names of released checkpoints, or those that transformers writes. */
#include <math.h>
#include <string.h>

#include "model/specs/families.h"

enum { MAX_RANK = 1 << 16, MAX_GROUP = 4096, MAX_WINDOW = 1 << 24, MAX_ITER = 64 };

typedef enum layer_kind { SLIDING, SPARSE, HEAVY } layer_kind;

static const char *const kind_names[] = { "sliding_attention",
                                          "compressed_sparse_attention",
                                          "heavily_compressed_attention" };

typedef struct v4 {
    const layer_kind *kind; /* [n_layer] */
    const bool *hashed;     /* [n_layer] experts are those of the token id */
    int32_t ratio[3];       /* of each kind; 0: no compressed keys */
    const ml_rope *rope[3]; /* of rows, by kind */
    ml_rope stepped[3];     /* of compressed keys: the position of their first row */
    int32_t q_rank, o_group, o_rank, window;
    int32_t n_stream, n_iter;
    float hc_eps, limit;
    struct {
        int32_t n_head, head_dim, top_k;
    } index;
    ml_moe_opts moe;
} v4;

/* --- hyper-connections ----------------------------------------------------------------- */

/* Names of the parameters of a hyper-connection. */
typedef struct hyper_names {
    const char *fn, *scale, *base;
} hyper_names;

static int32_t coefficients(ml_builder *b, const ml_decoder *d, const v4 *s, int32_t x,
                            const hyper_names *name, bool head) {
    int32_t n = s->n_stream;

    x = ml_build_norm(b, x, NULL, d->eps, n * (int32_t)d->n_hidden, false);
    x = ml_build_linear(b, x,
                        (ml_linear_opts){ .name = name->fn,
                                          .n_out = head ? n : n * (n + 2),
                                          .bare = true,
                                          .keep_f32 = true,
                                          .f32_out = true });
    return ml_build_hyper(b, x,
                          (ml_hyper_opts){ .scale = name->scale,
                                           .base = name->base,
                                           .n_stream = n,
                                           .n_iter = s->n_iter,
                                           .eps = s->hc_eps,
                                           .head = head });
}

static int32_t columns(ml_builder *b, int32_t x, int64_t at, int64_t width) {
    return ml_build_slice(b, x, (ml_slice_opts){ .part = { { at, width } } });
}

/* The input of a layer, from the first n coefficients. */
static int32_t joined(ml_builder *b, const v4 *s, int32_t x, int32_t coef) {
    static const float none[ML_STREAMS + 1];

    return ml_build_mix(
        b, x, ML_NONE, columns(b, coef, 0, s->n_stream),
        (ml_mix_opts){ .n_in = s->n_stream, .n_out = 1, .streams = true, .base = none });
}

/* The streams after a layer with output y. */
static int32_t expanded(ml_builder *b, const v4 *s, int32_t x, int32_t y, int32_t coef) {
    static const float none[ML_STREAMS * (ML_STREAMS + 1)];
    int64_t n = s->n_stream;

    return ml_build_mix(b, x, y, columns(b, coef, n, n * (n + 1)),
                        (ml_mix_opts){ .n_in = s->n_stream,
                                       .n_out = s->n_stream,
                                       .streams = true,
                                       .extra = true,
                                       .base = none });
}

/* Every stream begins as the embedding. */
static int32_t copies(ml_builder *b, const v4 *s, int32_t x) {
    float base[2 * ML_STREAMS];

    for (int32_t i = 0; i < 2 * ML_STREAMS; i++)
        base[i] = i % 2 ? 0.0f : 1.0f;
    return ml_build_mix(b, x, ML_NONE, ML_NONE,
                        (ml_mix_opts){ .n_in = 1, .n_out = s->n_stream, .base = base });
}

/* --- attention -------------------------------------------------------------------------- */

static int32_t linear(ml_builder *b, int32_t x, const char *name, int64_t n_out,
                      ml_shard shard) {
    return ml_build_linear(
        b, x, (ml_linear_opts){ .name = name, .n_out = n_out, .shard = shard });
}

/* The last parameter may have another name in a checkpoint. */
static void also_named(ml_builder *b, const char *name) {
    ml_param *p = &b->spec->param[b->spec->n_param - 1];

    p->part = ML_NEW(&b->spec->arena, ml_part, 1);
    *p->part = (ml_part){ .name = ml_build_name(b, name, ""),
                          .n_dim = p->n_dim,
                          .shape = { p->shape[0], p->n_dim == 2 ? p->shape[1] : 0 },
                          .row = p->n_dim == 2 ? p->shape[1] : 0,
                          .col = 1 };
}

/* Compressed keys of `width` columns. */
static int32_t compressed(ml_builder *b, const ml_decoder *d, const v4 *s, int32_t x,
                          const char *name, int32_t width) {
    layer_kind kind = s->kind[b->layer];
    int64_t n_out = kind == SPARSE ? 2 * (int64_t)width : width; /* windows overlap */
    char full[4][64];
    static const char *const parts[] = { "wkv", "wgate", "ape", "norm" };
    int32_t kv, gate, k;

    for (int i = 0; i < 4; i++)
        strcat(strcat(strcpy(full[i], name), "."), parts[i]);
    kv = linear(b, x, full[0], n_out, ML_SHARD_NONE);
    gate = linear(b, x, full[1], n_out, ML_SHARD_NONE);
    k = ml_build_compress(b, kv, gate,
                          (ml_compress_opts){ full[2], s->ratio[kind], width });
    k = ml_build_norm(b, k, full[3], d->eps, width, false);
    return ml_build_rope_tail(b, k, &s->stepped[kind], width, false);
}

/* The lightning indexer, which is not trained. */
static int32_t chosen(ml_builder *b, const ml_decoder *d, const v4 *s, int32_t x,
                      int32_t latent) {
    int32_t n_head = s->index.n_head, width = s->index.head_dim;
    int32_t first = b->spec->n_param, q, k, weight;

    q = linear(b, latent, "attn.indexer.wq_b", (int64_t)n_head * width, ML_SHARD_NONE);
    q = ml_build_rope_tail(b, q, s->rope[SPARSE], width, false);
    k = compressed(b, d, s, x, "attn.indexer.compressor", width);
    weight = ml_build_linear(b, x,
                             (ml_linear_opts){ .name = "attn.indexer.weights_proj",
                                               .n_out = n_head,
                                               .keep_f32 = true });
    for (int32_t i = first; i < b->spec->n_param; i++)
        b->spec->param[i].frozen = true;
    return ml_build_index(
        b, q, k, weight,
        (ml_index_opts){ .n_head = n_head,
                         .top_k = s->index.top_k,
                         .ratio = s->ratio[SPARSE],
                         .scale = (float)(1.0 / sqrt((double)width)),
                         .weight_scale = (float)(1.0 / sqrt((double)n_head)) });
}

/* Heads in groups, each with a projection of its own to o_rank columns. */
static int32_t grouped(ml_builder *b, const ml_decoder *d, const v4 *s, int32_t o) {
    ml_part *p = ML_NEW(&b->spec->arena, ml_part, 1);
    int64_t width = (int64_t)d->n_head * d->head_dim / s->o_group;

    *p = (ml_part){ .name = ml_build_name(b, "attn.wo_a.weight", ""),
                    .n_dim = 2,
                    .shape = { (int64_t)s->o_group * s->o_rank, width },
                    .member = s->o_rank * width,
                    .row = width,
                    .col = 1 };
    return ml_build_head_linear(b, o, "attn.wo_a", s->o_group, s->o_rank, p);
}

static int32_t attention(ml_builder *b, const ml_decoder *d, const v4 *s, int32_t x) {
    layer_kind kind = s->kind[b->layer];
    const ml_rope *rope = s->rope[kind];
    int32_t latent = linear(b, x, "attn.wq_a", s->q_rank, ML_SHARD_NONE), q, k, o;
    ml_attn_opts attn = { .head_dim = d->head_dim,
                          .value_dim = d->head_dim,
                          .value_in_key = true,
                          .window = s->window,
                          .ratio = s->ratio[kind],
                          .scale = d->scale,
                          .sink = "attn.attn_sink" };

    latent = ml_build_norm(b, latent, "attn.q_norm", d->eps, s->q_rank, false);
    q = linear(b, latent, "attn.wq_b", (int64_t)d->n_head * d->head_dim, ML_SHARD_COL);
    q = ml_build_norm(b, q, NULL, d->eps, d->head_dim, false);
    q = ml_build_rope_tail(b, q, rope, d->head_dim, false);
    k = linear(b, x, "attn.wkv", d->head_dim, ML_SHARD_NONE);
    k = ml_build_norm(b, k, "attn.kv_norm", d->eps, d->head_dim, false);
    also_named(b, "attn.norm.weight");
    k = ml_build_rope_tail(b, k, rope, d->head_dim, false);
    if (kind == SLIDING) {
        o = ml_build_attn(b, q, k, k, attn);
    } else {
        int32_t c = compressed(b, d, s, x, "attn.compressor", d->head_dim);
        o = ml_build_attn_chosen(b, q, ml_build_concat(b, k, c, 1),
                                 kind == SPARSE ? chosen(b, d, s, x, latent) : ML_NONE,
                                 attn);
    }
    o = ml_build_rope_tail(b, o, rope, d->head_dim, true);
    return linear(b, grouped(b, d, s, o), "attn.wo_b", d->n_hidden, ML_SHARD_ROW);
}

/* --- layers ----------------------------------------------------------------------------- */

static int32_t feed_forward(ml_builder *b, const ml_decoder *d, const v4 *s, int32_t x) {
    ml_moe_opts moe = s->moe;
    int32_t routed, gate, up;

    if (s->hashed[b->layer])
        moe.table = "ffn.gate.tid2eid";
    else
        moe.bias = "ffn.gate.bias";
    routed = ml_build_moe(b, x, x, moe);
    gate = linear(b, x, "ffn.shared_experts.w1", moe.n_inner, ML_SHARD_COL);
    up = linear(b, x, "ffn.shared_experts.w3", moe.n_inner, ML_SHARD_COL);
    x = linear(b, ml_build_swiglu(b, gate, up, s->limit), "ffn.shared_experts.w2",
               d->n_hidden, ML_SHARD_ROW);
    return ml_build_add(b, routed, x);
}

static int32_t layer(ml_builder *b, const ml_decoder *d, const v4 *s, int32_t x) {
    static const hyper_names attn = { "hc_attn_fn", "hc_attn_scale", "hc_attn_base" };
    static const hyper_names ffn = { "hc_ffn_fn", "hc_ffn_scale", "hc_ffn_base" };
    int32_t coef = coefficients(b, d, s, x, &attn, false), y;

    y = ml_decoder_norm(b, d, joined(b, s, x, coef), "attn_norm");
    x = expanded(b, s, x, attention(b, d, s, y), coef);
    coef = coefficients(b, d, s, x, &ffn, false);
    y = ml_decoder_norm(b, d, joined(b, s, x, coef), "ffn_norm");
    return expanded(b, s, x, feed_forward(b, d, s, y), coef);
}

static void model(ml_builder *b, const ml_decoder *d, const v4 *s) {
    static const hyper_names head = { "model.hc_head.hc_fn", "model.hc_head.hc_scale",
                                      "model.hc_head.hc_base" };
    int32_t x = copies(b, s, ml_build_embed(b, "model.embed_tokens.weight", 1));

    for (int32_t i = 0; i < d->n_layer; i++) {
        ml_build_begin_layer(b, i);
        x = layer(b, d, s, x);
        ml_build_end_layer(b);
    }
    x = joined(b, s, x, coefficients(b, d, s, x, &head, true));
    ml_build_head(b, ml_decoder_norm(b, d, x, "model.norm"), "head", b->spec->tied, 0);
}

/* --- config.json ------------------------------------------------------------------------ */

static bool is_word(const ml_json *v, const char *word) {
    return v->type == ML_JSON_STRING && ml_str_is(v->text, word);
}

/* The i-th element of an array with one for each layer, and perhaps for more layers. */
static const ml_json *of_layer(ml_builder *b, const ml_json *list, const char *key,
                               int32_t i) {
    const ml_json *v = list->type == ML_JSON_ARRAY ? list->child : NULL;

    for (int32_t k = 0; v && k < i; k++)
        v = v->next;
    if (!v)
        ml_hf_config_fail(b->config, ML_EFORMAT,
                          "%s:%u: \"%s\" must be an array with an element for each of %d "
                          "layers",
                          b->config->path, list->line, key, b->spec->n_layer);
    return v;
}

static layer_kind kind_of_type(ml_builder *b, const ml_json *types, int32_t i) {
    const ml_json *v = of_layer(b, types, "layer_types", i);

    for (int k = SLIDING; v && k <= HEAVY; k++)
        if (is_word(v, kind_names[k]))
            return (layer_kind)k;
    if (v)
        ml_hf_config_fail(
            b->config, ML_EUNSUP, "%s:%u: \"layer_types\" of layer %d must be %s, %s or %s",
            b->config->path, v->line, i, kind_names[0], kind_names[1], kind_names[2]);
    return SLIDING;
}

static layer_kind kind_of_ratio(ml_builder *b, const ml_json *ratios, int32_t i) {
    const ml_json *v = of_layer(b, ratios, "compress_ratios", i);
    int64_t ratio = -1;

    if (v && ml_json_i64(v, &ratio) && (ratio == 0 || ratio == 4 || ratio == 128))
        return ratio == 0 ? SLIDING : ratio == 4 ? SPARSE : HEAVY;
    if (v)
        ml_hf_config_fail(b->config, ML_EUNSUP,
                          "%s:%u: \"compress_ratios\" of layer %d must be 0, 4 or 128",
                          b->config->path, v->line, i);
    return SLIDING;
}

/* layer_types, or the older compress_ratios; by default two heavily compressed layers,
 * then these and sparse ones in turn. */
static void read_kinds(ml_builder *b, v4 *s, int32_t n_layer) {
    const ml_json *types = ml_hf_config_get(b->config, "layer_types");
    const ml_json *ratios = ml_hf_config_get(b->config, "compress_ratios");
    layer_kind *kind = ML_NEW(&b->spec->arena, layer_kind, n_layer);

    for (int32_t i = 0; i < n_layer; i++)
        kind[i] = types    ? kind_of_type(b, types, i)
                  : ratios ? kind_of_ratio(b, ratios, i)
                           : (i > 2 && i % 2 ? SPARSE : HEAVY);
    s->kind = kind;
}

/* mlp_layer_types, or the first num_hash_layers. */
static void read_hashed(ml_builder *b, v4 *s, int32_t n_layer) {
    const ml_json *types = ml_hf_config_get(b->config, "mlp_layer_types");
    int64_t n = ml_hf_config_int(b->config, "num_hash_layers", 3, 0, INT32_MAX);
    bool *hashed = ML_NEW(&b->spec->arena, bool, n_layer);

    for (int32_t i = 0; i < n_layer; i++) {
        const ml_json *v = types ? of_layer(b, types, "mlp_layer_types", i) : NULL;
        hashed[i] = v ? is_word(v, "hash_moe") : i < n;
        if (v && !hashed[i] && !is_word(v, "moe"))
            ml_hf_config_fail(b->config, ML_EUNSUP,
                              "%s:%u: \"mlp_layer_types\" of layer %d must be hash_moe or "
                              "moe",
                              b->config->path, v->line, i);
    }
    s->hashed = hashed;
}

static int32_t read_ratio(ml_builder *b, layer_kind kind, const char *old, int64_t def) {
    ml_hf_config *c = b->config;
    const ml_json *rates = ml_hf_config_get(c, "compress_rates");
    int64_t n = ml_hf_config_int(c, old, def, 1, ML_COMPRESS_ROWS);

    return (int32_t)ml_hf_config_num_in(c, rates, "compress_rates.", kind_names[kind],
                                        (double)n, 1, ML_COMPRESS_ROWS);
}

/* The rotary embedding of layers with compressed keys has its own base and scaling. */
static void read_ropes(ml_builder *b, v4 *s, const ml_decoder *d) {
    ml_hf_config *c = b->config;
    const ml_json *all = ml_hf_config_get(c, "rope_parameters");
    int64_t dim = ml_hf_config_int(c, "qk_rope_head_dim", 0, 2, d->head_dim);
    double partial = dim ? (double)dim / d->head_dim : 0.125;
    ml_rope_opts main = { .part = "main", .theta = 10000, .partial = partial };
    ml_rope_opts other = { .part = "compress",
                           .theta_key = "compress_rope_theta",
                           .theta = 160000,
                           .partial = partial,
                           .scaled = true,
                           .attention = 1 };

    if (all && (!ml_json_get(all, "main") || !ml_json_get(all, "compress")))
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s:%u: \"rope_parameters\" must have the objects main and "
                          "compress",
                          c->path, all->line);
    s->rope[SLIDING] = ml_rope_read(b, d->head_dim, main);
    s->rope[SPARSE] = s->rope[HEAVY] = ml_rope_read(b, d->head_dim, other);
    for (int k = SPARSE; k <= HEAVY; k++) {
        s->stepped[k] = *s->rope[k];
        s->stepped[k].stride = s->ratio[k];
    }
}

static void read_index(ml_builder *b, v4 *s, const ml_decoder *d) {
    ml_hf_config *c = b->config;
    int32_t dim = s->rope[SPARSE]->dim;

    if (dim > d->head_dim)
        ml_hf_config_fail(c, ML_EFORMAT, "%s: %d of %d elements of a head are rotated",
                          c->path, dim, d->head_dim);
    s->index.n_head = (int32_t)ml_hf_config_int(c, "index_n_heads", 64, 1, MAX_GROUP);
    s->index.head_dim = (int32_t)ml_hf_config_int(c, "index_head_dim", 128, dim, 4096);
    s->index.top_k = (int32_t)ml_hf_config_int(c, "index_topk", 512, 1, 1 << 20);
}

static void read_scores(ml_builder *b, ml_moe_opts *o) {
    const char *how = ml_hf_config_str(b->config, "scoring_func", "sqrtsoftplus");

    o->sqrt_softplus = !strcmp(how, "sqrtsoftplus");
    o->sigmoid = !strcmp(how, "sigmoid");
    if (!o->sqrt_softplus && !o->sigmoid && strcmp(how, "softmax") != 0)
        ml_hf_config_fail(b->config, ML_EUNSUP,
                          "%s: \"scoring_func\" is \"%s\"; supported are sqrtsoftplus, "
                          "sigmoid and softmax",
                          b->config->path, how);
}

static void read_experts(ml_builder *b, v4 *s, const ml_decoder *d) {
    ml_hf_config *c = b->config;
    int64_t n = ml_hf_config_int(c, "n_routed_experts", 256, 1, 65536);

    s->limit = (float)ml_hf_config_num(c, "swiglu_limit", 10, 1e-6, 1e30);
    s->moe = (ml_moe_opts){ .router = "ffn.gate",
                            .experts = "ffn.experts",
                            .gate = "w1",
                            .up = "w3",
                            .down = "w2",
                            .n_expert = (int32_t)n,
                            .renorm = true,
                            .limit = s->limit,
                            .act = d->act };
    s->moe.top_k = (int32_t)ml_hf_config_int(c, "num_experts_per_tok", 6, 1, n);
    s->moe.n_inner = ml_hf_config_int(c, "moe_intermediate_size", 2048, 1, 1 << 20);
    s->moe.scale = (float)ml_hf_config_num(c, "routed_scaling_factor", 1.5, 1e-6, 1e6);
    read_scores(b, &s->moe);
    if (ml_hf_config_int(c, "n_shared_experts", 1, 0, 1024) != 1 || d->act != ML_ACT_SILU)
        ml_hf_config_fail(c, ML_EUNSUP,
                          "%s: supported is 1 shared expert (\"n_shared_experts\") with "
                          "\"hidden_act\" silu",
                          c->path);
}

static void read_attention(ml_builder *b, v4 *s, const ml_decoder *d) {
    ml_hf_config *c = b->config;

    s->q_rank = (int32_t)ml_hf_config_int(c, "q_lora_rank", 1024, 1, MAX_RANK);
    s->o_group = (int32_t)ml_hf_config_int(c, "o_groups", 8, 1, MAX_GROUP);
    s->o_rank = (int32_t)ml_hf_config_int(c, "o_lora_rank", 1024, 1, MAX_RANK);
    s->window = (int32_t)ml_hf_config_int(c, "sliding_window", 128, 1, MAX_WINDOW);
    s->ratio[SPARSE] = read_ratio(b, SPARSE, "compress_rate_csa", 4);
    s->ratio[HEAVY] = read_ratio(b, HEAVY, "compress_rate_hca", 128);
    if (d->n_head % s->o_group != 0) {
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s: num_attention_heads (%d) is not a multiple of o_groups (%d)",
                          c->path, d->n_head, s->o_group);
        s->o_group = 1;
    }
}

static void build(ml_builder *b) {
    ml_hf_config *c = b->config;
    ml_decoder d;
    v4 *s = ML_NEW(&b->spec->arena, v4, 1); /* the spec refers to its rotary tables */

    ml_decoder_read(b, &d,
                    &(ml_decoder_defaults){ .n_kv = 1,
                                            .head_dim = 512,
                                            .inner_by_layer = true,
                                            .eps = 1e-6,
                                            .act_key = "hidden_act",
                                            .act = "silu" });
    s->n_stream = (int32_t)ml_hf_config_int(c, "hc_mult", 4, 1, ML_STREAMS);
    s->n_iter = (int32_t)ml_hf_config_int(c, "hc_sinkhorn_iters", 20, 1, MAX_ITER);
    s->hc_eps = (float)ml_hf_config_num(c, "hc_eps", 1e-6, 0, 1);
    read_kinds(b, s, d.n_layer);
    read_hashed(b, s, d.n_layer);
    read_attention(b, s, &d);
    read_ropes(b, s, &d);
    read_index(b, s, &d);
    read_experts(b, s, &d);
    b->spec->carried = ml_carried_mtp;
    if (c->first.code == ML_OK)
        model(b, &d, s);
}

/* Keys of training, and what follows from others. */
static const char *const ignored[] = { "attention_bias",       "expert_dtype",
                                       "intermediate_size",    "norm_topk_prob",
                                       "num_local_experts",    "output_router_logits",
                                       "router_aux_loss_coef", "router_jitter_noise",
                                       "topk_method",          NULL };

const ml_family ml_family_deepseek_v4 = { "deepseek_v4", "DeepseekV4ForCausalLM", build,
                                          ignored };
