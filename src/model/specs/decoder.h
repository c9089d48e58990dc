/* decoder.h - what the families of decoder-only transformers share.
 *
 * A family reads the common keys with ml_decoder_read, sets what makes it different,
 * and composes its layer from the two halves below. */
#ifndef ML_MODEL_SPECS_DECODER_H
#define ML_MODEL_SPECS_DECODER_H

#include "model/build.h"

typedef struct ml_decoder {
    int64_t n_hidden, n_inner;
    int32_t n_layer, n_head, n_kv, head_dim;
    float eps, scale, attn_softcap;
    ml_act act;
    bool norm_plus_one;    /* RMSNorm weights are stored as w - 1 */
    bool qkv_bias, o_bias; /* of the attention projections */
    bool mlp_bias;
    bool qk_norm; /* RMSNorm of each query and key head before rotary */
    bool rope_interleaved;
} ml_decoder;

/* Defaults of the keys below, where transformers has them; 0: required. */
typedef struct ml_decoder_defaults {
    int32_t n_kv;     /* 0: as many as heads */
    int32_t head_dim; /* 0: hidden / heads */
    double eps;
    bool tied;
    const char *act_key, *act;
} ml_decoder_defaults;

/* vocab_size, hidden_size, intermediate_size, num_hidden_layers, num_attention_heads,
 * num_key_value_heads, head_dim, rms_norm_eps, the activation, tie_word_embeddings,
 * max_position_embeddings; fills the spec's part of them too. */
void ml_decoder_read(ml_builder *b, ml_decoder *d, const ml_decoder_defaults *def);

/* Attention on x (already normed), output projection included. */
int32_t ml_decoder_attn(ml_builder *b, const ml_decoder *d, int32_t x, const ml_rope *rope,
                        int32_t window);

/* down(act(gate(x)) * up(x)) with separate or fused gate and up projections. */
int32_t ml_decoder_mlp(ml_builder *b, const ml_decoder *d, int32_t x);
int32_t ml_decoder_mlp_fused(ml_builder *b, const ml_decoder *d, int32_t x);

/* RMSNorm over the hidden width with the decoder's eps. */
int32_t ml_decoder_norm(ml_builder *b, const ml_decoder *d, int32_t x, const char *name);

/* The plain layer: x + attn(norm(x)), then x + mlp(norm(x)). */
int32_t ml_decoder_layer(ml_builder *b, const ml_decoder *d, int32_t x, const ml_rope *rope,
                         int32_t window);
/* The layer with sandwich norms: x + norm(attn(norm(x))), then x + norm(mlp(norm(x))). */
typedef struct ml_sandwich {
    const char *before_attn, *after_attn, *before_mlp, *after_mlp;
    bool fused_mlp;
} ml_sandwich;
int32_t ml_decoder_sandwich(ml_builder *b, const ml_decoder *d, int32_t x,
                            const ml_rope *rope, int32_t window, const ml_sandwich *names);

/* Rotary frequencies from rope_parameters, or from rope_theta and rope_scaling.  `part` is
 * the layer type whose parameters are wanted where they differ by layer type, or NULL. */
typedef struct ml_rope_opts {
    const char *part;
    const char *theta_key; /* older key of the base, "rope_theta" when NULL */
    double theta;          /* default base */
    double partial;        /* default partial_rotary_factor, 1: whole head */
    bool scaled;           /* rope_scaling applies to it */
} ml_rope_opts;
const ml_rope *ml_rope_read(ml_builder *b, int32_t head_dim, ml_rope_opts o);

/* sliding_window: `def` when the key is absent, 0 (none) when it is null. */
int32_t ml_window_or_none(ml_builder *b, int32_t def);

/* The window of each layer, [n_layer], 0: full attention: from layer_types, or where that key
 * is absent `window` for the layers that sliding(layer, arg) picks. */
const int32_t *ml_windows_read(ml_builder *b, int32_t n_layer, int32_t window,
                               bool (*sliding)(int32_t layer, int64_t arg), int64_t arg);

/* The rule that picks all layers. */
bool ml_every_layer(int32_t layer, int64_t arg);

/* Qwen's rule: windows only with use_sliding_window, from layer max_window_layers on. */
const int32_t *ml_windows_read_qwen(ml_builder *b, int32_t n_layer);

#endif
