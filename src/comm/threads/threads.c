/* threads.c - the link between threads.  A send is an item in the list of its receiver,
 * which copies the bytes straight from the sender's memory; the sender waits for that. */
#include "comm/threads/threads.h"

#include <errno.h>
#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "base/bug.h"
#include "base/oom.h"
#include "comm/link.h"

typedef struct item { /* belongs to the sender's exchange */
    ml_parcel *parcel;
    int32_t from, tag;
    bool taken; /* out of the list; its receiver copies */
    struct item *next;
} item;

typedef struct job job;

typedef struct endpoint {
    ml_link link;
    job *job;
    pthread_cond_t changed; /* an item came, one of ours was copied, or news */
    item *first;            /* sends to this rank, oldest first */
    bool left;
} endpoint;

struct job {
    pthread_mutex_t lock; /* of everything here */
    endpoint *end;        /* [n] */
    int32_t n, open;
    bool told;
    ml_err why;
};

static endpoint *end_of(ml_link *l) {
    return (endpoint *)l;
}

static void wake(job *j) {
    for (int32_t r = 0; r < j->n; r++)
        pthread_cond_broadcast(&j->end[r].changed);
}

static void post(endpoint *to, item *it) {
    item **p = &to->first;

    while (*p)
        p = &(*p)->next;
    *p = it;
    pthread_cond_broadcast(&to->changed);
}

static item *take(endpoint *e, int32_t from, int32_t tag) {
    for (item **p = &e->first; *p; p = &(*p)->next) {
        item *it = *p;
        if (it->from == from && it->tag == tag) {
            *p = it->next;
            it->taken = true;
            return it;
        }
    }
    return NULL;
}

/* Copies one message that has come; false: none has.  The lock is released meanwhile. */
static bool receive(endpoint *e, int32_t tag, ml_parcel *p, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        item *it;

        if (p[i].send || p[i].done || !(it = take(e, p[i].peer, tag)))
            continue;
        ML_BUG_IF(it->parcel->bytes != p[i].bytes);
        pthread_mutex_unlock(&e->job->lock);
        if (p[i].bytes)
            memcpy(p[i].data, it->parcel->data, p[i].bytes);
        pthread_mutex_lock(&e->job->lock);
        p[i].done = it->parcel->done = true;
        pthread_cond_broadcast(&e->job->end[it->from].changed);
        return true;
    }
    return false;
}

static bool all_done(const ml_parcel *p, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        if (!p[i].done)
            return false;
    return true;
}

/* Why a wait cannot end well. */
static ml_status broken(const endpoint *e, const ml_parcel *p, int32_t n, ml_err *err) {
    if (e->job->told) {
        *err = e->job->why;
        return ML_EPEER;
    }
    for (int32_t i = 0; i < n; i++)
        if (!p[i].done && e->job->end[p[i].peer].left) {
            (void)ml_fail(err, ML_EAGAIN, "rank %d has left the job", (int)p[i].peer);
            return ML_EPEER;
        }
    return ML_OK;
}

/* Removes the sends that nobody has received, and waits for copies in progress. */
static void withdraw(endpoint *e, item *it, int32_t n) {
    for (int32_t i = 0; i < n; i++) {
        item **p = &e->job->end[it[i].parcel->peer].first;

        while (!it[i].taken && *p != &it[i])
            p = &(*p)->next;
        if (!it[i].taken)
            *p = it[i].next;
        while (it[i].taken && !it[i].parcel->done)
            pthread_cond_wait(&e->changed, &e->job->lock);
    }
}

static struct timespec after(double s) {
    struct timespec t;
    double whole = floor(s);

    clock_gettime(CLOCK_MONOTONIC, &t);
    t.tv_sec += (time_t)whole;
    t.tv_nsec += (long)((s - whole) * 1e9);
    if (t.tv_nsec >= 1000000000) {
        t.tv_sec++;
        t.tv_nsec -= 1000000000;
    }
    return t;
}

static ml_status deliver(endpoint *e, int32_t tag, ml_parcel *p, int32_t n,
                         double deadline_s, ml_err *err) {
    struct timespec until = after(deadline_s);
    ml_status st;
    int rc = 0;

    for (;;) {
        while (receive(e, tag, p, n))
            ;
        if (all_done(p, n))
            return ML_OK;
        st = broken(e, p, n, err);
        if (st != ML_OK)
            return st;
        if (rc == ETIMEDOUT)
            return ML_EAGAIN;
        rc = deadline_s > 0 ? pthread_cond_timedwait(&e->changed, &e->job->lock, &until)
                            : pthread_cond_wait(&e->changed, &e->job->lock);
    }
}

static ml_status threads_exchange(ml_link *l, int32_t tag, ml_parcel *p, int32_t n,
                                  double deadline_s, ml_err *err) {
    endpoint *e = end_of(l);
    item *it = ml_memory_grow(NULL, ((size_t)n + 1) * sizeof *it, "messages of a rank");
    int32_t n_item = 0;
    ml_status st;

    pthread_mutex_lock(&e->job->lock);
    st = e->job->told ? broken(e, p, 0, err) : ML_OK;
    for (int32_t i = 0; i < n && st == ML_OK; i++)
        if (p[i].send) {
            it[n_item] = (item){ .parcel = &p[i], .from = l->rank, .tag = tag };
            post(&e->job->end[p[i].peer], &it[n_item++]);
        }
    if (st == ML_OK)
        st = deliver(e, tag, p, n, deadline_s, err);
    if (st != ML_OK)
        withdraw(e, it, n_item);
    if (st == ML_EAGAIN && all_done(p, n))
        st = ML_OK; /* the last message was being copied at the deadline */
    pthread_mutex_unlock(&e->job->lock);
    free(it);
    return st;
}

static void threads_tell(ml_link *l, const ml_err *why) {
    job *j = end_of(l)->job;

    pthread_mutex_lock(&j->lock);
    if (!j->told) {
        j->told = true;
        j->why = *why;
        wake(j);
    }
    pthread_mutex_unlock(&j->lock);
}

static void job_free(job *j) {
    for (int32_t r = 0; r < j->n; r++)
        pthread_cond_destroy(&j->end[r].changed);
    pthread_mutex_destroy(&j->lock);
    free(j->end);
    free(j);
}

static void threads_close(ml_link *l) {
    job *j = end_of(l)->job;
    int32_t open;

    pthread_mutex_lock(&j->lock);
    end_of(l)->left = true;
    wake(j);
    open = --j->open;
    pthread_mutex_unlock(&j->lock);
    if (open == 0)
        job_free(j);
}

ml_status ml_comm_threads_open(ml_comm **out, int32_t n, ml_err *err) {
    job *j;
    pthread_condattr_t monotonic;

    if (n < 1)
        return ml_fail(err, ML_EUSAGE, "a job needs at least one rank, not %d", (int)n);
    j = ml_memory_grow(NULL, sizeof *j, "ranks");
    *j = (job){ .n = n, .open = n };
    j->end = ml_memory_grow(NULL, (size_t)n * sizeof *j->end, "ranks");
    pthread_mutex_init(&j->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    for (int32_t r = 0; r < n; r++) {
        j->end[r] = (endpoint){ .job = j };
        j->end[r].link = (ml_link){ .name = "threads",
                                    .rank = r,
                                    .size = n,
                                    .local_rank = r,
                                    .local_size = n,
                                    .exchange = threads_exchange,
                                    .tell = threads_tell,
                                    .close = threads_close };
        pthread_cond_init(&j->end[r].changed, &monotonic);
        out[r] = ml_comm_of_link(&j->end[r].link);
    }
    pthread_condattr_destroy(&monotonic);
    return ML_OK;
}
