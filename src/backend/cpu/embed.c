#include "backend/cpu/cpu_priv.h"

static void read_row(float *x, const ml_tensor *w, int64_t row) {
    const ml_row_walk at = ml_tensor_row(w, row);
    const int64_t width = w->shape[1];

    if (w->dtype == ML_BF16) {
        const uint16_t *p = w->data;
        for (int64_t i = 0; i < width; i++)
            x[i] = ml_bf16_to_f32(p[ml_row_at(at, i)]);
    } else {
        const float *p = w->data;
        for (int64_t i = 0; i < width; i++)
            x[i] = p[ml_row_at(at, i)];
    }
}

/* Tokens past the end of the table have its first row. */
static int64_t table_row(const ml_tensor *w, int32_t id) {
    return id < w->shape[0] ? id : 0;
}

static void embed_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_tensor *w = &j->a->w[0];
    float scale = j->a->attr->embed_scale;
    int64_t width = w->shape[1];

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        float *x = (float *)j->a->out[0].data + t * width;
        read_row(x, w, table_row(w, ml_row_id(j->a->rows->id, j->a->rows->drawn, t)));
        for (int64_t i = 0; scale != 1.0f && i < width; i++)
            x[i] = x[i] * scale;
    }
}

void ml_cpu_embed_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->rows->n_token, a->w[0].shape[1], embed_rows);
}

/* Columns begin..end of all tokens: the gradient of a token that occurs twice is added
 * twice, in row order. */
static void embed_columns(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const ml_tensor *dw = &a->dw[0];
    float scale = a->attr->embed_scale;
    int64_t width = dw->shape[1];

    (void)worker;
    for (int64_t t = 0; t < a->rows->n_token; t++) {
        const float *dx = (const float *)a->dout[0].data + t * width;
        ml_row_walk at = ml_tensor_row(dw, table_row(dw, a->rows->id[t]));
        float *d = dw->data;
        for (int64_t i = begin; i < end; i++)
            d[ml_row_at(at, i)] += scale != 1.0f ? dx[i] * scale : dx[i];
    }
}

void ml_cpu_embed_backward(ml_stream *s, const ml_op_args *a) {
    if (a->dw[0].data)
        ml_cpu_split(s, a, a->dw[0].shape[1], a->rows->n_token, embed_columns);
}
