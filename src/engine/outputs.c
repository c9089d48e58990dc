/* outputs.c - processes the results of a step and reports them to requests' callbacks. */
#include <math.h>

#include "engine/engine_priv.h"

/* n scores from the one at `at` on. */
static ml_scored scored_view(const ml_request *r, const ml_scores *s, const int32_t *id,
                             int32_t at, int32_t n) {
    size_t top = (size_t)at * (size_t)r->params.n_top;

    return (ml_scored){ .n = n,
                        .id = id,
                        .logprob = s->logprob + at,
                        .entropy = s->entropy + at,
                        .version = s->version + at,
                        .top_id = s->top_id + top,
                        .top_logprob = s->top_logprob + top,
                        .also_logprob =
                            s->also_logprob + (size_t)at * (size_t)r->params.n_also };
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
    e->group[r->group].n_request--;
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
    u->prompt = scored_view(r, &r->prompt, r->token + r->prompt_from, 0,
                            r->params.n_prompt - r->prompt_from);
    r->prompt_reported = true;
}

/* Makes a record of the bytes that the draw has written. */
static void add_support(ml_request *r, const ml_draw *d, int32_t k, ml_gen_update *u) {
    size_t n = ml_support_record(d->support, (size_t)d->n_support);

    r->answer.support_logprob[k] = d->support_logprob;
    u->answer.support_logprob = r->answer.support_logprob + k;
    u->answer.supports = (ml_str){ (const char *)d->support, n };
}

/* Appends the k-th token that the step drew to the request. */
static void add_token(ml_engine *e, ml_request *r, const ml_draw *d, int32_t k,
                      ml_gen_update *u) {
    r->answer.logprob[k] = d->logprob;
    r->answer.entropy[k] = d->entropy;
    r->answer.version[k] = e->version;
    u->answer = scored_view(r, &r->answer, r->token + r->n_token, k, 1);
    if (r->params.support)
        add_support(r, d, k, u);
    u->finish = ml_request_push(r, d->id, &u->matched);
    e->stats.n_answer_token++;
}

/* Reports the k-th token; false: the request ended. */
static bool put_token(ml_engine *e, const ml_batch_entry *entry, const ml_draw *d,
                      int32_t k) {
    ml_request *r = entry->r;
    ml_gen_update u = output_of(e, r);

    if (entry->draws && isnan(d->logprob)) {
        ml_engine_end(e, &e->running, r,
                      "the model's logits are NaN; its weights may be damaged");
        return false;
    }
    if (entry->draws && r->unmatched[0]) {
        ml_engine_end(e, &e->running, r, r->unmatched);
        return false;
    }
    add_prompt_output(r, &u);
    if (entry->draws)
        add_token(e, r, d, k, &u);
    else
        u.finish = ML_FINISH_LENGTH;
    if (u.finish != ML_FINISH_NOT)
        ml_routing_record_report(&e->routing_record, r, &u);
    r->fn(r->ud, &u);
    if (u.finish == ML_FINISH_NOT)
        return true;
    e->stats.n_finished++;
    if (e->opts.draft.ngram)
        ml_ngram_keep(&e->draft.ngram, r);
    leave(e, &e->running, r);
    return false;
}

/* The token after each row, as long as the input of the next one, a draft token, is the
 * token that was drawn. */
static void put_tokens(ml_engine *e, ml_batch_entry *entry, const ml_draw *d) {
    ml_request *r = entry->r;
    ml_state_slots *slots = ml_slots_of(e, r);
    const ml_draw *rest, *x = d;
    int32_t k = 0;
    bool right = true;

    e->stats.n_verify += entry->draws && e->opts.draft.n;
    e->stats.n_draft += entry->n_draft + entry->n_tree_draft;
    rest = ml_tree_choose(e, entry, d);
    for (; right; x = rest + k, k++) {
        right = k < entry->n_draft && r->token[r->n_token] == x->id;
        e->stats.n_accepted += right;
        if (k)
            ml_engine_cache_pages(e, r, r->n_kv, true);
        if (!put_token(e, entry, x, (int32_t)(x - d))) {
            ml_state_slots_drop(slots, entry->backup);
            entry->r = NULL;
            return;
        }
        r->n_kv += right;
        entry->n_right += right;
    }
    ml_state_accept(e, entry);
    if (entry->n_draft)
        ml_draft_learn(e, entry);
}

void ml_engine_process_output(ml_engine *e, ml_batch_entry *entry, const ml_draw *d) {
    ml_request *r = entry->r;

    for (int32_t k = 0; k < entry->n_score; k++, d++) {
        int32_t at = r->n_prompt_scored++;
        r->prompt.logprob[at] = d->logprob;
        r->prompt.entropy[at] = d->entropy;
        r->prompt.version[at] = e->version;
    }
    r->n_kv += entry->n_row;
    ml_engine_cache_pages(e, r, r->n_kv, true);
    ml_state_finish(e, entry);
    if (r->n_kv == r->n_token)
        put_tokens(e, entry, d);
}
