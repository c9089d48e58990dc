/* collectives.c - the communicator of several ranks, over any link.
 *
 * Every collective is one or a few exchanges in which a rank waits directly for the ranks
 * whose data it needs, without intermediaries, so that a wait that fails names the rank
 * that is silent and not one that waits itself. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/clock.h"
#include "base/oom.h"
#include "base/str.h"
#include "base/timeline.h"
#include "comm/link.h"
#include "comm/reduce.h"
#include "comm/share.h"
#include "comm/watch.h"
#include "comm/world.h"

enum {
    SMALL = 4 << 10,   /* bytes up to which one exchange is better than two shorter ones */
    PIECES = 16 << 20, /* bytes of all ranks' inputs that are reduced at a time */
    PIECE_LEAST = 64 << 10, /* bytes of one rank's */
    MOST_HOSTS = 8,         /* named in a message */
};

typedef struct stage { /* host memory for tensors of a device */
    void *p;
    size_t bytes;
    void (*free)(void *p);
} stage;

typedef struct team {
    ml_comm c;
    ml_link *link;
    bool opened; /* not split from another */
    bool aside;  /* its waits are not those of the loop */
    int32_t tag;
    int32_t *member;   /* [size]: ranks of the job */
    ml_parcel *parcel; /* [most_parcels] */
    int32_t n_parcel;
    const void **input; /* [size]: of a reduction */
    char *scratch;
    size_t scratch_bytes;
    stage in, out;
    ml_err why; /* when c.failed */
} team;

static team *team_of(ml_comm *c) {
    return c->priv;
}

static ml_status fail(team *t, const ml_err *why, ml_err *err) {
    t->c.failed = true;
    t->why = *why;
    if (err)
        *err = *why;
    return why->code;
}

/* The hosts of these ranks, each once. */
static void put_hosts(const team *t, const bool *is, ml_text *out) {
    const char *const *host = t->link->host;
    int32_t put = 0;

    for (int32_t r = 0; r < t->link->size && host; r++) {
        bool seen = !is[r];
        for (int32_t k = 0; k < r && !seen; k++)
            seen = is[k] && strcmp(host[k], host[r]) == 0;
        if (!seen && put < MOST_HOSTS)
            ml_text_printf(out, "%s%s", put ? ", " : " (on ", host[r]);
        put += !seen;
    }
    if (put > MOST_HOSTS)
        ml_text_printf(out, " and %d more hosts", put - MOST_HOSTS);
    ml_text_printf(out, put ? ")" : "");
}

/* The ranks whose messages have not come: "rank 3 (on host b)", "ranks 3-5 and 7 (on a, b)".
 * Returns the first of them. */
static int32_t put_awaited(const team *t, ml_text *out) {
    bool *is = ml_memory_grow(NULL, (size_t)t->link->size, "a list of ranks");
    int32_t first = 0;

    memset(is, 0, (size_t)t->link->size);
    for (int32_t i = 0; i < t->n_parcel; i++)
        is[t->parcel[i].peer] |= !t->parcel[i].done;
    ml_comm_put_ranks(out, is, t->link->size);
    put_hosts(t, is, out);
    while (first < t->link->size - 1 && !is[first])
        first++;
    free(is);
    return first;
}

static ml_status time_is_up(team *t, const char *op, ml_err *err) {
    ml_text text = { 0 };
    int32_t silent, end;
    ml_err why;

    ml_wait_put(&text, &t->c, op);
    ml_text_printf(&text, ": ");
    silent = put_awaited(t, &text);
    ml_text_printf(&text, " did not answer within %g s (--distributed-timeout-minutes)",
                   t->c.deadline_s);
    end = t->aside ? silent : ml_watch_explain(t->link->watch, &text, silent);
    if (silent == 0 || end == 0)
        atomic_store(&t->link->first_silent, true);
    ml_text_printf(&text, "; see what stopped there, and start the job again");
    ml_fail(&why, ML_EAGAIN, "rank %d gave up: %s", (int)t->link->rank, text.ptr);
    t->link->tell(t->link, &why);
    ml_fail(&why, ML_EPEER, "%s", text.ptr);
    ml_text_release(&text);
    return fail(t, &why, err);
}

/* Another rank gave up, or left: this one says what it waits for, too. */
static ml_status peer_is_gone(team *t, const char *op, const ml_err *why, ml_err *err) {
    ml_text text = { 0 };
    ml_err mine;

    ml_wait_put(&text, &t->c, op);
    ml_text_printf(&text, " for ");
    put_awaited(t, &text);
    ml_fail(&mine, ML_EPEER, "%s; rank %d was waiting in %s", why->msg, (int)t->link->rank,
            text.ptr);
    ml_text_release(&text);
    return fail(t, &mine, err);
}

static void add_span(team *t, const char *op, double begin_s) {
    ml_time_span span = { .name = op,
                          .track = ML_TRACK_COMM,
                          .layer = t->c.layer,
                          .begin_s = begin_s,
                          .end_s = ml_clock_s(),
                          .group = t->c.group };

    ml_timeline_add(t->c.spans, &span, 1);
}

static ml_status wait_for_parcels(team *t, const char *op, ml_err *why) {
    ml_wait wait = { &t->c, op, t->parcel, t->n_parcel, ml_clock_s() };
    ml_status st;

    if (!t->aside)
        ml_watch_enter(t->link->watch, &wait);
    st = t->link->exchange(t->link, t->tag, t->parcel, t->n_parcel, t->c.deadline_s, why);
    if (!t->aside)
        ml_watch_leave(t->link->watch, &wait);
    return st;
}

/* Runs the parcels that were added since the last time. */
static ml_status run(team *t, const char *op, ml_err *err) {
    double begin_s = t->c.spans ? ml_clock_s() : 0;
    ml_err why;
    ml_status st;

    if (t->c.failed) {
        t->n_parcel = 0;
        return fail(t, &t->why, err);
    }
    st = wait_for_parcels(t, op, &why);
    if (st == ML_EAGAIN)
        st = time_is_up(t, op, err);
    else if (st != ML_OK && why.code == ML_EAGAIN)
        st = peer_is_gone(t, op, &why, err);
    else if (st != ML_OK)
        st = fail(t, &why, err);
    t->n_parcel = 0;
    if (t->c.spans)
        add_span(t, op, begin_s);
    return st;
}

static int32_t most_parcels(int32_t size) {
    return 2 * size > ML_MESSAGES ? 2 * size : ML_MESSAGES;
}

static void add(team *t, int32_t rank, bool send, const void *data, size_t bytes) {
    ml_tensor x = ml_comm_bytes(data, bytes);

    ML_BUG_IF(rank == t->c.rank || t->n_parcel == most_parcels(t->c.size));
    t->parcel[t->n_parcel++] = (ml_parcel){
        .data = x.data, .bytes = bytes, .peer = t->member[rank], .send = send
    };
}

/* Tensors of a device are staged through host memory. */
static bool on_host(const ml_stream *s) {
    return !s || s->dev->host;
}

static void stage_release(stage *h) {
    if (h->p)
        h->free(h->p);
    *h = (stage){ 0 };
}

static char *staged(stage *h, ml_stream *s, const ml_tensor *x) {
    size_t bytes = ml_tensor_bytes(x);

    if (on_host(s))
        return x->data;
    if (bytes > h->bytes) {
        stage_release(h);
        h->free = s->dev->host_alloc ? s->dev->host_free : free;
        h->p = s->dev->host_alloc ? s->dev->host_alloc(bytes) : malloc(bytes);
        if (!h->p)
            ml_memory_out(bytes, "a copy of a tensor that is sent to other ranks");
        h->bytes = bytes;
    }
    return h->p;
}

static char *fetch(stage *h, ml_stream *s, const ml_tensor *x) {
    char *p = staged(h, s, x);

    if (!on_host(s) && ml_tensor_bytes(x))
        s->dev->copy_out(s, p, x->data, ml_tensor_bytes(x));
    return p;
}

static void give(ml_stream *s, const ml_tensor *x, const char *p) {
    if (!on_host(s) && ml_tensor_bytes(x))
        s->dev->copy_in(s, x->data, p, ml_tensor_bytes(x));
}

static ml_status group_barrier(ml_comm *c, ml_stream *s, ml_err *err) {
    team *t = team_of(c);

    (void)s;
    for (int32_t r = 0; r < c->size; r++) {
        if (r == c->rank)
            continue;
        add(t, r, true, NULL, 0);
        add(t, r, false, NULL, 0);
    }
    return run(t, "barrier", err);
}

/* Part r of `bytes` cut into n parts. */
static size_t part(size_t bytes, int32_t r, int32_t n) {
    return bytes / (size_t)n * (size_t)r + bytes % (size_t)n * (size_t)r / (size_t)n;
}

static void add_part(team *t, int32_t peer, bool send, char *p, size_t bytes, int32_t r) {
    size_t first = part(bytes, r, t->c.size);

    add(t, peer, send, p + first, part(bytes, r + 1, t->c.size) - first);
}

/* The root sends each rank a part of its own, and its own part to all; then these exchange
 * their parts: every byte leaves the root about twice, however many ranks there are. */
static ml_status bcast_parts(team *t, char *p, size_t bytes, int32_t root, ml_err *err) {
    int32_t n = t->c.size, me = t->c.rank;
    ml_status st;

    for (int32_t r = 0; r < n; r++) {
        if (r == root || (me != root && r != me))
            continue;
        add_part(t, me == root ? r : root, me == root, p, bytes, r);
        add_part(t, me == root ? r : root, me == root, p, bytes, root);
    }
    st = run(t, "bcast", err);
    if (st != ML_OK || me == root)
        return st;
    for (int32_t r = 0; r < n; r++) {
        if (r == root || r == me)
            continue;
        add_part(t, r, true, p, bytes, me);
        add_part(t, r, false, p, bytes, r);
    }
    return run(t, "bcast", err);
}

static ml_status bcast_whole(team *t, char *p, size_t bytes, int32_t root, ml_err *err) {
    for (int32_t r = 0; r < t->c.size; r++)
        if (r != root && (t->c.rank == root || r == t->c.rank))
            add(t, t->c.rank == root ? r : root, t->c.rank == root, p, bytes);
    return run(t, "bcast", err);
}

static ml_status group_bcast(ml_comm *c, ml_stream *s, const ml_tensor *x, int32_t root,
                             ml_err *err) {
    team *t = team_of(c);
    size_t bytes = ml_tensor_bytes(x);
    char *p = c->rank == root ? fetch(&t->in, s, x) : staged(&t->in, s, x);
    ml_status st;

    ML_BUG_IF(root < 0 || root >= c->size);
    if (bytes <= SMALL || c->size == 2)
        st = bcast_whole(t, p, bytes, root, err);
    else
        st = bcast_parts(t, p, bytes, root, err);
    if (st == ML_OK && c->rank != root)
        give(s, x, p);
    return st;
}

/* Sends `mine` to every rank and receives theirs at p, each at its place. */
static ml_status gather(team *t, const char *op, char *p, const char *mine, size_t bytes,
                        ml_err *err) {
    char *place = p + (size_t)t->c.rank * bytes;

    for (int32_t r = 0; r < t->c.size; r++) {
        if (r == t->c.rank)
            continue;
        add(t, r, true, mine, bytes);
        add(t, r, false, p + (size_t)r * bytes, bytes);
    }
    if (place != mine && bytes)
        memmove(place, mine, bytes);
    return run(t, op, err);
}

static ml_status group_allgather(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                 const ml_tensor *in, ml_err *err) {
    team *t = team_of(c);
    size_t bytes = ml_tensor_bytes(in);
    char *to = staged(&t->out, s, out), *from = fetch(&t->in, s, in);
    ml_status st;

    ML_BUG_IF(ml_tensor_bytes(out) != bytes * (size_t)c->size || out->dtype != in->dtype);
    st = gather(t, "allgather", to, from, bytes, err);
    if (st == ML_OK)
        give(s, out, to);
    return st;
}

static char *scratch(team *t, size_t bytes) {
    if (bytes > t->scratch_bytes) {
        t->scratch = ml_memory_grow(t->scratch, bytes, "the inputs of a reduction");
        t->scratch_bytes = bytes;
    }
    return t->scratch;
}

/* Elements of one rank that are reduced at a time. */
static int64_t piece_of(const team *t, size_t element) {
    size_t bytes = PIECES / (size_t)t->c.size;

    return (int64_t)((bytes < PIECE_LEAST ? PIECE_LEAST : bytes) / element);
}

/* An array of numbers in host memory. */
typedef struct numbers {
    char *p;
    size_t element; /* bytes */
    ml_dtype dtype;
    ml_reduce how;
} numbers;

/* Receives everybody's copy of a range of mine, which starts at `mine` in this rank's memory;
 * sends have been added.  The result goes to `to`, which may be `mine`. */
static ml_status reduce_range(team *t, const char *op, const numbers *x, const char *mine,
                              char *to, int64_t count, ml_err *err) {
    size_t bytes = (size_t)count * x->element;
    char *theirs = scratch(t, bytes * (size_t)t->c.size);
    ml_status st;

    for (int32_t r = 0; r < t->c.size; r++) {
        char *p = theirs + bytes * (size_t)r;
        if (r != t->c.rank)
            add(t, r, false, p, bytes);
        t->input[r] = r == t->c.rank ? mine : p;
    }
    st = run(t, op, err);
    if (st == ML_OK)
        ml_reduce_tree(to, t->input, t->c.size, count, x->dtype, x->how.op);
    return st;
}

static ml_status group_reduce_scatter(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                      const ml_tensor *in, ml_reduce how, ml_err *err) {
    team *t = team_of(c);
    numbers x = { fetch(&t->in, s, in), ml_dtype_bytes(in->dtype), in->dtype, how };
    size_t bytes = ml_tensor_bytes(out);
    int64_t count = (int64_t)(bytes / x.element), piece = piece_of(t, x.element);
    char *to = staged(&t->out, s, out);
    ml_status st = ML_OK;

    ML_BUG_IF(ml_tensor_bytes(in) != bytes * (size_t)c->size || out->dtype != in->dtype);
    for (int64_t at = 0; at < count && st == ML_OK; at += piece) {
        int64_t n = count - at < piece ? count - at : piece;
        size_t first = (size_t)at * x.element;

        for (int32_t r = 0; r < c->size; r++)
            if (r != c->rank)
                add(t, r, true, x.p + bytes * (size_t)r + first, (size_t)n * x.element);
        st = reduce_range(t, "reduce_scatter", &x, x.p + bytes * (size_t)c->rank + first,
                          to + first, n, err);
    }
    if (st == ML_OK)
        give(s, out, to);
    return st;
}

static int64_t slice(int64_t count, int32_t r, int32_t n) {
    return (int64_t)part((size_t)count, r, n);
}

/* Everybody reduces a slice of the array, then sends it to all. */
static ml_status allreduce_slices(team *t, const numbers *x, char *p, int64_t count,
                                  ml_err *err) {
    int32_t n = t->c.size, me = t->c.rank;
    int64_t first = slice(count, me, n), end = slice(count, me + 1, n);
    char *mine = p + (size_t)first * x->element;
    ml_status st;

    for (int32_t r = 0; r < n; r++)
        if (r != me)
            add(t, r, true, p + (size_t)slice(count, r, n) * x->element,
                (size_t)(slice(count, r + 1, n) - slice(count, r, n)) * x->element);
    st = reduce_range(t, "allreduce", x, mine, mine, end - first, err);
    if (st != ML_OK)
        return st;
    for (int32_t r = 0; r < n; r++) {
        if (r == me)
            continue;
        add(t, r, true, mine, (size_t)(end - first) * x->element);
        add(t, r, false, p + (size_t)slice(count, r, n) * x->element,
            (size_t)(slice(count, r + 1, n) - slice(count, r, n)) * x->element);
    }
    return run(t, "allreduce", err);
}

/* Everybody gathers the arrays and reduces them. */
static ml_status allreduce_small(team *t, const numbers *x, int64_t count, ml_err *err) {
    size_t bytes = (size_t)count * x->element;

    for (int32_t r = 0; r < t->c.size; r++)
        if (r != t->c.rank)
            add(t, r, true, x->p, bytes);
    return reduce_range(t, "allreduce", x, x->p, x->p, count, err);
}

static ml_status group_allreduce(ml_comm *c, ml_stream *s, const ml_tensor *tensor,
                                 ml_reduce how, ml_err *err) {
    team *t = team_of(c);
    numbers x = { fetch(&t->in, s, tensor), ml_dtype_bytes(tensor->dtype), tensor->dtype,
                  how };
    int64_t count = (int64_t)(ml_tensor_bytes(tensor) / x.element), n;
    ml_status st = ML_OK;

    if (ml_tensor_bytes(tensor) <= SMALL || count < c->size) {
        st = allreduce_small(t, &x, count, err);
    } else {
        for (int64_t at = 0; at < count && st == ML_OK; at += n) {
            n = piece_of(t, x.element) * c->size;
            if (n > count - at || count - at - n < c->size)
                n = count - at; /* no slice is empty */
            st = allreduce_slices(t, &x, x.p + (size_t)at * x.element, n, err);
        }
    }
    if (st == ML_OK)
        give(s, tensor, x.p);
    return st;
}

static size_t row_bytes(const ml_tensor *x) {
    size_t n = ml_dtype_bytes(x->dtype);

    ML_BUG_IF(x->layout != ML_ROWS);
    for (int32_t i = 1; i < x->n_dim; i++)
        n *= (size_t)x->shape[i];
    return n;
}

static ml_status group_alltoallv(ml_comm *c, ml_stream *s, const ml_tensor *out,
                                 const int64_t *n_out, const ml_tensor *in,
                                 const int64_t *n_in, ml_err *err) {
    team *t = team_of(c);
    size_t row = row_bytes(in);
    char *to = fetch(&t->out, s, out), *from = fetch(&t->in, s, in);
    int64_t rows_in = 0, rows_out = 0;
    ml_status st;

    ML_BUG_IF(row_bytes(out) != row || n_in[c->rank] != n_out[c->rank]);
    for (int32_t r = 0; r < c->size; r++) {
        char *there = from + (size_t)rows_in * row, *here = to + (size_t)rows_out * row;

        if (r == c->rank && n_in[r])
            memcpy(here, there, (size_t)n_in[r] * row);
        if (r != c->rank && n_in[r])
            add(t, r, true, there, (size_t)n_in[r] * row);
        if (r != c->rank && n_out[r])
            add(t, r, false, here, (size_t)n_out[r] * row);
        rows_in += n_in[r];
        rows_out += n_out[r];
    }
    ML_BUG_IF(rows_in > in->shape[0] || rows_out > out->shape[0]);
    st = run(t, "alltoallv", err);
    if (st == ML_OK)
        give(s, out, to);
    return st;
}

static ml_status group_send(ml_comm *c, ml_stream *s, const ml_tensor *x, int32_t to,
                            ml_err *err) {
    team *t = team_of(c);

    add(t, to, true, fetch(&t->in, s, x), ml_tensor_bytes(x));
    return run(t, "send", err);
}

static ml_status group_recv(ml_comm *c, ml_stream *s, const ml_tensor *x, int32_t from,
                            ml_err *err) {
    team *t = team_of(c);
    char *p = staged(&t->in, s, x);
    ml_status st;

    add(t, from, false, p, ml_tensor_bytes(x));
    st = run(t, "recv", err);
    if (st == ML_OK)
        give(s, x, p);
    return st;
}

/* Tensors of a device have places in a common stage. */
static ml_status group_exchange(ml_comm *c, ml_stream *s, const ml_message *m, int32_t n,
                                ml_err *err) {
    team *t = team_of(c);
    size_t at[ML_MESSAGES + 1] = { 0 };
    ml_tensor all;
    char *base;
    ml_status st;

    ML_BUG_IF(n > ML_MESSAGES);
    for (int32_t i = 0; i < n; i++)
        at[i + 1] = at[i] + ml_tensor_bytes(&m[i].t);
    all = ml_comm_bytes(NULL, at[n]);
    base = staged(&t->in, s, &all);
    for (int32_t i = 0; i < n; i++) {
        char *p = on_host(s) ? m[i].t.data : base + at[i];
        if (m[i].send && !on_host(s) && at[i + 1] > at[i])
            s->dev->copy_out(s, p, m[i].t.data, at[i + 1] - at[i]);
        add(t, m[i].peer, m[i].send, p, at[i + 1] - at[i]);
    }
    st = run(t, "exchange", err);
    for (int32_t i = 0; i < n && st == ML_OK; i++)
        if (!m[i].send)
            give(s, &m[i].t, base + at[i]);
    return st;
}

/* This rank is the reason that the job fails. */
static void tell(team *t, const ml_err *why) {
    t->link->tell(t->link, why);
    (void)fail(t, why, NULL);
}

/* A rank that failed does not enter the barrier: the others' wait ends with its news. */
static ml_status group_agree(ml_comm *c, ml_status mine, ml_err *err) {
    team *t = team_of(c);
    ml_err why;

    if (mine == ML_OK)
        return group_barrier(c, NULL, err);
    if (c->failed)
        return mine;
    ml_fail(&why, ML_EPEER, "rank %d failed: %s", (int)t->link->rank,
            err && err->msg[0] ? err->msg : "without a message");
    tell(t, &why);
    return mine;
}

static void group_abort(ml_comm *c) {
    team *t = team_of(c);
    ml_text text = { 0 };
    ml_err why;

    ml_wait_put(&text, &t->c, "abort");
    ml_fail(&why, ML_EPEER, "rank %d stopped the job: %s", (int)t->link->rank, text.ptr);
    ml_text_release(&text);
    tell(t, &why);
}

ml_watch *ml_comm_watch(const ml_comm *c) {
    return ((const team *)c)->link->watch;
}

void ml_comm_aside(ml_comm *c) {
    team_of(c)->aside = true;
}

ml_status ml_comm_give_up(ml_comm *c, int32_t rank, const char *why, ml_err *err) {
    team *t = team_of(c);
    ml_err told;

    if (rank == 0)
        atomic_store(&t->link->first_silent, true);
    ml_fail(&told, ML_EAGAIN, "rank %d gave up: %s", (int)t->link->rank, why);
    t->link->tell(t->link, &told);
    told.code = ML_EPEER;
    return fail(t, &told, err);
}

static void group_close(ml_comm *c) {
    team *t = team_of(c);

    if (t->opened) {
        ml_watch_free(t->link->watch);
        t->link->close(t->link);
    }
    stage_release(&t->in);
    stage_release(&t->out);
    free(t->scratch);
    free(t->input);
    free(t->parcel);
    free(t->member);
    free(t);
}

static ml_status group_split(ml_comm *c, ml_comm **out, int32_t color, int32_t key,
                             ml_err *err);

static team *team_new(ml_link *l, int32_t size) {
    team *t = ml_memory_grow(NULL, sizeof *t, "a communicator");
    size_t n = (size_t)size;

    *t = (team){ .link = l };
    t->member = ml_memory_grow(NULL, n * sizeof *t->member, "a communicator");
    t->parcel = ml_memory_grow(NULL, (size_t)most_parcels(size) * sizeof *t->parcel,
                               "a communicator");
    t->input = ml_memory_grow(NULL, n * sizeof *t->input, "a communicator");
    t->c = (ml_comm){
        .name = l->name,
        .size = size,
        .local_rank = l->local_rank,
        .local_size = l->local_size,
        .group = "world",
        .layer = -1,
        .split = group_split,
        .close = group_close,
        .barrier = group_barrier,
        .bcast = group_bcast,
        .allgather = group_allgather,
        .reduce_scatter = group_reduce_scatter,
        .allreduce = group_allreduce,
        .alltoallv = group_alltoallv,
        .send = group_send,
        .recv = group_recv,
        .exchange = group_exchange,
        .agree = group_agree,
        .abort = group_abort,
        .priv = t,
    };
    return t;
}

bool ml_comm_first_silent(const ml_comm *c) {
    return c && c->size > 1 && atomic_load(&((const team *)c)->link->first_silent);
}

ml_comm *ml_comm_of_link(ml_link *l) {
    team *t = team_new(l, l->size);

    l->watch = ml_watch_new(l->size);
    t->opened = true;
    t->c.rank = l->rank;
    for (int32_t r = 0; r < l->size; r++)
        t->member[r] = r;
    return &t->c;
}

typedef struct seat { /* what a rank says in a split */
    int32_t color, key, last_tag, rank;
} seat;

static int by_key(const void *a, const void *b) {
    const seat *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->rank - y->rank;
}

/* The ranks of a new communicator use a tag that none of them has used: communicators of one
 * split have no rank in common and share it. */
static team *team_seated(team *parent, seat *all, int32_t color) {
    int32_t n = 0, size = parent->c.size, me = parent->c.rank;
    team *t;

    for (int32_t r = 0; r < size; r++) {
        if (all[r].last_tag > parent->link->last_tag)
            parent->link->last_tag = all[r].last_tag;
        if (all[r].color == color)
            all[n++] = all[r];
    }
    parent->link->last_tag++;
    if (color < 0)
        return NULL;
    qsort(all, (size_t)n, sizeof *all, by_key);
    t = team_new(parent->link, n);
    t->tag = parent->link->last_tag;
    t->c.deadline_s = parent->c.deadline_s;
    t->c.spans = parent->c.spans;
    t->aside = parent->aside;
    for (int32_t r = 0; r < n; r++) {
        t->member[r] = parent->member[all[r].rank];
        if (all[r].rank == me)
            t->c.rank = r;
    }
    return t;
}

static ml_status group_split(ml_comm *c, ml_comm **out, int32_t color, int32_t key,
                             ml_err *err) {
    team *t = team_of(c), *made;
    seat mine = { color < 0 ? -1 : color, key, t->link->last_tag, c->rank };
    seat *all = ml_memory_grow(NULL, (size_t)c->size * sizeof *all, "a communicator");
    ml_status st = gather(t, "split", (char *)all, (const char *)&mine, sizeof mine, err);

    *out = NULL;
    if (st == ML_OK) {
        made = team_seated(t, all, mine.color);
        *out = made ? &made->c : NULL;
    }
    free(all);
    return st;
}

void ml_comm_doing(ml_comm *c, const char *what, int32_t layer) {
    if (c->size == 1)
        return; /* never waits; the communicator of comm/self is shared */
    c->what = what;
    c->layer = layer;
}
