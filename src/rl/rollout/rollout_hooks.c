#include "rl/rollout/rollout_hooks.h"

#include <math.h>
#include <string.h>

#include "rl/answers.h"

/* Copies the batch's samples so that they can be changed; their arrays stay shared. */
static ml_sample **own_samples(ml_rollout_batch *h, ml_arena *a) {
    ml_sample **own = ML_NEW(a, ml_sample *, h->n + 1);
    const ml_sample **list = ML_NEW(a, const ml_sample *, h->n + 1);

    for (int64_t i = 0; i < h->n; i++) {
        own[i] = ML_NEW(a, ml_sample, 1);
        *own[i] = *h->sample[i];
        list[i] = own[i];
    }
    h->sample = list;
    return own;
}

/* Decode and prefill should give bitwise equal log-probs; the largest difference is a
 * metric. */
static ml_status rescore(const ml_scorer *by, ml_sample **s, ml_rollout_batch *h,
                         ml_arena *a, ml_err *err) {
    ml_score_item *again = ML_NEW(a, ml_score_item, h->n + 1);
    double most = 0;
    ml_status st;

    for (int64_t i = 0; i < h->n; i++)
        again[i] = ml_score_item_of(by, s[i], ML_NEW(a, float, s[i]->n_response + 1));
    /* Clear the prefix cache, else decode's KV pages would be reused. */
    by->gen->flush(by->gen);
    st = ml_gen_score(again, (int32_t)h->n, err);
    for (int64_t i = 0; i < h->n && st == ML_OK; i++) {
        const float *logprob = again[i].logprob;
        for (int32_t t = 0; s[i]->logprob && t < s[i]->n_response; t++)
            if (!s[i]->remove && (!s[i]->mask || s[i]->mask[t]))
                most = fmax(most, fabs((double)logprob[t] - (double)s[i]->logprob[t]));
        s[i]->logprob = again[i].logprob;
    }
    ml_metrics_add(&h->metrics, "rollout/", "prefill_logp_max_diff", most);
    return st;
}

static ml_status shape(const miles_reward_post *post, ml_sample **s,
                       const miles_answers *round, ml_arena *a, ml_err *err) {
    double *shaped = ML_NEW(a, double, round->n + 1);
    miles_error why = { "" };

    for (int64_t i = 0; i < round->n; i++)
        shaped[i] = s[i]->reward;
    if (post->run(round, shaped, &why) != 0)
        return ml_extension_failed(&post->base, &why, err);
    for (int64_t i = 0; i < round->n; i++) {
        if (!isfinite(shaped[i]))
            return ml_fail(err, ML_EFORMAT, "%s: sample %lld got a reward of %g",
                           post->base.name, (long long)s[i]->index, shaped[i]);
        s[i]->shaped = shaped[i];
        s[i]->has_shaped = true;
    }
    return ML_OK;
}

static ml_status take_out(const miles_sample_filter *filter, ml_sample **s,
                          const miles_answers *round, ml_arena *a, ml_metrics *metrics,
                          ml_err *err) {
    uint8_t *remove = ML_NEW(a, uint8_t, round->n + 1);
    miles_error why = { "" };
    double n_removed = 0;

    if (filter->run(round, remove, &why) != 0)
        return ml_extension_failed(&filter->base, &why, err);
    for (int64_t i = 0; i < round->n; i++) {
        s[i]->remove |= remove[i] != 0;
        n_removed += remove[i] != 0;
    }
    ml_metrics_add(metrics, "rollout/", "removed_samples", n_removed);
    return ML_OK;
}

/* --- metrics ---------------------------------------------------------------------- */

static void add(miles_metrics_out *out, const char *name, double value) {
    ml_metrics_add(out->ctx, "", name, value);
}

ml_status ml_metrics_run(const miles_metrics *m, ml_metrics *out, const ml_sample *const *s,
                         int64_t n, int64_t rollout, const char *set, ml_err *err) {
    miles_metrics_out to = { sizeof to, out, add };
    miles_error why = { "" };

    if (!m || m->run(ml_answers_of(out->arena, s, n, rollout), set, &to, &why) == 0)
        return ML_OK;
    return ml_extension_failed(&m->base, &why, err);
}

/* --- the rollout -------------------------------------------------------------------- */

/* A recording has only the samples that were kept. */
static ml_status show_all(const miles_samples_hook *hook, const ml_rollout_batch *h,
                          int64_t rollout, ml_arena *a, ml_err *err) {
    const ml_sample **s = h->ended ? h->ended : h->sample;
    int64_t n = h->ended ? h->n_ended : h->n;
    const uint8_t *kept =
        h->ended ? h->kept : memset(ML_NEW(a, uint8_t, n + 1), 1, (size_t)n);
    miles_error why = { "" };

    if (hook->run(ml_answers_of(a, s, n, rollout), kept, &why) == 0)
        return ML_OK;
    return ml_extension_failed(&hook->base, &why, err);
}

static ml_status collect(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err) {
    const ml_rollout_hooks *e = ud;
    ml_status st = e->inner.collect(e->inner.ud, rollout, out, a, err);
    const miles_answers *round;
    ml_sample **own;

    if (st == ML_OK && e->inject.template && rollout >= e->inject.from)
        st = ml_rollout_inject(&e->inject, rollout, out, a, err);
    if (st != ML_OK)
        return st;
    own = own_samples(out, a);
    if (e->rescore.gen)
        st = rescore(&e->rescore, own, out, a, err);
    if (st == ML_OK && e->distill.n_teacher && rollout >= e->n_critic_only)
        st = ml_distill_run(&e->distill, own, out->n, a, err);
    if (st == ML_OK)
        st = ml_reward_shape(&e->shaping, own, out->n, &out->metrics, a, err);
    round = ml_answers_of(a, out->sample, out->n, rollout);
    if (st == ML_OK && e->post)
        st = shape(e->post, own, round, a, err);
    if (st == ML_OK && e->filter)
        st = take_out(e->filter, own, round, a, &out->metrics, err);
    if (st == ML_OK)
        st = ml_metrics_run(e->metrics, &out->metrics, out->sample, out->n, rollout, "",
                            err);
    if (st == ML_OK && e->hook)
        st = show_all(e->hook, out, rollout, a, err);
    if (st == ML_OK && e->convert)
        st = e->convert(rollout, e->inject.n_vocab, out, a, err);
    return st;
}

static ml_status rest(void *ud, ml_err *err) {
    const ml_rollout_hooks *e = ud;
    return e->inner.rest ? e->inner.rest(e->inner.ud, err) : ML_OK;
}

static void cancel(void *ud) {
    const ml_rollout_hooks *e = ud;
    if (e->inner.cancel)
        e->inner.cancel(e->inner.ud);
}

static void save(void *ud, ml_text *out) {
    const ml_rollout_hooks *e = ud;
    if (e->inner.save)
        e->inner.save(e->inner.ud, out);
}

static ml_status load(void *ud, ml_str state, const char *name, ml_err *err) {
    const ml_rollout_hooks *e = ud;
    return e->inner.load ? e->inner.load(e->inner.ud, state, name, err) : ML_OK;
}

ml_rollout ml_rollout_with_hooks(ml_rollout_hooks *e) {
    return (ml_rollout){ .collect = collect,
                         .rest = rest,
                         .cancel = cancel,
                         .save = save,
                         .load = load,
                         .ud = e };
}
