#include "train/context.h"

static int32_t smaller(int64_t a, int32_t b) {
    return a < b ? (int32_t)a : b;
}

/* Appends tokens first .. end-1; to the piece before, if they follow it. */
static void add_piece(ml_piece *out, int32_t *n, int32_t seq, int32_t first, int32_t end) {
    ml_piece *last = *n ? &out[*n - 1] : 0;

    if (first >= end)
        return;
    if (last && last->seq == seq && last->first + last->n == first)
        last->n += end - first;
    else
        out[(*n)++] = (ml_piece){ seq, first, end - first };
}

int32_t ml_context_pieces(ml_piece *out, const int32_t *len, int32_t n,
                          const ml_context_opts *o, int32_t rank) {
    int32_t c = o->n_rank ? o->n_rank : 1, n_out = 0;
    int64_t all = 0, at = 0, share;

    for (int32_t i = 0; i < n; i++)
        all += len[i];
    share = (all + c - 1) / c;
    for (int32_t i = 0; i < n; at += len[i], i++) {
        int64_t size = (len[i] + 2 * (int64_t)c - 1) / (2 * (int64_t)c);
        int32_t mirror = 2 * c - 1 - rank;
        if (o->contiguous) {
            int64_t first = rank * share - at, end = first + share;
            add_piece(out, &n_out, i, first < 0 ? 0 : smaller(first, len[i]),
                      end < 0 ? 0 : smaller(end, len[i]));
        } else {
            add_piece(out, &n_out, i, smaller(rank * size, len[i]),
                      smaller((rank + 1) * size, len[i]));
            add_piece(out, &n_out, i, smaller(mirror * size, len[i]),
                      smaller((mirror + 1) * size, len[i]));
        }
    }
    return n_out;
}
