/* miles train with engines that it starts itself: the same bytes, whatever happens to them, and
 * nothing of them is left behind. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "base/file.h"
#include "engine/fleet.h"
#include "engine/remote.h"
#include "rl/sample.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"
#include "tests/support/toy_run.h"

enum { ROUNDS = 6, MOST = 16 };

#define ENGINES "--rollout-num-engines 2 --use-fault-tolerance "
#define AGAIN "serves again, at "
#define LOST "what was asked of it again"

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

/* Its command line begins with "miles", "serve". */
static bool is_engine(pid_t pid) {
    static const char begin[] = "miles\0serve";
    char path[64], text[sizeof begin] = "";
    bool is = false;
    FILE *f;

    snprintf(path, sizeof path, "/proc/%d/cmdline", (int)pid);
    f = fopen(path, "r");
    if (f) {
        is = fread(text, 1, sizeof text, f) == sizeof text &&
             memcmp(text, begin, sizeof begin) == 0;
        fclose(f);
    }
    return is;
}

static int engines_of(pid_t run, pid_t out[MOST]) {
    DIR *d = opendir("/proc");
    struct dirent *e;
    int n = 0;

    while (d && (e = readdir(d)) != NULL) {
        pid_t child = (pid_t)atoi(e->d_name);
        char state = 'Z';
        if (child > 0 && parent_of(child, &state) == run && state != 'Z' &&
            is_engine(child) && n < MOST)
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
        found = engines_of(run, out);
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

/* A run that generates, with two engines; the test ends without them. */
static pid_t start_two(const char *log, const char *save, int rounds, const char *more,
                       pid_t engine[MOST]) {
    pid_t run = start(log, "train", save, rounds, more);

    if (await_engines(run, 2, engine) == 2 && await_count(log, "first round: ", 1, run))
        return run;
    ml_test_fail(__FILE__, __LINE__, "the run did not begin, or has ended");
    exit(1);
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

/* The highest number of a file whose name is so, or -1. */
static long newest(const char *dir, const char *form) {
    DIR *d = opendir(dir);
    struct dirent *e;
    long most = -1, n;
    char rest[300];

    while (d && (e = readdir(d)) != NULL)
        if (sscanf(e->d_name, form, &n, rest) == 1 && n > most)
            most = n;
    if (d)
        closedir(d);
    return most;
}

/* A run that is disturbed, and the file or directory in which it shows what it is doing. */
typedef struct victim victim;
struct victim {
    pid_t run;
    const char *log, *place;
    const char *form; /* of the names of versions in it */
    bool (*is_time)(victim *v);
    long seen; /* what it showed at the last kill */
    unsigned seed;
};

static victim victim_of(const char *place, bool (*is_time)(victim *v)) {
    victim v = { .log = ml_test_path("log"),
                 .place = place,
                 .is_time = is_time,
                 .seen = -1,
                 .seed = (unsigned)time(NULL) };
    printf("seed %u\n", v.seed);
    return v;
}

/* Kills an engine when the one before has come back and it is time; false: the run has ended. */
static bool kill_one(victim *v, int n) {
    pid_t engine[MOST];

    if (!await_count(v->log, AGAIN, n, v->run) || await_engines(v->run, 2, engine) != 2)
        return false;
    while (!v->is_time(v))
        if (has_ended(v->run))
            return false;
        else
            usleep(200);
    kill(engine[rand_r(&v->seed) % 2], SIGKILL);
    return true;
}

/* A random moment after weights were published, while engines get them or use them. */
static bool were_published(victim *v) {
    long now = newest(v->place, v->form);

    if (now <= v->seen)
        return false;
    v->seen = now;
    usleep((unsigned)rand_r(&v->seed) % 20000);
    return true;
}

/* MILES_LONG asks for more kills. */
static void kill_engines(const char *form, const char *flags) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there");
    victim v = victim_of(ml_test_path("there/rollout_weights"), were_published);
    int kills = getenv("MILES_LONG") ? 20 : 3, rounds = 5 * kills, n = 0;
    char out[16000];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, rounds, "", out, sizeof out) == 0);
    v.form = form;
    v.run = start(v.log, "train", there, rounds, flags);
    while (n < kills && kill_one(&v, n))
        n++;
    CHECK(wait_for(v.run) == 0);
    ml_toy_run_same(here, there, rounds);
    printf("%d kills, %d with requests under way\n", n, count(v.log, LOST));
    CHECK(n == kills && count(v.log, "was ended by signal 9; it is started again") == n);
}

static void engines_may_die(void) {
    kill_engines("version_%ld%299s", ENGINES);
}

/* In the midst of a patch, too: the copy, which both have, is then begun anew. */
static void engines_may_die_over_deltas(void) {
    char flags[1000];

    snprintf(flags, sizeof flags,
             ENGINES "--update-weight-transfer-mode disk-delta "
                     "--update-weight-local-checkpoint-dir %s",
             ml_test_path("copy"));
    kill_engines("weight_v%ld%299s", flags);
}

/* The run kills them itself. */
static void faults_on_order(void) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there");
    char out[16000];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, ROUNDS, "", out, sizeof out) == 0);
    CHECK(ml_toy_run("train", there, ROUNDS,
                     ENGINES "--ci-ft-test-actions "
                             "'[{\"at_rollout\":1,\"action\":\"crash_engine_at_end\","
                             "\"cell_index\":0},{\"at_rollout\":3,\"action\":"
                             "\"crash_engine_at_end\"}]'",
                     out, sizeof out) == 0);
    CHECK_HAS(out, "engine 0 is killed, as it was asked for");
    CHECK_HAS(out, "engine 1 is killed, as it was asked for");
    CHECK_HAS(out, "engine 0 was ended by signal 9; it is started again");
    ml_toy_run_same(here, there, ROUNDS);
    /* Without anybody who starts it again, a fault is the end. */
    CHECK(ml_toy_run("train", ml_test_path("end"), ROUNDS,
                     "--rollout-num-engines 1 --ci-ft-test-actions "
                     "'[{\"at_rollout\":0,\"action\":\"crash_engine_at_end\"}]'",
                     out, sizeof out) == 3);
    CHECK_HAS(out, "engine 0 was ended by signal 9");
}

static void faults_that_cannot_be(void) {
    static const struct {
        const char *json, *sentence;
    } cases[] = {
        { "x", "--ci-ft-test-actions:1:1" },
        { "{}", "expected an array" },
        { "[1]", "\"action\": expected" },
        { "[{\"action\":\"crash_before_allreduce\"}]", "one of several ranks" },
        { "[{\"action\":\"crash_engine_at_end\"}]", "\"at_rollout\": expected" },
        { "[{\"action\":\"crash_engine_at_end\",\"at_rollout\":1,\"cell_index\":2}]",
          "\"cell_index\" is 2" },
        { "[{\"action\":\"crash_engine_at_end\",\"at_rollout\":1,\"rank\":0}]",
          "\"rank\" is not known" },
    };
    char out[16000], more[400];

    ml_toy_run_inputs();
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        snprintf(more, sizeof more, ENGINES "--ci-ft-test-actions '%s'", cases[i].json);
        CHECK(ml_toy_run("train", ml_test_path("save"), 2, more, out, sizeof out) == 2);
        CHECK_HAS(out, cases[i].sentence);
    }
    CHECK(ml_toy_run("train", ml_test_path("save"), 2, "--ci-ft-test-actions []", out,
                     sizeof out) == 2);
    CHECK_HAS(out, "give --rollout-num-engines");
}

/* Two records of a round are of the same draws. */
static void same_samples(const char *a, const char *b) {
    ml_sample *x = NULL, *y = NULL;
    int64_t n = 0, m = 0;
    ml_arena arena;

    ml_arena_init(&arena, "samples");
    CHECK(ml_samples_load(&x, &n, &arena, a, NULL) == ML_OK);
    CHECK(ml_samples_load(&y, &m, &arena, b, NULL) == ML_OK);
    CHECK(n == 16 && m == 16);
    for (int64_t i = 0; i < n && i < m; i++)
        CHECK(x[i].n_token == y[i].n_token && x[i].n_response == y[i].n_response &&
              memcmp(x[i].token, y[i].token, (size_t)x[i].n_token * 4) == 0 &&
              memcmp(x[i].logprob, y[i].logprob, (size_t)x[i].n_response * 4) == 0);
    ml_arena_release(&arena);
}

/* A line for each answer that is graded: some of a round's have ended, most have not. */
static bool some_have_ended(victim *v) {
    long n = count(v->place, "\n");

    if (n / 16 <= v->seen || n % 16 < 1 || n % 16 > 6)
        return false;
    v->seen = n / 16;
    return true;
}

/* A run that does nothing but generate, answers of many lengths; an engine is killed in the
 * middle of them.  None is lost, and what is asked again is answered as before. */
static void requests_survive_their_engine(void) {
    static const char only[] = "--debug-rollout-only --rollout-max-response-len 80 "
                               "--rollout-stop-token-ids 1 2 3 --eval-interval 1000 "
                               "--skip-eval-before-train --save-debug-rollout-data";
    char out[16000], more[1500], a[700], b[700];
    victim v = victim_of(ml_test_path("graded"), some_have_ended);
    int rounds = 14, n = 0;

    ml_toy_run_inputs();
    snprintf(more, sizeof more,
             "#!/bin/sh\nwhile read -r line; do echo >>%s; echo 1; done\n", v.place);
    ml_toy_file("grader.sh", more);
    snprintf(a, sizeof a, "cmd:%s", ml_test_path("grader.sh"));
    CHECK(chmod(ml_test_path("grader.sh"), 0755) == 0);
    snprintf(more, sizeof more, "%s %s/here{rollout_id}.zst", only, ml_test_dir());
    CHECK(ml_toy_run("train", ml_test_path("here"), rounds, more, out, sizeof out) == 0);
    snprintf(more, sizeof more,
             ENGINES "%s %s/there{rollout_id}.zst --reward-workers 1 --custom-rm-path %s",
             only, ml_test_dir(), a);
    v.run = start(v.log, "train", ml_test_path("there"), rounds, more);
    while ((n < 3 || count(v.log, LOST) == 0) && kill_one(&v, n))
        n++;
    CHECK(wait_for(v.run) == 0);
    printf("%d kills, %d with requests under way\n", n, count(v.log, LOST));
    CHECK(n >= 3 && count(v.log, LOST) > 0);
    for (int i = 0; i < rounds; i++) {
        snprintf(a, sizeof a, "%s/here%d.zst", ml_test_dir(), i);
        snprintf(b, sizeof b, "%s/there%d.zst", ml_test_dir(), i);
        same_samples(a, b);
    }
}

/* One that neither dies nor answers is killed. */
static void a_silent_engine_is_replaced(void) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there"),
               *log = ml_test_path("log");
    pid_t run, engine[MOST];
    char out[16000];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, ROUNDS, "", out, sizeof out) == 0);
    run = start_two(log, there, ROUNDS,
                    ENGINES "--rollout-health-check-interval 0.1 "
                            "--rollout-health-check-timeout 1",
                    engine);
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
    run = start_two(log, save, 1000, "--rollout-num-engines 2", engine);
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
    run = start_two(log, save, 1000, ENGINES, engine);
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
    { "engines may die over deltas", engines_may_die_over_deltas, 300 },
    { "faults on order", faults_on_order, 300 },
    { "faults that cannot be", faults_that_cannot_be },
    { "requests survive their engine", requests_survive_their_engine, 300 },
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
