#include "model/batch.h"

#include <string.h>

#include "base/bug.h"

int32_t ml_kv_pages_for(int32_t n) {
    return (n + ML_PAGE - 1) / ML_PAGE;
}

void ml_batch_init(ml_batch *b, ml_arena *a, ml_batch_caps caps) {
    *b = (ml_batch){ .caps = caps };
    b->id = ML_NEW(a, int32_t, caps.n_token);
    b->pos = ML_NEW(a, int32_t, caps.n_token);
    b->seq_start = ML_NEW(a, int32_t, caps.n_seq + 1);
    b->page_start = ML_NEW(a, int32_t, caps.n_seq + 1);
    b->page = ML_NEW(a, int32_t, caps.n_page + caps.n_again);
    b->slot = ML_NEW(a, int32_t, caps.n_seq);
    b->loss_row = ML_NEW(a, int32_t, caps.n_loss);
    b->loss_id = ML_NEW(a, int32_t, caps.n_loss);
    b->adapter = ML_NEW(a, int32_t, caps.n_token);
    b->prefix = ML_NEW(a, int32_t, caps.n_seq);
    b->rows = (ml_rows){ .id = b->id,
                         .pos = b->pos,
                         .seq_start = b->seq_start,
                         .page_start = b->page_start,
                         .page = b->page,
                         .slot = b->slot,
                         .loss_row = b->loss_row,
                         .loss_id = b->loss_id,
                         .temperature = 1 };
}

void ml_batch_clear(ml_batch *b) {
    b->rows.n_token = b->rows.n_seq = b->rows.n_loss = b->n_page = b->n_again = 0;
    b->rows.adapter = NULL;
    b->rows.dropout_key = NULL;
    b->rows.prefix = NULL;
}

static void add_targets(ml_batch *b, const int32_t *target, int32_t n) {
    ml_rows *r = &b->rows;
    for (int32_t i = 0; i < n; i++) {
        if (target[i] == ML_TARGET_SKIP)
            continue;
        ML_BUG_IF(r->n_loss >= b->caps.n_loss);
        b->loss_row[r->n_loss] = r->n_token + i;
        b->loss_id[r->n_loss++] = target[i];
    }
}

void ml_batch_add(ml_batch *b, const int32_t *id, const int32_t *target, int32_t n,
                  int32_t first, const int32_t *page) {
    ml_rows *r = &b->rows;
    int32_t n_page = ml_kv_pages_for(first + n);

    ML_BUG_IF(n < 1 || r->n_token + n > b->caps.n_token || r->n_seq >= b->caps.n_seq);
    ML_BUG_IF(b->n_page + n_page - b->n_again > b->caps.n_page || (!page && first != 0));
    if (target)
        add_targets(b, target, n);
    for (int32_t i = 0; i < n_page; i++)
        b->page[b->n_page + i] = page ? page[i] : b->n_page - b->n_again + i;
    memcpy(b->id + r->n_token, id, (size_t)n * sizeof *id);
    for (int32_t i = 0; i < n; i++) {
        b->pos[r->n_token + i] = first + i;
        b->adapter[r->n_token + i] = -1;
    }
    b->slot[r->n_seq] = r->n_seq;
    b->prefix[r->n_seq] = -1;
    b->n_page += n_page;
    r->n_token += n;
    r->n_seq++;
    b->seq_start[r->n_seq] = r->n_token;
    b->page_start[r->n_seq] = b->n_page;
}

void ml_batch_add_suffix(ml_batch *b, const int32_t *id, const int32_t *target, int32_t n,
                         int32_t prefix) {
    int32_t seq = b->rows.n_seq, first, shared, *page = b->page + b->n_page;

    ML_BUG_IF(prefix < 0 || prefix >= seq);
    first = b->pos[b->seq_start[prefix + 1] - 1] + 1;
    shared = first / ML_PAGE;
    b->n_again += shared;
    ML_BUG_IF(first % ML_PAGE || b->n_again > b->caps.n_again ||
              b->n_page + ml_kv_pages_for(first + n) - b->n_again > b->caps.n_page);
    for (int32_t i = 0; i < ml_kv_pages_for(first + n); i++)
        page[i] =
            i < shared ? b->page[b->page_start[prefix] + i] : b->n_page - b->n_again + i;
    ml_batch_add(b, id, target, n, first, page);
    b->prefix[seq] = prefix;
    b->rows.prefix = b->prefix;
}

void ml_batch_set_slot(ml_batch *b, int32_t slot) {
    ML_BUG_IF(b->rows.n_seq < 1);
    b->slot[b->rows.n_seq - 1] = slot;
}

void ml_batch_set_adapter(ml_batch *b, int32_t adapter) {
    const ml_rows *r = &b->rows;

    ML_BUG_IF(r->n_seq < 1);
    if (adapter < 0 && !r->adapter)
        return;
    b->rows.adapter = b->adapter;
    for (int32_t i = r->seq_start[r->n_seq - 1]; i < r->n_token; i++)
        b->adapter[i] = adapter;
}
