#include "tests/support/log_text.h"

#include "base/log.h"

static void keep_line(void *ud, ml_log_level level, const char *line) {
    ml_text *t = ud;
    (void)level;
    ml_text_printf(t, "%s\n", line);
}

void ml_log_to_text(ml_text *t) {
    ml_log_to(keep_line, t);
}
