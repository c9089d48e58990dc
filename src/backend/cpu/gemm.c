/* gemm.c - how the three products are cut into the micro-kernel's tiles.
 *
 * All three are c[rows, cols] (+)= a[rows, depth] b[depth, cols]:
 *
 *               rows  depth  cols    a      b              c
 *     forward   m     K      N       x      panels of w    y
 *     dinput    m     N      K       dy     w transposed   dx
 *     dweight   K     m      N       x^T    dy             panels of dw
 *
 * For a block of rows and a span of depth, all threads pack a into tiles [depth][16], then
 * share pieces of the output.  A piece walks the depth in blocks; in each it brings np
 * panels of b into reach of the first cache and runs all its row tiles over them, while a
 * streams from the second.  Later blocks continue the FMA chains from c: blocking moves no
 * bits. */
#include "backend/cpu/gemm.h"

enum {
    DEPTH_BLOCK = 256, /* np panels of this depth fit the first cache */
    DEPTH_SPAN = 2048, /* packed at once: bounds the scratch */
    ROW_BLOCK = 512,   /* rows x DEPTH_BLOCK of a fit the second cache */
    PIECE_PANELS = 16, /* panels of a piece: what a row block is reused for */
};

typedef struct product product;

/* np panels of b from panel p, for `depth` from d: [np][*b_ps / 16][16], in place or in buf. */
typedef const float *b_block_fn(const product *g, float *buf, int64_t p, int64_t np,
                                int64_t d, int64_t depth, int64_t *b_ps);

struct product {
    const ml_cpu_stream *s;
    float *c;
    const float *a, *bias;
    b_block_fn *b_block;
    const ml_tensor *w; /* forward, dinput */
    const float *dy;    /* dweight */
    int64_t lddy;
    int64_t c_is, c_ps, a_is, a_ks;
    int64_t n_row, n_col, n_depth;
    bool add;

    float *packed; /* [blocks of the span][tile][DEPTH_BLOCK][16] */
    float *b_buf;  /* [thread][np][DEPTH_BLOCK][16] */

    /* The step all threads are in. */
    int64_t row, tiles, tile_rows, rows_end; /* the row block, cut evenly into tiles */
    int64_t span, span_end;                  /* of the depth */
    int64_t piece_panels, piece_tiles, tile_pieces;
};

static int64_t lesser(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static int64_t panels_of(int64_t n) {
    return divide_up(n, ML_LANES);
}

/* The lanes of a range of panels' last one, when it ends with column n_col; 0: all. */
static int32_t tail_of(int64_t n_col, int64_t panel_end) {
    return panel_end * ML_LANES > n_col ? (int32_t)(n_col % ML_LANES) : 0;
}

static size_t w_bytes_at(const ml_tensor *w, int64_t element) {
    return (size_t)element * ml_dtype_bytes(w->dtype);
}

static const void *w_at(const ml_tensor *w, int64_t element) {
    return (const char *)w->data + w_bytes_at(w, element);
}

/* Forward: f32 weights are used where they lie, bf16 ones are widened. */
static const float *b_panels(const product *g, float *buf, int64_t p, int64_t np, int64_t d,
                             int64_t depth, int64_t *b_ps) {
    const int64_t ps = g->n_depth * ML_LANES;

    if (g->w->dtype == ML_F32) {
        *b_ps = ps;
        return w_at(g->w, p * ps + d * ML_LANES);
    }
    *b_ps = depth * ML_LANES;
    for (int64_t i = 0; i < np; i++)
        g->s->kern->gemm->widen(buf + i * *b_ps, w_at(g->w, (p + i) * ps + d * ML_LANES),
                                depth);
    return buf;
}

/* dinput: 16 columns k of 16 outputs n, transposed.  d and DEPTH_BLOCK are multiples of 16. */
static const float *b_transposed(const product *g, float *buf, int64_t p, int64_t np,
                                 int64_t d, int64_t depth, int64_t *b_ps) {
    const ml_gemm_kern *kern = g->s->kern->gemm;
    float wide[ML_LANES * ML_LANES];

    *b_ps = DEPTH_BLOCK * ML_LANES;
    for (int64_t n = 0; n < depth; n += ML_LANES)
        for (int64_t i = 0; i < np; i++) {
            const int64_t k = (p + i) * ML_LANES, n_k = lesser(ML_LANES, g->n_col - k);
            const void *w = w_at(g->w, ((d + n) * g->n_col) + k * ML_LANES);
            if (g->w->dtype != ML_F32) {
                kern->widen(wide, w, n_k);
                w = wide;
            }
            kern->pack_rows(buf + i * *b_ps + n * ML_LANES, w, ML_LANES, n_k, ML_LANES);
        }
    return buf;
}

/* dweight: the columns of dy, so that a panel's rows lie together. */
static const float *b_columns(const product *g, float *buf, int64_t p, int64_t np,
                              int64_t d, int64_t depth, int64_t *b_ps) {
    *b_ps = depth * ML_LANES;
    for (int64_t i = 0; i < np; i++) {
        const int64_t n = (p + i) * ML_LANES;
        g->s->kern->gemm->pack_columns(buf + i * *b_ps, g->dy + d * g->lddy + n, g->lddy,
                                       lesser(ML_LANES, g->n_col - n), depth);
    }
    return buf;
}

static float *packed_tile(const product *g, int64_t block, int64_t tile) {
    return g->packed + (block * g->tiles + tile) * DEPTH_BLOCK * ML_LANES;
}

/* Index: block of the span * tiles + tile. */
static void pack_tiles(void *ud, int64_t begin, int64_t end, int worker) {
    const product *g = ud;
    const ml_gemm_kern *kern = g->s->kern->gemm;

    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const int64_t block = i / g->tiles, tile = i % g->tiles;
        const int64_t d = g->span + block * DEPTH_BLOCK;
        const int64_t depth = lesser(DEPTH_BLOCK, g->span_end - d);
        const int64_t row = g->row + tile * g->tile_rows;
        const int64_t rows = lesser(g->tile_rows, g->rows_end - row);
        const float *src = g->a + row * g->a_is + d * g->a_ks;
        if (g->a_ks == 1)
            kern->pack_rows(packed_tile(g, block, tile), src, g->a_is, rows, depth);
        else
            kern->pack_columns(packed_tile(g, block, tile), src, g->a_ks, rows, depth);
    }
}

/* Panels p .. p + np - 1 of tiles t .. t_end - 1, for one block of the depth. */
static void multiply_block(const product *g, int64_t d, int64_t p, int64_t np, int64_t t,
                           int64_t t_end, float *buf) {
    const int64_t depth = lesser(DEPTH_BLOCK, g->span_end - d);
    ml_gemm_tile tile = {
        .c_is = g->c_is,
        .c_ps = g->c_ps,
        .a_is = 1,
        .a_ks = ML_LANES,
        .b_ks = ML_LANES,
        .k = depth,
        .np = (int32_t)np,
        .tail = tail_of(g->n_col, p + np),
        .add = g->add || d > 0,
        .bias = g->bias && d + depth == g->n_depth ? g->bias + p * ML_LANES : NULL,
    };

    tile.b = g->b_block(g, buf, p, np, d, depth, &tile.b_ps);
    for (; t < t_end; t++) {
        const int64_t row = g->row + t * g->tile_rows;
        tile.mr = (int32_t)lesser(g->tile_rows, g->rows_end - row);
        tile.a = packed_tile(g, (d - g->span) / DEPTH_BLOCK, t);
        tile.c = g->c + row * g->c_is + p * g->c_ps;
        g->s->kern->gemm->tile(&tile);
    }
}

/* Index: range of panels * tile_pieces + range of tiles. */
static void multiply_pieces(void *ud, int64_t begin, int64_t end, int worker) {
    const product *g = ud;
    const int64_t step = g->s->kern->gemm->np, panels = panels_of(g->n_col);
    float *buf = g->b_buf + worker * step * DEPTH_BLOCK * ML_LANES;

    for (int64_t i = begin; i < end; i++) {
        const int64_t p0 = i / g->tile_pieces * g->piece_panels;
        const int64_t p_end = lesser(p0 + g->piece_panels, panels);
        const int64_t t = i % g->tile_pieces * g->piece_tiles;
        const int64_t t_end = lesser(t + g->piece_tiles, g->tiles);
        for (int64_t d = g->span; d < g->span_end; d += DEPTH_BLOCK)
            for (int64_t p = p0; p < p_end; p += step)
                multiply_block(g, d, p, lesser(step, p_end - p), t, t_end, buf);
    }
}

/* Some pieces per thread, so that a late one costs little, and no wider than their share:
 * first fewer panels, then fewer tiles. */
static int64_t cut_pieces(product *g) {
    const int64_t want = ml_pool_size(g->s->pool) > 1 ? 4 * ml_pool_size(g->s->pool) : 1;
    const int64_t np = g->s->kern->gemm->np, panels = panels_of(g->n_col);
    int64_t panel_pieces;

    g->piece_panels = divide_up(lesser(PIECE_PANELS, divide_up(panels, want)), np) * np;
    panel_pieces = divide_up(panels, g->piece_panels);
    g->piece_tiles = divide_up(g->tiles, divide_up(want, panel_pieces));
    g->tile_pieces = divide_up(g->tiles, g->piece_tiles);
    return panel_pieces * g->tile_pieces;
}

/* The depth runs ascending for each row block; rows are independent. */
static void multiply(product *g) {
    ml_pool *pool = g->s->pool;

    for (g->row = 0; g->row < g->n_row; g->row = g->rows_end) {
        const int64_t rows = lesser(ROW_BLOCK, g->n_row - g->row);
        g->rows_end = g->row + rows;
        g->tiles = divide_up(rows, g->s->kern->gemm->mr);
        g->tile_rows = divide_up(rows, g->tiles);
        for (g->span = 0; g->span < g->n_depth; g->span = g->span_end) {
            g->span_end = lesser(g->span + DEPTH_SPAN, g->n_depth);
            ml_pool_run(pool, divide_up(g->span_end - g->span, DEPTH_BLOCK) * g->tiles, 4,
                        pack_tiles, g);
            ml_pool_run(pool, cut_pieces(g), 1, multiply_pieces, g);
        }
    }
}

static int64_t packed_floats(const ml_gemm_kern *kern, int64_t rows, int64_t depth) {
    return divide_up(lesser(rows, ROW_BLOCK), kern->mr) *
           divide_up(lesser(depth, DEPTH_SPAN), DEPTH_BLOCK) * DEPTH_BLOCK * ML_LANES;
}

size_t ml_gemm_scratch(const ml_cpu_stream *s, const ml_tensor *w, int64_t m) {
    const ml_gemm_kern *kern = s->kern->gemm;
    const int64_t n = w->shape[w->n_dim - 2], k = w->shape[w->n_dim - 1];
    int64_t most = packed_floats(kern, m, k > n ? k : n);

    if (most < packed_floats(kern, k, m))
        most = packed_floats(kern, k, m);
    most += (int64_t)ml_pool_size(s->pool) * kern->np * DEPTH_BLOCK * ML_LANES;
    return (size_t)most * sizeof(float);
}

static void place_scratch(product *g, void *scratch) {
    g->b_buf = scratch;
    g->packed = g->b_buf + (int64_t)ml_pool_size(g->s->pool) * g->s->kern->gemm->np *
                               DEPTH_BLOCK * ML_LANES;
}

/* One tile of rows: weights pass by once, so nothing is packed and nothing is blocked. */
static void stream_panels(void *ud, int64_t begin, int64_t end, int worker) {
    const product *g = ud;
    const int64_t ps = g->n_depth * ML_LANES;
    const void *b = w_at(g->w, begin * ps);
    const bool f32 = g->w->dtype == ML_F32;

    (void)worker;
    g->s->kern->gemm->tile(&(ml_gemm_tile){
        .c = g->c + begin * ML_LANES,
        .c_is = g->c_is,
        .c_ps = g->c_ps,
        .a = g->a,
        .a_is = g->a_is,
        .a_ks = g->a_ks,
        .b = f32 ? b : NULL,
        .b_bf16 = f32 ? NULL : b,
        .b_ks = ML_LANES,
        .b_ps = ps,
        .bias = g->bias ? g->bias + begin * ML_LANES : NULL,
        .k = g->n_depth,
        .mr = (int32_t)g->n_row,
        .np = (int32_t)(end - begin),
        .tail = tail_of(g->n_col, end),
    });
}

void ml_gemm_forward(const ml_cpu_stream *s, float *y, int64_t ldy, const float *x,
                     int64_t ldx, const ml_tensor *w, const float *bias, int64_t m,
                     void *scratch) {
    product g = {
        .s = s,
        .c = y,
        .c_is = ldy,
        .c_ps = ML_LANES,
        .a = x,
        .a_is = ldx,
        .a_ks = 1,
        .b_block = b_panels,
        .w = w,
        .bias = bias,
        .n_row = m,
        .n_col = w->shape[0],
        .n_depth = w->shape[1],
    };
    if (m == 0)
        return;
    if (m <= s->kern->gemm->mr) {
        ml_pool_run(s->pool, panels_of(g.n_col), 8, stream_panels, &g);
        return;
    }
    place_scratch(&g, scratch);
    multiply(&g);
}

void ml_gemm_dinput(const ml_cpu_stream *s, float *dx, int64_t lddx, const float *dy,
                    int64_t lddy, const ml_tensor *w, int64_t m, bool add, void *scratch) {
    product g = {
        .s = s,
        .c = dx,
        .c_is = lddx,
        .c_ps = ML_LANES,
        .a = dy,
        .a_is = lddy,
        .a_ks = 1,
        .b_block = b_transposed,
        .w = w,
        .n_row = m,
        .n_col = w->shape[1],
        .n_depth = w->shape[0],
        .add = add,
    };
    place_scratch(&g, scratch);
    multiply(&g);
}

void ml_gemm_dweight(const ml_cpu_stream *s, const ml_tensor *dw, const float *dy,
                     int64_t lddy, const float *x, int64_t ldx, int64_t m, void *scratch) {
    product g = {
        .s = s,
        .c = dw->data,
        .c_is = ML_LANES,
        .c_ps = dw->shape[1] * ML_LANES,
        .a = x,
        .a_is = 1,
        .a_ks = ldx,
        .b_block = b_columns,
        .dy = dy,
        .lddy = lddy,
        .n_row = dw->shape[1],
        .n_col = dw->shape[0],
        .n_depth = m,
        .add = true,
    };
    place_scratch(&g, scratch);
    multiply(&g);
}
