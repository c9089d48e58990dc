/* micro.h - a micro-batch: packs whole samples into the rows of a batch, and maps per-row
 * results back to samples.
 *
 * A response token's log-prob comes from the row before it.  Rows without a loss are
 * computed but skip the LM head.
 *
 * With context parallelism the batch has this rank's pieces of the samples.  The results of
 * all ranks' rows are gathered, so that every rank has those of whole samples; of their
 * derivatives it takes those of its own rows.
 *
 * thread: the trainer's. */
#ifndef ML_TRAIN_MICRO_H
#define ML_TRAIN_MICRO_H

#include "model/batch.h"
#include "train/context.h"
#include "model/ranks.h"
#include "train/routing_replay.h"
#include "train/packing.h"

/* A training sample.  The caller owns the arrays. */
typedef struct ml_train_sample {
    const int32_t *token;        /* [n_token] prompt, then response */
    int32_t n_token, n_response; /* the prompt has at least one token */
    const uint8_t *mask;         /* [n_response] 0: no loss here; NULL: loss everywhere */
    int64_t rollout;             /* samples of one rollout stay in one step */
    ml_token_routing routed[ML_N_ROUTING];
    const ml_str
        *support; /* [n_response] sampling supports (support.h), of the trainer's own
                              weights; NULL: the whole vocabulary */
    bool idle;    /* the loss has no gradient with respect to it: see ml_schedule_opts */
    /* NULL, or the tokens [n_response] to score instead of the response's own: the last
     * n_response rows predict them, and the prompt may be empty. */
    const int32_t *target;
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
    /* Where samples have supports: the log-probs over the whole vocabulary, as the entropy is;
     * logprob is over the supports.  NULL: logprob is over the vocabulary. */
    const float *full_logprob;
    float *dfull_logprob; /* 0 on entry */
    double loss;          /* this sample's term; 0 on entry */
} ml_loss_io;

typedef struct ml_micro {
    ml_batch batch; /* this rank's rows */
    ml_batch_caps caps;
    int32_t *target;
    ml_loss_io *io; /* [n_sample] */
    int32_t n_sample;
    struct ml_prefix_node *node; /* of prefix.h: the sequences of the batch */
    int32_t *response;           /* [n_sample] the first of its response tokens among all */
    int32_t *loss_of;            /* [response tokens] the row of logits of each, or -1 */
    ml_piece *piece;             /* [n_piece] of the samples, in the order of rows */
    int32_t n_piece;
    const ml_rows *samples; /* rows of whole samples: those of batch, or of `whole` */
    /* Per row of whole samples: [n_loss]; for a critic [n_token]. */
    float *row_logprob, *row_entropy;
    float *row_dlogprob, *row_dentropy;
    /* Per row of this rank; without context parallelism the same arrays. */
    float *own_logprob, *own_entropy, *own_dlogprob, *own_dentropy;
    float *logprob, *entropy, *dlogprob, *dentropy; /* [response tokens] */
    uint64_t *dropout_key; /* [n_token] of rows; set with dropout */
    /* Sampling supports: of own rows; the log-probs over them as above, where row_logprob and
     * own_logprob are those over the vocabulary. */
    ml_support_rows support;
    ml_str *row_support, *own_support; /* NULL: no samples had supports so far */
    float *row_over, *row_dover, *own_over, *own_dover, *full, *dfull;
    ml_routing_replay routing_replay;
    bool critic;     /* every row has a value; values are stored in the log-prob arrays */
    bool everywhere; /* all response tokens are scored, including masked ones */
    ml_context_opts context;
    ml_batch whole; /* context parallel: whole samples */
    ml_context_rows rows;
    int32_t *seq, *order; /* of rows */
    int32_t *loss_at;     /* [n_token] the number of a row of whole samples among results */
    int32_t *result;      /* [ranks][n_result] where each rank's results belong */
    float *all_results;   /* [ranks][3][n_result] */
    int32_t n_result;     /* most results of a rank */
    ml_arena arena;
} ml_micro;

/* The capacity that the samples of a bin need; the maximum of two capacities. */
ml_batch_caps ml_micro_need(const ml_train_sample *s, const ml_bin *bin,
                            const ml_context_opts *context);
ml_batch_caps ml_micro_max(ml_batch_caps a, ml_batch_caps b);

void ml_micro_init(ml_micro *m, ml_batch_caps caps, const ml_context_opts *context,
                   bool critic);
void ml_micro_release(ml_micro *m); /* zero-initialized is allowed */
/* Exchanges two micro-batches with their memory; filled ones must be filled again. */
void ml_micro_swap(ml_micro *a, ml_micro *b);

/* Fills the batch with the samples of a bin. */
void ml_micro_fill(ml_micro *m, const ml_train_sample *s, const ml_bin *bin,
                   bool everywhere, float temperature);
/* Takes the sampling supports of the samples that were filled in. */
void ml_micro_take_supports(ml_micro *m, const ml_train_sample *s, const ml_bin *bin);
/* Context parallel: collects own_logprob and own_entropy of all ranks. */
ml_status ml_micro_exchange(ml_micro *m, ml_ranks *ranks, ml_err *err);
/* Scatters row_logprob and row_entropy to the samples' arrays and clears the derivatives. */
void ml_micro_spread(ml_micro *m);
/* The number of this rank's result k among those of whole samples. */
int32_t ml_micro_result(const ml_micro *m, int32_t k);
/* The inverse: gathers the samples' derivatives into own rows.  False: all of them, of whole
 * samples, are 0. */
bool ml_micro_collect(ml_micro *m);

#endif
