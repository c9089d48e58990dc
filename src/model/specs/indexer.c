/* indexer.c - the lightning indexer: small heads that select the keys a row attends to. */
#include <math.h>
#include <string.h>

#include "model/specs/decoder.h"

enum { MAX_HEADS = 1 << 12, MAX_DIM = 1 << 12, MAX_TOP = 1 << 20 };

void ml_indexer_read(ml_builder *b, ml_indexer *x, const ml_mla *m) {
    ml_hf_config *c = b->config;

    *x = (ml_indexer){ .chosen = ML_NONE };
    x->n_head = (int32_t)ml_hf_config_int(c, "index_n_heads", 64, 1, MAX_HEADS);
    x->head_dim = (int32_t)ml_hf_config_int(c, "index_head_dim", 128, m->rope_dim, MAX_DIM);
    x->top_k = (int32_t)ml_hf_config_int(c, "index_topk", 2048, 1, MAX_TOP);
    if (!m->q_rank)
        ml_hf_config_fail(c, ML_EUNSUP, "%s: an indexer needs \"q_lora_rank\"", c->path);
}

static bool is_word(const ml_json *v, const char *word) {
    return v->type == ML_JSON_STRING && ml_str_is(v->text, word);
}

static void shared_from_types(ml_builder *b, bool *shared, int32_t n_layer,
                              const ml_json *types) {
    ml_hf_config *c = b->config;
    const ml_json *t = types->child;

    if (types->type != ML_JSON_ARRAY || types->n != n_layer) {
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s:%u: \"indexer_types\" must be an array of %d strings",
                          c->path, types->line, n_layer);
        return;
    }
    for (int32_t i = 0; i < n_layer; i++, t = t->next) {
        shared[i] = is_word(t, "shared");
        if (!shared[i] && !is_word(t, "full"))
            ml_hf_config_fail(c, ML_EUNSUP,
                              "%s:%u: \"indexer_types\" of layer %d must be \"full\" or "
                              "\"shared\"",
                              c->path, t->line, i);
    }
}

static void shared_from_pattern(ml_builder *b, bool *shared, int32_t n_layer,
                                const ml_json *pattern) {
    ml_hf_config *c = b->config;
    bool ok = pattern->type == ML_JSON_STRING && pattern->text.len == (size_t)n_layer;

    for (int32_t i = 0; ok && i < n_layer; i++) {
        shared[i] = pattern->text.ptr[i] == 'S';
        ok = shared[i] || pattern->text.ptr[i] == 'F';
    }
    if (!ok)
        ml_hf_config_fail(
            c, ML_EFORMAT,
            "%s:%u: \"index_topk_pattern\" must have an F or an S for each of "
            "%d layers",
            c->path, pattern->line, n_layer);
}

const bool *ml_indexer_shared_read(ml_builder *b, int32_t n_layer) {
    ml_hf_config *c = b->config;
    const ml_json *types = ml_hf_config_get(c, "indexer_types");
    const ml_json *pattern = ml_hf_config_get(c, "index_topk_pattern");
    int64_t freq = ml_hf_config_int(c, "index_topk_freq", 1, 0, INT32_MAX);
    int64_t offset = ml_hf_config_int(c, "index_skip_topk_offset", 2, 0, INT32_MAX);
    bool *shared = ML_NEW(&b->spec->arena, bool, n_layer);

    if (types)
        shared_from_types(b, shared, n_layer, types);
    else if (pattern)
        shared_from_pattern(b, shared, n_layer, pattern);
    else
        for (int64_t i = 0; i < n_layer; i++)
            shared[i] = (i + 1 > offset ? i + 1 - offset : 0) % (freq > 1 ? freq : 1) != 0;
    if (n_layer && shared[0])
        ml_hf_config_fail(c, ML_EFORMAT,
                          "%s: layer 0 cannot share the selection of an earlier layer; it "
                          "must have its own indexer",
                          c->path);
    return shared;
}

static int32_t linear(ml_builder *b, int32_t x, const char *name, int64_t n_out) {
    return ml_build_linear(
        b, x, (ml_linear_opts){ .name = name, .n_out = n_out, .frozen = true });
}

int32_t ml_indexer_choose(ml_builder *b, const ml_mla *m, int32_t x, int32_t latent) {
    ml_indexer *i = m->indexer;
    int32_t q, k, weight;

    if (i->shared && i->chosen != ML_NONE && i->shared[b->layer])
        return i->chosen;
    q = linear(b, latent, "self_attn.indexer.wq_b", (int64_t)i->n_head * i->head_dim);
    q = ml_build_rope(b, q, m->rope, i->head_dim, i->interleaved);
    k = linear(b, x, "self_attn.indexer.wk", i->head_dim);
    k = ml_build_layernorm(b, k, "self_attn.indexer.k_norm", 1e-6f);
    k = ml_build_rope(b, k, m->rope, i->head_dim, i->interleaved);
    weight = ml_build_linear(b, x,
                             (ml_linear_opts){ .name = "self_attn.indexer.weights_proj",
                                               .n_out = i->n_head,
                                               .frozen = true,
                                               .keep_f32 = true });
    i->chosen = ml_build_index(
        b, q, k, weight,
        (ml_index_opts){ .n_head = i->n_head,
                         .top_k = i->top_k,
                         .scale = (float)(1.0 / sqrt((double)i->head_dim)),
                         .weight_scale = (float)(1.0 / sqrt((double)i->n_head)) });
    return i->chosen;
}
