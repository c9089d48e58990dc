#include "comm/device/device_comm.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/oom.h"
#include "base/timeline.h"
#include "comm/device/device_priv.h"

/* Bytes of one rank up to which the transport through the host is not slower.  Measured with 2
 * ranks on one H200, which it schedules in turns: 300 us for any shorter call. */
enum { SMALL = 256 << 10 };

size_t ml_comm_device_bytes(void) {
    size_t peer = ml_device_peer_bytes(), nccl = ml_device_nccl_bytes();

    return peer > nccl ? peer : nccl;
}

size_t ml_device_row_bytes(const ml_tensor *x) {
    size_t n = ml_dtype_bytes(x->dtype);

    for (int32_t i = 1; i < x->n_dim; i++)
        n *= (size_t)x->shape[i];
    return n;
}

void ml_device_copy(ml_stream *s, void *to, const void *from, size_t bytes) {
    if (bytes && to != from)
        s->dev->copy(s, to, from, bytes);
}

static ml_device_team *team_of(ml_comm *c) {
    return c->priv;
}

/* What the caller has said about the communicator, for messages of the host's. */
static ml_comm *host_of(ml_comm *c) {
    ml_comm *h = team_of(c)->host;

    h->deadline_s = c->deadline_s;
    h->group = c->group;
    h->spans = c->spans;
    h->what = c->what;
    h->layer = c->layer;
    return h;
}

static ml_status told(ml_comm *c, ml_status st) {
    c->failed = team_of(c)->host->failed;
    return st;
}

/* The transport of a tensor of which every rank has this many bytes; NULL: through the host. */
static const ml_device_transport *transport_of(ml_comm *c, const ml_stream *s,
                                               size_t bytes) {
    return s && !s->dev->host && bytes > SMALL && !c->failed ? team_of(c)->transport : NULL;
}

/* Calls that go through the host have the spans of the host's communicator. */
static double begins(const ml_comm *c) {
    return c->spans ? ml_clock_s() : 0;
}

static ml_status ends(ml_comm *c, const ml_device_transport *w, const char *op,
                      double begin_s, ml_status st) {
    ml_time_span span = { .name = op,
                          .track = ML_TRACK_COMM,
                          .layer = c->layer,
                          .begin_s = begin_s,
                          .group = c->group };

    if (w && c->spans) {
        span.end_s = ml_clock_s();
        ml_timeline_add(c->spans, &span, 1);
    }
    return told(c, st);
}

/* --- calls ----------------------------------------------------------------------- */

static ml_status device_barrier(ml_comm *c, ml_stream *s, ml_err *err) {
    ml_comm *h = host_of(c);

    return told(c, h->barrier(h, s, err));
}

static ml_status device_bcast(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t root,
                              ml_err *err) {
    const ml_device_transport *w = transport_of(c, s, ml_tensor_bytes(t));
    ml_comm *h = host_of(c);
    double begin_s = begins(c);

    return ends(c, w, "bcast", begin_s,
                w ? w->bcast(team_of(c), s, t, root, err) : h->bcast(h, s, t, root, err));
}

static ml_status device_allgather(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                  const ml_tensor *in, ml_err *err) {
    const ml_device_transport *w = transport_of(c, s, ml_tensor_bytes(in));
    ml_comm *h = host_of(c);
    double begin_s = begins(c);

    return ends(c, w, "allgather", begin_s,
                w ? w->allgather(team_of(c), s, out, in, err)
                  : h->allgather(h, s, out, in, err));
}

static ml_status device_reduce_scatter(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                       const ml_tensor *in, ml_reduce how, ml_err *err) {
    const ml_device_transport *w = transport_of(c, s, ml_tensor_bytes(out));
    ml_comm *h = host_of(c);
    double begin_s = begins(c);

    return ends(c, w, "reduce_scatter", begin_s,
                w ? w->reduce_scatter(team_of(c), s, out, in, how, err)
                  : h->reduce_scatter(h, s, out, in, how, err));
}

static ml_status device_allreduce(ml_comm *c, ml_stream *s, const ml_tensor *t,
                                  ml_reduce how, ml_err *err) {
    const ml_device_transport *w = transport_of(c, s, ml_tensor_bytes(t));
    ml_comm *h = host_of(c);
    double begin_s = begins(c);

    return ends(c, w, "allreduce", begin_s,
                w ? w->allreduce(team_of(c), s, t, how, err)
                  : h->allreduce(h, s, t, how, err));
}

/* Ranks have different numbers of rows: all use the same transport. */
static ml_status device_alltoallv(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                  const int64_t *n_out, const ml_tensor *in,
                                  const int64_t *n_in, ml_err *err) {
    const ml_device_transport *w = transport_of(c, s, SIZE_MAX);
    ml_comm *h = host_of(c);
    double begin_s = begins(c);

    return ends(c, w, "alltoallv", begin_s,
                w ? w->alltoallv(team_of(c), s, out, n_out, in, n_in, err)
                  : h->alltoallv(h, s, out, n_out, in, n_in, err));
}

/* Through the host: the two sides may have different kinds of memory. */
static ml_status device_send(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t to,
                             ml_err *err) {
    ml_comm *h = host_of(c);

    return told(c, h->send(h, s, t, to, err));
}

static ml_status device_recv(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t from,
                             ml_err *err) {
    ml_comm *h = host_of(c);

    return told(c, h->recv(h, s, t, from, err));
}

/* Messages have different sizes: all use the same transport. */
static ml_status device_exchange(ml_comm *c, ml_stream *s, const ml_message *m, int32_t n,
                                 ml_err *err) {
    const ml_device_transport *w = transport_of(c, s, SIZE_MAX);
    ml_comm *h = host_of(c);
    double begin_s = begins(c);

    return ends(c, w, "exchange", begin_s,
                w ? w->exchange(team_of(c), s, m, n, err) : h->exchange(h, s, m, n, err));
}

static ml_status device_agree(ml_comm *c, ml_status mine, ml_err *err) {
    ml_comm *h = host_of(c);

    return told(c, h->agree(h, mine, err));
}

static void device_abort(ml_comm *c) {
    ml_comm *h = host_of(c);

    h->abort(h);
    c->failed = h->failed;
}

/* --- opening --------------------------------------------------------------------- */

void ml_comm_device_detach(ml_comm *c) {
    ml_device_team *t = team_of(c);

    if (t->transport)
        t->transport->close(t);
    if (t->stage.dev)
        t->dev->free(&t->stage);
    t->transport = NULL;
    t->c.name = t->host->name;
}

static void device_close(ml_comm *c) {
    ml_device_team *t = team_of(c);

    ml_comm_device_detach(c);
    t->host->close(t->host);
    free(t);
}

static ml_status device_split(ml_comm *c, ml_comm **out, int32_t color, int32_t key,
                              ml_err *err) {
    ml_comm *h = host_of(c), *part = NULL;
    ml_status st = told(c, h->split(h, &part, color, key, err));

    *out = part ? ml_comm_device(part) : NULL;
    return st;
}

ml_comm *ml_comm_device(ml_comm *host) {
    ml_device_team *t = ml_memory_grow(NULL, sizeof *t, "a communicator");

    *t = (ml_device_team){ .host = host };
    t->c = (ml_comm){
        .name = host->name,
        .rank = host->rank,
        .size = host->size,
        .local_rank = host->local_rank,
        .local_size = host->local_size,
        .deadline_s = host->deadline_s,
        .group = host->group,
        .spans = host->spans,
        .layer = -1,
        .split = device_split,
        .close = device_close,
        .barrier = device_barrier,
        .bcast = device_bcast,
        .allgather = device_allgather,
        .reduce_scatter = device_reduce_scatter,
        .allreduce = device_allreduce,
        .alltoallv = device_alltoallv,
        .send = device_send,
        .recv = device_recv,
        .exchange = device_exchange,
        .agree = device_agree,
        .abort = device_abort,
        .priv = t,
    };
    return &t->c;
}

ml_status ml_comm_device_attach(ml_comm *c, ml_stream *s, ml_err *err) {
    ml_device_team *t = team_of(c);
    ml_status st;

    if (c->size == 1 || s->dev->host)
        return ML_OK;
    (void)host_of(c);
    t->dev = s->dev;
    st = ml_device_peer_open(t, err);
    if (st == ML_OK && !t->transport)
        st = ml_device_nccl_open(t, err);
    if (t->transport)
        t->c.name = t->transport->name;
    return told(c, st);
}
