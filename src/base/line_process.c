#include "base/line_process.h"

#include <errno.h>
#include <poll.h>
#include <stdbool.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/guarded_process.h"
#include "base/proc_tree.h"

#define ANSWER_MAX (4 << 20) /* bytes of an answer; a longer one is invalid */
#define LINGER_S 0.2         /* time for a process to exit after it closed its output */
#define START_S 60.0         /* startup time of a worker, which may load its libraries */
#define LOOK_S 0.05          /* interval of the checks of a worker's memory */

struct ml_line_process {
    ml_arena arena; /* also holds this struct */
    ml_worker_command command;
    int64_t memory_bytes;
    double looked; /* when its memory was last checked */
    ml_guarded_process process;
    int fd;
    bool started; /* at least once */
};

static const char *copy(ml_arena *a, const char *s) {
    return s ? ml_arena_str(a, s, strlen(s)) : NULL;
}

ml_line_process *ml_line_process_new(const ml_worker_command *command,
                                     int64_t memory_bytes) {
    ml_arena arena;
    ml_line_process *w;

    ml_arena_init(&arena, "worker");
    w = ML_NEW(&arena, ml_line_process, 1);
    w->command.line = copy(&arena, command->line);
    w->command.name = command->name ? copy(&arena, command->name) : w->command.line;
    w->arena = arena;
    w->memory_bytes = memory_bytes;
    w->fd = -1;
    return w;
}

/* --- start and stop ------------------------------------------------------------------ */

static bool fork_worker(ml_line_process *w, ml_text *why) {
    int fd[2], end[2];
    bool ok;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) != 0) {
        ml_text_printf(why, "cannot create a socket for a worker process: %s",
                       strerror(errno));
        return false;
    }
    end[0] = end[1] = fd[1];
    ok = ml_guarded_process_start(&w->process, w->command.line, end, 2, why);
    close(fd[1]);
    if (!ok)
        close(fd[0]);
    w->fd = ok ? fd[0] : -1;
    return ok;
}

static void stop(ml_line_process *w, double linger_s, int *status) {
    if (w->process.pid <= 0)
        return;
    /* before its input closes, which it might report as an error */
    ml_guarded_process_stop(&w->process, linger_s, status);
    close(w->fd);
    w->fd = -1;
}

void ml_line_process_restart(ml_line_process *w) {
    int status = 0;
    stop(w, 0, &status);
}

void ml_line_process_free(ml_line_process *w) {
    ml_arena arena;

    if (!w)
        return;
    ml_line_process_restart(w);
    arena = w->arena;
    ml_arena_release(&arena);
}

/* The output was closed: reports the exit status, after giving the process time to exit. */
static ml_line_process_end died(ml_line_process *w, ml_text *why) {
    int status = 0;

    stop(w, LINGER_S, &status);
    why->len = 0;
    if (WIFEXITED(status))
        ml_text_printf(why, "worker '%.80s' exited with status %d", w->command.name,
                       WEXITSTATUS(status));
    else
        ml_text_printf(why, "worker '%.80s' was killed by signal %d", w->command.name,
                       WTERMSIG(status));
    return ML_LINE_PROCESS_DIED;
}

static ml_line_process_end late(ml_line_process *w, ml_text *why, double deadline_s) {
    ml_line_process_restart(w);
    why->len = 0;
    ml_text_printf(why, "worker '%.80s' did not answer within %g s", w->command.name,
                   deadline_s);
    return ML_LINE_PROCESS_LATE;
}

/* Checks the memory periodically; kills a worker over its limit and reports it. */
static bool too_large(ml_line_process *w, ml_text *why) {
    pid_t tree[ML_PROC_TREE_MAX];
    double now = ml_clock_s();

    if (w->memory_bytes <= 0 || now - w->looked < LOOK_S)
        return false;
    w->looked = now;
    if (!ml_proc_over(tree, ml_proc_tree(tree, w->process.pid), w->memory_bytes))
        return false;
    ml_line_process_restart(w);
    why->len = 0;
    ml_text_printf(why,
                   "worker '%.80s' used more than %.4g MiB of memory (--reward-memory) and "
                   "was killed: increase --reward-memory",
                   w->command.name, (double)w->memory_bytes / (1 << 20));
    return true;
}

/* --- lines ---------------------------------------------------------------------------- */

/* Waits until the socket is ready. */
static ml_line_process_end wait_ready(ml_line_process *w, short events, double until,
                                      ml_text *why) {
    for (;;) {
        struct pollfd p = { .fd = w->fd, .events = events };
        double left = until - ml_clock_s();
        double slice = w->memory_bytes > 0 && left > LOOK_S ? LOOK_S : left;
        int n = slice > 0 ? poll(&p, 1, (int)(slice * 1e3) + 1) : 0;
        if (too_large(w, why))
            return ML_LINE_PROCESS_DIED;
        if (n > 0 || (n < 0 && errno != EINTR)) /* the next call reports the error */
            return ML_LINE_PROCESS_ANSWERED;
        if (n == 0 && left <= 0)
            return ML_LINE_PROCESS_LATE;
    }
}

static ml_line_process_end send_line(ml_line_process *w, ml_str line, double until,
                                     ml_text *why) {
    ml_text all = { 0 };
    size_t at = 0;
    ml_line_process_end end = ML_LINE_PROCESS_ANSWERED;

    ml_text_add(&all, line.ptr, line.len);
    ml_text_add(&all, "\n", 1);
    while (at < all.len && end == ML_LINE_PROCESS_ANSWERED) {
        ssize_t n;
        end = wait_ready(w, POLLOUT, until, why);
        if (end != ML_LINE_PROCESS_ANSWERED)
            break;
        n = send(w->fd, all.ptr + at, all.len - at, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n > 0)
            at += (size_t)n;
        else if (errno != EAGAIN && errno != EINTR)
            end = ML_LINE_PROCESS_DIED;
    }
    ml_text_release(&all);
    return end;
}

/* Reads up to the first line break.  A worker that has sent more than that is killed. */
static ml_line_process_end read_line(ml_line_process *w, ml_text *out, double until) {
    char piece[4096];

    while (out->len < ANSWER_MAX) {
        const char *end;
        ml_line_process_end state = wait_ready(w, POLLIN, until, out);
        ssize_t n;
        if (state != ML_LINE_PROCESS_ANSWERED)
            return state;
        n = recv(w->fd, piece, sizeof piece, MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return ML_LINE_PROCESS_DIED;
        if (n < 0)
            continue;
        end = memchr(piece, '\n', (size_t)n);
        ml_text_add(out, piece, end ? (size_t)(end - piece) : (size_t)n);
        if (!end)
            continue;
        if (end + 1 < piece + n) /* a second line cannot be matched to a request */
            ml_line_process_restart(w);
        return ML_LINE_PROCESS_ANSWERED;
    }
    ml_line_process_restart(w);
    return ML_LINE_PROCESS_ANSWERED;
}

/* Kills a worker that writes, or has ended, before it gets a request. */
static void drop_talkative(ml_line_process *w) {
    struct pollfd p = { .fd = w->fd, .events = POLLIN };

    if (w->process.pid > 0 && poll(&p, 1, 0) != 0)
        ml_line_process_restart(w);
}

/* Sends a line and reads a line; if the worker died, `out` has the reason. */
static ml_line_process_end exchange(ml_line_process *w, ml_text *out, ml_str line,
                                    double deadline_s) {
    double until = ml_clock_s() + deadline_s;
    ml_line_process_end end = send_line(w, line, until, out);

    if (end == ML_LINE_PROCESS_ANSWERED) {
        out->len = 0;
        ml_text_add(out, "", 0);
        end = read_line(w, out, until);
    }
    if (end == ML_LINE_PROCESS_DIED)
        return w->process.pid > 0 ? died(w, out) : end;
    return end == ML_LINE_PROCESS_LATE ? late(w, out, deadline_s) : end;
}

ml_line_process_end ml_line_process_ask(ml_line_process *w, ml_text *out, ml_str line,
                                        double deadline_s) {
    bool first = !w->started;

    drop_talkative(w);
    out->len = 0;
    if (w->process.pid <= 0) {
        if (!fork_worker(w, out))
            return ML_LINE_PROCESS_DIED;
        w->looked = ml_clock_s();
    }
    w->started = true;
    return exchange(w, out, line, deadline_s + (first ? START_S : 0));
}
