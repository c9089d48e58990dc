#include "plugin/python_extensions.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/json_out.h"
#include "plugin/python_host.h"
#include "rl/reward/request_json.h"

#define LIMIT_S 3600.0 /* of a call */

static ml_arena arena; /* of the pool's options */
static ml_worker_pool *pool;

/* --- calls ----------------------------------------------------------------------------- */

typedef struct call {
    ml_arena arena; /* of the answer */
    ml_text text;
    const ml_json *answer;
} call;

static void begin(call *c, const char *flag) {
    *c = (call){ 0 };
    ml_arena_init(&c->arena, "a call");
    ml_text_printf(&c->text, "{\"f\": \"%s\"", flag);
}

static void end(call *c) {
    ml_text_release(&c->text);
    ml_arena_release(&c->arena);
}

/* 0: c->answer is the function's value; 1: err has a message. */
static int ask(call *c, miles_error *err) {
    ml_text answer = { 0 };
    ml_worker_end how;
    const ml_json *error;
    ml_str text;
    ml_err why = { 0 };
    int failed = 1;

    ml_text_printf(&c->text, "}");
    how = ml_worker_pool_ask(pool, &answer, (ml_str){ c->text.ptr, c->text.len }, LIMIT_S);
    text = (ml_str){ ml_arena_str(&c->arena, answer.ptr, answer.len), answer.len };
    if (how != ML_WORKER_ANSWERED)
        ml_str_copy(err->text, sizeof err->text, text);
    else if (ml_json_parse(&c->answer, &c->arena, text, "the answer", &why) != ML_OK)
        ml_str_copy(err->text, sizeof err->text, ml_str_of(why.msg));
    else if ((error = ml_json_get(c->answer, "error")) && error->type == ML_JSON_STRING)
        ml_str_copy(err->text, sizeof err->text, error->text);
    else
        failed = 0;
    ml_text_release(&answer);
    return failed;
}

/* --- samples --------------------------------------------------------------------------- */

static void write_arrays(ml_text *t, const miles_answer *s) {
    ml_json_out o = { t, true };
    int32_t n = (int32_t)s->n_response;
    char number[24];

    ml_json_key(&o, "tokens");
    ml_json_ids(&o, s->token, (int32_t)s->n_token);
    if (s->log_prob) {
        ml_json_key(&o, "rollout_log_probs");
        ml_json_floats(&o, s->log_prob, n);
    }
    if (s->mask) {
        ml_json_key(&o, "loss_mask");
        ml_json_begin(&o, '[');
        for (int32_t i = 0; i < n; i++)
            ml_json_int(&o, s->mask[i]);
        ml_json_end(&o, ']');
    }
    ml_json_key(&o, "weight_versions"); /* one for each run of tokens */
    ml_json_begin(&o, '[');
    for (int32_t i = 0; s->version && i < n; i++)
        if (i == 0 || s->version[i] != s->version[i - 1]) {
            snprintf(number, sizeof number, "%llu", (unsigned long long)s->version[i]);
            ml_json_word(&o, number);
        }
    ml_json_end(&o, ']');
}

static void write_sample(ml_text *t, const miles_answer *s) {
    static const char *const status[] = { "pending", "completed", "truncated", "aborted",
                                          "failed" };

    ml_text_printf(t,
                   "{\"index\": %lld, \"group_index\": %lld, \"status\": \"%s\", "
                   "\"response_length\": %lld",
                   (long long)s->index, (long long)s->group, status[s->status],
                   (long long)s->n_response);
    ml_text_printf(t, ", \"reward\": ");
    if (s->has_reward)
        ml_json_number(t, s->reward);
    else
        ml_text_printf(t, "null");
    ml_request_text(t, "prompt", s->prompt ? s->prompt : "", s->prompt_len);
    ml_request_text(t, "response", s->response ? s->response : "", s->response_len);
    ml_request_json(t, "label", s->label, s->label_len);
    if (s->metadata)
        ml_request_json(t, "metadata", s->metadata, s->metadata_len);
    else
        ml_text_printf(t, ", \"metadata\": {}");
    write_arrays(t, s);
    ml_text_printf(t, "}");
}

static void begin_with(call *c, const char *flag, const miles_answers *s) {
    begin(c, flag);
    ml_text_printf(&c->text, ", \"rollout\": %lld, \"samples\": [", (long long)s->rollout);
    for (int64_t i = 0; i < s->n; i++) {
        ml_text_printf(&c->text, "%s", i ? ", " : "");
        write_sample(&c->text, s->answer[i]);
    }
    ml_text_printf(&c->text, "]");
}

/* --- extensions ------------------------------------------------------------------------ */

static int filter_group(const miles_answers *group, bool *keep, char reason[40],
                        miles_error *err) {
    const ml_json *v;
    call c;
    int failed;

    begin_with(&c, "dynamic-sampling-filter-path", group);
    failed = ask(&c, err);
    if (!failed) {
        v = ml_json_get(c.answer, "keep");
        *keep = v && v->type == ML_JSON_TRUE;
        v = ml_json_get(c.answer, "reason");
        ml_str_copy(reason, 40, v ? v->text : (ml_str){ "", 0 });
    }
    end(&c);
    return failed;
}

static int post_process(const miles_answers *rollout, double *shaped, miles_error *err) {
    const ml_json *list;
    call c;
    int failed;

    begin_with(&c, "custom-reward-post-process-path", rollout);
    failed = ask(&c, err);
    list = failed ? NULL : ml_json_get(c.answer, "rewards");
    for (const ml_json *v = list ? list->child : NULL; v; v = v->next)
        ml_json_f64(v, shaped++);
    end(&c);
    return failed;
}

static int filter_samples(const miles_answers *rollout, uint8_t *remove, miles_error *err) {
    const ml_json *list;
    call c;
    int failed;

    begin_with(&c, "rollout-sample-filter-path", rollout);
    failed = ask(&c, err);
    list = failed ? NULL : ml_json_get(c.answer, "remove");
    for (const ml_json *v = list ? list->child : NULL; v; v = v->next)
        *remove++ = v->type == ML_JSON_TRUE;
    end(&c);
    return failed;
}

static int show_samples(const miles_answers *all, const uint8_t *kept, miles_error *err) {
    call c;
    int failed;

    (void)kept;
    begin_with(&c, "rollout-all-samples-process-path", all);
    failed = ask(&c, err);
    end(&c);
    return failed;
}

static int filter_buffer(const miles_answers *partial, int64_t n_group, int64_t n_want,
                         int64_t *selected, int64_t *n_selected, miles_error *err) {
    const ml_json *list;
    call c;
    int failed;

    begin_with(&c, "buffer-filter-path", partial);
    ml_text_printf(&c.text, ", \"n\": %lld", (long long)n_want);
    failed = ask(&c, err);
    list = failed ? NULL : ml_json_get(c.answer, "selected");
    for (const ml_json *v = list ? list->child : NULL; v && *n_selected < n_group;
         v = v->next)
        ml_json_i64(v, &selected[(*n_selected)++]);
    end(&c);
    return failed;
}

static int add_metrics(const miles_answers *answers, const char *set,
                       miles_metrics_out *out, miles_error *err) {
    const ml_json *list;
    double x;
    call c;
    int failed;

    begin_with(&c,
               *set ? "custom-eval-rollout-log-function-path"
                    : "custom-rollout-log-function-path",
               answers);
    ml_request_text(&c.text, "set", set, strlen(set));
    failed = ask(&c, err);
    list = failed ? NULL : ml_json_get(c.answer, "metrics");
    for (const ml_json *v = list ? list->child : NULL; v; v = v->next)
        if (ml_json_f64(v, &x))
            out->add(out, ml_arena_str(&c.arena, v->key.ptr, v->key.len), x);
    end(&c);
    return failed;
}

/* By miles_when. */
static const char *const hook_flag[] = {
    [MILES_AFTER_INIT] = "custom-megatron-init-path",
    [MILES_BEFORE_LOG_PROB] = "custom-megatron-before-log-prob-hook-path",
    [MILES_BEFORE_TRAIN_STEP] = "custom-megatron-before-train-step-hook-path",
    [MILES_AFTER_SAVE] = "custom-megatron-post-save-hook-path",
    [MILES_DATA_READY] = "rollout-data-postprocess-path",
    [MILES_WEIGHTS_WRITTEN] = "custom-update-weight-post-write-path",
};

static int notify(const miles_event *event, miles_error *err) {
    call c;
    int failed;

    begin(&c, hook_flag[event->when]);
    ml_text_printf(&c.text, ", \"event\": {\"rollout\": %lld, \"step\": %lld",
                   (long long)event->rollout, (long long)event->step);
    ml_request_text(&c.text, "what", event->what, strlen(event->what));
    ml_text_printf(&c.text, "}");
    failed = ask(&c, err);
    end(&c);
    return failed;
}

/* --- finding them ---------------------------------------------------------------------- */

#define HEAD(type, kind)                                                                   \
    { sizeof(type), kind, "a Python function", NULL, "" }

static miles_group_filter group_filter = { HEAD(miles_group_filter, MILES_GROUP_FILTER),
                                           filter_group };
static miles_reward_post reward_post = { HEAD(miles_reward_post, MILES_REWARD_POST),
                                         post_process };
static miles_sample_filter sample_filter = { HEAD(miles_sample_filter, MILES_SAMPLE_FILTER),
                                             filter_samples };
static miles_samples_hook samples_hook = { HEAD(miles_samples_hook, MILES_SAMPLES_HOOK),
                                           show_samples };
static miles_buffer_filter buffer_filter = { HEAD(miles_buffer_filter, MILES_BUFFER_FILTER),
                                             filter_buffer };
static miles_metrics metrics[2] = { { HEAD(miles_metrics, MILES_METRICS), add_metrics },
                                    { HEAD(miles_metrics, MILES_METRICS), add_metrics } };
static miles_hook hook[MILES_WEIGHTS_WRITTEN + 1];

static miles_extension *hook_of(const char *flag) {
    for (int i = 0; i <= MILES_WEIGHTS_WRITTEN; i++)
        if (strcmp(flag, hook_flag[i]) == 0) {
            hook[i] = (miles_hook){ HEAD(miles_hook, MILES_HOOK), notify };
            return &hook[i].base;
        }
    return NULL;
}

static miles_extension *find(miles_kind kind, const char *flag) {
    switch (kind) {
    case MILES_GROUP_FILTER: return &group_filter.base;
    case MILES_REWARD_POST: return &reward_post.base;
    case MILES_SAMPLE_FILTER: return &sample_filter.base;
    case MILES_SAMPLES_HOOK: return &samples_hook.base;
    case MILES_BUFFER_FILTER: return &buffer_filter.base;
    case MILES_METRICS: return &metrics[strstr(flag, "eval") != NULL].base;
    case MILES_HOOK: return hook_of(flag);
    default: return NULL;
    }
}

const miles_extension *ml_python_extension(miles_kind kind, const ml_python_function *fn) {
    miles_extension *e = find(kind, fn->flag);

    if (e)
        e->name = fn->path;
    return e;
}

ml_status ml_python_extensions_open(const ml_python_function *fn, int n, ml_str args,
                                    ml_err *err) {
    ml_worker_pool_opts opts;
    ml_status st;

    ml_python_extensions_close();
    ml_arena_init(&arena, "Python functions");
    st = ml_python_workers(&opts, &arena, fn, n, args, false, err);
    if (st == ML_OK)
        st = ml_worker_pool_open(&pool, &opts, err);
    if (st != ML_OK)
        ml_arena_release(&arena);
    return st;
}

void ml_python_extensions_close(void) {
    if (!pool)
        return;
    ml_worker_pool_close(pool);
    ml_arena_release(&arena);
    pool = NULL;
}
