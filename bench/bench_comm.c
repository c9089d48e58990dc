/* bench_comm.c - collectives on GPU tensors: through shared GPU memory and through the host.
 *
 *     mpirun -n 2 build/release/bench/bench_comm
 *
 * Prints for each size the time of a call and the bytes that a rank receives per second. */
#include <stdio.h>

#include "backend/backend.h"
#include "base/clock.h"
#include "comm/device/device_comm.h"
#include "comm/world.h"

enum { LARGEST = 64 << 20, REPEATS = 20 };

typedef struct rig {
    ml_comm *c;
    ml_backend *be;
    char *in, *out;
} rig;

static ml_status gather(const rig *g, size_t bytes, ml_err *err) {
    ml_tensor in = ml_comm_bytes(g->in, bytes),
              out = ml_comm_bytes(g->out, bytes * (size_t)g->c->size);

    return g->c->allgather(g->c, g->be->stream, &out, &in, err);
}

static ml_status reduce(const rig *g, size_t bytes, ml_err *err) {
    int64_t n = (int64_t)(bytes / sizeof(float));
    ml_tensor in = { g->out, ML_F32, ML_ROWS, 1, { n * g->c->size } },
              out = { g->in, ML_F32, ML_ROWS, 1, { n } };

    return g->c->reduce_scatter(g->c, g->be->stream, &out, &in,
                                (ml_reduce){ ML_REDUCE_SUM, ML_REDUCE_TREE }, err);
}

static ml_status measure(const rig *g, const char *name,
                         ml_status (*call)(const rig *, size_t, ml_err *), ml_err *err) {
    ml_status st = ML_OK;

    for (size_t bytes = 16 << 10; bytes <= LARGEST && st == ML_OK; bytes *= 16) {
        double began = 0, s;
        for (int i = -2; i < REPEATS && st == ML_OK; i++) {
            if (i == 0)
                began = ml_clock_s();
            st = call(g, bytes, err);
        }
        if (st == ML_OK)
            st = g->be->dev->sync(g->be->stream, err);
        s = (ml_clock_s() - began) / REPEATS;
        if (g->c->rank == 0)
            printf("%-5s %-15s %9zu bytes  %9.1f us  %7.2f GB/s\n", g->c->name, name, bytes,
                   s * 1e6, (double)bytes * (g->c->size - 1) / s / 1e9);
    }
    return st;
}

static ml_status run(ml_comm *world, ml_backend *be, ml_err *err) {
    ml_buf in = { 0 }, out = { 0 };
    rig g = { .be = be, .c = world };
    size_t n = (size_t)world->size;
    ml_comm *below, *peer = NULL;
    ml_status st = be->dev->alloc(be->dev, &in, LARGEST, ML_MEM_ACT, err);

    if (st == ML_OK)
        st = be->dev->alloc(be->dev, &out, LARGEST * n, ML_MEM_ACT, err);
    g.in = in.ptr;
    g.out = out.ptr;
    if (st == ML_OK)
        st = measure(&g, "allgather", gather, err);
    if (st == ML_OK)
        st = measure(&g, "reduce_scatter", reduce, err);
    if (st == ML_OK)
        st = world->split(world, &below, 0, world->rank, err);
    if (st == ML_OK) {
        g.c = peer = ml_comm_device(below);
        st = ml_comm_device_attach(peer, be->stream, err);
    }
    if (st == ML_OK)
        st = measure(&g, "allgather", gather, err);
    if (st == ML_OK)
        st = measure(&g, "reduce_scatter", reduce, err);
    if (peer)
        peer->close(peer);
    be->dev->free(&in);
    be->dev->free(&out);
    return st;
}

int main(void) {
    ml_backend_opts opts = { .device = "cuda", .n_thread = 1 };
    ml_backend be = { 0 };
    ml_err err = { 0 };
    ml_comm *world;
    ml_status st = ml_comm_world(&world, &err);

    if (st == ML_OK)
        st = ml_backend_open(&be, &opts, &err);
    if (st == ML_OK)
        st = run(world, &be, &err);
    if (st != ML_OK)
        fprintf(stderr, "%s\n", err.msg);
    if (world)
        world->close(world);
    return st == ML_OK ? 0 : 1;
}
