/* layernorm.c - LAYERNORM: rows minus their mean, scaled to variance 1, times w, plus b. */
#include "backend/cpu/columns.h"

#include <math.h>
#include <string.h>

/* Scratch: ones, weight and bias as f32; a row per thread; in backward also the centred
 * rows and their scales. */
typedef struct layernorm_job {
    const ml_row_kern *k;
    const ml_op_args *a;
    int64_t width;
    float *one, *w, *b; /* [width] */
    float *own;         /* [thread][width] */
    float *centred;     /* [n, width]; backward only */
    float *scale;       /* [n] */
} layernorm_job;

size_t ml_cpu_layernorm_scratch(const ml_cpu_stream *s, const ml_op_args *a,
                                bool backward) {
    int64_t n = a->in[0].shape[0], width = a->in[0].shape[1];
    int64_t floats = (3 + ml_pool_size(s->pool)) * width + (backward ? n * (width + 1) : 0);
    return (size_t)floats * sizeof(float);
}

static void widen(float *to, const ml_tensor *t) {
    int64_t n = t->shape[0];
    if (t->dtype == ML_F32)
        memcpy(to, t->data, (size_t)n * sizeof *to);
    else
        for (int64_t i = 0; i < n; i++)
            to[i] = ml_bf16_to_f32(((const uint16_t *)t->data)[i]);
}

static layernorm_job layernorm_begin(const ml_stream *s, const ml_op_args *a) {
    int64_t width = a->in[0].shape[1];
    float *at = a->scratch;
    layernorm_job j = { .k = ml_cpu(s)->kern->row, .a = a, .width = width };

    j.one = at;
    j.w = at + width;
    j.b = at + 2 * width;
    j.own = at + 3 * width;
    j.centred = j.own + ml_pool_size(ml_cpu(s)->pool) * width;
    j.scale = j.centred + a->in[0].shape[0] * width;
    for (int64_t i = 0; i < width; i++)
        j.one[i] = 1.0f;
    widen(j.w, &a->w[0]);
    widen(j.b, &a->w[1]);
    return j;
}

/* c = x - mean; returns 1 / sqrt(variance + eps). */
static float centre(const layernorm_job *j, float *c, const float *x) {
    float mean = j->k->dot(x, j->one, j->width) / (float)j->width, var;

    memcpy(c, x, (size_t)j->width * sizeof *c);
    j->k->axpy(c, -mean, j->one, j->width, true);
    var = j->k->dot(c, c, j->width) / (float)j->width;
    return 1.0f / sqrtf(var + j->a->attr->norm.eps);
}

static void layernorm_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const layernorm_job *j = ud;
    float *c = j->own + worker * j->width;

    for (int64_t i = begin; i < end; i++) {
        float *y = (float *)j->a->out[0].data + i * j->width;
        float r = centre(j, c, (const float *)j->a->in[0].data + i * j->width);
        j->k->norm(y, c, j->w, r, j->width, false);
        j->k->add(y, y, j->b, j->width);
    }
}

void ml_cpu_layernorm_forward(ml_stream *s, const ml_op_args *a) {
    layernorm_job j = layernorm_begin(s, a);
    ml_pool_run(ml_cpu(s)->pool, a->in[0].shape[0], ml_cpu_grain(j.width), layernorm_rows,
                &j);
}

/* With h = c r and g = dy w:  dx = r (g - h mean(g h)) - r mean(g). */
static void layernorm_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const layernorm_job *j = ud;
    const ml_op_args *a = j->a;
    float *d = j->own + worker * j->width;

    for (int64_t i = begin; i < end; i++) {
        const float *dy = (const float *)a->dout[0].data + i * j->width;
        float *c = j->centred + i * j->width, *dx = a->din[0].data;
        float r = centre(j, c, (const float *)a->in[0].data + i * j->width), mean;

        j->scale[i] = r;
        if (!dx)
            continue;
        dx += i * j->width;
        mean = j->k->dot(dy, j->w, j->width) / (float)j->width;
        j->k->norm_dx(d, dy, c, j->w, r, j->width, false, false);
        j->k->axpy(d, -(r * mean), j->one, j->width, true);
        if (a->din_add[0])
            j->k->add(dx, dx, d, j->width);
        else
            memcpy(dx, d, (size_t)j->width * sizeof *dx);
    }
}

void ml_cpu_layernorm_backward(ml_stream *s, const ml_op_args *a) {
    layernorm_job j = layernorm_begin(s, a);
    int64_t n = a->in[0].shape[0];
    ml_column_sum sum = { .runs = ml_cpu_row_runs(a, n),
                          .dy = a->dout[0].data,
                          .n = n,
                          .groups = 1,
                          .width = j.width,
                          .n_to = 1 };

    ml_pool_run(ml_cpu(s)->pool, n, ml_cpu_grain(j.width), layernorm_rows_back, &j);
    sum.to = a->dw[1].data;
    if (sum.to)
        ml_cpu_add_columns(ml_cpu(s), &sum);
    sum.to = a->dw[0].data;
    sum.x = j.centred;
    sum.scale = j.scale;
    if (sum.to)
        ml_cpu_add_columns(ml_cpu(s), &sum);
}
