#include "plugin/python_train.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"

#define LIMIT_S 3600.0           /* of a call */
#define SHARED ((size_t)1 << 30) /* bytes of arrays of a call; pages are used as needed */

static ml_arena arena; /* of the pool's options and of names of metrics */
static ml_worker_pool *pool;

/* --- calls ----------------------------------------------------------------------------- */

typedef struct call {
    ml_arena arena;
    ml_text text;
    double *base; /* the shared memory */
    size_t at;    /* numbers that are used */
    bool full;
    const ml_json *answer;
} call;

static void begin(call *c, const char *flag) {
    *c = (call){ .base = ml_worker_pool_shared(pool) };
    ml_arena_init(&c->arena, "a call");
    ml_text_printf(&c->text, "{\"f\": \"%s\"", flag);
}

static void end(call *c) {
    ml_text_release(&c->text);
    ml_arena_release(&c->arena);
}

/* Room for n numbers, whose offset is appended under this name. */
static double *room(call *c, const char *name, int64_t n) {
    double *out = c->base + c->at;

    c->full |= (c->at + (size_t)n) * sizeof(double) > SHARED;
    if (c->full)
        return NULL;
    ml_text_printf(&c->text, ", \"%s\": %zu", name, c->at);
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

    ml_text_printf(&c->text,
                   "{\"n\": %lld, \"group\": %lld, \"rollout\": %lld, \"reward\": ",
                   (long long)s->n, (long long)s->group, (long long)s->rollout);
    ml_json_number(&c->text, s->reward);
    ml_text_printf(&c->text, ", \"columns\": {\"n\": 0");
    put_mask(c, "loss_masks", s->mask, s->n);
    put_mask(c, "kept_masks", s->kept, s->n);
    for (size_t i = 0; i < sizeof column / sizeof *column; i++)
        put(c, column[i].name, column[i].x, s->n);
    ml_text_printf(&c->text, "}");
}

static void put_batch(call *c, const miles_batch *b, double **first, const char *first_name,
                      double **second, const char *second_name) {
    ml_text_printf(&c->text, ", \"samples\": [");
    for (int64_t i = 0; i < b->n; i++) {
        ml_text_printf(&c->text, "%s", i ? ", " : "");
        put_sample(c, b->sample[i]);
        first[i] = room(c, first_name, b->sample[i]->n);
        second[i] = room(c, second_name, b->sample[i]->n);
        ml_text_printf(&c->text, "}");
    }
    ml_text_printf(&c->text, "]");
}

/* 0: c->answer is the function's value; 1: err has a message. */
static int ask(call *c, miles_error *err) {
    ml_text answer = { 0 };
    ml_worker_end how;
    const ml_json *error;
    ml_str text;
    ml_err why = { 0 };
    int failed = 1;

    if (c->full) {
        snprintf(err->text, sizeof err->text,
                 "the samples of a step have more than %zu numbers, too many for a Python "
                 "function",
                 SHARED / sizeof(double));
        return 1;
    }
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
        m->name[m->n++] = ml_arena_str(&arena, name.ptr, name.len);
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
 * sum, which the step divides by the length of the whole rollout. */
static int compute_loss(const miles_sample *s, const miles_algo *algo, miles_loss_out *out,
                        miles_error *err) {
    double *d_log_prob, *d_entropy, n = 0, loss = (double)NAN;
    call c;
    int failed;

    for (int64_t t = 0; t < s->n && !algo->calculate_per_token_loss; t++)
        n += s->mask[t];
    n = n > 0 ? n : 1;
    begin(&c, "custom-loss-function-path");
    ml_text_printf(&c.text, ", \"divisor\": %.17g, \"sample\": ", n);
    put_sample(&c, s);
    d_log_prob = room(&c, "d_log_probs", s->n);
    d_entropy = room(&c, "d_entropy", s->n);
    ml_text_printf(&c.text, "}");
    failed = ask(&c, err);
    if (!failed &&
        (!ml_json_f64(ml_json_get(c.answer, "loss"), &loss) || !isfinite(loss))) {
        snprintf(err->text, sizeof err->text, "the loss is not a finite number");
        failed = 1;
    }
    if (!failed) {
        out->other = loss * n;
        take_derivatives(out->d_log_prob, d_log_prob, s->n, out->other_scale * n);
        take_derivatives(out->d_entropy, d_entropy, s->n, out->other_scale * n);
        for (int32_t i = 0; i < loss_names.n_announced; i++)
            out->metric[i] = 0;
        take_metrics(&loss_names, ml_json_get(c.answer, "metrics"), out->metric);
        for (int32_t i = 0; i < loss_names.n_announced; i++)
            out->metric[i] *= n;
    }
    end(&c);
    return failed;
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
    w = ML_NEW(&c.arena, double *, b->n + 1);
    k = ML_NEW(&c.arena, double *, b->n + 1);
    put_batch(&c, b, w, "out_weights", k, "out_masks");
    failed = ask(&c, err);
    v = failed ? NULL : ml_json_get(c.answer, "metrics");
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
    ml_text_printf(&c.text, ", \"per_token\": %s",
                   algo->calculate_per_token_loss ? "true" : "false");
    unused = ML_NEW(&c.arena, double *, b->n + 1);
    put_batch(&c, b, unused, "unused", unused, "unused");
    failed = ask(&c, err);
    list = failed ? NULL : ml_json_get(c.answer, "divisors");
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
    a = ML_NEW(&c.arena, double *, b->n + 1);
    r = ML_NEW(&c.arena, double *, b->n + 1);
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

const miles_extension *ml_python_train_extension(miles_kind kind,
                                                 const ml_python_function *fn) {
    miles_extension *e = kind == MILES_LOSS         ? &loss.base
                         : kind == MILES_CORRECTION ? &correction.base
                         : kind == MILES_REDUCER    ? &reducer.base
                         : kind == MILES_ADVANTAGE  ? &advantage.base
                                                    : NULL;

    if (e)
        e->name = fn->path;
    return e;
}

ml_status ml_python_train_open(const ml_python_function *fn, int n, ml_str args,
                               ml_err *err) {
    ml_worker_pool_opts opts;
    ml_status st;

    ml_python_train_close();
    ml_arena_init(&arena, "Python functions");
    st = ml_python_workers(&opts, &arena, fn, n, args, err);
    opts.shared_bytes = SHARED;
    if (st == ML_OK)
        st = ml_worker_pool_open(&pool, &opts, err);
    if (st != ML_OK)
        ml_arena_release(&arena);
    return st;
}

void ml_python_train_close(void) {
    if (!pool)
        return;
    ml_worker_pool_close(pool);
    ml_arena_release(&arena);
    pool = NULL;
    loss_names = correction_names = (names){ .n = 0 };
}
