/* decoder.h - code shared by the families of decoder-only transformers.
 *
 * A family reads the common keys with ml_decoder_read, sets its differences, and composes
 * its layer from the two halves below. */
#ifndef ML_MODEL_SPECS_DECODER_H
#define ML_MODEL_SPECS_DECODER_H

#include "model/build.h"

typedef enum ml_qk_norm {
    ML_QK_NORM_NONE,
    ML_QK_NORM_HEAD,   /* per head */
    ML_QK_NORM_WHOLE,  /* over all heads as one row */
    ML_QK_NORM_ROTATED /* per head after rotary, without weights */
} ml_qk_norm;

typedef struct ml_decoder {
    int64_t n_hidden, n_inner;
    int32_t n_layer, n_head, n_kv, head_dim;
    float eps, scale, attn_softcap;
    ml_act act;
    bool norm_plus_one;    /* RMSNorm weights are stored as w - 1 */
    bool qkv_bias, o_bias; /* in the attention projections */
    bool mlp_bias;
    ml_qk_norm qk_norm; /* RMSNorm of queries and keys before rotary */
    bool rope_interleaved;
    /* Attention temperature of layers without a rotary embedding: a rotation by 0, of
     * queries only; NULL: none. */
    const ml_rope *temper;
    int32_t chunk;             /* of attention; 0: none */
    const char *sink;          /* the parameter of attention sinks, or NULL */
    bool attn_gate;            /* q_proj has an output gate next to each head */
    bool fused_qkv, fused_mlp; /* checkpoints store q, k, v and gate, up as one tensor */
} ml_decoder;

/* Defaults of the keys below, as in transformers; 0: required. */
typedef struct ml_decoder_defaults {
    int32_t n_kv;     /* 0: n_head */
    int32_t head_dim; /* 0: hidden / heads */
    int32_t n_layer;
    int64_t n_inner;
    bool inner_by_layer; /* the family reads intermediate_size */
    const char *eps_key; /* NULL: rms_norm_eps */
    double eps;
    bool tied;
    const char *act_key, *act;
} ml_decoder_defaults;

/* Reads vocab_size, hidden_size, intermediate_size, num_hidden_layers,
 * num_attention_heads, num_key_value_heads, head_dim, the norms' eps, the activation,
 * tie_word_embeddings, max_position_embeddings; also sets the spec's fields. */
void ml_decoder_read(ml_builder *b, ml_decoder *d, const ml_decoder_defaults *def);

/* Attention on x (already normed), output projection included.  rope NULL: none. */
int32_t ml_decoder_attn(ml_builder *b, const ml_decoder *d, int32_t x, const ml_rope *rope,
                        int32_t window);

/* Multi-head latent attention (MLA, DeepSeek).  Keys and values are linear in a latent of
 * a few hundred elements, and only the latent is cached.  The matrices that would expand
 * it are applied to queries and outputs instead (absorbed form), in generation and
 * training alike. */
typedef struct ml_mla {
    int32_t q_rank; /* rank of the query's two factors; 0: one matrix */
    int32_t kv_rank, nope, rope_dim, v_dim;
    bool bias; /* in the first factors and the output */
    float eps; /* of the norms between factors */
    float scale;
    const ml_rope *rope;
    bool interleaved;
    struct ml_indexer *indexer; /* NULL: dense causal attention */
} ml_mla;

/* Reads q_lora_rank, kv_lora_rank, qk_nope_head_dim, qk_rope_head_dim, v_head_dim,
 * rope_interleave, attention_bias and the rotary keys. */
void ml_mla_read(ml_builder *b, ml_mla *m);
/* DeepSeek sparse attention (DSA): a lightning indexer with small heads selects the keys
 * of each row.  It is not trained. */
typedef struct ml_indexer {
    int32_t n_head, head_dim, top_k;
    bool interleaved;   /* layout of its rotary pairs */
    const bool *shared; /* [n_layer] layers that reuse the previous layer's selection */
    int32_t chosen;     /* that selection, while layers are built */
} ml_indexer;
/* Reads index_n_heads, index_head_dim, index_topk. */
void ml_indexer_read(ml_builder *b, ml_indexer *x, const ml_mla *m);
/* Which layers have no indexer: indexer_types, index_topk_pattern, or index_topk_freq and
 * index_skip_topk_offset. */
const bool *ml_indexer_shared_read(ml_builder *b, int32_t n_layer);
/* The selected keys of a layer's rows, from its input x and the latent of its queries. */
int32_t ml_indexer_choose(ml_builder *b, const ml_mla *m, int32_t x, int32_t latent);

int32_t ml_mla_attn(ml_builder *b, const ml_decoder *d, const ml_mla *m, int32_t x);

/* Which layers have a rotary embedding: no_rope_layers, or all but every
 * no_rope_layer_interval-th. */
const bool *ml_rotating_layers_read(ml_builder *b, int32_t n_layer);

/* The feed-forward part of a layer: an MLP, or a mixture of experts, optionally with a
 * shared expert (an MLP for all tokens). */
typedef struct ml_ffn {
    const ml_moe_opts *moe;  /* NULL: an MLP of width n_inner */
    const char *mlp;         /* name of that MLP; NULL: "mlp" */
    const char *shared;      /* name of the shared expert, or NULL */
    int64_t n_shared;        /* its width */
    const char *shared_gate; /* linear layer to one number; its sigmoid scales that MLP */
} ml_ffn;
int32_t ml_decoder_ffn(ml_builder *b, const ml_decoder *d, int32_t x, const ml_ffn *f);

/* RMSNorm over the hidden width with the decoder's eps. */
int32_t ml_decoder_norm(ml_builder *b, const ml_decoder *d, int32_t x, const char *name);

/* A layer: x + norm(attn(norm(x))), then x + norm(ffn(norm(x))); norms without a name are
 * omitted. */
typedef struct ml_norm_names {
    const char *before_attn, *after_attn, *before_ffn, *after_ffn;
} ml_norm_names;
extern const ml_norm_names ml_pre_norms; /* pre-norm: before attention and MLP */

typedef struct ml_layer_opts {
    const ml_mla *mla;   /* NULL: attention with separate q, k and v */
    const ml_rope *rope; /* NULL: none */
    int32_t window;
    const ml_norm_names *norms; /* NULL: ml_pre_norms */
    ml_ffn ffn;
} ml_layer_opts;
int32_t ml_decoder_layer(ml_builder *b, const ml_decoder *d, int32_t x, ml_layer_opts o);

/* A whole model: embedding, the layers that `layer` builds, final norm, head. */
typedef int32_t ml_layer_fn(ml_builder *b, const ml_decoder *d, int32_t x, int32_t i,
                            const void *ud);
/* Names of the module that predicts the token after the next one (mtp.h).  Without
 * `layers` they are relative to the layer after the last one, which the module contains. */
typedef struct ml_mtp_names {
    const char *layers; /* prefix of the module's layer 0; NULL: after the trunk's layers */
    bool inside;        /* the names below are within the layer's */
    const char *embed_norm, *hidden_norm, *project, *norm;
    bool hidden_first; /* project reads the hidden state, then the embedding */
} ml_mtp_names;
extern const ml_mtp_names ml_mtp_nextn; /* DeepSeek's, if the config has such a layer */

typedef struct ml_model_opts {
    float embed_scale; /* 0: 1 */
    float logit_softcap;
    const ml_mtp_names *mtp; /* NULL: the family has no such module */
    /* NULL, or called with the embedding before the first layer. */
    void (*begin)(ml_builder *b, const ml_decoder *d, int32_t x, const void *ud);
} ml_model_opts;
void ml_decoder_model(ml_builder *b, const ml_decoder *d, ml_layer_fn *layer,
                      const void *ud, ml_model_opts o);

/* The embedding of the next tokens: the table of node 0, which stands for the trunk. */
int32_t ml_decoder_embed_again(ml_builder *b);

/* Tensors of multi-token prediction layers, where their names begin with mtp. */
extern const char *const ml_carried_mtp[];

/* Which layers have experts: mlp_layer_types, else all but the first
 * first_k_dense_replace (by default `n_dense`). */
const bool *ml_sparse_layers_read(ml_builder *b, int32_t n_layer, int32_t n_dense);

/* Qwen's experts: a softmax of router logits.  `def`: defaults of further keys. */
typedef struct ml_qwen_moe_defaults {
    int32_t n_expert, top_k; /* n_expert 0: required */
    int64_t n_inner;         /* 0: required */
    bool renorm;
} ml_qwen_moe_defaults;
ml_moe_opts ml_moe_read_qwen(ml_builder *b, const ml_decoder *d,
                             const ml_qwen_moe_defaults *def);
/* Which layers have experts: decoder_sparse_step, mlp_only_layers. */
const bool *ml_sparse_layers_read_qwen(ml_builder *b, int32_t n_layer);

/* DeepSeek's experts: sigmoid scores, a selection bias, groups, shared experts.  The
 * caller owns moe, and ffn.moe points to it. */
typedef struct ml_moe_defaults {
    int32_t n_group, top_group;
    double scale;
} ml_moe_defaults;
ml_ffn ml_moe_read_deepseek(ml_builder *b, const ml_decoder *d, ml_moe_opts *moe,
                            const ml_moe_defaults *def);

/* Rotary frequencies from rope_parameters, or from rope_theta and rope_scaling.  `part`
 * is the layer type to read where parameters differ by layer type, or NULL. */
typedef struct ml_rope_opts {
    const char *part;
    const char *theta_key; /* older key of the base; NULL: "rope_theta" */
    double theta;          /* default base */
    double partial;        /* default partial_rotary_factor, 1: whole head */
    bool scaled;           /* rope_scaling applies */
    const char *type;      /* default rope_type; NULL: "default" */
    double attention;      /* default of YaRN's attention_factor; 0: from its factor */
} ml_rope_opts;
const ml_rope *ml_rope_read(ml_builder *b, int32_t head_dim, ml_rope_opts o);

/* The factor of attention scores from YaRN's mscale_all_dim; 1 without it. */
double ml_rope_score_scale(ml_builder *b, ml_rope_opts o);

/* sliding_window: `def` when the key is absent, 0 (none) when it is null. */
int32_t ml_window_or_none(ml_builder *b, int32_t def);

/* The window of each layer, [n_layer], 0: full attention: from layer_types, or if that
 * key is absent `window` for the layers where sliding(layer, arg) is true. */
const int32_t *ml_windows_read(ml_builder *b, int32_t n_layer, int32_t window,
                               bool (*sliding)(int32_t layer, const void *arg),
                               const void *arg);

/* The same for chunked_attention and attention_chunk_size. */
const int32_t *ml_chunks_read(ml_builder *b, int32_t n_layer, int32_t chunk,
                              bool (*chunked)(int32_t layer, const void *arg),
                              const void *arg);

/* True for all layers. */
bool ml_every_layer(int32_t layer, const void *arg);

/* Qwen's rule: windows only with use_sliding_window, from layer max_window_layers on. */
const int32_t *ml_windows_read_qwen(ml_builder *b, int32_t n_layer);

#endif
