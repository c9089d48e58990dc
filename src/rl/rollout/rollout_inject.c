/* Replaces a generated batch with a recorded one, so that two runs train on the same
 * samples whatever their engines generate, and reports how much the two batches differ. */
#include <string.h>

#include "rl/rollout/rollout_hooks.h"

static bool same_tokens(const ml_sample *a, const ml_sample *b) {
    return a->n_token == b->n_token && a->n_response == b->n_response &&
           memcmp(a->token, b->token, (size_t)a->n_token * sizeof *a->token) == 0;
}

/* Both are ordered by index. */
static int64_t count_same(const ml_rollout_batch *made, const ml_rollout_batch *recorded) {
    int64_t same = 0, k = 0;

    for (int64_t i = 0; i < recorded->n; i++) {
        while (k < made->n && made->sample[k]->index < recorded->sample[i]->index)
            k++;
        if (k < made->n && made->sample[k]->index == recorded->sample[i]->index)
            same += same_tokens(made->sample[k], recorded->sample[i]);
    }
    return same;
}

ml_status ml_rollout_inject(const ml_inject *from, int64_t rollout, ml_rollout_batch *h,
                            ml_arena *a, ml_err *err) {
    ml_replay_rollout replay = { .template = from->template, .n_vocab = from->n_vocab };
    ml_rollout recorded = ml_rollout_replay(&replay);
    ml_rollout_batch instead = { 0 };
    ml_status st = recorded.collect(recorded.ud, rollout, &instead, a, err);
    double share;

    if (st != ML_OK)
        return st;
    share = (double)count_same(h, &instead) / (double)instead.n;
    if (share < from->least)
        return ml_fail(err, ML_EFORMAT,
                       "--ci-inject-rollout-data-path: a fraction of the recorded samples "
                       "of rollout %lld, %.4g, was generated again, less than "
                       "--ci-inject-rollout-data-min-match-ratio %g",
                       (long long)rollout, share, from->least);
    ml_metrics_add(&h->metrics, "rollout/", "injected_match_ratio", share);
    h->sample = instead.sample;
    h->n = instead.n;
    return ML_OK;
}
