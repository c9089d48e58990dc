/* route_tree.h - which worker saw the beginning of a prompt last.
 *
 * A radix tree over the bytes of prompts.  Every node knows the worker that most recently
 * got a prompt through it: of several workers that hold a prefix, the last one is the one
 * that still has it.  Nodes that nothing went through for longest leave first.
 *
 * thread: the loop's. */
#ifndef ML_SERVE_ROUTE_TREE_H
#define ML_SERVE_ROUTE_TREE_H

#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

typedef struct ml_route_tree ml_route_tree;

ml_route_tree *ml_route_tree_new(size_t max_bytes);
void ml_route_tree_free(ml_route_tree *t);
size_t ml_route_tree_bytes(const ml_route_tree *t);

/* The worker got this prompt.  Only its beginning is kept when it is very long. */
void ml_route_tree_add(ml_route_tree *t, ml_str prompt, uint64_t worker);

/* Bytes at the beginning of the prompt that some worker had, and which one; 0: none. */
size_t ml_route_tree_find(const ml_route_tree *t, ml_str prompt, uint64_t *worker);

#endif
