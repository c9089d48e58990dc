/* nccl.c - GPU tensors by NCCL, one GPU per rank.
 *
 * The library is loaded when it is needed; its functions are declared here as far as they
 * are used, so that building needs no header of it.  NCCL only moves bytes. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/bug.h"
#include "base/oom.h"
#include "comm/device/device_priv.h"

/* --- the library ----------------------------------------------------------------- */

typedef struct unique_id {
    char bytes[128];
} unique_id;

typedef void *handle; /* ncclComm_t */
enum { SUCCESS = 0, BYTES = 1 /* ncclUint8 */ };

static struct {
    void *so;
    int (*get_id)(unique_id *id);
    int (*init)(handle *out, int n, unique_id id, int rank);
    int (*destroy)(handle c);
    int (*abort)(handle c);
    int (*bcast)(const void *in, void *out, size_t n, int type, int root, handle c,
                 void *s);
    int (*gather)(const void *in, void *out, size_t n, int type, handle c, void *s);
    int (*send)(const void *p, size_t n, int type, int peer, handle c, void *s);
    int (*recv)(void *p, size_t n, int type, int peer, handle c, void *s);
    int (*begin)(void);
    int (*end)(void);
    const char *(*text)(int result);
} nccl;

static bool find(void *to, const char *name) {
    *(void **)to = dlsym(nccl.so, name);
    return *(void **)to != NULL;
}

static bool load(void) {
    if (!nccl.so)
        nccl.so = dlopen("libnccl.so.2", RTLD_NOW | RTLD_LOCAL);
    return nccl.so && find(&nccl.get_id, "ncclGetUniqueId") &&
           find(&nccl.init, "ncclCommInitRank") && find(&nccl.destroy, "ncclCommDestroy") &&
           find(&nccl.abort, "ncclCommAbort") && find(&nccl.bcast, "ncclBroadcast") &&
           find(&nccl.gather, "ncclAllGather") && find(&nccl.send, "ncclSend") &&
           find(&nccl.recv, "ncclRecv") && find(&nccl.begin, "ncclGroupStart") &&
           find(&nccl.end, "ncclGroupEnd") && find(&nccl.text, "ncclGetErrorString");
}

/* A failure of NCCL on one rank fails the job. */
static ml_status check(ml_device_team *t, int result, const char *what, ml_err *err) {
    if (result == SUCCESS)
        return ML_OK;
    return t->host->agree(
        t->host, ml_fail(err, ML_EIO, "NCCL failed in %s: %s", what, nccl.text(result)),
        err);
}

/* --- collectives ----------------------------------------------------------------- */

enum { STAGE_BYTES = 32 << 20 }; /* all ranks' inputs of a sum, at a time */

size_t ml_device_nccl_bytes(void) {
    return STAGE_BYTES;
}

static ml_status bcast(ml_device_team *t, ml_stream *s, const ml_tensor *x, int32_t root,
                       ml_err *err) {
    return check(t,
                 nccl.bcast(x->data, x->data, ml_tensor_bytes(x), BYTES, root, t->state,
                            s->dev->native(s)),
                 "a broadcast", err);
}

static ml_status allgather(ml_device_team *t, ml_stream *s, const ml_tensor *out,
                           const ml_tensor *in, ml_err *err) {
    size_t bytes = ml_tensor_bytes(in);

    ML_BUG_IF(ml_tensor_bytes(out) != bytes * (size_t)t->c.size);
    return check(
        t, nccl.gather(in->data, out->data, bytes, BYTES, t->state, s->dev->native(s)),
        "an allgather", err);
}

/* A message to or from each rank: where it lies, and its bytes. */
typedef struct leg {
    const void *out;
    void *in;
    size_t out_bytes, in_bytes;
} leg;

/* Sends and receives at once; the rank's own leg is a copy. */
static ml_status exchange_legs(ml_device_team *t, ml_stream *s, const leg *l, ml_err *err) {
    void *stream = s->dev->native(s);
    int32_t me = t->c.rank;
    int bad = nccl.begin();

    for (int32_t r = 0; r < t->c.size && !bad; r++) {
        if (r != me && l[r].out_bytes)
            bad = nccl.send(l[r].out, l[r].out_bytes, BYTES, r, t->state, stream);
        if (r != me && l[r].in_bytes && !bad)
            bad = nccl.recv(l[r].in, l[r].in_bytes, BYTES, r, t->state, stream);
    }
    ml_device_copy(s, l[me].in, l[me].out, l[me].in_bytes);
    if (!bad)
        bad = nccl.end();
    return check(t, bad, "an exchange", err);
}

/* out = the tree of the ranks' parts in the stage, `step` bytes apart. */
static void add_stage(ml_device_team *t, ml_stream *s, void *out, size_t step, int64_t n,
                      ml_dtype dtype, ml_reduce how) {
    const void *in[ML_PEERS];

    for (int32_t r = 0; r < t->c.size; r++)
        in[r] = (const char *)t->stage.ptr + (size_t)r * step;
    t->dev->peer->tree(s, out, in, t->c.size, n, dtype, how.op == ML_REDUCE_MAX);
}

/* Adds the ranks' parts at `at` of n bytes each; part r of this rank's input is at
 * in + r * stride. */
static ml_status reduce_piece(ml_device_team *t, ml_stream *s, char *out, const char *in,
                              size_t stride, size_t n, ml_dtype dtype, ml_reduce how,
                              ml_err *err) {
    leg l[ML_PEERS];
    ml_status st;

    for (int32_t r = 0; r < t->c.size; r++)
        l[r] = (leg){ .out = in + (size_t)r * stride,
                      .in = (char *)t->stage.ptr + (size_t)r * n,
                      .out_bytes = n,
                      .in_bytes = n };
    st = exchange_legs(t, s, l, err);
    if (st == ML_OK)
        add_stage(t, s, out, n, (int64_t)(n / ml_dtype_bytes(dtype)), dtype, how);
    return st;
}

static size_t piece_bytes(const ml_device_team *t) {
    return STAGE_BYTES / (size_t)t->c.size / 64 * 64;
}

static ml_status reduce_scatter(ml_device_team *t, ml_stream *s, const ml_tensor *out,
                                const ml_tensor *in, ml_reduce how, ml_err *err) {
    size_t bytes = ml_tensor_bytes(out), most = piece_bytes(t);
    ml_status st = ML_OK;

    ML_BUG_IF(ml_tensor_bytes(in) != bytes * (size_t)t->c.size);
    for (size_t at = 0; at < bytes && st == ML_OK; at += most)
        st = reduce_piece(t, s, (char *)out->data + at, (const char *)in->data + at, bytes,
                          bytes - at < most ? bytes - at : most, in->dtype, how, err);
    return st;
}

/* Each rank adds a part of equal size, then all gather the parts; the few elements that do
 * not divide are gathered and added by all. */
static ml_status allreduce(ml_device_team *t, ml_stream *s, const ml_tensor *x,
                           ml_reduce how, ml_err *err) {
    size_t element = ml_dtype_bytes(x->dtype), n = (size_t)t->c.size;
    size_t part = ml_tensor_bytes(x) / element / n * element;
    size_t rest = ml_tensor_bytes(x) - part * n;
    char *mine = (char *)x->data + (size_t)t->c.rank * part,
         *end = (char *)x->data + part * n;
    ml_tensor in = { x->data, x->dtype, ML_ROWS, 1, { (int64_t)(part * n / element) } },
              own = { mine, x->dtype, ML_ROWS, 1, { (int64_t)(part / element) } };
    ml_tensor tail = ml_comm_bytes(end, rest),
              tails = ml_comm_bytes(t->stage.ptr, rest * n);
    ml_status st = reduce_scatter(t, s, &own, &in, how, err);

    if (st == ML_OK)
        st = allgather(t, s, &in, &own, err);
    if (st == ML_OK && rest)
        st = allgather(t, s, &tails, &tail, err);
    if (st == ML_OK && rest)
        add_stage(t, s, end, rest, (int64_t)(rest / element), x->dtype, how);
    return st;
}

static ml_status alltoallv(ml_device_team *t, ml_stream *s, const ml_tensor *out,
                           const int64_t *n_out, const ml_tensor *in, const int64_t *n_in,
                           ml_err *err) {
    size_t row = ml_device_row_bytes(in);
    const char *from = in->data;
    char *to = out->data;
    leg l[ML_PEERS];

    for (int32_t r = 0; r < t->c.size; r++) {
        l[r] = (leg){ from, to, (size_t)n_in[r] * row, (size_t)n_out[r] * row };
        from += l[r].out_bytes;
        to += l[r].in_bytes;
    }
    return exchange_legs(t, s, l, err);
}

static ml_status exchange(ml_device_team *t, ml_stream *s, const ml_message *m, int32_t n,
                          ml_err *err) {
    void *stream = s->dev->native(s);
    int bad = nccl.begin();

    for (int32_t i = 0; i < n && !bad; i++) {
        size_t bytes = ml_tensor_bytes(&m[i].t);
        if (bytes && m[i].send)
            bad = nccl.send(m[i].t.data, bytes, BYTES, m[i].peer, t->state, stream);
        else if (bytes)
            bad = nccl.recv(m[i].t.data, bytes, BYTES, m[i].peer, t->state, stream);
    }
    if (!bad)
        bad = nccl.end();
    return check(t, bad, "messages", err);
}

/* --- opening --------------------------------------------------------------------- */

static void nccl_close(ml_device_team *t) {
    if (t->state)
        (void)(t->host->failed ? nccl.abort(t->state) : nccl.destroy(t->state));
}

static const ml_device_transport transport = { "nccl",         bcast,     allgather,
                                               reduce_scatter, allreduce, alltoallv,
                                               exchange,       nccl_close };

typedef struct offer { /* by each rank to all */
    unsigned char uuid[16];
    unique_id id; /* rank 0's counts */
    bool can;
} offer;

/* Whether all ranks have the library, and no two of them the same GPU. */
static bool all_can(const offer *all, int32_t n) {
    for (int32_t r = 0; r < n; r++) {
        if (!all[r].can)
            return false;
        for (int32_t k = 0; k < r; k++)
            if (memcmp(all[r].uuid, all[k].uuid, sizeof all[r].uuid) == 0)
                return false;
    }
    return n <= ML_PEERS;
}

static ml_status join(ml_device_team *t, unique_id id, ml_err *err) {
    ml_status st = t->dev->alloc(t->dev, &t->stage, STAGE_BYTES, ML_MEM_SCRATCH, err);
    handle c = NULL;

    st = t->host->agree(t->host, st, err);
    if (st == ML_OK)
        st = check(t, nccl.init(&c, t->c.size, id, t->c.rank), "opening a communicator",
                   err);
    t->state = c;
    t->transport = &transport;
    return st == ML_OK ? t->host->agree(t->host, ML_OK, err) : st;
}

ml_status ml_device_nccl_open(ml_device_team *t, ml_err *err) {
    ml_comm *h = t->host;
    size_t n = (size_t)h->size;
    offer mine = { .can = t->dev->native && t->dev->peer && load() };
    offer *all = ml_memory_grow(NULL, n * sizeof *all, "GPUs of ranks");
    ml_tensor in = ml_comm_bytes(&mine, sizeof mine),
              out = ml_comm_bytes(all, n * sizeof *all);
    ml_status st;

    memcpy(mine.uuid, t->dev->uuid, sizeof mine.uuid);
    if (mine.can && h->rank == 0)
        mine.can = nccl.get_id(&mine.id) == SUCCESS;
    st = h->allgather(h, NULL, &out, &in, err);
    if (st == ML_OK && all_can(all, h->size))
        st = join(t, all[0].id, err);
    free(all);
    return st;
}
