#include "run/extensions.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/json_out.h"
#include "plugin/extension.h"
#include "plugin/python_extensions.h"
#include "plugin/python_matcher.h"
#include "plugin/python_train.h"
#include "rl/builtins.h"

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

/* Miles' own data source, too. */
static const char *own_source(const char *path) {
    return path && strncmp(path, "miles.rollout.data_source.RolloutDataSource", 43) == 0
               ? NULL
               : path;
}

/* A built-in extension, one of a shared object, or a Python function, which is added to the
 * list. */
static ml_status find_one(const miles_extension **out, miles_kind kind,
                          const ml_python_function *fn, ml_python_function *python,
                          int *n_python, ml_err *err) {
    *out = ml_extension_builtin(kind, fn->path);
    if (*out)
        return ML_OK;
    if (!ml_python_is(fn->path))
        return ml_extension_find(out, kind, fn->path, fn->flag, err);
    *out = ml_python_train_extension(kind, fn); /* a hook */
    if (*out)
        return ML_OK;
    *out = ml_python_extension(kind, fn);
    if (!*out)
        return ml_fail(err, ML_EUNSUP,
                       "--%s %s: a Python function is not supported here; use "
                       "./my.so:name, a shared object",
                       fn->flag, fn->path);
    python[(*n_python)++] = *fn;
    return ML_OK;
}

/* A function that must be in Python. */
static ml_status add_python(const char *flag, const char *path, ml_python_function *python,
                            int *n_python, ml_err *err) {
    if (!path)
        return ML_OK;
    if (!ml_python_is(path))
        return ml_fail(err, ML_EUSAGE,
                       "--%s %s: expected package.module.name or ./file.py:name", flag,
                       path);
    python[(*n_python)++] = (ml_python_function){ flag, path, NULL };
    return ML_OK;
}

static char *tools; /* of the process's run */

/* Asks for the list of --generate-tool-specs-path. */
static ml_status read_tools(ml_loop_extensions *e, ml_err *err) {
    const ml_json *answer = NULL, *list;
    ml_text out = { 0 };
    ml_str text;
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "tools");
    st = ml_python_extensions_call("generate-tool-specs-path", "", &a, &answer, &text, err);
    list = st == ML_OK ? ml_json_get(answer, "tools") : NULL;
    if (list) {
        ml_json_write(&out, list);
        free(tools);
        tools = strdup(out.ptr);
    } else if (st != ML_OK) {
        ml_err_prefix(err, "--generate-tool-specs-path");
    }
    e->tools = tools;
    ml_text_release(&out);
    ml_arena_release(&a);
    return st;
}

ml_status ml_loop_extensions_resolve(ml_loop_extensions *e, const ml_extension_paths *p,
                                     ml_err *err) {
    const miles_hook **hook = e->hooks.at;
    const char *source = own_source(p->source);
    bool makes = p->makes_prompts || (source && ml_python_is(source));
    /* miles_extension is the first member of its struct. */
    const struct {
        const char *path;
        miles_kind kind;
        const char *flag;
        void *found; /* receives the extension's address */
    } rows[] = {
        { own_rollout(p->rollout), MILES_ROLLOUT, "rollout-function-path", &e->rollout },
        { makes ? NULL : source, MILES_SOURCE, "data-source-path", &e->source },
        { makes ? source : NULL, MILES_PROMPTS, "data-source-path", &e->prompts },
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
    enum { N_ROWS = sizeof rows / sizeof *rows };
    ml_python_function python[N_ROWS + 2];
    ml_status st = ML_OK;
    int n_python = 0;

    *e = (ml_loop_extensions){ 0 };
    for (size_t i = 0; i < N_ROWS && st == ML_OK; i++)
        if (rows[i].path)
            st = find_one((const miles_extension **)rows[i].found, rows[i].kind,
                          &(ml_python_function){ rows[i].flag, rows[i].path }, python,
                          &n_python, err);
    if (st == ML_OK)
        st = add_python("custom-convert-samples-to-train-data-path", p->convert, python,
                        &n_python, err);
    if (st == ML_OK)
        st = add_python("generate-tool-specs-path", p->tool_specs, python, &n_python, err);
    e->converts = p->convert != NULL;
    if (st == ML_OK && n_python)
        st = ml_python_extensions_open(python, n_python, p->args, err);
    if (st == ML_OK && p->tool_specs)
        st = read_tools(e, err);
    return st == ML_OK ? ml_python_train_open(p->args, err) : st;
}

void ml_loop_extensions_close(void) {
    ml_python_extensions_close();
    ml_python_train_close();
    ml_python_matcher_close();
    free(tools);
    tools = NULL;
}

/* --- the recipe ------------------------------------------------------------------ */

/* Of an estimator in a shared object, this is known only now; for the others, the rules
 * between flags have checked it. */
static ml_status check(const ml_recipe *r, const ml_algo_opts *o, ml_err *err) {
    if (r->compute_advantages && (r->advantage->needs & MILES_WHITEN) &&
        !o->normalize_advantages)
        return ml_fail(err, ML_EUSAGE,
                       "this --advantage-estimator needs --normalize-advantages");
    if ((r->advantage->needs & MILES_NEEDS_VALUES) && o->num.kl_coef != 0.0)
        return ml_fail(
            err, ML_EUSAGE,
            "--kl-coef must be 0 with a critic: use --use-kl-loss and --kl-loss-coef");
    return ML_OK;
}

/* Looks for extensions of training. */
typedef struct finder {
    ml_status st;
    ml_err *err;
} finder;

static const void *find_for_training(finder *f, miles_kind kind, const char *path,
                                     const char *flag) {
    ml_python_function fn = { flag, path, NULL };
    const miles_extension *out = NULL;

    if (f->st != ML_OK || !path)
        return NULL;
    out = ml_extension_builtin(kind, path);
    if (!out && ml_python_is(path))
        return ml_python_train_extension(kind, &fn);
    if (!out)
        f->st = ml_extension_find(&out, kind, path, flag, f->err);
    return out; /* miles_extension is the first member of its struct */
}

static ml_status find_extensions(ml_recipe *r, const ml_algo_opts *o, ml_err *err) {
    bool custom = strcmp(o->loss_type, "custom_loss") == 0;
    bool corrects = o->num.use_tis || o->get_mismatch_metrics;
    finder f = { .st = ML_OK, .err = err };

    r->advantage = find_for_training(&f, MILES_ADVANTAGE, o->advantage_estimator,
                                     "advantage-estimator");
    r->loss = custom ? find_for_training(&f, MILES_LOSS, o->custom_loss,
                                         "custom-loss-function-path")
                     : find_for_training(&f, MILES_LOSS, o->loss_type, "loss-type");
    if (corrects)
        r->correction =
            find_for_training(&f, MILES_CORRECTION, o->custom_tis ? o->custom_tis : "tis",
                              "custom-tis-function-path");
    r->reducer = find_for_training(&f, MILES_REDUCER, o->custom_reducer,
                                   "custom-pg-loss-reducer-function-path");
    return f.st == ML_OK ? ml_python_train_open(o->args, err) : f.st;
}

ml_status ml_recipe_resolve(ml_recipe *out, const ml_algo_opts *o, ml_err *err) {
    uint32_t wants;
    ml_status st;

    *out = (ml_recipe){ .num = o->num,
                        .opd_kl_coef = o->opd_kl_coef,
                        .compute_advantages = !o->disable_compute_advantages,
                        .normalize_advantages = o->normalize_advantages,
                        .use_opd = o->use_opd,
                        .skip_actor_forward_only = o->skip_actor_forward_only };
    st = find_extensions(out, o, err);
    if (st != ML_OK)
        return st;
    wants = out->advantage->needs;
    out->num.size = sizeof out->num;
    out->num.sequence_ratio = (wants & MILES_SEQUENCE_RATIO) != 0;
    out->num.use_correction = out->correction != NULL;
    out->num.use_entropy = o->num.entropy_coef != 0.0 || o->observe_training_entropy;
    if (isnan(o->num.eps_clip_high))
        out->num.eps_clip_high = o->num.eps_clip;
    if (wants & MILES_NEEDS_VALUES)
        out->critic_loss = &ml_loss_value;
    out->centre_rewards =
        (wants & MILES_CENTRE_REWARDS) && !o->disable_rewards_normalization;
    out->scale_rewards = out->centre_rewards && (wants & MILES_SCALE_REWARDS) &&
                         !o->disable_grpo_std_normalization;
    return check(out, o, err);
}
