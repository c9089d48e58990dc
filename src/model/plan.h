/* plan.h - a spec turned into calls with planned memory.
 *
 * Built once for the largest batch it shall carry, then run for any batch within: a
 * flat array of op calls, forward and, if wanted, backward, whose buffers were laid out
 * by lifetime before the first op ran.  Running allocates nothing and cannot fail for
 * shapes, dtypes or memory.  The same plan, batch type and ops serve prefill, decode,
 * scoring and training.
 *
 * thread: the step's owner; a plan runs on its backend's stream. */
#ifndef ML_MODEL_PLAN_H
#define ML_MODEL_PLAN_H

#include "backend/backend.h"
#include "base/timeline.h"
#include "model/batch.h"
#include "model/kv.h"
#include "model/spec.h"
#include "model/weights.h"

typedef struct ml_plan ml_plan;
typedef struct ml_plan_dump ml_plan_dump; /* plan_dump.h */

/* Activations that backward computes again instead of keeping them: the same bits, less
 * memory, more time.  Modules are parts of a layer, bits of ml_module. */
typedef enum ml_granularity {
    ML_RECOMPUTE_NONE,
    ML_RECOMPUTE_SELECTIVE, /* the modules of every layer */
    ML_RECOMPUTE_FULL,      /* whole layers; only their inputs are kept */
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
    bool block;       /* full: the first n_layer layers one by one, the rest not at all */
    int32_t n_layer;  /* full, not block: layers between two inputs that are kept; 0: 1 */
    unsigned modules; /* selective */
} ml_recompute;

typedef struct ml_plan_opts {
    ml_batch_caps caps;
    bool backward;
    bool logits;       /* keep the logits of all loss rows */
    int32_t loss_rows; /* whose logits are computed at a time; 0: as the backend likes */
    bool
        kv_shared; /* pages come with each run (decode, chunked prefill), not from the plan */
    ml_recompute recompute;   /* with backward only */
    bool given[ML_N_ROUTING]; /* runs may bring choices */
    int32_t record_rows; /* runs of more are not recorded; 0: as many as pay; -1: none */
} ml_plan_opts;

/* Lays everything out and allocates nothing but bookkeeping: sizes are known from here. */
ml_status ml_plan_new(ml_plan **out, const ml_spec *s, ml_backend *be, ml_plan_opts opts,
                      ml_err *err);
void ml_plan_free(ml_plan *p);

size_t ml_plan_act_bytes(const ml_plan *p);     /* activations, saved ones and gradients */
size_t ml_plan_scratch_bytes(const ml_plan *p); /* the largest any op asks for */

/* Takes the memory.  After this, running cannot fail. */
ml_status ml_plan_alloc(ml_plan *p, ml_err *err);

/* What a run reads besides the batch. */
typedef struct ml_run {
    const ml_weights *weights;
    const ml_weights *grads; /* backward only */
    /* Where the embedding adds its gradient; NULL: to its table's.  A tied table has two
     * gradients, and a sum of each over several runs does not depend on how runs are cut. */
    const ml_tensor *embed_grad;
    const ml_kv *kv; /* kv_shared only */
    const ml_rows *rows;
    /* Choices, [layers][n_token][top_k] in the host's memory: where forward writes those that
     * were made, and those that it and what backward computes again take instead of
     * choosing (a row that begins with -1 chooses).  NULL: not wanted, and none. */
    int32_t *chosen[ML_N_ROUTING];
    const int32_t *given[ML_N_ROUTING]; /* opts.given only */
} ml_run;

/* From now on all that runs compute is written there, too; NULL: not any more. */
void ml_plan_dump_to(ml_plan *p, ml_plan_dump *d);

/* From now on it is told when ops ran, by the device's clock; NULL: not any more. */
void ml_plan_spans_to(ml_plan *p, ml_timeline *to, ml_track track);

void ml_plan_forward(ml_plan *p, const ml_run *r);

/* Adds to the gradients: d loss / d weight, given d loss / d log-prob and d loss / d entropy
 * of each loss row ([n_loss]; dentropy may be NULL: zero).  After a forward of the same run. */
void ml_plan_backward(ml_plan *p, const ml_run *r, const float *dlogprob,
                      const float *dentropy);

/* Results of the last forward, [n_loss] and [n_loss, vocab]; any may be NULL.
 * A critic has values only, of all rows, [n_token]: they and their derivatives
 * stand for the log-probs. */
void ml_plan_read(ml_plan *p, const ml_rows *rows, float *logprob, float *entropy,
                  float *logits);

/* Where the device keeps the logits of the last forward, [n_loss, vocab]; opts.logits only. */
const float *ml_plan_logits(const ml_plan *p);

/* What each op did since the plan was made. */
typedef struct ml_plan_stats {
    int64_t rows[ML_OP_COUNT]; /* output rows of its forward */
    double forward_s[ML_OP_COUNT], backward_s[ML_OP_COUNT];
} ml_plan_stats;

const ml_plan_stats *ml_plan_stats_of(const ml_plan *p);

#endif
