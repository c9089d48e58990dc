/* test.h - the test framework: checks, a table of tests, one process per test.
 *
 *     static void adds(void) { CHECK(1 + 1 == 2); }
 *     static const ml_test tests[] = { { "adds", adds }, { 0 } };
 *     int main(int argc, char **argv) { return ml_test_main(argc, argv, tests); }
 *
 * Each test runs in a child with a time limit; the program's last line is
 * "N passed, N failed".  With arguments, only tests whose name contains one run. */
#ifndef ML_TESTS_SUPPORT_TEST_H
#define ML_TESTS_SUPPORT_TEST_H

#include <stdbool.h>
#include <stddef.h>

typedef struct ml_test {
    const char *name;
    void (*run)(void);
    int limit_s; /* 0: 60; a sanitizer gets five times as long */
} ml_test;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define ML_TEST_SANITIZED 1 /* many times slower, and uses more memory */
#else
#define ML_TEST_SANITIZED 0
#endif

int ml_test_main(int argc, char **argv, const ml_test *tests);

/* CPU seconds of this thread, independent of the machine's other load. */
double ml_test_own_s(void);

/* Records a failure of the running test; the test continues. */
__attribute__((format(printf, 3, 4))) void ml_test_fail(const char *file, int line,
                                                        const char *fmt, ...);
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
