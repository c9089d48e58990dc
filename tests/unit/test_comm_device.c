/* Communicators over memory that ranks share.  On one machine without a GPU the device is a
 * stand-in whose addresses the host cannot use; under mpirun (tests/gpu/run.sh) it is a GPU. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "backend/backend.h"
#include "base/timeline.h"
#include "comm/device/device_comm.h"
#include "comm/reduce.h"
#include "comm/world.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

/* --- the stand-in --- */

static const uintptr_t far = (uintptr_t)1 << 60;

static void *near(const void *p) {
    return (void *)((uintptr_t)p - far);
}

static ml_status card_alloc(ml_device *d, ml_buf *out, size_t bytes, ml_mem_kind kind,
                            ml_err *err) {
    (void)err;
    *out = (ml_buf){ d, (void *)((uintptr_t)calloc(1, bytes + 1) + far), bytes, kind };
    return ML_OK;
}

static void card_free(ml_buf *b) {
    free(near(b->ptr));
    *b = (ml_buf){ 0 };
}

static void card_in(ml_stream *s, void *dst, const void *host, size_t bytes) {
    (void)s;
    memcpy(near(dst), host, bytes);
}

static void card_out(ml_stream *s, void *host, const void *src, size_t bytes) {
    (void)s;
    memcpy(host, near(src), bytes);
}

static void card_copy(ml_stream *s, void *dst, const void *src, size_t bytes) {
    (void)s;
    memcpy(near(dst), near(src), bytes);
}

static ml_status card_sync(ml_stream *s, ml_err *err) {
    (void)s;
    (void)err;
    return ML_OK;
}

static ml_status card_share(const ml_buf *b, unsigned char handle[ML_PEER_HANDLE],
                            ml_err *err) {
    (void)err;
    memcpy(handle, &b->ptr, sizeof b->ptr);
    return ML_OK;
}

static ml_status card_map(ml_device *d, void **out,
                          const unsigned char handle[ML_PEER_HANDLE], ml_err *err) {
    (void)d;
    (void)err;
    memcpy(out, handle, sizeof *out);
    return ML_OK;
}

static void card_unmap(ml_device *d, void *p) {
    (void)d;
    (void)p;
}

static void card_tree(ml_stream *s, void *out, const void *const *in, int32_t n_in,
                      int64_t n, ml_dtype dtype, bool max) {
    const void *here[ML_PEERS];

    (void)s;
    for (int32_t r = 0; r < n_in; r++)
        here[r] = near(in[r]);
    ml_reduce_tree(near(out), here, n_in, n, dtype, max ? ML_REDUCE_MAX : ML_REDUCE_SUM);
}

static const ml_peer_memory card_peer = { card_share, card_map, card_unmap, card_tree };
static ml_device card = { .name = "card",
                          .alloc = card_alloc,
                          .free = card_free,
                          .copy_in = card_in,
                          .copy_out = card_out,
                          .copy = card_copy,
                          .sync = card_sync,
                          .peer = &card_peer };
static ml_stream card_stream = { &card };

/* --- cases: what a communicator of peers does, compared with the same in host memory --- */

typedef struct rig {
    ml_comm *host, *peer;
    ml_stream *s;
} rig;

static ml_tensor tensor(void *data, ml_dtype dtype, int64_t rows, int64_t width) {
    return (
        ml_tensor){ .data = data, .dtype = dtype, .n_dim = 2, .shape = { rows, width } };
}

/* Finite numbers of every dtype, different for each rank and place. */
static void *numbers(ml_dtype dtype, int32_t rank, int64_t n) {
    size_t bytes = ml_dtype_bytes(dtype);
    unsigned char *p = calloc((size_t)n + 1, bytes);

    for (int64_t k = 0; k < n; k++) {
        uint32_t h = ((uint32_t)rank * 7919u + (uint32_t)k + 1u) * 0x45d9f3bu;
        float v = ((float)(h >> 8) - 8388608.0f) * 0x1p-20f;
        uint16_t half = dtype == ML_BF16 ? ml_f32_to_bf16(v) : ml_f32_to_f16(v);
        memcpy(p + (size_t)k * bytes,
               bytes == 2        ? (void *)&half
               : dtype == ML_F32 ? (void *)&v
                                 : (void *)&h,
               bytes);
    }
    return p;
}

typedef struct both { /* an array in host memory, and its copy on the device */
    void *p;
    ml_buf buf;
    size_t bytes;
    ml_stream *s;
} both;

static both on_both(const rig *g, void *p, size_t bytes) {
    both b = { .p = p, .bytes = bytes, .s = g->s };

    CHECK(g->s->dev->alloc(g->s->dev, &b.buf, bytes + 1, ML_MEM_ACT, NULL) == ML_OK);
    g->s->dev->copy_in(g->s, b.buf.ptr, p, bytes);
    return b;
}

static ml_tensor there(const both *b, ml_tensor t) {
    t.data = b->buf.ptr;
    return t;
}

/* Whether both sides have the same bytes; frees them. */
static bool are_same(both *b) {
    char *q = calloc(1, b->bytes + 1);
    bool same;

    b->s->dev->copy_out(b->s, q, b->buf.ptr, b->bytes);
    CHECK(b->s->dev->sync(b->s, NULL) == ML_OK);
    same = memcmp(b->p, q, b->bytes) == 0;
    b->s->dev->free(&b->buf);
    free(b->p);
    free(q);
    return same;
}

static both output(const rig *g, size_t bytes) {
    return on_both(g, calloc(1, bytes + 1), bytes);
}

static void gather_one(const rig *g, int64_t n) {
    ml_comm *h = g->host, *c = g->peer;
    size_t bytes = (size_t)n * 2;
    both in = on_both(g, numbers(ML_BF16, h->rank, n), bytes),
         out = output(g, bytes * (size_t)h->size);
    ml_tensor from = tensor(in.p, ML_BF16, n, 1),
              to = tensor(out.p, ML_BF16, n * h->size, 1);
    ml_tensor dfrom = there(&in, from), dto = there(&out, to);

    CHECK(h->allgather(h, NULL, &to, &from, NULL) == ML_OK);
    CHECK(c->allgather(c, g->s, &dto, &dfrom, NULL) == ML_OK);
    CHECK(are_same(&out));
    for (int32_t root = 0; root < h->size; root += 2) {
        CHECK(h->bcast(h, NULL, &from, root, NULL) == ML_OK);
        CHECK(c->bcast(c, g->s, &dfrom, root, NULL) == ML_OK);
    }
    CHECK(are_same(&in));
}

static void reduce_one(const rig *g, ml_dtype dtype, ml_reduce_op op, int64_t n) {
    ml_comm *h = g->host, *c = g->peer;
    ml_reduce how = { op, ML_REDUCE_TREE };
    size_t bytes = (size_t)n * ml_dtype_bytes(dtype);
    both in = on_both(g, numbers(dtype, h->rank, n * h->size), bytes * (size_t)h->size),
         out = output(g, bytes);
    ml_tensor from = tensor(in.p, dtype, n * h->size, 1), to = tensor(out.p, dtype, n, 1);
    ml_tensor dfrom = there(&in, from), dto = there(&out, to);

    CHECK(h->reduce_scatter(h, NULL, &to, &from, how, NULL) == ML_OK);
    CHECK(c->reduce_scatter(c, g->s, &dto, &dfrom, how, NULL) == ML_OK);
    CHECK(are_same(&out));
    dto.data = (char *)dfrom.data + (size_t)h->rank * bytes; /* in place */
    to.data = (char *)from.data + (size_t)h->rank * bytes;
    CHECK(h->reduce_scatter(h, NULL, &to, &from, how, NULL) == ML_OK);
    CHECK(c->reduce_scatter(c, g->s, &dto, &dfrom, how, NULL) == ML_OK);
    CHECK(h->allreduce(h, NULL, &from, how, NULL) == ML_OK);
    CHECK(c->allreduce(c, g->s, &dfrom, how, NULL) == ML_OK);
    CHECK(are_same(&in));
}

/* Rank a sends (a + 2 b) % 4 * unit rows to rank b. */
static void exchange_one(const rig *g, int64_t unit, int64_t width) {
    ml_comm *h = g->host, *c = g->peer;
    int64_t n_in[ML_PEERS], n_out[ML_PEERS], rows_in = 0, rows_out = 0;
    both in, out;
    ml_tensor from, to, dfrom, dto;

    for (int32_t r = 0; r < h->size; r++) {
        rows_in += n_in[r] = (h->rank + 2 * r) % 4 * unit;
        rows_out += n_out[r] = (r + 2 * h->rank) % 4 * unit;
    }
    in = on_both(g, numbers(ML_F32, h->rank, rows_in * width),
                 (size_t)(rows_in * width) * 4);
    out = output(g, (size_t)(rows_out * width) * 4);
    from = tensor(in.p, ML_F32, rows_in, width);
    to = tensor(out.p, ML_F32, rows_out, width);
    dfrom = there(&in, from);
    dto = there(&out, to);
    CHECK(h->alltoallv(h, NULL, &to, n_out, &from, n_in, NULL) == ML_OK);
    CHECK(c->alltoallv(c, g->s, &dto, n_out, &dfrom, n_in, NULL) == ML_OK);
    CHECK(are_same(&out));
    CHECK(are_same(&in));
}

/* Rank 0 receives to host memory what the others have on the device. */
static void collect_one(const rig *g, int64_t n) {
    ml_comm *c = g->peer;
    both x = on_both(g, numbers(ML_F32, c->rank, n), (size_t)n * 4);
    ml_tensor host = tensor(x.p, ML_F32, n, 1), device = there(&x, host);

    for (int32_t r = 1; r < c->size && c->rank == 0; r++) {
        float *want = numbers(ML_F32, r, n);
        CHECK(c->recv(c, NULL, &host, r, NULL) == ML_OK);
        CHECK(memcmp(x.p, want, (size_t)n * 4) == 0);
        free(want);
    }
    if (c->rank)
        CHECK(c->send(c, g->s, &device, 0, NULL) == ML_OK);
    g->s->dev->free(&x.buf);
    free(x.p);
}

/* Around a ring, two ranks at a time. */
static void pass_one(const rig *g, int64_t n) {
    ml_comm *c = g->peer;
    both x = on_both(g, numbers(ML_F32, c->rank == 0 ? 0 : 99, n), (size_t)n * 4);
    ml_tensor t = there(&x, tensor(x.p, ML_F32, n, 1));

    if (c->rank > 0) {
        free(x.p);
        x.p = numbers(ML_F32, 0, n);
        CHECK(c->recv(c, g->s, &t, c->rank - 1, NULL) == ML_OK);
    }
    if (c->rank + 1 < c->size)
        CHECK(c->send(c, g->s, &t, c->rank + 1, NULL) == ML_OK);
    CHECK(are_same(&x));
    collect_one(g, n);
}

/* Each rank sends two tensors to the next and one to the one before. */
static void exchange_some(const rig *g, int64_t n) {
    ml_comm *h = g->host, *c = g->peer;
    int32_t next = (h->rank + 1) % h->size, last = (h->rank + h->size - 1) % h->size;
    const int64_t size[3] = { n, n / 3, n / 2 };
    const int32_t to[3] = { next, next, last }, from[3] = { last, last, next };
    ml_message m[6], d[6];
    both in[3], out[3];

    for (int i = 0; i < 3; i++) {
        in[i] = on_both(g, numbers(ML_F32, h->rank * 3 + i, size[i]), (size_t)size[i] * 4);
        out[i] = output(g, (size_t)size[i] * 4);
        m[i] = (ml_message){ tensor(in[i].p, ML_F32, size[i], 1), to[i], true };
        m[3 + i] = (ml_message){ tensor(out[i].p, ML_F32, size[i], 1), from[i], false };
        d[i] = (ml_message){ there(&in[i], m[i].t), to[i], true };
        d[3 + i] = (ml_message){ there(&out[i], m[3 + i].t), from[i], false };
    }
    CHECK(h->size == 1 || h->exchange(h, NULL, m, 6, NULL) == ML_OK);
    CHECK(h->size == 1 || c->exchange(c, g->s, d, 6, NULL) == ML_OK);
    for (int i = 0; i < 3; i++)
        CHECK(are_same(&in[i]) && are_same(&out[i]));
}

enum { LONG = 5 << 19 }; /* floats: more than a stage holds */

static void check_collectives(const rig *g) {
    static const int64_t sizes[] = { 0, 1, 1001, 270001 };
    static const ml_dtype dtypes[] = { ML_F32, ML_BF16, ML_F16, ML_I32 };

    for (int i = 0; i < 4; i++) {
        gather_one(g, sizes[i]);
        pass_one(g, sizes[i]);
        for (int d = 0; d < 4; d++) {
            reduce_one(g, dtypes[d], ML_REDUCE_SUM, sizes[i]);
            reduce_one(g, dtypes[d], ML_REDUCE_MAX, sizes[i]);
        }
    }
    exchange_some(g, 1001);
    exchange_one(g, 1, 3);
    exchange_one(g, 100, 64);
}

static void check_long(const rig *g) {
    gather_one(g, LONG);
    pass_one(g, LONG);
    exchange_some(g, LONG / 2);
    reduce_one(g, ML_F32, ML_REDUCE_SUM, LONG / 2);
    exchange_one(g, 300, LONG / 512);
}

/* Each collective over peer memory has a span with its group and layer. */
static void check_spans(const rig *g) {
    ml_timeline *spans = ml_timeline_new(1000);
    ml_timeline_taken taken;
    int found = 0;
    ml_arena a;

    ml_arena_init(&a, "spans");
    g->peer->spans = spans;
    g->peer->group = "tp";
    ml_comm_doing(g->peer, "forward", 3);
    gather_one(g, 270001);
    taken = ml_timeline_take(spans, &a);
    for (int64_t i = 0; i < taken.n; i++) {
        const ml_time_span *s = &taken.span[i];
        CHECK(s->track == ML_TRACK_COMM && s->end_s >= s->begin_s);
        found += strcmp(s->name, "allgather") == 0 && strcmp(s->group, "tp") == 0 &&
                 s->layer == 3;
    }
    CHECK(found == 1);
    g->peer->spans = NULL;
    CHECK(g->peer->barrier(g->peer, NULL, NULL) == ML_OK); /* the host's has none, too */
    ml_timeline_free(spans);
    ml_arena_release(&a);
}

/* Every second rank, in falling order; host memory through the same communicator. */
static void check_split(const rig *g) {
    ml_comm *c = g->peer, *part, *host;
    int32_t one = 1;
    ml_tensor t = tensor(&one, ML_I32, 1, 1);

    CHECK(c->allreduce(c, NULL, &t, (ml_reduce){ ML_REDUCE_SUM, ML_REDUCE_TREE }, NULL) ==
          ML_OK);
    CHECK(one == c->size);
    CHECK(c->split(c, &part, c->rank % 2 ? -1 : 0, -c->rank, NULL) == ML_OK);
    CHECK(g->host->split(g->host, &host, c->rank % 2 ? -1 : 0, -c->rank, NULL) == ML_OK);
    CHECK((part == NULL) == (c->rank % 2));
    if (!part)
        return;
    CHECK(ml_comm_device_attach(part, g->s, NULL) == ML_OK);
    CHECK(part->size == (c->size + 1) / 2 && part->rank == host->rank);
    gather_one(&(rig){ host, part, g->s }, 1001);
    reduce_one(&(rig){ host, part, g->s }, ML_F32, ML_REDUCE_SUM, 1001);
    part->close(part);
    host->close(host);
}

/* --- over threads --- */

typedef void rig_fn(const rig *g);

static void run_rig(ml_comm *world, ml_stream *s, rig_fn *fn) {
    rig g = { .s = s };
    ml_comm *below;
    ml_err err = { 0 };

    CHECK(world->split(world, &g.host, 0, world->rank, NULL) == ML_OK);
    CHECK(world->split(world, &below, 0, world->rank, NULL) == ML_OK);
    g.peer = ml_comm_device(below);
    CHECK(ml_comm_device_attach(g.peer, s, &err) == ML_OK);
    CHECK(err.msg[0] == 0 &&
          strcmp(g.peer->name, world->size > 1 ? "peer" : world->name) == 0);
    fn(&g);
    g.peer->close(g.peer);
    g.host->close(g.host);
}

static void as_thread(ml_comm *c, void *ud) {
    run_rig(c, &card_stream, *(rig_fn **)ud);
}

static void collectives(void) {
    rig_fn *fn = check_collectives;

    for (int32_t n = 1; n <= 6; n++)
        ml_ranks_run(n, as_thread, &fn);
}

static void long_messages(void) {
    rig_fn *fn = check_long;

    ml_ranks_run(3, as_thread, &fn);
}

static void spans(void) {
    rig_fn *fn = check_spans;

    ml_ranks_run(3, as_thread, &fn);
}

static void splits(void) {
    rig_fn *fn = check_split;

    for (int32_t n = 1; n <= 5; n++)
        ml_ranks_run(n, as_thread, &fn);
}

static void fail_one(const rig *g) {
    both x = output(g, 4 << 20);
    ml_tensor t = there(&x, tensor(NULL, ML_F32, 1 << 20, 1));
    ml_err err = { ML_EIO, "the disk is full" };
    ml_tensor word = ml_comm_bytes("", 0);
    ml_comm *c = g->peer;

    for (int32_t r = 0; r < c->size && c->rank == 1; r++) /* all have opened theirs */
        CHECK(r == 1 || c->recv(c, NULL, &word, r, NULL) == ML_OK);
    CHECK(c->rank == 1 || c->send(c, NULL, &word, 1, NULL) == ML_OK);
    if (c->rank == 1) {
        CHECK(c->agree(c, ML_EIO, &err) == ML_EIO && c->failed);
    } else {
        CHECK(c->bcast(c, g->s, &t, 0, &err) == ML_EPEER && c->failed);
        CHECK_HAS(err.msg, "rank 1 failed: the disk is full");
    }
    g->s->dev->free(&x.buf);
    free(x.p);
}

static void failures(void) {
    rig_fn *fn = fail_one;

    ml_ranks_run(3, as_thread, &fn);
}

static const ml_test tests[] = {
    { "collectives over peer memory have the bytes of those over host memory",
      collectives },
    { "peer memory carries tensors longer than a stage", long_messages },
    { "collectives over peer memory have spans in the trace", spans },
    { "communicators split from one over peer memory use it, too", splits },
    { "a rank that fails frees ranks that wait for its peer memory", failures },
    { 0 },
};

/* --- over MPI, on GPUs --- */

static int run_as_rank(void) {
    ml_backend_opts opts = { .device = "cuda", .n_thread = 1 };
    ml_backend be = { 0 };
    ml_err err = { 0 };
    ml_comm *c;

    if (ml_comm_world(&c, &err) != ML_OK ||
        c->agree(c, ml_backend_open(&be, &opts, &err), &err) != ML_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    run_rig(c, be.stream, check_collectives);
    run_rig(c, be.stream, check_long);
    run_rig(c, be.stream, check_spans);
    run_rig(c, be.stream, check_split);
    ml_backend_close(&be);
    c->close(c);
    return ml_test_failures() ? 4 : 0;
}

int main(int argc, char **argv) {
    if (getenv("OMPI_COMM_WORLD_RANK"))
        return run_as_rank();
    return ml_test_main(argc, argv, tests);
}
