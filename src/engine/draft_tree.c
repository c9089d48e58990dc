#include "engine/draft_tree.h"

#include <string.h>

#include "engine/engine_priv.h"

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

ml_chain ml_chain_of(ml_request *r, int32_t i) {
    ml_branch *b = i ? &r->branch[i - 1] : NULL;

    return b ? (ml_chain){ r, b->token, b->page, &b->n_draft }
             : (ml_chain){ r, r->token, r->page, &r->n_draft };
}

int32_t ml_tree_share(int32_t left, int32_t n) {
    return left < 2 ? 0 : left / n < 2 ? 1 : left / n - 1;
}

/* --- pages ------------------------------------------------------------------------ */

static int32_t root_page(const ml_request *r) {
    return (r->n_token - 1) / ML_PAGE;
}

static void copy_page(ml_engine *e, const ml_request *r, int32_t to, int32_t from) {
    ml_routing_record_copy_page(&e->routing_record, r->group, to, from);
    if (!ml_is_own(e, r))
        return;
    ml_kv_copy_page(&e->kv, e->spec, e->be, to, from);
    if (e->draft.net.on)
        ml_kv_copy_page(&e->draft.net.kv, &e->draft.net.spec, e->be, to, from);
}

/* Each running request keeps a page to grow into. */
static bool has_pages(const ml_engine *e, const ml_request *r, int32_t n) {
    return ml_prefix_cache_available(ml_pages_of(e, r)) >= n + e->running.n;
}

bool ml_branch_open(ml_engine *e, ml_request *r, ml_branch *b, int32_t n) {
    int32_t root = root_page(r);

    if (b->n_own)
        return true;
    b->n_page = ml_kv_pages_for(r->n_token + n);
    if (!has_pages(e, r, b->n_page - root))
        return false;
    b->n_own = b->n_page - root;
    for (int32_t i = root; i < b->n_page; i++)
        b->page[i] = ml_prefix_cache_alloc(ml_pages_of(e, r));
    copy_page(e, r, b->page[root], r->page[root]);
    memcpy(b->page, r->page, (size_t)root * sizeof *b->page);
    memcpy(b->token, r->token, (size_t)r->n_token * sizeof *b->token);
    return true;
}

void ml_branch_close(ml_engine *e, ml_request *r, ml_branch *b) {
    for (; b->n_own; b->n_own--)
        ml_prefix_cache_unref(ml_pages_of(e, r), b->page[--b->n_page]);
    b->n_draft = 0;
    e->group[r->group].full = false;
}

void ml_tree_close(ml_engine *e, ml_request *r) {
    for (int32_t i = 0; i < r->n_branch; i++)
        ml_branch_close(e, r, &r->branch[i]);
}

/* --- a network's drafts ------------------------------------------------------------- */

/* Adds the branches of chain i. */
static void fork_chain(ml_engine *e, ml_draft_turn *turn, int32_t i) {
    const ml_draft_net *d = &e->draft.net;
    ml_request *r = turn->of[i].r;
    const ml_draw *drawn = &turn->draw[i];
    int32_t left = ml_draft_rows_allowed(e) - turn->wants[i], k = 0;

    for (int32_t t = 0; t < drawn->n_top && k < r->n_branch; t++) {
        ml_branch *b = &r->branch[k];
        int32_t want = least(turn->wants[i], ml_tree_share(left, r->n_branch - k));
        if (!want || turn->n == d->batch.caps.n_seq || drawn->top_id[t] == drawn->id)
            continue;
        if (!ml_branch_open(e, r, b, want))
            break;
        b->token[r->n_token] = drawn->top_id[t];
        b->n_draft = 1;
        left -= 1 + want;
        turn->of[turn->n] = ml_chain_of(r, ++k);
        turn->wants[turn->n] = want;
        turn->row[turn->n++] = turn->row[i];
    }
}

void ml_tree_fork(ml_engine *e, ml_draft_turn *turn) {
    int32_t n = turn->n;

    for (int32_t i = 0; i < n; i++)
        fork_chain(e, turn, i);
}

/* --- the batch -------------------------------------------------------------------- */

/* A request that computes more than its root in the step has no branches: they would have to
 * compute all of it. */
void ml_tree_schedule(ml_engine *e, ml_batch_entry *entry) {
    ml_request *r = entry->r;
    int32_t left = least(e->draft.left, ml_draft_rows(&e->opts.draft) - entry->n_draft);
    int32_t n_branch = 0;

    for (int32_t i = 0; i < r->n_branch; i++)
        n_branch += r->branch[i].n_draft > 0;
    for (int32_t i = 0; i < r->n_branch; i++) {
        ml_branch *b = &r->branch[i];
        int32_t n;
        if (!b->n_draft)
            continue;
        n = least(b->n_draft, ml_tree_share(left, n_branch--));
        if (!entry->n_draft || entry->n_row != 1 || !n || !ml_branch_open(e, r, b, n)) {
            ml_branch_close(e, r, b);
            continue;
        }
        b->n_draft = n;
        left -= n + 1;
        e->draft.left -= n + 1;
        entry->n_tree_draft += n;
        entry->n_tree_row += n + 1;
    }
}

void ml_tree_add_rows(ml_engine *e, const ml_batch_entry *entry) {
    const ml_request *r = entry->r;
    int32_t *target = e->target;
    bool flat = ml_draft_flat(e, entry);

    for (int32_t i = 0; entry->n_tree_row && i < r->n_branch; i++) {
        const ml_branch *b = &r->branch[i];
        if (!b->n_draft)
            continue;
        memcpy(b->page, r->page, (size_t)(b->n_page - b->n_own) * sizeof *b->page);
        for (int32_t k = 0; k <= b->n_draft; k++)
            target[k] = k ? ML_TARGET_NONE : ML_TARGET_SKIP;
        for (int32_t k = 0, each = flat ? 1 : 1 + b->n_draft; k <= b->n_draft; k += each)
            ml_dp_add_rows(e, r, b->page, b->token + r->n_token - 1 + k, target + k, each,
                           r->n_token - 1 + k);
    }
}

/* --- outputs ---------------------------------------------------------------------- */

/* The draft tokens that are right: the one that d drew, and after it those that `rest` drew. */
static int32_t right_of(const int32_t *draft, int32_t n, const ml_draw *d,
                        const ml_draw *rest) {
    int32_t k = 0;

    while (k < n && draft[k] == (k ? rest[k - 1].id : d->id))
        k++;
    return k;
}

/* A page of the root that is in the prefix cache already has the same rows as its copy. */
static void take_over(ml_engine *e, ml_request *r, ml_branch *b) {
    int32_t root = b->n_page - b->n_own;

    while (r->n_page > root && r->n_page > r->n_shared)
        ml_prefix_cache_unref(ml_pages_of(e, r), r->page[--r->n_page]);
    for (int32_t i = root; i < r->n_page; i++)
        ml_prefix_cache_unref(ml_pages_of(e, r), b->page[i]);
    while (r->n_page < b->n_page) {
        r->page[r->n_page] = b->page[r->n_page];
        r->n_page++;
    }
    memcpy(r->token + r->n_token, b->token + r->n_token,
           (size_t)b->n_draft * sizeof *r->token);
    b->n_own = 0;
}

const ml_draw *ml_tree_choose(ml_engine *e, ml_batch_entry *entry, const ml_draw *d) {
    ml_request *r = entry->r;
    const ml_draw *rest = d + 1, *best = rest;
    int32_t row = entry->draft_row + entry->n_draft, most;
    ml_branch *won = NULL;

    if (!entry->n_tree_row)
        return rest;
    most = right_of(r->token + r->n_token, entry->n_draft, d, rest);
    rest += entry->n_draft;
    for (int32_t i = 0; i < r->n_branch; i++) {
        ml_branch *b = &r->branch[i];
        int32_t n = right_of(b->token + r->n_token, b->n_draft, d, rest);
        if (n > most) {
            most = n;
            won = b;
            best = rest;
            entry->draft_row = row + 1;
        }
        rest += b->n_draft;
        row += b->n_draft ? 1 + b->n_draft : 0;
    }
    if (won) {
        entry->n_draft = won->n_draft;
        e->stats.n_branched++;
        take_over(e, r, won);
    }
    ml_tree_close(e, r);
    return best;
}
