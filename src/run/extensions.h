/* extensions.h - resolves the extensions of the RL loop that the command line names,
 * before a run starts.
 *
 * thread: before other threads start. */
#ifndef ML_RUN_EXTENSIONS_H
#define ML_RUN_EXTENSIONS_H

#include "base/err.h"
#include "base/str.h"
#include "rl/hooks.h"
#include "rl/recipe.h"

/* As given on the command line; NULL: none. */
typedef struct ml_extension_paths {
    const char *rollout, *source, *group_filter, *buffer_filter;
    const char *reward_post, *sample_filter, *samples_hook, *metrics, *eval_metrics;
    const char *after_init, *before_log_prob, *before_train_step, *after_save;
    const char *eval, *buffer, *convert, *tool_specs;
    bool makes_prompts; /* the source generates prompts instead of selecting rows */
    const char *data_ready, *weights_written;
    ml_str args; /* the flags of the run, a JSON object, for Python functions */
} ml_extension_paths;

typedef struct ml_loop_extensions {
    const miles_rollout *rollout;
    const miles_source *source;
    const miles_prompts *prompts; /* instead of source */
    const miles_eval *eval;
    const miles_buffer *buffer;
    const miles_group_filter *group_filter;
    const miles_buffer_filter *buffer_filter;
    const miles_reward_post *reward_post;
    const miles_sample_filter *sample_filter;
    const miles_samples_hook *samples_hook;
    const miles_metrics *metrics, *eval_metrics;
    ml_hooks hooks;
    bool converts;     /* a Python function makes the training data of a rollout */
    const char *tools; /* of rows without tools, a JSON array; NULL: none */
} ml_loop_extensions;

ml_status ml_loop_extensions_resolve(ml_loop_extensions *out,
                                     const ml_extension_paths *paths, ml_err *err);

/* Ends the workers of Python functions, after all threads have ended. */
void ml_loop_extensions_close(void);

/* Finds the extensions, derives dependent settings, and rejects options that the
 * estimator cannot use: ML_EUSAGE with the flags' names. */
ml_status ml_recipe_resolve(ml_recipe *out, const ml_algo_opts *opts, ml_err *err);

#endif
