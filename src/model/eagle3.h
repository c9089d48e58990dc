/* eagle3.h - EAGLE-3 heads: modules (mtp.h) with a checkpoint of their own.
 *
 * A head's first hidden state is a projection of the inputs of three of the trunk's layers;
 * from then on it reads its own, before its final norm.  Its LM head has a row for each
 * token of the draft vocabulary, a part of the trunk's.  Checkpoints have the format of the
 * released heads: fc, midlayer.*, norm, lm_head, d2t, t2d, and maybe embed_tokens, without
 * which the embedding is the trunk's.
 *
 * thread: any; no state. */
#ifndef ML_MODEL_EAGLE3_H
#define ML_MODEL_EAGLE3_H

#include "model/mtp.h"

/* The draft vocabulary: target [n], the trunk's id of each draft id, and its inverse, draft
 * [trunk's n_vocab], which is ML_NONE for other tokens. */
typedef struct ml_draft_vocab {
    int32_t *target, *draft;
    int64_t n;
} ml_draft_vocab;

/* The head in dir, for a trunk.  ML_EUNSUP: it does not fit. */
ml_status ml_eagle3_open(ml_spec *out, const char *dir, const ml_spec *trunk, ml_err *err);

/* Reads d2t; without it the draft vocabulary is the trunk's. */
ml_status ml_eagle3_vocab(ml_draft_vocab *out, const ml_spec *head, const ml_checkpoint *c,
                          ml_arena *a, ml_err *err);

#endif
