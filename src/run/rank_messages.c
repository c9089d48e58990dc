#include "run/rank_messages.h"

#include <pthread.h>
#include <string.h>

#include "base/arena.h"
#include "comm/share.h"

enum {
    MOST_KEPT = 64,    /* warnings of a rank until the ranks meet */
    MOST_PRINTED = 32, /* different ones that are printed at a meeting */
};

static struct {
    pthread_mutex_t lock;
    bool several, first, holds;
    ml_rank_print *print;
    ml_text kept; /* lines */
    int n_kept, n_more;
} the = { .lock = PTHREAD_MUTEX_INITIALIZER };

void ml_rank_messages_open(bool first, ml_rank_print *print) {
    the.several = the.holds = true;
    the.first = first;
    the.print = print;
}

bool ml_rank_messages_keep(const char *line) {
    bool keeps;

    pthread_mutex_lock(&the.lock);
    keeps = the.several && (!the.first || the.holds);
    if (keeps && the.n_kept++ < MOST_KEPT)
        ml_text_printf(&the.kept, "%s\n", line);
    else if (keeps)
        the.n_more++;
    pthread_mutex_unlock(&the.lock);
    return keeps;
}

void ml_rank_messages_hold(void) {
    pthread_mutex_lock(&the.lock);
    the.holds = the.several;
    pthread_mutex_unlock(&the.lock);
}

/* What this rank has kept, and no longer keeps. */
static ml_text take(void) {
    ml_text t;

    pthread_mutex_lock(&the.lock);
    if (the.n_more)
        ml_text_printf(&the.kept, "warning: %d more warnings are in logs/rank_N.log\n",
                       the.n_more);
    t = the.kept;
    the.kept = (ml_text){ 0 };
    the.n_kept = the.n_more = 0;
    the.holds = false;
    pthread_mutex_unlock(&the.lock);
    return t;
}

/* --- at rank 0 -------------------------------------------------------------------- */

typedef struct message {
    struct message *next;
    ml_str text;
    bool *from; /* [n_rank] */
} message;

typedef struct collection {
    ml_arena arena;
    message *first, **last;
    int32_t n_rank, n;
} collection;

static void add_line(collection *c, int32_t rank, ml_str line) {
    message *m = c->first;

    while (m && !ml_str_eq(m->text, line))
        m = m->next;
    if (!m) {
        m = ML_NEW(&c->arena, message, 1);
        *m = (message){ .text = { ml_arena_str(&c->arena, line.ptr, line.len), line.len },
                        .from = ML_NEW(&c->arena, bool, c->n_rank) };
        memset(m->from, 0, (size_t)c->n_rank);
        *c->last = m;
        c->last = &m->next;
        c->n++;
    }
    m->from[rank] = true;
}

static void add_lines(collection *c, int32_t rank, const ml_text *t) {
    const char *at = t->ptr, *end;

    for (; at && (end = memchr(at, '\n', t->len - (size_t)(at - t->ptr))); at = end + 1)
        add_line(c, rank, (ml_str){ at, (size_t)(end - at) });
}

/* Rank 0 alone prints without its number, as in a job of one rank. */
static void print_message(const message *m, int32_t n_rank) {
    ml_text t = { 0 };
    bool others = false;

    for (int32_t r = 1; r < n_rank; r++)
        others |= m->from[r];
    if (others) {
        ml_comm_put_ranks(&t, m->from, n_rank);
        ml_text_printf(&t, ": ");
    }
    ml_text_add(&t, m->text.ptr, m->text.len);
    the.print(t.ptr);
    ml_text_release(&t);
}

static void print_all(const collection *c) {
    ml_text t = { 0 };
    int32_t i = 0;

    for (const message *m = c->first; m && i < MOST_PRINTED; m = m->next, i++)
        print_message(m, c->n_rank);
    if (c->n > MOST_PRINTED) {
        ml_text_printf(&t, "warning: %d more different warnings of ranks are in logs/",
                       (int)c->n - MOST_PRINTED);
        the.print(t.ptr);
        ml_text_release(&t);
    }
}

static void collection_init(collection *c, int32_t n_rank) {
    *c = (collection){ .n_rank = n_rank };
    ml_arena_init(&c->arena, "warnings of ranks");
    c->last = &c->first;
}

void ml_rank_messages_flush(void) {
    collection c;
    ml_text own = take();

    collection_init(&c, 1);
    add_lines(&c, 0, &own);
    if (the.first)
        print_all(&c);
    ml_arena_release(&c.arena);
    ml_text_release(&own);
}

static ml_status collect(ml_comm *world, const ml_text *own, ml_err *err) {
    ml_text theirs = { 0 };
    ml_status st = ML_OK;
    collection c;

    collection_init(&c, world->size);
    add_lines(&c, 0, own);
    for (int32_t r = 1; r < world->size && st == ML_OK; r++) {
        st = ml_comm_recv_text(world, &theirs, r, err);
        if (st == ML_OK)
            add_lines(&c, r, &theirs);
    }
    print_all(&c);
    ml_arena_release(&c.arena);
    ml_text_release(&theirs);
    return st;
}

ml_status ml_rank_messages_meet(ml_comm *world, ml_err *err) {
    ml_text own;
    ml_status st;

    if (ml_comm_size(world) == 1)
        return ML_OK;
    own = take();
    ml_comm_doing(world, "collecting warnings", -1);
    st = world->rank ? ml_comm_send_text(world, &own, 0, err) : collect(world, &own, err);
    ml_comm_doing(world, NULL, -1);
    ml_text_release(&own);
    return st;
}
