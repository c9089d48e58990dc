#include "rl/learn/reduce/divisors.h"

#include <stdlib.h>

#include "base/arena.h"

typedef struct member {
    int64_t rollout, i;
} member;

static int by_rollout(const void *a, const void *b) {
    const member *x = a, *y = b;

    if (x->rollout != y->rollout)
        return x->rollout < y->rollout ? -1 : 1;
    return (x->i > y->i) - (x->i < y->i);
}

static int64_t trained(const miles_sample *s) {
    int64_t n = 0;

    for (int64_t t = 0; t < s->n; t++)
        n += s->mask[t];
    return n;
}

static double per_token_divisors(double *divisor, const miles_batch *b) {
    int64_t total = 0;

    for (int64_t i = 0; i < b->n; i++) {
        int64_t n = trained(b->sample[i]);
        divisor[i] = 1.0;
        total += n ? n : 1;
    }
    return (double)(total ? total : 1);
}

static double per_rollout_divisors(double *divisor, const miles_batch *b, member *m) {
    int64_t n_rollout = 0;

    for (int64_t i = 0; i < b->n; i++)
        m[i] = (member){ b->sample[i]->rollout, i };
    qsort(m, (size_t)b->n, sizeof *m, by_rollout);
    for (int64_t i = 0, end; i < b->n; i = end, n_rollout++) {
        int64_t n = 0;
        for (end = i; end < b->n && m[end].rollout == m[i].rollout; end++)
            n += trained(b->sample[m[end].i]);
        for (int64_t k = i; k < end; k++)
            divisor[m[k].i] = (double)(n ? n : 1);
    }
    return (double)(n_rollout ? n_rollout : 1);
}

double ml_divisors(double *divisor, const miles_batch *batch, bool per_token) {
    ml_arena a;
    double denominator;

    if (per_token)
        return per_token_divisors(divisor, batch);
    ml_arena_init(&a, "divisors");
    denominator = per_rollout_divisors(divisor, batch, ML_NEW(&a, member, batch->n + 1));
    ml_arena_release(&a);
    return denominator;
}

double ml_fold(const double *number, int64_t stride, int64_t n, const double *divisor,
               double denominator) {
    double sum = 0.0;

    for (int64_t i = 0; i < n; i++)
        sum += divisor ? number[i * stride] / divisor[i] : number[i * stride];
    return sum / denominator;
}
