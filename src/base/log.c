#include "base/log.h"

#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/shown.h"

static ml_log_sink *the_sink;
static void *the_ud;

void ml_log_to(ml_log_sink *sink, void *ud) {
    the_sink = sink;
    the_ud = ud;
}

/* Lines longer than the stack buffer are allocated. */
void ml_log(ml_log_level level, const char *fmt, ...) {
    char usual[1200], *line = usual;
    va_list ap, again;
    size_t n;

    if (!the_sink)
        return;
    va_start(ap, fmt);
    va_copy(again, ap);
    n = (size_t)vsnprintf(usual, sizeof usual, fmt, ap);
    if (n >= sizeof usual && (line = malloc(n + 1)) != NULL)
        vsnprintf(line, n + 1, fmt, again);
    va_end(again);
    va_end(ap);
    if (!line) {
        line = usual;
        ml_str_copy(line, sizeof usual, (ml_str){ usual, sizeof usual });
    }
    ml_show_within(line, line == usual ? sizeof usual : n + 1, ML_SHOWN_ONE_LINE);
    the_sink(the_ud, level, line);
    if (line != usual)
        free(line);
}
