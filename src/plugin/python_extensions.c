#include "plugin/python_extensions.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/json_out.h"
#include "plugin/python_host.h"
#include "plugin/python_prompts.h"
#include "rl/reward/request_json.h"

static ml_python_worker worker;

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

static void begin_with(ml_python_call *c, const char *flag, const miles_answers *s) {
    ml_python_call_begin(c, flag);
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
    ml_python_call c;
    int failed;

    begin_with(&c, "dynamic-sampling-filter-path", group);
    failed = ml_python_call_run(&c, &worker, err);
    if (!failed) {
        v = ml_json_get(c.answer, "keep");
        *keep = v && v->type == ML_JSON_TRUE;
        v = ml_json_get(c.answer, "reason");
        ml_str_copy(reason, 40, v ? v->text : (ml_str){ "", 0 });
    }
    ml_python_call_end(&c);
    return failed;
}

static int post_process(const miles_answers *rollout, double *shaped, miles_error *err) {
    const ml_json *list;
    ml_python_call c;
    int failed;

    begin_with(&c, "custom-reward-post-process-path", rollout);
    failed = ml_python_call_run(&c, &worker, err);
    list = failed ? NULL : ml_json_get(c.answer, "rewards");
    for (const ml_json *v = list ? list->child : NULL; v; v = v->next)
        ml_json_f64(v, shaped++);
    ml_python_call_end(&c);
    return failed;
}

static int filter_samples(const miles_answers *rollout, uint8_t *remove, miles_error *err) {
    const ml_json *list;
    ml_python_call c;
    int failed;

    begin_with(&c, "rollout-sample-filter-path", rollout);
    failed = ml_python_call_run(&c, &worker, err);
    list = failed ? NULL : ml_json_get(c.answer, "remove");
    for (const ml_json *v = list ? list->child : NULL; v; v = v->next)
        *remove++ = v->type == ML_JSON_TRUE;
    ml_python_call_end(&c);
    return failed;
}

static int show_samples(const miles_answers *all, const uint8_t *kept, miles_error *err) {
    ml_python_call c;
    int failed;

    (void)kept;
    begin_with(&c, "rollout-all-samples-process-path", all);
    failed = ml_python_call_run(&c, &worker, err);
    ml_python_call_end(&c);
    return failed;
}

static int filter_buffer(const miles_answers *partial, int64_t n_group, int64_t n_want,
                         int64_t *selected, int64_t *n_selected, miles_error *err) {
    const ml_json *list;
    ml_python_call c;
    int failed;

    begin_with(&c, "buffer-filter-path", partial);
    ml_text_printf(&c.text, ", \"n\": %lld", (long long)n_want);
    failed = ml_python_call_run(&c, &worker, err);
    list = failed ? NULL : ml_json_get(c.answer, "selected");
    for (const ml_json *v = list ? list->child : NULL; v && *n_selected < n_group;
         v = v->next)
        ml_json_i64(v, &selected[(*n_selected)++]);
    ml_python_call_end(&c);
    return failed;
}

static int add_metrics(const miles_answers *answers, const char *set,
                       miles_metrics_out *out, miles_error *err) {
    const ml_json *list;
    double x;
    ml_python_call c;
    int failed;

    begin_with(&c,
               *set ? "custom-eval-rollout-log-function-path"
                    : "custom-rollout-log-function-path",
               answers);
    ml_request_text(&c.text, "set", set, strlen(set));
    failed = ml_python_call_run(&c, &worker, err);
    list = failed ? NULL : ml_json_get(c.answer, "metrics");
    for (const ml_json *v = list ? list->child : NULL; v; v = v->next)
        if (ml_json_f64(v, &x))
            out->add(out, ml_arena_str(&c.arena, v->key.ptr, v->key.len), x);
    ml_python_call_end(&c);
    return failed;
}

/* Marks the groups of a list of numbers with a decision. */
static void decide(const miles_waiting *w, const ml_json *list, int32_t *decision,
                   int32_t what) {
    int64_t at, size = w->n_group ? w->answers->n / w->n_group : 1;

    for (const ml_json *v = list ? list->child : NULL; v; v = v->next)
        for (int64_t g = 0; ml_json_i64(v, &at) && g < w->n_group; g++)
            if (w->answers->answer[g * size]->group == at)
                decision[g] = what;
}

static int select_waiting(const miles_waiting *w, int32_t *decision, miles_error *err) {
    ml_python_call c;
    int failed;

    begin_with(&c, "custom-async-data-buffer-path", w->answers);
    ml_text_printf(&c.text, ", \"n\": %lld, \"staleness\": [", (long long)w->n_want);
    for (int64_t i = 0; i < w->n_group; i++)
        ml_text_printf(&c.text, "%s%lld", i ? ", " : "", (long long)w->staleness[i]);
    ml_text_printf(&c.text, "]");
    failed = ml_python_call_run(&c, &worker, err);
    if (!failed) {
        decide(w, ml_json_get(c.answer, "train"), decision, MILES_TRAIN);
        decide(w, ml_json_get(c.answer, "drop"), decision, MILES_DROP);
    }
    ml_python_call_end(&c);
    return failed;
}

/* --- evaluations ----------------------------------------------------------------------- */

/* As ml_python_parts.evaluate: the answers to all sets, generated and graded by the run. */
static bool evaluate_sets(void *ud, ml_text *out) {
    miles_eval_host *host = ud;
    const miles_answers *s = NULL;
    miles_error why = { "" };

    ml_text_printf(out, "[");
    for (int64_t k = 0; k < host->n_set; k++) {
        if (host->generate(host, k, &s, &why) != 0) {
            out->len = 0;
            ml_text_printf(out, "%s", why.text);
            return false;
        }
        ml_text_printf(out, "%s{\"index\": 0", k ? ", " : "");
        ml_request_text(out, "name", host->set[k], strlen(host->set[k]));
        ml_text_printf(out, ", \"samples\": [");
        for (int64_t i = 0; i < s->n; i++) {
            ml_text_printf(out, "%s", i ? ", " : "");
            write_sample(out, s->answer[i]);
        }
        ml_text_printf(out, "]}");
    }
    ml_text_printf(out, "]");
    return true;
}

static int evaluate(miles_eval_host *host, miles_error *err) {
    ml_python_parts parts = ml_python_host_get(), own = parts;
    const ml_json *list;
    double x;
    ml_python_call c;
    int failed;

    own.evaluate = evaluate_sets;
    own.ud = host;
    ml_python_host_set(&own);
    ml_python_call_begin(&c, "eval-function-path");
    ml_text_printf(&c.text, ", \"rollout\": %lld", (long long)host->rollout);
    failed = ml_python_call_run(&c, &worker, err);
    ml_python_host_set(&parts);
    list = failed ? NULL : ml_json_get(c.answer, "metrics");
    for (const ml_json *v = list ? list->child : NULL; v; v = v->next)
        if (ml_json_f64(v, &x))
            host->add_metric(host, ml_arena_str(&c.arena, v->key.ptr, v->key.len), x);
    ml_python_call_end(&c);
    return failed;
}

/* Made by run/python_rollout.c. */
static int no_rollout(miles_rollout_host *host, miles_error *err) {
    (void)host;
    snprintf(err->text, sizeof err->text, "a Python function is not called so");
    return 1;
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
static miles_eval eval = { HEAD(miles_eval, MILES_EVAL), evaluate };
static miles_buffer buffer = { HEAD(miles_buffer, MILES_BUFFER), select_waiting };
static miles_rollout rollout = { HEAD(miles_rollout, MILES_ROLLOUT), no_rollout };

static miles_extension *find(miles_kind kind, const char *flag) {
    switch (kind) {
    case MILES_GROUP_FILTER: return &group_filter.base;
    case MILES_REWARD_POST: return &reward_post.base;
    case MILES_SAMPLE_FILTER: return &sample_filter.base;
    case MILES_SAMPLES_HOOK: return &samples_hook.base;
    case MILES_BUFFER_FILTER: return &buffer_filter.base;
    case MILES_METRICS: return &metrics[strstr(flag, "eval") != NULL].base;
    case MILES_EVAL: return &eval.base;
    case MILES_ROLLOUT: return &rollout.base;
    case MILES_BUFFER: return &buffer.base;
    case MILES_PROMPTS: return ml_python_prompts_base();
    default: return NULL;
    }
}

const miles_extension *ml_python_extension(miles_kind kind, const ml_python_function *fn) {
    miles_extension *e = find(kind, fn->flag);

    if (e)
        e->name = fn->path;
    return e;
}

bool ml_python_extension_is(const miles_extension *e) {
    return e && (e == &eval.base || e == &rollout.base);
}

ml_status ml_python_extensions_call(const char *flag, const char *more, ml_arena *a,
                                    const ml_json **answer, ml_str *text, ml_err *err) {
    miles_error why = { "" };
    ml_status st = ML_OK;
    ml_python_call c;

    ml_python_call_begin(&c, flag);
    ml_text_printf(&c.text, "%s", more);
    if (ml_python_call_run(&c, &worker, &why) != 0)
        st = ml_fail(err, ML_EFORMAT, "%s", why.text);
    else {
        *text = (ml_str){ ml_arena_str(a, c.source.ptr, c.source.len), c.source.len };
        st = ml_json_parse(answer, a, *text, "the answer", err);
    }
    ml_python_call_end(&c);
    return st;
}

ml_status ml_python_extensions_open(const ml_python_function *fn, int n, ml_str args,
                                    ml_err *err) {
    return ml_python_worker_open(&worker, fn, n, args, 0, err);
}

void ml_python_extensions_close(void) {
    ml_python_worker_close(&worker);
}
