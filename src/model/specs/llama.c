/* Llama and Mistral: the plain decoder; Mistral may have one window for all layers.
 * SmolLM3: some layers have no rotary embedding.  Phi-3: q, k, v and gate, up are stored
 * fused. */
#include "model/specs/families.h"

typedef struct plain {
    const ml_rope *rope;
    const int32_t *window; /* [n_layer], or NULL: full attention */
    const bool *rotates;   /* [n_layer], or NULL: all do */
} plain;

static int32_t layer(ml_builder *b, const ml_decoder *d, int32_t x, int32_t i,
                     const void *ud) {
    const plain *p = ud;
    return ml_decoder_layer(
        b, d, x,
        (ml_layer_opts){ .rope = !p->rotates || p->rotates[i] ? p->rope : NULL,
                         .window = p->window ? p->window[i] : 0 });
}

static const ml_rope *read_rope(ml_builder *b, const ml_decoder *d, double theta) {
    return ml_rope_read(b, d->head_dim,
                        (ml_rope_opts){ .theta = theta, .partial = 1, .scaled = true });
}

static void read_biases(ml_builder *b, ml_decoder *d) {
    d->qkv_bias = d->o_bias = ml_hf_config_bool(b->config, "attention_bias", false);
    d->mlp_bias = ml_hf_config_bool(b->config, "mlp_bias", false);
}

static void build_llama(ml_builder *b) {
    ml_decoder d;
    plain p = { 0 };

    ml_decoder_read(
        b, &d,
        &(ml_decoder_defaults){ .eps = 1e-6, .act_key = "hidden_act", .act = "silu" });
    read_biases(b, &d);
    p.rope = read_rope(b, &d, 10000);
    ml_decoder_model(b, &d, layer, &p, (ml_model_opts){ 0 });
}

static void build_mistral(ml_builder *b) {
    ml_decoder d;
    plain p = { 0 };

    ml_decoder_read(b, &d,
                    &(ml_decoder_defaults){
                        .n_kv = 8, .eps = 1e-6, .act_key = "hidden_act", .act = "silu" });
    p.rope = read_rope(b, &d, 10000);
    /* Absent means 4096 in transformers, null means none. */
    p.window =
        ml_windows_read(b, d.n_layer, ml_window_or_none(b, 4096), ml_every_layer, NULL);
    ml_decoder_model(b, &d, layer, &p, (ml_model_opts){ 0 });
}

static void build_phi3(ml_builder *b) {
    ml_decoder d;
    plain p = { 0 };

    ml_decoder_read(
        b, &d,
        &(ml_decoder_defaults){ .eps = 1e-5, .act_key = "hidden_act", .act = "silu" });
    d.fused_qkv = d.fused_mlp = true;
    p.rope = read_rope(b, &d, 10000);
    p.window = ml_windows_read(b, d.n_layer, ml_window_or_none(b, 0), ml_every_layer, NULL);
    ml_decoder_model(b, &d, layer, &p, (ml_model_opts){ 0 });
}

/* no_rope_layers has a 1 for each layer with a rotary embedding. */
const bool *ml_rotating_layers_read(ml_builder *b, int32_t n_layer) {
    ml_hf_config *c = b->config;
    const ml_json *list = ml_hf_config_get(c, "no_rope_layers"), *v;
    int64_t every = ml_hf_config_int(c, "no_rope_layer_interval", 4, 1, INT32_MAX), on = 0;
    bool *rotates = ML_NEW(&b->spec->arena, bool, n_layer);

    for (int32_t i = 0; i < n_layer; i++)
        rotates[i] = (i + 1) % every != 0;
    if (!list || (list->type == ML_JSON_ARRAY && list->n == 0))
        return rotates;
    if (list->type != ML_JSON_ARRAY || list->n != n_layer) {
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s:%u: \"no_rope_layers\" must be an array of %d numbers",
                          c->path, list->line, n_layer);
        return rotates;
    }
    v = list->child;
    for (int32_t i = 0; i < n_layer; i++, v = v->next) {
        if (!ml_json_i64(v, &on) || (on != 0 && on != 1))
            ml_hf_config_fail(c, ML_EFORMAT,
                              "%s:%u: \"no_rope_layers\" of layer %d must be 0 or 1",
                              c->path, v->line, i);
        rotates[i] = on == 1;
    }
    return rotates;
}

static bool without_rope(int32_t i, const void *rotates) {
    return !((const bool *)rotates)[i];
}

static void build_smollm3(ml_builder *b) {
    ml_decoder d;
    plain p = { 0 };
    int32_t window;

    ml_decoder_read(
        b, &d,
        &(ml_decoder_defaults){
            .n_kv = 4, .eps = 1e-6, .tied = true, .act_key = "hidden_act", .act = "silu" });
    read_biases(b, &d);
    p.rope = read_rope(b, &d, 2e6);
    p.rotates = ml_rotating_layers_read(b, d.n_layer);
    window = ml_window_or_none(b, 0);
    if (!ml_hf_config_bool(b->config, "use_sliding_window", false))
        window = 0;
    p.window = ml_windows_read(b, d.n_layer, window, without_rope, p.rotates);
    ml_decoder_model(b, &d, layer, &p, (ml_model_opts){ 0 });
}

static const char *const ignored[] = { "pretraining_tp", "max_window_layers", NULL };
/* Dropouts apply to training from scratch; the original length is where longrope begins. */
static const char *const ignored_phi3[] = { "resid_pdrop", "embd_pdrop",
                                            "original_max_position_embeddings", NULL };

const ml_family ml_family_llama = { "llama", "LlamaForCausalLM", build_llama, ignored };
const ml_family ml_family_mistral = { "mistral", "MistralForCausalLM", build_mistral,
                                      ignored };
const ml_family ml_family_phi3 = { "phi3", "Phi3ForCausalLM", build_phi3, ignored_phi3 };
const ml_family ml_family_smollm3 = { "smollm3", "SmolLM3ForCausalLM", build_smollm3,
                                      ignored };
