/* What runs there are, their metrics, advice. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/file.h"
#include "dash/advice.h"
#include "dash/dash_priv.h"
#include "rl/record/run_dir.h"

/* --- runs ----------------------------------------------------------------------------- */

static void put_run(ml_json_out *o, ml_dash_run *run) {
    ml_json_begin(o, '{');
    ml_dash_put_text(o, "name", ml_str_of(run->name));
    ml_dash_put_text(o, "dir", ml_str_of(run->dir));
    ml_json_put_bool(o, "live", ml_run_dir_is_live(run->dir));
    ml_json_put_int(o, "revision", run->series.revision);
    ml_json_put_int(o, "last_rollout", run->series.last);
    ml_dash_put_number(o, "reward",
                       ml_series_last(&run->series, "rollout/raw_reward", (double)NAN));
    ml_json_end(o, '}');
}

ml_status ml_dash_runs(ml_dash_request *r, ml_err *err) {
    const ml_access_opts *a = &r->dash->opts.access;
    ml_json_out *o = &r->out;

    (void)err;
    ml_json_begin(o, '{');
    ml_json_put_bool(o, "control", a->api_key || a->admin_key);
    ml_json_key(o, "runs");
    ml_json_begin(o, '[');
    for (int i = 0; i < r->dash->n_run; i++) {
        ml_series_refresh(&r->dash->run[i].series);
        put_run(o, &r->dash->run[i]);
    }
    ml_json_end(o, ']');
    ml_json_end(o, '}');
    return ML_OK;
}

/* --- meta -------------------------------------------------------------------------------- */

static bool is_eval(const char *name) {
    return strncmp(name, "eval/", 5) == 0;
}

/* The rollouts after which there was an evaluation: those of the longest series. */
static void put_eval_rollouts(ml_json_out *o, const ml_series_set *s) {
    const ml_series *longest = NULL;

    for (int64_t i = 0; i < s->n; i++)
        if (is_eval(s->series[i].name) && (!longest || s->series[i].n > longest->n))
            longest = &s->series[i];
    ml_json_key(o, "eval");
    ml_json_begin(o, '[');
    for (int64_t i = 0; longest && i < longest->n; i++)
        ml_json_int(o, longest->at[i].rollout);
    ml_json_end(o, ']');
}

static void put_rollouts(ml_dash_request *r) {
    int64_t first = 0, last = -1;
    ml_json_out *o = &r->out;

    if (!r->run->view || !ml_run_view_rollouts(r->run->view, false, &first, &last))
        last = first - 1;
    ml_json_key(o, "rollout_ids");
    ml_json_begin(o, '{');
    ml_json_key(o, "train");
    ml_json_begin(o, '[');
    for (int64_t i = first; i <= last; i++)
        ml_json_int(o, i);
    ml_json_end(o, ']');
    put_eval_rollouts(o, &r->run->series);
    ml_json_end(o, '}');
}

static void put_keys(ml_json_out *o, const ml_series_set *s) {
    ml_json_key(o, "metric_keys");
    ml_json_begin(o, '[');
    for (int64_t i = 0; i < s->n; i++)
        if (s->series[i].n)
            ml_dash_put_text(o, NULL, ml_str_of(s->series[i].name));
    ml_json_end(o, ']');
    ml_json_key(o, "engine_metric_keys");
    ml_json_raw(o, ml_str_of("[]"));
    ml_json_key(o, "step_keys");
    ml_json_raw(o, ml_str_of("[\"rollout/step\", \"train/step\", \"eval/step\"]"));
}

static void put_set(void *ud, ml_str name) {
    ml_dash_put_text(ud, NULL, name);
}

typedef struct edges {
    double first, last;
} edges;

static void see_event(void *ud, const ml_view_span *s) {
    edges *e = ud;
    e->first = e->first > 0 ? fmin(e->first, s->begin) : s->begin;
    e->last = fmax(e->last, s->end);
}

/* The run's first and last moment; zeros: not known. */
static edges edges_of(ml_dash_request *r) {
    edges e = { 0 };

    if (r->run->view) {
        (void)ml_run_view_events(r->run->view, 1000, see_event, &e, NULL);
        (void)ml_run_view_spans(r->run->view, 0, 1e18, 1, see_event, &e, NULL);
    }
    return e;
}

static void put_capabilities(ml_dash_request *r) {
    ml_json_out *o = &r->out;

    ml_json_key(o, "capabilities");
    ml_json_begin(o, '{');
    ml_json_put_bool(o, "has_metrics", r->run->series.n > 0);
    ml_json_put_bool(o, "has_tokenizer", true);
    ml_json_put_bool(o, "has_timeline", r->run->view != NULL);
    ml_json_put_bool(o, "has_engine_series", false);
    ml_json_put_int(o, "max_window_s", 14400);
    ml_json_put_bool(o, "use_utilization_overview", false);
    ml_json_end(o, '}');
}

/* The flags of the run, as JSON. */
static void put_flags(ml_dash_request *r) {
    ml_file f = { 0 };
    const ml_json *doc;

    ml_json_key(&r->out, "flags");
    if (ml_file_map(&f, ml_arena_printf(r->arena, "%s/flags.json", r->run->dir), NULL) ==
            ML_OK &&
        ml_json_parse(&doc, r->arena, f.bytes, "flags.json", NULL) == ML_OK)
        ml_json_raw(&r->out, f.bytes);
    else
        ml_json_null(&r->out);
    ml_file_unmap(&f);
}

ml_status ml_dash_meta(ml_dash_request *r, ml_err *err) {
    bool live = ml_run_dir_is_live(r->run->dir);
    ml_json_out *o = &r->out;
    ml_err ignored = { 0 };
    edges e;

    (void)ml_dash_view(r, &ignored);
    r->status = 0; /* a run without samples has metrics */
    e = edges_of(r);
    ml_json_begin(o, '{');
    ml_json_put_word(o, "mode", live ? "follow" : "static");
    ml_dash_put_text(o, "run_name", ml_str_of(r->run->name));
    ml_dash_put_number(o, "start_ts", e.first > 0 ? e.first : (double)NAN);
    ml_json_put_word(o, "wandb_url", NULL);
    ml_json_put_word(o, "data_buffer_length", NULL);
    ml_json_key(o, "time_range");
    if (e.first > 0) {
        ml_json_begin(o, '[');
        ml_json_exact(o, e.first);
        ml_json_exact(o, e.last);
        ml_json_end(o, ']');
    } else {
        ml_json_null(o);
    }
    put_rollouts(r);
    put_keys(o, &r->run->series);
    ml_json_key(o, "eval_sets");
    ml_json_begin(o, '[');
    if (r->run->view)
        (void)ml_run_view_sets(r->run->view, put_set, o, err);
    ml_json_end(o, ']');
    put_capabilities(r);
    put_flags(r);
    ml_json_end(o, '}');
    return ML_OK;
}

/* --- series -------------------------------------------------------------------------------- */

/* The points whose rollout or step is on the axis and in the range, thinned. */
typedef struct axis {
    bool steps;
    int64_t from, to, n_most;
} axis;

static int64_t place_of(const ml_point *p, const axis *a) {
    return a->steps ? p->step : p->rollout;
}

static void put_series(ml_dash_request *r, const char *key, const axis *a) {
    const ml_series *s = ml_series_find(&r->run->series, key);
    ml_point *chosen = ML_NEW(r->arena, ml_point, s && s->n ? s->n : 1);
    int64_t n = 0, n_out, *index;
    ml_json_out *o = &r->out;

    for (int64_t i = 0; s && i < s->n; i++)
        if (place_of(&s->at[i], a) >= a->from && place_of(&s->at[i], a) <= a->to &&
            (!a->steps || s->at[i].step >= 0))
            chosen[n++] = s->at[i];
    index = ML_NEW(r->arena, int64_t, a->n_most + 2);
    n_out = ml_series_thin(chosen, n, a->n_most, index);
    ml_json_key(o, key);
    ml_json_begin(o, '{');
    ml_json_key(o, "x");
    ml_json_begin(o, '[');
    for (int64_t i = 0; i < n_out; i++)
        ml_json_int(o, place_of(&chosen[index[i]], a));
    ml_json_end(o, ']');
    ml_json_key(o, "y");
    ml_json_begin(o, '[');
    for (int64_t i = 0; i < n_out; i++)
        ml_dash_put_number(o, NULL, chosen[index[i]].value);
    ml_json_end(o, ']');
    ml_json_key(o, "ts");
    ml_json_raw(o, ml_str_of("[]"));
    ml_json_end(o, '}');
}

ml_status ml_dash_metrics(ml_dash_request *r, ml_err *err) {
    const char *keys = ml_dash_param(r, "keys"), *x = ml_dash_param(r, "x");
    axis a = { .steps = x && strcmp(x, "train/step") == 0,
               .from = INT64_MIN,
               .to = INT64_MAX,
               .n_most = 100000 };
    ml_status st = ml_dash_param_int(r, "points", 2, 100000, &a.n_most, err);
    char *word, *rest;

    if (st == ML_OK)
        st = ml_dash_param_int(r, "from", INT64_MIN, INT64_MAX, &a.from, err);
    if (st == ML_OK)
        st = ml_dash_param_int(r, "to", INT64_MIN, INT64_MAX, &a.to, err);
    if (st != ML_OK)
        return st;
    if (!keys || !*keys)
        return ml_fail(err, ML_EUSAGE,
                       "keys: expected names of metrics, separated by commas");
    rest = ml_arena_str(r->arena, keys, strlen(keys));
    ml_json_begin(&r->out, '{');
    while ((word = strsep(&rest, ",")) != NULL)
        if (*word)
            put_series(r, word, &a);
    ml_json_end(&r->out, '}');
    return ML_OK;
}

/* --- advice --------------------------------------------------------------------------- */

static void count_group(void *ud, const ml_view_group *g) {
    ml_advice_facts *f = ud;

    f->n_group += g->n > 1;
    f->n_flat_group += g->n > 1 && g->spread <= 1e-12;
    f->n_sample += g->n;
}

static void count_aborted(void *ud, const ml_view_row *row) {
    ml_advice_facts *f = ud;
    (void)row;
    f->n_aborted++;
}

static ml_advice_facts facts_of(ml_dash_request *r) {
    ml_advice_facts f = { .live = ml_run_dir_is_live(r->run->dir) };
    int64_t first, last;
    ml_view_page page;
    edges e;

    if (!r->run->view || !ml_run_view_rollouts(r->run->view, false, &first, &last))
        return f;
    e = edges_of(r);
    f.silent_s = e.last > 0 ? ml_clock_unix_s() - e.last : 0;
    (void)ml_run_view_groups(r->run->view, false, last, count_group, &f, NULL);
    (void)ml_run_view_rows(r->run->view,
                           &(ml_view_query){ .rollout = last,
                                             .group = -1,
                                             .row = -1,
                                             .least = (double)NAN,
                                             .most = (double)NAN,
                                             .status = "aborted" },
                           count_aborted, &f, &page, NULL);
    return f;
}

ml_status ml_dash_advisory(ml_dash_request *r, ml_err *err) {
    static const char *const level[] = { "critical", "warning", "info" };
    double mfu = ml_series_median(&r->run->series, "perf/actor_train_mfu", 20, (double)NAN);
    ml_advice advice[ML_ADVICE_MOST];
    ml_advice_facts facts;
    ml_json_out *o = &r->out;
    int n;

    (void)ml_dash_view(r, err);
    r->status = 0; /* most rules need the metrics alone */
    facts = facts_of(r);
    n = ml_advice_find(advice, &r->run->series, &facts);
    ml_json_begin(o, '{');
    ml_json_key(o, "advisories");
    ml_json_begin(o, '[');
    for (int i = 0; i < n; i++) {
        ml_json_begin(o, '{');
        ml_json_put_word(o, "level", level[advice[i].level]);
        ml_dash_put_text(o, "message", ml_str_of(advice[i].text));
        ml_json_end(o, '}');
    }
    ml_json_end(o, ']');
    ml_json_key(o, "mfu");
    if (isfinite(mfu)) {
        ml_json_begin(o, '{');
        ml_dash_put_number(o, "median", mfu);
        ml_json_end(o, '}');
    } else {
        ml_json_null(o);
    }
    ml_json_end(o, '}');
    return ML_OK;
}

/* --- events ----------------------------------------------------------------------------- */

static void put_event(void *ud, const ml_view_span *s) {
    ml_json_out *o = ud;

    ml_json_begin(o, '{');
    ml_json_put_int(o, "rollout", s->rollout);
    ml_dash_put_number(o, "ts", s->begin);
    ml_dash_put_text(o, "what", s->name);
    ml_json_end(o, '}');
}

ml_status ml_dash_events(ml_dash_request *r, ml_err *err) {
    ml_status st = ml_dash_view(r, err);

    if (st != ML_OK)
        return st;
    ml_json_begin(&r->out, '{');
    ml_json_key(&r->out, "events");
    ml_json_begin(&r->out, '[');
    st = ml_run_view_events(r->run->view, 500, put_event, &r->out, err);
    ml_json_end(&r->out, ']');
    ml_json_end(&r->out, '}');
    return st;
}
