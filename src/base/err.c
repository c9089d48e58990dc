#include "base/err.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/shown.h"

/* A message of n bytes was written; marks it if it was truncated. */
static void mark_cut(ml_err *err, size_t n) {
    if (n >= sizeof err->msg)
        ml_str_copy(err->msg, sizeof err->msg, (ml_str){ err->msg, sizeof err->msg });
}

ml_status ml_fail(ml_err *err, ml_status code, const char *fmt, ...) {
    if (err) {
        va_list ap;
        va_start(ap, fmt);
        err->code = code;
        mark_cut(err, (size_t)vsnprintf(err->msg, sizeof err->msg, fmt, ap));
        va_end(ap);
        ml_show_within(err->msg, sizeof err->msg, ML_SHOWN_ONE_LINE);
    }
    return code;
}

void ml_err_prefix(ml_err *err, const char *fmt, ...) {
    char old[sizeof err->msg];
    va_list ap;
    size_t n;

    if (!err)
        return;
    memcpy(old, err->msg, sizeof old);
    va_start(ap, fmt);
    vsnprintf(err->msg, sizeof err->msg, fmt, ap);
    va_end(ap);
    n = strlen(err->msg);
    n += (size_t)snprintf(err->msg + n, sizeof err->msg - n, ": %s", old);
    mark_cut(err, n);
    ml_show_within(err->msg, sizeof err->msg, ML_SHOWN_ONE_LINE);
}

void ml_bug(const char *file, int line, const char *what) {
    fprintf(stderr, "miles: internal error at %s:%d: %s\n", file, line, what);
    abort();
}
