/* lora.h - a LoRA adapter: its matrices, their gradients, and its files.
 *
 * The matrices are the parameters of a spec of their own, without nodes, so that weight sets,
 * gradients and optimizers of adapters are those of models.  They are f32, whatever the base
 * has.  A parameter is used by one site (spec_lora.h) or by several: PEFT adapts q, k and v
 * in one matrix where a checkpoint stores them so; Miles shares A between q, k and v, between
 * gate and up, and between the experts of a layer.  Files repeat what is shared; A matrices
 * of layers with the same input that have the same bytes in a file are one parameter.
 *
 * Ranks.  Of an adapter that several ranks train, a rank has the matrices of its pipeline
 * stage and of its experts (ml_lora_divide).  Of one that an engine of several ranks serves,
 * a rank has every A, and the rows of B that its outputs need (ml_lora_cut_spec).
 *
 * thread: one. */
#ifndef ML_MODEL_LORA_H
#define ML_MODEL_LORA_H

#include "model/peft_config.h"
#include "model/spec_lora.h"
#include "model/tensors.h"
#include "model/weights.h"

#define ML_LORA_CONFIG "adapter_config.json"
#define ML_LORA_FILE "adapter_model.safetensors"

/* The parameters of a site, or ML_NONE. */
typedef struct ml_lora_link {
    int32_t a, b;
    float scale;
} ml_lora_link;

/* A further name of a parameter's tensor in files. */
typedef struct ml_lora_alias {
    ml_param name;
    int32_t param;
} ml_lora_alias;

typedef struct ml_lora {
    ml_arena arena;
    ml_peft_config config;
    const ml_lora_layer *layer; /* [n_site] */
    int32_t n_site, max_rank;
    ml_lora_link *link;   /* [n_site] */
    ml_spec spec;         /* parameters, with their names in files */
    ml_lora_alias *alias; /* [n_alias] */
    int32_t n_alias;
    int32_t head,
        head_of; /* the head of a reward model, which is trained whole, and that of
                              the base; ML_NONE: none */
    ml_weights weights, grads; /* grads: of all users of a parameter, after join */
    const int32_t *stage;      /* [spec.n_param] pipeline stages; NULL: one */
    int32_t ep, at_ep;         /* expert parallel ranks, and this one's place; 0: one */
    ml_backend *be;
    ml_buf apart;       /* gradients of parameters with several users, of each alone */
    ml_lora_site *site; /* [n_site] as LORA reads them */
} ml_lora;

/* Reads a directory with both files.  An adapter that does not fit the model is rejected
 * with the name of the tensor.  base may be cut for a rank; the adapter then is, too. */
ml_status ml_lora_load(ml_lora *out, const ml_spec *base, const char *dir, ml_backend *be,
                       ml_err *err);

/* The same from tensors and the text of the configuration in memory. */
ml_status ml_lora_load_tensors(ml_lora *out, const ml_spec *base, ml_str config,
                               ml_st_file *tensors, ml_backend *be, ml_err *err);

/* How a new adapter is made; the names are those of Miles' flags. */
typedef struct ml_lora_opts {
    int32_t rank;
    double alpha, dropout;
    bool rslora;
    const char *target,
        *exclude;      /* module names separated by commas; all-linear: every linear
                                     layer but routers and gates; exclude may be NULL */
    bool fused;        /* q, k and v share an A, and so do gate and up (--lora-type lora) */
    bool shared_outer; /* experts share A of gate and up, and B of down */
    uint64_t seed;
} ml_lora_opts;

/* A new adapter: A uniform in +-1/sqrt(n_in), as PEFT initializes it; B zero.  The base's
 * checkpoint decides how layers that it stores in one matrix are named; NULL: apart. */
ml_status ml_lora_new(ml_lora *out, const ml_spec *base, const ml_checkpoint *c,
                      const ml_lora_opts *o, ml_backend *be, ml_err *err);
void ml_lora_close(ml_lora *l); /* zeros are allowed */

/* Keeps what a rank of a mesh has of it; ML_NONE: one that does not train, nothing.  base has
 * the LORA ops, and stage [n_node] is the pipeline stage of its nodes, NULL: one.  Before
 * gradients are allocated.  ML_EUNSUP: two stages share a matrix. */
ml_status ml_lora_divide(ml_lora *l, const ml_spec *base, const ml_mesh_sizes *mesh,
                         int32_t rank, const int32_t *stage, ml_err *err);
/* Which part of each parameter the ranks of a mesh have. */
void ml_lora_map(ml_shard_map *out, ml_arena *a, const ml_lora *l,
                 const ml_mesh_sizes *mesh);

/* The parameters that a rank of a cut model needs (spec_shard.h), in the order of l->spec;
 * cut: the rank's spec of the model.  In the arena; not closed. */
ml_spec ml_lora_cut_spec(ml_arena *a, const ml_lora *l, const ml_spec *cut);
/* Replaces whole matrices by these. */
ml_status ml_lora_cut(ml_lora *l, const ml_spec *cut, ml_err *err);
/* The sites with the matrices of another set of weights, whole or cut, and without
 * gradients; in the arena. */
const ml_lora_site *ml_lora_sites(const ml_lora *l, const ml_weights *w, ml_arena *a);

/* The head of a reward model becomes that of the base's weights: its own values, or those that
 * the base has. */
void ml_lora_take_head(ml_lora *l, ml_weights *w, bool own);

/* Adds scale B A to the weights of the base, rounded to their dtype. */
void ml_lora_merge(const ml_lora *l, const ml_spec *base, ml_weights *w);

/* Adapters that plans with LORA ops of a spec can run. */
typedef struct ml_lora_limits {
    const bool *wanted; /* [sites] those with a LORA op; NULL: all */
    int32_t max_rank;
} ml_lora_limits;

/* Rejects an adapter, read from dir, outside the limits, with the name of the tensor. */
ml_status ml_lora_check(const ml_lora *l, const ml_lora_limits *limits, const char *dir,
                        ml_err *err);

/* Marks the sites that module names separated by commas name; all-linear: all but routers
 * and gates.  flag: where the names come from, for the message. */
ml_status ml_lora_targets(const ml_spec *base, const char *names, const char *flag,
                          bool *wanted, ml_err *err);

/* Marks the sites that it adapts in `wanted` [n_site]. */
void ml_lora_mark(const ml_lora *l, bool *wanted);

/* Replaces the matrices by bf16 ones where LORA would round them all (ml_backend): half the
 * bytes for an engine, the same results.  The adapter is whole, not cut for a rank, and cannot be
 * trained or saved afterwards. */
ml_status ml_lora_round(ml_lora *l, ml_err *err);

/* Allocates gradients; sets them to zero; adds up those of parameters with several users,
 * once after all runs of a step, so that they do not depend on how a batch is divided. */
size_t ml_lora_grad_bytes(const ml_lora *l);
ml_status ml_lora_take_grads(ml_lora *l, ml_err *err);
void ml_lora_free_grads(ml_lora *l);
void ml_lora_zero_grads(ml_lora *l);
void ml_lora_join_grads(ml_lora *l);

/* The tensors of its file, in the order of the spec, without those that repeat others; in
 * the arena. */
const ml_named *ml_lora_named(const ml_lora *l, ml_arena *a, int32_t *n);

/* All tensors of its file, those that repeat others, too; in the arena. */
const ml_named *ml_lora_tensors(const ml_lora *l, ml_arena *a, int32_t *n);

/* Writes both files into an existing directory; PEFT reads them.  w: its weights, or a copy of
 * them. */
ml_status ml_lora_save(const ml_lora *l, const ml_weights *w, const char *dir, ml_err *err);

/* Takes the values of an adapter with the same layers and ranks from a directory; of one that
 * is divided, those of its part. */
ml_status ml_lora_restore(ml_lora *l, const ml_spec *base, const char *dir, ml_err *err);

#endif
