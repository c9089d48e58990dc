/* Names of flags: which one counts, other names of the same, names of other programs, models. */
#include <stdlib.h>

#include "base/file.h"
#include "cli/flags/flag_foreign.h"
#include "cli/flags/flag_spelling.h"
#include "tests/support/flag_words.h"
#include "tests/support/scratch.h"

static void wrong_names(void) {
    check_refused(ML_CMD_SCORE, SCORE "--temprature 1", "did you mean --temperature");
    check_refused(ML_CMD_SCORE, "--hf_checkpoint m", "did you mean --hf-checkpoint");
    check_refused(ML_CMD_SCORE, SCORE "--save-hf o", "it is a flag of miles convert");
    check_refused(ML_CMD_SCORE, SCORE "--zzzzzzzzzzzz 1", "miles score --help");
    check_refused(ML_CMD_SCORE, SCORE "--temp 1", "unknown flag --temp");
    check_refused(ML_CMD_SCORE, SCORE "--no-dtype", "unknown flag --no-dtype");
    check_refused(ML_CMD_SCORE, SCORE "stray", "'stray' is not a flag");
    check_refused(ML_CMD_SCORE, SCORE "-t 1", "'-t' is not a flag");
    check_refused(ML_CMD_SCORE, SCORE "--", "is not a flag");
}

static void last_one_wins(void) {
    CHECK_HAS(log_of(ML_CMD_SCORE, SCORE "--dtype f32 --dtype=bf16"),
              "--dtype bf16 overrides f32, given earlier\n");
    CHECK(config.run.dtype == ML_WEIGHT_BF16);
    CHECK_HAS(log_of(ML_CMD_SCORE, SCORE "--stats --no-stats"),
              "--no-stats overrides --stats, given earlier\n");
    CHECK(!config.score.stats);
    CHECK_HAS(log_of(ML_CMD_ROUTER, "--worker-urls a b --port 1 --worker-urls c d e"),
              "--worker-urls c d e overrides a b, given earlier");
    CHECK(config.worker_urls.n == 3 && config.router.port == 1);
    CHECK(strcmp(config.worker_urls.word[0], "c") == 0);
    CHECK(!*log_of(ML_CMD_SCORE, SCORE "--threads 2 --threads 2 --stats --stats"));
    CHECK(!ml_test_has(log_of(ML_CMD_ROUTER, "--api-key alpha --api-key beta"), "beta"));
    CHECK_HAS(logged, "--api-key");
    CHECK(!ml_test_has(logged, "alpha") && strcmp(config.access.api_key, "beta") == 0);
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
            if (!config.run.hf_checkpoint || config.run.hf_checkpoint[1] != (char)('0' + k))
                ml_test_fail(__FILE__, __LINE__, "command %d does not take %s",
                             (int)cmds[i], names[k]);
        }
    CHECK_HAS(log_of(ML_CMD_SERVE, "--model-path a --hf-checkpoint b"),
              "--hf-checkpoint b overrides --model-path a, given earlier");
    CHECK(strcmp(config.run.hf_checkpoint, "b") == 0);
    CHECK(parse(ML_CMD_SERVE, "--model m --chat-template-path t --dtype bfloat16") ==
          ML_OK);
    CHECK(strcmp(config.run.chat_template, "t") == 0 && config.run.dtype == ML_WEIGHT_BF16);
    CHECK(parse(ML_CMD_CHAT_TEMPLATE, "--model m --chat-template-path t") == ML_OK);
    CHECK(strcmp(config.run.chat_template, "t") == 0);
    CHECK(parse(ML_CMD_EVAL, "--model-path m --eval-prompt-data d --rm-type math "
                             "--chat-template t --dtype fp32") == ML_OK);
    CHECK(strcmp(config.run.chat_template, "t") == 0 && config.run.dtype == ML_WEIGHT_F32);
    CHECK(parse(ML_CMD_CONVERT, CONVERT "--dtype half") == ML_OK);
    CHECK(config.convert.dtype == ML_DTYPE_F16);
    CHECK(parse(ML_CMD_SCORE, SCORE "--dtype float32") == ML_OK &&
          config.run.dtype == ML_WEIGHT_F32);
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
        { ML_CMD_SERVE, "--data-parallel-size 2", "calls this --dp-size" },
        { ML_CMD_TRAIN, "--beta .1", "--kl-loss-coef; it needs --use-kl-loss" },
        { ML_CMD_TRAIN, "--model_name_or_path m", "calls this --hf-checkpoint" },
        { ML_CMD_SERVE, "--learning-rate 1",
          "miles train calls this --lr; miles serve has no such flag" },
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
    check_refused(ML_CMD_SERVE, "Qwen/Qwen3-0.6B --port 1",
                  "'Qwen/Qwen3-0.6B' is not a flag: flags begin with --, and the "
                  "model is given by --model-path");
    check_refused(ML_CMD_TRAIN, "--ref-load HuggingFaceTB/SmolLM2-135M-Instruct",
                  "--ref-load 'HuggingFaceTB/SmolLM2-135M-Instruct': no such");
    check_refused(ML_CMD_SCORE, "--hf-checkpoint models/q8.GGUF --input i --output o",
                  "--hf-checkpoint 'models/q8.GGUF': no such file");
    CHECK(ml_file_replace(ml_test_path("some.gguf"), ml_str_of("GGUF"), NULL) == ML_OK);
    snprintf(words, sizeof words, "--model %s", ml_test_dir());
    check_refused(
        ML_CMD_SERVE, words,
        "has no config.json; to read the GGUF file in it, give its path: --model");
    CHECK_HAS(wrong.ptr, "/some.gguf");
    CHECK(ml_file_replace(ml_test_path("config.json"), ml_str_of("{}"), NULL) == ML_OK);
    CHECK(parse(ML_CMD_SERVE, words) == ML_OK);
    snprintf(words, sizeof words, "--model %s", ml_test_path("config.json"));
    check_refused(ML_CMD_SERVE, words, "is a file: expected the directory");
    snprintf(words, sizeof words, "--model %s", ml_test_path("some.gguf"));
    CHECK(parse(ML_CMD_SERVE, words) == ML_OK);
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

/* ---- spellings of Miles' launch scripts ---- */

#define RUN                                                                                \
    "--hf-checkpoint m --prompt-data d.jsonl --num-rollout 1 --rollout-batch-size 8 "      \
    "--n-samples-per-prompt 8 --rm-type math "

static void spellings(void) {
    CHECK(parse(ML_CMD_TRAIN_ASYNC,
                RUN "--rollout-function-path "
                    "miles.rollout.fully_async_rollout.FullyAsyncRolloutFn") == ML_OK);
    CHECK(config.run.mode.fully && !config.run.extensions.path.rollout);
    CHECK(parse(ML_CMD_TRAIN, RUN "--advantage-estimator on_policy_distillation --opd-type "
                                  "sglang --opd-teacher-urls http://h:1") == ML_OK);
    CHECK(config.run.algo.use_opd);
    CHECK(strcmp(config.run.algo.advantage_estimator, "grpo") == 0);
    CHECK(parse(ML_CMD_TRAIN, RUN "--gradient-checkpointing --warmup-ratio 0.1 "
                                  "--moe-router-freeze-gate --freeze *.bias") == ML_OK);
    CHECK(config.run.trainer.recompute.granularity == ML_RECOMPUTE_FULL);
    CHECK(config.run.trainer.lr.warmup_fraction == 0.1);
    CHECK(strcmp(config.run.trainer.optimizer.freeze, "*.bias,*.gate.weight") == 0);
    CHECK(parse(ML_CMD_TRAIN, RUN "--tis-threshold 3 --sglang-context-length 77") == ML_OK);
    CHECK(config.run.algo.num.tis_clip == 3 && config.run.rollout.max_context == 77);
    CHECK(parse(ML_CMD_TRAIN, RUN "--debug-weight-sync 1 --partial-rollout 0") == ML_OK);
    CHECK(config.run.debug.weight_sync && !config.run.rollout.partial);
    CHECK(parse(ML_CMD_TRAIN, RUN "--qkv-format bshd --micro-batch-size 1") == ML_OK);
    CHECK(!config.run.trainer.batch.dynamic);
    CHECK(parse(ML_CMD_TRAIN,
                RUN "--use-opd --opd-type sglang --rm-url http://h:1/generate "
                    "--custom-rm-path miles.rollout.on_policy_distillation.reward_func "
                    "--custom-reward-post-process-path "
                    "miles.rollout.on_policy_distillation.post_process_rewards") == ML_OK);
    CHECK(config.run.teacher_urls.n == 1 && !config.run.custom_rm_path);
    CHECK(!config.run.extensions.path.reward_post);
}

static void sft_of_train(void) {
    static char path[] = "miles.rollout.sft_rollout.generate_rollout";
    static char flag[] = "--rollout-function-path";
    static char both[] =
        "--rollout-function-path=miles.rollout.sft_rollout.generate_rollout";
    char *apart[] = { flag, path }, *joined[] = { both }, *twice[] = { both, flag, flag };

    CHECK(ml_flags_command(ML_CMD_TRAIN, 2, apart) == ML_CMD_SFT);
    CHECK(ml_flags_command(ML_CMD_TRAIN_ASYNC, 1, joined) == ML_CMD_SFT);
    CHECK(ml_flags_command(ML_CMD_TRAIN, 3, twice) == ML_CMD_TRAIN);
    CHECK(ml_flags_command(ML_CMD_TRAIN, 1, apart) == ML_CMD_TRAIN);
    CHECK(ml_flags_command(ML_CMD_EVAL, 2, apart) == ML_CMD_EVAL);
    CHECK(parse(ML_CMD_SFT, "--hf-checkpoint m --prompt-data d --rollout-batch-size 1 "
                            "--num-epoch 1 --debug-train-only --ref-load r "
                            "--rollout-function-path "
                            "miles.rollout.sft_rollout.generate_rollout") == ML_OK);
}

/* A family takes the words up to the next flag, and tells the reason once. */
static void families(void) {
    const char *log = log_of(ML_CMD_TRAIN, RUN "--sglang-attention-backend fa3 "
                                               "--sglang-cuda-graph-bs 1 2 4 "
                                               "--sglang-moe-runner-backend=triton "
                                               "--no-rope-fusion "
                                               "--eval-sglang-attention-backend fa3");

    CHECK_HAS(log, "--sglang-attention-backend, --sglang-moe-runner-backend, "
                   "--no-rope-fusion, --eval-sglang-attention-backend are ignored: there "
                   "is one implementation");
    CHECK_HAS(log, "--sglang-cuda-graph-bs is ignored: decode steps");
    check_refused(ML_CMD_TRAIN, RUN "--sglang-speculative-token-map map",
                  "--sglang-speculative-token-map is not supported: this kind of "
                  "speculative decoding");
    check_refused(ML_CMD_TRAIN, RUN "--eval-sglang-mem-fraction-static 0.5",
                  "--eval-sglang-mem-fraction-static is not supported: evaluation engines");
    check_refused(ML_CMD_TRAIN, RUN "--router-pd-disaggregation", "is not supported");
    check_refused(ML_CMD_TRAIN, RUN "--sglang-nothing-such", "unknown flag");
    check_refused(ML_CMD_SCORE, SCORE "--sglang-page-size 1", "unknown flag");
}

static void wandb(void) {
    CHECK(*log_of(ML_CMD_TRAIN, RUN "--save s --use-wandb --wandb-project p --wandb-team t "
                                    "--wandb-group g --wandb-mode online --use-mlflow "
                                    "--use-prometheus --use-trackio") == 0);
    CHECK_HAS(log_of(ML_CMD_TRAIN, RUN "--use-wandb --disable-wandb-random-suffix"),
              "--disable-wandb-random-suffix is ignored");
    check_refused(ML_CMD_TRAIN, RUN "--use-wandb --wandb-mode shared", "--wandb-mode");
}

static void environment(void) {
    setenv("NVTE_FLASH_ATTN", "1", 1);
    setenv("MILES_EXPERIMENTAL_FT_TRAINER", "0", 1);
    CHECK_HAS(log_of(ML_CMD_TRAIN, RUN),
              "environment variable NVTE_FLASH_ATTN is ignored: Transformer Engine is not "
              "used");
    CHECK(!strstr(logged, "FT_TRAINER"));
    unsetenv("NVTE_FLASH_ATTN");
    setenv("OPEN_TRAINING_INT4_FAKE_QAT_FLAG", "1", 1);
    CHECK(*log_of(ML_CMD_TRAIN, RUN) == 0);
    setenv("OPEN_TRAINING_INT4_GROUP_SIZE", "64", 1);
    check_refused(ML_CMD_TRAIN, RUN, "OPEN_TRAINING_INT4_GROUP_SIZE must be 32 or 128");
    unsetenv("OPEN_TRAINING_INT4_FAKE_QAT_FLAG");
    unsetenv("OPEN_TRAINING_INT4_GROUP_SIZE");
    CHECK(*log_of(ML_CMD_TRAIN, RUN) == 0);
    unsetenv("MILES_EXPERIMENTAL_FT_TRAINER");
}

static const ml_test tests[] = {
    { "an unknown flag gets the nearest known one suggested", wrong_names },
    { "the last of a repeated flag wins with a warning", last_one_wins },
    { "every command takes the aliases of the model flags", same_flag_by_other_names },
    { "flags of TRL and vLLM are answered with ours", names_of_others },
    { "a model id gets the command that downloads it", models_that_are_no_directories },
    { "every suggested flag exists and has an effect", pointers_lead_somewhere },
    { "names of Miles' functions set the flags they stand for", spellings },
    { "Miles' spelling of supervised fine-tuning is miles sft", sft_of_train },
    { "flags of families are ignored or refused with the reason", families },
    { "--use-wandb names the command that uploads", wandb },
    { "environment variables without effect are named", environment },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
