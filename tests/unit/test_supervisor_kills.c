/* Runs whose engines are killed under them: the same bytes, whatever they were doing. */
#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "rl/sample.h"
#include "tests/support/supervisor_run.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/toy_model.h"
#include "tests/support/toy_run.h"

#define AGAIN "is ready again, at "
#define LOST "gets its weights and its requests again"

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
    pid_t engine[ML_SUPERVISOR_MOST];

    if (!ml_supervisor_run_says(v->log, AGAIN, n, v->run) ||
        ml_supervisor_run_engines(v->run, 2, engine) != 2)
        return false;
    while (!v->is_time(v))
        if (ml_supervisor_run_ended(v->run))
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
static void kill_engines(victim v, const char *form, const char *flags) {
    const char *here = ml_test_path("here"), *there = ml_test_path("there");
    int kills = getenv("MILES_LONG") ? 20 : 3, rounds = 5 * kills, n = 0;
    char out[16000];

    ml_toy_run_inputs();
    CHECK(ml_toy_run("train", here, rounds, "", out, sizeof out) == 0);
    v.form = form;
    v.run = ml_supervisor_run_start(v.log, there, rounds, flags);
    while (n < kills && kill_one(&v, n))
        n++;
    CHECK(ml_supervisor_run_wait(v.run) == 0);
    ml_toy_run_same(here, there, rounds);
    printf("%d kills, %d with requests in flight\n", n,
           ml_supervisor_run_count(v.log, LOST));
    CHECK(n == kills &&
          ml_supervisor_run_count(v.log, "was killed by signal 9; restarting it") == n);
}

static void engines_may_die(void) {
    kill_engines(victim_of(ml_test_path("there/rollout_weights"), were_published),
                 "version_%ld%299s", ML_FLEET_TWO "--update-weight-transfer-mode disk ");
}

/* The same without files: a row of metrics is written just before weights are published. */
static bool will_be_published(victim *v) {
    long now = ml_supervisor_run_count(v->place, "\n");

    if (now == 0 || now <= v->seen)
        return false;
    v->seen = now;
    usleep((unsigned)rand_r(&v->seed) % 20000);
    return true;
}

/* Also while an engine receives weights over TCP, and another has them already. */
static void engines_may_die_over_tcp(void) {
    kill_engines(victim_of(ml_test_path("there/metrics.jsonl"), will_be_published), NULL,
                 ML_FLEET_TWO "--update-weight-buffer-size 20000 ");
}

/* Also while a delta is applied: the copy, which both have, is then written again. */
static void engines_may_die_over_deltas(void) {
    char flags[1000];

    snprintf(flags, sizeof flags,
             ML_FLEET_TWO "--update-weight-transfer-mode disk-delta "
                          "--update-weight-local-checkpoint-dir %s",
             ml_test_path("copy"));
    kill_engines(victim_of(ml_test_path("there/rollout_weights"), were_published),
                 "weight_v%ld%299s", flags);
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
    long n = ml_supervisor_run_count(v->place, "\n");

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
             ML_FLEET_TWO
             "%s %s/there{rollout_id}.zst --reward-workers 1 --custom-rm-path %s",
             only, ml_test_dir(), a);
    v.run = ml_supervisor_run_start(v.log, ml_test_path("there"), rounds, more);
    while ((n < 3 || ml_supervisor_run_count(v.log, LOST) == 0) && kill_one(&v, n))
        n++;
    CHECK(ml_supervisor_run_wait(v.run) == 0);
    printf("%d kills, %d with requests in flight\n", n,
           ml_supervisor_run_count(v.log, LOST));
    CHECK(n >= 3 && ml_supervisor_run_count(v.log, LOST) > 0);
    for (int i = 0; i < rounds; i++) {
        snprintf(a, sizeof a, "%s/here%d.zst", ml_test_dir(), i);
        snprintf(b, sizeof b, "%s/there%d.zst", ml_test_dir(), i);
        same_samples(a, b);
    }
}

static const ml_test tests[] = {
    { "engines that die over whole weights change no byte", engines_may_die, 300 },
    { "engines that die over weight deltas change no byte", engines_may_die_over_deltas,
      300 },
    { "engines that die over weights on the network change no byte",
      engines_may_die_over_tcp, 300 },
    { "requests of a killed engine are answered by another", requests_survive_their_engine,
      300 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
