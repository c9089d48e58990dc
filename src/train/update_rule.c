#include "train/update_rule.h"

#include <math.h>

#include "backend/moments.h"
#include "base/bug.h"

/* --- rules ------------------------------------------------------------------- */

/* Whether only linear layers use a parameter; an adapter's have no nodes. */
static bool is_linear(const ml_spec *s, int32_t param) {
    for (int32_t i = 0; i < s->n_node; i++)
        for (int k = 0; k < ML_OP_W; k++) {
            ml_op_id op = s->node[i].op;
            if (s->node[i].w[k] == param && op != ML_OP_LINEAR && op != ML_OP_MOE_LINEAR &&
                op != ML_OP_HEAD_LINEAR)
                return false;
        }
    return true;
}

ml_optimizer_kind ml_optim_rule_of(const ml_optim_rule_opts *o, const ml_spec *s,
                                   int32_t param) {
    const ml_param *p = &s->param[param];

    if (o->kind != ML_OPTIMIZER_MUON)
        return o->kind;
    return p->n_dim == 2 && !ml_param_is_value_head(p) && is_linear(s, param)
               ? ML_OPTIMIZER_MUON
               : ML_OPTIMIZER_ADAM;
}

bool ml_optim_rule_is_whole(const ml_optim_rule_opts *o) {
    return o->kind == ML_OPTIMIZER_MUON || o->kind == ML_OPTIMIZER_ADAFACTOR;
}

ml_status ml_optim_rule_check(const ml_optim_rule_opts *o, const ml_backend *be,
                              ml_err *err) {
    bool reduced = o->format1 != ML_MOMENT_F32 || o->format2 != ML_MOMENT_F32;

    ML_BUG_IF(reduced && o->kind != ML_OPTIMIZER_ADAM);
    if (be->optim->muon || (!reduced && !ml_optim_rule_is_whole(o)))
        return ML_OK;
    return ml_fail(err, ML_EUNSUP,
                   "%s: the backend %s does not compute it yet; use --device cpu, or %s",
                   reduced                        ? "--exp-avg-dtype, --exp-avg-sq-dtype"
                   : o->kind == ML_OPTIMIZER_MUON ? "--optimizer muon"
                                                  : "--optimizer adafactor",
                   be->name, reduced ? "fp32" : "--optimizer adam");
}

/* --- state ------------------------------------------------------------------- */

ml_moment_format ml_optim_rule_format(const ml_optim_rule_opts *o, ml_optimizer_kind rule,
                                      int kind) {
    if (rule != ML_OPTIMIZER_ADAM || kind == ML_STATE_MASTER)
        return ML_MOMENT_F32;
    return kind == ML_STATE_MOMENT1 ? o->format1 : o->format2;
}

static bool has_state(const ml_param *p, ml_optimizer_kind rule, int kind) {
    if (rule == ML_OPTIMIZER_ADAFACTOR)
        return kind != ML_STATE_MOMENT1 || p->n_dim == 2;
    return kind != ML_STATE_MOMENT2 || rule == ML_OPTIMIZER_ADAM;
}

static bool is_factor(const ml_param *p, ml_optimizer_kind rule, int kind) {
    return rule == ML_OPTIMIZER_ADAFACTOR && kind != ML_STATE_MASTER && p->n_dim == 2;
}

ml_param ml_optim_rule_state_param(const ml_optim_rule_opts *o, const ml_spec *s,
                                   int32_t param, int kind) {
    ml_optimizer_kind rule = ml_optim_rule_of(o, s, param);
    ml_param p = s->param[param];

    if (is_factor(&s->param[param], rule, kind)) {
        p.shape[0] = p.shape[kind == ML_STATE_MOMENT1 ? 0 : 1];
        p.n_dim = 1;
        p.layout = ML_ROWS;
    }
    if (!has_state(&s->param[param], rule, kind))
        p.n_stack = 0;
    return p;
}

ml_shard_range ml_optim_rule_state_range(const ml_optim_rule_opts *o, const ml_spec *s,
                                         int32_t param, int kind, ml_shard_range own) {
    const ml_param p = ml_optim_rule_state_param(o, s, param, kind);

    if (!p.n_stack || !own.n)
        return (ml_shard_range){ 0 };
    if (is_factor(&s->param[param], ml_optim_rule_of(o, s, param), kind))
        return (ml_shard_range){ 0, p.n_stack * p.shape[0] };
    return own;
}

ml_tensor ml_optim_rule_state(const ml_optim_rule_opts *o, const ml_spec *s, int32_t param,
                              int kind, ml_layout linear, ml_shard_range own) {
    const ml_param p = ml_optim_rule_state_param(o, s, param, kind);
    ml_moment_format format = ml_optim_rule_format(o, ml_optim_rule_of(o, s, param), kind);
    ml_shard_range r = ml_optim_rule_state_range(o, s, param, kind, own);
    ml_tensor t;

    if (!r.n)
        return (ml_tensor){ .n_dim = 1 };
    if (format != ML_MOMENT_F32)
        return (ml_tensor){ .dtype = ML_U8,
                            .n_dim = 1,
                            .shape = { (int64_t)ml_moment_bytes(format, r.n) } };
    t = ml_weights_tensor(&p, ML_F32, linear);
    return ml_shard_view(&t, r);
}

/* --- updates ----------------------------------------------------------------- */

/* The parameter as the functions of whole matrices see it. */
static ml_tensor shape_of(const ml_param *p, ml_layout linear) {
    ml_tensor t = ml_weights_tensor(p, ML_F32, linear);

    if (p->n_dim == 1 && p->name_after)
        t = (ml_tensor){ .n_dim = 3, .shape = { p->n_stack, 1, p->shape[0] } };
    return t;
}

size_t ml_optim_rule_scratch(const ml_optim_rule_opts *o, const ml_spec *s,
                             ml_backend *be) {
    size_t most = 0;

    for (int32_t i = 0; i < s->n_param && be->optim && be->optim->muon; i++) {
        ml_tensor t = shape_of(&s->param[i], be->linear);
        ml_optimizer_kind rule = ml_optim_rule_of(o, s, i);
        size_t bytes = rule == ML_OPTIMIZER_MUON ? be->optim->muon_scratch(be->stream, &t)
                       : rule == ML_OPTIMIZER_ADAFACTOR
                           ? be->optim->adafactor_scratch(be->stream, &t)
                           : 0;
        most = bytes > most ? bytes : most;
    }
    return most;
}

static double muon_scale(const ml_optim_rule_opts *o, const ml_param *p) {
    double n = (double)p->shape[0], k = (double)p->shape[1];

    switch (o->muon_scale) {
    case ML_MUON_SPECTRAL: return sqrt(n > k ? n : k) * o->muon_extra_scale;
    case ML_MUON_UNIT_RMS_NORM: return sqrt(n / k) * o->muon_extra_scale;
    default: return sqrt(n > k ? n / k : 1.0) * o->muon_extra_scale;
    }
}

static void muon(const ml_optim_rule_opts *o, const ml_param *param, ml_backend *be,
                 const ml_optim_param *p, const ml_optim_rule_step *step, void *scratch) {
    static const float quintic[][3] = { { 4.0848f, -6.8946f, 2.9270f },
                                        { 3.9505f, -6.3029f, 2.6377f },
                                        { 3.7418f, -5.5913f, 2.3037f },
                                        { 2.8769f, -3.1427f, 1.2046f },
                                        { 2.8366f, -3.0525f, 1.2012f } };
    static const float simple[3] = { 3.4445f, -4.7750f, 2.0315f };
    ml_tensor shape = shape_of(param, be->linear);
    float coef[ML_MUON_ITERATIONS][3];

    for (int32_t k = 0; k < o->muon_iter; k++)
        memcpy(coef[k], o->muon_coef == ML_MUON_QUINTIC ? quintic[k % 5] : simple,
               sizeof simple);
    be->optim->muon(be->stream, p, &shape,
                    &(ml_muon){ .lr = (float)(step->lr * muon_scale(o, param)),
                                .decay = (float)(step->lr * step->weight_decay),
                                .momentum = (float)o->muon_momentum,
                                .nesterov = o->muon_nesterov,
                                .grad_scale = (float)step->grad_scale,
                                .n_iter = o->muon_iter,
                                .coef = (const float(*)[3])coef },
                    scratch);
}

static void adafactor(const ml_optim_rule_opts *o, const ml_param *param, ml_backend *be,
                      const ml_optim_param *p, const ml_optim_rule_step *step,
                      void *scratch) {
    ml_tensor shape = shape_of(param, be->linear);

    be->optim->adafactor(be->stream, p, &shape,
                         &(ml_adafactor){ .lr = (float)step->lr,
                                          .weight_decay = (float)step->weight_decay,
                                          .beta2 = (float)(1.0 - pow((double)step->number,
                                                                     -o->factor_decay)),
                                          .eps = (float)o->factor_eps,
                                          .clip_threshold = (float)o->factor_clip,
                                          .scale_parameter = o->factor_scale,
                                          .eps_scale = (float)o->factor_eps_scale,
                                          .grad_scale = (float)step->grad_scale },
                         scratch);
}

static void adamw(const ml_optim_rule_opts *o, ml_backend *be, const ml_optim_param *p,
                  const ml_optim_rule_step *step) {
    double t = (double)step->number;

    be->optim->adamw(be->stream, p,
                     &(ml_adamw){ .lr = (float)step->lr,
                                  .weight_decay = (float)step->weight_decay,
                                  .beta1 = (float)o->beta1,
                                  .beta2 = (float)o->beta2,
                                  .eps = (float)o->eps,
                                  .unbias1 = (float)(1.0 / (1.0 - pow(o->beta1, t))),
                                  .unbias2 = (float)(1.0 / (1.0 - pow(o->beta2, t))),
                                  .grad_scale = (float)step->grad_scale });
}

void ml_optim_rule_update(const ml_optim_rule_opts *o, const ml_spec *s, int32_t param,
                          ml_backend *be, const ml_optim_param *p,
                          const ml_optim_rule_step *step, void *scratch) {
    switch (ml_optim_rule_of(o, s, param)) {
    case ML_OPTIMIZER_SGD:
        be->optim->sgd(be->stream, p,
                       &(ml_sgd){ .lr = (float)step->lr,
                                  .weight_decay = (float)step->weight_decay,
                                  .momentum = (float)o->momentum,
                                  .grad_scale = (float)step->grad_scale });
        break;
    case ML_OPTIMIZER_MUON: muon(o, &s->param[param], be, p, step, scratch); break;
    case ML_OPTIMIZER_ADAFACTOR:
        adafactor(o, &s->param[param], be, p, step, scratch);
        break;
    default: adamw(o, be, p, step);
    }
}
