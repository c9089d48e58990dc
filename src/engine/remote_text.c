/* remote_text.c - requests to JSON, replies from JSON. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "base/json.h"
#include "base/json_out.h"
#include "engine/remote_priv.h"

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

/* One number of 31 bits, as SGLang wants it, for each (seed, sample). */
static uint64_t mixed_seed(const ml_draw_opts *d) {
    uint64_t h = (d->seed + 0x9e3779b97f4a7c15u) * 0xbf58476d1ce4e5b9u + d->sample;
    h = (h ^ h >> 30) * 0x94d049bb133111ebu;
    return (h ^ h >> 31) & 0x7fffffff;
}

/* What makes a sample's numbers its own; SGLang knows one number only. */
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
    write_seed(o, opts, d);
    ml_json_end(o, '}');
}

/* Servers list prompt tokens from here on, the first of them without a score. */
static int32_t list_from(const ml_gen_request *r) {
    if (r->score_from < 0 || r->score_from >= r->n_prompt)
        return -1;
    return r->score_from > 0 ? r->score_from - 1 : 0;
}

/* What the model chose, by SGLang's names. */
static const char *const route_asks[ML_ROUTES] = { "return_routed_experts",
                                                   "return_indexer_topk" };
static const char *const route_tells[ML_ROUTES] = { "routed_experts", "indexer_topk" };

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
    write_sampling(o, opts, r);
    ml_json_put_int(o, "logprob_start_len", list_from(r));
    if (r->n_top)
        ml_json_put_int(o, "top_logprobs_num", r->n_top);
    if (r->n_also) {
        ml_json_key(o, "token_ids_logprob");
        ml_json_ids(o, r->also, r->n_also);
    }
    if (!opts->sglang) {
        ml_json_put_bool(o, "return_entropy", true);
    }
    for (int i = 0; i < ML_ROUTES; i++)
        if (r->routed[i]) {
            ml_json_key(o, route_asks[i]);
            ml_json_bool(o, true);
        }
    if (r->routed_from)
        ml_json_put_int(o, "routed_experts_start_len", r->routed_from);
    ml_json_end(o, '}');
}

/* --- replies -------------------------------------------------------------------- */

typedef struct reader {
    const ml_json *meta;
    ml_arena *arena;
    const ml_gen_request *ask;
    const char *bad; /* the first field that is not what it should be, or NULL */
} reader;

static float number(reader *d, const ml_json *v, const char *field) {
    double x;
    if (v && v->type == ML_JSON_NULL)
        return NAN;
    if (v && ml_json_f64(v, &x))
        return (float)x;
    d->bad = d->bad ? d->bad : field;
    return NAN;
}

static int64_t integer(reader *d, const ml_json *v, const char *field) {
    int64_t x;
    if (v && ml_json_i64(v, &x))
        return x;
    d->bad = d->bad ? d->bad : field;
    return 0;
}

/* [log-prob, id, ...] */
static void read_pair(reader *d, const ml_json *pair, float *logprob, int32_t *id,
                      const char *field) {
    const ml_json *first = pair ? pair->child : NULL;
    *logprob = number(d, first, field);
    *id = (int32_t)integer(d, first ? first->next : NULL, field);
}

/* Lists of pairs, one list per token; `wanted` of each.  ids may be NULL. */
static void read_lists(reader *d, const char *field, int32_t n, int32_t wanted,
                       int32_t **ids, const float **logprobs) {
    const ml_json *list = ml_json_get(d->meta, field);
    float *logprob = ML_NEW(d->arena, float, (size_t)n *(size_t)wanted + 1);
    int32_t *id = ML_NEW(d->arena, int32_t, (size_t)n * (size_t)wanted + 1);
    const ml_json *of_token = list ? list->child : NULL;

    for (int32_t i = 0; i < n && wanted; i++) {
        const ml_json *pair =
            of_token && of_token->type == ML_JSON_ARRAY ? of_token->child : NULL;
        for (int32_t k = 0; k < wanted; k++) {
            logprob[i * wanted + k] = NAN;
            id[i * wanted + k] = -1;
            if (pair)
                read_pair(d, pair, &logprob[i * wanted + k], &id[i * wanted + k], field);
            pair = pair ? pair->next : NULL;
        }
        of_token = of_token ? of_token->next : NULL;
    }
    if (ids)
        *ids = id;
    *logprobs = logprob;
}

/* Versions of the tokens, where the server says them; else the one it had at the end. */
static const uint64_t *read_versions(reader *d, const char *field, int32_t n,
                                     uint64_t now) {
    const ml_json *list = field ? ml_json_get(d->meta, field) : NULL;
    const ml_json *v = list ? list->child : NULL;
    uint64_t *version = ML_NEW(d->arena, uint64_t, n + 1);

    for (int32_t i = 0; i < n; i++) {
        version[i] = now;
        if (v) {
            version[i] = (uint64_t)integer(d, v, field);
            v = v->next;
        }
    }
    return version;
}

static const float *read_entropy(reader *d, const char *field, int32_t n) {
    const ml_json *list = ml_json_get(d->meta, field), *v = list ? list->child : NULL;
    float *entropy = ML_NEW(d->arena, float, n + 1);

    for (int32_t i = 0; i < n; i++) {
        entropy[i] = v ? number(d, v, field) : NAN;
        v = v ? v->next : NULL;
    }
    return entropy;
}

static ml_scored read_scored(reader *d, const char *const field[5], uint64_t now) {
    const ml_json *list = ml_json_get(d->meta, field[0]);
    int32_t n = list && list->type == ML_JSON_ARRAY ? list->n : 0, at = 0;
    int32_t *id = ML_NEW(d->arena, int32_t, n + 1), *top = NULL;
    float *logprob = ML_NEW(d->arena, float, n + 1);
    ml_scored s = { .n = n, .id = id, .logprob = logprob };

    for (const ml_json *p = n ? list->child : NULL; p; p = p->next, at++)
        read_pair(d, p, &logprob[at], &id[at], field[0]);
    read_lists(d, field[1], n, d->ask->n_top, &top, &s.top_logprob);
    read_lists(d, field[2], n, d->ask->n_also, NULL, &s.also_logprob);
    s.top_id = top;
    s.entropy = read_entropy(d, field[3], n);
    s.version = read_versions(d, field[4], n, now);
    return s;
}

/* A weight version is text to SGLang; one that is no number counts as 0. */
static uint64_t read_version(reader *d) {
    const ml_json *v = ml_json_get(d->meta, "weight_version");
    return v && (v->type == ML_JSON_STRING || v->type == ML_JSON_NUMBER)
               ? strtoull(ml_arena_str(d->arena, v->text.ptr, v->text.len), NULL, 10)
               : 0;
}

static void read_stop(reader *d, const ml_json *matched, ml_gen_update *u) {
    u->finish = ML_FINISH_TOKEN;
    if (!matched || matched->type != ML_JSON_STRING) {
        u->matched = matched && matched->type == ML_JSON_NUMBER
                         ? (int32_t)integer(d, matched, "finish_reason.matched")
                         : -1;
        return;
    }
    u->finish = ML_FINISH_STRING;
    u->matched = -1;
    for (int32_t i = 0; i < d->ask->n_stop; i++)
        if (ml_str_eq(d->ask->stop[i], matched->text))
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
        d->bad = d->bad ? d->bad : "finish_reason.type";
    if (u->finish == ML_FINISH_ABORT)
        u->message = message && message->type == ML_JSON_STRING ? message->text
                                                                : ml_str_of("aborted");
}

/* Rows of what the model chose, whose number follows from that of the tokens.  A server may
 * send one of the last token too, which means nothing. */
static ml_routed read_routed(reader *d, const char *field, int32_t n_token) {
    const ml_json *v = ml_json_get(d->meta, field);
    int32_t n = n_token - 1 - d->ask->routed_from, *row;
    int64_t bytes, size = sizeof *row;

    if (!v || v->type != ML_JSON_STRING || n < 0) {
        d->bad = d->bad ? d->bad : field;
        return (ml_routed){ 0 };
    }
    row = ML_NEW(d->arena, int32_t, v->text.len / 4 + 1);
    bytes = ml_base64_read(row, v->text);
    if (n == 0)
        return (ml_routed){ 0 };
    if (bytes > 0 && bytes % (n * size) == 0)
        return (ml_routed){ .row = row, .n = n, .width = bytes / (n * size) };
    if (bytes > 0 && bytes % ((n + 1) * size) == 0)
        return (ml_routed){ .row = row, .n = n, .width = bytes / ((n + 1) * size) };
    d->bad = d->bad ? d->bad : field;
    return (ml_routed){ 0 };
}

/* Without the token that stands before the first one asked for. */
static ml_scored without_first(ml_scored s, const ml_gen_request *r) {
    s.n--;
    s.id++;
    s.logprob++;
    s.entropy++;
    s.version++;
    s.top_id += r->n_top;
    s.top_logprob += r->n_top;
    s.also_logprob += r->n_also;
    return s;
}

ml_status ml_remote_read(ml_gen_update *out, ml_arena *a, const ml_gen_request *r,
                         ml_str reply, const char *url, ml_err *err) {
    static const char *const answer[5] = { "output_token_logprobs", "output_top_logprobs",
                                           "output_token_ids_logprobs",
                                           "output_token_entropy",
                                           "output_token_versions" };
    static const char *const prompt[5] = { "input_token_logprobs", "input_top_logprobs",
                                           "input_token_ids_logprobs",
                                           "input_token_entropy" };
    const ml_json *root, *cached;
    reader d = { .arena = a, .ask = r };
    ml_status st = ml_json_parse(&root, a, reply, url, err);

    if (st != ML_OK)
        return st;
    if (root->type == ML_JSON_ARRAY && root->n == 1)
        root = root->child;
    d.meta = ml_json_get(root, "meta_info");
    if (!d.meta)
        return ml_fail(err, ML_EFORMAT, "%s: the reply has no meta_info", url);
    out->version = read_version(&d);
    out->answer = read_scored(&d, answer, out->version);
    if (list_from(r) >= 0)
        out->prompt = read_scored(&d, prompt, out->version);
    if (r->score_from > 0 && out->prompt.n > 0)
        out->prompt = without_first(out->prompt, r);
    read_finish(&d, out);
    for (int i = 0; i < ML_ROUTES; i++)
        if (r->routed[i] && out->answer.n > 0)
            out->routed[i] = read_routed(&d, route_tells[i], r->n_prompt + out->answer.n);
    cached = ml_json_get(d.meta, "cached_tokens");
    out->n_cached = cached ? (int32_t)integer(&d, cached, "cached_tokens") : 0;
    if (d.bad)
        return ml_fail(err, ML_EFORMAT, "%s: meta_info.%s of the reply is not as expected",
                       url, d.bad);
    return ML_OK;
}
