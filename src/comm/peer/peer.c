#include "comm/peer/peer.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/bug.h"
#include "base/oom.h"

/* A stage has two parts for collectives, which use them in turns, and one for messages.
 * Turns make one wait per call enough: a rank reaches the next wait after it has read all
 * stages of the last, and only then may the part be written again. */
enum { TURNS = 2, PARTS = TURNS + 1, PART_BYTES = 8 << 20 };

/* Bytes of one rank up to which the way through the host is not slower.  Measured with 2
 * ranks on one H200, which it schedules in turns: 300 us for any shorter call. */
enum { SMALL = 256 << 10 };

typedef struct peers {
    ml_comm c;
    ml_comm *host; /* the same ranks */
    bool own_host;
    ml_device *dev;
    bool mapped;   /* all ranks share a host and map each other's stages */
    ml_buf stage;  /* [PARTS][PART_BYTES] */
    char **at;     /* [size]: the stage of each rank; its own, or mapped */
    int64_t *rows; /* [size][size]: rows that each rank sends to each rank */
    int turn;
} peers;

size_t ml_comm_peer_bytes(void) {
    return (size_t)PARTS * PART_BYTES;
}

static peers *peers_of(ml_comm *c) {
    return c->priv;
}

/* What the caller has said about the communicator, for messages of the host's. */
static ml_comm *host_of(ml_comm *c) {
    ml_comm *h = peers_of(c)->host;

    h->deadline_s = c->deadline_s;
    h->group = c->group;
    h->what = c->what;
    h->layer = c->layer;
    return h;
}

static ml_status told(ml_comm *c, ml_status st) {
    c->failed = peers_of(c)->host->failed;
    return st;
}

static bool is_direct(const ml_comm *c, const ml_stream *s, size_t bytes) {
    return s && !s->dev->host && ((const peers *)c->priv)->mapped && bytes > SMALL;
}

/* --- steps of a collective ----------------------------------------------------- */

static char *part_of(const peers *p, int32_t rank, int part) {
    return p->at[rank] + (size_t)part * PART_BYTES;
}

static void copy(ml_stream *s, void *to, const void *from, size_t bytes) {
    if (bytes && to != from)
        s->dev->copy(s, to, from, bytes);
}

/* After this all ranks have filled this turn's part of their stages. */
static ml_status meet(ml_comm *c, ml_stream *s, ml_err *err) {
    ml_comm *h = host_of(c);
    ml_status st = s->dev->sync(s, err);

    if (st != ML_OK)
        return h->agree(h, st, err);
    return h->barrier(h, NULL, err);
}

static void next_turn(peers *p) {
    p->turn = (p->turn + 1) % TURNS;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* --- collectives ----------------------------------------------------------------- */

static ml_status peer_barrier(ml_comm *c, ml_stream *s, ml_err *err) {
    ml_comm *h = host_of(c);

    return told(c, h->barrier(h, s, err));
}

static ml_status bcast(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t root,
                       ml_err *err) {
    peers *p = peers_of(c);
    size_t bytes = ml_tensor_bytes(t);
    ml_status st = ML_OK;

    for (size_t at = 0; at < bytes && st == ML_OK; at += PART_BYTES) {
        char *data = (char *)t->data + at, *stage = part_of(p, root, p->turn);
        size_t n = least(bytes - at, PART_BYTES);

        if (c->rank == root)
            copy(s, stage, data, n);
        st = meet(c, s, err);
        if (st == ML_OK && c->rank != root)
            copy(s, data, stage, n);
        next_turn(p);
    }
    return st;
}

static ml_status peer_bcast(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t root,
                            ml_err *err) {
    ml_comm *h = host_of(c);

    return told(c, is_direct(c, s, ml_tensor_bytes(t)) ? bcast(c, s, t, root, err)
                                                       : h->bcast(h, s, t, root, err));
}

static ml_status allgather(ml_comm *c, ml_stream *s, const ml_tensor *out,
                           const ml_tensor *in, ml_err *err) {
    peers *p = peers_of(c);
    size_t bytes = ml_tensor_bytes(in);
    ml_status st = ML_OK;

    ML_BUG_IF(ml_tensor_bytes(out) != bytes * (size_t)c->size);
    for (size_t at = 0; at < bytes && st == ML_OK; at += PART_BYTES) {
        size_t n = least(bytes - at, PART_BYTES);

        copy(s, part_of(p, c->rank, p->turn), (char *)in->data + at, n);
        st = meet(c, s, err);
        for (int32_t r = 0; r < c->size && st == ML_OK; r++)
            copy(s, (char *)out->data + (size_t)r * bytes + at,
                 r == c->rank ? (char *)in->data + at : part_of(p, r, p->turn), n);
        next_turn(p);
    }
    return st;
}

static ml_status peer_allgather(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                const ml_tensor *in, ml_err *err) {
    ml_comm *h = host_of(c);

    return told(c, is_direct(c, s, ml_tensor_bytes(in)) ? allgather(c, s, out, in, err)
                                                        : h->allgather(h, s, out, in, err));
}

/* out = the tree of what lies `offset` bytes into this turn's parts. */
static void add_parts(ml_comm *c, ml_stream *s, void *out, size_t offset, int64_t n,
                      ml_dtype dtype, ml_reduce how) {
    peers *p = peers_of(c);
    const void *in[ML_PEERS];

    for (int32_t r = 0; r < c->size; r++)
        in[r] = part_of(p, r, p->turn) + offset;
    p->dev->peer->tree(s, out, in, c->size, n, dtype, how.op == ML_REDUCE_MAX);
}

/* Bytes of a part that each of the ranks gets: whole elements, aligned for the kernels. */
static size_t share_of_part(int32_t size) {
    return PART_BYTES / (size_t)size / 64 * 64;
}

static ml_status reduce_scatter(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                const ml_tensor *in, ml_reduce how, ml_err *err) {
    peers *p = peers_of(c);
    size_t bytes = ml_tensor_bytes(out), most = share_of_part(c->size);
    size_t element = ml_dtype_bytes(in->dtype);
    ml_status st = ML_OK;

    ML_BUG_IF(ml_tensor_bytes(in) != bytes * (size_t)c->size);
    for (size_t at = 0; at < bytes && st == ML_OK; at += most) {
        size_t n = least(bytes - at, most);

        for (int32_t r = 0; r < c->size; r++)
            copy(s, part_of(p, c->rank, p->turn) + (size_t)r * most,
                 (char *)in->data + (size_t)r * bytes + at, n);
        st = meet(c, s, err);
        if (st == ML_OK)
            add_parts(c, s, (char *)out->data + at, (size_t)c->rank * most,
                      (int64_t)(n / element), in->dtype, how);
        next_turn(p);
    }
    return st;
}

static ml_status peer_reduce_scatter(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                     const ml_tensor *in, ml_reduce how, ml_err *err) {
    ml_comm *h = host_of(c);

    return told(c, is_direct(c, s, ml_tensor_bytes(out))
                       ? reduce_scatter(c, s, out, in, how, err)
                       : h->reduce_scatter(h, s, out, in, how, err));
}

/* Every rank adds everything: few ranks, and their memory is near. */
static ml_status allreduce(ml_comm *c, ml_stream *s, const ml_tensor *t, ml_reduce how,
                           ml_err *err) {
    peers *p = peers_of(c);
    size_t bytes = ml_tensor_bytes(t), element = ml_dtype_bytes(t->dtype);
    ml_status st = ML_OK;

    for (size_t at = 0; at < bytes && st == ML_OK; at += PART_BYTES) {
        char *data = (char *)t->data + at;
        size_t n = least(bytes - at, PART_BYTES);

        copy(s, part_of(p, c->rank, p->turn), data, n);
        st = meet(c, s, err);
        if (st == ML_OK)
            add_parts(c, s, data, 0, (int64_t)(n / element), t->dtype, how);
        next_turn(p);
    }
    return st;
}

static ml_status peer_allreduce(ml_comm *c, ml_stream *s, const ml_tensor *t, ml_reduce how,
                                ml_err *err) {
    ml_comm *h = host_of(c);

    return told(c, is_direct(c, s, ml_tensor_bytes(t)) ? allreduce(c, s, t, how, err)
                                                       : h->allreduce(h, s, t, how, err));
}

/* --- rows ------------------------------------------------------------------------ */

static size_t row_bytes(const ml_tensor *x) {
    size_t n = ml_dtype_bytes(x->dtype);

    for (int32_t i = 1; i < x->n_dim; i++)
        n *= (size_t)x->shape[i];
    return n;
}

/* What rank r sends: where its rows for rank `to` begin and end, in bytes of its input. */
static void range_of(const peers *p, int32_t r, int32_t to, size_t row, size_t *begin,
                     size_t *end) {
    const int64_t *n = p->rows + (int64_t)r * p->c.size;
    int64_t before = 0;

    for (int32_t k = 0; k < to; k++)
        before += n[k];
    *begin = (size_t)before * row;
    *end = (size_t)(before + n[to]) * row;
}

static size_t sent_by(const peers *p, int32_t r, size_t row) {
    size_t begin, end;

    range_of(p, r, p->c.size - 1, row, &begin, &end);
    return end;
}

/* Reads from every stage what it has for this rank of input bytes [at, at + PART_BYTES). */
static void take_rows(const peers *p, ml_stream *s, char *out, size_t row, size_t at) {
    size_t done = 0; /* bytes of the ranks before */

    for (int32_t r = 0; r < p->c.size; r++) {
        size_t begin, end, from, to;
        range_of(p, r, p->c.rank, row, &begin, &end);
        from = begin > at ? begin : at;
        to = least(end, at + PART_BYTES);
        if (from < to)
            copy(s, out + done + (from - begin), part_of(p, r, p->turn) + (from - at),
                 to - from);
        done += end - begin;
    }
}

static ml_status alltoallv(ml_comm *c, ml_stream *s, const ml_tensor *out,
                           const ml_tensor *in, const int64_t *n_in, ml_err *err) {
    peers *p = peers_of(c);
    ml_comm *h = p->host;
    size_t row = row_bytes(in), mine, most = 0, bytes = (size_t)c->size * sizeof *n_in;
    ml_tensor counts = ml_comm_bytes(n_in, bytes),
              all = ml_comm_bytes(p->rows, bytes * (size_t)c->size);
    ml_status st = h->allgather(h, NULL, &all, &counts, err);

    ML_BUG_IF(row_bytes(out) != row);
    for (int32_t r = 0; r < c->size && st == ML_OK; r++)
        most = sent_by(p, r, row) > most ? sent_by(p, r, row) : most;
    mine = st == ML_OK ? sent_by(p, c->rank, row) : 0;
    for (size_t at = 0; at < most && st == ML_OK; at += PART_BYTES) {
        if (at < mine)
            copy(s, part_of(p, c->rank, p->turn), (char *)in->data + at,
                 least(mine - at, PART_BYTES));
        st = meet(c, s, err);
        if (st == ML_OK)
            take_rows(p, s, out->data, row, at);
        next_turn(p);
    }
    return st;
}

static ml_status peer_alltoallv(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                const int64_t *n_out, const ml_tensor *in,
                                const int64_t *n_in, ml_err *err) {
    ml_comm *h = host_of(c);

    return told(c, is_direct(c, s, SIZE_MAX)
                       ? alltoallv(c, s, out, in, n_in, err)
                       : h->alltoallv(h, s, out, n_out, in, n_in, err));
}

/* --- messages -------------------------------------------------------------------- */

/* The sender fills its stage and says so; the receiver has read it and says so. */
static ml_status pass(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t peer, bool send,
                      ml_err *err) {
    peers *p = peers_of(c);
    ml_comm *h = p->host;
    size_t bytes = ml_tensor_bytes(t);
    ml_tensor word = ml_comm_bytes("", 0);
    ml_status st = ML_OK;

    for (size_t at = 0; at < bytes && st == ML_OK; at += PART_BYTES) {
        char *data = (char *)t->data + at;
        size_t n = least(bytes - at, PART_BYTES);

        if (send)
            copy(s, part_of(p, c->rank, TURNS), data, n);
        else if ((st = h->recv(h, NULL, &word, peer, err)) == ML_OK)
            copy(s, data, part_of(p, peer, TURNS), n);
        if (st == ML_OK && (st = s->dev->sync(s, err)) != ML_OK)
            return h->agree(h, st, err);
        if (st == ML_OK)
            st = h->send(h, NULL, &word, peer, err);
        if (st == ML_OK && send)
            st = h->recv(h, NULL, &word, peer, err);
    }
    return st;
}

static ml_status peer_send(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t to,
                           ml_err *err) {
    ml_comm *h = host_of(c);

    return told(c, is_direct(c, s, ml_tensor_bytes(t)) ? pass(c, s, t, to, true, err)
                                                       : h->send(h, s, t, to, err));
}

static ml_status peer_recv(ml_comm *c, ml_stream *s, const ml_tensor *t, int32_t from,
                           ml_err *err) {
    ml_comm *h = host_of(c);

    return told(c, is_direct(c, s, ml_tensor_bytes(t)) ? pass(c, s, t, from, false, err)
                                                       : h->recv(h, s, t, from, err));
}

/* --- failures -------------------------------------------------------------------- */

static ml_status peer_agree(ml_comm *c, ml_status mine, ml_err *err) {
    ml_comm *h = host_of(c);

    return told(c, h->agree(h, mine, err));
}

static void peer_abort(ml_comm *c) {
    ml_comm *h = host_of(c);

    h->abort(h);
    c->failed = h->failed;
}

/* --- opening --------------------------------------------------------------------- */

typedef struct offer { /* by each rank to all */
    char host[64];
    unsigned char handle[ML_PEER_HANDLE];
    bool can;
} offer;

static bool all_near(const offer *all, int32_t n) {
    for (int32_t r = 0; r < n; r++)
        if (!all[r].can || strcmp(all[r].host, all[0].host) != 0)
            return false;
    return n <= ML_PEERS;
}

static ml_status map_all(peers *p, const offer *all, ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t r = 0; r < p->c.size && st == ML_OK; r++) {
        void *at = p->stage.ptr;
        if (r != p->c.rank)
            st = p->dev->peer->map(p->dev, &at, all[r].handle, err);
        p->at[r] = st == ML_OK ? at : NULL;
    }
    return st;
}

/* A device that cannot share its memory is no error: then no rank of the communicator
 * does. */
static ml_status open_stages(peers *p, ml_err *err) {
    ml_comm *h = p->host;
    size_t n = (size_t)h->size;
    offer mine = { .can = false }, *all = ml_memory_grow(NULL, n * sizeof *all, "peers");
    ml_tensor in = ml_comm_bytes(&mine, sizeof mine),
              out = ml_comm_bytes(all, n * sizeof *all);
    ml_status st = ML_OK;

    (void)gethostname(mine.host, sizeof mine.host - 1);
    if (p->dev->peer) {
        st = p->dev->alloc(p->dev, &p->stage, ml_comm_peer_bytes(), ML_MEM_SCRATCH, err);
        mine.can =
            st == ML_OK && p->dev->peer->share(&p->stage, mine.handle, NULL) == ML_OK;
    }
    st = h->agree(h, st, err);
    if (st == ML_OK)
        st = h->allgather(h, NULL, &out, &in, err);
    p->mapped = st == ML_OK && all_near(all, h->size);
    if (p->mapped)
        st = h->agree(h, map_all(p, all, err), err);
    free(all);
    if (!p->mapped && p->stage.dev)
        p->dev->free(&p->stage);
    return st;
}

static void peer_close(ml_comm *c) {
    peers *p = peers_of(c);

    for (int32_t r = 0; r < c->size; r++)
        if (p->mapped && r != c->rank && p->at[r])
            p->dev->peer->unmap(p->dev, p->at[r]);
    if (p->mapped && !c->failed)
        (void)p->host->barrier(p->host, NULL, NULL); /* the others have unmapped, too */
    if (p->stage.dev)
        p->dev->free(&p->stage);
    if (p->own_host)
        p->host->close(p->host);
    free(p->at);
    free(p->rows);
    free(p);
}

static ml_status open_over(ml_comm **out, ml_comm *host, bool own, ml_device *dev,
                           ml_err *err);

static ml_status peer_split(ml_comm *c, ml_comm **out, int32_t color, int32_t key,
                            ml_err *err) {
    peers *p = peers_of(c);
    ml_comm *h = host_of(c), *part = NULL;
    ml_status st = told(c, h->split(h, &part, color, key, err));

    *out = NULL;
    return st == ML_OK && part ? open_over(out, part, true, p->dev, err) : st;
}

static ml_status open_over(ml_comm **out, ml_comm *host, bool own, ml_device *dev,
                           ml_err *err) {
    peers *p = ml_memory_grow(NULL, sizeof *p, "a communicator");
    size_t n = (size_t)host->size;
    ml_status st = ML_OK;

    *p = (peers){ .host = host, .own_host = own, .dev = dev, .c = *host };
    p->at = ml_memory_grow(NULL, n * sizeof *p->at, "a communicator");
    memset(p->at, 0, n * sizeof *p->at);
    p->rows = ml_memory_grow(NULL, n * n * sizeof *p->rows, "a communicator");
    p->c.split = peer_split;
    p->c.close = peer_close;
    p->c.barrier = peer_barrier;
    p->c.bcast = peer_bcast;
    p->c.allgather = peer_allgather;
    p->c.reduce_scatter = peer_reduce_scatter;
    p->c.allreduce = peer_allreduce;
    p->c.alltoallv = peer_alltoallv;
    p->c.send = peer_send;
    p->c.recv = peer_recv;
    p->c.agree = peer_agree;
    p->c.abort = peer_abort;
    p->c.priv = p;
    if (host->size > 1)
        st = open_stages(p, err);
    if (p->mapped)
        p->c.name = "peer";
    if (st == ML_OK)
        *out = &p->c;
    else
        peer_close(&p->c);
    return st;
}

ml_status ml_comm_peer_open(ml_comm **out, ml_comm *host, ml_device *dev, ml_err *err) {
    return open_over(out, host, false, dev, err);
}
