/* Where the router sends a request: the tree of prompts, the policies, the prompt's place. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "serve/route_policy.h"
#include "serve/route_prompt.h"
#include "serve/route_tree.h"
#include "tests/support/test.h"

static void add(ml_route_tree *t, const char *prompt, uint64_t worker) {
    ml_route_tree_add(t, ml_str_of(prompt), worker);
}

static bool finds(const ml_route_tree *t, const char *prompt, size_t len, uint64_t worker) {
    uint64_t got;
    return ml_route_tree_find(t, ml_str_of(prompt), &got) == len && got == worker;
}

static void tree_finds_the_longest_prefix(void) {
    ml_route_tree *t = ml_route_tree_new(1 << 20);

    CHECK(finds(t, "anything", 0, 0));
    add(t, "the quick brown fox", 1);
    CHECK(finds(t, "the quick brown fox", 19, 1));
    CHECK(finds(t, "the quick red", 10, 1));
    CHECK(finds(t, "a quick", 0, 0));
    add(t, "the quick red hen", 2); /* splits, and owns the shared part now */
    CHECK(finds(t, "the quick red hen!", 17, 2));
    CHECK(finds(t, "the quick brown", 15, 1));
    CHECK(finds(t, "the quick ", 10, 2));
    add(t, "the", 3);
    CHECK(finds(t, "the", 3, 3));
    CHECK(finds(t, "the quick brown fox jumps", 19, 1));
    add(t, "", 4);
    CHECK(finds(t, "", 0, 0));
    ml_route_tree_free(t);
}

static void tree_stays_small(void) {
    const size_t most = 20000;
    ml_route_tree *t = ml_route_tree_new(most);
    char prompt[64];
    uint64_t worker;

    for (int i = 0; i < 5000; i++) {
        snprintf(prompt, sizeof prompt, "prompt %d, with something after it", i * 7919);
        add(t, prompt, 1);
        add(t, "the one that is always used", 2);
        CHECK(ml_route_tree_bytes(t) <= most);
    }
    CHECK(finds(t, "the one that is always used", 27, 2));
    CHECK(ml_route_tree_find(t, ml_str_of("prompt 0, with something"), &worker) < 10);
    snprintf(prompt, sizeof prompt, "prompt %d, with something after it", 4999 * 7919);
    CHECK(finds(t, prompt, strlen(prompt), 1));
    ml_route_tree_free(t);
}

/* The tree against a list of everything that was added, compared byte by byte. */
static void tree_against_a_list(void) {
    enum { N = 400 };
    static char prompt[N][24];
    static uint64_t owner[N];
    ml_route_tree *t = ml_route_tree_new((size_t)1 << 24);
    unsigned seed = 1;

    for (int i = 0; i < N; i++) {
        size_t len = 1 + (seed = seed * 1103515245u + 12345u) / 65536u % 20;
        char ask[24] = "";
        size_t best = 0;
        uint64_t want = 0, got;
        for (size_t k = 0; k < len; k++)
            ask[k] = (char)('a' + (seed = seed * 1103515245u + 12345u) / 65536u % 2);
        for (int j = 0; j < i; j++) { /* later ones own what they share */
            size_t k = 0;
            while (ask[k] && ask[k] == prompt[j][k])
                k++;
            if (k && k >= best) {
                best = k;
                want = owner[j];
            }
        }
        CHECK(ml_route_tree_find(t, ml_str_of(ask), &got) == best && got == want);
        memcpy(prompt[i], ask, sizeof ask);
        owner[i] = (uint64_t)i + 1;
        add(t, ask, owner[i]);
    }
    ml_route_tree_free(t);
}

static ml_route_opts opts(ml_route_kind kind) {
    return (ml_route_opts){ .kind = kind,
                            .cache_threshold = 0.5,
                            .balance_abs = 4,
                            .balance_rel = 1.5,
                            .tree_bytes = 1 << 20 };
}

static void workers(ml_route_worker *w, int n) {
    static const char *const url[] = { "http://a:1", "http://b:1", "http://c:1",
                                       "http://d:1" };
    for (int i = 0; i < n; i++)
        w[i] = (ml_route_worker){ (uint64_t)i + 10, ml_str_of(url[i]), true, 0, 0 };
}

static int pick(ml_route_policy *p, const ml_route_worker *w, int n, const char *prompt,
                const char *key) {
    return ml_route_pick(p, w, n, ml_str_of(prompt), ml_str_of(key));
}

static void round_robin(void) {
    ml_route_policy *p = ml_route_policy_new(opts(ML_ROUTE_ROUND_ROBIN));
    ml_route_worker w[3];

    workers(w, 3);
    for (int i = 0; i < 7; i++)
        CHECK(pick(p, w, 3, "x", "") == i % 3);
    w[1].usable = false;
    for (int i = 0; i < 6; i++)
        CHECK(pick(p, w, 3, "x", "") != 1);
    w[0].usable = w[2].usable = false;
    CHECK(pick(p, w, 3, "x", "") == -1);
    CHECK(pick(p, w, 0, "x", "") == -1);
    ml_route_policy_free(p);
}

static void least_loaded(void) {
    ml_route_policy *p = ml_route_policy_new(opts(ML_ROUTE_LEAST_LOADED));
    ml_route_worker w[3];

    workers(w, 3);
    CHECK(pick(p, w, 3, "x", "") == 0);
    w[0].load = 2;
    w[1].load = 1;
    w[2].load = 1;
    CHECK(pick(p, w, 3, "x", "") == 1);
    w[1].n_routed = 5;
    CHECK(pick(p, w, 3, "x", "") == 2);
    w[1].usable = w[2].usable = false;
    CHECK(pick(p, w, 3, "x", "") == 0);
    ml_route_policy_free(p);
}

static void cache_aware(void) {
    ml_route_policy *p = ml_route_policy_new(opts(ML_ROUTE_CACHE_AWARE));
    ml_route_worker w[3];

    workers(w, 3);
    w[0].load = 1;
    CHECK(pick(p, w, 3, "a long prompt about cats", "") == 1);
    CHECK(ml_route_hits(p) == 0);
    w[1].load = 3; /* busier, but within the thresholds */
    CHECK(pick(p, w, 3, "a long prompt about cats and dogs", "") == 1);
    CHECK(ml_route_hits(p) == 1);
    CHECK(pick(p, w, 3, "a long story", "") == 1); /* 7 of 12 bytes */
    CHECK(pick(p, w, 3, "a lot of other things", "") == 2);
    w[1].load = 5; /* 5 - 0 > 4: the load decides, and the prompt moves */
    CHECK(pick(p, w, 3, "a long prompt about cats", "") == 2);
    w[1].load = 0;
    CHECK(pick(p, w, 3, "a long prompt about cats", "") == 2);
    w[2].usable = false;
    w[1].load = 2;
    CHECK(pick(p, w, 3, "a long prompt about cats", "") == 0);
    CHECK(pick(p, w, 3, "", "") == 0);
    /* Far apart in number, near in proportion: even. */
    w[0].load = 100;
    w[1].load = 110;
    w[2].usable = true;
    w[2].load = 120;
    CHECK(pick(p, w, 3, "b", "") == 0);
    w[0].load = 115;
    CHECK(pick(p, w, 3, "b", "") == 0);
    CHECK(ml_route_bytes(p) > 0);
    ml_route_policy_free(p);
}

static void consistent_hashing(void) {
    ml_route_policy *p = ml_route_policy_new(opts(ML_ROUTE_CONSISTENT_HASHING));
    ml_route_worker w[4];
    int before[1000], n[4] = { 0 }, moved = 0;
    char key[32];

    workers(w, 4);
    for (int i = 0; i < 1000; i++) {
        snprintf(key, sizeof key, "session-%d", i);
        before[i] = pick(p, w, 4, "x", key);
        CHECK(before[i] == pick(p, w, 4, "y", key));
        n[before[i]]++;
    }
    for (int i = 0; i < 4; i++)
        CHECK(n[i] > 150 && n[i] < 350);
    w[2].usable = false;
    for (int i = 0; i < 1000; i++) {
        int now;
        snprintf(key, sizeof key, "session-%d", i);
        now = pick(p, w, 4, "x", key);
        CHECK(now != 2 && (before[i] == 2 || now == before[i]));
        moved += now != before[i];
    }
    CHECK(moved == n[2]);
    w[0].load = 1;
    CHECK(pick(p, w, 4, "x", "") == 1); /* without a key: the least loaded */
    ml_route_policy_free(p);
}

static void prompts(void) {
    static const struct {
        const char *body, *prompt;
    } cases[] = {
        { "{\"text\": \"hello\"}", "\"hello\"" },
        { " { \"a\" : {\"text\": 1, \"b\": [1, {}]} , \"text\":\"x\"}", "\"x\"" },
        { "{\"s\": \"a\\\"text\\\": 1\", \"input_ids\": [1, 2, [3]], \"z\": 1}",
          "[1, 2, [3]]" },
        { "{\"messages\": [{\"role\": \"user\", \"content\": \"},\"}]}",
          "[{\"role\": \"user\", \"content\": \"},\"}]" },
        { "{\"prompt\": \"a\\\\\"}", "\"a\\\\\"" },
        { "{\"text\": \"unfinished", "\"unfinished" },
        { "{\"other\": 1}", "" },
        { "[\"text\", \"x\"]", "" },
        { "{\"text\"}", "" },
        { "{\"text", "" },
        { "{\"text\":", "" },
        { "{", "" },
        { "", "" },
        { "nonsense", "" },
        { "{\"a\": \"\\", "" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        size_t n = strlen(cases[i].body);
        char *exact = malloc(n + 1); /* so that a checker sees one byte too far */
        ml_str got;
        memcpy(exact, cases[i].body, n);
        got = ml_route_prompt((ml_str){ exact, n });
        if (!ml_str_is(got, cases[i].prompt))
            ml_test_fail(__FILE__, __LINE__, "case %zu: '%.*s'", i, (int)got.len, got.ptr);
        free(exact);
    }
}

static const ml_test tests[] = {
    { "the prompt tree finds the longest prefix", tree_finds_the_longest_prefix },
    { "the prompt tree stays within its memory", tree_stays_small },
    { "the prompt tree agrees with a list of prompts", tree_against_a_list },
    { "round robin skips unusable workers", round_robin },
    { "least-loaded routing picks the least loaded worker", least_loaded },
    { "cache-aware routing follows the longest prefix", cache_aware },
    { "consistent hashing moves few keys when a worker leaves", consistent_hashing },
    { "the prompt is found in every kind of request", prompts },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
