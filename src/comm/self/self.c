#include "comm/self/self.h"

#include <string.h>

#include "base/bug.h"

/* The caller is responsible for shapes: a mismatch is a bug of this program. */
static ml_status move(ml_stream *s, const ml_tensor *out, const ml_tensor *in) {
    size_t bytes = ml_tensor_bytes(in);

    ML_BUG_IF(ml_tensor_bytes(out) != bytes || out->dtype != in->dtype);
    if (out->data == in->data || !bytes)
        return ML_OK;
    if (s)
        s->dev->copy(s, out->data, in->data, bytes);
    else
        memcpy(out->data, in->data, bytes);
    return ML_OK;
}

static ml_status self_split(ml_comm *c, ml_comm **out, int32_t color, int32_t key,
                            ml_err *err) {
    (void)key, (void)err;
    *out = color < 0 ? NULL : c;
    return ML_OK;
}

static void self_close(ml_comm *c) {
    (void)c;
}

static ml_status self_barrier(ml_comm *c, ml_stream *s, ml_err *err) {
    (void)c, (void)s, (void)err;
    return ML_OK;
}

static ml_status self_bcast(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t root,
                            ml_err *err) {
    (void)c, (void)s, (void)t, (void)err;
    ML_BUG_IF(root != 0);
    return ML_OK;
}

static ml_status self_allgather(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                const ml_tensor *in, ml_err *err) {
    (void)c, (void)err;
    return move(s, out, in);
}

static ml_status self_reduce_scatter(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                     const ml_tensor *in, ml_reduce how, ml_err *err) {
    (void)c, (void)how, (void)err;
    return move(s, out, in);
}

static ml_status self_allreduce(ml_comm *c, ml_stream *s, const ml_tensor *t, ml_reduce how,
                                ml_err *err) {
    (void)c, (void)s, (void)t, (void)how, (void)err;
    return ML_OK;
}

static ml_status self_alltoallv(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                const int64_t *n_out, const ml_tensor *in,
                                const int64_t *n_in, ml_err *err) {
    ml_tensor from = *in, to = *out;

    (void)c, (void)err;
    ML_BUG_IF(n_out[0] != n_in[0] || n_in[0] > in->shape[0] || n_out[0] > out->shape[0]);
    from.shape[0] = to.shape[0] = n_in[0];
    return move(s, &to, &from);
}

/* A rank that sends to itself would deadlock. */
static ml_status self_peer(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t peer,
                           ml_err *err) {
    (void)c, (void)s, (void)t;
    return ml_fail(err, ML_EUNSUP,
                   "a communicator of one rank cannot exchange messages (with rank %d)",
                   (int)peer);
}

static ml_status self_exchange(ml_comm *c, ml_stream *s, const ml_message *m, int32_t n,
                               ml_err *err) {
    return n ? self_peer(c, s, &m->t, m->peer, err) : ML_OK;
}

static ml_status self_agree(ml_comm *c, ml_status mine, ml_err *err) {
    (void)c, (void)err;
    return mine;
}

ml_comm *ml_comm_self(void) {
    /* Stateless and never written to, so all callers share it. */
    static ml_comm self = {
        .name = "self",
        .rank = 0,
        .size = 1,
        .local_size = 1,
        .group = "world",
        .layer = -1,
        .split = self_split,
        .close = self_close,
        .barrier = self_barrier,
        .bcast = self_bcast,
        .allgather = self_allgather,
        .reduce_scatter = self_reduce_scatter,
        .allreduce = self_allreduce,
        .alltoallv = self_alltoallv,
        .send = self_peer,
        .recv = self_peer,
        .exchange = self_exchange,
        .agree = self_agree,
        .abort = self_close,
    };
    return &self;
}
