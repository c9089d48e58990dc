/* eval_config.h - the data sets of an evaluation, as --eval-config describes them.
 *
 *     eval:
 *       defaults: {temperature: 0.6, n_samples_per_eval_prompt: 4}
 *       datasets:
 *         - {name: aime, path: aime.jsonl, rm_type: deepscaler}
 *         - {name: gpqa, path: gpqa.jsonl, rm_type: gpqa, max_response_len: 2048}
 *
 * Values missing from a set are taken from the defaults, then from the command-line flags.
 * Unknown keys are errors.
 *
 * thread: any. */
#ifndef ML_RL_EVAL_EVAL_CONFIG_H
#define ML_RL_EVAL_EVAL_CONFIG_H

#include "base/json.h"

/* NULL, 0 and NaN: the value of the command-line flag. */
typedef struct ml_eval_spec {
    const char *name, *path;
    const char *rm_type, *custom_rm_path, *custom_generate_path;
    const char *input_key, *label_key, *tool_key, *metadata_key;
    int64_t n_samples, top_k, max_response, min_new;
    double temperature, top_p;
    const ml_json *stop, *stop_ids; /* arrays of strings, and of integers */
    const ml_json *metadata;        /* an object that overrides members of every row's */
    const char *metadata_more;      /* rm_type and `metadata`, as JSON members */
} ml_eval_spec;

/* A spec in which no value is set. */
ml_eval_spec ml_eval_spec_empty(void);

/* `config` is the path of a YAML file, or YAML text.  Results are allocated in `a`. */
ml_status ml_eval_config_read(ml_eval_spec **out, int32_t *n, ml_arena *a,
                              const char *config, ml_err *err);

#endif
