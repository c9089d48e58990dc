#include "run/heartbeat.h"

#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#define LONGEST_S 10.0 /* between two beats */
#define GRACE_S 10.0   /* of an owner that has not noticed that the job failed */

struct ml_heartbeat {
    ml_comm *ring;
    double every_s, deadline_s, grace_s;
    void (*lost)(void *ud, const ml_err *why);
    void *ud;
    ml_err why; /* of the thread: why the job failed */
    pthread_t thread;
    pthread_mutex_t lock; /* of `ending` */
    pthread_cond_t wake;
    bool ending;
};

/* Waits so long; true: the owner ends. */
static bool rest(ml_heartbeat *h, double s, bool at_once) {
    struct timespec until;
    bool ending;
    int late = 0;

    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += (time_t)s;
    until.tv_nsec += (long)(1e9 * (s - (double)(time_t)s));
    if (until.tv_nsec >= 1000000000) {
        until.tv_nsec -= 1000000000;
        until.tv_sec++;
    }
    pthread_mutex_lock(&h->lock);
    while (!h->ending && !at_once && !late)
        late = pthread_cond_timedwait(&h->wake, &h->lock, &until);
    ending = h->ending;
    pthread_mutex_unlock(&h->lock);
    return ending;
}

/* A rank that ends says so in its last beat. */
typedef struct beats {
    bool sent_last, got_last;
} beats;

static ml_status send_beat(ml_heartbeat *h, beats *b, bool last) {
    ml_comm *c = h->ring;
    ml_tensor t = ml_comm_bytes(&last, sizeof last);

    if (b->sent_last)
        return ML_OK;
    b->sent_last = last;
    return c->send(c, NULL, &t, (c->rank + 1) % c->size, &h->why);
}

static ml_status take_beat(ml_heartbeat *h, beats *b) {
    ml_comm *c = h->ring;
    ml_tensor t = ml_comm_bytes(&b->got_last, sizeof b->got_last);

    int32_t from = (c->rank + c->size - 1) % c->size;
    ml_status st = b->got_last ? ML_OK : c->recv(c, NULL, &t, from, &h->why);

    c->deadline_s = h->deadline_s; /* the first beat had longer */
    return st;
}

/* Odd ranks receive first, so that a send never waits in a circle. */
static void *beat(void *ud) {
    ml_heartbeat *h = ud;
    bool odd = h->ring->rank % 2 == 1;
    beats b = { false, false };
    ml_status st = ML_OK;

    while (st == ML_OK && !(b.sent_last && b.got_last)) {
        bool last = rest(h, h->every_s, b.sent_last);
        if (odd)
            st = take_beat(h, &b);
        if (st == ML_OK)
            st = send_beat(h, &b, last);
        if (st == ML_OK && !odd)
            st = take_beat(h, &b);
    }
    if (st != ML_OK && h->lost && !rest(h, h->grace_s, false))
        h->lost(h->ud, &h->why);
    return NULL;
}

static void release(ml_heartbeat *h) {
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
    h->ring->close(h->ring);
    free(h);
}

/* The defaults of Miles' checker, if one of its flags is given. */
static double or_else(double given, double otherwise) {
    return given > 0 ? given : otherwise;
}

ml_heartbeat_opts ml_heartbeat_times(const ml_place_opts *p) {
    double every_s = or_else(p->beat_s, 10), late_s = or_else(p->beat_timeout_s, 10);

    if (p->beat_s > 0 || p->beat_timeout_s > 0 || p->beat_first_s > 0 || p->beat_failures)
        return (ml_heartbeat_opts){ .every_s = every_s,
                                    .deadline_s = or_else((double)p->beat_failures, 3) *
                                                  (every_s + late_s),
                                    .first_s = or_else(p->beat_first_s, 300) };
    return (ml_heartbeat_opts){ .deadline_s = 60 * p->timeout_min };
}

static ml_heartbeat *new_heartbeat(ml_comm *ring, const ml_heartbeat_opts *o) {
    double usual = o->deadline_s / 4 < LONGEST_S ? o->deadline_s / 4 : LONGEST_S;
    ml_heartbeat *h = calloc(1, sizeof *h);
    pthread_condattr_t clock;

    if (!h)
        return NULL;
    h->ring = ring;
    h->every_s = o->every_s > 0 ? o->every_s : usual;
    h->deadline_s = o->deadline_s;
    h->grace_s = o->grace_s > 0 ? o->grace_s : GRACE_S;
    h->lost = o->lost;
    h->ud = o->ud;
    ring->group = "heartbeats";
    ring->spans = NULL;
    ring->deadline_s = o->deadline_s + o->first_s;
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&h->wake, &clock);
    pthread_condattr_destroy(&clock);
    return h;
}

ml_status ml_heartbeat_open(ml_heartbeat **out, ml_comm *world, const ml_heartbeat_opts *o,
                            ml_err *err) {
    ml_comm *ring = NULL;
    ml_heartbeat *h;
    ml_status st;

    *out = NULL;
    if (!world || world->size == 1 || o->deadline_s <= 0)
        return ML_OK;
    world->deadline_s = o->deadline_s + o->first_s;
    st = world->split(world, &ring, 0, world->rank, err);
    world->deadline_s = 0;
    if (st != ML_OK)
        return st;
    h = new_heartbeat(ring, o);
    if (h && pthread_create(&h->thread, NULL, beat, h) == 0) {
        *out = h;
        return ML_OK;
    }
    if (h)
        release(h);
    return ml_fail(err, ML_ENOMEM, "cannot create a thread for heartbeats");
}

void ml_heartbeat_close(ml_heartbeat *h) {
    if (!h)
        return;
    pthread_mutex_lock(&h->lock);
    h->ending = true;
    pthread_cond_signal(&h->wake);
    pthread_mutex_unlock(&h->lock);
    pthread_join(h->thread, NULL);
    release(h);
}
