/* hf_config.h - a strict reader for the config.json of a Hugging Face checkpoint.
 *
 * Getters take the key, its bounds and its default.  The first error is kept, later calls
 * return defaults, and ml_hf_config_check returns the error.  So a reader is a list of
 * keys, and no value may be used before the check.  Every key read is recorded;
 * ml_hf_config_check warns of each key that was neither read nor declared ignorable.
 * null counts as absent, as in transformers.
 *
 * thread: one. */
#ifndef ML_IO_HF_CONFIG_H
#define ML_IO_HF_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

typedef struct ml_hf_config {
    const char *path; /* owned by the caller */
    ml_arena *arena;
    const ml_json *root;
    const ml_json *outer; /* NULL, or the config that contains root; see _enter */
    bool *seen;           /* [root->n], in member order */
    ml_err first;
} ml_hf_config;

/* Parses the text of a config.json; path is for messages.  Text and path must outlive c. */
ml_status ml_hf_config_open(ml_hf_config *c, ml_arena *a, ml_str text, const char *path,
                            ml_err *err);

/* The first error of any getter, or ML_OK; warns of unknown keys.  `ignored` lists keys
 * without effect here, NULL-terminated. */
ml_status ml_hf_config_check(ml_hf_config *c, const char *const *ignored, ml_err *err);

/* Records an error found by the caller, if it is the first. */
__attribute__((format(printf, 3, 4))) void
ml_hf_config_fail(ml_hf_config *c, ml_status code, const char *fmt, ...);

/* Reads the object `key` of the root from here on, for a text model inside a multimodal
 * one; false if there is none.  tie_word_embeddings of the outer object is used when it
 * is there: transformers writes it to either. */
bool ml_hf_config_enter(ml_hf_config *c, const char *key);

/* A member of the root, marked as read; NULL if absent or null.  A dot enters an object:
 * "rope_parameters.rope_theta". */
const ml_json *ml_hf_config_get(ml_hf_config *c, const char *key);

#define ML_HF_REQUIRED INT64_MIN
int64_t ml_hf_config_int(ml_hf_config *c, const char *key, int64_t def, int64_t min,
                         int64_t max);
bool ml_hf_config_bool(ml_hf_config *c, const char *key, bool def);
/* def NaN: required. */
double ml_hf_config_num(ml_hf_config *c, const char *key, double def, double min,
                        double max);
/* A string, NUL-terminated in the arena; def when absent. */
const char *ml_hf_config_str(ml_hf_config *c, const char *key, const char *def);

/* The same for a member of a nested object (rope_parameters); `where` names it in
 * messages. */
double ml_hf_config_num_in(ml_hf_config *c, const ml_json *obj, const char *where,
                           const char *key, double def, double min, double max);
const char *ml_hf_config_str_in(ml_hf_config *c, const ml_json *obj, const char *where,
                                const char *key, const char *def);

#endif
