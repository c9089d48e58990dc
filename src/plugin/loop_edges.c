#include "plugin/loop_edges.h"

#include <string.h>

#include "plugin/extension.h"

/* Miles' own rollout functions are the default behaviour without the flag. */
static const char *own_rollout(const char *path) {
    static const char *const known[] = { "inference_rollout_common.InferenceRolloutFn",
                                         "sglang_rollout.generate_rollout" };

    for (size_t i = 0; path && i < sizeof known / sizeof *known; i++) {
        size_t n = strlen(path), k = strlen(known[i]);
        if (strncmp(path, "miles.", 6) == 0 && n > k && strcmp(path + n - k, known[i]) == 0)
            return NULL;
    }
    return path;
}

ml_status ml_loop_extensions_resolve(ml_loop_extensions *e, const ml_extension_paths *p,
                                     ml_err *err) {
    const miles_hook **hook = e->hooks.at;
    /* miles_extension is the first member of its struct. */
    const struct {
        const char *path;
        miles_kind kind;
        const char *flag;
        void *found; /* receives the extension's address */
    } rows[] = {
        { own_rollout(p->rollout), MILES_ROLLOUT, "rollout-function-path", &e->rollout },
        { p->makes_prompts ? NULL : p->source, MILES_SOURCE, "data-source-path",
          &e->source },
        { p->makes_prompts ? p->source : NULL, MILES_PROMPTS, "data-source-path",
          &e->prompts },
        { own_rollout(p->eval), MILES_EVAL, "eval-function-path", &e->eval },
        { p->buffer, MILES_BUFFER, "custom-async-data-buffer-path", &e->buffer },
        { p->group_filter, MILES_GROUP_FILTER, "dynamic-sampling-filter-path",
          &e->group_filter },
        { p->buffer_filter, MILES_BUFFER_FILTER, "buffer-filter-path", &e->buffer_filter },
        { p->reward_post, MILES_REWARD_POST, "custom-reward-post-process-path",
          &e->reward_post },
        { p->sample_filter, MILES_SAMPLE_FILTER, "rollout-sample-filter-path",
          &e->sample_filter },
        { p->samples_hook, MILES_SAMPLES_HOOK, "rollout-all-samples-process-path",
          &e->samples_hook },
        { p->metrics, MILES_METRICS, "custom-rollout-log-function-path", &e->metrics },
        { p->eval_metrics, MILES_METRICS, "custom-eval-rollout-log-function-path",
          &e->eval_metrics },
        { p->after_init, MILES_HOOK, "custom-megatron-init-path", &hook[MILES_AFTER_INIT] },
        { p->before_log_prob, MILES_HOOK, "custom-megatron-before-log-prob-hook-path",
          &hook[MILES_BEFORE_LOG_PROB] },
        { p->before_train_step, MILES_HOOK, "custom-megatron-before-train-step-hook-path",
          &hook[MILES_BEFORE_TRAIN_STEP] },
        { p->after_save, MILES_HOOK, "custom-megatron-post-save-hook-path",
          &hook[MILES_AFTER_SAVE] },
        { p->data_ready, MILES_HOOK, "rollout-data-postprocess-path",
          &hook[MILES_DATA_READY] },
        { p->weights_written, MILES_HOOK, "custom-update-weight-post-write-path",
          &hook[MILES_WEIGHTS_WRITTEN] },
    };
    ml_status st = ML_OK;

    *e = (ml_loop_extensions){ 0 };
    for (size_t i = 0; i < sizeof rows / sizeof *rows && st == ML_OK; i++)
        if (rows[i].path)
            st = ml_extension_find((const miles_extension **)rows[i].found, rows[i].kind,
                                   rows[i].path, rows[i].flag, err);
    return st;
}
