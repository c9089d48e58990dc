/* The tests: the right operands of `is`. */
#include <math.h>

#include "text/jinja/jinja_priv.h"

static ml_jval is_defined(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(v.kind != ML_J_UNDEFINED);
}
static ml_jval is_undefined(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(v.kind == ML_J_UNDEFINED);
}
static ml_jval is_none(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(v.kind == ML_J_NONE);
}
static ml_jval is_boolean(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(v.kind == ML_J_BOOL);
}
static ml_jval is_true(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(v.kind == ML_J_BOOL && v.b);
}
static ml_jval is_false(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(v.kind == ML_J_BOOL && !v.b);
}
static ml_jval is_integer(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(v.kind == ML_J_INT || v.kind == ML_J_BIGINT);
}
static ml_jval is_float(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(v.kind == ML_J_FLOAT);
}
static ml_jval is_number(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(ml_jval_is_number(v));
}
static ml_jval is_string(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(v.kind == ML_J_STR);
}
static ml_jval is_mapping(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(v.kind == ML_J_DICT);
}
static ml_jval is_iterable(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(ml_jval_iterable(v));
}
/* It has both len() and []. */
static ml_jval is_sequence(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(v.kind == ML_J_UNDEFINED || v.kind == ML_J_RANGE ||
                    (v.kind >= ML_J_STR && v.kind <= ML_J_DICT));
}
static ml_jval is_callable(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(v.kind == ML_J_UNDEFINED || v.kind == ML_J_MACRO ||
                    v.kind == ML_J_METHOD || v.kind == ML_J_FUNC || v.kind == ML_J_LOOP ||
                    v.kind == ML_J_JOINER || v.kind == ML_J_BLOCK);
}
static ml_jval is_escaped(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)r, (void)a;
    return ml_jbool(v.kind == ML_J_STR && v.s->markup);
}
/* True if v is the name of a filter or test. */
static bool names_row(ml_jrun *r, ml_jval v, const ml_jnative *(*find)(ml_str)) {
    uint64_t hash;

    if (!ml_jval_hash(r, v, &hash))
        ml_jraise(r, "TypeError", "unhashable type: '%s'", ml_jval_type(v));
    return v.kind == ML_J_STR && find(ml_jstr_get(v));
}

static ml_jval is_filter(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)a;
    return ml_jbool(names_row(r, v, ml_jfilter_find));
}
static ml_jval is_test(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)a;
    return ml_jbool(names_row(r, v, ml_jtest_find));
}

/* str(v).isupper(), .islower(): at least one letter of that case, none of the other. */
static ml_jval all_of_case(ml_jrun *r, ml_jval v, ml_jclass this, ml_jclass other) {
    ml_jval s = ml_jval_str(r, v);
    const char *p = s.s->ptr, *end = p + s.s->len;
    bool found = false;

    while (p < end) {
        uint32_t c = ml_utf8_next(&p);
        if (ml_jchar_is(c, other))
            return ml_jbool(false);
        found = found || ml_jchar_is(c, this);
    }
    return ml_jbool(found);
}

static ml_jval is_upper(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)a;
    return all_of_case(r, v, ML_J_IS_UPPER, ML_J_IS_LOWER);
}
static ml_jval is_lower(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)a;
    return all_of_case(r, v, ML_J_IS_LOWER, ML_J_IS_UPPER);
}

static bool remainder_is(ml_jrun *r, ml_jval v, int64_t by, int64_t is) {
    return ml_jval_eq(r, ml_jop_binary(r, ML_JO_MOD, v, ml_jint(by)), ml_jint(is));
}

static ml_jval is_odd(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)a;
    return ml_jbool(remainder_is(r, v, 2, 1));
}
static ml_jval is_even(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    (void)a;
    return ml_jbool(remainder_is(r, v, 2, 0));
}
static ml_jval is_divisibleby(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return ml_jbool(ml_jval_eq(r, ml_jop_binary(r, ML_JO_MOD, v, a->arg[0]), ml_jint(0)));
}

static ml_jval is_eq(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return ml_jbool(ml_jop_compare(r, ML_JO_EQ, v, a->arg[0]));
}
static ml_jval is_ne(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return ml_jbool(ml_jop_compare(r, ML_JO_NE, v, a->arg[0]));
}
static ml_jval is_lt(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return ml_jbool(ml_jop_compare(r, ML_JO_LT, v, a->arg[0]));
}
static ml_jval is_le(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return ml_jbool(ml_jop_compare(r, ML_JO_LE, v, a->arg[0]));
}
static ml_jval is_gt(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return ml_jbool(ml_jop_compare(r, ML_JO_GT, v, a->arg[0]));
}
static ml_jval is_ge(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return ml_jbool(ml_jop_compare(r, ML_JO_GE, v, a->arg[0]));
}
static ml_jval is_in(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    return ml_jbool(ml_jop_compare(r, ML_JO_IN, v, a->arg[0]));
}

/* The same object: containers by address, other values by value and type. */
static ml_jval is_sameas(ml_jrun *r, ml_jval v, const ml_jargs *a) {
    ml_jval other = a->arg[0];
    bool by_address = v.kind >= ML_J_LIST;

    if (v.kind != other.kind)
        return ml_jbool(false);
    return ml_jbool(by_address ? v.iter == other.iter : ml_jval_eq(r, v, other));
}

const ml_jnative ml_jtests[] = {
    { "defined", is_defined, "", 0, false },
    { "undefined", is_undefined, "", 0, false },
    { "none", is_none, "", 0, false },
    { "boolean", is_boolean, "", 0, false },
    { "true", is_true, "", 0, false },
    { "false", is_false, "", 0, false },
    { "integer", is_integer, "", 0, false },
    { "float", is_float, "", 0, false },
    { "number", is_number, "", 0, false },
    { "string", is_string, "", 0, false },
    { "mapping", is_mapping, "", 0, false },
    { "iterable", is_iterable, "", 0, false },
    { "sequence", is_sequence, "", 0, false },
    { "callable", is_callable, "", 0, false },
    { "escaped", is_escaped, "", 0, false },
    { "filter", is_filter, "", 0, false },
    { "test", is_test, "", 0, false },
    { "upper", is_upper, "", 0, false },
    { "lower", is_lower, "", 0, false },
    { "odd", is_odd, "", 0, false },
    { "even", is_even, "", 0, false },
    { "divisibleby", is_divisibleby, "num", 1, false },
    { "eq", is_eq, "other", 1, false },
    { "==", is_eq, "other", 1, false },
    { "equalto", is_eq, "other", 1, false },
    { "ne", is_ne, "other", 1, false },
    { "!=", is_ne, "other", 1, false },
    { "lt", is_lt, "other", 1, false },
    { "<", is_lt, "other", 1, false },
    { "lessthan", is_lt, "other", 1, false },
    { "le", is_le, "other", 1, false },
    { "<=", is_le, "other", 1, false },
    { "gt", is_gt, "other", 1, false },
    { ">", is_gt, "other", 1, false },
    { "greaterthan", is_gt, "other", 1, false },
    { "ge", is_ge, "other", 1, false },
    { ">=", is_ge, "other", 1, false },
    { "in", is_in, "seq", 1, false },
    { "sameas", is_sameas, "other", 1, false },
    { 0 },
};
