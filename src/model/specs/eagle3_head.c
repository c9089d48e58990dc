/* EAGLE-3 heads: one decoder layer that reads the next token's embedding beside a hidden
 * state, which is a projection of three of the trunk's or the head's own.  Names are those
 * that a checkpoint gives its tensors (io/checkpoint.h): norm is model.norm. */
#include "model/specs/families.h"

enum { MAX_WIDTH = 1 << 20 };

static void check_config(ml_builder *b, const ml_decoder *d) {
    if (d->n_layer != 1)
        ml_hf_config_fail(b->config, ML_EUNSUP,
                          "%s: \"num_hidden_layers\" is %d; EAGLE-3 heads of one layer are "
                          "supported",
                          b->config->path, d->n_layer);
    if (b->spec->tied)
        ml_hf_config_fail(b->config, ML_EUNSUP,
                          "%s: \"tie_word_embeddings\" is true; EAGLE-3 heads with an LM "
                          "head of their own are supported",
                          b->config->path);
}

/* eagle_config.eagle_aux_hidden_state_layer_ids: layers whose outputs the head reads. */
static void read_layers(ml_builder *b, ml_module_io *m) {
    ml_hf_config *c = b->config;
    const ml_json *o = ml_hf_config_get(c, "eagle_config"), *v;
    const ml_json *list = o && o->type == ML_JSON_OBJECT
                              ? ml_json_get(o, "eagle_aux_hidden_state_layer_ids")
                              : NULL;

    m->n_layer = ML_MODULE_LAYERS;
    for (int32_t i = 0; i < m->n_layer; i++)
        m->layer[i] = ML_NONE;
    if (!list || list->type == ML_JSON_NULL)
        return;
    v = list->type == ML_JSON_ARRAY && list->n == m->n_layer ? list->child : NULL;
    if (!v)
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s:%u: \"eagle_aux_hidden_state_layer_ids\" must list %d layers",
                          c->path, list->line, m->n_layer);
    for (int32_t i = 0; v; v = v->next, i++) {
        int64_t id = ML_NONE;
        if (!ml_json_i64(v, &id) || id < 0 || id >= INT32_MAX)
            ml_hf_config_fail(c, ML_EFORMAT,
                              "%s:%u: \"eagle_aux_hidden_state_layer_ids\" must list "
                              "numbers of layers",
                              c->path, v->line);
        m->layer[i] = (int32_t)(id + 1);
    }
}

/* Node 0 stands for the trunk: its rows are the three hidden states. */
static int32_t trunk_rows(ml_builder *b, int64_t n_hidden) {
    ml_spec *s = b->spec;
    int32_t x = ml_build_embed(b, "model.embed_tokens.weight", 1);

    s->param[s->node[0].w[0]].frozen = true;
    s->param[s->node[0].w[0]].of_trunk = !b->own_embedding;
    s->value[x].width = ML_MODULE_LAYERS * n_hidden;
    return x;
}

static int32_t midlayer(ml_builder *b, const ml_decoder *d, int32_t hidden) {
    const ml_rope *rope = ml_rope_read(
        b, d->head_dim, (ml_rope_opts){ .theta = 10000, .partial = 1, .scaled = true });
    int32_t x = ml_decoder_embed_again(b);

    b->layers = "midlayer";
    b->unnumbered = true;
    ml_build_begin_layer(b, 0);
    x = ml_decoder_norm(b, d, x, "input_layernorm");
    x = ml_build_concat(b, x, ml_decoder_norm(b, d, hidden, "hidden_norm"), 1);
    x = ml_build_add(b, hidden, ml_decoder_attn(b, d, x, rope, 0));
    x = ml_build_add(b, x,
                     ml_decoder_ffn(b, d,
                                    ml_decoder_norm(b, d, x, "post_attention_layernorm"),
                                    &(ml_ffn){ 0 }));
    ml_build_end_layer(b);
    return x;
}

static void build_eagle3(ml_builder *b) {
    ml_spec *s = b->spec;
    ml_hf_config *c = b->config;
    ml_module_io *m = &s->module;
    ml_decoder d;
    int32_t hidden;
    int64_t n_draft;

    ml_decoder_read(
        b, &d,
        &(ml_decoder_defaults){ .eps = 1e-6, .act_key = "hidden_act", .act = "silu" });
    d.qkv_bias = d.o_bias = ml_hf_config_bool(c, "attention_bias", false);
    d.mlp_bias = ml_hf_config_bool(c, "mlp_bias", false);
    check_config(b, &d);
    read_layers(b, m);
    m->n_vocab = s->n_vocab;
    m->n_hidden = ml_hf_config_int(c, "target_hidden_size", d.n_hidden, 1, MAX_WIDTH);
    n_draft = ml_hf_config_int(c, "draft_vocab_size", s->n_vocab, 1, s->n_vocab);
    hidden =
        ml_build_linear(b, trunk_rows(b, m->n_hidden),
                        (ml_linear_opts){ .name = "fc",
                                          .n_out = d.n_hidden,
                                          .bias = ml_hf_config_bool(c, "bias", false) });
    m->own = s->n_node;
    m->hidden = midlayer(b, &d, hidden);
    s->n_vocab = n_draft;
    ml_build_head(b, ml_decoder_norm(b, &d, m->hidden, "model.norm"), "lm_head", false, 0);
    s->mtp = true;
}

static const char *const ignored[] = { "modules", "target_model_type", "pretraining_tp",
                                       NULL };

const ml_family ml_family_eagle3 = { "llama", "LlamaForCausalLMEagle3", build_eagle3,
                                     ignored };
