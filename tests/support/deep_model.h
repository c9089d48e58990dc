/* deep_model.h - a model of tests/golden/data with more layers: copies of those it has. */
#ifndef ML_TESTS_SUPPORT_DEEP_MODEL_H
#define ML_TESTS_SUPPORT_DEEP_MODEL_H

/* Writes it to a directory of the running test (scratch.h) and returns the directory.  Kinds
 * of layers alternate as in the model, or continue with its last one. */
const char *ml_deep_model(const char *name, int n_layer);

#endif
