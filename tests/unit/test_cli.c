#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/flag_foreign.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

/* ---- helpers ---- */

static ml_config config;
static ml_text wrong;
static ml_help_asked help;

/* Parses words split at blanks; the buffer lives as long as config points into it. */
static ml_status parse(ml_cmd cmd, const char *words) {
    static char line[4000];
    char *argv[200], *save = NULL;
    int argc = 0;

    snprintf(line, sizeof line, "%s", words);
    for (char *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    ml_text_release(&wrong);
    ml_config_release(&config);
    return ml_flags_parse(&config, &help, cmd, argc, argv, &wrong);
}

#define SCORE "--hf-checkpoint m --input i --output o "
#define TRAIN "--hf-checkpoint m --rollout-batch-size 1 "
#define ROUND                                                                              \
    TRAIN "--prompt-data d --num-rollout 1 --rm-type math --n-samples-per-prompt 4 "
#define CONVERT "--hf-checkpoint m --save-hf o "

static void check_refused(ml_cmd cmd, const char *words, const char *says) {
    if (parse(cmd, words) != ML_EUSAGE)
        ml_test_fail(__FILE__, __LINE__, "accepted: %s", words);
    else
        CHECK_HAS(wrong.ptr, says);
}

/* A flag may do something in one command and nothing in another. */
static bool live_somewhere(const char *name) {
    for (const ml_flag *const *t = ml_flag_tables; *t; t++)
        for (const ml_flag *f = *t; f->name; f++)
            if (f->state == ML_FLAG_LIVE && strcmp(f->name, name) == 0)
                return true;
    return false;
}

/* ---- values ---- */

static void defaults(void) {
    CHECK(parse(ML_CMD_SCORE, SCORE) == ML_OK);
    CHECK(strcmp(config.hf_checkpoint, "m") == 0 && strcmp(config.score.input, "i") == 0);
    CHECK(config.dtype == ML_DTYPE_AUTO && config.score.temperature == 1.0);
    CHECK(config.score.batching == ML_BATCH_PACKED && !config.score.entropy);
    CHECK(!config.score.logits && !config.score.dry_run && !config.run.cpu_level);
    CHECK(config.run.n_thread >= 1 && config.run.log_level == ML_LOG_WARN);
    CHECK(parse(ML_CMD_CONVERT, CONVERT) == ML_OK && config.convert.max_shard_bytes == 0);
}

static void spellings(void) {
    CHECK(parse(ML_CMD_SCORE, SCORE "--dtype bf16 --temperature=0.5 --threads 3") == ML_OK);
    CHECK(config.dtype == ML_DTYPE_BF16 && config.score.temperature == 0.5);
    CHECK(config.run.n_thread == 3);
    CHECK(parse(ML_CMD_SCORE,
                "--hf-checkpoint m --input i --output=--odd --entropy --no-stats") ==
          ML_OK);
    CHECK(strcmp(config.score.output, "--odd") == 0);
    CHECK(config.score.entropy && !config.score.stats);
    CHECK(parse(ML_CMD_SCORE, "--hf-checkpoint m --input i --output=a=b") == ML_OK);
    CHECK(strcmp(config.score.output, "a=b") == 0);
    CHECK(parse(ML_CMD_CONVERT, CONVERT "--dtype f16") == ML_OK &&
          config.dtype == ML_DTYPE_F16);
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
    CHECK(config.router.worker_urls.n == 2 && config.router.port == 5);
    CHECK(strcmp(config.router.worker_urls.word[1], "http://b:2") == 0);
    CHECK(parse(ML_CMD_ROUTER, "--port 5") == ML_OK && config.router.worker_urls.n == 0);
    check_refused(ML_CMD_ROUTER, "--worker-urls --port 5", "--worker-urls needs a value");
    check_refused(ML_CMD_ROUTER, "--worker-urls=a", "write --worker-urls A B C");
}

static void wrong_names(void) {
    check_refused(ML_CMD_SCORE, SCORE "--temprature 1", "did you mean --temperature");
    check_refused(ML_CMD_SCORE, "--hf_checkpoint m", "did you mean --hf-checkpoint");
    check_refused(ML_CMD_SCORE, SCORE "--save-hf o", "it belongs to miles convert");
    check_refused(ML_CMD_SCORE, SCORE "--zzzzzzzzzzzz 1", "miles score --help");
    check_refused(ML_CMD_SCORE, SCORE "--temp 1", "there is no flag --temp");
    check_refused(ML_CMD_SCORE, SCORE "--no-dtype", "there is no flag --no-dtype");
    check_refused(ML_CMD_SCORE, SCORE "stray", "'stray' is not a flag");
    check_refused(ML_CMD_SCORE, SCORE "-t 1", "'-t' is not a flag");
    check_refused(ML_CMD_SCORE, SCORE "--", "is not a flag");
}

static char logged[2000]; /* lines */

static void keep_line(void *ud, ml_log_level level, const char *line) {
    size_t n = strlen(logged);

    (void)ud;
    CHECK(level == ML_LOG_WARN);
    snprintf(logged + n, sizeof logged - n, "%s\n", line);
}

/* Parses, and gives what was logged. */
static const char *log_of(ml_cmd cmd, const char *words) {
    ml_log_to(keep_line, NULL);
    logged[0] = 0;
    if (parse(cmd, words) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s: %s", words, wrong.ptr);
    return logged;
}

static void last_one_wins(void) {
    CHECK_HAS(log_of(ML_CMD_SCORE, SCORE "--dtype f32 --dtype=bf16"),
              "--dtype bf16 overrides f32, which is given before it\n");
    CHECK(config.dtype == ML_DTYPE_BF16);
    CHECK_HAS(log_of(ML_CMD_SCORE, SCORE "--stats --no-stats"),
              "--no-stats overrides --stats, which is given before it\n");
    CHECK(!config.score.stats);
    CHECK_HAS(log_of(ML_CMD_ROUTER, "--worker-urls a b --port 1 --worker-urls c d e"),
              "--worker-urls c d e overrides a b, which");
    CHECK(config.router.worker_urls.n == 3 && config.router.port == 1);
    CHECK(strcmp(config.router.worker_urls.word[0], "c") == 0);
    CHECK(!*log_of(ML_CMD_SCORE, SCORE "--threads 2 --threads 2 --stats --stats"));
    CHECK(!ml_test_has(log_of(ML_CMD_ROUTER, "--api-key alpha --api-key beta"), "beta"));
    CHECK_HAS(logged, "--api-key");
    CHECK(!ml_test_has(logged, "alpha") && strcmp(config.router.api_key, "beta") == 0);
    check_refused(ML_CMD_SCORE, SCORE "--threads x --threads 2", "--threads 'x'");
}

/* Every command takes the names of every other. */
static void same_flag_by_other_names(void) {
    static const ml_cmd cmds[] = { ML_CMD_SCORE,         ML_CMD_CONVERT, ML_CMD_TOKENIZE,
                                   ML_CMD_CHAT_TEMPLATE, ML_CMD_SFT,     ML_CMD_TRAIN,
                                   ML_CMD_EVAL,          ML_CMD_INSPECT, ML_CMD_SERVE,
                                   ML_CMD_BENCH_ENGINE };
    static const char *const names[] = { "--model-path", "--hf-checkpoint", "--model" };
    char words[100];

    for (size_t i = 0; i < sizeof cmds / sizeof *cmds; i++)
        for (size_t k = 0; k < 3; k++) {
            snprintf(words, sizeof words, "%s x%d", names[k], (int)k);
            parse(cmds[i], words); /* other flags may be missing */
            if (!config.hf_checkpoint || config.hf_checkpoint[1] != (char)('0' + k))
                ml_test_fail(__FILE__, __LINE__, "command %d does not take %s",
                             (int)cmds[i], names[k]);
        }
    CHECK_HAS(log_of(ML_CMD_SERVE, "--model-path a --hf-checkpoint b"),
              "--hf-checkpoint b overrides --model-path a, which is given before it");
    CHECK(strcmp(config.hf_checkpoint, "b") == 0);
    CHECK(parse(ML_CMD_SERVE, "--model m --chat-template-path t --dtype bfloat16") ==
          ML_OK);
    CHECK(strcmp(config.chat.chat_template, "t") == 0 && config.dtype == ML_DTYPE_BF16);
    CHECK(parse(ML_CMD_CHAT_TEMPLATE, "--model m --chat-template-path t") == ML_OK);
    CHECK(strcmp(config.chat.chat_template, "t") == 0);
    CHECK(parse(ML_CMD_EVAL, "--model-path m --eval-prompt-data d --rm-type math "
                             "--chat-template t --dtype fp32") == ML_OK);
    CHECK(strcmp(config.chat.chat_template, "t") == 0 && config.dtype == ML_DTYPE_F32);
    CHECK(parse(ML_CMD_CONVERT, CONVERT "--dtype half") == ML_OK);
    CHECK(config.dtype == ML_DTYPE_F16);
    CHECK(parse(ML_CMD_SCORE, SCORE "--dtype float32") == ML_OK &&
          config.dtype == ML_DTYPE_F32);
    check_refused(ML_CMD_SERVE, "--model-path= ", "--model-path '': expected a path");
    check_refused(ML_CMD_SERVE, "--hf-checkpoint=", "--hf-checkpoint '': expected a path");
    check_refused(ML_CMD_SERVE, "--port 1", "--model-path DIR is required");
    check_refused(ML_CMD_SERVE, "--model-path m --dtype float16", "one of auto, f32, bf16");
}

static void names_of_others(void) {
    static const struct {
        ml_cmd cmd;
        const char *words, *says;
    } cases[] = {
        { ML_CMD_TRAIN, "--learning-rate 1", "--learning-rate: miles calls this --lr" },
        { ML_CMD_TRAIN, "--learning_rate 1", "--learning_rate: miles calls this --lr" },
        { ML_CMD_SFT, "--learning_rate=1", "miles calls this --lr" },
        { ML_CMD_TRAIN, "--num-generations 8", "calls this --n-samples-per-prompt" },
        { ML_CMD_TRAIN, "--max-completion-length 8", "--rollout-max-response-len" },
        { ML_CMD_TRAIN, "--max-model-len 8", "calls this --rollout-max-context-len" },
        { ML_CMD_SERVE, "--max-model-len 8", "calls this --context-length" },
        { ML_CMD_SERVE, "--gpu-memory-utilization .9", "--mem-fraction-static" },
        { ML_CMD_EVAL, "--gpu-memory-utilization .9", "--sglang-mem-fraction-static" },
        { ML_CMD_SERVE, "--tensor-parallel-size 2", "calls this --tp-size" },
        { ML_CMD_TRAIN, "--beta .1", "--kl-loss-coef; it needs --use-kl-loss" },
        { ML_CMD_TRAIN, "--model_name_or_path m", "calls this --hf-checkpoint" },
        { ML_CMD_SERVE, "--learning-rate 1",
          "miles train calls this --lr, and miles serve has none" },
    };

    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        check_refused(cases[i].cmd, cases[i].words, cases[i].says);
}

/* Of a model that is no directory the commands that help are told. */
static void models_that_are_no_directories(void) {
    static const char *const ids[] = { "Qwen/Qwen3-0.6B", "hf://Qwen/Qwen3-0.6B",
                                       "https://huggingface.co/Qwen/Qwen3-0.6B",
                                       "https://huggingface.co/Qwen/Qwen3-0.6B/tree/main" };
    char words[1000];

    for (size_t i = 0; i < sizeof ids / sizeof *ids; i++) {
        snprintf(words, sizeof words, "--model-path %s", ids[i]);
        check_refused(ML_CMD_SERVE, words,
                      "`hf download Qwen/Qwen3-0.6B --local-dir Qwen3-0.6B`");
        CHECK_HAS(wrong.ptr, "`--model-path ./Qwen3-0.6B`");
    }
    check_refused(ML_CMD_TRAIN, "--ref-load HuggingFaceTB/SmolLM2-135M-Instruct",
                  "--ref-load 'HuggingFaceTB/SmolLM2-135M-Instruct': there is no such");
    check_refused(ML_CMD_SCORE, "--hf-checkpoint models/q8.GGUF --input i --output o",
                  "gguf_file='q8.GGUF').save_pretrained('q8')");
    CHECK_HAS(wrong.ptr, "hf download OWNER/q8 --local-dir q8");
    CHECK(ml_file_replace(ml_test_path("some.gguf"), ml_str_of("GGUF"), NULL) == ML_OK);
    snprintf(words, sizeof words, "--model %s", ml_test_dir());
    check_refused(ML_CMD_SERVE, words, "gguf_file='some.gguf'");
    CHECK(ml_file_replace(ml_test_path("config.json"), ml_str_of("{}"), NULL) == ML_OK);
    CHECK(parse(ML_CMD_SERVE, words) == ML_OK);
    snprintf(words, sizeof words, "--model %s", ml_test_path("config.json"));
    check_refused(ML_CMD_SERVE, words, "is a file: expected the directory");
    CHECK(parse(ML_CMD_SERVE, "--model-path ./no/such") ==
          ML_OK); /* who opens it says so */
    CHECK(parse(ML_CMD_SERVE, "--model-path /models/m") == ML_OK);
    CHECK(parse(ML_CMD_SERVE, "--model-path a/b/c") == ML_OK);
}

/* A pointer leads to a flag that does something. */
static void pointers_lead_somewhere(void) {
    for (const ml_foreign_flag *f = ml_foreign_flags; f->name; f++) {
        CHECK(f->ours[0] != NULL);
        for (int i = 0; i < 3 && f->ours[i]; i++)
            if (!live_somewhere(f->ours[i]))
                ml_test_fail(__FILE__, __LINE__, "--%s points at --%s, which is not live",
                             f->name, f->ours[i]);
    }
}

static void required(void) {
    check_refused(ML_CMD_SCORE, "--input i", "--hf-checkpoint DIR is required");
    check_refused(ML_CMD_SCORE, "--hf-checkpoint m", "--input FILE is required");
    check_refused(ML_CMD_SCORE, "--hf-checkpoint= --input i", "'': expected a path");
    check_refused(ML_CMD_CONVERT, "--hf-checkpoint m", "--save-hf DIR is required");
}

static void environment(void) {
    setenv("MILES_CPU", "c", 1);
    setenv("MILES_LOG", "debug", 1);
    CHECK(parse(ML_CMD_SCORE, SCORE) == ML_OK && strcmp(config.run.cpu_level, "c") == 0);
    CHECK(config.run.log_level == ML_LOG_DEBUG);
    CHECK(parse(ML_CMD_SCORE, SCORE "--cpu-level avx2 --log-level info") == ML_OK);
    CHECK(strcmp(config.run.cpu_level, "avx2") == 0 && config.run.log_level == ML_LOG_INFO);
    setenv("MILES_CPU", "", 1);
    CHECK(parse(ML_CMD_SCORE, SCORE) == ML_OK && !config.run.cpu_level);
    setenv("MILES_CPU", "sse", 1);
    check_refused(ML_CMD_SCORE, SCORE, "MILES_CPU 'sse': expected one of");
}

static void without_effect(void) {
    CHECK_HAS(log_of(ML_CMD_SCORE, SCORE "--trust-remote-code"),
              "--trust-remote-code changes nothing: code from a checkpoint");
    CHECK(strcmp(config.hf_checkpoint, "m") == 0);
    check_refused(ML_CMD_SCORE, SCORE "--fp16",
                  "--fp16 is not offered: nothing is computed");
    check_refused(ML_CMD_SCORE, SCORE "--quantization=fp8",
                  "--quantization is not offered");
}

/* Not the first thing alone, and rules between flags with the flags themselves. */
static void all_at_once(void) {
    check_refused(ML_CMD_TRAIN,
                  TRAIN "--lr x --use-opd --ref-update-interval 2 --colocate "
                        "--rollout-num-engines 2",
                  "--lr 'x': expected a number");
    CHECK_HAS(wrong.ptr, "there are no prompts");
    CHECK_HAS(wrong.ptr, "nothing says when to stop");
    CHECK_HAS(wrong.ptr, "--use-opd needs --opd-type");
    CHECK_HAS(wrong.ptr, "there is no reference without --use-kl-loss");
    CHECK_HAS(wrong.ptr, "--colocate shares one set of weights");
    check_refused(ML_CMD_SCORE,
                  "--input i --fp16 --zzzzzzzzzzzz a b --quantization fp8 stray",
                  "--fp16 is not offered");
    CHECK_HAS(wrong.ptr, "there is no flag --zzzzzzzzzzzz");
    CHECK_HAS(wrong.ptr, "--quantization is not offered");
    CHECK_HAS(wrong.ptr, "'stray' is not a flag");
    CHECK_HAS(wrong.ptr, "--hf-checkpoint DIR is required");
    CHECK(!ml_test_has(wrong.ptr, "'b'"));
}

/* ---- rules: each is broken by a line of its own ---- */

static const struct {
    const char *id, *words;
    bool async; /* of miles train-async */
} rule_cases[] = {
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
    { "train-engines-colocate", ROUND "--rollout-num-engines 2 --colocate" },
    { "train-weights-nowhere", ROUND "--rollout-num-engines 2" },
    { "train-weights-p2p", ROUND "--update-weight-transfer-mode p2p" },
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
    { "train-offload", ROUND "--offload", true },
    { "train-ci-sync", ROUND "--ci-test --debug-skip-weight-update" },
    { "train-critic", ROUND "--critic-load c" },
    { "train-critic", ROUND "--critic-lr 1e-5 --advantage-estimator gspo" },
    { "train-critic-returns", ROUND "--advantage-estimator ppo "
                                    "--disable-compute-advantages-and-returns" },
    { "train-ref-interval", ROUND "--ref-update-interval 2" },
    { "train-teacher", ROUND "--opd-teacher-load t" },
    { "train-opd-type", ROUND "--use-opd" },
    { "train-opd-load", ROUND "--use-opd --opd-type megatron" },
    { "train-opd-urls", ROUND "--use-opd --opd-type sglang" },
    { "train-old-actor", ROUND "--keep-old-actor --skip-actor-forward-only" },
    { "train-forward-pass", ROUND "--use-rollout-entropy --skip-actor-forward-only" },
    { "train-routing-replay", ROUND "--use-routing-replay --skip-actor-forward-only" },
    { "train-indexer-replay", ROUND "--use-indexer-replay --skip-actor-forward-only" },
    { "train-makes-prompts", "--hf-checkpoint m --disable-rollout-global-dataset "
                             "--num-rollout 1 --rollout-batch-size 4" },
    { "score-output", "--hf-checkpoint m --input i" },
    { "score-in-place", "--hf-checkpoint m --input i --output i" },
    { "score-grads-batching", SCORE "--grads --batching tokenwise" },
    { "convert-in-place", "--hf-checkpoint m --save-hf m" },
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
    CHECK(config.train.lr == 5e-6 && config.algo.num.use_kl_loss && config.train.shuffle);
    CHECK(config.rollout.stop.n == 2 && strcmp(config.rollout.stop.word[1], "b") == 0);
    CHECK(config.rollout.eval_data.n == 2);
    CHECK(strcmp(config.rollout.eval_data.word[0], "p") == 0);
    CHECK(strcmp(config.train.save, "s") == 0);
    CHECK(strcmp(config.reward.rm_type, "math") == 0);
    CHECK(strcmp(config.hf_checkpoint, "there") == 0);
    write_flags("rollout_stop: [a, --b]\n"); /* a word that looks like a flag */
    check_refused(ML_CMD_TRAIN, words, "--b");
    write_flags("custom_config_path: other.yaml\n");
    check_refused(ML_CMD_TRAIN, words, "names another such file");
    write_flags("no_such_flag: 1\n");
    check_refused(ML_CMD_TRAIN, words, "there is no flag --no-such-flag");
    write_flags("- 1\n");
    check_refused(ML_CMD_TRAIN, words, "expected names of flags");
    check_refused(ML_CMD_TRAIN, TRAIN "--custom-config-path /no/such.yaml",
                  "/no/such.yaml");
}

/* ---- rows, and the texts made from them ---- */

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
}

static void rows_and_texts(void) {
    ml_text docs = { 0 }, complete = { 0 }, all = { 0 };

    ml_help_all(&all);
    ml_help_docs(&docs);
    ml_help_complete_bash(&complete);
    for (const ml_command *c = ml_commands; c->name; c++) {
        ml_flag_list l;
        ml_text page = { 0 };
        char name[100];

        ml_help_command(&page, c, true);
        CHECK_HAS(all.ptr, c->name);
        ml_flag_list_init(&l, c->bit);
        for (int i = 0; i < l.n; i++) {
            check_row(&l, i);
            snprintf(name, sizeof name, "  --%s ", l.row[i]->name);
            CHECK_HAS(page.ptr, name);
            snprintf(name, sizeof name, "| `--%s", l.row[i]->name);
            CHECK_HAS(docs.ptr, name);
            snprintf(name, sizeof name, " --%s", l.row[i]->name);
            CHECK(ml_test_has(complete.ptr, name) == live_somewhere(l.row[i]->name));
        }
        ml_text_release(&page);
    }
    ml_text_release(&docs);
    ml_text_release(&complete);
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
    CHECK(parse(ML_CMD_TRAIN, QWEN3_4B "--tensor-model-parallel-size 1") == ML_OK);
    CHECK(config.arch.n_layer == 36 && config.arch.rope_base == 1e6);
    check_refused(ML_CMD_TRAIN, QWEN3_4B "--tensor-model-parallel-size 2",
                  "tensor-model-parallel-size");
}

static void help_is_asked(void) {
    CHECK(parse(ML_CMD_SCORE, "--no-such-flag --help") == ML_OK && help);
    CHECK(parse(ML_CMD_SCORE, "-h") == ML_OK && help == ML_HELP_LIVE);
    CHECK(parse(ML_CMD_SCORE, "--help-all") == ML_OK && help == ML_HELP_ALL);
    CHECK(parse(ML_CMD_SCORE, SCORE) == ML_OK && !help);
}

static void commands(void) {
    CHECK(ml_command_find("score") && !ml_command_find("scor") && !ml_command_find(""));
    CHECK(ml_command_near("scroe") == ml_command_find("score"));
    CHECK(ml_command_near("convret") == ml_command_find("convert"));
    CHECK(!ml_command_near("zzzzzzzz"));
    CHECK(ml_exit_code(ML_OK) == 0 && ml_exit_code(ML_EUSAGE) == 2);
    CHECK(ml_exit_code(ML_EPEER) == 3 && ml_exit_code(ML_EFORMAT) == 1);
}

/* ---- the program ---- */

static void program(void) {
    static char out[200000];

    CHECK(ml_test_miles(out, sizeof out, "--version") == 0);
    CHECK_HAS(out, "miles " ML_VERSION);
    CHECK(ml_test_miles(out, sizeof out, "") == 2);
    CHECK_HAS(out, "usage: miles");
    CHECK(ml_test_miles(out, sizeof out, "scor") == 2);
    CHECK_HAS(out, "did you mean 'score'?");
    CHECK(ml_test_miles(out, sizeof out, "bench") == 2);
    CHECK_HAS(out, "expected 'miles bench engine' or 'bench serve'");
    CHECK(ml_test_miles(out, sizeof out, "bench engine --help") == 0);
    CHECK_HAS(out, "usage: miles bench engine");
    CHECK(ml_test_miles(out, sizeof out, "score --help") == 0);
    CHECK_HAS(out, "--hf-checkpoint DIR");
    CHECK(ml_test_miles(out, sizeof out, "score " SCORE "--threads 0") == 2);
    CHECK_HAS(out, "miles score: --threads '0'");
    CHECK(ml_test_miles(out, sizeof out, "score --threads 0 --input i --output o") == 2);
    CHECK_HAS(out, "miles score: 2 things stand in the way:\n  --threads '0'");
    CHECK(ml_test_miles(out, sizeof out,
                        "score --dry-run --hf-checkpoint ./no/such --input x") == 1);
    CHECK_HAS(out, "./no/such");
    CHECK(ml_test_miles(out, sizeof out, "-V") == 0);
    CHECK_HAS(out, "miles " ML_VERSION);
    CHECK(ml_test_miles(out, sizeof out, "help") == 0);
    CHECK_HAS(out, "usage: miles <command>");
    CHECK(ml_test_miles(out, sizeof out, "help bench engine") == 0);
    CHECK_HAS(out, "usage: miles bench engine");
    CHECK(ml_test_miles(out, sizeof out, "help trian") == 2);
    CHECK_HAS(out, "there is no command 'trian'; did you mean 'train'?");
    CHECK(ml_test_miles(out, sizeof out, "help train") == 0);
    CHECK_HAS(out, "usage: miles train");
    CHECK(ml_test_miles(out, sizeof out, "score --help-all") == 0);
    CHECK_HAS(out, "--quantization");
    CHECK(ml_test_miles(out, sizeof out, "--help >/dev/full") == 1);
    CHECK_HAS(out, "standard output");
    CHECK(ml_test_miles(out, sizeof out, "--print-completion bash | bash -n") == 0);
}

static int count_lines(const char *text, const char *begin) {
    int n = 0;

    for (const char *at = text; (at = strstr(at, begin)) != NULL; at++)
        n++;
    return n;
}

/* --help has the flags one needs and a command line that the parser takes; --help-all all. */
static void short_help_and_long(void) {
    static char page[400000];
    char words[100];

    for (const ml_command *c = ml_commands; c->name; c++) {
        char line[1000];
        if (!c->first)
            continue;
        snprintf(words, sizeof words, "%s --help", c->name);
        CHECK(ml_test_miles(page, sizeof page, words) == 0);
        CHECK_HAS(page, c->example);
        CHECK(count_lines(page, "\n  --") >= 11 && count_lines(page, "\n  --") <= 20);
        CHECK(count_lines(page, "\n") < 80);
        CHECK_HAS(page, "--help-all lists ");
        snprintf(line, sizeof line, "%s", c->example + strlen("miles ") + strlen(c->name));
        for (char *at = line; *at; at++)
            *at = *at == '\\' || *at == '\n' ? ' ' : *at;
        if (parse(c->bit, line) != ML_OK)
            ml_test_fail(__FILE__, __LINE__, "%s: %s", c->example, wrong.ptr);
    }
    CHECK(ml_test_miles(page, sizeof page, "train --help-all") == 0);
    CHECK(count_lines(page, "\n  --") > 500);
    CHECK_HAS(page, "--swiglu");
}

static void doctor(void) {
    static char out[200000];

    CHECK(ml_test_miles(out, sizeof out, "doctor") == 0);
    CHECK_HAS(out, "kernels    c");
    CHECK_HAS(out, "GB may be taken of");
    CHECK_HAS(out, "libsqlite3");
    CHECK(ml_test_miles(out, sizeof out, "doctor train --zzzzzzzzzzzz --lora-rank 8") == 2);
    CHECK_HAS(out, "\nmiles train\nflags      WRONG: there is no flag --zzzzzzzzzzzz");
    CHECK_HAS(out, "--lora-rank is not offered: ");
    CHECK_HAS(out, "--hf-checkpoint DIR is required");
    CHECK(ml_test_miles(out, sizeof out, "doctor no-such-command") == 2);
    CHECK_HAS(out, "there is no command 'no-such-command'");
    CHECK_HAS(out, "gpu        ");
    CHECK(ml_test_miles(out, sizeof out, "doctor tokenize --hf-checkpoint m") == 1);
    CHECK_HAS(out, "text       WRONG: ");
    CHECK_HAS(out, "miles tokenize would not start: 1 thing is wrong");
    CHECK(ml_test_miles(out, sizeof out, "doctor bench engine --model-path m") == 1);
    CHECK_HAS(out, "model      WRONG: ");
}

static const ml_test tests[] = {
    { "defaults", defaults },
    { "spellings", spellings },
    { "bad values", bad_values },
    { "byte sizes", byte_sizes },
    { "lists", lists },
    { "wrong names", wrong_names },
    { "the last one wins", last_one_wins },
    { "the same flag by other names", same_flag_by_other_names },
    { "names of others", names_of_others },
    { "models that are no directories", models_that_are_no_directories },
    { "pointers lead somewhere", pointers_lead_somewhere },
    { "required", required },
    { "environment", environment },
    { "without effect", without_effect },
    { "all at once", all_at_once },
    { "rules", rules },
    { "flags in a file", flags_in_a_file },
    { "rows and texts", rows_and_texts },
    { "a launch script", a_launch_script },
    { "help is asked", help_is_asked },
    { "commands", commands },
    { "program", program },
    { "short help and long", short_help_and_long },
    { "doctor", doctor },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
