#include <glob.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/file.h"
#include "base/str.h"
#include "rl/record/run_disk.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_run.h"

static char out[20000];
static ml_err err;

static void args_of(char *args, size_t cap, int rounds, const char *more) {
    snprintf(args, cap,
             "train --hf-checkpoint %s --prompt-data %s --label-key label "
             "--apply-chat-template --n-samples-per-prompt 4 --num-rollout %d "
             "--rollout-max-response-len 8 --rm-type deterministic_random %s",
             ml_test_path("model"), ml_test_path("data.jsonl"), rounds, more);
}

#define SIZES "--rollout-batch-size 2 --global-batch-size 8 --lr 1e-5 "
#define CONSTANT SIZES "--lr-decay-style constant "

static int run(int rounds, const char *flags, const char *save, const char *load) {
    char args[3000], more[1500];

    snprintf(more, sizeof more, "%s %s %s %s %s", flags, save ? "--save" : "",
             save ? save : "", load ? "--load" : "", load ? load : "");
    args_of(args, sizeof args, rounds, more);
    return ml_test_miles(out, sizeof out, args);
}

static bool there(const char *name) {
    return access(ml_test_path(name), F_OK) == 0;
}

static ml_str bytes_of(const char *name, ml_file *f) {
    CHECK(ml_file_map(f, ml_test_path(name), &err) == ML_OK);
    return f->bytes;
}

static void put(const char *name, const char *text) {
    CHECK(ml_file_replace(ml_test_path(name), ml_str_of(text), &err) == ML_OK);
}

/* --- an existing run ---------------------------------------------------------- */

static void a_run_is_not_replaced(void) {
    const char *save = ml_test_path("run");
    ml_file before = { 0 }, after = { 0 };
    ml_str was;

    ml_toy_run_inputs();
    CHECK(run(2, CONSTANT, save, NULL) == 0);
    was = bytes_of("run/metrics.jsonl", &before);
    CHECK(run(1, CONSTANT, save, NULL) == 2);
    CHECK_HAS(out, "already contains a run");
    CHECK_HAS(out, "--load ");
    CHECK_HAS(out, "--overwrite");
    CHECK(run(1, CONSTANT, save, ml_test_path("other")) == 2); /* not from here */
    CHECK(run(1, CONSTANT "--finetune", save, save) == 2);     /* starts at round 0 */
    CHECK_HAS(out, "starts at rollout 0");
    CHECK(run(1, CONSTANT "--overwrite", save, save) == 2);
    CHECK_HAS(out, "--overwrite would remove the run");
    CHECK(run(1, CONSTANT "--dry-run", save, NULL) == 2);
    CHECK(ml_str_eq(was, bytes_of("run/metrics.jsonl", &after)));
    CHECK(there("run/iter_0000001") && there("run/run.db"));
    ml_file_unmap(&before);
    ml_file_unmap(&after);
    CHECK(run(3, CONSTANT, save, save) == 0);
    CHECK_HAS(out, "resuming at rollout 2");
}

/* Files of the run go, and no others. */
static void overwriting_removes_our_files(void) {
    const char *save = ml_test_path("run");

    ml_toy_run_inputs();
    CHECK(run(2, CONSTANT "--save-interval 1", save, NULL) == 0);
    put("run/notes.txt", "mine");
    put("run/metrics.jsonl.bak", "mine");
    CHECK(ml_dir_make(ml_test_path("run/iter_best"), &err) == ML_OK);
    put("run/iter_0000000/notes.txt", "mine");
    CHECK(run(1, CONSTANT "--overwrite", save, NULL) == 2);
    CHECK_HAS(out, "iter_0000000/notes.txt does not belong to the snapshot");
    CHECK(there("run/iter_0000001/config.json") && there("run/metrics.jsonl"));
    CHECK(unlink(ml_test_path("run/iter_0000000/notes.txt")) == 0);
    CHECK(run(1, CONSTANT "--overwrite", save, NULL) == 0);
    CHECK(there("run/iter_0000000") && !there("run/iter_0000001"));
    CHECK(there("run/notes.txt") && there("run/metrics.jsonl.bak") &&
          there("run/iter_best"));
}

/* A start that fails before its first row does not block the next one. */
static void a_failed_start_leaves_nothing(void) {
    const char *save = ml_test_path("run");

    ml_toy_run_inputs();
    CHECK(run(1, CONSTANT "--freeze nothing", save, NULL) == 2);
    CHECK(!there("run"));
}

static void another_runs_tensorboard_file(void) {
    char flags[1000];

    ml_toy_run_inputs();
    snprintf(flags, sizeof flags, CONSTANT "--tensorboard-dir %s", ml_test_path("tb"));
    CHECK(run(1, flags, ml_test_path("a"), NULL) == 0);
    CHECK(run(1, flags, ml_test_path("b"), NULL) == 2);
    CHECK_HAS(out, "events.out.tfevents.miles exists");
    CHECK(run(2, flags, ml_test_path("a"), ml_test_path("a")) == 0);
}

/* --- no --save ------------------------------------------------------------------ */

/* Nor is the directory made that engines would read weights from. */
static void trying_makes_no_directory(void) {
    ml_toy_run_inputs();
    CHECK(run(1, CONSTANT "--rollout-num-engines 1 --dry-run", ml_test_path("run"), NULL) ==
          0);
    CHECK(!there("run"));
}

static void a_directory_is_chosen(void) {
    static const char *const looks[] = { "--dry-run", "--debug-rollout-only",
                                         "--debug-exit-after-rollout 1" };
    char *program = realpath(getenv("MILES_UNDER_TEST"), NULL);
    glob_t found = { 0 };

    ml_toy_run_inputs();
    CHECK(program && setenv("MILES_UNDER_TEST", program, 1) == 0);
    CHECK(chdir(ml_test_dir()) == 0);
    for (int i = 0; i < 3; i++) {
        char flags[1000];
        snprintf(flags, sizeof flags, CONSTANT "%s", looks[i]);
        CHECK(run(1, flags, NULL, NULL) == 0);
        CHECK(!there("runs"));
    }
    for (int i = 0; i < 2; i++) {
        CHECK(run(1, CONSTANT, NULL, NULL) == 0);
        CHECK_HAS(out, "Saving to runs/model-20");
    }
    CHECK(glob("runs/model-20*/iter_0000000", 0, NULL, &found) == 0);
    CHECK(found.gl_pathc == 2);
    globfree(&found);
    free(program);
}

/* --- one process at a time ------------------------------------------------------- */

static void wait_for(const char *name) {
    for (int i = 0; i < 3000 && !there(name); i++)
        usleep(10000);
    CHECK(there(name));
}

static void a_second_process_is_refused(void) {
    const char *save = ml_test_path("run");
    char args[3000], more[1500], who[400], host[256] = "";
    pid_t pid;

    ml_toy_run_inputs();
    snprintf(more, sizeof more,
             CONSTANT "--save-interval 1 --keep-last 1 --save %s --load %s", save, save);
    args_of(args, sizeof args, 100000, more);
    pid = ml_toy_start(args);
    wait_for("run/latest_checkpointed_iteration.txt");
    CHECK(run(100000, CONSTANT, save, save) == 2);
    gethostname(host, sizeof host - 1);
    snprintf(who, sizeof who, "is in use by process %ld on %s", (long)pid, host);
    CHECK_HAS(out, who);
    CHECK(run(1, CONSTANT "--overwrite", save, NULL) == 2); /* nor are its files removed */
    CHECK_HAS(out, who);
    ml_toy_run_stop(pid, SIGKILL, 0);
    CHECK(there("run/run.lock"));
    put("run/metrics.jsonl.tmp-12345-0", "of a dead process");
    put("run/notes.tmp-12345-0", "somebody's");
    CHECK(ml_dir_make(ml_test_path("run/iter_9999999.tmp-12345"), &err) == ML_OK);
    CHECK(run(1, CONSTANT, save, save) == 0);
    CHECK(!there("run/run.lock") && !there("run/metrics.jsonl.tmp-12345-0") &&
          !there("run/iter_9999999.tmp-12345"));
    CHECK(there("run/notes.tmp-12345-0"));
}

/* The weights alone lie where others may write: only what a dead process began of ours goes. */
static void unfinished_copies_go(void) {
    static const char *const stay[] = { "mine.tmp-4194303", "w5-hf.tmp-x",
                                        "w-hf.tmp-4194303", "w5-hf.tmp-4194303.old",
                                        "w5-hf" };
    char path[1000], flags[1000];

    ml_toy_run_inputs();
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%s", ml_test_path("hf"), stay[i]);
        CHECK(ml_dir_make(path, &err) == ML_OK);
    }
    snprintf(path, sizeof path, "%s/w7-hf.tmp-%ld", ml_test_path("hf"), (long)getpid());
    CHECK(ml_dir_make(path, &err) == ML_OK); /* this process lives */
    CHECK(ml_dir_make(ml_test_path("hf/w5-hf.tmp-4194303"), &err) ==
          ML_OK); /* this does not */
    snprintf(flags, sizeof flags, CONSTANT "--save-hf %s/w{rollout_id}-hf",
             ml_test_path("hf"));
    CHECK(run(1, flags, ml_test_path("run"), NULL) == 0);
    CHECK(access(path, F_OK) == 0 && !there("hf/w5-hf.tmp-4194303"));
    for (int i = 0; i < 5; i++) {
        snprintf(path, sizeof path, "%s/%s", ml_test_path("hf"), stay[i]);
        CHECK(access(path, F_OK) == 0);
    }
    CHECK(there("hf/w0-hf/config.json"));
}

/* --- continuing ------------------------------------------------------------------ */

static void where_load_has_nothing(void) {
    const char *save = ml_test_path("run");

    ml_toy_run_inputs();
    CHECK(run(1, CONSTANT, save, ml_test_path("missing")) == 0);
    CHECK_HAS(out, "has no snapshot: the run starts from --hf-checkpoint");
    CHECK(ml_dir_make(ml_test_path("empty"), &err) == ML_OK);
    CHECK(run(1, CONSTANT, ml_test_path("b"), ml_test_path("empty")) == 0);
    CHECK_HAS(out, "has no snapshot: the run starts from --hf-checkpoint");
    CHECK(unlink(ml_test_path("run/latest_checkpointed_iteration.txt")) == 0);
    CHECK(run(2, CONSTANT, save, save) == 1);
    CHECK_HAS(out, "but no latest_checkpointed_iteration.txt");
    CHECK(run(2, CONSTANT "--ckpt-step 0", save, save) == 0);
    CHECK_HAS(out, "resuming at rollout 1");
}

/* A process died while it replaced a snapshot, on a file system that takes several steps. */
static void a_snapshot_that_stands_aside(void) {
    const char *save = ml_test_path("run"), *path = ml_test_path("run/iter_0000000"),
               *aside = ml_test_path("run/iter_0000000.replaced");

    ml_toy_run_inputs();
    CHECK(run(1, CONSTANT, save, NULL) == 0);
    CHECK(rename(path, aside) == 0);
    CHECK(run(2, CONSTANT, ml_test_path("other"), save) == 0); /* which is only read */
    CHECK_HAS(out, "resuming at rollout 1");
    CHECK(there("run/iter_0000000.replaced") && !there("run/iter_0000000"));
    CHECK(run(2, CONSTANT, save, save) == 0);
    CHECK_HAS(out, "resuming at rollout 1");
    CHECK(!there("run/iter_0000000.replaced") && there("run/iter_0000000"));
    put("run/latest_checkpointed_iteration.txt", "7");
    CHECK(run(3, CONSTANT, save, save) == 1);
    CHECK_HAS(out,
              "iter_0000007 does not exist: select an existing snapshot with --ckpt-step");
}

static void what_has_changed_is_named(void) {
    const char *save = ml_test_path("run");
    FILE *f;

    ml_toy_run_inputs();
    CHECK(run(1, CONSTANT, save, NULL) == 0);
    CHECK(run(2, CONSTANT, save, save) == 0);
    CHECK_HAS(out, "--num-rollout was 1 and is 2");
    CHECK(!strstr(out, "--lr was") && !strstr(out, "is not the data") &&
          !strstr(out, "its configuration, tokenizer or weights"));
    CHECK(run(3,
              "--rollout-batch-size 2 --global-batch-size 8 --lr 5e-6 "
              "--rollout-shuffle --lr-decay-style constant",
              save, save) == 0);
    CHECK_HAS(out, "--lr was 1e-5 and is 5e-6");
    CHECK_HAS(out, "--rollout-shuffle was off and is on");
    CHECK(!strstr(out, "--save-interval"));
    CHECK(run(4, CONSTANT "--save-interval 5", save, save) == 0);
    CHECK_HAS(out, "--save-interval was not given and is 5");
    f = fopen(ml_test_path("data.jsonl"), "a");
    CHECK(f && fputs("{\"input\": \"more\", \"label\": \"1\"}\n", f) >= 0 &&
          fclose(f) == 0);
    CHECK(run(5, CONSTANT, save, save) == 0);
    CHECK_HAS(out, "differs from the data that the run was started with: it had 12 rows");
    CHECK(!strstr(out, "its configuration, tokenizer or weights"));
    f = fopen(ml_test_path("model/config.json"), "a");
    CHECK(f && fputs("\n", f) >= 0 && fclose(f) == 0);
    CHECK(run(6, CONSTANT, save, save) == 0);
    CHECK_HAS(out, "its configuration, tokenizer or weights differ from those");
    CHECK(!strstr(out, "is not the data"));
}

static void append(const char *name, const char *text) {
    FILE *f = fopen(ml_test_path(name), "a");
    CHECK(f && fputs(text, f) >= 0 && fclose(f) == 0);
}

static void other_inputs_are_named(void) {
    const char *save = ml_test_path("run");
    char flags[2000], command[1000];

    ml_toy_run_inputs();
    snprintf(command, sizeof command, "cp %s %s && cp -r %s %s", ml_test_path("data.jsonl"),
             ml_test_path("eval.jsonl"), ml_test_path("model"), ml_test_path("ref"));
    CHECK(system(command) == 0);
    snprintf(flags, sizeof flags,
             CONSTANT
             "--eval-prompt-data toy %s --eval-interval 9 --skip-eval-before-train "
             "--use-kl-loss --ref-load %s",
             ml_test_path("eval.jsonl"), ml_test_path("ref"));
    CHECK(run(1, flags, save, NULL) == 0);
    append("eval.jsonl", "{\"input\": \"more\", \"label\": \"1\"}\n");
    CHECK(run(2, flags, save, save) == 0);
    CHECK_HAS(out, "warning: --eval-prompt-data toy ");
    CHECK_HAS(out, "it had 12 rows");
    CHECK(!strstr(out, "--ref-load"));
    append("ref/config.json", "\n");
    CHECK(run(3, flags, save, save) == 0);
    CHECK_HAS(out, "warning: --ref-load ");
    CHECK(!strstr(out, "--eval-prompt-data"));
}

/* The schedule counts samples: with smaller batches, a run of as many rounds is over. */
static void a_learning_rate_of_0(void) {
    const char *save = ml_test_path("run");

    ml_toy_run_inputs();
    CHECK(run(2,
              "--rollout-batch-size 8 --global-batch-size 32 --lr 1e-3 "
              "--lr-decay-style linear",
              save, NULL) == 0);
    CHECK(run(4,
              "--rollout-batch-size 2 --global-batch-size 8 --lr 1e-3 "
              "--lr-decay-style linear",
              save, save) == 2);
    CHECK_HAS(out, "the learning rate would be 0 in every step");
    CHECK(run(12, /* 64 of 96 samples are done; the other 10 rounds have 8 each */
              "--rollout-batch-size 2 --global-batch-size 8 --lr 1e-3 "
              "--lr-decay-style linear",
              ml_test_path("smaller"), save) == 0);
    CHECK_HAS(out, "the learning rate is 0 from rollout 6 on");
    CHECK(run(3,
              "--rollout-batch-size 8 --global-batch-size 32 --lr 1e-3 "
              "--lr-decay-style linear --lr-decay-iters 2",
              save, save) == 0);
    CHECK_HAS(out, "the learning rate is 0 from rollout 2 on");
}

/* --- the KV cache --------------------------------------------------------------------- */

/* MiB of the KV cache in the plan. */
static double planned(const char *more) {
    char flags[1000];
    const char *at;
    double mib = 0;

    snprintf(flags, sizeof flags, CONSTANT "--dry-run %s", more);
    CHECK(run(1, flags, NULL, NULL) == 0);
    at = strstr(out, "KV cache");
    CHECK(at && sscanf(at, "KV cache %lf MiB", &mib) == 1);
    return mib;
}

/* 8 requests run at a time, however many might. */
static void the_cache_is_for_what_runs(void) {
    double eight, two;
    char more[600];

    ml_toy_run_inputs();
    eight = planned("");
    two = planned("--sglang-max-running-requests 2");
    CHECK(eight > 0 && two > 0 && two <= eight);
    CHECK(planned("--sglang-max-running-requests 8") == eight);
    CHECK(planned("--sglang-max-running-requests 10000") == eight);
    snprintf(more, sizeof more, "--eval-prompt-data toy %s --eval-interval 9",
             ml_test_path("data.jsonl"));
    CHECK(planned(more) > eight); /* 12 prompts */
}

/* --- the disk ---------------------------------------------------------------------- */

static void the_disk_is_checked(void) {
    ml_run_disk d = { "runs/x", 3000000000, 1000000000, 10, 0 };

    CHECK(ml_run_disk_check(&d, 3999999999, &err) == ML_EIO); /* not even the first one */
    CHECK_HAS(err.msg, "a snapshot needs 4.000 GB in runs/x");
    CHECK_HAS(err.msg, "4.000 GB in total, but 4.000 GB are free");
    CHECK(ml_run_disk_check(&d, 4000000000, &err) == ML_OK);
    d.n_keep = 2; /* three while the third is being written, and all copies */
    CHECK(ml_run_disk_check(&d, 18999999999, &err) == ML_EIO);
    CHECK_HAS(err.msg, "keeps 3, 19.000 GB in total");
    CHECK(ml_run_disk_check(&d, 19000000000, &err) == ML_OK);
    d.n_save = 1;
    CHECK(ml_run_disk_check(&d, 4000000000, &err) == ML_OK);
    CHECK(ml_run_disk_check(&d, UINT64_MAX, &err) == ML_OK);
    CHECK(ml_run_disk_free(ml_test_path("not/there/yet")) < UINT64_MAX);
    CHECK(ml_run_disk_free("not/there/yet") < UINT64_MAX);
}

/* More than any disk has. */
static void too_many_snapshots(void) {
    ml_toy_run_inputs();
    CHECK(run(2000000000, CONSTANT "--save-interval 1 --dry-run", ml_test_path("run"),
              NULL) == 0);
    CHECK_HAS(out, "the run may save 2000000000 snapshots of ");
    CHECK_HAS(out, "are free: limit it with --keep-last");
    CHECK(run(3, CONSTANT "--save-interval 1 --dry-run", ml_test_path("run"), NULL) == 0);
    CHECK(!strstr(out, "are free"));
}

/* --- answers of evaluations ------------------------------------------------------ */

static int count(const char *text, const char *what) {
    int n = 0;
    for (const char *at = text; (at = strstr(at, what)); at++)
        n++;
    return n;
}

static void inspect(char *to, size_t cap, const char *run, const char *more) {
    char args[1000];

    snprintf(args, sizeof args, "inspect %s %s", run, more);
    CHECK(ml_test_miles(to, cap, args) == 0);
}

/* 12 prompts before training and after every second round, whether or not the run was
 * interrupted in between. */
static void answers_of_evaluations_are_recorded(void) {
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");
    static char a[200000], b[200000];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", whole, 4, "", out, sizeof out) == 0);
    inspect(a, sizeof a, whole, "--eval");
    CHECK(count(a, "evaluation of toy before training, sample ") == 12);
    CHECK(count(a, "evaluation of toy after rollout 1, sample ") == 12);
    CHECK(count(a, "evaluation of toy after rollout 3, sample ") == 12);
    CHECK(count(a, "reward ") == 36 && count(a, "prompt ") == 36);
    CHECK_HAS(a, "what is 0+0?");
    inspect(b, sizeof b, whole, "--eval-set toy --step 3 --limit 5");
    CHECK(count(b, "evaluation of toy after rollout 3") == 5);
    inspect(b, sizeof b, whole, "--eval-set other");
    CHECK_HAS(b, "no matching sample");
    CHECK(ml_toy_run("train", parts, 2, "", out, sizeof out) == 0);
    CHECK(ml_toy_run("train", parts, 4, "", out, sizeof out) == 0);
    inspect(a, sizeof a, whole, "--eval --tokens");
    inspect(b, sizeof b, parts, "--eval --tokens");
    CHECK(strcmp(a, b) == 0);
}

static const ml_test tests[] = {
    { "a run directory is not overwritten", a_run_is_not_replaced },
    { "--overwrite removes files of the run alone", overwriting_removes_our_files },
    { "a start that fails leaves no directory", a_failed_start_leaves_nothing },
    { "another run's TensorBoard file is not overwritten", another_runs_tensorboard_file },
    { "--dry-run makes no directory", trying_makes_no_directory },
    { "without --save a run chooses a new directory", a_directory_is_chosen },
    { "a second process on a run directory is refused", a_second_process_is_refused, 60 },
    { "unfinished copies of dead processes are removed", unfinished_copies_go },
    { "--load without a snapshot starts from --hf-checkpoint", where_load_has_nothing },
    { "a snapshot whose replacement was interrupted is recovered",
      a_snapshot_that_stands_aside },
    { "a resumed run names changed flags", what_has_changed_is_named },
    { "a resumed run names changed files", other_inputs_are_named },
    { "a resumed run whose schedule is over is refused", a_learning_rate_of_0 },
    { "the KV cache is planned for the requests that run", the_cache_is_for_what_runs },
    { "a save that does not fit the disk is refused", the_disk_is_checked },
    { "more snapshots than the disk holds are warned of", too_many_snapshots },
    { "miles inspect --eval shows the answers of evaluations",
      answers_of_evaluations_are_recorded },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
