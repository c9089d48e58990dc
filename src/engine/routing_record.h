/* routes.h - what a model chose for each token whose keys are in a page.
 *
 * Choices of experts (or of keys) lie beside the pages of keys and values, in the host's
 * memory, a row for each token: whoever shares a page shares them, and what is computed anew
 * is written anew.  So a request finds those of all its tokens at its end, of cached prompts
 * too, and they are those its last keys were computed with.
 *
 * thread: the engine's owner. */
#ifndef ML_ENGINE_ROUTING_RECORD_H
#define ML_ENGINE_ROUTING_RECORD_H

#include "engine/request.h"

typedef struct ml_routing_record {
    struct {
        int32_t n_layer, top_k; /* zeros: not kept */
        int32_t *step;          /* [n_layer][rows of the step][top_k] */
        int32_t *page;          /* [page][ML_PAGE][n_layer][top_k] */
        int32_t *told;          /* [context][n_layer][top_k] */
    } of[ML_N_ROUTING];
} ml_routing_record;

/* Bytes beside n_page pages, and of the rest. */
size_t ml_routing_record_page_bytes(const ml_spec *s, const ml_engine_opts *o,
                                    int32_t n_page);
size_t ml_routing_record_bytes(const ml_spec *s, const ml_engine_opts *o, int32_t n_page,
                               int32_t n_token);

/* For steps of n_token rows at most. */
ml_status ml_routing_record_open(ml_routing_record *r, const ml_spec *s,
                                 const ml_engine_opts *o, int32_t n_page, int32_t n_token,
                                 ml_err *err);
void ml_routing_record_close(ml_routing_record *r); /* zeros are fine */

/* Before and after a step's forward. */
void ml_routing_record_bind(const ml_routing_record *r, ml_run *run);
void ml_routing_record_store(ml_routing_record *r, const ml_rows *rows);

/* What the request asked for, as far as its keys go; rows it has no keys of are -1. */
void ml_routing_record_report(ml_routing_record *r, const ml_request *q, ml_gen_update *u);

#endif
