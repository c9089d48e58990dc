/* The processes of a pool of workers. */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/worker_pool_priv.h"

#define MESSAGE_MAX ((size_t)256 << 20)
#define LINE_MAX_BYTES 2000 /* of a line that is logged */
#define N_FDS 6

void ml_worker_add_message(ml_text *t, ml_worker_message kind, uint64_t id, double limit_s,
                           ml_str text) {
    ml_worker_head h = { (uint32_t)text.len, kind, id, limit_s };

    ml_text_add(t, (const char *)&h, sizeof h);
    ml_text_add(t, text.ptr, text.len);
}

static void close_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static bool pair(int *ours, int *theirs) {
    int fd[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) != 0)
        return false;
    *ours = fd[0];
    *theirs = fd[1];
    return fcntl(*ours, F_SETFL, O_NONBLOCK) == 0;
}

static bool share_memory(const ml_worker_pool_opts *o, ml_pool_worker *w) {
    size_t n = ML_WORKER_SHARED + o->shared_bytes;
    void *at;

    if (w->shared)
        return true;
    w->memory = memfd_create("miles worker", MFD_CLOEXEC);
    if (w->memory < 0 || ftruncate(w->memory, (off_t)n) != 0)
        return false;
    at = mmap(NULL, n, PROT_READ | PROT_WRITE, MAP_SHARED, w->memory, 0);
    w->shared = at == MAP_FAILED ? NULL : at;
    return w->shared != NULL;
}

bool ml_worker_start(const ml_worker_pool_opts *o, ml_pool_worker *w, ml_text *why) {
    int fd[N_FDS] = { -1, -1, -1, -1, -1, -1 };
    bool ok = share_memory(o, w) && pair(&w->calls, &fd[3]) && pair(&w->host, &fd[4]) &&
              pair(&w->log, &fd[1]) &&
              (fd[0] = open("/dev/null", O_RDONLY | O_CLOEXEC)) >= 0;

    if (!ok)
        ml_text_printf(why, "cannot create the descriptors of a worker process: %s",
                       strerror(errno));
    fd[2] = fd[1];
    fd[5] = w->memory;
    ok = ok && ml_guarded_process_start(&w->process, o->line, fd, N_FDS, why);
    close_fd(&fd[0]);
    close_fd(&fd[1]);
    close_fd(&fd[3]);
    close_fd(&fd[4]);
    if (!ok)
        return false;
    w->state = ML_WORKER_STARTING;
    w->started = w->heard = w->looked = ml_clock_s();
    w->shared[0] = 0;
    ml_worker_add_message(&w->out, ML_WORKER_HELLO, 0, 0, o->hello);
    return true;
}

static void describe_end(const ml_worker_pool_opts *o, int status, ml_text *why) {
    if (WIFEXITED(status))
        ml_text_printf(why, "worker '%.80s' exited with status %d%s", o->name,
                       WEXITSTATUS(status),
                       WEXITSTATUS(status) == 127
                           ? ": python3 was not found; install it or add it to PATH"
                           : "");
    else
        ml_text_printf(why, "worker '%.80s' was killed by signal %d", o->name,
                       WTERMSIG(status));
}

/* Logs whole lines; at_end: also the rest. */
static void log_lines(const ml_worker_pool_opts *o, ml_pool_worker *w, bool at_end) {
    char *at = w->line.ptr, *end = at + w->line.len, *stop;

    for (; at && at < end; at = stop + 1) {
        stop = memchr(at, '\n', (size_t)(end - at));
        if (!stop && !at_end && end - at < LINE_MAX_BYTES)
            break;
        stop = stop ? stop : end;
        if (stop > at)
            ml_log(ML_LOG_OUTPUT, "%s: %.*s", o->name,
                   (int)(stop - at < LINE_MAX_BYTES ? stop - at : LINE_MAX_BYTES), at);
    }
    if (at && at < end)
        memmove(w->line.ptr, at, (size_t)(end - at));
    w->line.len = at && at < end ? (size_t)(end - at) : 0;
}

void ml_worker_read_log(const ml_worker_pool_opts *o, ml_pool_worker *w, bool at_end) {
    char piece[8192];
    ssize_t n;

    while (w->log >= 0 && (n = recv(w->log, piece, sizeof piece, MSG_DONTWAIT)) > 0) {
        ml_text_add(&w->line, piece, (size_t)n);
        log_lines(o, w, false);
        if (!at_end)
            break;
    }
    if (at_end)
        log_lines(o, w, true);
}

bool ml_worker_next_message(const ml_text *t, size_t *at, ml_worker_head *h, ml_str *text) {
    if (t->len - *at < sizeof *h)
        return false;
    memcpy(h, t->ptr + *at, sizeof *h);
    if (h->len > MESSAGE_MAX || t->len - *at - sizeof *h < h->len)
        return false;
    *text = (ml_str){ t->ptr + *at + sizeof *h, h->len };
    *at += sizeof *h + h->len;
    return true;
}

bool ml_worker_keep_rest(ml_text *t, size_t at) {
    ml_worker_head h = { 0 };

    if (at)
        memmove(t->ptr, t->ptr + at, t->len - at);
    t->len -= at;
    if (t->len >= sizeof h)
        memcpy(&h, t->ptr, sizeof h);
    return h.len <= MESSAGE_MAX;
}

bool ml_worker_receive(int fd, ml_text *in) {
    char piece[65536];

    for (int i = 0; i < 16; i++) {
        ssize_t n = recv(fd, piece, sizeof piece, MSG_DONTWAIT);
        if (n > 0)
            ml_text_add(in, piece, (size_t)n);
        else if (n == 0 || (errno != EAGAIN && errno != EINTR))
            return false;
        if (n < (ssize_t)sizeof piece)
            break;
    }
    return true;
}

void ml_worker_send(int fd, ml_text *out, size_t *at) {
    while (fd >= 0 && *at < out->len) {
        ssize_t n = send(fd, out->ptr + *at, out->len - *at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n <= 0)
            break;
        *at += (size_t)n;
    }
    if (*at == out->len)
        *at = out->len = 0;
}

void ml_worker_stop(const ml_worker_pool_opts *o, ml_pool_worker *w, double linger_s,
                    ml_text *why) {
    int status = 0;

    ml_guarded_process_stop(&w->process, linger_s, &status);
    ml_worker_read_log(o, w, true);
    if (!why->len)
        describe_end(o, status, why);
    close_fd(&w->calls);
    close_fd(&w->host);
    close_fd(&w->log);
    w->in.len = w->out.len = w->request.len = w->reply.len = 0;
    w->out_at = w->reply_at = 0;
    w->state = ML_WORKER_DOWN;
}

void ml_worker_release(const ml_worker_pool_opts *o, ml_pool_worker *w) {
    ml_text *text[] = { &w->in, &w->out, &w->request, &w->reply, &w->line };

    for (size_t k = 0; k < sizeof text / sizeof *text; k++)
        ml_text_release(text[k]);
    if (w->shared)
        munmap(w->shared, ML_WORKER_SHARED + o->shared_bytes);
    close_fd(&w->memory);
}
