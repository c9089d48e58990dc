/* flag_words.h - runs the flag parser on command lines given as one string. */
#ifndef ML_TESTS_SUPPORT_FLAG_WORDS_H
#define ML_TESTS_SUPPORT_FLAG_WORDS_H

#include <stdio.h>
#include <string.h>

#include "base/log.h"
#include "cli/cli.h"
#include "tests/support/test.h"

static ml_config config;
static ml_text wrong;
static ml_help_asked help;

/* Parses words split at blanks; the buffer lives as long as config points into it. */
static inline ml_status parse(ml_cmd cmd, const char *words) {
    static char line[4000];
    static char *argv[200]; /* lists of the config point into it */
    char *save = NULL;
    int argc = 0;

    snprintf(line, sizeof line, "%s", words);
    for (char *w = strtok_r(line, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[argc++] = w;
    ml_text_release(&wrong);
    ml_config_release(&config);
    return ml_flags_parse(&config, &help, cmd, argc, argv, &wrong);
}

#define SCORE "--hf-checkpoint m --input i --output o "
#define CONVERT "--hf-checkpoint m --save-hf o "

static inline void check_refused(ml_cmd cmd, const char *words, const char *says) {
    if (parse(cmd, words) != ML_EUSAGE)
        ml_test_fail(__FILE__, __LINE__, "accepted: %s", words);
    else
        CHECK_HAS(wrong.ptr, says);
}

static char logged[2000]; /* lines */

static inline void keep_line(void *ud, ml_log_level level, const char *line) {
    size_t n = strlen(logged);

    (void)ud;
    CHECK(level == ML_LOG_WARN);
    snprintf(logged + n, sizeof logged - n, "%s\n", line);
}

/* Parses, and returns the logged lines. */
static inline const char *log_of(ml_cmd cmd, const char *words) {
    ml_log_to(keep_line, NULL);
    logged[0] = 0;
    if (parse(cmd, words) != ML_OK)
        ml_test_fail(__FILE__, __LINE__, "%s: %s", words, wrong.ptr);
    return logged;
}

/* A flag may be live in one command and ignored in another. */
static inline bool live_somewhere(const char *name) {
    for (const ml_flag_table *t = ml_flag_tables; t->row; t++)
        for (const ml_flag *f = t->row; f->name; f++)
            if (f->state == ML_FLAG_LIVE && strcmp(f->name, name) == 0)
                return true;
    return false;
}

#endif
