/* compress.c - COMPRESS: pools each window of rows into one, at its last row (the token-level
 * compressor of DeepSeek-V4).
 *
 * Column by column, a pooled row is the sum of kv over its window, weighted by the softmax
 * of gate plus a bias for each place in the window.  Where kv is twice as wide as the
 * output, windows overlap: the first half of a row counts for the window after its own,
 * the second half for its own.  Other rows are 0.  All in f64, rounded once. */
#include <string.h>

#include "backend/cpu/cpu_priv.h"
#include "base/bug.h"
#include "base/exp.h"

enum { MAX_ENTRY = 2 * ML_COMPRESS_ROWS, COLUMNS = 16 };

typedef struct compress {
    const ml_op_args *a;
    int64_t ratio, width, d;
    int64_t n_entry; /* rows of a window, with those of the one before */
} compress;

static compress compress_of(const ml_op_args *a) {
    compress c = { .a = a,
                   .ratio = a->attr->compress_ratio,
                   .width = a->in[0].shape[1],
                   .d = (a->dout[0].data ? a->dout[0] : a->out[0]).shape[1] };

    c.n_entry = c.ratio * (c.width / c.d);
    ML_BUG_IF(c.ratio < 1 || c.ratio > ML_COMPRESS_ROWS);
    ML_BUG_IF(c.width != c.d && c.width != 2 * c.d);
    return c;
}

static bool ends_window(const compress *c, int64_t row) {
    return (c->a->rows->pos[row] + 1) % c->ratio == 0;
}

/* The rows of a window; those before the sequence are NULL. */
typedef struct window {
    const float *kv[MAX_ENTRY], *gate[MAX_ENTRY];
    int64_t row[MAX_ENTRY]; /* in the batch; -1: from the slot */
} window;

/* Row `pos` of a sequence in its slot: kv, then gate. */
static float *kept_row(const compress *c, int32_t seq, int64_t pos) {
    int64_t place = (int64_t)c->a->rows->slot[seq] * c->n_entry + pos % c->n_entry;

    ML_BUG_IF(!c->a->out[1].data);
    return (float *)c->a->out[1].data + place * 2 * c->width;
}

static void window_of(const compress *c, int64_t row, window *w) {
    const ml_rows *r = c->a->rows;
    int32_t seq = ml_cpu_seq_of(r, row);
    int64_t first = r->pos[r->seq_start[seq]], pos = r->pos[row] - c->n_entry + 1;

    for (int64_t i = 0; i < c->n_entry; i++, pos++) {
        w->row[i] = pos >= first ? r->seq_start[seq] + pos - first : -1;
        w->kv[i] = w->gate[i] = NULL;
        if (w->row[i] >= 0) {
            w->kv[i] = (const float *)c->a->in[0].data + w->row[i] * c->width;
            w->gate[i] = (const float *)c->a->in[1].data + w->row[i] * c->width;
        } else if (pos >= 0) {
            w->kv[i] = kept_row(c, seq, pos);
            w->gate[i] = w->kv[i] + c->width;
        }
    }
}

/* The column of entry i that counts for column k of the window. */
static int64_t column_of(const compress *c, int64_t i, int64_t k) {
    return i < c->n_entry - c->ratio ? k : c->width - c->d + k;
}

static double bias_of(const compress *c, int64_t i, int64_t column) {
    const ml_tensor *w = &c->a->w[0];
    int64_t at = i % c->ratio * c->width + column;

    return (double)(w->dtype == ML_BF16 ? ml_bf16_to_f32(((const uint16_t *)w->data)[at])
                                        : ((const float *)w->data)[at]);
}

/* p: weights of the entries in column k; returns their weighted sum. */
static double pool_column(const compress *c, const window *w, int64_t k, double *p) {
    double top = 0, sum = 0, y = 0;
    bool any = false;

    for (int64_t i = 0; i < c->n_entry; i++) {
        int64_t at = column_of(c, i, k);
        p[i] = w->gate[i] ? (double)w->gate[i][at] + bias_of(c, i, at) : 0;
        if (w->gate[i] && (!any || p[i] > top)) {
            top = p[i];
            any = true;
        }
    }
    for (int64_t i = 0; i < c->n_entry; i++)
        sum += p[i] = w->gate[i] ? ml_exp(p[i] - top) : 0;
    for (int64_t i = 0; i < c->n_entry; i++) {
        p[i] /= sum;
        if (w->kv[i])
            y += p[i] * (double)w->kv[i][column_of(c, i, k)];
    }
    return y;
}

static void compress_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const compress *c = ud;
    double p[MAX_ENTRY];
    window w;

    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        float *y = (float *)c->a->out[0].data + row * c->d;
        if (!ends_window(c, row)) {
            memset(y, 0, (size_t)c->d * sizeof *y);
            continue;
        }
        window_of(c, row, &w);
        for (int64_t k = 0; k < c->d; k++)
            y[k] = (float)pool_column(c, &w, k, p);
    }
}

/* Task over sequences: keeps the rows that later windows need. */
static void keep_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const compress *c = ud;
    const ml_rows *r = c->a->rows;
    size_t bytes = (size_t)c->width * sizeof(float);

    (void)worker;
    for (int64_t seq = begin; seq < end; seq++) {
        int64_t from = r->seq_start[seq], to = r->seq_start[seq + 1];
        for (int64_t row = to - from > c->n_entry ? to - c->n_entry : from; row < to;
             row++) {
            float *kept = kept_row(c, (int32_t)seq, r->pos[row]);
            memcpy(kept, (const float *)c->a->in[0].data + row * c->width, bytes);
            memcpy(kept + c->width, (const float *)c->a->in[1].data + row * c->width,
                   bytes);
        }
    }
}

void ml_cpu_compress_forward(ml_stream *s, const ml_op_args *a) {
    compress c = compress_of(a);

    ml_pool_run(ml_cpu(s)->pool, a->rows->n_token, ml_cpu_grain(8 * c.width), compress_rows,
                &c);
    if (a->out[1].data)
        ml_pool_run(ml_cpu(s)->pool, a->rows->n_seq, 1, keep_rows, &c);
}

/* With weights p and pooled y: dkv = p dy, dgate = p (kv - y) dy. */
static void column_back(const compress *c, const window *w, int64_t row, int64_t k) {
    double p[MAX_ENTRY], y = pool_column(c, w, k, p);
    double dy = (double)((const float *)c->a->dout[0].data)[row * c->d + k];
    float *dkv = c->a->din[0].data, *dgate = c->a->din[1].data, *dw = c->a->dw[0].data;

    for (int64_t i = 0; i < c->n_entry; i++) {
        int64_t at = column_of(c, i, k), from = w->row[i] * c->width + at;
        float slope;
        if (!w->kv[i])
            continue;
        slope = (float)(p[i] * ((double)w->kv[i][at] - y) * dy);
        if (dkv)
            dkv[from] += (float)(p[i] * dy);
        if (dgate)
            dgate[from] += slope;
        if (dw)
            dw[i % c->ratio * c->width + at] += slope;
    }
}

/* Task over blocks of columns of the output; rows in ascending order.  An element of kv or
 * gate counts for one window only. */
static void compress_columns(void *ud, int64_t begin, int64_t end, int worker) {
    const compress *c = ud;
    int64_t from = begin * COLUMNS, to = end * COLUMNS < c->d ? end * COLUMNS : c->d;
    window w;

    (void)worker;
    for (int64_t row = 0; row < c->a->rows->n_token; row++) {
        if (!ends_window(c, row))
            continue;
        window_of(c, row, &w);
        for (int64_t k = from; k < to; k++)
            column_back(c, &w, row, k);
    }
}

void ml_cpu_compress_backward(ml_stream *s, const ml_op_args *a) {
    compress c = compress_of(a);

    for (int k = 0; k < 2; k++)
        if (a->din[k].data && !a->din_add[k])
            memset(a->din[k].data, 0, ml_tensor_bytes(&a->din[k]));
    ml_pool_run(ml_cpu(s)->pool, (c.d + COLUMNS - 1) / COLUMNS, 1, compress_columns, &c);
}
