/* linear.c - LINEAR, MOE_LINEAR and HEAD_LINEAR: the GEMMs of gemm.h on the rows of a
 * batch. */
#include "backend/cpu/gemm.h"

enum {
    TOGETHER = 4,     /* most LINEARs that are fused */
    EXPERTS_EACH = 4, /* from this many experts per thread on, threads take whole experts */
};

size_t ml_cpu_linear_scratch(const ml_cpu_stream *s, const ml_op_args *a, bool backward) {
    (void)backward;
    return ml_gemm_scratch(s, &a->w[0], a->in[0].shape[0]);
}

void ml_cpu_linear_forward(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *x = &a->in[0], *w = &a->w[0], *y = &a->out[0];

    const ml_gemm_out out = { y->data, w->shape[0], w, a->w[1].data };

    ml_gemm_forward(ml_cpu(s), &out, 1, x->data, w->shape[1], x->shape[0], a->scratch);
}

static bool reads_the_same(const ml_op_call *a, const ml_op_call *b) {
    const ml_tensor *x = &a->args.in[0], *y = &b->args.in[0];

    return b->op == ML_OP_LINEAR && x->data == y->data && x->shape[0] == y->shape[0] &&
           a->args.w[0].dtype == b->args.w[0].dtype;
}

/* The weight of the first LINEAR of n calls; NULL: there is none. */
static const ml_tensor *first_weight(const ml_op_call *call, int n) {
    for (int i = 0; i < n; i++)
        if (call[i].op == ML_OP_LINEAR)
            return &call[i].args.w[0];
    return NULL;
}

/* Fuses consecutive LINEARs with the same input: q, k, v, or gate and up. */
int ml_cpu_linear_together(ml_stream *s, const ml_op_call *call, int n) {
    const ml_op_args *a = &call->args;
    ml_cpu_stream stream = *ml_cpu(s);
    ml_gemm_out out[TOGETHER];
    int took = 0;

    for (; took < n && took < TOGETHER && reads_the_same(call, &call[took]); took++) {
        const ml_op_args *b = &call[took].args;
        out[took] =
            (ml_gemm_out){ b->out[0].data, b->w[0].shape[0], &b->w[0], b->w[1].data };
    }
    if (call->op != ML_OP_LINEAR)
        return 0;
    stream.next = first_weight(call + took, n - took);
    ml_gemm_forward(&stream, out, took, a->in[0].data, a->w[0].shape[1], a->in[0].shape[0],
                    a->scratch);
    return took;
}

static void add_bias_grad(const ml_cpu_stream *s, float *db, const float *dy, int64_t m,
                          int64_t n, ml_row_runs runs) {
    ml_cpu_add_columns(
        s,
        &(ml_column_sum){
            .to = db, .dy = dy, .n = m, .groups = 1, .width = n, .n_to = 1, .runs = runs });
}

void ml_cpu_linear_backward(ml_stream *s, const ml_op_args *a) {
    const ml_tensor *x = &a->in[0], *w = &a->w[0];
    const float *dy = a->dout[0].data;
    const int64_t m = x->shape[0], n = w->shape[0], k = w->shape[1];
    const ml_row_runs runs = ml_cpu_row_runs(a, m);

    if (a->din[0].data)
        ml_gemm_dinput(ml_cpu(s), a->din[0].data, k, dy, n, w, m, a->din_add[0], true,
                       a->scratch);
    if (a->dw[0].data)
        ml_gemm_dweight(ml_cpu(s), &a->dw[0], dy, n, x->data, k, m, &runs, !a->dw_write[0],
                        a->scratch);
    if (a->dw[1].data)
        add_bias_grad(ml_cpu(s), a->dw[1].data, dy, m, n, runs);
}

/* One expert of a stack [E, N, K], as a weight [N, K]. */
static ml_tensor expert_of(const ml_tensor *w, int64_t e) {
    const int64_t n = w->shape[1], k = w->shape[2];
    const int64_t panels = (n + ML_LANES - 1) / ML_LANES;

    return (ml_tensor){
        .data = (char *)w->data + (size_t)(e * panels) * ml_tensor_panel_bytes(w),
        .dtype = w->dtype,
        .layout = w->layout,
        .n_dim = 2,
        .shape = { n, k },
    };
}

/* A stream that runs on the calling thread only. */
static ml_cpu_stream stream_alone(const ml_cpu_stream *s) {
    return (ml_cpu_stream){ s->base, NULL, s->kern };
}

/* Scratch bytes of a thread that computes a whole expert. */
static size_t alone_bytes(const ml_cpu_stream *s, const ml_op_args *a) {
    const ml_cpu_stream alone = stream_alone(s);
    const size_t bytes = ml_gemm_scratch(&alone, &a->w[0], a->in[0].shape[0]);
    return (bytes + 63) / 64 * 64;
}

size_t ml_cpu_moe_linear_scratch(const ml_cpu_stream *s, const ml_op_args *a,
                                 bool backward) {
    const size_t together = ml_gemm_scratch(s, &a->w[0], a->in[0].shape[0]);
    const size_t alone = alone_bytes(s, a) * (size_t)ml_pool_size(s->pool);

    (void)backward;
    return together > alone ? together : alone;
}

/* The computation of one expert. */
typedef void expert_fn(const ml_cpu_stream *s, const ml_op_args *a, int64_t e,
                       void *scratch);

typedef struct expert_job {
    const ml_cpu_stream *s;
    const ml_op_args *a;
    expert_fn *fn;
    size_t bytes;
} expert_job;

static void run_experts(void *ud, int64_t begin, int64_t end, int worker) {
    const expert_job *j = ud;
    const ml_cpu_stream alone = stream_alone(j->s);

    for (int64_t e = begin; e < end; e++)
        j->fn(&alone, j->a, e, (char *)j->a->scratch + (size_t)worker * j->bytes);
}

/* Threads take whole experts if there are several per thread, so that they need not
 * synchronize.  Few experts are computed one after the other, by all threads together. */
static void each_expert(const ml_cpu_stream *s, const ml_op_args *a, expert_fn *fn) {
    const int64_t n = a->w[0].shape[0];
    const int32_t *start = a->in[1].data; /* [E+1] */
    int64_t busy = 0;

    for (int64_t e = 0; e < n; e++)
        busy += start[e + 1] > start[e];
    if (busy >= (int64_t)EXPERTS_EACH * ml_pool_size(s->pool)) {
        expert_job j = { s, a, fn, alone_bytes(s, a) };
        ml_pool_run(s->pool, n, 1, run_experts, &j);
        return;
    }
    for (int64_t e = 0; e < n; e++)
        fn(s, a, e, a->scratch);
}

static void expert_forward(const ml_cpu_stream *s, const ml_op_args *a, int64_t e,
                           void *scratch) {
    const int64_t n = a->w[0].shape[1], k = a->w[0].shape[2];
    const int32_t *start = a->in[1].data;
    const ml_tensor w = expert_of(&a->w[0], e);
    const float *x = a->in[0].data, *bias = a->w[1].data;
    float *y = a->out[0].data;

    const ml_gemm_out out = { y + start[e] * n, n, &w, bias ? bias + e * n : NULL };

    ml_gemm_forward(s, &out, 1, x + start[e] * k, k, start[e + 1] - start[e], scratch);
}

void ml_cpu_moe_linear_forward(ml_stream *s, const ml_op_args *a) {
    each_expert(ml_cpu(s), a, expert_forward);
}

/* Of the rows of expert e; those of all ranks of an expert group count as one sequence. */
static ml_row_runs expert_runs(const ml_op_args *a, int64_t e) {
    const int64_t n_expert = a->w[0].shape[0], n = a->in[0].shape[0];
    const int32_t top_k = a->attr->moe.top_k, *start = a->in[1].data;
    ml_row_runs runs = { 0 };

    if (top_k == 0 || n % top_k || a->in[1].shape[0] != n_expert + 1 + 2 * n)
        return runs;
    runs = ml_cpu_row_runs(a, n / top_k);
    runs.choice = start + n_expert + 1 + start[e];
    runs.top_k = top_k;
    return runs;
}

static void expert_backward(const ml_cpu_stream *s, const ml_op_args *a, int64_t e,
                            void *scratch) {
    const int64_t n = a->w[0].shape[1], k = a->w[0].shape[2];
    const int32_t *start = a->in[1].data;
    const int64_t m = start[e + 1] - start[e];
    const float *x = (const float *)a->in[0].data + start[e] * k;
    const float *dy = (const float *)a->dout[0].data + start[e] * n;
    float *dx = a->din[0].data;

    if (dx) {
        const ml_tensor w = expert_of(&a->w[0], e);
        ml_gemm_dinput(s, dx + start[e] * k, k, dy, n, &w, m, a->din_add[0], true, scratch);
    }
    if (a->dw[0].data) {
        const ml_tensor dw = expert_of(&a->dw[0], e);
        ml_gemm_dweight(s, &dw, dy, n, x, k, m, NULL, !a->dw_write[0], scratch);
    }
    if (a->dw[1].data)
        add_bias_grad(s, (float *)a->dw[1].data + e * n, dy, m, n, expert_runs(a, e));
}

void ml_cpu_moe_linear_backward(ml_stream *s, const ml_op_args *a) {
    each_expert(ml_cpu(s), a, expert_backward);
}

/* Heads are adjacent in a row: each is a GEMM over its own columns. */
void ml_cpu_head_linear_forward(ml_stream *s, const ml_op_args *a) {
    const int64_t h = a->w[0].shape[0], n = a->w[0].shape[1], k = a->w[0].shape[2];
    const float *x = a->in[0].data;
    float *y = a->out[0].data;

    for (int64_t i = 0; i < h; i++) {
        const ml_tensor w = expert_of(&a->w[0], i);
        const ml_gemm_out out = { y + i * n, h * n, &w, NULL };
        ml_gemm_forward(ml_cpu(s), &out, 1, x + i * k, h * k, a->in[0].shape[0],
                        a->scratch);
    }
}

void ml_cpu_head_linear_backward(ml_stream *s, const ml_op_args *a) {
    const int64_t h = a->w[0].shape[0], n = a->w[0].shape[1], k = a->w[0].shape[2];
    const int64_t m = a->in[0].shape[0];
    const ml_row_runs runs = ml_cpu_row_runs(a, m);
    const float *x = a->in[0].data, *dy = a->dout[0].data;
    float *dx = a->din[0].data;

    for (int64_t i = 0; i < h; i++) {
        const ml_tensor w = expert_of(&a->w[0], i);
        if (dx)
            ml_gemm_dinput(ml_cpu(s), dx + i * k, h * k, dy + i * n, h * n, &w, m,
                           a->din_add[0], true, a->scratch);
        if (a->dw[0].data) {
            const ml_tensor dw = expert_of(&a->dw[0], i);
            ml_gemm_dweight(ml_cpu(s), &dw, dy + i * n, h * n, x + i * k, h * k, m, &runs,
                            !a->dw_write[0], a->scratch);
        }
    }
}
