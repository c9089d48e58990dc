/* concat.c - CONCAT: concatenates two rows head by head. */
#include "backend/cpu/cpu_priv.h"

#include <string.h>

static void concat_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *args = j->a;
    int64_t h = args->attr->n_head;
    int64_t na = args->in[0].shape[1] / h, nb = args->in[1].shape[1] / h;

    (void)worker;
    for (int64_t i = begin * h; i < end * h; i++) {
        float *y = (float *)args->out[0].data + i * (na + nb);
        memcpy(y, (const float *)args->in[0].data + i * na, (size_t)na * sizeof *y);
        memcpy(y + na, (const float *)args->in[1].data + i * nb, (size_t)nb * sizeof *y);
    }
}

void ml_cpu_concat_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], a->out[0].shape[1], concat_rows);
}

static void concat_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *args = j->a;
    int64_t h = args->attr->n_head, width = args->dout[0].shape[1] / h, at = 0;

    (void)worker;
    for (int k = 0; k < 2; k++) {
        int64_t n = args->in[k].shape[1] / h;
        float *d = args->din[k].data;
        for (int64_t i = begin * h; d && i < end * h; i++) {
            const float *dy = (const float *)args->dout[0].data + i * width + at;
            if (args->din_add[k])
                j->s->kern->row->add(d + i * n, d + i * n, dy, n);
            else
                memcpy(d + i * n, dy, (size_t)n * sizeof *d);
        }
        at += n;
    }
}

void ml_cpu_concat_backward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], a->dout[0].shape[1], concat_rows_back);
}
