#include "run/heartbeat.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "base/oom.h"
#include "comm/watch.h"

#define LONGEST_S 10.0 /* between two beats */
#define GRACE_S 10.0   /* of an owner that has not noticed that the job failed */
#define SAY_S 30.0     /* waits that are longer are logged */

/* A rank that ends beats until all do. */
typedef struct pulse {
    ml_rank_state state;
    bool ends;
} pulse;

struct ml_heartbeat {
    ml_comm *ranks;
    double every_s, deadline_s, stall_s, grace_s;
    double say_s;  /* the first line about a wait comes so late */
    double said_s; /* how long the wait was in the last line about it */
    void (*say)(const char *line);
    void (*lost)(void *ud, const ml_err *why);
    void *ud;
    pulse *pulse;         /* [size]: of the last beat */
    ml_rank_state *state; /* [size] */
    ml_err why;           /* of the thread: why the job failed */
    pthread_t thread;
    pthread_mutex_t lock; /* of `ending` */
    pthread_cond_t wake;
    bool ending;
};

/* Waits so long; true: the owner ends. */
static bool rest(ml_heartbeat *h, double s) {
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
    while (!h->ending && !late)
        late = pthread_cond_timedwait(&h->wake, &h->lock, &until);
    ending = h->ending;
    pthread_mutex_unlock(&h->lock);
    return ending;
}

static ml_status exchange(ml_heartbeat *h, bool ends) {
    ml_comm *c = h->ranks;
    pulse *mine = &h->pulse[c->rank];
    ml_tensor in = ml_comm_bytes(mine, sizeof *mine);
    ml_tensor out = ml_comm_bytes(h->pulse, (size_t)c->size * sizeof *mine);
    ml_status st;

    memset(mine, 0, sizeof *mine);
    mine->ends = ends;
    ml_watch_read(ml_comm_watch(c), &mine->state);
    st = c->allgather(c, NULL, &out, &in, &h->why);
    c->deadline_s = h->deadline_s; /* the first beat had longer */
    if (st != ML_OK)
        return st;
    for (int32_t r = 0; r < c->size; r++)
        h->state[r] = h->pulse[r].state;
    ml_watch_learn(ml_comm_watch(c), h->state);
    return ML_OK;
}

static bool all_end(const ml_heartbeat *h) {
    for (int32_t r = 0; r < h->ranks->size; r++)
        if (!h->pulse[r].ends)
            return false;
    return true;
}

/* A line about a long wait of this rank, each time that it has doubled. */
static void say_wait(ml_heartbeat *h) {
    const ml_rank_state *mine = &h->state[h->ranks->rank];
    ml_text line = { 0 };

    if (!mine->waits || mine->for_s < h->said_s)
        h->said_s = 0;
    if (!h->say || !mine->waits || mine->for_s < (h->said_s > 0 ? 2 * h->said_s : h->say_s))
        return;
    h->said_s = mine->for_s;
    ml_rank_states_put(&line, h->state, h->ranks->size, h->ranks->rank);
    h->say(line.ptr);
    ml_text_release(&line);
}

/* All ranks have the same states, and the first one that has waited too long speaks for all.
 * The rank that it waits for must have been idle for as long: it may just have begun. */
static ml_status check_stall(ml_heartbeat *h) {
    int32_t n = h->ranks->size, first = 0, end;
    ml_text why = { 0 };
    ml_status st;

    while (first < n && !(h->state[first].waits && h->state[first].for_s > h->stall_s))
        first++;
    if (h->stall_s <= 0 || first != h->ranks->rank)
        return ML_OK;
    end = ml_rank_states_end(h->state, n, first);
    if (end >= 0 && h->state[end].for_s <= h->stall_s)
        return ML_OK;
    ml_rank_states_put(&why, h->state, n, first);
    ml_text_printf(&why,
                   ", longer than %g s (--rank-stall-minutes); see what it does there, and "
                   "start the job again",
                   h->stall_s);
    st = ml_comm_give_up(h->ranks, end, why.ptr, &h->why);
    ml_text_release(&why);
    return st;
}

static void *beat(void *ud) {
    ml_heartbeat *h = ud;
    ml_status st = ML_OK;
    bool end = false;

    while (st == ML_OK && !end) {
        st = exchange(h, rest(h, h->every_s));
        end = st == ML_OK && all_end(h);
        if (st == ML_OK)
            say_wait(h);
        if (st == ML_OK)
            st = check_stall(h);
    }
    if (st != ML_OK && h->lost && !rest(h, h->grace_s))
        h->lost(h->ud, &h->why);
    return NULL;
}

static void release(ml_heartbeat *h) {
    pthread_cond_destroy(&h->wake);
    pthread_mutex_destroy(&h->lock);
    h->ranks->close(h->ranks);
    free(h->pulse);
    free(h->state);
    free(h);
}

/* The defaults of Miles' checker, if one of its flags is given. */
static double or_else(double given, double otherwise) {
    return given > 0 ? given : otherwise;
}

static double least(double a, double b) {
    return a < b ? a : b;
}

ml_heartbeat_opts ml_heartbeat_times(const ml_place_opts *p) {
    double every_s = or_else(p->beat_s, 10), late_s = or_else(p->beat_timeout_s, 10);
    ml_heartbeat_opts o = { .deadline_s = 60 * p->timeout_min,
                            .stall_s = 60 * p->stall_min };

    if (p->beat_s > 0 || p->beat_timeout_s > 0 || p->beat_first_s > 0 || p->beat_failures) {
        o.every_s = every_s;
        o.deadline_s = or_else((double)p->beat_failures, 3) * (every_s + late_s);
        o.first_s = or_else(p->beat_first_s, 300);
    }
    if (o.deadline_s <= 0)
        o.deadline_s = o.stall_s; /* beats tell of a stall: they may not stop for longer */
    return o;
}

static ml_heartbeat *new_heartbeat(ml_comm *ranks, const ml_heartbeat_opts *o) {
    ml_heartbeat *h = ml_memory_grow(NULL, sizeof *h, "heartbeats");
    size_t n = (size_t)ranks->size;
    pthread_condattr_t clock;

    *h =
        (ml_heartbeat){ .ranks = ranks,
                        .every_s = or_else(o->every_s, least(o->deadline_s / 4, LONGEST_S)),
                        .deadline_s = o->deadline_s,
                        .stall_s = o->stall_s,
                        .grace_s = or_else(o->grace_s, GRACE_S),
                        .say_s = least(o->deadline_s / 4, SAY_S),
                        .say = o->say,
                        .lost = o->lost,
                        .ud = o->ud };
    h->pulse = ml_memory_grow(NULL, n * sizeof *h->pulse, "heartbeats");
    h->state = ml_memory_grow(NULL, n * sizeof *h->state, "heartbeats");
    ml_comm_aside(ranks);
    ranks->group = "heartbeats";
    ranks->spans = NULL;
    ranks->deadline_s = o->deadline_s + o->first_s;
    pthread_mutex_init(&h->lock, NULL);
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&h->wake, &clock);
    pthread_condattr_destroy(&clock);
    return h;
}

ml_status ml_heartbeat_open(ml_heartbeat **out, ml_comm *world, const ml_heartbeat_opts *o,
                            ml_err *err) {
    ml_comm *ranks = NULL;
    ml_heartbeat *h;
    ml_status st;

    *out = NULL;
    if (!world || world->size == 1 || o->deadline_s <= 0)
        return ML_OK;
    world->deadline_s = o->deadline_s + o->first_s;
    st = world->split(world, &ranks, 0, world->rank, err);
    world->deadline_s = 0;
    if (st != ML_OK)
        return st;
    h = new_heartbeat(ranks, o);
    if (pthread_create(&h->thread, NULL, beat, h) == 0) {
        *out = h;
        return ML_OK;
    }
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
