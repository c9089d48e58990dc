/* miles train with engines that it starts itself: the same bytes, whatever happens to them, and
 * nothing of them is left behind. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/fleet.h"
#include "engine/remote.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"
#include "tests/support/toy_run.h"

enum { ROUNDS = 6, MOST = 16 };

#define ENGINES "--rollout-num-engines 2 --use-fault-tolerance "
#define LONG_ANSWERS "--rollout-max-response-len 80 --eval-interval 1000 "
#define AGAIN "serves again, at "

/* --- processes ---------------------------------------------------------------------- */

/* The parent of a process and the letter of its state; 0 when there is none. */
static pid_t parent_of(pid_t pid, char *state) {
    char path[64], text[600] = "";
    const char *at;
    int parent = 0;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    f = fopen(path, "r");
    if (f && fgets(text, sizeof text, f) && (at = strrchr(text, ')')) != NULL)
        sscanf(at + 1, " %c %d", state, &parent);
    if (f)
        fclose(f);
    return parent;
}

static bool is_alive(pid_t pid) {
    char state = 'Z';
    return parent_of(pid, &state) != 0 && state != 'Z';
}

static int children_of(pid_t pid, pid_t out[MOST]) {
    DIR *d = opendir("/proc");
    struct dirent *e;
    int n = 0;

    while (d && (e = readdir(d)) != NULL) {
        pid_t child = (pid_t)atoi(e->d_name);
        char state = 'Z';
        if (child > 0 && parent_of(child, &state) == pid && state != 'Z' && n < MOST)
            out[n++] = child;
    }
    if (d)
        closedir(d);
    return n;
}

static bool has_ended(pid_t pid) {
    siginfo_t info = { 0 };
    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == pid;
}

/* Until the run has so many engines at a time, or has ended. */
static int await_engines(pid_t run, int n, pid_t out[MOST]) {
    int found = 0;

    for (int i = 0; i < 20000 && found != n && !has_ended(run); i++) {
        found = children_of(run, out);
        usleep(5000);
    }
    return found;
}

/* How often the text is in the file. */
static int count(const char *path, const char *text) {
    ml_file f = { 0 };
    int n = 0;

    if (ml_file_map(&f, path, NULL) != ML_OK)
        return 0;
    for (const char *at = f.bytes.ptr, *end = at + f.bytes.len;
         at && (at = memmem(at, (size_t)(end - at), text, strlen(text))) != NULL; at++)
        n++;
    ml_file_unmap(&f);
    return n;
}

/* Until it is there so often; false: the run has ended before. */
static bool await_count(const char *path, const char *text, int n, pid_t run) {
    for (int i = 0; i < 50000 && !has_ended(run); i++) {
        if (count(path, text) >= n)
            return true;
        usleep(2000);
    }
    return false;
}

static pid_t start(const char *log, const char *command, const char *save, int rounds,
                   const char *more) {
    char args[3000];

    ml_toy_run_args(args, sizeof args, command, save, rounds, more);
    return ml_toy_start_to(log, args);
}

static int wait_for(pid_t run) {
    int status = 0;

    waitpid(run, &status, 0);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

/* --- tests -------------------------------------------------------------------------- */

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
                     ENGINES "--rollout-health-check-interval 0.02 --dtype f32", out,
                     sizeof out) == 0);
    ml_toy_run_same(here, two, ROUNDS);
    CHECK(ml_toy_run("train-async", async, ROUNDS, "", out, sizeof out) == 0);
    CHECK(ml_toy_run("train-async", three, ROUNDS, "--rollout-num-engines 3", out,
                     sizeof out) == 0);
    ml_toy_run_same(async, three, ROUNDS);
}

/* Until weights are published that were not there before; false: the run has ended. */
static bool await_version(const char *dir, unsigned long long *version, pid_t run) {
    while (!has_ended(run)) {
        DIR *d = opendir(dir);
        struct dirent *e;
        unsigned long long newest = 0, n;
        while (d && (e = readdir(d)) != NULL)
            if (sscanf(e->d_name, "version_%llu", &n) == 1 && !strstr(e->d_name, ".new") &&
                n > newest)
                newest = n;
        if (d)
            closedir(d);
        if (newest > *version) {
            *version = newest;
            return true;
        }
        usleep(500);
    }
    return false;
}

/* Kills an engine that has come back since the last time, at a random moment after new weights
 * were published: while it gets them, or while it generates with them. */
static bool kill_one(pid_t run, const char *log, const char *dir, int n, unsigned *seed) {
    static unsigned long long version;
    pid_t engine[MOST];

    if (!await_count(log, AGAIN, n, run) || !await_version(dir, &version, run))
        return false;
    usleep((unsigned)rand_r(seed) % 80000);
    if (children_of(run, engine) != 2)
        return false;
    kill(engine[rand_r(seed) % 2], SIGKILL);
    return true;
}

/* MILES_LONG asks for more kills. */
static void engines_may_die(void) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there"),
               *log = ml_test_path("log"), *dir = ml_test_path("there/rollout_weights");
    int kills = getenv("MILES_LONG") ? 20 : 3, rounds = 8 * kills, n = 0, hits = 0;
    unsigned seed = (unsigned)time(NULL);
    char out[16000];
    pid_t run;

    printf("seed %u\n", seed);
    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, rounds, LONG_ANSWERS, out, sizeof out) == 0);
    run = start(log, "train", there, rounds, ENGINES LONG_ANSWERS);
    while ((n < kills || hits == 0) && kill_one(run, log, dir, n, &seed)) {
        n++;
        hits = count(log, "asked of it again");
    }
    CHECK(wait_for(run) == 0);
    ml_toy_run_same(here, there, rounds);
    hits = count(log, "asked of it again");
    printf("%d kills, %d with requests under way\n", n, hits);
    CHECK(n >= kills && count(log, "was ended by signal 9; it is started again") == n);
    CHECK(hits > 0);
}

/* One that neither dies nor answers is killed. */
static void a_silent_engine_is_replaced(void) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there"),
               *log = ml_test_path("log");
    pid_t run, engine[MOST];
    char out[16000];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, ROUNDS, "", out, sizeof out) == 0);
    run = start(log, "train", there, ROUNDS,
                ENGINES "--rollout-health-check-interval 0.1 "
                        "--rollout-health-check-timeout 1");
    CHECK(await_engines(run, 2, engine) == 2 && await_count(log, "first round: ", 1, run));
    kill(engine[0], SIGSTOP);
    CHECK(wait_for(run) == 0);
    CHECK(count(log, "is not well, and is killed: ") > 0);
    ml_toy_run_same(here, there, ROUNDS);
    CHECK(!is_alive(engine[0]) && !is_alive(engine[1]));
}

static void without_fault_tolerance_the_run_ends(void) {
    const char *save = ml_test_path("save"), *log = ml_test_path("log");
    pid_t run, engine[MOST];

    ml_toy_run_inputs();
    run = start(log, "train", save, 1000, "--rollout-num-engines 2");
    CHECK(await_engines(run, 2, engine) == 2 && await_count(log, "first round: ", 1, run));
    kill(engine[1], SIGKILL);
    CHECK(wait_for(run) == 3);
    CHECK(count(log, "was ended by signal 9") > 0);
    CHECK(!is_alive(engine[0]));
}

/* The system ends them with the process that started them. */
static void no_engine_outlives_its_run(void) {
    const char *save = ml_test_path("save"), *log = ml_test_path("log");
    pid_t run, engine[MOST];

    ml_toy_run_inputs();
    run = start(log, "train", save, 1000, ENGINES);
    CHECK(await_engines(run, 2, engine) == 2 && await_count(log, "first round: ", 1, run));
    kill(run, SIGKILL);
    CHECK(wait_for(run) == -1);
    for (int i = 0; i < 3000 && (is_alive(engine[0]) || is_alive(engine[1])); i++)
        usleep(10000);
    CHECK(!is_alive(engine[0]) && !is_alive(engine[1]));
}

static void what_cannot_be_meant_is_said(void) {
    const char *save = ml_test_path("save");
    char out[16000];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", save, 1, ENGINES "--colocate", out, sizeof out) == 2);
    CHECK_HAS(out, "--colocate shares one set of weights");
    CHECK(ml_toy_run("train", save, 1,
                     ENGINES "--rollout-external --rollout-external-engine-addrs "
                             "127.0.0.1:1",
                     out, sizeof out) == 2);
    CHECK_HAS(out, "give one of them");
    CHECK(ml_toy_run("train", save, 1, ENGINES "--dry-run", out, sizeof out) == 0);
    CHECK(access(ml_test_path("save/rollout_weights/engine_0.log"), F_OK) != 0);
}

/* --- engines that cannot be started ------------------------------------------------------ */

static void sorry_engines_are_named(void) {
    static const char *const sorry[] = { "sh", "-c", "echo no memory at all >&2; exit 3",
                                         NULL };
    ml_fleet_opts o = { .program = "/bin/sh",
                        .argv = sorry,
                        .log_dir = ml_test_dir(),
                        .n = 2,
                        .restart = true,
                        .check_s = 1,
                        .timeout_s = 1 };
    ml_fleet *f = NULL;
    ml_err err = { 0 };

    CHECK(ml_fleet_open(&f, &o, &err) == ML_EPEER && !f);
    CHECK_HAS(err.msg, "ended with status 3: no memory at all; ");
    CHECK_HAS(err.msg, ".log has what it said");
    o.program = "/nowhere/miles";
    CHECK(ml_fleet_open(&f, &o, &err) == ML_EPEER && !f);
    CHECK_HAS(err.msg, "ended with status 127");
}

/* It served once; then it never does again: who waits for it is told. */
static void one_that_stays_away_is_given_up(void) {
    const char *const once[] = { "sh", "-c",
                                 "test ! -e \"$0\" || { echo never again >&2; exit 1; }; "
                                 ": >\"$0\"; echo at http://127.0.0.1:9; exec sleep 0.1",
                                 ml_test_path("served"), NULL };
    ml_fleet_opts o = { .program = "/bin/sh",
                        .argv = once,
                        .log_dir = ml_test_dir(),
                        .n = 1,
                        .restart = true,
                        .check_s = 100,
                        .timeout_s = 1 };
    const char *url;
    ml_fleet *f = NULL;
    ml_gen *gen = NULL;
    ml_err err = { 0 };

    CHECK(ml_fleet_open(&f, &o, &err) == ML_OK);
    url = ml_fleet_url(f, 0);
    CHECK(strcmp(url, "http://127.0.0.1:9") == 0);
    CHECK(ml_remote_open(
              &gen,
              &(ml_remote_opts){ .url = &url, .n_url = 1, .retry_s = 0.05, .connect_s = 1 },
              &err) == ML_OK);
    ml_fleet_serve(f, gen);
    CHECK(gen->load(gen, "/nowhere", 1, ML_SWITCH_RETRACT, &err) == ML_EPEER);
    CHECK_HAS(err.msg, "engine 0 ended with status 1: never again; ");
    ml_fleet_serve(f, NULL);
    gen->close(gen);
    ml_fleet_close(f);
}

static const ml_test tests[] = {
    { "the same bytes as here", the_same_bytes_as_here, 300 },
    { "engines may die", engines_may_die, 300 },
    { "a silent engine is replaced", a_silent_engine_is_replaced, 300 },
    { "without fault tolerance the run ends", without_fault_tolerance_the_run_ends, 300 },
    { "no engine outlives its run", no_engine_outlives_its_run, 300 },
    { "what cannot be meant is said", what_cannot_be_meant_is_said },
    { "sorry engines are named", sorry_engines_are_named },
    { "one that stays away is given up", one_that_stays_away_is_given_up },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
