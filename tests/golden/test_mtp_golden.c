/* Multi-token prediction modules against torch: the logits, the loss and the gradients of
 * every weight, as `miles score --mtp` writes them.  tests/golden/mtp has three families; more
 * of them are in $MILES_FIXTURES.  The same for EAGLE-3 heads, by the runner that trains them. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/file.h"
#include "engine/engine_priv.h"
#include "io/safetensors.h"
#include "model/tensors.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "train/mtp_runner.h"

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

/* The module of the model in dir, or a head for it.  Returns the fraction of right drafts. */
static double draft_with(const char *dir, const char *head) {
    ml_engine_opts o = { .context = 64,
                         .max_running = 3,
                         .max_waiting = 8,
                         .chunk = 24,
                         .draft = { .n = 3,
                                    .mtp = head ? NULL : dir,
                                    .eagle3 = head,
                                    .dtype = ML_WEIGHT_F32 } };
    static answers plain, drafted, trees;
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
    snprintf(path, sizeof path, "%s/golden.safetensors", head ? head : dir);
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
    o.draft.topk = 3 * !ml_kv_slot_bytes(&s, &be);
    o.draft.rows = 11;
    MUST(ml_engine_open(&e, &s, &w, &be, &o, &err));
    answer_all(e, golden, &trees);
    ml_engine_close(e);
    CHECK(memcmp(&trees, &drafted, sizeof trees) == 0);
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
    return (double)stats.n_accepted / (double)stats.n_draft;
}

static void drafts(void) {
    draft_with("tests/golden/mtp/deepseek_v3", NULL);
    draft_with("tests/golden/mtp/qwen3_next", NULL);
    draft_with("tests/golden/mtp/mimo", NULL);
}

/* --- EAGLE-3 heads ------------------------------------------------------------------ */

#define EAGLE3 "tests/golden/eagle3/"
enum { N_SEQ = 3, MAX_ROWS = 128 };

/* A head beside its trunk, with the sequences of its golden file. */
typedef struct head {
    ml_arena arena;
    ml_backend be;
    ml_spec trunk, spec;
    ml_weights trunk_weights, weights;
    ml_checkpoint *checkpoint;
    ml_draft_vocab vocab;
    ml_mtp_runner runner;
    ml_plan *plan; /* of the trunk */
    ml_batch batch;
    ml_train_sample sample[N_SEQ];
    int32_t n_seq;
} head;

static void open_head(head *h, const char *target, const char *dir) {
    ml_checkpoint *c;

    ml_arena_init(&h->arena, "test");
    MUST(ml_backend_cpu_open(&h->be, 1, NULL, &err));
    MUST(ml_spec_open(&h->trunk, target, &err));
    MUST(ml_checkpoint_open(&c, target, &err));
    MUST(ml_weights_load(&h->trunk_weights, &h->trunk, c, ML_WEIGHT_F32, &h->be, &h->arena,
                         &err));
    ml_checkpoint_close(c);
    MUST(ml_eagle3_open(&h->spec, dir, &h->trunk, &err));
    MUST(ml_checkpoint_open(&h->checkpoint, dir, &err));
    MUST(ml_eagle3_vocab(&h->vocab, &h->spec, h->checkpoint, &h->arena, &err));
    MUST(ml_mtp_load(&h->weights, &h->spec, h->checkpoint, ML_WEIGHT_F32, &h->trunk,
                     &h->trunk_weights, &h->be, &h->arena, &err));
    MUST(ml_mtp_runner_open(&h->runner, &h->spec, &h->weights, &h->vocab, true, true,
                            &h->be, &h->arena, &err));
    ml_grads_zero(&h->runner.grads);
}

static void close_head(head *h) {
    ml_mtp_runner_close(&h->runner);
    ml_plan_free(h->plan);
    ml_weights_close(&h->weights);
    ml_weights_close(&h->trunk_weights);
    ml_checkpoint_close(h->checkpoint);
    ml_spec_close(&h->spec);
    ml_spec_close(&h->trunk);
    ml_backend_close(&h->be);
    ml_arena_release(&h->arena);
}

/* A forward of the trunk over all sequences of the golden file. */
static void run_trunk(head *h, const ml_st_file *golden) {
    ml_plan_opts o = {
        .caps = { .n_token = MAX_ROWS, .n_seq = N_SEQ, .n_loss = MAX_ROWS, .n_page = 16 }
    };
    char name[32];

    ml_mtp_keep(&o, &h->spec, &h->trunk);
    MUST(ml_plan_new(&h->plan, &h->trunk, &h->be, o, &err));
    MUST(ml_plan_alloc(h->plan, &err));
    ml_batch_init(&h->batch, &h->arena, o.caps);
    for (int32_t i = 0; i < N_SEQ; i++) {
        const ml_st_tensor *t;
        snprintf(name, sizeof name, "tokens.%d", i);
        t = ml_st_find(golden, ml_str_of(name));
        if (!t)
            break;
        h->n_seq++;
        h->sample[i] = (ml_train_sample){ .token = t->data,
                                          .n_token = (int32_t)t->shape[0],
                                          .n_response = (int32_t)t->shape[0] - 1 };
        ml_batch_add(&h->batch, t->data, NULL, h->sample[i].n_token, 0, NULL);
    }
    ml_plan_forward(h->plan,
                    &(ml_run){ .weights = &h->trunk_weights, .rows = &h->batch.rows });
}

static void check_values(const char *what, const float *x, const ml_st_tensor *want,
                         double bound) {
    const float *y = want->data;
    size_t n = want->bytes / sizeof *y;
    double off = 0;

    for (size_t i = 0; i < n; i++)
        off += pow((double)x[i] - (double)y[i], 2);
    if (!(sqrt(off) <= bound * size_of(y, n)))
        ml_test_fail(__FILE__, __LINE__, "%s: off by %g of %g", what, sqrt(off),
                     size_of(y, n));
}

/* The gradient of each tensor of the head, in the order of its checkpoint's rows. */
static int32_t check_grads(head *h, const ml_st_file *golden) {
    int32_t n_named, n = 0;
    const ml_named *named = ml_named_list(&h->spec, h->checkpoint, &h->arena, &n_named);
    static float row[1 << 16];

    ml_grads_join(&h->runner.grads);
    for (int32_t i = 0; i < n_named; i++) {
        char name[128];
        const ml_st_tensor *want;
        snprintf(name, sizeof name, "grad.%s",
                 named[i].name + (starts(ml_str_of(named[i].name), "model.") ? 6 : 0));
        want = ml_st_find(golden, ml_str_of(name));
        if (!want)
            continue;
        ml_named_read(&h->runner.grads.sum, &h->spec, &named[i], 0,
                      ml_named_slices(&named[i]).n_slice, ML_F32, row);
        check_values(name, row, want, GRAD_BOUND);
        n++;
    }
    return n;
}

/* The logits of a head and, if they are recorded, its loss and the gradients of its 13 tensors. */
static void check_head(const char *target, const char *dir, const char *file) {
    int32_t item[N_SEQ] = { 0, 1, 2 };
    const ml_st_tensor *want;
    ml_bin bin = { .item = item };
    const float *logits;
    double sum[N_SEQ], loss = 0, n_row = 0;
    ml_st_file *golden;
    char path[256];
    head h = { 0 };

    MUST(ml_st_open(&golden, file, &err));
    open_head(&h, target, dir);
    run_trunk(&h, golden);
    bin.n = h.n_seq;
    for (int32_t i = 0; i < h.n_seq; i++)
        n_row += (double)ml_mtp_rows(&h.vocab, &h.sample[i]);
    MUST(ml_mtp_runner_run(&h.runner, (ml_trunk_rows){ &h.trunk, h.plan, &h.batch.rows },
                           h.sample, &bin, (float)(1 / n_row), sum, &err));
    logits = ml_plan_logits(h.runner.plan);
    for (int32_t i = 0; i < h.n_seq; i++) {
        snprintf(path, sizeof path, "draft_logits.%d", i);
        want = ml_st_find(golden, ml_str_of(path));
        check_values(path, logits, want, LOGITS_BOUND);
        logits += want->bytes / sizeof *logits;
        loss += sum[i] / n_row;
    }
    want = ml_st_find(golden, ml_str_of("loss"));
    if (want) {
        check_values("loss", &(float){ (float)loss }, want, LOGITS_BOUND);
        CHECK(check_grads(&h, golden) == 13);
    }
    close_head(&h);
    ml_st_close(golden);
}

static void eagle3(void) {
    check_head(EAGLE3 "target", EAGLE3 "own", EAGLE3 "own/golden.safetensors");
    check_head(EAGLE3 "target", EAGLE3 "shared", EAGLE3 "shared/golden.safetensors");
}

/* What the released format's own libraries compute. */
static void recorded_eagle3(void) {
    char target[512], dir[512], file[512];

    snprintf(target, sizeof target, "%s/mtp/eagle3_llama/target", ml_test_fixtures());
    snprintf(dir, sizeof dir, "%s/mtp/eagle3_llama/draft", ml_test_fixtures());
    snprintf(file, sizeof file, "%s/mtp/eagle3_llama/golden.safetensors",
             ml_test_fixtures());
    check_head(target, dir, file);
}

static void eagle3_drafts(void) {
    double trained = draft_with(EAGLE3 "target", EAGLE3 "own"),
           untrained = draft_with(EAGLE3 "target", EAGLE3 "shared");

    if (!(trained > 0.1 && trained > 3 * untrained))
        ml_test_fail(__FILE__, __LINE__,
                     "%g of a trained head's drafts are right, %g of an "
                     "untrained one's",
                     trained, untrained);
}

static void check_refusal(const char *dir, const char *trunk, const char *why) {
    ml_spec s, m;
    ml_err said;

    MUST(ml_spec_open(&s, trunk, &err));
    CHECK(ml_eagle3_open(&m, dir, &s, &said) == ML_EUNSUP);
    if (!strstr(said.msg, why))
        ml_test_fail(__FILE__, __LINE__, "%s", said.msg);
    ml_spec_close(&s);
}

static void other_heads(void) {
    check_refusal(EAGLE3 "own", "tests/golden/data/llama",
                  "use a head that was trained for the model");
    check_refusal(EAGLE3 "target", EAGLE3 "target",
                  "an EAGLE-3 head has \"LlamaForCausalLMEagle3\"");
}

/* The first heads that were released have the architecture of a model. */
static void first_heads(void) {
    const char *arch = "LlamaForCausalLMEagle3", *dir = ml_test_path("head"), *at;
    char path[1024], weights[1024];
    ml_text text = { 0 };
    int before, after;
    ml_file config;
    ml_spec s, m;

    MUST(ml_dir_make(dir, &err));
    CHECK(realpath(EAGLE3 "own/model.safetensors", weights) != NULL);
    snprintf(path, sizeof path, "%s/model.safetensors", dir);
    CHECK(symlink(weights, path) == 0);
    MUST(ml_file_map(&config, EAGLE3 "own/config.json", &err));
    at = memmem(config.bytes.ptr, config.bytes.len, arch, strlen(arch));
    before = (int)(at - config.bytes.ptr);
    after = (int)config.bytes.len - before - (int)strlen(arch);
    ml_text_printf(&text, "%.*sLlamaForCausalLM%.*s", before, config.bytes.ptr, after,
                   at + strlen(arch));
    snprintf(path, sizeof path, "%s/config.json", dir);
    MUST(ml_file_replace(path, (ml_str){ text.ptr, text.len }, &err));
    MUST(ml_spec_open(&s, EAGLE3 "target", &err));
    MUST(ml_eagle3_open(&m, dir, &s, &err));
    CHECK(m.n_vocab == 50 && m.module.n_vocab == 128 && m.module.layer[2] == 3);
    ml_spec_close(&m);
    ml_spec_close(&s);
    ml_file_unmap(&config);
    ml_text_release(&text);
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
        draft_with(dir, NULL);
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
        { "EAGLE-3 heads equal torch's", eagle3, 60 },
        { "the engine's draft tokens of EAGLE-3 heads equal torch's, and change no bit",
          eagle3_drafts, 60 },
        { "a head with the architecture of a Llama model is opened", first_heads, 60 },
        { "a head that does not fit the model is refused", other_heads, 60 },
        { "recorded multi-token prediction modules equal torch's", recordings, 120,
          .fixtures = "mtp" },
        { "a recorded EAGLE-3 head has the logits of its libraries", recorded_eagle3, 60,
          .fixtures = "mtp" },
        { "score --mtp of a model without the module says so", without_module, 60 },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
