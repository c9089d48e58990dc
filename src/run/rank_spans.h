/* rank_spans.h - the time spans of all ranks, in the trace that rank 0 writes (--profile).
 *
 * Other ranks send their spans to rank 0 at the end of a rollout, in rank 0's time: the
 * difference of their clocks is measured at the start, by messages there and back, of which
 * the fastest counts (Cristian's algorithm).
 *
 * thread: the loop's. */
#ifndef ML_RUN_RANK_SPANS_H
#define ML_RUN_RANK_SPANS_H

#include "comm/comm.h"
#include "rl/loop/iteration.h"

/* What to add to ml_clock_s of this rank for that of rank 0.  Collective; world NULL: 0. */
ml_status ml_rank_clock_offset(double *out, ml_comm *world, ml_err *err);

/* Sends the spans since the last call, and the stages of the iteration, or receives and logs
 * those of the other ranks.  Collective; world NULL: nothing. */
ml_status ml_rank_spans_meet(ml_comm *world, ml_timeline *mine, double offset_s,
                             const ml_iteration *it, ml_run_log *log, ml_err *err);

#endif
