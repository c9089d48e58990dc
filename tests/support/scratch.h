/* scratch.h - a private directory of the running test, removed when its process exits. */
#ifndef ML_TESTS_SUPPORT_SCRATCH_H
#define ML_TESTS_SUPPORT_SCRATCH_H

const char *ml_test_dir(void);

/* "dir/name"; the text stays valid until the test ends. */
const char *ml_test_path(const char *name);

#endif
