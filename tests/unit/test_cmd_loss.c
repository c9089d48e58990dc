/* miles loss: batches in, advantages, losses and gradients out; with a plugin's, too. */
#include <stdio.h>

#include "tests/support/example.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"

#define BATCH                                                                              \
    "{\"samples\": [{\"group\": 0, \"reward\": 1, \"log_probs\": [-1, -2], "               \
    "\"old_log_probs\": [-1, -2]}, {\"group\": 0, \"reward\": 0, \"loss_mask\": [1, 0], "  \
    "\"log_probs\": [-1, \"nan\"], \"old_log_probs\": [-1, -2]}]}\n"

static int miles_loss_of(char *out, size_t cap, const char *flags, const char *batch) {
    char line[2000];

    ml_toy_file("batch.jsonl", batch);
    snprintf(line, sizeof line, "loss %s < %s", flags, ml_test_path("batch.jsonl"));
    return ml_test_miles(out, cap, line);
}

static void the_command_answers(void) {
    char out[8000];

    CHECK(miles_loss_of(out, sizeof out, "--disable-grpo-std-normalization", BATCH) == 0);
    CHECK_HAS(out, "\"advantages\": [[0.5, 0.5], [-0.5, -0.5]]");
    CHECK_HAS(out, "\"loss\": 0,");
    CHECK_HAS(out, "\"d_log_probs\": [[-0.125, -0.125], [0.25, 0]]");
    CHECK_HAS(out, "\"ppo_kl\": 0");
    CHECK(miles_loss_of(out, sizeof out, "--advantage-estimator ppo",
                        "{\"samples\": [{\"reward\": 1, \"values\": [0.5, 0.25]}]}") == 0);
    CHECK_HAS(out, "\"advantages\": [[0.5, 0.75]], \"returns\": [[1, 1]]}");
    CHECK(miles_loss_of(out, sizeof out, "--loss-type sft_loss",
                        "\n{\"samples\": [{\"log_probs\": [-1, -3]}]}") == 0);
    CHECK_HAS(out, "\"loss\": 2,");
}

static void the_command_refuses(void) {
    static const struct {
        const char *batch, *says;
    } row[] = {
        { "[]", "expected {\"samples\"" },
        { "{\"samples\": [{\"reward\": 1, \"rewrad\": 1}]}", "does not know it" },
        { "{\"samples\": [{\"reward\": 1, \"log_probs\": [1], \"entropy\": []}]}",
          "as long as the sample's other arrays" },
        { "{\"samples\": [{\"log_probs\": [1]}]}", "advantages are computed from it" },
        { "{\"samples\": [{\"reward\": 1, \"log_probs\": [1]}]}", "needs old_log_probs" },
        { "{\"samples\": [{\"reward\": 1, \"loss_mask\": [2]}]}", "an array of 0 and 1" },
        { "{\"samples\": [{\"reward\": \"x\"}]}", "a number" },
        { "{", "line 1" },
    };
    char out[4000];

    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        CHECK(miles_loss_of(out, sizeof out, "", row[i].batch) == 1);
        CHECK_HAS(out, row[i].says);
    }
}

static void a_plugin_works_the_same(void) {
    const char *object = ml_test_example();
    char out[8000], line[1000];

    snprintf(line, sizeof line,
             "--advantage-estimator %s:ramp --loss-type custom_loss "
             "--custom-loss-function-path %s:reinforce --use-tis "
             "--custom-tis-function-path %s:halve "
             "--custom-pg-loss-reducer-function-path %s:by_ten",
             object, object, object, object);
    CHECK(miles_loss_of(out, sizeof out, line, BATCH) == 0);
    CHECK_HAS(out, "\"advantages\": [[1, 2], [0, 0]]");
    /* 0.5 (1 * 1 + 2 * 2) / 10 / 2 rollouts */
    CHECK_HAS(out, "\"loss\": 0.125,");
    CHECK_HAS(out, "\"d_log_probs\": [[-0.025, -0.05], ");
    CHECK_HAS(out, "\"tokens\": 1.5");
    snprintf(line, sizeof line, "--advantage-estimator %s:rump", object);
    CHECK(miles_loss_of(out, sizeof out, line, BATCH) == 2);
    CHECK_HAS(out, "ramp");
}

static const ml_test tests[] = {
    { "miles loss answers with advantages, loss and gradients", the_command_answers },
    { "miles loss names what is wrong with a batch", the_command_refuses },
    { "miles loss computes with a plugin's rows", a_plugin_works_the_same },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
