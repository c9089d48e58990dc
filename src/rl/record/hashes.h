/* hashes.h - checksums of the inputs and outputs of a train step, to find the step in which
 * two runs diverge.
 *
 * thread: any. */
#ifndef ML_RL_RECORD_HASHES_H
#define ML_RL_RECORD_HASHES_H

#include "model/weights.h"
#include "rl/sample.h"

/* Excludes parameters whose names contain one of these substrings. */
typedef struct ml_skip {
    const ml_spec *spec;
    const char *const *part; /* [n] */
    int32_t n;
} ml_skip;

/* Hashes the bytes of the weights in their device layout, except for the parameters in
 * `skip`, which may be NULL. */
ml_status ml_hash_weights(uint64_t *out, const ml_weights *w, const ml_skip *skip,
                          ml_err *err);

/* Hashes tokens, log-probs, masks, versions and rewards. */
uint64_t ml_hash_samples(const ml_sample *const *s, int64_t n);

#endif
