/* adafactor.c - the update of Adafactor: second moments of a matrix as a product of a column
 * and a row.  Sums over rows and columns are f64, in ascending order. */
#include <math.h>

#include "backend/cpu/cpu_priv.h"

typedef struct factor_job {
    const ml_cpu_stream *s;
    const ml_adafactor *o;
    float *master; /* of the member: panels of [rows, cols], or rows */
    const float *grad;
    float *row, *col; /* factors; a vector has one row and no row factor */
    int64_t rows, cols;
    ml_layout layout;
    double *sum;   /* [rows] */
    float average; /* of the row factors */
    float lr;      /* of the update: divided by the factor of its clipping, too */
    float decay;
} factor_job;

static int64_t member_at(const factor_job *j, int64_t r, int64_t c) {
    if (j->layout == ML_ROWS)
        return r * j->cols + c;
    return (r / ML_LANES * j->cols + c) * ML_LANES + r % ML_LANES;
}

static float grad_at(const factor_job *j, int64_t r, int64_t c) {
    return j->grad[member_at(j, r, c)] * j->o->grad_scale;
}

static float averaged(const ml_adafactor *o, float old, double now) {
    return o->beta2 * old + (1.0f - o->beta2) * (float)now;
}

static void row_factors(void *ud, int64_t begin, int64_t end, int worker) {
    const factor_job *j = ud;

    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        double sum = 0;
        for (int64_t c = 0; c < j->cols; c++) {
            float g = grad_at(j, r, c);
            sum += (double)(g * g + j->o->eps);
        }
        j->row[r] = averaged(j->o, j->row[r], sum / (double)j->cols);
    }
}

static void col_factors(void *ud, int64_t begin, int64_t end, int worker) {
    const factor_job *j = ud;

    (void)worker;
    for (int64_t c = begin; c < end; c++) {
        double sum = 0;
        for (int64_t r = 0; r < j->rows; r++) {
            float g = grad_at(j, r, c);
            sum += (double)(g * g + j->o->eps);
        }
        j->col[c] = averaged(j->o, j->col[c], sum / (double)j->rows);
    }
}

static float update_at(const factor_job *j, int64_t r, int64_t c) {
    float by_row = j->row ? 1.0f / sqrtf(j->row[r] / j->average) : 1.0f;
    return by_row * (1.0f / sqrtf(j->col[c])) * grad_at(j, r, c);
}

static void square_updates(void *ud, int64_t begin, int64_t end, int worker) {
    const factor_job *j = ud;

    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        j->sum[r] = 0;
        for (int64_t c = 0; c < j->cols; c++) {
            double u = (double)update_at(j, r, c);
            j->sum[r] += u * u;
        }
    }
}

static void square_weights(void *ud, int64_t begin, int64_t end, int worker) {
    const factor_job *j = ud;

    (void)worker;
    for (int64_t r = begin; r < end; r++) {
        j->sum[r] = 0;
        for (int64_t c = 0; c < j->cols; c++) {
            double w = (double)j->master[member_at(j, r, c)];
            j->sum[r] += w * w;
        }
    }
}

static void step_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const factor_job *j = ud;

    (void)worker;
    for (int64_t r = begin; r < end; r++)
        for (int64_t c = 0; c < j->cols; c++) {
            float *w = &j->master[member_at(j, r, c)];
            float kept = *w - j->decay * *w;
            *w = kept - j->lr * update_at(j, r, c);
        }
}

static void over(factor_job *j, int64_t n, int64_t width, ml_task *task) {
    ml_pool_run(j->s->pool, n, ml_cpu_grain(width), task, j);
}

/* The root of the mean square that the task computes. */
static double rms(factor_job *j, ml_task *task) {
    double sum = 0;

    over(j, j->rows, j->cols, task);
    for (int64_t r = 0; r < j->rows; r++)
        sum += j->sum[r];
    return sqrt(sum / (double)(j->rows * j->cols));
}

static void update(factor_job *j) {
    const ml_adafactor *o = j->o;
    double lr = (double)o->lr, clip, sum = 0;

    if (o->scale_parameter) {
        double size = rms(j, square_weights);
        lr *= size > (double)o->eps_scale ? size : (double)o->eps_scale;
    }
    if (j->row)
        over(j, j->rows, j->cols, row_factors);
    over(j, j->cols, j->rows, col_factors);
    for (int64_t r = 0; j->row && r < j->rows; r++)
        sum += (double)j->row[r];
    j->average = (float)(sum / (double)j->rows);
    clip = rms(j, square_updates) / (double)o->clip_threshold;
    j->lr = (float)(lr / (clip > 1.0 ? clip : 1.0));
    j->decay = (float)(lr * (double)o->weight_decay);
    over(j, j->rows, j->cols, step_rows);
}

size_t ml_cpu_adafactor_scratch(ml_stream *s, const ml_tensor *shape) {
    (void)s;
    return sizeof(double) *
           (size_t)(shape->n_dim == 1 ? 1 : shape->shape[shape->n_dim - 2]);
}

void ml_cpu_adafactor(ml_stream *s, const ml_optim_param *p, const ml_tensor *shape,
                      const ml_adafactor *o, void *scratch) {
    const int64_t n_member = shape->n_dim == 3 ? shape->shape[0] : 1;
    factor_job j = { .s = ml_cpu(s),
                     .o = o,
                     .rows = shape->n_dim == 1 ? 1 : shape->shape[shape->n_dim - 2],
                     .cols = shape->shape[shape->n_dim - 1],
                     .layout = shape->n_dim == 1 ? ML_ROWS : shape->layout,
                     .sum = scratch };
    int64_t stored =
        j.layout == ML_PANELS ? (j.rows + ML_LANES - 1) / ML_LANES * ML_LANES : j.rows;

    for (int64_t e = 0; e < n_member; e++) {
        j.master = p->master + e * stored * j.cols;
        j.grad = p->grad + e * stored * j.cols;
        j.row = p->moment1 ? p->moment1 + e * j.rows : NULL;
        j.col = p->moment2 + e * j.cols;
        update(&j);
    }
}
