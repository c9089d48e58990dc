/* invariants.h - checks of a run while it is running.
 *
 * For finding where two runs diverge, and for tests of whole runs: hashes of every train
 * step, comparison with metrics and hashes of an earlier run, and the invariants of the
 * first train step on fresh samples.
 *
 * thread: the loop's. */
#ifndef ML_RL_LOOP_INVARIANTS_H
#define ML_RL_LOOP_INVARIANTS_H

#include "base/map.h"
#include "rl/loop/iteration.h"

/* Zeros: nothing is checked.  Files have a line of JSON per train step. */
typedef struct ml_invariants_opts {
    bool determinism;   /* write hashes of samples, gradients, weights: determinism.jsonl */
    bool fresh_steps;   /* check that a rollout's first train step is on-policy: */
    bool skip_kl;       /* ... but not that its ppo_kl and pg_clipfrac are 0 */
    bool skip_logprob;  /* ... but not that current weights generated all tokens */
    const char *metric; /* must reach the threshold once in the run; NULL: none */
    double threshold;
    const char *save_grad_norm, *load_grad_norm; /* files; loaded ones must match exactly */
    const char *save_hash, *check_hash;          /* the same for hashes of the weights */
} ml_invariants_opts;

typedef struct ml_invariants {
    ml_invariants_opts opts;
    const ml_weights *weights; /* the trained weights */
    const ml_trainer *trainer;
    ml_arena arena;
    struct ml_reference *grad_norm, *hash; /* of an earlier run; NULL: none */
    FILE *grad_norm_out, *hash_out;
    ml_arena round; /* holds the list of this rollout's train steps: */
    struct ml_step_hash *first, **last;
    double best;  /* highest value of the metric */
    ml_status st; /* error of ml_invariants_step */
    ml_err err;
} ml_invariants;

/* Reads the files to compare with.  The caller sets trainer and weights when the run has
 * started. */
ml_status ml_invariants_open(ml_invariants *c, const ml_invariants_opts *opts, ml_err *err);
void ml_invariants_close(ml_invariants *c); /* zeros are allowed */

/* Called after each train step, while its gradients are still valid; `checks` is an
 * ml_invariants. */
void ml_invariants_step(void *checks);
/* Called after training on a rollout; its first train step has the number `step`. */
ml_status ml_invariants_round(ml_invariants *c, const ml_iteration *r, int64_t step,
                              ml_run_log *log, ml_err *err);
/* Adds metrics, such as those of an evaluation, to the check of the metric. */
void ml_invariants_metrics(ml_invariants *c, const ml_metrics *metrics);
/* Called at the end of a run: checks that the metric has reached the threshold. */
ml_status ml_invariants_end(const ml_invariants *c, ml_err *err);

#endif
