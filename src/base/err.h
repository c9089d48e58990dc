/* err.h - error reporting.
 *
 * A function that can fail returns ml_status and takes `ml_err *err` last.  The message
 * is a whole sentence that names the object (file, field, tensor), the expected value
 * and, if there is one, the fix.  It is written where the details are known; callers pass
 * it on unchanged or prefix it once.  Nothing below cli/ prints.
 *
 * thread: an ml_err belongs to its caller's stack. */
#ifndef ML_BASE_ERR_H
#define ML_BASE_ERR_H

typedef enum ml_status {
    ML_OK = 0,
    ML_EAGAIN,  /* not now; no message */
    ML_EUSAGE,  /* the command line is wrong: exit 2 */
    ML_EIO,     /* the operating system refused a file or a socket */
    ML_EFORMAT, /* a file exists but its content is invalid */
    ML_EUNSUP,  /* valid, but not supported */
    ML_ENOMEM,  /* no capacity (weights, KV cache, activations) */
    ML_EPEER,   /* another process failed: exit 3 */
} ml_status;

typedef struct ml_err {
    ml_status code;
    char msg[2000]; /* a longer one ends in "..." */
} ml_err;

/* Fills err (which may be NULL) and returns code, so that `return ml_fail(...)` reads
 * well. */
__attribute__((format(printf, 3, 4))) ml_status ml_fail(ml_err *err, ml_status code,
                                                        const char *fmt, ...);

/* "prefix: message", once, by a caller that knows what was being attempted. */
__attribute__((format(printf, 2, 3))) void ml_err_prefix(ml_err *err, const char *fmt, ...);

#endif
