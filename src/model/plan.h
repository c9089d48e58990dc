/* plan.h - a spec compiled to a static graph of op calls with planned memory.
 *
 * A plan is built once for the largest batch and run for any batch within that capacity.
 * It is a flat array of op calls, forward and optionally backward, whose buffers are laid
 * out by lifetime before the first op runs.  Running does not allocate and cannot fail
 * for shapes, dtypes or memory.  The same plan, batch type and ops serve prefill, decode,
 * scoring and training.
 *
 * thread: the step's owner; a plan runs on its backend's stream. */
#ifndef ML_MODEL_PLAN_H
#define ML_MODEL_PLAN_H

#include "backend/backend.h"
#include "base/timeline.h"
#include "comm/mesh.h"
#include "model/batch.h"
#include "model/kv.h"
#include "model/spec.h"
#include "model/weights.h"

typedef struct ml_plan ml_plan;
typedef struct ml_plan_dump ml_plan_dump; /* plan_dump.h */

/* Activation recomputation (checkpointing): backward recomputes activations instead of
 * saving them, with the same bits, less memory and more time.  Modules are parts of a
 * layer, bits of ml_module. */
typedef enum ml_granularity {
    ML_RECOMPUTE_NONE,
    ML_RECOMPUTE_SELECTIVE, /* the selected modules of every layer */
    ML_RECOMPUTE_FULL,      /* whole layers; only their inputs are saved */
} ml_granularity;

typedef enum ml_module {
    ML_MODULE_CORE_ATTN = 1,
    ML_MODULE_LAYERNORM = 2,
    ML_MODULE_MLP = 4,
    ML_MODULE_MOE = 8,
    ML_MODULE_MOE_ACT = 16
} ml_module;

typedef struct ml_recompute {
    ml_granularity granularity;
    bool block;       /* full: recompute the first n_layer layers one by one, no others */
    int32_t n_layer;  /* full, not block: layers between two saved inputs; 0: 1 */
    unsigned modules; /* selective: bits of ml_module */
} ml_recompute;

enum {
    ML_GATHERS = 2
}; /* groups of ranks that divide weights: dense ones, those of experts */

/* Activations, scratch memory and gathered weights that several plans have in turns: nothing in
 * it is needed from the run of one (a forward and its backward) to that of another.  Freed after
 * them. */
typedef struct ml_plan_memory {
    ml_buf act, scratch; /* the most that one of them needs */
    ml_buf weights,
        stage[ML_GATHERS]; /* of weights that ranks divide, and their exchanges */
} ml_plan_memory;

void ml_plan_memory_free(ml_plan_memory *m); /* zeros are allowed */

typedef struct ml_plan_opts {
    ml_batch_caps caps;
    bool backward;
    bool frozen;      /* the gradients are those of adapters alone (LORA) */
    bool logits;      /* keep the logits of all loss rows */
    bool only_logits; /* and compute no log-probs from them (ml_plan_read) */
    bool hidden;      /* keep the rows that the LM head reads (ml_plan_hidden) */
    int32_t keep[ML_MODULE_LAYERS]; /* [n_keep] further values to keep (ml_plan_kept) */
    int32_t n_keep;
    int32_t loss_rows;          /* rows per chunk of logits; 0: the backend decides */
    ml_grad_format grad_format; /* of linear layers, with backward */
    /* KV pages are passed to each run (decode, chunked prefill), not owned by the plan */
    bool kv_shared;
    ml_recompute recompute;   /* with backward only */
    bool given[ML_N_ROUTING]; /* runs may pass recorded selections (routing replay) */
    int32_t record_rows; /* most rows of a captured run; 0: default limit; -1: no capture */
    /* The ranks that ops exchange data with; NULL: none.  TP: of a spec for several ranks,
     * moves its cut values.  EXPERT: each of its ranks computes some of the experts, for
     * the rows of all, and all run together. */
    ml_comm *group[ML_MESH_GROUPS];
    /* Data-parallel attention: the ranks of this rank's DP group, and those with its place in
     * each group, in the order of the groups; NULL: none. */
    ml_comm *dp_cols, *dp_rows;
    /* EXPERT: rows that this rank's experts compute at a time; more than that take several
     * rounds.  0: twice as many as caps.n_token tokens have. */
    int32_t expert_rows;
    int32_t first, end; /* the nodes of a pipeline stage (stage.h); end 0: all */
    /* Runs of which the activations that backward needs are kept at once, each in a set;
     * all others are in memory that the sets share.  0: 1 */
    int32_t n_set;
    /* Weights that ranks divide: runs get this rank's part (map), gather those of a layer
     * from the ranks of group GATHER before its ops, and add the ranks' gradients of it to
     * the parts.  These ranks run together: each forward and backward of one has its
     * counterparts, those of a rank without work have no rows.  NULL: weights are whole. */
    const ml_shard_map *map;
    int32_t rank;           /* of the mesh */
    ml_plan_memory *memory; /* that the plan uses; NULL: it has its own */
    const ml_dtype *stored; /* [n_param] dtypes of the weights */
} ml_plan_opts;

/* Plans the memory but allocates only bookkeeping; afterwards the sizes are known. */
ml_status ml_plan_new(ml_plan **out, const ml_spec *s, ml_backend *be, ml_plan_opts opts,
                      ml_err *err);
void ml_plan_free(ml_plan *p);

size_t ml_plan_act_bytes(const ml_plan *p);     /* activations, saved ones and gradients */
size_t ml_plan_set_bytes(const ml_plan *p);     /* those that each set has for itself */
size_t ml_plan_scratch_bytes(const ml_plan *p); /* maximum over all ops */
size_t ml_plan_gather_bytes(const ml_plan *p);  /* gathered weights, their gradients */

/* Allocates the memory.  After this, running cannot fail. */
ml_status ml_plan_alloc(ml_plan *p, ml_err *err);

/* Inputs of a run other than the batch. */
typedef struct ml_run {
    const ml_weights *weights;
    const ml_weights *grads;    /* backward only; the same parts; NULL: opts.frozen */
    const ml_tensor *head_grad; /* frozen: the gradient of the last node's weight, which is
                                   trained with the adapter; NULL: it is frozen, too */
    /* Where the embedding's gradient is accumulated; NULL: with its table's.  A tied
     * table has two gradients; kept separate, the sum of each over several runs does not
     * depend on how the batch is divided into runs. */
    const ml_tensor *embed_grad;
    /* The same for nodes that use the parameters of earlier ones, [n_param]; NULL: none. */
    const ml_tensor *again_grads;
    /* [n_param] Gradients of `grads` that have no values yet: backward writes them, or zeroes them
     * before it adds, and clears the flag.  NULL: all have values, to which it adds. */
    bool *unwritten;
    const ml_kv *kv; /* kv_shared only */
    const ml_rows *rows;
    int32_t set; /* the set of activations, below opts.n_set */
    /* Selections (routing record), [layers][n_token][top_k] in host memory.  chosen:
     * forward writes its selections there.  given: forward and recomputation use these
     * instead of selecting (a row that begins with -1 selects).  NULL: not recorded, none
     * given. */
    int32_t *chosen[ML_N_ROUTING];
    const int32_t *given[ML_N_ROUTING]; /* requires opts.given */
    int32_t expert_rows; /* of a forward: rows of a round, fewer than opts'; 0: opts' */
} ml_run;

/* The calls of a forward and, if the plan has one, a backward of the largest batch, in
 * order: shapes only, the plan need not be allocated.  Gradients and inputs that a call
 * does not have are zeroed tensors. */
typedef enum ml_plan_pass { ML_PASS_FORWARD, ML_PASS_AGAIN, ML_PASS_BACKWARD } ml_plan_pass;
typedef void ml_plan_call_fn(void *ud, const ml_node *n, ml_plan_pass pass,
                             const ml_op_args *a);
void ml_plan_each_call(const ml_plan *p, ml_plan_call_fn *fn, void *ud);

/* From now on all values that runs compute are also dumped to d; NULL: stop. */
void ml_plan_dump_to(ml_plan *p, ml_plan_dump *d);

/* From now on op times, by the device's clock, are reported to the timeline; NULL: stop. */
void ml_plan_spans_to(ml_plan *p, ml_timeline *to, ml_track track);

void ml_plan_forward(ml_plan *p, const ml_run *r);

/* Adds to the gradients, or writes those that are unwritten: d loss / d weight, given
 * d loss / d log-prob and d loss / d entropy of each loss row ([n_loss]; dentropy may be NULL: zero).  Requires a forward of
 * the same run. */
void ml_plan_backward(ml_plan *p, const ml_run *r, const float *dlogprob,
                      const float *dentropy);

/* What crosses the borders of a stage. */
typedef enum ml_port_kind {
    ML_PORT_IN,   /* values that the stage before has computed: written before forward */
    ML_PORT_OUT,  /* values for the stage after: read between forward and backward */
    ML_PORT_DOUT, /* their gradients: written before backward */
    ML_PORT_DIN,  /* gradients of the values that came in: read until the set's next
                     backward */
} ml_port_kind;

/* Device memory of a set's port, for these rows, in the same order on both sides of a
 * border.  Returns the number of tensors; t [ML_PORTS]. */
enum { ML_PORTS = 16 };
int32_t ml_plan_port(const ml_plan *p, ml_port_kind kind, const ml_rows *rows, int32_t set,
                     ml_tensor *t);

/* Results of the last forward, [n_loss] and [n_loss, vocab]; any may be NULL.  A critic
 * has values only, for all rows, [n_token]: values and their derivatives take the place
 * of the log-probs. */
void ml_plan_read(ml_plan *p, const ml_rows *rows, float *logprob, float *entropy,
                  float *logits);
bool ml_plan_has_head(const ml_plan *p); /* all but the last stage have no results */

/* ML_OK, or the first error of the communicator in a run; results since then are
 * undefined. */
ml_status ml_plan_check(const ml_plan *p, ml_err *err);

/* Device memory of the last forward's logits, [n_loss, vocab]; requires opts.logits. */
const float *ml_plan_logits(const ml_plan *p);

/* Device memory of the last forward's rows before the LM head, [n_token, hidden], after the
 * final norm; requires opts.hidden. */
ml_tensor ml_plan_hidden(const ml_plan *p, const ml_rows *rows);

/* Device memory of the last forward's rows of a value of opts.keep. */
ml_tensor ml_plan_kept(const ml_plan *p, const ml_rows *rows, int32_t value);

/* Totals of each op since the plan was created. */
typedef struct ml_plan_stats {
    int64_t rows[ML_OP_COUNT]; /* output rows of its forward */
    double forward_s[ML_OP_COUNT], backward_s[ML_OP_COUNT];
} ml_plan_stats;

const ml_plan_stats *ml_plan_stats_of(const ml_plan *p);

#endif
