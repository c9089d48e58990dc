/* POST /v1/completions */
#include <math.h>
#include <stdlib.h>

#include "serve/openai.h"
#include "serve/output_form.h"

#define AT(field) offsetof(ml_openai_body, field)
#define OBJECT "text_completion"

static const ml_field rows[] = {
    { "prompt", ML_FIELD_JSON, AT(prompt) },
    { "logprobs", ML_FIELD_I32, AT(n_logprob), 0, ML_MAX_TOP },
    { "echo", ML_FIELD_BOOL, AT(echo) },
    { "best_of", ML_FIELD_I32, AT(best_of), 0, ML_MAX_CHOICES },
    { "suffix", ML_FIELD_REFUSE, .why = "fill-in-the-middle is not supported" },
    { "response_format", ML_FIELD_REFUSE, .why = "constrained decoding is not supported" },
    { "", ML_FIELD_MORE, .more = ml_openai_rows },
    { 0 },
};

/* --- reading ---------------------------------------------------------------- */

static bool is_number(const ml_json *v) {
    return v && v->type == ML_JSON_NUMBER;
}

/* "prompt" is a string, a list of strings, a list of ids, or a list of lists of ids. */
static int32_t count_prompts(const ml_json *p) {
    bool list = p && p->type == ML_JSON_ARRAY;
    return !p ? 0 : list && !is_number(p->child) ? p->n : 1;
}

static ml_status read_prompt(ml_job *j, const ml_json *v, ml_choice *c, ml_err *err) {
    if (v->type == ML_JSON_STRING)
        return ml_job_encode(j, v->text, true, &c->prompt, &c->n_prompt, err);
    if (v->type == ML_JSON_ARRAY)
        return ml_ids_read(&c->prompt, &c->n_prompt, v, j->server->opts.n_vocab,
                           INT32_MAX - 1, "\"prompt\"", &j->arena, err);
    return ml_fail(err, ML_EUSAGE,
                   "\"prompt\" is %s; expected a string, token ids, or a list of either",
                   ml_json_what(v));
}

/* With echo, an answer begins with its prompt. */
static ml_str prompt_text(ml_job *j, const ml_json *v, const ml_choice *c) {
    ml_text *t = &j->out;

    if (v->type == ML_JSON_STRING)
        return ml_str_keep(&j->arena, v->text);
    t->len = 0;
    ml_decode(j->server->opts.tokenizer, t, c->prompt, c->n_prompt,
              c->params->skip_special);
    return ml_str_keep(&j->arena, (ml_str){ t->ptr, t->len });
}

static ml_status read_prompts(ml_job *j, ml_openai_body *b, int32_t n_prompt, ml_err *err) {
    int32_t n = b->sampling.n;
    const ml_json *v =
        n_prompt == 1 && (b->prompt->type != ML_JSON_ARRAY || is_number(b->prompt->child))
            ? b->prompt
            : b->prompt->child;
    ml_status st = ML_OK;

    b->prompt_text = ML_NEW(&j->arena, ml_str, n_prompt);
    for (int32_t i = 0; i < n_prompt && !st; i++, v = v->next) {
        ml_choice *c = &j->choice[i * n];
        st = read_prompt(j, v, c, err);
        if (!st && b->echo)
            b->prompt_text[i] = prompt_text(j, v, c);
        c->n_top = b->n_logprob > 0 ? b->n_logprob : 0;
        c->logprob_start = b->echo && b->n_logprob >= 0 ? 0 : -1;
    }
    ml_openai_copy_choices(j);
    return st;
}

/* best_of answers are generated, and the n with the highest mean log-probability returned. */
static ml_status check_best_of(ml_openai_body *b, ml_err *err) {
    b->n_shown = b->sampling.n;
    if (!b->best_of || b->best_of == b->sampling.n)
        return ML_OK;
    if (b->best_of < b->sampling.n)
        return ml_fail(err, ML_EUSAGE,
                       "\"best_of\" is %d and \"n\" %d; expected a best_of of at least n",
                       (int)b->best_of, (int)b->sampling.n);
    if (b->stream)
        return ml_fail(err, ML_EUSAGE,
                       "\"best_of\" above \"n\" excludes \"stream\": the best answer is "
                       "known when all have ended");
    b->sampling.n = b->best_of;
    return ML_OK;
}

static ml_status read_request(ml_job *j, ml_err *err) {
    ml_status st = ml_openai_read(j, rows, err);
    ml_openai_body *b = j->ud;
    int32_t n_prompt = count_prompts(b->prompt);

    if (!st)
        st = ml_response_format_read(j, b, err);
    if (st)
        return st;
    st = check_best_of(b, err);
    if (st)
        return st;
    if (n_prompt < 1 || n_prompt > ML_MAX_CHOICES)
        return ml_fail(err, ML_EUSAGE,
                       "expected \"prompt\": a string, token ids, or a list of either");
    if (!j->server->opts.tokenizer)
        return ml_fail(err, ML_EUSAGE,
                       "this endpoint returns text and needs a tokenizer, which this "
                       "server does not have: use /generate");
    if (b->max_tokens < 0)
        b->sampling.max_new = 16;
    ml_server_new_id(j->server, "cmpl-", j->id, sizeof j->id);
    st = ml_openai_choices(j, n_prompt, err);
    return st ? st : read_prompts(j, b, n_prompt, err);
}

/* --- writing ---------------------------------------------------------------- */

static int64_t characters(ml_str s) {
    int64_t n = 0;

    for (size_t i = 0; i < s.len; i++)
        n += ((unsigned char)s.ptr[i] & 0xC0) != 0x80;
    return n;
}

/* The tokens of a choice in "logprobs": the prompt's, with echo, then the answer's. */
typedef struct logprob_view {
    const ml_choice *c;
    ml_scored prompt, answer;
    /* unscored prompt tokens (0 or 1); scored ones; first answer token */
    int32_t n_lead, n_prompt, from;
} logprob_view;

static logprob_view view_logprobs(const ml_choice *c, int32_t from) {
    logprob_view t = { .c = c,
                       .prompt = ml_logprob_buffer_view(&c->scored),
                       .answer = ml_logprob_buffer_view(&c->answer),
                       .from = from };

    if (c->logprob_start >= 0 && from == 0) {
        t.n_lead = 1;
        t.n_prompt = t.prompt.n;
    }
    return t;
}

static int32_t n_logprob(const logprob_view *t) {
    return t->n_lead + t->n_prompt + t->answer.n - t->from;
}

/* Returns the id of token i; its scores are (*s)[*at], or *s is NULL. */
static int32_t logprob_token(const logprob_view *t, int32_t i, const ml_scored **s,
                             int32_t *at) {
    *s = NULL;
    if (i < t->n_lead)
        return t->c->prompt[t->c->logprob_start];
    i -= t->n_lead;
    *s = i < t->n_prompt ? &t->prompt : &t->answer;
    *at = i < t->n_prompt ? i : i - t->n_prompt + t->from;
    return (*s)->id[*at];
}

static void write_tokens(const logprob_view *t, ml_json_out *o) {
    const ml_scored *s;
    int32_t at = 0;

    ml_json_key(o, "tokens");
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < n_logprob(t); i++)
        ml_token_text(t->c->job->server, logprob_token(t, i, &s, &at), o);
    ml_json_end(o, ']');
    ml_json_key(o, "token_logprobs");
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < n_logprob(t); i++) {
        logprob_token(t, i, &s, &at);
        if (s)
            ml_json_float(o, s->logprob[at]);
        else
            ml_json_null(o);
    }
    ml_json_end(o, ']');
}

/* {"token text": log-prob}; ml_json_key takes no ml_str, so keys are written as values. */
static void write_top(const logprob_view *t, const ml_scored *s, int32_t at,
                      ml_json_out *o) {
    const ml_choice *c = t->c;

    ml_json_begin(o, '{');
    for (int32_t k = 0; k < c->n_top; k++) {
        int64_t i = (int64_t)at * c->n_top + k;
        ml_token_text(c->job->server, s->top_id[i], o);
        ml_text_add(o->to, ": ", 2);
        o->comma = false;
        ml_json_float(o, s->top_logprob[i]);
    }
    ml_json_end(o, '}');
}

static void write_tops(const logprob_view *t, ml_json_out *o) {
    const ml_scored *s;
    int32_t at = 0;

    ml_json_key(o, "top_logprobs");
    ml_json_begin(o, '[');
    for (int32_t i = 0; t->c->n_top && i < n_logprob(t); i++) {
        logprob_token(t, i, &s, &at);
        if (s)
            write_top(t, s, at, o);
        else
            ml_json_null(o);
    }
    ml_json_end(o, ']');
}

/* Where each token begins in the text, in characters. */
static void write_offsets(const logprob_view *t, int64_t offset, ml_json_out *o) {
    const ml_scored *s;
    int32_t at = 0;

    ml_json_key(o, "text_offset");
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < n_logprob(t); i++) {
        int32_t id = logprob_token(t, i, &s, &at);
        ml_text text = { 0 };
        ml_json_int(o, offset);
        ml_decode(t->c->job->server->opts.tokenizer, &text, &id, 1, false);
        offset += characters((ml_str){ text.ptr, text.len });
        ml_text_release(&text);
    }
    ml_json_end(o, ']');
}

static void write_logprobs(const ml_choice *c, int32_t from, ml_json_out *o) {
    logprob_view t = view_logprobs(c, from);

    ml_json_begin(o, '{');
    write_tokens(&t, o);
    write_tops(&t, o);
    write_offsets(&t, from ? characters((ml_str){ c->text.ptr, c->sent_text }) : 0, o);
    ml_json_end(o, '}');
}

static void write_text(const ml_choice *c, bool first, ml_json_out *o) {
    const ml_openai_body *b = c->job->ud;
    ml_text text = { 0 };
    ml_str echo = b->prompt_text[c->index / b->sampling.n];

    if (b->echo && first)
        ml_text_add(&text, echo.ptr, echo.len);
    ml_text_add(&text, c->text.len ? c->text.ptr + c->sent_text : "",
                c->text.len - c->sent_text);
    ml_json_str(o, (ml_str){ text.ptr, text.len });
    ml_text_release(&text);
}

/* Writes the part of a choice that has not been sent yet. */
static void write_choice(const ml_choice *c, int32_t index, bool first, ml_json_out *o) {
    const ml_openai_body *b = c->job->ud;
    ml_scored v = ml_logprob_buffer_view(&c->answer);

    ml_json_begin(o, '{');
    ml_json_key(o, "index");
    ml_json_int(o, index);
    ml_json_key(o, "text");
    write_text(c, first, o);
    ml_json_key(o, "logprobs");
    if (b->n_logprob >= 0)
        write_logprobs(c, c->sent_tokens, o);
    else
        ml_json_null(o);
    ml_openai_finish(c, NULL, o);
    if (b->token_ids) {
        ml_json_key(o, "token_ids");
        ml_json_ids(o, v.id ? v.id + c->sent_tokens : NULL, v.n - c->sent_tokens);
    }
    if (first && (b->token_ids || b->prompt_ids)) {
        ml_json_key(o, "prompt_token_ids");
        ml_json_ids(o, c->prompt, c->n_prompt);
    }
    if (b->meta_info && c->finish != ML_FINISH_NOT) {
        ml_json_key(o, "meta_info");
        ml_meta_info_write(c, (ml_meta_opts){ 0 }, o);
    }
    ml_json_end(o, '}');
}

/* Log-probability per token; an answer without tokens is the worst. */
static double mean_logprob(const ml_choice *c) {
    ml_scored v = ml_logprob_buffer_view(&c->answer);
    double sum = 0;

    for (int32_t i = 0; i < v.n; i++)
        sum += (double)v.logprob[i];
    return v.n ? sum / v.n : -(double)INFINITY;
}

typedef struct ranked {
    double mean;
    int32_t at;
} ranked;

/* The better one first; of equal ones the first. */
static int by_mean(const void *x, const void *y) {
    const ranked *a = x, *b = y;

    if (a->mean != b->mean)
        return a->mean > b->mean ? -1 : 1;
    return a->at < b->at ? -1 : 1;
}

/* The best n_shown of the answers to a prompt. */
static void write_best(ml_job *j, int32_t prompt, ml_json_out *o) {
    const ml_openai_body *b = j->ud;
    int32_t n = b->sampling.n;
    const ml_choice *c = &j->choice[prompt * n];
    ranked *all = ML_NEW(&j->arena, ranked, n);

    for (int32_t i = 0; i < n; i++)
        all[i] = (ranked){ mean_logprob(&c[i]), i };
    qsort(all, (size_t)n, sizeof *all, by_mean);
    for (int32_t i = 0; i < b->n_shown; i++)
        write_choice(&c[all[i].at], prompt * b->n_shown + i, true, o);
}

static void write_whole(ml_job *j, ml_json_out *o) {
    const ml_openai_body *b = j->ud;

    ml_openai_begin(j, OBJECT, o);
    for (int32_t i = 0; i < j->n_choice; i++)
        if (b->n_shown == b->sampling.n)
            write_choice(&j->choice[i], j->choice[i].index, true, o);
        else if (i % b->sampling.n == 0)
            write_best(j, i / b->sampling.n, o);
    ml_openai_end(j, true, o);
}

static void write_piece(ml_job *j, ml_choice *c) {
    const ml_openai_body *b = j->ud;
    ml_json_out o = { .to = &j->out };
    bool first = !c->begun;
    bool has_output = first || c->finish != ML_FINISH_NOT || c->text.len > c->sent_text ||
                      ((b->n_logprob >= 0 || b->token_ids) && c->answer.n > c->sent_tokens);

    if (!has_output)
        return;
    j->out.len = 0;
    ml_openai_begin(j, OBJECT, &o);
    write_choice(c, c->index, first, &o);
    ml_openai_end(j, b->usage_each, &o);
    c->begun = true;
    c->sent_text = c->text.len;
    c->sent_tokens = c->answer.n;
    ml_job_send(j, &j->out);
}

static void write_last(ml_job *j) {
    ml_openai_last(j, OBJECT);
}

static const ml_api api = { .path = "/v1/completions",
                            .read = read_request,
                            .whole = write_whole,
                            .piece = write_piece,
                            .last = write_last };

void ml_serve_completions(ml_server *s, ml_http_call *call) {
    ml_job_serve(s, call, &api);
}
