/* gemm.cu - GEMM dispatch: autotuning, the algorithm cache, cuBLASLt.
 *
 * Forward GEMMs are autotuned when a plan is made: for each class of row counts, the
 * fastest of our kernel and the candidates of cuBLASLt's heuristic that give our bits.
 * Backward GEMMs take the heuristic's first candidate, at first use.  The algorithm
 * cache has an entry for each shape. */
#include "backend/cuda/gemm/gemm.cuh"

#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

enum {
    SKINNY_ROWS = 16, /* up to here only our kernel is used */
    CLASSES = 8, /* row counts that are tuned; a GEMM uses the next larger one's choice */
    MAX_ENTRIES = 512,
    CANDIDATES = 8,
    RUNS = 3,            /* that are timed */
    RECORDED_ROWS = 512, /* up to here a CUDA graph is timed: launches would dominate */
    RECORDED_RUNS = 12
};
static const int class_rows[CLASSES] = { 32, 64, 128, 256, 512, 1024, 4096, 8192 };
static const size_t WORKSPACE = (size_t)64 << 20;
/* GEMMs with a larger output are tuned with fewer rows, in whole tiles of every kernel. */
static const int64_t TRIAL_BYTES = (int64_t)256 << 20;
static const int64_t TRIAL_TILE = 256;
/* Outputs that are compared with ours before an algorithm is used, and in how many products. */
static const int64_t COMPARED = (int64_t)4 << 20, MOST_TURNS = 256;

/* A cache entry: the algorithm for a shape. */
typedef struct algo_entry {
    int64_t m, n, k;     /* m: 0 for forward, which has rows_class instead */
    bool a_rows, b_rows; /* a_k == 1, b_k == 1 */
    ml_dtype out;
    bool forward;
    int rows_class;
    bool lt; /* cuBLASLt with `algo`; else a kernel of ours */
    cublasLtMatmulAlgo_t algo;
} algo_entry;

struct ml_gemm_algo_cache {
    cublasLtHandle_t lt;
    cublasLtMatmulPreference_t forward, backward; /* without split-K; with */
    void *workspace;
    algo_entry entry[MAX_ENTRIES];
    int n_entry;
};

/* ---- cuBLASLt ---- */

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
                         cublasLtMatmulPreference_t preference,
                         cublasLtMatmulHeuristicResult_t *out) {
    lt_call c;
    int n = 0;

    lt_describe(&c, g);
    if (cublasLtMatmulAlgoGetHeuristic(s->gemm->lt, &c.desc, &c.b, &c.a, &c.c, &c.c,
                                       preference, CANDIDATES, out,
                                       &n) != CUBLAS_STATUS_SUCCESS)
        return 0;
    return n;
}

/* ---- the algorithm cache ---- */

static int class_of(int64_t rows) {
    int i = 0;
    while (i < CLASSES - 1 && rows > class_rows[i])
        i++;
    return i;
}

static algo_entry *find_entry(ml_gemm_algo_cache *b, const algo_entry *like) {
    for (int i = 0; i < b->n_entry; i++) {
        algo_entry *p = &b->entry[i];
        if (p->m == like->m && p->n == like->n && p->k == like->k && p->out == like->out &&
            p->forward == like->forward && p->rows_class == like->rows_class &&
            p->a_rows == like->a_rows && p->b_rows == like->b_rows)
            return p;
    }
    return NULL;
}

/* Evicts the oldest entry if the cache is full. */
static algo_entry *add_entry(ml_gemm_algo_cache *b, const algo_entry *p) {
    if (b->n_entry == MAX_ENTRIES)
        memmove(b->entry, b->entry + 1, (size_t)--b->n_entry * sizeof *b->entry);
    b->entry[b->n_entry] = *p;
    return &b->entry[b->n_entry++];
}

static algo_entry forward_entry(int64_t n, int64_t k, ml_dtype out, int rows_class) {
    algo_entry p = {};

    p.n = n;
    p.k = k;
    p.out = out;
    p.forward = p.a_rows = p.b_rows = true;
    p.rows_class = rows_class;
    return p;
}

/* ---- autotuning ---- */

/* Pseudo-random numbers in [-1, 1); wide: times a power of two from 2^-8 to 2^7. */
__global__ static void trial_fill(bf16 *x, int64_t n, uint32_t seed, bool wide) {
    int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x;
    uint64_t h =
        ((uint64_t)i + 1) * 0x9e3779b97f4a7c15u + (uint64_t)seed * 0xd1342543de82ef95u;

    h = (h ^ h >> 31) * 0xbf58476d1ce4e5b9u;
    h ^= h >> 29;
    if (i < n)
        x[i] = ml_as<bf16>(
            ldexpf((float)(h >> 40) * 0x1p-23f - 1.0f, wide ? (int)(h & 15) - 8 : 0));
}

__global__ static void trial_compare(int *differ, const unsigned char *a,
                                     const unsigned char *b, size_t bytes) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i < bytes && a[i] != b[i])
        *differ = 1; /* all threads write the same */
}

typedef struct trial {
    ml_cuda_stream *s;
    int64_t n, k, most; /* most: rows that the buffers hold */
    ml_dtype out;
    bf16 *x, *w;
    unsigned char *y[2]; /* ours, cuBLASLt's */
    int *differ;
    cudaEvent_t start, end;
} trial;

static int64_t trial_rows(int64_t n, ml_dtype out, int rows_class) {
    int64_t most = TRIAL_BYTES / (n * (int64_t)ml_dtype_bytes(out) * TRIAL_TILE);
    int64_t rows = class_rows[rows_class];
    most = (most > 0 ? most : 1) * TRIAL_TILE;
    return rows < most ? rows : most;
}

static void fill_trial(trial *t, int turn) {
    const uint32_t seed = 2 * (uint32_t)turn;

    trial_fill<<<ml_cuda_blocks(t->most * t->k, 256), 256, 0, t->s->stream>>>(
        t->x, t->most * t->k, seed + 1, turn % 2 == 1);
    trial_fill<<<ml_cuda_blocks(t->n * t->k, 256), 256, 0, t->s->stream>>>(
        t->w, t->n * t->k, seed + 2, turn % 2 == 1);
}

static ml_status open_trial(trial *t, ml_err *err) {
    size_t x, w, y;
    unsigned char *all;

    x = ml_cuda_align((size_t)(t->most * t->k) * sizeof(bf16));
    w = ml_cuda_align((size_t)(t->n * t->k) * sizeof(bf16));
    y = ml_cuda_align((size_t)(t->most * t->n) * ml_dtype_bytes(t->out));
    if (cudaMalloc((void **)&all, x + w + 2 * y + 256) != cudaSuccess) {
        cudaGetLastError();
        return ml_fail(err, ML_ENOMEM,
                       "out of GPU memory: cannot allocate %.1f MiB for autotuning matrix "
                       "products; free some GPU memory",
                       (double)(x + w + 2 * y) / 0x1p20);
    }
    t->x = (bf16 *)all;
    t->w = (bf16 *)(all + x);
    t->y[0] = all + x + w;
    t->y[1] = t->y[0] + y;
    t->differ = (int *)(t->y[1] + y);
    cudaEventCreate(&t->start);
    cudaEventCreate(&t->end);
    return ML_OK;
}

static void close_trial(trial *t) {
    cudaStreamSynchronize(t->s->stream);
    cudaEventDestroy(t->start);
    cudaEventDestroy(t->end);
    cudaFree(t->x);
}

static ml_gemm trial_gemm(const trial *t, int64_t rows, int y) {
    ml_gemm g = ml_gemm_shape(rows, t->n, t->k, false, false);

    g.a = t->x;
    g.b = t->w;
    g.c = t->y[y];
    g.in = ML_BF16;
    g.out = t->out;
    return g;
}

/* Does this algorithm of cuBLASLt give our kernel's bits (in y[0])? */
static bool same_bits(trial *t, const ml_gemm *g, const cublasLtMatmulAlgo_t *algo) {
    size_t bytes = (size_t)(g->m * g->n) * ml_dtype_bytes(t->out);
    int differ = 1;

    cudaMemsetAsync(t->y[1], 0xff, bytes, t->s->stream);
    cudaMemsetAsync(t->differ, 0, sizeof differ, t->s->stream);
    if (!lt_run(t->s, g, algo))
        return false;
    trial_compare<<<ml_cuda_blocks((int64_t)bytes, 256), 256, 0, t->s->stream>>>(
        t->differ, t->y[0], t->y[1], bytes);
    if (cudaMemcpyAsync(&differ, t->differ, sizeof differ, cudaMemcpyDeviceToHost,
                        t->s->stream) != cudaSuccess ||
        cudaStreamSynchronize(t->s->stream) != cudaSuccess)
        return false;
    return differ == 0;
}

/* algo NULL: our kernel. */
static void run_trial(trial *t, const ml_gemm *g, const cublasLtMatmulAlgo_t *algo, int n) {
    for (int i = 0; i < n; i++) {
        if (algo)
            lt_run(t->s, g, algo);
        else
            ml_gemm_mma(t->s, g);
    }
}

/* Captures RECORDED_RUNS runs in a CUDA graph; NULL if that fails. */
static cudaGraphExec_t record_trial(trial *t, const ml_gemm *g,
                                    const cublasLtMatmulAlgo_t *algo) {
    cudaGraph_t graph = NULL;
    cudaGraphExec_t work = NULL;

    if (cudaStreamBeginCapture(t->s->stream, cudaStreamCaptureModeThreadLocal) !=
        cudaSuccess)
        return NULL;
    run_trial(t, g, algo, RECORDED_RUNS);
    if (cudaStreamEndCapture(t->s->stream, &graph) == cudaSuccess &&
        cudaGraphInstantiate(&work, graph, 0) != cudaSuccess)
        work = NULL;
    if (graph)
        cudaGraphDestroy(graph);
    cudaGetLastError();
    return work;
}

/* Milliseconds per run. */
static float time_of(trial *t, const ml_gemm *g, const cublasLtMatmulAlgo_t *algo) {
    cudaGraphExec_t work = g->m <= RECORDED_ROWS ? record_trial(t, g, algo) : NULL;
    float ms = 0.0f;

    for (int i = 0; i < 2; i++) { /* the first is a warmup */
        cudaEventRecord(t->start, t->s->stream);
        if (work)
            cudaGraphLaunch(work, t->s->stream);
        else
            run_trial(t, g, algo, i == 0 ? 1 : RUNS);
        cudaEventRecord(t->end, t->s->stream);
    }
    cudaEventSynchronize(t->end);
    cudaEventElapsedTime(&ms, t->start, t->end);
    if (work)
        cudaGraphExecDestroy(work);
    return ms / (float)(work ? RECORDED_RUNS : RUNS);
}

/* Products that an algorithm is compared in: other summation orders differ in few outputs after
 * these are rounded to bf16.  0: outputs are so small that our kernel is used. */
static int64_t turns_of(int64_t outputs) {
    int64_t turns = (COMPARED + outputs - 1) / outputs;
    return turns > MOST_TURNS ? 0 : turns < 2 ? 2 : turns;
}

/* Drops the algorithms whose bits differ from our kernel's. */
static void drop_other_bits(trial *t, int64_t rows, cublasLtMatmulHeuristicResult_t *found,
                            int n) {
    ml_gemm ours = trial_gemm(t, rows, 0), theirs = trial_gemm(t, rows, 1);
    int64_t turns = turns_of(rows * t->n);

    for (int turn = 0; turn < turns; turn++) {
        fill_trial(t, turn);
        ml_gemm_mma(t->s, &ours);
        for (int i = 0; i < n; i++)
            if (found[i].state == CUBLAS_STATUS_SUCCESS &&
                !same_bits(t, &theirs, &found[i].algo))
                found[i].state = CUBLAS_STATUS_NOT_SUPPORTED;
    }
}

/* Chooses the fastest of those with the same bits: the choice never changes results. */
static void try_entry(trial *t, algo_entry *p) {
    int64_t rows = trial_rows(t->n, t->out, p->rows_class);
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    ml_gemm ours = trial_gemm(t, rows, 0), theirs = trial_gemm(t, rows, 1);
    int n = turns_of(rows * t->n) ? lt_candidates(t->s, &theirs, t->s->gemm->forward, found)
                                  : 0;
    float best;

    if (n == 0)
        return;
    drop_other_bits(t, rows, found, n);
    best = time_of(t, &ours, NULL);
    for (int i = 0; i < n; i++) {
        float ms;
        if (found[i].state != CUBLAS_STATUS_SUCCESS)
            continue;
        ms = time_of(t, &theirs, &found[i].algo);
        if (ms < best) {
            best = ms;
            p->lt = true;
            p->algo = found[i].algo;
        }
    }
}

ml_status ml_gemm_try(ml_cuda_stream *s, int64_t rows, int64_t n, int64_t k, ml_dtype in,
                      ml_dtype out, ml_err *err) {
    int last = class_of(rows);
    algo_entry want = forward_entry(n, k, out, last);
    trial t = {};
    ml_status st;

    t.s = s;
    t.n = n;
    t.k = k;
    t.out = out;
    t.most = trial_rows(n, out, last);
    if (in != ML_BF16 || k % 8 != 0 || find_entry(s->gemm, &want))
        return ML_OK;
    st = open_trial(&t, err);
    if (st != ML_OK)
        return st;
    for (int i = 0; i <= last; i++) {
        algo_entry p = forward_entry(n, k, out, i);
        if (find_entry(s->gemm, &p))
            continue;
        try_entry(&t, &p);
        add_entry(s->gemm, &p);
    }
    close_trial(&t);
    return ML_OK;
}

/* ---- GEMMs ---- */

void ml_gemm_rows(ml_cuda_stream *s, const ml_gemm *g) {
    algo_entry want = forward_entry(g->n, g->k, g->out, class_of(g->m)), *p;

    if (g->m == 0)
        return;
    if (!ml_gemm_mma_takes(g)) {
        ml_gemm_plain(s, g);
        return;
    }
    p = g->m > SKINNY_ROWS ? find_entry(s->gemm, &want) : NULL;
    if (!p || !p->lt || !lt_run(s, g, &p->algo))
        ml_gemm_mma(s, g);
}

void ml_gemm_any(ml_cuda_stream *s, const ml_gemm *g) {
    algo_entry want = {}, *p;

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
    p = find_entry(s->gemm, &want);
    if (!p) {
        cublasLtMatmulHeuristicResult_t found[CANDIDATES];
        int n = lt_candidates(s, g, s->gemm->backward, found);
        want.lt = n > 0 && found[0].state == CUBLAS_STATUS_SUCCESS;
        if (want.lt)
            want.algo = found[0].algo;
        p = add_entry(s->gemm, &want);
    }
    if (!p->lt || !lt_run(s, g, &p->algo))
        ml_gemm_plain(s, g);
}

ml_gemm_lt ml_gemm_lt_of(ml_cuda_stream *s) {
    return { s->gemm->lt, s->gemm->forward, s->gemm->backward, s->gemm->workspace,
             WORKSPACE };
}

/* ---- open and close ---- */

/* What cuBLASLt may choose from. */
static bool open_preference(cublasLtMatmulPreference_t *p, uint32_t schemes) {
    return cublasLtMatmulPreferenceCreate(p) == CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulPreferenceSetAttribute(
               *p, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes) ==
               CUBLAS_STATUS_SUCCESS &&
           cublasLtMatmulPreferenceSetAttribute(
               *p, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &WORKSPACE,
               sizeof WORKSPACE) == CUBLAS_STATUS_SUCCESS;
}

ml_status ml_gemm_open(ml_cuda_stream *s, ml_err *err) {
    ml_gemm_algo_cache *b = (ml_gemm_algo_cache *)calloc(1, sizeof *b);

    s->gemm = b;
    if (!b || cublasLtCreate(&b->lt) != CUBLAS_STATUS_SUCCESS ||
        !open_preference(&b->forward, CUBLASLT_REDUCTION_SCHEME_NONE) ||
        !open_preference(&b->backward, CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE) ||
        cudaMalloc(&b->workspace, WORKSPACE) != cudaSuccess)
        return ml_fail(err, ML_ENOMEM, "cannot initialise cuBLASLt on this GPU");
    return ML_OK;
}

void ml_gemm_close(ml_cuda_stream *s) {
    ml_gemm_algo_cache *b = s->gemm;

    if (!b)
        return;
    if (b->forward)
        cublasLtMatmulPreferenceDestroy(b->forward);
    if (b->backward)
        cublasLtMatmulPreferenceDestroy(b->backward);
    if (b->lt)
        cublasLtDestroy(b->lt);
    cudaFree(b->workspace);
    free(b);
    s->gemm = NULL;
}
