/* hyper.c - HYPER_COEF: coefficients of manifold-constrained hyper-connections.
 *
 * With l = scale x + base, split into pre [S], post [S] and comb [S,S]: the first S
 * coefficients are sigmoid(pre) + eps.  The matrix is softmax(comb) of each row plus eps,
 * divided by the sums of its columns, then n_iter - 1 times by those of rows and columns
 * (Sinkhorn-Knopp), each sum plus eps.  Output stream r has the coefficients matrix[s][r]
 * of stream s, and 2 sigmoid(post[r]) of the layer.  All in f64, rounded once: a token
 * needs a few thousand operations, whatever its width. */
#include <math.h>
#include <string.h>

#include "backend/cpu/columns.h"
#include "backend/cpu/math.h"
#include "base/bug.h"
#include "base/exp.h"

enum { MAX = ML_STREAMS, MAX_IN = MAX * (MAX + 2), MAX_ITER = 64 };

typedef double matrix[MAX][MAX];

typedef struct hyper {
    int32_t n, n_in, n_iter;
    double eps;
    bool head;
} hyper;

static hyper hyper_of(const ml_op_args *a) {
    int32_t n = a->attr->hyper.n_stream;
    bool head = a->attr->hyper.head;

    ML_BUG_IF(n < 1 || n > MAX ||
              (!head && (a->attr->hyper.n_iter < 1 || a->attr->hyper.n_iter > MAX_ITER)));
    return (hyper){ .n = n,
                    .n_in = head ? n : n * (n + 2),
                    .n_iter = a->attr->hyper.n_iter,
                    .eps = (double)a->attr->hyper.eps,
                    .head = head };
}

/* The scale of input i: of pre, post or comb. */
static int32_t part_of(const hyper *h, int32_t i) {
    return i < h->n ? 0 : i < 2 * h->n ? 1 : 2;
}

static void logits_of(const ml_op_args *a, const hyper *h, int64_t t, double *l) {
    const float *x = (const float *)a->in[0].data + t * h->n_in;
    const float *scale = a->w[0].data, *base = a->w[1].data;

    for (int32_t i = 0; i < h->n_in; i++)
        l[i] = (double)x[i] * (double)scale[part_of(h, i)] + (double)base[i];
}

static void softmax_rows(const hyper *h, const double *l, matrix m) {
    for (int32_t i = 0; i < h->n; i++) {
        double top = l[i * h->n], sum = 0;
        for (int32_t k = 1; k < h->n; k++)
            top = l[i * h->n + k] > top ? l[i * h->n + k] : top;
        for (int32_t k = 0; k < h->n; k++)
            sum += m[i][k] = ml_exp(l[i * h->n + k] - top);
        for (int32_t k = 0; k < h->n; k++)
            m[i][k] = m[i][k] / sum;
    }
}

/* Element k of line i: a row, or a column. */
static double *element(matrix m, bool columns, int32_t i, int32_t k) {
    return columns ? &m[k][i] : &m[i][k];
}

/* The sums of the lines, plus eps. */
static double line_sum(const hyper *h, matrix m, bool columns, int32_t i) {
    double sum = 0;
    for (int32_t k = 0; k < h->n; k++)
        sum += *element(m, columns, i, k);
    return sum + h->eps;
}

static void divide_lines(const hyper *h, matrix m, bool columns) {
    for (int32_t i = 0; i < h->n; i++) {
        double sum = line_sum(h, m, columns, i);
        for (int32_t k = 0; k < h->n; k++)
            *element(m, columns, i, k) /= sum;
    }
}

/* Divisions alternate: columns, rows, columns, ... */
static int32_t n_division(const hyper *h) {
    return 2 * h->n_iter - 1;
}

/* The matrix before each division and after the last; step may be NULL. */
static void sinkhorn(const hyper *h, matrix m, matrix *step) {
    for (int32_t i = 0; i < n_division(h); i++) {
        if (step)
            memcpy(step[i], m, sizeof(matrix));
        divide_lines(h, m, i % 2 == 0);
    }
}

static void hyper_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    hyper h = hyper_of(a);
    int64_t width = a->out[0].shape[1];

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        float *c = (float *)a->out[0].data + t * width;
        double l[MAX_IN] = { 0 };
        matrix m;
        logits_of(a, &h, t, l);
        for (int32_t i = 0; i < h.n; i++)
            c[i] = (float)(ml_sigmoid(l[i]) + h.eps);
        if (h.head)
            continue;
        softmax_rows(&h, l + 2 * h.n, m);
        for (int32_t i = 0; i < h.n; i++)
            for (int32_t k = 0; k < h.n; k++)
                m[i][k] += h.eps;
        sinkhorn(&h, m, NULL);
        for (int32_t r = 0; r < h.n; r++) {
            float *own = c + h.n + r * (h.n + 1);
            for (int32_t s = 0; s < h.n; s++)
                own[s] = (float)m[s][r];
            own[h.n] = (float)(2.0 * ml_sigmoid(l[h.n + r]));
        }
    }
}

void ml_cpu_hyper_coef_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], 2048, hyper_rows);
}

/* ---- backward ---- */

/* Scratch: the gradients of l, [n, inputs]. */
size_t ml_cpu_hyper_coef_scratch(const ml_cpu_stream *s, const ml_op_args *a,
                                 bool backward) {
    (void)s;
    return backward ? (size_t)ml_tensor_count(&a->in[0]) * sizeof(float) : 0;
}

/* From the gradient of lines divided by their sums to that of the lines:
 * (d - sum of d m) / sum, where m is what was divided, after the division. */
static void divide_back(const hyper *h, matrix d, matrix before, bool columns) {
    for (int32_t i = 0; i < h->n; i++) {
        double sum = line_sum(h, before, columns, i), dot = 0;
        for (int32_t k = 0; k < h->n; k++)
            dot += *element(d, columns, i, k) * (*element(before, columns, i, k) / sum);
        for (int32_t k = 0; k < h->n; k++)
            *element(d, columns, i, k) = (*element(d, columns, i, k) - dot) / sum;
    }
}

static void comb_back(const hyper *h, const double *l, matrix d, double *dl) {
    matrix p, m, step[2 * MAX_ITER];

    softmax_rows(h, l, p);
    for (int32_t i = 0; i < h->n; i++)
        for (int32_t k = 0; k < h->n; k++)
            m[i][k] = p[i][k] + h->eps;
    sinkhorn(h, m, step);
    for (int32_t i = n_division(h) - 1; i >= 0; i--)
        divide_back(h, d, step[i], i % 2 == 0);
    for (int32_t i = 0; i < h->n; i++) {
        double dot = 0;
        for (int32_t k = 0; k < h->n; k++)
            dot += d[i][k] * p[i][k];
        for (int32_t k = 0; k < h->n; k++)
            dl[i * h->n + k] = p[i][k] * (d[i][k] - dot);
    }
}

static double sigmoid_slope(double l) {
    double p = ml_sigmoid(l);
    return p * (1.0 - p);
}

/* The gradient of the logits of one token. */
static void logits_back(const hyper *h, const double *l, const float *dc, double *dl) {
    matrix d;

    for (int32_t i = 0; i < h->n; i++)
        dl[i] = (double)dc[i] * sigmoid_slope(l[i]);
    if (h->head)
        return;
    for (int32_t r = 0; r < h->n; r++) {
        const float *own = dc + h->n + r * (h->n + 1);
        for (int32_t s = 0; s < h->n; s++)
            d[s][r] = (double)own[s];
        dl[h->n + r] = 2.0 * (double)own[h->n] * sigmoid_slope(l[h->n + r]);
    }
    comb_back(h, l + 2 * h->n, d, dl + 2 * h->n);
}

static void hyper_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    hyper h = hyper_of(a);
    const float *scale = a->w[0].data;
    int64_t width = a->dout[0].shape[1];

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        float *kept = (float *)a->scratch + t * h.n_in, *dx = a->din[0].data;
        double l[MAX_IN] = { 0 }, dl[MAX_IN] = { 0 };
        logits_of(a, &h, t, l);
        logits_back(&h, l, (const float *)a->dout[0].data + t * width, dl);
        for (int32_t i = 0; i < h.n_in; i++) {
            float d = (float)(dl[i] * (double)scale[part_of(&h, i)]);
            kept[i] = (float)dl[i];
            if (dx)
                dx[t * h.n_in + i] = a->din_add[0] ? dx[t * h.n_in + i] + d : d;
        }
    }
}

/* Adds what tokens begin .. end - 1, of one sequence, give to the gradients: sums in f64. */
static void add_sequence(const ml_op_args *a, const hyper *h, int64_t begin, int64_t end) {
    const float *x = a->in[0].data, *d = a->scratch;
    float *dscale = a->dw[0].data, *dbase = a->dw[1].data;
    double scale[3] = { 0 }, base[MAX_IN] = { 0 };

    for (int64_t t = begin; t < end; t++)
        for (int32_t i = 0; i < h->n_in; i++) {
            const double dl = (double)d[t * h->n_in + i];
            scale[part_of(h, i)] += dl * (double)x[t * h->n_in + i];
            base[i] += dl;
        }
    for (int32_t i = 0; dbase && i < h->n_in; i++)
        dbase[i] += (float)base[i];
    for (int k = 0; dscale && k < (h->head ? 1 : 3); k++)
        dscale[k] += (float)scale[k];
}

/* Too few numbers to divide among threads. */
static void add_gradients(const ml_op_args *a) {
    const hyper h = hyper_of(a);
    const int64_t n = a->in[0].shape[0];
    const ml_row_runs runs = ml_cpu_row_runs(a, n);

    for (int64_t t = 0, end; t < n; t = end) {
        end = ml_row_run_end(&runs, t, n);
        add_sequence(a, &h, t, end);
    }
}

void ml_cpu_hyper_coef_backward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], 8192, hyper_rows_back);
    if (a->dw[0].data || a->dw[1].data)
        add_gradients(a);
}
