/* muon.c - the update of Muon: momentum, Newton-Schulz iterations, the step.
 *
 * A member of the parameter [N, K] becomes a row-major x [m, n], m <= n, transposed if N > K.
 * The products of an iteration are the GEMMs of linear layers with x, and x x', as weights in
 * panels: their bits depend neither on threads nor on the level. */
#include <math.h>

#include "backend/cpu/gemm.h"

#define TINY 1e-7f /* least norm that is divided by */

typedef struct muon_job {
    ml_stream *stream;
    const ml_cpu_stream *s;
    const ml_muon *o;
    float *master, *moment; /* of the member: panels of [rows, cols], or rows */
    const float *grad;
    int64_t rows, cols; /* of the member */
    int64_t m, n;       /* of x */
    ml_layout layout;
    float *x, *y;            /* [m, n] */
    float *gram, *poly;      /* [m, m] */
    float *x_panel, *square; /* panels of x and of the gram matrix */
    double *block;           /* sums of squares */
    void *gemm;
    float factor; /* of the current pass */
} muon_job;

static int64_t rounded(int64_t n) {
    return (n + ML_LANES - 1) / ML_LANES * ML_LANES;
}

static size_t floats(int64_t n) {
    return ((size_t)n * sizeof(float) + 63) & ~(size_t)63;
}

static ml_tensor panels(float *data, int64_t rows, int64_t cols) {
    return (ml_tensor){ .data = data,
                        .dtype = ML_F32,
                        .layout = ML_PANELS,
                        .n_dim = 2,
                        .shape = { rows, cols } };
}

static int64_t blocks_of(int64_t n) {
    return (n + ML_NORM_BLOCK - 1) / ML_NORM_BLOCK;
}

/* Divides the scratch, or counts its bytes if it has no address. */
static size_t place(muon_job *j, char *at) {
    ml_tensor x = panels(NULL, j->m, j->n), square = panels(NULL, j->m, j->m);
    size_t gemm = ml_gemm_scratch(j->s, &x, j->m),
           other = ml_gemm_scratch(j->s, &square, j->m);
    const size_t bytes[] = { floats(j->m * j->n),
                             floats(j->m * j->n),
                             floats(j->m * j->m),
                             floats(j->m * j->m),
                             floats(rounded(j->m) * j->n),
                             floats(rounded(j->m) * j->m),
                             floats(2 * blocks_of(j->m * j->n)),
                             gemm > other ? gemm : other };
    void *to[8];
    size_t all = 0;

    for (int i = 0; i < 8; i++) {
        to[i] = at ? at + all : NULL;
        all += bytes[i];
    }
    j->x = to[0], j->y = to[1], j->gram = to[2], j->poly = to[3];
    j->x_panel = to[4], j->square = to[5], j->block = to[6], j->gemm = to[7];
    return all;
}

/* --- passes over elements ------------------------------------------------------ */

/* The place of element (r, c) of the member, and of the same in x. */
static int64_t member_at(const muon_job *j, int64_t r, int64_t c) {
    if (j->layout == ML_ROWS)
        return r * j->cols + c;
    return (r / ML_LANES * j->cols + c) * ML_LANES + r % ML_LANES;
}

static int64_t x_at(const muon_job *j, int64_t r, int64_t c) {
    return j->rows > j->cols ? c * j->n + r : r * j->n + c;
}

static void momentum_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const muon_job *j = ud;
    const float keep = 1.0f - j->o->momentum;

    (void)worker;
    for (int64_t r = begin; r < end; r++)
        for (int64_t c = 0; c < j->cols; c++) {
            int64_t i = member_at(j, r, c);
            float g = j->grad[i] * j->o->grad_scale;
            float m = j->moment[i] + keep * (g - j->moment[i]);
            j->moment[i] = m;
            j->x[x_at(j, r, c)] = j->o->nesterov ? g + j->o->momentum * (m - g) : m;
        }
}

static void step_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const muon_job *j = ud;

    (void)worker;
    for (int64_t r = begin; r < end; r++)
        for (int64_t c = 0; c < j->cols; c++) {
            float *w = &j->master[member_at(j, r, c)];
            float kept = *w - j->o->decay * *w;
            *w = kept - j->o->lr * j->x[x_at(j, r, c)];
        }
}

/* to = factor * from, [m, n]. */
static void scale_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const muon_job *j = ud;

    (void)worker;
    for (int64_t i = begin * j->n; i < end * j->n; i++)
        j->y[i] = j->factor * j->x[i];
}

/* poly = b gram + c gram^2. */
static void polynomial_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const muon_job *j = ud;
    const float b = j->o->coef[0][1], c = j->o->coef[0][2];

    (void)worker;
    for (int64_t i = begin * j->m; i < end * j->m; i++)
        j->poly[i] = b * j->gram[i] + c * j->poly[i];
}

static void rows(muon_job *j, int64_t n, int64_t width, ml_task *task) {
    ml_pool_run(j->s->pool, n, ml_cpu_grain(width), task, j);
}

typedef struct pack_job {
    float *panel;
    const float *x;
    int64_t m, n;
} pack_job;

static void pack_panels(void *ud, int64_t begin, int64_t end, int worker) {
    const pack_job *j = ud;

    (void)worker;
    for (int64_t p = begin; p < end; p++)
        for (int64_t c = 0; c < j->n; c++)
            for (int64_t l = 0; l < ML_LANES; l++) {
                int64_t r = p * ML_LANES + l;
                j->panel[(p * j->n + c) * ML_LANES + l] = r < j->m ? j->x[r * j->n + c] : 0;
            }
}

static void pack(const muon_job *j, float *panel, const float *x, int64_t m, int64_t n) {
    pack_job k = { panel, x, m, n };
    ml_pool_run(j->s->pool, rounded(m) / ML_LANES, ml_cpu_grain(n * ML_LANES), pack_panels,
                &k);
}

/* --- Newton-Schulz --------------------------------------------------------------- */

static void normalize(muon_job *j) {
    float *x = j->x;
    double sum = 0;

    ml_cpu_optim.square_sums(j->stream, j->block, x, j->m * j->n);
    for (int64_t b = 0; b < blocks_of(j->m * j->n); b++)
        sum += j->block[b];
    j->factor = 1.0f / fmaxf((float)sqrt(sum), TINY);
    rows(j, j->m, j->n, scale_rows);
    j->x = j->y, j->y = x;
}

static void iterate(muon_job *j, const float (*coef)[3]) {
    ml_muon o = *j->o;
    muon_job with = *j;
    ml_tensor x = panels(j->x_panel, j->m, j->n), square = panels(j->square, j->m, j->m);
    const ml_gemm_out gram = { j->gram, j->m, &x, NULL },
                      poly = { j->poly, j->m, &square, NULL };

    o.coef = coef;
    with.o = &o;
    with.factor = coef[0][0];
    pack(j, j->x_panel, j->x, j->m, j->n);
    ml_gemm_forward(j->s, &gram, 1, j->x, j->n, j->m, j->gemm);
    pack(j, j->square, j->gram, j->m, j->m);
    ml_gemm_forward(j->s, &poly, 1, j->gram, j->m, j->m, j->gemm);
    rows(&with, j->m, j->m, polynomial_rows);
    rows(&with, j->m, j->n, scale_rows);
    ml_gemm_dinput(j->s, j->y, j->n, j->poly, j->m, &x, j->m, true, false, j->gemm);
    j->y = j->x, j->x = with.y;
}

static muon_job job_of(ml_stream *s, const ml_tensor *shape) {
    const int64_t r = shape->shape[shape->n_dim - 2], c = shape->shape[shape->n_dim - 1];

    return (muon_job){ .stream = s,
                       .s = ml_cpu(s),
                       .rows = r,
                       .cols = c,
                       .m = r < c ? r : c,
                       .n = r < c ? c : r,
                       .layout = shape->layout };
}

size_t ml_cpu_muon_scratch(ml_stream *s, const ml_tensor *shape) {
    muon_job j = job_of(s, shape);
    return place(&j, NULL);
}

void ml_cpu_muon(ml_stream *s, const ml_optim_param *p, const ml_tensor *shape,
                 const ml_muon *o, void *scratch) {
    const int64_t n_member = shape->n_dim == 3 ? shape->shape[0] : 1;
    muon_job j = job_of(s, shape);
    int64_t stored = (shape->layout == ML_PANELS ? rounded(j.rows) : j.rows) * j.cols;

    j.o = o;
    for (int64_t e = 0; e < n_member; e++) {
        place(&j, scratch);
        j.master = p->master + e * stored;
        j.moment = p->moment1 + e * stored;
        j.grad = p->grad + e * stored;
        rows(&j, j.rows, j.cols, momentum_rows);
        normalize(&j);
        for (int32_t k = 0; k < o->n_iter; k++)
            iterate(&j, o->coef + k);
        rows(&j, j.rows, j.cols, step_rows);
    }
}
