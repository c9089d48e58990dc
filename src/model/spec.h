/* spec.h - a declarative description of a model.
 *
 * A family's file in specs/ reads config.json and emits, through build.h, the rows below:
 * the parameters with their Hugging Face names, shapes and sharding, and the ops of a
 * forward pass in order.  Everything else is derived from them: what to load and save,
 * the forward and backward plan, the memory it needs.
 *
 * Values are in static single-assignment (SSA) form: each op output is a new value, so a
 * plan can derive lifetimes.  KV pages are the exception: attention of several layers may
 * share them, if it writes the same keys and values.
 *
 * thread: immutable after ml_spec_open and ml_spec_keep_kv. */
#ifndef ML_MODEL_SPEC_H
#define ML_MODEL_SPEC_H

#include "backend/ops.h"
#include "base/arena.h"
#include "base/map.h"

/* What a parameter is to a tensor-parallel group: a projection to heads or inner columns
 * (COL) or back (ROW), a vocabulary (VOCAB), experts (EXPERT).  All of these are cut along
 * their outputs (spec_shard.h), except embedding tables; NONE: replicated. */
typedef enum ml_shard {
    ML_SHARD_NONE,
    ML_SHARD_COL,
    ML_SHARD_ROW,
    ML_SHARD_VOCAB,
    ML_SHARD_EXPERT
} ml_shard;

/* A parameter that is stored inside a larger tensor of the checkpoint (q, k and v in one
 * matrix, all experts of a layer in one tensor): element (e, i, j) of its stack is
 * element at + e * member + i * row + j * col of that tensor. */
typedef struct ml_part {
    const char *name; /* of the larger tensor */
    int32_t n_dim;
    int64_t shape[3];
    int64_t at, member, row, col;
    int32_t next; /* next parameter stored in the same tensor, or ML_NONE */
} ml_part;

/* The rows of a parameter that one rank of a tensor-parallel group has, of each member;
 * the elements of a vector count as rows. */
typedef struct ml_param_cut {
    int64_t n_row;          /* of the whole parameter */
    int32_t first, n_stack; /* first member here; members of the whole parameter */
    int32_t n_run;
    struct {
        int64_t at, n;
    } run[5]; /* rows at .. at + n - 1, run after run */
} ml_param_cut;

typedef struct ml_param {
    const char *name;       /* in the checkpoint; of a stack: up to the expert number */
    const char *name_after; /* NULL: a plain tensor; else member e is name e name_after */
    int32_t n_stack;        /* members of a stack, 1 for a plain tensor */
    int32_t n_dim;          /* of one member: 1 or 2 */
    int64_t shape[2];       /* of one member */
    ml_layout layout;
    ml_shard shard;
    /* NULL, or its place in a larger tensor, if the checkpoint has no tensor of its own
     * name. */
    ml_part *part;
    const ml_param_cut *cut; /* NULL: whole; else n_stack and shape are this rank's */
    bool frozen;             /* not trained: it has no gradient */
    bool of_trunk;       /* of a module (mtp.h): the trunk's, which is not trained here */
    bool keep_f32;       /* loading and saving do not round it */
    bool linear;         /* a linear layer that may be quantized: no router, no gate */
    bool high_precision; /* ...but is not (ml_spec_keep_precision) */
    ml_dtype
        codes; /* its dtype in memory, if that is quantized (ml_weights_keep_kv); else f32 */
    bool qat;  /* one that INT4 training quantizes: of a model with experts, only these */
    int64_t below; /* its elements are whole numbers 0 .. below - 1; 0: any */
} ml_param;

/* What determines a value's number of rows. */
typedef enum ml_axis {
    ML_PER_TOKEN,   /* mul rows of `width` for each token of the batch */
    ML_PER_LOSS,    /* one row for each scored position */
    ML_PER_PAGE,    /* one row for each KV page */
    ML_PER_SLOT,    /* one row for each state slot */
    ML_PER_SHARE,   /* context parallel: one for each row that a rank may have */
    ML_PER_CONTEXT, /* and those of all ranks; see spec_context.h */
    ML_GROUP        /* MoE grouping: width + mul * tokens integers, one row */
} ml_axis;

/* Whether rows outlive a run. */
static inline bool ml_axis_is_kept(ml_axis a) {
    return a == ML_PER_PAGE || a == ML_PER_SLOT;
}

typedef struct ml_value {
    ml_axis axis;
    int32_t mul;
    int64_t width;
    ml_dtype dtype;
    bool exact;      /* f32 on every backend; others have the backend's dtype */
    bool exact_grad; /* its gradient is f32 on every backend: ranks add up parts of it */
    bool sent;       /* tokens: rows that the ranks of an expert group sent to this one */
    bool dp;         /* tokens: rows of this rank's DP group; others are undefined */
} ml_value;

/* The dtype of a value, where activations have dtype `act`. */
ml_dtype ml_value_dtype(const ml_value *v, ml_dtype act);

#define ML_NONE (-1)

/* What a module reads of its trunk, and of its own rows (mtp.h). */
enum { ML_MODULE_LAYERS = 3 };
typedef struct ml_module_io {
    int32_t hidden;  /* value: the hidden state from which it drafts on */
    int32_t own;     /* the first node of those that read such a state */
    int32_t n_layer; /* inputs of layers of the trunk that it reads; 0: what the
                              trunk's LM head reads */
    int32_t layer[ML_MODULE_LAYERS]; /* these, or ML_NONE: the default ones */
    int64_t n_vocab, n_hidden;       /* of its trunk */
} ml_module_io;

typedef struct ml_node {
    ml_op_id op;
    int32_t layer;                        /* decoder layer, or ML_NONE */
    int32_t in[ML_OP_IN], out[ML_OP_OUT]; /* values, or ML_NONE */
    int32_t w[ML_OP_W];                   /* parameters, or ML_NONE */
    bool again;                           /* an earlier node has the same parameters */
    bool dp;             /* it computes the rows of this rank's DP group (spec_shard.h) */
    int32_t route_layer; /* of an op that selects: its layer in the routing record */
    ml_op_attr attr;
} ml_node;

typedef struct ml_spec {
    const char *family; /* model_type */
    int64_t n_vocab, n_hidden;
    int32_t n_layer; /* decoder layers */
    int32_t n_nextn; /* multi-token prediction layers after them: kept in files, not run */
    int64_t max_position; /* from the config; longer sequences are not an error */
    /* Name prefixes of further tensors that are not run; NULL, or NULL-terminated. */
    const char *const *carried;
    /* NULL, or the model_type of the multimodal model that contains this one: vision and
     * audio towers are not run. */
    const char *inside;
    /* Routing record per token: top_k in each of n_layer layers; zeros: none.  For
     * experts all decoder layers count, including those without experts. */
    struct {
        int32_t n_layer, top_k;
    } route[ML_N_ROUTING];
    bool tied;           /* the LM head is the embedding */
    bool critic;         /* one value per token instead of the LM head */
    bool reward;         /* a critic that is a reward model: see ml_spec_opts */
    int32_t pad_token;   /* of a reward model: padding; ML_NONE: none */
    bool mtp;            /* the multi-token prediction module of a model alone (mtp.h) */
    ml_module_io module; /* of such a module */
    bool adapter;        /* parameters of an adapter (lora.h), without nodes */
    uint64_t head_seed;  /* seed of a critic's head, if the checkpoint does not have it */
    int32_t n_rank;      /* ranks the model is cut for (spec_shard.h); 0: not cut */
    int32_t attn_dp;     /* data-parallel attention: groups of these ranks; 0: 1 */
    int32_t n_context;   /* ranks that have pieces of sequences (spec_context.h); 0: none */
    ml_param *param;
    ml_value *value;
    ml_node *node;
    int32_t n_param, n_value, n_node;
    ml_map by_name; /* checkpoint name -> parameter and member, see ml_spec_find */
    ml_map by_part; /* name of a larger tensor -> the first parameter stored in it */
    ml_arena arena; /* owns all of the above */
} ml_spec;

#define ML_VALUE_HEAD "value_head"
#define ML_REWARD_HEAD "score"

typedef struct ml_spec_opts {
    const struct miles_family *plugin; /* builds the model (miles/model.h); NULL: the
                                          built-in family of its model_type */
    const char *layers_of;             /* NULL, or how the family's model_type must begin */
    const char *layers_name;           /* what said so, for the message */
    /* The last op is a linear layer to one value per token, with a bias, whose weights
     * (ML_VALUE_HEAD) a checkpoint of the language model does not have. */
    bool critic;
    /* The same without a bias: a sequence classification model of transformers with one label,
     * whose weights are ML_REWARD_HEAD. */
    bool reward;
    bool mtp; /* the model's multi-token prediction module (mtp.h) */
    /* An EAGLE-3 head (eagle3.h); own_embedding: it has a table of its own. */
    bool eagle3, own_embedding;
} ml_spec_opts;

/* Reads dir/config.json.  Rejects other architectures by name, with the list of those
 * supported; warns of unknown keys. */
ml_status ml_spec_open_with(ml_spec *out, const char *dir, const ml_spec_opts *o,
                            ml_err *err);
/* With a built-in family, as a language model. */
ml_status ml_spec_open(ml_spec *out, const char *dir, ml_err *err);
/* The same from text; path is for messages. */
ml_status ml_spec_parse(ml_spec *out, ml_str text, const char *path, ml_err *err);
void ml_spec_close(ml_spec *s);

/* Sets the dtype of KV pages, f32 by default; call it before the first plan is created or
 * page counted.  On a GPU they have its dtype of activations. */
void ml_spec_keep_kv(ml_spec *s, ml_dtype dtype);
ml_dtype ml_spec_kv_dtype(const ml_spec *s); /* without such pages, f32 */
/* Refuses a quantized KV cache (ML_KV_*) for a model that keeps keys in no pages of ATTN. */
ml_status ml_spec_check_kv(const ml_spec *s, ml_dtype dtype, ml_err *err);

/* Which linear layers are not quantized. */
typedef struct ml_high_precision {
    int64_t first, last;     /* decoder layers at the start and at the end */
    const char *const *name; /* tensors whose names contain one of these */
    int n_name;
} ml_high_precision;

/* Excludes them from quantization, before weights are loaded; returns how many parameters
 * that are. */
int ml_spec_keep_precision(ml_spec *s, const ml_high_precision *h);

/* Whether a gradient of the node's output is wanted for its own weights: all but tables of
 * token ids that are not trained. */
bool ml_node_is_trained(const ml_spec *s, const ml_node *n);

/* The value that layer `layer` reads, the residual stream; n_layer: that of the final norm.
 * ML_NONE: the model has no layer of that number, or other streams. */
int32_t ml_spec_layer_input(const ml_spec *s, int32_t layer);

/* Rebuilds by_name and by_part, after a change of the parameters. */
void ml_spec_index(ml_spec *s);

/* The name of member e of a parameter, written to buf. */
const char *ml_param_name(const ml_param *p, int32_t e, char *buf, size_t cap);
/* The parameter of a checkpoint name, and its member; ML_NONE: not found. */
int32_t ml_spec_find(const ml_spec *s, ml_str name, int32_t *member);
/* The first parameter stored in the tensor of this name, or ML_NONE. */
int32_t ml_spec_find_part(const ml_spec *s, ml_str name);
int64_t ml_param_count(const ml_param *p); /* elements, all members */
int64_t ml_spec_param_count(const ml_spec *s);
/* Routing record entries per token: layers times top_k. */
int64_t ml_spec_routing_width(const ml_spec *s, ml_routing_kind route);

#endif
