/* miles train-async from the outside: one round ahead, and all the time. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "rl/sample.h"
#include "tests/support/example.h"
#include "tests/support/kill.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"
#include "tests/support/toy_run.h"

enum { ROUNDS = 6 };

static int run(const char *save, const char *more, char *out, size_t cap) {
    return ml_toy_run("train-async", save, ROUNDS, more, out, cap);
}

static bool shell(const char *format, const char *a, const char *b) {
    char command[2000];
    snprintf(command, sizeof command, format, a, b);
    return system(command) == 0;
}

/* --- one round ahead ------------------------------------------------------------ */

/* Rounds are drawn with fixed weights, so nothing depends on who was faster. */
static void ahead_gives_the_same_bytes(void) {
    const char *one = ml_test_path("one"), *two = ml_test_path("two"),
               *eight = ml_test_path("eight"), *parts = ml_test_path("parts");
    char out[16000];

    ml_toy_run_inputs();
    CHECK(run(one, "--threads 1", out, sizeof out) == 0);
    CHECK_HAS(out, "rollout 0, step 0: loss ");
    CHECK_HAS(out, "forward_logp_max_diff 0,");
    CHECK_HAS(out, "stale tokens");
    CHECK_HAS(out, "evaluation after rollout 5:\n");
    CHECK(run(two, "--threads 2 --sglang-max-running-requests 3", out, sizeof out) == 0);
    ml_toy_run_same(one, two, ROUNDS);
    CHECK(run(eight, "--threads 8 --rollout-threads 5", out, sizeof out) == 0);
    ml_toy_run_same(one, eight, ROUNDS);
    CHECK(run(parts, "--debug-exit-after-rollout 3", out, sizeof out) == 0);
    CHECK(run(parts, "", out, sizeof out) == 0);
    CHECK_HAS(out, "Loaded checkpoint from ");
    ml_toy_run_same(one, parts, ROUNDS);
    CHECK(ml_toy_run("train", ml_test_path("sync"), ROUNDS, "", out, sizeof out) == 0);
    CHECK(
        !shell("cmp -s %s/iter_0000005/model.safetensors %s/iter_0000005/model.safetensors",
               one, ml_test_path("sync")));
}

/* What was made ahead of a snapshot is in it. */
static void ahead_survives_kills(void) {
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");
    char out[16000], args[3000];
    ml_kills kills;
    int rounds;

    ml_kills_init(&kills, getenv("MILES_LONG") ? 20 : 5);
    rounds = ml_kills_rounds(&kills);
    ml_toy_run_inputs();
    CHECK(ml_toy_run("train-async", whole, rounds, "--save-interval 1", out, sizeof out) ==
          0);
    ml_toy_run_args(args, sizeof args, "train-async", parts, rounds, "--save-interval 1");
    while (ml_kills_go_on(&kills))
        ml_kills_once(&kills, args, parts);
    CHECK(ml_toy_run("train-async", parts, rounds, "--save-interval 1", out, sizeof out) ==
          0);
    ml_toy_run_same(whole, parts, rounds);
    CHECK(shell("grep -q '\"ahead\": {\"rollout\": 5' %s/iter_0000004/state.json%s", whole,
                ""));
    ml_kills_tell(&kills);
}

/* Weights reach the engine every second round: tokens are older in between. */
static void weights_are_published_now_and_then(void) {
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");
    char out[16000];

    ml_toy_run_inputs();
    CHECK(run(whole, "--update-weights-interval 2", out, sizeof out) == 0);
    CHECK(run(parts, "--update-weights-interval 2 --debug-exit-after-rollout 4", out,
              sizeof out) == 0);
    CHECK(run(parts, "--update-weights-interval 2", out, sizeof out) == 0);
    CHECK_HAS(out, "resuming at rollout 4");
    ml_toy_run_same(whole, parts, ROUNDS);
}

static void what_cannot_be_meant_is_said(void) {
    const char *save = ml_test_path("save");
    char out[16000];

    ml_toy_run_inputs();
    CHECK(run(save, "--colocate", out, sizeof out) == 2);
    CHECK_HAS(out, "--colocate is for miles train");
    CHECK(run(save, "--update-weights-interval 2 --save-interval 3", out, sizeof out) == 2);
    CHECK_HAS(out, "multiple of --update-weights-interval");
    CHECK(run(save, "--fully-async --partial-rollout", out, sizeof out) == 2);
    CHECK(run(save, "--max-weight-staleness 2", out, sizeof out) == 2);
    CHECK(run(save, "--fully-async --async-max-concurrent-samples 3", out, sizeof out) ==
          2);
    CHECK(ml_toy_run("train", save, 1, "--fully-async", out, sizeof out) == 2);
    CHECK_HAS(out, "need miles train-async");
    CHECK(run(save, "--dry-run", out, sizeof out) == 0);
    CHECK_HAS(out, "rollout weights");
}

/* --- all the time ----------------------------------------------------------------- */

/* What a round used is recorded, and trains to the same weights. */
static void flow_can_be_replayed(void) {
    const char *first = ml_test_path("first"), *again = ml_test_path("again");
    char out[16000], more[1000];

    ml_toy_run_inputs();
    CHECK(run(first, "--fully-async --threads 2 --use-tis", out, sizeof out) == 0);
    CHECK_HAS(out, "Continuous async rollout worker started");
    CHECK_HAS(out, "rollout 5, step 11: loss ");
    CHECK(shell("grep -q '\"rollout/fully_async/queue_size\"' %s/metrics.jsonl%s", first,
                ""));
    snprintf(more, sizeof more,
             "--use-tis --load-debug-rollout-data %s/rollout_data/{rollout_id}.jsonl.zst",
             first);
    CHECK(ml_toy_run("train", again, ROUNDS, more, out, sizeof out) == 0);
    CHECK(shell("cmp %s/iter_0000005/model.safetensors %s/iter_0000005/model.safetensors",
                first, again));
}

/* The largest of a figure over the rounds of a run. */
static double largest(const char *save, const char *figure) {
    char path[600], line[4000], key[100];
    double most = -1.0;
    FILE *f;

    snprintf(path, sizeof path, "%s/metrics.jsonl", save);
    snprintf(key, sizeof key, "\"%s\": ", figure);
    f = fopen(path, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *at = strstr(line, key);
        double value = at ? strtod(at + strlen(key), NULL) : -1.0;
        most = value > most ? value : most;
    }
    if (f)
        fclose(f);
    return most;
}

static void staleness_is_bounded(void) {
    static const char queue[] = "--fully-async --async-data-buffer-capacity-factor 4 "
                                "--async-max-concurrent-samples 64 --eval-interval 100 "
                                "--skip-eval-before-train";
    const char *any = ml_test_path("any"), *none = ml_test_path("none"),
               *again = ml_test_path("again");
    char out[16000], more[1000];

    ml_toy_run_inputs();
    CHECK(run(any, queue, out, sizeof out) == 0);
    CHECK(largest(any, "rollout/fully_async/max_staleness") >= 1.0);
    snprintf(more, sizeof more, "%s --max-weight-staleness 0", queue);
    CHECK(run(none, more, out, sizeof out) == 0);
    CHECK(largest(none, "rollout/fully_async/stale_groups_filtered") >= 1.0);
    CHECK(largest(none, "rollout/stale_tokens") == 0.0);
    CHECK(largest(none, "rollout/fully_async/trained_max_staleness") == 0.0);
    snprintf(more, sizeof more,
             "%s --max-weight-staleness 0 --async-unused-samples-handler retry", queue);
    CHECK(run(again, more, out, sizeof out) == 0);
    CHECK(largest(again, "rollout/stale_tokens") == 0.0);
}

/* A row takes the newest, and of what waits nothing is lost. */
static void a_row_keeps_the_queue(void) {
    char out[16000], more[1000];

    ml_toy_run_inputs();
    snprintf(more, sizeof more,
             "--fully-async --async-data-buffer-capacity-factor 4 "
             "--async-max-concurrent-samples 64 --eval-interval 100 "
             "--skip-eval-before-train --custom-async-data-buffer-path %s:newest_first",
             ml_test_example());
    CHECK(run(ml_test_path("row"), more, out, sizeof out) == 0);
    CHECK(largest(ml_test_path("row"), "rollout/fully_async/max_staleness") <= 2.0);
    CHECK(largest(ml_test_path("row"), "rollout/fully_async/trained_max_staleness") ==
          largest(ml_test_path("row"), "rollout/fully_async/max_staleness"));
    CHECK(run(ml_test_path("bad"), "--custom-async-data-buffer-path a.so:b", out,
              sizeof out) == 2);
    CHECK_HAS(out, "--custom-async-data-buffer-path needs --fully-async");
}

enum { CAP = 2000 };

/* How often each sample was trained on. */
static void count_used(int seen[CAP], const char *save, int rounds) {
    ml_arena a;

    ml_arena_init(&a, "used");
    for (int r = 0; r < rounds; r++) {
        char path[600];
        ml_sample *sample = NULL;
        int64_t n = 0;
        snprintf(path, sizeof path, "%s/rollout_data/%d.jsonl.zst", save, r);
        CHECK(ml_samples_load(&sample, &n, &a, path, NULL) == ML_OK);
        for (int64_t i = 0; i < n; i++)
            seen[sample[i].index]++;
    }
    ml_arena_release(&a);
}

/* How often each waits in the last snapshot. */
static void count_held(int seen[CAP], const char *save, int rounds) {
    char path[600];
    const ml_json *doc = NULL, *held;
    ml_file f = { 0 };
    ml_arena a;

    ml_arena_init(&a, "held");
    snprintf(path, sizeof path, "%s/iter_%07d/state.json", save, rounds - 1);
    CHECK(ml_file_map(&f, path, NULL) == ML_OK);
    CHECK(ml_json_parse(&doc, &a, f.bytes, path, NULL) == ML_OK);
    held = ml_json_get(ml_json_get(doc, "data"), "held");
    CHECK(held != NULL);
    for (const ml_json *e = held ? held->child : NULL; e; e = e->next) {
        int64_t i = 0;
        CHECK(ml_json_i64(ml_json_get(e, "index"), &i));
        seen[i]++;
    }
    ml_file_unmap(&f);
    ml_arena_release(&a);
}

/* A snapshot contains the groups that are generated and queued: none is lost or trained
 * twice. */
static void flow_survives_kills(void) {
    const char *save = ml_test_path("save"), *flags = "--fully-async --save-interval 1";
    int seen[CAP] = { 0 }, n = 0, rounds;
    char out[16000], args[3000];
    ml_kills kills;

    ml_kills_init(&kills, getenv("MILES_LONG") ? 20 : 5);
    rounds = ml_kills_rounds(&kills);
    ml_toy_run_inputs();
    ml_toy_run_args(args, sizeof args, "train-async", save, rounds, flags);
    while (ml_kills_go_on(&kills))
        ml_kills_once(&kills, args, save);
    CHECK(ml_toy_run("train-async", save, rounds, flags, out, sizeof out) == 0);
    count_used(seen, save, rounds);
    count_held(seen, save, rounds);
    while (n < CAP && seen[n])
        n++;
    CHECK(n >= rounds * 16);
    for (int i = 0; i < CAP; i++)
        if (seen[i] != (i < n))
            ml_test_fail(__FILE__, __LINE__, "sample %d is there %d times", i, seen[i]);
    ml_kills_tell(&kills);
}

/* --- faults of the machine ---------------------------------------------------------------------- */

/* The size of files is limited so that a snapshot does not fit: what was saved before stays. */
static void a_full_disk_is_said(void) {
    const char *save = ml_test_path("save"), *whole = ml_test_path("whole");
    char out[16000], args[3000], limited[3400];

#ifdef __SANITIZE_THREAD__
    ml_test_skip(
        "ThreadSanitizer maps a file at start that is larger than this test allows");
#endif
    ml_toy_run_inputs();
    CHECK(run(whole, "--save-interval 1", out, sizeof out) == 0);
    CHECK(run(save, "--debug-exit-after-rollout 3", out, sizeof out) == 0);
    ml_toy_run_args(args, sizeof args, "train-async", save, ROUNDS, "--save-interval 1");
    snprintf(limited, sizeof limited,
             "--version; ulimit -f 8; \"$MILES_UNDER_TEST\"/miles %s", args);
    CHECK(ml_test_miles(out, sizeof out, limited) == 1);
    CHECK_HAS(out, "File too large");
    CHECK(run(save, "--save-interval 1", out, sizeof out) == 0);
    ml_toy_run_same(whole, save, ROUNDS);
}

/* Somebody empties the data while it is in use. */
static void cut_data_is_said(void) {
    const char *save = ml_test_path("save"), *data = ml_test_path("data.jsonl");
    char out[16000], args[3000], command[3600];

    ml_toy_run_inputs();
    ml_toy_run_args(args, sizeof args, "train-async", save, 100000,
                    "--eval-interval 1000000 --skip-eval-before-train");
    snprintf(command, sizeof command,
             "--version; (until [ -s %s/metrics.jsonl ]; do sleep 0.1; done; : >%s) & "
             "\"$MILES_UNDER_TEST\"/miles %s 2>&1 | grep truncated",
             save, data, args);
    ml_test_miles(out, sizeof out, command);
    CHECK_HAS(out, "data.jsonl was truncated while it was mapped");
}

static const ml_test tests[] = {
    { "train-async gives the same bytes for any number of threads",
      ahead_gives_the_same_bytes },
    { "train-async kills change no byte of the run", ahead_survives_kills, 300 },
    { "--update-weights-interval 2 publishes every second round",
      weights_are_published_now_and_then },
    { "train-async refuses contradictory flags", what_cannot_be_meant_is_said },
    { "a fully async run replays from its recording to the same weights",
      flow_can_be_replayed },
    { "--fully-async bounds the staleness of samples", staleness_is_bounded },
    { "a plugin's data buffer chooses which group trains next", a_row_keeps_the_queue },
    { "fully async kills lose no group and train none twice", flow_survives_kills, 300 },
    { "a full disk fails the save and keeps the snapshot before it", a_full_disk_is_said },
    { "prompt data that is truncated during a run ends it with an error",
      cut_data_is_said },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
