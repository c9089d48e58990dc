#include "base/sandbox.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/proc_tree.h"
#include "base/sandbox_priv.h"

#define USER 1000 /* inside */
#define NOBODY 65534
#define POLL_MS 50

typedef struct box {
    ml_sandbox_opts o;
    ml_str code;
    ml_sandbox_view view;
    int go[2];     /* the parent has mapped the user: the child may begin */
    int report[2]; /* why the sandbox cannot be made */
    int out[2], err[2];
    pid_t init; /* process 1 of the namespace */
} box;

/* --- inside: process 1 and the program -------------------------------------------- */

static void fail(const box *b, const char *what) {
    char text[300];
    int n = snprintf(text, sizeof text, "%s: %s", what, strerror(errno));

    (void)!write(b->report[1], text, (size_t)n);
    _exit(ML_SANDBOX_FAILED);
}

static void limit(int what, int64_t n) {
    struct rlimit r = { (rlim_t)n, (rlim_t)n };
    setrlimit((__rlimit_resource_t)what, &r);
}

static void set_limits(const ml_sandbox_opts *o) {
    limit(RLIMIT_CPU, (int64_t)o->wall_s + 1);
    limit(RLIMIT_AS, o->memory_bytes);
    limit(RLIMIT_FSIZE, o->file_bytes);
    limit(RLIMIT_NPROC, o->n_process);
    limit(RLIMIT_NOFILE, 256);
    limit(RLIMIT_CORE, 0);
    limit(RLIMIT_MEMLOCK, 0);
    limit(RLIMIT_MSGQUEUE, 0);
}

/* From root to the user inside, which clears the capabilities; an unprivileged caller is that
 * user already and drops them. */
static bool drop_privileges(void) {
    struct {
        uint32_t version;
        int pid;
    } head = { 0x20080522, 0 };
    uint32_t none[6] = { 0 };

    if (getuid() == 0 && (setgroups(0, NULL) != 0 || setresgid(USER, USER, USER) != 0 ||
                          setresuid(USER, USER, USER) != 0))
        return false;
    for (int i = 0; i < 64; i++)
        prctl(PR_CAPBSET_DROP, i, 0, 0, 0);
    prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0);
    if (syscall(SYS_capset, &head, none) != 0)
        return false;
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0;
}

/* Process 2.  The limit of processes counts those of the user inside only. */
static void run_program(const box *b) {
    static const char *const env[] = { "PATH=/usr/local/bin:/usr/bin:/bin",
                                       "HOME=/tmp",
                                       "LANG=C.UTF-8",
                                       "PYTHONDONTWRITEBYTECODE=1",
                                       "PYTHONHASHSEED=0",
                                       "OMP_NUM_THREADS=1",
                                       "OPENBLAS_NUM_THREADS=1",
                                       NULL };
    bool python = b->o.language == ML_SANDBOX_PYTHON;
    const char *program = python ? b->view.python : "/bin/sh";
    const char *const argv[] = { program, ML_SANDBOX_MAIN, NULL };

    signal(SIGPIPE, SIG_DFL);
    set_limits(&b->o);
    if (!drop_privileges())
        fail(b, "cannot drop privileges");
    if (!ml_sandbox_filter())
        fail(b, "cannot install the seccomp filter");
    syscall(SYS_execve, program, argv, env);
    fail(b, program);
}

static void run_init(const box *b) {
    char byte;
    int status = 0;
    pid_t program, ended;

    prctl(PR_SET_PDEATHSIG, SIGKILL, 0, 0, 0);
    close(b->go[1]); /* so that its end is seen when the parent dies */
    if (read(b->go[0], &byte, 1) != 1)
        _exit(ML_SANDBOX_FAILED);
    setsid();
    dup2(b->out[1], 1);
    dup2(b->err[1], 2);
    if (!ml_sandbox_enter(&b->view, b->code, b->o.file_bytes))
        fail(b, "cannot mount the sandbox's files");
    (void)!sethostname("sandbox", 7);
    dup2(b->report[1], 3); /* the program inherits nothing else */
    fcntl(3, F_SETFD, FD_CLOEXEC);
    syscall(SYS_close_range, 4, ~0U, 0);
    program = fork();
    if (program == 0)
        run_program(&(box){ b->o, b->code, b->view, .report = { -1, 3 } });
    if (program < 0)
        fail(b, "cannot start the program");
    close(3);
    do
        ended = wait(&status);
    while (ended != program && (ended > 0 || errno == EINTR));
    _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
}

/* --- outside: the parent ------------------------------------------------------------- */

static bool put_file(pid_t pid, const char *name, const char *text) {
    char path[64];
    int fd;
    bool good;

    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    fd = open(path, O_WRONLY | O_CLOEXEC);
    good = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
    if (fd >= 0)
        close(fd);
    return good;
}

/* Root makes the sandbox and runs programs as nobody: for root itself, the kernel has no
 * limit of processes. */
static bool map_users(pid_t pid) {
    char uid[80], gid[80];
    bool root = geteuid() == 0;

    if (root) {
        snprintf(uid, sizeof uid, "0 0 1\n%d %d 1\n", USER, NOBODY);
        snprintf(gid, sizeof gid, "0 0 1\n%d %d 1\n", USER, NOBODY);
    } else {
        snprintf(uid, sizeof uid, "%d %u 1\n", USER, (unsigned)geteuid());
        snprintf(gid, sizeof gid, "%d %u 1\n", USER, (unsigned)getegid());
    }
    return (root || put_file(pid, "setgroups", "deny")) && put_file(pid, "uid_map", uid) &&
           put_file(pid, "gid_map", gid);
}

static bool start(box *b) {
    unsigned long flags = CLONE_NEWUSER | CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWNET |
                          CLONE_NEWIPC | CLONE_NEWUTS | SIGCHLD;

    if (pipe2(b->go, O_CLOEXEC) != 0 || pipe2(b->report, O_CLOEXEC) != 0 ||
        pipe2(b->out, O_CLOEXEC) != 0 || pipe2(b->err, O_CLOEXEC) != 0)
        return false;
    b->init = (pid_t)syscall(SYS_clone, flags, 0, 0, 0, 0);
    if (b->init < 0)
        return false;
    if (b->init == 0)
        run_init(b);
    close(b->report[1]);
    close(b->out[1]);
    close(b->err[1]);
    return map_users(b->init) && write(b->go[1], "", 1) == 1;
}

/* Copies what the program wrote; false: it has closed the pipe. */
static bool copy(int from, int to, int64_t *room) {
    char data[16384];
    ssize_t n = read(from, data, sizeof data);
    size_t keep = n > *room ? (size_t)*room : n > 0 ? (size_t)n : 0;

    for (size_t at = 0; at < keep;) {
        ssize_t k = write(to, data + at, keep - at);
        if (k <= 0)
            break;
        at += (size_t)k;
    }
    *room -= n > 0 ? n : 0;
    return n > 0;
}

static bool is_over(const box *b) {
    pid_t all[ML_PROC_TREE_MAX];
    int n = ml_proc_tree(all, b->init);

    return ml_proc_over(all, n, b->o.memory_bytes);
}

/* Until both pipes are closed, or a limit is exceeded, whose status it returns. */
static int watch(const box *b) {
    double end_s = ml_clock_s() + b->o.wall_s;
    struct pollfd p[2] = { { b->out[0], POLLIN, 0 }, { b->err[0], POLLIN, 0 } };
    int64_t room = b->o.output_bytes;

    while (p[0].fd >= 0 || p[1].fd >= 0) {
        poll(p, 2, POLL_MS);
        for (int i = 0; i < 2; i++)
            if (p[i].fd >= 0 && p[i].revents && !copy(p[i].fd, 1 + i, &room))
                p[i].fd = -1;
        if (room < 0)
            return ML_SANDBOX_LOUD;
        if (ml_clock_s() > end_s)
            return ML_SANDBOX_LATE;
        if (is_over(b))
            return ML_SANDBOX_MEMORY;
    }
    return 0;
}

/* The program may close its output and go on. */
static int wait_for(const box *b, double end_s) {
    int status = 0;

    while (waitpid(b->init, &status, WNOHANG) == 0) {
        if (ml_clock_s() > end_s) {
            kill(b->init, SIGKILL);
            waitpid(b->init, &status, 0);
            return ML_SANDBOX_LATE;
        }
        poll(NULL, 0, 2);
    }
    return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

static int say(const char *what, const char *why) {
    fprintf(stderr, "sandbox: %s%s\n", what, why);
    return ML_SANDBOX_FAILED;
}

static int refuse(const char *why) {
    fprintf(
        stderr,
        "sandbox: this machine allows no user namespaces (%s): run on a kernel with "
        "kernel.unprivileged_userns_clone=1 and user.max_user_namespaces above 0, without "
        "kernel.apparmor_restrict_unprivileged_userns, and in containers with "
        "--security-opt seccomp=unconfined\n",
        why);
    return ML_SANDBOX_FAILED;
}

static int end_early(const box *b, int how) {
    const ml_sandbox_opts *o = &b->o;

    kill(b->init, SIGKILL); /* and so all processes of its namespace */
    waitpid(b->init, NULL, 0);
    if (how == ML_SANDBOX_LATE)
        fprintf(stderr, "sandbox: the program took longer than %g s\n", o->wall_s);
    else if (how == ML_SANDBOX_LOUD)
        fprintf(stderr, "sandbox: the program wrote more than %lld bytes\n",
                (long long)o->output_bytes);
    else
        fprintf(stderr, "sandbox: the program used more than %lld bytes of memory\n",
                (long long)o->memory_bytes);
    return how;
}

static ml_sandbox_opts with_defaults(const ml_sandbox_opts *opts) {
    ml_sandbox_opts o = *opts;

    o.wall_s = o.wall_s > 0 ? o.wall_s : 10;
    o.memory_bytes = o.memory_bytes > 0 ? o.memory_bytes : (int64_t)512 << 20;
    o.file_bytes = o.file_bytes > 0 ? o.file_bytes : (int64_t)64 << 20;
    o.output_bytes = o.output_bytes > 0 ? o.output_bytes : (int64_t)64 << 10;
    o.n_process = o.n_process > 0 ? o.n_process : 32;
    return o;
}

int ml_sandbox_main(const ml_sandbox_opts *opts, ml_str code) {
    box b = { .o = with_defaults(opts), .code = code };
    char why[400];
    double end_s = ml_clock_s() + b.o.wall_s;
    ssize_t n;
    int how, status;

    signal(SIGPIPE, SIG_IGN);
    if (!ml_sandbox_look(&b.view, &b.o))
        return say("there is no python3 on PATH", "");
    if (!start(&b)) {
        snprintf(why, sizeof why, "%s", strerror(errno));
        if (b.init > 0)
            kill(b.init, SIGKILL);
        return refuse(why);
    }
    how = watch(&b);
    status = how ? end_early(&b, how) : wait_for(&b, end_s);
    n = read(b.report[0], why, sizeof why - 1);
    if (n > 0) {
        why[n] = 0;
        return say(why, "");
    }
    return status == ML_SANDBOX_FAILED ? 1 : status; /* of the program itself */
}
