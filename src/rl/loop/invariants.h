/* invariants.h - checks of a run while it is running.
 *
 * For finding where two runs diverge, and for tests of whole runs: hashes of every train
 * step, comparison with metrics and hashes of an earlier run, the invariants of the first
 * train step on fresh samples, and comparison of published with trained weights.
 *
 * thread: the loop's. */
#ifndef ML_RL_LOOP_INVARIANTS_H
#define ML_RL_LOOP_INVARIANTS_H

#include <stdio.h>

#include "rl/record/hashes.h"
#include "rl/observer.h"
#include "rl/record/run_log.h"
#include "train/trainer.h"

/* Zeros after the log: nothing is checked.  Files have a line of JSON per train step. */
typedef struct ml_invariants_opts {
    const ml_weights *weights; /* the trained weights */
    ml_trainer *trainer;
    ml_run_log *log;    /* for determinism.jsonl */
    bool determinism;   /* write hashes of samples, gradients, weights: determinism.jsonl */
    bool fresh_steps;   /* check that a rollout's first train step is on-policy: */
    bool skip_kl;       /* ... but not that its ppo_kl and pg_clipfrac are 0 */
    bool skip_logprob;  /* ... but not that current weights generated all tokens */
    const char *metric; /* must reach the threshold once in the run; NULL: none */
    double threshold;
    const char *save_grad_norm, *load_grad_norm; /* files; loaded ones must match exactly */
    const char *save_hash, *check_hash;          /* the same for hashes of the weights */
    int64_t n_masters; /* in the first n rollouts of this process, weights must be their
                          master weights, rounded */
    bool check_sync;   /* published weights must equal the trained ones bit for bit, but: */
    ml_skip sync_skip; /* parameters that are left out */
    void (*say_sync)(const char *line); /* prints hashes of published weights; or NULL */
} ml_invariants_opts;

typedef struct ml_invariants {
    ml_invariants_opts opts;
    ml_arena arena;
    struct ml_reference *grad_norm, *hash; /* of an earlier run; NULL: none */
    FILE *grad_norm_out, *hash_out;
    double best;       /* highest value of the metric */
    int64_t n_learned; /* rollouts that this process has trained on */
} ml_invariants;

/* Reads the files to compare with. */
ml_status ml_invariants_open(ml_invariants *c, const ml_invariants_opts *opts, ml_err *err);
void ml_invariants_close(ml_invariants *c); /* zeros are allowed */

/* An observer, see observer.h. */
ml_status ml_invariants_on(void *invariants, const ml_loop_event *e, ml_err *err);

#endif
