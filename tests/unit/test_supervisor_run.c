/* miles train with engines that it starts itself: the same bytes as without, and nothing of
 * them is left behind. */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "tests/support/supervisor_run.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_run.h"

enum { ROUNDS = 6 };

/* A run that generates, with two engines; the test ends without them. */
static pid_t start_two(const char *log, const char *save, int rounds, const char *more,
                       pid_t engine[ML_SUPERVISOR_MOST]) {
    pid_t run = ml_supervisor_run_start(log, save, rounds, more);

    if (ml_supervisor_run_engines(run, 2, engine) == 2 &&
        ml_supervisor_run_says(log, "first rollout: ", 1, run))
        return run;
    ml_test_fail(__FILE__, __LINE__, "the run did not begin, or has ended");
    exit(1);
}

static void the_same_bytes_as_here(void) {
    const char *here = ml_test_path("here"), *one = ml_test_path("one"),
               *two = ml_test_path("two"), *async = ml_test_path("async"),
               *three = ml_test_path("three");
    char out[16000];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, ROUNDS, "", out, sizeof out) == 0);
    CHECK(ml_toy_run("train", one, ROUNDS, "--rollout-num-engines 1", out, sizeof out) ==
          0);
    CHECK_HAS(out, "forward_logp_max_diff 0,");
    ml_toy_run_same(here, one, ROUNDS);
    CHECK(ml_toy_run("train", two, ROUNDS,
                     ML_FLEET_TWO "--rollout-health-check-interval 0.02 --dtype f32", out,
                     sizeof out) == 0);
    ml_toy_run_same(here, two, ROUNDS);
    CHECK(ml_toy_run("train-async", async, ROUNDS, "", out, sizeof out) == 0);
    CHECK(ml_toy_run("train-async", three, ROUNDS, "--rollout-num-engines 3", out,
                     sizeof out) == 0);
    ml_toy_run_same(async, three, ROUNDS);
}

/* Keys of the environment are for other servers: engines of the run have one of their own. */
static void keys_of_others_do_not_matter(void) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there");
    char out[16000];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, 2, "", out, sizeof out) == 0);
    setenv("MILES_API_KEY", "for-another-server", 1);
    setenv("MILES_ADMIN_API_KEY", "for-its-admin", 1);
    CHECK(ml_toy_run("train", there, 2,
                     "--rollout-num-engines 2 --rollout-health-check-interval 0.02", out,
                     sizeof out) == 0);
    ml_toy_run_same(here, there, 2);
}

/* The run kills them itself. */
static void faults_on_order(void) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there");
    char out[16000];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, ROUNDS, "", out, sizeof out) == 0);
    CHECK(ml_toy_run("train", there, ROUNDS,
                     ML_FLEET_TWO "--ci-ft-test-actions "
                                  "'[{\"at_rollout\":1,\"action\":\"crash_engine_at_end\","
                                  "\"cell_index\":0},{\"at_rollout\":3,\"action\":"
                                  "\"crash_engine_at_end\"}]'",
                     out, sizeof out) == 0);
    CHECK_HAS(out, "engine 0 is killed, as requested");
    CHECK_HAS(out, "engine 1 is killed, as requested");
    CHECK_HAS(out, "engine 0 was killed by signal 9; restarting it");
    ml_toy_run_same(here, there, ROUNDS);
    /* Without anybody who starts it again, a fault is the end. */
    CHECK(ml_toy_run("train", ml_test_path("end"), ROUNDS,
                     "--rollout-num-engines 1 --ci-ft-test-actions "
                     "'[{\"at_rollout\":0,\"action\":\"crash_engine_at_end\"}]'",
                     out, sizeof out) == 3);
    CHECK_HAS(out, "engine 0 was killed by signal 9");
}

static void faults_that_cannot_be(void) {
    static const struct {
        const char *json, *sentence;
    } cases[] = {
        { "x", "--ci-ft-test-actions:1:1" },
        { "{}", "expected an array" },
        { "[1]", "\"action\": expected" },
        { "[{\"action\":\"crash_before_allreduce\"}]",
          "needs training ranks that are replaced one by one" },
        { "[{\"action\":\"crash_engine_at_end\"}]", "\"at_rollout\": expected" },
        { "[{\"action\":\"crash_engine_at_end\",\"at_rollout\":1,\"cell_index\":2}]",
          "\"cell_index\" is 2" },
        { "[{\"action\":\"crash_engine_at_end\",\"at_rollout\":1,\"rank\":0}]",
          "unknown key \"rank\"" },
    };
    char out[16000], more[400];

    ml_toy_run_inputs();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(more, sizeof more, ML_FLEET_TWO "--ci-ft-test-actions '%s'",
                 cases[i].json);
        CHECK(ml_toy_run("train", ml_test_path("save"), 2, more, out, sizeof out) == 2);
        CHECK_HAS(out, cases[i].sentence);
    }
    CHECK(ml_toy_run("train", ml_test_path("save"), 2, "--ci-ft-test-actions []", out,
                     sizeof out) == 2);
    CHECK_HAS(out, "add --rollout-num-engines");
}

/* One that neither dies nor answers is killed. */
static void a_silent_engine_is_replaced(void) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there"),
               *log = ml_test_path("log");
    pid_t run, engine[ML_SUPERVISOR_MOST];
    char out[16000];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, ROUNDS, "", out, sizeof out) == 0);
    run = start_two(log, there, ROUNDS,
                    ML_FLEET_TWO "--rollout-health-check-interval 0.1 "
                                 "--rollout-health-check-timeout 1",
                    engine);
    kill(engine[0], SIGSTOP);
    CHECK(ml_supervisor_run_wait(run) == 0);
    CHECK(ml_supervisor_run_count(log, "failed its health check and is killed: ") > 0);
    ml_toy_run_same(here, there, ROUNDS);
    CHECK(!ml_supervisor_run_alive(engine[0]) && !ml_supervisor_run_alive(engine[1]));
}

static void without_fault_tolerance_the_run_ends(void) {
    const char *save = ml_test_path("save"), *log = ml_test_path("log");
    pid_t run, engine[ML_SUPERVISOR_MOST];

    ml_toy_run_inputs();
    run = start_two(log, save, 1000, "--rollout-num-engines 2", engine);
    kill(engine[1], SIGKILL);
    CHECK(ml_supervisor_run_wait(run) == 3);
    CHECK(ml_supervisor_run_count(log, "was killed by signal 9") > 0);
    CHECK(!ml_supervisor_run_alive(engine[0]));
}

/* The system ends them with the process that started them. */
static void no_engine_outlives_its_run(void) {
    const char *save = ml_test_path("save"), *log = ml_test_path("log");
    pid_t run, engine[ML_SUPERVISOR_MOST];

    ml_toy_run_inputs();
    run = start_two(log, save, 1000, ML_FLEET_TWO, engine);
    kill(run, SIGKILL);
    CHECK(ml_supervisor_run_wait(run) == -1);
    for (int i = 0; i < 3000 && (ml_supervisor_run_alive(engine[0]) ||
                                 ml_supervisor_run_alive(engine[1]));
         i++)
        usleep(10000);
    CHECK(!ml_supervisor_run_alive(engine[0]) && !ml_supervisor_run_alive(engine[1]));
}

static void what_cannot_be_meant_is_said(void) {
    const char *save = ml_test_path("save");
    char out[16000];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", save, 1, ML_FLEET_TWO "--colocate", out, sizeof out) == 2);
    CHECK_HAS(out, "--colocate excludes --rollout-num-engines");
    CHECK(ml_toy_run("train", save, 1,
                     ML_FLEET_TWO "--rollout-external --rollout-external-engine-addrs "
                                  "127.0.0.1:1",
                     out, sizeof out) == 2);
    CHECK_HAS(out, "--rollout-num-engines and --rollout-external exclude each other");
    CHECK(ml_toy_run("train", save, 1, ML_FLEET_TWO "--dry-run", out, sizeof out) == 0);
    CHECK(access(ml_test_path("save/rollout_weights/engine_0.log"), F_OK) != 0);
}

static const ml_test tests[] = {
    { "engines of the run give the bytes of an engine in process", the_same_bytes_as_here,
      300 },
    { "keys in the environment do not reach the run's engines",
      keys_of_others_do_not_matter },
    { "--ci-ft-test-actions kills engines and changes no byte", faults_on_order, 300 },
    { "bad --ci-ft-test-actions are refused", faults_that_cannot_be },
    { "an engine that does not answer is killed and replaced", a_silent_engine_is_replaced,
      300 },
    { "without --use-fault-tolerance a dead engine ends the run",
      without_fault_tolerance_the_run_ends, 300 },
    { "no engine outlives a killed run", no_engine_outlives_its_run, 300 },
    { "miles train refuses contradictory engine flags", what_cannot_be_meant_is_said },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
