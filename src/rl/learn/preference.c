#include "rl/learn/preference.h"

#include <math.h>

#include "base/bug.h"
#include "rl/builtins.h"

/* The answer of a sample. */
typedef struct answer {
    double policy, ref; /* sums of log-probs */
    double n;
    double d; /* derivative of the pair's loss with respect to the sum */
} answer;

static answer sum_of(const ml_preference_row *x) {
    const miles_sample *s = x->row;
    answer out = { 0 };

    for (int64_t t = s->n - x->n_answer; t < s->n; t++) {
        out.policy += s->old_log_prob[t];
        out.ref += s->ref_log_prob ? s->ref_log_prob[t] : 0;
        out.n++;
    }
    return out;
}

/* --- pairs ------------------------------------------------------------------------ */

static double smoothed(const ml_preference_opts *o, double h, double *d) {
    double e = o->label_smoothing;

    *d = -(1 - e) * ml_sigmoid(-h) + e * ml_sigmoid(h);
    return -(1 - e) * ml_log_sigmoid(h) - e * ml_log_sigmoid(-h);
}

/* log(p / (1 - p)) of p = e^x, and its derivative. */
static double log_odds(double x, double *d) {
    *d = 1 + exp(x) / -expm1(x);
    return x - log(-expm1(x));
}

static double odds_loss(const ml_preference_opts *o, answer *c, answer *r) {
    double dc, dr, h = log_odds(c->policy / c->n, &dc) - log_odds(r->policy / r->n, &dr);
    double d = -o->beta * ml_sigmoid(-h);

    c->d = d * dc / c->n;
    r->d = -d * dr / r->n;
    return -o->beta * ml_log_sigmoid(h);
}

static double pair_loss(const ml_preference_opts *o, answer *c, answer *r) {
    double h = (c->policy - c->ref) - (r->policy - r->ref), d, loss;
    double mean = (c->policy - c->ref) / c->n - (r->policy - r->ref) / r->n;

    switch (o->kind) {
    case ML_PREFERENCE_ORPO: return odds_loss(o, c, r);
    case ML_PREFERENCE_HINGE:
        d = o->beta * h < 1 ? -o->beta : 0;
        loss = fmax(0, 1 - o->beta * h);
        break;
    case ML_PREFERENCE_IPO:
        d = 2 * (mean - 1 / (2 * o->beta));
        loss = d * d / 4;
        break;
    case ML_PREFERENCE_SIMPO:
        loss = smoothed(o, o->beta * mean - o->gamma, &d);
        d *= o->beta;
        break;
    default: loss = smoothed(o, o->beta * h, &d); d *= o->beta;
    }
    c->d = d, r->d = -d;
    if (o->kind == ML_PREFERENCE_IPO || o->kind == ML_PREFERENCE_SIMPO)
        c->d /= c->n, r->d /= r->n;
    return loss;
}

/* The implied reward. */
static double reward_of(const ml_preference_opts *o, const answer *x) {
    bool mean = o->kind == ML_PREFERENCE_SIMPO || o->kind == ML_PREFERENCE_ORPO;
    return o->beta * (mean ? x->policy / x->n : x->policy - x->ref);
}

static double *numbers(ml_arena *a, const ml_preference_row *x) {
    double *out = ML_NEW(a, double, ML_PREFERENCE_NUMBERS);
    x->row->preference = out;
    return out;
}

/* The negative derivative: of the answer's tokens -d, of all trained tokens also `all`. */
static void put_derivative(ml_arena *a, const ml_preference_row *x, double d, double all) {
    miles_sample *s = x->row;
    double *advantage = ML_NEW(a, double, s->n + 1);

    for (int64_t t = 0; t < s->n; t++)
        advantage[t] = (s->mask[t] ? all : 0) - (t >= s->n - x->n_answer ? d : 0);
    s->advantage = advantage;
}

/* The sum of -log p over all trained tokens of a sample. */
static double all_tokens(const ml_preference_row *x, int64_t *n) {
    double sum = 0;

    for (int64_t t = 0; t < x->row->n; t++)
        if (x->row->mask[t]) {
            sum -= x->row->old_log_prob[t];
            ++*n;
        }
    return sum;
}

static void compute_pairs(ml_arena *a, const ml_preference_opts *o,
                          const ml_preference_row *row, int64_t n) {
    bool orpo = o->kind == ML_PREFERENCE_ORPO;
    int64_t n_token = 0;

    for (int64_t i = 0; i < n && orpo; i += 2)
        all_tokens(&row[i], &n_token);
    for (int64_t i = 0; i < n; i += 2) {
        answer c = sum_of(&row[i]), r = sum_of(&row[i + 1]);
        double loss = pair_loss(o, &c, &r),
               all = orpo ? ((double)n / 2) / (double)n_token : 0;
        double *first = numbers(a, &row[i]), *second = numbers(a, &row[i + 1]);
        int64_t own = 0;
        first[ML_PREFERENCE_LOSS] = loss + (orpo ? all * all_tokens(&row[i], &own) : 0);
        first[ML_PREFERENCE_CHOSEN] = reward_of(o, &c);
        second[ML_PREFERENCE_REJECTED] = reward_of(o, &r);
        first[ML_PREFERENCE_MARGIN] = reward_of(o, &c) - reward_of(o, &r);
        first[ML_PREFERENCE_ACCURACY] = first[ML_PREFERENCE_MARGIN] > 0;
        put_derivative(a, &row[i], c.d, all);
        put_derivative(a, &row[i + 1], r.d, 0);
    }
}

/* --- single answers ------------------------------------------------------------------ */

static void compute_single(ml_arena *a, const ml_preference_opts *o,
                           const ml_preference_row *row, int64_t n) {
    double kl = 0, count[2] = { 0 };

    for (int64_t i = 0; i < n; i += 2) {
        answer other = sum_of(&row[i + 1]);
        kl += (other.policy - other.ref) / ((double)n / 2);
        count[row[i].desirable]++;
    }
    kl = fmax(0, kl);
    for (int64_t i = 0; i < n; i += 2) {
        answer x = sum_of(&row[i]);
        double sign = row[i].desirable ? 1 : -1, *own = numbers(a, &row[i]);
        double weight = row[i].desirable ? o->desirable : o->undesirable;
        double p = ml_sigmoid(sign * o->beta * (x.policy - x.ref - kl));
        numbers(a, &row[i + 1]);
        own[ML_PREFERENCE_LOSS] = weight * (1 - p);
        own[row[i].desirable ? ML_PREFERENCE_CHOSEN : ML_PREFERENCE_REJECTED] =
            reward_of(o, &x) * ((double)n / 2) / count[row[i].desirable];
        own[ML_PREFERENCE_KL] = kl;
        put_derivative(a, &row[i], -weight * sign * o->beta * p * (1 - p), 0);
        put_derivative(a, &row[i + 1], 0, 0);
    }
}

ml_status ml_preferences_compute(ml_arena *a, const ml_preference_opts *o,
                                 const ml_preference_row *row, int64_t n, ml_err *err) {
    if (n % 2)
        return ml_fail(err, ML_EFORMAT, "a batch of %lld samples is not one of pairs",
                       (long long)n);
    for (int64_t i = 0; i < n; i++) {
        ML_BUG_IF(!row[i].row->old_log_prob);
        if (row[i].n_answer < 1 || row[i].n_answer > row[i].row->n)
            return ml_fail(err, ML_EFORMAT, "sample %lld has no answer", (long long)i);
    }
    if (o->kind == ML_PREFERENCE_KTO)
        compute_single(a, o, row, n);
    else
        compute_pairs(a, o, row, n);
    return ML_OK;
}

/* --- the loss of a sample --------------------------------------------------------------- */

static int32_t metrics(const miles_algo *algo, miles_metric *out) {
    static const char *const name[] = { "rewards/chosen", "rewards/rejected",
                                        "rewards/margins", "rewards/accuracies", "kl" };
    (void)algo;
    for (int i = 0; i < ML_PREFERENCE_NUMBERS - 1; i++)
        out[i] = (miles_metric){ name[i], MILES_MEAN_POLICY };
    return ML_PREFERENCE_NUMBERS - 1;
}

static int run(const miles_sample *s, const miles_algo *algo, miles_loss_out *out,
               miles_error *err) {
    (void)algo, (void)err;
    ML_BUG_IF(!s->preference);
    out->policy = s->preference[ML_PREFERENCE_LOSS];
    for (int i = 1; i < ML_PREFERENCE_NUMBERS; i++)
        out->metric[i - 1] = s->preference[i];
    for (int64_t t = 0; t < s->n; t++)
        out->d_log_prob[t] = -s->advantage[t] * out->policy_scale;
    return 0;
}

const miles_loss ml_loss_preference = {
    .base = { sizeof(miles_loss), MILES_LOSS, "preference_loss", NULL,
              "preferences between answers: the loss of miles dpo" },
    .metrics = metrics,
    .run = run,
};

/* Sums over samples become means over pairs. */
static int divide(const miles_batch *b, const miles_algo *algo, double denominator,
                  double *divisor, miles_error *err) {
    (void)algo, (void)err;
    for (int64_t i = 0; i < b->n; i++)
        divisor[i] = (double)b->n / 2 / denominator;
    return 0;
}

const miles_reducer ml_reducer_pairs = {
    .base = { sizeof(miles_reducer), MILES_REDUCER, "pairs", NULL,
              "the mean over the pairs of a preference loss" },
    .run = divide,
};
