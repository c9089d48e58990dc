#include <math.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "comm/self/self.h"
#include "comm/share.h"
#include "comm/world.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

/* The least of a device that comm may lean on. */
static int n_copy;

static void copy(ml_stream *s, void *dst, const void *src, size_t bytes) {
    (void)s;
    memcpy(dst, src, bytes);
    n_copy++;
}

static ml_device device = { .name = "test", .host = true, .copy = copy };
static ml_stream stream = { &device };

static ml_tensor rows(void *data, int64_t n, int64_t width) {
    return (ml_tensor){ .data = data, .dtype = ML_F32, .n_dim = 2, .shape = { n, width } };
}

static const ml_reduce sum = { ML_REDUCE_SUM, ML_REDUCE_TREE };

static void one_rank(void) {
    ml_comm *c = ml_comm_self(), *part;
    ml_err err = { 0 };

    CHECK(c->rank == 0 && c->size == 1);
    CHECK(c->barrier(c, &stream, &err) == ML_OK);
    CHECK(c->split(c, &part, 3, 0, &err) == ML_OK && part && part->size == 1);
    part->close(part);
    CHECK(c->split(c, &part, -1, 0, &err) == ML_OK && !part);
    c->abort(c);
}

static void collectives_are_the_identity(void) {
    ml_comm *c = ml_comm_self();
    ml_err err = { 0 };
    float a[6] = { 1, 2, 3, 4, 5, 6 }, b[6] = { 0 };
    ml_tensor in = rows(a, 3, 2), out = rows(b, 3, 2);

    CHECK(c->allgather(c, &stream, &out, &in, &err) == ML_OK);
    CHECK(memcmp(a, b, sizeof a) == 0);
    memset(b, 0, sizeof b);
    CHECK(c->reduce_scatter(c, &stream, &out, &in, sum, &err) == ML_OK);
    CHECK(memcmp(a, b, sizeof a) == 0);
    CHECK(c->allreduce(c, &stream, &in, sum, &err) == ML_OK && a[5] == 6.0f);
    CHECK(c->bcast(c, &stream, &in, 0, &err) == ML_OK && a[0] == 1.0f);
    n_copy = 0;
    CHECK(c->allgather(c, &stream, &in, &in, &err) == ML_OK);
    CHECK(n_copy == 0); /* in place */
}

static void rows_to_itself(void) {
    ml_comm *c = ml_comm_self();
    ml_err err = { 0 };
    float a[6] = { 1, 2, 3, 4, 5, 6 }, b[6] = { 0 };
    ml_tensor in = rows(a, 3, 2), out = rows(b, 3, 2);
    int64_t n = 2, none = 0;

    CHECK(c->alltoallv(c, &stream, &out, &none, &in, &none, &err) == ML_OK && b[0] == 0.0f);
    CHECK(c->alltoallv(c, &stream, &out, &n, &in, &n, &err) == ML_OK);
    CHECK(memcmp(a, b, 4 * sizeof *a) == 0 && b[4] == 0.0f && b[5] == 0.0f);
}

static void failures(void) {
    ml_comm *c = ml_comm_self();
    ml_err err = { ML_EIO, "the disk is full" };
    ml_tensor none = rows(NULL, 0, 2);

    CHECK(c->agree(c, ML_OK, &err) == ML_OK);
    CHECK(c->agree(c, ML_EIO, &err) == ML_EIO);
    CHECK_HAS(err.msg, "the disk is full");
    CHECK(c->send(c, &stream, &none, 0, &err) == ML_EUNSUP);
    CHECK_HAS(err.msg, "one rank");
    CHECK(c->recv(c, &stream, &none, 0, &err) == ML_EUNSUP);
}

/* Cases for any number of ranks. */

static ml_tensor flat(const void *data, ml_dtype dtype, int64_t n) {
    ml_tensor t = ml_comm_bytes(data, (size_t)n);

    t.dtype = dtype;
    return t;
}

static void put(void *p, ml_dtype dtype, int64_t k, double v) {
    switch (dtype) {
    case ML_F32: ((float *)p)[k] = (float)v; break;
    case ML_I32: ((int32_t *)p)[k] = (int32_t)v; break;
    case ML_BF16: ((uint16_t *)p)[k] = ml_f32_to_bf16((float)v); break;
    case ML_F16: ((uint16_t *)p)[k] = ml_f32_to_f16((float)v); break;
    default: ((uint8_t *)p)[k] = (uint8_t)v; break;
    }
}

static double get(const void *p, ml_dtype dtype, int64_t k) {
    switch (dtype) {
    case ML_F32: return (double)((const float *)p)[k];
    case ML_I32: return ((const int32_t *)p)[k];
    case ML_BF16: return (double)ml_bf16_to_f32(((const uint16_t *)p)[k]);
    case ML_F16: return (double)ml_f16_to_f32(((const uint16_t *)p)[k]);
    default: return ((const uint8_t *)p)[k];
    }
}

static double rounded(ml_dtype dtype, double v) {
    uint32_t one[1] = { 0 };

    put(one, dtype, 0, v);
    return get(one, dtype, 0);
}

/* Element k of rank r: signs and magnitudes for which the order of additions matters, and
 * integers that wrap around. */
static double number(ml_dtype dtype, int32_t r, int64_t k) {
    uint32_t h = (uint32_t)r * 7919u + (uint32_t)k + 1u;

    h = (h ^ h >> 16) * 0x45d9f3bu;
    h = (h ^ h >> 16) * 0x45d9f3bu;
    h ^= h >> 16;
    if (dtype == ML_I32)
        return (int32_t)h;
    return rounded(dtype,
                   ldexp((double)(h & 0xffffff) - 8388608.0, (int)(h >> 24 & 7) - 24));
}

/* The definition in comm.h for one element. */
static double tree(ml_dtype dtype, ml_reduce_op op, int32_t first, int32_t n, int64_t k) {
    int32_t m = 1;
    double a, b;

    if (n == 1)
        return number(dtype, first, k);
    while (m * 2 < n)
        m *= 2;
    a = tree(dtype, op, first, m, k);
    b = tree(dtype, op, first + m, n - m, k);
    if (op == ML_REDUCE_MAX)
        return a >= b ? a : b;
    if (dtype == ML_I32)
        return (int32_t)((uint32_t)(int32_t)a + (uint32_t)(int32_t)b);
    return (double)((float)a + (float)b);
}

static void *numbers(ml_dtype dtype, int32_t r, int64_t n) {
    char *p = calloc((size_t)n + 1, ml_dtype_bytes(dtype));

    for (int64_t k = 0; k < n; k++)
        put(p, dtype, k, number(dtype, r, k));
    return p;
}

/* p[0..n) are elements first.. of the defined result. */
static bool is_tree(const void *p, ml_dtype dtype, ml_reduce_op op, int32_t ranks,
                    int64_t first, int64_t n) {
    for (int64_t k = 0; k < n; k++)
        if (get(p, dtype, k) != rounded(dtype, tree(dtype, op, 0, ranks, first + k)))
            return false;
    return true;
}

static void reduce_one(ml_comm *c, ml_dtype dtype, ml_reduce how, int64_t n) {
    size_t bytes = ml_dtype_bytes(dtype);
    char *x = numbers(dtype, c->rank, n), *all = numbers(dtype, c->rank, n * c->size);
    ml_tensor t = flat(x, dtype, n), in = flat(all, dtype, n * c->size),
              own = flat(all + (size_t)(c->rank * n) * bytes, dtype, n);
    ml_err err = { 0 };

    CHECK(c->allreduce(c, NULL, &t, how, &err) == ML_OK);
    CHECK(is_tree(x, dtype, how.op, c->size, 0, n));
    memset(x, 0, (size_t)n * bytes);
    CHECK(c->reduce_scatter(c, &stream, &t, &in, how, &err) == ML_OK);
    CHECK(is_tree(x, dtype, how.op, c->size, c->rank * n, n));
    CHECK(c->reduce_scatter(c, &stream, &own, &in, how, &err) == ML_OK); /* in place */
    CHECK(is_tree(own.data, dtype, how.op, c->size, c->rank * n, n));
    free(x);
    free(all);
}

static void reductions(ml_comm *c, void *ud) {
    static const ml_dtype dtypes[] = { ML_F32, ML_BF16, ML_F16, ML_I32 };
    static const int64_t sizes[] = { 0, 1, 5, 513, 1500 };

    (void)ud;
    for (int d = 0; d < 4; d++)
        for (int i = 0; i < 5; i++) {
            reduce_one(c, dtypes[d], (ml_reduce){ ML_REDUCE_SUM, ML_REDUCE_TREE },
                       sizes[i]);
            reduce_one(c, dtypes[d], (ml_reduce){ ML_REDUCE_MAX, ML_REDUCE_TREE },
                       sizes[i]);
        }
}

/* More than is reduced at a time. */
static void large_reductions(ml_comm *c, void *ud) {
    (void)ud;
    reduce_one(c, ML_BF16, sum, (5 << 20) / 2 / c->size + 3);
}

static void maximum_of_special_values(ml_comm *c, void *ud) {
    float x[3] = { c->rank == c->size - 1 ? -0.0f : 0.0f,
                   c->rank == c->size / 2 ? NAN : (float)c->rank,
                   c->rank ? -INFINITY : -1.0f };
    ml_tensor t = flat(x, ML_F32, 3);

    (void)ud;
    CHECK(c->allreduce(c, NULL, &t, (ml_reduce){ ML_REDUCE_MAX, ML_REDUCE_TREE }, NULL) ==
          ML_OK);
    CHECK(c->size == 1 || !signbit(x[0])); /* of equal ones, the lower rank's */
    CHECK(isnan(x[1]) && x[2] == -1.0f);
}

static uint8_t byte_of(int32_t rank, size_t k) {
    return (uint8_t)((size_t)rank * 31 + k * 7 + k / 256);
}

static bool bytes_are(const uint8_t *p, int32_t rank, size_t n) {
    for (size_t k = 0; k < n; k++)
        if (p[k] != byte_of(rank, k))
            return false;
    return true;
}

static void put_bytes(uint8_t *p, int32_t rank, size_t n) {
    for (size_t k = 0; k < n; k++)
        p[k] = byte_of(rank, k);
}

static void broadcasts(ml_comm *c, void *ud) {
    static const size_t sizes[] = { 0, 1, 4096, 4097, 100003 };
    uint8_t *p = calloc(1, 100003);

    (void)ud;
    for (int i = 0; i < 5; i++)
        for (int32_t root = 0; root < c->size; root++) {
            ml_tensor t = ml_comm_bytes(p, sizes[i]);
            put_bytes(p, c->rank, sizes[i]);
            CHECK(c->bcast(c, NULL, &t, root, NULL) == ML_OK);
            CHECK(bytes_are(p, root, sizes[i]));
        }
    free(p);
}

static void gathers(ml_comm *c, void *ud) {
    enum { N = 1001 };
    uint8_t mine[N], *p = calloc((size_t)c->size, N);
    ml_tensor in = ml_comm_bytes(mine, N), out = ml_comm_bytes(p, N * (size_t)c->size),
              own = ml_comm_bytes(p + N * c->rank, N);

    (void)ud;
    put_bytes(mine, c->rank, N);
    CHECK(c->allgather(c, NULL, &out, &in, NULL) == ML_OK);
    for (int32_t r = 0; r < c->size; r++)
        CHECK(bytes_are(p + r * N, r, N));
    memset(p, 0, N * (size_t)c->size);
    put_bytes(own.data, c->rank, N);
    CHECK(c->allgather(c, &stream, &out, &own, NULL) == ML_OK); /* in place */
    for (int32_t r = 0; r < c->size; r++)
        CHECK(bytes_are(p + r * N, r, N));
    free(p);
}

/* Rank a sends (a + 2 b) % 4 rows to rank b, with a, b and the row's number. */
static void exchanges(ml_comm *c, void *ud) {
    int64_t n_in[16], n_out[16], row = 0;
    int32_t in[64][3], out[64][3];
    ml_tensor from = { in, ML_I32, ML_ROWS, 2, { 64, 3 } },
              to = { out, ML_I32, ML_ROWS, 2, { 64, 3 } };

    (void)ud;
    for (int32_t r = 0; r < c->size; r++) {
        n_in[r] = (c->rank + 2 * r) % 4;
        n_out[r] = (r + 2 * c->rank) % 4;
        for (int32_t i = 0; i < n_in[r]; i++, row++)
            memcpy(in[row], (int32_t[]){ c->rank, r, i }, sizeof in[row]);
    }
    CHECK(c->alltoallv(c, NULL, &to, n_out, &from, n_in, NULL) == ML_OK);
    row = 0;
    for (int32_t r = 0; r < c->size; r++)
        for (int32_t i = 0; i < n_out[r]; i++, row++)
            CHECK(out[row][0] == r && out[row][1] == c->rank && out[row][2] == i);
}

/* Every rank sends numbers to both neighbours and receives theirs, at once. */
static void neighbours(ml_comm *c, ml_stream *s, ml_tensor (*where)(ml_tensor)) {
    enum { N = 3000 }; /* more than a link buffers */
    int32_t next = (c->rank + 1) % c->size, prev = (c->rank + c->size - 1) % c->size;
    int32_t *v = calloc(4 * N, sizeof *v);
    ml_message m[4];

    for (int32_t i = 0; i < N; i++) {
        v[i] = 2 * c->rank;
        v[N + i] = 2 * c->rank + 1;
    }
    for (int k = 0; k < 4; k++)
        m[k] =
            (ml_message){ where(flat(v + k * N, ML_I32, N)), k % 2 ? prev : next, k < 2 };
    CHECK(c->exchange(c, s, m, c->size == 1 ? 0 : 4, NULL) == ML_OK);
    for (int32_t i = 0; c->size > 2 && i < N;
         i++) /* of two ranks both neighbours are one */
        CHECK(v[2 * N + i] == 2 * next + 1 && v[3 * N + i] == 2 * prev);
    free(v);
}

static ml_tensor in_place(ml_tensor t) {
    return t;
}

static void exchanges_with_neighbours(ml_comm *c, void *ud) {
    (void)ud;
    neighbours(c, NULL, in_place);
}

/* A token goes round; then two messages from 0 to 1 arrive in their order. */
static void messages(ml_comm *c, void *ud) {
    int32_t v = 1;
    ml_tensor t = flat(&v, ML_I32, 1);

    (void)ud;
    if (c->size == 1)
        return;
    if (c->rank > 0)
        CHECK(c->recv(c, NULL, &t, c->rank - 1, NULL) == ML_OK && v == c->rank);
    v = c->rank + 1;
    CHECK(c->send(c, NULL, &t, (c->rank + 1) % c->size, NULL) == ML_OK);
    if (c->rank == 0)
        CHECK(c->recv(c, NULL, &t, c->size - 1, NULL) == ML_OK && v == c->size);
    for (int32_t i = 0; i < 3 && c->rank < 2; i++) {
        v = c->rank == 0 ? i : -1;
        CHECK((c->rank ? c->recv : c->send)(c, NULL, &t, !c->rank, NULL) == ML_OK &&
              v == i);
    }
}

static int32_t rank_sum(ml_comm *c, int32_t mine) {
    ml_tensor t = flat(&mine, ML_I32, 1);

    CHECK(c->allreduce(c, NULL, &t, sum, NULL) == ML_OK);
    return mine;
}

/* Every second rank, in falling order; the others get none.  Then halves of that. */
static void splits(ml_comm *c, void *ud) {
    ml_comm *part, *half;
    int32_t n = (c->size + 1) / 2;

    (void)ud;
    CHECK(c->split(c, &part, c->rank % 2 ? -5 : 7, -c->rank, NULL) == ML_OK);
    CHECK((part == NULL) == (c->rank % 2));
    if (part) {
        CHECK(part->size == n && part->rank == n - 1 - c->rank / 2);
        CHECK(rank_sum(part, c->rank) == n * (n - 1));
        CHECK(part->split(part, &half, part->rank < n / 2, 0, NULL) == ML_OK);
        CHECK(half->size == (part->rank < n / 2 ? n / 2 : n - n / 2));
        CHECK(rank_sum(half, 1) == half->size);
        half->close(half);
    }
    CHECK(rank_sum(c, 1) == c->size);
    if (part)
        part->close(part);
}

/* Messages of two communicators with the same ranks do not mix: their receives are in the
 * other order than their sends. */
static void two_communicators(ml_comm *c, void *ud) {
    ml_comm *other;
    int32_t v = 0;
    ml_tensor t = flat(&v, ML_I32, 1);

    (void)ud;
    CHECK(c->split(c, &other, 0, c->rank, NULL) == ML_OK && other->rank == c->rank);
    for (int32_t i = 0; i < 20; i++) {
        CHECK(rank_sum(other, i) == i * c->size);
        CHECK(rank_sum(c, 1) == c->size);
    }
    CHECK(other->bcast(other, NULL, &t, 0, NULL) == ML_OK);
    other->close(other);
}

static void agreement(ml_comm *c, void *ud) {
    ml_err err = { 0 };

    (void)ud;
    for (int i = 0; i < 3; i++) {
        CHECK(c->agree(c, ML_OK, &err) == ML_OK);
        CHECK(c->barrier(c, &stream, &err) == ML_OK);
    }
    CHECK(!c->failed);
}

/* A device whose addresses the host cannot use. */
static const uintptr_t far = (uintptr_t)1 << 60;

static void far_in(ml_stream *s, void *dst, const void *host, size_t bytes) {
    (void)s;
    memcpy((void *)((uintptr_t)dst - far), host, bytes);
}

static void far_out(ml_stream *s, void *host, const void *src, size_t bytes) {
    (void)s;
    memcpy(host, (const void *)((uintptr_t)src - far), bytes);
}

static ml_device card = { .name = "card", .copy_in = far_in, .copy_out = far_out };

static ml_tensor on_card(ml_tensor t) {
    t.data = (void *)((uintptr_t)t.data + far);
    return t;
}

static void staging(ml_comm *c, void *ud) {
    ml_stream s = { &card };
    int32_t v[16][2], one[2] = { c->rank, 1 };
    int64_t n[16];
    ml_tensor all = on_card((ml_tensor){ v, ML_I32, ML_ROWS, 2, { c->size, 2 } }),
              own = on_card((ml_tensor){ one, ML_I32, ML_ROWS, 2, { 1, 2 } }),
              out = on_card((ml_tensor){ v[15], ML_I32, ML_ROWS, 2, { 1, 2 } });

    (void)ud;
    CHECK(c->allgather(c, &s, &all, &own, NULL) == ML_OK);
    for (int32_t r = 0; r < c->size; r++) {
        CHECK(v[r][0] == r && v[r][1] == 1);
        v[r][0] += c->rank;
        n[r] = 1;
    }
    CHECK(c->reduce_scatter(c, &s, &out, &all, sum, NULL) == ML_OK);
    CHECK(v[15][0] == c->size * c->rank + c->size * (c->size - 1) / 2);
    CHECK(c->allreduce(c, &s, &own, sum, NULL) == ML_OK && one[1] == c->size);
    CHECK(c->bcast(c, &s, &out, c->size - 1, NULL) == ML_OK);
    CHECK(v[15][0] == c->size * (c->size - 1) + c->size * (c->size - 1) / 2);
    for (int32_t r = 0; r < c->size; r++)
        v[r][0] = 100 * c->rank + r;
    {
        int32_t w[16][2];
        ml_tensor to = on_card((ml_tensor){ w, ML_I32, ML_ROWS, 2, { c->size, 2 } });
        CHECK(c->alltoallv(c, &s, &to, n, &all, n, NULL) == ML_OK);
        for (int32_t r = 0; r < c->size; r++)
            CHECK(w[r][0] == 100 * r + c->rank);
    }
    if (c->size > 1 && c->rank < 2) {
        CHECK((c->rank ? c->recv : c->send)(c, &s, &all, !c->rank, NULL) == ML_OK);
        CHECK(v[1][0] == 1);
    }
    neighbours(c, &s, on_card);
}

/* Two threads of each rank, each with a communicator of its own. */
static void *add_up(void *ud) {
    ml_comm *c = ud;

    for (int32_t i = 0; i < 50; i++)
        CHECK(rank_sum(c, i) == i * c->size);
    return NULL;
}

static void two_threads(ml_comm *c, void *ud) {
    ml_comm *other;
    pthread_t thread;

    (void)ud;
    CHECK(c->split(c, &other, 0, 0, NULL) == ML_OK);
    CHECK(pthread_create(&thread, NULL, add_up, other) == 0);
    (void)add_up(c);
    pthread_join(thread, NULL);
    other->close(other);
}

/* Cases of failure; rank 1 is to blame, and every rank gets out of its wait. */

/* After a failure: each call returns it at once. */
static void check_failed(ml_comm *c, const char *why) {
    int32_t v = 0;
    ml_tensor t = flat(&v, ML_I32, 1);
    ml_err err = { 0 };

    CHECK(c->barrier(c, NULL, &err) == ML_EPEER && c->failed);
    CHECK_HAS(err.msg, why);
    err.msg[0] = 0;
    CHECK(c->allreduce(c, NULL, &t, sum, &err) == ML_EPEER);
    CHECK_HAS(err.msg, why);
    CHECK(c->agree(c, ML_OK, &err) == ML_EPEER);
    CHECK_HAS(err.msg, why);
}

static void failed_rank(ml_comm *c, void *ud) {
    ml_err err = { ML_EIO, "the disk is full" };

    (void)ud;
    if (c->rank == 1) {
        CHECK(c->agree(c, ML_EIO, &err) == ML_EIO);
        CHECK(strcmp(err.msg, "the disk is full") == 0 && c->failed);
        return;
    }
    CHECK(c->agree(c, ML_OK, &err) == ML_EPEER);
    CHECK(strcmp(err.msg, "rank 1 failed: the disk is full") == 0);
    check_failed(c, "rank 1 failed: the disk is full");
}

/* The others wait in another communicator than the one that the failed rank agrees in. */
static void failed_elsewhere(ml_comm *c, void *ud) {
    ml_err err = { ML_EIO, "the disk is full" };
    ml_comm *part;

    (void)ud;
    if (c->split(c, &part, 0, 0, &err) != ML_OK) { /* rank 1 had done its part of it */
        check_failed(c, "rank 1 failed: the disk is full");
        return;
    }
    if (c->rank == 1) {
        CHECK(c->agree(c, ML_EIO, &err) == ML_EIO);
    } else {
        CHECK(part->barrier(part, NULL, NULL) == ML_EPEER && part->failed && !c->failed);
        CHECK(c->agree(c, ML_OK, &err) == ML_EPEER);
        CHECK_HAS(err.msg, "rank 1 failed: the disk is full");
        check_failed(part, "rank 1 failed: the disk is full");
    }
    part->close(part);
}

static void aborted(ml_comm *c, void *ud) {
    int32_t v = 0;
    ml_tensor t = flat(&v, ML_I32, 1);
    ml_err err = { 0 };

    (void)ud;
    ml_comm_doing(c, "forward", 2);
    if (c->rank == 1) {
        c->abort(c);
        check_failed(c, "rank 1 stopped the job");
        return;
    }
    CHECK(c->recv(c, NULL, &t, 1, &err) == ML_EPEER);
    CHECK_HAS(err.msg, "rank 1 stopped the job: abort over world (forward, layer 2)");
    check_failed(c, "rank 1 stopped the job");
}

static const char *ranks_of(ml_text *t, const char *marks) {
    bool is[16];
    int32_t n = (int32_t)strlen(marks);

    for (int32_t r = 0; r < n; r++)
        is[r] = marks[r] == 'x';
    ml_text_release(t);
    ml_comm_put_ranks(t, is, n);
    return t->ptr;
}

static void lists_of_ranks(void) {
    ml_text t = { 0 };

    CHECK(strcmp(ranks_of(&t, "..x."), "rank 2") == 0);
    CHECK(strcmp(ranks_of(&t, "xx"), "ranks 0 and 1") == 0);
    CHECK(strcmp(ranks_of(&t, "xxxx"), "ranks 0-3") == 0);
    CHECK(strcmp(ranks_of(&t, "xxx.x"), "ranks 0-2 and 4") == 0);
    CHECK(strcmp(ranks_of(&t, ".xx.xxx..x"), "ranks 1, 2, 4-6 and 9") == 0);
    ml_text_release(&t);
}

static void left(ml_comm *c, void *ud) {
    int32_t v = 1;
    ml_tensor t = flat(&v, ML_I32, 1);
    ml_err err = { 0 };

    (void)ud;
    CHECK(c->allreduce(c, NULL, &t, sum, NULL) == ML_OK && v == c->size);
    if (c->rank == 1)
        return;
    CHECK(c->allreduce(c, NULL, &t, sum, &err) == ML_EPEER);
    CHECK_HAS(err.msg, "left the job; rank ");
    CHECK_HAS(err.msg, "was waiting in allreduce over world for rank");
    check_failed(c, "left the job");
}

/* Only rank 0 enters; the others wait for a message that never comes. */
static void silent(ml_comm *c, void *ud) {
    int32_t v[16] = { 0 };
    ml_tensor t = flat(v, ML_I32, c->size), in = flat(v, ML_I32, 1);
    ml_comm *part;
    ml_err err = { 0 };

    (void)ud;
    CHECK(c->split(c, &part, 0, 0, NULL) == ML_OK);
    if (c->rank == 0) {
        for (int32_t r = 1; r < c->size; r++) /* all have split */
            CHECK(c->recv(c, NULL, &in, r, NULL) == ML_OK);
        part->deadline_s = 0.2;
        part->group = "tp";
        ml_comm_doing(part, "backward", 7);
        CHECK(part->allgather(part, NULL, &t, &in, &err) == ML_EPEER);
        CHECK_HAS(err.msg, "allgather over tp (backward, layer 7): rank");
        CHECK_HAS(err.msg, c->size == 2 ? "rank 1" : "ranks 1");
        CHECK_HAS(err.msg, c->size == 3 ? " and 2" : "");
        CHECK_HAS(err.msg, "did not answer within 0.2 s (--distributed-timeout-minutes)");
        check_failed(part, "did not answer");
    } else {
        CHECK(c->send(c, NULL, &in, 0, NULL) == ML_OK);
        ml_comm_doing(c, "loading", 3);
        CHECK(c->recv(c, NULL, &in, 0, &err) == ML_EPEER);
        CHECK_HAS(err.msg, "rank 0 gave up: allgather over tp");
        CHECK_HAS(err.msg, "was waiting in recv over world (loading, layer 3) for rank 0");
        check_failed(c, "rank 0 gave up");
    }
    part->close(part);
}

/* What a process would exit with, over MPI: the launcher returns the code of the rank to
 * blame. */
static atomic_int exit_code;

static void failed_exit(ml_comm *c, void *ud) {
    failed_rank(c, ud);
    exit_code = c->rank == 1 ? 1 : 3;
}

static void silent_exit(ml_comm *c, void *ud) {
    silent(c, ud);
    exit_code = 3;
}

/* Messages that are too long to be sent without their receiver, which aborts. */
static void aborted_long(ml_comm *c, void *ud) {
    size_t n = (size_t)32 << 20;
    char *p = calloc((size_t)c->size, n);
    ml_tensor out = ml_comm_bytes(p, n * (size_t)c->size),
              in = ml_comm_bytes(p + n * (size_t)c->rank, n);
    ml_err err = { 0 };

    (void)ud;
    if (c->rank == 1) {
        c->abort(c);
    } else {
        CHECK(c->allgather(c, NULL, &out, &in, &err) == ML_EPEER);
        CHECK_HAS(err.msg, "rank 1 stopped the job");
    }
    memset(p, 0xff, n * (size_t)c->size);
    free(p);
    exit_code = 3;
}

/* A process that dies without a word; the launcher ends the job. */
static void killed(ml_comm *c, void *ud) {
    (void)ud;
    if (c->rank == 1)
        raise(SIGKILL);
    c->barrier(c, NULL, NULL);
}

static const struct {
    const char *name;
    ml_rank_fn *fn;
} cases[] = {
    { "reductions", reductions },
    { "large reductions", large_reductions },
    { "maximum", maximum_of_special_values },
    { "broadcasts", broadcasts },
    { "gathers", gathers },
    { "exchanges", exchanges },
    { "neighbours", exchanges_with_neighbours },
    { "messages", messages },
    { "splits", splits },
    { "two communicators", two_communicators },
    { "agreement", agreement },
    { "staging", staging },
    { "two threads", two_threads },
}, failing[] = {
    { "failed rank", failed_rank }, { "failed elsewhere", failed_elsewhere },
    { "aborted", aborted },         { "left", left },
    { "silent", silent },           { "killed", killed },
    { "failed exit", failed_exit }, { "silent exit", silent_exit },
    { "aborted long", aborted_long },
};

/* Over threads. */

static void run_case(ml_rank_fn *fn) {
    for (int32_t n = 1; n <= 9; n++)
        ml_ranks_run(n, fn, NULL);
}

static void run_failure(ml_rank_fn *fn) {
    for (int32_t n = 2; n <= 5; n++)
        ml_ranks_run(n, fn, NULL);
}
static void threads_reductions(void) {
    run_case(reductions);
}

static void threads_maximum_of_special_values(void) {
    run_case(maximum_of_special_values);
}

static void threads_broadcasts(void) {
    run_case(broadcasts);
}

static void threads_gathers(void) {
    run_case(gathers);
}

static void threads_exchanges(void) {
    run_case(exchanges);
}

static void threads_exchange_with_neighbours(void) {
    run_case(exchanges_with_neighbours);
}

static void threads_messages(void) {
    run_case(messages);
}

static void threads_splits(void) {
    run_case(splits);
}

static void threads_two_communicators(void) {
    run_case(two_communicators);
}

static void threads_agreement(void) {
    run_case(agreement);
}

static void threads_staging(void) {
    run_case(staging);
}

static void threads_two_threads(void) {
    run_case(two_threads);
}

static void threads_failed_rank(void) {
    run_failure(failed_rank);
}

static void threads_failed_elsewhere(void) {
    run_failure(failed_elsewhere);
}

static void threads_aborted(void) {
    run_failure(aborted);
}

static void threads_aborted_long(void) {
    run_failure(aborted_long);
}

static void threads_left(void) {
    run_failure(left);
}

static void threads_silent(void) {
    run_failure(silent);
}

/* A message whose copy takes longer than its sender may wait has been sent, or it has not:
 * both ranks agree on that. */
static void late(ml_comm *c, void *ud) {
    size_t n = (size_t)128 << 20;
    char *p = calloc(n, 1);
    ml_tensor t = ml_comm_bytes(p, n);
    ml_status *st = ud;

    CHECK(c->barrier(c, NULL, NULL) == ML_OK);
    c->deadline_s = c->rank ? 0 : 0.01;
    st[c->rank] = c->rank ? c->recv(c, NULL, &t, 0, NULL) : c->send(c, NULL, &t, 1, NULL);
    free(p);
}

static void threads_late(void) {
    ml_status st[2];

    ml_ranks_run(2, late, st);
    CHECK(st[0] == st[1]);
    CHECK(st[0] == ML_OK || st[0] == ML_EPEER);
}

static void threads_large_reductions(void) {
    ml_ranks_run(1, large_reductions, NULL);
    ml_ranks_run(3, large_reductions, NULL);
}

static const ml_test tests[] = {
    { "a communicator of one rank has rank 0 of 1", one_rank },
    { "collectives of one rank copy their input", collectives_are_the_identity },
    { "alltoallv of one rank moves its own rows", rows_to_itself },
    { "agree of one rank returns its own status", failures },
    { "a reduction has the bits of its tree for 1 to 9 ranks", threads_reductions },
    { "a maximum keeps NaN and the sign of the lower rank",
      threads_maximum_of_special_values },
    { "a broadcast reaches every rank from every root", threads_broadcasts },
    { "allgather concatenates in rank order, also in place", threads_gathers },
    { "alltoallv delivers rows in rank order", threads_exchanges },
    { "messages between two ranks arrive in order", threads_messages },
    { "an exchange sends and receives at once", threads_exchange_with_neighbours },
    { "split orders by key and leaves out negative colors", threads_splits },
    { "messages of two communicators do not mix", threads_two_communicators },
    { "ranks without an error agree", threads_agreement },
    { "tensors of a device are staged through host memory", threads_staging },
    { "threads of a rank use communicators of their own at once", threads_two_threads },
    { "a rank that fails is named to the ranks in agree", threads_failed_rank },
    { "a rank that fails frees ranks that wait in another communicator",
      threads_failed_elsewhere },
    { "a rank that aborts frees the ranks that wait for it", threads_aborted },
    { "a rank that aborts frees the ranks that send it long messages",
      threads_aborted_long },
    { "a rank that leaves frees the ranks that wait for it", threads_left },
    { "a deadline names the call, the layer and the silent ranks", threads_silent },
    { "sender and receiver agree whether a message came before the deadline",
      threads_late },
    { "a list of ranks has ranges", lists_of_ranks },
    { "a reduction of more than is reduced at a time has the bits of its tree",
      threads_large_reductions },
    { 0 },
};

/* Over MPI: tests/e2e/comm_mpi.sh starts this program under mpirun.  Without arguments all
 * ranks run the cases for any number of ranks; with the name of a failure, that one. */
static int run_as_rank(const char *failure) {
    ml_err err = { 0 };
    ml_comm *c;

    if (ml_comm_world(&c, &err) != ML_OK) {
        fprintf(stderr, "%s\n", err.msg);
        return 1;
    }
    for (size_t i = 0; i < sizeof cases / sizeof *cases && !failure; i++)
        cases[i].fn(c, NULL);
    for (size_t i = 0; i < sizeof failing / sizeof *failing && failure; i++)
        if (strcmp(failing[i].name, failure) == 0)
            failing[i].fn(c, NULL);
    c->close(c);
    return ml_test_failures() ? 4 : exit_code;
}

int main(int argc, char **argv) {
    if (getenv("OMPI_COMM_WORLD_RANK") || (argc > 1 && strcmp(argv[1], "as-rank") == 0))
        return run_as_rank(argc > 1 ? argv[1] : NULL);
    return ml_test_main(argc, argv, tests);
}
