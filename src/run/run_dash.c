#include "run/run_dash.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/log.h"
#include "base/secret.h"
#include "dash/dash.h"

struct ml_run_dash {
    ml_loop *loop;
    ml_dash *dash;
    ml_secret key;
    pthread_t thread;
    bool running;
    const char *dir;
};

static void *serve(void *ud) {
    ml_loop_run(((ml_run_dash *)ud)->loop);
    return NULL;
}

/* A second run on the machine finds the port in use; that is no reason to end it. */
static ml_status listen_on(ml_run_dash *d, ml_dash_opts *o, ml_err *err) {
    ml_status st = ml_dash_open(&d->dash, d->loop, o, err);

    if (st != ML_EIO || o->port == 0)
        return st;
    ml_log(ML_LOG_WARN, "--dashboard-port: %s; another port is used", err->msg);
    o->port = 0;
    return ml_dash_open(&d->dash, d->loop, o, err);
}

static ml_status start(ml_run_dash *d, const ml_run_dash_opts *opts, ml_err *err) {
    ml_dash_opts o = { .host = opts->host, .port = opts->port, .dir = &d->dir, .n_dir = 1 };
    ml_status st =
        ml_secret_find(&d->key, NULL, opts->key_file, "--dashboard-api-key", err);

    o.access.api_key = ml_secret_text(&d->key);
    if (st == ML_OK)
        st = ml_loop_new(&d->loop, err);
    if (st == ML_OK)
        st = listen_on(d, &o, err);
    if (st != ML_OK)
        return st;
    d->running = pthread_create(&d->thread, NULL, serve, d) == 0;
    return d->running ? ML_OK
                      : ml_fail(err, ML_ENOMEM, "cannot create a thread for the dashboard");
}

ml_status ml_run_dash_open(ml_run_dash **out, const ml_run_dash_opts *opts, const char *dir,
                           void (*say)(const char *line), ml_err *err) {
    ml_run_dash *d = calloc(1, sizeof *d);
    ml_text line = { 0 };
    ml_status st;

    if (!d)
        return ml_fail(err, ML_ENOMEM, "out of memory for the dashboard");
    d->dir = dir;
    st = start(d, opts, err);
    if (st != ML_OK) {
        ml_err_prefix(err, "--use-miles-dashboard");
        ml_run_dash_close(d);
        return st;
    }
    ml_text_printf(&line, "dashboard: http://%s:%d", opts->host, ml_dash_port(d->dash));
    say(line.ptr);
    ml_text_release(&line);
    *out = d;
    return ML_OK;
}

void ml_run_dash_close(ml_run_dash *d) {
    if (!d)
        return;
    if (d->running) {
        ml_loop_stop(d->loop);
        pthread_join(d->thread, NULL);
    }
    ml_dash_close(d->dash);
    if (d->loop)
        ml_loop_free(d->loop);
    free(d);
}
