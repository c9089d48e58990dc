/* miles train from the outside: rounds, filters, evaluations, and runs that are stopped. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/str.h"
#include "cli/cli.h"
#include "tests/support/kill.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"
#include "tests/support/toy_run.h"

enum { ROUNDS = 6 };

static int run(const char *save, int rounds, const char *more, char *out, size_t cap) {
    return ml_toy_run("train", save, rounds, more, out, cap);
}

static void same_files(const char *a, const char *b) {
    ml_toy_run_same(a, b, ROUNDS);
}

/* Checkpoints and metrics do not know how the work was divided. */
static void the_same_bytes_however_it_runs(void) {
    const char *whole = ml_test_path("whole"), *other = ml_test_path("other"),
               *parts = ml_test_path("parts");
    char out[16000];

    ml_toy_run_inputs();
    CHECK(run(whole, ROUNDS, "--threads 1", out, sizeof out) == 0);
    CHECK_HAS(out, "rollout 5, step 11: loss ");
    CHECK_HAS(out, "forward_logp_max_diff 0,");
    CHECK_HAS(out, "evaluation after rollout -1:\n"
                   "  set    reward  truncated  no reward    tokens\n"
                   "  toy    0.");
    CHECK_HAS(out, "evaluation after rollout 5:\n");
    CHECK_HAS(out, "first rollout: 16 samples of 4 prompts, ");
    CHECK_HAS(out, "first rollout: prompt \"<|im_start|>user\\nwhat is ");
    CHECK(run(other, ROUNDS,
              "--threads 2 --sglang-max-running-requests 3 --sglang-chunked-prefill-size 7 "
              "--sglang-mem-fraction-static 0.001",
              out, sizeof out) == 0);
    same_files(whole, other);
    CHECK(run(parts, 2, "--threads 2", out, sizeof out) == 0);
    CHECK(run(parts, ROUNDS, "--threads 1 --save-interval 1", out, sizeof out) == 0);
    CHECK_HAS(out, "Loaded checkpoint from ");
    same_files(whole, parts);
}

/* One answer per prompt is refused only where nothing else has a gradient. */
static void lonely_answers_are_refused(void) {
    static const char *const refused[] = {
        "",
        "--advantage-estimator gspo",
        "--advantage-estimator reinforce_plus_plus_baseline",
        "--loss-type cispo_loss",
        "--loss-type vespo_loss",
        "--advantage-estimator rloo",
        "--use-kl-loss",
        "--use-opd --opd-kl-coef 0",
        "--kl-coef 0.1"
    };
    static const char *const taken[] = {
        "--advantage-estimator reinforce_plus_plus",
        "--advantage-estimator ppo",
        "--advantage-estimator ./my.so:mine",
        "--disable-rewards-normalization",
        "--loss-type sft_loss",
        "--loss-type kl_cov_loss",
        "--loss-type custom_loss --custom-loss-function-path ./a.so:b",
        "--entropy-coef 0.01",
        "--advantage-estimator reinforce_plus_plus_baseline --kl-coef 0.1",
        "--use-kl-loss --kl-loss-coef 0.1",
        "--use-opd",
        "--custom-reward-post-process-path ./a.so:b",
        "--debug-rollout-only",
        "--load-debug-rollout-data r"
    };
    static const char flags[] = "train --hf-checkpoint m --rollout-batch-size 1 "
                                "--prompt-data d --num-rollout 1";
    static const char says[] =
        "--n-samples-per-prompt 1 (the default) gives zero advantages";
    char out[4000], args[1000];

    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++) {
        snprintf(args, sizeof args, "%s %s", flags, refused[i]);
        CHECK(ml_test_miles(out, sizeof out, args) == 2);
        CHECK_HAS(out, says);
    }
    for (size_t i = 0; i < sizeof taken / sizeof *taken; i++) {
        snprintf(args, sizeof args, "%s %s", flags, taken[i]);
        CHECK(ml_test_miles(out, sizeof out, args) != 0); /* there is no model m */
        CHECK(!ml_test_has(out, says));
    }
}

/* Equal rewards are worth a warning only where nothing but their differences teaches. */
static void equal_rewards_are_told_where_they_matter(void) {
    char out[16000], more[1000];

    ml_toy_run_inputs();
    CHECK(run(ml_test_path("grpo"), 1, "--rm-type zero", out, sizeof out) == 0);
    CHECK_HAS(out, "all rewards are equal (zero reward variance): no gradient");
    CHECK_HAS(out, "4 prompts with zero reward variance (no gradient)");
    snprintf(more, sizeof more,
             "--rm-type zero --use-opd --opd-type megatron --opd-teacher-load %s",
             ml_test_path("model"));
    CHECK(run(ml_test_path("opd"), 1, more, out, sizeof out) == 0);
    CHECK(!ml_test_has(out, "all rewards are equal") &&
          !ml_test_has(out, "zero reward variance"));
    CHECK(run(ml_test_path("plain"), 1, "--rm-type zero --disable-rewards-normalization",
              out, sizeof out) == 0);
    CHECK(!ml_test_has(out, "all rewards are equal"));
}

/* What was recorded trains to the same weights as what was generated. */
static void a_recording_trains_as_its_run(void) {
    char out[16000], more[1000], command[1500];
    const char *first = ml_test_path("first"), *again = ml_test_path("again");

    ml_toy_run_inputs();
    snprintf(more, sizeof more, "--save-debug-rollout-data %s/rounds/{rollout_id}.zst",
             ml_test_dir());
    CHECK(run(first, 3, more, out, sizeof out) == 0);
    snprintf(more, sizeof more, "--load-debug-rollout-data %s/rounds/{rollout_id}.zst",
             ml_test_dir());
    CHECK(run(again, 3, more, out, sizeof out) == 0);
    CHECK_HAS(out, "forward_logp_max_diff 0,");
    snprintf(command, sizeof command,
             "cmp %s/iter_0000002/model.safetensors %s/iter_0000002/model.safetensors",
             first, again);
    CHECK(system(command) == 0);
}

static void filters_and_over_sampling(void) {
    static const char filter[] =
        "--dynamic-sampling-filter-path "
        "miles.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std";
    char out[16000], more[1000];

    ml_toy_run_inputs();
    snprintf(more, sizeof more, "%s --over-sampling-batch-size 6 --threads 1", filter);
    CHECK(run(ml_test_path("a"), ROUNDS, more, out, sizeof out) == 0);
    snprintf(more, sizeof more, "%s --over-sampling-batch-size 6 --threads 2", filter);
    CHECK(run(ml_test_path("b"), ROUNDS, more, out, sizeof out) == 0);
    same_files(ml_test_path("a"), ml_test_path("b"));
    CHECK(run(ml_test_path("c"), 1,
              "--dynamic-sampling-filter-path check_reward_nonzero_std --rm-type math", out,
              sizeof out) == 1);
    CHECK_HAS(out, "kept none of ");
    CHECK(run(ml_test_path("c"), 1, "--dynamic-sampling-filter-path nothing", out,
              sizeof out) == 2);
    CHECK_HAS(out, "check_reward_nonzero_std");
}

/* Answers that one round began and another finished, and a snapshot in between. */
/* The filter's decisions do not depend on when the rewards arrive. */
static void slow_rewards_keep_the_same_groups(void) {
    static const char grade[] = "while read -r line; do sleep 0.0$((${#line} % $1))\n"
                                "echo $((${#line} % 3)); done\n";
    char out[16000], more[1000];

    ml_toy_run_inputs();
    ml_toy_file("grade.sh", grade);
    for (int i = 0; i < 2; i++) {
        snprintf(more, sizeof more,
                 "--dynamic-sampling-filter-path check_reward_nonzero_std "
                 "--over-sampling-batch-size 6 --partial-rollout --reward-workers 3 "
                 "--custom-rm-path 'cmd:sh %s %d'",
                 ml_test_path("grade.sh"), i ? 8 : 1);
        CHECK(run(ml_test_path(i ? "slow" : "fast"), ROUNDS, more, out, sizeof out) == 0);
    }
    same_files(ml_test_path("fast"), ml_test_path("slow"));
}

static void unfinished_answers_go_on(void) {
    static const char partial[] = "--partial-rollout --over-sampling-batch-size 7 "
                                  "--sglang-max-running-requests 6 --eval-interval 100 "
                                  "--skip-eval-before-train";
    char out[16000], more[1000];

    ml_toy_run_inputs();
    snprintf(more, sizeof more, "%s --threads 1", partial);
    CHECK(run(ml_test_path("whole"), ROUNDS, more, out, sizeof out) == 0);
    CHECK_HAS(out, "forward_logp_max_diff 0, ");
    CHECK_HAS(out, "stale tokens");
    snprintf(more, sizeof more, "%s --threads 2", partial);
    CHECK(run(ml_test_path("parts"), 3, more, out, sizeof out) == 0);
    snprintf(more, sizeof more, "grep -q '\"held\": .{\"group_index' %s/iter_*2/state.json",
             ml_test_path("parts"));
    CHECK(system(more) == 0);
    snprintf(more, sizeof more, "%s --save-interval 1", partial);
    CHECK(run(ml_test_path("parts"), ROUNDS, more, out, sizeof out) == 0);
    same_files(ml_test_path("whole"), ml_test_path("parts"));
    snprintf(more, sizeof more, "%s --mask-offpolicy-in-partial-rollout", partial);
    CHECK(run(ml_test_path("masked"), ROUNDS, more, out, sizeof out) == 0);
    CHECK(strstr(out, "stale tokens") == NULL);
}

/* The same, gone on with under a smaller limit: what is longer by then is cut. */
static void unfinished_answers_meet_a_smaller_limit(void) {
    static const char partial[] = "--partial-rollout --over-sampling-batch-size 7 "
                                  "--sglang-max-running-requests 6 --eval-interval 100 "
                                  "--skip-eval-before-train --rollout-max-response-len";
    char out[16000], more[1000];

    ml_toy_run_inputs();
    snprintf(more, sizeof more, "%s 24", partial);
    CHECK(run(ml_test_path("save"), 2, more, out, sizeof out) == 0);
    snprintf(more, sizeof more, "%s 2", partial);
    CHECK(run(ml_test_path("save"), 4, more, out, sizeof out) == 0);
    CHECK_HAS(out,
              "unfinished responses are longer than --rollout-max-response-len 2: they "
              "end there as truncated");
}

/* Engine and trainer have their memory in turns: the same bytes, and a smaller plan. */
static void memory_in_turns(void) {
    char out[16000];
    double turns = 0;

    ml_toy_run_inputs();
    CHECK(run(ml_test_path("a"), ROUNDS, "--threads 1", out, sizeof out) == 0);
    CHECK(run(ml_test_path("b"), ROUNDS, "--threads 2 --offload", out, sizeof out) == 0);
    same_files(ml_test_path("a"), ml_test_path("b"));
    CHECK(run(ml_test_path("c"), 1, "--dry-run", out, sizeof out) == 0);
    CHECK_HAS(out, "KV cache");
    CHECK(run(ml_test_path("c"), 1, "--dry-run --offload-train --offload-rollout", out,
              sizeof out) == 0);
    CHECK_HAS(out, "used in turns");
    sscanf(strstr(out, "used in turns"), "used in turns %lf", &turns);
    CHECK(turns < -0.01);
    CHECK(run(ml_test_path("c"), 1, "--offload --load-debug-rollout-data x", out,
              sizeof out) == 2);
    CHECK_HAS(out, "need miles train with the engine in the same process");
}

static void only_one_half(void) {
    char out[16000], more[600], command[700];
    const char *save = ml_test_path("save");

    ml_toy_run_inputs();
    snprintf(more, sizeof more,
             "--debug-rollout-only --save-debug-rollout-data %s/r{rollout_id}.zst",
             ml_test_dir());
    CHECK(run(save, 2, more, out, sizeof out) == 0);
    CHECK_HAS(out, "rollout 1: 16 samples");
    snprintf(command, sizeof command, "test -s %s/r1.zst && ! test -e %s/iter_0000001",
             ml_test_dir(), save);
    CHECK(system(command) == 0);
}

/* Groups that a grader fails are dropped and counted, and others take their place. */
static void failed_rewards_are_replaced(void) {
    static const char grader[] = "n=0; while read -r line; do n=$((n + 1))\n"
                                 "[ $n = 7 ] && echo nonsense || echo $((n % 2)); done\n";
    char out[16000], more[800];

    ml_toy_run_inputs();
    ml_toy_file("grader.sh", grader);
    snprintf(more, sizeof more,
             "--reward-workers 1 --custom-rm-path 'cmd:sh %s' --eval-interval 100 "
             "--skip-eval-before-train",
             ml_test_path("grader.sh"));
    CHECK(run(ml_test_path("save"), 2, more, out, sizeof out) == 0);
    CHECK_HAS(out, "its group is dropped");
    CHECK_HAS(out, "rollout 1, step 3: loss ");
    snprintf(more, sizeof more,
             "grep -q 'rollout/dynamic_filter/drop_invalid' %s/metrics.jsonl",
             ml_test_path("save"));
    CHECK(system(more) == 0);
}

/* The same figures as the run's own evaluation before its first round. */
static void evaluates_alone(void) {
    const char *data = ml_test_path("data.jsonl"), *save = ml_test_path("save");
    char out[16000], args[1500], want[400];
    ml_file metrics;
    ml_err err = { 0 };

    ml_toy_run_inputs();
    CHECK(run(save, 1, "", out, sizeof out) == 0);
    snprintf(args, sizeof args, "%s/metrics.jsonl", save);
    CHECK(ml_file_map(&metrics, args, &err) == ML_OK);
    snprintf(
        want, sizeof want, "%.200s",
        (const char *)memmem(metrics.bytes.ptr, metrics.bytes.len, "\"eval/toy\"", 10));
    ml_file_unmap(&metrics);
    want[strcspn(want, ",")] = 0;
    snprintf(args, sizeof args,
             "eval --hf-checkpoint %s --label-key label --apply-chat-template "
             "--rollout-max-response-len 12 --rm-type deterministic_random "
             "--eval-prompt-data toy %s",
             ml_test_path("model"), data);
    CHECK(ml_test_miles(out, sizeof out, args) == 0);
    CHECK_HAS(out, want);
    snprintf(args, sizeof args, "%s/flags.json", save);
    CHECK(access(args, R_OK) == 0);
}

static void faults_are_named(void) {
    char out[16000];
    const char *save = ml_test_path("save");

    ml_toy_run_inputs();
    CHECK(run(ml_test_path("dull"), 1, "--rm-type math --rollout-top-k 1", out,
              sizeof out) == 0);
    CHECK_HAS(out, "warning: all rewards are equal");
    CHECK_HAS(out, "warning: all responses to a prompt are identical");
    CHECK(run(save, 1, "--num-layers 36 --rotary-base 10000 --kv-channels 7", out,
              sizeof out) == 2);
    CHECK_HAS(out, "--num-layers is 36, but config.json has 2; --kv-channels is 7, ");
    CHECK(strstr(out, "rotary-base") == NULL);
    CHECK(run(save, 1, "--rm-type nonsense", out, sizeof out) == 2);
    CHECK_HAS(out, "nonsense");
    CHECK(run(save, 1, "--custom-rm-path cmd:false", out, sizeof out) == 3);
    CHECK_HAS(out, "no group of the rollout has a reward");
    CHECK(run(save, 1, "--dry-run", out, sizeof out) == 0);
    CHECK_HAS(out, "optimizer state");
    CHECK(run(save, 1, "--critic-lr 1e-3", out, sizeof out) == 2);
    CHECK_HAS(out, "need a critic: add --advantage-estimator ppo");
}

/* train or eval of the toy model on a file of the scratch directory, without a reward flag. */
static int run_without_reward(const char *command, const char *data, const char *more,
                              char *out, size_t cap) {
    char args[2000];

    snprintf(args, sizeof args,
             "%s --hf-checkpoint %s --label-key label --apply-chat-template "
             "--rollout-max-response-len 8 %s %s %s",
             command, ml_test_path("model"),
             strcmp(command, "eval") == 0 ? "--eval-prompt-data toy"
                                          : "--rollout-batch-size 2 --num-rollout 1 "
                                            "--n-samples-per-prompt 2 --prompt-data",
             ml_test_path(data), more);
    return ml_test_miles(out, cap, args);
}

/* The examples of --help run, on the toy model in place of theirs. */
static void documented_examples_run(void) {
    static const struct {
        const char *name, *more;
    } cases[] = {
        { "train", "--prompt-data %s/data.jsonl --rollout-batch-size 2 --num-rollout 1 "
                   "--n-samples-per-prompt 2 --rollout-max-response-len 8 "
                   "--save %s/example" },
        { "train-async", "--prompt-data %s/data.jsonl --rollout-batch-size 2 "
                         "--num-rollout 1 --n-samples-per-prompt 2 "
                         "--rollout-max-response-len 8 --save %s/example-async" },
        { "eval", "--eval-prompt-data toy %s/data.jsonl --eval-max-response-len 8" },
        { "sft", "--prompt-data %s/chats.jsonl --rollout-batch-size 2 --save %s/sft" },
        { "serve", "--dry-run" },
    };
    char out[16000], args[3000], more[1000];

    ml_toy_run_inputs();
    ml_toy_file("data.jsonl", "{\"prompt\": \"what is 1+1?\", \"label\": \"2\"}\n"
                              "{\"prompt\": \"what is 1+2?\", \"label\": \"3\"}\n");
    ml_toy_file("chats.jsonl", "{\"messages\": [{\"role\": \"user\", \"content\": \"hi\"}, "
                               "{\"role\": \"assistant\", \"content\": \"you\"}]}\n"
                               "{\"messages\": [{\"role\": \"user\", \"content\": \"ho\"}, "
                               "{\"role\": \"assistant\", \"content\": \"me\"}]}\n");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        const ml_command *c = ml_command_find(cases[i].name);
        snprintf(more, sizeof more, cases[i].more, ml_test_dir(), ml_test_dir());
        snprintf(args, sizeof args, "%s --model-path %s %s", c->example + strlen("miles "),
                 ml_test_path("model"), more);
        if (ml_test_miles(out, sizeof out, args) != 0)
            ml_test_fail(__FILE__, __LINE__, "%s: %s", args, out);
        CHECK_HAS(out, "./Qwen3-0.6B, given earlier");
    }
}

/* doctor looks at everything that a command line names, whatever else is wrong. */
static void doctor_tells_all_at_once(void) {
    char out[16000], args[2000];

    ml_toy_run_inputs();
    snprintf(args, sizeof args,
             "doctor train --hf-checkpoint %s --prompt-data %s --label-key label "
             "--rollout-batch-size 2 --n-samples-per-prompt 2 --num-rollout 1 "
             "--rm-type math --save %s/not/there --eval-prompt-data toy %s",
             ml_test_path("model"), ml_test_path("data.jsonl"), ml_test_dir(),
             ml_test_path("data.jsonl"));
    CHECK(ml_test_miles(out, sizeof out, args) == 0);
    CHECK_HAS(out, "model      ok: ");
    CHECK_HAS(out, "text       ok: ");
    CHECK_HAS(out, "data       ok: ");
    CHECK_HAS(out, " rows\n");
    CHECK_HAS(out, "evaluation ok: toy: ");
    CHECK_HAS(out, "reward     ok: math\n");
    CHECK_HAS(out, "disk       ok: ");
    CHECK_HAS(out, "device     ok: ");
    CHECK_HAS(out, "optimizer state"); /* the memory plan */
    snprintf(args, sizeof args,
             "doctor train --hf-checkpoint %s/none --prompt-data %s/none.jsonl "
             "--label-key label --rollout-batch-size 2 --n-samples-per-prompt 2 "
             "--rm-type mth --save %s/data.jsonl/run --eval-prompt-data toy %s/gone.jsonl "
             "--advantage-estimator nonsense --data-source-path nonsense --colocate "
             "--rollout-num-engines 1 --lr x",
             ml_test_dir(), ml_test_dir(), ml_test_dir(), ml_test_dir());
    CHECK(ml_test_miles(out, sizeof out, args) == 2);
    CHECK_HAS(out, "flags      ERROR: --lr 'x'");
    CHECK_HAS(out, "flags      ERROR: --num-rollout or --num-epoch is required");
    CHECK_HAS(out, "flags      ERROR: --colocate excludes --rollout-num-engines");
    CHECK_HAS(out, "model      ERROR: ");
    CHECK_HAS(out, "text       ERROR: ");
    CHECK_HAS(out, "data       ERROR: ");
    CHECK_HAS(out, "evaluation ERROR: ");
    CHECK_HAS(out, "gone.jsonl");
    CHECK_HAS(out, "reward     ERROR: unknown reward 'mth'");
    CHECK_HAS(out, "algorithm  ERROR: ");
    CHECK_HAS(out, "extensions ERROR: ");
    CHECK_HAS(out, "disk       ERROR: --save ");
    CHECK_HAS(out, "data.jsonl is not a directory");
    CHECK_HAS(out, "device     ok: ");
    CHECK_HAS(out, "would not start: ");
}

/* A run without a reward ends before weights are read, with a whole sentence. */
static void no_reward_is_wrong_usage(void) {
    static const char ends[] = "or set rm_type in each row's metadata\n";
    char out[16000];

    ml_toy_run_inputs();
    CHECK(run_without_reward("train", "data.jsonl", "", out, sizeof out) == 2);
    CHECK_HAS(out, "data.jsonl:1: no reward: give --rm-type NAME");
    CHECK_HAS(out, ends);
    CHECK(run_without_reward("train", "data.jsonl", "--dry-run", out, sizeof out) == 2);
    CHECK_HAS(out, ends);
    CHECK(run_without_reward("eval", "data.jsonl", "", out, sizeof out) == 2);
    CHECK_HAS(out, "evaluation set 'toy': ");
    CHECK_HAS(out, ends);
    CHECK(run_without_reward("doctor train", "data.jsonl", "", out, sizeof out) == 2);
    CHECK_HAS(out, ends);
    ml_toy_file(
        "typed.jsonl",
        "{\"input\": \"a\", \"label\": \"1\", \"metadata\": {\"rm_type\": \"math\"}}\n"
        "{\"input\": \"b\", \"label\": \"2\", \"metadata\": {\"rm_type\": \"f1\"}}\n");
    CHECK(run_without_reward("train", "typed.jsonl", "", out, sizeof out) == 0);
    CHECK(run_without_reward("eval", "typed.jsonl", "", out, sizeof out) == 0);
    ml_toy_file(
        "mixed.jsonl",
        "{\"input\": \"a\", \"label\": \"1\", \"metadata\": {\"rm_type\": \"math\"}}\n"
        "{\"input\": \"b\", \"label\": \"2\", \"metadata\": {\"rm_type\": \"mth\"}}\n");
    CHECK(run_without_reward("train", "mixed.jsonl", "", out, sizeof out) == 2);
    CHECK_HAS(out, "mixed.jsonl:2: unknown reward 'mth'");
    CHECK(run_without_reward("train", "data.jsonl",
                             "--custom-generate-function-path calculator", out,
                             sizeof out) == 2);
    CHECK_HAS(out, ends);
}

/* --- runs that are stopped ---------------------------------------------------- */

/* MILES_LONG asks for more kills. */
static void survives_kills(void) {
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");
    char out[16000], args[3000];
    ml_kills kills;
    int rounds;

    ml_kills_init(&kills, getenv("MILES_LONG") ? 20 : 5);
    rounds = ml_kills_rounds(&kills);
    ml_toy_run_inputs();
    CHECK(run(whole, rounds, "", out, sizeof out) == 0);
    ml_toy_run_args(args, sizeof args, "train", parts, rounds, "--save-interval 1");
    while (ml_kills_go_on(&kills))
        ml_kills_once(&kills, args, parts);
    CHECK(run(parts, rounds, "--save-interval 1", out, sizeof out) == 0);
    ml_toy_run_same(whole, parts, rounds);
    ml_kills_tell(&kills);
}

/* A run that writes its metrics listens to signals. */
static void wait_for_metrics(const char *save) {
    char path[600];

    snprintf(path, sizeof path, "%s/metrics.jsonl", save);
    for (int i = 0; i < 10000 && access(path, R_OK) != 0; i++)
        usleep(1000);
}

static void an_interrupt_finishes_the_round(void) {
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");
    char out[16000];
    pid_t pid;

    ml_toy_run_inputs();
    CHECK(run(whole, ROUNDS, "", out, sizeof out) == 0);
    pid = ml_toy_run_start("train", parts, ROUNDS, "");
    wait_for_metrics(parts);
    CHECK(ml_toy_run_stop(pid, SIGINT, 20000) == 0);
    CHECK(run(parts, ROUNDS, "", out, sizeof out) == 0);
    same_files(whole, parts);
}

static const ml_test tests[] = {
    { "miles train gives the same bytes for any division of the work",
      the_same_bytes_however_it_runs },
    { "one answer per prompt is refused where it has no gradient",
      lonely_answers_are_refused },
    { "equal rewards are warned of where they teach nothing",
      equal_rewards_are_told_where_they_matter },
    { "a recorded run trains to the run's weights", a_recording_trains_as_its_run },
    { "dynamic filters and over-sampling keep full rounds", filters_and_over_sampling },
    { "slow rewards keep the same groups as fast ones", slow_rewards_keep_the_same_groups },
    { "partial rollouts continue after a snapshot", unfinished_answers_go_on },
    { "partial rollouts are cut at a smaller length limit",
      unfinished_answers_meet_a_smaller_limit },
    { "--offload gives the same bytes with a smaller plan", memory_in_turns },
    { "--debug-rollout-only generates and trains nothing", only_one_half },
    { "groups whose reward fails are dropped and replaced", failed_rewards_are_replaced },
    { "miles eval gives the metrics of the run's evaluation", evaluates_alone },
    { "miles train warns and refuses with reasons", faults_are_named },
    { "the examples of --help run", documented_examples_run },
    { "miles doctor reports all faults of a command line", doctor_tells_all_at_once },
    { "a run without a reward is refused before weights are read",
      no_reward_is_wrong_usage },
    { "miles train kills change no byte of the run", survives_kills, 300 },
    { "SIGINT finishes the round and the run resumes", an_interrupt_finishes_the_round },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
