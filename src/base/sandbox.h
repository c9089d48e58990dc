/* sandbox.h - runs untrusted programs: the code of models.
 *
 * A program runs in its own user, mount, process, network, IPC and host-name namespaces, as an
 * unprivileged user without capabilities, under a seccomp filter.  It sees /usr, the Python
 * interpreter and a few device files, read-only, and an empty /tmp, its working directory, in
 * memory; no other file, no process and no network.  Time, memory, processes, bytes of files
 * and bytes of output are limited.  When it ends or exceeds a limit, everything it started is
 * killed.
 *
 * `miles sandbox` is such a program's parent: a process of one thread, so that it can enter
 * namespaces.  ml_sandbox_run starts it.
 *
 * thread: ml_sandbox_run from any; ml_sandbox_main in a process of one thread. */
#ifndef ML_BASE_SANDBOX_H
#define ML_BASE_SANDBOX_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

typedef enum ml_sandbox_language {
    ML_SANDBOX_PYTHON,
    ML_SANDBOX_SHELL
} ml_sandbox_language;

typedef struct ml_sandbox_opts {
    ml_sandbox_language language;
    double wall_s;        /* 0: 10 */
    int64_t memory_bytes; /* of all processes together; 0: 512 MiB */
    int64_t file_bytes;   /* in /tmp; 0: 64 MiB */
    int64_t output_bytes; /* of standard output and standard error together; 0: 64 KiB */
    int64_t n_process;    /* 0: 32 */
    const char *python;   /* the interpreter; NULL: python3 of PATH */
} ml_sandbox_opts;

/* Exit statuses of `miles sandbox` besides those of the program; a program that a signal
 * killed has 128 + the signal's number. */
enum {
    ML_SANDBOX_LATE = 124,   /* took longer than wall_s */
    ML_SANDBOX_LOUD = 125,   /* wrote more than output_bytes */
    ML_SANDBOX_FAILED = 126, /* the sandbox cannot be made: the message is on stderr */
    ML_SANDBOX_MEMORY = 137, /* used more than memory_bytes */
};

/* Runs the code with this process's standard input, output and error; returns the exit
 * status. */
int ml_sandbox_main(const ml_sandbox_opts *opts, ml_str code);

typedef struct ml_sandbox_result {
    int status;
    ml_text out, err; /* what it wrote; released by the caller */
} ml_sandbox_result;

/* Runs code that reads `input`.  ML_EUNSUP: this machine allows no sandbox. */
ml_status ml_sandbox_run(ml_sandbox_result *out, const ml_sandbox_opts *opts, ml_str code,
                         ml_str input, ml_err *err);
void ml_sandbox_result_release(ml_sandbox_result *r);

/* Tries one, so that a run says at its start that there can be none. */
ml_status ml_sandbox_check(ml_err *err);

#endif
