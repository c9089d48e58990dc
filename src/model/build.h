/* build.h - how a model family emits the rows of its spec.
 *
 * Each function appends one op (and the parameters it names), checks widths and returns
 * the new value.  Names are printf formats relative to the current scope: inside a layer
 * "self_attn.q_proj.weight" becomes "model.layers.3.self_attn.q_proj.weight".
 *
 * thread: one; used only while a spec is being opened. */
#ifndef ML_MODEL_BUILD_H
#define ML_MODEL_BUILD_H

#include "io/hf_config.h"
#include "model/spec.h"

typedef struct ml_builder {
    ml_spec *spec;
    ml_hf_config *config;
    bool mtp;           /* the family builds its multi-token prediction module */
    int32_t layer;      /* ML_NONE outside layers */
    const char *layers; /* name prefix of layers; NULL: model.layers */
    bool unnumbered;    /* the prefix is that of the only layer */
    bool own_embedding; /* as in ml_spec_opts */
    int32_t cap_param, cap_value, cap_node;
    int32_t rope_table[4]; /* values of the cos/sin tables made so far */
    const ml_rope *rope_of[4];
    int32_t n_rope;
} ml_builder;

/* A family: one file in specs/, one row in families.c. */
typedef struct ml_family {
    const char *model_type;   /* config.json's model_type */
    const char *architecture; /* config.json's architectures[0] */
    void (*build)(ml_builder *b);
    const char *const *ignored; /* ignored config keys, NULL-terminated */
} ml_family;

extern const ml_family *const ml_families[]; /* NULL-terminated */
extern const ml_family ml_family_eagle3;     /* no language model: not among these */

void ml_build_begin_layer(ml_builder *b, int32_t layer);
void ml_build_end_layer(ml_builder *b);

/* Shapes of linear weights are [n_out, width of x]. */
typedef struct ml_linear_opts {
    const char *name; /* without ".weight" */
    int64_t n_out;
    bool bias;
    ml_shard shard;
    bool frozen;   /* not trained */
    bool keep_f32; /* f32 even in bf16 models */
    bool f32_out;  /* with keep_f32: so are its outputs */
    bool bare;     /* the weight's name does not end in ".weight" */
    /* NULL, or the larger layer of the checkpoint that contains it, as outputs first_out
     * .. of whole_out. */
    const char *whole;
    int64_t whole_out, first_out;
} ml_linear_opts;

/* The first op of the model. */
int32_t ml_build_embed(ml_builder *b, const char *name, float scale);
/* Another embedding table with a row for each token id; ids from n_row on have row 0. */
int32_t ml_build_table(ml_builder *b, const char *name, int64_t n_row, int64_t width,
                       float scale);
int32_t ml_build_linear(ml_builder *b, int32_t x, ml_linear_opts o);
/* name NULL: no weights. */
int32_t ml_build_norm(ml_builder *b, int32_t x, const char *name, float eps, int32_t width,
                      bool plus_one);
int32_t ml_build_rope(ml_builder *b, int32_t x, const ml_rope *rope, int32_t head_dim,
                      bool interleaved);
/* Rotates the last rope->dim elements of each head, as pairs (0,1) (2,3)..; inverse: by
 * the negative angles. */
int32_t ml_build_rope_tail(ml_builder *b, int32_t x, const ml_rope *rope, int32_t head_dim,
                           bool inverse);
/* A linear layer for each of n_head groups of x: weights [n_head, n_out, width of a
 * group], which checkpoints store as a part of a larger tensor. */
int32_t ml_build_head_linear(ml_builder *b, int32_t x, const char *name, int32_t n_head,
                             int64_t n_out, ml_part *part);
/* Concatenates x and y head by head. */
int32_t ml_build_concat(ml_builder *b, int32_t x, int32_t y, int32_t n_head);
/* KV pages shared by several layers; the first of the layers creates them. */
typedef struct ml_shared_kv {
    int32_t keys, values; /* ML_NONE: not created yet */
} ml_shared_kv;
typedef struct ml_attn_opts {
    int32_t head_dim;
    int32_t value_dim; /* 0: head_dim */
    bool value_in_key; /* v is the prefix of k's head: only keys are stored in KV pages */
    int32_t window;    /* sliding window; 0: none */
    int32_t chunk;     /* rows attend to keys of their chunk of positions; 0: to all */
    int32_t ratio;     /* ml_build_attn_chosen: rows of a compressed key; 0: none */
    float scale, softcap; /* softcap 0: none */
    const char *sink; /* parameter of attention sinks, one number per query head, or NULL */
    /* NULL: its own KV pages; else shared by all layers with the same k and v. */
    ml_shared_kv *pages;
} ml_attn_opts;
int32_t ml_build_attn(ml_builder *b, int32_t q, int32_t k, int32_t v, ml_attn_opts o);
/* Sparse attention to the keys an indexer selects (ml_build_index).  All heads share one
 * key, whose first value_dim elements are the value.  With a ratio, rows of k are a key and
 * a compressed key, the indexer selects among the latter (chosen ML_NONE: all of them), and
 * a row also attends to its window. */
int32_t ml_build_attn_chosen(ml_builder *b, int32_t q, int32_t k, int32_t chosen,
                             ml_attn_opts o);
/* Selects the top_k keys with the highest score for each row; q has n_head heads of k's
 * width. */
typedef struct ml_index_opts {
    int32_t n_head, top_k;
    int32_t ratio; /* rows of a compressed key; 0: keys are not compressed */
    float scale, weight_scale;
} ml_index_opts;
int32_t ml_build_index(ml_builder *b, int32_t q, int32_t k, int32_t weight,
                       ml_index_opts o);
/* One key for each window of `ratio` rows: a sum over the window of rows of kv, weighted by
 * the softmax of gate plus the parameter `bias`.  Columns of kv beyond n_out: windows
 * overlap (backend/ops.h). */
typedef struct ml_compress_opts {
    const char *bias;
    int32_t ratio;
    int64_t n_out;
} ml_compress_opts;
int32_t ml_build_compress(ml_builder *b, int32_t kv, int32_t gate, ml_compress_opts o);
int32_t ml_build_layernorm(ml_builder *b, int32_t x, const char *name, float eps);
int32_t ml_build_add(ml_builder *b, int32_t x, int32_t y);
/* x times a number: `by`, or the value of a parameter that is not trained. */
int32_t ml_build_scale(ml_builder *b, int32_t x, float by);
int32_t ml_build_scale_param(ml_builder *b, int32_t x, const char *name);
/* Columns of x times a vector of parameters. */
int32_t ml_build_col_scale(ml_builder *b, int32_t x, const char *name);
int32_t ml_build_tanh(ml_builder *b, int32_t x);
/* What exceeds the mean of its row by more than z standard deviations, less that bound. */
int32_t ml_build_cutoff(ml_builder *b, int32_t x, float z);
/* x with the root mean square of `like`, row by row; x's own counts as sqrt(eps) at least. */
int32_t ml_build_match_rms(ml_builder *b, int32_t x, int32_t like, float eps);
/* Sums of residual streams; see ml_op_attr.mix.  y and coef may be ML_NONE; base
 * [n_out, n_in + 1] is copied. */
typedef struct ml_mix_opts {
    int32_t n_in, n_out;
    bool streams, extra; /* what coef has coefficients of: the streams of x, y */
    const float *base;
} ml_mix_opts;
int32_t ml_build_mix(ml_builder *b, int32_t x, int32_t y, int32_t coef, ml_mix_opts o);
/* Coefficients of hyper-connections from their logits x: those that join n_stream streams
 * into the input of a layer; then, unless `head`, those of a mix with its output. */
typedef struct ml_hyper_opts {
    const char *scale, *base; /* parameter names */
    int32_t n_stream, n_iter;
    float eps;
    bool head;
} ml_hyper_opts;
int32_t ml_build_hyper(ml_builder *b, int32_t x, ml_hyper_opts o);
/* up ML_NONE: gate holds both halves. */
int32_t ml_build_glu(ml_builder *b, int32_t gate, int32_t up, ml_act act);
/* silu(gate) up, with gate clamped to at most `limit`, up to -limit .. limit. */
int32_t ml_build_swiglu(ml_builder *b, int32_t gate, int32_t up, float limit);

/* A mixture of gated experts: each token goes to the top_k experts with the highest
 * router scores. */
typedef struct ml_moe_opts {
    const char *router, *experts; /* "mlp.gate", "mlp.experts" */
    const char *gate, *up, *down; /* of an expert; NULL: gate_proj, up_proj, down_proj */
    const char *bias;             /* name of the bias used for selection only, or NULL */
    const char *expert_scale; /* per-expert factor of the weights, applied last, or NULL */
    bool router_bias;         /* bias of the router logits */
    /* gpt-oss: with biases; all experts in one tensor, with inputs in rows and the gate
     * and up outputs interleaved */
    bool oss_experts;
    bool transposed;   /* all experts in one tensor, with inputs in rows */
    bool weigh_inputs; /* routing weights are factors of experts' inputs, not outputs */
    int32_t n_expert, top_k;
    int32_t n_group, top_group; /* experts of the best top_group groups only; 0: all */
    int64_t n_inner;
    /* NULL, or the name of a table of whole numbers [vocabulary, top_k]: the experts of a
     * token id, instead of those with the highest scores. */
    const char *table;
    bool sigmoid;       /* scores are sigmoids of the logits, not a softmax */
    bool sqrt_softplus; /* scores are sqrt(softplus(logit)) */
    bool renorm;        /* the weights of a token's experts are divided by their sum */
    bool ungated;       /* an expert is down(act(up(x)) up(x)), without a gate */
    float scale;        /* factor of the weights; 0: 1 */
    float limit;        /* of gate and up (ml_build_swiglu); 0: none */
    ml_act act;
} ml_moe_opts;
/* The experts read x, the router reads `by`. */
int32_t ml_build_moe(ml_builder *b, int32_t x, int32_t by, ml_moe_opts o);

/* Columns of each row of x, part after part; each part is taken from every group of
 * columns. */
typedef struct ml_slice_opts {
    int32_t n_group; /* equal groups per row; 0: 1 */
    struct {
        int64_t at, width; /* offset and width within a group */
    } part[ML_SLICE_PARTS];
} ml_slice_opts;
int32_t ml_build_slice(ml_builder *b, int32_t x, ml_slice_opts o);

/* x times the sigmoid of gate, one number per row. */
int32_t ml_build_row_gate(ml_builder *b, int32_t gate, int32_t x);

/* silu of a causal convolution of each column over the preceding rows; weights
 * name.weight. */
int32_t ml_build_conv(ml_builder *b, int32_t x, const char *name, int32_t taps, bool bias);

/* Decay and input rate of recurrent heads.  With step = max(softplus(a + bias),
 * min_step): keep = exp(-exp(log_speed) step); take = sigmoid(gate), or step if gate is
 * ML_NONE. */
typedef struct ml_decay_opts {
    const char *log_speed, *bias; /* parameter names */
    float min_step;
} ml_decay_opts;
int32_t ml_build_decay(ml_builder *b, int32_t a, int32_t gate, ml_decay_opts o);

/* The gated delta rule over rows q, k, v; or, with a skip weight, Mamba-2 over rows v, k,
 * q (called x, B, C there).  Several heads may share a key. */
typedef struct ml_linear_rnn_opts {
    int32_t n_key, n_head, key_dim, value_dim;
    const char *skip; /* parameter name, or NULL */
} ml_linear_rnn_opts;
int32_t ml_build_linear_rnn(ml_builder *b, int32_t qkv, int32_t decay,
                            ml_linear_rnn_opts o);

/* RMSNorm of groups of `width` columns, each group with its own weights; name: the
 * parameter. */
int32_t ml_build_group_norm(ml_builder *b, int32_t x, const char *name, float eps,
                            int32_t width);

/* Ends the model with the LM head over x.  Tied: the embedding is the head; `name` is
 * unused. */
void ml_build_head(ml_builder *b, int32_t x, const char *name, bool tied, float softcap);

/* Primitives of the functions above, for builders in other files. */
int32_t ml_build_value(ml_builder *b, ml_value v);
int32_t ml_build_rows(ml_builder *b, int32_t mul, int64_t width); /* f32 rows per token */
/* Statistics, tables and weights of a sum: f32 on every backend. */
int32_t ml_build_exact(ml_builder *b, ml_axis axis, int64_t width);
int32_t ml_build_param(ml_builder *b, ml_param p);
/* Appends a node without inputs, outputs or weights; the pointer is valid until the next
 * one. */
ml_node *ml_build_node(ml_builder *b, ml_op_id op);
/* name and suffix in the current scope, allocated in the spec's arena. */
const char *ml_build_name(ml_builder *b, const char *name, const char *suffix);
int64_t ml_build_width(const ml_builder *b, int32_t value);

#endif
