/* Graders that fail during a run: the run continues or stops, and reports why. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/str.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"

static void make_inputs(void) {
    ml_text t = { 0 };

    ml_toy_model(ml_toy_chatml);
    for (int i = 0; i < 8; i++)
        ml_text_printf(&t, "{\"input\": \"what is %d+%d?\", \"label\": \"%d\"}\n", i, i % 3,
                       i + i % 3);
    ml_toy_file("data.jsonl", t.ptr);
    ml_text_release(&t);
}

static int run(const char *more, char *out, size_t cap) {
    char args[3000];

    snprintf(args, sizeof args,
             "train --hf-checkpoint %s --prompt-data %s --label-key label "
             "--apply-chat-template --rollout-batch-size 2 --n-samples-per-prompt 4 "
             "--num-rollout 2 --rollout-max-response-len 8 --lr 1e-3 --reward-workers 1 "
             "--lr-decay-style constant --save %s %s",
             ml_test_path("model"), ml_test_path("data.jsonl"), ml_test_path("save"), more);
    return ml_test_miles(out, cap, args);
}

/* Answers 0 and 1 in turn; once, at the third question, it does something else. */
static void make_grader(const char *once) {
    char script[2000];

    snprintf(script, sizeof script,
             "n=0\n"
             "while read -r line; do n=$((n + 1))\n"
             "if [ $n = 3 ] && ! [ -e %s ]; then touch %s; %s; fi\n"
             "echo $((n %% 2)); done\n",
             ml_test_path("done"), ml_test_path("done"), once);
    ml_toy_file("grader.sh", script);
    remove(ml_test_path("done"));
}

/* One sample has no reward: its group is dropped and counted, another takes its place. */
static void check_survives(const char *once, const char *more, const char *counted,
                           const char *why) {
    char out[16000], args[1500];

    make_grader(once);
    snprintf(args, sizeof args, "--custom-rm-path 'cmd:exec sh %s' %s",
             ml_test_path("grader.sh"), more);
    if (run(args, out, sizeof out) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s: %s", once, out);
    CHECK_HAS(out, "its group is dropped");
    CHECK_HAS(out, why);
    CHECK_HAS(out, "rollout 1, step 1: loss ");
    snprintf(args, sizeof args,
             "grep -q 'rollout/dynamic_filter/drop_%s\": 1' %s/metrics.jsonl", counted,
             ml_test_path("save"));
    CHECK(system(args) == 0);
    snprintf(args, sizeof args, "rm -r %s", ml_test_path("save"));
    CHECK(system(args) == 0);
}

static void workers_that_fail_once_cost_a_group(void) {
    make_inputs();
    check_survives("sleep 100", "--reward-timeout 3", "timeout", "did not answer within");
    check_survives("exit 7", "", "crash", "exited with status 7");
    check_survives("kill -9 $$", "", "crash", "was killed by signal 9");
    check_survives("echo garbage", "", "invalid", "the reward");
    check_survives("echo NaN; continue", "", "invalid", "the reward");
    check_survives("echo '{\"score\": \"high\"}'; continue", "", "invalid",
                   "no finite number");
}

/* What never works stops the run with one sentence. */
static void what_never_works_stops(void) {
    static const char greedy[] = "import sys\n"
                                 "import time\n"
                                 "for line in sys.stdin:\n"
                                 "    x = b'x' * (256 << 20)\n"
                                 "    time.sleep(60)\n";
    char out[16000], args[1500];

    make_inputs();
    CHECK(run("--rm-type remote_rm --rm-url http://127.0.0.1:1/ --reward-retries 1", out,
              sizeof out) == 3);
    CHECK_HAS(out, "http://127.0.0.1:1");
    CHECK_HAS(out, "no group of the rollout has a reward for each of its samples");
    ml_toy_file("greedy.py", greedy);
    snprintf(args, sizeof args,
             "--custom-rm-path 'cmd:python3 -u %s 2>/dev/null' --reward-memory 128MiB",
             ml_test_path("greedy.py"));
    CHECK(run(args, out, sizeof out) == 3);
    CHECK_HAS(out, "used more than 128 MiB of memory (--reward-memory)");
    CHECK(run("--custom-rm-path 'cmd:while read -r l; do echo NaN; done'", out,
              sizeof out) == 3);
    CHECK_HAS(out, "no group of the rollout has a reward for each of its samples");
}

/* A file that cannot be imported: one sentence, before weights are read and without the
 * tracebacks of four workers. */
static void broken_files_stop_before_weights(void) {
    char out[16000], args[1500];
    const char *at;

    make_inputs();
    ml_toy_file("broken.py", "import math\nimport no_such_module_xyz\n");
    snprintf(args, sizeof args, "--custom-rm-path %s", ml_test_path("broken.py"));
    CHECK(run(args, out, sizeof out) == 1);
    CHECK_HAS(out, "broken.py, line 2)");
    CHECK(!ml_test_has(out, "Traceback"));
    at = strstr(out, "no_such_module_xyz");
    CHECK(at && !strstr(at + 1, "no_such_module_xyz"));
    CHECK(!ml_test_has(out, "weights"));
}

static const ml_test tests[] = {
    { "a reward worker that fails once costs one group",
      workers_that_fail_once_cost_a_group },
    { "a reward that never works ends the run", what_never_works_stops },
    { "a broken reward file ends the run before weights are read",
      broken_files_stop_before_weights },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
