/* build.h - how a family emits the rows of its spec.
 *
 * Each function appends one op (and the parameters it names), checks widths and
 * returns the new value.  Names are given as printf formats relative to the current
 * scope: inside a layer "self_attn.q_proj.weight" becomes
 * "model.layers.3.self_attn.q_proj.weight".
 *
 * thread: one; used only while a spec is being opened. */
#ifndef ML_MODEL_BUILD_H
#define ML_MODEL_BUILD_H

#include "io/hf_config.h"
#include "model/spec.h"

typedef struct ml_builder {
    ml_spec *spec;
    ml_hf_config *config;
    int32_t layer;      /* ML_NONE outside layers */
    const char *layers; /* what names of layers begin with; NULL: model.layers */
    int32_t cap_param, cap_value, cap_node;
    int32_t rope_table[4]; /* values of the tables made so far */
    const ml_rope *rope_of[4];
    int32_t n_rope;
} ml_builder;

/* A family: one file in specs/, one row in specs.c. */
typedef struct ml_family {
    const char *model_type;   /* config.json's model_type */
    const char *architecture; /* config.json's architectures[0] */
    void (*build)(ml_builder *b);
    const char *const *ignored; /* its keys that change nothing here, NULL at the end */
} ml_family;

extern const ml_family *const ml_families[]; /* NULL at the end */

void ml_build_begin_layer(ml_builder *b, int32_t layer);
void ml_build_end_layer(ml_builder *b);

/* Shapes of linear weights are [n_out, width of x]. */
typedef struct ml_linear_opts {
    const char *name; /* without ".weight" */
    int64_t n_out;
    bool bias;
    ml_shard shard;
    bool frozen;   /* nothing trains it */
    bool keep_f32; /* bf16 models have it in f32 */
    /* NULL, or the larger layer that checkpoints have it in: outputs first_out .. of
     * whole_out. */
    const char *whole;
    int64_t whole_out, first_out;
} ml_linear_opts;

/* The model's first row. */
int32_t ml_build_embed(ml_builder *b, const char *name, float scale);
/* Another table with a row for each id. */
int32_t ml_build_table(ml_builder *b, const char *name, int64_t n_row, int64_t width,
                       float scale);
int32_t ml_build_linear(ml_builder *b, int32_t x, ml_linear_opts o);
/* name NULL: without weights. */
int32_t ml_build_norm(ml_builder *b, int32_t x, const char *name, float eps, int32_t width,
                      bool plus_one);
int32_t ml_build_rope(ml_builder *b, int32_t x, const ml_rope *rope, int32_t head_dim,
                      bool interleaved);
/* A linear layer for each of n_head groups of x: weights [n_head, n_out, width of a group],
 * which checkpoints have as a part of a larger tensor. */
int32_t ml_build_head_linear(ml_builder *b, int32_t x, const char *name, int32_t n_head,
                             int64_t n_out, ml_part *part);
/* Heads of x, each followed by that of y. */
int32_t ml_build_concat(ml_builder *b, int32_t x, int32_t y, int32_t n_head);
/* Where layers that share keys and values keep them: the first one makes it. */
typedef struct ml_shared_kv {
    int32_t keys, values; /* ML_NONE: not made yet */
} ml_shared_kv;
typedef struct ml_attn_opts {
    int32_t head_dim;
    int32_t value_dim;    /* 0: head_dim */
    bool value_in_key;    /* v is the beginning of k's head: only keys are kept in pages */
    int32_t window;       /* 0: none */
    float scale, softcap; /* softcap 0: none */
    const char *sink;     /* parameter with a number per query head, or NULL */
    /* NULL: pages of its own; else of all layers that have these same k and v. */
    ml_shared_kv *pages;
} ml_attn_opts;
int32_t ml_build_attn(ml_builder *b, int32_t q, int32_t k, int32_t v, ml_attn_opts o);
/* Attention to keys chosen by an indexer (ml_build_index).  One key for all heads, whose first
 * value_dim elements are the value. */
int32_t ml_build_attn_chosen(ml_builder *b, int32_t q, int32_t k, int32_t chosen,
                             ml_attn_opts o);
/* The top_k keys of most worth for each row: q has n_head heads of k's width. */
typedef struct ml_index_opts {
    int32_t n_head, top_k;
    float scale, weight_scale;
} ml_index_opts;
int32_t ml_build_index(ml_builder *b, int32_t q, int32_t k, int32_t weight,
                       ml_index_opts o);
int32_t ml_build_layernorm(ml_builder *b, int32_t x, const char *name, float eps);
int32_t ml_build_add(ml_builder *b, int32_t x, int32_t y);
/* x times a number: `by`, or that of a parameter that is not trained. */
int32_t ml_build_scale(ml_builder *b, int32_t x, float by);
int32_t ml_build_scale_param(ml_builder *b, int32_t x, const char *name);
/* up ML_NONE: gate holds both halves. */
int32_t ml_build_glu(ml_builder *b, int32_t gate, int32_t up, ml_act act);

/* A mixture of gated experts: a token goes to the top_k that its router scores highest. */
typedef struct ml_moe_opts {
    const char *router, *experts; /* "mlp.gate", "mlp.experts" */
    const char *gate, *up, *down; /* of an expert; NULL: gate_proj, up_proj, down_proj */
    const char *bias;             /* of the choice alone: its name, or NULL */
    const char *expert_scale;     /* a number per expert for its weights, last, or NULL */
    bool router_bias;             /* of the logits */
    bool
        oss_experts; /* gpt-oss: biased, all experts in one tensor with inputs in rows, gate
                         and up of an output side by side */
    int32_t n_expert, top_k;
    int32_t n_group, top_group; /* experts of the best top_group groups only; 0: of all */
    int64_t n_inner;
    bool sigmoid; /* scores are sigmoids of logits, not their softmax */
    bool renorm;  /* weights of a token's experts are divided by their sum */
    bool ungated; /* an expert is down(act(up(x)) up(x)), without a gate */
    float scale;  /* weights are multiplied by it; 0: 1 */
    ml_act act;
} ml_moe_opts;
/* Experts see x, the router sees `by`. */
int32_t ml_build_moe(ml_builder *b, int32_t x, int32_t by, ml_moe_opts o);

/* Columns of each row of x, part after part; each part is taken from every group of columns. */
typedef struct ml_slice_opts {
    int32_t n_group; /* equal groups of a row; 0: 1 */
    struct {
        int64_t at, width; /* within a group */
    } part[ML_SLICE_PARTS];
} ml_slice_opts;
int32_t ml_build_slice(ml_builder *b, int32_t x, ml_slice_opts o);

/* x times the sigmoid of gate, one number per row. */
int32_t ml_build_row_gate(ml_builder *b, int32_t gate, int32_t x);

/* silu of a causal convolution of each column with the rows before, name.weight. */
int32_t ml_build_conv(ml_builder *b, int32_t x, const char *name, int32_t taps, bool bias);

/* What recurrent heads keep of their state, exp(-exp(log_speed) softplus(a + bias)), and take
 * in: sigmoid of gate, or ML_NONE: the softplus, which is at least min_step. */
typedef struct ml_decay_opts {
    const char *log_speed, *bias; /* their names */
    float min_step;
} ml_decay_opts;
int32_t ml_build_decay(ml_builder *b, int32_t a, int32_t gate, ml_decay_opts o);

/* The gated delta rule over rows q, k, v; or, with a skip weight, Mamba-2 over rows v, k, q
 * (there called x, B, C).  Several heads may share a key. */
typedef struct ml_linear_rnn_opts {
    int32_t n_key, n_head, key_dim, value_dim;
    const char *skip; /* its name, or NULL */
} ml_linear_rnn_opts;
int32_t ml_build_linear_rnn(ml_builder *b, int32_t qkv, int32_t rates,
                            ml_linear_rnn_opts o);

/* RMSNorm of groups of `width` columns, each with weights of its own, called name. */
int32_t ml_build_group_norm(ml_builder *b, int32_t x, const char *name, float eps,
                            int32_t width);

/* Ends the model: final head over x.  Tied: the embedding is the head and `name` is unused. */
void ml_build_head(ml_builder *b, int32_t x, const char *name, bool tied, float softcap);

/* What the above are made of, for builders in other files. */
int32_t ml_build_value(ml_builder *b, ml_value v);
int32_t ml_build_rows(ml_builder *b, int32_t mul, int64_t width); /* of f32, per token */
/* Statistics, tables and weights of a sum: f32 on every backend. */
int32_t ml_build_exact(ml_builder *b, ml_axis axis, int64_t width);
int32_t ml_build_param(ml_builder *b, ml_param p);
/* Appends a node without inputs, outputs or weights; valid until the next one. */
ml_node *ml_build_node(ml_builder *b, ml_op_id op);
/* name and suffix in the current scope, in the spec's arena. */
const char *ml_build_name(ml_builder *b, const char *name, const char *suffix);
int64_t ml_build_width(const ml_builder *b, int32_t value);

#endif
