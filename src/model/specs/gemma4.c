/* Gemma 4 (text): full and sliding-window layers with different head sizes; the last
 * layers reuse keys and values of earlier ones; per-layer embeddings next to the hidden
 * state; a scalar at the end of each layer; in some models experts next to the MLP. */
#include <math.h>
#include <string.h>

#include "model/specs/families.h"
#include "model/specs/gemma4.h"

static const char *const type_names[ML_GEMMA_TYPES] = { "sliding_attention",
                                                        "full_attention" };

/* --- a layer ------------------------------------------------------------------ */

static int32_t projection(ml_builder *b, const ml_decoder *d, int32_t x, const char *name,
                          int32_t n_head) {
    return ml_build_linear(b, x,
                           (ml_linear_opts){ .name = name,
                                             .n_out = (int64_t)n_head * d->head_dim,
                                             .bias = d->qkv_bias,
                                             .shard = ML_SHARD_COL });
}

static ml_gemma_kept keys_and_values(ml_builder *b, const ml_gemma_kind *t, int32_t x) {
    const ml_decoder *d = &t->d;
    int32_t k = projection(b, d, x, "self_attn.k_proj", d->n_kv), v = k;

    if (!t->k_is_v)
        v = projection(b, d, x, "self_attn.v_proj", d->n_kv);
    k = ml_build_norm(b, k, "self_attn.k_norm", d->eps, d->head_dim, false);
    return (ml_gemma_kept){ .k = ml_build_rope(b, k, t->rope, d->head_dim, false),
                            .v = ml_build_norm(b, v, NULL, d->eps, d->head_dim, false),
                            .pages = { ML_NONE, ML_NONE } };
}

int32_t ml_gemma_attn(ml_builder *b, const ml_gemma4 *g, int32_t x, int32_t i) {
    const ml_gemma_kind *t = &g->kind[g->type[i]];
    const ml_decoder *d = &t->d;
    ml_gemma_kept *kv = &g->kept[g->type[i]];
    int32_t q = projection(b, d, x, "self_attn.q_proj", d->n_head), o;

    q = ml_build_norm(b, q, "self_attn.q_norm", d->eps, d->head_dim, false);
    q = ml_build_rope(b, q, t->rope, d->head_dim, false);
    if (i < g->first_shared)
        *kv = keys_and_values(b, t, x);
    o = ml_build_attn(b, q, kv->k, kv->v,
                      (ml_attn_opts){ .head_dim = d->head_dim,
                                      .window = t->window,
                                      .scale = d->scale,
                                      .pages = &kv->pages });
    return ml_build_linear(b, o,
                           (ml_linear_opts){ .name = "self_attn.o_proj",
                                             .n_out = d->n_hidden,
                                             .bias = d->o_bias,
                                             .shard = ML_SHARD_ROW });
}

/* The router has its own norm and divides its input by sqrt(hidden). */
static int32_t experts(ml_builder *b, const ml_decoder *d, const ml_gemma4 *g, int32_t x) {
    int32_t by = ml_build_group_norm(b, x, "router.scale", d->eps, (int32_t)d->n_hidden);

    by = ml_build_scale(b, by, (float)(1.0 / sqrt((double)d->n_hidden)));
    return ml_build_moe(b, ml_decoder_norm(b, d, x, "pre_feedforward_layernorm_2"), by,
                        g->moe);
}

static int32_t feed_forward(ml_builder *b, const ml_decoder *d, const ml_gemma4 *g,
                            int32_t x, int32_t i) {
    ml_decoder own = *d;
    int32_t h = ml_decoder_norm(b, d, x, "pre_feedforward_layernorm"), e;

    if (g->wide_shared && i >= g->first_shared)
        own.n_inner *= 2;
    h = ml_decoder_ffn(b, &own, h, &(ml_ffn){ 0 });
    if (!g->moe.n_expert)
        return h;
    h = ml_decoder_norm(b, d, h, "post_feedforward_layernorm_1");
    e = ml_decoder_norm(b, d, experts(b, d, g, x), "post_feedforward_layernorm_2");
    return ml_build_add(b, h, e);
}

/* The per-layer input, gated by the hidden state and projected to its width. */
int32_t ml_gemma_own_input(ml_builder *b, const ml_decoder *d, const ml_gemma4 *g,
                           int32_t x, int32_t i) {
    ml_slice_opts mine = { .part = { { i * g->n_input, g->n_input } } };
    int32_t gate = ml_build_linear(
        b, x, (ml_linear_opts){ .name = "per_layer_input_gate", .n_out = g->n_input });
    int32_t h = ml_build_glu(b, gate, ml_build_slice(b, *g->input, mine), d->act);

    h = ml_build_linear(
        b, h, (ml_linear_opts){ .name = "per_layer_projection", .n_out = d->n_hidden });
    return ml_decoder_norm(b, d, h, "post_per_layer_input_norm");
}

static int32_t layer(ml_builder *b, const ml_decoder *d, int32_t x, int32_t i,
                     const void *ud) {
    const ml_gemma4 *g = ud;
    int32_t h = ml_gemma_attn(b, g, ml_decoder_norm(b, d, x, "input_layernorm"), i);

    x = ml_build_add(b, x, ml_decoder_norm(b, d, h, "post_attention_layernorm"));
    h = feed_forward(b, d, g, x, i);
    x = ml_build_add(b, x, ml_decoder_norm(b, d, h, "post_feedforward_layernorm"));
    if (g->n_input)
        x = ml_build_add(b, x, ml_gemma_own_input(b, d, g, x, i));
    return ml_build_scale_param(b, x, "layer_scalar");
}

/* Per-layer inputs of all layers: a second embedding of the token, plus a projection of
 * the first. */
void ml_gemma_all_inputs(ml_builder *b, const ml_decoder *d, int32_t x, const void *ud) {
    const ml_gemma4 *g = ud;
    int64_t width = d->n_layer * g->n_input;
    int32_t of_token, h;

    if (!g->n_input)
        return;
    of_token = ml_build_table(b, "model.embed_tokens_per_layer.weight", g->n_input_vocab,
                              width, (float)sqrt((double)g->n_input));
    h = ml_build_linear(
        b, x,
        (ml_linear_opts){ .name = "model.per_layer_model_projection", .n_out = width });
    h = ml_build_scale(b, h, (float)(1.0 / sqrt((double)d->n_hidden)));
    h = ml_build_norm(b, h, "model.per_layer_projection_norm", d->eps, (int32_t)g->n_input,
                      false);
    *g->input = ml_build_scale(b, ml_build_add(b, h, of_token), (float)sqrt(0.5));
}

/* --- config keys -------------------------------------------------------------- */

static bool off_pattern(int32_t i, const void *arg) {
    (void)arg;
    return (i + 1) % 6 != 0;
}

/* The last layer has full attention, whatever the config says. */
static const int32_t *read_types(ml_builder *b, int32_t n_layer, int32_t window) {
    const int32_t *windows = ml_windows_read(b, n_layer, window, off_pattern, NULL);
    int32_t *type = ML_NEW(&b->spec->arena, int32_t, n_layer);

    for (int32_t i = 0; i < n_layer; i++)
        type[i] = windows[i] && i + 1 < n_layer ? ML_GEMMA_SLIDING : ML_GEMMA_FULL;
    return type;
}

/* An integer of a layer's entry in per_layer_config. */
static int32_t read_own(ml_builder *b, const ml_json *entry, const char *key, int32_t def) {
    const ml_json *v = ml_json_get(entry, key);
    int64_t n = def;

    if (v && (!ml_json_i64(v, &n) || n < 1 || n > 4096))
        ml_hf_config_fail(b->config, ML_EFORMAT,
                          "%s:%u: \"%s\" of a layer must be an integer from 1 to 4096",
                          b->config->path, v->line, key);
    return n < 1 || n > 4096 ? def : (int32_t)n;
}

static int64_t layer_number(ml_str key) {
    int64_t n = 0;
    for (size_t i = 0; i < key.len; i++) {
        if (key.ptr[i] < '0' || key.ptr[i] > '9' || n > INT32_MAX)
            return -1;
        n = 10 * n + (key.ptr[i] - '0');
    }
    return key.len ? n : -1;
}

static const ml_json *entry_of(const ml_json *all, int32_t i) {
    for (const ml_json *e = all->child; e; e = e->next)
        if (layer_number(e->key) == i)
            return e;
    return NULL;
}

/* Rejects entries with keys that would change more than heads. */
static void refuse_others(ml_builder *b, const ml_json *all, int32_t n_layer) {
    if (all->type != ML_JSON_OBJECT)
        ml_hf_config_fail(b->config, ML_EFORMAT,
                          "%s:%u: \"per_layer_config\" must be an object", b->config->path,
                          all->line);
    for (const ml_json *e = all->child; e; e = e->next) {
        int64_t i = layer_number(e->key);
        if (i < 0 || i >= n_layer || e->type != ML_JSON_OBJECT)
            ml_hf_config_fail(b->config, ML_EFORMAT,
                              "%s:%u: \"per_layer_config\" must have objects under layer "
                              "numbers below %d",
                              b->config->path, e->line, n_layer);
        for (const ml_json *v = e->child; v; v = v->next)
            if (!ml_str_is(v->key, "head_dim") && !ml_str_is(v->key, "num_key_value_heads"))
                ml_hf_config_fail(b->config, ML_EUNSUP,
                                  "%s:%u: \"per_layer_config\" sets \"%.*s\" of a layer; "
                                  "supported are head_dim and num_key_value_heads",
                                  b->config->path, v->line, (int)v->key.len, v->key.ptr);
    }
}

/* Head sizes of each layer, in the newer format; layers of one type must agree. */
static void read_layers(ml_builder *b, ml_gemma4 *g, const ml_decoder *d,
                        const ml_json *all) {
    bool seen[ML_GEMMA_TYPES] = { false };

    refuse_others(b, all, d->n_layer);
    for (int32_t i = 0; i < d->n_layer; i++) {
        const ml_json *entry = entry_of(all, i);
        ml_decoder *own = &g->kind[g->type[i]].d;
        int32_t head_dim = read_own(b, entry, "head_dim", d->head_dim);
        int32_t n_kv = read_own(b, entry, "num_key_value_heads", d->n_kv);

        if (seen[g->type[i]] && (head_dim != own->head_dim || n_kv != own->n_kv))
            ml_hf_config_fail(b->config, ML_EUNSUP,
                              "%s: layer %d has %d key heads of %d, other layers with %s "
                              "%d of %d; layers of one type must have the same",
                              b->config->path, i, n_kv, head_dim, type_names[g->type[i]],
                              own->n_kv, own->head_dim);
        own->head_dim = head_dim;
        own->n_kv = n_kv;
        seen[g->type[i]] = true;
    }
}

/* The head sizes of full-attention layers: per layer, or in the older format for all. */
static void read_heads(ml_builder *b, ml_gemma4 *g, const ml_decoder *d) {
    ml_hf_config *c = b->config;
    const ml_json *all = ml_hf_config_get(c, "per_layer_config");
    ml_decoder *full = &g->kind[ML_GEMMA_FULL].d;
    int64_t head_dim = ml_hf_config_int(c, "global_head_dim", 512, 1, 4096);
    int64_t n_kv = ml_hf_config_int(c, "num_global_key_value_heads", d->n_kv, 1, 4096);

    if (all) {
        read_layers(b, g, d, all);
    } else {
        full->head_dim = (int32_t)head_dim;
        full->n_kv = g->kind[ML_GEMMA_FULL].k_is_v ? (int32_t)n_kv : d->n_kv;
    }
    for (int t = 0; t < ML_GEMMA_TYPES; t++) {
        ml_decoder *own = &g->kind[t].d;
        if (own->head_dim % 2 == 0 && own->n_head % own->n_kv == 0)
            continue;
        ml_hf_config_fail(
            c, ML_EFORMAT,
            "%s: layers with %s have %d heads of %d and %d key heads; the size "
            "must be even and the number a multiple",
            c->path, type_names[t], own->n_head, own->head_dim, own->n_kv);
        own->head_dim += own->head_dim % 2; /* keeps the following rows consistent */
        own->n_kv = own->n_head;
    }
}

static void read_rotary(ml_builder *b, ml_gemma4 *g) {
    bool said = ml_hf_config_get(b->config, "rope_parameters") != NULL;
    ml_rope_opts full = { .part = type_names[ML_GEMMA_FULL],
                          .theta = 1e6,
                          .partial = said ? 1 : 0.25,
                          .type = said ? NULL : "proportional" };
    ml_rope_opts sliding = { .part = type_names[ML_GEMMA_SLIDING],
                             .theta = 1e4,
                             .partial = 1 };

    g->kind[ML_GEMMA_FULL].rope = ml_rope_read(b, g->kind[ML_GEMMA_FULL].d.head_dim, full);
    g->kind[ML_GEMMA_SLIDING].rope =
        ml_rope_read(b, g->kind[ML_GEMMA_SLIDING].d.head_dim, sliding);
}

/* Checkpoints may contain projections of layers that do not use them. */
static void carry_unused(ml_builder *b, const ml_gemma4 *g, int32_t n_layer) {
    static const char *const parts[] = { "k_proj.", "v_proj.", "k_norm.", "v_norm." };
    enum { N_PART = sizeof parts / sizeof *parts };
    ml_arena *a = &b->spec->arena;
    int32_t n = n_layer - g->first_shared;
    const char **names = ML_NEW(a, const char *, N_PART *n + 1);

    for (int32_t i = 0; i < N_PART * n; i++)
        names[i] = ml_arena_printf(a, "model.layers.%d.self_attn.%s",
                                   g->first_shared + i / N_PART, parts[i % N_PART]);
    b->spec->carried = names;
}

void ml_gemma_read_shared(ml_builder *b, ml_gemma4 *g, int32_t n_layer, int32_t def) {
    ml_hf_config *c = b->config;
    bool own[ML_GEMMA_TYPES] = { false };

    g->first_shared =
        n_layer - (int32_t)ml_hf_config_int(c, "num_kv_shared_layers", def, 0, n_layer);
    for (int32_t i = 0; i < n_layer; i++) {
        if (i >= g->first_shared && !own[g->type[i]]) {
            ml_hf_config_fail(c, ML_EFORMAT,
                              "%s: layer %d must share the keys of an earlier layer with "
                              "%s, but there is none; num_kv_shared_layers is too large",
                              c->path, i, type_names[g->type[i]]);
            g->first_shared = n_layer;
        }
        own[g->type[i]] = true;
    }
    carry_unused(b, g, n_layer);
}

void ml_gemma_read_inputs(ml_builder *b, ml_gemma4 *g) {
    ml_hf_config *c = b->config;
    const ml_json *v = ml_json_get(c->root, "hidden_size_per_layer_input");
    int64_t def = v && v->type == ML_JSON_NULL ? 0 : 256;

    g->n_input = ml_hf_config_int(c, "hidden_size_per_layer_input", def, 0, 1 << 16);
    g->n_input_vocab =
        ml_hf_config_int(c, "vocab_size_per_layer_input", 262144, 1, 1 << 24);
}

static void require_rows(ml_builder *b, const ml_gemma4 *g) {
    if (g->n_input && g->n_input_vocab < b->spec->n_vocab)
        ml_hf_config_fail(
            b->config, ML_EUNSUP,
            "%s: vocab_size_per_layer_input (%lld) is below vocab_size (%lld); "
            "every token needs a row",
            b->config->path, (long long)g->n_input_vocab, (long long)b->spec->n_vocab);
}

static void read_experts(ml_builder *b, ml_gemma4 *g, const ml_decoder *d) {
    ml_hf_config *c = b->config;
    bool on = ml_hf_config_bool(c, "enable_moe_block", false);
    int64_t need = on ? ML_HF_REQUIRED : 1;
    int64_t n = ml_hf_config_int(c, "num_experts", need, 1, 65536);
    int64_t top = ml_hf_config_int(c, "top_k_experts", need, 1, on ? n : 65536);
    int64_t inner = ml_hf_config_int(c, "moe_intermediate_size", need, 1, 1 << 20);

    if (on)
        g->moe = (ml_moe_opts){ .router = "router.proj",
                                .experts = "experts",
                                .expert_scale = "router.per_expert_scale",
                                .n_expert = (int32_t)n,
                                .top_k = (int32_t)top,
                                .n_inner = inner,
                                .renorm = true,
                                .act = d->act };
}

static void read_gemma4(ml_builder *b, ml_gemma4 *g, ml_decoder *d) {
    ml_hf_config *c = b->config;
    int32_t window;

    ml_decoder_read(b, d,
                    &(ml_decoder_defaults){ .n_kv = 4,
                                            .head_dim = 256,
                                            .eps = 1e-6,
                                            .tied = true,
                                            .act_key = "hidden_activation",
                                            .act = "gelu_pytorch_tanh" });
    d->qkv_bias = d->o_bias = ml_hf_config_bool(c, "attention_bias", false);
    d->scale = 1;
    if (!strcmp(ml_hf_config_str(c, "use_bidirectional_attention", ""), "all"))
        ml_hf_config_fail(c, ML_EUNSUP,
                          "%s: \"use_bidirectional_attention\" is \"all\"; only causal "
                          "attention is supported",
                          c->path);
    window = (int32_t)ml_hf_config_int(c, "sliding_window", 512, 1, INT32_MAX);
    g->type = read_types(b, d->n_layer, window);
    for (int t = 0; t < ML_GEMMA_TYPES; t++)
        g->kind[t] =
            (ml_gemma_kind){ .d = *d, .window = t == ML_GEMMA_SLIDING ? window : 0 };
    g->kind[ML_GEMMA_FULL].k_is_v = ml_hf_config_bool(c, "attention_k_eq_v", false);
    read_heads(b, g, d);
    read_rotary(b, g);
    ml_gemma_read_shared(b, g, d->n_layer, 0);
    g->wide_shared = ml_hf_config_bool(c, "use_double_wide_mlp", false);
    ml_gemma_read_inputs(b, g);
    require_rows(b, g);
    read_experts(b, g, d);
}

static void build_gemma4(ml_builder *b) {
    ml_gemma_kept of_type[ML_GEMMA_TYPES];
    int32_t input = ML_NONE;
    ml_gemma4 g = { .kept = of_type, .input = &input };
    ml_decoder d;

    read_gemma4(b, &g, &d);
    ml_decoder_model(b, &d, layer, &g,
                     (ml_model_opts){ .embed_scale = (float)sqrt((double)d.n_hidden),
                                      .logit_softcap = (float)ml_hf_config_num(
                                          b->config, "final_logit_softcapping", 0, 0, 1e6),
                                      .begin = ml_gemma_all_inputs });
}

static const char *const ignored[] = { "hidden_act", "cache_implementation", NULL };

const ml_family ml_family_gemma4 = { "gemma4_text", "Gemma4ForCausalLM", build_gemma4,
                                     ignored };
