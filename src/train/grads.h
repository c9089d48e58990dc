/* grads.h - a set of gradients that backward passes add to.
 *
 * A parameter that two nodes use (a tied table, shared layers) has a gradient for each while
 * passes run: kept apart, the sum of each over several passes does not depend on how the
 * samples are divided into passes.  They are joined after the last pass.
 *
 * thread: the backend's stream. */
#ifndef ML_TRAIN_GRADS_H
#define ML_TRAIN_GRADS_H

#include "model/lora.h"
#include "model/plan.h"

typedef struct ml_grads {
    ml_weights sum;   /* after ml_grads_join, the gradients */
    ml_buf embed_buf; /* gradient of a tied table as an embedding, see plan.h */
    ml_tensor embed;
    /* [n_panel] Panels of `embed` that passes have added to since it was zeroed, and those that
     * take memory; NULL: not known, all of them. */
    bool *used, *resident;
    int64_t n_panel;
    ml_buf again_buf; /* gradients of nodes that use parameters again */
    ml_tensor *again; /* [n_param] in again_buf */
    const ml_spec *spec;
    ml_backend *be;
    ml_lora *lora; /* NULL, or the adapter that has them */
    bool fresh;    /* allocated, and not zeroed since, because new memory is zero */
    /* [n_param] Gradients of `sum` that no pass has written since ml_grads_zero: their memory has
     * other numbers until then.  NULL: an adapter's. */
    bool *unwritten;
} ml_grads;

/* The parameter that is both embedding and LM head, or ML_NONE. */
int32_t ml_grads_tied_table(const ml_spec *s);

/* Bytes of gradients, or of these parts of them ([n_param]; NULL: whole).  embeds: as in ml_grads_open.
 * n_token: how many tokens are embedded, at most, where the rows of no others take memory
 * (ml_device.zero_sparse); 0: any number. */
size_t ml_grads_bytes(const ml_spec *s, const ml_shard_range *range, bool embeds,
                      int64_t n_token);

/* embeds: whether its passes embed tokens.  The tables are in the arena; the values are
 * undefined before ml_grads_zero. */
ml_status ml_grads_open(ml_grads *out, const ml_spec *s, const ml_shard_range *range,
                        bool embeds, ml_backend *be, ml_arena *a, ml_err *err);
/* Those of an adapter on top of frozen weights. */
ml_status ml_grads_open_lora(ml_grads *out, ml_lora *l, ml_err *err);
void ml_grads_close(ml_grads *g); /* zero-initialized is allowed */

/* All are zero: those of an adapter in memory, others from ml_grads_fill on at the latest, since
 * the first pass that has a gradient may write it, without reading zeros. */
void ml_grads_zero(ml_grads *g);
/* A run's backward pass, with these rows, adds to these gradients. */
void ml_grads_bind(ml_grads *g, ml_run *run);
/* Zeroes the gradients that no pass has written; afterwards `sum` may be read. */
void ml_grads_fill(ml_grads *g);
/* ml_grads_fill, and adds the two gradients of a tied table, and of other parameters that are used twice. */
void ml_grads_join(ml_grads *g);

#endif
