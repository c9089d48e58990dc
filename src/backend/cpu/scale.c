/* scale.c - SCALE: rows times one number; COL_SCALE: columns times their numbers;
 * MOE_SCALE: routing weights times a number per expert. */
#include <math.h>

#include "backend/cpu/columns.h"

/* ---- scale ---- */

static float factor_of(const ml_op_args *a) {
    return a->w[0].data ? *(const float *)a->w[0].data : a->attr->scale;
}

static void scale_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int64_t width = a->out[0].shape[1], at = begin * width;

    (void)worker;
    j->s->kern->row->axpy((float *)a->out[0].data + at, factor_of(a),
                          (const float *)a->in[0].data + at, (end - begin) * width, false);
}

void ml_cpu_scale_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], a->out[0].shape[1], scale_rows);
}

static void scale_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int64_t width = a->dout[0].shape[1], at = begin * width;

    (void)worker;
    j->s->kern->row->axpy((float *)a->din[0].data + at, factor_of(a),
                          (const float *)a->dout[0].data + at, (end - begin) * width,
                          a->din_add[0]);
}

void ml_cpu_scale_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ml_cpu_split(s, a, a->dout[0].shape[0], a->dout[0].shape[1], scale_rows_back);
}

/* ---- col-scale ---- */

/* Scratch: the weight as f32. */
size_t ml_cpu_col_scale_scratch(const ml_cpu_stream *s, const ml_op_args *a,
                                bool backward) {
    (void)s, (void)backward;
    return a->w[0].dtype == ML_BF16 ? (size_t)a->w[0].shape[0] * sizeof(float) : 0;
}

static const float *column_factors(const ml_op_args *a) {
    float *wide = a->scratch;

    if (a->w[0].dtype != ML_BF16)
        return a->w[0].data;
    for (int64_t i = 0; i < a->w[0].shape[0]; i++)
        wide[i] = ml_bf16_to_f32(((const uint16_t *)a->w[0].data)[i]);
    return wide;
}

typedef struct column_job {
    const ml_row_kern *k;
    const ml_op_args *a;
    const float *w;
    int64_t width;
} column_job;

static column_job column_begin(const ml_stream *s, const ml_op_args *a) {
    return (column_job){ ml_cpu(s)->kern->row, a, column_factors(a), a->w[0].shape[0] };
}

static void scale_columns(void *ud, int64_t begin, int64_t end, int worker) {
    const column_job *j = ud;

    (void)worker;
    for (int64_t t = begin; t < end; t++)
        j->k->norm((float *)j->a->out[0].data + t * j->width,
                   (const float *)j->a->in[0].data + t * j->width, j->w, 1.0f, j->width,
                   false);
}

void ml_cpu_col_scale_forward(ml_stream *s, const ml_op_args *a) {
    column_job j = column_begin(s, a);
    ml_pool_run(ml_cpu(s)->pool, a->in[0].shape[0], ml_cpu_grain(j.width), scale_columns,
                &j);
}

static void scale_columns_back(void *ud, int64_t begin, int64_t end, int worker) {
    const column_job *j = ud;

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *dy = (const float *)j->a->dout[0].data + t * j->width;
        float *dx = (float *)j->a->din[0].data + t * j->width;
        if (j->a->din_add[0])
            for (int64_t i = 0; i < j->width; i++)
                dx[i] = dx[i] + dy[i] * j->w[i];
        else
            j->k->norm(dx, dy, j->w, 1.0f, j->width, false);
    }
}

void ml_cpu_col_scale_backward(ml_stream *s, const ml_op_args *a) {
    column_job j = column_begin(s, a);
    int64_t n = a->in[0].shape[0];

    if (a->din[0].data)
        ml_pool_run(ml_cpu(s)->pool, n, ml_cpu_grain(j.width), scale_columns_back, &j);
    if (a->dw[0].data)
        ml_cpu_add_columns(ml_cpu(s), &(ml_column_sum){ .runs = ml_cpu_row_runs(a, n),
                                                        .to = a->dw[0].data,
                                                        .dy = a->dout[0].data,
                                                        .x = a->in[0].data,
                                                        .n = n,
                                                        .groups = 1,
                                                        .width = j.width,
                                                        .n_to = 1 });
}

/* ---- moe-scale: few numbers per token ---- */

static void expert_scale_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int64_t k = a->out[0].shape[1];
    const float *weight = a->in[0].data, *scale = a->w[0].data;
    const int32_t *expert = a->in[1].data;
    float *y = a->out[0].data;

    (void)worker;
    for (int64_t i = begin * k; i < end * k; i++)
        y[i] = weight[i] * scale[expert[i]];
}

void ml_cpu_moe_scale_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], a->out[0].shape[1], expert_scale_rows);
}

static void expert_scale_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int64_t k = a->dout[0].shape[1];
    const float *dy = a->dout[0].data, *scale = a->w[0].data;
    const int32_t *expert = a->in[1].data;
    float *dweight = a->din[0].data;

    (void)worker;
    for (int64_t i = begin * k; i < end * k; i++) {
        float d = dy[i] * scale[expert[i]];
        dweight[i] = a->din_add[0] ? dweight[i] + d : d;
    }
}

/* Chains over ascending tokens, one for each expert: too short to divide among threads. */
static void add_expert_gradients(const ml_op_args *a) {
    int64_t n = ml_tensor_count(&a->dout[0]);
    const float *dy = a->dout[0].data, *weight = a->in[0].data;
    const int32_t *expert = a->in[1].data;
    float *dscale = a->dw[0].data;

    for (int64_t i = 0; i < n; i++)
        dscale[expert[i]] = fmaf(dy[i], weight[i], dscale[expert[i]]);
}

void ml_cpu_moe_scale_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ml_cpu_split(s, a, a->dout[0].shape[0], a->dout[0].shape[1],
                     expert_scale_rows_back);
    if (a->dw[0].data)
        add_expert_gradients(a);
}
