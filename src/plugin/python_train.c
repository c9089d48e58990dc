#include "plugin/python_train.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/bug.h"
#include "base/json.h"
#include "rl/reward/request_json.h"

#define SHARED ((size_t)1 << 30) /* bytes of arrays of a call; pages are used as needed */

enum { MAX_FUNCTION = 16 };

static ml_python_worker worker;                    /* its arena has names of metrics, too */
static ml_python_function functions[MAX_FUNCTION]; /* of the worker */
static int n_function;

/* --- calls ----------------------------------------------------------------------------- */

/* A call with arrays in the shared memory. */
typedef struct call {
    ml_python_call base;
    double *room; /* the shared memory */
    size_t at;    /* numbers that are used */
    bool full;
} call;

static void begin(call *c, const char *flag) {
    *c = (call){ .room = ml_worker_pool_shared(worker.pool) };
    ml_python_call_begin(&c->base, flag);
}

static void end(call *c) {
    ml_python_call_end(&c->base);
}

/* Room for n numbers, whose offset is appended under this name. */
static double *room(call *c, const char *name, int64_t n) {
    double *out = c->room + c->at;

    c->full |= (c->at + (size_t)n) * sizeof(double) > SHARED;
    if (c->full)
        return NULL;
    ml_text_printf(&c->base.text, ", \"%s\": %zu", name, c->at);
    c->at += (size_t)n;
    return out;
}

static void put(call *c, const char *name, const double *x, int64_t n) {
    double *to = x ? room(c, name, n) : NULL;

    if (to)
        memcpy(to, x, (size_t)n * sizeof *to);
}

static void put_mask(call *c, const char *name, const uint8_t *x, int64_t n) {
    double *to = x ? room(c, name, n) : NULL;

    for (int64_t t = 0; to && t < n; t++)
        to[t] = x[t];
}

/* The columns of a sample, with the names of Miles' training batch. */
static void put_sample(call *c, const miles_sample *s) {
    const struct {
        const char *name;
        const double *x;
    } column[] = {
        { "train_log_probs", s->log_prob },
        { "log_probs", s->old_log_prob },
        { "rollout_log_probs", s->rollout_log_prob },
        { "ref_log_probs", s->ref_log_prob },
        { "teacher_log_probs", s->teacher_log_prob },
        { "entropy", s->entropy },
        { "train_values", s->value },
        { "values", s->old_value },
        { "advantages", s->advantage },
        { "returns", s->returns },
        { "kl", s->kl },
        { "opd_reverse_kl", s->opd_reverse_kl },
        { "weights", s->weight },
    };

    ml_text_printf(&c->base.text,
                   "{\"n\": %lld, \"group\": %lld, \"rollout\": %lld, \"reward\": ",
                   (long long)s->n, (long long)s->group, (long long)s->rollout);
    ml_json_number(&c->base.text, s->reward);
    ml_text_printf(&c->base.text, ", \"columns\": {\"n\": 0");
    put_mask(c, "loss_masks", s->mask, s->n);
    put_mask(c, "kept_masks", s->kept, s->n);
    for (size_t i = 0; i < sizeof column / sizeof *column; i++)
        put(c, column[i].name, column[i].x, s->n);
    ml_text_printf(&c->base.text, "}");
}

static void put_batch(call *c, const miles_batch *b, double **first, const char *first_name,
                      double **second, const char *second_name) {
    ml_text_printf(&c->base.text, ", \"samples\": [");
    for (int64_t i = 0; i < b->n; i++) {
        ml_text_printf(&c->base.text, "%s", i ? ", " : "");
        put_sample(c, b->sample[i]);
        first[i] = room(c, first_name, b->sample[i]->n);
        second[i] = room(c, second_name, b->sample[i]->n);
        ml_text_printf(&c->base.text, "}");
    }
    ml_text_printf(&c->base.text, "]");
}

/* 0: the answer is the function's value; 1: err has a message. */
static int ask(call *c, miles_error *err) {
    if (!c->full)
        return ml_python_call_run(&c->base, &worker, err);
    snprintf(err->text, sizeof err->text,
             "the samples of a step have more than %zu numbers, too many for a Python "
             "function",
             SHARED / sizeof(double));
    return 1;
}

/* --- metrics --------------------------------------------------------------------------- */

/* Names of metrics, which are known when the function has returned them once. */
typedef struct names {
    const char *name[MILES_METRIC_MAX];
    int32_t n, n_announced;
} names;

static names loss_names, correction_names;

static int32_t announce(names *m, miles_metric *out) {
    m->n_announced = m->n;
    for (int32_t i = 0; i < m->n; i++)
        out[i] = (miles_metric){ m->name[i], MILES_MEAN_SAMPLE };
    return m->n;
}

/* The place of a metric; -1: it is reported from the next step on. */
static int32_t place_of(names *m, ml_str name) {
    for (int32_t i = 0; i < m->n; i++)
        if (ml_str_is(name, m->name[i]))
            return i < m->n_announced ? i : -1;
    if (m->n < MILES_METRIC_MAX)
        m->name[m->n++] = ml_arena_str(&worker.arena, name.ptr, name.len);
    return -1;
}

static void take_metrics(names *m, const ml_json *metrics, double *number) {
    double x;

    for (const ml_json *v = metrics ? metrics->child : NULL; v; v = v->next) {
        int32_t i = place_of(m, v->key);
        if (i >= 0 && ml_json_f64(v, &x))
            number[i] = x;
    }
}

static int32_t loss_metrics(const miles_algo *algo, miles_metric *out) {
    (void)algo;
    return announce(&loss_names, out);
}

static int32_t correction_metrics(const miles_algo *algo, miles_metric *out) {
    (void)algo;
    return announce(&correction_names, out);
}

/* --- extensions ------------------------------------------------------------------------ */

static void take_derivatives(double *out, const double *in, int64_t n, double scale) {
    for (int64_t t = 0; out && in && t < n; t++)
        out[t] = scale * in[t];
}

/* The function's loss is a mean over the sample's trained tokens: it is turned back into a
 * sum, which the step divides by the length of the whole rollout.  `m` NULL: no metrics. */
static int run_loss(const char *flag, names *m, const miles_sample *s,
                    const miles_algo *algo, miles_loss_out *out, miles_error *err) {
    double *d_log_prob, *d_entropy, n = 0, loss = (double)NAN;
    int32_t n_metric = m ? m->n_announced : 0;
    call c;
    int failed;

    for (int64_t t = 0; t < s->n && !algo->calculate_per_token_loss; t++)
        n += s->mask[t];
    n = n > 0 ? n : 1;
    begin(&c, flag);
    ml_text_printf(&c.base.text, ", \"divisor\": %.17g, \"sample\": ", n);
    put_sample(&c, s);
    d_log_prob = room(&c, "d_log_probs", s->n);
    d_entropy = room(&c, "d_entropy", s->n);
    ml_text_printf(&c.base.text, "}");
    failed = ask(&c, err);
    if (!failed &&
        (!ml_json_f64(ml_json_get(c.base.answer, "loss"), &loss) || !isfinite(loss))) {
        snprintf(err->text, sizeof err->text, "the loss is not a finite number");
        failed = 1;
    }
    if (!failed) {
        out->other = loss * n;
        take_derivatives(out->d_log_prob, d_log_prob, s->n, out->other_scale * n);
        take_derivatives(out->d_entropy, d_entropy, s->n, out->other_scale * n);
        for (int32_t i = 0; i < n_metric; i++)
            out->metric[i] = 0;
        if (m)
            take_metrics(m, ml_json_get(c.base.answer, "metrics"), out->metric);
        for (int32_t i = 0; i < n_metric; i++)
            out->metric[i] *= n;
    }
    end(&c);
    return failed;
}

static int compute_loss(const miles_sample *s, const miles_algo *algo, miles_loss_out *out,
                        miles_error *err) {
    return run_loss("custom-loss-function-path", &loss_names, s, algo, out, err);
}

static int correct(const miles_batch *b, const miles_algo *algo, double *const *weight,
                   uint8_t *const *kept, double *metric, miles_error *err) {
    int32_t n_metric = correction_names.n_announced;
    double **w, **k;
    const ml_json *v;
    call c;
    int failed;

    (void)algo;
    begin(&c, "custom-tis-function-path");
    w = ML_NEW(&c.base.arena, double *, b->n + 1);
    k = ML_NEW(&c.base.arena, double *, b->n + 1);
    put_batch(&c, b, w, "out_weights", k, "out_masks");
    failed = ask(&c, err);
    v = failed ? NULL : ml_json_get(c.base.answer, "metrics");
    v = v ? v->child : NULL;
    for (int64_t i = 0; i < b->n && !failed; i++, v = v ? v->next : NULL) {
        for (int64_t t = 0; t < b->sample[i]->n; t++) {
            weight[i][t] = w[i][t];
            kept[i][t] = k[i][t] != 0.0;
        }
        for (int32_t m = 0; m < n_metric; m++)
            metric[i * n_metric + m] = 0;
        take_metrics(&correction_names, v, metric + i * n_metric);
    }
    end(&c);
    return failed;
}

static int reduce(const miles_batch *b, const miles_algo *algo, double denominator,
                  double *divisor, miles_error *err) {
    double **unused;
    const ml_json *list;
    call c;
    int failed;

    (void)denominator;
    begin(&c, "custom-pg-loss-reducer-function-path");
    ml_text_printf(&c.base.text, ", \"per_token\": %s",
                   algo->calculate_per_token_loss ? "true" : "false");
    unused = ML_NEW(&c.base.arena, double *, b->n + 1);
    put_batch(&c, b, unused, "unused", unused, "unused");
    failed = ask(&c, err);
    list = failed ? NULL : ml_json_get(c.base.answer, "divisors");
    for (const ml_json *v = list ? list->child : NULL; v; v = v->next)
        ml_json_f64(v, divisor++);
    end(&c);
    return failed;
}

static int estimate(const miles_batch *b, const miles_algo *algo, double *const *advantage,
                    double *const *returns, miles_error *err) {
    double **a, **r;
    call c;
    int failed;

    (void)algo;
    begin(&c, "advantage-estimator");
    a = ML_NEW(&c.base.arena, double *, b->n + 1);
    r = ML_NEW(&c.base.arena, double *, b->n + 1);
    put_batch(&c, b, a, "out_advantages", r, "out_returns");
    failed = ask(&c, err);
    for (int64_t i = 0; i < b->n && !failed; i++)
        for (int64_t t = 0; t < b->sample[i]->n; t++) {
            advantage[i][t] = a[i][t];
            returns[i][t] = r[i][t];
        }
    end(&c);
    return failed;
}

/* --- hooks ----------------------------------------------------------------------------- */

/* By miles_when. */
static const char *const hook_flag[] = {
    [MILES_AFTER_INIT] = "custom-megatron-init-path",
    [MILES_BEFORE_LOG_PROB] = "custom-megatron-before-log-prob-hook-path",
    [MILES_BEFORE_TRAIN_STEP] = "custom-megatron-before-train-step-hook-path",
    [MILES_AFTER_SAVE] = "custom-megatron-post-save-hook-path",
    [MILES_DATA_READY] = "rollout-data-postprocess-path",
    [MILES_WEIGHTS_WRITTEN] = "custom-update-weight-post-write-path",
};

/* The loss that the hook before this step has added. */
static int more_loss(const miles_sample *s, const miles_algo *algo, miles_loss_out *out,
                     miles_error *err) {
    return run_loss(hook_flag[MILES_BEFORE_TRAIN_STEP], NULL, s, algo, out, err);
}

static void put_control(call *c, const miles_step *step) {
    ml_text_printf(&c->base.text, ", \"lr\": %.17g, \"weight_decay\": %.17g, ", step->lr,
                   step->weight_decay);
    ml_text_printf(&c->base.text, "\"clip_grad\": %.17g", step->clip_grad);
}

static void take_rule(miles_step *step, ml_arena *a, const ml_json *rule) {
    const ml_json *pattern = ml_json_get(rule, "pattern");
    double scale = 1, max_norm = 0;

    ml_json_f64(ml_json_get(rule, "scale"), &scale);
    ml_json_f64(ml_json_get(rule, "max_norm"), &max_norm);
    if (pattern)
        step->change_grads(step, ml_arena_str(a, pattern->text.ptr, pattern->text.len),
                           scale, max_norm);
}

static void take_control(call *c, miles_step *step) {
    const ml_json *answer = c->base.answer, *list = ml_json_get(answer, "grads"),
                  *metrics = ml_json_get(answer, "metrics"),
                  *adds = ml_json_get(answer, "adds_loss");
    double x;

    ml_json_f64(ml_json_get(answer, "lr"), &step->lr);
    ml_json_f64(ml_json_get(answer, "weight_decay"), &step->weight_decay);
    ml_json_f64(ml_json_get(answer, "clip_grad"), &step->clip_grad);
    for (const ml_json *v = list ? list->child : NULL; v; v = v->next)
        take_rule(step, &c->base.arena, v);
    for (const ml_json *v = metrics ? metrics->child : NULL; v; v = v->next)
        if (ml_json_f64(v, &x))
            step->add_metric(step, ml_arena_str(&c->base.arena, v->key.ptr, v->key.len), x);
    if (adds && adds->type == ML_JSON_TRUE)
        step->loss = more_loss;
}

static int notify(const miles_event *event, miles_error *err) {
    call c;
    int failed;

    begin(&c, hook_flag[event->when]);
    ml_text_printf(&c.base.text, ", \"event\": {\"rollout\": %lld, \"step\": %lld",
                   (long long)event->rollout, (long long)event->step);
    if (event->control)
        put_control(&c, event->control);
    ml_request_text(&c.base.text, "what", event->what, strlen(event->what));
    ml_text_printf(&c.base.text, "}");
    failed = ask(&c, err);
    if (!failed && event->control)
        take_control(&c, event->control);
    end(&c);
    return failed;
}

/* --- finding them ---------------------------------------------------------------------- */

#define HEAD(type, kind)                                                                   \
    { sizeof(type), kind, "a Python function", NULL, "" }

static miles_loss loss = { HEAD(miles_loss, MILES_LOSS), loss_metrics, compute_loss };
static miles_correction correction = { HEAD(miles_correction, MILES_CORRECTION),
                                       correction_metrics, correct };
static miles_reducer reducer = { HEAD(miles_reducer, MILES_REDUCER), reduce };
static miles_advantage advantage = { HEAD(miles_advantage, MILES_ADVANTAGE),
                                     MILES_CENTRE_REWARDS | MILES_SCALE_REWARDS |
                                         MILES_USES_KL,
                                     estimate };

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
    case MILES_LOSS: return &loss.base;
    case MILES_CORRECTION: return &correction.base;
    case MILES_REDUCER: return &reducer.base;
    case MILES_ADVANTAGE: return &advantage.base;
    case MILES_HOOK: return hook_of(flag);
    default: return NULL;
    }
}

const miles_extension *ml_python_train_extension(miles_kind kind,
                                                 const ml_python_function *fn) {
    miles_extension *e = find(kind, fn->flag);

    if (!e)
        return NULL;
    ML_BUG_IF(n_function == MAX_FUNCTION);
    functions[n_function++] = *fn;
    e->name = fn->path;
    return e;
}

ml_status ml_python_train_open(ml_str args, ml_err *err) {
    return n_function
               ? ml_python_worker_open(&worker, functions, n_function, args, SHARED, err)
               : ML_OK;
}

void ml_python_train_close(void) {
    ml_python_worker_close(&worker);
    n_function = 0;
    loss_names = correction_names = (names){ .n = 0 };
}
