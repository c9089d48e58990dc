#include <stddef.h>
#include <string.h>

#include "rl/learn/learner_priv.h"
#include "rl/record/sample_metrics.h"

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
