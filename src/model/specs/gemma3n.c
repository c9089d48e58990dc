/* Gemma 3n (text): several residual streams, of which layers compute one and predict and
 * correct the others (AltUp); a low-rank branch beside attention (LAuReL); MLPs of which
 * only the largest activations are kept; keys, values and per-layer inputs as in Gemma 4. */
#include <math.h>
#include <string.h>

#include "model/specs/families.h"
#include "model/specs/gemma4.h"

typedef struct gemma3n {
    ml_gemma4 g;
    int32_t n_stream, active; /* the stream that layers compute */
    int64_t rank;             /* of LAuReL */
    bool scale_corrected;
    const double *inner; /* [n_layer] width of the MLP */
    const double
        *sparsity; /* [n_layer] part of the activations that is 0; 0: none is cut */
} gemma3n;

/* --- streams -------------------------------------------------------------------- */

static int32_t stream(ml_builder *b, const ml_decoder *d, int32_t x, int32_t i) {
    return ml_build_slice(b, x,
                          (ml_slice_opts){ .part = { { i * d->n_hidden, d->n_hidden } } });
}

static int32_t small_linear(ml_builder *b, int32_t x, const char *name, int64_t n_out) {
    return ml_build_linear(b, x, (ml_linear_opts){ .name = name, .n_out = n_out });
}

/* The nodes first .. end - 1, a chain, once more with the same parameters. */
static int32_t again(ml_builder *b, int32_t first, int32_t end, int32_t x) {
    for (int32_t i = first; i < end; i++) {
        ml_node n = b->spec->node[i];
        int32_t out = ml_build_value(b, b->spec->value[n.out[0]]);
        n.in[0] = x;
        n.out[0] = out;
        n.again = true;
        *ml_build_node(b, n.op) = n;
        x = out;
    }
    return x;
}

/* From a stream, the numbers that coefficients are computed from. */
static int32_t modalities(ml_builder *b, const ml_decoder *d, const gemma3n *m, int32_t x) {
    x = ml_decoder_norm(b, d, x, "altup.router_norm");
    x = ml_build_scale(b, x, (float)(1.0 / (double)d->n_hidden));
    return ml_build_tanh(b, small_linear(b, x, "altup.modality_router", m->n_stream));
}

/* Constant coefficients: each stream is itself, plus `extra` of another row from stream
 * `from` on. */
typedef struct constants {
    float c[ML_STREAMS * (ML_STREAMS + 1)];
} constants;

static constants kept_streams(const gemma3n *m, float extra, int32_t from) {
    constants k = { { 0 } };
    int32_t n = m->n_stream;

    for (int32_t i = 0; i < n; i++) {
        k.c[i * (n + 1) + i] = 1.0f;
        k.c[i * (n + 1) + n] = i >= from ? extra : 0.0f;
    }
    return k;
}

static int32_t predict(ml_builder *b, const gemma3n *m, int32_t x, int32_t by) {
    constants k = kept_streams(m, 0.0f, 0);
    int32_t n = m->n_stream, coef = small_linear(b, by, "altup.prediction_coefs", n * n);

    return ml_build_mix(
        b, x, ML_NONE, coef,
        (ml_mix_opts){ .n_in = n, .n_out = n, .streams = true, .base = k.c });
}

/* All streams move with the one that was computed, each by its own factor. */
static int32_t correct(ml_builder *b, const gemma3n *m, int32_t predicted, int32_t computed,
                       int32_t by) {
    constants k = kept_streams(m, 1.0f, 0), difference = { { 0 } };
    int32_t n = m->n_stream, coef = small_linear(b, by, "altup.correction_coefs", n);

    difference.c[m->active] = -1.0f;
    difference.c[n] = 1.0f;
    computed = ml_build_mix(b, predicted, computed, ML_NONE,
                            (ml_mix_opts){ .n_in = n, .n_out = 1, .base = difference.c });
    return ml_build_mix(b, predicted, computed, coef,
                        (ml_mix_opts){ .n_in = n, .n_out = n, .extra = true, .base = k.c });
}

/* The per-layer input is added to all streams but the first. */
static int32_t add_input(ml_builder *b, const ml_decoder *d, const gemma3n *m, int32_t x,
                         int32_t i) {
    constants k = kept_streams(m, 1.0f, 1);
    int32_t h = stream(b, d, x, m->active), n = m->n_stream;

    if (m->scale_corrected)
        h = ml_build_col_scale(b, h, "altup.correct_output_scale");
    h = ml_gemma_own_input(b, d, &m->g, h, i);
    return ml_build_mix(b, x, h, ML_NONE,
                        (ml_mix_opts){ .n_in = n, .n_out = n, .base = k.c });
}

/* --- a layer -------------------------------------------------------------------- */

/* The number below which a normal variable is with probability p. */
static double quantile(double p) {
    double low = -40, high = 40;

    for (int i = 0; i < 200; i++) {
        double mid = 0.5 * (low + high);
        if (0.5 * erfc(-mid / sqrt(2.0)) < p)
            low = mid;
        else
            high = mid;
    }
    return 0.5 * (low + high);
}

static int32_t mlp(ml_builder *b, const ml_decoder *d, const gemma3n *m, int32_t x,
                   int32_t i) {
    ml_linear_opts o = { .n_out = (int64_t)m->inner[i], .shard = ML_SHARD_COL };
    int32_t gate, up;

    o.name = "mlp.gate_proj";
    gate = ml_build_linear(b, x, o);
    if (m->sparsity[i] > 0)
        gate = ml_build_cutoff(b, gate, (float)quantile(m->sparsity[i]));
    o.name = "mlp.up_proj";
    up = ml_build_linear(b, x, o);
    return ml_build_linear(b, ml_build_glu(b, gate, up, d->act),
                           (ml_linear_opts){ .name = "mlp.down_proj",
                                             .n_out = d->n_hidden,
                                             .shard = ML_SHARD_ROW });
}

static int32_t laurel(ml_builder *b, const ml_decoder *d, const gemma3n *m, int32_t x) {
    int32_t h = small_linear(b, x, "laurel.linear_left", m->rank);

    h = small_linear(b, h, "laurel.linear_right", d->n_hidden);
    return ml_build_add(b, x, ml_decoder_norm(b, d, h, "laurel.post_laurel_norm"));
}

/* The stream x after attention and MLP. */
static int32_t compute(ml_builder *b, const ml_decoder *d, const gemma3n *m, int32_t x,
                       int32_t i) {
    int32_t h = ml_decoder_norm(b, d, x, "input_layernorm");
    int32_t side = laurel(b, d, m, h);

    h = ml_decoder_norm(b, d, ml_gemma_attn(b, &m->g, h, i), "post_attention_layernorm");
    x = ml_build_add(b, ml_build_add(b, x, h), side);
    x = ml_build_scale(b, x, (float)sqrt(0.5));
    h = mlp(b, d, m, ml_decoder_norm(b, d, x, "pre_feedforward_layernorm"), i);
    return ml_build_add(b, x, ml_decoder_norm(b, d, h, "post_feedforward_layernorm"));
}

static int32_t layer(ml_builder *b, const ml_decoder *d, const gemma3n *m, int32_t x,
                     int32_t i) {
    int32_t active = stream(b, d, x, m->active), first = b->spec->n_node, end, by;

    by = modalities(b, d, m, active);
    end = b->spec->n_node;
    x = predict(b, m, x, by);
    active = compute(b, d, m, stream(b, d, x, m->active), i);
    x = correct(b, m, x, active, again(b, first, end, active));
    return add_input(b, d, m, x, i);
}

/* --- the model ------------------------------------------------------------------ */

#define LEAST_SQUARE 1e-5f /* of a projection that takes another magnitude */

static int32_t projected(ml_builder *b, const ml_decoder *d, int32_t x, int32_t like,
                         const char *name, int32_t i) {
    int32_t h = ml_build_linear(
        b, x,
        (ml_linear_opts){ .name = ml_arena_printf(&b->spec->arena, "model.%s.%d", name, i),
                          .n_out = d->n_hidden,
                          .shard = ML_SHARD_COL });
    return ml_build_match_rms(b, h, like, LEAST_SQUARE);
}

static int32_t spread_streams(ml_builder *b, const ml_decoder *d, const gemma3n *m,
                              int32_t x) {
    int32_t all = x;

    for (int32_t i = 1; i < m->n_stream; i++)
        all = ml_build_concat(b, all, projected(b, d, x, x, "altup_projections", i - 1), 1);
    return all;
}

static int32_t join_streams(ml_builder *b, const ml_decoder *d, const gemma3n *m,
                            int32_t x) {
    int32_t first = stream(b, d, x, 0), sum = first;

    for (int32_t i = 1; i < m->n_stream; i++)
        sum = ml_build_add(
            b, sum,
            projected(b, d, stream(b, d, x, i), first, "altup_unembed_projections", i - 1));
    return ml_build_scale(b, sum, (float)(1.0 / m->n_stream));
}

static void build_model(ml_builder *b, const ml_decoder *d, const gemma3n *m,
                        float softcap) {
    int32_t x =
        ml_build_embed(b, "model.embed_tokens.weight", (float)sqrt((double)d->n_hidden));

    ml_gemma_all_inputs(b, d, x, &m->g);
    x = spread_streams(b, d, m, x);
    for (int32_t i = 0; i < d->n_layer; i++) {
        ml_build_begin_layer(b, i);
        x = layer(b, d, m, x, i);
        ml_build_end_layer(b);
    }
    x = ml_decoder_norm(b, d, join_streams(b, d, m, x), "model.norm");
    ml_build_head(b, x, "lm_head", b->spec->tied, softcap);
}

/* --- config keys ---------------------------------------------------------------- */

/* A number for each layer: an array, or one number for all. */
static const double *read_numbers(ml_builder *b, const char *key, int32_t n_layer,
                                  double *def, double min, double max) {
    ml_hf_config *c = b->config;
    const ml_json *v = ml_hf_config_get(c, key);
    const ml_json *e = v && v->type == ML_JSON_ARRAY ? v->child : v;
    bool each = v && v->type == ML_JSON_ARRAY;

    if (!v)
        return def;
    if (each && v->n != n_layer)
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s:%u: \"%s\" has %lld numbers; expected %d, one for "
                          "each layer",
                          c->path, v->line, key, (long long)v->n, n_layer);
    for (int32_t i = 0; i < n_layer && e; i++, e = each ? e->next : e) {
        if (!ml_json_f64(e, &def[i]) || def[i] < min || def[i] > max)
            ml_hf_config_fail(c, ML_EFORMAT,
                              "%s:%u: \"%s\" must have numbers from %g to %g, one for each "
                              "layer",
                              c->path, e->line, key, min, max);
    }
    return def;
}

/* By default the first 10 of more than 10 layers keep a twentieth. */
static const double *read_sparsity(ml_builder *b, int32_t n_layer) {
    double *def = ML_NEW(&b->spec->arena, double, n_layer);

    for (int32_t i = 0; i < n_layer && n_layer > 10; i++)
        def[i] = i < 10 ? 0.95 : 0.0;
    return read_numbers(b, "activation_sparsity_pattern", n_layer, def, 0, 0.999999);
}

static const double *read_inner(ml_builder *b, int32_t n_layer) {
    double *def = ML_NEW(&b->spec->arena, double, n_layer);

    for (int32_t i = 0; i < n_layer; i++)
        def[i] = 16384;
    return read_numbers(b, "intermediate_size", n_layer, def, 1, 1 << 20);
}

static void read_streams(ml_builder *b, gemma3n *m) {
    ml_hf_config *c = b->config;

    m->n_stream = (int32_t)ml_hf_config_int(c, "altup_num_inputs", 4, 1, ML_STREAMS);
    m->active = (int32_t)ml_hf_config_int(c, "altup_active_idx", 0, 0, ML_STREAMS - 1);
    m->scale_corrected = ml_hf_config_bool(c, "altup_correct_scale", true);
    m->rank = ml_hf_config_int(c, "laurel_rank", 64, 1, 1 << 16);
    if (m->active >= m->n_stream) {
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s: altup_active_idx (%d) must be below altup_num_inputs (%d)",
                          c->path, m->active, m->n_stream);
        m->active = 0;
    }
}

static bool off_pattern(int32_t i, const void *arg) {
    (void)arg;
    return (i + 1) % 5 != 0;
}

static void read_types(ml_builder *b, gemma3n *m, const ml_decoder *d) {
    int32_t window =
        (int32_t)ml_hf_config_int(b->config, "sliding_window", 512, 1, INT32_MAX);
    const int32_t *windows = ml_windows_read(b, d->n_layer, window, off_pattern, NULL);
    int32_t *type = ML_NEW(&b->spec->arena, int32_t, d->n_layer);

    for (int32_t i = 0; i < d->n_layer; i++)
        type[i] = windows[i] ? ML_GEMMA_SLIDING : ML_GEMMA_FULL;
    m->g.type = type;
    for (int t = 0; t < ML_GEMMA_TYPES; t++)
        m->g.kind[t] =
            (ml_gemma_kind){ .d = *d, .window = t == ML_GEMMA_SLIDING ? window : 0 };
    m->g.kind[ML_GEMMA_FULL].rope = ml_rope_read(
        b, d->head_dim,
        (ml_rope_opts){
            .part = "full_attention", .theta = 1e6, .partial = 1, .scaled = true });
    m->g.kind[ML_GEMMA_SLIDING].rope =
        ml_rope_read(b, d->head_dim,
                     (ml_rope_opts){ .part = "sliding_attention",
                                     .theta_key = "rope_local_base_freq",
                                     .theta = 1e4,
                                     .partial = 1 });
}

static void read_gemma3n(ml_builder *b, gemma3n *m, ml_decoder *d) {
    ml_decoder_read(b, d,
                    &(ml_decoder_defaults){ .n_kv = 2,
                                            .head_dim = 256,
                                            .inner_by_layer = true,
                                            .eps = 1e-6,
                                            .tied = true,
                                            .act_key = "hidden_activation",
                                            .act = "gelu_pytorch_tanh" });
    d->qkv_bias = d->o_bias = ml_hf_config_bool(b->config, "attention_bias", false);
    d->scale = 1;
    read_types(b, m, d);
    read_streams(b, m);
    m->inner = read_inner(b, d->n_layer);
    m->sparsity = read_sparsity(b, d->n_layer);
    ml_gemma_read_shared(b, &m->g, d->n_layer, d->n_layer > 15 ? 15 : 0);
    ml_gemma_read_inputs(b, &m->g);
    if (!m->g.n_input)
        ml_hf_config_fail(b->config, ML_EUNSUP,
                          "%s: \"hidden_size_per_layer_input\" is 0; Gemma 3n without "
                          "per-layer inputs is not supported",
                          b->config->path);
}

static void build_gemma3n(ml_builder *b) {
    const ml_json *cap = ml_json_get(b->config->root, "final_logit_softcapping");
    ml_gemma_kept of_type[ML_GEMMA_TYPES];
    int32_t input = ML_NONE;
    gemma3n m = { .g = { .kept = of_type, .input = &input } };
    ml_decoder d;

    read_gemma3n(b, &m, &d);
    if (b->config->first.code != ML_OK)
        return;
    build_model(b, &d, &m,
                (float)ml_hf_config_num(b->config, "final_logit_softcapping",
                                        cap && cap->type == ML_JSON_NULL ? 0 : 30, 0, 1e6));
}

/* altup_coef_clip bounds weights while transformers trains; forward does not read it. */
static const char *const ignored[] = { "hidden_act",
                                       "cache_implementation",
                                       "altup_coef_clip",
                                       "altup_lr_multiplier",
                                       "query_pre_attn_scalar",
                                       "sliding_window_pattern",
                                       NULL };

const ml_family ml_family_gemma3n = { "gemma3n_text", "Gemma3nForCausalLM", build_gemma3n,
                                      ignored };
