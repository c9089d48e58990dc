/* plan_rows.c - copies a batch to the device. */
#include <string.h>

#include "model/plan_priv.h"

/* Integers of all arrays of a batch of this size, each aligned to a multiple of 4. */
static int32_t padded(int32_t n) {
    return (n + 3) & ~3;
}

/* Of whole sequences, where the batch has pieces of them, and of the pieces' place among them; the
 * second piece of a sequence lists its pages again. */
static int32_t context_ints(const ml_batch_caps *c) {
    if (!c->n_context)
        return 0;
    return 2 * padded(c->n_context * c->n_share) + 4 * padded(c->n_seq + 1) +
           2 * padded(c->n_page);
}

static int32_t batch_ints(const ml_batch_caps *c) {
    return context_ints(c) + 3 * padded(c->n_token) + padded(2 * c->n_token) +
           4 * padded(c->n_seq + 1) + padded(c->n_page + c->n_again) +
           2 * padded(c->n_loss) + padded(ML_ADAPTER_LISTS + 1 + c->n_token);
}

/* With data-parallel attention the rows of the group follow those of all. */
size_t ml_plan_rows_bytes(const ml_plan *p) {
    size_t n = p->spec->attn_dp > 1 ? 2 : 1;

    return p->be->dev->host ? 0 : n * (size_t)batch_ints(&p->opts.caps) * sizeof(int32_t);
}

/* Padding after n integers: `more` entries, the first `fill`, each `step` larger than the
 * last. */
typedef struct tail {
    int32_t more, fill, step;
} tail;

static const int32_t *send_padded(const ml_plan *p, const int32_t *from, int32_t n, tail t,
                                  int32_t *at) {
    int32_t *stage = p->stage + *at;

    memcpy(stage, from, (size_t)n * sizeof *from);
    for (int32_t i = 0; i < t.more; i++)
        stage[n + i] = t.fill + i * t.step;
    *at += padded(n + t.more);
    return (const int32_t *)p->rows.ptr + (stage - p->stage);
}

/* The lists of n rows, whose adapters have been sent; NULL: there are too many adapters. */
static const int32_t *send_lists(const ml_plan *p, const int32_t *adapter, int32_t n,
                                 int32_t *at) {
    int32_t *stage = p->stage + *at;
    ptrdiff_t from = adapter - (const int32_t *)p->rows.ptr;

    if (!ml_rows_by_adapter(stage, p->stage + from, n))
        return NULL;
    *at += padded(ML_ADAPTER_LISTS + 1 + n);
    return (const int32_t *)p->rows.ptr + (stage - p->stage);
}

/* The rows of this rank's DP group; without logits, and never padded. */
static void send_group(const ml_plan *p, const ml_rows *r, ml_rows *d, int32_t *at) {
    tail none = { 0, 0, 0 };

    d->id = send_padded(p, r->id, r->n_token, none, at);
    d->pos = send_padded(p, r->pos, r->n_token, none, at);
    d->seq_start = send_padded(p, r->seq_start, r->n_seq + 1, none, at);
    d->page_start = send_padded(p, r->page_start, r->n_seq + 1, none, at);
    d->slot = send_padded(p, r->slot, r->n_seq, none, at);
    if (r->adapter)
        d->adapter = send_padded(p, r->adapter, r->n_token, none, at);
    if (r->adapter)
        d->by_adapter = send_lists(p, d->adapter, r->n_token, at);
    d->n_page = r->page_start[r->n_seq];
    d->page = send_padded(p, r->page, d->n_page, none, at);
}

/* Context parallel: the sequences of which the batch has pieces.  Never padded. */
static void send_context(const ml_plan *p, const ml_context_rows *x, ml_context_rows *d,
                         int32_t n_piece, int32_t *at) {
    const ml_rows *r = &x->whole;
    tail none = { 0, 0, 0 };

    *d = *x;
    d->whole.context = d;
    d->whole.pos = send_padded(p, r->pos, r->n_token, none, at);
    d->whole.seq_start = send_padded(p, r->seq_start, r->n_seq + 1, none, at);
    d->whole.page_start = send_padded(p, r->page_start, r->n_seq + 1, none, at);
    d->whole.slot = send_padded(p, r->slot, r->n_seq, none, at);
    d->whole.n_page = r->page_start[r->n_seq];
    d->whole.page = send_padded(p, r->page, d->whole.n_page, none, at);
    d->seq = send_padded(p, x->seq, n_piece, none, at);
    d->order = send_padded(p, x->order, x->n_rank * x->n_share, none, at);
}

/* The batch as ops read it: the batch itself, or a copy in device memory, sent in one
 * transfer.  In decode it may be padded with rows at position -1, without KV pages. */
ml_rows ml_plan_send_rows(const ml_plan *p, const ml_run *run, ml_sent_rows *sent) {
    const ml_rows *r = run->rows;
    ml_rows d = *r;
    int32_t at = 0, n = r->n_token, more;

    if (p->be->dev->host)
        return d;
    d.n_page = r->page_start[r->n_seq];
    ml_rows_count_single(&d, r);
    ml_rows_find_separate(&d, r);
    more = ml_plan_rows_of(p, run) - n;
    d.n_token += more;
    d.n_seq += more;
    d.n_loss += r->n_loss ? more : 0;
    d.id = send_padded(p, r->id, n, (tail){ more, 0, 0 }, &at);
    d.pos = send_padded(p, r->pos, n, (tail){ more, -1, 0 }, &at);
    d.seq_start = send_padded(p, r->seq_start, r->n_seq + 1, (tail){ more, n + 1, 1 }, &at);
    d.page_start =
        send_padded(p, r->page_start, r->n_seq + 1, (tail){ more, d.n_page, 0 }, &at);
    d.slot = send_padded(p, r->slot, r->n_seq, (tail){ more, 0, 0 }, &at);
    d.loss_row =
        send_padded(p, r->loss_row, r->n_loss, (tail){ d.n_loss - r->n_loss, n, 1 }, &at);
    d.loss_id =
        send_padded(p, r->loss_id, r->n_loss, (tail){ d.n_loss - r->n_loss, -1, 0 }, &at);
    if (r->prefix) /* of training, which has no padding */
        d.prefix = send_padded(p, r->prefix, r->n_seq, (tail){ 0, 0, 0 }, &at);
    if (r->adapter)
        d.adapter = send_padded(p, r->adapter, n, (tail){ more, -1, 0 }, &at);
    if (r->adapter)
        d.by_adapter = send_lists(p, d.adapter, d.n_token, &at);
    if (r->dropout_key) /* two words each; of training, which has no padding */
        d.dropout_key = (const uint64_t *)(const void *)send_padded(
            p, (const int32_t *)(const void *)r->dropout_key, 2 * n, (tail){ 0, 0, 0 },
            &at);
    /* The last array: the addresses of the others then depend on the counts only. */
    d.page = send_padded(p, r->page, d.n_page, (tail){ 0, 0, 0 }, &at);
    if (r->dp) {
        sent->dp = *r->dp;
        send_group(p, &r->dp->rows, &sent->dp.rows, &at);
        d.dp = &sent->dp;
    }
    if (r->context) {
        send_context(p, r->context, &sent->context, r->n_seq, &at);
        d.context = &sent->context;
    }
    p->be->dev->copy_in(p->be->stream, p->rows.ptr, p->stage,
                        (size_t)at * sizeof *p->stage);
    return d;
}
