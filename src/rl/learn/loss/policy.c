/* The policy losses: a surrogate for each trained token, minus an entropy bonus, plus a KL
 * term against the reference.  Values that are not finite count as "no difference" in the
 * ratio and the KL term, as in Miles; the step's other metrics show them. */
#include <math.h>
#include <stdio.h>

#include "base/exp.h"
#include "rl/builtins.h"
#include "rl/learn/loss/kl.h"
#include "rl/learn/loss/surrogate.h"

/* The order of the metrics; those that a run does not use are omitted. */
typedef enum policy_metric {
    PG_LOSS,
    ENTROPY_LOSS,
    PG_CLIPFRAC,
    PPO_KL,
    ESS_RATIO,
    ABS_DIFF,
    TRAIN_ROLLOUT_KL,
    KL_LOSS,
    OIS,
    OPSM_CLIPFRAC,
    OPD_REVERSE_KL,
    N_METRIC
} policy_metric;

static const miles_metric all_metrics[N_METRIC] = {
    [PG_LOSS] = { "pg_loss", MILES_MEAN_POLICY },
    [ENTROPY_LOSS] = { "entropy_loss", MILES_MEAN_SAMPLE },
    [PG_CLIPFRAC] = { "pg_clipfrac", MILES_MEAN_SAMPLE },
    [PPO_KL] = { "ppo_kl", MILES_MEAN_SAMPLE },
    [ESS_RATIO] = { "ess_ratio", MILES_MEAN_NONE },
    [ABS_DIFF] = { "train_rollout_logprob_abs_diff", MILES_MEAN_SAMPLE },
    [TRAIN_ROLLOUT_KL] = { "train_rollout_kl", MILES_MEAN_SAMPLE },
    [KL_LOSS] = { "kl_loss", MILES_MEAN_SAMPLE },
    [OIS] = { "ois", MILES_MEAN_SAMPLE },
    [OPSM_CLIPFRAC] = { "opsm_clipfrac", MILES_MEAN_NONE },
    [OPD_REVERSE_KL] = { "opd_reverse_kl", MILES_MEAN_SAMPLE },
};

static bool reported(const miles_algo *algo, policy_metric m) {
    switch (m) {
    case ENTROPY_LOSS: return algo->use_entropy;
    case ABS_DIFF:
    case TRAIN_ROLLOUT_KL: return algo->has_rollout_logprobs;
    case KL_LOSS: return algo->use_kl_loss;
    case OIS: return algo->use_correction;
    case OPSM_CLIPFRAC: return algo->use_opsm;
    case OPD_REVERSE_KL: return algo->has_opd_reverse_kl;
    default: return true;
    }
}

static int32_t metrics(const miles_algo *algo, miles_metric *out) {
    int32_t n = 0;

    for (int m = 0; m < N_METRIC; m++)
        if (reported(algo, (policy_metric)m))
            out[n++] = all_metrics[m];
    return n;
}

/* Which ratio a loss has, token by token. */
typedef enum ratio_of {
    OF_TOKEN,    /* or, with sequence_ratio, the geometric mean of the sequence (GSPO) */
    OF_CLIPPED,  /* the geometric mean of clipped ratios (GMPO) */
    OF_SEQUENCE, /* of the whole sequence, a constant (VESPO) */
} ratio_of;

/* What a policy loss does with tokens that were chosen for their covariance. */
typedef enum chosen_are { CHOSEN_NONE, CHOSEN_DROPPED, CHOSEN_PENALISED } chosen_are;

typedef struct policy_kind {
    ml_surrogate_fn *surrogate;
    ratio_of ratio;
    chosen_are chosen;
} policy_kind;

/* The state of one sample while its loss is computed. */
typedef struct pass {
    const miles_sample *s;
    const miles_algo *algo;
    miles_loss_out *out;
    const policy_kind *kind;
    const double *old;    /* [n] log-probs in the denominator of the ratio */
    double n_trained;     /* at least 1 */
    double sequence_kl;   /* mean of old - new over the trained tokens */
    double clipped_kl;    /* the same, with GMPO's clip */
    double sequence_log;  /* sum of new - old over the trained tokens, each clamped */
    double d_sequence;    /* derivative with respect to -sequence_kl or -clipped_kl */
    double w, w2;         /* sums of the ratio and of its square */
    double sum[N_METRIC]; /* over the tokens that count for each */
} pass;

static double finite_or_zero(double x) {
    return isfinite(x) ? x : 0.0;
}

/* GMPO's log ratio of a token; moves: it has a derivative. */
static double clipped_log_ratio(const pass *p, int64_t t, bool *moves) {
    double raw = p->s->log_prob[t] - p->old[t];
    double of = ml_gmpo_log_ratio(finite_or_zero(raw), finite_or_zero(p->s->advantage[t]),
                                  p->algo, moves);
    *moves = *moves && isfinite(raw);
    return of;
}

static void sequence_statistics(pass *p) {
    int64_t n = 0;
    double sum = 0.0, clipped = 0.0;
    bool unused;

    for (int64_t t = 0; t < p->s->n; t++)
        if (p->s->mask[t]) {
            double kl = p->old[t] - p->s->log_prob[t];
            sum += kl;
            n++;
            if (p->kind->ratio == OF_CLIPPED)
                clipped -= clipped_log_ratio(p, t, &unused);
            if (p->kind->ratio == OF_SEQUENCE)
                p->sequence_log += ml_log_ratio_clamp(-kl, &unused);
        }
    p->n_trained = n ? (double)n : 1.0;
    p->sequence_kl = sum / p->n_trained;
    p->clipped_kl = clipped / p->n_trained;
}

/* Off-policy sequence masking: drops tokens of negative advantage if the policy has moved
 * too far from the one that generated the sequence. */
static bool left_out(const pass *p, int64_t t) {
    return p->algo->use_opsm && p->s->advantage[t] < 0.0 &&
           p->sequence_kl > p->algo->opsm_delta;
}

/* Whether one ratio, with a derivative, belongs to all tokens. */
static bool is_joint(const pass *p) {
    return p->kind->ratio == OF_CLIPPED ||
           (p->kind->ratio == OF_TOKEN && p->algo->sequence_ratio);
}

/* old - new, as the ratio of token t has it. */
static double kl_of(const pass *p, int64_t t) {
    if (p->kind->ratio == OF_CLIPPED)
        return p->clipped_kl;
    return is_joint(p) ? p->sequence_kl : p->old[t] - p->s->log_prob[t];
}

static bool is_chosen(const pass *p, int64_t t, chosen_are kind) {
    return p->kind->chosen == kind && p->s->chosen && p->s->chosen[t];
}

/* The loss of a token, before its weight. */
static ml_surrogate term_of(const pass *p, int64_t t, double kl, double advantage) {
    double log_ratio = p->kind->ratio == OF_SEQUENCE ? p->sequence_log : -kl;
    ml_surrogate term =
        p->kind->surrogate(log_ratio, p->s->log_prob[t], advantage, p->algo);
    bool moves;

    if (p->kind->ratio == OF_CLIPPED) {
        (void)clipped_log_ratio(p, t, &moves);
        term.clipped = !moves && advantage != 0.0;
    }
    if (is_chosen(p, t, CHOSEN_PENALISED)) {
        term.value += p->algo->kl_cov_coef * fabs(kl);
        term.d_log_ratio += p->algo->kl_cov_coef * (kl < 0.0 ? 1.0 : kl > 0.0 ? -1.0 : 0.0);
        term.clipped = true;
    }
    if (is_chosen(p, t, CHOSEN_DROPPED))
        term = (ml_surrogate){ .clipped = true };
    return term;
}

static void policy_term(pass *p, int64_t t) {
    const miles_sample *s = p->s;
    double raw = kl_of(p, t);
    double kl = finite_or_zero(raw), advantage = finite_or_zero(s->advantage[t]);
    double factor = (left_out(p, t) ? 0.0 : 1.0) * (s->weight ? s->weight[t] : 1.0);
    double scale = p->out->policy_scale * factor;
    ml_surrogate term = term_of(p, t, kl, advantage);
    bool inside;
    double w = ml_exp(ml_log_ratio_clamp(-kl, &inside));

    p->w += w;
    p->w2 += w * w;
    p->sum[OIS] += ml_exp(-kl);
    if (!s->kept[t])
        return;
    p->sum[PG_LOSS] += factor * term.value;
    p->sum[PG_CLIPFRAC] += term.clipped ? 1.0 : 0.0;
    p->sum[PPO_KL] += kl;
    p->out->d_log_prob[t] += scale * term.d_log_prob;
    if (!isfinite(raw))
        return;
    if (is_joint(p))
        p->d_sequence += scale * term.d_log_ratio;
    else
        p->out->d_log_prob[t] += scale * term.d_log_ratio;
}

/* The sequence ratio depends on every trained token (GMPO: on those that its clip leaves), so
 * its derivative is spread over them. */
static void spread_sequence(pass *p) {
    for (int64_t t = 0; t < p->s->n; t++) {
        bool moves = true;
        if (!p->s->mask[t])
            continue;
        if (p->kind->ratio == OF_CLIPPED)
            (void)clipped_log_ratio(p, t, &moves);
        if (moves)
            p->out->d_log_prob[t] += p->d_sequence / p->n_trained;
    }
}

static void entropy_term(pass *p, int64_t t) {
    p->sum[ENTROPY_LOSS] += p->s->entropy[t];
    p->out->d_entropy[t] -= p->out->other_scale * p->algo->entropy_coef;
}

/* Over the whole vocabulary, as the reference. */
static void kl_term(pass *p, int64_t t) {
    const miles_sample *s = p->s;
    const double *now = s->full_log_prob ? s->full_log_prob : s->log_prob;
    const double *old = s->full_log_prob ? s->old_full_log_prob : p->old;
    double *d = s->full_log_prob ? p->out->d_full_log_prob : p->out->d_log_prob;
    ml_kl kl = ml_kl_estimate((miles_kl)p->algo->kl_loss_type, now[t], s->ref_log_prob[t],
                              p->algo->use_unbiased_kl ? &old[t] : NULL);

    if (!isfinite(kl.value))
        return;
    p->sum[KL_LOSS] += kl.value;
    if (p->algo->kl_loss_coef != 0.0)
        d[t] += p->out->other_scale * p->algo->kl_loss_coef * kl.d;
}

/* The difference between the log-probs of engine and trainer; ideally 0. */
static void mismatch(pass *p, int64_t t) {
    double engine = p->s->rollout_log_prob[t];
    ml_kl kl = ml_kl_estimate(MILES_LOW_VAR_KL, engine, p->old[t], NULL);

    p->sum[ABS_DIFF] += finite_or_zero(fabs(p->old[t] - engine));
    p->sum[TRAIN_ROLLOUT_KL] += finite_or_zero(kl.value);
}

static void walk(pass *p) {
    const miles_sample *s = p->s;

    sequence_statistics(p);
    for (int64_t t = 0; t < s->n; t++) {
        p->sum[OPSM_CLIPFRAC] += left_out(p, t) ? 1.0 / p->n_trained : 0.0;
        if (!s->mask[t])
            continue;
        policy_term(p, t);
        if (!s->kept[t])
            continue;
        if (p->algo->use_entropy)
            entropy_term(p, t);
        if (p->algo->use_kl_loss)
            kl_term(p, t);
        if (p->algo->has_rollout_logprobs)
            mismatch(p, t);
        if (p->algo->has_opd_reverse_kl)
            p->sum[OPD_REVERSE_KL] += s->opd_reverse_kl[t];
    }
    if (is_joint(p))
        spread_sequence(p);
}

/* Effective sample size in tokens, as a share of the trained tokens; 1 on policy. */
static double effective_share(const pass *p) {
    double share = p->w * p->w / (p->n_trained * (p->w2 > 1e-8 ? p->w2 : 1e-8));
    return p->algo->calculate_per_token_loss ? share * p->n_trained : share;
}

static void finish(pass *p) {
    int32_t n = 0;

    p->sum[ESS_RATIO] = effective_share(p);
    p->out->policy = p->sum[PG_LOSS];
    if (p->algo->use_entropy)
        p->out->other -= p->algo->entropy_coef * p->sum[ENTROPY_LOSS];
    if (p->algo->use_kl_loss && p->algo->kl_loss_coef != 0.0)
        p->out->other += p->algo->kl_loss_coef * p->sum[KL_LOSS];
    for (int m = 0; m < N_METRIC; m++)
        if (reported(p->algo, (policy_metric)m))
            p->out->metric[n++] = p->sum[m];
}

static int lacks(const miles_sample *s, const miles_algo *algo, miles_error *err) {
    const double *old = algo->use_rollout_logprobs ? s->rollout_log_prob : s->old_log_prob;
    const char *what = NULL;

    if (!s->log_prob)
        what = "log_probs";
    else if (!old)
        what = algo->use_rollout_logprobs ? "rollout_log_probs" : "old_log_probs";
    else if (!s->advantage)
        what = "advantages";
    else if (algo->use_entropy && !s->entropy)
        what = "entropy";
    else if (algo->use_kl_loss && !s->ref_log_prob)
        what = "ref_log_probs";
    else if (algo->use_kl_loss && algo->use_unbiased_kl && s->full_log_prob &&
             !s->old_full_log_prob)
        what = "old_full_log_probs";
    else if (algo->has_rollout_logprobs && !s->rollout_log_prob)
        what = "rollout_log_probs";
    else if (algo->has_opd_reverse_kl && !s->opd_reverse_kl)
        what = "opd_reverse_kl";
    if (what)
        snprintf(err->text, sizeof err->text, "the policy loss needs %s", what);
    return what != NULL;
}

static int run(const miles_sample *s, const miles_algo *algo, miles_loss_out *out,
               miles_error *err, const policy_kind *kind) {
    pass p = { .s = s, .algo = algo, .out = out, .kind = kind };

    if (s->n && lacks(s, algo, err))
        return 1;
    p.old = algo->use_rollout_logprobs ? s->rollout_log_prob : s->old_log_prob;
    walk(&p);
    finish(&p);
    return 0;
}

/* A row: its kind, and the extension. */
#define POLICY_LOSS(id, word, other_word, text, ...)                                       \
    static int run_##id(const miles_sample *s, const miles_algo *algo,                     \
                        miles_loss_out *out, miles_error *err) {                           \
        static const policy_kind kind = { __VA_ARGS__ };                                   \
        return run(s, algo, out, err, &kind);                                              \
    }                                                                                      \
    const miles_loss ml_loss_##id = {                                                      \
        .base = { sizeof(miles_loss), MILES_LOSS, word, other_word, text },                \
        .metrics = metrics,                                                                \
        .run = run_##id,                                                                   \
    };

POLICY_LOSS(policy, "policy_loss", NULL,
            "clipped surrogate of PPO, with entropy and KL terms", ml_surrogate_ppo,
            OF_TOKEN, CHOSEN_NONE)
POLICY_LOSS(cispo, "cispo_loss", "cispo",
            "clipped ratios as constant weights of the log-probs (CISPO)",
            ml_surrogate_cispo, OF_TOKEN, CHOSEN_NONE)
POLICY_LOSS(sapo, "sapo_loss", "sapo", "a soft gate in place of the clip (SAPO)",
            ml_surrogate_sapo, OF_TOKEN, CHOSEN_NONE)
POLICY_LOSS(gmpo, "gmpo_loss", "gmpo",
            "geometric mean of clipped ratios, one per sample (GMPO)", ml_surrogate_plain,
            OF_CLIPPED, CHOSEN_NONE)
POLICY_LOSS(vespo, "vespo_loss", "vespo",
            "gamma weights of the sequence's ratio, constant (VESPO)", ml_surrogate_vespo,
            OF_SEQUENCE, CHOSEN_NONE)
POLICY_LOSS(clip_cov, "clip_cov_loss", "clip_cov",
            "policy_loss without tokens of high covariance (Clip-Cov)", ml_surrogate_ppo,
            OF_TOKEN, CHOSEN_DROPPED)
POLICY_LOSS(kl_cov, "kl_cov_loss", "kl_cov",
            "unclipped ratios, a KL penalty on tokens of high covariance (KL-Cov)",
            ml_surrogate_plain, OF_TOKEN, CHOSEN_PENALISED)
