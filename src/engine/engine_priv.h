/* engine_priv.h - what the files of the engine share. */
#ifndef ML_ENGINE_ENGINE_PRIV_H
#define ML_ENGINE_ENGINE_PRIV_H

#include "engine/prefix_cache.h"
#include "engine/request.h"
#include "engine/routing_record.h"
#include "engine/state_slots.h"

/* A request's part of a step. */
typedef struct ml_batch_entry {
    ml_request *r;    /* NULL: it left meanwhile */
    int32_t n_row;    /* tokens n_kv .. n_kv + n_row - 1 */
    int32_t n_score;  /* prompt tokens scored by it */
    bool draws;       /* its last row draws a token */
    int32_t unknown;  /* tokens it goes on from that only the device knew: 0 or 1 */
    int32_t expected; /* the page behind which its state will be kept, or ML_NO_PAGE */
} ml_batch_entry;

/* A step, from being put together to its news. */
typedef struct ml_inflight_step {
    ml_batch_entry *entry; /* [max_running] */
    int32_t n_entry;
    ml_draw *draw; /* [loss rows] */
    int32_t n_draw;
} ml_inflight_step;

struct ml_engine {
    const ml_spec *spec;
    const ml_weights *weights;
    uint64_t version; /* of the weights when they were put in use */
    ml_backend *be;
    ml_engine_opts opts;
    ml_arena arena, kv_arena;
    ml_kv kv;
    bool has_kv;
    ml_prefix_cache pages;
    ml_state_slots slots;
    ml_routing_record routes;
    ml_plan *plan;
    ml_batch batch;
    ml_request_list waiting, running; /* both in the order of arrival */
    uint64_t n_arrival;
    bool draining; /* a switch waits for requests that have begun */
    bool full;     /* whoever waits found no room, and nobody has left since */

    ml_inflight_step inflight[2];
    ml_inflight_step *step;    /* being put together */
    ml_inflight_step *pending; /* begun, its news not told; or NULL */
    int32_t chunk_left, score_left;
    int32_t *target; /* [chunk] */
    ml_buf sample_scratch;
    ml_buf drawn; /* [loss rows] the tokens drawn last */

    ml_gen_stats stats;
};

/* Capacity of a step. */
ml_batch_caps ml_engine_caps(const ml_spec *s, const ml_engine_opts *o);

/* state.c: the state of recurrent layers; all do nothing for models without. */
/* Cuts what match_prefix found back to the last page with a copy of the state behind it.  False:
 * a longer prefix will have one after this step. */
bool ml_state_match(ml_engine *e, ml_request *r);
/* A slot for a request that begins, with the state behind its first n_kv tokens. */
void ml_state_begin(ml_engine *e, ml_request *r);
/* How many of the next n rows a entry should have, so that its state can be kept. */
int32_t ml_state_rows(const ml_engine *e, const ml_request *r, int32_t n);
/* The entry's rows are in the batch. */
void ml_state_schedule_rows(ml_engine *e, ml_batch_entry *entry);
/* And computed. */
void ml_state_finish(ml_engine *e, const ml_batch_entry *entry);

/* step.c: */
/* Gives the request's pages back and puts it in the queue again. */
void ml_engine_preempt(ml_engine *e, ml_request *r);
void ml_engine_free_pages(ml_engine *e, ml_request *r);
bool ml_engine_alloc_pages(ml_engine *e, ml_request *r, int32_t n); /* for n tokens */
/* Puts the pages that the first n tokens fill into the tree.  Their keys are written by the step
 * being put together or by earlier ones, so requests of the same step may read them already.
 * Where the tree has such a page from another request, `settled` says that no row of a pending
 * step writes to ours, and theirs takes its place; otherwise that waits. */
void ml_engine_cache_pages(ml_engine *e, ml_request *r, int32_t n, bool settled);
/* Might a request that waits join the next step? */
bool ml_engine_may_admit(const ml_engine *e);
/* Puts the step together that follows `now`, whose draws are not known; false: that must wait. */
bool ml_engine_schedule_overlapped(ml_engine *e, const ml_inflight_step *now);
/* Waits for a step that is under way, and tells its news. */
void ml_engine_complete_pending(ml_engine *e);
/* What a step found for a entry; d: the first of its draws. */
void ml_engine_process_output(ml_engine *e, const ml_batch_entry *entry, const ml_draw *d);
/* Takes a request out of its list, tells its owner and frees it. */
void ml_engine_end(ml_engine *e, ml_request_list *from, ml_request *r, const char *why);

static inline bool ml_has_begun(const ml_request *r) {
    return r->queued_s >= 0;
}

#endif
