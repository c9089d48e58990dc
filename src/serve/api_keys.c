#include "serve/api_keys.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/oom.h"

#define MAX_LIMIT 1000000000000 /* exact in a double, with room for fractions */

static const struct {
    const char *word, *name;
} limits[ML_N_LIMIT] = { { "requests-per-minute", "requests" },
                         { "tokens-per-minute", "tokens" },
                         { "concurrent", "concurrent" } };

/* --- the file ----------------------------------------------------------------- */

typedef struct line_of {
    const char *path, *flag;
    int number;
} line_of;

static ml_status fail_at(const line_of *at, ml_err *err, const char *why) {
    return ml_fail(err, ML_EUSAGE, "%s: %s line %d: %s", at->flag, at->path, at->number,
                   why);
}

static ml_str next_word(ml_str *line) {
    ml_str w;

    while (line->len && (line->ptr[0] == ' ' || line->ptr[0] == '\t'))
        line->ptr++, line->len--;
    w = (ml_str){ line->ptr, 0 };
    while (line->len && line->ptr[0] != ' ' && line->ptr[0] != '\t')
        line->ptr++, line->len--, w.len++;
    return w;
}

static bool is_name(ml_str s) {
    static const char also[] = "._-";
    bool fine = s.len > 0 && s.len <= ML_KEY_NAME_MAX;

    for (size_t i = 0; fine && i < s.len; i++) {
        char c = s.ptr[i];
        fine = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
               (c && strchr(also, c));
    }
    return fine;
}

static bool read_count(int64_t *out, ml_str digits) {
    int64_t v = 0;

    if (!digits.len)
        return false;
    for (size_t i = 0; i < digits.len; i++) {
        if (digits.ptr[i] < '0' || digits.ptr[i] > '9')
            return false;
        v = v * 10 + (digits.ptr[i] - '0');
        if (v > MAX_LIMIT)
            return false;
    }
    *out = v;
    return v > 0;
}

static ml_status set_limit(ml_api_key *k, int i, ml_str value, const bool *may,
                           const line_of *at, ml_err *err) {
    char why[160];

    if (!may[i]) {
        snprintf(why, sizeof why, "this command does not support %s: remove it",
                 limits[i].word);
        return fail_at(at, err, why);
    }
    if (read_count(&k->limit[i], value))
        return ML_OK;
    snprintf(why, sizeof why, "%s must be a positive number of digits, at most %lld",
             limits[i].word, (long long)MAX_LIMIT);
    return fail_at(at, err, why);
}

/* name=NAME, or a limit */
static ml_status read_setting(ml_api_key *k, ml_str word, const bool *may,
                              const line_of *at, ml_err *err) {
    const char *equals = memchr(word.ptr, '=', word.len);
    ml_str name = { word.ptr, equals ? (size_t)(equals - word.ptr) : 0 }, value;

    if (!equals)
        return fail_at(at, err,
                       "after the key, expected name=NAME, requests-per-minute=N, "
                       "tokens-per-minute=N or concurrent=N");
    value = (ml_str){ equals + 1, word.len - name.len - 1 };
    if (ml_str_is(name, "name")) {
        if (!is_name(value) || ml_str_is(value, "admin"))
            return fail_at(at, err,
                           "a name has 1 to 63 letters, digits, dots, dashes and "
                           "underscores, and is not admin");
        snprintf(k->name, sizeof k->name, "%.*s", (int)value.len, value.ptr);
        return ML_OK;
    }
    for (int i = 0; i < ML_N_LIMIT; i++)
        if (ml_str_is(name, limits[i].word))
            return set_limit(k, i, value, may, at, err);
    return fail_at(at, err,
                   "unknown setting: expected name, requests-per-minute, "
                   "tokens-per-minute or concurrent");
}

static ml_status check_new(const ml_api_keys *all, const ml_api_key *k, const line_of *at,
                           ml_err *err) {
    for (int i = 0; i < all->n; i++) {
        if (strcmp(all->key[i].secret.text, k->secret.text) == 0)
            return fail_at(at, err, "the same key is in an earlier line");
        if (strcmp(all->key[i].name, k->name) == 0)
            return fail_at(at, err, "the same name is in an earlier line");
    }
    return ML_OK;
}

static ml_status read_line(ml_api_keys *all, ml_str line, const int64_t *defaults,
                           const bool *may, const line_of *at, ml_err *err) {
    ml_api_key k = { 0 };
    char what[300];
    ml_status st;

    memcpy(k.limit, defaults, sizeof k.limit);
    snprintf(k.name, sizeof k.name, all->n ? "key%d" : "default", all->n + 1);
    snprintf(what, sizeof what, "%s: %.200s line %d", at->flag, at->path, at->number);
    st = ml_secret_take(&k.secret, next_word(&line), what, err);
    for (ml_str w; st == ML_OK && (w = next_word(&line)).len;)
        st = read_setting(&k, w, may, at, err);
    if (st == ML_OK)
        st = check_new(all, &k, at, err);
    if (st != ML_OK)
        return st;
    all->key =
        ml_memory_grow(all->key, ((size_t)all->n + 1) * sizeof *all->key, "API keys");
    all->key[all->n++] = k;
    return ML_OK;
}

static bool is_skipped(ml_str line) {
    ml_str w = next_word(&line);

    return w.len == 0 || ml_str_is(w, "#");
}

ml_status ml_api_keys_read(ml_api_keys *out, const char *path, const char *flag,
                           const int64_t defaults[ML_N_LIMIT], const bool may[ML_N_LIMIT],
                           ml_err *err) {
    line_of at = { path, flag, 0 };
    ml_text text = { 0 };
    ml_status st = ml_secret_read_file(&text, path, flag, err);
    ml_str rest = { text.ptr ? text.ptr : "", text.len };

    *out = (ml_api_keys){ 0 };
    while (st == ML_OK && rest.len) {
        const char *lf = memchr(rest.ptr, '\n', rest.len);
        size_t n = lf ? (size_t)(lf - rest.ptr) : rest.len;
        ml_str line = { rest.ptr, n && rest.ptr[n - 1] == '\r' ? n - 1 : n };

        at.number++;
        rest = (ml_str){ rest.ptr + n + (lf ? 1 : 0), rest.len - n - (lf ? 1 : 0) };
        if (!is_skipped(line))
            st = read_line(out, line, defaults, may, &at, err);
    }
    if (st == ML_OK && !out->n)
        st =
            ml_fail(err, ML_EUSAGE,
                    "%s: %s has no key: a key must have 1 to %d printable ASCII characters "
                    "and no spaces",
                    flag, path, ML_SECRET_MAX);
    ml_text_release(&text);
    if (st != ML_OK)
        ml_api_keys_release(out);
    return st;
}

void ml_api_keys_release(ml_api_keys *k) {
    free(k->key);
    *k = (ml_api_keys){ 0 };
}

ml_api_key *ml_api_keys_find(const ml_api_keys *k, ml_str given) {
    ml_api_key *found = NULL;

    for (int i = 0; i < k->n; i++)
        if (ml_secret_is(k->key[i].secret.text, given))
            found = &k->key[i];
    return found;
}

/* --- limits ------------------------------------------------------------------- */

static void refill(ml_api_key *k, double now_s) {
    for (int i = ML_LIMIT_REQUESTS; i <= ML_LIMIT_TOKENS; i++) {
        double most = (double)k->limit[i];
        double more = k->at_s > 0 ? most / 60 * (now_s - k->at_s) : most;
        k->left[i] = k->left[i] + more < most ? k->left[i] + more : most;
    }
    k->at_s = now_s;
}

/* Seconds until the bucket holds `want`. */
static double wait_of(const ml_api_key *k, int i, double want) {
    return k->left[i] >= want ? 0 : (want - k->left[i]) * 60 / (double)k->limit[i];
}

int ml_api_key_admit(ml_api_key *k, double now_s, double *retry_s) {
    int over = -1;

    refill(k, now_s);
    *retry_s = 1;
    if (k->limit[ML_LIMIT_CONCURRENT] && k->n_running >= k->limit[ML_LIMIT_CONCURRENT])
        over = ML_LIMIT_CONCURRENT;
    for (int i = ML_LIMIT_REQUESTS; i <= ML_LIMIT_TOKENS; i++)
        if (k->limit[i] && wait_of(k, i, 1) > 0) {
            over = i;
            *retry_s = wait_of(k, i, 1);
        }
    if (over >= 0) {
        k->n_limited[over]++;
        return over;
    }
    k->left[ML_LIMIT_REQUESTS] -= 1;
    k->n_running++;
    return -1;
}

void ml_api_key_done(ml_api_key *k) {
    k->n_running--;
}

void ml_api_key_charge(ml_api_key *k, double now_s, int64_t n_prompt, int64_t n_answer) {
    refill(k, now_s);
    k->left[ML_LIMIT_TOKENS] -= (double)(n_prompt + n_answer);
    k->n_prompt += n_prompt;
    k->n_answer += n_answer;
}

static void put_limit(const ml_api_key *k, int i, ml_header_fn *put, void *ud) {
    double left = k->left[i] > 0 ? floor(k->left[i]) : 0;
    char name[48], value[40];

    snprintf(name, sizeof name, "x-ratelimit-limit-%s", limits[i].name);
    snprintf(value, sizeof value, "%lld", (long long)k->limit[i]);
    put(ud, name, value);
    snprintf(name, sizeof name, "x-ratelimit-remaining-%s", limits[i].name);
    snprintf(value, sizeof value, "%.0f", left);
    put(ud, name, value);
    snprintf(name, sizeof name, "x-ratelimit-reset-%s", limits[i].name);
    snprintf(value, sizeof value, "%.3fs", wait_of(k, i, (double)k->limit[i]));
    put(ud, name, value);
}

void ml_api_key_headers(ml_api_key *k, double now_s, ml_header_fn *put, void *ud) {
    refill(k, now_s);
    for (int i = ML_LIMIT_REQUESTS; i <= ML_LIMIT_TOKENS; i++)
        if (k->limit[i])
            put_limit(k, i, put, ud);
}
