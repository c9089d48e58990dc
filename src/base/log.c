#include "base/log.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>

#include "base/shown.h"

static ml_log_sink *the_sink;
static void *the_ud;

void ml_log_to(ml_log_sink *sink, void *ud) {
    the_sink = sink;
    the_ud = ud;
}

void ml_log(ml_log_level level, const char *fmt, ...) {
    char line[1200];
    va_list ap;

    if (!the_sink)
        return;
    va_start(ap, fmt);
    vsnprintf(line, sizeof line, fmt, ap);
    va_end(ap);
    ml_show_within(line, sizeof line, ML_SHOWN_ONE_LINE);
    the_sink(the_ud, level, line);
}
