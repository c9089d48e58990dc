/* example.h - examples/plugin, built for a test. */
#ifndef ML_TESTS_SUPPORT_EXAMPLE_H
#define ML_TESTS_SUPPORT_EXAMPLE_H

/* The path of the shared object, in the test's directory.  Failures end the test. */
const char *ml_test_example(void);

#endif
