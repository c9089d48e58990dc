/* engine_priv.h - declarations shared by the files of the engine. */
#ifndef ML_ENGINE_ENGINE_PRIV_H
#define ML_ENGINE_ENGINE_PRIV_H

#include "engine/draft_net.h"
#include "engine/draft_tree.h"
#include "engine/ngram.h"
#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "engine/routing_record.h"
#include "engine/state_slots.h"

/* A request's part of a step. */
typedef struct ml_batch_entry {
    ml_request *r;        /* NULL: it ended after this step was scheduled, or in it */
    int32_t first;        /* n_kv when it was scheduled */
    int32_t n_row;        /* tokens n_kv .. n_kv + n_row - 1 */
    int32_t n_score;      /* prompt tokens that its rows score */
    bool draws;           /* its last row draws a token */
    int32_t n_draft;      /* rows of draft tokens after these; each draws a token, too */
    int32_t n_right;      /* of these, the right ones, once the outputs are processed */
    int32_t row;          /* its first row in the batch */
    int32_t draft_row;    /* the first row of its draft tokens: those that count */
    int32_t n_tree_draft; /* draft tokens of branches, and their rows */
    int32_t n_tree_row;
    int32_t backup;   /* slot with the state before its rows, or ML_NO_SLOT */
    int32_t unknown;  /* device tokens among its input (the host lacks the draw): 0 or 1 */
    int32_t expected; /* page after which its recurrent state is copied, or ML_NO_PAGE */
} ml_batch_entry;

/* Data-parallel attention: the KV pages and state slots of the requests of a DP group, of which
 * a rank has those of its own group in memory; it schedules all.  Otherwise there is one
 * group. */
typedef struct ml_dp_group {
    ml_prefix_cache prefix_cache;
    ml_state_slots slots;
    int32_t n_request; /* waiting and running */
    bool full;         /* admission failed, and no pages were released since */
} ml_dp_group;

/* A step, from scheduling until its outputs are processed. */
typedef struct ml_inflight_step {
    ml_batch_entry *entry; /* [sequences], in the order of the batch */
    int32_t n_entry;
    ml_draw *draw; /* [loss rows] */
    int32_t n_draw;
    bool followed; /* the network that drafts has its rows already */
} ml_inflight_step;

struct ml_engine {
    const ml_spec *spec;
    const ml_weights *weights;
    uint64_t version; /* of the weights when the engine took them into use */
    ml_backend *be;
    ml_engine_opts opts;
    ml_arena arena, kv_arena;
    ml_kv kv;
    bool has_kv;
    ml_dp_group *group;   /* [n_group] */
    int32_t n_group, own; /* own: of this rank */
    struct {
        ml_comm *cols, *rows; /* as in ml_plan_opts */
        ml_batch batch;       /* the own group's rows of `batch` */
        ml_dp_rows rows_of;   /* of all groups */
        int32_t *start;       /* [n_group+1] */
        uint64_t prompt;      /* of the latest request */
        int32_t latest;       /* its group */
    } dp;
    ml_routing_record routing_record;
    ml_plan *plan;
    ml_batch batch;
    ml_request_list waiting, running; /* both in the order of arrival */
    uint64_t n_arrival;
    bool draining; /* a switch of weights waits for requests that have begun */

    ml_inflight_step inflight[2];
    ml_inflight_step *step;    /* being scheduled */
    ml_inflight_step *pending; /* launched, its outputs not processed; or NULL */
    int32_t chunk_left, score_left;
    int32_t *target; /* [chunk + draft.n] */
    struct {
        int32_t left; /* rows of draft tokens that the step being scheduled may have */
        ml_ngram ngram;
        ml_draft_net net;
    } draft;
    ml_buf sample_scratch;
    ml_buf drawn; /* [loss rows] latest draws, on the device */

    ml_gen_stats stats;
};

/* The pages and slots of a request's group; whether this rank has them in memory. */
static inline ml_prefix_cache *ml_pages_of(const ml_engine *e, const ml_request *r) {
    return &e->group[r->group].prefix_cache;
}
static inline ml_state_slots *ml_slots_of(const ml_engine *e, const ml_request *r) {
    return &e->group[r->group].slots;
}
static inline bool ml_is_own(const ml_engine *e, const ml_request *r) {
    return r->group == e->own;
}

/* dp_groups.c: DP groups of a spec, 1 without data-parallel attention.  Each has an equal part
 * of the running requests and of a step's prefill tokens, rounded up. */
int32_t ml_dp_groups(const ml_spec *s);
int32_t ml_dp_share(const ml_spec *s, int32_t n);
/* What an engine has for its groups, without their pages. */
ml_status ml_dp_open(ml_engine *e, ml_err *err);
void ml_dp_close(ml_engine *e);
/* The group of a request that arrives. */
int32_t ml_dp_choose(ml_engine *e, const ml_request *r);
/* Appends n rows of a request to the batch; requests of a group follow each other.  page: the
 * request's own, or those of a branch. */
void ml_dp_add_rows(ml_engine *e, const ml_request *r, const int32_t *page,
                    const int32_t *id, const int32_t *target, int32_t n, int32_t first);
void ml_dp_clear(ml_engine *e);
/* The rows of each group in the batch of the step being launched. */
void ml_dp_count_rows(ml_engine *e);
/* Running requests of a group; its youngest one, or NULL. */
int32_t ml_dp_running(const ml_engine *e, int32_t group);
ml_request *ml_dp_youngest(const ml_engine *e, int32_t group);

/* Limits of a step's batch. */
ml_batch_caps ml_engine_caps(const ml_spec *s, const ml_engine_opts *o);

/* recurrent_state.c: the state of recurrent layers; no-ops for models without any. */
/* Shortens the prefix match to the last page with a copy of the state after it.  False: a
 * longer match will have a copy once the step being scheduled is computed. */
bool ml_state_match(ml_engine *e, ml_request *r);
/* Takes a slot for an admitted request and loads the state after its first n_kv tokens. */
void ml_state_begin(ml_engine *e, ml_request *r);
/* How many of the next n rows to schedule, so that the state can be copied at their end. */
int32_t ml_state_rows(const ml_engine *e, const ml_request *r, int32_t n);
/* The entry's rows were added to the batch. */
void ml_state_schedule_rows(ml_engine *e, ml_batch_entry *entry);
/* The entry's rows were computed: copies the state if it is worth keeping. */
void ml_state_finish(ml_engine *e, const ml_batch_entry *entry);

/* Whether the state after the entry's rows may be copied when they are computed: then the
 * next step, which changes it, waits for that. */
bool ml_state_is_copied(const ml_engine *e, const ml_batch_entry *entry);

/* Whether draft rows may follow the entry's, whose state is kept in entry->backup then. */
bool ml_state_may_draft(ml_engine *e, ml_batch_entry *entry);
/* If not all of the entry's draft rows were right, the state after the last right one is not
 * known: the request goes back to the state before the entry's rows, to compute the right
 * ones again. */
void ml_state_accept(ml_engine *e, const ml_batch_entry *entry);

/* drafts.c: rows of draft tokens that a step may have. */
int32_t ml_draft_room(const ml_engine_opts *o);
/* Whether the batch is small enough for draft tokens. */
bool ml_draft_fits(const ml_engine *e);
/* Whether rows of a step are draft tokens. */
bool ml_step_has_drafts(const ml_inflight_step *f);
/* Whether each row of the entry is a sequence of the batch, with the pages of all.  A GPU's
 * kernels for decode have one row per sequence, and CUDA graphs are captured of such batches.
 * Recurrent layers compute the rows of a sequence in order. */
bool ml_draft_flat(const ml_engine *e, const ml_batch_entry *entry);
void ml_draft_begin_step(ml_engine *e);
/* Proposes draft tokens after those of the entry's request, which the entry's last row
 * draws after, and takes pages for them. */
void ml_draft_propose(ml_engine *e, ml_batch_entry *entry);
/* Rows of draft tokens that the request may have in its next step. */
int32_t ml_draft_rows_allowed(const ml_engine *e);
/* Draft tokens that the request may have in its next step. */
int32_t ml_draft_allowed(const ml_engine *e, const ml_request *r);
/* The entry's draft tokens were verified: gives back the pages of the wrong ones. */
void ml_draft_learn(ml_engine *e, const ml_batch_entry *entry);

/* scheduler.c: */
/* Frees the request's pages and moves it back to the waiting queue. */
void ml_engine_preempt(ml_engine *e, ml_request *r);
void ml_engine_free_pages(ml_engine *e, ml_request *r);
bool ml_engine_alloc_pages(ml_engine *e, ml_request *r, int32_t n); /* for n tokens */
/* Inserts the pages filled by the first n tokens into the prefix cache.  The step being
 * scheduled or earlier ones write their keys, so requests of the same step may read them.
 * An equal page already in the cache replaces ours if `settled` (no row of a pending step
 * writes to ours); otherwise a later call replaces it. */
void ml_engine_cache_pages(ml_engine *e, ml_request *r, int32_t n, bool settled);
/* Whether a waiting request might join the next step. */
bool ml_engine_may_admit(const ml_engine *e);
/* overlap.c: schedules the step after `now`, whose draws are unknown; false: not now. */
bool ml_engine_schedule_overlapped(ml_engine *e, const ml_inflight_step *now);
/* Waits for the pending step, if any, and processes its outputs. */
void ml_engine_complete_pending(ml_engine *e);
/* outputs.c: processes an entry's results of a step; d: the first of its draws. */
void ml_engine_process_output(ml_engine *e, ml_batch_entry *entry, const ml_draw *d);
/* Aborts a request: removes it from its list, invokes its callback and frees it. */
void ml_engine_end(ml_engine *e, ml_request_list *from, ml_request *r, const char *why);

static inline bool ml_has_begun(const ml_request *r) {
    return r->queued_s >= 0;
}

#endif
