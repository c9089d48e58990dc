/* hf_config.h - config.json of a Hugging Face checkpoint, read with suspicion.
 *
 * Getters name the key, its bounds and its default; the first thing that is wrong is
 * kept, later calls go on with defaults, and ml_hf_config_check returns it.  So a
 * reader is a list of keys, and nothing it returns may be used before the check.
 * Every key read is remembered; ml_hf_config_check warns of each key that was neither
 * read nor declared ignorable.  null counts as absent, as it does upstream.
 *
 * thread: one. */
#ifndef ML_IO_HF_CONFIG_H
#define ML_IO_HF_CONFIG_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"

typedef struct ml_hf_config {
    const char *path; /* the caller's */
    ml_arena *arena;
    const ml_json *root;
    bool *seen; /* [root->n], in member order */
    ml_err first;
} ml_hf_config;

/* Parses the text of a config.json; path is for messages.  Text and path must outlive c. */
ml_status ml_hf_config_open(ml_hf_config *c, ml_arena *a, ml_str text, const char *path,
                            ml_err *err);

/* The first complaint of any getter, or ML_OK; warns of unknown keys.  `ignored` lists keys
 * that change nothing here, NULL at the end. */
ml_status ml_hf_config_check(ml_hf_config *c, const char *const *ignored, ml_err *err);

/* A complaint found by the caller; kept if it is the first. */
__attribute__((format(printf, 3, 4))) void
ml_hf_config_fail(ml_hf_config *c, ml_status code, const char *fmt, ...);

/* A member of the root, marked as read; NULL when absent or null. */
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

/* The same for a member of a nested object (rope_parameters); `where` names it in messages. */
double ml_hf_config_num_in(ml_hf_config *c, const ml_json *obj, const char *where,
                           const char *key, double def, double min, double max);
const char *ml_hf_config_str_in(ml_hf_config *c, const ml_json *obj, const char *where,
                                const char *key, const char *def);

#endif
