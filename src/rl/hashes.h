/* hashes.h - checksums of what a step is made of: two runs part where these do.
 *
 * thread: any. */
#ifndef ML_RL_HASHES_H
#define ML_RL_HASHES_H

#include "model/weights.h"
#include "rl/sample.h"

/* Of a set's bytes as they lie in its device's memory. */
ml_status ml_hash_weights(uint64_t *out, const ml_weights *w, ml_err *err);

/* Of tokens, log-probs, masks, versions and rewards. */
uint64_t ml_hash_samples(const ml_sample *const *s, int64_t n);

#endif
