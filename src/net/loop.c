#include "net/loop_base.h"

#include <errno.h>
#include <event2/event.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "base/bug.h"
#include "base/log.h"

#define SMALL ((size_t)64 << 10)
#define SHORTAGE_MS 10000 /* the process ends if memory is unavailable for longer */

/* Work posted by another thread. */
typedef struct posted {
    struct posted *next;
    ml_loop_fn *fn;
    void *ud;
} posted;

typedef struct on_signal {
    struct on_signal *next;
    struct event *event;
    ml_loop_fn *fn;
    void *ud;
} on_signal;

struct ml_loop {
    struct event_base *base;
    int wake_fd; /* an eventfd: readable when work is posted */
    struct event *wake;
    on_signal *signals;
    pthread_mutex_t lock; /* of the two fields below */
    posted *first, **last;
};

struct ml_timer {
    struct event *event;
    ml_loop_fn *fn;
    void *ud;
};

void *ml_net_must(void *p) {
    if (!p) {
        fprintf(stderr, "miles: out of memory for connections\n");
        exit(1);
    }
    return p;
}

/* noinline: newer compilers take a second realloc of a pointer for a use after free. */
__attribute__((noinline)) static void *try_realloc(void *p, size_t n) {
    return realloc(p, n);
}

/* libevent does not survive every failure of a small allocation, and posted work must not
 * be lost: small allocations wait for memory.  Large ones, for replies, may fail; their
 * callers check for that. */
static void *patient_realloc(void *p, size_t n) {
    void *q = try_realloc(p, n);

    for (int i = 0; !q && n && n <= SMALL && i < SHORTAGE_MS; i++) {
        usleep(1000);
        q = try_realloc(p, n);
    }
    return n && n <= SMALL ? ml_net_must(q) : q;
}

static void *patient_malloc(size_t n) {
    return patient_realloc(NULL, n);
}

void *ml_net_take(size_t bytes) {
    return memset(ml_net_must(patient_malloc(bytes)), 0, bytes);
}

struct event_base *ml_loop_base(ml_loop *l) {
    return l->base;
}

struct timeval ml_loop_timeval(double seconds) {
    double us = seconds * 1e6;
    int64_t n = us < 1 ? 1 : us > 1e15 ? (int64_t)1e15 : (int64_t)us;
    return (struct timeval){ .tv_sec = (time_t)(n / 1000000),
                             .tv_usec = (suseconds_t)(n % 1000000) };
}

/* --- posting ---------------------------------------------------------------- */

static posted *take_posted(ml_loop *l) {
    posted *all;

    pthread_mutex_lock(&l->lock);
    all = l->first;
    l->first = NULL;
    l->last = &l->first;
    pthread_mutex_unlock(&l->lock);
    return all;
}

static void run_posted(evutil_socket_t fd, short what, void *ud) {
    ml_loop *l = ud;
    uint64_t count;

    (void)what;
    if (read((int)fd, &count, sizeof count) < 0)
        ML_BUG_IF(errno != EAGAIN && errno != EINTR);
    for (posted *p = take_posted(l), *next; p; p = next) {
        ml_loop_fn *fn = p->fn;
        void *arg = p->ud;
        next = p->next;
        free(p);
        fn(arg);
    }
}

void ml_loop_post(ml_loop *l, ml_loop_fn *fn, void *ud) {
    posted *p = patient_realloc(NULL, sizeof *p); /* post cannot fail */
    uint64_t one = 1;
    ssize_t n;

    *p = (posted){ NULL, fn, ud };
    pthread_mutex_lock(&l->lock);
    *l->last = p;
    l->last = &p->next;
    pthread_mutex_unlock(&l->lock);
    do
        n = write(l->wake_fd, &one, sizeof one);
    while (n < 0 && errno == EINTR);
    ML_BUG_IF(n != (ssize_t)sizeof one);
}

static void break_loop(void *ud) {
    event_base_loopbreak(((ml_loop *)ud)->base);
}

void ml_loop_stop(ml_loop *l) {
    ml_loop_post(l, break_loop, l);
}

/* --- create, run, free ------------------------------------------------------ */

static void pass_on_log(int severity, const char *message) {
    if (severity >= EVENT_LOG_WARN)
        ml_log(ML_LOG_DEBUG, "libevent: %s", message);
}

ml_status ml_loop_new(ml_loop **out, ml_err *err) {
    ml_loop *l = ml_net_take(sizeof *l);

    /* A write to a connection that the peer closed fails with EPIPE, not SIGPIPE. */
    signal(SIGPIPE, SIG_IGN);
    event_set_log_callback(pass_on_log);
    event_set_mem_functions(patient_malloc, patient_realloc, free);
    pthread_mutex_init(&l->lock, NULL);
    l->last = &l->first;
    l->base = event_base_new();
    l->wake_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (l->base && l->wake_fd >= 0)
        l->wake = event_new(l->base, l->wake_fd, EV_READ | EV_PERSIST, run_posted, l);
    if (!l->wake || event_add(l->wake, NULL) != 0) {
        ml_fail(err, ML_EIO, "cannot create an event loop: %s", strerror(errno));
        ml_loop_free(l);
        return ML_EIO;
    }
    *out = l;
    return ML_OK;
}

void ml_loop_free(ml_loop *l) {
    if (!l)
        return;
    for (posted *p = take_posted(l), *next; p; p = next) {
        next = p->next;
        free(p);
    }
    for (on_signal *s = l->signals, *next; s; s = next) {
        next = s->next;
        event_free(s->event);
        free(s);
    }
    if (l->wake)
        event_free(l->wake);
    if (l->wake_fd >= 0)
        close(l->wake_fd);
    if (l->base)
        event_base_free(l->base);
    pthread_mutex_destroy(&l->lock);
    free(l);
}

void ml_loop_run(ml_loop *l) {
    event_base_loop(l->base, EVLOOP_NO_EXIT_ON_EMPTY);
}

/* --- timers and signals ----------------------------------------------------- */

static void timer_fired(evutil_socket_t fd, short what, void *ud) {
    ml_timer *t = ud;

    (void)fd;
    (void)what;
    t->fn(t->ud); /* may free the timer */
}

ml_timer *ml_timer_start(ml_loop *l, double seconds, bool repeat, ml_loop_fn *fn,
                         void *ud) {
    ml_timer *t = ml_net_take(sizeof *t);
    struct timeval tv = ml_loop_timeval(seconds);

    t->fn = fn;
    t->ud = ud;
    t->event = ml_net_must(event_new(l->base, -1, repeat ? EV_PERSIST : 0, timer_fired, t));
    ML_BUG_IF(event_add(t->event, &tv) != 0);
    return t;
}

void ml_timer_stop(ml_timer *t) {
    if (!t)
        return;
    event_free(t->event);
    free(t);
}

static void signal_came(evutil_socket_t fd, short what, void *ud) {
    on_signal *s = ud;

    (void)fd;
    (void)what;
    s->fn(s->ud);
}

ml_status ml_loop_on_signal(ml_loop *l, int signal, ml_loop_fn *fn, void *ud, ml_err *err) {
    on_signal *s = ml_net_take(sizeof *s);

    *s = (on_signal){ l->signals, NULL, fn, ud };
    s->event = evsignal_new(l->base, signal, signal_came, s);
    if (!s->event || event_add(s->event, NULL) != 0) {
        if (s->event)
            event_free(s->event);
        free(s);
        return ml_fail(err, ML_EIO, "cannot handle signal %d: %s", signal, strerror(errno));
    }
    l->signals = s;
    return ML_OK;
}
