#include "comm/share.h"

#include <string.h>

ml_status ml_comm_share(ml_comm *c, void *data, size_t bytes, ml_err *err) {
    ml_tensor t = ml_comm_bytes(data, bytes);

    return ml_comm_size(c) > 1 && bytes ? c->bcast(c, NULL, &t, 0, err) : ML_OK;
}

/* Makes room for n bytes, whose values do not matter. */
static void stretch(ml_text *t, size_t n) {
    static const char zeros[4096];

    t->len = 0;
    while (t->len < n)
        ml_text_add(t, zeros, n - t->len < sizeof zeros ? n - t->len : sizeof zeros);
}

ml_status ml_comm_share_text(ml_comm *c, ml_text *t, ml_err *err) {
    uint64_t n = t->len;
    ml_status st = ml_comm_share(c, &n, sizeof n, err);

    if (st == ML_OK && !ml_comm_is_first(c))
        stretch(t, n);
    return st == ML_OK ? ml_comm_share(c, t->ptr, n, err) : st;
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
