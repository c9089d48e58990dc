/* slice.c - SLICE: some columns of each row, possibly reordered. */
#include "backend/cpu/cpu_priv.h"

#include <string.h>

/* Calls fn for each run of columns: `to` in the output row, `from` in the input row. */
typedef void slice_fn(void *ud, int64_t to, int64_t from, int64_t n);

static void each_run(const ml_op_attr *attr, slice_fn *fn, void *ud) {
    int64_t to = 0;
    for (int32_t i = 0; i < attr->slice.n_part; i++)
        for (int32_t g = 0; g < attr->slice.n_group; g++) {
            int64_t from = g * attr->slice.group + attr->slice.part[i].at;
            fn(ud, to, from, attr->slice.part[i].width);
            to += attr->slice.part[i].width;
        }
}

typedef struct slice_row {
    float *to;
    const float *from;
    const ml_row_kern *add; /* NULL: copy */
} slice_row;

static void take_run(void *ud, int64_t to, int64_t from, int64_t n) {
    const slice_row *r = ud;
    memcpy(r->to + to, r->from + from, (size_t)n * sizeof *r->to);
}

static void slice_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        slice_row r = { .to = (float *)a->out[0].data + t * a->out[0].shape[1],
                        .from = (const float *)a->in[0].data + t * a->in[0].shape[1] };
        each_run(a->attr, take_run, &r);
    }
}

void ml_cpu_slice_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], a->out[0].shape[1], slice_rows);
}

/* In backward `to` and `from` are exchanged: gradients flow from output to input. */
static void give_run(void *ud, int64_t to, int64_t from, int64_t n) {
    const slice_row *r = ud;
    if (r->add)
        r->add->add(r->to + from, r->to + from, r->from + to, n);
    else
        memcpy(r->to + from, r->from + to, (size_t)n * sizeof *r->to);
}

static void slice_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int64_t width = a->din[0].shape[1];

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        slice_row r = { .to = (float *)a->din[0].data + t * width,
                        .from = (const float *)a->dout[0].data + t * a->dout[0].shape[1],
                        .add = a->din_add[0] ? j->s->kern->row : NULL };
        if (!a->din_add[0])
            memset(r.to, 0, (size_t)width * sizeof *r.to);
        each_run(a->attr, give_run, &r);
    }
}

void ml_cpu_slice_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        ml_cpu_split(s, a, a->din[0].shape[0], a->din[0].shape[1], slice_rows_back);
}
