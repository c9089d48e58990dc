/* The samples of a round, wherever they come from. */
#include "rl/rollout.h"
#include "rl/sample_figures.h"

void ml_harvest_copy(ml_harvest *out, ml_arena *a, const ml_harvest *in) {
    ml_sample *sample = ML_NEW(a, ml_sample, in->n + 1);

    out->n = in->n;
    out->n_drawn = in->n_drawn;
    out->made_s = in->made_s;
    out->sample = ML_NEW(a, const ml_sample *, in->n + 1);
    for (int64_t i = 0; i < in->n; i++) {
        ml_sample_copy(&sample[i], a, in->sample[i]);
        out->sample[i] = &sample[i];
    }
    for (const ml_figure *f = in->figures.first; f; f = f->next)
        ml_figures_add(&out->figures, f->name, "", f->value);
}

void ml_harvest_report(ml_harvest *h, int32_t n_per_group, bool turns) {
    ml_figures *f = &h->figures;

    ml_figures_lengths(f, "rollout/", h->sample, h->n);
    ml_figures_zero_std(f, "rollout/", h->sample, h->n);
    if (turns)
        ml_figures_turns(f, h->sample, h->n);
    ml_figures_pass_rate(f, "passrate/", h->sample, h->n, n_per_group);
}
