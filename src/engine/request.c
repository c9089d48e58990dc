#include "engine/request.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/clock.h"
#include "engine/ngram.h"
#include "engine/state_slots.h"
#include "model/batch.h"

/* --- checks ------------------------------------------------------------------- */

ml_status ml_request_check_ids(const char *what, const int32_t *id, int32_t n,
                               int64_t n_vocab, ml_err *err) {
    for (int32_t i = 0; i < n; i++)
        if (id[i] < 0 || id[i] >= n_vocab)
            return ml_fail(err, ML_EUSAGE, "%s %d is token %d; expected 0 to %lld", what, i,
                           id[i], (long long)n_vocab - 1);
    return ML_OK;
}

/* The number of ids in also. */
static int64_t also_ids(const ml_gen_request *r) {
    int32_t n = !r->also_each ? 1 : r->score_from < 0 ? 0 : r->n_prompt - r->score_from;
    return (int64_t)n * r->n_also;
}

static ml_status check_also(const ml_gen_request *r, int64_t n_vocab, ml_err *err) {
    if (!r->also_each)
        return ml_request_check_ids("also", r->also, r->n_also, n_vocab, err);
    if (r->max_new > 0)
        return ml_fail(err, ML_EUSAGE,
                       "ids per position are scored in a prompt only; expected "
                       "max_new_tokens 0, not %d",
                       r->max_new);
    for (int64_t i = 0; i < also_ids(r); i++)
        if (r->also[i] < -1 || r->also[i] >= n_vocab)
            return ml_fail(err, ML_EUSAGE, "also %lld is token %d; expected 0 to %lld",
                           (long long)i, r->also[i], (long long)n_vocab - 1);
    return ML_OK;
}

static ml_status check_draw(const ml_draw_opts *d, int64_t n_vocab, ml_err *err) {
    if (!(d->temperature >= 0) || !isfinite(d->temperature))
        return ml_fail(err, ML_EUSAGE, "temperature is %g; expected 0 or more",
                       (double)d->temperature);
    if (!(d->top_p > 0 && d->top_p <= 1))
        return ml_fail(err, ML_EUSAGE, "top_p is %g; expected > 0 and <= 1",
                       (double)d->top_p);
    if (!(d->min_p >= 0 && d->min_p <= 1))
        return ml_fail(err, ML_EUSAGE, "min_p is %g; expected 0 to 1", (double)d->min_p);
    if (d->top_k < 0)
        return ml_fail(err, ML_EUSAGE, "top_k is %d; expected 1 or more, or 0 for all",
                       d->top_k);
    if (!(d->repetition > 0) || !isfinite(d->repetition))
        return ml_fail(err, ML_EUSAGE, "repetition_penalty is %g; expected > 0",
                       (double)d->repetition);
    if (!isfinite(d->frequency) || !isfinite(d->presence))
        return ml_fail(err, ML_EUSAGE,
                       "frequency_penalty and presence_penalty must be numbers");
    for (int32_t i = 0; i < d->n_bias; i++)
        if (ml_request_check_ids("logit_bias", &d->bias[i].id, 1, n_vocab, err) != ML_OK)
            return ML_EUSAGE;
    return ML_OK;
}

static ml_status check_grammar(const ml_engine_opts *o, const ml_gen_request *r,
                               ml_err *err) {
    if (r->grammar.kind == ML_GRAMMAR_NONE)
        return ML_OK;
    if (!o->grammars)
        return ml_fail(err, ML_EUSAGE,
                       "\"%s\" needs a tokenizer, which this engine does not have",
                       ml_grammar_kind_name(r->grammar.kind));
    if (!o->n_eos && !r->n_stop_id)
        return ml_fail(err, ML_EUSAGE,
                       "\"%s\" needs a token that ends the answer, and the model has none: "
                       "set stop_token_ids",
                       ml_grammar_kind_name(r->grammar.kind));
    return ML_OK;
}

static ml_status check(const ml_engine_opts *o, int64_t n_vocab, const ml_gen_request *r,
                       ml_err *err) {
    if (r->n_prompt < 1)
        return ml_fail(err, ML_EUSAGE, "the prompt is empty; expected at least one token");
    if (r->n_prompt > o->context - (r->max_new > 0))
        return ml_fail(err, ML_EUSAGE,
                       "the prompt has %d tokens and the context length is %d: no tokens "
                       "are left for a response",
                       r->n_prompt, o->context);
    if (r->max_new < 0 || r->min_new < 0 || r->min_new > r->max_new)
        return ml_fail(
            err, ML_EUSAGE,
            "min_new_tokens is %d and max_new_tokens %d; expected 0 <= min <= max",
            r->min_new, r->max_new);
    if (r->score_from < -1 || r->score_from > r->n_prompt)
        return ml_fail(
            err, ML_EUSAGE,
            "log-probs requested from prompt token %d on, but the prompt has %d tokens",
            r->score_from, r->n_prompt);
    if (r->n_top < 0 || r->n_top + r->n_also > o->max_top || r->n_top > n_vocab)
        return ml_fail(err, ML_EUSAGE,
                       "%d top log-probs and %d selected ones requested; the maximum is %d",
                       r->n_top, r->n_also, o->max_top);
    for (int i = 0; i < ML_N_ROUTING; i++)
        if (r->routed[i] && !o->routed[i])
            return ml_fail(
                err, ML_EUSAGE,
                "the engine does not record routing: start it with --enable-return-%s",
                i == ML_ROUTING_EXPERTS ? "routed-experts" : "indexer-topk");
    if (r->routed_from < 0 || r->routed_from >= r->n_prompt)
        return ml_fail(err, ML_EUSAGE,
                       "routing requested from token %d on, but the prompt has %d tokens",
                       r->routed_from, r->n_prompt);
    if (r->n_stop > 0 && !o->tokenizer)
        return ml_fail(err, ML_EUSAGE,
                       "stop strings need a tokenizer, which this engine does not have; "
                       "use stop_token_ids");
    for (int32_t i = 0; i < r->n_stop; i++)
        if (r->stop[i].len == 0)
            return ml_fail(err, ML_EUSAGE, "stop string %d is empty", i);
    if (check_grammar(o, r, err) != ML_OK)
        return ML_EUSAGE;
    if (ml_request_check_ids("prompt", r->prompt, r->n_prompt, n_vocab, err) != ML_OK ||
        check_also(r, n_vocab, err) != ML_OK)
        return ML_EUSAGE;
    return check_draw(&r->draw, n_vocab, err);
}

/* --- memory ------------------------------------------------------------------- */

/* Two passes of lay_out: without memory it sums the sizes, then it assigns pointers. */
typedef struct block {
    unsigned char *ptr;
    size_t at;
} block;

static void *take(block *b, size_t n, size_t size) {
    void *p = b->ptr ? b->ptr + b->at : NULL;
    b->at += (n * size + 15) & ~(size_t)15;
    return p;
}

static void *copied(block *b, const void *from, int64_t n, size_t size) {
    void *to = take(b, (size_t)n, size);
    if (to && n)
        memcpy(to, from, (size_t)n * size);
    return to;
}

static void take_scores(block *b, ml_scores *s, size_t n, const ml_gen_request *r) {
    s->logprob = take(b, n, sizeof(float));
    s->entropy = take(b, n, sizeof(float));
    s->version = take(b, n, sizeof(uint64_t));
    s->top_id = take(b, n * (size_t)r->n_top, sizeof(int32_t));
    s->top_logprob = take(b, n * (size_t)r->n_top, sizeof(float));
    s->also_logprob = take(b, n * (size_t)r->n_also, sizeof(float));
}

static void take_supports(block *b, ml_scores *s, size_t n, int64_t n_vocab) {
    s->support_room = ml_support_record_max(n_vocab);
    s->support_logprob = take(b, n, sizeof(float));
    s->support = take(b, n * s->support_room, 1);
}

static void take_stops(block *b, ml_request *q, const ml_gen_request *r) {
    ml_str *stop = take(b, (size_t)r->n_stop, sizeof *stop);
    for (int32_t i = 0; i < r->n_stop; i++) {
        char *text = copied(b, r->stop[i].ptr, (int64_t)r->stop[i].len, 1);
        if (stop)
            stop[i] = (ml_str){ text, r->stop[i].len };
    }
    q->params.stop = stop;
}

/* The model's end tokens and the request's own. */
static void take_ends(block *b, ml_request *q, const ml_engine_opts *o,
                      const ml_gen_request *r) {
    int32_t n = r->ignore_eos && !r->grammar.kind ? 0 : o->n_eos;
    int32_t *end = take(b, (size_t)(n + r->n_stop_id), sizeof *end);
    if (end && n)
        memcpy(end, o->eos, (size_t)n * sizeof *end);
    if (end && r->n_stop_id)
        memcpy(end + n, r->stop_id, (size_t)r->n_stop_id * sizeof *end);
    q->end_id = end;
    q->n_end = n + r->n_stop_id;
}

static void take_branches(block *b, ml_request *q, const ml_engine_opts *o) {
    q->n_branch = o->draft.topk > 1 ? o->draft.topk - 1 : 0;
    q->branch = take(b, (size_t)q->n_branch, sizeof *q->branch);
    for (int32_t i = 0; i < q->n_branch; i++) {
        int32_t *token = take(b, (size_t)q->cap, sizeof *token);
        int32_t *page = take(b, (size_t)ml_kv_pages_for(q->cap), sizeof *page);
        if (q->branch)
            q->branch[i] = (ml_branch){ .token = token, .page = page };
    }
}

static ml_request *lay_out(block *b, const ml_engine_opts *o, int64_t n_vocab,
                           const ml_gen_request *r, ml_request *q) {
    int64_t all = (int64_t)r->n_prompt + r->max_new;
    ml_request *self = take(b, 1, sizeof *self);

    q->params = *r;
    q->cap = all < o->context ? (int32_t)all : o->context;
    q->n_token = r->n_prompt;
    q->prompt_from = r->score_from < 0 ? r->n_prompt : r->score_from;
    q->token = take(b, (size_t)q->cap, sizeof *q->token);
    q->page = take(b, (size_t)ml_kv_pages_for(q->cap), sizeof *q->page);
    take_branches(b, q, o);
    q->params.draw.bias = copied(b, r->draw.bias, r->draw.n_bias, sizeof(ml_bias));
    q->params.also = copied(b, r->also, also_ids(r), sizeof(int32_t));
    q->params.grammar.text.ptr =
        copied(b, r->grammar.text.ptr, (int32_t)r->grammar.text.len, 1);
    q->mask =
        take(b, r->grammar.kind ? (size_t)ml_mask_words(n_vocab) : 0, sizeof *q->mask);
    take_ends(b, q, o, r);
    take_stops(b, q, r);
    take_scores(b, &q->prompt, (size_t)(r->n_prompt - q->prompt_from), r);
    take_scores(b, &q->answer, 1 + (size_t)ml_draft_rows(&o->draft), r);
    if (r->support)
        take_supports(b, &q->answer, 1 + (size_t)ml_draft_rows(&o->draft), n_vocab);
    return self;
}

/* Token 0 has no context: its scores are NaN, its top ids -1. */
static void score_first_token(ml_request *q) {
    if (q->prompt_from != 0)
        return;
    q->prompt.logprob[0] = q->prompt.entropy[0] = NAN;
    for (int32_t i = 0; i < q->params.n_top; i++) {
        q->prompt.top_id[i] = -1;
        q->prompt.top_logprob[i] = NAN;
    }
    for (int32_t i = 0; i < q->params.n_also; i++)
        q->prompt.also_logprob[i] = NAN;
    q->n_prompt_scored = 1;
}

static ml_status open_matcher(ml_request *q, const ml_engine_opts *o, ml_err *err) {
    ml_grammar *g;
    ml_status st;

    if (q->params.grammar.kind == ML_GRAMMAR_NONE)
        return ML_OK;
    st = ml_grammar_get(&g, o->grammars, q->params.grammar, err);
    if (st != ML_OK)
        return st;
    q->matcher = ml_matcher_new(g);
    ml_grammar_release(g);
    return ML_OK;
}

ml_status ml_request_new(ml_request **out, const ml_engine_opts *opts, int64_t n_vocab,
                         const ml_gen_request *r, ml_err *err) {
    block b = { 0 };
    ml_request scratch = { 0 }, *q;

    if (check(opts, n_vocab, r, err) != ML_OK)
        return ML_EUSAGE;
    lay_out(&b, opts, n_vocab, r, &scratch);
    b.ptr = calloc(1, b.at);
    if (!b.ptr)
        return ml_fail(err, ML_ENOMEM, "out of memory for a request of %d tokens",
                       scratch.cap);
    b.at = 0;
    q = lay_out(&b, opts, n_vocab, r, &scratch);
    *q = scratch;
    if (open_matcher(q, opts, err) != ML_OK) {
        free(q);
        return ML_EUSAGE;
    }
    memcpy(q->token, r->prompt, (size_t)r->n_prompt * sizeof *q->token);
    q->params.prompt = NULL; /* from here on, use q->token */
    q->submitted_s = ml_clock_s();
    q->queued_s = -1;
    q->slot = ML_NO_SLOT;
    q->draft_len = opts->draft.n;
    q->draft_hits = 2; /* as if half of a few had been right */
    q->draft_tries = 4;
    if (opts->draft.ngram || opts->comm)
        q->prompt_hash = ml_ngram_hash(q->token, r->n_prompt);
    score_first_token(q);
    if (r->n_stop > 0) {
        q->detok = ml_detok_new(opts->tokenizer, false);
        q->stops = (ml_stops){ .stop = q->params.stop, .n = r->n_stop };
    }
    *out = q;
    return ML_OK;
}

void ml_request_free(ml_request *r) {
    if (!r)
        return;
    if (r->detok)
        ml_detok_free(r->detok);
    ml_matcher_free(r->matcher);
    ml_stops_release(&r->stops);
    ml_text_release(&r->piece);
    ml_text_release(&r->kept);
    free(r);
}

/* --- tokens ------------------------------------------------------------------- */

/* The model's end tokens are allowed where the text is complete, and nowhere else; a stop
 * token of the request may also be text.  Returns how many tokens are no longer allowed. */
static int32_t mask_ends(ml_request *r, bool complete) {
    int32_t n = 0;

    for (int32_t i = 0; i < r->n_end; i++) {
        uint32_t bit = 1u << (r->end_id[i] % 32), *word = &r->mask[r->end_id[i] / 32];
        if (complete)
            *word |= bit;
        else if (i < r->n_end - r->params.n_stop_id && *word & bit) {
            *word &= ~bit;
            n++;
        }
    }
    return n;
}

bool ml_request_mask(ml_request *r) {
    int32_t n_prompt = r->params.n_prompt;
    ml_matched m = { 0 };
    ml_err err;

    if (ml_matcher_mask(r->matcher, r->token + n_prompt, r->n_token - n_prompt, r->mask, &m,
                        &err) != ML_OK)
        ml_str_copy(r->unmatched, sizeof r->unmatched, ml_str_of(err.msg));
    else if (mask_ends(r, m.complete) == m.n && !m.complete)
        ml_str_copy(r->unmatched, sizeof r->unmatched,
                    ml_str_of("no token of the vocabulary continues the answer by its "
                              "grammar"));
    return m.complete && !m.n;
}

static int find_stop(ml_request *r, int32_t id) {
    r->piece.len = r->kept.len = 0;
    ml_detok_push(r->detok, id, &r->piece);
    return ml_stops_push(&r->stops, (ml_str){ r->piece.ptr, r->piece.len }, &r->kept);
}

ml_finish ml_request_push(ml_request *r, int32_t id, int32_t *matched) {
    int stop = -1;

    ML_BUG_IF(r->n_token >= r->cap);
    r->token[r->n_token++] = id;
    if (r->detok)
        stop = find_stop(r, id);
    for (int32_t i = 0; i < r->n_end; i++)
        if (r->end_id[i] == id) {
            *matched = id;
            return ML_FINISH_TOKEN;
        }
    if (stop >= 0) {
        *matched = stop;
        return ML_FINISH_STRING;
    }
    return r->n_token == r->cap ? ML_FINISH_LENGTH : ML_FINISH_NOT;
}

/* --- lists -------------------------------------------------------------------- */

void ml_list_remove(ml_request_list *l, ml_request *r) {
    *(r->prev ? &r->prev->next : &l->first) = r->next;
    *(r->next ? &r->next->prev : &l->last) = r->prev;
    r->prev = r->next = NULL;
    l->n--;
}

void ml_list_insert(ml_request_list *l, ml_request *r) {
    ml_request *before = l->last;
    while (before && before->arrival > r->arrival)
        before = before->prev;
    r->prev = before;
    r->next = before ? before->next : l->first;
    *(r->prev ? &r->prev->next : &l->first) = r;
    *(r->next ? &r->next->prev : &l->last) = r;
    l->n++;
}

ml_request *ml_list_find(const ml_request_list *l, uint64_t ticket) {
    ml_request *r = l->first;
    while (r && r->ticket != ticket)
        r = r->next;
    return r;
}
