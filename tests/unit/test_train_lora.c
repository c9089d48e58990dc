/* Runs that train an adapter: what they save, how they resume, and that generation, training
 * and the reference agree about it. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "model/lora.h"
#include "tests/support/kill.h"
#include "tests/support/must.h"
#include "tests/support/scratch.h"
#include "tests/support/toy_run.h"

#define LORA                                                                               \
    "--lora-rank 4 --lora-alpha 8 --target-modules all-linear --lr 1e-2 --use-kl-loss "    \
    "--kl-loss-coef 0.1 --kl-loss-type low_var_kl "

static char out[1 << 16];

static void must_run(const char *command, const char *save, int rounds, const char *more) {
    if (ml_toy_run(command, save, rounds, more, out, sizeof out) != 0) {
        ml_test_fail(__FILE__, __LINE__, "%s", out);
        exit(1);
    }
}

static const char *in_last(const char *save, int rounds, const char *name) {
    static char path[1200];
    snprintf(path, sizeof path, "%s/iter_%07d/%s", save, rounds - 1, name);
    return path;
}

/* How often a text occurs in the metrics of a run. */
static int count(const char *save, const char *what) {
    char path[1200];
    ml_file f = { 0 };
    int n = 0;

    snprintf(path, sizeof path, "%s/metrics.jsonl", save);
    MUST(ml_file_map(&f, path, &err));
    for (size_t i = 0; i + strlen(what) <= f.bytes.len; i++)
        n += memcmp(f.bytes.ptr + i, what, strlen(what)) == 0;
    ml_file_unmap(&f);
    return n;
}

static void synchronous(void) {
    enum { ROUNDS = 3 };
    const char *save = ml_test_path("run");

    ml_toy_run_inputs();
    must_run("train", save, ROUNDS, LORA);
    CHECK(ml_file_there(in_last(save, ROUNDS, ML_LORA_FILE)));
    CHECK(ml_file_there(in_last(save, ROUNDS, ML_LORA_CONFIG)));
    CHECK(!ml_file_there(in_last(save, ROUNDS, "model.safetensors")));
    CHECK(count(save, "\"rollout/forward_logp_max_diff\"") == ROUNDS);
    CHECK(count(save, "\"rollout/forward_logp_max_diff\": 0,") +
              count(save, "\"rollout/forward_logp_max_diff\": 0}") ==
          ROUNDS);
}

static void asynchronous(void) {
    const char *save = ml_test_path("async");

    ml_toy_run_inputs();
    must_run("train-async", save, 3, LORA);
    CHECK(ml_file_there(in_last(save, 3, ML_LORA_FILE)));
}

/* Engines of other processes get the adapter over TCP or from files, and draw the same. */
static void elsewhere(void) {
    enum { ROUNDS = 3 };
    const char *here = ml_test_path("here"), *tcp = ml_test_path("tcp"),
               *disk = ml_test_path("disk");
    char line[1500];

    ml_toy_run_inputs();
    must_run("train", here, ROUNDS, LORA);
    must_run("train", tcp, ROUNDS, LORA "--rollout-num-engines 2");
    CHECK_HAS(out, "forward_logp_max_diff 0,");
    ml_toy_run_same(here, tcp, ROUNDS);
    must_run("train", disk, ROUNDS,
             LORA "--rollout-num-engines 1 --update-weight-transfer-mode disk");
    ml_toy_run_same(here, disk, ROUNDS);
    snprintf(line, sizeof line,
             "ls %s/rollout_weights/version_*/adapter_model.safetensors >/dev/null && "
             "! ls %s/rollout_weights/version_*/model*.safetensors >/dev/null 2>&1",
             disk, disk);
    CHECK(system(line) == 0);
}

/* The rollouts are those of the base, whatever is trained. */
static void train_only(void) {
    const char *save[] = { ml_test_path("slow"), ml_test_path("fast") };
    char flags[2000];

    ml_toy_run_inputs();
    for (int i = 0; i < 2; i++) {
        snprintf(flags, sizeof flags,
                 LORA "--lora-train-only --lr %s --save-debug-rollout-data "
                      "%s/{rollout_id}.%d.jsonl.zst",
                 i ? "1e-2" : "1e-4", ml_test_dir(), i);
        must_run("train", save[i], 3, flags);
    }
    CHECK(ml_file_there(in_last(save[1], 3, ML_LORA_FILE)));
    snprintf(
        flags, sizeof flags,
        "cd %s && cmp 2.0.jsonl.zst 2.1.jsonl.zst && ! cmp -s 0.0.jsonl.zst 2.0.jsonl.zst",
        ml_test_dir());
    CHECK(system(flags) == 0);
}

/* The base is in memory once: a run with a reference plans what one without it plans. */
static void memory(void) {
    const char *line;

    ml_toy_run_inputs();
    must_run("train", ml_test_path("plan"), 1, LORA "--dry-run");
    CHECK(!ml_test_has(out, "reference weights"));
    line = strstr(out, "optimizer state");
    CHECK(line && strtod(line + strlen("optimizer state"), NULL) < 1.0);
}

static void refusals(void) {
    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", ml_test_path("x"), 1,
                     "--lora-rank 4 --target-modules nothing", out, sizeof out) != 0);
    CHECK_HAS(out, "--target-modules \"nothing\" names no linear layer");
    must_run("train", ml_test_path("four"), 1, LORA);
    CHECK(ml_toy_run("train", ml_test_path("four"), 2,
                     "--lora-rank 2 --target-modules q_proj", out, sizeof out) != 0);
    CHECK_HAS(out, "has other layers, ranks or scales than this run");
}

/* MILES_LONG asks for more kills. */
static void survives_kills(void) {
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");
    char flags[1500], args[3000];
    ml_kills kills;
    int rounds;

    ml_kills_init(&kills, getenv("MILES_LONG") ? 50 : 3);
    rounds = ml_kills_rounds(&kills);
    ml_toy_run_inputs();
    must_run("train", whole, rounds, LORA);
    snprintf(flags, sizeof flags, LORA "--save-interval 1 --keep-last 1");
    ml_toy_run_args(args, sizeof args, "train", parts, rounds, flags);
    while (ml_kills_go_on(&kills))
        ml_kills_once(&kills, args, parts);
    must_run("train", parts, rounds, flags);
    ml_toy_run_same(whole, parts, rounds);
    ml_kills_tell(&kills);
}

static const ml_test tests[] = {
    { "rollouts of an adapter have the log-probs of training", synchronous, 120 },
    { "an asynchronous run trains an adapter", asynchronous, 120 },
    { "engines of other processes get the adapter alone", elsewhere, 300 },
    { "rollouts may leave the adapter out", train_only, 120 },
    { "a reference of an adapter needs no memory", memory, 60 },
    { "adapters that a run cannot train are rejected", refusals, 120 },
    { "a run of an adapter survives kills", survives_kills, 1800 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
