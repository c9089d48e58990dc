/* Programs in a sandbox, from a process of many threads. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/sandbox_priv.h"

typedef struct ends {
    int in[2], out[2], err[2];
} ends;

static bool make_pipes(ends *p) {
    return pipe2(p->in, O_CLOEXEC) == 0 && pipe2(p->out, O_CLOEXEC) == 0 &&
           pipe2(p->err, O_CLOEXEC) == 0;
}

static void close_fd(int *fd) {
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

static void close_all(ends *p) {
    for (int i = 0; i < 2; i++) {
        close_fd(&p->in[i]);
        close_fd(&p->out[i]);
        close_fd(&p->err[i]);
    }
}

/* Found once: on some machines python3 is a slow script. */
static pthread_once_t once = PTHREAD_ONCE_INIT;
static ml_sandbox_view view;

static void look(void) {
    ml_sandbox_look(&view, &(ml_sandbox_opts){ .language = ML_SANDBOX_PYTHON });
}

static int spawn(pid_t *out, const ends *p, const ml_sandbox_opts *o, size_t n_code) {
    char number[5][40];
    const double value[5] = { (double)n_code, o->wall_s, (double)o->memory_bytes,
                              (double)o->file_bytes, (double)o->output_bytes };
    const char *argv[] = { "miles",
                           "sandbox",
                           "--language",
                           o->language == ML_SANDBOX_SHELL ? "sh" : "python",
                           "--code-bytes",
                           number[0],
                           "--time-limit",
                           number[1],
                           "--memory-limit",
                           number[2],
                           "--file-limit",
                           number[3],
                           "--output-limit",
                           number[4],
                           view.python[0] ? "--python" : NULL,
                           view.python,
                           NULL };
    posix_spawn_file_actions_t files;
    const char *const *list = argv;
    char *const *words;
    int why;

    for (int i = 0; i < 5; i++)
        snprintf(number[i], sizeof number[i], i == 1 ? "%.3f" : "%.0f", value[i]);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, p->in[0], 0);
    posix_spawn_file_actions_adddup2(&files, p->out[1], 1);
    posix_spawn_file_actions_adddup2(&files, p->err[1], 2);
    memcpy(&words, &list, sizeof words); /* posix_spawn does not change them */
    why = posix_spawn(out, "/proc/self/exe", &files, NULL, words, environ);
    posix_spawn_file_actions_destroy(&files);
    return why;
}

static void take(int *fd, ml_text *to) {
    char data[16384];
    ssize_t n = read(*fd, data, sizeof data);

    if (n > 0)
        ml_text_add(to, data, (size_t)n);
    else if (n == 0 || (errno != EAGAIN && errno != EINTR))
        close_fd(fd);
}

/* A program that does not read its input closes the pipe. */
static void give(int *fd, ml_str *rest) {
    ssize_t n = write(*fd, rest->ptr, rest->len);

    if (n > 0) {
        rest->ptr += n;
        rest->len -= (size_t)n;
    }
    if (rest->len == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
        close_fd(fd);
}

static void exchange(ends *p, ml_str input, ml_sandbox_result *out) {
    fcntl(p->in[1], F_SETFL, O_NONBLOCK);
    while (p->out[0] >= 0 || p->err[0] >= 0) {
        struct pollfd f[3] = { { p->out[0], POLLIN, 0 },
                               { p->err[0], POLLIN, 0 },
                               { p->in[1], POLLOUT, 0 } };
        if (poll(f, 3, -1) < 0)
            continue;
        if (f[0].revents)
            take(&p->out[0], &out->out);
        if (f[1].revents)
            take(&p->err[0], &out->err);
        if (f[2].revents)
            give(&p->in[1], &input);
    }
}

ml_status ml_sandbox_run(ml_sandbox_result *out, const ml_sandbox_opts *opts, ml_str code,
                         ml_str input, ml_err *err) {
    ends p = { { -1, -1 }, { -1, -1 }, { -1, -1 } };
    ml_text all = { 0 };
    int why, status = 0;
    pid_t pid = 0;

    *out = (ml_sandbox_result){ 0 };
    if (opts->language == ML_SANDBOX_PYTHON)
        pthread_once(&once, look);
    ml_text_add(&out->out, "", 0);
    ml_text_add(&out->err, "", 0);
    signal(SIGPIPE, SIG_IGN); /* the program may not read its input */
    why = make_pipes(&p) ? spawn(&pid, &p, opts, code.len) : errno;
    if (why) {
        close_all(&p);
        return ml_fail(err, ML_EIO, "cannot start the sandbox: %s", strerror(why));
    }
    close_fd(&p.in[0]);
    close_fd(&p.out[1]);
    close_fd(&p.err[1]);
    ml_text_add(&all, code.ptr, code.len);
    ml_text_add(&all, input.ptr, input.len);
    exchange(&p, (ml_str){ all.ptr, all.len }, out);
    while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
        ;
    close_all(&p);
    ml_text_release(&all);
    out->status = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
    if (out->status != ML_SANDBOX_FAILED)
        return ML_OK;
    return ml_fail(err, ML_EUNSUP, "%.*s", (int)strcspn(out->err.ptr, "\n"), out->err.ptr);
}

void ml_sandbox_result_release(ml_sandbox_result *r) {
    ml_text_release(&r->out);
    ml_text_release(&r->err);
}

ml_status ml_sandbox_check(ml_err *err) {
    static const char code[] = "exit 7\n";
    ml_sandbox_result r;
    ml_status st = ml_sandbox_run(&r, &(ml_sandbox_opts){ .language = ML_SANDBOX_SHELL },
                                  ml_str_of(code), (ml_str){ "", 0 }, err);

    if (st == ML_OK && r.status != 7)
        st = ml_fail(err, ML_EUNSUP, "sandbox: a program that exits with 7 ended with %d",
                     r.status);
    ml_sandbox_result_release(&r);
    return st;
}
