/* outputs.c - processes the results of a step and reports them to requests' callbacks. */
#include <math.h>

#include "engine/engine_priv.h"

static ml_scored scored_view(const ml_scores *s, const int32_t *id, int32_t n) {
    return (ml_scored){ .n = n,
                        .id = id,
                        .logprob = s->logprob,
                        .entropy = s->entropy,
                        .version = s->version,
                        .top_id = s->top_id,
                        .top_logprob = s->top_logprob,
                        .also_logprob = s->also_logprob };
}

static ml_gen_update output_of(const ml_engine *e, const ml_request *r) {
    return (ml_gen_update){ .ticket = r->ticket,
                            .n_cached = r->n_cached,
                            .n_preempt = r->n_preempt,
                            .version = e->version,
                            .queued_s = r->queued_s };
}

/* Frees a request that ended.  Its row in the pending step is discarded.  Its pages may be
 * reused at once: the stream orders later writes to them after that row. */
static void leave(ml_engine *e, ml_request_list *from, ml_request *r) {
    for (int32_t i = 0; e->pending && i < e->pending->n_entry; i++)
        if (e->pending->entry[i].r == r)
            e->pending->entry[i].r = NULL;
    ml_engine_free_pages(e, r);
    ml_list_remove(from, r);
    ml_request_free(r);
}

void ml_engine_end(ml_engine *e, ml_request_list *from, ml_request *r, const char *why) {
    ml_gen_update u = output_of(e, r);
    u.finish = ML_FINISH_ABORT;
    u.message = ml_str_of(why);
    ml_routing_record_report(&e->routing_record, r, &u);
    r->fn(r->ud, &u);
    e->stats.n_aborted++;
    leave(e, from, r);
}

static void add_prompt_output(ml_request *r, ml_gen_update *u) {
    if (r->prompt_reported)
        return;
    u->prompt = scored_view(&r->prompt, r->token + r->prompt_from,
                            r->params.n_prompt - r->prompt_from);
    r->prompt_reported = true;
}

/* Appends the drawn token to the request. */
static void add_token(ml_engine *e, ml_request *r, const ml_draw *d, ml_gen_update *u) {
    r->answer.logprob[0] = d->logprob;
    r->answer.entropy[0] = d->entropy;
    r->answer.version[0] = e->version;
    u->answer = scored_view(&r->answer, r->token + r->n_token, 1);
    u->finish = ml_request_push(r, d->id, &u->matched);
    e->stats.n_answer_token++;
}

void ml_engine_process_output(ml_engine *e, const ml_batch_entry *entry, const ml_draw *d) {
    ml_request *r = entry->r;
    ml_gen_update u = output_of(e, r);

    for (int32_t k = 0; k < entry->n_score; k++, d++) {
        int32_t at = r->n_prompt_scored++;
        r->prompt.logprob[at] = d->logprob;
        r->prompt.entropy[at] = d->entropy;
        r->prompt.version[at] = e->version;
    }
    r->n_kv += entry->n_row;
    ml_engine_cache_pages(e, r, r->n_kv, true);
    ml_state_finish(e, entry);
    if (r->n_kv < r->n_token)
        return;
    if (entry->draws && isnan(d->logprob)) {
        ml_engine_end(e, &e->running, r,
                      "the model's logits are NaN; its weights may be damaged");
        return;
    }
    if (entry->draws && r->unmatched[0]) {
        ml_engine_end(e, &e->running, r, r->unmatched);
        return;
    }
    add_prompt_output(r, &u);
    if (entry->draws)
        add_token(e, r, d, &u);
    else
        u.finish = ML_FINISH_LENGTH;
    if (u.finish != ML_FINISH_NOT)
        ml_routing_record_report(&e->routing_record, r, &u);
    r->fn(r->ud, &u);
    if (u.finish == ML_FINISH_NOT)
        return;
    e->stats.n_finished++;
    leave(e, &e->running, r);
}
