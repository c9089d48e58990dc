/* datum.h - the requests of forward and backward passes, and their replies, as messages of
 * Tinker's tinker_public.proto.
 *
 * A datum is a sequence of input tokens, and tensors of the same length: target_tokens, the
 * tokens to predict, and what the loss needs of each of them.  With a second dimension K, each
 * position has K targets; then each column is a sample of its own for the trainer.
 *
 * thread: any; no state. */
#ifndef ML_TINKER_DATUM_H
#define ML_TINKER_DATUM_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"
#include "base/str.h"

/* The tensors that losses read, each [n][k] as f32. */
enum { ML_DATUM_WEIGHTS, ML_DATUM_LOGPROBS, ML_DATUM_ADVANTAGES, ML_DATUM_INPUTS };
extern const char *const ml_datum_input[ML_DATUM_INPUTS];

/* One column of a datum: a sequence and its targets. */
typedef struct ml_datum_column {
    const int32_t *token; /* [n] */
    int32_t n;
    const int32_t *target;               /* [n] */
    const float *input[ML_DATUM_INPUTS]; /* [n]; NULL: not given */
} ml_datum_column;

typedef struct ml_datum {
    int32_t first, k; /* its columns */
    bool flat;        /* its targets have one dimension */
} ml_datum;

typedef struct ml_loss_setting {
    ml_str name;
    double value;
} ml_loss_setting;

typedef struct ml_pass_request {
    ml_str model_id;
    int64_t seq_id;
    ml_str loss;
    bool forward_only;
    const ml_loss_setting *setting; /* [n_setting] */
    int32_t n_setting;
    ml_datum *datum; /* [n_datum] */
    int32_t n_datum;
    ml_datum_column *column; /* [n_column] */
    int32_t n_column, cap;   /* cap: of the array */
} ml_pass_request;

/* Reads the two fields that say for whom the request is. */
ml_status ml_pass_address(ml_str body, ml_str *model_id, int64_t *seq_id, ml_err *err);

/* Reads all of it, into the arena.  A message names the datum and the field. */
ml_status ml_pass_read(ml_pass_request *out, ml_arena *a, ml_str body, ml_err *err);

/* Checks what the trainer requires: ids below n_vocab, sequences of 1 to `context` tokens. */
ml_status ml_pass_check(const ml_pass_request *p, int64_t n_vocab, int32_t context,
                        ml_err *err);

/* The reply: the log-probs of all columns, and the sum of the loss. */
void ml_pass_reply(ml_text *out, const ml_pass_request *p, float *const *logprob,
                   double loss);

#endif
