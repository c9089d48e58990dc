/* prefix.h - samples of a micro-batch that begin with the same tokens share the rows of these.
 *
 * The samples of a bin form a tree.  An inner node has the tokens that all samples below it have in common, as far as
 * these fill whole KV pages; a leaf has the rest of one sample.  Nodes are sequences of the batch, each behind the
 * node that it continues.  All samples of a node also agree on the token after it: each row has one token to score,
 * whichever samples score it.
 *
 * thread: any; no state. */
#ifndef ML_TRAIN_PREFIX_H
#define ML_TRAIN_PREFIX_H

#include "base/err.h"
#include "model/spec.h"
#include "train/micro.h"

/* Whether rows of the model can have shared prefixes; an error names what cannot. */
ml_status ml_prefix_supports(const ml_spec *s, ml_err *err);

/* Moves samples with equal prefixes together, each behind the first of its kind, so that the samples of every node
 * follow each other. */
void ml_prefix_group(const ml_train_sample *s, int32_t *item, int32_t n);

/* Tokens of sample b that are in a node with sample a, if no other samples are there. */
int32_t ml_prefix_common(const ml_train_sample *a, const ml_train_sample *b);

typedef struct ml_prefix_node {
    int32_t parent;       /* an earlier node, or -1 */
    int32_t first, end;   /* its tokens within a sample */
    int32_t item, n_item; /* the samples below it: items of the bin */
} ml_prefix_node;

/* The tree of a bin whose items are grouped, in preorder; out [2 * bin->n].  Returns the number of nodes. */
int32_t ml_prefix_tree(ml_prefix_node *out, const ml_train_sample *s, const ml_bin *bin);

#endif
