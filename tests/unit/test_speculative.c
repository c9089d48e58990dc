/* Speculative decoding: drafts by prompt lookup; a training run with drafts has the weights
 * of one without. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "engine/ngram.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/toy_run.h"

/* --- prompt lookup ---------------------------------------------------------------- */

static ml_request request(int32_t *token, int32_t n_prompt, int32_t n_token) {
    ml_request r = { .token = token, .n_token = n_token, .params.n_prompt = n_prompt };

    r.prompt_hash = ml_ngram_hash(token, n_prompt);
    return r;
}

/* The tokens after the best match. */
static int32_t propose(const ml_ngram *g, const ml_request_list *running,
                       const ml_request *r, int32_t *out, int32_t n) {
    ml_ngram_match m;

    return ml_ngram_find(g, running, r, &m, 1) ? ml_ngram_read(&m, out, n) : 0;
}

static void own_tokens(void) {
    int32_t token[] = { 5, 6, 7, 8, 9, 1, 5, 6, 7, 2, 3, 5, 6 }, out[8];
    ml_request r = request(token, 4, 13);
    ml_request_list none = { 0 };
    ml_arena a;
    ml_ngram g;

    ml_arena_init(&a, "test");
    ml_ngram_init(&g, &a);
    CHECK(propose(&g, &none, &r, out, 4) == 4);
    CHECK(out[0] == 7 && out[1] == 2 && out[2] == 3 && out[3] == 5); /* the latest match */
    r.n_token = 12;
    CHECK(propose(&g, &none, &r, out, 4) == 0); /* 3 5 occurs once */
    ml_arena_release(&a);
}

static void repeated_tokens(void) {
    int32_t token[] = { 1, 2, 3, 1, 2, 3, 1, 2 }, out[8];
    ml_request r = request(token, 1, 8);
    ml_request_list none = { 0 };
    ml_arena a;
    ml_ngram g;

    ml_arena_init(&a, "test");
    ml_ngram_init(&g, &a);
    CHECK(propose(&g, &none, &r, out, 7) == 7); /* the period goes on */
    for (int32_t i = 0; i < 7; i++)
        CHECK(out[i] == 1 + (i + 2) % 3);
    ml_arena_release(&a);
}

static void other_samples(void) {
    int32_t mine[] = { 9, 8, 7, 1, 2 }, theirs[] = { 9, 8, 7, 4, 1, 2, 6, 5 }, out[8];
    int32_t other[] = { 9, 8, 1, 4, 1, 2, 3, 3 };
    ml_request r = request(mine, 3, 5), q = request(theirs, 3, 8), x = request(other, 3, 8);
    ml_request_list running = { 0 };
    ml_arena a;
    ml_ngram g;

    ml_arena_init(&a, "test");
    ml_ngram_init(&g, &a);
    x.arrival = 2; /* of another prompt */
    ml_list_insert(&running, &r);
    ml_list_insert(&running, &q);
    ml_list_insert(&running, &x);
    CHECK(propose(&g, &running, &r, out, 8) == 2); /* as far as it knows */
    CHECK(out[0] == 6 && out[1] == 5);
    ml_list_remove(&running, &q);
    CHECK(propose(&g, &running, &r, out, 8) == 0);
    ml_ngram_keep(&g, &q); /* it ended */
    CHECK(propose(&g, &running, &r, out, 8) == 2);
    CHECK(out[0] == 6 && out[1] == 5);
    ml_arena_release(&a);
}

/* The branches of a tree begin with different tokens; longer matches come first, then later
 * ones. */
static void several_matches(void) {
    int32_t token[] = { 1, 2, 9, 4, 3, 1, 2, 7, 4, 1, 2, 9, 5, 8, 1, 2, 6, 3, 1, 2 };
    int32_t out[2];
    ml_request r = request(token, 4, 20);
    ml_request_list none = { 0 };
    ml_ngram_match m[4];
    ml_arena a;
    ml_ngram g;

    ml_arena_init(&a, "test");
    ml_ngram_init(&g, &a);
    CHECK(ml_ngram_find(&g, &none, &r, m, 4) == 3);
    CHECK(m[0].len == 3 && m[0].next[0] == 7); /* after 3 1 2 */
    CHECK(m[1].len == 2 && m[1].next[0] == 6);
    CHECK(m[2].len == 2 && ml_ngram_read(&m[2], out, 2) == 2);
    CHECK(out[0] == 9 && out[1] == 5); /* the later one of two */
    CHECK(ml_ngram_find(&g, &none, &r, m, 2) == 2);
    CHECK(m[0].next[0] == 7 && m[1].next[0] == 6);
    ml_arena_release(&a);
}

/* The ring forgets the oldest answers, and no other. */
static void kept_answers(void) {
    enum { LEN = 1000 };
    static int32_t token[LEN];
    int32_t mine[] = { 3, 0, 0 }, out[4];
    ml_request_list none = { 0 };
    ml_request r;
    ml_arena a;
    ml_ngram g;

    ml_arena_init(&a, "test");
    ml_ngram_init(&g, &a);
    for (int32_t k = 1; k <= 600; k++) {
        token[0] = 3;
        for (int32_t i = 1; i < LEN; i++)
            token[i] = 1000 * k + i;
        r = request(token, 1, LEN);
        ml_ngram_keep(&g, &r);
    }
    for (int32_t k = 1; k <= 600; k++) {
        bool kept = k > 600 - ML_NGRAM_TOKENS / LEN + 1, gone = k < 300;
        int32_t n;
        mine[1] = 1000 * k + 500;
        mine[2] = 1000 * k + 501;
        r = request(mine, 1, 3);
        n = propose(&g, &none, &r, out, 1);
        CHECK(n == 0 || out[0] == 1000 * k + 502);
        CHECK(!kept || n == 1 || k < 600 - 60); /* a lookup reads a limited number */
        CHECK(!gone || n == 0);
    }
    ml_arena_release(&a);
}

/* --- runs -------------------------------------------------------------------------- */

static void map(ml_file *out, const char *dir, const char *name) {
    char path[1024];

    snprintf(path, sizeof path, "%s/%s", dir, name);
    MUST(ml_file_map(out, path, &err));
}

/* A run with these flags has the weights of the run in `plain`. */
static void compare_run(const char *plain, const char *name, const char *flags) {
    static const char weights[] = "iter_0000001/model.safetensors";
    char out[1 << 16], drafts[512];
    ml_file a, b, metrics;

    snprintf(drafts, sizeof drafts, "%s", ml_test_path(name));
    CHECK(ml_toy_run("train", drafts, 2, flags, out, sizeof out) == 0);
    map(&a, plain, weights);
    map(&b, drafts, weights);
    map(&metrics, drafts, "metrics.jsonl");
    CHECK(a.bytes.len == b.bytes.len && !memcmp(a.bytes.ptr, b.bytes.ptr, a.bytes.len));
    snprintf(out, sizeof out, "%.*s", (int)metrics.bytes.len, metrics.bytes.ptr);
    CHECK(strstr(out, "\"rollout/spec_accept_rate\"") != NULL);
    CHECK(strstr(out, "\"rollout/spec_accept_length\"") != NULL);
    ml_file_unmap(&metrics);
    ml_file_unmap(&b);
    ml_file_unmap(&a);
}

static void same_run(void) {
    char out[1 << 16], plain[512];

    ml_toy_run_inputs();
    snprintf(plain, sizeof plain, "%s", ml_test_path("plain"));
    CHECK(ml_toy_run("train", plain, 2, "", out, sizeof out) == 0);
    compare_run(plain, "drafts", "--sglang-speculative-algorithm NGRAM");
    compare_run(plain, "trees",
                "--sglang-speculative-algorithm NGRAM --sglang-speculative-eagle-topk 3 "
                "--sglang-speculative-num-steps 4");
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "prompt lookup finds the latest match in a request's own tokens", own_tokens,
          20 },
        { "prompt lookup continues a period", repeated_tokens, 20 },
        { "prompt lookup reads other samples and earlier answers of the prompt",
          other_samples, 20 },
        { "prompt lookup finds matches with different next tokens", several_matches, 20 },
        { "prompt lookup forgets the oldest answers only", kept_answers, 20 },
        { "a training run with draft tokens has the weights of one without", same_run,
          300 },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
