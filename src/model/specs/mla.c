/* mla.c - multi-head latent attention (MLA) in its absorbed form.
 *
 * A key of head h is K_h c and a value V_h c, with c the token's latent.  Then q . (K_h
 * c) = (K_h^T q) . c, and the weighted sum of values is V_h times the weighted sum of
 * latents.  This is attention with one KV head (MQA): the latent followed by the rotated
 * part of the key, which all heads share; its first elements are the value. */
#include <math.h>

#include "model/specs/decoder.h"

enum { MAX_RANK = 1 << 16, MAX_DIM = 1 << 12 };

void ml_mla_read(ml_builder *b, ml_mla *m) {
    ml_hf_config *c = b->config;
    ml_rope_opts rope = { .theta = 10000, .partial = 1, .scaled = true };

    m->q_rank = (int32_t)ml_hf_config_int(c, "q_lora_rank", 0, 1, MAX_RANK);
    m->kv_rank = (int32_t)ml_hf_config_int(c, "kv_lora_rank", ML_HF_REQUIRED, 1, MAX_RANK);
    m->nope = (int32_t)ml_hf_config_int(c, "qk_nope_head_dim", ML_HF_REQUIRED, 1, MAX_DIM);
    m->rope_dim =
        (int32_t)ml_hf_config_int(c, "qk_rope_head_dim", ML_HF_REQUIRED, 2, MAX_DIM);
    m->v_dim = (int32_t)ml_hf_config_int(c, "v_head_dim", ML_HF_REQUIRED, 1, MAX_DIM);
    m->bias = ml_hf_config_bool(c, "attention_bias", false);
    m->eps = 1e-6f;
    m->interleaved = ml_hf_config_bool(c, "rope_interleave", true);
    m->rope = ml_rope_read(b, m->rope_dim, rope);
    m->scale =
        (float)(ml_rope_score_scale(b, rope) / sqrt((double)(m->nope + m->rope_dim)));
}

static int32_t linear(ml_builder *b, int32_t x, const char *name, int64_t n_out, bool bias,
                      ml_shard shard) {
    return ml_build_linear(
        b, x,
        (ml_linear_opts){ .name = name, .n_out = n_out, .bias = bias, .shard = shard });
}

/* *latent: the query between its two factors. */
static int32_t queries(ml_builder *b, const ml_decoder *d, const ml_mla *m, int32_t x,
                       int32_t *latent) {
    int64_t n_out = (int64_t)d->n_head * (m->nope + m->rope_dim);

    if (!m->q_rank)
        return linear(b, x, "self_attn.q_proj", n_out, false, ML_SHARD_COL);
    x = linear(b, x, "self_attn.q_a_proj", m->q_rank, m->bias, ML_SHARD_NONE);
    x = ml_build_norm(b, x, "self_attn.q_a_layernorm", m->eps, m->q_rank, false);
    *latent = x;
    return linear(b, x, "self_attn.q_b_proj", n_out, false, ML_SHARD_COL);
}

/* Outputs first .. of the matrix that produces latent and rotated key. */
static int32_t latent_part(ml_builder *b, const ml_mla *m, int32_t x, const char *name,
                           int32_t n_out, int32_t first) {
    return ml_build_linear(b, x,
                           (ml_linear_opts){ .name = name,
                                             .n_out = n_out,
                                             .bias = m->bias,
                                             .whole = "self_attn.kv_a_proj_with_mqa",
                                             .whole_out = m->kv_rank + m->rope_dim,
                                             .first_out = first });
}

/* K_h^T (keys) or V_h of every head, in kv_b_proj [heads * (nope + v_dim), kv_rank]. */
static ml_part *expand_part(ml_builder *b, const ml_decoder *d, const ml_mla *m,
                            bool keys) {
    ml_part *p = ML_NEW(&b->spec->arena, ml_part, 1);
    int64_t each = m->nope + m->v_dim, rank = m->kv_rank;

    *p = (ml_part){ .name = ml_build_name(b, "self_attn.kv_b_proj.weight", ""),
                    .n_dim = 2,
                    .shape = { d->n_head * each, rank },
                    .at = keys ? 0 : m->nope * rank,
                    .member = each * rank,
                    .row = keys ? 1 : rank,
                    .col = keys ? rank : 1 };
    return p;
}

static int32_t part_of_heads(ml_builder *b, int32_t x, int32_t n_head, int64_t at,
                             int64_t width) {
    return ml_build_slice(b, x,
                          (ml_slice_opts){ .n_group = n_head, .part = { { at, width } } });
}

static int32_t rotated(ml_builder *b, const ml_mla *m, int32_t x) {
    return ml_build_rope(b, x, m->rope, m->rope_dim, m->interleaved);
}

int32_t ml_mla_attn(ml_builder *b, const ml_decoder *d, const ml_mla *m, int32_t x) {
    int32_t latent = ML_NONE, q = queries(b, d, m, x, &latent), c, k, o;
    ml_attn_opts attn = { .head_dim = m->kv_rank + m->rope_dim,
                          .value_dim = m->kv_rank,
                          .value_in_key = true,
                          .scale = m->scale };
    int32_t q_pe = rotated(b, m, part_of_heads(b, q, d->n_head, m->nope, m->rope_dim));

    q = ml_build_head_linear(b, part_of_heads(b, q, d->n_head, 0, m->nope),
                             "self_attn.kv_b_proj.key", d->n_head, m->kv_rank,
                             expand_part(b, d, m, true));
    q = ml_build_concat(b, q, q_pe, d->n_head);
    c = latent_part(b, m, x, "self_attn.kv_a_proj_with_mqa.latent", m->kv_rank, 0);
    c = ml_build_norm(b, c, "self_attn.kv_a_layernorm", m->eps, m->kv_rank, false);
    k = latent_part(b, m, x, "self_attn.kv_a_proj_with_mqa.rope", m->rope_dim, m->kv_rank);
    k = ml_build_concat(b, c, rotated(b, m, k), 1);
    if (m->indexer)
        o = ml_build_attn_chosen(b, q, k, ml_indexer_choose(b, m, x, latent), attn);
    else
        o = ml_build_attn(b, q, k, c, attn);
    o = ml_build_head_linear(b, o, "self_attn.kv_b_proj.value", d->n_head, m->v_dim,
                             expand_part(b, d, m, false));
    return linear(b, o, "self_attn.o_proj", d->n_hidden, m->bias, ML_SHARD_ROW);
}
