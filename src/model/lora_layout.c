#include <stdio.h>
#include <string.h>

#include "base/bug.h"
#include "model/lora_priv.h"

/* --- modules -------------------------------------------------------------------- */

/* A name without its last component. */
static const char *parent_of(ml_arena *a, const char *name) {
    const char *dot = strrchr(name, '.');
    return ml_arena_str(a, name, dot ? (size_t)(dot - name) : strlen(name));
}

static const char *without_weight(ml_arena *a, const char *name) {
    size_t n = strlen(name), k = strlen(".weight");
    bool has = n > k && strcmp(name + n - k, ".weight") == 0;

    return has ? ml_arena_str(a, name, n - k) : name;
}

/* Of a stack "X.experts." e ".gate_proj.weight". */
static const char *member_module(ml_arena *a, const ml_param *p, const char *member) {
    return without_weight(a, ml_arena_printf(a, "%s%s%s", p->name, member, p->name_after));
}

const char *ml_lora_module(ml_arena *a, const ml_spec *base, const ml_lora_layer *l,
                           ml_lora_form form) {
    const ml_param *p = &base->param[l->param];

    switch (form) {
    case ML_LORA_OWN:
        return l->heads        ? NULL
               : p->name_after ? member_module(a, p, "0")
                               : without_weight(a, p->name);
    case ML_LORA_OUTER:
        return l->experts ? without_weight(a, ml_arena_printf(a, "%.*s%s",
                                                              (int)strlen(p->name) - 1,
                                                              p->name, p->name_after))
                          : NULL;
    case ML_LORA_WHOLE:
        return p->part && !l->experts ? without_weight(a, p->part->name) : NULL;
    default: return p->part && l->experts ? p->part->name : NULL;
    }
}

/* --- parameters ------------------------------------------------------------------- */

static const char *side_name(ml_lora_side side) {
    return side == ML_LORA_A ? "lora_A.weight" : "lora_B.weight";
}

/* The rows of a larger matrix that a site has: row i of group g is row at + g * member +
 * i * step. */
typedef struct row_map {
    int64_t n, at, member, step;
} row_map;

static row_map rows_of(const ml_lora_layer *l, const ml_part *part) {
    bool inputs_first = l->experts && part->col != 1; /* [expert, in, out] */
    int64_t unit = inputs_first ? 1 : l->n_in;
    int64_t step = l->transposed ? part->col : part->row;

    return (row_map){ .n = part->shape[l->experts ? (inputs_first ? 2 : 1) : 0],
                      .at = part->at / unit,
                      .member = l->experts ? 0 : part->member / unit,
                      .step = step / unit };
}

/* Rows of B [n, rank] of the larger layer. */
static ml_part *whole_part(ml_arena *a, const ml_lora_layer *l, const ml_part *part,
                           const char *name, int32_t rank) {
    row_map m = rows_of(l, part);
    ml_part *p = ML_NEW(a, ml_part, 1);

    *p = (ml_part){ .name = name,
                    .n_dim = 2,
                    .shape = { m.n, rank },
                    .at = m.at * rank,
                    .member = m.member * rank,
                    .row = m.step * rank,
                    .col = 1 };
    return p;
}

/* A [E * rank, in] is (E, rank, in); B [out, rank * E] is (out, rank, E). */
static ml_part *stack_part(ml_arena *a, const ml_lora_layer *l, const ml_part *part,
                           const char *name, ml_lora_side side, int32_t rank) {
    row_map m = rows_of(l, part);
    ml_part *p = ML_NEW(a, ml_part, 1);
    int64_t n_expert = l->n_group;

    *p = (ml_part){ .name = name, .n_dim = 2 };
    if (side == ML_LORA_A) {
        p->shape[0] = n_expert * rank;
        p->shape[1] = l->n_in;
        p->member = rank * l->n_in;
        p->row = l->n_in;
        p->col = 1;
    } else {
        p->shape[0] = m.n;
        p->shape[1] = rank * n_expert;
        p->at = m.at * rank * n_expert;
        p->member = 1;
        p->row = m.step * rank * n_expert;
        p->col = n_expert;
    }
    return p;
}

static ml_part *outer_part(ml_arena *a, const char *name, const int64_t *shape) {
    ml_part *p = ML_NEW(a, ml_part, 1);

    *p = (ml_part){ .name = name,
                    .n_dim = 3,
                    .shape = { 1, shape[0], shape[1] },
                    .row = shape[1],
                    .col = 1 };
    return p;
}

/* A name that no other parameter has, for one that is a part of a tensor. */
static void name_part(ml_arena *a, ml_param *p, const ml_param *of, ml_lora_side side) {
    const char *whole = without_weight(a, of->name);
    size_t n = strlen(whole);

    n -= n && whole[n - 1] == '.';
    p->name = ml_arena_printf(a, "%s%.*s%s.%s", ML_LORA_PREFIX, (int)n, whole,
                              of->name_after ? without_weight(a, of->name_after) : "",
                              side == ML_LORA_A ? "lora_A" : "lora_B");
    p->name_after = p->n_stack > 1 ? ".weight" : NULL;
    p->name = ml_arena_printf(a, "%s%s", p->name, p->name_after ? "." : ".weight");
}

static void name_own(ml_arena *a, ml_param *p, const ml_param *of, ml_lora_side side) {
    if (!of->name_after) {
        p->name = ml_arena_printf(a, "%s%s.%s", ML_LORA_PREFIX, without_weight(a, of->name),
                                  side_name(side));
        return;
    }
    p->name = ml_arena_printf(a, "%s%s", ML_LORA_PREFIX, of->name);
    p->name_after =
        ml_arena_printf(a, "%s.%s", without_weight(a, of->name_after), side_name(side));
}

static bool is_stacked(const ml_lora_layer *l, ml_lora_form form, ml_lora_side side) {
    switch (form) {
    case ML_LORA_OWN: return l->experts;
    case ML_LORA_OUTER: return false;
    case ML_LORA_WHOLE: return l->heads && side == ML_LORA_B;
    default: return true;
    }
}

ml_param ml_lora_param(ml_arena *a, const ml_spec *base, const ml_lora_layer *l,
                       ml_lora_form form, ml_lora_side side, int32_t rank, bool nested) {
    const ml_param *of = &base->param[l->param];
    const char *module = ml_lora_module(a, base, l, form), *name;
    ml_param p = { .n_stack = is_stacked(l, form, side) ? l->n_group : 1,
                   .n_dim = 2,
                   .layout = ML_PANELS };

    if (l->experts && is_stacked(l, form, side))
        p.shard = ML_SHARD_EXPERT;
    p.shape[0] = side == ML_LORA_A ? rank : l->n_out;
    p.shape[1] = side == ML_LORA_A ? l->n_in : rank;
    if (form == ML_LORA_OWN) {
        name_own(a, &p, of, side);
        return p;
    }
    if (form == ML_LORA_STACK)
        module =
            ml_arena_printf(a, "%s%s", parent_of(a, module), nested ? ".base_layer" : "");
    name = ml_arena_printf(a, "%s%s.%s", ML_LORA_PREFIX, module, side_name(side));
    if (form == ML_LORA_WHOLE && side == ML_LORA_A) {
        p.name = name;
        return p;
    }
    p.part = form == ML_LORA_OUTER   ? outer_part(a, name, p.shape)
             : form == ML_LORA_WHOLE ? whole_part(a, l, of->part, name, rank)
                                     : stack_part(a, l, of->part, name, side, rank);
    name_part(a, &p, of, side);
    return p;
}

const char *ml_lora_tensor_name(const ml_param *p, int32_t e, char *buf, size_t cap) {
    if (!p->part)
        return ml_param_name(p, e, buf, cap);
    snprintf(buf, cap, "%s", p->part->name);
    return buf;
}

int32_t ml_lora_tensor_shape(const ml_param *p, int64_t shape[3]) {
    const int64_t *from = p->part ? p->part->shape : p->shape;
    int32_t n = p->part ? p->part->n_dim : 2;

    for (int32_t i = 0; i < n; i++)
        shape[i] = from[i];
    return n;
}

static bool is_same_tensor(const ml_param *x, const ml_param *y) {
    if (x->part && y->part)
        return strcmp(x->part->name, y->part->name) == 0 && x->part->at == y->part->at;
    return !x->part && !y->part && strcmp(x->name, y->name) == 0 &&
           !x->name_after == !y->name_after &&
           (!x->name_after || strcmp(x->name_after, y->name_after) == 0);
}

int32_t ml_lora_find_param(const ml_lora *l, const ml_param *p) {
    for (int32_t i = 0; i < l->spec.n_param; i++)
        if (is_same_tensor(&l->spec.param[i], p))
            return i;
    return ML_NONE;
}

int32_t ml_lora_add_param(ml_lora *l, const ml_param *p) {
    ml_spec *s = &l->spec;
    int32_t there = ml_lora_find_param(l, p);

    if (there != ML_NONE)
        return there;
    ML_BUG_IF(s->n_param == 2 * l->n_site);
    s->param[s->n_param] = *p;
    return s->n_param++;
}
