/* The rollout batch as the trainer sees it, before training: its metrics, and a file with a line
 * of JSON per sample, in zstd. */
#include <stddef.h>
#include <string.h>

#include "base/json_out.h"
#include "io/zst.h"
#include "rl/learn/learner_priv.h"
#include "rl/record/round_path.h"
#include "rl/record/sample_metrics.h"

/* --- metrics ------------------------------------------------------------------------------ */

/* Adds the mean over samples of the mean over their trained tokens. */
static void add_column(ml_learn_run *s, const char *name, size_t field) {
    double sum = 0.0;

    for (int32_t i = 0; i < s->n; i++) {
        const double *x;
        double own = 0.0, n = 0.0;
        memcpy(&x, (const char *)&s->row[i] + field, sizeof x);
        if (!x && s->row[i].n)
            return;
        for (int64_t t = 0; t < s->row[i].n; t++) {
            own += s->row[i].mask[t] ? x[t] : 0.0;
            n += s->row[i].mask[t];
        }
        sum += own / (n > 1.0 ? n : 1.0);
    }
    ml_metrics_add(&s->out->rollout, "rollout/", name, s->n ? sum / s->n : 0.0);
}

void ml_learn_report(ml_learn_run *s) {
    double raw = 0, used = 0, response = 0, total = 0, truncated = 0, n = s->n ? s->n : 1;

    ml_metrics_init(&s->out->rollout, s->a);
    for (int32_t i = 0; i < s->n; i++) {
        raw += s->in[i]->reward;
        used += s->row[i].reward;
        response += s->in[i]->n_response;
        total += s->in[i]->n_token;
        truncated += s->in[i]->status == ML_SAMPLE_TRUNCATED;
    }
    if (s->l->recipe->compute_advantages) {
        ml_metrics_add(&s->out->rollout, "rollout/", "raw_reward", raw / n);
        ml_metrics_add(&s->out->rollout, "rollout/", "rewards", used / n);
        ml_metrics_parts(&s->out->rollout, "rollout/", s->in, s->n);
    }
    ml_metrics_add(&s->out->rollout, "rollout/", "response_lengths", response / n);
    ml_metrics_add(&s->out->rollout, "rollout/", "total_lengths", total / n);
    ml_metrics_add(&s->out->rollout, "rollout/", "truncated", truncated / n);
    add_column(s, "log_probs", offsetof(miles_sample, old_log_prob));
    add_column(s, "rollout_log_probs", offsetof(miles_sample, rollout_log_prob));
    add_column(s, "ref_log_probs", offsetof(miles_sample, ref_log_prob));
    add_column(s, "teacher_log_probs", offsetof(miles_sample, teacher_log_prob));
    add_column(s, "entropy", offsetof(miles_sample, entropy));
    add_column(s, "values", offsetof(miles_sample, old_value));
    add_column(s, "advantages", offsetof(miles_sample, advantage));
    add_column(s, "returns", offsetof(miles_sample, returns));
    add_column(s, "opd_reverse_kl", offsetof(miles_sample, opd_reverse_kl));
    ml_metrics_add(&s->out->rollout, "rollout/", "stale_tokens", (double)s->out->n_stale);
}

/* --- the file ----------------------------------------------------------------------------- */

static void write_column(ml_json_out *o, const char *key, const double *v, int64_t n) {
    if (!v)
        return;
    ml_json_key(o, key);
    ml_json_begin(o, '[');
    for (int64_t t = 0; t < n; t++)
        ml_json_exact(o, v[t]);
    ml_json_end(o, ']');
}

static void write_columns(ml_json_out *o, const miles_sample *r) {
    write_column(o, "rollout_log_probs", r->rollout_log_prob, r->n);
    write_column(o, "log_probs", r->old_log_prob, r->n);
    write_column(o, "ref_log_probs", r->ref_log_prob, r->n);
    write_column(o, "teacher_log_probs", r->teacher_log_prob, r->n);
    write_column(o, "entropy", r->entropy, r->n);
    write_column(o, "values", r->old_value, r->n);
    write_column(o, "advantages", r->advantage, r->n);
    write_column(o, "returns", r->returns, r->n);
    write_column(o, "opd_reverse_kl", r->opd_reverse_kl, r->n);
}

static void write_int(ml_json_out *o, const char *key, int64_t v) {
    ml_json_key(o, key);
    ml_json_int(o, v);
}

static void write_number(ml_json_out *o, const char *key, double v) {
    ml_json_key(o, key);
    ml_json_exact(o, v);
}

static void write_sample(ml_text *to, const ml_sample *in, const ml_train_sample *x,
                         const miles_sample *r) {
    ml_json_out o = { .to = to };

    ml_json_begin(&o, '{');
    write_int(&o, "sample_index", in->index);
    write_int(&o, "group_index", in->group);
    write_number(&o, "raw_reward", in->reward);
    write_number(&o, "reward", r->reward);
    write_int(&o, "truncated", in->status == ML_SAMPLE_TRUNCATED);
    write_int(&o, "response_length", x->n_response);
    ml_json_key(&o, "tokens");
    ml_json_ids(&o, x->token, x->n_token);
    ml_json_key(&o, "loss_mask");
    ml_json_begin(&o, '[');
    for (int32_t t = 0; t < x->n_response; t++)
        ml_json_int(&o, x->mask[t]);
    ml_json_end(&o, ']');
    write_columns(&o, r);
    ml_json_end(&o, '}');
    ml_text_add(to, "\n", 1);
}

ml_status ml_learn_record(const ml_learn_run *s, ml_err *err) {
    ml_text all = { 0 };
    char *path;
    ml_status st;

    if (!s->l->record_path)
        return ML_OK;
    st = ml_round_path_make(&path, s->a, s->l->record_path, s->rollout, err);
    for (int32_t i = 0; i < s->n && st == ML_OK; i++)
        write_sample(&all, s->in[i], &s->train[i], &s->row[i]);
    if (st == ML_OK)
        st = ml_zst_write(path, (ml_str){ all.ptr, all.len }, err);
    ml_text_release(&all);
    return st;
}
