#include "base/pool.h"

#include <errno.h>
#include <fenv.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/bug.h"

/* A worker's own share of the pieces of a run. */
typedef struct share {
    _Alignas(64) atomic_int_fast64_t next; /* the first piece not yet taken */
    int64_t end;
} share;

/* Cache lines that a thread has yet to prefetch. */
typedef struct lines {
    const char *at, *end;
} lines;

struct ml_pool {
    int n_thread; /* including the caller */
    bool spin;
    pthread_t *thread;

    /* One run: the caller writes it before it increments `round`, workers read it after. */
    ml_task *fn;
    void *ud;
    int64_t n, grain;
    const ml_pool_ahead *ahead; /* NULL: that of the run before */

    _Alignas(64) atomic_uint_fast64_t round; /* a new value starts a run (or ends the
                                                pool) */
    _Alignas(64) atomic_int busy;            /* workers still in the run */
    atomic_bool quit;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    int asleep;  /* guarded by lock */
    lines lines; /* of the caller */

    share share[ML_POOL_MAX];
};

typedef struct worker {
    ml_pool *pool;
    int index;
} worker;

/* A waiting thread spins for some 4 us (SPIN pauses), calls sched_yield YIELDS times (some 0.2 ms on an
 * idle machine), then sleeps.  Longer spins hold the cores that another program needs: with 0.2 ms, a test
 * took 15 times as long beside a second one.  The pause on arm64 is `isb`; `yield` takes no time there. */
enum { YIELDS = 500, LINE = 64, AHEAD_BYTES = 128 << 10 };
#if defined(__aarch64__)
enum { SPIN = 300 };

static void pause_cpu(void) {
    __asm__ volatile("isb");
}
#else
enum { SPIN = 100 };

static void pause_cpu(void) {
#if defined(__x86_64__)
    __builtin_ia32_pause();
#endif
}
#endif

/* Denormals are part of the numeric contract: 2^-149 times one must be preserved. */
static int rounding_is_ieee(void) {
    volatile float tiny = 0x1p-149f, one = 1.0f;
    return fegetround() == FE_TONEAREST && tiny * one > 0.0f;
}

static void cut_shares(ml_pool *p) {
    int64_t pieces = (p->n + p->grain - 1) / p->grain;

    for (int i = 0; i < p->n_thread; i++) {
        atomic_store_explicit(&p->share[i].next, pieces * i / p->n_thread,
                              memory_order_relaxed);
        p->share[i].end = pieces * (i + 1) / p->n_thread;
    }
}

static void take_share(ml_pool *p, share *s, int index) {
    for (;;) {
        int64_t i = atomic_fetch_add_explicit(&s->next, 1, memory_order_relaxed);
        int64_t begin = i * p->grain, end = begin + p->grain;
        if (i >= s->end)
            return;
        p->fn(p->ud, begin, end < p->n ? end : p->n, index);
    }
}

/* Takes the pieces of its own share, then those left of others (work stealing). */
static void take_pieces(ml_pool *p, int index) {
    for (int i = 0; i < p->n_thread; i++)
        take_share(p, &p->share[(index + i) % p->n_thread], index);
}

/* What a thread prefetches after its pieces of a run. */
static void set_lines(const ml_pool *p, int index, lines *l) {
    const ml_pool_ahead *a = p->ahead;
    size_t begin, bytes;

    if (!a || !p->spin)
        return;
    begin = (size_t)(a->n * index / p->n_thread) * a->bytes;
    bytes = (size_t)(a->n * (index + 1) / p->n_thread) * a->bytes - begin;
    l->at = (const char *)a->at + begin;
    l->end = l->at + (bytes < AHEAD_BYTES ? bytes : AHEAD_BYTES);
}

/* A thread that waits prefetches a line; with none left, it pauses for the i-th time and returns 1. */
static int rest(lines *l, int i) {
    if (l->at < l->end) {
        __builtin_prefetch(l->at, 0, 2);
        l->at += LINE;
        return 0;
    }
    if (i < SPIN)
        pause_cpu();
    else
        sched_yield();
    return 1;
}

static uint64_t wait_for_round(ml_pool *p, uint64_t seen, lines *l) {
    uint64_t now;
    for (int i = 0; p->spin && i < SPIN + YIELDS; i += rest(l, i)) {
        now = atomic_load_explicit(&p->round, memory_order_acquire);
        if (now != seen)
            return now;
    }
    pthread_mutex_lock(&p->lock);
    p->asleep++;
    while ((now = atomic_load_explicit(&p->round, memory_order_acquire)) == seen)
        pthread_cond_wait(&p->wake, &p->lock);
    p->asleep--;
    pthread_mutex_unlock(&p->lock);
    return now;
}

static void *worker_main(void *arg) {
    worker w = *(worker *)arg;
    ml_pool *p = w.pool;
    uint64_t seen = 0;
    lines l = { 0 };

    free(arg);
    fesetenv(FE_DFL_ENV);
    ML_BUG_IF(!rounding_is_ieee());
    for (;;) {
        seen = wait_for_round(p, seen, &l);
        if (atomic_load_explicit(&p->quit, memory_order_relaxed))
            return NULL;
        take_pieces(p, w.index);
        set_lines(p, w.index, &l);
        atomic_fetch_sub_explicit(&p->busy, 1, memory_order_release);
    }
}

static void raise_round(ml_pool *p) {
    pthread_mutex_lock(&p->lock);
    atomic_fetch_add_explicit(&p->round, 1, memory_order_release);
    if (p->asleep)
        pthread_cond_broadcast(&p->wake);
    pthread_mutex_unlock(&p->lock);
}

ml_status ml_pool_new(ml_pool **out, int n_thread, ml_err *err) {
    ml_pool *p;
    long cores = sysconf(_SC_NPROCESSORS_ONLN);

    if (n_thread < 1 || n_thread > ML_POOL_MAX)
        return ml_fail(err, ML_EUSAGE, "%d threads requested; expected 1 to %d", n_thread,
                       ML_POOL_MAX);
    p = aligned_alloc(64, (sizeof *p + 63) & ~(size_t)63);
    if (!p)
        return ml_fail(err, ML_ENOMEM, "out of memory for a pool of %d threads", n_thread);
    memset(p, 0, sizeof *p);
    p->n_thread = 1;
    /* With more threads than cores, a spinning worker only delays the one it waits for. */
    p->spin = n_thread <= cores;
    pthread_mutex_init(&p->lock, NULL);
    pthread_cond_init(&p->wake, NULL);
    p->thread = calloc((size_t)n_thread, sizeof *p->thread);
    for (int i = 1; i < n_thread; i++) {
        worker *w = malloc(sizeof *w);
        int rc = ENOMEM;
        if (w && p->thread) {
            *w = (worker){ p, i };
            rc = pthread_create(&p->thread[i], NULL, worker_main, w);
        }
        if (rc) {
            free(w);
            ml_pool_free(p);
            return ml_fail(err, ML_ENOMEM, "cannot create thread %d of %d: %s", i + 1,
                           n_thread, strerror(rc));
        }
        p->n_thread++;
    }
    *out = p;
    return ML_OK;
}

void ml_pool_free(ml_pool *p) {
    if (!p)
        return;
    atomic_store(&p->quit, 1);
    raise_round(p);
    for (int i = 1; i < p->n_thread; i++)
        pthread_join(p->thread[i], NULL);
    pthread_cond_destroy(&p->wake);
    pthread_mutex_destroy(&p->lock);
    free(p->thread);
    free(p);
}

int ml_pool_size(const ml_pool *p) {
    return p ? p->n_thread : 1;
}

void ml_pool_run_ahead(ml_pool *p, int64_t n, int64_t grain, ml_task *fn, void *ud,
                       const ml_pool_ahead *ahead) {
    ML_BUG_IF(grain < 1);
    if (n <= 0)
        return;
    ML_BUG_IF(!rounding_is_ieee());
    if (ml_pool_size(p) == 1 || n <= grain) {
        fn(ud, 0, n, 0);
        return;
    }
    p->fn = fn;
    p->ud = ud;
    p->n = n;
    p->grain = grain;
    p->ahead = ahead;
    cut_shares(p);
    atomic_store_explicit(&p->busy, p->n_thread - 1, memory_order_relaxed);
    raise_round(p);
    take_pieces(p, 0);
    set_lines(p, 0, &p->lines);
    for (int i = p->spin ? 0 : SPIN;
         atomic_load_explicit(&p->busy, memory_order_acquire) > 0;) {
        const int paused = rest(&p->lines, i);
        i += i < SPIN ? paused : 0;
    }
}

void ml_pool_run(ml_pool *p, int64_t n, int64_t grain, ml_task *fn, void *ud) {
    ml_pool_run_ahead(p, n, grain, fn, ud, NULL);
}
