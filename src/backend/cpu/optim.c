#include <math.h>
#include <string.h>

#include "backend/cpu/cpu_priv.h"
#include "backend/moments.h"

#define PIECE ((int64_t)16384) /* elements per task */

typedef struct optim_job {
    const ml_optim_kern *kern;
    const ml_optim_param *p;
    const ml_adamw *adamw;
    const ml_sgd *sgd;
} optim_job;

/* The index, in a weight stored in pairs, of element i of the master: the vectors of 16
 * of two consecutive k become 16 pairs. */
static int64_t pair_at(int64_t i) {
    const int64_t lane = i % ML_LANES, odd = i / ML_LANES % 2;
    return i - lane - odd * ML_LANES + 2 * lane + odd;
}

/* Rounds the master weights of [begin, end) into the weights. */
static void store_weights(const ml_optim_param *p, int64_t begin, int64_t end) {
    uint16_t *half = p->weight;
    float *whole = p->weight;

    if (!p->weight)
        return;
    if (p->pairs)
        for (int64_t i = begin; i < end; i++)
            half[pair_at(i)] = ml_f32_to_bf16(p->master[i]);
    else if (p->dtype == ML_BF16)
        for (int64_t i = begin; i < end; i++)
            half[i] = ml_f32_to_bf16(p->master[i]);
    else
        for (int64_t i = begin; i < end; i++)
            whole[i] = ml_bf16_to_f32(ml_f32_to_bf16(p->master[i]));
}

/* --- AdamW ------------------------------------------------------------------ */

static ml_moment moment_of(const ml_optim_param *p, bool second) {
    return (ml_moment){ .format = second ? p->format2 : p->format1,
                        .data = second ? p->moment2 : p->moment1,
                        .n = p->n,
                        .second = second,
                        .step = p->step,
                        .id = p->id,
                        .first = p->first };
}

/* Moments in other formats: block by block, in f32. */
static void adamw_blocks(const ml_optim_kern *kern, const ml_optim_param *p, int64_t begin,
                         int64_t end, const ml_adamw *o) {
    ml_moment first = moment_of(p, false), second = moment_of(p, true);
    float m[ML_MOMENT_BLOCK], v[ML_MOMENT_BLOCK];

    for (int64_t i = begin; i < end; i += ML_MOMENT_BLOCK) {
        int64_t n = end - i < ML_MOMENT_BLOCK ? end - i : ML_MOMENT_BLOCK;
        ml_moment_load(m, &first, i, n);
        ml_moment_load(v, &second, i, n);
        kern->adamw(p->master + i, m, v, p->grad + i, n, o);
        ml_moment_store(&first, i, n, m);
        ml_moment_store(&second, i, n, v);
    }
}

static void adamw_piece(void *ud, int64_t begin, int64_t end, int worker) {
    const optim_job *j = ud;
    const ml_optim_param *p = j->p;

    (void)worker;
    if (p->format1 != ML_MOMENT_F32 || p->format2 != ML_MOMENT_F32)
        adamw_blocks(j->kern, p, begin, end, j->adamw);
    else
        j->kern->adamw(p->master + begin, p->moment1 + begin, p->moment2 + begin,
                       p->grad + begin, end - begin, j->adamw);
    store_weights(p, begin, end);
}

static void adamw(ml_stream *s, const ml_optim_param *p, const ml_adamw *o) {
    optim_job j = { .kern = ml_cpu(s)->kern->optim, .p = p, .adamw = o };
    ml_pool_run(ml_cpu(s)->pool, p->n, PIECE, adamw_piece, &j);
}

/* --- SGD -------------------------------------------------------------------- */

static void sgd_elements(float *restrict w, float *restrict m, const float *restrict grad,
                         int64_t n, ml_sgd o) {
    for (int64_t i = 0; i < n; i++) {
        float g = grad[i] * o.grad_scale + o.weight_decay * w[i];
        m[i] = o.momentum * m[i] + g;
        w[i] = w[i] - o.lr * m[i];
    }
}

static void sgd_piece(void *ud, int64_t begin, int64_t end, int worker) {
    const optim_job *j = ud;
    const ml_optim_param *p = j->p;

    (void)worker;
    sgd_elements(p->master + begin, p->moment1 + begin, p->grad + begin, end - begin,
                 *j->sgd);
    store_weights(p, begin, end);
}

static void sgd(ml_stream *s, const ml_optim_param *p, const ml_sgd *o) {
    optim_job j = { .p = p, .sgd = o };
    ml_pool_run(ml_cpu(s)->pool, p->n, PIECE, sgd_piece, &j);
}

/* --- whole matrices --------------------------------------------------------- */

static void store_piece(void *ud, int64_t begin, int64_t end, int worker) {
    const optim_job *j = ud;

    (void)worker;
    store_weights(j->p, begin, end);
}

static void muon(ml_stream *s, const ml_optim_param *p, const ml_tensor *shape,
                 const ml_muon *o, void *scratch) {
    optim_job j = { .p = p };

    ml_cpu_muon(s, p, shape, o, scratch);
    ml_pool_run(ml_cpu(s)->pool, p->n, PIECE, store_piece, &j);
}

static void adafactor(ml_stream *s, const ml_optim_param *p, const ml_tensor *shape,
                      const ml_adafactor *o, void *scratch) {
    optim_job j = { .p = p };

    ml_cpu_adafactor(s, p, shape, o, scratch);
    ml_pool_run(ml_cpu(s)->pool, p->n, PIECE, store_piece, &j);
}

/* --- norms ------------------------------------------------------------------ */

typedef struct norm_job {
    const ml_optim_kern *kern;
    double *block;
    const float *x;
    int64_t n;
} norm_job;

static void square_blocks(void *ud, int64_t begin, int64_t end, int worker) {
    const norm_job *j = ud;

    (void)worker;
    for (int64_t b = begin; b < end; b++) {
        int64_t at = b * ML_NORM_BLOCK, left = j->n - at;
        j->block[b] =
            j->kern->squares(j->x + at, left < ML_NORM_BLOCK ? left : ML_NORM_BLOCK);
    }
}

static void square_sums(ml_stream *s, double *block, const float *x, int64_t n) {
    norm_job j = { .kern = ml_cpu(s)->kern->optim, .block = block, .x = x, .n = n };
    ml_pool_run(ml_cpu(s)->pool, (n + ML_NORM_BLOCK - 1) / ML_NORM_BLOCK,
                PIECE / ML_NORM_BLOCK, square_blocks, &j);
}

static void sum_blocks(ml_stream *s, double *sum, const double *block, const int64_t *first,
                       int32_t n) {
    (void)s;
    for (int32_t i = 0; i < n; i++) {
        sum[i] = 0.0;
        for (int64_t b = first[i]; b < first[i + 1]; b++)
            sum[i] += block[b];
    }
}

typedef struct add_job {
    float *y;
    const float *x;
} add_job;

static void add_piece(void *ud, int64_t begin, int64_t end, int worker) {
    const add_job *j = ud;
    float *restrict y = j->y;
    const float *restrict x = j->x;

    (void)worker;
    for (int64_t i = begin; i < end; i++)
        y[i] += x[i];
}

static void add(ml_stream *s, float *y, const float *x, int64_t n) {
    add_job j = { .y = y, .x = x };
    ml_pool_run(ml_cpu(s)->pool, n, PIECE, add_piece, &j);
}

typedef struct widen_job {
    float *y;
    const ml_tensor *x;
    bool pairs;
} widen_job;

static void widen_piece(void *ud, int64_t begin, int64_t end, int worker) {
    const widen_job *j = ud;

    (void)worker;
    for (int64_t i = begin; i < end; i++)
        j->y[i] =
            j->x->dtype == ML_F32
                ? ((const float *)j->x->data)[i]
                : ml_bf16_to_f32(((const uint16_t *)j->x->data)[j->pairs ? pair_at(i) : i]);
}

static void widen(ml_stream *s, float *y, const ml_tensor *x) {
    widen_job j = { .y = y, .x = x, .pairs = ml_tensor_has_pairs(x) };
    ml_pool_run(ml_cpu(s)->pool, (int64_t)(ml_tensor_bytes(x) / ml_dtype_bytes(x->dtype)),
                PIECE, widen_piece, &j);
}

static void zero_bytes(void *ud, int64_t begin, int64_t end, int worker) {
    (void)worker;
    memset((char *)ud + begin, 0, (size_t)(end - begin));
}

static void zero(ml_stream *s, void *x, size_t bytes) {
    ml_pool_run(ml_cpu(s)->pool, (int64_t)bytes, PIECE * 16, zero_bytes, x);
}

const ml_optim_ops ml_cpu_optim = {
    .adamw = adamw,
    .sgd = sgd,
    .square_sums = square_sums,
    .sum_blocks = sum_blocks,
    .add = add,
    .widen = widen,
    .zero = zero,
    .muon = muon,
    .muon_scratch = ml_cpu_muon_scratch,
    .adafactor = adafactor,
    .adafactor_scratch = ml_cpu_adafactor_scratch,
};
