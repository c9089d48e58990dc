#include "cli/rank_log.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/dir.h"
#include "rl/loop/iteration.h"

/* The process has one log. */
static struct {
    pthread_mutex_t lock;
    ml_text kept; /* before the file is open */
    FILE *file;
    bool dropped; /* there is no file */
} the = { .lock = PTHREAD_MUTEX_INITIALIZER };

void ml_rank_log_line(const char *line) {
    time_t now = time(NULL);
    char when[40] = "";
    struct tm tm;

    strftime(when, sizeof when, "%Y-%m-%dT%H:%M:%SZ", gmtime_r(&now, &tm));
    pthread_mutex_lock(&the.lock);
    if (the.file) {
        fprintf(the.file, "%s %s\n", when, line);
        fflush(the.file);
    } else if (!the.dropped) {
        ml_text_printf(&the.kept, "%s %s\n", when, line);
    }
    pthread_mutex_unlock(&the.lock);
}

static ml_status open_file(FILE **out, const char *dir, int32_t rank, ml_err *err) {
    ml_text path = { 0 };
    ml_status st;

    ml_text_printf(&path, "%s/logs", dir);
    st = ml_dir_make(path.ptr, err);
    ml_text_printf(&path, "/rank_%d.log", (int)rank);
    if (st == ML_OK)
        *out = fopen(path.ptr, "a");
    if (st == ML_OK && !*out)
        st = ml_fail(err, ML_EIO, "%s: cannot create the log of rank %d: %s", path.ptr,
                     (int)rank, strerror(errno));
    ml_text_release(&path);
    return st;
}

ml_status ml_rank_log_open(const char *dir, int32_t rank, ml_err *err) {
    FILE *file = NULL;
    ml_status st = dir ? open_file(&file, dir, rank, err) : ML_OK;

    pthread_mutex_lock(&the.lock);
    the.file = file;
    the.dropped = !file;
    if (file && the.kept.len)
        fputs(the.kept.ptr, file);
    ml_text_release(&the.kept);
    pthread_mutex_unlock(&the.lock);
    return st;
}

/* --- the display -------------------------------------------------------------------- */

static const char *stage_line(ml_stage stage, bool first) {
    static const char *const stages[ML_N_STAGE] = {
        "waiting for the samples of rank 0",  "training",   "saving, if rank 0 decides so",
        "waiting until nothing is generated", "publishing", "evaluating"
    };

    return first && stage == ML_STAGE_ROLLOUT ? "generating"
           : first && stage == ML_STAGE_SAVE  ? "saving, if it is time"
                                              : stages[stage];
}

static ml_status on_event(void *self, const ml_loop_event *e, ml_err *err) {
    const ml_display *terminal = self;
    char line[200];

    if (e->kind == ML_ON_STAGE) {
        snprintf(line, sizeof line, "rollout %lld: %s", (long long)e->rollout,
                 stage_line(e->stage, terminal != NULL));
        ml_rank_log_line(line);
    }
    return terminal ? terminal->progress.on(terminal->progress.self, e, err) : ML_OK;
}

ml_display ml_rank_log_display(const ml_display *terminal) {
    static ml_display of; /* the observer's */
    ml_display d = { .say = ml_rank_log_line };

    if (terminal) {
        of = *terminal;
        d = of;
    }
    d.progress = (ml_observer){ terminal ? &of : NULL, on_event };
    return d;
}
