/* `miles score` writes the same bytes at every kernel level this machine has, with 1, 2, 3
 * and 8 threads, packed, one sequence at a time and one token at a time. */
#include <stdio.h>
#include <string.h>

#include "backend/backend.h"
#include "base/file.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static void score(const char *model, const char *name, const char *more) {
    char line[2048], said[4096];
    snprintf(
        line, sizeof line,
        "score --hf-checkpoint tests/golden/data/%s "
        "--input tests/golden/data/%s/golden.safetensors --output %s --logits --entropy "
        "--temperature 0.7 %s",
        model, model, ml_test_path(name), more);
    if (ml_test_miles(said, sizeof said, line) != 0 || said[0])
        ml_test_fail(__FILE__, __LINE__, "miles %s: %s", line, said);
}

static void same(const char *a_name, const char *b_name, const char *model,
                 const char *how) {
    ml_file a = { 0 }, b = { 0 };
    CHECK(ml_file_map(&a, ml_test_path(a_name), NULL) == ML_OK);
    CHECK(ml_file_map(&b, ml_test_path(b_name), NULL) == ML_OK);
    if (!ml_str_eq(a.bytes, b.bytes))
        ml_test_fail(__FILE__, __LINE__, "%s: other bytes with %s", model, how);
    ml_file_unmap(&a);
    ml_file_unmap(&b);
}

static void check(const char *model) {
    static const int threads[] = { 1, 2, 3, 8 };
    static const char *const batchings[] = { "packed", "single", "tokenwise" };
    static const char *const dtypes[] = { "f32", "bf16" };
    char how[256];

    for (size_t d = 0; d < 2; d++) {
        snprintf(how, sizeof how, "--grads --threads 1 --cpu-level c --dtype %s",
                 dtypes[d]);
        score(model, "first", how);
        for (const char *const *level = ml_backend_cpu_levels(); *level; level++)
            for (size_t t = 0; t < sizeof threads / sizeof *threads; t++) {
                snprintf(how, sizeof how, "--grads --threads %d --cpu-level %s --dtype %s",
                         threads[t], *level, dtypes[d]);
                if (strcmp(*level, "c") == 0 && threads[t] != 3)
                    continue; /* the slow level runs only once more */
                score(model, "other", how);
                same("first", "other", model, how);
            }
        snprintf(how, sizeof how, "--threads 1 --dtype %s", dtypes[d]);
        score(model, "first", how);
        for (size_t b = 0; b < 3; b++) {
            snprintf(how, sizeof how, "--threads 2 --batching %s --dtype %s", batchings[b],
                     dtypes[d]);
            score(model, "other", how);
            same("first", "other", model, how);
        }
    }
}

#define MODELS(X)                                                                          \
    X(llama)                                                                               \
    X(qwen2)                                                                               \
    X(qwen3_moe)                                                                           \
    X(gemma2)                                                                              \
    X(glm4)

#define TEST(name)                                                                         \
    static void levels_##name(void) {                                                      \
        check(#name);                                                                      \
    }
MODELS(TEST)
#define ROW(name) { #name " scores the same bytes at every level", levels_##name, 300 },

int main(int argc, char **argv) {
    static const ml_test tests[] = { MODELS(ROW){ 0 } };
    return ml_test_main(argc, argv, tests);
}
