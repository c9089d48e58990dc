/* merge.c - copies around the collectives of a plan: MERGE_COLS, the columns of several
 * ranks' rows in the order of the whole row; SPLIT_COLS, rows as blocks of columns;
 * ORDER_ROWS, a permutation of rows. */
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

/* ---- split-cols ---- */

/* Between rows [n,C] and blocks of m rows; `to` receives, by copy or addition. */
typedef struct split_call {
    const ml_op_attr *attr;
    const ml_row_kern *add; /* NULL: copy */
    const float *from;
    float *to;
    int64_t n, m, width;
    bool join; /* from blocks to rows */
} split_call;

static void move_columns(const split_call *c, float *to, const float *from, int64_t n) {
    if (c->add)
        c->add->add(to, to, from, n);
    else
        memcpy(to, from, (size_t)n * sizeof *to);
}

static int64_t block_at(const split_call *c, int32_t block) {
    int64_t at = 0;

    for (int32_t i = 0; i < block; i++)
        at += c->attr->split.width[i] * c->m;
    return at;
}

static void split_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const split_call *c = ud;

    (void)worker;
    for (int32_t i = 0; i < c->attr->split.n_run; i++) {
        const ml_col_run *r = &c->attr->split.run[i];
        int64_t width = c->attr->split.width[r->rank], base = block_at(c, r->rank) + r->to;
        for (int64_t t = begin; t < end; t++) {
            int64_t row = t * c->width + r->from, block = base + t * width;
            if (c->join)
                move_columns(c, c->to + row, c->from + block, r->n);
            else if (t < c->n)
                move_columns(c, c->to + block, c->from + row, r->n);
            else if (!c->add)
                memset(c->to + block, 0, (size_t)r->n * sizeof *c->to);
        }
    }
}

/* From tensor to tensor, of which one has rows and the other blocks. */
static void split_run(ml_stream *s, const ml_op_attr *attr, const ml_tensor *to,
                      const ml_tensor *from, bool join, bool add) {
    const ml_tensor *rows = join ? to : from, *blocks = join ? from : to;
    split_call c = { .attr = attr,
                     .add = add ? ml_cpu(s)->kern->row : NULL,
                     .from = from->data,
                     .to = to->data,
                     .n = rows->shape[0],
                     .m = blocks->shape[0],
                     .width = rows->shape[1],
                     .join = join };

    ml_pool_run(ml_cpu(s)->pool, join ? c.n : c.m, ml_cpu_grain(c.width), split_rows, &c);
}

void ml_cpu_split_cols_forward(ml_stream *s, const ml_op_args *a) {
    split_run(s, a->attr, &a->out[0], &a->in[0], a->attr->split.back, false);
}

void ml_cpu_split_cols_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        split_run(s, a->attr, &a->din[0], &a->dout[0], !a->attr->split.back, a->din_add[0]);
}

/* ---- order-rows ---- */

typedef struct order_call {
    const int32_t *order;
    const ml_row_kern *add;
    const float *from;
    float *to;
    int64_t width;
    bool back;
} order_call;

static void order_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const order_call *c = ud;

    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *to = c->to + (c->back ? c->order[i] : i) * c->width;
        const float *from = c->from + (c->back ? i : c->order[i]) * c->width;
        if (c->add)
            c->add->add(to, to, from, c->width);
        else
            memcpy(to, from, (size_t)c->width * sizeof *to);
    }
}

static void order_run(ml_stream *s, const ml_op_args *a, const ml_tensor *to,
                      const ml_tensor *from, bool back, bool add) {
    order_call c = { .order = a->rows->context->order,
                     .add = add ? ml_cpu(s)->kern->row : NULL,
                     .from = from->data,
                     .to = to->data,
                     .width = to->shape[1],
                     .back = back };

    ml_pool_run(ml_cpu(s)->pool, to->shape[0], ml_cpu_grain(c.width), order_rows, &c);
}

void ml_cpu_order_rows_forward(ml_stream *s, const ml_op_args *a) {
    order_run(s, a, &a->out[0], &a->in[0], a->attr->split.back, false);
}

void ml_cpu_order_rows_backward(ml_stream *s, const ml_op_args *a) {
    if (a->din[0].data)
        order_run(s, a, &a->din[0], &a->dout[0], !a->attr->split.back, a->din_add[0]);
}
