#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/philox.h"
#include "model/lora_priv.h"

/* --- the configuration ------------------------------------------------------------ */

static void add_names(ml_text *t, const char *key, const char *list) {
    ml_text_printf(t, ", \"%s\": ", key);
    if (!list || strcmp(list, "all-linear") == 0) {
        ml_text_printf(t, "%s", list ? "\"all-linear\"" : "null");
        return;
    }
    ml_text_printf(t, "[");
    for (const char *at = list, *sep = ""; *at;) {
        size_t n = strcspn(at, ", ");
        if (n) {
            ml_text_printf(t, "%s", sep);
            ml_json_quote(t, (ml_str){ at, n });
            sep = ", ";
        }
        at += n + (at[n] != 0);
    }
    ml_text_printf(t, "]");
}

static void write_config(ml_text *t, const ml_lora_opts *o, bool reward,
                         const char *target) {
    ml_text_printf(
        t,
        "{\"peft_type\": \"LORA\", \"task_type\": \"%s\", "
        "\"base_model_name_or_path\": null, \"inference_mode\": true, "
        "\"bias\": \"none\", \"fan_in_fan_out\": false, \"modules_to_save\": %s, "
        "\"r\": %d, \"lora_alpha\": ",
        reward ? "SEQ_CLS" : "CAUSAL_LM", reward ? "[\"" ML_REWARD_HEAD "\"]" : "null",
        o->rank);
    ml_json_number(t, o->alpha);
    ml_text_printf(t, ", \"lora_dropout\": ");
    ml_json_number(t, o->dropout);
    ml_text_printf(t, ", \"use_rslora\": %s", o->rslora ? "true" : "false");
    add_names(t, "target_modules", target);
    add_names(t, "exclude_modules", o->exclude && o->exclude[0] ? o->exclude : NULL);
    ml_text_printf(t, "}\n");
}

static ml_status open_config(ml_lora *l, const ml_lora_opts *o, const char *target,
                             ml_err *err) {
    ml_text t = { 0 };
    ml_status st;

    ml_peft_config_close(&l->config);
    write_config(&t, o, l->head != ML_NONE, target);
    st = ml_peft_config_parse(&l->config, &l->arena, (ml_str){ t.ptr, t.len },
                              ML_LORA_CONFIG, err);
    ml_text_release(&t);
    return st;
}

/* --- sites ------------------------------------------------------------------------ */

typedef struct maker {
    ml_lora *l;
    const ml_spec *base;
    const ml_checkpoint *checkpoint;
    const ml_lora_opts *o;
    const char **module; /* [n_site] as PEFT names it, or NULL: not adapted */
} maker;

static ml_lora_form form_of(const maker *m, const ml_lora_layer *l, ml_lora_side side) {
    const ml_param *p = &m->base->param[l->param];

    if (l->experts)
        return m->o->shared_outer && l->inner == (side == ML_LORA_B) ? ML_LORA_OUTER
                                                                     : ML_LORA_OWN;
    if (l->heads)
        return ML_LORA_WHOLE;
    return m->checkpoint && ml_param_in_part(p, m->checkpoint) ? ML_LORA_WHOLE
                                                               : ML_LORA_OWN;
}

static const char *last_of(const char *module) {
    const char *dot = strrchr(module, '.');
    return dot ? dot + 1 : module;
}

/* Layers that Megatron has in one matrix: those of the same input among these. */
static bool are_fused(const maker *m, int32_t x, int32_t y) {
    static const char *const kin[][3] = { { "q_proj", "k_proj", "v_proj" },
                                          { "gate_proj", "up_proj", "up_proj" },
                                          { "w1", "w3", "w3" } };
    const ml_lora_layer *l = m->l->layer;
    int n = 0;

    if (!m->o->fused || l[x].input != l[y].input)
        return false;
    for (size_t k = 0; k < sizeof kin / sizeof *kin && n < 2; k++) {
        n = 0;
        for (int i = 0; i < 3; i++)
            n += strcmp(last_of(m->module[x]), kin[k][i]) == 0 ||
                 strcmp(last_of(m->module[y]), kin[k][i]) == 0;
    }
    return n >= 2;
}

/* The parameter of an A; a fused layer repeats that of another one. */
static int32_t add_a(const maker *m, int32_t site, const ml_param *p) {
    ml_lora *l = m->l;

    for (int32_t i = 0; ml_lora_find_param(l, p) == ML_NONE && i < site; i++)
        if (m->module[i] && are_fused(m, i, site) &&
            l->spec.param[l->link[i].a].n_stack == p->n_stack) {
            l->alias[l->n_alias++] = (ml_lora_alias){ *p, l->link[i].a };
            return l->link[i].a;
        }
    return ml_lora_add_param(l, p);
}

static ml_status add_site(const maker *m, int32_t site, ml_err *err) {
    ml_lora *l = m->l;
    const ml_lora_layer *layer = &l->layer[site];
    ml_lora_link *link = &l->link[site];
    const char *module = ml_lora_module(&l->arena, m->base, layer,
                                        form_of(m, layer, ML_LORA_A) == ML_LORA_OUTER
                                            ? ML_LORA_OWN
                                            : form_of(m, layer, ML_LORA_A));
    bool target = false;
    ml_param a, b;
    ml_status st = ml_peft_is_target(&l->config, module, &target, err);

    *link = (ml_lora_link){ ML_NONE, ML_NONE, 0 };
    if (st != ML_OK || !target || (l->config.target.all && layer->gate))
        return st;
    m->module[site] = module;
    a = ml_lora_param(&l->arena, m->base, layer, form_of(m, layer, ML_LORA_A), ML_LORA_A,
                      m->o->rank, false);
    b = ml_lora_param(&l->arena, m->base, layer, form_of(m, layer, ML_LORA_B), ML_LORA_B,
                      m->o->rank, false);
    link->a = add_a(m, site, &a);
    link->b = ml_lora_add_param(l, &b);
    l->max_rank = m->o->rank;
    return ml_peft_scale_of(&l->config, module, m->o->rank, &link->scale, err);
}

/* The names of the adapted modules, for the configuration: PEFT's all-linear would include
 * routers. */
static const char *adapted_names(const maker *m) {
    const char *list = "";

    for (int32_t i = 0; i < m->l->n_site; i++) {
        const char *name = m->module[i] ? last_of(m->module[i]) : NULL;
        bool there = false;
        for (int32_t k = 0; name && k < i; k++)
            there = there || (m->module[k] && strcmp(last_of(m->module[k]), name) == 0);
        if (name && !there)
            list = ml_arena_printf(&m->l->arena, "%s%s%s", list, *list ? "," : "", name);
    }
    return list;
}

/* --- values ----------------------------------------------------------------------- */

static bool is_a(const ml_lora *l, int32_t param) {
    for (int32_t i = 0; i < l->n_site; i++)
        if (l->link[i].a == param)
            return true;
    return false;
}

static void draw_values(ml_lora *l, int32_t param, uint64_t seed) {
    const ml_param *p = &l->spec.param[param];
    float bound = 1.0f / sqrtf((float)p->shape[1]);
    ml_arena a;
    float *row;

    ml_arena_init(&a, "a row");
    row = ML_NEW(&a, float, p->shape[1]);
    for (int32_t e = 0; e < p->n_stack; e++)
        for (int64_t i = 0; i < p->shape[0]; i++) {
            for (int64_t k = 0; k < p->shape[1]; k++) {
                uint64_t at = (uint64_t)((e * p->shape[0] + i) * p->shape[1] + k);
                double u = ml_philox_uniform(seed, (uint64_t)param, at);
                row[k] = bound * (float)(2.0 * u - 1.0);
            }
            ml_weights_pack(&l->weights, param, e, i, 1, row);
        }
    ml_arena_release(&a);
}

/* With the names of what is trained. */
static ml_status finish_config(const maker *m, ml_err *err) {
    if (m->base->reward)
        (void)ml_lora_add_head(m->l, m->base);
    return open_config(m->l, m->o, adapted_names(m), err);
}

ml_status ml_lora_new(ml_lora *out, const ml_spec *base, const ml_checkpoint *c,
                      const ml_lora_opts *o, ml_backend *be, ml_err *err) {
    maker m = { .l = out, .base = base, .checkpoint = c, .o = o };
    ml_status st;

    ml_lora_begin(out, base, be);
    m.module = ML_NEW(&out->arena, const char *, out->n_site);
    st = open_config(out, o, o->target, err);
    for (int32_t i = 0; i < out->n_site && st == ML_OK; i++)
        st = add_site(&m, i, err);
    if (st == ML_OK && out->spec.n_param == 0)
        st =
            ml_fail(err, ML_EUSAGE,
                    "--target-modules \"%s\" names no linear layer of this %s model; names "
                    "look like q_proj",
                    o->target, base->family);
    if (st == ML_OK)
        st = finish_config(&m, err);
    if (st == ML_OK) {
        ml_spec_index(&out->spec);
        st = ml_weights_zeros(&out->weights, &out->spec, be, &out->arena, err);
    }
    for (int32_t i = 0; st == ML_OK && i < out->spec.n_param; i++)
        if (is_a(out, i))
            draw_values(out, i, o->seed);
    if (st == ML_OK)
        ml_lora_bind(out);
    else
        ml_lora_close(out);
    return st;
}

/* --- targets ---------------------------------------------------------------------- */

static ml_status is_named(ml_lora *l, const ml_spec *base, int32_t site, bool *out,
                          ml_err *err) {
    *out = false;
    for (int f = 0; f < ML_LORA_FORMS && !*out; f++) {
        const char *module =
            ml_lora_module(&l->arena, base, &l->layer[site], (ml_lora_form)f);
        ml_status st = module ? ml_peft_is_target(&l->config, module, out, err) : ML_OK;
        if (st != ML_OK)
            return st;
    }
    *out = *out && !(l->config.target.all && l->layer[site].gate);
    return ML_OK;
}

ml_status ml_lora_targets(const ml_spec *base, const char *names, const char *flag,
                          bool *wanted, ml_err *err) {
    ml_lora_opts o = { .rank = 1, .alpha = 1, .target = names };
    ml_lora l;
    int32_t n = 0;
    ml_status st;

    ml_lora_begin(&l, base, NULL);
    st = open_config(&l, &o, names, err);
    for (int32_t i = 0; i < l.n_site && st == ML_OK; i++) {
        st = is_named(&l, base, i, &wanted[i], err);
        n += wanted[i];
    }
    if (st == ML_OK && n == 0)
        st = ml_fail(err, ML_EUSAGE,
                     "--%s \"%s\" names no linear layer of this %s model; names look like "
                     "q_proj",
                     flag, names, base->family);
    ml_lora_close(&l);
    return st;
}
