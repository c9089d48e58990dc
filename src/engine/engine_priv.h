/* engine_priv.h - what the files of the engine share. */
#ifndef ML_ENGINE_ENGINE_PRIV_H
#define ML_ENGINE_ENGINE_PRIV_H

#include "engine/pages.h"
#include "engine/request.h"

/* A request's part of a step. */
typedef struct ml_lane {
    ml_request *r;
    int32_t n_row;   /* tokens n_kv .. n_kv + n_row - 1 */
    int32_t n_score; /* prompt tokens scored by it */
    bool draws;      /* its last row draws a token */
} ml_lane;

struct ml_engine {
    const ml_spec *spec;
    const ml_weights *weights;
    uint64_t version; /* of the weights when they were put in use */
    ml_backend *be;
    ml_engine_opts opts;
    ml_arena arena, kv_arena;
    ml_kv kv;
    bool has_kv;
    ml_pages pages;
    ml_plan *plan;
    ml_batch batch;
    ml_request_list waiting, running; /* both in the order of arrival */
    uint64_t n_arrival;
    bool draining; /* a switch waits for requests that have begun */

    /* The step being put together. */
    ml_lane *lane; /* [max_running] */
    int32_t n_lane, chunk_left, score_left;
    int32_t *target; /* [chunk] */
    ml_draw *draw;   /* [loss rows] */
    ml_buf sample_scratch;

    ml_gen_stats stats;
};

/* Capacity of a step. */
ml_batch_caps ml_engine_caps(const ml_spec *s, const ml_engine_opts *o);

/* step.c: */
/* Gives the request's pages back and puts it in the queue again. */
void ml_engine_retract(ml_engine *e, ml_request *r);
/* Takes a request out of its list, tells its owner and frees it. */
void ml_engine_end(ml_engine *e, ml_request_list *from, ml_request *r, const char *why);

static inline bool ml_has_begun(const ml_request *r) {
    return r->queued_s >= 0;
}

#endif
