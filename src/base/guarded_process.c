#include "base/guarded_process.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/bug.h"
#include "base/clock.h"
#include "base/proc_tree.h"

/* Between fork and exec, in a process with threads: system calls only. */
_Noreturn static void become(const char *line, const int *fd, int n, pid_t parent) {
    int high[ML_GUARDED_FDS];
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    /* PR_SET_PDEATHSIG does not notice a parent that ended before this call. */
    if (parent && (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent))
        _exit(127);
    for (int i = 0; i < n; i++) /* so that none is overwritten before it is moved */
        if ((high[i] = fcntl(fd[i], F_DUPFD_CLOEXEC, ML_GUARDED_FDS)) < 0)
            _exit(127);
    for (int i = 0; i < n; i++)
        if (dup2(high[i], i) < 0)
            _exit(127);
    if (close_range(n > STDERR_FILENO ? (unsigned)n : STDERR_FILENO + 1, ~0U, 0) != 0)
        _exit(127);
    execl("/bin/sh", "sh", "-c", line, (char *)NULL);
    _exit(127);
}

/* The guard reads a pipe whose other end only this program holds: it closes when the
 * program ends. */
static void start_guard(ml_guarded_process *p) {
    int end[2], null = open("/dev/null", O_WRONLY | O_CLOEXEC);
    char line[80];

    snprintf(line, sizeof line, "exec 2>/dev/null; read -r _; kill -s KILL -- -%d",
             (int)p->pid);
    if (null >= 0 && pipe2(end, O_CLOEXEC) == 0) {
        const int fd[] = { end[0], null };
        p->guard = fork();
        if (p->guard == 0)
            become(line, fd, 2, 0);
        close(end[0]);
        p->guard_fd = end[1];
    }
    if (null >= 0)
        close(null);
}

bool ml_guarded_process_start(ml_guarded_process *p, const char *line, const int *fd, int n,
                              ml_text *why) {
    pid_t parent = getpid();

    ML_BUG_IF(n > ML_GUARDED_FDS);
    *p = (ml_guarded_process){ .guard_fd = -1 };
    p->pid = fork();
    if (p->pid == 0)
        become(line, fd, n, parent);
    if (p->pid < 0) {
        ml_text_printf(why, "cannot create a worker process: %s", strerror(errno));
        p->pid = 0;
        return false;
    }
    setpgid(p->pid, p->pid); /* parent and child both call it; either may be first */
    start_guard(p);
    return true;
}

static void reap(pid_t pid, int *status) {
    while (waitpid(pid, status, 0) < 0 && errno == EINTR)
        continue;
}

static void stop_guard(ml_guarded_process *p) {
    if (p->guard > 0) {
        kill(p->guard, SIGKILL);
        reap(p->guard, NULL);
    }
    if (p->guard_fd >= 0)
        close(p->guard_fd);
    p->guard = 0;
    p->guard_fd = -1;
}

static void await_exit(const ml_guarded_process *p, double linger_s) {
    double until = ml_clock_s() + linger_s;
    siginfo_t info = { 0 };

    while (ml_clock_s() < until && info.si_pid == 0) {
        if (waitid(P_PID, (id_t)p->pid, &info, WEXITED | WNOHANG | WNOWAIT) != 0)
            break;
        if (info.si_pid == 0)
            usleep(1000);
    }
}

void ml_guarded_process_stop(ml_guarded_process *p, double linger_s, int *status) {
    pid_t tree[ML_PROC_TREE_MAX];
    int n;

    if (p->pid <= 0)
        return;
    await_exit(p, linger_s);
    n = ml_proc_tree(tree, p->pid);
    kill(-p->pid, SIGKILL);
    for (int i = 0; i < n; i++)
        kill(tree[i], SIGKILL);
    reap(p->pid, status);
    stop_guard(p);
    p->pid = 0;
}
