/* gemm_fp8_back.cu - gradients of LINEAR as FP8 products, by cuBLASLt.
 *
 *     dx [m, k]  = dy [m, n] w [n, k]      sums over n: groups of a row of dy, blocks of 128 x 128 of w
 *     dw [n, k] += dy' [n, m] x [m, k]     sums over m: groups of 128 tokens of a column of dy, blocks of x
 *
 * Blocks of x, instead of groups: cuBLASLt's product of groups with groups is a fifth slower.  Tokens are filled
 * up with zeros to whole groups.  Gradients only need to repeat from run to run: the heuristic's first algorithm
 * is used, whatever its speed, also with split-K where partial sums are stored and added in a second step. */
#include "backend/cuda/gemm/gemm_fp8_back.cuh"

#include <cublasLt.h>
#include <stdlib.h>

#include "backend/cuda/fp8/fp8_back.cuh"

enum { MAX_ENTRIES = 256 };

/* Column-major: c (p x q) = a' (p x k) b (k x q), of codes with k first; a in e4m3 has scales of blocks, b of
 * groups. */
typedef struct product {
    int64_t p, q, k;
    bool e5m2; /* b */
    bool f32;  /* c; else bf16 */
    bool add;
    ml_fp8_operand a, b;
    void *c;
} product;

typedef struct entry {
    product shape;
    bool found;
    cublasLtMatmulAlgo_t algo;
} entry;

/* The oldest entry is replaced. */
struct ml_gemm_fp8_back_cache {
    entry entry[MAX_ENTRIES];
    int n_entry, next;
};

/* ---- cuBLASLt ---- */

typedef struct lt_call {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, c;
} lt_call;

static void set(lt_call *c, cublasLtMatmulDescAttributes_t which, const void *value,
                size_t size) {
    cublasLtMatmulDescSetAttribute(&c->desc, which, value, size);
}

static void describe(lt_call *c, const product *g) {
    const int32_t transposed = CUBLAS_OP_T;
    const int32_t blocks = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    const int32_t groups = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;

    cublasLtMatmulDescInit(&c->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    set(c, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    set(c, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &blocks, sizeof blocks);
    set(c, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &groups, sizeof groups);
    set(c, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &g->a.scale, sizeof g->a.scale);
    set(c, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->b.scale, sizeof g->b.scale);
    cublasLtMatrixLayoutInit(&c->a, CUDA_R_8F_E4M3, (uint64_t)g->k, (uint64_t)g->p, g->k);
    cublasLtMatrixLayoutInit(&c->b, g->e5m2 ? CUDA_R_8F_E5M2 : CUDA_R_8F_E4M3,
                             (uint64_t)g->k, (uint64_t)g->q, g->k);
    cublasLtMatrixLayoutInit(&c->c, g->f32 ? CUDA_R_32F : CUDA_R_16BF, (uint64_t)g->p,
                             (uint64_t)g->q, g->p);
}

static void find_algo(ml_cuda_stream *s, entry *e) {
    cublasLtMatmulHeuristicResult_t found;
    ml_gemm_lt lt = ml_gemm_lt_of(s);
    lt_call c;
    int n = 0;

    describe(&c, &e->shape);
    e->found =
        cublasLtMatmulAlgoGetHeuristic((cublasLtHandle_t)lt.handle, &c.desc, &c.a, &c.b,
                                       &c.c, &c.c, (cublasLtMatmulPreference_t)lt.backward,
                                       1, &found, &n) == CUBLAS_STATUS_SUCCESS &&
        n > 0 && found.state == CUBLAS_STATUS_SUCCESS;
    if (e->found)
        e->algo = found.algo;
}

static bool same_shape(const product *a, const product *b) {
    return a->p == b->p && a->q == b->q && a->k == b->k && a->e5m2 == b->e5m2 &&
           a->f32 == b->f32;
}

/* NULL: cuBLASLt has no algorithm. */
static const cublasLtMatmulAlgo_t *algo_of(ml_cuda_stream *s, const product *g) {
    ml_gemm_fp8_back_cache *b = s->gemm_fp8_back;
    entry *e;

    for (int i = 0; b && i < b->n_entry; i++)
        if (same_shape(&b->entry[i].shape, g))
            return b->entry[i].found ? &b->entry[i].algo : NULL;
    if (!b)
        b = s->gemm_fp8_back = (ml_gemm_fp8_back_cache *)calloc(1, sizeof *b);
    if (!b)
        return NULL;
    e = &b->entry[b->next];
    b->next = (b->next + 1) % MAX_ENTRIES;
    b->n_entry += b->n_entry < MAX_ENTRIES;
    e->shape = *g;
    find_algo(s, e);
    return e->found ? &e->algo : NULL;
}

static void run(ml_cuda_stream *s, const product *g) {
    const float one = 1.0f, beta = g->add ? 1.0f : 0.0f;
    const cublasLtMatmulAlgo_t *algo = algo_of(s, g);
    ml_gemm_lt lt = ml_gemm_lt_of(s);
    lt_call c;

    describe(&c, g);
    if (cublasLtMatmul((cublasLtHandle_t)lt.handle, &c.desc, &one, g->a.code, &c.a,
                       g->b.code, &c.b, &beta, g->c, &c.c, g->c, &c.c, algo, lt.workspace,
                       lt.bytes, s->stream) != CUBLAS_STATUS_SUCCESS)
        ml_cuda_note(s, cudaErrorUnknown, "an FP8 gradient");
}

/* ---- the gradients ---- */

typedef struct operands {
    ml_fp8_operand w, dy, tail, dy_cols, x_cols;
    void *w_scale, *tail_dx;
    int64_t n, k, rows, tail_rows;
    bool e5m2;
} operands;

static ml_fp8_operand operand_at(const ml_op_args *a, ml_fp8_place at) {
    char *scratch = (char *)a->scratch;

    return { (unsigned char *)scratch + at.code, (float *)(scratch + at.scale) };
}

static operands operands_of(const ml_op_args *a) {
    const ml_fp8_back_scratch at = ml_cuda_fp8_back_scratch(a);
    operands o = {};

    o.w = operand_at(a, at.w);
    o.dy = operand_at(a, at.dy);
    o.tail = operand_at(a, at.tail);
    o.dy_cols = operand_at(a, at.dy_cols);
    o.x_cols = operand_at(a, at.x_cols);
    o.w_scale = (char *)a->scratch + at.w_scale;
    o.tail_dx = (char *)a->scratch + at.tail_dx;
    o.n = a->w[0].shape[0];
    o.k = a->w[0].shape[1];
    o.rows = a->dout[0].shape[0];
    o.tail_rows = o.rows % ML_FP8_TAIL;
    o.e5m2 = a->grad_format == ML_GRAD_E5M2;
    return o;
}

/* dx' (k x m) = w' (k x n) dy' (n x m), of the rows before the tail or of the tail. */
static product input_product(const ml_op_args *a, const operands *o, bool tail) {
    product g = {};

    g.p = o->k;
    g.q = tail ? ML_FP8_TAIL : o->rows - o->tail_rows;
    g.k = o->n;
    g.e5m2 = o->e5m2;
    g.add = a->din_add[0];
    g.a = o->w;
    g.b = tail ? o->tail : o->dy;
    g.c = tail ? o->tail_dx : a->din[0].data;
    return g;
}

/* dw' (k x n) += x' (k x m) dy (m x n). */
static product weight_product(const ml_op_args *a, const operands *o) {
    product g = {};

    g.p = o->k;
    g.q = o->n;
    g.k = ml_cuda_fp8_width(o->rows);
    g.e5m2 = o->e5m2;
    g.f32 = true;
    g.add = true;
    g.a = o->x_cols;
    g.b = o->dy_cols;
    g.c = a->dw[0].data;
    return g;
}

static void round_gradient(ml_cuda_stream *s, const ml_op_args *a, const operands *o) {
    ml_fp8_rounding r = {};

    r.x = (const bf16 *)a->dout[0].data;
    r.rows = o->rows;
    r.cols = o->n;
    r.e5m2 = o->e5m2;
    if (a->din[0].data)
        r.along_rows = o->dy;
    if (a->din[0].data && o->tail_rows)
        r.tail = o->tail;
    r.along_cols = o->dy_cols;
    ml_fp8_round_operand(s, &r);
}

static void round_input(ml_cuda_stream *s, const ml_op_args *a, const operands *o) {
    ml_fp8_rounding r = {};

    r.x = (const bf16 *)a->in[0].data;
    r.rows = o->rows;
    r.cols = o->k;
    r.blocks = true;
    r.along_cols = o->x_cols;
    ml_fp8_round_operand(s, &r);
}

/* The rows of the tail pass through scratch memory: dx has no room for the others. */
static void back_tail(ml_cuda_stream *s, const ml_op_args *a, const operands *o) {
    const product g = input_product(a, o, true);
    const size_t bytes = (size_t)(o->tail_rows * o->k) * sizeof(bf16);
    bf16 *dx = (bf16 *)a->din[0].data + (o->rows - o->tail_rows) * o->k;

    if (g.add)
        ml_cuda_note(
            s, cudaMemcpyAsync(o->tail_dx, dx, bytes, cudaMemcpyDeviceToDevice, s->stream),
            "the last rows of an FP8 gradient");
    run(s, &g);
    ml_cuda_note(
        s, cudaMemcpyAsync(dx, o->tail_dx, bytes, cudaMemcpyDeviceToDevice, s->stream),
        "the last rows of an FP8 gradient");
}

static void back_input(ml_cuda_stream *s, const ml_op_args *a, const operands *o) {
    const ml_fp8_rows w = ml_cuda_fp8_rows(s, a, o->w_scale);
    const product g = input_product(a, o, false);

    ml_fp8_transpose(s, &o->w, &w, o->n, o->k);
    if (g.q)
        run(s, &g);
    if (o->tail_rows)
        back_tail(s, a, o);
}

static void back_weight(ml_cuda_stream *s, const ml_op_args *a, const operands *o,
                        bool rounded) {
    const product g = weight_product(a, o);

    if (!rounded)
        round_input(s, a, o);
    s->rounded.x = a->in[0].data;
    s->rounded.scratch = a->scratch;
    s->rounded.rows = o->rows;
    run(s, &g);
}

/* Whether cuBLASLt has all products that these gradients need. */
static bool has_products(ml_cuda_stream *s, const ml_op_args *a, const operands *o) {
    const product main = input_product(a, o, false), tail = input_product(a, o, true);
    const product weight = weight_product(a, o);

    return (!main.q || algo_of(s, &main)) && (!o->tail_rows || algo_of(s, &tail)) &&
           algo_of(s, &weight);
}

bool ml_gemm_fp8_back(ml_cuda_stream *s, const ml_op_args *a) {
    const bool rounded = a->same_input && s->rounded.x == a->in[0].data &&
                         s->rounded.scratch == a->scratch &&
                         s->rounded.rows == a->in[0].shape[0];
    operands o;

    s->rounded.x = NULL;
    if (!ml_cuda_linear_fp8_back(a) || !ml_fp8_takes(s, a->w[0].dtype))
        return false;
    o = operands_of(a);
    if (o.rows == 0)
        return true;
    if (!has_products(s, a, &o))
        return false;
    round_gradient(s, a, &o);
    if (a->din[0].data)
        back_input(s, a, &o);
    if (a->dw[0].data)
        back_weight(s, a, &o, rounded);
    return true;
}

void ml_gemm_fp8_back_close(ml_cuda_stream *s) {
    free(s->gemm_fp8_back);
    s->gemm_fp8_back = NULL;
}
