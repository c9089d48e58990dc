/* model_family.h - resolves --spec: which family builds the model.
 *
 * thread: before other threads start; results are immutable and valid until the process
 * ends. */
#ifndef ML_PLUGIN_MODEL_FAMILY_H
#define ML_PLUGIN_MODEL_FAMILY_H

#include "model/spec.h"

/* `word` [n] is "path/to/object.so:name", a family of a shared object (miles/model.h), or
 * one of Miles' modules and its function, whose layers are those of a built-in family.  No
 * word: the built-in family of config.json's model_type. */
ml_status ml_model_family_find(ml_spec_opts *out, const char *const *word, int n,
                               ml_err *err);

/* Finds the family and opens the model with it. */
ml_status ml_model_open(ml_spec *out, const char *dir, const char *const *word, int n,
                        ml_err *err);

#endif
