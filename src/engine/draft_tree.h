/* draft_tree.h - trees of draft tokens, as chains from root to leaf.
 *
 * The first chain follows the request's tokens in their array and pages.  Each further one,
 * a branch, is a sequence of its own in the batch: it shares the request's pages except for
 * the one with the request's last token, the root, of which it has a copy, and those after
 * it.  A branch computes the root again, since its keys belong into the copy; this row draws
 * no token.  Of the chains, that with most right tokens counts: the pages of a branch become
 * the request's.
 *
 * thread: the engine's owner. */
#ifndef ML_ENGINE_DRAFT_TREE_H
#define ML_ENGINE_DRAFT_TREE_H

#include "engine/request.h"

struct ml_engine;
struct ml_batch_entry;
struct ml_draft_turn;

/* Tokens, pages and drafts of a chain of a request. */
typedef struct ml_chain {
    ml_request *r;
    int32_t *token, *page, *n_draft;
} ml_chain;

ml_chain ml_chain_of(ml_request *r, int32_t i); /* 0: the first; i: branch i - 1 */

/* Draft tokens of the next of n branches that divide `left` rows; 0: none. */
int32_t ml_tree_share(int32_t left, int32_t n);

/* Takes pages for n draft tokens and copies the request's tokens and the root's page.  False:
 * pages are short. */
bool ml_branch_open(struct ml_engine *e, ml_request *r, ml_branch *b, int32_t n);
void ml_branch_close(struct ml_engine *e, ml_request *r, ml_branch *b);
void ml_tree_close(struct ml_engine *e, ml_request *r); /* all branches */

/* Adds branches to the chains of the draft network, after the draw of their first tokens:
 * each begins with another of the most probable tokens. */
void ml_tree_fork(struct ml_engine *e, struct ml_draft_turn *turn);

/* The branches that have draft tokens get pages, as far as they have none, and the rows that
 * the step has left; the others are closed. */
void ml_tree_schedule(struct ml_engine *e, struct ml_batch_entry *entry);
/* Adds the rows of the entry's branches to the batch, after those of the entry. */
void ml_tree_add_rows(struct ml_engine *e, const struct ml_batch_entry *entry);

/* Chooses the chain with most right tokens.  d: the entry's draws of its tokens; those of
 * branches follow.  Returns the draws after the chain's draft tokens; the request has its
 * tokens and pages, the entry its number of drafts and row. */
const ml_draw *ml_tree_choose(struct ml_engine *e, struct ml_batch_entry *entry,
                              const ml_draw *d);

#endif
