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

static void own_tokens(void) {
    int32_t token[] = { 5, 6, 7, 8, 9, 1, 5, 6, 7, 2, 3, 5, 6 }, out[8];
    ml_request r = request(token, 4, 13);
    ml_request_list none = { 0 };
    ml_arena a;
    ml_ngram g;

    ml_arena_init(&a, "test");
    ml_ngram_init(&g, &a);
    CHECK(ml_ngram_propose(&g, &none, &r, out, 4) == 4);
    CHECK(out[0] == 7 && out[1] == 2 && out[2] == 3 && out[3] == 5); /* the latest match */
    r.n_token = 12;
    CHECK(ml_ngram_propose(&g, &none, &r, out, 4) == 0); /* 3 5 occurs once */
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
    CHECK(ml_ngram_propose(&g, &none, &r, out, 7) == 7); /* the period goes on */
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
    CHECK(ml_ngram_propose(&g, &running, &r, out, 8) == 2); /* as far as it knows */
    CHECK(out[0] == 6 && out[1] == 5);
    ml_list_remove(&running, &q);
    CHECK(ml_ngram_propose(&g, &running, &r, out, 8) == 0);
    ml_ngram_keep(&g, &q); /* it ended */
    CHECK(ml_ngram_propose(&g, &running, &r, out, 8) == 2);
    CHECK(out[0] == 6 && out[1] == 5);
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
        n = ml_ngram_propose(&g, &none, &r, out, 1);
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

static void same_run(void) {
    static const char weights[] = "iter_0000001/model.safetensors";
    char out[1 << 16], plain[512], drafts[512];
    ml_file a, b, metrics;

    ml_toy_run_inputs();
    snprintf(plain, sizeof plain, "%s", ml_test_path("plain"));
    snprintf(drafts, sizeof drafts, "%s", ml_test_path("drafts"));
    CHECK(ml_toy_run("train", plain, 2, "", out, sizeof out) == 0);
    CHECK(ml_toy_run("train", drafts, 2, "--sglang-speculative-algorithm NGRAM", out,
                     sizeof out) == 0);
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

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "prompt lookup finds the latest match in a request's own tokens", own_tokens,
          20 },
        { "prompt lookup continues a period", repeated_tokens, 20 },
        { "prompt lookup reads other samples and earlier answers of the prompt",
          other_samples, 20 },
        { "prompt lookup forgets the oldest answers only", kept_answers, 20 },
        { "a training run with draft tokens has the weights of one without", same_run,
          300 },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
