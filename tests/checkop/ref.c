/* ref.c - checks an op against its f64 forward, and its backward by central differences. */
#include <math.h>

#include "tests/checkop/checkop.h"

static void view_inputs(const ck_case *c, ck_ref *r) {
    for (int i = 0; i < ML_OP_IN; i++)
        r->in[i] = c->in[i].data ? ck_values(c->arena, &c->in[i]) : NULL;
    for (int i = 0; i < ML_OP_W; i++)
        r->w[i] = c->w[i].data ? ck_values(c->arena, &c->w[i]) : NULL;
    for (int i = 0; i < ML_OP_OUT; i++)
        if (c->suite->ref_out & 1u << i && c->out[i].n_dim)
            r->out[i] = ML_NEW(c->arena, double, ml_tensor_count(&c->out[i]) + 1);
}

static double largest(const double *v, int64_t n) {
    double top = 0.0;
    for (int64_t i = 0; i < n; i++)
        top = fmax(top, fabs(v[i]));
    return top;
}

void ck_check_forward(ck_env *e, const ck_case *c, const ck_result *r,
                      const ck_bound *bound) {
    ck_ref ref = { 0 };

    view_inputs(c, &ref);
    c->suite->forward(c, &ref);
    for (int i = 0; i < ML_OP_OUT; i++) {
        int64_t n = ref.out[i] ? ml_tensor_count(&c->out[i]) : 0;
        const double *got = n ? ck_values(c->arena, &r->out[i]) : NULL;
        double top = largest(ref.out[i], n);
        for (int64_t k = 0; k < n; k++)
            if (!(fabs(got[k] - ref.out[i][k]) <= bound->forward * top)) {
                ck_fail(
                    e, "out[%d] is %.9g at element %lld, in f64 %.9g; %.1g allowed (%s)", i,
                    got[k], (long long)k, ref.out[i][k], bound->forward * top, bound->why);
                break;
            }
    }
}

/* The scalar that backward differentiates: the sum of out * dout, in f64. */
static double objective(const ck_case *c, ck_ref *ref, double *const *dout) {
    double sum = 0.0;
    c->suite->forward(c, ref);
    for (int i = 0; i < ML_OP_OUT; i++)
        for (int64_t k = 0; dout[i] && k < ml_tensor_count(&c->out[i]); k++)
            sum += ref->out[i][k] * dout[i][k];
    return sum;
}

/* A direction in n dimensions: dense, or a few axes, which tests single elements better. */
static void choose_direction(ck_case *c, double *v, int64_t n, bool dense) {
    for (int64_t i = 0; i < n; i++)
        v[i] = dense ? (double)ck_uniform(c, 1.0f) : 0.0;
    for (int i = 0; !dense && i < 3; i++)
        v[ck_below(c, (int32_t)n)] = 1.0;
}

static double slope_along(const ck_case *c, ck_ref *ref, double *const *dout, double *x,
                          const double *v, int64_t n) {
    const double h = 1e-4;
    double *keep = ML_NEW(c->arena, double, n), up, down;

    for (int64_t i = 0; i < n; i++) {
        keep[i] = x[i];
        x[i] = keep[i] + h * v[i];
    }
    up = objective(c, ref, dout);
    for (int64_t i = 0; i < n; i++)
        x[i] = keep[i] - h * v[i];
    down = objective(c, ref, dout);
    for (int64_t i = 0; i < n; i++)
        x[i] = keep[i];
    return (up - down) / (2.0 * h);
}

/* Compares gradient d of x with central differences in several directions. */
static void check_gradient(ck_env *e, const ck_case *c, ck_ref *ref, double *const *dout,
                           double *x, const ml_tensor *d, const char *what, int index,
                           double bound, const char *why) {
    int64_t n = ml_tensor_count(d);
    const double *g = ck_values(c->arena, d);
    double *v = ML_NEW(c->arena, double, n + 1), top = largest(g, n);
    ck_case dice = *c;

    for (int k = 0; n && k < 6; k++) {
        double want, got = 0.0, size = 0.0;
        choose_direction(&dice, v, n, k < 2);
        want = slope_along(c, ref, dout, x, v, n);
        for (int64_t i = 0; i < n; i++) {
            got += v[i] * g[i];
            size += fabs(v[i] * g[i]);
        }
        if (!(fabs(got - want) <= bound * (size + top) + 1e-9)) {
            ck_fail(e,
                    "%s[%d] along direction %d is %.9g, by differences %.9g; %.1g "
                    "allowed (%s)",
                    what, index, k, got, want, bound * (size + top) + 1e-9, why);
            return;
        }
    }
}

void ck_check_backward(ck_env *e, const ck_case *c, const ck_result *r,
                       const ck_bound *bound) {
    double *dout[ML_OP_OUT] = { 0 };
    ck_ref ref = { 0 };

    view_inputs(c, &ref);
    for (int i = 0; i < ML_OP_OUT; i++)
        if (c->dout[i].data)
            dout[i] = ck_values(c->arena, &c->dout[i]);
    for (int i = 0; i < ML_OP_IN; i++)
        if (r->din[i].data)
            check_gradient(e, c, &ref, dout, ref.in[i], &r->din[i], "din", i,
                           bound->backward, bound->why);
    for (int i = 0; i < ML_OP_W; i++)
        if (r->dw[i].data)
            check_gradient(e, c, &ref, dout, ref.w[i], &r->dw[i], "dw", i, bound->backward,
                           bound->why);
}

static void check_sum(ck_env *e, const ck_case *c, const ml_tensor *start,
                      const ml_tensor *alone, const ml_tensor *sum, const char *what,
                      int index, double bound) {
    int64_t n = alone->data ? ml_tensor_count(alone) : 0;
    const double *a = n ? ck_values(c->arena, start) : NULL;
    const double *b = n ? ck_values(c->arena, alone) : NULL;
    const double *got = n ? ck_values(c->arena, sum) : NULL;
    double limit = bound * (largest(a, n) + largest(b, n));

    for (int64_t i = 0; i < n; i++)
        if (!(fabs(got[i] - (a[i] + b[i])) <= limit)) {
            ck_fail(e, "%s[%d] added to %.9g is %.9g at element %lld, alone %.9g", what,
                    index, a[i], got[i], (long long)i, b[i]);
            return;
        }
}

void ck_check_add(ck_env *e, const ck_case *c, const ck_result *alone, const ck_result *sum,
                  const ck_bound *bound) {
    for (int i = 0; i < ML_OP_IN; i++)
        check_sum(e, c, &c->din[i], &alone->din[i], &sum->din[i], "din", i,
                  bound->backward);
    for (int i = 0; i < ML_OP_W; i++)
        check_sum(e, c, &c->dw[i], &alone->dw[i], &sum->dw[i], "dw", i, bound->backward);
}
