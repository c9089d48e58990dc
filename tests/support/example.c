#include "tests/support/example.h"

#include <stdio.h>
#include <stdlib.h>

#include "tests/support/scratch.h"
#include "tests/support/test.h"

static const char *build(const char *folder, const char *name) {
    const char *object = ml_test_path(name);
    char line[1000];

    snprintf(line, sizeof line, "make --no-print-directory -s -C %s OUT=%s CC=cc", folder,
             object);
    if (system(line) != 0) {
        ml_test_fail(__FILE__, __LINE__, "%s does not build", folder);
        exit(1);
    }
    return object;
}

const char *ml_test_example(void) {
    return build("examples/plugin", "example.so");
}

const char *ml_test_example_model(void) {
    return build("examples/model", "family.so");
}
