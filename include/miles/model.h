/* miles/model.h - the model interface: model families written in C.
 *
 * A family turns the config.json of a checkpoint into the parameters of the model, with
 * their names in the checkpoint, and the ops of its forward pass.  miles derives the rest:
 * what is loaded and saved, memory, the backward pass, generation, and how ranks share the
 * work.
 *
 * A shared object exports one function,
 *
 *     const miles_model_plugin *miles_model_entry(void);
 *
 * and --spec selects its families as "./my.so:name".  The object does not link against
 * miles: build receives a miles_graph, whose functions read the config and append ops.
 *
 * An op returns a value: rows, one for each token of the batch, of a width that follows
 * from its inputs.  Names of parameters are relative to the layer: between begin_layer(g,
 * 3) and end_layer, "self_attn.q_proj" is "model.layers.3.self_attn.q_proj".  Every op
 * computes the same bits for a token in every batch; docs/NUMERICS.md has their contracts.
 *
 * Errors need no checks: the first one is kept, later calls have no effect and return
 * MILES_NO_VALUE, and the command ends with the sentence.
 *
 * ABI: see MILES_MODEL_ABI_VERSION.  Every struct begins with its own size, and fields that
 * are not set are 0, which is the usual case.  Strings and arrays are copied.
 *
 * thread: build is called from one thread at a time. */
#ifndef MILES_MODEL_H
#define MILES_MODEL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* From version 1 on the interface only grows: fields and functions are added at the end of
 * their struct, so that an object compiled against version 1 works with every later
 * miles. */
#define MILES_MODEL_ABI_VERSION 1

#define MILES_NO_VALUE (-1)
#define MILES_REQUIRED INT64_MIN /* default of a key that must be there; of a number: NaN */

/* ---- configuration ---- */

typedef struct miles_model_sizes {
    size_t size;
    int64_t n_vocab, n_hidden;
    int32_t n_layer;
    int32_t n_nextn; /* multi-token prediction layers after them: kept in files, not run */
    int64_t max_position;
    bool tied;                  /* the LM head is the embedding */
    const char *const *carried; /* name prefixes of further tensors that are kept, not run;
                                   NULL-terminated, or NULL */
} miles_model_sizes;

/* ---- parameters ---- */

/* What a matrix is to a tensor-parallel group.  Matrices are cut along their outputs. */
typedef enum miles_shard {
    MILES_SHARD_NONE, /* each rank has all of it */
    MILES_SHARD_COL,  /* projects to heads or inner columns */
    MILES_SHARD_ROW   /* projects back to the hidden width */
} miles_shard;

/* Where a parameter lies in a larger tensor of the checkpoint: element (e, i, j) of its
 * n_head matrices is element at + e * member + i * row + j * col of that tensor. */
typedef struct miles_part {
    size_t size;
    const char *name; /* of the larger tensor */
    int32_t n_dim;
    int64_t shape[3];
    int64_t at, member, row, col;
} miles_part;

/* ---- ops ---- */

typedef enum miles_act {
    MILES_ACT_SILU,
    MILES_ACT_GELU_TANH,
    MILES_ACT_SIGMOID,
    MILES_ACT_RELU,
    MILES_ACT_CLAMPED /* gpt-oss: both inputs are clamped at 7, and 1 is added to `up` */
} miles_act;

/* A linear layer, name.weight [n_out, width of x] and name.bias. */
typedef struct miles_linear {
    size_t size;
    const char *name;
    int64_t n_out;
    int32_t shard; /* miles_shard */
    bool bias;
    bool frozen;   /* not trained */
    bool keep_f32; /* f32 even in bf16 models */
    /* NULL, or the larger layer of the checkpoint that contains it, as outputs first_out ..
     * of whole_out. */
    const char *whole;
    int64_t whole_out, first_out;
} miles_linear;

/* RMSNorm of groups of `width` columns; without a name it has no weights. */
typedef struct miles_norm {
    size_t size;
    const char *name;
    double eps;
    int32_t width;        /* 0: that of x */
    bool plus_one;        /* the weights are stored as w - 1 */
    bool weights_of_each; /* each group has weights of its own; `name` is the parameter */
} miles_norm;

/* Rotary frequencies from config.json: rope_parameters, or rope_theta and rope_scaling
 * (linear, llama3, yarn, proportional). */
typedef struct miles_rope {
    size_t size;
    int32_t head_dim;
    const char *layer_type; /* where rope_parameters differ by layer type, or NULL */
    const char *theta_key;  /* NULL: rope_theta */
    double theta;           /* default base */
    double partial;         /* default partial_rotary_factor; 0: 1, the whole head */
    bool unscaled;          /* rope_scaling does not apply */
} miles_rope;

typedef struct miles_attn {
    size_t size;
    int32_t head_dim;
    int32_t value_dim;    /* 0: head_dim */
    bool value_in_key;    /* v is the prefix of k's head: only keys are cached */
    int32_t window;       /* keys that a token attends to, itself included; 0: all */
    int32_t chunk;        /* or keys of its chunk of positions; a multiple of 16; 0: all */
    double scale;         /* of the scores */
    double softcap;       /* 0: none */
    const char *sink;     /* a parameter with a number per query head, or NULL */
    int32_t same_keys_as; /* an earlier result of attn with the same k and v, whose cache is
                             used; 0: none */
} miles_attn;

/* Selects the top_k keys of each token by the scores of small heads (DeepSeek sparse
 * attention). */
typedef struct miles_index {
    size_t size;
    int32_t n_head, top_k;
    double scale, weight_scale;
} miles_index;

/* A mixture of experts: each token goes to the top_k experts with the highest scores. */
typedef struct miles_moe {
    size_t size;
    const char *router, *experts; /* "mlp.gate", "mlp.experts" */
    const char *gate, *up, *down; /* of an expert; NULL: gate_proj, up_proj, down_proj */
    const char *bias;             /* the parameter added for selection only, or NULL */
    const char *expert_scale;     /* factor of each expert's weight, or NULL */
    int32_t n_expert, top_k;
    int32_t n_group, top_group; /* experts of the best top_group groups only; 0: all */
    int64_t n_inner;
    double scale; /* factor of the weights; 0: 1 */
    int32_t act;  /* miles_act */
    bool router_bias;
    bool sigmoid;      /* scores are sigmoids of the router's logits, not a softmax */
    bool renorm;       /* the weights of a token's experts are divided by their sum */
    bool ungated;      /* an expert is down(act(up(x)) up(x)), without a gate */
    bool weigh_inputs; /* the weights are factors of experts' inputs, not outputs */
    bool transposed;   /* one tensor for all experts, with inputs in rows */
    bool oss_experts;  /* as transposed, with biases and interleaved gate and up */
} miles_moe;

/* Columns of each row, part after part; a part is taken from every group of columns. */
typedef struct miles_slice {
    size_t size;
    int32_t n_group; /* equal groups of a row; 0: 1 */
    struct {
        int64_t at, width; /* within a group; width 0: no more parts */
    } part[3];
} miles_slice;

/* The gated delta rule over rows q, k, v; or, with `skip`, Mamba-2 over rows v, k, q. */
typedef struct miles_linear_rnn {
    size_t size;
    int32_t n_key, n_head, key_dim, value_dim; /* several heads may share a key */
    const char *skip;                          /* parameter, or NULL */
} miles_linear_rnn;

/* Decay and input rate of recurrent heads: with step = max(softplus(a + bias), min_step),
 * exp(-exp(log_speed) step) and sigmoid(gate), or step without a gate. */
typedef struct miles_decay {
    size_t size;
    const char *log_speed, *bias; /* parameters */
    double min_step;
} miles_decay;

/* What build receives.  All functions take the graph itself first; x, y, q, k, v, ... are
 * values. */
typedef struct miles_graph {
    size_t size;
    void *host; /* private to miles */

    /* Keys of config.json; in a multimodal model, of its text_config.  A dot enters an
     * object: "rope_parameters.rope_theta".  null counts as absent.  Keys that are never
     * read nor listed in miles_family.ignored give a warning. */
    bool (*has)(struct miles_graph *g, const char *key);
    int64_t (*integer)(struct miles_graph *g, const char *key, int64_t def, int64_t min,
                       int64_t max);
    double (*number)(struct miles_graph *g, const char *key, double def, double min,
                     double max);
    bool (*boolean)(struct miles_graph *g, const char *key, bool def);
    const char *(*string)(struct miles_graph *g, const char *key, const char *def);
    /* Entries of an array: their number (0 without the key), and one of them.  An entry of
     * another type is an error. */
    int32_t (*list_len)(struct miles_graph *g, const char *key);
    int64_t (*list_integer)(struct miles_graph *g, const char *key, int32_t i);
    const char *(*list_string)(struct miles_graph *g, const char *key, int32_t i);
    /* Ends the command with this sentence, after the path of config.json. */
    void (*fail)(struct miles_graph *g, const char *sentence);

    /* Before the first op. */
    void (*sizes)(struct miles_graph *g, const miles_model_sizes *sizes);
    void (*begin_layer)(struct miles_graph *g, int32_t layer);
    void (*end_layer)(struct miles_graph *g);
    int64_t (*width)(struct miles_graph *g, int32_t x);

    /* The first op: rows of name [n_vocab, n_hidden], times scale. */
    int32_t (*embed)(struct miles_graph *g, const char *name, double scale);
    /* Rows of another table with n_row rows, by token id. */
    int32_t (*table)(struct miles_graph *g, const char *name, int64_t n_row, int64_t width,
                     double scale);
    int32_t (*linear)(struct miles_graph *g, int32_t x, const miles_linear *o);
    int32_t (*norm)(struct miles_graph *g, int32_t x, const miles_norm *o);
    /* name.weight and name.bias, not trained. */
    int32_t (*layernorm)(struct miles_graph *g, int32_t x, const char *name, double eps);
    /* Number of a set of frequencies, for rope; at most 4 sets. */
    int32_t (*read_rope)(struct miles_graph *g, const miles_rope *o);
    /* YaRN's factor of attention scores (mscale_all_dim); 1 without it. */
    double (*rope_score_scale)(struct miles_graph *g, const miles_rope *o);
    /* Interleaved: pairs of columns (0,1) (2,3) .. instead of (0,dim/2) (1,dim/2+1) ... */
    int32_t (*rope)(struct miles_graph *g, int32_t x, int32_t frequencies, int32_t head_dim,
                    bool interleaved);
    int32_t (*attn)(struct miles_graph *g, int32_t q, int32_t k, int32_t v,
                    const miles_attn *o);
    /* Attention to the selected keys; all heads share one key, whose first value_dim
     * columns are the value. */
    int32_t (*attn_chosen)(struct miles_graph *g, int32_t q, int32_t k, int32_t chosen,
                           const miles_attn *o);
    /* q has n_head heads of k's width; weight has a column per head. */
    int32_t (*index)(struct miles_graph *g, int32_t q, int32_t k, int32_t weight,
                     const miles_index *o);
    /* A matrix [n_out, width of a head] for each head of x. */
    int32_t (*head_linear)(struct miles_graph *g, int32_t x, const char *name,
                           int32_t n_head, int64_t n_out, const miles_part *part);
    int32_t (*add)(struct miles_graph *g, int32_t x, int32_t y);
    int32_t (*scale)(struct miles_graph *g, int32_t x, double by);
    /* By a parameter of one number, which is not trained. */
    int32_t (*scale_by)(struct miles_graph *g, int32_t x, const char *name);
    /* act(gate) * up; up MILES_NO_VALUE: gate has both halves. */
    int32_t (*glu)(struct miles_graph *g, int32_t gate, int32_t up, int32_t act);
    /* The experts read x, the router reads `by`. */
    int32_t (*moe)(struct miles_graph *g, int32_t x, int32_t by, const miles_moe *o);
    int32_t (*slice)(struct miles_graph *g, int32_t x, const miles_slice *o);
    /* Head by head: x, then y. */
    int32_t (*concat)(struct miles_graph *g, int32_t x, int32_t y, int32_t n_head);
    /* x times the sigmoid of gate, one column. */
    int32_t (*row_gate)(struct miles_graph *g, int32_t gate, int32_t x);
    /* silu of a causal convolution of each column, name.weight [width, 1, taps]. */
    int32_t (*conv)(struct miles_graph *g, int32_t x, const char *name, int32_t taps,
                    bool bias);
    int32_t (*decay)(struct miles_graph *g, int32_t a, int32_t gate, const miles_decay *o);
    int32_t (*linear_rnn)(struct miles_graph *g, int32_t qkv, int32_t decay,
                          const miles_linear_rnn *o);
    /* The last op: logits by name.weight [n_vocab, n_hidden], or by the embedding if the
     * sizes say `tied`.  softcap 0: none. */
    void (*head)(struct miles_graph *g, int32_t x, const char *name, double softcap);
} miles_graph;

typedef struct miles_family {
    size_t size;
    const char *name;         /* after the colon of --spec */
    const char *model_type;   /* that config.json must have */
    const char *architecture; /* of config.json's architectures; NULL: any */
    void (*build)(miles_graph *g);
    const char *const *ignored; /* keys without effect on the computation;
                                   NULL-terminated, or NULL */
} miles_family;

typedef struct miles_model_plugin {
    size_t size;
    uint32_t abi_version;                /* MILES_MODEL_ABI_VERSION */
    const miles_family *const *families; /* NULL-terminated */
} miles_model_plugin;

typedef const miles_model_plugin *miles_model_fn(void);

#ifdef __cplusplus
}
#endif

#endif
