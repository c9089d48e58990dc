/* ratfun.h - exact arithmetic on expressions as rational functions: quotients of
 * polynomials over atoms.
 *
 * Coefficients are integers.  An atom is a symbol (x, pi, i), a root of an expression, a
 * power with a symbolic exponent, or an opaque function of expressions.  A root raised to
 * its index is reduced to its radicand, so that 6/sqrt(3) and 2 sqrt(3), or sqrt(50) and 5
 * sqrt(2), are found equal; other identities between functions are not used.  Two
 * quotients are equal if their cross products are.
 *
 * thread: an algebra and everything made with it belong to one thread. */
#ifndef ML_RL_REWARD_MATH_RATFUN_H
#define ML_RL_REWARD_MATH_RATFUN_H

#include "rl/reward/math/big.h"

#define ML_ATOM_MAX 20
#define ML_ATOM_ARGS 3

typedef struct ml_term {
    ml_big coef;
    int16_t exp[ML_ATOM_MAX];
} ml_term;

/* Terms are sorted and distinct; none is zero. */
typedef struct ml_poly {
    int32_t n;
    const ml_term *term;
} ml_poly;

/* den is never 0. */
typedef struct ml_ratfun {
    ml_poly num, den;
} ml_ratfun;

typedef enum ml_atom_kind {
    ML_ATOM_SYMBOL,
    ML_ATOM_ROOT,  /* arg[0]: a polynomial; index: which root */
    ML_ATOM_POWER, /* arg[0] to the power of arg[1] */
    ML_ATOM_CALL   /* name of arg[0 .. n_arg) */
} ml_atom_kind;

typedef struct ml_atom {
    ml_atom_kind kind;
    ml_str name;
    int32_t index, n_arg;
    ml_ratfun arg[ML_ATOM_ARGS];
} ml_atom;

typedef struct ml_algebra {
    ml_work work;
    int32_t n_atom;
    ml_atom atom[ML_ATOM_MAX];
} ml_algebra;

/* Once a->work.spent is set, results have no meaning. */
ml_ratfun ml_ratfun_int(ml_algebra *a, ml_big v);
ml_ratfun ml_ratfun_symbol(ml_algebra *a, ml_str name);
ml_ratfun ml_ratfun_call(ml_algebra *a, ml_str name, const ml_ratfun *arg, int32_t n);

ml_ratfun ml_ratfun_add(ml_algebra *a, ml_ratfun x, ml_ratfun y);
ml_ratfun ml_ratfun_minus(ml_algebra *a, ml_ratfun x);
ml_ratfun ml_ratfun_mul(ml_algebra *a, ml_ratfun x, ml_ratfun y);
/* These set work.spent if the result does not exist, such as 1/0. */
ml_ratfun ml_ratfun_div(ml_algebra *a, ml_ratfun x, ml_ratfun y);
ml_ratfun ml_ratfun_pow(ml_algebra *a, ml_ratfun x, ml_ratfun y);
ml_ratfun ml_ratfun_root(ml_algebra *a, ml_ratfun x, int64_t index);

bool ml_ratfun_eq(ml_algebra *a, ml_ratfun x, ml_ratfun y);
/* The value of a quotient that is an integer of magnitude below 2^62. */
bool ml_ratfun_is_int(ml_ratfun x, int64_t *out);

#endif
