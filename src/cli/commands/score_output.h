/* score_output.h - the file that miles score writes.
 *
 * thread: the command's. */
#ifndef ML_CLI_COMMANDS_SCORE_OUTPUT_H
#define ML_CLI_COMMANDS_SCORE_OUTPUT_H

#include "cli/commands/score_adapters.h"
#include "cli/commands/score_mtp.h"
#include "cli/commands/sequences.h"
#include "cli/config.h"
#include "model/tensors.h"

/* Zeros are no output; ranks other than the first have the list of names alone. */
typedef struct ml_score_output {
    const ml_config *config;
    const ml_spec *spec;
    const ml_sequences *seq;
    const ml_score_adapters *adapters; /* gradients are theirs, if there are any */
    const ml_score_mtp *mtp;           /* NULL: no multi-token prediction module */
    ml_st_writer *file;
    const ml_named *named; /* tensors with a gradient, by their names in the checkpoint */
    int32_t n_named;
    double nll; /* sum of -log-prob over all next tokens */
} ml_score_output;

/* Lists the tensors; `writes`: creates the file, too. */
ml_status ml_score_output_open(ml_score_output *out, const ml_config *c, const ml_spec *s,
                               const ml_sequences *seq, const ml_checkpoint *checkpoint,
                               const ml_score_adapters *x, const ml_score_mtp *mtp,
                               bool writes, ml_arena *a, ml_err *err);

/* The first of n rows of results; entropy and logits may be NULL if the flags do not ask for
 * them. */
typedef struct ml_score_rows {
    const float *logprob, *entropy, *logits;
} ml_score_rows;

/* Rows of positions [at, at+n) of sequence i. */
ml_status ml_score_output_rows(ml_score_output *o, int32_t i, int32_t at, int32_t n,
                               ml_score_rows x, ml_err *err);
/* The loss; then the gradients of tensor k, from a set in which its parameters are whole. */
ml_status ml_score_output_loss(ml_score_output *o, ml_err *err);
ml_status ml_score_output_grad(ml_score_output *o, int32_t k, const ml_weights *grads,
                               ml_err *err);

/* The module's logits of sequence i; its loss and gradients, after those of the model. */
ml_status ml_score_output_mtp_rows(ml_score_output *o, int32_t i, const float *logits,
                                   ml_err *err);
ml_status ml_score_output_mtp(ml_score_output *o, ml_err *err);

/* The gradients of all adapters, which are joined here. */
ml_status ml_score_output_adapters(ml_score_output *o, ml_err *err);

ml_status ml_score_output_commit(ml_score_output *o, ml_err *err);
void ml_score_output_abort(ml_score_output *o); /* after a commit it does nothing */

#endif
