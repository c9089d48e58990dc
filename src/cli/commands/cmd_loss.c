/* miles loss: the algorithms on given numbers.  Reads a batch of samples per line of
 * standard input and writes its advantages, loss, derivatives and metrics per line of
 * standard output. */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "cli/cli.h"
#include "plugin/resolve.h"
#include "rl/learn/advantage/advantages.h"
#include "rl/learn/advantage/reward_norm.h"
#include "rl/builtins.h"
#include "rl/learn/loss/step_loss.h"

typedef struct loss_job {
    ml_recipe recipe;
    int64_t n_line;
    ml_arena arena; /* of one line */
    miles_sample *sample;
    const miles_sample **view;
    miles_batch batch;
    bool *has_reward;
    ml_text out;
} loss_job;

/* --- reading ------------------------------------------------------------------ */

static const struct {
    const char *name;
    size_t at;
} columns[] = {
    { "log_probs", offsetof(miles_sample, log_prob) },
    { "old_log_probs", offsetof(miles_sample, old_log_prob) },
    { "rollout_log_probs", offsetof(miles_sample, rollout_log_prob) },
    { "ref_log_probs", offsetof(miles_sample, ref_log_prob) },
    { "teacher_log_probs", offsetof(miles_sample, teacher_log_prob) },
    { "entropy", offsetof(miles_sample, entropy) },
    { "values", offsetof(miles_sample, value) },
    { "old_values", offsetof(miles_sample, old_value) },
    { "advantages", offsetof(miles_sample, advantage) },
    { "returns", offsetof(miles_sample, returns) },
    { "opd_reverse_kl", offsetof(miles_sample, opd_reverse_kl) },
};
#define N_COLUMN (sizeof columns / sizeof *columns)

static ml_status bad(const loss_job *j, int64_t i, const char *field, const char *want,
                     ml_err *err) {
    return ml_fail(err, ML_EFORMAT,
                   "standard input, line %lld: \"%s\" of sample %lld must be %s",
                   (long long)j->n_line, field, (long long)i, want);
}

/* JSON has no non-finite numbers; strings represent them. */
static bool read_number(const ml_json *v, double *out) {
    static const struct {
        const char *word;
        double value;
    } words[] = { { "nan", (double)NAN },
                  { "inf", (double)INFINITY },
                  { "-inf", -(double)INFINITY } };

    for (size_t i = 0; v->type == ML_JSON_STRING && i < 3; i++)
        if (ml_str_is(v->text, words[i].word)) {
            *out = words[i].value;
            return true;
        }
    return ml_json_f64(v, out);
}

static ml_status read_column(loss_job *j, int64_t i, const ml_json *v, const double **out,
                             ml_err *err) {
    char key[80];
    double *x = ML_NEW(&j->arena, double, v->n + 1);
    int64_t t = 0;

    snprintf(key, sizeof key, "%.*s", (int)v->key.len, v->key.ptr);
    if (v->type != ML_JSON_ARRAY)
        return bad(j, i, key, "an array with one number per response token", err);
    if (v->n != j->sample[i].n)
        return bad(j, i, key, "as long as the sample's other arrays", err);
    for (const ml_json *e = v->child; e; e = e->next)
        if (!read_number(e, &x[t++]))
            return bad(j, i, key, "numbers, or \"nan\", \"inf\", \"-inf\"", err);
    *out = x;
    return ML_OK;
}

static ml_status read_mask(loss_job *j, int64_t i, const ml_json *v, ml_err *err) {
    uint8_t *mask = ML_NEW(&j->arena, uint8_t, j->sample[i].n + 1);
    int64_t t = 0;

    memset(mask, 1, (size_t)j->sample[i].n);
    j->sample[i].mask = j->sample[i].kept = mask;
    if (!v)
        return ML_OK;
    if (v->n != j->sample[i].n)
        return bad(j, i, "loss_mask", "as long as the sample's other arrays", err);
    for (const ml_json *e = v->child; e; e = e->next, t++) {
        int64_t m;
        if (!ml_json_i64(e, &m) || m < 0 || m > 1)
            return bad(j, i, "loss_mask", "an array of 0 and 1", err);
        mask[t] = (uint8_t)m;
    }
    return ML_OK;
}

static ml_status read_versions(loss_job *j, int64_t i, const ml_json *v, ml_err *err) {
    int64_t *version = ML_NEW(&j->arena, int64_t, v->n + 1), t = 0;

    if (v->type != ML_JSON_ARRAY || v->n != j->sample[i].n)
        return bad(j, i, "weight_versions", "as long as the sample's other arrays", err);
    for (const ml_json *e = v->child; e; e = e->next)
        if (!ml_json_i64(e, &version[t++]))
            return bad(j, i, "weight_versions", "whole numbers", err);
    j->sample[i].weight_version = version;
    return ML_OK;
}

static ml_status read_field(loss_job *j, int64_t i, const ml_json *v, ml_err *err) {
    miles_sample *s = &j->sample[i];
    char key[80];

    if (v->type == ML_JSON_NULL || ml_str_is(v->key, "loss_mask"))
        return ML_OK;
    for (size_t c = 0; c < N_COLUMN; c++)
        if (ml_str_is(v->key, columns[c].name))
            return read_column(j, i, v,
                               (const double **)(void *)((char *)s + columns[c].at), err);
    if (ml_str_is(v->key, "weight_versions"))
        return read_versions(j, i, v, err);
    if (ml_str_is(v->key, "group"))
        return ml_json_i64(v, &s->group) ? ML_OK
                                         : bad(j, i, "group", "a whole number", err);
    if (ml_str_is(v->key, "rollout_id"))
        return ml_json_i64(v, &s->rollout) ? ML_OK
                                           : bad(j, i, "rollout_id", "a whole number", err);
    snprintf(key, sizeof key, "%.*s", (int)v->key.len, v->key.ptr);
    if (!ml_str_is(v->key, "reward"))
        return bad(j, i, key, "removed: miles loss does not know it", err);
    j->has_reward[i] = true;
    return read_number(v, &s->reward) ? ML_OK : bad(j, i, "reward", "a number", err);
}

/* The response's length is that of its first array. */
static int64_t response_length(const ml_json *sample) {
    for (const ml_json *v = sample->child; v; v = v->next)
        if (v->type == ML_JSON_ARRAY)
            return v->n;
    return 0;
}

static ml_status read_sample(loss_job *j, int64_t i, const ml_json *v, ml_err *err) {
    miles_sample *s = &j->sample[i];
    ml_status st;

    if (v->type != ML_JSON_OBJECT)
        return bad(j, i, "samples", "an object", err);
    *s = (miles_sample){ .size = sizeof *s, .n = response_length(v), .rollout = -1 - i };
    st = read_mask(j, i, ml_json_get(v, "loss_mask"), err);
    for (const ml_json *f = v->child; f && st == ML_OK; f = f->next)
        st = read_field(j, i, f, err);
    if (!s->old_value)
        s->old_value = s->value;
    if (j->recipe.skip_actor_forward_only)
        s->old_log_prob = s->log_prob;
    return st;
}

static ml_status read_batch(loss_job *j, ml_str line, ml_err *err) {
    char name[60];
    const ml_json *doc, *samples;
    ml_status st;
    int64_t i = 0;

    snprintf(name, sizeof name, "standard input, line %lld", (long long)j->n_line);
    st = ml_json_parse(&doc, &j->arena, line, name, err);
    if (st != ML_OK)
        return st;
    samples = ml_json_get(doc, "samples");
    if (!samples || samples->type != ML_JSON_ARRAY)
        return ml_fail(err, ML_EFORMAT, "%s: expected {\"samples\": [{...}, ...]}", name);
    j->sample = ML_NEW(&j->arena, miles_sample, samples->n + 1);
    j->view = ML_NEW(&j->arena, const miles_sample *, samples->n + 1);
    j->has_reward = ML_NEW(&j->arena, bool, samples->n + 1);
    for (const ml_json *v = samples->child; v && st == ML_OK; v = v->next, i++) {
        j->view[i] = &j->sample[i];
        st = read_sample(j, i, v, err);
    }
    j->batch = (miles_batch){ sizeof j->batch, samples->n, j->view };
    return st;
}

/* --- writing ------------------------------------------------------------------ */

static void put_number(ml_text *out, double x) {
    if (isfinite(x))
        ml_json_number(out, x);
    else
        ml_text_printf(out, isnan(x) ? "\"nan\"" : x > 0.0 ? "\"inf\"" : "\"-inf\"");
}

static void put_name(ml_text *out, const char *name) {
    ml_text_printf(out, "%s\"%s\": ", out->len && out->ptr[out->len - 1] == '{' ? "" : ", ",
                   name);
}

static void put_row(ml_text *out, const double *x, int64_t n) {
    ml_text_printf(out, "[");
    for (int64_t t = 0; t < n; t++) {
        ml_text_printf(out, t ? ", " : "");
        put_number(out, x[t]);
    }
    ml_text_printf(out, "]");
}

static void put_columns(loss_job *j, const char *name, double *const *x) {
    put_name(&j->out, name);
    ml_text_printf(&j->out, "[");
    for (int64_t i = 0; i < j->batch.n; i++) {
        ml_text_printf(&j->out, i ? ", " : "");
        put_row(&j->out, x[i], j->sample[i].n);
    }
    ml_text_printf(&j->out, "]");
}

static void put_metrics(loss_job *j, const char *name, const ml_step_loss *s) {
    double loss, metric[ML_STEP_METRIC_MAX];

    ml_step_loss_totals(s, &loss, metric);
    put_name(&j->out, name);
    ml_text_printf(&j->out, "{");
    put_name(&j->out, "loss");
    put_number(&j->out, loss);
    for (int32_t k = 0; k < s->n_metric; k++) {
        put_name(&j->out, s->metric[k].name);
        put_number(&j->out, metric[k]);
    }
    ml_text_printf(&j->out, "}");
}

static void put_total(loss_job *j, const char *name, const ml_step_loss *s) {
    double loss, metric[ML_STEP_METRIC_MAX];

    ml_step_loss_totals(s, &loss, metric);
    put_name(&j->out, name);
    put_number(&j->out, loss);
}

/* --- one batch ---------------------------------------------------------------- */

static ml_status normalise_rewards(loss_job *j, ml_err *err) {
    ml_reward_row *row = ML_NEW(&j->arena, ml_reward_row, j->batch.n + 1);
    double *reward = ML_NEW(&j->arena, double, j->batch.n + 1);
    ml_status st = ML_OK;

    for (int64_t i = 0; i < j->batch.n; i++) {
        if (!j->has_reward[i])
            return bad(j, i, "reward", "removed: advantages are computed from it", err);
        row[i] = (ml_reward_row){ j->sample[i].group, j->sample[i].rollout,
                                  j->sample[i].reward };
        reward[i] = row[i].reward;
    }
    if (j->recipe.centre_rewards)
        st = ml_rewards_normalise(reward, row, j->batch.n, j->recipe.scale_rewards, err);
    for (int64_t i = 0; i < j->batch.n; i++)
        j->sample[i].reward = reward[i];
    put_name(&j->out, "rewards");
    put_row(&j->out, reward, j->batch.n);
    return st;
}

static ml_status estimate(loss_job *j, ml_err *err) {
    ml_advantages adv;
    ml_status st = normalise_rewards(j, err);

    if (st == ML_OK)
        st = ml_advantages_compute(&adv, &j->arena, &j->recipe, &j->batch, err);
    if (st != ML_OK)
        return st;
    put_columns(j, "advantages", adv.advantage);
    put_columns(j, "returns", adv.returns);
    if (adv.opd_reverse_kl)
        put_columns(j, "opd_reverse_kl", adv.opd_reverse_kl);
    for (int64_t i = 0; i < j->batch.n; i++) {
        j->sample[i].advantage = adv.advantage[i];
        j->sample[i].returns = adv.returns[i];
        if (adv.opd_reverse_kl)
            j->sample[i].opd_reverse_kl = adv.opd_reverse_kl[i];
    }
    return ML_OK;
}

typedef struct derivatives {
    double **log_prob, **entropy, **value;
} derivatives;

static ml_status run_loss(loss_job *j, ml_step_loss *s, const miles_loss *loss,
                          derivatives *d, ml_err *err) {
    ml_status st = ml_step_loss_init(s, &j->arena, &j->recipe, loss, &j->batch, err);

    *d = (derivatives){ ml_columns_new(&j->arena, &j->batch),
                        ml_columns_new(&j->arena, &j->batch),
                        ml_columns_new(&j->arena, &j->batch) };
    for (int64_t i = 0; i < j->batch.n && st == ML_OK; i++) {
        const miles_sample *x = &j->sample[i];
        st = ml_step_loss_sample(
            s, i, (ml_model_outputs){ x->log_prob, x->entropy, x->value },
            (ml_derivatives){ d->log_prob[i], d->entropy[i], d->value[i] }, err);
    }
    return st;
}

static bool any_sample(const loss_job *j, size_t column) {
    for (int64_t i = 0; i < j->batch.n; i++) {
        const double *x;
        memcpy(&x, (const char *)&j->sample[i] + column, sizeof x);
        if (x)
            return true;
    }
    return false;
}

static void put_correction(loss_job *j, const ml_step_loss *s) {
    double **weight = ml_columns_new(&j->arena, &j->batch);
    double **kept = ml_columns_new(&j->arena, &j->batch);

    for (int64_t i = 0; i < s->n; i++)
        for (int64_t t = 0; t < s->sample[i].n; t++) {
            weight[i][t] = s->sample[i].weight[t];
            kept[i][t] = s->sample[i].kept[t];
        }
    put_columns(j, "weights", weight);
    put_columns(j, "kept", kept);
}

static void put_loss(loss_job *j, const ml_step_loss *s, const derivatives *d) {
    put_total(j, "loss", s);
    put_name(&j->out, "denominator");
    put_number(&j->out, s->denominator);
    put_columns(j, "d_log_probs", d->log_prob);
    put_columns(j, "d_entropy", d->entropy);
    put_columns(j, "d_values", d->value);
    if (s->num.use_correction)
        put_correction(j, s);
    put_metrics(j, "metrics", s);
}

/* Results for which the batch has no inputs are omitted: advantages need no model. */
static ml_status train(loss_job *j, ml_err *err) {
    bool values = any_sample(j, offsetof(miles_sample, value)) &&
                  any_sample(j, offsetof(miles_sample, returns));
    bool value_only = j->recipe.loss == &ml_loss_value;
    bool critic = values && j->recipe.critic_loss && !value_only;
    ml_step_loss s = { 0 }, c = { 0 };
    derivatives d, of_critic;
    ml_status st;

    if (!(value_only ? values : any_sample(j, offsetof(miles_sample, log_prob))))
        return ML_OK;
    st = run_loss(j, &s, j->recipe.loss, &d, err);
    if (st == ML_OK && critic) {
        st = run_loss(j, &c, j->recipe.critic_loss, &of_critic, err);
        d.value = of_critic.value;
    }
    if (st != ML_OK)
        return st;
    put_loss(j, &s, &d);
    if (critic)
        put_metrics(j, "critic_metrics", &c);
    return ML_OK;
}

/* Supervised fine-tuning has no rewards. */
static bool needs_advantages(const ml_recipe *r) {
    return r->compute_advantages && r->loss != &ml_loss_sft;
}

static ml_status answer(loss_job *j, ml_str line, ml_err *err) {
    ml_status st;

    ml_arena_init(&j->arena, "loss");
    j->out.len = 0;
    ml_text_printf(&j->out, "{");
    st = read_batch(j, line, err);
    if (st == ML_OK && needs_advantages(&j->recipe))
        st = estimate(j, err);
    if (st == ML_OK)
        st = train(j, err);
    ml_text_printf(&j->out, "}\n");
    if (st == ML_OK &&
        (fwrite(j->out.ptr, 1, j->out.len, stdout) != j->out.len || fflush(stdout) != 0))
        st = ml_fail(err, ML_EIO, "cannot write standard output: %s", strerror(errno));
    ml_arena_release(&j->arena);
    return st;
}

static bool is_blank(const char *line) {
    return line[strspn(line, " \t\r\n")] == '\0';
}

ml_status ml_cmd_loss(const ml_config *c, ml_err *err) {
    loss_job j = { 0 };
    char *line = NULL;
    size_t cap = 0;
    ssize_t len;
    ml_status st = ml_recipe_resolve(&j.recipe, &c->algo, err);

    while (st == ML_OK && (len = getline(&line, &cap, stdin)) >= 0) {
        j.n_line++;
        if (!is_blank(line))
            st = answer(&j, (ml_str){ line, (size_t)len }, err);
    }
    if (st == ML_OK && ferror(stdin))
        st = ml_fail(err, ML_EIO, "cannot read standard input: %s", strerror(errno));
    free(line);
    ml_text_release(&j.out);
    return st;
}
