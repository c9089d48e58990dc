#include "serve/access_log.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/bug.h"
#include "base/log.h"

struct ml_access_log {
    char *path;
    size_t max_bytes;
    pthread_t thread;
    pthread_mutex_t lock; /* of the fields below */
    pthread_cond_t work;
    ml_text waiting;
    bool started, reopen, closing;
    int64_t n_dropped;
    /* the writer's */
    int fd; /* -1: it could not be opened again */
    size_t size;
    bool failed; /* the last write; said once */
};

static int open_file(const char *path) {
    return open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static void measure(ml_access_log *g) {
    struct stat sb;

    g->size = g->fd >= 0 && fstat(g->fd, &sb) == 0 ? (size_t)sb.st_size : 0;
}

static void complain(ml_access_log *g, const char *what) {
    if (!g->failed)
        ml_log(ML_LOG_WARN, "--access-log %s: cannot %s: %s; lines are lost", g->path, what,
               strerror(errno));
    g->failed = true;
}

static void open_again(ml_access_log *g) {
    if (g->fd >= 0)
        close(g->fd);
    g->fd = open_file(g->path);
    if (g->fd < 0)
        complain(g, "open it");
    measure(g);
}

static void rotate(ml_access_log *g) {
    ml_text old = { 0 };

    ml_text_printf(&old, "%s.1", g->path);
    if (rename(g->path, old.ptr) != 0)
        complain(g, "rename it");
    ml_text_release(&old);
    open_again(g);
}

static bool write_all(ml_access_log *g, const char *p, size_t n) {
    while (n) {
        ssize_t k = write(g->fd, p, n);
        if (k < 0 && errno != EINTR)
            return false;
        p += k > 0 ? k : 0;
        n -= k > 0 ? (size_t)k : 0;
        g->size += k > 0 ? (size_t)k : 0;
    }
    return true;
}

/* Whole lines, up to the size at which the file is full. */
static size_t next_part(const ml_access_log *g, ml_str rest) {
    size_t n = 0;

    while (n < rest.len && (!g->max_bytes || g->size + n < g->max_bytes))
        n = (size_t)((const char *)memchr(rest.ptr + n, '\n', rest.len - n) - rest.ptr) + 1;
    return n;
}

static int64_t lines_in(ml_str s) {
    int64_t n = 0;

    for (size_t i = 0; i < s.len; i++)
        n += s.ptr[i] == '\n';
    return n;
}

/* Returns the number of lines that were lost. */
static int64_t write_lines(ml_access_log *g, ml_str rest) {
    while (rest.len) {
        size_t n;
        if (g->max_bytes && g->size >= g->max_bytes)
            rotate(g);
        if (g->fd < 0)
            open_again(g);
        if (g->fd < 0)
            return lines_in(rest);
        n = next_part(g, rest);
        n = n ? n : rest.len; /* it could not be renamed */
        if (!write_all(g, rest.ptr, n)) {
            complain(g, "write to it");
            return lines_in(rest);
        }
        g->failed = false;
        rest = (ml_str){ rest.ptr + n, rest.len - n };
    }
    return 0;
}

static void *write_waiting(void *ud) {
    ml_access_log *g = ud;
    ml_text mine = { 0 };
    bool reopen, closing = false;

    while (!closing) {
        int64_t lost;
        ml_text swap = mine;
        pthread_mutex_lock(&g->lock);
        while (!g->waiting.len && !g->reopen && !g->closing)
            pthread_cond_wait(&g->work, &g->lock);
        mine = g->waiting;
        swap.len = 0;
        g->waiting = swap;
        reopen = g->reopen;
        closing = g->closing;
        g->reopen = false;
        pthread_mutex_unlock(&g->lock);
        if (reopen)
            open_again(g);
        lost = write_lines(g, (ml_str){ mine.ptr ? mine.ptr : "", mine.len });
        pthread_mutex_lock(&g->lock);
        g->n_dropped += lost;
        pthread_mutex_unlock(&g->lock);
    }
    ml_text_release(&mine);
    return NULL;
}

ml_status ml_access_log_open(ml_access_log **out, const char *path, size_t max_bytes,
                             ml_err *err) {
    ml_access_log *g = calloc(1, sizeof *g);

    if (!g || !(g->path = strdup(path))) {
        free(g);
        return ml_fail(err, ML_ENOMEM, "out of memory for --access-log");
    }
    g->max_bytes = max_bytes;
    g->fd = open_file(path);
    if (g->fd < 0) {
        ml_fail(err, ML_EIO, "--access-log %s: %s", path, strerror(errno));
        free(g->path);
        free(g);
        return ML_EIO;
    }
    measure(g);
    ML_BUG_IF(pthread_mutex_init(&g->lock, NULL) || pthread_cond_init(&g->work, NULL));
    *out = g;
    return ML_OK;
}

/* The thread starts with the first line: ranks and forks come before it. */
static void wake_writer(ml_access_log *g) {
    if (!g->started)
        g->started = pthread_create(&g->thread, NULL, write_waiting, g) == 0;
    pthread_cond_signal(&g->work);
}

void ml_access_log_put(ml_access_log *g, ml_str line) {
    pthread_mutex_lock(&g->lock);
    if (g->waiting.len + line.len < ML_ACCESS_LOG_BYTES) {
        ml_text_add(&g->waiting, line.ptr, line.len);
        ml_text_add(&g->waiting, "\n", 1);
        wake_writer(g);
    } else {
        g->n_dropped++;
    }
    pthread_mutex_unlock(&g->lock);
}

void ml_access_log_reopen(ml_access_log *g) {
    pthread_mutex_lock(&g->lock);
    g->reopen = true;
    wake_writer(g);
    pthread_mutex_unlock(&g->lock);
}

int64_t ml_access_log_dropped(ml_access_log *g) {
    int64_t n;

    pthread_mutex_lock(&g->lock);
    n = g->n_dropped;
    pthread_mutex_unlock(&g->lock);
    return n;
}

void ml_access_log_close(ml_access_log *g) {
    bool started;

    if (!g)
        return;
    pthread_mutex_lock(&g->lock);
    g->closing = true;
    started = g->started;
    pthread_cond_signal(&g->work);
    pthread_mutex_unlock(&g->lock);
    if (started)
        pthread_join(g->thread, NULL);
    if (g->fd >= 0)
        close(g->fd);
    pthread_mutex_destroy(&g->lock);
    pthread_cond_destroy(&g->work);
    ml_text_release(&g->waiting);
    free(g->path);
    free(g);
}
