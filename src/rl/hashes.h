/* hashes.h - checksums of what a step is made of: two runs part where these do.
 *
 * thread: any. */
#ifndef ML_RL_HASHES_H
#define ML_RL_HASHES_H

#include "model/weights.h"
#include "rl/sample.h"

/* Parameters whose names have one of these parts. */
typedef struct ml_skip {
    const ml_spec *spec;
    const char *const *part; /* [n] */
    int32_t n;
} ml_skip;

/* Of a set's bytes as they lie in its device's memory, but those of `skip`, which may be
 * NULL. */
ml_status ml_hash_weights(uint64_t *out, const ml_weights *w, const ml_skip *skip,
                          ml_err *err);

/* Of tokens, log-probs, masks, versions and rewards. */
uint64_t ml_hash_samples(const ml_sample *const *s, int64_t n);

#endif
