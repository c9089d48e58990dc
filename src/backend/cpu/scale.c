/* scale.c - SCALE: rows times one number; MOE_SCALE: routing weights times a number per
 * expert. */
#include <math.h>

#include "backend/cpu/cpu_priv.h"

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
