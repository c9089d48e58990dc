#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "tests/support/flag_words.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

/* ---- helpers ---- */

#define TRAIN "--hf-checkpoint m --rollout-batch-size 1 --n-samples-per-prompt 2 "
#define ROUND                                                                              \
    TRAIN "--prompt-data d --num-rollout 1 --rm-type math --n-samples-per-prompt 4 "

#define MTP "--enable-mtp-training --mtp-num-layers 1 "

/* ---- values ---- */

static void defaults(void) {
    CHECK(parse(ML_CMD_SCORE, SCORE) == ML_OK);
    CHECK(strcmp(config.run.hf_checkpoint, "m") == 0 &&
          strcmp(config.score.input, "i") == 0);
    CHECK(config.run.dtype == ML_WEIGHT_AUTO && config.score.temperature == 1.0);
    CHECK(config.score.batching == ML_BATCH_PACKED && !config.score.entropy);
    CHECK(!config.score.logits && !config.score.dry_run && !config.run.backend.cpu_level);
    CHECK(config.run.backend.n_thread >= 1 && config.log_level == ML_LOG_WARN);
    CHECK(parse(ML_CMD_CONVERT, CONVERT) == ML_OK && config.convert.max_shard_bytes == 0);
}

static void spellings(void) {
    CHECK(parse(ML_CMD_SCORE, SCORE "--dtype bf16 --temperature=0.5 --threads 3") == ML_OK);
    CHECK(config.run.dtype == ML_WEIGHT_BF16 && config.score.temperature == 0.5);
    CHECK(config.run.backend.n_thread == 3);
    CHECK(parse(ML_CMD_SCORE,
                "--hf-checkpoint m --input i --output=--odd --entropy --no-stats") ==
          ML_OK);
    CHECK(strcmp(config.score.output, "--odd") == 0);
    CHECK(config.score.entropy && !config.score.stats);
    CHECK(parse(ML_CMD_SCORE, "--hf-checkpoint m --input i --output=a=b") == ML_OK);
    CHECK(strcmp(config.score.output, "a=b") == 0);
    CHECK(parse(ML_CMD_CONVERT, CONVERT "--dtype f16") == ML_OK &&
          config.convert.dtype == ML_DTYPE_F16);
}

static void bad_values(void) {
    static const struct {
        const char *words, *says;
    } cases[] = {
        { "--threads 0", "--threads '0': expected a whole number from 1 to 256" },
        { "--threads 257", "from 1 to 256" },
        { "--threads 2x", "a whole number" },
        { "--threads 0x2", "a whole number" },
        { "--threads=", "a whole number" },
        { "--threads 99999999999999999999", "a whole number" },
        { "--temperature 0", "a number from 1e-06" },
        { "--temperature -1", "a number from" },
        { "--temperature nan", "a number from" },
        { "--temperature inf", "a number from" },
        { "--temperature 1e400", "a number from" },
        { "--temperature 0x1p0", "a number from" },
        { "--dtype f16", "--dtype 'f16': expected one of auto, f32, bf16" },
        { "--dtype F32", "one of auto" },
        { "--cpu-level sse", "one of c, neon, avx2, avx512" },
        { "--cpu-level=", "one of c" },
        { "--stats=1", "takes no value" },
        { "--temperature", "--temperature needs a value" },
        { "--threads --stats", "--threads needs a value" },
    };
    char words[200];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(words, sizeof words, SCORE "%s", cases[i].words);
        check_refused(ML_CMD_SCORE, words, cases[i].says);
    }
}

static void byte_sizes(void) {
    static const struct {
        const char *text;
        int64_t bytes; /* 0: refused */
    } cases[] = {
        { "5GB", 5000000000 },
        { "500MB", 500000000 },
        { "7KB", 7000 },
        { "1TB", 1000000000000 },
        { "2GiB", (int64_t)2 << 30 },
        { "3MiB", (int64_t)3 << 20 },
        { "4KiB", 4096 },
        { "1TiB", (int64_t)1 << 40 },
        { "12345", 12345 },
        { "0", 0 },
        { "-1GB", 0 },
        { "5Gb", 0 },
        { "5 GB", 0 },
        { "GB", 0 },
        { "1.5GB", 0 },
        { "5GBs", 0 },
        { "99999999999GB", 0 },
        { "9999999TiB", 0 },
    };
    char words[200];

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ml_status want = cases[i].bytes ? ML_OK : ML_EUSAGE;
        snprintf(words, sizeof words, CONVERT "--max-shard-size %s", cases[i].text);
        if (parse(ML_CMD_CONVERT, words) != want)
            ml_test_fail(__FILE__, __LINE__, "%s: %s", cases[i].text, wrong.ptr);
        else if (!want)
            CHECK(config.convert.max_shard_bytes == cases[i].bytes);
    }
}

/* ---- names ---- */

static void lists(void) {
    CHECK(parse(ML_CMD_ROUTER, "--worker-urls http://a:1 http://b:2 --port 5") == ML_OK);
    CHECK(config.worker_urls.n == 2 && config.router.port == 5);
    CHECK(strcmp(config.worker_urls.word[1], "http://b:2") == 0);
    CHECK(parse(ML_CMD_ROUTER, "--port 5") == ML_OK && config.worker_urls.n == 0);
    check_refused(ML_CMD_ROUTER, "--worker-urls --port 5", "--worker-urls needs a value");
    check_refused(ML_CMD_ROUTER, "--worker-urls=a", "write --worker-urls A B C");
}

static void required(void) {
    check_refused(ML_CMD_SCORE, "--input i", "--hf-checkpoint DIR is required");
    check_refused(ML_CMD_SCORE, "--hf-checkpoint m", "--input FILE is required");
    check_refused(ML_CMD_SCORE, "--hf-checkpoint= --input i", "'': expected a path");
    check_refused(ML_CMD_CONVERT, "--hf-checkpoint m",
                  "one of --save-hf and --save-gguf is required");
}

static void environment(void) {
    setenv("MILES_CPU", "c", 1);
    setenv("MILES_LOG", "debug", 1);
    CHECK(parse(ML_CMD_SCORE, SCORE) == ML_OK &&
          strcmp(config.run.backend.cpu_level, "c") == 0);
    CHECK(config.log_level == ML_LOG_DEBUG);
    CHECK(parse(ML_CMD_SCORE, SCORE "--cpu-level avx2 --log-level info") == ML_OK);
    CHECK(strcmp(config.run.backend.cpu_level, "avx2") == 0 &&
          config.log_level == ML_LOG_INFO);
    setenv("MILES_CPU", "", 1);
    CHECK(parse(ML_CMD_SCORE, SCORE) == ML_OK && !config.run.backend.cpu_level);
    setenv("MILES_CPU", "sse", 1);
    check_refused(ML_CMD_SCORE, SCORE, "MILES_CPU 'sse': expected one of");
}

static void without_effect(void) {
    CHECK_HAS(log_of(ML_CMD_SCORE, SCORE "--trust-remote-code"),
              "--trust-remote-code is ignored: code from a checkpoint");
    CHECK(strcmp(config.run.hf_checkpoint, "m") == 0);
    check_refused(ML_CMD_SCORE, SCORE "--fp16",
                  "--fp16 is not supported: f16 compute is not supported");
    check_refused(ML_CMD_SCORE, SCORE "--fp16", "--fp16 is not supported");
}

/* Not the first thing alone, and rules between flags with the flags themselves. */
static void all_at_once(void) {
    check_refused(ML_CMD_TRAIN,
                  TRAIN "--lr x --use-opd --ref-update-interval 2 --colocate "
                        "--rollout-num-engines 2",
                  "--lr 'x': expected a number");
    CHECK_HAS(wrong.ptr, "no prompts: give --prompt-data");
    CHECK_HAS(wrong.ptr, "--num-rollout or --num-epoch is required");
    CHECK_HAS(wrong.ptr, "--use-opd needs --opd-type");
    CHECK_HAS(wrong.ptr, "--ref-update-interval needs a reference model");
    CHECK_HAS(wrong.ptr, "--colocate excludes --rollout-num-engines");
    check_refused(ML_CMD_SCORE,
                  "--input i --fp16 --zzzzzzzzzzzz a b --quantization fp4 stray",
                  "--fp16 is not supported");
    CHECK_HAS(wrong.ptr, "unknown flag --zzzzzzzzzzzz");
    CHECK_HAS(wrong.ptr, "--quantization 'fp4'");
    CHECK_HAS(wrong.ptr, "'stray' is not a flag");
    CHECK_HAS(wrong.ptr, "--hf-checkpoint DIR is required");
    CHECK(!ml_test_has(wrong.ptr, "'b'"));
}

/* ---- rules: each is broken by a line of its own ---- */

static const struct {
    const char *id, *words;
    bool async; /* of miles train-async */
} rule_cases[] = {
    { "train-sessions-agent",
      ROUND "--use-session-server --custom-agent-function-path a.b" },
    { "train-sessions-alone", ROUND "--tito-model qwen3" },
    { "train-sessions-groups", ROUND "--use-session-server v2 --group-rm" },
    { "train-async-flags", ROUND "--fully-async" },
    { "train-async-queue", ROUND "--max-weight-staleness 1", true },
    { "train-async-buffer", ROUND "--custom-async-data-buffer-path ./my.so:b", true },
    { "train-async-colocate", ROUND "--colocate", true },
    { "train-async-saves", ROUND "--save s --save-interval 3 --update-weights-interval 2",
      true },
    { "train-async-rounds", ROUND "--fully-async --partial-rollout", true },
    { "train-async-samples",
      ROUND "--fully-async --n-samples-per-prompt 8 --async-max-concurrent-samples 4",
      true },
    { "train-external-address", ROUND "--rollout-external" },
    { "train-external-alone", ROUND "--rollout-external-engine-addrs h:1" },
    { "train-weights-dir", ROUND "--update-weight-disk-dir d" },
    { "train-engines-twice", ROUND "--rollout-num-engines 2 --rollout-external" },
    { "train-router-port", ROUND "--sglang-router-ip h" },
    { "train-router-engines", ROUND "--save s --sglang-router-port 1" },
    { "train-engines-colocate", ROUND "--rollout-num-engines 2 --colocate" },
    { "train-weights-nowhere", ROUND "--rollout-num-engines 2" },
    { "train-weights-no-files",
      ROUND "--rollout-external --rollout-external-engine-addrs h:1 "
            "--update-weight-disk-dir d" },
    { "train-weights-address", ROUND "--update-weight-address h" },
    { "train-weights-p2p", ROUND "--save s --rollout-num-engines 1 "
                                 "--update-weight-transfer-mode p2p" },
    { "train-delta-engines", ROUND "--update-weight-transfer-mode disk-delta" },
    { "train-delta-copy", ROUND "--save s --rollout-num-engines 1 "
                                "--update-weight-transfer-mode disk-delta" },
    { "train-delta-flags", ROUND "--update-weight-local-checkpoint-dir d" },
    { "train-eval-engines", ROUND "--eval-num-gpus 3 --eval-num-gpus-per-engine 2" },
    { "train-eval-elsewhere", ROUND "--eval-num-gpus 1 --rollout-external" },
    { "train-eval-snapshots", ROUND "--eval-num-gpus 1" },
    { "train-on-policy", ROUND "--true-on-policy-mode --partial-rollout" },
    { "train-on-policy", ROUND "--true-on-policy-mode", true },
    { "train-prefill", ROUND "--recompute-logprobs-via-prefill" },
    { "train-weights-hook", ROUND "--custom-update-weight-post-write-path ./my.so:h" },
    { "train-events", ROUND "--enable-event-analyzer" },
    { "train-faults", ROUND "--ci-ft-test-actions []" },
    { "train-ft-components", ROUND "--ft-components rollout train" },
    { "train-offload", ROUND "--offload", true },
    { "train-ci-sync", ROUND "--ci-test --debug-skip-weight-update" },
    { "train-critic", ROUND "--critic-load c" },
    { "train-critic", ROUND "--critic-lr 1e-5 --advantage-estimator gspo" },
    { "train-critic-returns", ROUND "--advantage-estimator ppo "
                                    "--disable-compute-advantages-and-returns" },
    { "train-ref-interval", ROUND "--ref-update-interval 2" },
    { "lora-targets", ROUND "--lora-rank 4" },
    { "lora-elsewhere", ROUND "--lora-rank 4 --target-modules q_proj --eval-num-gpus 2" },
    { "lora-copies", ROUND "--lora-rank 4 --target-modules q_proj --keep-old-actor" },
    { "multi-lora-alone", ROUND "--multi-lora-disable-service-mode" },
    { "multi-lora-pause", ROUND "--pause-generation-mode in_place" },
    { "multi-lora-rank", ROUND "--multi-lora-n-adapters 2" },
    { "multi-lora-pairs", ROUND "--multi-lora-n-adapters 2 --lora-rank 4 --target-modules "
                                "q_proj --multi-lora-adapter a" },
    { "multi-lora-model",
      ROUND "--multi-lora-n-adapters 2 --lora-rank 4 --target-modules q_proj" },
    { "multi-lora-extras", ROUND "--multi-lora-n-adapters 2 --lora-rank 4 --target-modules "
                                 "q_proj --partial-rollout" },
    { "multi-lora-functions",
      ROUND "--multi-lora-n-adapters 2 --lora-rank 4 --target-modules q_proj "
            "--rollout-sample-filter-path ./f.py:f" },
    { "lora-train-only", ROUND "--lora-train-only" },
    { "lora-dropout", ROUND "--lora-dropout 0.1" },
    { "quantized-sizes",
      ROUND "--fp8-format e4m3 --fp8-recipe blockwise --pipeline-model-parallel-size 2" },
    { "fp8-recipe", ROUND "--fp8-format e4m3 --fp8-recipe delayed" },
    { "fp8-recipe", ROUND "--fp8-format e4m3 --fp8-recipe tensorwise" },
    { "fp8-format", ROUND "--fp8-format hybrid --fp8-recipe blockwise" },
    { "fp8-format", ROUND "--fp8-format e5m2 --fp8-recipe blockwise --fp8-backward" },
    { "fp8-backward", ROUND "--fp8-backward" },
    { "fp8-backward", ROUND "--fp8-format e4m3 --fp8-recipe mxfp8 --fp8-backward" },
    { "fake-others", ROUND "--fp8-format hybrid --fp8-recipe blockwise --fp8-backward "
                           "--lora-rank 4 --target-modules q_proj" },
    { "high-precision-names", ROUND "--fp8-format e4m3 --fp8-recipe mxfp8 "
                                    "--extra-high-precision-layers-megatron linear_fc1" },
    { "high-precision-layers", ROUND "--fp8-format e4m3 --fp8-recipe mxfp8 "
                                     "--num-layers-at-end-in-bf16 2" },
    { "fake-others", ROUND "--fake-quantization int4 --keep-old-actor" },
    { "fake-others", ROUND "--fake-quantization int4-f32-scale --fp8-format e4m3 "
                           "--fp8-recipe blockwise" },
    { "fake-others", ROUND "--fake-quantization int4-g128-f32-scale --lora-rank 4 "
                           "--target-modules q_proj" },
    { "quantized-sizes", ROUND "--fake-quantization int4-f32-scale "
                               "--tensor-model-parallel-size 2" },
    { "rollout-quantization", ROUND "--rollout-quantization fp8 --true-on-policy-mode" },
    { "mtp-layers", ROUND "--enable-mtp-training" },
    { "draft-head", ROUND "--train-draft" },
    { "draft-head", ROUND "--train-draft --speculative-draft-model-path d "
                          "--sglang-speculative-algorithm STANDALONE" },
    { "mtp-sizes", ROUND "--train-draft --speculative-draft-model-path d "
                         "--pipeline-model-parallel-size 2" },
    { "mtp-others", ROUND MTP "--lora-rank 4 --target-modules all-linear" },
    { "mtp-others", ROUND MTP "--fp8-format e4m3 --fp8-recipe blockwise" },
    { "quantized-base", ROUND "--base-quantization nf4" },
    { "quantized-critic", ROUND "--lora-rank 4 --target-modules q_proj --base-quantization "
                                "int4 --advantage-estimator ppo" },
    { "quantized-dtype", ROUND "--lora-rank 4 --target-modules q_proj --base-quantization "
                               "fp8 --dtype f32" },
    { "train-teacher", ROUND "--opd-teacher-load t" },
    { "train-opd-type", ROUND "--use-opd" },
    { "train-opd-load", ROUND "--use-opd --opd-type megatron" },
    { "train-opd-top-k", ROUND "--opd-log-prob-top-k 4" },
    { "train-overlong", ROUND "--overlong-buffer-len 9 --rollout-max-response-len 8" },
    { "two-judges", ROUND "--judge-model-path m --judge-url http://h:1/v1" },
    { "train-curriculum-data",
      TRAIN "--num-rollout 1 --load-debug-rollout-data d --prompt-sampling hard" },
    { "train-curriculum-keys", ROUND "--difficulty-key d --prompt-sampling hard" },
    { "train-curriculum-keys", ROUND "--pass-rate-key p" },
    { "train-gdpo", ROUND "--gdpo-reward-keys a b --gdpo-reward-weights 1" },
    { "train-gdpo", ROUND "--gdpo-reward-keys a --gdpo-reward-weights x" },
    { "train-pass-at-k", ROUND "--advantage-estimator pass_at_k --pass-at-k 100" },
    { "train-opd-self", ROUND "--use-opd --opd-type self" },
    { "train-opd-context", ROUND "--opd-context-key k" },
    { "train-opd-async",
      ROUND "--use-opd --opd-type sglang --opd-teacher-urls http://h:1 "
            "--opd-log-prob-top-k 4 --over-sampling-batch-size 64",
      true },
    { "train-opd-urls", ROUND "--use-opd --opd-type sglang" },
    { "train-old-actor", ROUND "--keep-old-actor --skip-actor-forward-only" },
    { "train-forward-pass", ROUND "--use-rollout-entropy --skip-actor-forward-only" },
    { "train-routing-replay", ROUND "--use-routing-replay --skip-actor-forward-only" },
    { "train-indexer-replay", ROUND "--use-indexer-replay --skip-actor-forward-only" },
    { "moments-alone", ROUND "--exp-avg-dtype bf16" },
    { "moments-of-adam",
      ROUND "--optimizer muon --use-precision-aware-optimizer --exp-avg-dtype bf16" },
    { "two-kls", ROUND "--kl-coef 0.1 --kl-loss-coef 0.1" },
    { "normalize-advantages", ROUND "--advantage-estimator reinforce_plus_plus" },
    { "critic-kl", ROUND "--advantage-estimator ppo --kl-coef 0.1" },
    { "tis-of-rollout", ROUND "--use-tis --use-rollout-logprobs" },
    { "mismatch-metrics", ROUND "--get-mismatch-metrics" },
    { "dual-clip", ROUND "--eps-clip-c 1" },
    { "custom-loss", ROUND "--loss-type custom_loss" },
    { "custom-loss", ROUND "--custom-loss-function-path ./my.so:l" },
    { "old-log-probs", ROUND "--skip-actor-forward-only --kl-coef 0.1" },
    { "batch-steps", ROUND "--global-batch-size 3 --num-steps-per-rollout 2" },
    { "batch-samples", ROUND "--global-batch-size 1000000" },
    { "batch-samples", ROUND "--num-steps-per-rollout 1000000" },
    { "gradient-shards", ROUND "--gradient-shards 3" },
    { "gradient-shards-sizes", ROUND "--gradient-shards 2 --context-parallel-size 2" },
    { "serve-tls", "--model-path a --ssl-keyfile k" },
    { "eval-pairs", ROUND "--eval-prompt-data a b c" },
    { "stop-token-ids", ROUND "--rollout-stop-token-ids 7 x" },
    { "train-teacher-names", ROUND "--opd-teacher-urls a=http://h:1 b=" },
    { "dumper-options", ROUND "--dumper-fwd-bwd filter" },
    { "train-dumper-engines", ROUND "--dumper-enable --rollout-num-engines 2 --save s" },
    { "train-makes-prompts", "--hf-checkpoint m --disable-rollout-global-dataset "
                             "--num-rollout 1 --rollout-batch-size 4" },
    { "score-output", "--hf-checkpoint m --input i" },
    { "score-in-place", "--hf-checkpoint m --input i --output i" },
    { "score-adapters", SCORE "--lora-adapter-path a --lora-paths x=b" },
    { "quantized-grads", SCORE "--grads --quantization int4" },
    { "score-grads-batching", SCORE "--grads --batching tokenwise" },
    { "score-mtp-batching", SCORE "--mtp --batching tokenwise" },
    { "convert-in-place", "--hf-checkpoint m --save-hf m" },
    { "convert-output", "--hf-checkpoint m --save-hf a --save-gguf b.gguf" },
    { "convert-q8_0", "--hf-checkpoint m --save-hf a --dtype q8_0" },
    { "convert-gguf", "--hf-checkpoint m --save-gguf b.gguf --dtype int4" },
    { "serve-replicas", "--model-path a --dp-size 2" },
    { "serve-dp-uneven", "--model-path a --tp-size 4 --dp-size 3 --enable-dp-attention" },
    { "quantized-ranks", "--model-path a --quantization int4 --tp-size 2" },
    { "serve-no-tokenizer", "--model-path a --skip-tokenizer-init --tokenizer-path b" },
    { "router-by-chance", "--policy random" },
    { "router-by-chance", "--policy power_of_two" },
    { "router-manual", "--policy manual" },
    { "sft-no-end", "--hf-checkpoint m --prompt-data d --rollout-batch-size 1" },
    { "sft-interval", "--hf-checkpoint m --prompt-data d --rollout-batch-size 1 "
                      "--num-epoch 1 --save-interval 1" },
    { "profile", TRAIN "--prompt-data d --num-rollout 1 --profile" },
    { "hashes", TRAIN "--prompt-data d --num-rollout 1 --debug-determinism" },
    { "sentinel", TRAIN "--prompt-data d --num-rollout 1 --save-trigger-sentinel f" },
    { "metric", TRAIN "--prompt-data d --num-rollout 1 --ci-metric-checker-key k" },
    { "metric", TRAIN "--prompt-data d --num-rollout 1 --ci-metric-checker-threshold 1" },
    { "qkv-format", TRAIN "--prompt-data d --num-rollout 1 --qkv-format bshd "
                          "--use-dynamic-batch-size --max-tokens-per-gpu 9" },
    { "train-subsample", TRAIN "--prompt-data d --num-rollout 1 "
                               "--load-debug-rollout-data-subsample 0.5" },
    { "train-recording", ROUND "--save-debug-rollout-data {rollout_id}.json" },
    { "train-no-end", TRAIN "--prompt-data d" },
    { "train-interval", TRAIN "--prompt-data d --num-rollout 1 --save-interval 1" },
    { "sft-save-hf", "--hf-checkpoint m --prompt-data d --rollout-batch-size 1 "
                     "--num-epoch 1 --save-hf h" },
    { "train-save-hf", TRAIN "--prompt-data d --num-rollout 1 --save-hf h" },
    { "train-one-step", TRAIN "--prompt-data d --num-rollout 1 "
                              "--no-use-dynamic-batch-size --micro-batch-size 1 "
                              "--use-dynamic-global-batch-size" },
    { "train-by-flops", TRAIN "--prompt-data d --num-rollout 1 "
                              "--no-use-dynamic-batch-size --micro-batch-size 1 "
                              "--balance-by-flops" },
    { "train-no-data", TRAIN "--num-rollout 1" },
    { "train-no-rounds", TRAIN "--load-debug-rollout-data d --num-epoch 1" },
    { "train-only-what", TRAIN "--prompt-data d --num-rollout 1 --debug-train-only" },
    { "train-eval-of-what", TRAIN "--prompt-data d --num-rollout 1 --eval-interval 1" },
    { "train-rounds-by-two", TRAIN "--prompt-data d --num-rollout 1 --partial-rollout "
                                   "--rollout-function-path ./my.so:name" },
    { "train-lonely-answers", "--hf-checkpoint m --prompt-data d --num-rollout 1 "
                              "--rollout-batch-size 8" },
    { "train-masked-turns", "--hf-checkpoint m --prompt-data d --num-rollout 1 "
                            "--rollout-batch-size 8 --custom-generate-function-path ./e.py "
                            "--mask-offpolicy-in-partial-rollout" },
    { "eval-of-what", "--hf-checkpoint m" },
    { "eval-twice", "--hf-checkpoint m --eval-config c --eval-prompt-data a b" },
    { "train-eval-twice", TRAIN "--prompt-data d --num-rollout 1 --eval-config c "
                                "--eval-prompt-data a b" },
    { "train-group-evals", TRAIN "--prompt-data d --num-rollout 1 --eval-prompt-data a b "
                                 "--group-rm --custom-rm-path ./r.py" },
    { "train-over-sampling", "--hf-checkpoint m --prompt-data d --num-rollout 1 "
                             "--rollout-batch-size 2 --over-sampling-batch-size 1" },
    { "interleaved-stages", TRAIN "--num-rollout 1 "
                                  "--num-virtual-stages-per-pipeline-rank 2" },
    { "interleaved-twice", TRAIN "--num-rollout 1 --pipeline-model-parallel-size 2 "
                                 "--num-layers-per-virtual-pipeline-stage 1 "
                                 "--num-virtual-stages-per-pipeline-rank 2" },
    { "interleaved-ends", TRAIN "--num-rollout 1 --pipeline-model-parallel-size 2 "
                                "--num-virtual-stages-per-pipeline-rank 2 "
                                "--decoder-first-pipeline-num-layers 1" },
    { "train-two-halves", TRAIN "--num-rollout 1 --load-debug-rollout-data d "
                                "--debug-rollout-only" },
};

static void check_rule(const ml_rule *r) {
    int n = 0;

    for (size_t i = 0; i < sizeof rule_cases / sizeof *rule_cases; i++)
        if (strcmp(rule_cases[i].id, r->id) == 0) {
            ml_cmd cmd = rule_cases[i].async ? ML_CMD_TRAIN_ASYNC : (ml_cmd)r->cmds;
            check_refused(cmd, rule_cases[i].words, r->sentence);
            n++;
        }
    if (!n)
        ml_test_fail(__FILE__, __LINE__, "rule %s has no case", r->id);
}

static void rules(void) {
    for (const ml_rule *const *t = ml_rule_tables; *t; t++)
        for (const ml_rule *r = *t; r->id; r++)
            check_rule(r);
    check_refused(ML_CMD_TRAIN, ROUND "--recompute-modules mlp attention",
                  "--recompute-modules 'attention': expected one of core_attn, layernorm");
    CHECK(parse(ML_CMD_TRAIN, ROUND) == ML_OK && parse(ML_CMD_TRAIN_ASYNC, ROUND) == ML_OK);
    CHECK(parse(ML_CMD_SCORE, "--hf-checkpoint m --input i --dry-run") == ML_OK);
    CHECK(parse(ML_CMD_SCORE, SCORE "--grads --batching single") == ML_OK);
}

/* ---- a file of flags ---- */

/* Writes a file of flags. */
static void write_flags(const char *yaml) {
    CHECK(ml_file_replace(ml_test_path("more.yaml"), ml_str_of(yaml), NULL) == ML_OK);
}

/* The command line goes before the file, and the file before the defaults. */
static void flags_in_a_file(void) {
    char words[1000], says[1000];

    write_flags("lr: 1e-5\nuse_kl_loss: true\nrollout-shuffle: false\nsave: null\n"
                "rollout_stop: [a, b]\nrm_type: math\nmodel-path: there\n"
                "eval_prompt_data: [x, y]\n");
    snprintf(words, sizeof words,
             "--prompt-data d --rollout-batch-size 1 --num-rollout 1 --lr 5e-6 --save s "
             "--n-samples-per-prompt 4 "
             "--rollout-shuffle --eval-prompt-data p q --custom-config-path %s",
             ml_test_path("more.yaml"));
    log_of(ML_CMD_TRAIN, words);
    snprintf(says, sizeof says,
             "--lr 5e-6 on the command line overrides 1e-5 of %s\n"
             "--rollout-shuffle on the command line overrides --no-rollout-shuffle of %s\n"
             "--eval-prompt-data p q on the command line overrides x y of %s\n",
             ml_test_path("more.yaml"), ml_test_path("more.yaml"),
             ml_test_path("more.yaml"));
    CHECK_HAS(logged, says);
    CHECK(config.run.trainer.lr.lr == 5e-6 && config.run.algo.num.use_kl_loss &&
          config.run.source.shuffle);
    CHECK(config.run.rollout.stop.n == 2 &&
          strcmp(config.run.rollout.stop.word[1], "b") == 0);
    CHECK(config.run.rollout.eval_data.n == 2);
    CHECK(strcmp(config.run.rollout.eval_data.word[0], "p") == 0);
    CHECK(strcmp(config.run.save, "s") == 0);
    CHECK(strcmp(config.run.reward.rm_type, "math") == 0);
    CHECK(strcmp(config.run.hf_checkpoint, "there") == 0);
    write_flags("rollout_stop: [a, --b]\n"); /* a word that looks like a flag */
    check_refused(ML_CMD_TRAIN, words, "--b");
    write_flags("custom_config_path: other.yaml\n");
    check_refused(ML_CMD_TRAIN, words, "names another YAML file");
    write_flags("no_such_flag: 1\n");
    check_refused(ML_CMD_TRAIN, words, "unknown flag --no-such-flag");
    write_flags("- 1\n");
    check_refused(ML_CMD_TRAIN, words, "expected a mapping of flag names");
    check_refused(ML_CMD_TRAIN, TRAIN "--custom-config-path /no/such.yaml",
                  "/no/such.yaml");
}

/* ---- rows, and the texts made from them ---- */

/* Whether the field can hold the values of the type within the bounds. */
static bool fits(const ml_flag *f) {
    bool narrow = f->min < f->max && f->min >= INT32_MIN && f->max <= INT32_MAX;

    switch (f->type) {
    case ML_FLAG_BOOL: return f->size == sizeof(bool);
    case ML_FLAG_I64: return f->size == 8 || (f->size == 4 && narrow);
    case ML_FLAG_WORD: return f->size == sizeof(int) || f->size == sizeof(bool);
    case ML_FLAG_LIST: return f->size == sizeof(ml_string_list);
    case ML_FLAG_F64:
    case ML_FLAG_BYTES:
    case ML_FLAG_TEXT:
    case ML_FLAG_PATH: return f->size == 8;
    }
    return false;
}

static void check_row(const ml_flag_list *l, int i) {
    const ml_flag *f = l->row[i];

    if (ml_flag_list_find(l, ml_str_of(f->name)) != i)
        ml_test_fail(__FILE__, __LINE__, "--%s is declared twice", f->name);
    if (f->state == ML_FLAG_LIVE ? !f->help || f->why : !f->why || f->help)
        ml_test_fail(__FILE__, __LINE__, "--%s: help for LIVE, why for the others",
                     f->name);
    if (f->help && f->help[strlen(f->help) - 1] != '.')
        ml_test_fail(__FILE__, __LINE__, "--%s: help is not a sentence", f->name);
    if (!f->group || f->at >= sizeof(ml_config) || (f->type == ML_FLAG_WORD && !f->words) ||
        (f->required && (f->def || !f->value)))
        ml_test_fail(__FILE__, __LINE__, "--%s: the row is not whole", f->name);
    if (f->state == ML_FLAG_LIVE && !f->same_as && !fits(f))
        ml_test_fail(__FILE__, __LINE__, "--%s: its field has another type", f->name);
}

/* A manual page escapes each minus. */
static bool in_man(const ml_text *man, const char *flag) {
    ml_text entry = { 0 };
    bool found;

    ml_text_printf(&entry, "\n.B \\-\\-");
    for (const char *s = flag; *s; s++)
        ml_text_printf(&entry, *s == '-' ? "\\-" : "%c", *s);
    ml_text_printf(&entry, " ");
    found = strstr(man->ptr, entry.ptr) != NULL;
    entry.ptr[entry.len - 1] = '\n'; /* a flag without a value */
    found = found || strstr(man->ptr, entry.ptr) != NULL;
    ml_text_release(&entry);
    return found;
}

static void rows_and_texts(void) {
    ml_text docs = { 0 }, bash = { 0 }, zsh = { 0 }, fish = { 0 }, all = { 0 };

    ml_help_all(&all);
    ml_help_docs(&docs);
    CHECK(ml_help_complete(&bash, "bash") && ml_help_complete(&zsh, "zsh") &&
          ml_help_complete(&fish, "fish") && !ml_help_complete(&all, "ksh"));
    for (const ml_command *c = ml_commands; c->name; c++) {
        ml_flag_list l;
        ml_text page = { 0 }, man = { 0 };
        char name[100];

        ml_help_command(&page, c, true);
        ml_help_man(&man, c);
        CHECK_HAS(all.ptr, c->name);
        ml_flag_list_init(&l, c->bit);
        for (int i = 0; i < l.n; i++) {
            bool live = live_somewhere(l.row[i]->name);
            check_row(&l, i);
            snprintf(name, sizeof name, "  --%s ", l.row[i]->name);
            CHECK_HAS(page.ptr, name);
            snprintf(name, sizeof name, "| `--%s", l.row[i]->name);
            CHECK_HAS(docs.ptr, name);
            snprintf(name, sizeof name, " --%s", l.row[i]->name);
            CHECK(ml_test_has(bash.ptr, name) == live);
            snprintf(name, sizeof name, "'--%s[", l.row[i]->name);
            CHECK(ml_test_has(zsh.ptr, name) == live);
            snprintf(name, sizeof name, " -l %s ", l.row[i]->name);
            CHECK(ml_test_has(fish.ptr, name) == live);
            CHECK(in_man(&man, l.row[i]->name) == (l.row[i]->state == ML_FLAG_LIVE));
        }
        ml_text_release(&page);
        ml_text_release(&man);
    }
    ml_text_release(&docs);
    ml_text_release(&bash);
    ml_text_release(&zsh);
    ml_text_release(&fish);
    ml_text_release(&all);
}

/* What Miles' script for Qwen3-4B passes, on one rank. */
#define QWEN3_4B                                                                           \
    "--swiglu --num-layers 36 --hidden-size 2560 --ffn-hidden-size 9728 "                  \
    "--num-attention-heads 32 --group-query-attention --num-query-groups 8 "               \
    "--use-rotary-position-embeddings --disable-bias-linear --normalization RMSNorm "      \
    "--norm-epsilon 1e-6 --rotary-base 1000000 --vocab-size 151936 --kv-channels 128 "     \
    "--qk-layernorm --hf-checkpoint m --ref-load r --load l --save s --save-interval 20 "  \
    "--prompt-data d --input-key prompt --label-key label --apply-chat-template "          \
    "--rollout-shuffle --rm-type deepscaler --num-rollout 3000 --rollout-batch-size 32 "   \
    "--n-samples-per-prompt 8 --rollout-max-response-len 8192 --rollout-temperature 1 "    \
    "--global-batch-size 256 --balance-data --eval-interval 20 --eval-prompt-data aime a " \
    "--n-samples-per-eval-prompt 16 --eval-max-response-len 16384 --eval-top-p 0.7 "       \
    "--sequence-parallel --pipeline-model-parallel-size 1 --context-parallel-size 1 "      \
    "--expert-model-parallel-size 1 --expert-tensor-parallel-size 1 "                      \
    "--recompute-granularity full --recompute-method uniform --recompute-num-layers 1 "    \
    "--use-dynamic-batch-size --max-tokens-per-gpu 9216 --advantage-estimator grpo "       \
    "--use-kl-loss --kl-loss-coef 0.00 --kl-loss-type low_var_kl --entropy-coef 0.00 "     \
    "--eps-clip 0.2 --eps-clip-high 0.28 --optimizer adam --lr 1e-6 --lr-decay-style "     \
    "constant --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98 "                      \
    "--rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.7 --use-wandb "        \
    "--attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32 "   \
    "--attention-softmax-in-fp32 --attention-backend flash --actor-num-nodes 1 "           \
    "--actor-num-gpus-per-node 8 --colocate "

static void a_launch_script(void) {
    CHECK(parse(ML_CMD_TRAIN, QWEN3_4B "--tensor-model-parallel-size 2") == ML_OK);
    CHECK(config.run.arch.n_layer == 36 && config.run.arch.rope_base == 1e6);
    CHECK(config.run.place.tp == 2 && config.run.place.cp == 1);
    check_refused(ML_CMD_TRAIN, QWEN3_4B "--tensor-model-parallel-size 0",
                  "tensor-model-parallel-size");
}

static void help_is_asked(void) {
    CHECK(parse(ML_CMD_SCORE, "--no-such-flag --help") == ML_OK && help);
    CHECK(parse(ML_CMD_SCORE, "-h") == ML_OK && help == ML_HELP_LIVE);
    CHECK(parse(ML_CMD_SCORE, "--help-all") == ML_OK && help == ML_HELP_ALL);
    CHECK(parse(ML_CMD_SCORE, SCORE) == ML_OK && !help);
}

static const ml_test tests[] = {
    { "flags that are not given have their defaults", defaults },
    { "values are taken behind a space and behind =", spellings },
    { "a bad value is refused with what was expected", bad_values },
    { "byte sizes take decimal and binary units", byte_sizes },
    { "list flags take several values", lists },
    { "a missing required flag is named", required },
    { "environment variables set flags that are not given", environment },
    { "a flag without effect is warned of or refused", without_effect },
    { "all errors of a command line are reported at once", all_at_once },
    { "every rule between flags refuses its example", rules },
    { "flags of a YAML file stand behind the command line", flags_in_a_file },
    { "every flag row appears in help, docs and completion", rows_and_texts },
    { "a launch script of Miles parses, with the sizes of its ranks", a_launch_script },
    { "--help and --help-all win over other errors", help_is_asked },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
