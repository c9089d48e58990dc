#include "backend/cpu/cpu_priv.h"

#include <string.h>

#include "base/bug.h"

/* ---- add ---- */

static void add_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    int64_t width = j->a->out[0].shape[1], at = begin * width;

    (void)worker;
    j->s->kern->row->add((float *)j->a->out[0].data + at,
                         (const float *)j->a->in[0].data + at,
                         (const float *)j->a->in[1].data + at, (end - begin) * width);
}

void ml_cpu_add_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], a->out[0].shape[1], add_rows);
}

static void add_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int64_t width = a->dout[0].shape[1], at = begin * width, n = (end - begin) * width;
    const float *dy = (const float *)a->dout[0].data + at;

    (void)worker;
    for (int i = 0; i < 2; i++) {
        float *d = a->din[i].data ? (float *)a->din[i].data + at : NULL;
        if (d && a->din_add[i])
            j->s->kern->row->add(d, d, dy, n);
        else if (d && d != dy)
            memcpy(d, dy, (size_t)n * sizeof *d);
    }
}

void ml_cpu_add_backward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], a->dout[0].shape[1], add_rows_back);
}

/* ---- glu ---- */

/* Row t of the halves of an input or its gradient: two tensors [n, I] or one [n, 2I]. */
typedef struct glu_pair {
    float *gate, *up; /* NULL: absent */
} glu_pair;

static glu_pair pair_at(const ml_tensor t[2], bool fused, int64_t row, int64_t width) {
    float *gate = t[0].data, *up = t[1].data;
    if (fused && gate) {
        gate += row * 2 * width;
        return (glu_pair){ gate, gate + width };
    }
    return (glu_pair){ gate ? gate + row * width : NULL, up ? up + row * width : NULL };
}

static void glu_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const ml_row_kern *k = j->s->kern->row;
    int64_t width = a->out[0].shape[1];
    float limit = a->attr->glu.limit;

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        glu_pair in = pair_at(a->in, a->attr->glu.fused, t, width);
        float *y = (float *)a->out[0].data + t * width;
        if (limit > 0.0f)
            k->glu_limited(y, in.gate, in.up, width, limit);
        else
            k->glu[a->attr->glu.act](y, in.gate, in.up, width);
    }
}

void ml_cpu_glu_forward(ml_stream *s, const ml_op_args *a) {
    ML_BUG_IF(a->attr->glu.fused && a->out[0].data == a->in[0].data);
    ML_BUG_IF(a->attr->glu.limit > 0.0f && a->attr->glu.act != ML_ACT_SILU);
    ml_cpu_split(s, a, a->in[0].shape[0], 4 * a->out[0].shape[1], glu_rows);
}

static void glu_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const ml_row_kern *k = j->s->kern->row;
    bool fused = a->attr->glu.fused, add_up = a->din_add[fused ? 0 : 1];
    float limit = a->attr->glu.limit;
    int64_t width = a->dout[0].shape[1];

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        glu_pair in = pair_at(a->in, fused, t, width);
        glu_pair din = pair_at(a->din, fused, t, width);
        const float *dy = (const float *)a->dout[0].data + t * width;
        if (limit > 0.0f)
            k->glu_limited_back(din.gate, din.up, dy, in.gate, in.up, width, a->din_add[0],
                                add_up, limit);
        else
            k->glu_back[a->attr->glu.act](din.gate, din.up, dy, in.gate, in.up, width,
                                          a->din_add[0], add_up);
    }
}

void ml_cpu_glu_backward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], 4 * a->dout[0].shape[1], glu_rows_back);
}
