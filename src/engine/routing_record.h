/* routing_record.h - the experts (or indexer keys) selected for each token in the KV cache.
 *
 * The selections of each token are stored in host memory, indexed like the KV pages:
 * requests that share a page share its records, and recomputing keys and values
 * overwrites them.  So when a request ends, it has the records of all its tokens, cached
 * prompts included, and they are those of the forward that computed its latest keys.
 *
 * thread: the engine's owner. */
#ifndef ML_ENGINE_ROUTING_RECORD_H
#define ML_ENGINE_ROUTING_RECORD_H

#include "engine/request.h"

typedef struct ml_routing_record {
    int32_t n_page; /* of a DP group; those of the next one follow */
    struct {
        int32_t n_layer, top_k; /* zeros: not recorded */
        int32_t *step;          /* [n_layer][rows of the step][top_k] */
        int32_t *page;          /* [page][ML_PAGE][n_layer][top_k] */
        int32_t *report;        /* [context][n_layer][top_k], a reported request's rows */
    } of[ML_N_ROUTING];
} ml_routing_record;

/* Bytes of the records of n_page pages; bytes of all buffers, for steps of n_token rows. */
size_t ml_routing_record_page_bytes(const ml_spec *s, const ml_engine_opts *o,
                                    int32_t n_page);
size_t ml_routing_record_bytes(const ml_spec *s, const ml_engine_opts *o, int32_t n_page,
                               int32_t n_token);

/* n_page: of each of n_group DP groups; n_token: the maximum rows of a step. */
ml_status ml_routing_record_open(ml_routing_record *r, const ml_spec *s,
                                 const ml_engine_opts *o, int32_t n_page, int32_t n_group,
                                 int32_t n_token, ml_err *err);
void ml_routing_record_close(ml_routing_record *r); /* a zeroed record is allowed */

/* Called before and after a step's forward pass. */
void ml_routing_record_bind(const ml_routing_record *r, ml_run *run);
void ml_routing_record_store(ml_routing_record *r, const ml_rows *rows);

/* Copies the records of a page of a DP group to another. */
void ml_routing_record_copy_page(ml_routing_record *r, int32_t group, int32_t to,
                                 int32_t from);

/* Sets u->routed to the records the request wants; rows of tokens without keys are -1. */
void ml_routing_record_report(ml_routing_record *r, const ml_request *q, ml_gen_update *u);

#endif
