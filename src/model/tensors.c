#include "model/tensors.h"

#include <string.h>

#include "base/bug.h"

#define NAME_CAP 512

static ml_named member_of(const ml_spec *s, int32_t param, int32_t member,
                          const char *name) {
    const ml_param *p = &s->param[param];
    return (ml_named){ .name = name,
                       .param = param,
                       .member = member,
                       .n_dim = p->n_dim,
                       .shape = { p->shape[0], p->shape[1] } };
}

static ml_named whole_of(const ml_spec *s, int32_t param) {
    const ml_part *part = s->param[param].part;
    return (ml_named){ .name = part->name,
                       .param = param,
                       .member = ML_NONE,
                       .n_dim = part->n_dim,
                       .shape = { part->shape[0], part->shape[1], part->shape[2] } };
}

bool ml_named_find(ml_named *out, const ml_spec *s, const ml_checkpoint *c, ml_str name) {
    int32_t member, param = ml_spec_find_part(s, name);

    if (param != ML_NONE && ml_param_in_part(&s->param[param], c)) {
        *out = whole_of(s, param);
        return true;
    }
    param = ml_spec_find(s, name, &member);
    if (param != ML_NONE)
        *out = member_of(s, param, member, name.ptr);
    return param != ML_NONE;
}

const ml_named *ml_named_list(const ml_spec *s, const ml_checkpoint *c, ml_arena *a,
                              int32_t *n) {
    ml_named *list;
    char buf[NAME_CAP];

    *n = 0;
    for (int32_t i = 0; i < s->n_param; i++)
        *n += s->param[i].n_stack;
    list = ML_NEW(a, ml_named, *n);
    *n = 0;
    for (int32_t i = 0; i < s->n_param; i++) {
        const ml_param *p = &s->param[i];
        if (ml_param_in_part(p, c)) {
            if (ml_spec_find_part(s, ml_str_of(p->part->name)) == i)
                list[(*n)++] = whole_of(s, i);
            continue;
        }
        for (int32_t e = 0; e < p->n_stack; e++) {
            const char *name = ml_param_name(p, e, buf, sizeof buf);
            list[(*n)++] = member_of(s, i, e, ml_arena_str(a, name, strlen(name)));
        }
    }
    return list;
}

/* A tensor of all experts is read expert by expert; other composed tensors at once. */
ml_slices ml_named_slices(const ml_named *t) {
    int64_t count = 1;
    bool split = t->member == ML_NONE ? t->n_dim == 3 : t->n_dim == 2;

    for (int32_t i = 0; i < t->n_dim; i++)
        count *= t->shape[i];
    if (split)
        return (ml_slices){ t->shape[0], count / t->shape[0] };
    return (ml_slices){ 1, count };
}

static void put(void *out, ml_dtype to, int64_t at, float v) {
    if (to == ML_F32)
        ((float *)out)[at] = v;
    else
        ((uint16_t *)out)[at] = to == ML_BF16 ? ml_f32_to_bf16(v) : ml_f32_to_f16(v);
}

static int64_t columns(const ml_param *p) {
    return p->n_dim == 2 ? p->shape[1] : p->shape[0];
}

/* Reads a member that is within elements [begin, end) of the larger tensor.  row holds
 * one of its rows. */
static void read_member(const ml_weights *w, const ml_spec *s, int32_t param, int32_t e,
                        int64_t begin, int64_t end, ml_dtype to, void *out, float *row) {
    const ml_param *p = &s->param[param];
    const ml_part *part = p->part;
    int64_t rows = p->n_dim == 2 ? p->shape[0] : 1;
    int64_t cols = columns(p);
    int64_t first = part->at + e * part->member;
    int64_t last = first + (rows - 1) * part->row + (cols - 1) * part->col;

    if (first >= end || last < begin)
        return;
    ML_BUG_IF(first < begin || last >= end);
    for (int64_t r = 0; r < rows; r++) {
        ml_weights_unpack(w, param, e, r, 1, ML_F32, row);
        for (int64_t k = 0; k < cols; k++)
            put(out, to, first + r * part->row + k * part->col - begin, row[k]);
    }
}

void ml_named_read(const ml_weights *w, const ml_spec *s, const ml_named *t, int64_t first,
                   int64_t n, ml_dtype to, void *out) {
    ml_slices slices = ml_named_slices(t);
    int64_t begin = first * slices.n_value, end = (first + n) * slices.n_value;

    if (t->member != ML_NONE) {
        ml_weights_unpack(w, t->param, t->member, first, n, to, out);
        return;
    }
    for (int32_t i = t->param; i != ML_NONE; i = s->param[i].part->next) {
        ml_arena arena;
        float *row;
        ml_arena_init(&arena, "a row");
        row = ML_NEW(&arena, float, columns(&s->param[i]));
        for (int32_t e = 0; e < s->param[i].n_stack; e++)
            read_member(w, s, i, e, begin, end, to, out, row);
        ml_arena_release(&arena);
    }
}
