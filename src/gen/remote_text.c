/* remote_text.c - writes requests as JSON and parses replies. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/json.h"
#include "base/json_out.h"
#include "gen/remote_priv.h"

/* --- requests ------------------------------------------------------------------- */

static void write_stops(ml_json_out *o, const ml_gen_request *r) {
    if (r->n_stop_id) {
        ml_json_key(o, "stop_token_ids");
        ml_json_ids(o, r->stop_id, r->n_stop_id);
    }
    if (r->n_stop == 0)
        return;
    ml_json_key(o, "stop");
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < r->n_stop; i++)
        ml_json_str(o, r->stop[i]);
    ml_json_end(o, ']');
}

static void write_bias(ml_json_out *o, const ml_draw_opts *d) {
    char id[16];

    if (d->n_bias == 0)
        return;
    ml_json_key(o, "logit_bias");
    ml_json_begin(o, '{');
    for (int32_t i = 0; i < d->n_bias; i++) {
        snprintf(id, sizeof id, "%d", d->bias[i].id);
        ml_json_key(o, id);
        ml_json_float(o, d->bias[i].add);
    }
    ml_json_end(o, '}');
}

/* Hashes (seed, sample), as SplitMix64 does, to the one number of 31 bits SGLang takes. */
static uint64_t mixed_seed(const ml_draw_opts *d) {
    uint64_t h = (d->seed + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u + d->sample;
    h = (h ^ h >> 30) * 0x94d049bb133111ebu;
    return (h ^ h >> 31) & 0x7fffffff;
}

/* The random stream of a sample: (seed, sample); SGLang accepts one number only. */
static void write_seed(ml_json_out *o, const ml_remote_opts *opts, const ml_draw_opts *d) {
    static const char *const dist[] = {
        [ML_DIST_RAW] = "raw", [ML_DIST_MODEL] = "model", [ML_DIST_DRAWN] = "drawn"
    };

    ml_json_key(o, "sampling_seed");
    ml_json_unsigned(o, opts->sglang ? mixed_seed(d) : d->seed);
    if (opts->sglang)
        return;
    ml_json_key(o, "sample");
    ml_json_unsigned(o, d->sample);
    ml_json_put_word(o, "logprob_distribution", dist[d->dist]);
}

static void write_sampling(ml_json_out *o, const ml_remote_opts *opts,
                           const ml_gen_request *r) {
    const ml_draw_opts *d = &r->draw;

    ml_json_key(o, "sampling_params");
    ml_json_begin(o, '{');
    ml_json_put_float(o, "temperature", d->temperature);
    ml_json_put_float(o, "top_p", d->top_p);
    ml_json_put_int(o, "top_k", d->top_k ? d->top_k : -1);
    ml_json_put_float(o, "min_p", d->min_p);
    ml_json_put_float(o, "repetition_penalty", d->repetition);
    ml_json_put_float(o, "frequency_penalty", d->frequency);
    ml_json_put_float(o, "presence_penalty", d->presence);
    ml_json_put_int(o, "max_new_tokens", r->max_new);
    ml_json_put_int(o, "min_new_tokens", r->min_new);
    ml_json_put_bool(o, "ignore_eos", r->ignore_eos);
    write_stops(o, r);
    write_bias(o, d);
    if (r->grammar.kind)
        ml_json_put_str(o, ml_grammar_kind_name(r->grammar.kind), r->grammar.text);
    write_seed(o, opts, d);
    ml_json_end(o, '}');
}

/* logprob_start_len: servers list prompt tokens from it on, the first without a score.  With
 * ids per position SGLang counts positions from it, and Miles' requests have 0. */
static int32_t list_from(const ml_remote_opts *o, const ml_gen_request *r) {
    if (r->score_from < 0 || r->score_from >= r->n_prompt)
        return -1;
    return r->score_from > 0 && !(o->sglang && r->also_each) ? r->score_from - 1 : 0;
}

static int64_t also_ids(const ml_gen_request *r) {
    return (int64_t)(r->n_prompt - r->score_from) * r->n_also;
}

/* A list of ids for each token of the prompt; those before score_from have none. */
static void write_positions(ml_json_out *o, const ml_gen_request *r) {
    ml_json_key(o, "token_ids_logprob_positions");
    ml_json_begin(o, '[');
    for (int32_t t = 0; t < r->n_prompt; t++) {
        const int32_t *id = r->also + (int64_t)(t - r->score_from) * r->n_also;
        ml_json_begin(o, '[');
        for (int32_t k = 0; k < r->n_also && t >= r->score_from; k++)
            if (id[k] >= 0)
                ml_json_int(o, id[k]);
        ml_json_end(o, ']');
    }
    ml_json_end(o, ']');
}

static int by_id(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return (x > y) - (x < y);
}

/* The ids of all positions, each once, in ascending order: for servers that score the same
 * ids everywhere. */
static void write_union(ml_json_out *o, const ml_gen_request *r) {
    int64_t n = also_ids(r);
    ml_arena a;
    int32_t *id;

    ml_arena_init(&a, "ids of all positions");
    id = ML_NEW(&a, int32_t, n + 1);
    memcpy(id, r->also, (size_t)n * sizeof *id);
    qsort(id, (size_t)n, sizeof *id, by_id);
    ml_json_key(o, "token_ids_logprob");
    ml_json_begin(o, '[');
    for (int64_t i = 0; i < n; i++)
        if (id[i] >= 0 && (i == 0 || id[i] != id[i - 1]))
            ml_json_int(o, id[i]);
    ml_json_end(o, ']');
    ml_arena_release(&a);
}

static void write_also(ml_json_out *o, const ml_remote_opts *opts,
                       const ml_gen_request *r) {
    if (!r->n_also || (r->also_each && list_from(opts, r) < 0))
        return;
    if (r->also_each && opts->sglang && !opts->id_positions) {
        write_union(o, r);
    } else if (r->also_each) {
        write_positions(o, r);
    } else {
        ml_json_key(o, "token_ids_logprob");
        ml_json_ids(o, r->also, r->n_also);
    }
}

/* Routing records, by SGLang's names. */
static const char *const routing_request_field[ML_N_ROUTING] = { "return_routed_experts",
                                                                 "return_indexer_topk" };
static const char *const routing_reply_field[ML_N_ROUTING] = { "routed_experts",
                                                               "indexer_topk" };

void ml_remote_write(ml_text *out, const ml_remote_opts *opts, const ml_gen_request *r,
                     uint64_t ticket) {
    ml_json_out json = { .to = out }, *o = &json;
    char rid[32];

    snprintf(rid, sizeof rid, "miles-%llu", (unsigned long long)ticket);
    ml_json_begin(o, '{');
    ml_json_key(o, "input_ids");
    ml_json_ids(o, r->prompt, r->n_prompt);
    ml_json_put_word(o, "rid", rid);
    ml_json_put_bool(o, "return_logprob", true);
    if (opts->adapter)
        ml_json_put_word(o, "lora_path", opts->adapter);
    write_sampling(o, opts, r);
    ml_json_put_int(o, "logprob_start_len", list_from(opts, r));
    if (r->n_top)
        ml_json_put_int(o, "top_logprobs_num", r->n_top);
    write_also(o, opts, r);
    if (!opts->sglang) {
        ml_json_put_bool(o, "return_entropy", true);
    }
    if (r->support && opts->sglang)
        ml_json_put_bool(o, "return_sampling_mask", true);
    else if (r->support)
        ml_json_put_word(o, "return_sampling_mask", "packed");
    for (int i = 0; i < ML_N_ROUTING; i++)
        if (r->routed[i]) {
            ml_json_key(o, routing_request_field[i]);
            ml_json_bool(o, true);
        }
    if (r->routed_from)
        ml_json_put_int(o, "routed_experts_start_len", r->routed_from);
    ml_json_end(o, '}');
}

/* --- replies -------------------------------------------------------------------- */

/* A reply is untrusted input: every field is checked before use. */
typedef struct reader {
    const ml_json *meta;
    ml_arena *arena;
    const ml_gen_request *req;
    const ml_remote_opts *opts;
    const ml_spec *spec; /* or NULL */
    const char *url;
    int32_t n_lead; /* tokens of the prompt that are listed before the requested ones */
    bool ended;     /* the request was not aborted: no list may be shorter */
    ml_err *err;
    ml_status st;
} reader;

static void refuse(reader *d, const char *field, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Records what is wrong with a field; only the first error is kept. */
static void refuse(reader *d, const char *field, const char *format, ...) {
    char what[200];
    va_list args;

    va_start(args, format);
    vsnprintf(what, sizeof what, format, args);
    va_end(args);
    if (d->st == ML_OK)
        d->st = ml_fail(d->err, ML_EFORMAT, "%s: meta_info.%s of the reply %s", d->url,
                        field, what);
}

/* null becomes NaN: not known. */
static float number(reader *d, const ml_json *v, const char *field) {
    double x;
    if (v && v->type == ML_JSON_NULL)
        return NAN;
    if (v && ml_json_f64(v, &x) && isfinite((float)x))
        return (float)x;
    refuse(d, field, "has %s; expected a finite number", v ? ml_json_what(v) : "nothing");
    return NAN;
}

static int64_t integer(reader *d, const ml_json *v, const char *field) {
    int64_t x;
    if (v && ml_json_i64(v, &x) && x >= 0)
        return x;
    refuse(d, field, "has %s; expected a whole number >= 0",
           v ? ml_json_what(v) : "nothing");
    return 0;
}

static int32_t token_id(reader *d, const ml_json *v, const char *field) {
    int64_t id = integer(d, v, field), most = d->spec ? d->spec->n_vocab : INT32_MAX;

    if (id < most)
        return (int32_t)id;
    refuse(d, field, "has token %lld; the largest token id is %lld", (long long)id,
           (long long)most - 1);
    return 0;
}

/* [log-prob, id, ...] */
static void read_pair(reader *d, const ml_json *pair, float *logprob, int32_t *id,
                      const char *field) {
    const ml_json *first = pair && pair->type == ML_JSON_ARRAY ? pair->child : NULL;
    *logprob = number(d, first, field);
    *id = token_id(d, first ? first->next : NULL, field);
}

/* An array with an element for each of n tokens; NULL when it is absent. */
static const ml_json *list_of(reader *d, const char *field, int32_t n) {
    const ml_json *v = field ? ml_json_get(d->meta, field) : NULL;

    if (!v || v->type == ML_JSON_NULL)
        return NULL;
    if (v->type == ML_JSON_ARRAY && v->n == n)
        return v;
    refuse(d, field,
           "is %s of %d; expected an array with one element for each of %d tokens",
           ml_json_what(v), v->n, n);
    return NULL;
}

/* Lists of pairs, one list per token; `wanted` of each.  ids may be NULL. */
static void read_lists(reader *d, const char *field, int32_t n, int32_t wanted,
                       int32_t **ids, const float **logprobs) {
    const ml_json *list = wanted ? list_of(d, field, n) : NULL;
    float *logprob = ML_NEW(d->arena, float, (size_t)n *(size_t)wanted + 1);
    int32_t *id = ML_NEW(d->arena, int32_t, (size_t)n * (size_t)wanted + 1);
    const ml_json *of_token = list ? list->child : NULL;

    if (wanted && n && !list && d->ended)
        refuse(d, field, "is missing");
    for (int32_t i = 0; i < n && wanted; i++) {
        const ml_json *pair =
            of_token && of_token->type == ML_JSON_ARRAY ? of_token->child : NULL;
        for (int64_t k = (int64_t)i * wanted; k < (int64_t)(i + 1) * wanted; k++) {
            logprob[k] = NAN;
            id[k] = -1;
            if (pair)
                read_pair(d, pair, &logprob[k], &id[k], field);
            pair = pair ? pair->next : NULL;
        }
        of_token = of_token ? of_token->next : NULL;
    }
    if (ids)
        *ids = id;
    *logprobs = logprob;
}

/* The log-prob of an id in the list of a position; NaN: it is not there. */
static float logprob_in(reader *d, const ml_json *list, int32_t id, const char *field) {
    const ml_json *pair = list && list->type == ML_JSON_ARRAY ? list->child : NULL;

    for (; pair; pair = pair->next) {
        float logprob;
        int32_t other;
        read_pair(d, pair, &logprob, &other, field);
        if (other == id)
            return logprob;
    }
    if (d->ended)
        refuse(d, field, "has no log-prob of token %d at a position it was requested for",
               id);
    return NAN;
}

/* The log-probs of the ids that belong to each position, from lists that may have more. */
static const float *read_each(reader *d, const char *field, int32_t n) {
    const ml_gen_request *r = d->req;
    const ml_json *list = list_of(d, field, n), *of_token = list ? list->child : NULL;
    float *out = ML_NEW(d->arena, float, (size_t)n *(size_t)r->n_also + 1);

    if (n && !list && d->ended)
        refuse(d, field, "is missing");
    for (int32_t i = 0; i < n; i++) {
        const int32_t *id = r->also + (int64_t)(i - d->n_lead) * r->n_also;
        float *to = out + (int64_t)i * r->n_also;
        for (int32_t k = 0; k < r->n_also; k++)
            to[k] =
                i >= d->n_lead && id[k] >= 0 ? logprob_in(d, of_token, id[k], field) : NAN;
        of_token = of_token ? of_token->next : NULL;
    }
    return out;
}

/* Weight versions of the tokens; if the server sends none, its version at the end. */
static const uint64_t *read_versions(reader *d, const char *field, int32_t n,
                                     uint64_t now) {
    const ml_json *list = list_of(d, field, n), *v = list ? list->child : NULL;
    uint64_t *version = ML_NEW(d->arena, uint64_t, n + 1);

    for (int32_t i = 0; i < n; i++) {
        version[i] = v ? (uint64_t)integer(d, v, field) : now;
        v = v ? v->next : NULL;
    }
    return version;
}

static const float *read_entropy(reader *d, const char *field, int32_t n) {
    const ml_json *list = list_of(d, field, n), *v = list ? list->child : NULL;
    float *entropy = ML_NEW(d->arena, float, n + 1);

    for (int32_t i = 0; i < n; i++) {
        entropy[i] = v ? number(d, v, field) : NAN;
        v = v ? v->next : NULL;
    }
    return entropy;
}

static ml_scored read_scored(reader *d, const char *const field[5], int32_t most,
                             uint64_t now) {
    const ml_json *list = ml_json_get(d->meta, field[0]);
    int32_t n = list && list->type == ML_JSON_ARRAY ? list->n : 0, at = 0;
    int32_t *id, *top = NULL;
    float *logprob;
    ml_scored s;

    if (n > most) {
        refuse(d, field[0], "has %d tokens; expected at most %d", n, most);
        return (ml_scored){ 0 };
    }
    id = ML_NEW(d->arena, int32_t, n + 1);
    logprob = ML_NEW(d->arena, float, n + 1);
    s = (ml_scored){ .n = n, .id = id, .logprob = logprob };
    for (const ml_json *p = n ? list->child : NULL; p; p = p->next, at++)
        read_pair(d, p, &logprob[at], &id[at], field[0]);
    read_lists(d, field[1], n, d->req->n_top, &top, &s.top_logprob);
    if (d->req->also_each && d->req->n_also)
        s.also_logprob = read_each(d, field[2], n);
    else
        read_lists(d, field[2], n, d->req->n_also, NULL, &s.also_logprob);
    s.top_id = top;
    s.entropy = read_entropy(d, field[3], n);
    s.version = read_versions(d, field[4], n, now);
    return s;
}

/* One support as a list of ids in any order. */
static void read_ids(reader *d, const ml_json *list, const char *field, ml_text *out) {
    int64_t n = list->type == ML_JSON_ARRAY ? list->n : 0, at = 0;
    int32_t *id = ML_NEW(d->arena, int32_t, n + 1);

    for (const ml_json *e = n ? list->child : NULL; e; e = e->next)
        id[at++] = token_id(d, e, field);
    if (n)
        ml_support_add_ids(out, id, n);
    else
        refuse(d, field, "has a token without ids");
}

/* The records of n supports: base64, or lists of ids. */
static ml_str read_records(reader *d, const ml_json *v, const char *field, int32_t n) {
    ml_text lists = { 0 };
    ml_str out;

    if (v && v->type == ML_JSON_STRING) {
        char *bytes = ML_NEW(d->arena, char, v->text.len + 4);
        int64_t len = ml_base64_read(bytes, v->text);
        return (ml_str){ bytes, len > 0 ? (size_t)len : 0 };
    }
    v = list_of(d, field, n);
    if (!v)
        refuse(d, field, "is missing: the server does not return sampling masks");
    for (const ml_json *e = v ? v->child : NULL; e && d->st == ML_OK; e = e->next)
        read_ids(d, e, field, &lists);
    out = (ml_str){ ml_arena_str(d->arena, lists.ptr ? lists.ptr : "", lists.len),
                    lists.len };
    ml_text_release(&lists);
    return out;
}

/* The supports of the answer's tokens and the log-probs over them. */
static void read_supports(reader *d, ml_scored *s) {
    static const char *const field = "output_token_sampling_mask";
    static const char *const scores = "output_token_sampling_logprobs";
    const ml_json *list = list_of(d, scores, s->n), *v = list ? list->child : NULL;
    float *logprob = ML_NEW(d->arena, float, s->n + 1);
    ml_err why;

    s->supports = read_records(d, ml_json_get(d->meta, field), field, s->n);
    if (d->st == ML_OK && d->spec &&
        ml_support_check(s->supports, s->id, s->n, d->spec->n_vocab, &why) != ML_OK)
        refuse(d, field, "is not valid: %s", why.msg);
    for (int32_t i = 0; i < s->n; i++) {
        logprob[i] = number(d, v, scores);
        if (isnan(logprob[i]))
            refuse(d, scores, "has no log-prob for token %d of the response", i);
        v = v ? v->next : NULL;
    }
    s->support_logprob = logprob;
}

/* The answer's tokens; each must have a log-probability. */
static ml_scored read_answer(reader *d, uint64_t now) {
    static const char *const field[5] = { "output_token_logprobs", "output_top_logprobs",
                                          "output_token_ids_logprobs",
                                          "output_token_entropy", "output_token_versions" };
    const ml_json *list = ml_json_get(d->meta, field[0]);
    ml_scored s = read_scored(d, field, d->req->max_new, now);

    if (d->ended && d->req->max_new > 0 && (!list || list->type != ML_JSON_ARRAY))
        refuse(d, field[0], "is missing");
    for (int32_t i = 0; i < s.n; i++)
        if (isnan(s.logprob[i]))
            refuse(d, field[0], "has no log-prob for token %d of the response", i);
    if (d->req->support && s.n > 0)
        read_supports(d, &s);
    return s;
}

/* Drops n tokens before the first requested one. */
static ml_scored without_lead(ml_scored s, const ml_gen_request *r, int32_t n) {
    s.n -= n;
    s.id += n;
    s.logprob += n;
    s.entropy += n;
    s.version += n;
    s.top_id += (int64_t)n * r->n_top;
    s.top_logprob += (int64_t)n * r->n_top;
    s.also_logprob += (int64_t)n * r->n_also;
    return s;
}

/* The scored prompt tokens, which must equal those of the request. */
static ml_scored read_prompt(reader *d, uint64_t now) {
    static const char *const field[5] = { "input_token_logprobs", "input_top_logprobs",
                                          "input_token_ids_logprobs",
                                          "input_token_entropy" };
    const ml_gen_request *r = d->req;
    int32_t from = list_from(d->opts, r), n = from < 0 ? 0 : r->n_prompt - from;
    ml_scored s;

    if (from < 0)
        return (ml_scored){ 0 };
    d->n_lead = r->score_from - from;
    s = read_scored(d, field, n, now);
    if (s.n < n && d->ended)
        refuse(d, field[0], "has %d tokens; expected %d", s.n, n);
    for (int32_t i = 0; i < s.n; i++)
        if (s.id[i] != r->prompt[from + i])
            refuse(d, field[0], "has token %d, but the prompt has %d", s.id[i],
                   r->prompt[from + i]);
    return s.n >= d->n_lead ? without_lead(s, r, d->n_lead) : (ml_scored){ 0 };
}

/* SGLang's weight version is text; one that is not a number counts as 0. */
static uint64_t read_version(reader *d) {
    const ml_json *v = ml_json_get(d->meta, "weight_version");
    uint64_t version = 0;

    if (!v || (v->type != ML_JSON_STRING && v->type != ML_JSON_NUMBER))
        return 0;
    for (size_t i = 0; i < v->text.len; i++) {
        if (v->text.ptr[i] < '0' || v->text.ptr[i] > '9')
            return 0;
        if (i >= 18) {
            refuse(d, "weight_version", "has more than 18 digits");
            return 0;
        }
        version = version * 10 + (uint64_t)(v->text.ptr[i] - '0');
    }
    return version;
}

static void read_stop(reader *d, const ml_json *matched, ml_gen_update *u) {
    u->finish = ML_FINISH_TOKEN;
    u->matched = -1;
    if (matched && matched->type == ML_JSON_NUMBER)
        u->matched = token_id(d, matched, "finish_reason.matched");
    if (!matched || matched->type != ML_JSON_STRING)
        return;
    u->finish = ML_FINISH_STRING;
    for (int32_t i = 0; i < d->req->n_stop; i++)
        if (ml_str_eq(d->req->stop[i], matched->text))
            u->matched = i;
}

static void read_finish(reader *d, ml_gen_update *u) {
    const ml_json *reason = ml_json_get(d->meta, "finish_reason");
    const ml_json *type = ml_json_get(reason, "type");
    const ml_json *message = ml_json_get(reason, "message");
    ml_str word = type && type->type == ML_JSON_STRING ? type->text : (ml_str){ 0 };

    if (ml_str_is(word, "stop"))
        read_stop(d, ml_json_get(reason, "matched"), u);
    else if (ml_str_is(word, "length"))
        u->finish = ML_FINISH_LENGTH;
    else if (ml_str_is(word, "abort"))
        u->finish = ML_FINISH_ABORT;
    else
        refuse(d, "finish_reason.type", "is not stop, length or abort");
    if (u->finish == ML_FINISH_ABORT)
        u->message = message && message->type == ML_JSON_STRING ? message->text
                                                                : ml_str_of("aborted");
    d->ended = u->finish != ML_FINISH_ABORT;
}

static int64_t width_of(int64_t bytes, int64_t n_row) {
    int64_t one = n_row * (int64_t)sizeof(int32_t);
    return bytes > 0 && bytes % one == 0 ? bytes / one : 0;
}

/* Routing rows; their number follows from that of the tokens.  A server may also send a row
 * of the last token, which is ignored. */
static ml_routing read_routed(reader *d, ml_routing_kind route, int32_t n_token) {
    const char *field = routing_reply_field[route];
    const ml_json *v = ml_json_get(d->meta, field);
    int64_t want = d->spec ? ml_spec_routing_width(d->spec, route) : 0, bytes, width;
    int32_t n = n_token - 1 - d->req->routed_from, *row;

    if (!v || v->type != ML_JSON_STRING || n < 0) {
        refuse(d, field, "is not a routing record");
        return (ml_routing){ 0 };
    }
    row = ML_NEW(d->arena, int32_t, v->text.len / 4 + 1);
    bytes = ml_base64_read(row, v->text);
    if (n == 0)
        return (ml_routing){ 0 };
    width = width_of(bytes, n);
    if (!width || (d->spec && width != want))
        width = width_of(bytes, n + 1);
    if (width && (!d->spec || width == want))
        return (ml_routing){ .row = row, .n = n, .width = width };
    refuse(d, field, "is not the base64 routing record of %d tokens", n);
    return (ml_routing){ 0 };
}

/* Used in metrics only, so clamped instead of checked. */
static int32_t read_cached(const reader *d) {
    int64_t n = 0;

    (void)ml_json_i64(ml_json_get(d->meta, "cached_tokens"), &n);
    return n < 0 ? 0 : n > d->req->n_prompt ? d->req->n_prompt : (int32_t)n;
}

ml_status ml_remote_read(ml_gen_update *out, ml_arena *a, const ml_gen_request *r,
                         const ml_remote_opts *o, ml_str reply, const char *url,
                         ml_err *err) {
    const ml_json *root;
    reader d = { .arena = a, .req = r, .opts = o, .spec = o->spec, .url = url, .err = err };
    ml_status st = ml_json_parse(&root, a, reply, url, err);

    if (st != ML_OK)
        return st;
    if (root->type == ML_JSON_ARRAY && root->n == 1)
        root = root->child;
    d.meta = ml_json_get(root, "meta_info");
    if (!d.meta)
        return ml_fail(err, ML_EFORMAT, "%s: the reply has no meta_info", url);
    read_finish(&d, out);
    out->version = read_version(&d);
    out->answer = read_answer(&d, out->version);
    out->prompt = read_prompt(&d, out->version);
    for (int i = 0; i < ML_N_ROUTING; i++)
        if (r->routed[i] && out->answer.n > 0)
            out->routed[i] =
                read_routed(&d, (ml_routing_kind)i, r->n_prompt + out->answer.n);
    out->n_cached = read_cached(&d);
    return d.st;
}

/* The most ids that the reply lists per token. */
static size_t ids_of(const ml_remote_opts *o, const ml_gen_request *r) {
    enum { VOCAB = 1 << 20 };
    size_t all = o->spec ? (size_t)o->spec->n_vocab : VOCAB;

    if (!r->also_each || !o->sglang || o->id_positions || list_from(o, r) < 0)
        return (size_t)r->n_also;
    return (size_t)also_ids(r) < all ? (size_t)also_ids(r) : all;
}

size_t ml_remote_reply_bytes(const ml_gen_request *r, const ml_remote_opts *o) {
    enum { FIXED = 1 << 20, PER_TOKEN = 1024, PER_PAIR = 128 };
    const ml_spec *spec = o->spec;
    size_t n_scored = (size_t)r->max_new + (size_t)(list_from(o, r) < 0 ? 0 : r->n_prompt);
    size_t n_token = (size_t)r->max_new + (size_t)r->n_prompt;
    size_t pairs = (size_t)r->n_top + ids_of(o, r);
    size_t bytes = FIXED + n_scored * (PER_TOKEN + PER_PAIR * pairs);

    if (r->support && !spec)
        return SIZE_MAX;
    if (r->support) /* base64 of records, or ids of at most 10 characters */
        bytes +=
            (size_t)r->max_new * (o->sglang ? 12 * (size_t)spec->n_vocab
                                            : 2 * ml_support_record_max(spec->n_vocab));

    for (int i = 0; i < ML_N_ROUTING; i++) {
        if (r->routed[i] && !spec)
            return SIZE_MAX;
        if (r->routed[i]) /* base64 of 4-byte integers */
            bytes += n_token *
                     ((size_t)ml_spec_routing_width(spec, (ml_routing_kind)i) * 16 / 3 + 4);
    }
    return bytes;
}
