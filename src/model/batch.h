/* batch.h - builds a ragged batch: prefill, decode, scoring and training alike.
 *
 * The capacity is fixed at init; adding past it is a bug of the caller, which planned the
 * step.  `rows` is the view that ops read.
 *
 * thread: the step's owner. */
#ifndef ML_MODEL_BATCH_H
#define ML_MODEL_BATCH_H

#include "backend/ops.h"
#include "base/arena.h"

typedef struct ml_batch_caps {
    int32_t n_token, n_seq, n_loss, n_page;
    int32_t n_again;            /* pages of prefixes that other sequences list again */
    int32_t n_context, n_share; /* context parallel: ranks, and most rows of one; 0: no */
} ml_batch_caps;

typedef struct ml_batch {
    ml_rows rows;
    ml_batch_caps caps;
    int32_t *id, *pos, *seq_start, *page_start, *page, *slot, *loss_row, *loss_id;
    int32_t *adapter; /* rows.adapter points here once a sequence has an adapter */
    int32_t *prefix;  /* rows.prefix points here once a sequence has a prefix */
    int32_t n_page;   /* entries of `page` */
    int32_t n_again;  /* those of them that are pages of a prefix */
} ml_batch;

/* Values of a row's target other than token ids. */
enum {
    ML_TARGET_NONE = -1 /* compute logits, score nothing */,
    ML_TARGET_SKIP = -2 /* compute no logits */
};

void ml_batch_init(ml_batch *b, ml_arena *a, ml_batch_caps caps);
void ml_batch_clear(ml_batch *b);

/* Appends n rows of one sequence, at positions first .. first+n-1.  target [n] is the
 * token scored at each row, or NULL: skip all.  page lists the sequence's KV pages from
 * key 0 on, enough for all its keys so far.  NULL: the batch assigns its own pages, in
 * order, as a plan with its own KV pages requires (then first must be 0). */
void ml_batch_add(ml_batch *b, const int32_t *id, const int32_t *target, int32_t n,
                  int32_t first, const int32_t *page);

/* Appends n rows of a sequence that continues sequence `prefix`, which has whole pages: its first
 * keys are those of that one.  Sequences are added in preorder of the trees that they form.  The
 * batch assigns pages. */
void ml_batch_add_suffix(ml_batch *b, const int32_t *id, const int32_t *target, int32_t n,
                         int32_t prefix);

/* Sets the adapter of the sequence added last; the default is -1, the base model. */
void ml_batch_set_adapter(ml_batch *b, int32_t adapter);

/* Sets the state slot of the sequence added last; the default is its index in the batch. */
void ml_batch_set_slot(ml_batch *b, int32_t slot);

/* Number of KV pages that hold n keys. */
int32_t ml_kv_pages_for(int32_t n);

#endif
