/* bench_grammar.c - the time of token masks: 64 streams under a JSON schema, a vocabulary of
 * 150,000 tokens (of a tokenizer's directory, if one is given).
 *
 *     bench_grammar [DIR]
 *
 * A decode step of 64 streams multiplies 64 rows with every weight; for Qwen3-0.6B that is 76
 * GFLOP, which the CPU's peak limits.  The masks of a step may take 5 % of it, on average over the
 * answers, also while the grammar is new.  The peak is measured here with independent
 * multiply-adds. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/json.h"
#include "text/grammar/grammar.h"

enum { N_STREAM = 64, N_STEP = 150, N_VOCAB = 150000 };

static const char schema[] =
    "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\"},\"year\":{"
    "\"type\":"
    "\"integer\",\"minimum\":1900,\"maximum\":2100},\"tags\":{\"type\":\"array\",\"items\":"
    "{\"type\":\"string\",\"maxLength\":400}},\"more\":{}},\"required\":[\"title\","
    "\"year\","
    "\"tags\",\"more\"]}";

static uint32_t state = 1;

static uint32_t rnd(uint32_t n) {
    state = state * 1664525 + 1013904223;
    return (state >> 8) % n;
}

/* Words of 1 to 12 letters with spaces, quotes and brackets among them. */
static ml_tokenizer *make_tokenizer(void) {
    static const char letters[] = "etaoinshrdlcumwfgypbvkETAOIN0123456789";
    static const char *const marks[] = { "\\\"", "\\\",", "\\\":", "{", "}",
                                         "[",    "]",     ", ",    "." };
    ml_text json = { 0 };
    ml_tokenizer *t = NULL;
    ml_err err;
    int id = 0;

    ml_text_printf(&json,
                   "{\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
                   "\"merges\":[],\"vocab\":{");
    for (char c = '!'; c <= '~'; c++, id++)
        ml_text_printf(&json, "%s\"%s%c\":%d", id ? "," : "",
                       c == '"' || c == '\\' ? "\\" : "", c, id);
    for (; id < N_VOCAB; id++) {
        ml_text_printf(&json, ",\"%s", rnd(3) ? "" : "\xc4\xa0");
        for (uint32_t n = 2 + rnd(9), x = (uint32_t)id; n > 0; n--, x = x / 38 + rnd(38))
            ml_text_printf(&json, "%c", letters[x % 38]);
        ml_text_printf(&json, "%d%s\":%d", id, rnd(20) ? "" : marks[rnd(9)], id);
    }
    ml_text_printf(&json, "}}}");
    if (ml_tokenizer_parse(&t, (ml_str){ json.ptr, json.len }, "bench", &err))
        fprintf(stderr, "%s\n", err.msg);
    ml_text_release(&json);
    return t;
}

/* --- the peak --------------------------------------------------------------- */

enum { LANES = 256, ROUNDS = 400000 };

static double cpu_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

/* Of all cores, from one core's CPU time: other load does not matter. */
static double peak_flops(void) {
    static float x[LANES];
    double begin = cpu_s();

    for (int r = 0; r < ROUNDS; r++)
        for (int i = 0; i < LANES; i++)
            x[i] = x[i] * 0.999f + 0.001f;
    return 2.0 * LANES * ROUNDS / (cpu_s() - begin) *
               (double)sysconf(_SC_NPROCESSORS_ONLN) +
           (double)x[0];
}

/* --- streams ---------------------------------------------------------------- */

static int32_t draw(const uint32_t *mask, int32_t words, int32_t n) {
    int32_t skip = (int32_t)rnd((uint32_t)n);

    for (int32_t w = 0; w < words; w++) {
        int32_t here = __builtin_popcount(mask[w]);
        uint32_t bits = mask[w];
        if (skip >= here) {
            skip -= here;
            continue;
        }
        while (skip-- > 0)
            bits &= bits - 1;
        return 32 * w + __builtin_ctz(bits);
    }
    return -1;
}

typedef struct times {
    double mean, worst; /* seconds of a step */
} times;

/* All streams once from the beginning. */
static times run(ml_grammar *g, int32_t n_vocab) {
    static int32_t answer[N_STREAM][N_STEP], length[N_STREAM];
    int32_t words = ml_mask_words(n_vocab);
    uint32_t *mask = malloc((size_t)words * sizeof *mask);
    ml_matcher *m[N_STREAM];
    times t = { 0 };

    state = 7;
    memset(length, 0, sizeof length);
    for (int i = 0; i < N_STREAM; i++)
        m[i] = ml_matcher_new(g);
    for (int step = 0; step < N_STEP; step++) {
        double step_s = 0;
        for (int i = 0; i < N_STREAM; i++) {
            ml_matched got = { 0 };
            double begin = cpu_s();
            if (ml_matcher_mask(m[i], answer[i], length[i], mask, &got, NULL))
                abort();
            step_s += cpu_s() - begin;
            if (got.n)
                answer[i][length[i]++] = draw(mask, words, got.n);
        }
        t.mean += step_s / N_STEP;
        t.worst = step_s > t.worst ? step_s : t.worst;
    }
    for (int i = 0; i < N_STREAM; i++)
        ml_matcher_free(m[i]);
    free(mask);
    return t;
}

static int report(times first, times again) {
    double flops = peak_flops(), step = 2 * 0.596e9 * N_STREAM / flops;

    printf(
        "masks of %d streams: %.2f ms a step (at most %.1f ms) with a new grammar, %.2f ms "
        "(%.1f ms) with a cached one\n",
        N_STREAM, 1e3 * first.mean, 1e3 * first.worst, 1e3 * again.mean, 1e3 * again.worst);
    printf("a decode step of 0.6B weights at the peak of %.0f GFLOP/s: %.0f ms; masks take "
           "%.2f %%, cached %.2f %% (limit 5)\n",
           flops / 1e9, 1e3 * step, 100 * first.mean / step, 100 * again.mean / step);
    return first.mean > 0.05 * step || again.mean > 0.05 * step;
}

int main(int argc, char **argv) {
    ml_tokenizer *t = NULL;
    ml_err err = { 0 };
    ml_grammar_cache *c;
    ml_grammar *g = NULL;
    ml_grammar_source source = { ML_GRAMMAR_JSON_SCHEMA, ml_str_of(schema) };
    double begin;
    times first;
    int missed;

    if (argc > 1 && ml_tokenizer_open(&t, argv[1], &err))
        fprintf(stderr, "%s\n", err.msg);
    if (argc < 2)
        t = make_tokenizer();
    if (!t)
        return 1;
    c = ml_grammar_cache_new(
        &(ml_grammar_opts){ .tokenizer = t, .n_vocab = ml_tokenizer_size(t) });
    begin = cpu_s();
    if (ml_grammar_get(&g, c, source, &err)) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    printf("compiled, with the trie of %d tokens: %.1f ms\n", ml_tokenizer_size(t),
           1e3 * (cpu_s() - begin));
    first = run(g, ml_tokenizer_size(t));
    missed = report(first, run(g, ml_tokenizer_size(t)));
    ml_grammar_release(g);
    ml_grammar_cache_free(c);
    ml_tokenizer_close(t);
    return missed;
}
