/* checks.h - what a run is held against while it happens.
 *
 * For finding where two runs part, and for tests of whole runs: hashes of every step, figures
 * and hashes of an earlier run, and what must be so on the first step with fresh samples.
 *
 * thread: the loop's. */
#ifndef ML_RL_INVARIANTS_H
#define ML_RL_INVARIANTS_H

#include "base/map.h"
#include "rl/round.h"

/* Zeros: nothing is checked.  Files have a row of JSON per step. */
typedef struct ml_invariants_opts {
    bool determinism;   /* hashes of samples, gradients and weights to determinism.jsonl */
    bool fresh_steps;   /* the first step of a round has ppo_kl and pg_clipfrac 0, */
    bool skip_kl;       /* unless this is set; */
    bool skip_logprob;  /* no token differs between rollout and training, unless this is */
    const char *metric; /* must reach the threshold in some row of the run; NULL: none */
    double threshold;
    const char *save_grad_norm, *load_grad_norm; /* bits must be those of that run */
    const char *save_hash, *check_hash;          /* of weights */
} ml_invariants_opts;

typedef struct ml_invariants {
    ml_invariants_opts opts;
    const ml_weights *weights; /* those that are trained */
    const ml_trainer *trainer;
    ml_arena arena;
    struct ml_reference *grad_norm, *hash; /* of an earlier run; NULL: none */
    FILE *grad_norm_out, *hash_out;
    ml_arena round; /* the steps of this round: */
    struct ml_step_hash *first, **last;
    double best;  /* of the metric */
    ml_status st; /* what went wrong in a step */
    ml_err err;
} ml_invariants;

/* Reads what it compares with.  Trainer and weights are set when the run has started. */
ml_status ml_invariants_open(ml_invariants *c, const ml_invariants_opts *opts, ml_err *err);
void ml_invariants_close(ml_invariants *c); /* zeros are fine */

/* After each optimizer step, while its gradients are still there; `checks` is an ml_invariants. */
void ml_invariants_step(void *checks);
/* After a round was learnt from; its first step has the number `step`. */
ml_status ml_invariants_round(ml_invariants *c, const ml_round *r, int64_t step,
                              ml_run_log *log, ml_err *err);
/* An evaluation's figures. */
void ml_invariants_figures(ml_invariants *c, const ml_metrics *figures);
/* At the end of a run. */
ml_status ml_invariants_end(const ml_invariants *c, ml_err *err);

#endif
