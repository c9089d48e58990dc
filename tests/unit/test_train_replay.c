/* miles train with choices of experts recorded and replayed. */
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"

static char out[20000];

__attribute__((format(printf, 1, 2))) static bool shell(const char *format, ...) {
    char command[3000];
    va_list args;

    va_start(args, format);
    vsnprintf(command, sizeof command, format, args);
    va_end(args);
    return system(command) == 0;
}

/* A model of this name in tests/golden/data; NULL: the plain one. */
static void make_inputs(const char *model) {
    ml_text t = { 0 };

    ml_toy_model(ml_toy_chatml);
    if (model)
        CHECK(shell("cp tests/golden/data/%s/config.json "
                    "tests/golden/data/%s/model.safetensors %s",
                    model, model, ml_test_path("model")));
    for (int i = 0; i < 12; i++)
        ml_text_printf(&t, "{\"input\": \"what is %d+%d?\", \"label\": \"%d\"}\n", i % 10,
                       i % 7, i % 10 + i % 7);
    ml_toy_file("data.jsonl", t.ptr);
    ml_text_release(&t);
}

static void run_command(const char *command, const char *save, const char *more) {
    char args[3000];
    snprintf(args, sizeof args,
             "%s --hf-checkpoint %s --prompt-data %s --label-key label "
             "--apply-chat-template --rollout-shuffle --rollout-batch-size 4 "
             "--n-samples-per-prompt 4 --num-rollout 3 "
             "--rollout-max-response-len 12 --rm-type deterministic_random --lr 1e-2 "
             "--lr-decay-style constant --save %s %s",
             command, ml_test_path("model"), ml_test_path("data.jsonl"), ml_test_path(save),
             more);
    if (ml_test_miles(out, sizeof out, args) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s: %s", more, out);
}

static void run(const char *save, const char *more) {
    run_command("train", save, more);
}

static bool same_weights(const char *a, const char *b) {
    char first[600];
    snprintf(first, sizeof first, "%s", ml_test_path(a));
    return shell("cmp -s %s/iter_0000002/model.safetensors "
                 "%s/iter_0000002/model.safetensors",
                 first, ml_test_path(b));
}

/* One step a round: all tokens are of the weights at hand, and what the rollout chose is what
 * training chooses. */
static void replay_of_own_choices_changes_nothing(void) {
    make_inputs("qwen3_moe");
    run("plain", "--num-steps-per-rollout 1");
    run("rollout", "--num-steps-per-rollout 1 --use-rollout-routing-replay");
    CHECK_HAS(out, "forward_logp_max_diff 0,");
    run("pass", "--num-steps-per-rollout 1 --use-routing-replay");
    CHECK(same_weights("plain", "rollout"));
    CHECK(same_weights("plain", "pass"));
}

/* Later steps of a round have other weights, whose routers choose otherwise. */
static void stale_tokens_go_where_they_went(void) {
    make_inputs("qwen3_moe");
    run("plain", "--num-steps-per-rollout 4");
    run("rollout", "--num-steps-per-rollout 4 --use-rollout-routing-replay");
    run("pass", "--num-steps-per-rollout 4 --use-routing-replay");
    run("again", "--num-steps-per-rollout 4 --use-rollout-routing-replay --threads 1 "
                 "--recompute-granularity full --max-tokens-per-gpu 40 "
                 "--use-dynamic-batch-size");
    CHECK(!same_weights("plain", "rollout"));
    CHECK(
        same_weights("rollout", "pass")); /* all were drawn with the weights of the pass */
    CHECK(same_weights("rollout", "again"));
    run("fleet", "--num-steps-per-rollout 4 --use-rollout-routing-replay "
                 "--rollout-num-engines 1");
    CHECK(same_weights("rollout", "fleet"));
}

static void a_dense_model_has_nothing_to_replay(void) {
    make_inputs(NULL);
    run("plain", "");
    run("replay", "--use-rollout-routing-replay");
    CHECK_HAS(out, "replay is ignored: a model of family qwen3 has no experts");
    CHECK(same_weights("plain", "replay"));
}

/* In two lives and in one; what waits between them brings what was chosen for it. */
static void goes_on(const char *command, const char *flags) {
    char more[1000], part[1200];

    snprintf(more, sizeof more, "--num-steps-per-rollout 2 --save-interval 1 %s", flags);
    CHECK(shell("rm -rf %s", ml_test_path("whole")));
    CHECK(shell("rm -rf %s", ml_test_path("parts")));
    run_command(command, "whole", more);
    snprintf(part, sizeof part, "%s --debug-exit-after-rollout 2", more);
    run_command(command, "parts", part);
    snprintf(part, sizeof part, "%s --load %s", more, ml_test_path("parts"));
    run_command(command, "parts", part);
    if (!same_weights("whole", "parts"))
        ml_test_fail(__FILE__, __LINE__, "miles %s %s does not go on as it was", command,
                     flags);
}

#define PARTIAL                                                                            \
    "--partial-rollout --over-sampling-batch-size 7 --sglang-max-running-requests 8 "

static void choices_survive_the_run(void) {
    make_inputs("qwen3_moe");
    goes_on("train", PARTIAL "--use-rollout-routing-replay");
    goes_on("train-async", "--use-rollout-routing-replay");
    goes_on("train-async", "--use-rollout-routing-replay --rollout-num-engines 2");
    make_inputs("glm_moe_dsa");
    goes_on("train", PARTIAL "--use-rollout-routing-replay --use-rollout-indexer-replay");
    goes_on("train-async", "--use-rollout-indexer-replay");
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "routing replay of the same weights changes nothing",
          replay_of_own_choices_changes_nothing, 120 },
        { "routing replay sends stale tokens to their experts",
          stale_tokens_go_where_they_went, 120 },
        { "recorded expert choices survive snapshots and engines", choices_survive_the_run,
          300 },
        { "routing replay of a dense model changes nothing and warns",
          a_dense_model_has_nothing_to_replay, 120 },
        { 0 }
    };
    return ml_test_main(argc, argv, tests);
}
