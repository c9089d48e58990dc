/* weight_inbox.h - a set of weights that arrives tensor by tensor, under checkpoint names.
 *
 * thread: one owner. */
#ifndef ML_MODEL_WEIGHT_INBOX_H
#define ML_MODEL_WEIGHT_INBOX_H

#include "model/weights.h"

typedef struct ml_weight_inbox {
    const ml_spec *spec;
    const ml_weights *w;
    bool round_bf16;
    int64_t *first; /* [n_param] of its members in `got` */
    bool *got;      /* members that have arrived */
    ml_packer *packer;
} ml_weight_inbox;

/* The set receives the values; it and the arena outlive the inbox. */
void ml_weight_inbox_init(ml_weight_inbox *x, const ml_weights *w, const ml_spec *s,
                          bool round_bf16, ml_arena *a);

/* Checks name, shape and dtype of a tensor without data.  *wanted false: the model does not
 * use it.  `where` begins the message. */
ml_status ml_weight_inbox_check(const ml_weight_inbox *x, const ml_st_tensor *t,
                                bool *wanted, const char *where, ml_err *err);

/* Between begin and end, tensors that were checked are put. */
ml_status ml_weight_inbox_begin(ml_weight_inbox *x, ml_err *err);
ml_status ml_weight_inbox_put(ml_weight_inbox *x, const ml_st_tensor *t, const char *where,
                              ml_err *err);
ml_status ml_weight_inbox_end(ml_weight_inbox *x, ml_err *err);

/* ML_EFORMAT: names a tensor that has not arrived. */
ml_status ml_weight_inbox_complete(const ml_weight_inbox *x, const char *where,
                                   ml_err *err);

#endif
