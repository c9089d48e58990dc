#include "rl/rollout/prompt_results.h"

#include <math.h>

static void record(ml_curriculum *c, const ml_sample *const *s, int64_t n) {
    int32_t passed = 0;

    for (int64_t i = 0; i < n; i++) {
        if (!s[i]->has_reward)
            return;
        passed += ml_curriculum_passes(c, s[i]->reward);
    }
    ml_curriculum_record(c, s[0]->row, passed, (int32_t)n);
}

void ml_prompt_results_group(ml_data_source *s, const ml_gen_group *g) {
    ml_curriculum *c = ml_data_source_curriculum(s);
    int32_t passed = 0;

    if (!c || (g->fate != ML_GROUP_KEPT && g->fate != ML_GROUP_FILTERED))
        return;
    for (int32_t i = 0; i < g->id.n_sample; i++)
        passed += ml_curriculum_passes(c, g->task[i]->sample.reward);
    ml_curriculum_record(c, g->id.row, passed, g->id.n_sample);
}

void ml_prompt_results_batch(ml_data_source *s, const ml_rollout_batch *h) {
    ml_curriculum *c = ml_data_source_curriculum(s);

    for (int64_t i = 0, end; c && i < h->n; i = end) {
        for (end = i + 1; end < h->n && h->sample[end]->group == h->sample[i]->group;)
            end++;
        record(c, h->sample + i, end - i);
    }
}

void ml_prompt_results_report(ml_data_source *s, ml_metrics *f) {
    const ml_curriculum *c = ml_data_source_curriculum(s);
    ml_curriculum_stats now;

    if (!c)
        return;
    now = ml_curriculum_stats_of(c);
    ml_metrics_add(f, "rollout/curriculum/", "prompts_seen", (double)now.n_seen);
    ml_metrics_add(f, "rollout/curriculum/", "pass_rate", now.pass_rate);
    ml_metrics_add(f, "rollout/curriculum/", "hard_prompts", (double)now.n_failed);
    ml_metrics_add(f, "rollout/curriculum/", "replays", (double)now.n_replays);
    if (!isnan(now.target))
        ml_metrics_add(f, "rollout/curriculum/", "target_difficulty", now.target);
}
