/* The samples of a rollout, independent of their source. */
#include <string.h>

#include "rl/rollout/rollout.h"
#include "rl/record/sample_metrics.h"

static const ml_sample **copy_list(ml_arena *a, const ml_sample *const *in, int64_t n) {
    ml_sample *sample = ML_NEW(a, ml_sample, n + 1);
    const ml_sample **out = ML_NEW(a, const ml_sample *, n + 1);

    for (int64_t i = 0; i < n; i++) {
        ml_sample_copy(&sample[i], a, in[i]);
        out[i] = &sample[i];
    }
    return out;
}

void ml_rollout_batch_copy(ml_rollout_batch *out, ml_arena *a, const ml_rollout_batch *in) {
    out->n = in->n;
    out->n_ended = in->n_ended;
    out->n_drawn = in->n_drawn;
    out->made_s = in->made_s;
    out->engine_s = in->engine_s;
    out->drafts = in->drafts;
    out->sample = copy_list(a, in->sample, in->n);
    out->ended = in->ended ? copy_list(a, in->ended, in->n_ended) : NULL;
    if (in->kept)
        out->kept =
            memcpy(ML_NEW(a, uint8_t, in->n_ended + 1), in->kept, (size_t)in->n_ended);
    for (const ml_metric *f = in->metrics.first; f; f = f->next)
        ml_metrics_add(&out->metrics, f->name, "", f->value);
}

void ml_rollout_batch_report(ml_rollout_batch *h, int32_t n_per_group, bool turns) {
    ml_metrics *f = &h->metrics;

    ml_metrics_lengths(f, "rollout/", h->sample, h->n);
    ml_metrics_zero_std(f, "rollout/", h->sample, h->n);
    if (h->drafts.n_verify) {
        ml_metrics_add(f, "rollout/", "spec_accept_rate",
                       h->drafts.n_draft
                           ? (double)h->drafts.n_accepted / (double)h->drafts.n_draft
                           : 0);
        ml_metrics_add(f, "rollout/", "spec_accept_length",
                       1 + (double)h->drafts.n_accepted / (double)h->drafts.n_verify);
    }
    if (turns)
        ml_metrics_turns(f, h->sample, h->n);
    ml_metrics_pass_rate(f, "passrate/", h->sample, h->n, n_per_group);
}
