/* gemm_fp8.cu - products of FP8 codes and many rows by cuBLASLt, with weights in blocks of 128 x 128 and
 * inputs in groups of 128.
 *
 * Without split-K and fast accumulation its outputs have the contract of fp8.cuh.  When a plan is made
 * its candidates are compared with our kernel for each (N, K), and the fastest with the same bits is
 * used.  The scales of a weight's blocks are gathered from its rows to scratch memory first. */
#include "backend/cuda/gemm/gemm_fp8.cuh"

#include <stdlib.h>

#include "backend/cuda/gemm/gemm_fp8_lt.cuh"

enum {
    BLOCK = 128,
    LEAST_ROWS = 1024, /* of a product by cuBLASLt */
    TRIAL_ROWS = 2048, /* of a product that is compared */
    MOST_ROWS = 8192,  /* of one that is timed */
    ODD_ROWS = TRIAL_ROWS - 3,
    EVEN_ROWS = 16,
    TURNS = 3, /* products that are compared */
    RUNS = 3,  /* that are timed */
    CANDIDATES = 8,
    MAX_ENTRIES = 128,
    THREADS = 256
};

typedef struct fp8_entry {
    int64_t n, k;
    bool lt;       /* cuBLASLt with `algo`; else our kernel */
    bool any_rows; /* not only multiples of EVEN_ROWS */
    cublasLtMatmulAlgo_t algo;
} fp8_entry;

struct ml_gemm_fp8_cache {
    fp8_entry entry[MAX_ENTRIES];
    int n_entry;
};

/* ---- scales ---- */

/* The scale of a block is that of its first output. */
__global__ void gather_scales(float *scale, const unsigned char *w, int64_t ld,
                              int64_t before, int groups, int count) {
    int i = (int)(blockIdx.x * THREADS + threadIdx.x);

    if (i < count)
        scale[i] =
            ((const float *)(w + (int64_t)(i / groups) * BLOCK * ld + before))[i % groups];
}

static ml_fp8_rows rows_of(ml_cuda_stream *s, const ml_fp8_gemm *g, void *scratch) {
    int groups = g->k / BLOCK, count = groups * (g->n / BLOCK);
    float *scale = (float *)scratch;

    gather_scales<<<ml_cuda_blocks(count, THREADS), THREADS, 0, s->stream>>>(
        scale, g->w, g->ld, g->scales, groups, count);
    ml_cuda_launched(s, "scales of blocks");
    return { g->w, g->ld, scale };
}

ml_fp8_rows ml_cuda_fp8_rows(ml_cuda_stream *s, const ml_op_args *a, void *scratch) {
    const ml_fp8_gemm g = ml_fp8_gemm_of(a, {}, a->w[0].shape[0], NULL);

    return rows_of(s, &g, scratch);
}

/* ---- cuBLASLt ---- */

/* y' (n x m) = w (n x k) x' (k x m). */
static ml_fp8_lt describe(const ml_fp8_gemm *g, const ml_fp8_rows *w) {
    ml_fp8_lt_product p = {};
    ml_fp8_lt t;

    p.p = g->n;
    p.q = g->rows;
    p.k = g->k;
    p.ld = w->ld;
    p.a_scale = w->scale;
    p.b_scale = g->x.scale;
    ml_fp8_lt_init(&t, &p);
    return t;
}

/* With the gathering of the scales. */
static bool run(ml_cuda_stream *s, const ml_fp8_gemm *g, void *scratch,
                const cublasLtMatmulAlgo_t *algo) {
    const float one = 1.0f, zero = 0.0f;
    const ml_fp8_rows w = rows_of(s, g, scratch);
    ml_fp8_lt t = describe(g, &w);
    ml_gemm_lt lt = ml_gemm_lt_of(s);

    return cublasLtMatmul((cublasLtHandle_t)lt.handle, &t.desc, &one, w.code, &t.a,
                          g->x.code, &t.b, &zero, g->y, &t.c, g->y, &t.c, algo,
                          lt.workspace, lt.bytes, s->stream) == CUBLAS_STATUS_SUCCESS;
}

static int candidates(ml_cuda_stream *s, const ml_fp8_gemm *g, void *scratch,
                      cublasLtMatmulHeuristicResult_t *out) {
    const ml_fp8_rows w = rows_of(s, g, scratch);
    ml_fp8_lt t = describe(g, &w);
    ml_gemm_lt lt = ml_gemm_lt_of(s);
    int n = 0;

    if (cublasLtMatmulAlgoGetHeuristic((cublasLtHandle_t)lt.handle, &t.desc, &t.a, &t.b,
                                       &t.c, &t.c, (cublasLtMatmulPreference_t)lt.forward,
                                       CANDIDATES, out, &n) != CUBLAS_STATUS_SUCCESS)
        return 0;
    return n;
}

/* ---- autotuning ---- */

__device__ static uint32_t random_of(uint64_t i, uint32_t seed) {
    uint64_t h = (i + 1) * 0x9e3779b97f4a7c15u + (uint64_t)seed * 0xd1342543de82ef95u;

    h = (h ^ h >> 31) * 0xbf58476d1ce4e5b9u;
    return (uint32_t)(h >> 32 ^ h >> 11);
}

/* All codes but NaN. */
__global__ static void fill_codes(unsigned char *code, int64_t n, uint32_t seed) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;
    unsigned char x = (unsigned char)random_of((uint64_t)i, seed);

    if (i < n)
        code[i] = (x & 127) == 127 ? 126 : x;
}

/* Between 1 and 2. */
__device__ static float scale_number(uint64_t i, uint32_t seed) {
    return 1.0f + (float)(random_of(i, seed) >> 8) * 0x1p-24f;
}

__global__ static void fill_scales(float *scale, int64_t n, uint32_t seed) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        scale[i] = scale_number((uint64_t)i, seed);
}

/* Of the rows of a weight: all outputs of a block have the same. */
__global__ static void fill_row_scales(unsigned char *w, int64_t ld, int64_t before,
                                       int groups, uint32_t seed) {
    float *scale = (float *)(w + blockIdx.x * ld + before);

    for (int i = (int)threadIdx.x; i < groups; i += THREADS)
        scale[i] =
            scale_number((uint64_t)(blockIdx.x / BLOCK) * 65536u + (unsigned)i, seed);
}

__global__ static void compare(int *differ, const uint16_t *a, const uint16_t *b,
                               int64_t n) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n && a[i] != b[i])
        *differ = 1; /* all threads write the same */
}

#if ML_WGMMA

typedef struct trial {
    ml_cuda_stream *s;
    ml_fp8_gemm g; /* with the rows of products that are timed */
    unsigned char *x, *w, *scratch;
    float *x_scale;
    bf16 *y[2]; /* ours, cuBLASLt's; the first has room for a product that is timed */
    int *differ;
    cudaEvent_t start, end;
} trial;

static ml_status open_trial(trial *t, int64_t rows, int64_t n, int64_t k, ml_err *err) {
    size_t x = ml_cuda_align((size_t)(rows * k));
    size_t scale = ml_cuda_align((size_t)(rows * k / BLOCK) * sizeof(float));
    size_t w = ml_cuda_align((size_t)(n * ml_codes_row_bytes(k)));
    size_t y = ml_cuda_align((size_t)(rows * n) * sizeof(bf16));
    size_t compared = ml_cuda_align((size_t)(TRIAL_ROWS * n) * sizeof(bf16));
    size_t scratch = ml_cuda_align((size_t)(n / BLOCK * k / BLOCK) * sizeof(float));
    size_t total = x + scale + w + scratch + y + compared + 256;
    unsigned char *all;

    if (cudaMalloc((void **)&all, total) != cudaSuccess) {
        cudaGetLastError();
        return ml_fail(err, ML_ENOMEM,
                       "out of GPU memory: cannot allocate %.1f MiB for autotuning FP8 "
                       "products; free some GPU memory",
                       (double)total / 0x1p20);
    }
    t->x = all;
    t->x_scale = (float *)(all + x);
    t->w = all + x + scale;
    t->scratch = t->w + w;
    t->y[0] = (bf16 *)(t->scratch + scratch);
    t->y[1] = (bf16 *)((unsigned char *)t->y[0] + y);
    t->differ = (int *)((unsigned char *)t->y[1] + compared);
    t->g.x = { t->x, t->x_scale };
    t->g.w = t->w;
    t->g.ld = ml_codes_row_bytes(k);
    t->g.scales = ml_codes_row_scales(k);
    t->g.rows = (int)rows;
    t->g.n = (int)n;
    t->g.k = (int)k;
    t->g.blocks = true;
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

static void fill_trial(trial *t, int turn) {
    uint32_t seed = 4 * (uint32_t)turn;
    int64_t x = (int64_t)t->g.rows * t->g.k, scales = x / BLOCK, w = t->g.n * t->g.ld;
    cudaStream_t s = t->s->stream;

    fill_codes<<<ml_cuda_blocks(x, THREADS), THREADS, 0, s>>>(t->x, x, seed);
    fill_scales<<<ml_cuda_blocks(scales, THREADS), THREADS, 0, s>>>(t->x_scale, scales,
                                                                    seed + 1);
    fill_codes<<<ml_cuda_blocks(w, THREADS), THREADS, 0, s>>>(t->w, w, seed + 2);
    fill_row_scales<<<(unsigned)t->g.n, THREADS, 0, s>>>(t->w, t->g.ld, t->g.scales,
                                                         t->g.k / BLOCK, seed + 3);
}

static ml_fp8_gemm gemm_of(const trial *t, int rows, int y) {
    ml_fp8_gemm g = t->g;

    g.rows = rows;
    g.y = t->y[y];
    return g;
}

/* Has this algorithm the bits of our kernel (in y[0])? */
static bool same_bits(trial *t, int rows, const cublasLtMatmulAlgo_t *algo) {
    ml_fp8_gemm g = gemm_of(t, rows, 1);
    int64_t count = (int64_t)rows * g.n;
    int differ = 1;

    cudaMemsetAsync(t->y[1], 0xff, (size_t)count * sizeof(bf16), t->s->stream);
    cudaMemsetAsync(t->differ, 0, sizeof differ, t->s->stream);
    if (!run(t->s, &g, t->scratch, algo))
        return false;
    compare<<<ml_cuda_blocks(count, THREADS), THREADS, 0, t->s->stream>>>(
        t->differ, (const uint16_t *)t->y[0], (const uint16_t *)t->y[1], count);
    if (cudaMemcpyAsync(&differ, t->differ, sizeof differ, cudaMemcpyDeviceToHost,
                        t->s->stream) != cudaSuccess ||
        cudaStreamSynchronize(t->s->stream) != cudaSuccess)
        return false;
    return differ == 0;
}

/* The same in several products. */
static bool same_in_turns(trial *t, int rows, const cublasLtMatmulAlgo_t *algo) {
    ml_fp8_gemm ours = gemm_of(t, rows, 0);

    for (int turn = 0; turn < TURNS; turn++) {
        fill_trial(t, turn);
        ml_fp8_gemm_run(t->s, &ours);
        if (!same_bits(t, rows, algo))
            return false;
    }
    return true;
}

/* Milliseconds of RUNS products; algo NULL: our kernel. */
static float time_of(trial *t, const cublasLtMatmulAlgo_t *algo) {
    ml_fp8_gemm g = gemm_of(t, t->g.rows, 0);
    float ms = 0.0f;

    for (int i = 0; i <= RUNS; i++) { /* the first does not count */
        if (i == 1)
            cudaEventRecord(t->start, t->s->stream);
        if (algo)
            run(t->s, &g, t->scratch, algo);
        else
            ml_fp8_gemm_run(t->s, &g);
    }
    cudaEventRecord(t->end, t->s->stream);
    cudaEventSynchronize(t->end);
    cudaEventElapsedTime(&ms, t->start, t->end);
    return ms;
}

/* As many as the plan has: which one is faster depends on them. */
static int64_t timed_rows(int64_t rows) {
    rows -= rows % EVEN_ROWS;
    return rows < TRIAL_ROWS ? TRIAL_ROWS : rows > MOST_ROWS ? MOST_ROWS : rows;
}

/* Chooses the fastest of those with the same bits: the choice never changes results. */
static void choose(trial *t, fp8_entry *e) {
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    ml_fp8_gemm g = gemm_of(t, t->g.rows, 0);
    int n = candidates(t->s, &g, t->scratch, found);
    float best;

    fill_trial(t, 0);
    best = time_of(t, NULL);
    for (int i = 0; i < n; i++) {
        float ms;
        if (found[i].state != CUBLAS_STATUS_SUCCESS ||
            !same_in_turns(t, TRIAL_ROWS, &found[i].algo))
            continue;
        ms = time_of(t, &found[i].algo);
        if (ms < best) {
            best = ms;
            e->lt = true;
            e->algo = found[i].algo;
        }
    }
    e->any_rows = e->lt && same_in_turns(t, ODD_ROWS, &e->algo);
}

#endif

static fp8_entry *find_entry(ml_cuda_stream *s, int64_t n, int64_t k) {
    for (int i = 0; s->gemm_fp8 && i < s->gemm_fp8->n_entry; i++)
        if (s->gemm_fp8->entry[i].n == n && s->gemm_fp8->entry[i].k == k)
            return &s->gemm_fp8->entry[i];
    return NULL;
}

ml_status ml_gemm_fp8_try(ml_cuda_stream *s, int64_t rows, int64_t n, int64_t k,
                          ml_err *err) {
#if ML_WGMMA
    fp8_entry e = {};
    trial t = {};
    ml_status st;

    /* cuBLASLt pads rows of block scales to multiples of four. */
    if (rows < LEAST_ROWS || n % BLOCK || k % (4 * BLOCK) || find_entry(s, n, k))
        return ML_OK;
    if (!s->gemm_fp8)
        s->gemm_fp8 = (ml_gemm_fp8_cache *)calloc(1, sizeof *s->gemm_fp8);
    if (!s->gemm_fp8 || s->gemm_fp8->n_entry == MAX_ENTRIES)
        return ML_OK; /* our kernel */
    t.s = s;
    st = open_trial(&t, timed_rows(rows), n, k, err);
    if (st != ML_OK)
        return st;
    e.n = n;
    e.k = k;
    choose(&t, &e);
    close_trial(&t);
    s->gemm_fp8->entry[s->gemm_fp8->n_entry++] = e;
#else
    (void)s, (void)rows, (void)n, (void)k, (void)err;
#endif
    return ML_OK;
}

bool ml_gemm_fp8(ml_cuda_stream *s, const ml_op_args *a, const ml_fp8_gemm *g) {
    const fp8_entry *e = g->rows < LEAST_ROWS ? NULL : find_entry(s, g->n, g->k);

    return e && e->lt && (e->any_rows || g->rows % EVEN_ROWS == 0) &&
           run(s, g, a->scratch, &e->algo);
}

void ml_gemm_fp8_close(ml_cuda_stream *s) {
    free(s->gemm_fp8);
    s->gemm_fp8 = NULL;
}
