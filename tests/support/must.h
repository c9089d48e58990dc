/* must.h - a call that a test requires: if it fails, the test ends with its message. */
#ifndef ML_TESTS_SUPPORT_MUST_H
#define ML_TESTS_SUPPORT_MUST_H

#include <stdlib.h>

#include "base/err.h"
#include "tests/support/test.h"

/* The call is an expression with &err in it. */
#define MUST(call)                                                                         \
    do {                                                                                   \
        ml_err err = { 0 };                                                                \
        if ((call) != ML_OK) {                                                             \
            ml_test_fail(__FILE__, __LINE__, "%s", err.msg);                               \
            exit(1);                                                                       \
        }                                                                                  \
    } while (0)

#endif
