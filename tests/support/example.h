/* example.h - the shared objects of examples/, built for a test. */
#ifndef ML_TESTS_SUPPORT_EXAMPLE_H
#define ML_TESTS_SUPPORT_EXAMPLE_H

/* The path of the shared object of examples/plugin, in the test's directory.  Failures end
 * the test. */
const char *ml_test_example(void);
/* The same for examples/model. */
const char *ml_test_example_model(void);

#endif
