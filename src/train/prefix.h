/* prefix.h - samples of a micro-batch that begin with the same tokens share the rows of these.
 *
 * A shared prefix is whole KV pages of the prompt, up to the row that predicts the first response token, which
 * each sample has for itself: so every row has at most one token to score.  The samples that share one follow
 * each other in their bin.
 *
 * thread: any; no state. */
#ifndef ML_TRAIN_PREFIX_H
#define ML_TRAIN_PREFIX_H

#include "base/err.h"
#include "model/spec.h"
#include "train/micro.h"

/* Whether rows of the model can have shared prefixes; an error names what cannot. */
ml_status ml_prefix_supports(const ml_spec *s, ml_err *err);

/* Moves samples with equal prefixes together, each behind the first of its kind. */
void ml_prefix_group(const ml_train_sample *s, ml_bins *bins);

/* The tokens that item i of a bin shares with the items after it, and how many of them, itself included,
 * share them: 0 and 1 where none does. */
typedef struct ml_prefix_run {
    int32_t n_token, n_sample;
} ml_prefix_run;

ml_prefix_run ml_prefix_run_at(const ml_train_sample *s, const ml_bin *bin, int32_t i);

#endif
