/* Multi-token prediction modules against torch: the logits, the loss and the gradients of
 * every weight, as `miles score --mtp` writes them.  tests/golden/mtp has three families; more
 * of them are in $MILES_FIXTURES. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "engine/engine_priv.h"
#include "io/safetensors.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"

#define LOGITS_BOUND 1e-5
#define GRAD_BOUND 1e-4

static double size_of(const float *v, size_t n) {
    double s = 0;

    for (size_t i = 0; i < n; i++)
        s += (double)v[i] * (double)v[i];
    return sqrt(s);
}

/* The tensor `want` of the golden file, under the name of miles score. */
static void compare(const char *dir, const char *name, const ml_st_file *out,
                    const ml_st_tensor *want, double bound) {
    const ml_st_tensor *got = ml_st_find(out, ml_str_of(name));
    const float *y = want->data, *x;
    size_t n = want->bytes / sizeof *y;
    double off = 0;

    if (!got || got->bytes != want->bytes) {
        ml_test_fail(__FILE__, __LINE__, "%s: %s: missing or of another size", dir, name);
        return;
    }
    x = got->data;
    for (size_t i = 0; i < n; i++)
        off += pow((double)x[i] - (double)y[i], 2);
    if (!(sqrt(off) <= bound * size_of(y, n)))
        ml_test_fail(__FILE__, __LINE__, "%s: %s: off by %g of %g", dir, name, sqrt(off),
                     size_of(y, n));
}

static bool starts(ml_str name, const char *prefix) {
    return strncmp(name.ptr, prefix, strlen(prefix)) == 0;
}

static void score(const char *dir, const char *more, const char *output) {
    char line[2048], said[4096];

    snprintf(line, sizeof line,
             "score --hf-checkpoint %s --input %s/golden.safetensors --output %s --mtp %s",
             dir, dir, output, more);
    if (ml_test_miles(said, sizeof said, line) != 0)
        ml_test_fail(__FILE__, __LINE__, "miles %s: %s", line, said);
}

/* The module's gradients are as many as the golden file has, apart from those of the
 * trunk. */
static int32_t compare_all(const char *dir, const ml_st_file *golden,
                           const ml_st_file *out) {
    int32_t n_grad = 0;

    for (int32_t i = 0; i < golden->n; i++) {
        const ml_st_tensor *t = &golden->tensor[i];
        bool grad = starts(t->name, "miles.grad.");
        n_grad += grad;
        if (starts(t->name, "mtp_logits."))
            compare(dir, t->name.ptr, out, t, LOGITS_BOUND);
        if (grad || starts(t->name, "miles.mtp_loss"))
            compare(dir, t->name.ptr + strlen("miles."), out, t,
                    grad ? GRAD_BOUND : LOGITS_BOUND);
    }
    return n_grad;
}

static void check_case(const char *dir) {
    const char *path = ml_test_path("out.safetensors"),
               *plain = ml_test_path("plain.safetensors");
    ml_st_file *golden, *out, *without;
    char golden_path[1024];

    snprintf(golden_path, sizeof golden_path, "%s/golden.safetensors", dir);
    score(dir, "--grads", path);
    score(dir, "--grads --batching single", plain);
    MUST(ml_st_open(&golden, golden_path, &err));
    MUST(ml_st_open(&out, path, &err));
    MUST(ml_st_open(&without, plain, &err));
    CHECK(compare_all(dir, golden, out) >= 16);
    for (int32_t i = 0; i < out->n; i++) { /* batches do not change a bit of the logits */
        const ml_st_tensor *t = &out->tensor[i], *u = ml_st_find(without, t->name);
        CHECK(u && u->bytes == t->bytes);
        CHECK(!starts(t->name, "mtp_logits.") || !memcmp(t->data, u->data, t->bytes));
    }
    ml_st_close(without);
    ml_st_close(out);
    ml_st_close(golden);
}

static void ignore(void *ud, const ml_gen_update *u) {
    (void)ud, (void)u;
}

/* The engine's first draft after the prompt is the golden file's greedy one. */
static void check_draft(const char *dir, const ml_st_file *golden, ml_engine *e) {
    const ml_st_tensor *prompt = ml_st_find(golden, ml_str_of("draft.prefix"));
    const int32_t *first = ml_st_find(golden, ml_str_of("draft.first"))->data;
    const ml_st_tensor *want = ml_st_find(golden, ml_str_of("draft.tokens"));
    int32_t n = (int32_t)want->shape[0];
    const ml_request *r;

    MUST(ml_engine_submit(e,
                          &(ml_gen_request){ .prompt = prompt->data,
                                             .n_prompt = (int32_t)prompt->shape[0],
                                             .draw = { .top_p = 1, .repetition = 1 },
                                             .max_new = 16,
                                             .score_from = -1 },
                          ignore, NULL, 1, &err));
    do
        CHECK(ml_engine_step(e));
    while (e->running.first->n_token == prompt->shape[0]);
    r = e->running.first;
    CHECK(r->n_token == prompt->shape[0] + 1 && r->token[r->n_token - 1] == *first);
    CHECK(r->n_draft == n);
    if (memcmp(r->token + r->n_token, want->data, (size_t)n * sizeof *r->token) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s: another draft", dir);
    while (ml_engine_step(e))
        ;
}

/* Answers of several requests, as bytes. */
typedef struct answers {
    struct {
        int32_t token[32];
        float logprob[32];
        int32_t n;
    } of[8];
} answers;

static void hear(void *ud, const ml_gen_update *u) {
    answers *a = ud;

    for (int32_t i = 0; i < u->answer.n; i++) {
        int32_t at = a->of[u->ticket].n++;
        a->of[u->ticket].token[at] = u->answer.id[i];
        a->of[u->ticket].logprob[at] = u->answer.logprob[i];
    }
}

/* Samples of the three prompts; more of them than run at once. */
static void answer_all(ml_engine *e, const ml_st_file *golden, answers *out) {
    char name[32];

    memset(out, 0, sizeof *out);
    for (uint64_t k = 0; k < 8; k++) {
        snprintf(name, sizeof name, "tokens.%d", (int)(k % 3));
        MUST(ml_engine_submit(
            e,
            &(ml_gen_request){ .prompt = ml_st_find(golden, ml_str_of(name))->data,
                               .n_prompt = 17,
                               .draw = { .temperature = k % 2 ? 1.0f : 0.3f,
                                         .top_p = 1,
                                         .repetition = k == 5 ? 1.2f : 1,
                                         .seed = 7,
                                         .sample = k },
                               .max_new = 32,
                               .score_from = -1 },
            hear, out, k, &err));
    }
    while (ml_engine_step(e))
        ;
}

static void draft_with(const char *dir) {
    ml_engine_opts o = { .context = 64,
                         .max_running = 3,
                         .max_waiting = 8,
                         .chunk = 24,
                         .draft = { .n = 3, .mtp = dir } };
    static answers plain, drafted;
    ml_gen_stats stats;
    char path[1024];
    ml_checkpoint *c;
    ml_st_file *golden;
    ml_engine *e;
    ml_weights w;
    ml_backend be;
    ml_spec s;
    ml_arena a;

    ml_arena_init(&a, "test");
    snprintf(path, sizeof path, "%s/golden.safetensors", dir);
    MUST(ml_st_open(&golden, path, &err));
    MUST(ml_spec_open(&s, dir, &err));
    MUST(ml_checkpoint_open(&c, dir, &err));
    MUST(ml_backend_cpu_open(&be, 1, NULL, &err));
    MUST(ml_weights_load(&w, &s, c, ML_WEIGHT_F32, &be, &a, &err));
    MUST(ml_engine_open(&e, &s, &w, &be, &o, &err));
    check_draft(dir, golden, e);
    answer_all(e, golden, &drafted);
    ml_engine_stats(e, &stats);
    CHECK(stats.n_draft > 10); /* of random weights: few are right */
    ml_engine_close(e);
    o.draft = (ml_draft_opts){ 0 };
    MUST(ml_engine_open(&e, &s, &w, &be, &o, &err));
    answer_all(e, golden, &plain);
    CHECK(memcmp(&plain, &drafted, sizeof plain) == 0);
    ml_engine_close(e);
    ml_weights_close(&w);
    ml_backend_close(&be);
    ml_checkpoint_close(c);
    ml_spec_close(&s);
    ml_st_close(golden);
    ml_arena_release(&a);
}

static void drafts(void) {
    draft_with("tests/golden/mtp/deepseek_v3");
    draft_with("tests/golden/mtp/qwen3_next");
    draft_with("tests/golden/mtp/mimo");
}

static void deepseek_v3(void) {
    check_case("tests/golden/mtp/deepseek_v3");
}

static void qwen3_next(void) {
    check_case("tests/golden/mtp/qwen3_next");
}

static void mimo(void) {
    check_case("tests/golden/mtp/mimo");
}

static void recordings(void) {
    static const char *const name[] = { "deepseek_v3", "glm4_moe", "qwen3_next" };
    char dir[1024];

    for (int i = 0; i < 3; i++) {
        snprintf(dir, sizeof dir, "%s/mtp/%s", ml_test_fixtures(), name[i]);
        check_case(dir);
        draft_with(dir);
    }
}

static void without_module(void) {
    char said[4096];

    CHECK(ml_test_miles(said, sizeof said,
                        "score --hf-checkpoint tests/golden/data/llama --input "
                        "tests/golden/data/llama/golden.safetensors --output out --mtp") !=
          0);
    CHECK(strstr(said, "a llama model has no multi-token prediction layer") != NULL);
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "DeepSeek-V3's multi-token prediction equals torch's", deepseek_v3, 60 },
        { "Qwen3-Next's multi-token prediction equals torch's", qwen3_next, 60 },
        { "MiMo's multi-token prediction equals torch's", mimo, 60 },
        { "the engine's draft tokens of multi-token prediction equal torch's, and change "
          "no "
          "bit",
          drafts, 60 },
        { "recorded multi-token prediction modules equal torch's", recordings, 120,
          .fixtures = "mtp" },
        { "score --mtp of a model without the module says so", without_module, 60 },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
