/* peer.c - GPU memory that the ranks of one host map (CUDA IPC).
 *
 * A collective copies the data to the rank's stage, waits for the others through the host
 * communicator, and reads their stages. */
#include <stdlib.h>
#include <unistd.h>

#include "base/bug.h"
#include "base/oom.h"
#include "comm/device/device_priv.h"

/* A stage has two parts for collectives, which use them in turns, and one for messages.
 * Turns make one wait per call enough: a rank reaches the next wait after it has read all
 * stages of the last, and only then may the part be written again. */
enum { TURNS = 2, PARTS = TURNS + 1, PART_BYTES = 8 << 20 };

typedef struct peers {
    char **at;     /* [size]: the stage of each rank; its own, or mapped */
    int64_t *rows; /* [size][size]: rows that each rank sends to each rank */
    int turn;
} peers;

size_t ml_device_peer_bytes(void) {
    return (size_t)PARTS * PART_BYTES;
}

static peers *peers_of(const ml_device_team *t) {
    return t->state;
}

/* --- steps of a collective ----------------------------------------------------- */

static char *part_of(const peers *p, int32_t rank, int part) {
    return p->at[rank] + (size_t)part * PART_BYTES;
}

/* After this all ranks have filled this turn's part of their stages. */
static ml_status meet(ml_device_team *t, ml_stream *s, ml_err *err) {
    ml_comm *h = t->host;
    ml_status st = s->dev->sync(s, err);

    return st == ML_OK ? h->barrier(h, NULL, err) : h->agree(h, st, err);
}

static void next_turn(peers *p) {
    p->turn = (p->turn + 1) % TURNS;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* --- collectives ----------------------------------------------------------------- */

static ml_status bcast(ml_device_team *t, ml_stream *s, const ml_tensor *x, int32_t root,
                       ml_err *err) {
    peers *p = peers_of(t);
    size_t bytes = ml_tensor_bytes(x);
    ml_status st = ML_OK;

    for (size_t at = 0; at < bytes && st == ML_OK; at += PART_BYTES) {
        char *data = (char *)x->data + at, *stage = part_of(p, root, p->turn);
        size_t n = least(bytes - at, PART_BYTES);

        if (t->c.rank == root)
            ml_device_copy(s, stage, data, n);
        st = meet(t, s, err);
        if (st == ML_OK && t->c.rank != root)
            ml_device_copy(s, data, stage, n);
        next_turn(p);
    }
    return st;
}

static ml_status allgather(ml_device_team *t, ml_stream *s, const ml_tensor *out,
                           const ml_tensor *in, ml_err *err) {
    peers *p = peers_of(t);
    size_t bytes = ml_tensor_bytes(in);
    int32_t me = t->c.rank;
    ml_status st = ML_OK;

    ML_BUG_IF(ml_tensor_bytes(out) != bytes * (size_t)t->c.size);
    for (size_t at = 0; at < bytes && st == ML_OK; at += PART_BYTES) {
        char *mine = (char *)in->data + at;
        size_t n = least(bytes - at, PART_BYTES);

        ml_device_copy(s, part_of(p, me, p->turn), mine, n);
        st = meet(t, s, err);
        for (int32_t r = 0; r < t->c.size && st == ML_OK; r++)
            ml_device_copy(s, (char *)out->data + (size_t)r * bytes + at,
                           r == me ? mine : part_of(p, r, p->turn), n);
        next_turn(p);
    }
    return st;
}

/* out = the tree of what lies `offset` bytes into this turn's parts. */
static void add_parts(ml_device_team *t, ml_stream *s, void *out, size_t offset, int64_t n,
                      ml_dtype dtype, ml_reduce how) {
    peers *p = peers_of(t);
    const void *in[ML_PEERS];

    for (int32_t r = 0; r < t->c.size; r++)
        in[r] = part_of(p, r, p->turn) + offset;
    t->dev->peer->tree(s, out, in, t->c.size, n, dtype, how.op == ML_REDUCE_MAX);
}

/* Bytes of a part that each of the ranks gets: whole elements. */
static size_t share_of_part(int32_t size) {
    return PART_BYTES / (size_t)size / 64 * 64;
}

static ml_status reduce_scatter(ml_device_team *t, ml_stream *s, const ml_tensor *out,
                                const ml_tensor *in, ml_reduce how, ml_err *err) {
    peers *p = peers_of(t);
    size_t bytes = ml_tensor_bytes(out), most = share_of_part(t->c.size);
    ml_status st = ML_OK;

    ML_BUG_IF(ml_tensor_bytes(in) != bytes * (size_t)t->c.size);
    for (size_t at = 0; at < bytes && st == ML_OK; at += most) {
        size_t n = least(bytes - at, most);

        for (int32_t r = 0; r < t->c.size; r++)
            ml_device_copy(s, part_of(p, t->c.rank, p->turn) + (size_t)r * most,
                           (char *)in->data + (size_t)r * bytes + at, n);
        st = meet(t, s, err);
        if (st == ML_OK)
            add_parts(t, s, (char *)out->data + at, (size_t)t->c.rank * most,
                      (int64_t)(n / ml_dtype_bytes(in->dtype)), in->dtype, how);
        next_turn(p);
    }
    return st;
}

/* Every rank adds everything: few ranks, and their memory is near. */
static ml_status allreduce(ml_device_team *t, ml_stream *s, const ml_tensor *x,
                           ml_reduce how, ml_err *err) {
    peers *p = peers_of(t);
    size_t bytes = ml_tensor_bytes(x);
    ml_status st = ML_OK;

    for (size_t at = 0; at < bytes && st == ML_OK; at += PART_BYTES) {
        char *data = (char *)x->data + at;
        size_t n = least(bytes - at, PART_BYTES);

        ml_device_copy(s, part_of(p, t->c.rank, p->turn), data, n);
        st = meet(t, s, err);
        if (st == ML_OK)
            add_parts(t, s, data, 0, (int64_t)(n / ml_dtype_bytes(x->dtype)), x->dtype,
                      how);
        next_turn(p);
    }
    return st;
}

/* --- rows ------------------------------------------------------------------------ */

/* What rank r sends: where its rows for rank `to` begin and end, in bytes of its input. */
static void range_of(const ml_device_team *t, int32_t r, int32_t to, size_t row,
                     size_t *begin, size_t *end) {
    const int64_t *n = peers_of(t)->rows + (int64_t)r * t->c.size;
    int64_t before = 0;

    for (int32_t k = 0; k < to; k++)
        before += n[k];
    *begin = (size_t)before * row;
    *end = (size_t)(before + n[to]) * row;
}

static size_t sent_by(const ml_device_team *t, int32_t r, size_t row) {
    size_t begin, end;

    range_of(t, r, t->c.size - 1, row, &begin, &end);
    return end;
}

/* Reads from every stage what it has for this rank of input bytes [at, at + PART_BYTES). */
static void take_rows(const ml_device_team *t, ml_stream *s, char *out, size_t row,
                      size_t at) {
    const peers *p = peers_of(t);
    size_t done = 0; /* bytes of the ranks before */

    for (int32_t r = 0; r < t->c.size; r++) {
        size_t begin, end, from, to;
        range_of(t, r, t->c.rank, row, &begin, &end);
        from = begin > at ? begin : at;
        to = least(end, at + PART_BYTES);
        if (from < to)
            ml_device_copy(s, out + done + (from - begin),
                           part_of(p, r, p->turn) + (from - at), to - from);
        done += end - begin;
    }
}

static ml_status share_counts(ml_device_team *t, const int64_t *n_in, ml_err *err) {
    size_t n = (size_t)t->c.size, bytes = n * sizeof *n_in;
    ml_tensor mine = ml_comm_bytes(n_in, bytes),
              all = ml_comm_bytes(peers_of(t)->rows, bytes * n);

    return t->host->allgather(t->host, NULL, &all, &mine, err);
}

static ml_status alltoallv(ml_device_team *t, ml_stream *s, const ml_tensor *out,
                           const int64_t *n_out, const ml_tensor *in, const int64_t *n_in,
                           ml_err *err) {
    peers *p = peers_of(t);
    size_t row = ml_device_row_bytes(in), mine = 0, most = 0;
    ml_status st = share_counts(t, n_in, err);

    (void)n_out; /* it follows from the counts */
    for (int32_t r = 0; r < t->c.size && st == ML_OK; r++) {
        size_t n = sent_by(t, r, row);
        most = n > most ? n : most;
        mine = r == t->c.rank ? n : mine;
    }
    for (size_t at = 0; at < most && st == ML_OK; at += PART_BYTES) {
        if (at < mine)
            ml_device_copy(s, part_of(p, t->c.rank, p->turn), (char *)in->data + at,
                           least(mine - at, PART_BYTES));
        st = meet(t, s, err);
        if (st == ML_OK)
            take_rows(t, s, out->data, row, at);
        next_turn(p);
    }
    return st;
}

/* --- messages -------------------------------------------------------------------- */

/* Where a piece of a message lies in the stage for messages. */
typedef struct piece {
    size_t at, bytes;
} piece;

typedef struct exchange_run {
    ml_device_team *t;
    ml_stream *s;
    const ml_message *m;
    int32_t n;
    size_t slot;              /* bytes of the stage for each message that is sent */
    size_t done[ML_MESSAGES]; /* bytes of each message */
    piece piece[ML_MESSAGES]; /* the next of each; receivers learn it from the sender */
    ml_message word[ML_MESSAGES];
} exchange_run;

static bool is_open(const exchange_run *x, int32_t i) {
    return x->done[i] < ml_tensor_bytes(&x->m[i].t);
}

static void stage_pieces(exchange_run *x) {
    size_t at = 0;

    for (int32_t i = 0; i < x->n; i++) {
        const ml_message *m = &x->m[i];
        if (!m->send || !is_open(x, i))
            continue;
        x->piece[i] = (piece){ at, least(ml_tensor_bytes(&m->t) - x->done[i], x->slot) };
        ml_device_copy(x->s, part_of(peers_of(x->t), x->t->c.rank, TURNS) + at,
                       (char *)m->t.data + x->done[i], x->piece[i].bytes);
        at += x->slot;
    }
}

/* Senders say where their pieces are; back: receivers say that they have read them. */
static ml_status tell_pieces(exchange_run *x, bool back, ml_err *err) {
    ml_comm *h = x->t->host;
    ml_status st = x->s->dev->sync(x->s, err);
    int32_t n = 0;

    if (st != ML_OK)
        return h->agree(h, st, err);
    for (int32_t i = 0; i < x->n; i++)
        if (is_open(x, i))
            x->word[n++] = (ml_message){ back ? ml_comm_bytes("", 0)
                                              : ml_comm_bytes(&x->piece[i], sizeof(piece)),
                                         x->m[i].peer, x->m[i].send != back };
    return h->exchange(h, NULL, x->word, n, err);
}

static void read_pieces(exchange_run *x) {
    for (int32_t i = 0; i < x->n; i++)
        if (!x->m[i].send && is_open(x, i))
            ml_device_copy(x->s, (char *)x->m[i].t.data + x->done[i],
                           part_of(peers_of(x->t), x->m[i].peer, TURNS) + x->piece[i].at,
                           x->piece[i].bytes);
}

static bool any_open(const exchange_run *x) {
    for (int32_t i = 0; i < x->n; i++)
        if (is_open(x, i))
            return true;
    return false;
}

static ml_status exchange(ml_device_team *t, ml_stream *s, const ml_message *m, int32_t n,
                          ml_err *err) {
    exchange_run x = { .t = t, .s = s, .m = m, .n = n };
    size_t n_send = 1;
    ml_status st = ML_OK;

    for (int32_t i = 0; i < n; i++)
        n_send += m[i].send;
    x.slot = PART_BYTES / n_send / 64 * 64;
    while (st == ML_OK && any_open(&x)) {
        stage_pieces(&x);
        st = tell_pieces(&x, false, err);
        if (st == ML_OK) {
            read_pieces(&x);
            st = tell_pieces(&x, true, err);
        }
        for (int32_t i = 0; i < n; i++)
            x.done[i] += is_open(&x, i) ? x.piece[i].bytes : 0;
    }
    return st;
}

/* --- opening --------------------------------------------------------------------- */

static void peer_close(ml_device_team *t) {
    peers *p = peers_of(t);

    for (int32_t r = 0; r < t->c.size; r++)
        if (r != t->c.rank && p->at[r])
            t->dev->peer->unmap(t->dev, p->at[r]);
    if (!t->host->failed)
        (void)t->host->barrier(t->host, NULL, NULL); /* the others have unmapped, too */
    free(p->at);
    free(p->rows);
    free(p);
}

static const ml_device_transport transport = { "peer",         bcast,     allgather,
                                               reduce_scatter, allreduce, alltoallv,
                                               exchange,       peer_close };

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

static ml_status map_all(ml_device_team *t, const offer *all, ml_err *err) {
    size_t n = (size_t)t->c.size;
    peers *p = ml_memory_grow(NULL, sizeof *p, "a communicator");
    ml_status st = ML_OK;

    p->turn = 0;
    p->rows = ml_memory_grow(NULL, n * n * sizeof *p->rows, "a communicator");
    p->at = ml_memory_grow(NULL, n * sizeof *p->at, "a communicator");
    memset(p->at, 0, n * sizeof *p->at);
    t->state = p;
    t->transport = &transport;
    for (int32_t r = 0; r < t->c.size && st == ML_OK; r++) {
        void *at = t->stage.ptr;
        if (r != t->c.rank)
            st = t->dev->peer->map(t->dev, &at, all[r].handle, err);
        p->at[r] = st == ML_OK ? at : NULL;
    }
    return st;
}

ml_status ml_device_peer_open(ml_device_team *t, ml_err *err) {
    ml_comm *h = t->host;
    size_t n = (size_t)h->size;
    offer mine = { .can = false }, *all = ml_memory_grow(NULL, n * sizeof *all, "peers");
    ml_tensor in = ml_comm_bytes(&mine, sizeof mine),
              out = ml_comm_bytes(all, n * sizeof *all);
    ml_status st = ML_OK;

    (void)gethostname(mine.host, sizeof mine.host - 1);
    if (t->dev->peer) {
        st = t->dev->alloc(t->dev, &t->stage, ml_device_peer_bytes(), ML_MEM_SCRATCH, err);
        mine.can =
            st == ML_OK && t->dev->peer->share(&t->stage, mine.handle, NULL) == ML_OK;
    }
    st = h->agree(h, st, err);
    if (st == ML_OK)
        st = h->allgather(h, NULL, &out, &in, err);
    if (st == ML_OK && all_near(all, h->size))
        st = h->agree(h, map_all(t, all, err), err);
    else if (t->stage.dev)
        t->dev->free(&t->stage);
    free(all);
    return st;
}
