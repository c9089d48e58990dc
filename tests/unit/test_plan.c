/* miles plan from the outside: a config.json is all it needs. */
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/json.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static char out[1 << 20];

#define QWEN8 "--hf-checkpoint share/configs/Qwen3-8B "
#define QWEN30 "--hf-checkpoint share/configs/Qwen3-30B-A3B "
#define BATCH "--global-batch-size 256 --max-tokens-per-gpu 8192 --sample-tokens 4096 "

static int plan(const char *args) {
    char words[4096];

    snprintf(words, sizeof words, "plan %s", args);
    return ml_test_miles(out, sizeof out, words);
}

static void text(void) {
    CHECK(plan(QWEN8 BATCH) == 0);
    CHECK_HAS(out, "Qwen3-8B (qwen3, 8.19 B parameters) on 8 x NVIDIA H200, 8 to a node");
    CHECK_HAS(out, "tp 1, cp 1, dp 8, pp 1, ep 1");
    CHECK_HAS(out, "256 samples of 4096 tokens; 16 micro-batches of 8192 tokens a rank");
    CHECK_HAS(out, "optimizer state");
    CHECK_HAS(out, "tokens/s");
    CHECK_HAS(out, "gradients and weights of the step");
    CHECK(plan(QWEN8 BATCH "--nodes 2 --tensor-model-parallel-size 8 "
                           "--pipeline-model-parallel-size 2") == 0);
    CHECK_HAS(out, "on 16 x NVIDIA H200");
    CHECK_HAS(out, "tp 8, cp 1, dp 1, pp 2, ep 1");
    CHECK_HAS(out, "pipeline bubble");
    CHECK_HAS(out, "gathered weights");
    /* A run of one GPU communicates nothing. */
    CHECK(plan(QWEN8 BATCH "--gpus-per-node 1") == 0);
    CHECK(!ml_test_has(out, "a rank receives") && !ml_test_has(out, "bubble"));
}

static double number(const ml_json *v, const char *key) {
    double x = -1;
    return ml_json_f64(ml_json_get(v, key), &x) ? x : -1;
}

static const ml_json *parse(ml_arena *a) {
    const ml_json *doc = NULL;

    MUST(ml_json_parse(&doc, a, ml_str_of(out), "plan", &err));
    return doc;
}

/* The parts of a step add up, and the rows of its memory, too. */
static void json(void) {
    const ml_json *doc, *one, *memory;
    double sum = 0;
    ml_arena a;

    ml_arena_init(&a, "test");
    CHECK(plan(QWEN30 BATCH "--nodes 2 --expert-model-parallel-size 8 "
                            "--tensor-model-parallel-size 8 --json") == 0);
    doc = parse(&a);
    one = ml_json_get(doc, "layouts")->child;
    memory = ml_json_get(one, "memory_bytes");
    CHECK(number(doc, "nodes") == 2 && number(doc, "gpus_per_node") == 8);
    CHECK(number(ml_json_get(one, "layout"), "ep") == 8);
    for (const ml_json *v = memory->child; v && !ml_str_is(v->key, "total"); v = v->next) {
        double x = -1;
        CHECK(ml_json_f64(v, &x) && x >= 0);
        sum += x;
    }
    CHECK(sum <= number(memory, "total") && sum >= number(memory, "total") - 20);
    sum = number(one, "compute_s") + number(one, "exposed_s") + number(one, "bubble_s") +
          number(one, "reduce_s") + number(one, "optimizer_s") + number(one, "host_s");
    CHECK(sum > 0.999 * number(one, "step_s") && sum < 1.001 * number(one, "step_s"));
    ml_arena_release(&a);
}

/* The first result is the fastest; planned alone, it has the same figures. */
static void search(void) {
    const ml_json *doc, *first;
    char words[1000];
    double step_s;
    ml_arena a;

    ml_arena_init(&a, "test");
    CHECK(plan(QWEN8 BATCH "--search --json") == 0);
    doc = parse(&a);
    first = ml_json_get(doc, "layouts")->child;
    CHECK(number(doc, "layouts_tried") >= 10);
    step_s = number(first, "step_s");
    for (const ml_json *v = first; v; v = v->next)
        CHECK(number(v, "step_s") >= step_s);
    first = ml_json_get(first, "layout");
    snprintf(words, sizeof words,
             QWEN8 BATCH "--tensor-model-parallel-size %g --context-parallel-size %g "
                         "--pipeline-model-parallel-size %g --json%s",
             number(first, "tp"), number(first, "cp"), number(first, "pp"),
             ml_json_get(first, "recompute_full")->type == ML_JSON_TRUE
                 ? " --recompute-granularity full"
                 : "");
    CHECK(plan(words) == 0);
    CHECK(number(ml_json_get(parse(&a), "layouts")->child, "step_s") == step_s);
    CHECK(plan(QWEN8 BATCH "--search") == 0);
    CHECK_HAS(out, "tokens/s  bubble  exposed");
    CHECK(plan("--hf-checkpoint share/configs/DeepSeek-V3 " BATCH "--search") == 2);
    CHECK_HAS(out, "layouts of 8 GPUs fits: use more --nodes");
    ml_arena_release(&a);
}

static void refused(const char *args, const char *sentence) {
    CHECK(plan(args) == 2);
    CHECK_HAS(out, sentence);
}

static void bad_sizes(void) {
    refused(QWEN8 "--tensor-model-parallel-size 3", "--tensor-model-parallel-size");
    refused(
        QWEN8 "--expert-model-parallel-size 2",
        "--expert-model-parallel-size 2 needs a model with experts, and qwen3 has none: "
        "use 1");
    refused(
        QWEN30 "--nodes 3 --expert-model-parallel-size 24",
        "--expert-model-parallel-size 24 does not divide the 128 experts of a layer: use "
        "a divisor of 128");
    refused(QWEN8 "--nodes 8 --pipeline-model-parallel-size 64",
            "choose a smaller --pipeline-model-parallel-size");
    refused(QWEN8 "--device-kind b9000", "--device-kind 'b9000' is not known: use h200");
    refused("", "--hf-checkpoint DIR is required");
    refused(QWEN8 "--nodes 0", "--nodes '0': expected a whole number from 1");
    CHECK(plan("--hf-checkpoint tests/golden") == 1);
    CHECK_HAS(out, "config.json");
    /* A file of speeds that is not one. */
    CHECK(plan(QWEN8 "--device-kind share/configs/Qwen3-8B/config.json") == 1);
    CHECK_HAS(out, "expected a positive number for \"memory_bytes\"");
}

static const ml_test tests[] = {
    { "a layout is planned from config.json alone", text, .limit_s = 120 },
    { "as JSON, the parts of a step and of memory add up", json, .limit_s = 120 },
    { "the search returns the fastest layouts, with the figures of each alone", search,
      .limit_s = 300 },
    { "sizes that do not divide are refused with the flag and the fix", bad_sizes,
      .limit_s = 120 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
