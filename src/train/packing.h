/* packing.h - which samples share a micro-batch, and which rank gets it.
 *
 * The rules are Miles', to the tie, so that a run packs as its users know it: bins by
 * first fit of descending lengths, split until every rank has as many, dealt out in turn
 * or balanced by Karmarkar and Karp's differencing.  Results live in the arena given.
 *
 * thread: any; nothing is kept. */
#ifndef ML_TRAIN_PACKING_H
#define ML_TRAIN_PACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

typedef struct ml_bin {
    int32_t *item; /* [n] numbers of samples */
    int32_t n;
} ml_bin;

typedef struct ml_bins {
    ml_bin *bin;
    int32_t n;
} ml_bins;

/* In the order given, each into the first bin it fits; one that is longer than a bin goes
 * alone. */
ml_bins ml_pack_first_fit(ml_arena *a, const int64_t *len, int32_t n, int64_t cap);
/* The same, longest first. */
ml_bins ml_pack_first_fit_decreasing(ml_arena *a, const int64_t *len, int32_t n,
                                     int64_t cap);
/* Halves the heaviest bins until there are `target`, or nothing can be halved. */
void ml_pack_expand(ml_bins *bins, ml_arena *a, const int64_t *len, int32_t target);

/* k sets of about equal weight; equal_size: of equal count too.  False when n is too small
 * for k sets, or no multiple of k where sizes must be equal. */
bool ml_pack_balance(ml_bins *out, ml_arena *a, const double *weight, int32_t n, int32_t k,
                     bool equal_size);
/* The same in the order given: each to the lightest set so far. */
bool ml_pack_greedy(ml_bins *out, ml_arena *a, const double *weight, int32_t n, int32_t k,
                    bool equal_size);

/* The micro-batches of one or several optimizer steps, on all ranks. */
typedef struct ml_schedule_opts {
    int64_t global_batch_size; /* rollouts of a step */
    bool one_step;             /* all of them, instead */
    bool dynamic;              /* micro-batches by tokens, else by count */
    int64_t max_tokens;        /* of a micro-batch, on one rank */
    int64_t micro_batch_size;  /* samples, when not dynamic */
    bool balance;              /* by tokens, over ranks */
    bool by_flops;             /* for the trainer, which then fills in the cost */
    bool allow_partial;        /* rollouts left over make a last, smaller step */
    int32_t n_rank, n_context; /* 0: 1; ranks that share a sequence multiply max_tokens */
    int32_t align;             /* micro-batches of a rank are a multiple of it; 0: 1 */
    const double *cost;        /* [n] balance by it instead of by tokens; NULL: tokens */
    const uint8_t *idle; /* [n] 1: has no gradient, and shares no micro-batch with samples
                            that have one; NULL: none is.  On one rank only */
} ml_schedule_opts;

typedef struct ml_schedule_step {
    ml_bins *rank; /* [n_rank] its micro-batches, in order */
    int64_t n_rollout;
} ml_schedule_step;

typedef struct ml_schedule {
    ml_schedule_step *step;
    int32_t n_step, n_rank;
} ml_schedule;

/* Samples of one rollout (equal numbers in `rollout`) stay in one step.  ML_EUSAGE when the
 * samples cannot be laid out as asked. */
ml_status ml_schedule_build(ml_schedule *out, ml_arena *a, const int64_t *len /* [n] */,
                            const int64_t *rollout /* [n] */, int32_t n,
                            const ml_schedule_opts *opts, ml_err *err);

#endif
