/* score_mtp.h - the multi-token prediction module in miles score.
 *
 * With prompt_len [n] and loss_mask.N of the input, the rows of the loss are those of a
 * training sample with this prompt and mask; without them, all tokens after the first are
 * the response.
 *
 * thread: the command's. */
#ifndef ML_CLI_COMMANDS_SCORE_MTP_H
#define ML_CLI_COMMANDS_SCORE_MTP_H

#include "cli/commands/sequences.h"
#include "model/tensors.h"
#include "train/mtp_runner.h"

typedef struct ml_score_mtp {
    bool on;
    double factor; /* of the loss in the gradients */
    ml_spec spec;
    ml_weights weights;
    ml_mtp_runner runner;
    ml_train_sample *sample; /* [n] */
    int64_t n_loss;          /* rows that count, of all sequences */
    double loss;             /* sum of their cross entropies so far */
    const ml_named *named;   /* [n_named] tensors with a gradient */
    int32_t n_named;
} ml_score_mtp;

typedef struct ml_score_mtp_in {
    const char *dir, *input;
    const ml_sequences *seq;
    const ml_checkpoint *checkpoint;
    double factor;
    bool grads;
} ml_score_mtp_in;

/* Opens the spec, reads the masks and lists the tensors. */
ml_status ml_score_mtp_open(ml_score_mtp *m, const ml_score_mtp_in *in, ml_arena *a,
                            ml_err *err);
/* Loads the weights, next to the trunk's. */
ml_status ml_score_mtp_load(ml_score_mtp *m, const ml_score_mtp_in *in,
                            ml_weight_dtype dtype, const ml_spec *trunk,
                            const ml_weights *of, ml_backend *be, ml_arena *a, ml_err *err);
void ml_score_mtp_close(ml_score_mtp *m); /* zero-initialized is allowed */

/* After a forward of the trunk over sequences first .. end-1: the module's logits are those
 * of the runner's plan, and the gradients are added. */
ml_status ml_score_mtp_run(ml_score_mtp *m, ml_trunk_rows trunk, int32_t first, int32_t end,
                           ml_err *err);
float ml_score_mtp_loss(const ml_score_mtp *m);

#endif
