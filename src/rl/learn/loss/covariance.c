#include "rl/learn/loss/covariance.h"

#include <math.h>
#include <stdlib.h>

typedef struct token {
    int64_t sample, at;
    double advantage, log_prob;
    double cov;
    uint64_t key; /* of the draw */
} token;

typedef struct tokens {
    token *of;
    int64_t n;
} tokens;

static const double *old_of(const miles_sample *s, const miles_algo *algo) {
    return algo->use_rollout_logprobs ? s->rollout_log_prob : s->old_log_prob;
}

static ml_status check(const miles_batch *b, const miles_algo *algo, ml_err *err) {
    for (int64_t i = 0; i < b->n; i++)
        if (b->sample[i]->n && (!old_of(b->sample[i], algo) || !b->sample[i]->advantage))
            return ml_fail(err, ML_EFORMAT,
                           "sample %lld has no old log-probs or no advantages, whose "
                           "covariance clip_cov_loss and kl_cov_loss need",
                           (long long)i);
    return ML_OK;
}

static int64_t count(const miles_batch *b) {
    int64_t n = 0;

    for (int64_t i = 0; i < b->n; i++)
        for (int64_t t = 0; t < b->sample[i]->n; t++)
            n += b->sample[i]->mask[t];
    return n;
}

/* SplitMix64. */
static uint64_t mixed(uint64_t x) {
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* The trained tokens, with their covariances. */
static tokens list(const miles_batch *b, const miles_algo *algo, ml_arena *a) {
    tokens x = { ML_NEW(a, token, count(b) + 1), 0 };
    double advantage = 0.0, log_prob = 0.0;

    for (int64_t i = 0; i < b->n; i++) {
        const miles_sample *s = b->sample[i];
        const double *old = old_of(s, algo);
        for (int64_t t = 0; t < s->n; t++)
            if (s->mask[t])
                x.of[x.n++] = (token){
                    i,      t,   s->advantage[t],
                    old[t], 0.0, mixed(mixed((uint64_t)s->rollout) + (uint64_t)t)
                };
    }
    for (int64_t i = 0; i < x.n; i++) {
        advantage += x.of[i].advantage;
        log_prob += x.of[i].log_prob;
    }
    for (int64_t i = 0; i < x.n; i++)
        x.of[i].cov = (x.of[i].advantage - advantage / (double)x.n) *
                      (x.of[i].log_prob - log_prob / (double)x.n);
    return x;
}

static int by_place(const token *a, const token *b) {
    return a->sample != b->sample ? (a->sample < b->sample ? -1 : 1)
                                  : (a->at > b->at) - (a->at < b->at);
}

static int by_cov(const void *x, const void *y) {
    const token *a = x, *b = y;
    return a->cov != b->cov ? (a->cov > b->cov ? -1 : 1) : by_place(a, b);
}

static int by_key(const void *x, const void *y) {
    const token *a = x, *b = y;
    return a->key != b->key ? (a->key < b->key ? -1 : 1) : by_place(a, b);
}

/* Chooses the first of the tokens: a share of n, at least one. */
static void choose(uint8_t *const *chosen, const tokens *x, double share, int64_t n) {
    int64_t most = (int64_t)(share * (double)n);

    most = most < 1 ? 1 : most;
    for (int64_t i = 0; i < x->n && i < most; i++)
        chosen[x->of[i].sample][x->of[i].at] = 1;
}

ml_status ml_covariance_clip(uint8_t *const *chosen, const miles_batch *b,
                             const miles_algo *algo, ml_arena *a, ml_err *err) {
    ml_status st = check(b, algo, err);
    tokens all, some = { 0 };

    if (st != ML_OK)
        return st;
    all = list(b, algo, a);
    some.of = all.of;
    for (int64_t i = 0; i < all.n; i++)
        if (all.of[i].cov > algo->clip_cov_lb && all.of[i].cov < algo->clip_cov_ub)
            some.of[some.n++] = all.of[i];
    qsort(some.of, (size_t)some.n, sizeof *some.of, by_key);
    choose(chosen, &some, algo->clip_cov_ratio, all.n);
    return ML_OK;
}

ml_status ml_covariance_largest(uint8_t *const *chosen, const miles_batch *b,
                                const miles_algo *algo, ml_arena *a, ml_err *err) {
    ml_status st = check(b, algo, err);
    tokens all, some;

    if (st != ML_OK)
        return st;
    all = list(b, algo, a);
    some = (tokens){ all.of, 0 };
    for (int64_t i = 0; i < all.n; i++)
        if (isfinite(all.of[i].cov))
            some.of[some.n++] = all.of[i];
    qsort(some.of, (size_t)some.n, sizeof *some.of, by_cov);
    choose(chosen, &some, algo->kl_cov_ratio, all.n);
    return ML_OK;
}
