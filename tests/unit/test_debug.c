/* The debugging flags of miles train, from the outside. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/utf8.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"
#include "tests/support/toy_run.h"

static char out[16000], more[2000], command[2000];

static int run(const char *save, int rounds) {
    return ml_toy_run("train", ml_test_path(save), rounds, more, out, sizeof out);
}

/* Two runs have the same hashes, whatever they are divided into; another seed has others. */
static void hashes_tell_runs_apart(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more, "--debug-determinism --threads 1");
    CHECK(run("a", 3) == 0);
    snprintf(more, sizeof more, "--save-local-weight-checksum --threads 2");
    CHECK(run("b", 2) == 0);
    CHECK(run("b", 3) == 0);
    snprintf(command, sizeof command, "cmp %s/determinism.jsonl %s/determinism.jsonl",
             ml_test_path("a"), ml_test_path("b"));
    CHECK(system(command) == 0);
    snprintf(command, sizeof command,
             "test $(grep -c '\"samples\": .*\"gradients\": .*\"weights\": ' "
             "%s/determinism.jsonl) = 6",
             ml_test_path("a"));
    CHECK(system(command) == 0);
    snprintf(more, sizeof more, "--debug-determinism --rollout-seed 7");
    CHECK(run("c", 3) == 0);
    snprintf(command, sizeof command, "cmp -s %s/determinism.jsonl %s/determinism.jsonl",
             ml_test_path("a"), ml_test_path("c"));
    CHECK(system(command) != 0);
}

static void a_run_is_held_against_another(void) {
    const char *norms = ml_test_path("norms.jsonl"), *hashes = ml_test_path("hashes.jsonl");

    ml_toy_run_inputs();
    snprintf(more, sizeof more, "--ci-save-grad-norm %s --ci-save-model-hash %s --ci-test",
             norms, hashes);
    CHECK(run("a", 2) == 0);
    snprintf(more, sizeof more, "--ci-load-grad-norm %s --ci-check-model-hash %s", norms,
             hashes);
    CHECK(run("b", 2) == 0);
    snprintf(more, sizeof more, "--ci-load-grad-norm %s --rollout-seed 7", norms);
    CHECK(run("c", 2) == 1);
    CHECK_HAS(out, "rollout 0, step 0: \"grad_norm\" is ");
    CHECK_HAS(out, "the runs diverge here");
    snprintf(more, sizeof more, "--ci-check-model-hash %s --weight-decay 0.9", hashes);
    CHECK(run("d", 2) == 1);
    CHECK_HAS(out, "rollout 0, step 0: \"weights\" is ");
    snprintf(more, sizeof more, "--ci-check-model-hash %s", norms);
    CHECK(run("e", 2) == 1);
    CHECK_HAS(out, "row 1 lacks \"rollout\", \"step\" or \"weights\"");
}

static void figures_must_come_to_something(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more,
             "--ci-metric-checker-key rollout/raw_reward --ci-metric-checker-threshold 0");
    CHECK(run("a", 1) == 0);
    snprintf(more, sizeof more,
             "--ci-metric-checker-key rollout/raw_reward --ci-metric-checker-threshold 9");
    CHECK(run("b", 1) == 1);
    CHECK_HAS(out, "the highest rollout/raw_reward is ");
}

static void an_end_after_some_rounds(void) {
    const char *sentinel = ml_test_path("save-now");
    FILE *f = fopen(sentinel, "w");

    CHECK(f != NULL);
    if (f)
        fclose(f);
    ml_toy_run_inputs();
    snprintf(
        more, sizeof more,
        "--debug-exit-after-rollout 2 --save-trigger-sentinel %s "
        "--debug-rollout-print-every 1 --debug-weight-sync --check-weight-update-equal",
        sentinel);
    CHECK(run("a", 5) == 0);
    CHECK(!ml_test_has(out, "rollout 2, step"));
    CHECK_HAS(out, "rollout 1: prompt \"");
    CHECK_HAS(out, "weight_sync: version 3, hash ");
    CHECK(access(sentinel, F_OK) != 0);
    CHECK(access(ml_test_path("a/iter_0000000"), F_OK) == 0);
    CHECK(access(ml_test_path("a/iter_0000001"), F_OK) == 0);
}

static void rounds_as_text(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more, "--dump-details %s", ml_test_path("dump"));
    CHECK(run("a", 1) == 0);
    snprintf(command, sizeof command,
             "test $(grep -c '^{\"sample_index\": .*\"response\": ' "
             "%s/trajectory_data/0.jsonl) = 16",
             ml_test_path("dump"));
    CHECK(system(command) == 0);
    snprintf(more, sizeof more,
             "--load-debug-rollout-data %s/rollout_data/{rollout_id}.jsonl.zst "
             "--load-debug-rollout-data-subsample 0.5",
             ml_test_path("dump"));
    CHECK(run("b", 1) == 0);
    CHECK(ml_test_miles(out, sizeof out, "inspect --run nowhere") == 1);
    CHECK_HAS(out, "no run.db found");
    snprintf(command, sizeof command, "inspect %s --tokens --limit 2", ml_test_path("b"));
    CHECK(ml_test_miles(out, sizeof out, command) == 0);
    CHECK_HAS(out, "rollout 0, sample 0 of group 0: reward ");
    CHECK_HAS(out, "index  mask   log-prob  version   token");
    CHECK(!ml_test_has(out, "sample 2 of"));
}

/* Labels and prompts that a terminal would obey, and a label that is cut. */
static void text_of_others_is_harmless(void) {
    static const char evil[] = "\xe2\x80\xaeright\xc2\x9b"
                               "2J";
    ml_text t = { 0 };

    ml_toy_run_inputs();
    for (int i = 0; i < 8; i++) {
        ml_text_printf(&t, "{\"input\": \"what is %d? %s\", \"label\": \"%s%.*s", i, evil,
                       evil, i % 3, "xx");
        for (int k = 0; k < 200; k++)
            ml_text_printf(&t, "\xe6\x97\xa5");
        ml_text_printf(&t, "\"}\n");
    }
    ml_toy_file("data.jsonl", t.ptr);
    ml_text_release(&t);
    snprintf(more, sizeof more, "--rm-type random");
    CHECK(run("a", 2) == 0);
    CHECK_HAS(out, ", label \"\\u202eright\\x9b2J");
    CHECK(!strstr(out, "\xe2\x80\xae") && !strstr(out, "\xc2\x9b"));
    CHECK(!strstr(out, "\\xe6") && ml_utf8_valid(ml_str_of(out)) == strlen(out));
    snprintf(command, sizeof command, "inspect %s --limit 2", ml_test_path("a"));
    CHECK(ml_test_miles(out, sizeof out, command) == 0);
    CHECK_HAS(out, "label    \"\\u202eright\\x9b2J");
    CHECK_HAS(out, "? \\u202eright\\x9b2J");
    CHECK(!strstr(out, "\xe2\x80\xae") && !strstr(out, "\xc2\x9b"));
}

/* The weights stay as they are; memory is kept free; the environment is set. */
static void what_changes_the_run(void) {
    ml_toy_run_inputs();
    snprintf(more, sizeof more,
             "--debug-disable-optimizer --ci-save-model-hash %s --env-report "
             "--train-env-vars '{\"A_VARIABLE\":\"1\"}' --mfu-peak-tflops 1",
             ml_test_path("hashes"));
    CHECK(run("a", 2) == 0);
    CHECK_HAS(out, "machine    Linux");
    snprintf(command, sizeof command,
             "test $(sed 's/.*weights/weights/' %s | sort -u | wc -l) = 1 && "
             "grep -q 'perf/actor_train_mfu' %s",
             ml_test_path("hashes"), ml_test_path("a/timing.jsonl"));
    CHECK(system(command) == 0);
    snprintf(more, sizeof more, "--train-env-vars 5");
    CHECK(run("b", 1) == 2);
    CHECK_HAS(out, "--train-env-vars: expected an object, not a number");
    snprintf(more, sizeof more, "--train-memory-margin-bytes 1000TB");
    CHECK(run("c", 1) == 1);
    CHECK_HAS(out, "memory");
}

/* Observers only watch: with each of them a run writes the same metrics and weights. */
static void observers_leave_the_run_alone(void) {
    static const char *const flags[] = {
        /* the last takes a path */
        "--debug-determinism --ci-test --ci-save-model-hash",
        "--debug-weight-sync --check-weight-update-equal --ci-save-grad-norm",
        "--enable-witness --enable-event-analyzer --save-debug-event-data",
        "--record-memory-history --memory-snapshot-dir",
        "--debug-rollout-print-every 1 --dump-details",
        "--dumper-enable --dumper-inference filter=lmhead --dumper-dir",
    };

    ml_toy_run_inputs();
    more[0] = 0;
    CHECK(run("plain", 2) == 0);
    for (size_t i = 0; i < sizeof flags / sizeof *flags; i++) {
        char save[20];
        snprintf(save, sizeof save, "run_%zu", i);
        snprintf(more, sizeof more, "%s %s/out_%zu", flags[i], ml_test_dir(), i);
        CHECK(run(save, 2) == 0);
        snprintf(command, sizeof command,
                 "cd %s && test -e out_%zu && for f in metrics.jsonl "
                 "iter_0000001/model.safetensors; do cmp plain/$f %s/$f || exit 1; done",
                 ml_test_dir(), i, save);
        CHECK(system(command) == 0);
    }
}

static const ml_test tests[] = {
    { "--debug-determinism hashes are equal for equal runs alone", hashes_tell_runs_apart },
    { "--ci-load-grad-norm finds a run that differs from its recording",
      a_run_is_held_against_another },
    { "--ci-metric-checker-threshold fails a run below it",
      figures_must_come_to_something },
    { "--debug-exit-after-rollout ends a run with a snapshot", an_end_after_some_rounds },
    { "--dump-details writes rounds that load again", rounds_as_text },
    { "control characters of prompts and labels reach no terminal",
      text_of_others_is_harmless },
    { "--debug-disable-optimizer leaves the weights as they are", what_changes_the_run },
    { "flags that observe a run change neither metrics nor weights",
      observers_leave_the_run_alone },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
