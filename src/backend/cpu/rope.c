#include "backend/cpu/cpu_priv.h"

#include <math.h>
#include <string.h>

#include "backend/cpu/math.h"

/* The factor of the cosines and sines of a position. */
static double table_scale(const ml_rope *rope, float pos) {
    double scale = (double)rope->scale;

    if (rope->temper_step > 0.0f)
        scale *= 1.0 + (double)rope->temper *
                           (double)ml_logf(1.0f + floorf((pos + 1.0f) / rope->temper_step));
    return scale;
}

static void table_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_rope *rope = j->a->attr->rope.rope;
    int64_t half = rope->dim / 2;

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        float *cs = (float *)j->a->out[0].data + t * 2 * half;
        int32_t at = j->a->rows->pos[t];
        float pos = (float)(rope->stride > 1 ? at - at % rope->stride : at);
        double scale = table_scale(rope, pos);
        for (int64_t i = 0; i < half; i++) {
            double sine, cosine;
            ml_sincos(&sine, &cosine, pos * rope->freq[i]);
            cs[i] = (float)(cosine * scale);
            cs[half + i] = (float)(sine * scale);
        }
    }
}

void ml_cpu_rope_table_forward(ml_stream *s, const ml_op_args *a) {
    /* A sine costs about as much as ten elements of other ops. */
    ml_cpu_split(s, a, a->rows->n_token, 10 * (int64_t)a->attr->rope.rope->dim, table_rows);
}

void ml_cpu_rope_table_backward(ml_stream *s, const ml_op_args *a) {
    (void)s; /* positions have no gradient */
    (void)a;
}

/* Rotation of rows: forward from x to y, backward from dy to dx. */
typedef struct rope_job {
    const ml_row_kern *k;
    const ml_op_args *a;
    const ml_tensor *from, *to;
    bool back, add;
} rope_job;

/* Copies a part of a head that is not rotated. */
static void pass_rest(const rope_job *j, float *y, const float *x, int64_t n) {
    if (j->add)
        j->k->add(y, y, x, n);
    else if (y != x)
        memcpy(y, x, (size_t)n * sizeof *y);
}

static void rope_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const rope_job *j = ud;
    const ml_op_attr *attr = j->a->attr;
    ml_rope_fn *rotate = attr->rope.interleaved ? j->k->rope_pairs : j->k->rope_halves;
    int64_t d = attr->rope.head_dim, dim = attr->rope.dim, width = j->from->shape[1];
    int64_t at = attr->rope.at;

    (void)worker;
    for (int64_t t = begin; t < end; t++) {
        const float *cs = (const float *)j->a->in[1].data + t * dim;
        for (int64_t i = t * width; i < (t + 1) * width; i += d) {
            const float *x = (const float *)j->from->data + i;
            float *y = (float *)j->to->data + i;
            pass_rest(j, y, x, at);
            rotate(y + at, x + at, cs, dim / 2, j->back != attr->rope.inverse, j->add);
            pass_rest(j, y + at + dim, x + at + dim, d - at - dim);
        }
    }
}

static void rope_split(const ml_stream *s, rope_job *j) {
    ml_pool_run(ml_cpu(s)->pool, j->a->rows->n_token, ml_cpu_grain(j->from->shape[1]),
                rope_rows, j);
}

void ml_cpu_rope_forward(ml_stream *s, const ml_op_args *a) {
    rope_job j = { ml_cpu(s)->kern->row, a, &a->in[0], &a->out[0], false, false };
    rope_split(s, &j);
}

/* The inverse of a rotation is its transpose: the same angles, negative. */
void ml_cpu_rope_backward(ml_stream *s, const ml_op_args *a) {
    rope_job j = { ml_cpu(s)->kern->row, a, &a->dout[0], &a->din[0], true, a->din_add[0] };
    if (a->din[0].data)
        rope_split(s, &j);
}
