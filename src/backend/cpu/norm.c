#include "backend/cpu/columns.h"

#include <math.h>

/* Scratch: the weight as f32 where it is stored as bf16, ones where there is no weight,
 * and in backward the scale 1 / rms of each group [n, groups]. */
typedef struct norm_job {
    const ml_row_kern *k;
    const ml_op_args *a;
    const float *w; /* [n_weight, width]: group i uses row i mod n_weight */
    float *scale;   /* [n, groups]; backward only */
    int64_t width, n_group, n_weight;
    float eps;
    bool plus_one;
} norm_job;

/* Number of weight elements in scratch. */
static int64_t wide_weight(const ml_op_args *a) {
    if (a->w[0].n_dim == 0)
        return a->attr->norm.width;
    return a->w[0].dtype == ML_BF16 ? a->w[0].shape[0] : 0;
}

static int64_t groups_of(const ml_op_args *a) {
    return a->in[0].shape[1] / a->attr->norm.width;
}

size_t ml_cpu_rmsnorm_scratch(const ml_cpu_stream *s, const ml_op_args *a, bool backward) {
    int64_t n = wide_weight(a);
    (void)s;
    if (backward)
        n += a->in[0].shape[0] * groups_of(a);
    return (size_t)n * sizeof(float);
}

static norm_job norm_begin(const ml_stream *s, const ml_op_args *a) {
    int64_t n = wide_weight(a);
    float *wide = a->scratch;

    for (int64_t i = 0; i < n; i++)
        wide[i] = a->w[0].data ? ml_bf16_to_f32(((const uint16_t *)a->w[0].data)[i]) : 1.0f;
    return (norm_job){ .k = ml_cpu(s)->kern->row,
                       .a = a,
                       .w = n ? wide : a->w[0].data,
                       .scale = n ? wide + n : wide,
                       .width = a->attr->norm.width,
                       .n_group = groups_of(a),
                       .n_weight =
                           a->w[0].data ? a->w[0].shape[0] / a->attr->norm.width : 1,
                       .eps = a->attr->norm.eps,
                       .plus_one = a->attr->norm.plus_one };
}

static void norm_split(const ml_stream *s, norm_job *j, ml_task *task) {
    ml_pool_run(ml_cpu(s)->pool, j->a->in[0].shape[0] * j->n_group, ml_cpu_grain(j->width),
                task, j);
}

static float scale_of(const norm_job *j, const float *x) {
    float mean = j->k->dot(x, x, j->width) / (float)j->width;
    return 1.0f / sqrtf(mean + j->eps);
}

/* The weight of group i. */
static const float *weight_of(const norm_job *j, int64_t i) {
    return j->w + i % j->n_weight * j->width;
}

static void norm_groups(void *ud, int64_t begin, int64_t end, int worker) {
    const norm_job *j = ud;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *x = (const float *)j->a->in[0].data + i * j->width;
        float *y = (float *)j->a->out[0].data + i * j->width;
        j->k->norm(y, x, weight_of(j, i), scale_of(j, x), j->width, j->plus_one);
    }
}

void ml_cpu_rmsnorm_forward(ml_stream *s, const ml_op_args *a) {
    norm_job j = norm_begin(s, a);
    norm_split(s, &j, norm_groups);
}

static void norm_inputs(void *ud, int64_t begin, int64_t end, int worker) {
    const norm_job *j = ud;
    const ml_op_args *a = j->a;

    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const float *x = (const float *)a->in[0].data + i * j->width;
        const float *dy = (const float *)a->dout[0].data + i * j->width;
        float r = scale_of(j, x);
        j->scale[i] = r;
        if (a->din[0].data)
            j->k->norm_dx((float *)a->din[0].data + i * j->width, dy, x, weight_of(j, i), r,
                          j->width, j->plus_one, a->din_add[0]);
    }
}

void ml_cpu_rmsnorm_backward(ml_stream *s, const ml_op_args *a) {
    norm_job j = norm_begin(s, a);
    norm_split(s, &j, norm_inputs);
    if (a->dw[0].data)
        ml_cpu_add_columns(ml_cpu(s),
                           &(ml_column_sum){ .runs = ml_cpu_row_runs(a, a->in[0].shape[0]),
                                             .to = a->dw[0].data,
                                             .dy = a->dout[0].data,
                                             .x = a->in[0].data,
                                             .scale = j.scale,
                                             .n = a->in[0].shape[0],
                                             .groups = j.n_group,
                                             .width = j.width,
                                             .n_to = j.n_weight });
}
