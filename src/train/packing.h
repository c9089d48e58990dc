/* packing.h - assigns samples to micro-batches and micro-batches to ranks.
 *
 * The rules are exactly Miles', ties included, so that a run is packed the same way:
 * first-fit-decreasing bin packing, bins split until every rank has equally many,
 * assigned round-robin or balanced by Karmarkar-Karp differencing.  Results are allocated
 * in the given arena.
 *
 * thread: any; no state. */
#ifndef ML_TRAIN_PACKING_H
#define ML_TRAIN_PACKING_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

typedef struct ml_bin {
    int32_t *item; /* [n] sample numbers */
    int32_t n;
} ml_bin;

typedef struct ml_bins {
    ml_bin *bin;
    int32_t n;
} ml_bins;

/* First fit: in the given order, each sample goes into the first bin with enough space; a
 * sample longer than a bin gets its own. */
ml_bins ml_pack_first_fit(ml_arena *a, const int64_t *len, int32_t n, int64_t cap);
/* First-fit-decreasing: the same, longest first. */
ml_bins ml_pack_first_fit_decreasing(ml_arena *a, const int64_t *len, int32_t n,
                                     int64_t cap);
/* Splits the heaviest bins in half until there are `target`, or no bin can be split. */
void ml_pack_expand(ml_bins *bins, ml_arena *a, const int64_t *len, int32_t target);

/* [n_rank] bins for each rank: in order, each bin goes to the rank with the fewest tokens
 * so far. */
ml_bins *ml_pack_deal(ml_arena *a, const ml_bins *bins, const int64_t *len, int32_t n_rank);

/* Karmarkar-Karp: k sets of about equal weight; equal_size: also of equal count.  False
 * if n is too small for k sets, or not a multiple of k when sizes must be equal. */
bool ml_pack_balance(ml_bins *out, ml_arena *a, const double *weight, int32_t n, int32_t k,
                     bool equal_size);
/* Greedy variant, in the given order: each sample goes to the lightest set so far. */
bool ml_pack_greedy(ml_bins *out, ml_arena *a, const double *weight, int32_t n, int32_t k,
                    bool equal_size);

/* The micro-batches of one or several optimizer steps, on all ranks. */
typedef struct ml_schedule_opts {
    int64_t global_batch_size; /* rollouts per step */
    bool one_step;             /* all rollouts in one step, instead */
    bool dynamic;              /* micro-batches limited by tokens; false: by count */
    int64_t max_tokens;        /* of a micro-batch, per rank */
    int64_t micro_batch_size;  /* samples per micro-batch, if not dynamic */
    bool balance;              /* balance the ranks by tokens */
    bool by_flops;             /* balance by FLOPs; the trainer then fills in the cost */
    bool allow_partial;        /* remaining rollouts form a last, smaller step */
    int32_t n_rank, n_context; /* 0: 1; n_context ranks share a sequence, which
                                  multiplies max_tokens */
    int32_t align;             /* the number of micro-batches of a rank is a multiple of
                                  it; 0: 1 */
    const double *cost;        /* [n] balance by cost; NULL: by tokens */
    const uint8_t *idle;       /* [n] 1: has no gradient, and shares no micro-batch with
                                  samples that have one; NULL: none is idle */
    /* Samples that share tokens (prefix.h): moves those of a step with common tokens together, and
     * tells how many the second of two has in common with the first.  Dynamic micro-batches then
     * have samples in this order.  NULL: they share none. */
    void (*group)(const void *ud, int32_t *sample, int32_t n);
    int64_t (*common)(const void *ud, int32_t first, int32_t second);
    const void *ud;
} ml_schedule_opts;

typedef struct ml_schedule_step {
    ml_bins *rank; /* [n_rank] its micro-batches, in order */
    int64_t n_rollout;
} ml_schedule_step;

typedef struct ml_schedule {
    ml_schedule_step *step;
    int32_t n_step, n_rank;
} ml_schedule;

/* Samples of one rollout (equal numbers in `rollout`) stay in one step.  ML_EUSAGE if the
 * samples cannot be scheduled with these options. */
ml_status ml_schedule_build(ml_schedule *out, ml_arena *a, const int64_t *len /* [n] */,
                            const int64_t *rollout /* [n] */, int32_t n,
                            const ml_schedule_opts *opts, ml_err *err);

#endif
