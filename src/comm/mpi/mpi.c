/* mpi.c - the link over MPI (libmiles_mpi.so).
 *
 * Messages are MPI_Isend and MPI_Irecv with the communicator's tag; no collective of MPI is
 * used after the start, since none can be given up.  News of a rank that failed or left are
 * small messages on a second MPI communicator, which every wait looks for.
 *
 * A job that fails may leave messages half delivered.  MPI cannot take these back, and
 * would write into buffers that their owners have freed: from then on (`stuck`) this
 * process no longer calls MPI and exits without MPI_Finalize, which makes mpirun and srun
 * end the job. */
#include <mpi.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/oom.h"
#include "comm/mpi_door.h"

enum { FAILED_TAG, LEFT_TAG }; /* of news */
enum {
    HOST_NAME = 64,
    LARGEST = 1 << 30, /* bytes of one MPI message; counts are int */
};

#define TELL_S 2.0  /* how long the news of a failure may take to be sent */
#define LEAVE_S 5.0 /* how long a failed job waits for its ranks to close */
#define END_S 600.0 /* how long a job that has ended well does */
/* The launcher returns the exit code of the process that ends first, and kills the others:
 * the rank that failed gives these a second for their messages, and exits before them. */
#define STUCK_S 1
#define FIRST_S 10

typedef struct endpoint {
    ml_link link;
    MPI_Comm data, news;
    pthread_mutex_t news_lock; /* one thread at a time receives news */
    atomic_bool failed;        /* `why` is valid */
    ml_err why;
    bool mine; /* this rank told the others */
    atomic_bool stuck;
    atomic_bool *left;       /* [size] */
    char (*name)[HOST_NAME]; /* [size] */
    const char **host;
} endpoint;

static endpoint *end_of(ml_link *l) {
    return (endpoint *)l;
}

/* Waits spin for a millisecond, then sleep: ranks share cores, and wait minutes for a
 * rollout. */
typedef struct patience {
    double since;
} patience;

static void rest(patience p) {
    double waited = ml_clock_s() - p.since;
    struct timespec t = { 0, waited < 1.0 ? 50000 : 1000000 };

    if (waited < 1e-3)
        sched_yield();
    else
        nanosleep(&t, NULL);
}

/* --- news ------------------------------------------------------------------------ */

static void take_news(endpoint *e, const MPI_Status *s) {
    ml_err why;
    int bytes = 0;

    MPI_Get_count(s, MPI_BYTE, &bytes);
    MPI_Recv(&why, bytes, MPI_BYTE, s->MPI_SOURCE, s->MPI_TAG, e->news, MPI_STATUS_IGNORE);
    if (s->MPI_TAG == LEFT_TAG) {
        atomic_store(&e->left[s->MPI_SOURCE], true);
    } else if (!atomic_load(&e->failed)) {
        e->why = why;
        atomic_store(&e->failed, true);
    }
}

static void read_news(endpoint *e) {
    int found = 1;
    MPI_Status s;

    if (atomic_load(&e->stuck) || pthread_mutex_trylock(&e->news_lock) != 0)
        return;
    while (found) {
        MPI_Iprobe(MPI_ANY_SOURCE, MPI_ANY_TAG, e->news, &found, &s);
        if (found)
            take_news(e, &s);
    }
    pthread_mutex_unlock(&e->news_lock);
}

/* To every other rank. */
static void send_news(endpoint *e, int tag, const void *bytes, int n) {
    int size = e->link.size, done = 0;
    MPI_Request *r = ml_memory_grow(NULL, (size_t)size * sizeof(*r), "news of a rank");
    patience p = { .since = ml_clock_s() };

    for (int to = 0; to < size; to++) {
        r[to] = MPI_REQUEST_NULL;
        if (to != e->link.rank)
            MPI_Isend(bytes, n, MPI_BYTE, to, tag, e->news, &r[to]);
    }
    while (!done && ml_clock_s() - p.since < TELL_S) {
        MPI_Testall(size, r, &done, MPI_STATUSES_IGNORE);
        if (!done)
            rest(p);
    }
    if (!done)
        atomic_store(&e->stuck, true);
    else
        free(r);
}

static void mpi_tell(ml_link *l, const ml_err *why) {
    endpoint *e = end_of(l);

    read_news(e);
    pthread_mutex_lock(&e->news_lock);
    if (!atomic_load(&e->failed)) {
        e->why = *why;
        e->mine = true;
        atomic_store(&e->failed, true);
        if (!atomic_load(&e->stuck))
            send_news(e, FAILED_TAG, &e->why, (int)sizeof e->why);
    }
    pthread_mutex_unlock(&e->news_lock);
}

/* --- messages -------------------------------------------------------------------- */

typedef struct batch { /* the MPI messages of an exchange */
    MPI_Request *req;
    int *done; /* scratch of MPI_Testsome */
    int *parcel;
    int n, left;
} batch;

static int pieces(size_t bytes) {
    return bytes ? (int)((bytes + LARGEST - 1) / LARGEST) : 1;
}

static void batch_release(batch *b) {
    free(b->req);
    free(b->done);
    free(b->parcel);
}

static void start_parcel(endpoint *e, batch *b, int tag, const ml_parcel *p, int index) {
    char *at = p->data;
    size_t left = p->bytes;

    do {
        int n = left < LARGEST ? (int)left : LARGEST;

        if (p->send)
            MPI_Isend(at, n, MPI_BYTE, p->peer, tag, e->data, &b->req[b->n]);
        else
            MPI_Irecv(at, n, MPI_BYTE, p->peer, tag, e->data, &b->req[b->n]);
        b->parcel[b->n++] = index;
        at = n ? at + n : at;
        left -= (size_t)n;
    } while (left);
}

static void start(endpoint *e, batch *b, int tag, const ml_parcel *p, int n) {
    size_t most = 1;

    for (int i = 0; i < n; i++)
        most += (size_t)pieces(p[i].bytes);
    b->req = ml_memory_grow(NULL, most * sizeof(*b->req), "messages of a rank");
    b->done = ml_memory_grow(NULL, most * sizeof *b->done, "messages of a rank");
    b->parcel = ml_memory_grow(NULL, most * sizeof *b->parcel, "messages of a rank");
    for (int send = 0; send < 2; send++) /* receives first: they are ready for the data */
        for (int i = 0; i < n; i++)
            if (p[i].send == (send == 1))
                start_parcel(e, b, tag, &p[i], i);
    b->left = b->n;
}

/* Marks the parcels whose messages are complete; true: some are. */
static bool progress(batch *b, ml_parcel *p) {
    int n = 0;

    MPI_Testsome(b->n, b->req, &n, b->done, MPI_STATUSES_IGNORE);
    if (n == MPI_UNDEFINED || n == 0)
        return false;
    b->left -= n;
    for (int k = 0; k < n; k++) {
        bool whole = true;
        for (int i = 0; i < b->n; i++)
            whole &= b->parcel[i] != b->parcel[b->done[k]] || b->req[i] == MPI_REQUEST_NULL;
        p[b->parcel[b->done[k]]].done = whole;
    }
    return true;
}

static ml_status broken(endpoint *e, const ml_parcel *p, int n, ml_err *err) {
    if (atomic_load(&e->failed)) {
        *err = e->why;
        return ML_EPEER;
    }
    for (int i = 0; i < n; i++)
        if (!p[i].done && atomic_load(&e->left[p[i].peer])) {
            (void)ml_fail(err, ML_EAGAIN, "rank %d (on %s) has left the job",
                          (int)p[i].peer, e->link.host[p[i].peer]);
            return ML_EPEER;
        }
    return ML_OK;
}

static ml_status deliver(endpoint *e, batch *b, ml_parcel *p, int n, double deadline_s,
                         ml_err *err) {
    patience wait = { .since = ml_clock_s() };
    ml_status st;

    for (;;) {
        /* The clock is read before the look for messages: a process that loses its core
         * between the two still takes what arrived meanwhile. */
        bool late = deadline_s > 0 && ml_clock_s() - wait.since > deadline_s;

        while (b->left && progress(b, p))
            ;
        if (!b->left)
            return ML_OK;
        read_news(e);
        /* What a rank sent before it left has arrived before the news that it left. */
        if (progress(b, p))
            continue;
        st = broken(e, p, n, err);
        if (st != ML_OK)
            return st;
        if (late)
            return ML_EAGAIN;
        rest(wait);
    }
}

/* Only receives that have not been matched can be cancelled. */
static bool cancel(batch *b, const ml_parcel *p) {
    patience wait = { .since = ml_clock_s() };
    int done = 0;

    for (int i = 0; i < b->n; i++)
        if (b->req[i] != MPI_REQUEST_NULL && !p[b->parcel[i]].send)
            MPI_Cancel(&b->req[i]);
    while (!done && ml_clock_s() - wait.since < 0.1) {
        MPI_Testall(b->n, b->req, &done, MPI_STATUSES_IGNORE);
        if (!done)
            rest(wait);
    }
    return done;
}

static ml_status mpi_exchange(ml_link *l, int32_t tag, ml_parcel *p, int32_t n,
                              double deadline_s, ml_err *err) {
    endpoint *e = end_of(l);
    batch b = { 0 };
    ml_status st;

    if (atomic_load(&e->failed))
        return broken(e, p, 0, err);
    start(e, &b, tag, p, n);
    st = deliver(e, &b, p, n, deadline_s, err);
    if (st == ML_OK || cancel(&b, p))
        batch_release(&b);
    else
        atomic_store(&e->stuck, true);
    return st;
}

/* --- the end --------------------------------------------------------------------- */

static bool all_left(const endpoint *e) {
    for (int r = 0; r < e->link.size; r++)
        if (r != e->link.rank && !atomic_load(&e->left[r]))
            return false;
    return true;
}

static void endpoint_free(endpoint *e) {
    pthread_mutex_destroy(&e->news_lock);
    free(e->left);
    free(e->name);
    free(e->host);
    free(e);
}

/* Every rank waits for all others, so that those that wait for a rank that has left learn of
 * it, and MPI_Finalize does not hang. */
static void mpi_close(ml_link *l) {
    endpoint *e = end_of(l);
    patience wait = { .since = ml_clock_s() };

    if (!atomic_load(&e->stuck))
        send_news(e, LEFT_TAG, NULL, 0);
    while (!atomic_load(&e->stuck) && !all_left(e) &&
           ml_clock_s() - wait.since < (atomic_load(&e->failed) ? LEAVE_S : END_S)) {
        read_news(e);
        rest(wait);
    }
    if (!atomic_load(&e->stuck) && all_left(e))
        MPI_Finalize();
    else if (e->mine)
        sleep(STUCK_S);
    if (atomic_load(&e->failed) && !e->mine)
        sleep(FIRST_S);
    endpoint_free(e);
}

/* --- the start ------------------------------------------------------------------- */

static void find_hosts(endpoint *e) {
    ml_link *l = &e->link;
    char mine[HOST_NAME] = { 0 };

    (void)gethostname(mine, sizeof mine - 1);
    MPI_Allgather(mine, HOST_NAME, MPI_BYTE, e->name, HOST_NAME, MPI_BYTE, e->news);
    for (int r = 0; r < l->size; r++) {
        e->host[r] = e->name[r];
        if (strcmp(e->name[r], mine) == 0) {
            l->local_rank += r < l->rank;
            l->local_size++;
        }
    }
    l->host = e->host;
}

static endpoint *endpoint_new(void) {
    endpoint *e = ml_memory_grow(NULL, sizeof *e, "the link over MPI");
    int rank, size;

    *e = (endpoint){ 0 };
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    MPI_Comm_dup(MPI_COMM_WORLD, &e->data);
    MPI_Comm_dup(MPI_COMM_WORLD, &e->news);
    pthread_mutex_init(&e->news_lock, NULL);
    e->left = ml_memory_grow(NULL, (size_t)size * sizeof *e->left, "the link over MPI");
    e->name = ml_memory_grow(NULL, (size_t)size * sizeof *e->name, "the link over MPI");
    e->host = ml_memory_grow(NULL, (size_t)size * sizeof *e->host, "the link over MPI");
    for (int r = 0; r < size; r++)
        atomic_init(&e->left[r], false);
    e->link = (ml_link){ .name = "mpi",
                         .rank = rank,
                         .size = size,
                         .exchange = mpi_exchange,
                         .tell = mpi_tell,
                         .close = mpi_close };
    find_hosts(e);
    return e;
}

__attribute__((visibility("default"))) ml_mpi_open_fn miles_mpi_open;

ml_status miles_mpi_open(ml_link **out, size_t stamp, ml_err *err) {
    int provided = 0, initialized = 0;

    *out = NULL;
    if (stamp != ML_MPI_STAMP)
        return ml_fail(err, ML_EUNSUP,
                       ML_MPI_LIBRARY " was built from other sources than the program: "
                                      "rebuild both");
    MPI_Initialized(&initialized);
    if (initialized)
        return ml_fail(err, ML_EUNSUP, "a process can join a job of MPI once");
    if (MPI_Init_thread(NULL, NULL, MPI_THREAD_MULTIPLE, &provided) != MPI_SUCCESS)
        return ml_fail(err, ML_EUNSUP, "MPI_Init_thread failed; MPI has printed why");
    if (provided < MPI_THREAD_MULTIPLE)
        return ml_fail(err, ML_EUNSUP,
                       "this MPI library does not support MPI_THREAD_MULTIPLE: install one "
                       "that does (Debian: libopenmpi-dev, openmpi-bin)");
    *out = &endpoint_new()->link;
    return ML_OK;
}
