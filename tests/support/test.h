/* test.h - the test framework: checks, a table of tests, one process per test.
 *
 *     static void sums_are_exact(void) { CHECK(1 + 1 == 2); }
 *     static const ml_test tests[] = { { "sums are exact", sums_are_exact }, { 0 } };
 *     int main(int argc, char **argv) { return ml_test_main(argc, argv, tests); }
 *
 * Each test runs in a child with a time limit; the program's last line is
 * "N passed, N failed, N skipped".  With arguments, only tests whose name contains one run.
 * A name is a sentence that says what broke when the test fails; no name occurs twice. */
#ifndef ML_TESTS_SUPPORT_TEST_H
#define ML_TESTS_SUPPORT_TEST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ml_test {
    const char *name;
    void (*run)(void);
    int limit_s; /* of a quiet machine, 0: 60; others get 4, sanitizers 20 times as long */
    /* NULL, or the folder of $MILES_FIXTURES that the test reads: recordings that are too large
     * for the repository.  `make test-long` sets the variable.  The test does not belong to a run
     * without it, and is skipped when the folder is missing. */
    const char *fixtures;
} ml_test;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ML_TEST_SANITIZED 1 /* many times slower, and uses more memory */
#else
#define ML_TEST_SANITIZED 0
#endif

int ml_test_main(int argc, char **argv, const ml_test *tests);

/* Ends the running test, which is counted as skipped.  The text says what is missing and how to
 * get it. */
__attribute__((format(printf, 1, 2), noreturn)) void ml_test_skip(const char *fmt, ...);

/* The value of $MILES_FIXTURES; for tests with .fixtures. */
const char *ml_test_fixtures(void);

/* CPU seconds of this thread, independent of the machine's other load. */
double ml_test_own_s(void);

/* Records a failure of the running test; the test continues. */
__attribute__((format(printf, 3, 4))) void ml_test_fail(const char *file, int line,
                                                        const char *fmt, ...);
/* Number of failures of the running test so far. */
int ml_test_failures(void);
/* True when needle occurs in hay; for messages. */
bool ml_test_has(const char *hay, const char *needle);

/* Runs `miles` of this build with these arguments, split by the shell, and returns its exit
 * code.  stdout and stderr go to out (truncated to cap bytes, NUL-terminated). */
int ml_test_miles(char *out, size_t cap, const char *args);

#define CHECK(cond)                                                                        \
    do {                                                                                   \
        if (!(cond))                                                                       \
            ml_test_fail(__FILE__, __LINE__, "%s", #cond);                                 \
    } while (0)

#define CHECK_HAS(hay, needle)                                                             \
    do {                                                                                   \
        if (!ml_test_has((hay), (needle)))                                                 \
            ml_test_fail(__FILE__, __LINE__, "\"%s\" lacks \"%s\"", (hay), (needle));      \
    } while (0)

#endif
