#include "tests/support/example.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/support/scratch.h"
#include "tests/support/test.h"

const char *ml_test_example(void) {
    const char *object = ml_test_path("example.so");
    char line[1000];

    snprintf(line, sizeof line,
             "make --no-print-directory -s -C examples/plugin OUT=%s CC=cc", object);
    if (system(line) != 0) {
        ml_test_fail(__FILE__, __LINE__, "examples/plugin does not build");
        exit(1);
    }
    return object;
}
