/* route_tree.h - finds the worker that most recently got a prompt with a given prefix.
 *
 * A radix tree over the bytes of prompts.  Each node has the worker that most recently got
 * a prompt through it: of several workers that had a prefix, the last is the most likely to
 * still have it cached.  The tree evicts the least recently used nodes first.
 *
 * thread: the event loop's. */
#ifndef ML_SERVE_ROUTE_TREE_H
#define ML_SERVE_ROUTE_TREE_H

#include <stddef.h>
#include <stdint.h>

#include "base/str.h"

typedef struct ml_route_tree ml_route_tree;

ml_route_tree *ml_route_tree_new(size_t max_bytes);
void ml_route_tree_free(ml_route_tree *t);
size_t ml_route_tree_bytes(const ml_route_tree *t);

/* Records that the worker got this prompt.  Of a very long prompt only a prefix is kept. */
void ml_route_tree_add(ml_route_tree *t, ml_str prompt, uint64_t worker);

/* Returns the length in bytes of the longest known prefix, and its worker; 0: none. */
size_t ml_route_tree_find(const ml_route_tree *t, ml_str prompt, uint64_t *worker);

#endif
