/* row_act.c - TANH; CUTOFF: keeps what lies far above the mean of its row. */
#include <math.h>

#include "backend/cpu/cpu_priv.h"

/* ---- tanh ---- */

static void tanh_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int64_t width = a->out[0].shape[1], at = begin * width;

    (void)worker;
    j->s->kern->row->tanh((float *)a->out[0].data + at, (const float *)a->in[0].data + at,
                          (end - begin) * width);
}

void ml_cpu_tanh_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], 4 * a->out[0].shape[1], tanh_rows);
}

static void tanh_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int64_t width = a->dout[0].shape[1], at = begin * width;

    (void)worker;
    j->s->kern->row->tanh_back(
        (float *)a->din[0].data + at, (const float *)a->dout[0].data + at,
        (const float *)a->out[0].data + at, (end - begin) * width, a->din_add[0]);
}

void ml_cpu_tanh_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ml_cpu_split(s, a, a->dout[0].shape[0], a->dout[0].shape[1], tanh_rows_back);
}

/* ---- cutoff ---- */

/* The mean of a row, its standard deviation and the cutoff. */
typedef struct spread {
    float mean, std, at;
} spread;

static spread spread_of(const ml_row_kern *k, const float *x, int64_t n, float z) {
    spread r = { .mean = k->sum(x, n) / (float)n };
    r.std = sqrtf(k->deviation(x, r.mean, n) / (float)n);
    r.at = fmaf(r.std, z, r.mean);
    return r;
}

static void cut_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const ml_row_kern *k = j->s->kern->row;
    int64_t width = a->out[0].shape[1];

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *x = (const float *)a->in[0].data + t * width;
        k->cut((float *)a->out[0].data + t * width, x,
               spread_of(k, x, width, a->attr->cutoff).at, width);
    }
}

void ml_cpu_cutoff_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], 3 * a->out[0].shape[1], cut_rows);
}

/* With g = dy where x > cutoff, else 0: dx = g - mean(g) (1 + z (x - mean) / std).  A row
 * of equal numbers has no slope of its deviation. */
static void cut_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const ml_row_kern *k = j->s->kern->row;
    int64_t width = a->dout[0].shape[1];
    float z = a->attr->cutoff;

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *x = (const float *)a->in[0].data + t * width;
        const float *dy = (const float *)a->dout[0].data + t * width;
        spread s = spread_of(k, x, width, z);
        float mean = k->cut_sum(dy, x, s.at, width) / (float)width;
        ml_row_cut c = { .at = s.at,
                         .mean = s.mean,
                         .shift = -mean,
                         .tilt = s.std == 0.0f ? 0.0f : -(mean * z) / s.std };
        k->cut_back((float *)a->din[0].data + t * width, dy, x, &c, width, a->din_add[0]);
    }
}

void ml_cpu_cutoff_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ml_cpu_split(s, a, a->dout[0].shape[0], 4 * a->dout[0].shape[1], cut_rows_back);
}
