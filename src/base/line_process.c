#include "base/line_process.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "base/json.h"
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
    pid_t pid;     /* 0: none */
    int fd;
    pid_t guard; /* kills the worker's group when this program ends; 0: none */
    int guard_fd;
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
    w->command.hello = copy(&arena, command->hello);
    w->arena = arena;
    w->memory_bytes = memory_bytes;
    w->fd = w->guard_fd = -1;
    return w;
}

/* --- start and stop ------------------------------------------------------------------ */

/* Between fork and exec, in a process with threads: system calls only. */
_Noreturn static void become(const char *line, int in, int out, pid_t parent) {
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    /* PR_SET_PDEATHSIG does not notice a parent that ended before this call. */
    if (parent && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent))
        _exit(127);
    if (dup2(in, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
        close_range(STDERR_FILENO + 1, ~0U, 0) != 0)
        _exit(127);
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
}

/* The guard reads a pipe whose other end only this program holds: it closes when the
 * program ends. */
static void start_guard(ml_line_process *w) {
    int end[2], null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    char line[80];

    snprintf(line, sizeof line, "exec 2>/dev/null; read -r _; kill -s KILL -- -%d",
             (int)w->pid);
    if (null >= 0 && pipe2(end, O_CLOEXEC) == 0) {
        w->guard = fork();
        if (w->guard == 0)
            become(line, end[0], null, 0);
        close(end[0]);
        w->guard_fd = end[1];
    }
    if (null >= 0)
        close(null);
}

static bool fork_worker(ml_line_process *w, ml_text *why) {
    pid_t parent = getpid();
    int fd[2];

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fd) != 0) {
        ml_text_printf(why, "cannot create a socket for a worker process: %s",
                       strerror(errno));
        return false;
    }
    w->pid = fork();
    if (w->pid == 0)
        become(w->command.line, fd[1], fd[1], parent);
    close(fd[1]);
    if (w->pid < 0) {
        ml_text_printf(why, "cannot create a worker process: %s", strerror(errno));
        close(fd[0]);
        w->pid = 0;
        return false;
    }
    setpgid(w->pid, w->pid); /* parent and child both call it; either may be first */
    w->fd = fd[0];
    start_guard(w);
    return true;
}

static void reap(pid_t pid, int *status) {
    while (waitpid(pid, status, 0) < 0 && errno == EINTR)
        continue;
}

static void stop_guard(ml_line_process *w) {
    if (w->guard > 0) {
        kill(w->guard, SIGKILL);
        reap(w->guard, NULL);
    }
    if (w->guard_fd >= 0)
        close(w->guard_fd);
    w->guard = 0;
    w->guard_fd = -1;
}

/* Kills the process and all its descendants, in its group or not; *status is its exit
 * status. */
static void stop(ml_line_process *w, int *status) {
    pid_t tree[ML_PROC_TREE_MAX];
    int n;

    if (w->pid <= 0)
        return;
    n = ml_proc_tree(tree, w->pid);
    kill(-w->pid, SIGKILL); /* before its input closes, which it might report as an error */
    for (int i = 0; i < n; i++)
        kill(tree[i], SIGKILL);
    reap(w->pid, status);
    close(w->fd);
    stop_guard(w);
    w->pid = 0;
    w->fd = -1;
}

void ml_line_process_restart(ml_line_process *w) {
    int status = 0;
    stop(w, &status);
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
        ml_text_printf(why, "worker '%.80s' exited with status %d%s", w->command.name,
                       WEXITSTATUS(status),
                       w->command.hello && WEXITSTATUS(status) == 127
                           ? ": python3 was not found; install it or add it to PATH"
                           : "");
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
    if (!ml_proc_over(tree, ml_proc_tree(tree, w->pid), w->memory_bytes))
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

    if (w->pid > 0 && poll(&p, 1, 0) != 0)
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
        return w->pid > 0 ? died(w, out) : end;
    return end == ML_LINE_PROCESS_LATE ? late(w, out, deadline_s) : end;
}

/* The answer of a worker that is not ready: the error it names, or the line itself. */
static void say_why(ml_line_process *w, ml_text *out) {
    const ml_json *doc = NULL, *error = NULL;
    ml_arena arena;
    ml_err err;

    ml_arena_init(&arena, "a worker's first line");
    if (ml_json_parse(&doc, &arena,
                      (ml_str){ ml_arena_str(&arena, out->ptr, out->len), out->len },
                      "the first line", &err) == ML_OK)
        error = ml_json_get(doc, "error");
    if (error && error->type == ML_JSON_STRING) {
        out->len = 0;
        ml_text_add(out, error->text.ptr, error->text.len);
    } else {
        const char *said = ml_arena_str(&arena, out->ptr, out->len);
        out->len = 0;
        ml_text_printf(out, "worker '%.80s' wrote '%.80s' first; expected \"ready\"",
                       w->command.name, said);
    }
    ml_arena_release(&arena);
}

ml_line_process_end ml_line_process_start(ml_line_process *w, ml_text *out) {
    ml_line_process_end end;

    out->len = 0;
    if (w->pid > 0)
        return ML_LINE_PROCESS_ANSWERED;
    if (!fork_worker(w, out))
        return ML_LINE_PROCESS_DIED;
    w->looked = ml_clock_s();
    if (!w->command.hello)
        return ML_LINE_PROCESS_ANSWERED;
    end = exchange(w, out, ml_str_of(w->command.hello), START_S);
    if (end != ML_LINE_PROCESS_ANSWERED || strcmp(out->ptr, "\"ready\"") == 0)
        return end;
    say_why(w, out);
    ml_line_process_restart(w);
    return ML_LINE_PROCESS_DIED;
}

ml_line_process_end ml_line_process_ask(ml_line_process *w, ml_text *out, ml_str line,
                                        double deadline_s) {
    bool first = !w->started;
    ml_line_process_end end;

    drop_talkative(w);
    end = ml_line_process_start(w, out);
    if (end != ML_LINE_PROCESS_ANSWERED)
        return end;
    w->started = true;
    return exchange(w, out, line, deadline_s + (first && !w->command.hello ? START_S : 0));
}
