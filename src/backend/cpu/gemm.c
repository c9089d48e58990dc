/* gemm.c - packed-panel GEMM: divides the three products into the micro-kernel's tiles.
 *
 * All three are c[rows, cols] (+)= a[rows, depth] b[depth, cols]:
 *
 *               rows  depth  cols    a      b              c
 *     forward   m     K      N       x      panels of w    y
 *     dinput    m     N      K       dy     w transposed   dx
 *     dweight   K     m      N       x^T    dy             panels of dw
 *
 * The cache blocking is that of GotoBLAS/BLIS.  For a block of rows and a span of depth,
 * all threads pack a into tiles [depth][16], then share pieces of the output.  Pieces are
 * numbered rows first, so that a thread starts with tiles that it packed, of rows that it
 * computed, which are still in its own caches.  A piece iterates over the depth in
 * blocks; in each block it loads np panels of b into the L1 cache and runs all its row
 * tiles over them, while a streams from the L2 cache.  Later blocks continue the FMA
 * chains from c, so blocking does not change the bits; except by_block, where dinput and
 * dweight add the blocks' chains, and where dweight has sequences, its blocks are theirs.
 *
 * Forward may have several outputs, each with its own w: a is then packed once for all. */
#include "backend/cpu/gemm.h"

#include <string.h>

enum {
    DEPTH_BLOCK = ML_GEMM_SPAN / 6, /* np panels of this depth nearly fit the L1 cache */
    CHAIN_ROWS = DEPTH_BLOCK / 2,   /* of a sequence, in a chain of dweight */
    ROW_BLOCK = 512,                /* rows x DEPTH_BLOCK of a fit the L2 cache */
    PIECE_PANELS = 16,              /* panels per piece: the reuse of a row block */
    PIECE_PANELS_MIN = 4,           /* a multiple of every kernel's np */
    PART_TILES = 8,                 /* tiles that amortize loading b once more */
    LINE = 64,                      /* bytes of a cache line */
    MOST_PANELS = 2,                /* np of a kernel */
    MOST_LISTS =
        MOST_PANELS + DEPTH_BLOCK / ML_LANES + 2, /* of lines: tile of c, block of b */
};

typedef enum b_source {
    B_PANELS,     /* forward: f32 weights in place; others are widened or decoded */
    B_TRANSPOSED, /* dinput: 16 inputs k x 16 outputs n of the weights, transposed */
    B_COLUMNS,    /* dweight: 16 columns of dy, gathered */
} b_source;

typedef struct product {
    const ml_cpu_stream *s;
    const ml_gemm_out *out; /* [n_out] forward: they share a; NULL: c is the only output */
    int32_t n_out;
    float *c;
    const float *a, *bias;
    const void *b;
    const ml_tensor *w; /* the weight b, of which it has the dtype and K; NULL: dy */
    b_source b_source;
    int64_t c_is, c_ps, a_is, a_ks, b_ld; /* b_ld: elements per row of dy */
    int64_t b_panel;                      /* bytes per panel of w */
    int64_t n_row, n_col, n_depth;
    bool add;       /* chains start from c */
    bool by_block;  /* each block is a chain from +0; they are added */
    bool from_zero; /* the first of them to +0 */

    int32_t *cut; /* [n_block+1] where the blocks of the depth begin, and its end */
    int64_t n_block;
    float *packed; /* [block of the span][tile][depth of the block][lanes] */
    float *b_buf;  /* [thread][np][DEPTH_BLOCK][16] */

    /* The current step, common to all threads. */
    int64_t row, rows_end;           /* the row block */
    int64_t tiles, tile_rows, parts; /* its tiles, most rows per tile, ranges of tiles */
    int64_t span, span_end;          /* range of blocks that are packed */
    int64_t group;                   /* tiles that are packed together */
    int64_t piece_panels, piece_tiles, panel_pieces;
} product;

static int64_t lesser(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static int64_t panels_of(int64_t n) {
    return divide_up(n, ML_LANES);
}

/* The lanes of the last panel of a range, if it ends with column n_col; 0: all. */
static int32_t tail_of(int64_t n_col, int64_t panel_end) {
    return panel_end * ML_LANES > n_col ? (int32_t)(n_col % ML_LANES) : 0;
}

/* A block of b: np panels from panel p, for `depth` from d, which is block `i` of the depth. */
typedef struct block {
    int64_t p, np, i, d, depth;
} block;

/* The source of a block: n runs of cache lines, `stride` bytes apart. */
typedef struct runs {
    ml_gemm_lines first;
    int64_t n, stride;
} runs;

/* Where the weights of a panel begin, for 16 outputs and inputs from k on. */
static const char *weights_at(const product *g, int64_t panel, int64_t k) {
    const ml_codes *f = ml_dtype_codes(g->w->dtype);
    const char *b = (const char *)g->b + panel * g->b_panel;

    if (f)
        return b + ml_codes_scale_bytes(g->w->dtype, g->w->shape[1]) +
               k / 8 * ML_LANES * f->bits;
    return b + k * ML_LANES * (int64_t)ml_dtype_bytes(g->w->dtype);
}

/* Bytes of a panel's weights for n inputs. */
static int64_t weight_bytes(const product *g, int64_t n) {
    const ml_codes *f = ml_dtype_codes(g->w->dtype);

    return n * ML_LANES * (f ? f->bits : 8 * (int64_t)ml_dtype_bytes(g->w->dtype)) / 8;
}

static ml_gemm_lines contiguous(const char *at, int64_t bytes) {
    return (ml_gemm_lines){ at, divide_up(bytes, LINE), LINE };
}

static runs block_runs(const product *g, block blk) {
    const int64_t size = sizeof(float);
    const char *at;

    switch (g->b_source) {
    case B_PANELS:
        return (runs){ contiguous(weights_at(g, blk.p, blk.d), weight_bytes(g, blk.depth)),
                       blk.np, g->b_panel };
    case B_TRANSPOSED: /* d is a multiple of 16 */
        at = weights_at(g, blk.d / ML_LANES, blk.p * ML_LANES);
        return (runs){ contiguous(at, weight_bytes(g, blk.np * ML_LANES)),
                       divide_up(blk.depth, ML_LANES), g->b_panel };
    case B_COLUMNS: break;
    }
    at = (const char *)g->b + (blk.d * g->b_ld + blk.p * ML_LANES) * size;
    return (runs){ { at, blk.depth, g->b_ld * size }, blk.np, ML_LANES * size };
}

/* Widens or dequantizes n vectors of a panel, from input k on, a multiple of 8. */
static void expand(const product *g, float *dst, int64_t panel, int64_t k, int64_t n) {
    const ml_gemm_kern *kern = g->s->kern->gemm;

    if (ml_dtype_codes(g->w->dtype)) {
        const ml_gemm_codes codes =
            ml_gemm_codes_of(g->w, (const char *)g->b + panel * g->b_panel);
        kern->decode(dst, &codes, k, n);
    } else if (ml_tensor_has_pairs(g->w)) {
        kern->widen_pairs(dst, (const void *)weights_at(g, panel, k), n);
    } else {
        kern->widen(dst, (const void *)weights_at(g, panel, k), n);
    }
}

static void transpose_weights(const product *g, float *buf, block blk) {
    const ml_gemm_kern *kern = g->s->kern->gemm;
    float wide[ML_LANES * ML_LANES];

    for (int64_t n = 0; n < divide_up(blk.depth, ML_LANES); n++)
        for (int64_t i = 0; i < blk.np; i++) {
            const int64_t k = (blk.p + i) * ML_LANES, rows = lesser(ML_LANES, g->n_col - k);
            const int64_t panel = blk.d / ML_LANES + n;
            const float *src = wide;
            if (g->w->dtype == ML_F32)
                src = (const void *)weights_at(g, panel, k);
            else
                expand(g, wide, panel, k, rows);
            kern->pack_rows(buf + (i * DEPTH_BLOCK + n * ML_LANES) * ML_LANES, src,
                            ML_LANES, rows, ML_LANES, ML_LANES);
        }
}

/* The block as panels [np][*b_ps / 16][16]: in place if it has this layout, else in buf. */
static const float *block_panels(const product *g, float *buf, block blk, int64_t *b_ps) {
    const ml_gemm_kern *kern = g->s->kern->gemm;

    *b_ps = DEPTH_BLOCK * ML_LANES;
    switch (g->b_source) {
    case B_PANELS:
        if (g->w->dtype == ML_F32) {
            *b_ps = g->w->shape[1] * ML_LANES;
            return (const void *)weights_at(g, blk.p, blk.d);
        }
        for (int64_t i = 0; i < blk.np; i++)
            expand(g, buf + i * *b_ps, blk.p + i, blk.d, blk.depth);
        break;
    case B_TRANSPOSED: transpose_weights(g, buf, blk); break;
    case B_COLUMNS:
        for (int64_t i = 0; i < blk.np; i++) {
            const int64_t col = (blk.p + i) * ML_LANES;
            kern->pack_columns(buf + i * *b_ps, (const float *)g->b + blk.d * g->b_ld + col,
                               g->b_ld, lesser(ML_LANES, g->n_col - col), blk.depth,
                               ML_LANES);
        }
        break;
    }
    return buf;
}

/* The cache lines of a future block that have not been prefetched yet. */
typedef struct ahead {
    runs left;    /* the first of them partly, if done */
    int64_t done; /* lines of the first run */
} ahead;

/* Appends the next n of them to the lists of a tile. */
static void list_lines(ml_gemm_tile *tile, ml_gemm_lines *list, ahead *h, int64_t n) {
    while (n > 0 && h->left.n > 0) {
        const ml_gemm_lines *run = &h->left.first;
        const int64_t some = lesser(n, run->n - h->done);
        list[tile->n_ahead++] =
            (ml_gemm_lines){ run->at + h->done * run->stride, some, run->stride };
        n -= some;
        h->done += some;
        if (h->done == run->n) {
            h->left.n--;
            h->left.first.at += h->left.stride;
            h->done = 0;
        }
    }
}

/* The first row of a tile; rows are divided evenly.  A division of 64 bits takes as long as
 * 2 % of a tile. */
static int64_t tile_row(const product *g, int64_t tile) {
    const uint32_t rows = (uint32_t)(g->rows_end - g->row);

    return g->row + (uint32_t)tile * rows / (uint32_t)g->tiles;
}

/* Of block i. */
static float *packed_tile(const product *g, int64_t i, int64_t tile) {
    const int64_t before = g->cut[i] - g->cut[g->span], depth = g->cut[i + 1] - g->cut[i];

    return g->packed + (before * g->tiles + tile * depth) * g->s->kern->gemm->lanes;
}

/* Rows of the input that FP8 products round (tensor/codes.h), packed. */
static void pack_rounded(const product *g, float *dst, int64_t row, int64_t rows, int64_t d,
                         int64_t depth) {
    float x[ML_LANES * DEPTH_BLOCK];

    for (int64_t i = 0; i < rows; i++)
        ml_fp8_round(g->w->dtype, g->a + (row + i) * g->a_is, g->n_depth, d, depth,
                     x + i * DEPTH_BLOCK);
    g->s->kern->gemm->pack_rows(dst, x, DEPTH_BLOCK, rows, depth, g->s->kern->gemm->lanes);
}

static void pack_tile(const product *g, int64_t tile, int64_t at) {
    const ml_gemm_kern *kern = g->s->kern->gemm;
    const int64_t d = g->cut[at], depth = g->cut[at + 1] - d;
    const int64_t row = tile_row(g, tile), rows = tile_row(g, tile + 1) - row;
    const float *src = g->a + row * g->a_is + d * g->a_ks;
    float *dst = packed_tile(g, at, tile);

    if (g->b_source == B_PANELS && ml_dtype_rounds_inputs(g->w->dtype))
        pack_rounded(g, dst, row, rows, d, depth);
    else if (g->a_ks == 1)
        kern->pack_rows(dst, src, g->a_is, rows, depth, kern->lanes);
    else
        kern->pack_columns(dst, src, g->a_ks, rows, depth, kern->lanes);
}

/* Index: group of tiles * blocks of the span + block. */
static void pack_groups(void *ud, int64_t begin, int64_t end, int worker) {
    const product *g = ud;
    const int64_t blocks = g->span_end - g->span;

    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        const int64_t first = i / blocks * g->group;
        for (int64_t t = first; t < lesser(first + g->group, g->tiles); t++)
            pack_tile(g, t, g->span + i % blocks);
    }
}

/* The fields common to all tiles over a block. */
static ml_gemm_tile tile_of(const product *g, block blk) {
    return (ml_gemm_tile){
        .c_is = g->c_is,
        .c_ps = g->c_ps,
        .b_ks = ML_LANES,
        .k = blk.depth,
        .np = (int32_t)blk.np,
        .tail = tail_of(g->n_col, blk.p + blk.np),
        .add = !g->by_block && (g->add || blk.d > 0),
        .onto = g->by_block && (g->add || blk.d > 0),
        .onto_zero = g->from_zero && blk.d == 0,
        .bias =
            g->bias && blk.d + blk.depth == g->n_depth ? g->bias + blk.p * ML_LANES : NULL,
    };
}

/* Appends the outputs of the next tile. */
static void list_output(const product *g, ml_gemm_tile *tile, ml_gemm_lines *list) {
    const float *c = tile->c + tile->mr * g->c_is;

    for (int64_t p = 0; p < tile->np; p++)
        list[tile->n_ahead++] =
            (ml_gemm_lines){ (const char *)(c + p * g->c_ps), g->tile_rows,
                             g->c_is * (int64_t)sizeof *c };
}

/* Multiplies one block of b with tiles t .. t_end - 1, and prefetches `next` meanwhile. */
static void multiply_block(const product *g, block blk, runs next, int64_t t, int64_t t_end,
                           float *buf) {
    const int64_t share = divide_up(next.n * next.first.n, t_end - t);
    ml_gemm_lines list[MOST_LISTS];
    ahead to_come = { .left = next };
    ml_gemm_tile tile = tile_of(g, blk);

    tile.a_is = 1;
    tile.a_ks = g->s->kern->gemm->lanes;
    tile.b = block_panels(g, buf, blk, &tile.b_ps);
    tile.ahead = list;
    for (int64_t row = tile_row(g, t), next_row; t < t_end; t++, row = next_row) {
        next_row = tile_row(g, t + 1);
        tile.mr = (int32_t)(next_row - row);
        tile.a = packed_tile(g, blk.i, t);
        tile.c = g->c + row * g->c_is + blk.p * g->c_ps;
        tile.n_ahead = 0;
        if (t + 1 < t_end)
            list_output(g, &tile, list);
        list_lines(&tile, list, &to_come, share);
        g->s->kern->gemm->tile(&tile);
    }
}

/* Panels p .. p_end - 1, at most `step` of them, in block i; no depth: past the span. */
static block block_at(const product *g, int64_t p, int64_t p_end, int64_t i) {
    block blk = { .p = p, .np = lesser(g->s->kern->gemm->np, p_end - p), .i = i };

    if (i < g->span_end) {
        blk.d = g->cut[i];
        blk.depth = g->cut[i + 1] - blk.d;
    }
    return blk;
}

/* Index: range of tiles * panel_pieces + range of panels. */
static void multiply_pieces(void *ud, int64_t begin, int64_t end, int worker) {
    const product *g = ud;
    const int64_t step = g->s->kern->gemm->np, panels = panels_of(g->n_col);
    float *buf = g->b_buf + worker * step * DEPTH_BLOCK * ML_LANES;

    for (int64_t i = begin; i < end; i++) {
        const int64_t p0 = i % g->panel_pieces * g->piece_panels;
        const int64_t p_end = lesser(p0 + g->piece_panels, panels);
        const int64_t t = i / g->panel_pieces * g->piece_tiles;
        const int64_t t_end = lesser(t + g->piece_tiles, g->tiles);
        block blk = block_at(g, p0, p_end, g->span);
        while (blk.depth > 0) {
            block next = blk.p + step < p_end ? block_at(g, blk.p + step, p_end, blk.i)
                                              : block_at(g, p0, p_end, blk.i + 1);
            multiply_block(g, blk, next.depth > 0 ? block_runs(g, next) : (runs){ 0 }, t,
                           t_end, buf);
            blk = next;
        }
    }
}

/* Several pieces per thread, so that a late one costs little: first by fewer panels, then
 * by fewer tiles per piece.  Returns the number of pieces. */
static int64_t cut_pieces(product *g) {
    const int64_t threads = ml_pool_size(g->s->pool), want = threads > 1 ? 4 * threads : 1;
    const int64_t panels = panels_of(g->n_col);
    const int64_t share = divide_up(panels, divide_up(want, g->parts));
    int64_t ranges;

    g->piece_panels = PIECE_PANELS;
    while (g->piece_panels > PIECE_PANELS_MIN && g->piece_panels > share)
        g->piece_panels /= 2;
    g->panel_pieces = divide_up(panels, g->piece_panels);
    ranges = divide_up(want, g->panel_pieces);
    g->piece_tiles = divide_up(g->tiles, ranges > g->parts ? ranges : g->parts);
    return divide_up(g->tiles, g->piece_tiles) * g->panel_pieces;
}

/* Number of ranges into which the tiles of so many rows are divided: one per thread, if
 * there are enough. */
static int64_t parts_of(const ml_cpu_stream *s, int64_t rows) {
    const int64_t tiles = divide_up(rows, s->kern->gemm->mr);

    return tiles > PART_TILES ? lesser(ml_pool_size(s->pool), divide_up(tiles, PART_TILES))
                              : 1;
}

/* Number of tiles, the same in each part.  Fewer rows, or a single part, never make more
 * tiles: scratch is sized for the maximum. */
static int64_t tiles_of(const ml_cpu_stream *s, int64_t rows, int64_t parts) {
    return divide_up(divide_up(rows, s->kern->gemm->mr), parts) * parts;
}

/* Selects one of the outputs of a forward product. */
static void to_output(product *g, int32_t i) {
    const ml_gemm_out *out = &g->out[i];

    g->c = out->y;
    g->c_is = out->ldy;
    g->bias = out->bias;
    g->b = out->w->data;
    g->n_col = out->w->shape[0];
}

static void multiply_outputs(product *g) {
    if (!g->out)
        ml_pool_run(g->s->pool, cut_pieces(g), 1, multiply_pieces, g);
    for (int32_t i = 0; i < g->n_out; i++) {
        to_output(g, i);
        ml_pool_run(g->s->pool, cut_pieces(g), 1, multiply_pieces, g);
    }
}

/* The end of the span that begins with block `first`. */
static int64_t span_of(const product *g, int64_t first) {
    int64_t end = first + 1;

    while (end < g->n_block && g->cut[end + 1] - g->cut[first] <= ML_GEMM_SPAN)
        end++;
    return end;
}

/* Columns of neighbouring tiles share cache lines: a thread packs all its tiles of a block before it goes
 * on to the next one. */
static void pack_span(product *g) {
    const int64_t threads = ml_pool_size(g->s->pool);
    const bool columns = g->a_ks != 1;

    g->group = columns ? divide_up(g->tiles, threads) : 1;
    ml_pool_run(g->s->pool, (g->span_end - g->span) * divide_up(g->tiles, g->group),
                columns ? 1 : 4, pack_groups, g);
}

/* For each row block the depth ascends; row blocks are independent. */
static void multiply(product *g) {
    for (g->row = 0; g->row < g->n_row; g->row = g->rows_end) {
        const int64_t rows = lesser(ROW_BLOCK, g->n_row - g->row);
        g->rows_end = g->row + rows;
        /* Columns of dy are scattered: only one thread gathers each of them. */
        g->parts = g->b_source == B_COLUMNS ? 1 : parts_of(g->s, rows);
        g->tiles = tiles_of(g->s, rows, g->parts);
        g->tile_rows = divide_up(rows, g->tiles);
        for (g->span = 0; g->span < g->n_block; g->span = g->span_end) {
            g->span_end = span_of(g, g->span);
            pack_span(g);
            multiply_outputs(g);
        }
    }
}

static int64_t packed_floats(const ml_cpu_stream *s, int64_t rows, int64_t depth) {
    rows = lesser(rows, ROW_BLOCK);
    return tiles_of(s, rows, parts_of(s, rows)) *
           divide_up(lesser(depth, ML_GEMM_SPAN), DEPTH_BLOCK) * DEPTH_BLOCK * ML_LANES;
}

/* Of the cuts of a depth, with sequences of one row at worst. */
static int64_t cut_floats(int64_t depth) {
    return divide_up(depth + 1, ML_LANES) * ML_LANES;
}

/* Of the rows that each thread packs in ml_gemm_stream. */
static int64_t stream_floats(const ml_cpu_stream *s, int64_t k) {
    return ml_pool_size(s->pool) * lesser(k, ML_GEMM_SPAN) * ML_LANES;
}

size_t ml_gemm_scratch(const ml_cpu_stream *s, const ml_tensor *w, int64_t m) {
    const ml_gemm_kern *kern = s->kern->gemm;
    const int64_t n = w->shape[w->n_dim - 2], k = w->shape[w->n_dim - 1];
    int64_t most = packed_floats(s, m, k > n ? k : n);

    if (most < packed_floats(s, k, m))
        most = packed_floats(s, k, m);
    most += (int64_t)ml_pool_size(s->pool) * kern->np * DEPTH_BLOCK * ML_LANES;
    most += cut_floats(k > n ? k : n) + cut_floats(m);
    if (most < stream_floats(s, k))
        most = stream_floats(s, k);
    return (size_t)most * sizeof(float);
}

/* Cuts the depth up to `end` into blocks. */
static void cut_depth(product *g, int64_t end) {
    const int64_t most = g->by_block && g->b_source == B_COLUMNS ? CHAIN_ROWS : DEPTH_BLOCK;

    for (int64_t d = g->cut[g->n_block]; d < end; d = g->cut[g->n_block])
        g->cut[++g->n_block] = (int32_t)lesser(d + most, end);
}

static void place_scratch(product *g, void *scratch) {
    g->cut = scratch;
    g->cut[0] = 0;
    g->b_buf = (float *)scratch + cut_floats(g->n_depth);
    g->packed = g->b_buf + (int64_t)ml_pool_size(g->s->pool) * g->s->kern->gemm->np *
                               DEPTH_BLOCK * ML_LANES;
}

void ml_gemm_forward(const ml_cpu_stream *s, const ml_gemm_out *out, int32_t n,
                     const float *x, int64_t ldx, int64_t m, void *scratch) {
    const ml_tensor *w = out->w;
    product g = {
        .s = s,
        .out = out,
        .n_out = n,
        .c_ps = ML_LANES,
        .a = x,
        .a_is = ldx,
        .a_ks = 1,
        .w = w,
        .b_source = B_PANELS,
        .b_panel = (int64_t)ml_tensor_panel_bytes(w),
        .n_row = m,
        .n_depth = w->shape[1],
    };
    if (m == 0 || ml_gemm_stream(s, out, n, x, ldx, m, scratch))
        return;
    place_scratch(&g, scratch);
    cut_depth(&g, g.n_depth);
    multiply(&g);
}

void ml_gemm_dinput(const ml_cpu_stream *s, float *dx, int64_t lddx, const float *dy,
                    int64_t lddy, const ml_tensor *w, int64_t m, bool add, bool by_block,
                    void *scratch) {
    product g = {
        .s = s,
        .c = dx,
        .c_is = lddx,
        .c_ps = ML_LANES,
        .a = dy,
        .a_is = lddy,
        .a_ks = 1,
        .b = w->data,
        .w = w,
        .b_source = B_TRANSPOSED,
        .b_panel = (int64_t)ml_tensor_panel_bytes(w),
        .n_row = m,
        .n_col = w->shape[1],
        .n_depth = w->shape[0],
        .add = add,
        .by_block = by_block,
    };
    place_scratch(&g, scratch);
    cut_depth(&g, g.n_depth);
    multiply(&g);
}

void ml_gemm_dweight(const ml_cpu_stream *s, const ml_tensor *dw, const float *dy,
                     int64_t lddy, const float *x, int64_t ldx, int64_t m,
                     const ml_row_runs *seqs, bool add, void *scratch) {
    product g = {
        .s = s,
        .c = dw->data,
        .c_is = ML_LANES,
        .c_ps = dw->shape[1] * ML_LANES,
        .a = x,
        .a_is = 1,
        .a_ks = ldx,
        .b = dy,
        .b_source = B_COLUMNS,
        .b_ld = lddy,
        .n_row = dw->shape[1],
        .n_col = dw->shape[0],
        .n_depth = m,
        .add = add,
        .by_block = seqs != NULL,
        .from_zero = seqs && !add,
    };
    if (m == 0 && !add)
        memset(dw->data, 0, ml_tensor_bytes(dw));
    place_scratch(&g, scratch);
    for (int64_t end = 0; seqs && end < m; cut_depth(&g, end))
        end = ml_row_run_end(seqs, end, m);
    cut_depth(&g, m);
    multiply(&g);
}
