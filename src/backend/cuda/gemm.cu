/* gemm.cu - which kernel a product goes to, and cuBLASLt. */
#include "backend/cuda/gemm.cuh"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

enum {
    FEW_ROWS = 64,     /* up to here our kernel is as fast or faster, */
    SMALL_ROWS = 512,  /* and up to here where there are few columns, */
    SMALL_COLS = 8192, /* which large tiles would leave to a few multiprocessors */
    SOME_ROWS = 1024,  /* rows that one algorithm is chosen for; the other is for more */
    MANY_ROWS = 8192,
    TRIAL_ROWS = 320, /* rows of the comparison: several tiles, the last one not whole */
    MAX_PAGES = 512,
    CANDIDATES = 8
};
static const size_t WORKSPACE = (size_t)64 << 20;

/* What was found out about a product. */
typedef struct page {
    int64_t m, n, k;     /* rows: 0 when for all that are like it */
    bool a_rows, b_rows; /* a_k == 1, b_k == 1 */
    ml_dtype out;
    bool forward, many;
    bool lt; /* cuBLASLt may have it */
    cublasLtMatmulAlgo_t algo;
} page;

struct ml_gemm_book {
    cublasLtHandle_t lt;
    cublasLtMatmulPreference_t preference;
    void *workspace;
    page page[MAX_PAGES];
    int n_page;
};

/* ---- a product as cuBLASLt sees it ---- */

/* Column-major: c' (n x m) = b (n x k) a' (k x m). */
typedef struct lt_call {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t b, a, c;
} lt_call;

static cudaDataType_t lt_type(ml_dtype t) {
    return t == ML_BF16 ? CUDA_R_16BF : CUDA_R_32F;
}

static void lt_operand(cublasLtMatrixLayoutOpaque_t *l, cublasLtMatmulDescOpaque_t *desc,
                       cublasLtMatmulDescAttributes_t which, int64_t rows, int64_t k,
                       int64_t ld, bool k_first, bool transposed) {
    int32_t op = transposed ? CUBLAS_OP_T : CUBLAS_OP_N;

    cublasLtMatrixLayoutInit(l, CUDA_R_16BF, (uint64_t)(k_first ? k : rows),
                             (uint64_t)(k_first ? rows : k), ld);
    cublasLtMatmulDescSetAttribute(desc, which, &op, sizeof op);
}

static void lt_describe(lt_call *c, const ml_gemm *g) {
    cublasLtMatmulDescInit(&c->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    lt_operand(&c->b, &c->desc, CUBLASLT_MATMUL_DESC_TRANSA, g->n, g->k,
               g->b_k == 1 ? g->b_n : g->b_k, g->b_k == 1, g->b_k == 1);
    lt_operand(&c->a, &c->desc, CUBLASLT_MATMUL_DESC_TRANSB, g->m, g->k,
               g->a_k == 1 ? g->a_m : g->a_k, g->a_k == 1, g->a_k != 1);
    cublasLtMatrixLayoutInit(&c->c, lt_type(g->out), (uint64_t)g->n, (uint64_t)g->m,
                             g->ldc);
}

static bool lt_run(ml_cuda_stream *s, const ml_gemm *g, const cublasLtMatmulAlgo_t *algo) {
    float one = 1.0f, beta = g->add ? 1.0f : 0.0f;
    lt_call c;

    lt_describe(&c, g);
    return cublasLtMatmul(s->gemm->lt, &c.desc, &one, g->b, &c.b, g->a, &c.a, &beta, g->c,
                          &c.c, g->c, &c.c, algo, s->gemm->workspace, WORKSPACE,
                          s->stream) == CUBLAS_STATUS_SUCCESS;
}

static int lt_candidates(ml_cuda_stream *s, const ml_gemm *g,
                         cublasLtMatmulHeuristicResult_t *out) {
    lt_call c;
    int n = 0;

    lt_describe(&c, g);
    if (cublasLtMatmulAlgoGetHeuristic(s->gemm->lt, &c.desc, &c.b, &c.a, &c.c, &c.c,
                                       s->gemm->preference, CANDIDATES, out,
                                       &n) != CUBLAS_STATUS_SUCCESS)
        return 0;
    return n;
}

/* ---- the book ---- */

static page *find_page(ml_gemm_book *b, const page *like) {
    for (int i = 0; i < b->n_page; i++) {
        page *p = &b->page[i];
        if (p->m == like->m && p->n == like->n && p->k == like->k && p->out == like->out &&
            p->forward == like->forward && p->many == like->many &&
            p->a_rows == like->a_rows && p->b_rows == like->b_rows)
            return p;
    }
    return NULL;
}

/* The oldest page makes room for the newest. */
static page *add_page(ml_gemm_book *b, const page *p) {
    if (b->n_page == MAX_PAGES)
        memmove(b->page, b->page + 1, (size_t)--b->n_page * sizeof *b->page);
    b->page[b->n_page] = *p;
    return &b->page[b->n_page++];
}

static page forward_page(int64_t n, int64_t k, ml_dtype out, bool many) {
    page p = {};

    p.n = n;
    p.k = k;
    p.out = out;
    p.forward = p.a_rows = p.b_rows = true;
    p.many = many;
    return p;
}

/* ---- trials ---- */

/* Numbers around 0 of about unit size, different everywhere. */
__global__ static void trial_fill(bf16 *x, int64_t n, uint32_t seed) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t h = ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u + seed;

    h = (h ^ h >> 31) * 0xbf58476d1ce4e5b9u;
    h ^= h >> 29;
    if (i < n)
        x[i] = ml_as<bf16>((float)(h >> 40) * 0x1p-23f - 1.0f);
}

__global__ static void trial_compare(int *differ, const unsigned char *a,
                                     const unsigned char *b, size_t bytes) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < bytes && a[i] != b[i])
        *differ = 1; /* whoever writes it, it is the same */
}

typedef struct trial {
    ml_cuda_stream *s;
    ml_gemm ours, theirs;
    bf16 *x, *w;
    unsigned char *y[2];
    size_t bytes; /* of y */
    int *differ;
} trial;

static ml_status open_trial(trial *t, int64_t n, int64_t k, ml_dtype out, ml_err *err) {
    size_t x = ml_cuda_align((size_t)(TRIAL_ROWS * k) * 2),
           w = ml_cuda_align((size_t)(n * k) * 2);
    size_t y = ml_cuda_align((size_t)(TRIAL_ROWS * n) * ml_dtype_bytes(out));
    unsigned char *all;

    if (cudaMalloc((void **)&all, x + w + 2 * y + 256) != cudaSuccess) {
        cudaGetLastError();
        return ml_fail(
            err, ML_ENOMEM,
            "the GPU has no %.1f MiB to compare matrix products with; free some of "
            "its memory",
            (double)(x + w + 2 * y) / 0x1p20);
    }
    t->x = (bf16 *)all;
    t->w = (bf16 *)(all + x);
    t->y[0] = all + x + w;
    t->y[1] = t->y[0] + y;
    t->differ = (int *)(t->y[1] + y);
    t->bytes = (size_t)(TRIAL_ROWS * n) * ml_dtype_bytes(out);
    trial_fill<<<ml_cuda_blocks(TRIAL_ROWS * k, 256), 256, 0, t->s->stream>>>(
        t->x, TRIAL_ROWS * k, 1);
    trial_fill<<<ml_cuda_blocks(n * k, 256), 256, 0, t->s->stream>>>(t->w, n * k, 77);
    return ML_OK;
}

static ml_gemm trial_gemm(const trial *t, int64_t n, int64_t k, ml_dtype out, int y) {
    ml_gemm g = {};

    g.m = TRIAL_ROWS;
    g.n = n;
    g.k = k;
    g.a = t->x;
    g.b = t->w;
    g.a_m = g.b_n = k;
    g.a_k = g.b_k = 1;
    g.c = t->y[y];
    g.ldc = n;
    g.in = ML_BF16;
    g.out = out;
    return g;
}

/* Does cuBLASLt give our bits with this algorithm? */
static bool same_bits(trial *t, const ml_gemm *g, const cublasLtMatmulAlgo_t *algo) {
    int differ = 1;

    cudaMemsetAsync(t->y[1], 0xff, t->bytes, t->s->stream);
    cudaMemsetAsync(t->differ, 0, sizeof differ, t->s->stream);
    if (!lt_run(t->s, g, algo))
        return false;
    trial_compare<<<ml_cuda_blocks((int64_t)t->bytes, 256), 256, 0, t->s->stream>>>(
        t->differ, t->y[0], t->y[1], t->bytes);
    if (cudaMemcpyAsync(&differ, t->differ, sizeof differ, cudaMemcpyDeviceToHost,
                        t->s->stream) != cudaSuccess ||
        cudaStreamSynchronize(t->s->stream) != cudaSuccess)
        return false;
    return differ == 0;
}

static void try_page(trial *t, page *p) {
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    ml_gemm large = trial_gemm(t, p->n, p->k, p->out, 1), g = large;
    int n;

    large.m = p->many ? MANY_ROWS : SOME_ROWS / 4; /* what the library's guess is for */
    n = lt_candidates(t->s, &large, found);
    for (int i = 0; i < n && !p->lt; i++)
        if (found[i].state == CUBLAS_STATUS_SUCCESS && same_bits(t, &g, &found[i].algo)) {
            p->lt = true;
            p->algo = found[i].algo;
        }
}

ml_status ml_gemm_try(ml_cuda_stream *s, int64_t n, int64_t k, ml_dtype in, ml_dtype out,
                      ml_err *err) {
    page want = forward_page(n, k, out, false);
    trial t = {};
    ml_gemm g;
    ml_status st;

    t.s = s;
    if (in != ML_BF16 || k % 8 != 0 || find_page(s->gemm, &want))
        return ML_OK;
    st = open_trial(&t, n, k, out, err);
    if (st != ML_OK)
        return st;
    g = trial_gemm(&t, n, k, out, 0);
    ml_gemm_mma(s, &g);
    for (int many = 0; many < 2; many++) {
        page p = forward_page(n, k, out, many != 0);
        try_page(&t, &p);
        add_page(s->gemm, &p);
    }
    cudaStreamSynchronize(s->stream);
    cudaFree(t.x);
    return ML_OK;
}

/* ---- products ---- */

void ml_gemm_rows(ml_cuda_stream *s, const ml_gemm *g) {
    page want = forward_page(g->n, g->k, g->out, g->m > SOME_ROWS), *p;
    bool few;

    if (g->m == 0)
        return;
    if (!ml_gemm_mma_takes(g)) {
        ml_gemm_plain(s, g);
        return;
    }
    few = g->m <= FEW_ROWS || (g->m <= SMALL_ROWS && g->n <= SMALL_COLS);
    p = few ? NULL : find_page(s->gemm, &want);
    if (!p || !p->lt || !lt_run(s, g, &p->algo))
        ml_gemm_mma(s, g);
}

void ml_gemm_any(ml_cuda_stream *s, const ml_gemm *g) {
    page want = {}, *p;

    want.m = g->m;
    want.n = g->n;
    want.k = g->k;
    want.out = g->out;
    want.a_rows = g->a_k == 1;
    want.b_rows = g->b_k == 1;
    if (g->m == 0 || g->n == 0)
        return;
    if (g->in != ML_BF16) {
        ml_gemm_plain(s, g);
        return;
    }
    p = find_page(s->gemm, &want);
    if (!p) {
        cublasLtMatmulHeuristicResult_t found[CANDIDATES];
        int n = lt_candidates(s, g, found);
        want.lt = n > 0 && found[0].state == CUBLAS_STATUS_SUCCESS;
        if (want.lt)
            want.algo = found[0].algo;
        p = add_page(s->gemm, &want);
    }
    if (!p->lt || !lt_run(s, g, &p->algo))
        ml_gemm_plain(s, g);
}

/* ---- life ---- */

ml_status ml_gemm_open(ml_cuda_stream *s, ml_err *err) {
    uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_NONE; /* k is not split */
    ml_gemm_book *b = (ml_gemm_book *)calloc(1, sizeof *b);

    s->gemm = b;
    if (!b || cublasLtCreate(&b->lt) != CUBLAS_STATUS_SUCCESS ||
        cublasLtMatmulPreferenceCreate(&b->preference) != CUBLAS_STATUS_SUCCESS ||
        cudaMalloc(&b->workspace, WORKSPACE) != cudaSuccess)
        return ml_fail(err, ML_ENOMEM, "cuBLASLt could not be started on this GPU");
    cublasLtMatmulPreferenceSetAttribute(b->preference,
                                         CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                         &schemes, sizeof schemes);
    cublasLtMatmulPreferenceSetAttribute(b->preference,
                                         CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                         &WORKSPACE, sizeof WORKSPACE);
    return ML_OK;
}

void ml_gemm_close(ml_cuda_stream *s) {
    ml_gemm_book *b = s->gemm;

    if (!b)
        return;
    if (b->preference)
        cublasLtMatmulPreferenceDestroy(b->preference);
    if (b->lt)
        cublasLtDestroy(b->lt);
    cudaFree(b->workspace);
    free(b);
    s->gemm = NULL;
}
