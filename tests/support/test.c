#include "tests/support/test.h"

#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { SKIPPED = 77 }; /* the exit status of a skipped test's process */

static atomic_int n_bad;    /* of the running test, in its own process */
static const char *running; /* its name */

void ml_test_fail(const char *file, int line, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "    %s:%d: ", file, line);
    vfprintf(stderr, fmt, ap);
    fprintf(stderr, "\n");
    va_end(ap);
    n_bad++;
}

int ml_test_failures(void) {
    return atomic_load(&n_bad);
}

void ml_test_skip(const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    printf("skipped: %s: ", running);
    vprintf(fmt, ap);
    printf("\n");
    va_end(ap);
    exit(SKIPPED);
}

const char *ml_test_fixtures(void) {
    return getenv("MILES_FIXTURES");
}

bool ml_test_has(const char *hay, const char *needle) {
    return strstr(hay, needle) != NULL;
}

/* build/<config>/tests/<kind>/<program> stands three steps below build/<config>/miles, which
 * tests find in $MILES_UNDER_TEST. */
static bool name_miles(void) {
    char path[4096];
    ssize_t n = readlink("/proc/self/exe", path, sizeof path - 1);

    if (n < 0)
        return false;
    path[n] = 0;
    for (int up = 0; up < 3; up++) {
        char *slash = strrchr(path, '/');
        if (!slash)
            return false;
        *slash = 0;
    }
    return setenv("MILES_UNDER_TEST", path, 1) == 0;
}

int ml_test_miles(char *out, size_t cap, const char *args) {
    char command[4096];
    FILE *p;
    size_t n;
    int status;

    out[0] = 0;
    snprintf(command, sizeof command, "{ \"$MILES_UNDER_TEST\"/miles %s; } 2>&1", args);
    p = popen(command, "r");
    if (!p)
        return -1;
    n = fread(out, 1, cap - 1, p);
    out[n] = 0;
    while (fgetc(p) != EOF) /* the program must not die of a closed pipe */
        continue;
    status = pclose(p);
    return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

double ml_test_own_s(void) {
    struct timespec t;
    clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static bool wanted(const ml_test *t, int argc, char **argv) {
    if (t->fixtures && !ml_test_fixtures())
        return false;
    for (int i = 1; i < argc; i++)
        if (strstr(t->name, argv[i]))
            return true;
    return argc < 2;
}

static void need_fixtures(const char *folder) {
    char path[4096];

    snprintf(path, sizeof path, "%s/%s", ml_test_fixtures(), folder);
    if (access(path, R_OK) != 0)
        ml_test_skip("%s is missing; tests/golden/README.md says what it contains", path);
}

typedef enum outcome { PASSED, FAILED, LEFT_OUT, N_OUTCOME } outcome;

static outcome run_one(const ml_test *t) {
    int status = 0;
    pid_t pid;

    fflush(NULL);
    pid = fork();
    if (pid == 0) {
        running = t->name;
        alarm((unsigned)(t->limit_s ? t->limit_s : 60) * (ML_TEST_SANITIZED ? 20 : 4));
        if (t->fixtures)
            need_fixtures(t->fixtures);
        t->run();
        exit(n_bad ? 1 : 0); /* exit, not _exit: leak checkers report at exit */
    }
    if (pid < 0 || waitpid(pid, &status, 0) < 0)
        return FAILED;
    if (WIFSIGNALED(status))
        fprintf(stderr, "    %s: killed by signal %d\n", t->name, WTERMSIG(status));
    if (!WIFEXITED(status))
        return FAILED;
    return WEXITSTATUS(status) == 0         ? PASSED
           : WEXITSTATUS(status) == SKIPPED ? LEFT_OUT
                                            : FAILED;
}

static bool names_are_sentences(const ml_test *tests) {
    bool fine = true;

    for (const ml_test *t = tests; t->name; t++) {
        if (!strchr(t->name, ' ')) {
            printf("FAIL \"%s\": the name of a test is a sentence\n", t->name);
            fine = false;
        }
        for (const ml_test *u = tests; u < t; u++)
            if (strcmp(t->name, u->name) == 0) {
                printf("FAIL \"%s\": two tests have this name\n", t->name);
                fine = false;
            }
    }
    return fine;
}

int ml_test_main(int argc, char **argv, const ml_test *tests) {
    static const char *const word[] = { "ok  ", "FAIL", "skip" };
    int count[N_OUTCOME] = { 0 };

    /* Also where there is a GPU, whose tests are in tests/gpu. */
    setenv("MILES_DEVICE", "cpu", 0);
    if (!name_miles() || !names_are_sentences(tests))
        return 1;
    for (const ml_test *t = tests; t->name; t++) {
        outcome o;
        if (!wanted(t, argc, argv))
            continue;
        o = run_one(t);
        printf("%s %s\n", word[o], t->name);
        count[o]++;
        if (o == FAILED && getenv("MILES_FIRST_FAILURE"))
            break;
    }
    printf("%d passed, %d failed, %d skipped\n", count[PASSED], count[FAILED],
           count[LEFT_OUT]);
    return count[FAILED] || !(count[PASSED] + count[LEFT_OUT]);
}
