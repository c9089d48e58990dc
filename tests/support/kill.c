#include "tests/support/kill.h"

#include <dirent.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "tests/support/test.h"
#include "tests/support/toy_run.h"

#define POLL_US 200
#define LIMIT_S 100
#define FIRST_REACH_US 4000
#define START_REACH_US 60000
#define LONGEST_REACH_US 1000000

void ml_kills_init(ml_kills *k, int n) {
    *k = (ml_kills){ .n_want = n, .seed = (unsigned)time(NULL) };
    k->reach_us[ML_HIT_START] = START_REACH_US;
    k->reach_us[ML_HIT_ROUND] = k->reach_us[ML_HIT_SAVE] = FIRST_REACH_US;
    printf("seed %u\n", k->seed);
    fflush(stdout);
}

/* A kill lets one round pass, seldom two. */
int ml_kills_rounds(const ml_kills *k) {
    return 2 * k->n_want + 2;
}

static int want_rounds(const ml_kills *k) {
    return k->n_want * 3 / 5;
}

static int want_saves(const ml_kills *k) {
    return k->n_want / 5;
}

bool ml_kills_go_on(const ml_kills *k) {
    bool enough = k->n_kill >= k->n_want && k->n[ML_HIT_ROUND] >= want_rounds(k) &&
                  k->n[ML_HIT_SAVE] >= want_saves(k);

    return !enough && k->n_kill < 4 * k->n_want && k->n[ML_HIT_END] == 0;
}

/* --- signs ---------------------------------------------------------------------------- */

static bool has_temp(const char *dir, pid_t pid) {
    DIR *d = opendir(dir);
    struct dirent *e;
    char end[32];
    bool found = false;

    snprintf(end, sizeof end, ".tmp-%ld", (long)pid);
    while (d && !found && (e = readdir(d)) != NULL)
        found = strstr(e->d_name, end) != NULL;
    if (d)
        closedir(d);
    return found;
}

/* A critic saves to a directory of its own. */
static bool saving(const char *save, pid_t pid) {
    char critic[1000];

    snprintf(critic, sizeof critic, "%s_critic", save);
    return has_temp(save, pid) || has_temp(critic, pid);
}

static bool ended(pid_t pid) {
    siginfo_t info = { 0 };

    return waitid(P_PID, (id_t)pid, &info, WEXITED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid == pid;
}

/* Until the run is saving, or is not; or has ended. */
static void await(const char *save, pid_t pid, bool wanted) {
    for (int i = 0; i < LIMIT_S * 1000000 / POLL_US; i++) {
        if (saving(save, pid) == wanted || ended(pid))
            return;
        usleep(POLL_US);
    }
    ml_test_fail(__FILE__, __LINE__, "the run is at no work, or at one save for ever");
}

/* So long, but no longer than it goes on with what it does: a run must not get far between two
 * kills. */
static void linger(const char *save, pid_t pid, bool now, unsigned us) {
    for (unsigned t = 0; t < us && saving(save, pid) == now && !ended(pid); t += POLL_US)
        usleep(POLL_US);
}

/* --- kills ---------------------------------------------------------------------------- */

/* Every tenth comes at any moment from the start on; the others in turn, while they are
 * wanted. */
static ml_hit aim(const ml_kills *k) {
    if (k->n_kill % 10 == 9)
        return ML_HIT_START;
    if (k->n[ML_HIT_ROUND] >= want_rounds(k) && k->n[ML_HIT_SAVE] < want_saves(k))
        return ML_HIT_SAVE;
    return k->n_kill % 3 == 1 ? ML_HIT_SAVE : ML_HIT_ROUND;
}

/* So that kills come at all moments of what is aimed at, on any machine. */
static void learn(ml_kills *k, ml_hit aimed, ml_hit hit) {
    unsigned *reach = &k->reach_us[aimed];

    if (aimed == ML_HIT_START)
        return;
    *reach = hit == aimed ? *reach / 2 * 3 : *reach / 2 + POLL_US;
    *reach = *reach > LONGEST_REACH_US ? LONGEST_REACH_US : *reach;
}

void ml_kills_once(ml_kills *k, const char *args, const char *save) {
    ml_hit aimed = aim(k), hit = ML_HIT_START;
    pid_t pid = ml_toy_start(args);
    int status = 0;

    if (aimed != ML_HIT_START) {
        await(save, pid, true);
        hit = ML_HIT_ROUND;
    }
    if (aimed == ML_HIT_ROUND)
        await(save, pid, false);
    linger(save, pid, aimed == ML_HIT_SAVE,
           (unsigned)rand_r(&k->seed) % k->reach_us[aimed]);
    kill(pid, SIGKILL);
    waitpid(pid, &status, 0);
    if (saving(save, pid))
        hit = ML_HIT_SAVE;
    else if (!WIFSIGNALED(status))
        hit = ML_HIT_END;
    learn(k, aimed, hit);
    k->n[hit]++;
    k->n_kill++;
}

void ml_kills_tell(const ml_kills *k) {
    printf(
        "%d kills: %d in rounds, %d in saves, %d before the first save, %d after the end\n",
        k->n_kill, k->n[ML_HIT_ROUND], k->n[ML_HIT_SAVE], k->n[ML_HIT_START],
        k->n[ML_HIT_END]);
    fflush(stdout);
    CHECK(k->n[ML_HIT_ROUND] >= want_rounds(k));
    CHECK(k->n[ML_HIT_SAVE] >= want_saves(k));
}
