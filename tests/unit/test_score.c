/* `miles score` as a user meets it: what it says of bad files, what it prints, that a failed
 * run leaves nothing behind. */
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "io/safetensors.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

#define LLAMA "tests/golden/data/llama"
#define GOLDEN LLAMA "/golden.safetensors"

/* A file with one tensor of n int32 (or raw bytes read as another dtype). */
static const char *tokens(const char *name, ml_st_dtype dtype, const int32_t *id,
                          int32_t n) {
    const char *path = ml_test_path("in.safetensors");
    ml_st_tensor t = {
        .name = ml_str_of(name), .dtype = dtype, .n_dim = 1, .shape = { n }
    };
    ml_st_writer *w;

    CHECK(ml_st_create(&w, path, &(ml_st_layout){ .n = 1, .tensor = &t }, NULL) == ML_OK);
    CHECK(ml_st_write(w, 0, 0, id, (size_t)n * sizeof *id, NULL) == ML_OK);
    CHECK(ml_st_commit(w, NULL) == ML_OK);
    return path;
}

static int score(const char *dir, const char *input, const char *more, char *said,
                 size_t cap) {
    char line[2048];
    snprintf(line, sizeof line, "score --hf-checkpoint %s --input %s --output %s %s", dir,
             input, ml_test_path("out.safetensors"), more);
    return ml_test_miles(said, cap, line);
}

static void refused(const char *dir, const char *input, const char *words) {
    char said[4096];
    int code = score(dir, input, "", said, sizeof said);
    if (code != 1)
        ml_test_fail(__FILE__, __LINE__, "exit code %d: %s", code, said);
    CHECK_HAS(said, "miles score: ");
    CHECK_HAS(said, words);
    CHECK(access(ml_test_path("out.safetensors"), F_OK) != 0);
}

static void bad_inputs(void) {
    static const int32_t ok[] = { 1, 2, 3 }, high[] = { 1, 83 }, low[] = { -1, 2 };

    refused("no/such/dir", GOLDEN, "no/such/dir/config.json");
    refused(LLAMA, "no-such-file", "no-such-file");
    refused(LLAMA, tokens("tokens.1", ML_ST_I32, ok, 3),
            "tokens.0, tokens.1, ... without gaps");
    refused(LLAMA, tokens("ids", ML_ST_I32, ok, 3), "expected int32 tensors tokens.0");
    refused(LLAMA, tokens("tokens.0", ML_ST_F32, (const int32_t *)ok, 3),
            "tokens.0 has dtype F32 and 1 dimensions; expected I32 and one");
    refused(LLAMA, tokens("tokens.0", ML_ST_I32, ok, 0), "has 0 tokens; expected 1 to");
    refused(LLAMA, tokens("tokens.0", ML_ST_I32, high, 2),
            "tokens.0 holds 83 at index 1; token ids of this model are 0 to 82");
    refused(LLAMA, tokens("tokens.0", ML_ST_I32, low, 2), "holds -1 at index 0");
}

/* The model with its weights cut off after n bytes. */
static void truncated(size_t n) {
    ml_file f;
    const char *dir = ml_test_path("cut");

    mkdir(dir, 0777);
    CHECK(ml_file_map(&f, LLAMA "/config.json", NULL) == ML_OK);
    CHECK(ml_file_replace(ml_test_path("cut/config.json"), f.bytes, NULL) == ML_OK);
    ml_file_unmap(&f);
    CHECK(ml_file_map(&f, LLAMA "/model.safetensors", NULL) == ML_OK);
    CHECK(ml_file_replace(ml_test_path("cut/model.safetensors"), (ml_str){ f.bytes.ptr, n },
                          NULL) == ML_OK);
    ml_file_unmap(&f);
    refused(dir, GOLDEN, "cut/model.safetensors");
}

static void truncated_weights(void) {
    static const size_t at[] = { 0, 7, 8, 100, 5000, 100000 };
    for (size_t i = 0; i < sizeof at / sizeof *at; i++)
        truncated(at[i]);
}

static void output_needs_a_place(void) {
    char said[4096], line[1024];
    snprintf(line, sizeof line,
             "score --hf-checkpoint " LLAMA " --input " GOLDEN " --output %s",
             ml_test_path("no/where.safetensors"));
    CHECK(ml_test_miles(said, sizeof said, line) == 1);
    CHECK_HAS(said, "no/where.safetensors");
}

static void one_token_has_no_loss(void) {
    static const int32_t one[] = { 5 };
    char said[4096];
    const char *input = tokens("tokens.0", ML_ST_I32, one, 1);
    CHECK(score(LLAMA, input, "--grads", said, sizeof said) == 1);
    CHECK_HAS(said, "--grads needs a sequence of at least two tokens");
    CHECK(score(LLAMA, input, "--logits --entropy", said, sizeof said) == 0);
}

static void says_what_it_did(void) {
    char said[4096];

    CHECK(score(LLAMA, GOLDEN, "--stats --batching tokenwise", said, sizeof said) == 0);
    CHECK_HAS(said, "rows attn");
    CHECK_HAS(said, "steps 258, tokens 258");
    CHECK(score(LLAMA, GOLDEN, "--stats --batching single", said, sizeof said) == 0);
    CHECK_HAS(said, "steps 4, tokens 258");
    CHECK(score(LLAMA, GOLDEN, "--stats", said, sizeof said) == 0);
    CHECK_HAS(said, "steps 1, tokens 258");
    CHECK_HAS(said, "memory: planned ");
    CHECK(unlink(ml_test_path("out.safetensors")) == 0);
    CHECK(score(LLAMA, GOLDEN, "--dry-run", said, sizeof said) == 0);
    CHECK_HAS(said, "memory plan of llama");
    CHECK_HAS(said, "total ");
    CHECK(access(ml_test_path("out.safetensors"), F_OK) != 0);
}

static const ml_test tests[] = {
    { "miles score names bad inputs", bad_inputs },
    { "miles score refuses truncated weights", truncated_weights },
    { "miles score names an output it cannot write", output_needs_a_place },
    { "miles score refuses gradients of one token", one_token_has_no_loss },
    { "miles score --stats reports steps and tokens", says_what_it_did },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
