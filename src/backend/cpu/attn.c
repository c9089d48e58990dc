/* attn.c - attention over KV pages: writes keys and values, divides the work.
 *
 * Forward is divided into (block of positions, KV head).  Early and late blocks, which
 * attend to few and to many keys, alternate, so that every thread's part costs the same.
 * Backward is divided into (sequence, KV head), which share no output.  Where that leaves
 * threads idle (one long sequence, few heads) backward runs twice, over ranges of
 * positions for dq and over ranges of keys for dk and dv: scores are computed twice, but
 * every FMA chain is the same.  Pieces of one sequence (context parallel) and sequences with the
 * same prefix add to the same keys, one after the other. */
#include "backend/cpu/cpu_priv.h"
#include "base/bug.h"

#include <string.h>

#define ATTN_SPLIT 128 /* positions or keys per piece when backward runs twice */

typedef struct attn_call {
    const ml_op_args *args;
    ml_rows rows; /* those of args; a sequence for each chunk where attention has chunks */
    int32_t *key_row; /* chunks: [n_seq] the row of each one's first key */
    const ml_attn_kern *kern;
    ml_pool *pool;
    ml_attn_job job;
    int32_t *piece_start; /* [n_seq+1] first piece of each sequence, under one head */
    bool keys;            /* pieces are of keys, not of positions */
    int32_t turn;         /* only the pieces that have this turn; -1: all */
    int64_t piece;        /* positions (or keys) per piece */
    float *scratch;       /* [thread][floats] */
    int64_t floats;
} attn_call;

static int64_t attn_group(const ml_op_attr *attr) {
    return attr->attn.n_head / attr->attn.n_kv;
}

static int64_t attn_floats(const ml_op_args *a, bool backward) {
    return ml_attn_floats(attn_group(a->attr), a->attr->attn.head_dim,
                          a->attr->attn.value_dim, a->out[2].dtype, backward);
}

size_t ml_cpu_attn_scratch(const ml_cpu_stream *s, const ml_op_args *a, bool backward) {
    int64_t floats = attn_floats(a, backward) * ml_pool_size(s->pool);
    int64_t table = a->in[0].shape[0] + 1; /* a batch has no more sequences than tokens */
    if (a->attr->attn.chunk)
        table *= 5; /* pieces, and the rows of chunks */
    return (size_t)floats * sizeof(float) + (size_t)table * sizeof(int32_t);
}

/* The row of a sequence's first key; with a prefix, the row that it would have among its own. */
static int32_t first_key(const ml_rows *r, int32_t seq) {
    return r->context ? r->context->whole.seq_start[r->context->seq[seq]]
                      : r->seq_start[seq] - r->pos[r->seq_start[seq]];
}

/* Makes each chunk a sequence: rows of different chunks have no keys in common, and the
 * pages of a chunk follow those of the chunk before. */
static void attn_cut_chunks(attn_call *c, int32_t chunk) {
    const ml_rows *whole = c->args->rows;
    int32_t *seq_start = c->piece_start + whole->n_token + 1;
    int32_t *page_start = seq_start + whole->n_token + 1;
    int32_t *pos = page_start + whole->n_token + 1, n = 0;

    c->key_row = pos + whole->n_token + 1;
    for (int32_t i = 0; i < whole->n_seq; i++)
        for (int32_t row = whole->seq_start[i]; row < whole->seq_start[i + 1]; row++) {
            int32_t at = whole->pos[row] % chunk;
            pos[row] = at;
            if (at != 0 && row != whole->seq_start[i])
                continue;
            c->key_row[n] = first_key(whole, i) + whole->pos[row] - at;
            seq_start[n] = row;
            page_start[n++] = whole->page_start[i] + (whole->pos[row] - at) / ML_PAGE;
        }
    seq_start[n] = whole->n_token;
    c->rows.n_seq = n;
    c->rows.seq_start = seq_start;
    c->rows.page_start = page_start;
    c->rows.pos = pos;
}

static attn_call attn_begin(const ml_stream *s, const ml_op_args *a, bool backward) {
    attn_call c = {
        .args = a,
        .rows = *a->rows,
        .kern = ml_cpu(s)->kern->attn,
        .pool = ml_cpu(s)->pool,
        .turn = -1,
    };
    c.job = (ml_attn_job){
        .n_head = a->attr->attn.n_head,
        .n_kv = a->attr->attn.n_kv,
        .head_dim = a->attr->attn.head_dim,
        .value_dim = a->attr->attn.value_dim,
        .window = a->attr->attn.window,
        .scale = a->attr->attn.scale,
        .softcap = a->attr->attn.softcap,
        .sink = a->w[0].data,
        .q = a->in[0].data,
        .o = a->out[0].data,
        .stat = a->out[1].data,
        .kpage = a->out[2].data,
        .vpage = a->out[3].data,
        .page_dtype = a->out[2].dtype,
        .dout = a->dout[0].data,
    };
    c.scratch = a->scratch;
    c.floats = attn_floats(a, backward);
    c.piece_start = (int32_t *)(void *)(c.scratch + ml_pool_size(c.pool) * c.floats);
    if (a->attr->attn.chunk)
        attn_cut_chunks(&c, a->attr->attn.chunk);
    return c;
}

/* The last i < n with start[i] <= x. */
static int32_t attn_find(const int32_t *start, int32_t n, int64_t x) {
    int32_t lo = 0, hi = n;
    while (hi - lo > 1) {
        int32_t mid = lo + (hi - lo) / 2;
        if (start[mid] <= x)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

/* 0, n - 1, 1, n - 2, ...: balances n items of increasing cost, so that the cost of any
 * range is proportional to its length. */
static int64_t attn_fold(int64_t i, int64_t n) {
    return i % 2 ? n - 1 - i / 2 : i / 2;
}

static int32_t attn_key_row(const attn_call *c, int32_t seq) {
    return c->key_row ? c->key_row[seq] : first_key(&c->rows, seq);
}

static int32_t attn_prefix(const attn_call *c, int32_t seq) {
    return c->rows.prefix ? c->rows.prefix[seq] : -1;
}

/* Sequences with the same keys, which follow each other, take turns in adding to their
 * gradients: all those of a tree of prefixes. */
static int32_t attn_turn(const attn_call *c, int32_t seq) {
    int32_t n = 0, root = seq;

    while (attn_prefix(c, root) >= 0)
        root = attn_prefix(c, root);
    if (root < seq)
        return seq - root;
    while (c->rows.context && n < seq &&
           attn_key_row(c, seq - n - 1) == attn_key_row(c, seq))
        n++;
    return n;
}

/* Positions or keys of a sequence that are divided into pieces. */
static int64_t attn_length(const attn_call *c, int32_t seq) {
    int64_t row = c->rows.seq_start[seq], n = c->rows.seq_start[seq + 1] - row;

    if (c->turn >= 0 && attn_turn(c, seq) != c->turn)
        return 0;
    return n && c->keys ? c->rows.pos[row] + n : n;
}

/* Divides each sequence into pieces and runs fn over (piece, KV head).  With many pieces
 * of few rows, one thread takes all heads of a piece, whose keys and values are adjacent
 * in memory. */
static void attn_run(attn_call *c, int64_t piece, ml_task *fn) {
    const ml_rows *rows = &c->rows;
    int64_t n = 0;
    bool few;

    ML_BUG_IF(rows->n_seq > rows->n_token);
    for (int32_t i = 0; i < rows->n_seq; i++) {
        c->piece_start[i] = (int32_t)n;
        n += (attn_length(c, i) + piece - 1) / piece;
    }
    c->piece_start[rows->n_seq] = (int32_t)n;
    c->piece = piece;
    few = n >= 4 * ml_pool_size(c->pool) && rows->n_token <= 4 * n;
    ml_pool_run(c->pool, n * c->job.n_kv, few ? c->job.n_kv : 1, fn, c);
}

/* The sequence and KV head of unit i; *first is the piece's first position within the
 * sequence. */
static ml_attn_span attn_span(const attn_call *c, int64_t i, int64_t *first) {
    const ml_rows *rows = &c->rows;
    int64_t n_piece = c->piece_start[rows->n_seq],
            piece = attn_fold(i / c->job.n_kv, n_piece);
    int32_t seq = attn_find(c->piece_start, rows->n_seq, piece);
    int64_t row = rows->seq_start[seq], n = rows->seq_start[seq + 1] - row;

    *first = (piece - c->piece_start[seq]) * c->piece;
    return (ml_attn_span){ .page = rows->page + rows->page_start[seq],
                           .row = row,
                           .pos = rows->pos[row],
                           .n = n,
                           .key_row = attn_key_row(c, seq),
                           .own = attn_prefix(c, seq) < 0 ? 0 : rows->pos[row],
                           .rows = rows,
                           .prefix = attn_prefix(c, seq),
                           .tile1 = (rows->pos[row] + n + ML_KTILE - 1) / ML_KTILE,
                           .kv = (int32_t)(i % c->job.n_kv),
                           .heads = 1 };
}

/* Restricts a span to at most n positions, from the first-th on. */
static void attn_narrow_rows(ml_attn_span *span, int64_t first, int64_t n) {
    span->row += first;
    span->pos += first;
    span->n = span->n - first < n ? span->n - first : n;
    span->tile1 = (span->pos + span->n + ML_KTILE - 1) / ML_KTILE;
}

/* Restricts a span to at most n keys, from the first-th on. */
static void attn_narrow_keys(ml_attn_span *span, int64_t first, int64_t n) {
    span->tile0 = first / ML_KTILE;
    if (span->tile1 - span->tile0 > n / ML_KTILE)
        span->tile1 = span->tile0 + n / ML_KTILE;
}

/* Writes k to slot pos % 16 of its page's panels, v to the slot's row, padding included. */
static void attn_write_row(const attn_call *c, int64_t row, int64_t page, int64_t slot) {
    int64_t n_kv = c->job.n_kv, n = n_kv * c->job.head_dim, d = c->job.value_dim;
    int64_t width = ml_attn_width(d);
    const float *k = (const float *)c->args->in[1].data + row * n;
    const float *v = (const float *)c->args->in[2].data + row * n_kv * d;
    float *kpage = (float *)c->args->out[2].data + page * n * ML_PAGE;
    float *vpage = (float *)c->args->out[3].data;

    for (int64_t i = 0; i < n; i++)
        kpage[i * ML_PAGE + slot] = k[i];
    if (!vpage) /* values are prefixes of keys */
        return;
    vpage += page * n_kv * width * ML_PAGE;
    for (int64_t h = 0; h < n_kv; h++) {
        float *dst = vpage + (h * ML_PAGE + slot) * width;
        memcpy(dst, v + h * d, (size_t)d * sizeof *v);
        memset(dst + d, 0, (size_t)(width - d) * sizeof *v);
    }
}

/* The same, rounded to bf16: keys are panels of a matrix [Hk*16, d], the values of a head
 * panels of a matrix [e+, 16], so that two keys form a pair. */
static void attn_round_row(const attn_call *c, int64_t row, int64_t page, int64_t slot) {
    int64_t n_kv = c->job.n_kv, d = c->job.head_dim, e = c->job.value_dim;
    int64_t width = ml_attn_width(e);
    const ml_tensor keys = {
        .dtype = ML_BF16, .layout = ML_PANELS, .n_dim = 2, .shape = { n_kv * ML_PAGE, d }
    };
    const float *k = (const float *)c->args->in[1].data + row * n_kv * d;
    const float *v = (const float *)c->args->in[2].data + row * n_kv * e;
    uint16_t *kpage = (uint16_t *)c->args->out[2].data + page * n_kv * d * ML_PAGE;
    uint16_t *vpage = (uint16_t *)c->args->out[3].data;

    for (int64_t h = 0; h < n_kv; h++, k += d) {
        ml_row_walk walk = ml_tensor_row(&keys, h * ML_PAGE + slot);
        for (int64_t i = 0; i < d; i++)
            kpage[ml_row_at(walk, i)] = ml_f32_to_bf16(k[i]);
    }
    if (!vpage)
        return;
    vpage += page * n_kv * width * ML_PAGE + slot / 2 * 2 * ML_LANES + slot % 2;
    for (int64_t h = 0; h < n_kv; h++, v += e, vpage += width * ML_PAGE)
        for (int64_t i = 0; i < width; i++)
            vpage[i / ML_LANES * ML_LANES * ML_PAGE + i % ML_LANES * 2] =
                i < e ? ml_f32_to_bf16(v[i]) : 0;
}

/* Codes in the order of f32 pages; after those of each head the scales of its 16 keys. */
static void attn_encode_row(const attn_call *c, int64_t row, int64_t page, int64_t slot,
                            uint8_t *code) {
    const ml_dtype t = c->job.page_dtype;
    int64_t n_kv = c->job.n_kv, d = c->job.head_dim, e = c->job.value_dim;
    int64_t width = ml_attn_width(e), k_bytes = ml_attn_head_bytes(t, d),
            v_bytes = ml_attn_head_bytes(t, width);
    const float *k = (const float *)c->args->in[1].data + row * n_kv * d;
    const float *v = (const float *)c->args->in[2].data + row * n_kv * e;
    unsigned char *kpage = (unsigned char *)c->args->out[2].data + page * n_kv * k_bytes;
    unsigned char *vpage = c->args->out[3].data;

    for (int64_t h = 0; h < n_kv; h++, k += d, kpage += k_bytes) {
        const float scale = ml_kv_encode(t, k, d, code);
        for (int64_t i = 0; i < d; i++)
            kpage[i * ML_PAGE + slot] = code[i];
        memcpy(kpage + d * ML_PAGE + slot * ML_KV_SCALE_BYTES, &scale, sizeof scale);
    }
    if (!vpage)
        return;
    vpage += page * n_kv * v_bytes;
    for (int64_t h = 0; h < n_kv; h++, v += e, vpage += v_bytes) {
        const float scale = ml_kv_encode(t, v, e, vpage + slot * width);
        memset(vpage + slot * width + e, 0, (size_t)(width - e));
        memcpy(vpage + width * ML_PAGE + slot * ML_KV_SCALE_BYTES, &scale, sizeof scale);
    }
}

static void attn_write_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const attn_call *c = ud;
    const ml_rows *rows = ml_key_rows(c->args->rows);

    for (int64_t i = begin; i < end; i++) { /* in the order of pieces of one row each */
        int64_t row = attn_fold(i, rows->n_token);
        int32_t seq = attn_find(rows->seq_start, rows->n_seq, row), pos = rows->pos[row];
        int64_t entry = rows->page_start[seq] + pos / ML_PAGE;
        if (ml_dtype_is_kv_codes(c->job.page_dtype))
            attn_encode_row(c, row, rows->page[entry], pos % ML_PAGE,
                            (uint8_t *)(c->scratch + worker * c->floats));
        else if (c->job.page_dtype == ML_BF16)
            attn_round_row(c, row, rows->page[entry], pos % ML_PAGE);
        else
            attn_write_row(c, row, rows->page[entry], pos % ML_PAGE);
    }
}

/* Widens the span to as many KV heads of the same piece as it may process together, at
 * most `units`.  Returns their number. */
static int64_t attn_take_heads(const attn_call *c, ml_attn_span *span, int64_t units) {
    int64_t most = ml_attn_heads(&c->job, span->n);
    int64_t left = c->job.n_kv - span->kv;

    most = most < left ? most : left;
    span->heads = (int32_t)(most < units ? most : units);
    return span->heads;
}

static void attn_forward_pieces(void *ud, int64_t begin, int64_t end, int worker) {
    const attn_call *c = ud;
    for (int64_t i = begin; i < end;) {
        int64_t first;
        ml_attn_span span = attn_span(c, i, &first);
        attn_narrow_rows(&span, first, c->piece);
        i += attn_take_heads(c, &span, end - i);
        c->kern->forward(&c->job, &span, c->scratch + worker * c->floats);
    }
}

void ml_cpu_attn_forward(ml_stream *s, const ml_op_args *a) {
    attn_call c = attn_begin(s, a, false);
    int64_t lines = c.job.n_kv * c.job.head_dim; /* cache lines of a row's key */

    ml_pool_run(c.pool, ml_key_rows(a->rows)->n_token, ml_cpu_grain(lines * ML_LANES),
                attn_write_rows, &c);
    attn_run(&c, ml_attn_positions(attn_group(a->attr)), attn_forward_pieces);
}

static void attn_backward_pieces(void *ud, int64_t begin, int64_t end, int worker) {
    const attn_call *c = ud;
    for (int64_t i = begin; i < end; i++) {
        int64_t first;
        ml_attn_span span = attn_span(c, i, &first);
        if (c->job.dq)
            attn_narrow_rows(&span, first, c->piece);
        else
            attn_narrow_keys(&span, first, c->piece);
        c->kern->backward(&c->job, &span, c->scratch + worker * c->floats);
    }
}

/* One run computes five products of (rows x keys), two runs compute seven.  Two runs pay
 * when five products of the longest sequence take longer than a thread's equal share of
 * seven. */
static bool attn_runs_twice(const attn_call *c) {
    const ml_rows *rows = &c->rows;
    double longest = 0.0, sum = 0.0;

    for (int32_t i = 0; i < rows->n_seq; i++) {
        double n = rows->seq_start[i + 1] - rows->seq_start[i];
        double before = n > 0 ? rows->pos[rows->seq_start[i]] : 0;
        double cost = n * (n + 2 * before);
        ML_BUG_IF(before > 0 && !rows->context &&
                  attn_prefix(c, i) < 0); /* keys without a gradient */
        longest = cost > longest ? cost : longest;
        sum += cost;
    }
    return 5.0 * longest * ml_pool_size(c->pool) > 7.0 * sum * c->job.n_kv;
}

static void attn_clear(const ml_tensor *t) {
    if (t->data)
        memset(t->data, 0, ml_tensor_bytes(t));
}

static void attn_sink_heads(void *ud, int64_t begin, int64_t end, int worker) {
    const attn_call *c = ud;
    const int32_t *start = c->args->rows->seq_start;
    float *dsink = c->args->dw[0].data;

    (void)worker;
    for (int64_t head = begin; head < end; head++)
        for (int32_t i = 0; i < c->args->rows->n_seq; i++)
            dsink[head] +=
                c->kern->sink_grad(&c->job, (int32_t)head, start[i], start[i + 1]);
}

void ml_cpu_attn_backward(ml_stream *s, const ml_op_args *a) {
    attn_call c = attn_begin(s, a, true);
    int64_t whole = (int64_t)ml_key_rows(a->rows)->n_token + ML_KTILE;
    int32_t turns = 1;
    bool twice = a->din[0].data && attn_runs_twice(&c);

    for (int i = 1; i < ML_OP_IN; i++)
        if (!a->din_add[i])
            attn_clear(&a->din[i]);
    c.job.dq = a->din[0].data;
    c.job.dq_add = a->din_add[0];
    if (twice) {
        attn_run(&c, ATTN_SPLIT, attn_backward_pieces);
        c.job.dq = NULL;
    }
    c.job.dk = a->din[1].data;
    c.job.dv = a->din[2].data;
    c.keys = twice || !c.job.dq;
    for (int32_t i = 0; i < c.rows.n_seq; i++)
        turns = attn_turn(&c, i) + 1 > turns ? attn_turn(&c, i) + 1 : turns;
    for (c.turn = 0; c.turn < turns; c.turn++)
        attn_run(&c, twice ? ATTN_SPLIT : whole, attn_backward_pieces);
    if (a->dw[0].data)
        ml_pool_run(c.pool, c.job.n_head, 1, attn_sink_heads, &c);
}
