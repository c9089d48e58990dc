/* update_rule.h - how an optimizer updates one parameter, and the state it needs for that.
 *
 * Each parameter has a rule: AdamW, SGD, Muon or Adafactor.  With --optimizer muon, matrices
 * of linear layers have Muon; embeddings, the LM head, a critic's head and vectors have AdamW,
 * as in Megatron.
 *
 * thread: any; no state. */
#ifndef ML_TRAIN_UPDATE_RULE_H
#define ML_TRAIN_UPDATE_RULE_H

#include "model/weights.h"

typedef enum ml_optimizer_kind {
    ML_OPTIMIZER_ADAM,
    ML_OPTIMIZER_SGD,
    ML_OPTIMIZER_MUON,
    ML_OPTIMIZER_ADAFACTOR
} ml_optimizer_kind;

/* Megatron's names: the factor of an orthogonalized update [N, K]. */
typedef enum ml_muon_scale {
    ML_MUON_SPECTRAL,      /* sqrt(max(N, K)) */
    ML_MUON_UNIT_RMS_NORM, /* sqrt(N / K) */
    ML_MUON_SHAPE_SCALING  /* sqrt(max(1, N / K)) */
} ml_muon_scale;

/* Coefficients of the Newton-Schulz iterations: five sets in turn, or those of Keller
 * Jordan's Muon in each one. */
typedef enum ml_muon_coef { ML_MUON_QUINTIC, ML_MUON_SIMPLE } ml_muon_coef;

typedef struct ml_optim_rule_opts {
    ml_optimizer_kind kind;
    double beta1, beta2, eps;          /* Adam */
    ml_moment_format format1, format2; /* of Adam's moments */
    double momentum;                   /* SGD */
    double muon_momentum;
    bool muon_nesterov;
    int32_t muon_iter; /* 1 .. ML_MUON_ITERATIONS */
    ml_muon_coef muon_coef;
    ml_muon_scale muon_scale;
    double muon_extra_scale;
    double factor_decay, factor_clip, factor_eps, factor_eps_scale; /* Adafactor */
    bool factor_scale;
} ml_optim_rule_opts;

#define ML_MUON_ITERATIONS 99

/* The rule of a parameter. */
ml_optimizer_kind ml_optim_rule_of(const ml_optim_rule_opts *o, const ml_spec *s,
                                   int32_t param);
/* Whether updates need whole parameters. */
bool ml_optim_rule_is_whole(const ml_optim_rule_opts *o);
/* ML_EUSAGE, ML_EUNSUP: a backend that does not compute the rule. */
ml_status ml_optim_rule_check(const ml_optim_rule_opts *o, const ml_backend *be,
                              ml_err *err);

/* The parts of a parameter's state. */
enum { ML_STATE_MASTER, ML_STATE_MOMENT1, ML_STATE_MOMENT2, ML_STATE_KINDS };

/* The format of a moment. */
ml_moment_format ml_optim_rule_format(const ml_optim_rule_opts *o, ml_optimizer_kind rule,
                                      int kind);
/* The state as a parameter: Adafactor's are vectors, all others have the parameter's shape.
 * n_stack 0: there is none. */
ml_param ml_optim_rule_state_param(const ml_optim_rule_opts *o, const ml_spec *s,
                                   int32_t param, int kind);
/* Its elements where those of the parameter are `own`. */
ml_shard_range ml_optim_rule_state_range(const ml_optim_rule_opts *o, const ml_spec *s,
                                         int32_t param, int kind, ml_shard_range own);
/* Its tensor in memory, without data: rows, or bytes of a format that is not f32. */
ml_tensor ml_optim_rule_state(const ml_optim_rule_opts *o, const ml_spec *s, int32_t param,
                              int kind, ml_layout linear, ml_shard_range own);

/* Scratch bytes of the largest parameter; 0: none is needed. */
size_t ml_optim_rule_scratch(const ml_optim_rule_opts *o, const ml_spec *s, ml_backend *be);

/* What differs from step to step. */
typedef struct ml_optim_rule_step {
    int64_t number; /* from 1 */
    double lr, weight_decay, grad_scale;
} ml_optim_rule_step;

void ml_optim_rule_update(const ml_optim_rule_opts *o, const ml_spec *s, int32_t param,
                          ml_backend *be, const ml_optim_param *p,
                          const ml_optim_rule_step *step, void *scratch);

#endif
