#include <string.h>

#include "comm/self/self.h"
#include "tests/support/test.h"

/* The least of a device that comm may lean on. */
static int n_copy;

static void copy(ml_stream *s, void *dst, const void *src, size_t bytes) {
    (void)s;
    memcpy(dst, src, bytes);
    n_copy++;
}

static ml_device device = { .name = "test", .copy = copy };
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

static const ml_test tests[] = {
    { "a communicator of one rank has rank 0 of 1", one_rank },
    { "collectives of one rank copy their input", collectives_are_the_identity },
    { "alltoallv of one rank moves its own rows", rows_to_itself },
    { "agree returns the worst status of all ranks", failures },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
