/* mtp_context.h - a multi-token prediction module whose ranks have pieces of the same samples
 * (context.h).
 *
 * The module's rows are the trunk's: row p reads the hidden state of p, which the rank has,
 * and token p + 1.  The last row of a sample is computed, too, and is not in the loss, so that
 * the pieces are those of the trunk and no hidden state is exchanged.
 *
 * thread: the backend's stream. */
#ifndef ML_TRAIN_MTP_CONTEXT_H
#define ML_TRAIN_MTP_CONTEXT_H

#include "train/mtp_runner.h"

typedef struct ml_mtp_context {
    ml_spec spec; /* of plans (model/spec_context.h) */
    ml_context_opts opts;
    ml_comm *group;
    ml_ranks ranks;
} ml_mtp_context;

/* The module's spec must outlive it. */
ml_status ml_mtp_context_open(ml_mtp_context *out, const ml_spec *module,
                              const ml_context_opts *opts, ml_comm *group, ml_backend *be,
                              ml_err *err);
void ml_mtp_context_close(ml_mtp_context *x); /* zero-initialized is allowed */

/* ml_mtp_runner_run with pieces of samples; every rank gets the sums of whole ones.
 * Collective. */
ml_status ml_mtp_context_run(ml_mtp_runner *r, ml_trunk_rows trunk,
                             const ml_train_sample *s, const ml_bin *bin, float by,
                             double *sum, ml_err *err);

#endif
