#include "base/worker_pool.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/oom.h"
#include "base/proc_tree.h"
#include "base/worker_pool_priv.h"

#define START_S 180.0 /* a worker may load large libraries */
#define LINGER_S 0.2  /* time for a process to exit after it closed its socket */
#define GRACE_S 2.0   /* silence of a worker, beyond the limit of the call that it runs */
#define LOOK_S 0.25   /* interval of checks */
#define REPEATS 3     /* of a call whose worker died for an unknown reason */

struct ml_worker_pool {
    ml_arena arena; /* contains this struct; also under the lock */
    ml_worker_pool_opts opts;
    ml_pool_worker *worker; /* [opts.n] */
    struct pollfd *fd;      /* [1 + 3 * opts.n] */
    pthread_t thread;
    int wake;             /* eventfd */
    pthread_mutex_t lock; /* protects the following fields */
    pthread_cond_t change;
    ml_call_list queue;
    ml_worker_call **slot; /* [n_slot] */
    int64_t n_slot, cap_slot;
    ml_worker_call *unused;
    int64_t n_ready; /* workers that have been ready */
    ml_text why;     /* why a worker is not */
    bool failed, closing;
    char about[80]; /* of the first worker that was ready */
};

/* --- lists ----------------------------------------------------------------------------- */

static void push(ml_call_list *l, ml_worker_call *c, bool front) {
    c->prev = front ? NULL : l->last;
    c->next = front ? l->first : NULL;
    *(c->prev ? &c->prev->next : &l->first) = c;
    *(c->next ? &c->next->prev : &l->last) = c;
    l->n++;
}

static void drop(ml_call_list *l, ml_worker_call *c) {
    *(c->prev ? &c->prev->next : &l->first) = c->next;
    *(c->next ? &c->next->prev : &l->last) = c->prev;
    c->prev = c->next = NULL;
    l->n--;
}

/* --- the end of calls ------------------------------------------------------------------ */

static void finish(ml_worker_pool *p, ml_worker_call *c, ml_worker_end end, ml_str text) {
    c->done(c->ud, end, text);
    pthread_mutex_lock(&p->lock);
    c->id += (uint64_t)1 << 32; /* a late answer has another number */
    c->message.len = 0;
    c->next = p->unused;
    p->unused = c;
    pthread_mutex_unlock(&p->lock);
}

/* NULL: the number is not that of a call of this worker. */
static ml_worker_call *call_of(ml_worker_pool *p, ml_pool_worker *w, uint64_t id) {
    int64_t at = (int64_t)(id & UINT32_MAX);
    ml_worker_call *c;

    pthread_mutex_lock(&p->lock);
    c = at < p->n_slot ? p->slot[at] : NULL;
    pthread_mutex_unlock(&p->lock);
    return c && c->id == id && c->worker == w ? c : NULL;
}

/* Stops a worker.  The call that it ran ends with `end`; the others are repeated. */
static void stop(ml_worker_pool *p, ml_pool_worker *w, double linger_s, ml_worker_end end,
                 ml_text *why) {
    uint64_t running = w->shared ? w->shared[0] : 0;
    bool known = call_of(p, w, running) != NULL; /* otherwise each call may be the cause */

    ml_worker_stop(&p->opts, w, linger_s, why);
    for (ml_worker_call *c = w->flight.last, *prev; c; c = prev) {
        prev = c->prev;
        drop(&w->flight, c);
        c->worker = NULL;
        if (c->id == running || (!known && ++c->n_repeat > REPEATS)) {
            finish(p, c, c->id == running ? end : ML_WORKER_DIED,
                   (ml_str){ why->ptr, why->len });
        } else {
            pthread_mutex_lock(&p->lock);
            push(&p->queue, c, true);
            pthread_mutex_unlock(&p->lock);
        }
    }
}

/* A worker that does not start: nobody can be called. */
static void give_up(ml_worker_pool *p, const ml_text *why) {
    ml_call_list all;

    pthread_mutex_lock(&p->lock);
    if (!p->failed)
        ml_text_printf(&p->why, "%s", why->ptr);
    p->failed = true;
    all = p->queue;
    p->queue = (ml_call_list){ 0 };
    pthread_cond_broadcast(&p->change);
    pthread_mutex_unlock(&p->lock);
    for (ml_worker_call *c = all.first, *next; c; c = next) {
        next = c->next;
        finish(p, c, ML_WORKER_DIED, (ml_str){ why->ptr, why->len });
    }
}

static void fail(ml_worker_pool *p, ml_pool_worker *w, double linger_s, ml_worker_end end,
                 ml_text *why) {
    bool starting = w->state == ML_WORKER_STARTING;

    stop(p, w, linger_s, end, why);
    if (starting)
        give_up(p, why);
    ml_text_release(why);
}

/* --- messages -------------------------------------------------------------------------- */

static void take_hello(ml_worker_pool *p, ml_pool_worker *w, ml_str text) {
    const char word[] = "ready ";
    size_t n = sizeof word - 1;
    char about[sizeof p->about], *end;

    if (text.len <= n || memcmp(text.ptr, word, n) != 0) {
        ml_text why = { 0 };
        ml_text_add(&why, text.ptr, text.len);
        fail(p, w, 0, ML_WORKER_DIED, &why);
        return;
    }
    ml_str_copy(about, sizeof about, (ml_str){ text.ptr + n, text.len - n });
    w->window = strtoll(about, &end, 10);
    w->window = w->window < 1 ? 1 : w->window;
    w->state = ML_WORKER_READY;
    pthread_mutex_lock(&p->lock);
    if (p->n_ready++ == 0)
        memcpy(p->about, *end == ' ' ? end + 1 : end, strlen(end) + (*end != ' '));
    pthread_cond_broadcast(&p->change);
    pthread_mutex_unlock(&p->lock);
}

static void take_message(ml_worker_pool *p, ml_pool_worker *w, const ml_worker_head *h,
                         ml_str text) {
    ml_worker_call *c;

    if (w->state == ML_WORKER_STARTING) {
        take_hello(p, w, text);
        return;
    }
    c = h->kind == ML_WORKER_ALIVE ? NULL : call_of(p, w, h->id);
    if (!c)
        return;
    drop(&w->flight, c);
    c->worker = NULL;
    finish(p, c, h->kind == ML_WORKER_OVERDUE ? ML_WORKER_LATE : ML_WORKER_ANSWERED, text);
}

static void read_calls(ml_worker_pool *p, ml_pool_worker *w) {
    bool open = ml_worker_receive(w->calls, &w->in);
    ml_text why = { 0 };
    size_t at = 0;
    ml_str text;
    ml_worker_head h;

    w->heard = ml_clock_s();
    while (w->state != ML_WORKER_DOWN && ml_worker_next_message(&w->in, &at, &h, &text))
        take_message(p, w, &h, text);
    if (w->state == ML_WORKER_DOWN)
        return;
    if (!ml_worker_keep_rest(&w->in, at)) {
        ml_text_printf(&why, "worker '%.80s' sent an invalid message", p->opts.name);
        open = false;
    }
    if (!open)
        fail(p, w, LINGER_S, ML_WORKER_DIED, &why);
}

/* Its calls end by themselves. */
static void close_requests(ml_pool_worker *w) {
    if (w->host >= 0)
        close(w->host);
    w->host = -1;
    w->request.len = 0;
}

static void read_requests(ml_worker_pool *p, ml_pool_worker *w) {
    ml_text answer = { 0 };
    size_t at = 0;
    ml_str text;
    ml_worker_head h;

    if (!ml_worker_receive(w->host, &w->request))
        close_requests(w);
    w->heard = ml_clock_s();
    while (ml_worker_next_message(&w->request, &at, &h, &text)) {
        answer.len = 0;
        ml_text_add(&answer, "", 0);
        if (p->opts.serve)
            p->opts.serve(p->opts.ud, text, &answer);
        ml_worker_add_message(&w->reply, ML_WORKER_CALL, h.id, 0,
                              (ml_str){ answer.ptr, answer.len });
    }
    if (!ml_worker_keep_rest(&w->request, at))
        close_requests(w);
    ml_text_release(&answer);
}

/* --- the pool's thread ----------------------------------------------------------------- */

/* The worker with the fewest calls that can take one more; NULL: none. */
static ml_pool_worker *idlest(ml_worker_pool *p) {
    ml_pool_worker *best = NULL;

    for (int64_t i = 0; i < p->opts.n; i++) {
        ml_pool_worker *w = &p->worker[i];
        if (w->state == ML_WORKER_READY && w->flight.n < w->window &&
            (!best || w->flight.n < best->flight.n))
            best = w;
    }
    return best;
}

static void dispatch(ml_worker_pool *p) {
    ml_pool_worker *w;

    pthread_mutex_lock(&p->lock);
    while (p->queue.first && (w = idlest(p))) {
        ml_worker_call *c = p->queue.first;
        drop(&p->queue, c);
        if (!w->flight.n)
            w->heard = ml_clock_s();
        c->worker = w;
        push(&w->flight, c, false);
        ml_text_add(&w->out, c->message.ptr, c->message.len);
    }
    pthread_mutex_unlock(&p->lock);
}

/* Starts workers that have died, if there are calls for them. */
static void restart(ml_worker_pool *p) {
    bool wanted;

    pthread_mutex_lock(&p->lock);
    wanted = p->queue.first && !p->closing;
    pthread_mutex_unlock(&p->lock);
    for (int64_t i = 0; i < p->opts.n && wanted; i++) {
        ml_text why = { 0 };
        if (p->worker[i].state == ML_WORKER_DOWN &&
            !ml_worker_start(&p->opts, &p->worker[i], &why)) {
            stop(p, &p->worker[i], 0, ML_WORKER_DIED, &why);
            give_up(p, &why);
        }
        ml_text_release(&why);
    }
}

/* Kills a worker that has been silent for longer than the call it runs may take. */
static bool check_silence(ml_worker_pool *p, ml_pool_worker *w, double now) {
    ml_worker_call *c = call_of(p, w, w->shared[0]);
    double limit =
        w->state == ML_WORKER_STARTING ? START_S : (c ? c->limit_s : 30.0) + GRACE_S;
    ml_text why = { 0 };

    if ((w->state == ML_WORKER_READY && !w->flight.n) || now - w->heard <= limit)
        return false;
    if (w->state == ML_WORKER_STARTING)
        ml_text_printf(&why, "worker '%.80s' was not ready within %g s", p->opts.name,
                       limit);
    else
        ml_text_printf(&why, "worker '%.80s' did not answer within %g s", p->opts.name,
                       c ? c->limit_s : limit);
    fail(p, w, 0, ML_WORKER_LATE, &why);
    return true;
}

static void check_memory(ml_worker_pool *p, ml_pool_worker *w) {
    pid_t tree[ML_PROC_TREE_MAX];
    ml_text why = { 0 };

    if (p->opts.memory_bytes <= 0 ||
        !ml_proc_over(tree, ml_proc_tree(tree, w->process.pid), p->opts.memory_bytes))
        return;
    ml_text_printf(&why,
                   "worker '%.80s' used more than %.4g MiB of memory (--%s) and was "
                   "killed: increase --%s",
                   p->opts.name, (double)p->opts.memory_bytes / (1 << 20),
                   p->opts.memory_flag, p->opts.memory_flag);
    fail(p, w, 0, ML_WORKER_DIED, &why);
}

static void check(ml_worker_pool *p, ml_pool_worker *w) {
    double now = ml_clock_s();

    if (w->state == ML_WORKER_DOWN || now - w->looked < LOOK_S)
        return;
    w->looked = now;
    if (!check_silence(p, w, now))
        check_memory(p, w);
}

static void serve_worker(ml_worker_pool *p, ml_pool_worker *w, const struct pollfd *fd) {
    if (fd[2].revents)
        ml_worker_read_log(&p->opts, w, false);
    if (fd[1].revents && w->host >= 0)
        read_requests(p, w);
    if (fd[0].revents & ~POLLOUT)
        read_calls(p, w);
    if (w->state == ML_WORKER_DOWN)
        return;
    ml_worker_send(w->calls, &w->out, &w->out_at);
    ml_worker_send(w->host, &w->reply, &w->reply_at);
    check(p, w);
}

/* Waits for something to do. */
static void wait_for_events(ml_worker_pool *p) {
    struct pollfd *fd = p->fd;
    uint64_t n;

    fd[0] = (struct pollfd){ .fd = p->wake, .events = POLLIN };
    for (int64_t i = 0; i < p->opts.n; i++) {
        ml_pool_worker *w = &p->worker[i];
        short calls = w->out.len > w->out_at ? POLLIN | POLLOUT : POLLIN;
        short host = w->reply.len > w->reply_at ? POLLIN | POLLOUT : POLLIN;
        fd[1 + 3 * i] = (struct pollfd){ .fd = w->calls, .events = calls };
        fd[2 + 3 * i] = (struct pollfd){ .fd = w->host, .events = host };
        fd[3 + 3 * i] = (struct pollfd){ .fd = w->log, .events = POLLIN };
    }
    if (poll(fd, (nfds_t)(1 + 3 * p->opts.n), (int)(LOOK_S * 1e3)) < 0)
        for (int64_t i = 0; i <= 3 * p->opts.n; i++)
            fd[i].revents = 0;
    while (fd[0].revents && read(p->wake, &n, sizeof n) < 0 && errno == EINTR)
        continue;
}

static void pump(ml_worker_pool *p) {
    bool closing = false;

    while (!closing) {
        restart(p);
        dispatch(p);
        for (int64_t i = 0; i < p->opts.n; i++)
            ml_worker_send(p->worker[i].calls, &p->worker[i].out, &p->worker[i].out_at);
        wait_for_events(p);
        for (int64_t i = 0; i < p->opts.n; i++)
            if (p->worker[i].state != ML_WORKER_DOWN)
                serve_worker(p, &p->worker[i], &p->fd[1 + 3 * i]);
        pthread_mutex_lock(&p->lock);
        closing = p->closing;
        pthread_mutex_unlock(&p->lock);
    }
}

static void wake(ml_worker_pool *p) {
    uint64_t one = 1;

    while (write(p->wake, &one, sizeof one) < 0 && errno == EINTR)
        continue;
}

/* All workers are started by the thread that lives as long as they. */
static void *run(void *pool) {
    ml_worker_pool *p = pool;
    ml_text why = { 0 };

    for (int64_t i = 0; i < p->opts.n; i++)
        if (!ml_worker_start(&p->opts, &p->worker[i], &why)) {
            give_up(p, &why);
            break;
        }
    pump(p);
    for (int64_t i = 0; i < p->opts.n; i++) {
        ml_pool_worker *w = &p->worker[i];
        why.len = 0;
        ml_text_printf(&why, "worker '%.80s' was closed", p->opts.name);
        stop(p, w, 0, ML_WORKER_DIED, &why);
    }
    give_up(p, &why); /* also the calls that were to be repeated */
    ml_text_release(&why);
    return NULL;
}

/* --- callers --------------------------------------------------------------------------- */

static void release(ml_worker_pool *p) {
    ml_arena arena = p->arena;

    for (int64_t i = 0; i < p->opts.n; i++)
        ml_worker_release(&p->opts, &p->worker[i]);
    for (int64_t i = 0; i < p->n_slot; i++)
        ml_text_release(&p->slot[i]->message);
    free(p->slot);
    ml_text_release(&p->why);
    if (p->wake >= 0)
        close(p->wake);
    pthread_cond_destroy(&p->change);
    pthread_mutex_destroy(&p->lock);
    ml_arena_release(&arena);
}

static ml_worker_pool *new_pool(const ml_worker_pool_opts *opts) {
    ml_arena arena;
    ml_worker_pool *p;

    ml_arena_init(&arena, "worker pool");
    p = ML_NEW(&arena, ml_worker_pool, 1);
    p->opts = *opts;
    p->opts.n = opts->n > 0 ? opts->n : 1;
    p->worker = ML_NEW(&arena, ml_pool_worker, p->opts.n);
    p->fd = ML_NEW(&arena, struct pollfd, 1 + 3 * p->opts.n);
    for (int64_t i = 0; i < p->opts.n; i++)
        p->worker[i].calls = p->worker[i].host = p->worker[i].log = p->worker[i].memory =
            -1;
    p->arena = arena;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->change, NULL);
    p->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    return p;
}

ml_status ml_worker_pool_open(ml_worker_pool **out, const ml_worker_pool_opts *opts,
                              ml_err *err) {
    ml_worker_pool *p = new_pool(opts);
    ml_status st = ML_OK;

    *out = NULL;
    if (p->wake < 0 || pthread_create(&p->thread, NULL, run, p) != 0) {
        release(p);
        return ml_fail(err, ML_ENOMEM, "cannot create a thread for worker processes");
    }
    pthread_mutex_lock(&p->lock);
    while (p->n_ready < p->opts.n && !p->failed)
        pthread_cond_wait(&p->change, &p->lock);
    if (p->failed)
        st = ml_fail(err, ML_EFORMAT, "%s", p->why.ptr);
    pthread_mutex_unlock(&p->lock);
    if (st != ML_OK)
        ml_worker_pool_close(p);
    else
        *out = p;
    return st;
}

const char *ml_worker_pool_about(const ml_worker_pool *p) {
    return p->about;
}

void ml_worker_pool_close(ml_worker_pool *p) {
    if (!p)
        return;
    pthread_mutex_lock(&p->lock);
    p->closing = true;
    pthread_mutex_unlock(&p->lock);
    wake(p);
    pthread_join(p->thread, NULL);
    release(p);
}

/* A call with a number of its own; the lock is held. */
static ml_worker_call *new_call(ml_worker_pool *p) {
    ml_worker_call *c = p->unused;

    if (c) {
        p->unused = c->next;
    } else {
        c = ML_NEW(&p->arena, ml_worker_call, 1);
        if (p->n_slot == p->cap_slot) {
            p->cap_slot = p->cap_slot ? 2 * p->cap_slot : 64;
            p->slot = ml_memory_grow(
                p->slot, (size_t)p->cap_slot * sizeof(ml_worker_call *), "calls");
        }
        c->id = (uint64_t)1 << 32 | (uint64_t)p->n_slot;
        p->slot[p->n_slot++] = c;
    }
    c->prev = c->next = NULL;
    c->n_repeat = 0;
    return c;
}

void ml_worker_pool_call(ml_worker_pool *p, ml_str request, double limit_s,
                         ml_worker_done *done, void *ud) {
    bool first;
    ml_worker_call *c;

    pthread_mutex_lock(&p->lock);
    c = new_call(p);
    c->limit_s = limit_s;
    c->done = done;
    c->ud = ud;
    ml_worker_add_message(&c->message, ML_WORKER_CALL, c->id, limit_s, request);
    first = !p->queue.first;
    push(&p->queue, c, false);
    pthread_mutex_unlock(&p->lock);
    if (first)
        wake(p);
}

typedef struct question {
    pthread_mutex_t lock;
    pthread_cond_t change;
    ml_text *answer;
    ml_worker_end end;
    bool answered;
} question;

static void take_answer(void *ud, ml_worker_end end, ml_str text) {
    question *q = ud;

    pthread_mutex_lock(&q->lock);
    q->answer->len = 0;
    ml_text_add(q->answer, text.ptr, text.len);
    q->end = end;
    q->answered = true;
    pthread_cond_broadcast(&q->change);
    pthread_mutex_unlock(&q->lock);
}

ml_worker_end ml_worker_pool_ask(ml_worker_pool *p, ml_text *answer, ml_str request,
                                 double limit_s) {
    question q = { .answer = answer };

    pthread_mutex_init(&q.lock, NULL);
    pthread_cond_init(&q.change, NULL);
    ml_worker_pool_call(p, request, limit_s, take_answer, &q);
    pthread_mutex_lock(&q.lock);
    while (!q.answered)
        pthread_cond_wait(&q.change, &q.lock);
    pthread_mutex_unlock(&q.lock);
    pthread_cond_destroy(&q.change);
    pthread_mutex_destroy(&q.lock);
    return q.end;
}

void *ml_worker_pool_shared(ml_worker_pool *p) {
    return (char *)p->worker[0].shared + ML_WORKER_SHARED;
}
