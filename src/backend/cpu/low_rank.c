/* low_rank.c - LORA: low-rank adapters on the outputs of linear layers.
 *
 * Rows that follow each other with the same adapter and the same group (expert) are a run,
 * which the GEMMs of gemm.h compute.  Runs are cut into pieces of PIECE rows, which threads
 * compute on their own if there are enough of them.  Neither changes a bit: an output of
 * these GEMMs is a chain of its own row, a gradient of A or B is summed over ascending rows, of each
 * sequence in blocks as that of a linear layer. */
#include <string.h>

#include "backend/cpu/gemm.h"
#include "base/philox.h"

enum {
    PIECE = 128,     /* rows */
    PIECES_EACH = 2, /* from this many pieces per thread on, threads take whole pieces */
    ALONE = 1 << 17, /* so many products are faster on one thread than divided */
};

typedef struct piece {
    int32_t begin, end; /* rows */
    int32_t adapter, group;
} piece;

/* Sizes of a call and the parts of its scratch memory. */
typedef struct lora {
    const ml_cpu_stream *s;
    const ml_op_args *a;
    int64_t n_row, n_in, n_out; /* widths of a head */
    int32_t n_head, rank;       /* rank: the most of any adapter */
    piece *piece;               /* [n_piece] */
    int64_t n_piece;
    float *low, *dlow; /* [n_row, n_head, rank] scale A x, and its gradient */
    float *kept;       /* [n_row, n_head, n_in] x after dropout; NULL: nothing is dropped */
    float *wide;       /* [threads][PIECE, the wider of n_in and n_out] */
    char *gemm;        /* [threads] */
    size_t gemm_bytes; /* of a thread */
} lora;

static size_t align64(size_t n) {
    return (n + 63) & ~(size_t)63;
}

static int64_t wider(const lora *l) {
    return l->n_in > l->n_out ? l->n_in : l->n_out;
}

static bool may_drop(const lora *l) {
    return l->a->attr->lora.dropout > 0;
}

static lora sizes_of(const ml_cpu_stream *s, const ml_op_args *a) {
    int32_t n_head = a->attr->lora.n_head;

    return (lora){ .s = s,
                   .a = a,
                   .n_row = a->in[0].shape[0],
                   .n_in = a->in[0].shape[1] / n_head,
                   .n_out = a->in[1].shape[1] / n_head,
                   .n_head = n_head,
                   .rank = a->attr->lora.max_rank };
}

/* Scratch of a stream for every product of m rows. */
static size_t gemm_bytes(const ml_cpu_stream *s, const lora *l, int64_t m) {
    ml_tensor a = { .n_dim = 2, .shape = { l->rank, l->n_in } };
    ml_tensor b = { .n_dim = 2, .shape = { l->n_out, l->rank } };
    size_t x, y;

    if (l->a->attr->lora.transposed) {
        a.shape[1] = l->n_out;
        b.shape[0] = l->n_in;
    }
    x = ml_gemm_scratch(s, &a, m);
    y = ml_gemm_scratch(s, &b, m);
    return align64(x > y ? x : y);
}

/* Each thread has its part of `wide` and `gemm`; all of them together use the first of
 * `wide` and all of `gemm`. */
static size_t lay_out(lora *l, char *at) {
    const ml_cpu_stream alone = { l->s->base, NULL, l->s->kern };
    size_t n_thread = (size_t)ml_pool_size(l->s->pool);
    size_t low = align64((size_t)(l->n_row * l->n_head * l->rank) * sizeof(float));
    size_t wide = align64((size_t)(PIECE * wider(l)) * sizeof(float));
    size_t kept =
        may_drop(l) ? align64((size_t)(l->n_row * l->n_head * l->n_in) * sizeof(float)) : 0;
    size_t together = gemm_bytes(l->s, l, l->n_row > PIECE ? l->n_row : PIECE), runs, n = 0;

    l->gemm_bytes = gemm_bytes(&alone, l, PIECE);
    runs = align64((size_t)l->n_row * sizeof(piece));
    l->piece = (piece *)(void *)at;
    l->low = (float *)(void *)(at + (n += runs));
    l->dlow = (float *)(void *)(at + (n += low));
    l->wide = (float *)(void *)(at + (n += low));
    l->gemm = at + (n += wide * n_thread);
    n += together > l->gemm_bytes * n_thread ? together : l->gemm_bytes * n_thread;
    l->kept =
        kept && l->a->rows && l->a->rows->dropout_key ? (float *)(void *)(at + n) : NULL;
    return n + kept;
}

size_t ml_cpu_lora_scratch(const ml_cpu_stream *s, const ml_op_args *a, bool backward) {
    static char none[64];
    lora l = sizes_of(s, a);

    (void)backward;
    return lay_out(&l, none);
}

/* --- pieces ------------------------------------------------------------------- */

static const ml_lora_site *site_of(const lora *l, int32_t adapter) {
    return &l->a->lora->adapter[adapter][l->a->attr->lora.site];
}

/* The adapter of a token. */
static int32_t adapter_of(const lora *l, int32_t token) {
    const int32_t *of = l->a->rows->adapter;
    return of ? of[token] : l->a->lora->all ? 0 : -1;
}

static void add_row(lora *l, int32_t row, int32_t adapter, int32_t group) {
    piece *last = l->n_piece ? &l->piece[l->n_piece - 1] : NULL;

    if (adapter < 0 || !site_of(l, adapter)->a.data)
        return;
    if (last && last->end == row && last->adapter == adapter && last->group == group &&
        row - last->begin < PIECE)
        last->end++;
    else
        l->piece[l->n_piece++] = (piece){ row, row + 1, adapter, group };
}

/* Rows of experts are sorted by expert, and belong to the tokens of a table. */
static void find_expert_pieces(lora *l) {
    const int32_t n_expert = l->a->attr->moe.n_expert, k = l->a->attr->moe.top_k;
    const int32_t *start = l->a->in[2].data, *pair = start + n_expert + 1;

    for (int32_t e = 0; e < n_expert; e++)
        for (int32_t i = start[e]; i < start[e + 1]; i++)
            add_row(l, i, adapter_of(l, pair[i] / k), e);
}

static void find_pieces(lora *l) {
    if (l->a->in[2].data)
        find_expert_pieces(l);
    for (int32_t i = 0; !l->a->in[2].data && i < l->n_row; i++)
        add_row(l, i, adapter_of(l, i), 0);
}

/* --- products ------------------------------------------------------------------- */

/* A thread, or all of them, that computes a piece. */
typedef struct worker {
    const ml_cpu_stream *s;
    float *wide;
    void *gemm;
} worker;

static worker worker_of(const lora *l, const ml_cpu_stream *s, int i) {
    return (worker){ s, l->wide + (size_t)i * align64((size_t)(PIECE * wider(l)) * 4) / 4,
                     l->gemm + (size_t)i * l->gemm_bytes };
}

/* Rows of an operand: element (i, j) is data[i * ld + j]. */
typedef struct rows {
    float *data;
    int64_t ld;
} rows;

/* Group g of a stack, or what all groups share, as a matrix. */
static ml_tensor matrix(const ml_tensor *t, int32_t g) {
    const int64_t n = t->shape[1], k = t->shape[2];
    const int64_t stride = (n + ML_LANES - 1) / ML_LANES * ML_LANES * k;

    return (ml_tensor){ .data = (float *)t->data + (t->shape[0] > 1 ? g * stride : 0),
                        .dtype = ML_F32,
                        .layout = ML_PANELS,
                        .n_dim = 2,
                        .shape = { n, k } };
}

/* y = x w^T; add: y + x w^T, one rounding. */
static void times(const worker *k, rows y, rows x, const ml_tensor *w, int64_t m,
                  bool add) {
    const int64_t n = w->shape[0];
    const ml_gemm_out out = { add ? k->wide : y.data, add ? n : y.ld, w, NULL };

    ml_gemm_forward(k->s, &out, 1, x.data, x.ld, m, k->gemm);
    for (int64_t i = 0; add && i < m; i++)
        k->s->kern->row->axpy(y.data + i * y.ld, 1.0f, k->wide + i * n, n, true);
}

/* y = x w, or chains over ascending rows of w that start from y. */
static void times_transposed(const worker *k, rows y, rows x, const ml_tensor *w, int64_t m,
                             bool add) {
    ml_gemm_dinput(k->s, y.data, y.ld, x.data, x.ld, w, m, add, false, k->gemm);
}

static void scale_rows(rows y, float by, int64_t m, int64_t n) {
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++)
            y.data[i * y.ld + j] *= by;
}

static rows rows_at(const lora *l, void *data, int64_t width, const piece *p, int32_t h) {
    return (rows){ (float *)data + p->begin * width * l->n_head + h * width,
                   width * l->n_head };
}

/* What a piece reads and writes, of one head. */
typedef struct part {
    ml_tensor a, b;
    rows low, dlow;
    int64_t m, rank;
    int32_t group;
} part;

static part part_of(const lora *l, const piece *p, int32_t h) {
    const ml_lora_site *site = site_of(l, p->adapter);
    int32_t g = l->n_head > 1 ? h : p->group;

    return (part){ .a = matrix(&site->a, g),
                   .b = matrix(&site->b, g),
                   .low = rows_at(l, l->low, l->rank, p, h),
                   .dlow = rows_at(l, l->dlow, l->rank, p, h),
                   .m = p->end - p->begin,
                   .rank = site->a.shape[1],
                   .group = g };
}

/* --- dropout -------------------------------------------------------------------- */

/* Drops elements of one head's part of a row: y = x or 0, divided by the probability that an
 * element is kept; add: y + that.  An element depends on the row's key, the layer, the expert
 * and its column alone. */
static void drop(const lora *l, int32_t row, int32_t group, int32_t h, const float *x,
                 float *y, bool add) {
    const float p = l->a->attr->lora.dropout, gain = 1.0f / (1.0f - p);
    const uint32_t below = (uint32_t)((double)p * 0x1p32);
    const int32_t *start = l->a->in[2].data;
    const int32_t token =
        start ? start[l->a->attr->moe.n_expert + 1 + row] / l->a->attr->moe.top_k : row;
    const uint64_t key = l->a->rows->dropout_key[token];
    const uint64_t expert = (uint64_t)(group + l->a->attr->lora.first_group);
    const uint64_t layer = (uint64_t)l->a->attr->lora.site | expert << 32;
    ml_philox four = { { 0 } };

    for (int64_t j = 0; j < l->n_in; j++) {
        int64_t col = h * l->n_in + j;
        float v;
        if (j == 0 || col % 4 == 0)
            four = ml_philox_at(key, layer, (uint64_t)(col / 4));
        v = four.word[col % 4] < below ? 0.0f : x[j] * gain;
        y[j] = add ? y[j] + v : v;
    }
}

static void drop_piece(const lora *l, const worker *k, const piece *p) {
    (void)k;
    for (int32_t h = 0; h < l->n_head; h++) {
        rows x = rows_at(l, l->a->in[0].data, l->n_in, p, h);
        rows y = rows_at(l, l->kept, l->n_in, p, h);
        for (int32_t i = 0; i < p->end - p->begin; i++)
            drop(l, p->begin + i, p->group, h, x.data + i * x.ld, y.data + i * y.ld, false);
    }
}

/* The inputs of the adapters. */
static rows inputs_at(const lora *l, const piece *p, int32_t h) {
    return rows_at(l, l->kept ? l->kept : l->a->in[0].data, l->n_in, p, h);
}

/* The gradient of x from that of low. */
static void add_dx(const lora *l, const worker *k, const piece *p, int32_t h,
                   const part *t) {
    rows dx = rows_at(l, l->a->din[0].data, l->n_in, p, h);
    rows wide = { k->wide, l->n_in };

    if (l->a->attr->lora.transposed) {
        times(k, dx, t->dlow, &t->b, t->m, true);
    } else if (!l->kept) {
        times_transposed(k, dx, t->dlow, &t->a, t->m, true);
    } else {
        times_transposed(k, wide, t->dlow, &t->a, t->m, false);
        for (int32_t i = 0; i < t->m; i++)
            drop(l, p->begin + i, p->group, h, wide.data + i * wide.ld, dx.data + i * dx.ld,
                 true);
    }
}

/* --- pieces, forward and backward ------------------------------------------------ */

/* low = scale A x, or scale B^T x */
static void compute_low(const lora *l, const worker *k, const piece *p, int32_t h,
                        const part *t) {
    rows x = inputs_at(l, p, h);

    if (l->a->attr->lora.transposed)
        times_transposed(k, t->low, x, &t->b, t->m, false);
    else
        times(k, t->low, x, &t->a, t->m, false);
    scale_rows(t->low, site_of(l, p->adapter)->scale, t->m, t->rank);
}

static void forward_piece(const lora *l, const worker *k, const piece *p) {
    for (int32_t h = 0; h < l->n_head; h++) {
        part t = part_of(l, p, h);
        rows z = rows_at(l, l->a->out[0].data, l->n_out, p, h);
        compute_low(l, k, p, h, &t);
        if (l->a->attr->lora.transposed)
            times_transposed(k, z, t.low, &t.a, t.m, true);
        else
            times(k, z, t.low, &t.b, t.m, true);
    }
}

/* low again, its gradient, and that of x */
static void backward_piece(const lora *l, const worker *k, const piece *p) {
    for (int32_t h = 0; h < l->n_head; h++) {
        part t = part_of(l, p, h);
        rows dz = rows_at(l, l->a->dout[0].data, l->n_out, p, h);
        compute_low(l, k, p, h, &t);
        if (l->a->attr->lora.transposed)
            times(k, t.dlow, dz, &t.a, t.m, false);
        else
            times_transposed(k, t.dlow, dz, &t.b, t.m, false);
        scale_rows(t.dlow, site_of(l, p->adapter)->scale, t.m, t.rank);
        if (l->a->din[0].data)
            add_dx(l, k, p, h, &t);
    }
}

/* Adds a run to the gradients of A and B; by_block: of one sequence, in blocks of rows. */
static void add_gradients(const lora *l, const worker *k, const piece *p, bool by_block) {
    const ml_lora_site *site = site_of(l, p->adapter);
    const ml_row_runs one = { 0 }, *seqs = by_block ? &one : NULL;

    for (int32_t h = 0; h < l->n_head; h++) {
        part t = part_of(l, p, h);
        rows dz = rows_at(l, l->a->dout[0].data, l->n_out, p, h);
        rows x = inputs_at(l, p, h);
        bool swapped = l->a->attr->lora.transposed;
        if (site->da.data) {
            ml_tensor da = matrix(&site->da, t.group);
            rows y = swapped ? t.low : t.dlow, v = swapped ? dz : x;
            ml_gemm_dweight(k->s, &da, y.data, y.ld, v.data, v.ld, t.m, seqs, true,
                            k->gemm);
        }
        if (site->db.data) {
            ml_tensor db = matrix(&site->db, t.group);
            rows y = swapped ? x : dz, v = swapped ? t.dlow : t.low;
            ml_gemm_dweight(k->s, &db, y.data, y.ld, v.data, v.ld, t.m, seqs, true,
                            k->gemm);
        }
    }
}

/* --- the op ------------------------------------------------------------------- */

typedef void piece_fn(const lora *l, const worker *k, const piece *p);

typedef struct job {
    const lora *l;
    piece_fn *fn;
} job;

static void run_pieces(void *ud, int64_t begin, int64_t end, int i) {
    const job *j = ud;
    const ml_cpu_stream alone = { j->l->s->base, NULL, j->l->s->kern };
    const worker k = worker_of(j->l, &alone, i);

    for (int64_t p = begin; p < end; p++)
        j->fn(j->l, &k, &j->l->piece[p]);
}

/* Pieces whose outputs are rows. */
static void each_piece(const lora *l, piece_fn *fn) {
    const worker all = worker_of(l, l->s, 0);
    job j = { l, fn };

    if (l->n_piece >= (int64_t)PIECES_EACH * ml_pool_size(l->s->pool)) {
        ml_pool_run(l->s->pool, l->n_piece, 1, run_pieces, &j);
        return;
    }
    if (l->n_row * l->n_head * (l->n_in + l->n_out) * l->rank < ALONE) {
        run_pieces(&j, 0, l->n_piece, 0);
        return;
    }
    for (int64_t p = 0; p < l->n_piece; p++)
        fn(l, &all, &l->piece[p]);
}

typedef struct copy_job {
    char *to;
    const char *from; /* NULL: zeros */
} copy_job;

static void copy_bytes(void *ud, int64_t begin, int64_t end, int i) {
    const copy_job *j = ud;

    (void)i;
    if (j->from)
        memcpy(j->to + begin, j->from + begin, (size_t)(end - begin));
    else
        memset(j->to + begin, 0, (size_t)(end - begin));
}

static void copy(const lora *l, void *to, const void *from, size_t bytes) {
    copy_job j = { to, from };
    ml_pool_run(l->s->pool, (int64_t)bytes, 1 << 16, copy_bytes, &j);
}

void ml_cpu_lora_forward(ml_stream *s, const ml_op_args *a) {
    lora l = sizes_of(ml_cpu(s), a);

    if (a->out[0].data != a->in[1].data)
        copy(&l, a->out[0].data, a->in[1].data, ml_tensor_bytes(&a->in[1]));
    if (!a->lora)
        return;
    lay_out(&l, a->scratch);
    find_pieces(&l);
    if (l.kept)
        each_piece(&l, drop_piece);
    each_piece(&l, forward_piece);
}

/* Whether a piece belongs to the run that ends before it. */
static bool continues(const piece *run, const piece *p) {
    return run->end == p->begin && run->adapter == p->adapter && run->group == p->group;
}

/* The gradient of y is that of z. */
static void pass_gradient(const lora *l) {
    const ml_op_args *a = l->a;
    float *dy = a->din[1].data;
    const float *dz = a->dout[0].data;

    if (!dy || dy == dz)
        return;
    if (!a->din_add[1])
        copy(l, dy, dz, ml_tensor_bytes(&a->dout[0]));
    for (int64_t i = 0; a->din_add[1] && i < ml_tensor_count(&a->dout[0]); i++)
        dy[i] += dz[i];
}

/* The same, sequence by sequence; rows of experts have none. */
static void add_run(const lora *l, const worker *k, const piece *run) {
    const ml_row_runs seqs = ml_cpu_row_runs(l->a, l->n_row);
    piece own = *run;

    if (l->a->in[2].data) {
        add_gradients(l, k, run, false);
        return;
    }
    for (; own.begin < run->end; own.begin = own.end) {
        const int64_t end = ml_row_run_end(&seqs, own.begin, l->n_row);
        own.end = end < run->end ? (int32_t)end : run->end;
        add_gradients(l, k, &own, true);
    }
}

void ml_cpu_lora_backward(ml_stream *s, const ml_op_args *a) {
    lora l = sizes_of(ml_cpu(s), a);
    worker all;

    if (a->din[0].data && !a->din_add[0])
        copy(&l, a->din[0].data, NULL, ml_tensor_bytes(&a->din[0]));
    pass_gradient(&l);
    if (!a->lora)
        return;
    lay_out(&l, a->scratch);
    find_pieces(&l);
    if (l.kept)
        each_piece(&l, drop_piece);
    each_piece(&l, backward_piece);
    all = worker_of(&l, l.s, 0);
    for (int64_t p = 0, next; p < l.n_piece; p = next) {
        piece run = l.piece[p];
        for (next = p + 1; next < l.n_piece && continues(&run, &l.piece[next]); next++)
            run.end = l.piece[next].end;
        add_run(&l, &all, &run);
    }
}
