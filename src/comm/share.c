#include "comm/share.h"

#include <string.h>

ml_status ml_comm_share(ml_comm *c, void *data, size_t bytes, ml_err *err) {
    ml_tensor t = ml_comm_bytes(data, bytes);

    return ml_comm_size(c) > 1 && bytes ? c->bcast(c, NULL, &t, 0, err) : ML_OK;
}

/* Makes room for n bytes, whose values do not matter. */
static void stretch(ml_text *t, size_t n) {
    t->len = 0;
    if (n)
        ml_text_room(t, n);
}

ml_status ml_comm_share_text(ml_comm *c, ml_text *t, ml_err *err) {
    uint64_t n = t->len;
    ml_status st = ml_comm_share(c, &n, sizeof n, err);

    if (st == ML_OK && !ml_comm_is_first(c))
        stretch(t, n);
    return st == ML_OK ? ml_comm_share(c, t->ptr, n, err) : st;
}

ml_status ml_comm_send_text(ml_comm *c, const ml_text *t, int32_t to, ml_err *err) {
    uint64_t n = t->len;
    ml_tensor size = ml_comm_bytes(&n, sizeof n), bytes = ml_comm_bytes(t->ptr, n);
    ml_status st = c->send(c, NULL, &size, to, err);

    return st == ML_OK && n ? c->send(c, NULL, &bytes, to, err) : st;
}

ml_status ml_comm_recv_text(ml_comm *c, ml_text *t, int32_t from, ml_err *err) {
    uint64_t n = 0;
    ml_tensor size = ml_comm_bytes(&n, sizeof n), bytes;
    ml_status st = c->recv(c, NULL, &size, from, err);

    if (st != ML_OK)
        return st;
    stretch(t, n);
    bytes = ml_comm_bytes(t->ptr, n);
    return n ? c->recv(c, NULL, &bytes, from, err) : ML_OK;
}

ml_status ml_comm_gather(ml_comm *c, void *out, const void *in, size_t bytes, ml_err *err) {
    ml_tensor all, mine = ml_comm_bytes(in, bytes);

    if (ml_comm_size(c) == 1) {
        memmove(out, in, bytes);
        return ML_OK;
    }
    all = ml_comm_bytes(out, bytes * (size_t)c->size);
    return c->allgather(c, NULL, &all, &mine, err);
}

ml_status ml_comm_meet(ml_comm *c, ml_err *err) {
    return ml_comm_size(c) > 1 ? c->barrier(c, NULL, err) : ML_OK;
}

ml_status ml_comm_agree(ml_comm *c, ml_status mine, ml_err *err) {
    return ml_comm_size(c) > 1 ? c->agree(c, mine, err) : mine;
}

/* The number of ranks from r on that are in the list without a gap. */
static int32_t run_length(const bool *is, int32_t r, int32_t n) {
    int32_t end = r;

    while (end < n && is[end])
        end++;
    return end - r;
}

void ml_comm_put_ranks(ml_text *out, const bool *is, int32_t n) {
    int32_t left = 0, put = 0;

    for (int32_t r = 0; r < n; r++)
        left += is[r];
    ml_text_printf(out, left == 1 ? "rank" : "ranks");
    for (int32_t r = 0, same; r < n; r += same) {
        same = run_length(is, r, n);
        same = same > 2 ? same : 1;
        if (!is[r])
            continue;
        left -= same;
        ml_text_printf(out, "%s%d", !put++ ? " " : left ? ", " : " and ", (int)r);
        if (same > 2)
            ml_text_printf(out, "-%d", (int)(r + same - 1));
    }
}
