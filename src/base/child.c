#include "base/child.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/arena.h"

/* Between fork and exec, in a process with threads: system calls only. */
_Noreturn static void become(const char *program, char *const *argv, char *const *env,
                             int out, int log, pid_t parent) {
    int null = open("/dev/null", O_RDONLY);
    sigset_t none;

    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    setpgid(0, 0);
    /* PR_SET_PDEATHSIG does not notice a parent that ended before this call. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent || null < 0)
        _exit(127);
    if (dup2(null, STDIN_FILENO) < 0 || dup2(out, STDOUT_FILENO) < 0 ||
        dup2(log, STDERR_FILENO) < 0 || close_range(STDERR_FILENO + 1, ~0U, 0) != 0)
        _exit(127);
    execve(program, argv, env);
    _exit(127);
}

static ml_status open_ends(int pipe_end[2], int *log_fd, const char *log, ml_err *err) {
    *log_fd = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    if (*log_fd < 0)
        return ml_fail(err, ML_EIO, "cannot write %s: %s", log, strerror(errno));
    if (pipe2(pipe_end, O_CLOEXEC) != 0) {
        close(*log_fd);
        return ml_fail(err, ML_EIO, "cannot create a pipe for a process: %s",
                       strerror(errno));
    }
    return ML_OK;
}

/* argv for exec, copied before fork, because nothing can be allocated afterwards. */
static char **copy_words(ml_arena *a, const char *const *argv) {
    int n = 0;
    char **own;

    while (argv[n])
        n++;
    own = ML_NEW(a, char *, n + 1);
    for (int i = 0; i < n; i++)
        own[i] = ml_arena_str(a, argv[i], strlen(argv[i]));
    return own;
}

static bool same_variable(const char *a, const char *b) {
    size_t n = strcspn(a, "=");

    return strncmp(a, b, n + 1) == 0;
}

/* This process's environment, overridden by `own`. */
static char **join_environment(ml_arena *a, const char *const *own) {
    int n = 0, n_own = 0, at = 0;
    char **out;

    while (environ[n])
        n++;
    while (own && own[n_own])
        n_own++;
    out = ML_NEW(a, char *, n + n_own + 1);
    for (int i = 0; i < n; i++) {
        bool replaced = false;
        for (int k = 0; k < n_own; k++)
            replaced = replaced || same_variable(own[k], environ[i]);
        if (!replaced)
            out[at++] = environ[i];
    }
    for (int k = 0; k < n_own; k++)
        out[at++] = ml_arena_str(a, own[k], strlen(own[k]));
    return out;
}

ml_status ml_child_start(ml_child *out, const char *program, const char *const *argv,
                         const char *const *env, const char *log, ml_err *err) {
    int end[2] = { -1, -1 }, log_fd = -1;
    pid_t parent = getpid(), pid;
    ml_status st = open_ends(end, &log_fd, log, err);
    ml_arena arena;
    char **own, **variables;

    if (st != ML_OK)
        return st;
    ml_arena_init(&arena, "words of a command line");
    own = copy_words(&arena, argv);
    variables = join_environment(&arena, env);
    pid = fork();
    if (pid == 0)
        become(program, own, variables, end[1], log_fd, parent);
    ml_arena_release(&arena);
    close(end[1]);
    close(log_fd);
    if (pid < 0) {
        close(end[0]);
        return ml_fail(err, ML_EIO, "cannot start %s: %s", argv[0], strerror(errno));
    }
    (void)fcntl(end[0], F_SETFL, O_NONBLOCK);
    *out = (ml_child){ pid, end[0] };
    return ML_OK;
}

void ml_child_read(ml_child *c, ml_text *out) {
    char piece[1024];
    ssize_t n;

    while ((n = read(c->out, piece, sizeof piece)) > 0)
        ml_text_add(out, piece, (size_t)n);
}

bool ml_child_ended(ml_child *c, int *status) {
    if (c->pid <= 0 || waitpid(c->pid, status, WNOHANG) != c->pid)
        return false;
    close(c->out);
    *c = (ml_child){ 0 };
    return true;
}

void ml_child_kill(ml_child *c) {
    if (c->pid <= 0)
        return;
    kill(c->pid, SIGKILL);
    while (waitpid(c->pid, NULL, 0) < 0 && errno == EINTR)
        continue;
    close(c->out);
    *c = (ml_child){ 0 };
}

void ml_child_format_end(ml_text *out, int status) {
    if (WIFEXITED(status))
        ml_text_printf(out, "exited with status %d", WEXITSTATUS(status));
    else
        ml_text_printf(out, "was killed by signal %d", WTERMSIG(status));
}
