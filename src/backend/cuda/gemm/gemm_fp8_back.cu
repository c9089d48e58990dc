/* gemm_fp8_back.cu - gradients of LINEAR as FP8 products, by cuBLASLt.
 *
 *     dx [m, k]  = dy [m, n] w [n, k]      sums over n: groups of a row of dy, blocks of 128 x 128 of w
 *     dw [n, k] (+)= dy' [n, m] x [m, k]   sums over m: groups of 128 tokens of a column of dy, blocks of x
 *
 * Blocks of x, instead of groups: cuBLASLt's product of groups with groups is a fifth slower.  Tokens are filled
 * up with zeros to whole groups.  Gradients only need to repeat from run to run: the heuristic's first algorithm
 * is used, whatever its speed, also with split-K where partial sums are stored and added in a second step. */
#include "backend/cuda/gemm/gemm_fp8_back.cuh"

#include <stdlib.h>

#include "backend/cuda/fp8/fp8_back.cuh"
#include "backend/cuda/gemm/gemm_fp8.cuh"
#include "backend/cuda/gemm/gemm_fp8_lt.cuh"
#include "backend/cuda/gemm/linear_joint_back.cuh"

enum { MAX_ENTRIES = 256 };

/* As in gemm_fp8_lt.cuh, with whole columns: ld is k. */
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

static ml_fp8_lt describe(const product *g) {
    ml_fp8_lt_product p = {};
    ml_fp8_lt t;

    p.p = g->p;
    p.q = g->q;
    p.k = p.ld = g->k;
    p.a_scale = g->a.scale;
    p.b_scale = g->b.scale;
    p.e5m2 = g->e5m2;
    p.f32 = g->f32;
    ml_fp8_lt_init(&t, &p);
    return t;
}

static void find_algo(ml_cuda_stream *s, entry *e) {
    cublasLtMatmulHeuristicResult_t found;
    ml_fp8_lt t = describe(&e->shape);
    ml_gemm_lt lt = ml_gemm_lt_of(s);
    int n = 0;

    e->found =
        cublasLtMatmulAlgoGetHeuristic((cublasLtHandle_t)lt.handle, &t.desc, &t.a, &t.b,
                                       &t.c, &t.c, (cublasLtMatmulPreference_t)lt.backward,
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
    ml_fp8_lt t = describe(g);
    ml_gemm_lt lt = ml_gemm_lt_of(s);

    if (cublasLtMatmul((cublasLtHandle_t)lt.handle, &t.desc, &one, g->a.code, &t.a,
                       g->b.code, &t.b, &beta, g->c, &t.c, g->c, &t.c, algo, lt.workspace,
                       lt.bytes, s->stream) != CUBLAS_STATUS_SUCCESS)
        ml_cuda_note(s, cudaErrorUnknown, "an FP8 gradient");
}

/* ---- the gradients ---- */

/* Of LINEARs with one input: their outputs are side by side, as those of one. */
typedef struct gradients {
    const ml_op_args *linear[ML_JOINT_BACK]; /* in the order of their weight gradients */
    int n_linear;
    const ml_op_args *glu;         /* of both outputs, whose gradients it gives; or NULL */
    int64_t n, k, rows, tail_rows; /* n: outputs of all */
    bool e5m2, add, add_dw;        /* add: to dx */
    ml_fp8_operand w, dy, tail, dy_cols, x_cols;
    void *w_scale, *tail_dx, *dx, *dw;
} gradients;

static ml_fp8_operand operand_at(char *scratch, ml_fp8_place at) {
    return { (unsigned char *)scratch + at.code, (float *)(scratch + at.scale) };
}

static void place_operands(gradients *g) {
    ml_op_args joint = *g->linear[0];
    ml_fp8_back_scratch at;
    char *scratch = (char *)joint.scratch;

    joint.w[0].shape[0] = g->n;
    at = ml_cuda_fp8_back_scratch(&joint);
    g->w = operand_at(scratch, at.w);
    g->dy = operand_at(scratch, at.dy);
    g->tail = operand_at(scratch, at.tail);
    g->dy_cols = operand_at(scratch, at.dy_cols);
    g->x_cols = operand_at(scratch, at.x_cols);
    g->w_scale = scratch + at.w_scale;
    g->tail_dx = scratch + at.tail_dx;
}

/* linear: in the order of their weight gradients; the last runs first. */
static gradients gradients_of(const ml_op_args *const *linear, int n) {
    const ml_op_args *first = linear[0];
    gradients g = {};

    g.n_linear = n;
    for (int i = 0; i < n; i++) {
        g.linear[i] = linear[i];
        g.n += linear[i]->w[0].shape[0];
    }
    g.k = first->w[0].shape[1];
    g.rows = first->in[0].shape[0];
    g.tail_rows = g.rows % ML_FP8_TAIL;
    g.e5m2 = first->grad_format == ML_GRAD_E5M2;
    g.add = linear[n - 1]->din_add[0];
    g.dx = first->din[0].data;
    g.dw = first->dw[0].data;
    g.add_dw = !first->dw_write[0];
    place_operands(&g);
    return g;
}

/* dx' (k x m) = w' (k x n) dy' (n x m), of the rows before the tail or of the tail. */
static product input_product(const gradients *g, bool tail) {
    product c = {};

    c.p = g->k;
    c.q = tail ? ML_FP8_TAIL : g->rows - g->tail_rows;
    c.k = g->n;
    c.e5m2 = g->e5m2;
    c.add = g->add;
    c.a = g->w;
    c.b = tail ? g->tail : g->dy;
    c.c = tail ? g->tail_dx : g->dx;
    return c;
}

/* dw' (k x n) (+)= x' (k x m) dy (m x n). */
static product weight_product(const gradients *g) {
    product c = {};

    c.p = g->k;
    c.q = g->n;
    c.k = ml_cuda_fp8_width(g->rows);
    c.e5m2 = g->e5m2;
    c.f32 = true;
    c.add = g->add_dw;
    c.a = g->x_cols;
    c.b = g->dy_cols;
    c.c = g->dw;
    return c;
}

/* Of a LINEAR whose outputs begin at column `at`. */
static ml_fp8_rounding rounding_of(const gradients *g, const ml_op_args *a, int64_t at) {
    const int64_t group = at / 128, before = g->rows - g->tail_rows;
    ml_fp8_rounding r = {};

    r.x = (const bf16 *)a->dout[0].data;
    r.rows = g->rows;
    r.cols = a->w[0].shape[0];
    r.ld = g->n;
    r.e5m2 = g->e5m2;
    if (g->dx)
        r.along_rows = { g->dy.code + at, g->dy.scale + group * before };
    if (g->dx && g->tail_rows)
        r.tail = { g->tail.code + at, g->tail.scale + group * ML_FP8_TAIL };
    r.along_cols = { g->dy_cols.code + at * ml_cuda_fp8_width(g->rows),
                     g->dy_cols.scale + at };
    return r;
}

static void round_gradients(ml_cuda_stream *s, const gradients *g) {
    int64_t at = 0;

    for (int i = 0; i < g->n_linear; i++) {
        const ml_fp8_rounding r = rounding_of(g, g->linear[i], at);
        ml_fp8_round_operand(s, &r);
        at += r.cols;
    }
}

/* The same with the gradients of the GLU that reads both outputs. */
static void round_gate(ml_cuda_stream *s, const gradients *g) {
    ml_fp8_gate_rounding r = {};

    r.gate = rounding_of(g, g->linear[0], 0);
    r.up = rounding_of(g, g->linear[1], r.gate.cols);
    r.g = (const bf16 *)g->glu->in[0].data;
    r.u = (const bf16 *)g->glu->in[1].data;
    r.dy = (const bf16 *)g->glu->dout[0].data;
    ml_fp8_round_gate(s, &r);
}

static void transpose_weight(ml_cuda_stream *s, const gradients *g, const ml_op_args *a,
                             int64_t at) {
    const ml_fp8_rows rows = ml_cuda_fp8_rows(s, a, g->w_scale);
    const ml_fp8_blocks w = { rows.code, rows.ld, rows.scale };
    const ml_fp8_operand to = { g->w.code + at, g->w.scale + at / 128 };

    ml_fp8_transpose(s, &to, &w, a->w[0].shape[0], g->k, g->n);
}

static void round_input(ml_cuda_stream *s, const gradients *g) {
    ml_fp8_rounding r = {};

    r.x = (const bf16 *)g->linear[0]->in[0].data;
    r.rows = g->rows;
    r.cols = r.ld = g->k;
    r.blocks = true;
    r.along_cols = g->x_cols;
    ml_fp8_round_operand(s, &r);
}

/* The rows of the tail pass through scratch memory: dx has no room for the others. */
static void back_tail(ml_cuda_stream *s, const gradients *g) {
    const product c = input_product(g, true);
    const size_t bytes = (size_t)(g->tail_rows * g->k) * sizeof(bf16);
    const char *doing = "the last rows of an FP8 gradient";
    bf16 *dx = (bf16 *)g->dx + (g->rows - g->tail_rows) * g->k;

    if (c.add)
        ml_cuda_note(
            s, cudaMemcpyAsync(g->tail_dx, dx, bytes, cudaMemcpyDeviceToDevice, s->stream),
            doing);
    run(s, &c);
    ml_cuda_note(
        s, cudaMemcpyAsync(dx, g->tail_dx, bytes, cudaMemcpyDeviceToDevice, s->stream),
        doing);
}

static void back_input(ml_cuda_stream *s, const gradients *g) {
    const product c = input_product(g, false);
    int64_t at = 0;

    for (int i = 0; i < g->n_linear; i++) {
        transpose_weight(s, g, g->linear[i], at);
        at += g->linear[i]->w[0].shape[0];
    }
    if (c.q)
        run(s, &c);
    if (g->tail_rows)
        back_tail(s, g);
}

static void back_weight(ml_cuda_stream *s, const gradients *g) {
    const product c = weight_product(g);

    round_input(s, g);
    run(s, &c);
}

/* Whether cuBLASLt has all products that these gradients need. */
static bool has_products(ml_cuda_stream *s, const gradients *g) {
    const product main = input_product(g, false), tail = input_product(g, true);
    const product weight = weight_product(g);

    return (!main.q || algo_of(s, &main)) && (!g->tail_rows || algo_of(s, &tail)) &&
           algo_of(s, &weight);
}

static bool back(ml_cuda_stream *s, const gradients *g) {
    if (!has_products(s, g))
        return false;
    if (g->glu)
        round_gate(s, g);
    else
        round_gradients(s, g);
    if (g->dx)
        back_input(s, g);
    if (g->dw)
        back_weight(s, g);
    return true;
}

static bool takes(const ml_cuda_stream *s, const ml_op_args *a) {
    return ml_cuda_linear_fp8_back(a) && ml_fp8_takes(s, a->w[0].dtype);
}

bool ml_gemm_fp8_back(ml_cuda_stream *s, const ml_op_args *a) {
    gradients g;

    if (!takes(s, a))
        return false;
    g = gradients_of(&a, 1);
    return back(s, &g);
}

/* n_linear 0: they cannot be computed so. */
static gradients joint_gradients(ml_cuda_stream *s, const ml_op_call *call, int n) {
    const ml_joint_back j = ml_joint_back_of(call, n);

    for (int i = 0; i < j.n_linear; i++)
        if (!takes(s, j.linear[i]))
            return {};
    return j.n_linear ? gradients_of(j.linear, j.n_linear) : gradients{};
}

bool ml_gemm_fp8_back_joint(ml_cuda_stream *s, const ml_op_call *call, int n) {
    const gradients g = joint_gradients(s, call, n);

    return g.n_linear && back(s, &g);
}

/* Is this SwiGLU, of the outputs of both, whose gradients nothing else reads? */
static bool is_gate_of(const ml_op_args *glu, const gradients *g) {
    if (glu->attr->glu.act != ML_ACT_SILU || glu->attr->glu.limit != 0.0f ||
        glu->attr->glu.fused)
        return false;
    for (int i = 0; i < g->n_linear; i++)
        if (!ml_joint_back_feeds(glu, i, g->linear[i]))
            return false;
    return true;
}

bool ml_gemm_fp8_back_gated(ml_cuda_stream *s, const ml_op_args *glu,
                            const ml_op_call *call) {
    gradients g = joint_gradients(s, call, 2);

    if (!g.n_linear || !is_gate_of(glu, &g))
        return false;
    g.glu = glu;
    return back(s, &g);
}

void ml_gemm_fp8_back_close(ml_cuda_stream *s) {
    free(s->gemm_fp8_back);
    s->gemm_fp8_back = NULL;
}
