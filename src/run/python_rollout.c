#include "run/python_rollout.h"

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "plugin/python_extensions.h"
#include "plugin/python_host.h"
#include "rl/rollout/prompt_results.h"

/* A rollout while the function makes it. */
typedef struct making {
    const ml_custom_rollout *r;
    ml_arena arena; /* of the prompts */
    ml_group_set set;
} making;

/* --- prompts --------------------------------------------------------------------------- */

static ml_status write_group(making *m, ml_group id, ml_text *out, ml_err *err) {
    ml_gen_group *g = ml_group_set_add(&m->set, id, &m->arena);
    ml_status st = ml_gen_group_prepare(g, err);

    ml_text_printf(out, "[");
    for (int32_t i = 0; i < id.n_sample && st == ML_OK; i++) {
        g->task[i]->sample.n_token = 0; /* as the function gets them */
        ml_text_printf(out, "%s", i ? ", " : "");
        ml_sample_write(out, &g->task[i]->sample);
    }
    ml_text_printf(out, "]");
    return st;
}

/* As ml_python_parts.get_samples. */
static bool get_samples(void *ud, int64_t n, ml_text *out) {
    making *m = ud;
    ml_group *id = ML_NEW(&m->arena, ml_group, n + 1);
    ml_err err = { 0 };
    ml_status st = ML_OK;

    if (ml_data_source_get(m->r->feed.source, id, n) != n)
        st = ml_fail(&err, ML_EFORMAT, "%s has fewer than %lld prompts",
                     m->r->feed.dataset->opts.path, (long long)n);
    ml_text_printf(out, "[");
    for (int64_t i = 0; i < n && st == ML_OK; i++) {
        ml_text_printf(out, "%s", i ? ", " : "");
        st = write_group(m, id[i], out, &err);
    }
    ml_text_printf(out, "]");
    if (st != ML_OK) {
        out->len = 0;
        ml_text_printf(out, "%s", err.msg);
    }
    return st == ML_OK;
}

/* --- samples --------------------------------------------------------------------------- */

static ml_status read_one(const making *m, ml_sample *s, ml_arena *a, const ml_json *doc,
                          ml_str source, ml_err *err) {
    const char *name = "the rollout function";
    ml_status st = ml_sample_read(s, a, doc, source, name, err);

    if (st == ML_OK)
        st = ml_sample_check(s, m->r->gen_ctx.n_vocab, name, err);
    if (st == ML_OK && !s->has_reward)
        st = ml_fail(err, ML_EFORMAT, "sample %lld has no reward", (long long)s->index);
    if (st == ML_OK && s->n_response < 1)
        st = ml_fail(err, ML_EFORMAT, "sample %lld has no response", (long long)s->index);
    return st;
}

static ml_status read_samples(const making *m, ml_rollout_batch *out, ml_arena *a,
                              const ml_json *list, ml_str source, ml_err *err) {
    ml_status st = ML_OK;

    if (!list || list->n == 0)
        return ml_fail(err, ML_EFORMAT, "the rollout function returned no samples");
    out->sample = ML_NEW(a, const ml_sample *, list->n + 1);
    for (const ml_json *v = list->child; v && st == ML_OK; v = v->next) {
        ml_sample *s = ML_NEW(a, ml_sample, 1);
        st = read_one(m, s, a, v, source, err);
        out->sample[out->n++] = s;
        for (int32_t t = 0; t < s->n_response; t++)
            out->n_drawn += !s->mask || s->mask[t];
    }
    return st;
}

static void read_metrics(ml_rollout_batch *out, ml_arena *a, const ml_json *metrics) {
    double x;

    for (const ml_json *v = metrics ? metrics->child : NULL; v; v = v->next)
        if (ml_json_f64(v, &x))
            ml_metrics_add(&out->metrics, "", ml_arena_str(a, v->key.ptr, v->key.len), x);
}

/* Aborts the requests that the function did not wait for.  After the pause no step runs. */
static void rest(ml_gen *gen) {
    ml_gen_stats now;

    gen->stats(gen, &now);
    if (now.n_running + now.n_waiting > 0) {
        ml_log(
            ML_LOG_WARN,
            "--rollout-function-path returned before %lld of its requests had ended; they "
            "are aborted",
            (long long)(now.n_running + now.n_waiting));
        gen->abort_all(gen);
    }
    gen->pause(gen);
    gen->resume(gen);
}

static ml_status collect(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err) {
    making m = { .r = ud };
    ml_python_parts parts = ml_python_host_get(), own = parts;
    const ml_json *answer = NULL;
    ml_str source = { 0 };
    char more[60];
    ml_status st;

    ml_arena_init(&m.arena, "prompts");
    ml_group_set_init(&m.set, &m.r->gen_ctx, &m.r->how, m.r->feed.dataset);
    own.get_samples = get_samples;
    own.ud = &m;
    ml_python_host_set(&own);
    snprintf(more, sizeof more, ", \"rollout\": %lld", (long long)rollout);
    st = ml_python_extensions_call("rollout-function-path", more, a, &answer, &source, err);
    ml_python_host_set(&parts);
    if (m.r->must_rest)
        rest(m.r->gen_ctx.gen);
    if (st == ML_OK)
        st = read_samples(&m, out, a, ml_json_get(answer, "samples"), source, err);
    if (st == ML_OK) {
        read_metrics(out, a, ml_json_get(answer, "metrics"));
        ml_prompt_results_batch(m.r->feed.source, out);
        ml_prompt_results_report(m.r->feed.source, &out->metrics);
        ml_rollout_batch_report(out, m.r->feed.n_per_prompt, false);
    } else {
        ml_err_prefix(err, "--rollout-function-path");
    }
    ml_group_set_release(&m.set);
    ml_arena_release(&m.arena);
    return st;
}

/* --- training data ---------------------------------------------------------------------- */

#define CONVERT "custom-convert-samples-to-train-data-path"

/* What the function does not return is that of the sample that the row was made of; records
 * of single tokens only if the tokens are the same. */
static void complete(ml_sample *s, const ml_sample *from) {
    bool same = s->n_token == from->n_token && s->n_response == from->n_response &&
                memcmp(s->token, from->token, (size_t)s->n_token * sizeof *s->token) == 0;
    ml_sample own = *s;

    *s = *from;
    s->index = own.index;
    s->rollout = own.rollout;
    s->token = own.token;
    s->n_token = own.n_token;
    s->n_response = own.n_response;
    s->mask = own.mask;
    s->reward = own.reward;
    s->has_reward = true;
    s->remove = false; /* the masks say it */
    if (own.logprob || !same)
        s->logprob = own.logprob;
    if (own.teacher_logprob || !same)
        s->teacher_logprob = own.teacher_logprob;
    if (own.opd_reverse_kl || !same)
        s->opd_reverse_kl = own.opd_reverse_kl;
    if (!same) {
        s->version = NULL;
        s->supports = (ml_str){ 0 };
        memset(s->routed, 0, sizeof s->routed);
    }
}

static ml_status read_row(ml_sample *s, ml_arena *a, const ml_json *row, ml_str source,
                          const ml_rollout_batch *of, int64_t n_vocab, ml_err *err) {
    const char *name = "the training data";
    const ml_json *cut = ml_json_get(row, "truncated");
    ml_status st = ml_sample_read(s, a, row, source, name, err);
    int64_t from = -1;

    if (st != ML_OK)
        return st;
    ml_json_i64(ml_json_get(row, "from"), &from);
    if (from >= 0 && from < of->n)
        complete(s, of->sample[from]);
    if (s->group < 0)
        s->group = s->index;
    if (cut)
        s->status = cut->type == ML_JSON_TRUE ? ML_SAMPLE_TRUNCATED : ML_SAMPLE_COMPLETED;
    s->has_shaped = ml_json_f64(ml_json_get(row, "shaped"), &s->shaped);
    if (s->n_response < 1)
        return ml_fail(err, ML_EFORMAT, "%s: sample %lld has no response", name,
                       (long long)s->index);
    return ml_sample_check(s, n_vocab, name, err);
}

ml_status ml_python_convert(int64_t rollout, int64_t n_vocab, ml_rollout_batch *h,
                            ml_arena *a, ml_err *err) {
    const ml_json *answer = NULL, *rows;
    const ml_sample **list;
    ml_text more = { 0 };
    ml_str source = { 0 };
    int64_t n = 0;
    ml_status st;

    ml_text_printf(&more, ", \"rollout\": %lld, \"samples\": [", (long long)rollout);
    for (int64_t i = 0; i < h->n; i++) {
        ml_text_printf(&more, "%s", i ? ", " : "");
        ml_sample_write(&more, h->sample[i]);
    }
    ml_text_printf(&more, "]");
    st = ml_python_extensions_call(CONVERT, more.ptr, a, &answer, &source, err);
    ml_text_release(&more);
    rows = st == ML_OK ? ml_json_get(answer, "samples") : NULL;
    list = ML_NEW(a, const ml_sample *, (rows ? rows->n : 0) + 1);
    for (const ml_json *v = rows ? rows->child : NULL; v && st == ML_OK; v = v->next) {
        ml_sample *s = ML_NEW(a, ml_sample, 1);
        st = read_row(s, a, v, source, h, n_vocab, err);
        list[n++] = s;
    }
    if (st != ML_OK)
        ml_err_prefix(err, "--" CONVERT);
    h->sample = list;
    h->n = n;
    return st;
}

ml_rollout ml_rollout_python(ml_custom_rollout *r) {
    return (ml_rollout){ .collect = collect, .ud = r };
}
