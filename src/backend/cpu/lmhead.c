/* lmhead.c - the LM head: log-probabilities of given ids without storing all logits.
 *
 * Loss rows are gathered in chunks; each chunk iterates over the vocabulary in stripes of
 * whole tiles with an online softmax.  The GEMMs of gemm.h divide outputs among threads;
 * the softmax between them is divided by rows.  Chunks and stripes affect speed only: a
 * row's softmax proceeds tile by tile, and the GEMMs continue their FMA chains from
 * stripe to stripe (dx) and from chunk to chunk (dw).  If the caller requests all logits,
 * they are computed in the output tensor, and backward reads them instead of recomputing
 * them. */
#include "backend/cpu/lmhead.h"

#include "backend/cpu/gemm.h"
#include "backend/cpu/math.h"

#include <math.h>
#include <string.h>

/* Loss rows per chunk, tiles per stripe: many rows and one tile, or few rows and many
 * tiles. */
enum { LMHEAD_ROWS = 512, LMHEAD_FEW = 16, LMHEAD_TILES = LMHEAD_ROWS / LMHEAD_FEW };

/* The state of a row across the stripes. */
typedef struct lmhead_row {
    ml_lmhead_sum sum;
    float target;              /* scaled logit of the id */
    ml_lmhead_sum over;        /* of the support's columns */
    ml_support_reader support; /* the rest of it */
} lmhead_row;

typedef struct lmhead_call {
    const ml_cpu_stream *stream;
    const ml_op_args *args;
    int64_t vocab, width;
    int64_t first, n;               /* the chunk's loss rows */
    int64_t column, stripe;         /* the stripe's columns */
    const ml_support_rows *support; /* NULL: none */
    float *x, *dx;                  /* [n, width] */
    float *z;                       /* [n, stripe] scratch */
    lmhead_row *row;                /* [n] */
    void *gemm;
} lmhead_call;

static int64_t lmhead_min(int64_t a, int64_t b) {
    return a < b ? a : b;
}

/* The stripe's logits of the chunk's row i: in scratch, or in the output tensor. */
static float *lmhead_z(const lmhead_call *c, int64_t i) {
    float *kept = c->args->out[3].data;
    return kept ? kept + (c->first + i) * c->vocab + c->column : c->z + i * c->stripe;
}

/* n columns of a weight, starting at `column` (a multiple of 16). */
static ml_tensor lmhead_columns(const ml_tensor *w, int64_t column, int64_t n) {
    ml_tensor t = *w;
    t.shape[0] = n;
    if (w->data)
        t.data =
            (char *)w->data + (size_t)(column * w->shape[1]) * ml_dtype_bytes(w->dtype);
    return t;
}

/* Rows of the largest chunk of a call. */
static int64_t lmhead_chunk(const ml_op_args *a) {
    return lmhead_min(a->loss_rows ? a->loss_rows : LMHEAD_ROWS, a->rows->n_loss);
}

/* Columns per stripe for n rows. */
static int64_t lmhead_stripe(int64_t n) {
    return n > LMHEAD_FEW ? ML_VTILE : ML_VTILE * LMHEAD_TILES;
}

/* Size of the logits buffer: the last chunk may be a small one with a wide stripe. */
static int64_t lmhead_logits(const ml_op_args *a) {
    int64_t n = lmhead_chunk(a), few = lmhead_min(n, LMHEAD_FEW), vocab = a->w[0].shape[0];
    int64_t wide = few * lmhead_min(vocab, lmhead_stripe(few));
    int64_t tall = n * lmhead_min(vocab, lmhead_stripe(n));
    int64_t most = wide > tall ? wide : tall;
    return (most + ML_LANES - 1) / ML_LANES * ML_LANES;
}

static size_t lmhead_gemm_bytes(const ml_cpu_stream *s, const ml_op_args *a) {
    const ml_tensor *w = &a->w[0];
    ml_tensor one = lmhead_columns(w, 0, lmhead_min(w->shape[0], ML_VTILE));
    ml_tensor many = lmhead_columns(w, 0, lmhead_min(w->shape[0], ML_VTILE * LMHEAD_TILES));
    size_t tall = ml_gemm_scratch(s, &one, lmhead_chunk(a));
    size_t wide = ml_gemm_scratch(s, &many, lmhead_min(lmhead_chunk(a), LMHEAD_FEW));
    return tall > wide ? tall : wide;
}

size_t ml_cpu_lmhead_scratch(const ml_cpu_stream *s, const ml_op_args *a, bool backward) {
    int64_t n = lmhead_chunk(a), x = n * a->w[0].shape[1] * (backward ? 2 : 1);
    return (size_t)(lmhead_logits(a) + x) * sizeof(float) + (size_t)n * sizeof(lmhead_row) +
           lmhead_gemm_bytes(s, a);
}

static lmhead_call lmhead_open(const ml_stream *s, const ml_op_args *a, bool backward) {
    lmhead_call c = { .stream = ml_cpu(s), .args = a, .support = a->rows->support };
    int64_t n = lmhead_chunk(a);
    c.vocab = a->w[0].shape[0];
    c.width = a->w[0].shape[1];
    c.z = a->scratch;
    c.row = (lmhead_row *)(void *)(c.z + lmhead_logits(a));
    c.x = (float *)(void *)(c.row + n);
    c.dx = c.x + n * c.width;
    c.gemm = c.dx + (backward ? n * c.width : 0);
    return c;
}

/* Copies x of the chunk's rows to contiguous memory. */
static void lmhead_gather(void *ud, int64_t begin, int64_t end, int worker) {
    const lmhead_call *c = ud;
    const float *x = c->args->in[0].data;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = c->args->rows->loss_row[c->first + i];
        memcpy(c->x + i * c->width, x + row * c->width, (size_t)c->width * sizeof *x);
        c->row[i] = (lmhead_row){ .sum = { .m = -INFINITY }, .over = { .m = -INFINITY } };
        if (c->support)
            c->row[i].support = ml_support_read(c->support->of[c->first + i]);
    }
}

static void lmhead_scatter(void *ud, int64_t begin, int64_t end, int worker) {
    const lmhead_call *c = ud;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t row = c->args->rows->loss_row[c->first + i];
        float *dst = (float *)c->args->din[0].data + row * c->width;
        for (int64_t k = 0; k < c->width; k++)
            dst[k] = dst[k] + c->dx[i * c->width + k];
    }
}

static void lmhead_run(lmhead_call *c, ml_task *fn) {
    ml_pool_run(c->stream->pool, c->n, 1, fn, c);
}

/* Advances to the loss rows starting at `first`; false at the end. */
static bool lmhead_next_chunk(lmhead_call *c, int64_t first) {
    c->first = first;
    c->n = lmhead_min(lmhead_chunk(c->args), c->args->rows->n_loss - first);
    if (c->n <= 0)
        return false;
    lmhead_run(c, lmhead_gather);
    return true;
}

/* Advances to the stripe starting at `column`; false at the end. */
static bool lmhead_next_stripe(lmhead_call *c, int64_t column) {
    c->column = column;
    c->stripe = lmhead_min(lmhead_stripe(c->n), c->vocab - column);
    return c->stripe > 0;
}

/* Computes the logits of the stripe with row stride ldz. */
static void lmhead_multiply(lmhead_call *c, float *z, int64_t ldz) {
    ml_tensor w = lmhead_columns(&c->args->w[0], c->column, c->stripe);
    const ml_gemm_out out = { z, ldz, &w, NULL };

    ml_gemm_forward(c->stream, &out, 1, c->x, c->width, c->n, c->gemm);
}

/* Adds n logits, starting at a tile's first column, to a row's softmax. */
static void lmhead_take(lmhead_row *r, const ml_cpu_kern *kern, const float *z, int64_t n,
                        int64_t id, float temperature) {
    for (int64_t t = 0; t < n; t += ML_VTILE)
        kern->lmhead->sum(&r->sum, z + t, lmhead_min(ML_VTILE, n - t), temperature);
    if (id >= 0 && id < n)
        r->target = z[id] / temperature;
}

/* The same for the columns of its support; tiles without any are skipped. */
static void lmhead_take_support(lmhead_row *r, const ml_cpu_kern *kern, const float *z,
                                int64_t n, float temperature) {
    uint32_t mask[ML_VTILE / 32];
    float kept[ML_VTILE];

    for (int64_t t = 0; t < n; t += ML_VTILE) {
        int64_t size = lmhead_min(ML_VTILE, n - t);
        int64_t found = ml_support_next(&r->support, mask, size);
        for (int64_t i = 0; found && found < size && i < size; i++)
            kept[i] = mask[i / 32] >> i % 32 & 1 ? z[t + i] : -INFINITY;
        if (found)
            kern->lmhead->sum(&r->over, found < size ? kept : z + t, size, temperature);
    }
}

static ml_logprob lmhead_result(const lmhead_row *r, int32_t id) {
    float log_l = ml_logf(r->sum.l);
    return (ml_logprob){ .logprob = id < 0 ? 0.0f : (r->target - r->sum.m) - log_l,
                         .entropy = log_l - r->sum.u / r->sum.l,
                         .m = r->sum.m,
                         .l = r->sum.l };
}

static ml_logprob lmhead_over(const lmhead_row *r, float target, int32_t id) {
    lmhead_row over = { .sum = r->over, .target = target };
    return lmhead_result(&over, id);
}

ml_logprob ml_logprob_of(const ml_cpu_kern *kern, const float *z, int64_t n, int32_t id,
                         float temperature) {
    lmhead_row r = { .sum = { .m = -INFINITY } };
    lmhead_take(&r, kern, z, n, id, temperature);
    return lmhead_result(&r, id);
}

ml_logprob ml_logprob_over(const ml_cpu_kern *kern, const float *z, int64_t n, int32_t id,
                           float temperature, ml_str support) {
    lmhead_row r = { .over = { .m = -INFINITY }, .support = ml_support_read(support) };
    lmhead_take_support(&r, kern, z, n, temperature);
    return lmhead_over(&r, id < 0 ? 0.0f : z[id] / temperature, id);
}

static void lmhead_take_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const lmhead_call *c = ud;
    const ml_rows *rows = c->args->rows;
    const ml_cpu_kern *kern = c->stream->kern;
    float cap = c->args->attr->logit_softcap;

    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        float *z = lmhead_z(c, i);
        if (cap != 0.0f)
            kern->lmhead->softcap(z, c->stripe, cap);
        lmhead_take(&c->row[i], kern, z, c->stripe, rows->loss_id[c->first + i] - c->column,
                    rows->temperature);
        if (c->support && c->support->of[c->first + i].len)
            lmhead_take_support(&c->row[i], kern, z, c->stripe, rows->temperature);
    }
}

static void lmhead_write_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const lmhead_call *c = ud;
    float *logprob = c->args->out[0].data, *entropy = c->args->out[1].data;
    float *stat = c->args->out[2].data;

    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t at = c->first + i;
        ml_logprob r = lmhead_result(&c->row[i], c->args->rows->loss_id[at]);
        logprob[at] = r.logprob;
        entropy[at] = r.entropy;
        stat[2 * at] = r.m;
        stat[2 * at + 1] = r.l;
        if (!c->support)
            continue;
        if (c->support->of[at].len)
            r = lmhead_over(&c->row[i], c->row[i].target, c->args->rows->loss_id[at]);
        c->support->logprob[at] = r.logprob;
        c->support->stat[2 * at] = r.m;
        c->support->stat[2 * at + 1] = r.l;
    }
}

static void lmhead_cap_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const lmhead_call *c = ud;

    (void)worker;
    for (int64_t i = begin; i < end; i++)
        c->stream->kern->lmhead->softcap(lmhead_z(c, i), c->vocab,
                                         c->args->attr->logit_softcap);
}

/* Without log-probs, which read a stripe of logits while it is in the caches, one product computes
 * all of a row. */
static void lmhead_only_logits(lmhead_call *c) {
    for (int64_t first = 0; lmhead_next_chunk(c, first); first += c->n) {
        c->column = 0;
        c->stripe = c->vocab;
        lmhead_multiply(c, lmhead_z(c, 0), c->vocab);
        if (c->args->attr->logit_softcap != 0.0f)
            lmhead_run(c, lmhead_cap_rows);
    }
}

void ml_cpu_lmhead_forward(ml_stream *s, const ml_op_args *a) {
    lmhead_call c = lmhead_open(s, a, false);

    if (!a->out[0].data) {
        lmhead_only_logits(&c);
        return;
    }
    for (int64_t first = 0; lmhead_next_chunk(&c, first); first += c.n) {
        for (int64_t column = 0; lmhead_next_stripe(&c, column); column += c.stripe) {
            lmhead_multiply(&c, lmhead_z(&c, 0), a->out[3].data ? c.vocab : c.stripe);
            lmhead_run(&c, lmhead_take_rows);
        }
        lmhead_run(&c, lmhead_write_rows);
    }
}

/* dout[i][at], or 0 where the gradient is absent. */
static float lmhead_dout(const ml_op_args *a, int i, int64_t at) {
    const float *d = a->dout[i].data;
    return d ? d[at] : 0.0f;
}

static ml_lmhead_grad lmhead_grad_of(const ml_op_args *a, int64_t at) {
    const float *stat = a->out[2].data, *entropy = a->out[1].data;
    int32_t id = a->rows->loss_id[at];
    return (ml_lmhead_grad){ .m = stat[2 * at],
                             .inv_l = 1.0f / stat[2 * at + 1],
                             .log_l = ml_logf(stat[2 * at + 1]),
                             .entropy = entropy[at],
                             .dlogprob = id < 0 ? 0.0f : lmhead_dout(a, 0, at),
                             .dentropy = lmhead_dout(a, 1, at),
                             .temperature = a->rows->temperature,
                             .softcap = a->attr->logit_softcap,
                             .target = id };
}

/* Whether backward can read the kept logits: not with a softcap, because they are
 * softcapped and backward starts from logits before the softcap. */
static bool lmhead_reads_kept(const ml_op_args *a) {
    return a->out[3].data && a->attr->logit_softcap == 0.0f;
}

/* The gradient by the log-prob over the support, added to that of a tile's other results. */
static void lmhead_grad_support(const lmhead_call *c, int64_t i, float *dz, const float *z,
                                int64_t n, int64_t target) {
    int64_t at = c->first + i;
    const float *stat = c->support->stat + 2 * at;
    ml_lmhead_grad g = lmhead_grad_of(c->args, at), over = g;
    uint32_t mask[ML_VTILE / 32];
    float own[ML_VTILE];

    over.m = stat[0];
    over.inv_l = 1.0f / stat[1];
    over.log_l = ml_logf(stat[1]);
    over.entropy = over.dentropy = 0.0f;
    over.dlogprob = g.target < 0 ? 0.0f : c->support->dlogprob[at];
    over.target = g.target = target;
    c->stream->kern->lmhead->grad(own, z, n, &over);
    c->stream->kern->lmhead->grad(dz, z, n, &g);
    ml_support_next(&c->row[i].support, mask, n);
    for (int64_t k = 0; k < n; k++)
        if (mask[k / 32] >> k % 32 & 1)
            dz[k] = dz[k] + own[k];
}

/* Computes the gradients of the stripe's logits, in scratch. */
static void lmhead_grad_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const lmhead_call *c = ud;
    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        ml_lmhead_grad g = lmhead_grad_of(c->args, c->first + i);
        float *dz = c->z + i * c->stripe;
        const float *z = lmhead_reads_kept(c->args) ? lmhead_z(c, i) : dz;
        g.target -= c->column;
        for (int64_t t = 0; c->support && t < c->stripe; t += ML_VTILE)
            lmhead_grad_support(c, i, dz + t, z + t, lmhead_min(ML_VTILE, c->stripe - t),
                                g.target - t);
        if (!c->support)
            c->stream->kern->lmhead->grad(dz, z, c->stripe, &g);
    }
}

static void lmhead_backward_stripe(lmhead_call *c) {
    const ml_op_args *a = c->args;
    ml_tensor w = lmhead_columns(&a->w[0], c->column, c->stripe);
    ml_tensor dw = lmhead_columns(&a->dw[0], c->column, c->stripe);

    if (!lmhead_reads_kept(a))
        lmhead_multiply(c, c->z, c->stripe);
    lmhead_run(c, lmhead_grad_rows);
    if (a->din[0].data)
        ml_gemm_dinput(c->stream, c->dx, c->width, c->z, c->stripe, &w, c->n, c->column > 0,
                       false, c->gemm);
    if (dw.data)
        ml_gemm_dweight(c->stream, &dw, c->z, c->stripe, c->x, c->width, c->n, NULL,
                        c->first > 0 || !a->dw_write[0], c->gemm);
}

void ml_cpu_lmhead_backward(ml_stream *s, const ml_op_args *a) {
    lmhead_call c = lmhead_open(s, a, true);

    if (a->din[0].data && !a->din_add[0])
        memset(a->din[0].data, 0, ml_tensor_bytes(&a->din[0]));
    if (a->dw[0].data && a->dw_write[0] && a->rows->n_loss == 0)
        memset(a->dw[0].data, 0, ml_tensor_bytes(&a->dw[0]));
    for (int64_t first = 0; lmhead_next_chunk(&c, first); first += c.n) {
        for (int64_t column = 0; lmhead_next_stripe(&c, column); column += c.stripe)
            lmhead_backward_stripe(&c);
        if (a->din[0].data)
            lmhead_run(&c, lmhead_scatter);
    }
}
