#include "comm/watch.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/oom.h"

struct ml_watch {
    pthread_mutex_t lock; /* of everything here */
    const ml_wait *wait;  /* NULL: this rank is in no collective */
    double left_s;        /* when it left the last one */
    const char *stage;
    ml_rank_state *known; /* [n] */
    double known_s;       /* when; 0: never */
    int32_t n;
};

ml_watch *ml_watch_new(int32_t n_rank) {
    ml_watch *w = ml_memory_grow(NULL, sizeof *w, "the states of ranks");

    *w = (ml_watch){ .n = n_rank, .left_s = ml_clock_s() };
    w->known =
        ml_memory_grow(NULL, (size_t)n_rank * sizeof *w->known, "the states of ranks");
    pthread_mutex_init(&w->lock, NULL);
    return w;
}

void ml_watch_free(ml_watch *w) {
    pthread_mutex_destroy(&w->lock);
    free(w->known);
    free(w);
}

/* A second thread may wait meanwhile; the first wait stands for the rank. */
void ml_watch_enter(ml_watch *w, const ml_wait *wait) {
    pthread_mutex_lock(&w->lock);
    if (!w->wait)
        w->wait = wait;
    pthread_mutex_unlock(&w->lock);
}

void ml_watch_leave(ml_watch *w, const ml_wait *wait) {
    pthread_mutex_lock(&w->lock);
    if (w->wait == wait) {
        w->wait = NULL;
        w->left_s = ml_clock_s();
    }
    pthread_mutex_unlock(&w->lock);
}

void ml_watch_stage(ml_watch *w, const char *stage) {
    pthread_mutex_lock(&w->lock);
    w->stage = stage;
    pthread_mutex_unlock(&w->lock);
}

void ml_wait_put(ml_text *out, const ml_comm *c, const char *op) {
    ml_text_printf(out, "%s over %s", op, c->group);
    if (!c->what)
        return;
    ml_text_printf(out, " (%s", c->what);
    if (c->layer >= 0)
        ml_text_printf(out, ", layer %d", (int)c->layer);
    ml_text_printf(out, ")");
}

static void read_wait(ml_rank_state *out, const ml_wait *w) {
    ml_text call = { 0 };

    ml_wait_put(&call, w->comm, w->op);
    snprintf(out->call, sizeof out->call, "%s", call.ptr);
    ml_text_release(&call);
    for (int32_t i = 0; i < w->n_parcel && !out->waits; i++)
        if (!w->parcel[i].done) {
            out->waits = true;
            out->awaits = w->parcel[i].peer;
        }
}

void ml_watch_read(ml_watch *w, ml_rank_state *mine) {
    memset(mine, 0, sizeof *mine); /* its padding is sent, too */
    pthread_mutex_lock(&w->lock);
    if (w->wait)
        read_wait(mine, w->wait);
    if (mine->waits)
        mine->for_s = ml_clock_s() - w->wait->since_s;
    else if (!w->wait)
        mine->for_s = ml_clock_s() - w->left_s;
    snprintf(mine->stage, sizeof mine->stage, "%s", w->stage ? w->stage : "");
    pthread_mutex_unlock(&w->lock);
}

void ml_watch_learn(ml_watch *w, const ml_rank_state *all) {
    pthread_mutex_lock(&w->lock);
    memcpy(w->known, all, (size_t)w->n * sizeof *all);
    w->known_s = ml_clock_s();
    pthread_mutex_unlock(&w->lock);
}

int32_t ml_watch_explain(ml_watch *w, ml_text *out, int32_t rank) {
    int32_t end = rank;

    pthread_mutex_lock(&w->lock);
    if (w->known_s > 0) {
        ml_text_printf(out, "; at the last heartbeat, %.0f s ago, ",
                       ml_clock_s() - w->known_s);
        ml_rank_states_put(out, w->known, w->n, rank);
        end = ml_rank_states_end(w->known, w->n, rank);
    }
    pthread_mutex_unlock(&w->lock);
    return end < 0 ? rank : end;
}

int32_t ml_rank_states_end(const ml_rank_state *all, int32_t n, int32_t rank) {
    for (int32_t i = 0; i < n; i++, rank = all[rank].awaits)
        if (!all[rank].waits)
            return rank;
    return -1;
}

enum { MOST_LINKS = 8 }; /* of a chain, in a message */

void ml_rank_states_put(ml_text *out, const ml_rank_state *all, int32_t n, int32_t rank) {
    int32_t end = ml_rank_states_end(all, n, rank);

    for (int i = 0; i < MOST_LINKS && i < n && all[rank].waits; i++) {
        const ml_rank_state *s = &all[rank];
        ml_text_printf(out, "rank %d waited for rank %d in %s for %.1f s, ", (int)rank,
                       (int)s->awaits, s->call, s->for_s);
        rank = s->awaits;
    }
    if (end < 0) {
        ml_text_printf(out, "so that ranks waited for each other");
        return;
    }
    ml_text_printf(out, "rank %d was in no collective for %.1f s", (int)end,
                   all[end].for_s);
    if (all[end].stage[0])
        ml_text_printf(out, " (%s)", all[end].stage);
}
