/* gemm_stream.c - skinny GEMM: forward products with few rows stream the weights once.
 *
 * There is one row tile, or few.  f32 weights are read in place.  Widening bf16 costs an
 * instruction per vector: with few rows one tile, as tall as possible, uses each widened
 * vector; for more rows, or without pairs, gemm.c widens once for all rows.  It is the same
 * with quantized weights. */
#include "backend/cpu/gemm.h"

#include <string.h>

enum {
    TILES = 5,   /* f32: up to this many tiles packing the rows does not pay */
    PANELS = 8,  /* most panels per piece */
    PACKED = 5,  /* from this many rows on packing them pays, except for f32 */
    CHUNK = 128, /* inputs that are rounded at once: the largest group */
};

typedef struct streaming {
    const ml_cpu_stream *s;
    const ml_gemm_out *out;
    int32_t n_out;
    const float *x;
    int64_t ldx, m, k;
    int64_t tiles, tile_rows;
    int64_t pieces;         /* in each output */
    int64_t span, span_end; /* range of the depth */
    float *packed; /* [thread][depth of the span][16], a single tile; NULL: not packed */
    bool has_packed[ML_POOL_MAX]; /* a thread: the span's */
} streaming;

static int64_t lesser(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t divide_up(int64_t a, int64_t b) {
    return (a + b - 1) / b;
}

static int64_t panels_of(const ml_gemm_out *out) {
    return divide_up(out->w->shape[0], ML_LANES);
}

/* Packs the rows of the span; FP8 products round them.  A single row is packed for that only. */
static void pack_span(const streaming *g, float *packed) {
    const ml_gemm_kern *kern = g->s->kern->gemm;
    const int64_t depth = g->span_end - g->span;
    float x[ML_LANES * CHUNK];

    if (!ml_dtype_rounds_inputs(g->out->w->dtype)) {
        kern->pack_rows(packed, g->x + g->span, g->ldx, g->m, depth, ML_LANES);
        return;
    }
    if (g->m == 1) {
        ml_fp8_round(g->out->w->dtype, g->x, g->k, g->span, depth, packed);
        return;
    }
    for (int64_t k = g->span; k < g->span_end; k += CHUNK) {
        const int64_t n = lesser(CHUNK, g->span_end - k);
        for (int64_t i = 0; i < g->m; i++)
            ml_fp8_round(g->out->w->dtype, g->x + i * g->ldx, g->k, k, n, x + i * CHUNK);
        kern->pack_rows(packed + (k - g->span) * ML_LANES, x, CHUNK, g->m, n, ML_LANES);
    }
}

/* The rows of the span as tiles read them.  Each thread packs them for itself: that takes less
 * time than a transfer of packed rows between the caches of two cores. */
static const float *rows_for(streaming *g, int worker) {
    float *packed = g->packed;

    if (!packed)
        return g->x + g->span;
    packed += worker * lesser(g->k, ML_GEMM_SPAN) * ML_LANES;
    if (!g->has_packed[worker])
        pack_span(g, packed);
    g->has_packed[worker] = true;
    return packed;
}

/* The tile of all rows, panels p .. p + np - 1 and the span. */
static ml_gemm_tile tile_of(const streaming *g, const ml_gemm_out *out, const float *rows,
                            int64_t p, int64_t np) {
    const int64_t n = out->w->shape[0];

    return (ml_gemm_tile){
        .c = out->y + p * ML_LANES,
        .a = rows,
        .mr = (int32_t)g->tile_rows,
        .c_is = out->ldy,
        .c_ps = ML_LANES,
        .a_is = g->packed ? 1 : g->ldx,
        .a_ks = g->packed && g->m > 1 ? ML_LANES : 1,
        .b_ks = ML_LANES,
        .b_ps = g->k * ML_LANES,
        .k = g->span_end - g->span,
        .np = (int32_t)np,
        .tail = (p + np) * ML_LANES > n ? (int32_t)(n % ML_LANES) : 0,
        .add = g->span > 0,
        .bias = out->bias && g->span_end == g->k ? out->bias + p * ML_LANES : NULL,
    };
}

/* The first weight, not quantized, that is read of output i in a piece. */
static const void *start_of(const streaming *g, int32_t i, int64_t piece) {
    const ml_tensor *w = g->out[i].w;
    const int64_t panel = piece * panels_of(&g->out[i]) / g->pieces;
    const int64_t at = (panel * g->k + g->span) * ML_LANES;

    return (const char *)w->data + at * (w->dtype == ML_F32 ? 4 : 2);
}

/* Of several tiles over the same panels, each prefetches one of the panels that are read next, so that
 * memory is read all the time. */
static void share_ahead(ml_gemm_tile *tile, const void *next, int64_t i) {
    const uintptr_t panel = (uintptr_t)tile->b_ps * sizeof(float);

    tile->after = NULL;
    tile->next =
        i < tile->np ? (const void *)((uintptr_t)next + (uintptr_t)i * panel) : NULL;
    tile->next_once = tile->next != NULL;
}

/* Panels p .. p + np - 1 of an output for all rows.  The first tile loads them from
 * memory, the others from the L2 cache.  `after` is read next. */
static void stream_rows(const streaming *g, const ml_gemm_out *out, const float *rows,
                        int64_t p, int64_t np, const void *after, bool is_last) {
    const int64_t at = (p * g->k + g->span) * ML_LANES;
    ml_gemm_tile tile = tile_of(g, out, rows, p, np);
    const void *ahead = NULL;
    ml_gemm_codes codes;

    tile.after = after;
    if (ml_dtype_codes(out->w->dtype)) {
        codes = ml_gemm_codes_of(out->w, (const char *)out->w->data +
                                             p * (int64_t)ml_tensor_panel_bytes(out->w));
        tile.b_codes = &codes;
        tile.b_k = g->span;
    } else if (out->w->dtype == ML_F32) {
        tile.b = (const float *)out->w->data + at;
        if (g->tiles > 1)
            ahead = is_last ? after : tile.b + np * tile.b_ps;
    } else {
        tile.b_bf16 = (const uint16_t *)out->w->data + at;
    }
    for (int64_t row = 0; row < g->m; row += g->tile_rows) {
        tile.c = out->y + row * out->ldy + p * ML_LANES;
        if (ahead)
            share_ahead(&tile, ahead, row / g->tile_rows);
        if (!g->packed)
            tile.a = rows + row * g->ldx;
        tile.mr = (int32_t)lesser(g->tile_rows, g->m - row);
        g->s->kern->gemm->tile(&tile);
    }
}

/* Index: piece, a part of every output.  A single tile takes all panels at once, so that
 * many loads are in flight. */
static void stream_pieces(void *ud, int64_t begin, int64_t end, int worker) {
    streaming *g = ud;
    const float *rows = rows_for(g, worker);

    for (int32_t i = 0; i < g->n_out; i++) {
        const int64_t panels = panels_of(&g->out[i]), last = end * panels / g->pieces;
        const int64_t step = g->tiles > 1 ? g->s->kern->gemm->np : panels;
        const bool is_last = i + 1 == g->n_out;
        const void *after = is_last ? start_of(g, 0, end) : start_of(g, i + 1, begin);
        for (int64_t p = begin * panels / g->pieces; p < last; p += step)
            stream_rows(g, &g->out[i], rows, p, lesser(step, last - p), after,
                        p + step >= last);
    }
}

/* A multiple of the number of threads, for balance. */
static int64_t pieces_of(const streaming *g) {
    const int64_t threads = ml_pool_size(g->s->pool);
    int64_t most = 0;

    for (int32_t i = 0; i < g->n_out; i++)
        most = most > panels_of(&g->out[i]) ? most : panels_of(&g->out[i]);
    return divide_up(divide_up(most, PANELS), threads) * threads;
}

/* Tiles over codes have packed rows. */
static bool must_pack(ml_dtype t, int64_t m) {
    return ml_dtype_rounds_inputs(t) || (ml_dtype_codes(t) && m > 1);
}

/* Threads read the weight of the next product in the same shares. */
static ml_pool_ahead next_weight(const ml_cpu_stream *s) {
    if (!s->next)
        return (ml_pool_ahead){ 0 };
    return (ml_pool_ahead){ s->next->data, divide_up(s->next->shape[0], ML_LANES),
                            ml_tensor_panel_bytes(s->next) };
}

bool ml_gemm_stream(const ml_cpu_stream *s, const ml_gemm_out *out, int32_t n,
                    const float *x, int64_t ldx, int64_t m, float *packed) {
    const ml_pool_ahead ahead = next_weight(s);
    const ml_gemm_kern *kern = s->kern->gemm;
    const bool wide = out->w->dtype == ML_F32 && !kern->tall_f32;
    const bool codes = ml_dtype_codes(out->w->dtype) != NULL;
    streaming g = { .s = s,
                    .out = out,
                    .n_out = n,
                    .x = x,
                    .ldx = ldx,
                    .m = m,
                    .k = out->w->shape[1],
                    .tiles = divide_up(m, wide ? kern->mr : kern->tall),
                    .packed = must_pack(out->w->dtype, m) || (!wide && m >= PACKED)
                                  ? packed
                                  : NULL };

    if (g.tiles >
        (wide ? TILES : out->w->dtype == ML_F32 || ml_tensor_has_pairs(out->w) || codes))
        return false;
    g.tile_rows = divide_up(m, g.tiles);
    g.pieces = pieces_of(&g);
    for (; g.span < g.k; g.span = g.span_end) {
        g.span_end = g.packed || g.tiles > 1 ? lesser(g.span + ML_GEMM_SPAN, g.k) : g.k;
        memset(g.has_packed, 0, sizeof g.has_packed);
        ml_pool_run_ahead(s->pool, g.pieces, 1, stream_pieces, &g, &ahead);
    }
    return true;
}
