/* batch_bytes.h - the samples of a rollout batch as bytes, for other ranks of the job.
 *
 * The encoding has what training reads: tokens, masks, log-probs, weight versions, routing
 * records, rewards and numbers.  Texts, reward parts and metrics stay with rank 0, which
 * records them.  All ranks run the same program on machines of one byte order.
 *
 * thread: any; no state. */
#ifndef ML_RL_ROLLOUT_BATCH_BYTES_H
#define ML_RL_ROLLOUT_BATCH_BYTES_H

#include "rl/rollout/rollout.h"

/* Appends the bytes. */
void ml_rollout_batch_write(ml_text *out, const ml_rollout_batch *h);
/* Samples are allocated in the arena.  ML_EFORMAT: truncated or inconsistent. */
ml_status ml_rollout_batch_read(ml_rollout_batch *out, ml_arena *a, ml_str bytes,
                                ml_err *err);

#endif
