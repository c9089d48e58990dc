#include "rl/worker.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"

#define ANSWER_MAX (4 << 20) /* bytes of an answer; more is no answer */
#define LINGER_S 0.2         /* a process that closed its output is given this to end */

struct ml_worker {
    ml_arena arena; /* it lives here itself */
    const char *command;
    int64_t memory_bytes;
    pid_t pid; /* 0: none */
    int fd;
};

ml_worker *ml_worker_new(const char *command, int64_t memory_bytes) {
    ml_arena arena;
    ml_worker *w;

    ml_arena_init(&arena, "worker");
    w = ML_NEW(&arena, ml_worker, 1);
    w->command = ml_arena_str(&arena, command, strlen(command));
    w->arena = arena;
    w->memory_bytes = memory_bytes;
    w->fd = -1;
    return w;
}

/* --- life ---------------------------------------------------------------------------- */

/* Between fork and exec, in a process with threads: system calls only. */
_Noreturn static void become(const ml_worker *w, int fd) {
    struct rlimit bound = { (rlim_t)w->memory_bytes, (rlim_t)w->memory_bytes };

    setpgid(0, 0);
    if (w->memory_bytes > 0)
        setrlimit(RLIMIT_AS, &bound);
    dup2(fd, STDIN_FILENO);
    dup2(fd, STDOUT_FILENO);
    execl("/bin/sh", "sh", "-c", w->command, (char *)NULL);
    _exit(127);
}

static bool start(ml_worker *w, ml_text *why) {
    int fd[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) != 0) {
        ml_text_printf(why, "no socket for a worker process: %s", strerror(errno));
        return false;
    }
    w->pid = fork();
    if (w->pid == 0)
        become(w, fd[1]);
    close(fd[1]);
    if (w->pid < 0) {
        ml_text_printf(why, "no process for a worker process: %s", strerror(errno));
        close(fd[0]);
        w->pid = 0;
        return false;
    }
    setpgid(w->pid, w->pid); /* whoever is first */
    w->fd = fd[0];
    return true;
}

/* Ends the process and everything it started; *status is how it ended. */
static void stop(ml_worker *w, int *status) {
    if (w->pid <= 0)
        return;
    close(w->fd);
    kill(-w->pid, SIGKILL);
    while (waitpid(w->pid, status, 0) < 0 && errno == EINTR)
        continue;
    w->pid = 0;
    w->fd = -1;
}

void ml_worker_restart(ml_worker *w) {
    int status = 0;
    stop(w, &status);
}

void ml_worker_free(ml_worker *w) {
    ml_arena arena;

    if (!w)
        return;
    ml_worker_restart(w);
    arena = w->arena;
    ml_arena_release(&arena);
}

/* The output ended: says how, after the process had a moment to end by itself. */
static ml_worker_end died(ml_worker *w, ml_text *why) {
    double until = ml_clock_s() + LINGER_S;
    siginfo_t info = { 0 };
    int status = 0;

    while (ml_clock_s() < until && info.si_pid == 0) {
        if (waitid(P_PID, (id_t)w->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0)
            break;
        if (info.si_pid == 0)
            usleep(1000);
    }
    stop(w, &status);
    why->len = 0;
    if (WIFEXITED(status))
        ml_text_printf(why, "the worker '%.80s' ended with status %d", w->command,
                       WEXITSTATUS(status));
    else
        ml_text_printf(why, "the worker '%.80s' was ended by signal %d", w->command,
                       WTERMSIG(status));
    return ML_WORKER_DIED;
}

static ml_worker_end late(ml_worker *w, ml_text *why, double deadline_s) {
    ml_worker_restart(w);
    why->len = 0;
    ml_text_printf(why, "the worker '%.80s' did not answer within %g s", w->command,
                   deadline_s);
    return ML_WORKER_LATE;
}

/* --- lines ---------------------------------------------------------------------------- */

/* Until the socket is ready; false when time is up. */
static bool ready(const ml_worker *w, short events, double until) {
    for (;;) {
        struct pollfd p = { .fd = w->fd, .events = events };
        double left = until - ml_clock_s();
        int n = left > 0 ? poll(&p, 1, (int)(left * 1e3) + 1) : 0;
        if (n > 0)
            return true;
        if (n == 0 && left <= 0)
            return false;
        if (n < 0 && errno != EINTR)
            return true; /* the call that follows will say what is wrong */
    }
}

static ml_worker_end send_line(ml_worker *w, ml_str line, double until) {
    ml_text all = { 0 };
    size_t at = 0;
    ml_worker_end end = ML_WORKER_ANSWERED;

    ml_text_add(&all, line.ptr, line.len);
    ml_text_add(&all, "\n", 1);
    while (at < all.len && end == ML_WORKER_ANSWERED) {
        ssize_t n;
        if (!ready(w, POLLOUT, until)) {
            end = ML_WORKER_LATE;
            break;
        }
        n = send(w->fd, all.ptr + at, all.len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            at += (size_t)n;
        else if (errno != EAGAIN && errno != EINTR)
            end = ML_WORKER_DIED;
    }
    ml_text_release(&all);
    return end;
}

/* Up to the first line break; what follows it is dropped by `quiet`. */
static ml_worker_end read_line(ml_worker *w, ml_text *out, double until) {
    char piece[4096];

    while (out->len < ANSWER_MAX) {
        const char *end;
        ssize_t n;
        if (!ready(w, POLLIN, until))
            return ML_WORKER_LATE;
        n = recv(w->fd, piece, sizeof piece, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return ML_WORKER_DIED;
        if (n < 0)
            continue;
        end = memchr(piece, '\n', (size_t)n);
        ml_text_add(out, piece, end ? (size_t)(end - piece) : (size_t)n);
        if (!end)
            continue;
        if (end + 1 < piece + n) /* it said more than one line: what is whose? */
            ml_worker_restart(w);
        return ML_WORKER_ANSWERED;
    }
    ml_worker_restart(w);
    return ML_WORKER_ANSWERED;
}

/* A worker that speaks, or has ended, before it is asked is not to be trusted. */
static void drop_talkative(ml_worker *w) {
    struct pollfd p = { .fd = w->fd, .events = POLLIN };

    if (w->pid > 0 && poll(&p, 1, 0) != 0)
        ml_worker_restart(w);
}

ml_worker_end ml_worker_ask(ml_worker *w, ml_text *out, ml_str line, double deadline_s,
                            double start_s) {
    ml_worker_end end;
    double until;

    out->len = 0;
    drop_talkative(w);
    if (w->pid <= 0) {
        if (!start(w, out))
            return ML_WORKER_DIED;
        deadline_s += start_s;
    }
    until = ml_clock_s() + deadline_s;
    end = send_line(w, line, until);
    if (end == ML_WORKER_ANSWERED) {
        ml_text_add(out, "", 0);
        end = read_line(w, out, until);
    }
    if (end == ML_WORKER_DIED)
        return died(w, out);
    return end == ML_WORKER_LATE ? late(w, out, deadline_s) : end;
}
