/* drafts.c - how many draft tokens a request gets, and from where.
 *
 * A step that reads all weights for a few rows takes about as long with some rows more: so
 * many rows of draft tokens are free.  They are divided among the requests; with many
 * requests there are none.  A request whose drafts are right gets longer ones, one whose
 * drafts are wrong shorter ones and, after some misses, none for a while. */
#include "engine/engine_priv.h"

enum {
    PATIENCE = 2,      /* misses in a row before a pause */
    LONGEST_PAUSE = 6, /* as a power of 2 */
};

/* A network drafts as long as its next token is right with at least this probability: about
 * the part of a step that a draft token takes, times the tokens of a step. */
#define WORTHWHILE 0.2f
#define RARE 0.1f   /* below this rate of right tokens a network pauses */
#define MEMORY 0.9f /* of earlier steps in a request's rate of right tokens */

static int32_t least(int32_t a, int32_t b) {
    return a < b ? a : b;
}

int32_t ml_draft_room(const ml_engine_opts *o) {
    return o->draft.n ? least(o->draft.max_rows, o->max_running * ml_draft_rows(&o->draft))
                      : 0;
}

static int32_t for_each(const ml_engine *e) {
    int32_t n = e->running.n ? e->running.n : 1, rows = e->opts.draft.max_rows;

    return n < rows ? rows / n - 1 : 0;
}

bool ml_draft_fits(const ml_engine *e) {
    return e->opts.draft.n && for_each(e) > 0;
}

/* Requests may have got draft tokens before others joined, which left no room for more. */
bool ml_step_has_drafts(const ml_inflight_step *f) {
    for (int32_t i = 0; i < f->n_entry; i++)
        if (f->entry[i].n_draft || f->entry[i].n_tree_row)
            return true;
    return false;
}

bool ml_draft_flat(const ml_engine *e, const ml_batch_entry *entry) {
    return !e->be->dev->host && entry->n_row == 1 && !e->group->slots.n;
}

void ml_draft_begin_step(ml_engine *e) {
    e->draft.left = ml_draft_room(&e->opts);
}

/* The last row of a draft draws the last token that the request may have.  The mask of a
 * grammar is known for the next token only. */
int32_t ml_draft_allowed(const ml_engine *e, const ml_request *r) {
    if (r->draft_pause > 0 || r->matcher)
        return 0;
    return least(least(r->draft_len, for_each(e)), r->cap - r->n_token - 1);
}

int32_t ml_draft_rows_allowed(const ml_engine *e) {
    return least(for_each(e), ml_draft_rows(&e->opts.draft));
}

/* What followed the latest tokens earlier, a chain for each next token. */
static void look_up(ml_engine *e, ml_request *r, int32_t n) {
    ml_ngram_match m[ML_DRAFT_CHAINS];
    int32_t n_match = ml_ngram_find(&e->draft.ngram, &e->running, r, m, 1 + r->n_branch);

    for (int32_t i = 0; i <= r->n_branch; i++) {
        ml_chain c = ml_chain_of(r, i);
        *c.n_draft = i < n_match ? ml_ngram_read(&m[i], c.token + r->n_token, n) : 0;
    }
}

/* Writes drafts of up to n tokens to the chains of a request; those of a network are in their
 * places. */
static void propose(ml_engine *e, ml_request *r, int32_t n) {
    const ml_draft_opts *o = &e->opts.draft;

    for (int32_t i = 0; o->fn && i <= r->n_branch; i++) {
        ml_chain c = ml_chain_of(r, i);
        *c.n_draft = o->fn(o->ud, r, i, c.token + r->n_token, n);
    }
    if (o->ngram)
        look_up(e, r, n);
}

/* Gives back the pages after those of the request's tokens. */
static void free_rest(ml_engine *e, ml_request *r) {
    while (r->n_page > ml_kv_pages_for(r->n_token)) {
        ml_prefix_cache_unref(ml_pages_of(e, r), r->page[--r->n_page]);
        e->group[r->group].full = false;
    }
}

void ml_draft_propose(ml_engine *e, ml_batch_entry *entry) {
    ml_request *r = entry->r;
    int32_t n = least(ml_draft_allowed(e, r), e->draft.left);

    r->draft_pause -= r->draft_pause > 0;
    if (n > 0)
        propose(e, r, n);
    n = least(n, r->n_draft);
    r->n_draft = 0;
    while (n > 0 && !ml_engine_alloc_pages(e, r, r->n_token + n))
        n = r->n_page * ML_PAGE - r->n_token;
    if (n > 0 && ml_state_may_draft(e, entry))
        entry->n_draft = n;
    else
        free_rest(e, r);
    e->draft.left -= entry->n_draft;
    ml_tree_schedule(e, entry);
}

/* The length at which a chain of tokens, each right at the request's rate so far, is just
 * worthwhile. */
static int32_t length_by_rate(ml_request *r, const ml_batch_entry *entry, int32_t most) {
    float rate, chain;
    int32_t n = 1;

    r->draft_hits = MEMORY * r->draft_hits + (float)entry->n_right;
    r->draft_tries = MEMORY * r->draft_tries +
                     (float)(entry->n_right + (entry->n_right < entry->n_draft));
    rate = r->draft_hits / r->draft_tries;
    if ((r->draft_hits + 1) / (r->draft_tries + 2) < RARE) /* one miss is no rate yet */
        r->draft_pause = 1 << LONGEST_PAUSE;
    for (chain = rate * rate; n < most && chain >= WORTHWHILE; n++)
        chain *= rate;
    return n;
}

/* What prompt lookup finds costs nothing until it is verified: it doubles while it is right. */
static int32_t length_by_success(const ml_batch_entry *entry, int32_t most) {
    ml_request *r = entry->r;
    int32_t n = entry->n_right;

    r->draft_misses = n ? 0 : r->draft_misses + 1;
    if (r->draft_misses > PATIENCE)
        r->draft_pause = 1 << least(r->draft_misses - PATIENCE, LONGEST_PAUSE);
    return n == entry->n_draft ? least(2 * n, most) : n + 1;
}

void ml_draft_learn(ml_engine *e, const ml_batch_entry *entry) {
    const ml_draft_opts *o = &e->opts.draft;
    ml_request *r = entry->r;

    r->draft_len = ml_draft_has_net(o) ? length_by_rate(r, entry, o->n)
                                       : length_by_success(entry, o->n);
    free_rest(e, r);
}
