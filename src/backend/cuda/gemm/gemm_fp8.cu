/* gemm_fp8.cu - products of FP8 codes and many rows by cuBLASLt, with weights in blocks of 128 x 128 and
 * inputs in groups of 128.
 *
 * Without split-K and fast accumulation its outputs have the contract of fp8.cuh.  When a plan is made
 * its candidates are compared with our kernel for each (N, K), and the fastest with the same bits is
 * used.  It reads row-major codes: the weight is unpacked from its panels to scratch memory first. */
#include "backend/cuda/gemm/gemm_fp8.cuh"

#include <cublasLt.h>
#include <stdlib.h>

enum {
    BLOCK = 128,
    LEAST_ROWS = 1024, /* of a product by cuBLASLt */
    TRIAL_ROWS = 2048,
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

/* ---- unpacking ---- */

/* Four words of four outputs each, for four inputs, become words of four inputs. */
__device__ static void transpose(uint32_t (&v)[4]) {
    uint32_t a = __byte_perm(v[0], v[1], 0x5140), b = __byte_perm(v[2], v[3], 0x5140);
    uint32_t c = __byte_perm(v[0], v[1], 0x7362), d = __byte_perm(v[2], v[3], 0x7362);

    v[0] = __byte_perm(a, b, 0x5410);
    v[1] = __byte_perm(a, b, 0x7632);
    v[2] = __byte_perm(c, d, 0x5410);
    v[3] = __byte_perm(c, d, 0x7632);
}

/* A block of 128 outputs and 128 inputs: 8 panels, of which a thread has four inputs.  The scale is that
 * of its first output. */
__global__ void unpack(unsigned char *code, float *scale, const unsigned char *w,
                       size_t panel_bytes, size_t scale_bytes, int64_t k) {
    __shared__ uint32_t tile[BLOCK][BLOCK / 4];
    int panel = (int)threadIdx.x / 32, quad = (int)threadIdx.x % 32;
    int64_t k0 = (int64_t)blockIdx.x * BLOCK, n0 = (int64_t)blockIdx.y * BLOCK;
    const unsigned char *from = w + (n0 / ML_LANES + panel) * panel_bytes;
    const uint4 *in = (const uint4 *)(from + scale_bytes) + k0 + quad * 4;
    uint32_t v[4][4];

#pragma unroll
    for (int i = 0; i < 4; i++) {
        uint4 x = in[i];
        v[0][i] = x.x;
        v[1][i] = x.y;
        v[2][i] = x.z;
        v[3][i] = x.w;
    }
#pragma unroll
    for (int i = 0; i < 4; i++) {
        transpose(v[i]);
#pragma unroll
        for (int j = 0; j < 4; j++)
            tile[panel * ML_LANES + i * 4 + j][quad] = v[i][j];
    }
    if (threadIdx.x == 0)
        scale[blockIdx.y * gridDim.x + blockIdx.x] =
            ((const float *)from)[(int64_t)blockIdx.x * ML_LANES];
    __syncthreads();
    for (int i = (int)threadIdx.x; i < BLOCK * BLOCK / 16; i += THREADS)
        *(uint4 *)(code + (n0 + i / 8) * k + k0 + i % 8 * 16) =
            *(const uint4 *)&tile[i / 8][i % 8 * 4];
}

/* The same weight as a row-major matrix. */
static ml_fp8_rows rows_of(ml_cuda_stream *s, const ml_fp8_gemm *g, void *scratch) {
    unsigned char *code = (unsigned char *)scratch;
    float *scale = (float *)(code + ml_cuda_align((size_t)g->n * (size_t)g->k));

    unpack<<<dim3((unsigned)(g->k / BLOCK), (unsigned)(g->n / BLOCK)), THREADS, 0,
             s->stream>>>(code, scale, g->w, g->panel, g->scales, g->k);
    ml_cuda_launched(s, "unpacked weights");
    return { code, g->k, scale };
}

ml_fp8_rows ml_cuda_fp8_rows(ml_cuda_stream *s, const ml_op_args *a, void *scratch) {
    const ml_fp8_gemm g = ml_fp8_gemm_of(a, {}, a->w[0].shape[0], NULL);

    return rows_of(s, &g, scratch);
}

/* ---- cuBLASLt ---- */

/* Column-major: y' (n x m) = w (n x k) x' (k x m). */
typedef struct lt_call {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t w, x, y;
} lt_call;

static void set(lt_call *c, cublasLtMatmulDescAttributes_t which, const void *value,
                size_t size) {
    cublasLtMatmulDescSetAttribute(&c->desc, which, value, size);
}

static void describe(lt_call *c, const ml_fp8_gemm *g, const ml_fp8_rows *w) {
    const int32_t transposed = CUBLAS_OP_T;
    const int32_t blocks = CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F;
    const int32_t groups = CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F;

    cublasLtMatmulDescInit(&c->desc, CUBLAS_COMPUTE_32F, CUDA_R_32F);
    set(c, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed);
    set(c, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, &blocks, sizeof blocks);
    set(c, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, &groups, sizeof groups);
    set(c, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, &w->scale, sizeof w->scale);
    set(c, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, &g->x.scale, sizeof g->x.scale);
    cublasLtMatrixLayoutInit(&c->w, CUDA_R_8F_E4M3, (uint64_t)g->k, (uint64_t)g->n, w->ld);
    cublasLtMatrixLayoutInit(&c->x, CUDA_R_8F_E4M3, (uint64_t)g->k, (uint64_t)g->rows,
                             g->k);
    cublasLtMatrixLayoutInit(&c->y, CUDA_R_16BF, (uint64_t)g->n, (uint64_t)g->rows, g->n);
}

/* With the unpacking of the weight. */
static bool run(ml_cuda_stream *s, const ml_fp8_gemm *g, void *scratch,
                const cublasLtMatmulAlgo_t *algo) {
    const float one = 1.0f, zero = 0.0f;
    const ml_fp8_rows w = rows_of(s, g, scratch);
    ml_gemm_lt lt = ml_gemm_lt_of(s);
    lt_call c;

    describe(&c, g, &w);
    return cublasLtMatmul((cublasLtHandle_t)lt.handle, &c.desc, &one, w.code, &c.w,
                          g->x.code, &c.x, &zero, g->y, &c.y, g->y, &c.y, algo,
                          lt.workspace, lt.bytes, s->stream) == CUBLAS_STATUS_SUCCESS;
}

static int candidates(ml_cuda_stream *s, const ml_fp8_gemm *g, void *scratch,
                      cublasLtMatmulHeuristicResult_t *out) {
    const ml_fp8_rows w = rows_of(s, g, scratch);
    ml_gemm_lt lt = ml_gemm_lt_of(s);
    lt_call c;
    int n = 0;

    describe(&c, g, &w);
    if (cublasLtMatmulAlgoGetHeuristic((cublasLtHandle_t)lt.handle, &c.desc, &c.w, &c.x,
                                       &c.y, &c.y, (cublasLtMatmulPreference_t)lt.forward,
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

/* Between 1 and 2; all outputs of a block have the same if the scales are those of panels. */
__device__ static float scale_number(uint64_t i, uint32_t seed) {
    return 1.0f + (float)(random_of(i, seed) >> 8) * 0x1p-24f;
}

__global__ static void fill_scales(float *scale, int64_t n, uint32_t seed) {
    int64_t i = (int64_t)blockIdx.x * THREADS + threadIdx.x;

    if (i < n)
        scale[i] = scale_number((uint64_t)i, seed);
}

__global__ static void fill_panel_scales(unsigned char *w, size_t panel_bytes, int groups,
                                         uint32_t seed) {
    float *scale = (float *)(w + blockIdx.x * panel_bytes);

    for (int i = (int)threadIdx.x; i < groups * ML_LANES; i += THREADS)
        scale[i] = scale_number(
            (uint64_t)(blockIdx.x / 8) * 65536u + (unsigned)(i / ML_LANES), seed);
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
    ml_fp8_gemm g;
    unsigned char *x, *w, *unpacked;
    float *x_scale;
    bf16 *y[2]; /* ours, cuBLASLt's */
    int *differ;
    cudaEvent_t start, end;
} trial;

static ml_status open_trial(trial *t, int64_t n, int64_t k, ml_err *err) {
    size_t x = ml_cuda_align((size_t)(TRIAL_ROWS * k));
    size_t scale = ml_cuda_align((size_t)(TRIAL_ROWS * k / BLOCK) * sizeof(float));
    size_t panel = ml_codes_panel_bytes(ML_FP8_BLOCKWISE, k);
    size_t w = ml_cuda_align((size_t)(n / ML_LANES) * panel);
    size_t y = ml_cuda_align((size_t)(TRIAL_ROWS * n) * sizeof(bf16));
    size_t unpacked = ml_cuda_align((size_t)(2 * n * k));
    unsigned char *all;

    if (cudaMalloc((void **)&all, x + scale + w + unpacked + 2 * y + 256) != cudaSuccess) {
        cudaGetLastError();
        return ml_fail(err, ML_ENOMEM,
                       "out of GPU memory: cannot allocate %.1f MiB for autotuning FP8 "
                       "products; free some GPU memory",
                       (double)(x + scale + w + unpacked + 2 * y) / 0x1p20);
    }
    t->x = all;
    t->x_scale = (float *)(all + x);
    t->w = all + x + scale;
    t->unpacked = t->w + w;
    t->y[0] = (bf16 *)(t->unpacked + unpacked);
    t->y[1] = (bf16 *)((unsigned char *)t->y[0] + y);
    t->differ = (int *)((unsigned char *)t->y[1] + y);
    t->g.x = { t->x, t->x_scale };
    t->g.w = t->w;
    t->g.panel = panel;
    t->g.scales = ml_codes_scale_bytes(ML_FP8_BLOCKWISE, k);
    t->g.rows = TRIAL_ROWS;
    t->g.n = (int)n;
    t->g.k = (int)k;
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
    int64_t x = (int64_t)TRIAL_ROWS * t->g.k, scales = x / BLOCK,
            panels = t->g.n / ML_LANES;
    int64_t w = panels * (int64_t)t->g.panel;
    cudaStream_t s = t->s->stream;

    fill_codes<<<ml_cuda_blocks(x, THREADS), THREADS, 0, s>>>(t->x, x, seed);
    fill_scales<<<ml_cuda_blocks(scales, THREADS), THREADS, 0, s>>>(t->x_scale, scales,
                                                                    seed + 1);
    fill_codes<<<ml_cuda_blocks(w, THREADS), THREADS, 0, s>>>(t->w, w, seed + 2);
    fill_panel_scales<<<(unsigned)panels, THREADS, 0, s>>>(t->w, t->g.panel, t->g.k / BLOCK,
                                                           seed + 3);
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
    if (!run(t->s, &g, t->unpacked, algo))
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
    ml_fp8_gemm g = gemm_of(t, TRIAL_ROWS, algo ? 1 : 0);
    float ms = 0.0f;

    for (int i = 0; i <= RUNS; i++) { /* the first does not count */
        if (i == 1)
            cudaEventRecord(t->start, t->s->stream);
        if (algo)
            run(t->s, &g, t->unpacked, algo);
        else
            ml_fp8_gemm_run(t->s, &g);
    }
    cudaEventRecord(t->end, t->s->stream);
    cudaEventSynchronize(t->end);
    cudaEventElapsedTime(&ms, t->start, t->end);
    return ms;
}

/* Chooses the fastest of those with the same bits: the choice never changes results. */
static void choose(trial *t, fp8_entry *e) {
    cublasLtMatmulHeuristicResult_t found[CANDIDATES];
    ml_fp8_gemm g = gemm_of(t, TRIAL_ROWS, 1);
    int n = candidates(t->s, &g, t->unpacked, found);
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
    st = open_trial(&t, n, k, err);
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
