#include "rl/sample.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "backend/support.h"
#include "base/base64.h"
#include "base/json_out.h"
#include "io/zst.h"
#include "rl/sample_torch.h"

#define MAX_BYTES ((size_t)16 << 30) /* limit of a recorded rollout, uncompressed */
#define MAX_DIGITS 18                /* of a weight version */

static const char *const status_names[] = {
    [ML_SAMPLE_PENDING] = "pending",     [ML_SAMPLE_COMPLETED] = "completed",
    [ML_SAMPLE_TRUNCATED] = "truncated", [ML_SAMPLE_ABORTED] = "aborted",
    [ML_SAMPLE_FAILED] = "failed",
};
#define N_STATUS ((int)(sizeof status_names / sizeof *status_names))

const char *ml_sample_status_name(ml_sample_status s) {
    return status_names[s];
}

/* --- writing ---------------------------------------------------------------------- */

static void write_mask(ml_json_out *o, const uint8_t *v, int32_t n) {
    ml_json_key(o, "loss_mask");
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < n; i++)
        ml_json_int(o, v[i]);
    ml_json_end(o, ']');
}

static void write_floats(ml_json_out *o, const char *key, const float *v, int32_t n) {
    if (!v)
        return;
    ml_json_key(o, key);
    ml_json_floats(o, v, n);
}

static void write_json(ml_json_out *o, const char *key, ml_str json) {
    if (!json.len)
        return;
    ml_json_key(o, key);
    ml_json_raw(o, json);
}

/* End of the run of equal versions that begins here. */
static int32_t run_end(const uint64_t *v, int32_t n, int32_t begin) {
    int32_t end = begin;

    while (end < n && v[end] == v[begin])
        end++;
    return end;
}

/* Run-length encoding: the versions, and the number of tokens of each. */
static void write_versions(ml_json_out *o, const uint64_t *v, int32_t n) {
    char word[24];

    ml_json_key(o, "weight_versions");
    ml_json_begin(o, '[');
    for (int32_t i = 0; i < n; i = run_end(v, n, i)) {
        snprintf(word, sizeof word, "%llu", (unsigned long long)v[i]);
        ml_json_word(o, word);
    }
    ml_json_end(o, ']');
    ml_json_key(o, "weight_version_tokens");
    ml_json_begin(o, '[');
    for (int32_t i = 0, end; i < n; i = end) {
        end = run_end(v, n, i);
        ml_json_int(o, end - i);
    }
    ml_json_end(o, ']');
}

static const char *const route_keys[ML_N_ROUTING] = { "rollout_routed_experts",
                                                      "rollout_indexer_topk" };

/* A row for each token but the last, in base64; unknown entries are -1. */
static void write_routed(ml_json_out *o, const char *key, const ml_routing *r,
                         int32_t n_token) {
    ml_text rows = { 0 }, text = { 0 };

    for (int32_t t = 0; t < n_token - 1; t++)
        for (int64_t i = 0; i < r->width; i++) {
            int32_t x = t < r->n ? r->row[t * r->width + i] : -1;
            ml_text_add(&rows, (const char *)&x, sizeof x);
        }
    ml_base64_write(&text, rows.ptr, rows.len);
    ml_json_put_str(o, key, (ml_str){ text.ptr, text.len });
    ml_text_release(&rows);
    ml_text_release(&text);
}

static void write_supports(ml_json_out *o, ml_str records) {
    ml_text text = { 0 };

    ml_base64_write(&text, records.ptr, records.len);
    ml_json_put_str(o, "rollout_sampling_mask", (ml_str){ text.ptr, text.len });
    ml_text_release(&text);
}

static void write_parts(ml_json_out *o, const ml_sample *s) {
    ml_json_key(o, "reward_parts");
    ml_json_begin(o, '{');
    for (int32_t i = 0; i < s->n_part; i++) {
        ml_json_key(o, s->part[i].name);
        ml_json_exact(o, s->part[i].value);
    }
    ml_json_end(o, '}');
}

void ml_sample_write(ml_text *to, const ml_sample *s) {
    ml_json_out json = { .to = to }, *o = &json;

    ml_json_begin(o, '{');
    ml_json_put_int(o, "group_index", s->group);
    ml_json_put_int(o, "index", s->index);
    ml_json_put_int(o, "rollout_id", s->rollout);
    ml_json_put_int(o, "row", s->row);
    ml_json_put_str(o, "prompt", s->prompt);
    ml_json_key(o, "tokens");
    ml_json_ids(o, s->token, s->n_token);
    ml_json_put_str(o, "response", s->response);
    ml_json_put_int(o, "response_length", s->n_response);
    write_json(o, "label", s->label);
    write_json(o, "metadata", s->metadata);
    if (s->has_reward) {
        ml_json_key(o, "reward");
        ml_json_exact(o, s->reward);
    }
    if (s->n_part)
        write_parts(o, s);
    if (s->mask)
        write_mask(o, s->mask, s->n_response);
    if (s->version)
        write_versions(o, s->version, s->n_response);
    write_floats(o, "rollout_log_probs", s->logprob, s->n_response);
    write_floats(o, "teacher_log_probs", s->teacher_logprob, s->n_response);
    write_floats(o, "opd_reverse_kl", s->opd_reverse_kl, s->n_response);
    for (int i = 0; i < ML_N_ROUTING; i++)
        if (s->routed[i].n)
            write_routed(o, route_keys[i], &s->routed[i], s->n_token);
    if (s->supports.len)
        write_supports(o, s->supports);
    ml_json_put_bool(o, "remove_sample", s->remove);
    ml_json_put_str(o, "status", ml_str_of(status_names[s->status]));
    ml_json_put_int(o, "n_turn", s->n_turn);
    ml_json_end(o, '}');
}

ml_status ml_samples_save(const char *path, const ml_sample *const *s, int64_t n,
                          ml_err *err) {
    ml_text all = { 0 };
    ml_status st;

    for (int64_t i = 0; i < n; i++) {
        ml_sample_write(&all, s[i]);
        ml_text_add(&all, "\n", 1);
    }
    st = ml_zst_write(path, (ml_str){ all.ptr, all.len }, err);
    ml_text_release(&all);
    return st;
}

/* --- copying ---------------------------------------------------------------------- */

static void *copy_array(ml_arena *a, const void *from, int32_t n, size_t size) {
    void *to = from ? ml_arena_take(a, (size_t)n + 1, size) : NULL;
    if (to)
        memcpy(to, from, (size_t)n * size);
    return to;
}

static ml_str copy_text(ml_arena *a, ml_str s) {
    return s.len ? (ml_str){ ml_arena_str(a, s.ptr, s.len), s.len } : s;
}

void ml_sample_copy(ml_sample *out, ml_arena *a, const ml_sample *s) {
    *out = *s;
    out->prompt = copy_text(a, s->prompt);
    out->response = copy_text(a, s->response);
    out->label = copy_text(a, s->label);
    out->metadata = copy_text(a, s->metadata);
    out->token = copy_array(a, s->token, s->n_token, sizeof *s->token);
    out->mask = copy_array(a, s->mask, s->n_response, sizeof *s->mask);
    out->logprob = copy_array(a, s->logprob, s->n_response, sizeof *s->logprob);
    out->version = copy_array(a, s->version, s->n_response, sizeof *s->version);
    out->teacher_logprob =
        copy_array(a, s->teacher_logprob, s->n_response, sizeof *s->teacher_logprob);
    out->opd_reverse_kl =
        copy_array(a, s->opd_reverse_kl, s->n_response, sizeof *s->opd_reverse_kl);
    out->supports = copy_text(a, s->supports);
    for (int i = 0; i < ML_N_ROUTING; i++)
        out->routed[i].row = copy_array(a, s->routed[i].row, s->routed[i].n,
                                        (size_t)s->routed[i].width * sizeof(int32_t));
}

/* --- reading ---------------------------------------------------------------------- */

typedef struct reader {
    ml_arena *a;
    const ml_json *doc;
    const char *name;
    ml_err *err;
    ml_status st;
} reader;

static void complain(reader *r, const ml_json *v, const char *key, const char *want) {
    if (r->st == ML_OK)
        r->st =
            ml_fail(r->err, ML_EFORMAT, "%s:%u: \"%s\" is %s; expected %s", r->name,
                    v ? v->line : r->doc->line, key, v ? ml_json_what(v) : "missing", want);
}

static const ml_json *field(const reader *r, const char *key) {
    const ml_json *v = ml_json_get(r->doc, key);
    return v && v->type != ML_JSON_NULL ? v : NULL;
}

static int64_t read_int(reader *r, const char *key, int64_t absent) {
    const ml_json *v = field(r, key);
    int64_t x = absent;
    if (v && !ml_json_i64(v, &x))
        complain(r, v, key, "a whole number");
    return x;
}

/* An array of n numbers; NULL if absent. */
static const ml_json *read_array(reader *r, const char *key, int32_t n) {
    const ml_json *v = field(r, key);
    if (v && (v->type != ML_JSON_ARRAY || v->n != n)) {
        complain(r, v, key, "an array with one element per response token");
        return NULL;
    }
    return v;
}

static float *read_floats(reader *r, const char *key, int32_t n) {
    const ml_json *v = read_array(r, key, n);
    float *out = v ? ML_NEW(r->a, float, n + 1) : NULL;
    int32_t i = 0;

    for (const ml_json *e = v ? v->child : NULL; e; e = e->next, i++) {
        double x = (double)NAN;
        if (e->type != ML_JSON_NULL && !ml_json_f64(e, &x))
            complain(r, e, key, "numbers");
        out[i] = (float)x;
    }
    return out;
}

static uint8_t *read_mask(reader *r, int32_t n) {
    const ml_json *v = read_array(r, "loss_mask", n);
    uint8_t *out = v ? ML_NEW(r->a, uint8_t, n + 1) : NULL;
    int32_t i = 0;

    for (const ml_json *e = v ? v->child : NULL; e; e = e->next) {
        int64_t x = 0;
        if (!ml_json_i64(e, &x) || x < 0 || x > 1)
            complain(r, e, "loss_mask", "0 and 1");
        out[i++] = (uint8_t)x;
    }
    return out;
}

/* Without lengths (Miles' own records) a single version applies to all tokens; several are
 * ignored. */
static uint64_t *read_versions(reader *r, int32_t n) {
    const ml_json *v = field(r, "weight_versions"),
                  *len = field(r, "weight_version_tokens");
    const ml_json *e = v && v->type == ML_JSON_ARRAY ? v->child : NULL;
    const ml_json *k = len && len->type == ML_JSON_ARRAY ? len->child : NULL;
    const bool counted = k != NULL;
    uint64_t *out;
    int32_t at = 0;

    if (!e || (!counted && e->next))
        return NULL;
    out = ML_NEW(r->a, uint64_t, n + 1);
    for (; e; e = e->next) {
        uint64_t version = 0;
        int64_t tokens = n;
        for (size_t i = 0; i < e->text.len; i++) {
            if (e->text.ptr[i] < '0' || e->text.ptr[i] > '9')
                return NULL; /* a label, not a number */
            version = version * 10 + (uint64_t)(e->text.ptr[i] - '0');
        }
        if (e->text.len > MAX_DIGITS) {
            complain(r, e, "weight_versions", "versions of at most 18 digits");
            return NULL;
        }
        if (counted && (!k || !ml_json_i64(k, &tokens) || tokens < 0 || tokens > n - at)) {
            complain(r, k ? k : len, "weight_version_tokens", "the tokens of each version");
            return NULL;
        }
        for (int64_t i = 0; i < tokens; i++)
            out[at++] = version;
        k = k ? k->next : NULL;
    }
    if (at != n)
        complain(r, len, "weight_version_tokens", "one token per response token");
    return out;
}

static void read_routed(reader *r, const char *key, ml_sample *s, ml_routing *out) {
    const ml_json *v = field(r, key);
    int64_t n = s->n_token - 1, bytes, size = sizeof(int32_t);
    int32_t *row;

    if (!v || n < 1)
        return;
    row = ML_NEW(r->a, int32_t, v->text.len / 4 + 1);
    bytes = v->type == ML_JSON_STRING ? ml_base64_read(row, v->text) : -1;
    if (bytes < 1 || bytes % (n * size) != 0)
        complain(r, v, key,
                 "base64 of the same number of integers for each token except the last");
    else
        *out = (ml_routing){ .row = row, .n = (int32_t)n, .width = bytes / (n * size) };
}

/* The lists of ids of Miles' samples: those of token i are from offset i to offset i + 1. */
static ml_str read_mask_lists(reader *r, int32_t n) {
    const ml_json *ids = field(r, "rollout_sampling_mask_ids"), *id = NULL;
    const ml_json *offsets = field(r, "rollout_sampling_mask_offsets"), *at = NULL;
    ml_text records = { 0 };
    int64_t begin = 0, end = 0;
    int32_t *list;
    ml_str out;

    if (!ids || !offsets)
        return (ml_str){ 0 };
    if (ids->type != ML_JSON_ARRAY || offsets->type != ML_JSON_ARRAY ||
        offsets->n != n + 1) {
        complain(r, offsets, "rollout_sampling_mask_offsets",
                 "an array with one element per response token and one more");
        return (ml_str){ 0 };
    }
    list = ML_NEW(r->a, int32_t, ids->n + 1);
    id = ids->child;
    at = offsets->child->next;
    for (int32_t t = 0; t < n && r->st == ML_OK; t++, at = at->next, begin = end) {
        if (!ml_json_i64(at, &end) || end <= begin || end > ids->n)
            complain(r, at, "rollout_sampling_mask_offsets", "ascending offsets of ids");
        for (int64_t i = begin; i < end && r->st == ML_OK; i++, id = id->next) {
            int64_t x = -1;
            if (!ml_json_i64(id, &x) || x < 0 || x > INT32_MAX)
                complain(r, id, "rollout_sampling_mask_ids", "token ids");
            list[i] = (int32_t)x;
        }
        if (r->st == ML_OK)
            ml_support_add_ids(&records, list + begin, end - begin);
    }
    out = (ml_str){ ml_arena_str(r->a, records.ptr ? records.ptr : "", records.len),
                    records.len };
    ml_text_release(&records);
    return out;
}

static ml_str read_supports(reader *r, int32_t n) {
    const ml_json *v = field(r, "rollout_sampling_mask");
    int64_t bytes;
    char *records;

    if (!v)
        return read_mask_lists(r, n);
    records = ML_NEW(r->a, char, v->text.len + 4);
    bytes = v->type == ML_JSON_STRING ? ml_base64_read(records, v->text) : -1;
    if (bytes < 0)
        complain(r, v, "rollout_sampling_mask", "base64 of sampling masks");
    return (ml_str){ records, bytes > 0 ? (size_t)bytes : 0 };
}

static void read_tokens(reader *r, ml_sample *s) {
    const ml_json *v = field(r, "tokens");
    int64_t n_response;
    int32_t *id, i = 0;

    if (!v || v->type != ML_JSON_ARRAY) {
        complain(r, v, "tokens", "an array of token ids");
        return;
    }
    s->n_token = v->n;
    s->token = id = ML_NEW(r->a, int32_t, v->n + 1);
    for (const ml_json *e = v->child; e; e = e->next) {
        int64_t x = 0;
        if (!ml_json_i64(e, &x) || x < 0 || x > INT32_MAX)
            complain(r, e, "tokens", "token ids");
        id[i++] = (int32_t)x;
    }
    n_response = read_int(r, "response_length", 0);
    if (n_response < 0 || n_response >= s->n_token)
        complain(r, field(r, "response_length"), "response_length",
                 "at least 0 and less than the number of tokens");
    else
        s->n_response = (int32_t)n_response;
}

static ml_str read_text(const reader *r, const char *key) {
    const ml_json *v = field(r, key);
    return v && v->type == ML_JSON_STRING ? v->text : (ml_str){ 0 };
}

static void read_status(reader *r, ml_sample *s) {
    ml_str word = read_text(r, "status");
    s->status = ML_SAMPLE_COMPLETED;
    for (int i = 0; i < N_STATUS; i++)
        if (ml_str_is(word, status_names[i]))
            s->status = (ml_sample_status)i;
}

/* A reward is a number, or an object with one (as of Miles' dapo) and further numbers. */
static void read_reward(reader *r, ml_sample *s) {
    const ml_json *v = field(r, "reward"), *parts = field(r, "reward_parts");

    s->has_reward = v != NULL;
    if (v && v->type == ML_JSON_OBJECT) {
        const ml_json *number = ml_json_get(v, "reward");
        parts = v;
        v = number ? number : ml_json_get(v, "score");
    }
    if (s->has_reward && (!v || !ml_json_f64(v, &s->reward)))
        complain(r, v, "reward", "a number");
    if (parts && parts->type == ML_JSON_OBJECT)
        s->n_part = ml_reward_parts_of(s->part, parts, NULL);
}

/* Label and metadata keep their original JSON text. */
static ml_str source_of(ml_str text, const ml_json *v) {
    return v && v->type != ML_JSON_NULL ? (ml_str){ text.ptr + v->begin, v->end - v->begin }
                                        : (ml_str){ 0 };
}

ml_status ml_sample_read(ml_sample *out, ml_arena *a, const ml_json *doc, ml_str source,
                         const char *name, ml_err *err) {
    reader r = { .a = a, .doc = doc, .name = name, .err = err };
    const ml_json *remove = ml_json_get(doc, "remove_sample");
    int64_t n_turn;

    *out = (ml_sample){ 0 };
    if (doc->type != ML_JSON_OBJECT)
        return ml_fail(err, ML_EFORMAT, "%s:%u: expected an object, a sample", name,
                       doc->line);
    out->index = read_int(&r, "index", -1);
    out->group = read_int(&r, "group_index", -1);
    out->rollout = read_int(&r, "rollout_id", out->index);
    out->row = read_int(&r, "row", -1);
    n_turn = read_int(&r, "n_turn", 1);
    if (n_turn < 0 || n_turn > INT32_MAX)
        complain(&r, field(&r, "n_turn"), "n_turn", "a count of turns");
    out->n_turn = (int32_t)n_turn;
    out->prompt = read_text(&r, "prompt");
    out->response = read_text(&r, "response");
    out->label = source_of(source, ml_json_get(doc, "label"));
    out->metadata = source_of(source, ml_json_get(doc, "metadata"));
    out->remove = remove && remove->type == ML_JSON_TRUE;
    read_tokens(&r, out);
    if (r.st != ML_OK)
        return r.st;
    read_status(&r, out);
    read_reward(&r, out);
    out->mask = read_mask(&r, out->n_response);
    out->logprob = read_floats(&r, "rollout_log_probs", out->n_response);
    out->teacher_logprob = read_floats(&r, "teacher_log_probs", out->n_response);
    out->opd_reverse_kl = read_floats(&r, "opd_reverse_kl", out->n_response);
    out->version = read_versions(&r, out->n_response);
    for (int i = 0; i < ML_N_ROUTING; i++)
        read_routed(&r, route_keys[i], out, &out->routed[i]);
    out->supports = read_supports(&r, out->n_response);
    return r.st;
}

static ml_status check_logprobs(const ml_sample *s, const float *v, const char *what,
                                const char *name, ml_err *err) {
    for (int32_t t = 0; v && t < s->n_response; t++)
        if (!isfinite(v[t]) && !s->remove && (!s->mask || s->mask[t]))
            return ml_fail(err, ML_EFORMAT,
                           "%s: sample %lld: element %d of \"%s\" is not a number, but its "
                           "token is trained on",
                           name, (long long)s->index, t, what);
    return ML_OK;
}

ml_status ml_sample_check(const ml_sample *s, int64_t n_vocab, const char *name,
                          ml_err *err) {
    ml_status st;

    for (int32_t i = 0; i < s->n_token; i++)
        if (s->token[i] < 0 || s->token[i] >= n_vocab)
            return ml_fail(err, ML_EFORMAT,
                           "%s: sample %lld has token %d; the largest token id is %lld: "
                           "was it generated with another model?",
                           name, (long long)s->index, s->token[i], (long long)n_vocab - 1);
    st = check_logprobs(s, s->logprob, "rollout_log_probs", name, err);
    if (st == ML_OK && s->supports.len) {
        st = ml_support_check(s->supports, s->token + s->n_token - s->n_response,
                              s->n_response, n_vocab, err);
        if (st != ML_OK)
            ml_err_prefix(err, "%s: sample %lld", name, (long long)s->index);
    }
    if (st == ML_OK)
        st = check_logprobs(s, s->teacher_logprob, "teacher_log_probs", name, err);
    return st == ML_OK ? check_logprobs(s, s->opd_reverse_kl, "opd_reverse_kl", name, err)
                       : st;
}

static ml_status read_lines(ml_sample *out, int64_t n, ml_arena *a, ml_str text,
                            const char *path, ml_err *err) {
    const char *p = text.ptr;
    for (int64_t i = 0; i < n; i++) {
        const char *end = memchr(p, '\n', (size_t)(text.ptr + text.len - p));
        ml_str line = { p, (size_t)(end - p) };
        char name[600];
        const ml_json *doc;
        ml_status st;
        snprintf(name, sizeof name, "%.500s, record %lld", path, (long long)i + 1);
        st = ml_json_parse(&doc, a, line, name, err);
        if (st == ML_OK)
            st = ml_sample_read(&out[i], a, doc, line, name, err);
        if (st != ML_OK)
            return st;
        p = end + 1;
    }
    return ML_OK;
}

ml_status ml_samples_load(ml_sample **out, int64_t *n, ml_arena *a, const char *path,
                          ml_err *err) {
    ml_text all = { 0 };
    char *text;
    ml_status st;

    if (ml_samples_are_torch(path))
        return ml_samples_load_torch(out, n, a, path, err);
    st = ml_zst_read(&all, path, MAX_BYTES, err);
    if (st != ML_OK) {
        ml_text_release(&all);
        return st;
    }
    if (all.len && all.ptr[all.len - 1] != '\n')
        ml_text_add(&all, "\n", 1);
    text = ml_arena_str(a, all.ptr ? all.ptr : "", all.len);
    *n = 0;
    for (size_t i = 0; i < all.len; i++)
        *n += text[i] == '\n';
    *out = ML_NEW(a, ml_sample, *n + 1);
    st = read_lines(*out, *n, a, (ml_str){ text, all.len }, path, err);
    ml_text_release(&all);
    return st;
}
