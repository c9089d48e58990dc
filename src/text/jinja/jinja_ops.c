/* Operators. */
#include <math.h>

#include "text/jinja/jinja_priv.h"

static const char *const symbols[] = {
    [ML_JO_ADD] = "+",           [ML_JO_SUB] = "-",
    [ML_JO_MUL] = "*",           [ML_JO_DIV] = "/",
    [ML_JO_FLOORDIV] = "//",     [ML_JO_MOD] = "%",
    [ML_JO_POW] = "** or pow()", [ML_JO_EQ] = "==",
    [ML_JO_NE] = "!=",           [ML_JO_LT] = "<",
    [ML_JO_LE] = "<=",           [ML_JO_GT] = ">",
    [ML_JO_GE] = ">=",
};

static _Noreturn void fail_operands(ml_jrun *r, ml_jop op, ml_jval a, ml_jval b) {
    ml_jraise(r, "TypeError", "unsupported operand type(s) for %s: '%s' and '%s'",
              symbols[op], ml_jval_type(a), ml_jval_type(b));
}

static _Noreturn void fail_overflow(ml_jrun *r) {
    ml_jraise(r, "OverflowError", "the integer does not fit into 64 bits");
}

/* --- numbers ------------------------------------------------------------------------------- */

static ml_jval pow_int(ml_jrun *r, int64_t base, int64_t exponent) {
    int64_t result = 1;
    bool too_big = false;

    while (exponent > 0) {
        if (exponent & 1)
            too_big = too_big || __builtin_mul_overflow(result, base, &result);
        exponent >>= 1;
        if (exponent)
            too_big = too_big || __builtin_mul_overflow(base, base, &base);
        if (too_big)
            fail_overflow(r);
    }
    return ml_jint(result);
}

static ml_jval pow_float(ml_jrun *r, double a, double b) {
    double x;

    if (a == 0 && b < 0)
        ml_jraise(r, "ZeroDivisionError", "0.0 cannot be raised to a negative power");
    x = pow(a, b);
    if (a < 0 && isnan(x) && !isnan(b))
        ml_jraise(r, "ValueError", "a negative number with a fractional power is complex");
    if (isinf(x) && !isinf(a) && !isinf(b))
        ml_jraise(r, "OverflowError", "(34, 'Numerical result out of range')");
    return ml_jfloat(x);
}

/* Rounds towards minus infinity; the remainder has the sign of the divisor. */
static ml_jval divide_int(ml_jrun *r, ml_jop op, int64_t a, int64_t b) {
    int64_t q, m;

    if (b == 0)
        ml_jraise(r, "ZeroDivisionError", "integer division or modulo by zero");
    if (a == INT64_MIN && b == -1) {
        if (op == ML_JO_MOD)
            return ml_jint(0);
        fail_overflow(r);
    }
    q = a / b;
    m = a % b;
    if (m && (m < 0) != (b < 0)) {
        m += b;
        q--;
    }
    return ml_jint(op == ML_JO_MOD ? m : q);
}

static ml_jval divide_float(ml_jrun *r, ml_jop op, double a, double b) {
    double m, q;

    if (b == 0)
        ml_jraise(r, "ZeroDivisionError", "float floor division by zero");
    m = fmod(a, b);
    q = (a - m) / b;
    if (m != 0 && (m < 0) != (b < 0)) {
        m += b;
        q -= 1;
    }
    if (op == ML_JO_MOD)
        return ml_jfloat(m != 0 ? m : copysign(0, b));
    if (q == 0)
        return ml_jfloat(copysign(0, a / b));
    return ml_jfloat(floor(q) + (q - floor(q) > 0.5 ? 1 : 0));
}

static ml_jval ints(ml_jrun *r, ml_jop op, int64_t a, int64_t b) {
    int64_t x = 0;
    bool too_big = false;

    switch (op) {
    case ML_JO_ADD: too_big = __builtin_add_overflow(a, b, &x); break;
    case ML_JO_SUB: too_big = __builtin_sub_overflow(a, b, &x); break;
    case ML_JO_MUL: too_big = __builtin_mul_overflow(a, b, &x); break;
    case ML_JO_DIV:
        if (b == 0)
            ml_jraise(r, "ZeroDivisionError", "division by zero");
        return ml_jfloat((double)a / (double)b);
    case ML_JO_POW: return b < 0 ? pow_float(r, (double)a, (double)b) : pow_int(r, a, b);
    default: return divide_int(r, op, a, b);
    }
    if (too_big)
        fail_overflow(r);
    return ml_jint(x);
}

static ml_jval floats(ml_jrun *r, ml_jop op, double a, double b) {
    switch (op) {
    case ML_JO_ADD: return ml_jfloat(a + b);
    case ML_JO_SUB: return ml_jfloat(a - b);
    case ML_JO_MUL: return ml_jfloat(a * b);
    case ML_JO_DIV:
        if (b == 0)
            ml_jraise(r, "ZeroDivisionError", "float division by zero");
        return ml_jfloat(a / b);
    case ML_JO_POW: return pow_float(r, a, b);
    default: return divide_float(r, op, a, b);
    }
}

static ml_jval numbers(ml_jrun *r, ml_jop op, ml_jval a, ml_jval b) {
    int64_t i, k;

    if (a.kind == ML_J_BIGINT || b.kind == ML_J_BIGINT)
        fail_overflow(r);
    if (ml_jval_i64(a, &i) && ml_jval_i64(b, &k))
        return ints(r, op, i, k);
    return floats(r, op, ml_jval_f64(a), ml_jval_f64(b));
}

/* --- sequences ------------------------------------------------------------------------------- */

static ml_jval join_strs(ml_jrun *r, ml_jval a, ml_jval b) {
    bool markup = a.s->markup || b.s->markup;
    ml_jbuf buf = { 0 };

    if (markup) {
        a = ml_jval_escape(r, a);
        b = ml_jval_escape(r, b);
    }
    ml_jbuf_str(r, &buf, ml_jstr_get(a));
    ml_jbuf_str(r, &buf, ml_jstr_get(b));
    return ml_jstr_mark(r, ml_jbuf_value(r, &buf), markup);
}

static ml_jval join_seqs(ml_jrun *r, ml_jval a, ml_jval b) {
    ml_jitems l = { 0 };

    for (int64_t i = 0; i < a.seq->n; i++)
        ml_jitems_add(r, &l, a.seq->item[i]);
    for (int64_t i = 0; i < b.seq->n; i++)
        ml_jitems_add(r, &l, b.seq->item[i]);
    return ml_jseq_new(r, a.kind, l.item, l.n);
}

static ml_jval add(ml_jrun *r, ml_jval a, ml_jval b) {
    bool is_seq = a.kind == ML_J_LIST || a.kind == ML_J_TUPLE;

    if (a.kind == ML_J_STR && b.kind == ML_J_STR)
        return join_strs(r, a, b);
    if (is_seq && a.kind == b.kind)
        return join_seqs(r, a, b);
    if (a.kind == ML_J_STR || is_seq)
        ml_jraise(r, "TypeError", "can only concatenate %s (not \"%s\") to %s",
                  ml_jval_type(a), ml_jval_type(b), ml_jval_type(a));
    fail_operands(r, ML_JO_ADD, a, b);
}

static ml_jval repeat(ml_jrun *r, ml_jval a, int64_t n) {
    ml_jitems l = { 0 };
    ml_jbuf b = { 0 };

    if (a.kind == ML_J_STR) {
        for (int64_t i = 0; i < n && a.s->len; i++)
            ml_jbuf_str(r, &b, ml_jstr_get(a));
        return ml_jstr_mark(r, ml_jbuf_value(r, &b), a.s->markup);
    }
    for (int64_t i = 0; i < n && a.seq->n; i++)
        for (int64_t k = 0; k < a.seq->n; k++)
            ml_jitems_add(r, &l, a.seq->item[k]);
    return ml_jseq_new(r, a.kind, l.item, l.n);
}

static bool is_repeatable(ml_jval v) {
    return v.kind == ML_J_STR || v.kind == ML_J_LIST || v.kind == ML_J_TUPLE;
}

static ml_jval multiply(ml_jrun *r, ml_jval a, ml_jval b) {
    int64_t n;

    if (is_repeatable(a) && ml_jval_i64(b, &n))
        return repeat(r, a, n);
    if (is_repeatable(b) && ml_jval_i64(a, &n))
        return repeat(r, b, n);
    if (a.kind == ML_J_BIGINT || b.kind == ML_J_BIGINT)
        fail_overflow(r);
    if (is_repeatable(a) || is_repeatable(b))
        ml_jraise(r, "TypeError", "can't multiply sequence by non-int of type '%s'",
                  ml_jval_type(is_repeatable(a) ? b : a));
    fail_operands(r, ML_JO_MUL, a, b);
}

/* --- entry points
 * ----------------------------------------------------------------------- */

ml_jval ml_jop_binary(ml_jrun *r, ml_jop op, ml_jval a, ml_jval b) {
    if (op == ML_JO_MOD && a.kind == ML_J_STR)
        return ml_jformat_percent(r, a, b);
    if (a.kind == ML_J_UNDEFINED)
        ml_jraise_undef(r, a);
    if (b.kind == ML_J_UNDEFINED)
        ml_jraise_undef(r, b);
    if (ml_jval_is_number(a) && ml_jval_is_number(b))
        return numbers(r, op, a, b);
    if (op == ML_JO_ADD)
        return add(r, a, b);
    if (op == ML_JO_MUL)
        return multiply(r, a, b);
    fail_operands(r, op, a, b);
}

bool ml_jop_compare(ml_jrun *r, ml_jop op, ml_jval a, ml_jval b) {
    switch (op) {
    case ML_JO_EQ: return ml_jval_eq(r, a, b);
    case ML_JO_NE: return !ml_jval_eq(r, a, b);
    case ML_JO_IN: return ml_jval_contains(r, b, a);
    case ML_JO_NOT_IN: return !ml_jval_contains(r, b, a);
    case ML_JO_LT: return ml_jval_cmp(r, a, b, symbols[op]) == -1;
    case ML_JO_LE: return ml_jval_cmp(r, a, b, symbols[op]) <= 0;
    case ML_JO_GT: return ml_jval_cmp(r, a, b, symbols[op]) == 1;
    default: {
        int c = ml_jval_cmp(r, a, b, symbols[op]);
        return c == 0 || c == 1;
    }
    }
}

ml_jval ml_jop_negate(ml_jrun *r, ml_jval a, bool minus) {
    int64_t i;

    if (a.kind == ML_J_UNDEFINED)
        ml_jraise_undef(r, a);
    if (a.kind == ML_J_BIGINT)
        fail_overflow(r);
    if (ml_jval_i64(a, &i))
        return minus ? ints(r, ML_JO_SUB, 0, i) : ml_jint(i);
    if (a.kind != ML_J_FLOAT)
        ml_jraise(r, "TypeError", "bad operand type for unary %s: '%s'", minus ? "-" : "+",
                  ml_jval_type(a));
    return ml_jfloat(minus ? -a.f : a.f);
}
