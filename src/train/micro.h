/* micro.h - a micro-batch: packs whole samples into the rows of a batch, and maps per-row
 * results back to samples.
 *
 * A response token's log-prob comes from the row before it.  Rows without a loss are
 * computed but skip the LM head.
 *
 * thread: the trainer's. */
#ifndef ML_TRAIN_MICRO_H
#define ML_TRAIN_MICRO_H

#include "model/batch.h"
#include "train/routing_replay.h"
#include "train/packing.h"

/* A training sample.  The caller owns the arrays. */
typedef struct ml_train_sample {
    const int32_t *token;        /* [n_token] prompt, then response */
    int32_t n_token, n_response; /* the prompt has at least one token */
    const uint8_t *mask;         /* [n_response] 0: no loss here; NULL: loss everywhere */
    int64_t rollout;             /* samples of one rollout stay in one step */
    ml_token_routing routed[ML_N_ROUTING];
    bool idle; /* the loss has no gradient with respect to it: see ml_schedule_opts */
} ml_train_sample;

/* Input and output of a loss for one sample.  Arrays are [n_response]; where the mask is
 * 0 the inputs are 0 and the derivatives are ignored. */
typedef struct ml_loss_io {
    int32_t sample; /* index among the step's samples */
    int32_t n_response;
    const uint8_t *mask;
    const float *logprob, *entropy, *value; /* value: of a critic, which has no others
                                               (NULL) */
    float *dlogprob, *dentropy, *dvalue;    /* 0 on entry */
    double loss;                            /* this sample's term; 0 on entry */
} ml_loss_io;

typedef struct ml_micro {
    ml_batch batch;
    ml_batch_caps caps;
    int32_t *target;
    ml_loss_io *io; /* [n_sample] */
    int32_t n_sample;
    float *row_logprob, *row_entropy;               /* [n_loss]; for a critic [n_token] */
    float *row_dlogprob, *row_dentropy;             /* the same */
    float *logprob, *entropy, *dlogprob, *dentropy; /* [response tokens] */
    ml_routing_replay routing_replay;
    bool critic;     /* every row has a value; values are stored in the log-prob arrays */
    bool everywhere; /* all response tokens are scored, including masked ones */
    ml_arena arena;
} ml_micro;

/* The capacity that the samples of a bin need; the maximum of two capacities. */
ml_batch_caps ml_micro_need(const ml_train_sample *s, const ml_bin *bin);
ml_batch_caps ml_micro_max(ml_batch_caps a, ml_batch_caps b);

void ml_micro_init(ml_micro *m, ml_batch_caps caps, bool critic);
void ml_micro_release(ml_micro *m); /* zero-initialized is allowed */

/* Fills the batch with the samples of a bin. */
void ml_micro_fill(ml_micro *m, const ml_train_sample *s, const ml_bin *bin,
                   bool everywhere, float temperature);
/* Scatters row_logprob and row_entropy, once read, to the samples' arrays and clears the
 * derivatives. */
void ml_micro_spread(ml_micro *m);
/* The inverse: gathers the samples' derivatives into rows.  False: all of them are 0. */
bool ml_micro_collect(ml_micro *m);

#endif
