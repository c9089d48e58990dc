/* embedder.h - embeddings of texts: the model's last hidden rows, pooled and of length 1.
 *
 * A forward pass without the LM head's rows: inputs are packed into batches, and a vector does
 * not depend on what else is in its batch.
 *
 * thread: one owner, that of the backend. */
#ifndef ML_GEN_EMBEDDER_H
#define ML_GEN_EMBEDDER_H

#include "model/plan.h"

typedef enum ml_pooling { ML_POOL_LAST, ML_POOL_MEAN } ml_pooling;

typedef struct ml_embed_input {
    const int32_t *id;
    int32_t n; /* at least 1, at most max_tokens */
} ml_embed_input;

typedef struct ml_embedder ml_embedder;

ml_status ml_embedder_new(ml_embedder **out, const ml_spec *s, ml_backend *be,
                          int32_t max_tokens, ml_err *err);
void ml_embedder_free(ml_embedder *e); /* NULL is allowed */

/* out [n][width]: the first `width` numbers of each pooled row, at most n_hidden, then divided by
 * their norm. */
ml_status ml_embedder_run(ml_embedder *e, const ml_weights *w, const ml_embed_input *in,
                          int32_t n, ml_pooling pooling, int32_t width, float *out,
                          ml_err *err);

#endif
