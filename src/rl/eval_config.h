/* eval_config.h - the sets of an evaluation, as --eval-config describes them.
 *
 *     eval:
 *       defaults: {temperature: 0.6, n_samples_per_eval_prompt: 4}
 *       datasets:
 *         - {name: aime, path: aime.jsonl, rm_type: deepscaler}
 *         - {name: gpqa, path: gpqa.jsonl, rm_type: gpqa, max_response_len: 2048}
 *
 * What a set does not say the defaults say, and then the flags.  Unknown keys are errors.
 *
 * thread: any. */
#ifndef ML_RL_EVAL_CONFIG_H
#define ML_RL_EVAL_CONFIG_H

#include "base/json.h"

/* NULL, 0 and NaN: as the flags say. */
typedef struct ml_eval_spec {
    const char *name, *path;
    const char *rm_type, *custom_rm_path, *custom_generate_path;
    const char *input_key, *label_key, *tool_key, *metadata_key;
    int64_t n_samples, top_k, max_response, min_new;
    double temperature, top_p;
    const ml_json *stop, *stop_ids; /* arrays of strings, and of whole numbers */
    const ml_json *metadata;        /* an object: goes over that of every row */
    const char *metadata_more;      /* it and the type of reward, as members of JSON */
} ml_eval_spec;

/* All of it zero, but for NaN. */
ml_eval_spec ml_eval_spec_empty(void);

/* `config` is a YAML file, or YAML itself.  Everything lives in `a`. */
ml_status ml_eval_config_read(ml_eval_spec **out, int32_t *n, ml_arena *a,
                              const char *config, ml_err *err);

#endif
