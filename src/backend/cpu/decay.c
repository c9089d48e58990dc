/* decay.c - DECAY: the decay (keep) and the input rate (take) of a recurrent head.
 *
 * One number per token and head, so plain f64 arithmetic, shared by all levels. */
#include "backend/cpu/columns.h"
#include "backend/cpu/math.h"
#include "base/exp.h"

/* Intermediate values of one number: z = a + bias, step = max(softplus(z), min_step),
 * keep = exp(-speed step). */
typedef struct rate {
    float z;
    bool least;
    double speed, step, keep;
} rate;

static rate rate_at(const ml_op_args *a, int64_t t, int64_t h) {
    int64_t n_head = a->in[0].shape[1];
    rate r = { .z = ((const float *)a->in[0].data)[t * n_head + h] +
                    ((const float *)a->w[1].data)[h],
               .speed = ml_exp((double)((const float *)a->w[0].data)[h]) };
    r.step = ml_softplus(r.z);
    r.least = r.step < (double)a->attr->min_step;
    if (r.least)
        r.step = (double)a->attr->min_step;
    r.keep = ml_exp(-(r.speed * r.step));
    return r;
}

static void decay_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int64_t n_head = a->in[0].shape[1];
    const float *b = a->in[1].data;

    (void)worker;
    for (int64_t t = begin; t < end; t++)
        for (int64_t h = 0; h < n_head; h++) {
            float *out = (float *)a->out[0].data + t * 2 * n_head + h;
            rate r = rate_at(a, t, h);
            out[0] = (float)r.keep;
            out[n_head] = b ? ml_sigmoidf(b[t * n_head + h]) : (float)r.step;
        }
}

void ml_cpu_decay_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[0], 64 * a->in[0].shape[1], decay_rows);
}

static void put(const ml_op_args *a, int i, int64_t at, float d) {
    float *x = a->din[i].data;
    if (x)
        x[at] = a->din_add[i] ? x[at] + d : d;
}

/* One head in rows begin .. end - 1, a sequence. */
static void decay_run_back(const ml_op_args *a, int64_t h, int64_t begin, int64_t end) {
    int64_t n_head = a->in[0].shape[1];
    const float *b = a->in[1].data;
    float *dlog = a->dw[0].data, *dbias = a->dw[1].data;
    double log_sum = 0, bias_sum = 0;

    for (int64_t t = begin; t < end; t++) {
        const float *d = (const float *)a->dout[0].data + t * 2 * n_head + h;
        rate r = rate_at(a, t, h);
        double dpower = (double)d[0] * r.keep; /* gradient of -speed step */
        double dstep = -r.speed * dpower + (b ? 0.0 : (double)d[n_head]);
        float dz = r.least ? 0.0f : (float)(dstep * ml_sigmoid((double)r.z));
        log_sum += -(r.speed * r.step) * dpower;
        bias_sum += (double)dz;
        put(a, 0, t * n_head + h, dz);
        if (b) {
            float gate = ml_sigmoidf(b[t * n_head + h]);
            put(a, 1, t * n_head + h, d[n_head] * (gate * (1.0f - gate)));
        }
    }
    if (dlog)
        dlog[h] += (float)log_sum;
    if (dbias)
        dbias[h] += (float)bias_sum;
}

static void decay_head_back(const ml_op_args *a, int64_t h) {
    int64_t n = a->in[0].shape[0];
    ml_row_runs runs = ml_cpu_row_runs(a, n);

    for (int64_t t = 0, end; t < n; t = end) {
        end = ml_row_run_end(&runs, t, n);
        decay_run_back(a, h, t, end);
    }
}

static void decay_heads_back(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    (void)worker;
    for (int64_t h = begin; h < end; h++)
        decay_head_back(j->a, h);
}

void ml_cpu_decay_backward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_split(s, a, a->in[0].shape[1], 64 * a->in[0].shape[0], decay_heads_back);
}
