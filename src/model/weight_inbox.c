#include "model/weight_inbox.h"

#include "model/source.h"

void ml_weight_inbox_init(ml_weight_inbox *x, const ml_weights *w, const ml_spec *s,
                          bool round_bf16, ml_arena *a) {
    int64_t n = 0;

    *x = (ml_weight_inbox){
        .spec = s, .w = w, .round_bf16 = round_bf16, .first = ML_NEW(a, int64_t, s->n_param)
    };
    for (int32_t i = 0; i < s->n_param; i++) {
        x->first[i] = n;
        n += s->param[i].n_stack;
    }
    x->got = ML_NEW(a, bool, n);
}

/* The parameter of this name, or the first of those that the tensor contains. */
static int32_t find(const ml_spec *s, ml_str name, int32_t *member, bool *part) {
    ml_arena a;
    const char *text;
    int32_t i;

    ml_arena_init(&a, "a name");
    text = ml_checkpoint_text_name(&a, name);
    name = text ? ml_str_of(text) : name;
    i = ml_spec_find(s, name, member);
    *part = i == ML_NONE;
    if (*part) {
        *member = ML_NONE;
        i = ml_spec_find_part(s, name);
    }
    ml_arena_release(&a);
    return i;
}

static bool may_ignore(const ml_spec *s, ml_str name) {
    ml_arena a;
    const char *text;
    bool yes;

    ml_arena_init(&a, "a name");
    text = ml_checkpoint_text_name(&a, name);
    yes = ml_weights_may_ignore(s, name) ||
          (text && ml_weights_may_ignore(s, ml_str_of(text)));
    ml_arena_release(&a);
    return yes;
}

ml_status ml_weight_inbox_check(const ml_weight_inbox *x, const ml_st_tensor *t,
                                bool *wanted, const char *where, ml_err *err) {
    int32_t member;
    bool part;
    int32_t i = find(x->spec, t->name, &member, &part);

    *wanted = i != ML_NONE;
    if (i == ML_NONE && !may_ignore(x->spec, t->name))
        return ml_fail(
            err, ML_EFORMAT,
            "%s: tensor %s is not part of a %s model as config.json describes it", where,
            t->name.ptr, x->spec->family);
    return i == ML_NONE ? ML_OK
                        : ml_source_check(&x->spec->param[i], part, t, false, where, err);
}

ml_status ml_weight_inbox_begin(ml_weight_inbox *x, ml_err *err) {
    return ml_packer_open(&x->packer, x->w, x->spec, x->round_bf16, err);
}

ml_status ml_weight_inbox_put(ml_weight_inbox *x, const ml_st_tensor *t, const char *where,
                              ml_err *err) {
    int32_t member;
    bool part;
    int32_t i = find(x->spec, t->name, &member, &part);
    ml_status st = ml_source_check(&x->spec->param[i], part, t, false, where, err);

    if (st != ML_OK)
        return st;

    for (; i != ML_NONE; i = part ? x->spec->param[i].part->next : ML_NONE) {
        int32_t n = member == ML_NONE ? x->spec->param[i].n_stack : 1;
        ml_packer_put(x->packer, i, member, t, part);
        for (int32_t e = 0; e < n; e++)
            x->got[x->first[i] + (member == ML_NONE ? e : member)] = true;
    }
    return ML_OK;
}

ml_status ml_weight_inbox_end(ml_weight_inbox *x, ml_err *err) {
    ml_packer *k = x->packer;

    x->packer = NULL;
    return ml_packer_close(k, err);
}

ml_status ml_weight_inbox_complete(const ml_weight_inbox *x, const char *where,
                                   ml_err *err) {
    char name[512];

    for (int32_t i = 0; i < x->spec->n_param; i++)
        for (int32_t e = 0; e < x->spec->param[i].n_stack; e++)
            if (!x->got[x->first[i] + e])
                return ml_fail(err, ML_EFORMAT, "%s: tensor %s is missing", where,
                               ml_param_name(&x->spec->param[i], e, name, sizeof name));
    return ML_OK;
}
