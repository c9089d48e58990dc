/* merge.c - MERGE_COLS: the columns of several ranks' rows, in the order of the whole row. */
#include <string.h>

#include "backend/cpu/cpu_priv.h"

static void merge_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const int64_t from_width = a->in[0].shape[1], to_width = a->out[0].shape[1];
    const int64_t n_row = a->out[0].shape[0];
    const float *from = a->in[0].data;
    float *to = a->out[0].data;

    (void)worker;
    for (int64_t t = begin; t < end; t++)
        for (int32_t i = 0; i < a->attr->merge.n_run; i++) {
            const ml_col_run *r = &a->attr->merge.run[i];
            memcpy(to + t * to_width + r->to,
                   from + (r->rank * n_row + t) * from_width + r->from,
                   (size_t)r->n * sizeof *to);
        }
}

void ml_cpu_merge_cols_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->out[0].shape[0], a->out[0].shape[1], merge_rows);
}
