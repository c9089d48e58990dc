/* streams.c - residual streams: STREAM_MIX sums them with coefficients of each token;
 * MATCH_RMS gives a row the magnitude of another. */
#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_priv.h"
#include "base/bug.h"

/* ---- stream-mix ---- */

enum { MAX_COEF = ML_STREAMS * (ML_STREAMS + 1) };

/* The coefficients of a token, [R, S + 1]; `used` is false where no input can make one
 * different from 0. */
typedef struct coefs {
    float c[MAX_COEF];
    bool used[MAX_COEF];
} coefs;

/* Column of c for coefficient (r, s); -1: it is a constant. */
static int64_t column_of(const ml_op_attr *attr, int32_t r, int32_t s) {
    int32_t n_in = attr->mix.n_in, each;

    if (s < n_in ? !attr->mix.streams : !attr->mix.extra)
        return -1;
    each = (attr->mix.streams ? n_in : 0) + (attr->mix.extra ? 1 : 0);
    return (int64_t)r * each + (attr->mix.streams ? s : 0);
}

static coefs coefs_of(const ml_op_args *a, int64_t t) {
    const ml_op_attr *attr = a->attr;
    const float *row =
        a->in[2].data ? (const float *)a->in[2].data + t * a->in[2].shape[1] : NULL;
    int32_t n = attr->mix.n_in + 1;
    coefs k = { 0 };

    for (int32_t r = 0; r < attr->mix.n_out; r++)
        for (int32_t s = 0; s < n; s++) {
            int64_t at = row ? column_of(attr, r, s) : -1;
            float base = attr->mix.base[r * n + s];
            k.c[r * n + s] = at < 0 ? base : base + row[at];
            k.used[r * n + s] = at >= 0 || base != 0.0f;
        }
    return k;
}

/* Input stream s of row t, or a gradient of it; NULL: absent. */
static float *stream_of(const ml_tensor in[ML_OP_IN], const ml_op_attr *attr, int64_t t,
                        int32_t s, int64_t width) {
    int32_t n_in = attr->mix.n_in;

    if (s == n_in)
        return in[1].data ? (float *)in[1].data + t * width : NULL;
    return in[0].data ? (float *)in[0].data + (t * n_in + s) * width : NULL;
}

static int64_t stream_width(const ml_op_args *a) {
    return a->in[0].shape[1] / a->attr->mix.n_in;
}

static void mix_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int32_t n = a->attr->mix.n_in + 1;
    int64_t width = stream_width(a);

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        coefs k = coefs_of(a, t);
        for (int32_t r = 0; r < a->attr->mix.n_out; r++) {
            float *z = (float *)a->out[0].data + (t * a->attr->mix.n_out + r) * width;
            bool add = false;
            for (int32_t s = 0; s < n; s++) {
                const float *x = stream_of(a->in, a->attr, t, s, width);
                if (!x || !k.used[r * n + s])
                    continue;
                j->s->kern->row->axpy(z, k.c[r * n + s], x, width, add);
                add = true;
            }
            if (!add)
                memset(z, 0, (size_t)width * sizeof *z);
        }
    }
}

static int64_t mix_cost(const ml_op_args *a) {
    return a->attr->mix.n_out * a->in[0].shape[1];
}

void ml_cpu_stream_mix_forward(ml_stream *s, const ml_op_args *a) {
    ML_BUG_IF(a->attr->mix.n_in > ML_STREAMS || a->attr->mix.n_out > ML_STREAMS);
    ml_cpu_split(s, a, a->in[0].shape[0], mix_cost(a), mix_rows);
}

/* The gradient of input stream s: the outputs' gradients, times its coefficients. */
static void stream_back(const ml_cpu_job *j, const coefs *k, int64_t t, int32_t s) {
    const ml_op_args *a = j->a;
    int32_t n = a->attr->mix.n_in + 1, n_out = a->attr->mix.n_out;
    int64_t width = stream_width(a);
    float *dx = stream_of(a->din, a->attr, t, s, width);
    bool add = a->din_add[s < n - 1 ? 0 : 1];

    if (!dx)
        return;
    for (int32_t r = 0; r < n_out; r++) {
        const float *dz = (const float *)a->dout[0].data + (t * n_out + r) * width;
        if (!k->used[r * n + s])
            continue;
        j->s->kern->row->axpy(dx, k->c[r * n + s], dz, width, add);
        add = true;
    }
    if (!add)
        memset(dx, 0, (size_t)width * sizeof *dx);
}

static void coefs_back(const ml_cpu_job *j, int64_t t) {
    const ml_op_args *a = j->a;
    int32_t n_out = a->attr->mix.n_out;
    int64_t width = stream_width(a);
    float *row = (float *)a->din[2].data + t * a->din[2].shape[1];

    for (int32_t r = 0; r < n_out; r++)
        for (int32_t s = 0; s <= a->attr->mix.n_in; s++) {
            const float *dz = (const float *)a->dout[0].data + (t * n_out + r) * width;
            const float *x = stream_of(a->in, a->attr, t, s, width);
            int64_t at = column_of(a->attr, r, s);
            float d;
            if (at < 0)
                continue;
            d = j->s->kern->row->dot(dz, x, width);
            row[at] = a->din_add[2] ? row[at] + d : d;
        }
}

static void mix_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        coefs k = coefs_of(j->a, t);
        for (int32_t s = 0; s <= j->a->attr->mix.n_in; s++)
            stream_back(j, &k, t, s);
        if (j->a->din[2].data)
            coefs_back(j, t);
    }
}

void ml_cpu_stream_mix_backward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], 2 * mix_cost(a), mix_rows_back);
}

/* ---- match-rms ---- */

/* Mean squares of a row and of the row whose magnitude it takes. */
typedef struct squares {
    float x, like;
    float root, target; /* of x, at least match_eps; of like */
} squares;

static squares squares_of(const ml_row_kern *k, const ml_op_args *a, int64_t t) {
    int64_t width = a->in[0].shape[1];
    const float *x = (const float *)a->in[0].data + t * width;
    const float *like = (const float *)a->in[1].data + t * width;
    float eps = a->attr->match_eps;
    squares q = { .x = k->dot(x, x, width) / (float)width,
                  .like = k->dot(like, like, width) / (float)width };

    q.root = sqrtf(q.x < eps ? eps : q.x);
    q.target = sqrtf(q.like);
    return q;
}

static void match_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int64_t width = a->out[0].shape[1];

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        squares q = squares_of(j->s->kern->row, a, t);
        j->s->kern->row->axpy((float *)a->out[0].data + t * width, q.target / q.root,
                              (const float *)a->in[0].data + t * width, width, false);
    }
}

void ml_cpu_match_rms_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], 3 * a->out[0].shape[1], match_rows);
}

/* With c = target / root and p = dot(dy, x) / width: dx = c dy - (c p / root^2) x, without
 * the second term where root is the bound; dlike = (p / (root target)) like. */
static void match_rows_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    const ml_row_kern *k = j->s->kern->row;
    int64_t width = a->dout[0].shape[1];

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *dy = (const float *)a->dout[0].data + t * width;
        const float *x = (const float *)a->in[0].data + t * width;
        const float *like = (const float *)a->in[1].data + t * width;
        squares q = squares_of(k, a, t);
        float c = q.target / q.root, p = k->dot(dy, x, width) / (float)width;
        if (a->din[0].data) {
            float *dx = (float *)a->din[0].data + t * width;
            k->axpy(dx, c, dy, width, a->din_add[0]);
            if (q.x >= a->attr->match_eps)
                k->axpy(dx, -(c * p / q.x), x, width, true);
        }
        if (a->din[1].data)
            k->axpy((float *)a->din[1].data + t * width,
                    q.target == 0.0f ? 0.0f : p / (q.root * q.target), like, width,
                    a->din_add[1]);
    }
}

void ml_cpu_match_rms_backward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], 6 * a->dout[0].shape[1], match_rows_back);
}
