#include "run/trackers.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/guarded_process.h"
#include "base/log.h"

/* share/tracker.py at build time. */
__asm__(".pushsection .rodata\n"
        ".global ml_tracker_script\n"
        ".hidden ml_tracker_script\n"
        "ml_tracker_script:\n"
        ".incbin \"share/tracker.py\"\n"
        ".byte 0\n"
        ".popsection\n");
extern const char ml_tracker_script[];

struct ml_trackers {
    ml_guarded_process process;
    int input; /* its standard input: closing it tells that the run has ended */
    double linger_s;
    ml_text words; /* of its command line, for a message */
};

static bool uses_wandb(const ml_tracker_opts *o) {
    return o->wandb && !(o->wandb_mode && strcmp(o->wandb_mode, "disabled") == 0);
}

bool ml_trackers_wanted(const ml_tracker_opts *o) {
    return uses_wandb(o) || o->mlflow || o->trackio;
}

/* A word quoted for /bin/sh. */
static void add_word(ml_text *t, const char *word) {
    ml_text_printf(t, " '");
    for (; *word; word++)
        if (*word == '\'')
            ml_text_printf(t, "'\\''");
        else
            ml_text_add(t, word, 1);
    ml_text_printf(t, "'");
}

static void add_option(ml_text *t, const char *name, const char *value) {
    if (!value)
        return;
    ml_text_printf(t, " --%s", name);
    add_word(t, value);
}

static void add_words(ml_text *t, const ml_tracker_opts *o, const char *dir) {
    add_word(t, dir);
    if (uses_wandb(o)) {
        add_option(t, "wandb", o->wandb_mode ? o->wandb_mode : "online");
        add_option(t, "wandb-project", o->wandb_project);
        add_option(t, "wandb-team", o->wandb_team);
        add_option(t, "wandb-group", o->wandb_group);
        add_option(t, "wandb-run-id", o->wandb_id);
        add_option(t, "wandb-run-name", o->wandb_name);
        add_option(t, "wandb-dir", o->wandb_dir);
    }
    if (o->mlflow) {
        add_option(t, "mlflow", o->mlflow_uri ? o->mlflow_uri : "");
        add_option(t, "mlflow-experiment-name", o->mlflow_experiment);
        add_option(t, "mlflow-run-name", o->mlflow_name);
        add_option(t, "mlflow-run-id", o->mlflow_id);
    }
    if (o->trackio) {
        ml_text_printf(t, " --trackio");
        add_option(t, "trackio-project", o->trackio_project);
    }
}

/* The script is read from descriptor 3; other users can see command lines, so that the key is
 * in the environment. */
static ml_status start(ml_trackers *t, const ml_tracker_opts *o, const char *log, int input,
                       ml_err *err) {
    int script = memfd_create("tracker.py", MFD_CLOEXEC);
    int out = open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0666);
    size_t n = strlen(ml_tracker_script);
    ml_text line = { 0 }, why = { 0 };
    ml_status st = ML_OK;

    if (o->wandb_key)
        setenv("WANDB_API_KEY", o->wandb_key, 1);
    if (o->wandb_host)
        setenv("WANDB_BASE_URL", o->wandb_host, 1);
    ml_text_printf(&line, "exec python3 /dev/fd/3%s --follow --linger %g", t->words.ptr,
                   o->linger_s);
    if (script < 0 || out < 0 || write(script, ml_tracker_script, n) != (ssize_t)n)
        st = ml_fail(err, ML_EIO, "%s: cannot open: %s", log, strerror(errno));
    else if (!ml_guarded_process_start(&t->process, line.ptr,
                                       (int[]){ input, out, out, script }, 4, &why))
        st = ml_fail(err, ML_EIO, "cannot start python3 for the trackers: %s", why.ptr);
    if (script >= 0)
        close(script);
    if (out >= 0)
        close(out);
    ml_text_release(&line);
    ml_text_release(&why);
    return st;
}

ml_status ml_trackers_open(ml_trackers **out, const ml_tracker_opts *o, const char *dir,
                           ml_err *err) {
    ml_trackers *t = calloc(1, sizeof *t);
    ml_text log = { 0 };
    int pipe_end[2];
    ml_status st;

    if (!t)
        return ml_fail(err, ML_ENOMEM, "out of memory for the trackers");
    t->linger_s = o->linger_s;
    add_words(&t->words, o, dir);
    ml_text_printf(&log, "%s/logs", dir);
    st = ml_dir_make(log.ptr, err);
    ml_text_printf(&log, "/tracker.log");
    if (st == ML_OK && pipe2(pipe_end, O_CLOEXEC) != 0)
        st = ml_fail(err, ML_EIO, "cannot create a pipe: %s", strerror(errno));
    if (st == ML_OK) {
        st = start(t, o, log.ptr, pipe_end[0], err);
        close(pipe_end[0]);
        t->input = pipe_end[1] + 1;
    }
    ml_text_release(&log);
    if (st != ML_OK) {
        ml_trackers_close(t);
        return st;
    }
    *out = t;
    return ML_OK;
}

void ml_trackers_close(ml_trackers *t) {
    int status = 0;

    if (!t)
        return;
    if (t->input)
        close(t->input - 1);
    if (t->process.pid) {
        ml_guarded_process_stop(&t->process, t->linger_s + 10, &status);
        if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            ml_log(ML_LOG_WARN,
                   "not all metrics have reached the trackers, see logs/tracker.log in the "
                   "run; send the rest with: python3 share/tracker.py%s",
                   t->words.ptr);
    }
    ml_text_release(&t->words);
    free(t);
}
