/* pieces.c - context parallelism: the rows of a rank are pieces of sequences, whose keys it has
 * whole, followed by rows without a token. */
#include "tests/checkop/checkop.h"

#include <math.h>
#include <string.h>

#include "train/context.h"

enum { MOST_RANKS = 3 };

typedef struct division {
    const ck_case *c;
    ck_pieces_of of;
    int32_t n_rank, n_share;
    ml_piece *piece[MOST_RANKS];
    int32_t n_piece[MOST_RANKS], n_row[MOST_RANKS];
    double *sum[ML_OP_IN + ML_OP_W]; /* of the ranks' gradients */
} division;

static void divide(division *d, const ck_case *c, ck_pieces_of of, int32_t n_rank) {
    const ml_context_opts o = { .n_rank = n_rank };
    int32_t n = c->rows.n_seq, *len = ML_NEW(c->arena, int32_t, n + 1);

    *d = (division){ .c = c, .of = of, .n_rank = n_rank };
    for (int32_t i = 0; i < n; i++)
        len[i] = c->rows.seq_start[i + 1] - c->rows.seq_start[i];
    for (int32_t r = 0; r < n_rank; r++) {
        d->piece[r] = ML_NEW(c->arena, ml_piece, 2 * n + 1);
        d->n_piece[r] = ml_context_pieces(d->piece[r], len, n, &o, r);
        for (int32_t i = 0; i < d->n_piece[r]; i++)
            d->n_row[r] += d->piece[r][i].n;
        d->n_share = d->n_row[r] > d->n_share ? d->n_row[r] : d->n_share;
    }
}

static size_t row_bytes(const ml_tensor *t) {
    return t->shape[0] ? ml_tensor_bytes(t) / (size_t)t->shape[0] : 0;
}

/* A rank's rows of a tensor; no data: their shape. */
static ml_tensor own_rows(const division *d, const ml_tensor *t, int32_t rank) {
    size_t row = row_bytes(t), at = 0;
    ml_tensor out = *t;

    out.shape[0] = d->n_row[rank];
    if (!t->data)
        return out;
    out.data = ml_arena_take(d->c->arena, ml_tensor_bytes(&out) + 1, 1);
    for (int32_t i = 0; i < d->n_piece[rank]; i++) {
        const ml_piece *p = &d->piece[rank][i];
        size_t from = (size_t)(d->c->rows.seq_start[p->seq] + p->first);
        memcpy((char *)out.data + at, (const char *)t->data + from * row,
               (size_t)p->n * row);
        at += (size_t)p->n * row;
    }
    return out;
}

/* The rows of whole sequences, then NaN. */
static ml_tensor key_rows(const division *d, const ml_tensor *t) {
    ml_tensor out = *t;

    out.shape[0] = (int64_t)d->n_rank * d->n_share;
    if (!t->data)
        return out;
    out.data = ml_arena_take(d->c->arena, ml_tensor_bytes(&out) + 1, 1);
    memset(out.data, 0xff, ml_tensor_bytes(&out));
    memcpy(out.data, t->data, ml_tensor_bytes(t));
    return out;
}

static ml_rows rows_of(const division *d, int32_t rank) {
    const ml_rows *w = &d->c->rows;
    ml_arena *a = d->c->arena;
    int32_t n = d->n_piece[rank], n_page = 0, n_row = 0;
    int32_t *start = ML_NEW(a, int32_t, n + 1), *page_start = ML_NEW(a, int32_t, n + 1);
    int32_t *seq = ML_NEW(a, int32_t, n + 1), *pos = ML_NEW(a, int32_t, w->n_token + 1);
    int32_t *page = ML_NEW(a, int32_t, 2 * w->page_start[w->n_seq] + 1);
    ml_context_rows *context = ML_NEW(a, ml_context_rows, 1);

    for (int32_t i = 0; i < n; i++) {
        const ml_piece *p = &d->piece[rank][i];
        for (int32_t k = w->page_start[p->seq]; k < w->page_start[p->seq + 1]; k++)
            page[n_page++] = w->page[k];
        for (int32_t k = 0; k < p->n; k++)
            pos[n_row++] = p->first + k;
        seq[i] = p->seq;
        start[i + 1] = n_row;
        page_start[i + 1] = n_page;
    }
    *context = (ml_context_rows){
        .whole = *w, .seq = seq, .n_rank = d->n_rank, .n_share = d->n_share
    };
    context->whole.context = context;
    return (ml_rows){ .n_token = n_row,
                      .n_seq = n,
                      .pos = pos,
                      .seq_start = start,
                      .page_start = page_start,
                      .page = page,
                      .n_page = n_page,
                      .context = context };
}

static ck_case part_of(const division *d, int32_t rank) {
    ck_case p = *d->c;

    ck_name(&p, "%.50s (rank %d of %d)", d->c->name, rank, d->n_rank);
    p.rows = rows_of(d, rank);
    for (int i = 0; i < ML_OP_IN; i++) {
        bool key = d->of.key_in >> i & 1;
        p.in[i] = key ? key_rows(d, &p.in[i]) : own_rows(d, &p.in[i], rank);
        p.din[i] = key ? key_rows(d, &p.din[i]) : own_rows(d, &p.din[i], rank);
    }
    for (int i = 0; i < ML_OP_OUT; i++)
        if (d->of.row_out >> i & 1) {
            p.out[i] = own_rows(d, &p.out[i], rank);
            p.dout[i] = own_rows(d, &p.dout[i], rank);
        }
    return p;
}

static void add_to(division *d, int at, const ml_tensor *t, int64_t n) {
    double *x = t->data ? ck_values(d->c->arena, t) : NULL;

    if (!x)
        return;
    if (!d->sum[at])
        d->sum[at] = ML_NEW(d->c->arena, double, n + 1);
    for (int64_t i = 0; i < n; i++)
        d->sum[at][i] += x[i];
}

static void run_rank(ck_env *e, division *d, const ck_result *all, int32_t rank) {
    ck_mode m = { .backend = e->n_backend - 1, .in_place = CK_ALL, .only = CK_ALL };
    ck_case part = part_of(d, rank);
    ck_result r;

    m.backward = d->c->suite->grad_out != 0;
    ck_run(e, &part, m, &r);
    for (int i = 0; i < ML_OP_OUT; i++)
        if (d->of.row_out >> i & 1 && r.out[i].data) {
            ml_tensor want = own_rows(d, &all->out[i], rank);
            ck_same(e, "differs from whole sequences: out", &want, &r.out[i]);
        }
    for (int i = 0; i < ML_OP_IN; i++) {
        ml_tensor want = own_rows(d, &all->din[i], rank);
        if (d->of.key_in >> i & 1)
            add_to(d, i, &r.din[i], ml_tensor_count(&all->din[i]));
        else if (r.din[i].data)
            ck_same(e, "differs from whole sequences: din", &want, &r.din[i]);
    }
    for (int i = 0; i < ML_OP_W; i++)
        add_to(d, ML_OP_IN + i, &r.dw[i], ml_tensor_count(&all->dw[i]));
}

/* Gradients that the ranks add up. */
static void check_sum(ck_env *e, const division *d, int at, const ml_tensor *want) {
    double *x = d->sum[at] ? ck_values(d->c->arena, want) : NULL, most = 0.0, off = 0.0;
    double bound = e->backend[e->n_backend - 1].act == ML_BF16 ? 2e-2 : 2e-5;

    for (int64_t i = 0; x && i < ml_tensor_count(want); i++) {
        most = fmax(most, fabs(x[i]));
        off = fmax(off, fabs(x[i] - d->sum[at][i]));
    }
    if (off > bound * most)
        ck_fail(e, "gradient %d of %d ranks is %g of its largest from that of one", at,
                (int)d->n_rank, off / most);
}

void ck_check_pieces(ck_env *e, const ck_case *c, ck_pieces_of of) {
    ck_mode m = { .in_place = CK_ALL, .only = CK_ALL };
    ck_result all;

    if (c->rows.n_token == 0)
        return;
    m.backward = c->suite->grad_out != 0;
    ck_run(e, c, m, &all);
    for (int32_t n_rank = 2; n_rank <= MOST_RANKS; n_rank++) {
        division d;
        divide(&d, c, of, n_rank);
        for (int32_t r = 0; r < n_rank; r++)
            run_rank(e, &d, &all, r);
        e->now = c;
        for (int i = 0; i < ML_OP_IN; i++)
            check_sum(e, &d, i, &all.din[i]);
        for (int i = 0; i < ML_OP_W; i++)
            check_sum(e, &d, ML_OP_IN + i, &all.dw[i]);
    }
}
