/* row_gate.c - ROW_GATE: a row times the sigmoid of one number. */
#include "backend/cpu/cpu_priv.h"
#include "backend/cpu/math.h"

static void gate_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int64_t width = a->out[0].shape[1];

    (void)worker;
    for (int64_t t = begin; t < end; t++)
        j->s->kern->row->axpy((float *)a->out[0].data + t * width,
                              ml_sigmoidf(((const float *)a->in[0].data)[t]),
                              (const float *)a->in[1].data + t * width, width, false);
}

void ml_cpu_row_gate_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[1].shape[0], a->out[0].shape[1], gate_rows);
}

static void gate_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const ml_row_kern *k = j->s->kern->row;
    int64_t width = a->dout[0].shape[1];

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *dy = (const float *)a->dout[0].data + t * width;
        float gate = ml_sigmoidf(((const float *)a->in[0].data)[t]);
        if (a->din[0].data) {
            float *dg = (float *)a->din[0].data + t;
            float d = gate * (1.0f - gate) *
                      k->dot(dy, (const float *)a->in[1].data + t * width, width);
            *dg = a->din_add[0] ? *dg + d : d;
        }
        if (a->din[1].data)
            k->axpy((float *)a->din[1].data + t * width, gate, dy, width, a->din_add[1]);
    }
}

void ml_cpu_row_gate_backward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[1].shape[0], 2 * a->dout[0].shape[1], gate_rows_back);
}
