/* Runs with quantized weights: a base below an adapter, engines with quantized copies, and
 * quantization-aware training. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "model/weights.h"
#include "tensor/codes.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/toy_run.h"

enum { ROUNDS = 2 };

static char out[1 << 16];

static void must_run(const char *command, const char *save, int rounds, const char *more) {
    if (ml_toy_run(command, save, rounds, more, out, sizeof out) != 0) {
        ml_test_fail(__FILE__, __LINE__, "%s", out);
        exit(1);
    }
}

static void must_refuse(const char *flags, const char *why) {
    CHECK(ml_toy_run("train", ml_test_path("refused"), ROUNDS, flags, out, sizeof out) !=
          0);
    if (!strstr(out, why))
        ml_test_fail(__FILE__, __LINE__, "%s: %s", flags, out);
}

/* Rollouts of a run whose forward_logp_max_diff is 0, and those that report it. */
static void count_diffs(const char *save, int *n_zero, int *n_all) {
    static const char key[] = "\"rollout/forward_logp_max_diff\": ";
    char path[1200];
    ml_file f = { 0 };

    snprintf(path, sizeof path, "%s/metrics.jsonl", save);
    MUST(ml_file_map(&f, path, &err));
    *n_zero = *n_all = 0;
    for (size_t i = 0; i + sizeof key < f.bytes.len; i++)
        if (memcmp(f.bytes.ptr + i, key, strlen(key)) == 0) {
            const char *v = f.bytes.ptr + i + strlen(key);
            *n_zero += v[0] == '0' && (v[1] == ',' || v[1] == '}');
            ++*n_all;
        }
    ml_file_unmap(&f);
}

static void check_exact(const char *save, int rounds) {
    int n_zero, n_all;

    count_diffs(save, &n_zero, &n_all);
    CHECK(n_all == rounds && n_zero == rounds);
}

#define LORA "--lora-rank 4 --target-modules all-linear --lr 1e-2 "

static void adapters(void) {
    static const char *const formats[] = { "nf4", "int4", "fp8", "int8" };
    char more[200];

    ml_toy_run_inputs();
    for (int i = 0; i < (getenv("MILES_LONG") ? 4 : 1); i++) {
        const char *save = ml_test_path(formats[i]);
        snprintf(more, sizeof more, LORA "--base-quantization %s", formats[i]);
        must_run("train", save, ROUNDS, more);
        check_exact(save, ROUNDS);
    }
    must_run("train", ml_test_path("elsewhere"), ROUNDS,
             LORA "--base-quantization nf4 --rollout-num-engines 1");
    ml_toy_run_same(ml_test_path("nf4"), ml_test_path("elsewhere"), ROUNDS);
}

/* The engine has other weights than the trainer: the difference is reported, and the run goes
 * on. */
static void copies(void) {
    const char *save = ml_test_path("fp8"), *later = ml_test_path("async");
    int n_zero, n_all;

    ml_toy_run_inputs();
    must_run("train", save, ROUNDS,
             "--lr 1e-2 --rollout-quantization fp8 --use-tis --tis-clip 2.0");
    count_diffs(save, &n_zero, &n_all);
    CHECK(n_all == ROUNDS && n_zero == 0);
    must_run("train-async", later, ROUNDS, "--lr 1e-2 --rollout-quantization int4");
}

/* A checkpoint in FP8: the same rollouts and weights as with the flag; none: exact. */
static void fp8_checkpoint(void) {
    char line[3000], said[4000];
    const char *flag = ml_test_path("flag"), *self = ml_test_path("self"),
               *exact = ml_test_path("exact");
    int n_zero, n_all;

    ml_toy_run_inputs();
    snprintf(line, sizeof line, "convert --hf-checkpoint %s --save-hf %s --dtype fp8",
             ml_test_path("model"), ml_test_path("fp8"));
    if (ml_test_miles(said, sizeof said, line) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", said);
    snprintf(line, sizeof line, "cd %s/.. && cp fp8/config.json fp8/*.safetensors model",
             ml_test_path("fp8"));
    CHECK(system(line) == 0);
    must_run("train", self, ROUNDS, "--lr 1e-2 --use-tis");
    count_diffs(self, &n_zero, &n_all);
    CHECK(n_all == ROUNDS && n_zero == 0);
    must_run("train", flag, ROUNDS, "--lr 1e-2 --use-tis --rollout-quantization fp8");
    ml_toy_run_same(self, flag, ROUNDS);
    must_run("train", exact, ROUNDS, "--lr 1e-2 --use-tis --rollout-quantization none");
    check_exact(exact, ROUNDS);
}

/* ---- quantization-aware training ---- */

/* The toy's model with rows of whole groups: that of an INT4 checkpoint, in bf16. */
static void make_inputs(void) {
    char line[3000], said[4000];

    ml_toy_run_inputs();
    snprintf(
        line, sizeof line,
        "convert --hf-checkpoint tests/golden/quant/int4_ct_qwen3 --save-hf %s --dtype "
        "bf16",
        ml_test_path("wide"));
    if (ml_test_miles(said, sizeof said, line) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", said);
    snprintf(line, sizeof line, "cd %s/.. && cp wide/config.json wide/*.safetensors model",
             ml_test_path("wide"));
    CHECK(system(line) == 0);
}

#define FAKE "--lr 1e-2 --use-kl-loss --kl-loss-coef 0.1 --kl-loss-type low_var_kl "

/* The INT4 checkpoint that is exported has the values that the run has used. */
static void check_export(const char *save) {
    char line[3000], said[4000], from[1500];
    const char *to = ml_test_path("int4");
    ml_weights stored, used;
    ml_checkpoint *a, *b;
    ml_spec spec;
    ml_backend be;
    ml_arena arena;
    int n = 0;

    snprintf(from, sizeof from, "%s/iter_%07d", save, ROUNDS - 1);
    snprintf(line, sizeof line, "convert --hf-checkpoint %s --save-hf %s --dtype int4",
             from, to);
    if (ml_test_miles(said, sizeof said, line) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s", said);
    ml_arena_init(&arena, "weights");
    MUST(ml_spec_open(&spec, to, &err));
    MUST(ml_checkpoint_open(&a, to, &err));
    MUST(ml_checkpoint_open(&b, from, &err));
    MUST(ml_backend_cpu_open(&be, 1, NULL, &err));
    MUST(ml_weights_load(&stored, &spec, a, ML_WEIGHT_STORED, &be, &arena, &err));
    MUST(ml_weights_load(&used, &spec, b, ML_WEIGHT_QAT, &be, &arena, &err));
    for (int32_t i = 0; i < spec.n_param; i++)
        if (ml_dtype_codes(used.t[i].dtype)) {
            n++;
            CHECK(stored.t[i].dtype == used.t[i].dtype &&
                  memcmp(stored.t[i].data, used.t[i].data, ml_tensor_bytes(&used.t[i])) ==
                      0);
        }
    CHECK(n > 0);
    ml_weights_close(&stored);
    ml_weights_close(&used);
    ml_checkpoint_close(a);
    ml_checkpoint_close(b);
    ml_backend_close(&be);
    ml_spec_close(&spec);
    ml_arena_release(&arena);
}

/* Whether two runs have other weights at the end. */
static bool differ(const char *a, const char *b) {
    char line[3000];

    snprintf(line, sizeof line,
             "cmp -s %s/iter_%07d/model.safetensors %s/iter_%07d/model.safetensors", a,
             ROUNDS - 1, b, ROUNDS - 1);
    return system(line) != 0;
}

static void aware(void) {
    const char *save = ml_test_path("qat"), *plain = ml_test_path("plain"),
               *switched = ml_test_path("switched");

    make_inputs();
    must_run("train", save, ROUNDS, FAKE "--fake-quantization int4");
    check_exact(save, ROUNDS);
    check_export(save);
    must_run("train", plain, ROUNDS, FAKE);
    CHECK(differ(save, plain));
    setenv("OPEN_TRAINING_INT4_FAKE_QAT_FLAG", "1", 1);
    setenv("OPEN_TRAINING_INT4_GROUP_SIZE", "32", 1);
    must_run("train", switched, ROUNDS, FAKE);
    ml_toy_run_same(save, switched, ROUNDS);
}

/* Miles' rule: rollouts and training read the same bf16 weights.  The engine of train-async has
 * copies of its own. */
static void aware_f32_scale(void) {
    const char *save = ml_test_path("f32-scale"), *again = ml_test_path("again"),
               *wide = ml_test_path("g128"), *codes = ml_test_path("codes"),
               *later = ml_test_path("async");

    make_inputs();
    must_run("train", save, ROUNDS, FAKE "--fake-quantization int4-f32-scale");
    check_exact(save, ROUNDS);
    must_run("train", again, ROUNDS, FAKE "--fake-quantization int4-f32-scale --threads 1");
    ml_toy_run_same(save, again, ROUNDS);
    must_run("train", codes, ROUNDS, FAKE "--fake-quantization int4");
    CHECK(differ(save, codes));
    must_run("train", wide, ROUNDS, FAKE "--fake-quantization int4-g128-f32-scale");
    check_exact(wide, ROUNDS);
    CHECK(differ(save, wide));
    must_run("train-async", later, 1, FAKE "--fake-quantization int4-f32-scale");
    check_exact(later, 1);
}

#define FP8 FAKE "--fp8-format e4m3 --fp8-recipe blockwise "

static void fp8(void) {
    const char *save = ml_test_path("fp8");

    ml_toy_run_inputs();
    must_run("train", save, ROUNDS, FP8);
    check_exact(save, ROUNDS);
    must_refuse(FP8 "--fp8-backward", "--fp8-backward needs a GPU");
}

static void mxfp8(void) {
    const char *save = ml_test_path("mxfp8"), *blocks = ml_test_path("blocks");

    ml_toy_run_inputs();
    must_run("train", save, ROUNDS, FAKE "--fp8-format e4m3 --fp8-recipe mxfp8");
    check_exact(save, ROUNDS);
    must_run("train", blocks, ROUNDS, FP8);
    CHECK(differ(save, blocks));
}

/* Layers that are kept in higher precision: log-probs are equal, and differ from those of a run
 * that quantizes all layers.  Without a layer left, the run is refused. */
static void high_precision(void) {
    const char *all = ml_test_path("all"), *ends = ml_test_path("ends"),
               *named = ml_test_path("named"), *both = ml_test_path("both");

    ml_toy_run_inputs();
    must_run("train", all, ROUNDS, FP8);
    must_run("train", ends, ROUNDS,
             FP8 "--first-last-layers-bf16 --num-layers-at-end-in-bf16 0");
    check_exact(ends, ROUNDS);
    CHECK(differ(all, ends));
    must_run("train", named, ROUNDS, FP8 "--extra-high-precision-layers-hf layers.0.");
    CHECK(!differ(ends, named)); /* the first layer, named in two ways */
    must_run("train", both, ROUNDS,
             FP8 "--extra-high-precision-layers-hf o_proj down_proj");
    check_exact(both, ROUNDS);
    CHECK(differ(all, both) && differ(ends, both));
    must_refuse(FP8 "--first-last-layers-bf16 --num-layers-at-start-in-bf16 9",
                "no layer of");
    must_refuse(FP8 "--extra-high-precision-layers-hf lm_head", "in its name");
    must_refuse(FP8 "--extra-high-precision-layers-megatron linear_fc1",
                "--extra-high-precision-layers-hf");
    must_refuse("--first-last-layers-bf16", "--fp8-format");
}

/* Training attends to the keys and values that rollouts have stored: chunks, preempted
 * requests and servers have the same bits. */
static void kv_cache(void) {
    const char *save = ml_test_path("kv"), *plain = ml_test_path("plain"),
               *server = ml_test_path("server"), *small = ml_test_path("small");

    ml_toy_run_inputs();
    must_run("train", save, ROUNDS, FAKE "--sglang-kv-cache-dtype fp8_e4m3");
    check_exact(save, ROUNDS);
    must_run("train", plain, ROUNDS, FAKE);
    CHECK(differ(save, plain));
    must_run("train", server, ROUNDS,
             FAKE "--sglang-kv-cache-dtype fp8_e4m3 --rollout-num-engines 1");
    ml_toy_run_same(save, server, ROUNDS);
    must_run("train", small, ROUNDS,
             FAKE "--sglang-kv-cache-dtype fp8_e4m3 --sglang-chunked-prefill-size 16");
    ml_toy_run_same(save, small, ROUNDS);
    must_run("train", ml_test_path("int8"), ROUNDS,
             FAKE "--sglang-kv-cache-dtype int8 --fp8-format e4m3 --fp8-recipe mxfp8");
    check_exact(ml_test_path("int8"), ROUNDS);
}

static void check_resumed(const char *flags) {
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");

    make_inputs();
    must_run("train", whole, ROUNDS, flags);
    must_run("train", parts, 1, flags);
    must_run("train", parts, ROUNDS, flags);
    ml_toy_run_same(whole, parts, ROUNDS);
}

static void resumed(void) {
    check_resumed(FAKE "--fake-quantization int4");
}

static void resumed_f32_scale(void) {
    check_resumed(FAKE "--fake-quantization int4-f32-scale");
}

static const ml_test tests[] = {
    { "an adapter on a quantized base has equal log-probs in rollouts and training",
      adapters, 300 },
    { "engines with quantized copies report the difference of log-probs", copies, 300 },
    { "a checkpoint in FP8 is generated with in FP8 and trained in bf16", fp8_checkpoint,
      300 },
    { "INT4 training has equal log-probs and the values of its export", aware, 300 },
    { "INT4 training with f32 scales has equal log-probs and reproducible bytes",
      aware_f32_scale, 300 },
    { "FP8 training has equal log-probs in rollouts and training", fp8, 300 },
    { "MXFP8 training has equal log-probs in rollouts and training", mxfp8, 300 },
    { "layers are kept in higher precision by position and by name", high_precision, 300 },
    { "a KV cache in 8 bits has equal log-probs in rollouts and training", kv_cache, 300 },
    { "INT4 training resumes to the same bytes", resumed, 300 },
    { "INT4 training with f32 scales resumes to the same bytes", resumed_f32_scale, 300 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
