#include "gen/supervisor.h"

#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/child.h"
#include "base/clock.h"
#include "base/log.h"
#include "gen/remote.h"
#include "net/http_client.h"

#define TICK_S 0.02
#define MOST_STARTS 3 /* consecutive starts that end before the engine is ready */

typedef struct engine {
    ml_supervisor *supervisor;
    int32_t i;
    ml_child child;
    ml_text said; /* its first line, as far as it was read */
    char *url;    /* NULL: it is not ready yet */
    char *log;
    int32_t n_vain; /* consecutive starts after which it was never ready */
    double start_at, check_at;
    ml_http_job *check;
    int status; /* HTTP status of the health check */
} engine;

struct ml_supervisor {
    ml_supervisor_opts opts;
    engine *engine; /* [opts.n] */
    /* on the loop's thread only */
    ml_gen *remote; /* the generator that engines are restarted for, or NULL */
    bool starting;  /* the first start of all engines */
    bool failed;    /* no engine is started any more */
    pthread_t thread;
    ml_loop *loop;
    ml_http_client *client;
    ml_timer *tick;

    pthread_mutex_t lock; /* guards the fields below */
    pthread_cond_t change;
    int32_t n_ready;
    bool broken;
    ml_err why;
};

/* --- output of an engine, on the loop's thread --------------------------------------- */

/* The last line of its log that is not empty: usually the reason why it ended. */
static void last_words(const engine *e, char *out, size_t cap) {
    FILE *f = fopen(e->log, "r");
    char line[600];

    *out = 0;
    while (f && fgets(line, sizeof line, f)) {
        line[strcspn(line, "\n")] = 0;
        if (*line)
            snprintf(out, cap, "%s", line);
    }
    if (f)
        fclose(f);
}

static void fail(engine *e, const char *what) {
    ml_supervisor *f = e->supervisor;
    char words[600];

    last_words(e, words, sizeof words);
    f->failed = true;
    pthread_mutex_lock(&f->lock);
    f->broken = true;
    ml_fail(&f->why, ML_EPEER, "engine %d %s%s%s; see its log %s", (int)e->i, what,
            *words ? ": " : "", words, e->log);
    pthread_cond_signal(&f->change);
    pthread_mutex_unlock(&f->lock);
    if (f->remote)
        ml_remote_give_up(f->remote, f->why.msg);
}

static void now_ready(engine *e, const char *url, size_t len) {
    ml_supervisor *f = e->supervisor;
    ml_text own = { 0 };

    ml_text_add(&own, url, len);
    e->url = own.ptr;
    e->n_vain = 0;
    e->check_at = ml_clock_s() + f->opts.first_check_s + f->opts.check_s;
    pthread_mutex_lock(&f->lock);
    f->n_ready++;
    f->starting = f->starting && f->n_ready < f->opts.n;
    pthread_cond_signal(&f->change);
    pthread_mutex_unlock(&f->lock);
    if (!f->remote)
        return;
    ml_log(ML_LOG_WARN, "engine %d is ready again, at %s", (int)e->i, e->url);
    ml_remote_move(f->remote, e->i, e->url);
}

/* Lines after the first are read and discarded, so that the pipe never fills. */
static void listen_to(engine *e) {
    const char *at;

    ml_child_read(&e->child, &e->said);
    if (e->url) {
        e->said.len = 0;
        return;
    }
    at = e->said.len ? strstr(e->said.ptr, "http://") : NULL;
    if (at && strchr(at, '\n'))
        now_ready(e, at, strcspn(at, " \r\n"));
}

/* --- start and end, on the loop's thread --------------------------------------------- */

static void start(engine *e) {
    const ml_supervisor_opts *o = &e->supervisor->opts;
    ml_err err = { 0 };

    e->said.len = 0;
    if (ml_child_start(&e->child, o->program, o->argv, o->env, e->log, &err) == ML_OK)
        return;
    ml_err_prefix(&err, "cannot be started");
    fail(e, err.msg);
}

static void forget(engine *e) {
    if (e->check)
        ml_http_cancel(e->check);
    e->check = NULL;
    free(e->url);
    e->url = NULL;
}

/* An engine that was ready is restarted at once; each failed start in a row adds 1 s. */
static void bury(engine *e, int status) {
    ml_supervisor *f = e->supervisor;
    bool served = e->url != NULL;
    ml_text what = { 0 };

    forget(e);
    ml_child_format_end(&what, status);
    e->n_vain = served ? 0 : e->n_vain + 1;
    e->start_at = ml_clock_s() + e->n_vain;
    if (!f->opts.restart || !f->remote || e->n_vain >= MOST_STARTS)
        fail(e, what.ptr);
    else
        ml_log(ML_LOG_WARN, "engine %d %s; restarting it; see its log %s", (int)e->i,
               what.ptr, e->log);
    ml_text_release(&what);
}

/* --- health checks, on the loop's thread ---------------------------------------------- */

static void on_head(void *ud, int status, ml_str headers) {
    engine *e = ud;
    (void)headers;
    e->status = status;
}

/* Kills an unhealthy engine; the next tick sees the end of the process and restarts it. */
static void on_checked(void *ud, const ml_err *err) {
    engine *e = ud;
    ml_err why = { 0 };

    e->check = NULL;
    if (!err && e->status == 200)
        return;
    if (err)
        why = *err;
    else
        ml_fail(&why, ML_EPEER, "%s returned status %d", e->url, e->status);
    ml_log(ML_LOG_WARN, "engine %d failed its health check and is killed: %s", (int)e->i,
           why.msg);
    kill(e->child.pid, SIGKILL);
}

static void check(engine *e) {
    const ml_supervisor_opts *o = &e->supervisor->opts;
    ml_text url = { 0 }, headers = { 0 };
    ml_err err = { 0 };

    e->check_at = ml_clock_s() + o->check_s;
    e->status = 0;
    ml_text_printf(&url, "%s/health_generate", e->url);
    if (o->api_key)
        ml_text_printf(&headers, "Authorization: Bearer %s\n", o->api_key);
    if (ml_http_start(&e->check, e->supervisor->client,
                      &(ml_http_request){ .method = "GET",
                                          .url = url.ptr,
                                          .headers = headers.ptr,
                                          .connect_s = o->timeout_s,
                                          .total_s = o->timeout_s },
                      (ml_http_fns){ .head = on_head, .done = on_checked, .ud = e },
                      &err) != ML_OK)
        on_checked(e, &err);
    ml_text_release(&url);
    ml_text_release(&headers);
}

static void look_after(engine *e) {
    ml_supervisor *f = e->supervisor;
    int status;

    if (e->child.pid == 0) {
        if (ml_clock_s() >= e->start_at)
            start(e);
        return;
    }
    listen_to(e);
    if (ml_child_ended(&e->child, &status))
        bury(e, status);
    else if (f->remote && e->url && !e->check && ml_clock_s() >= e->check_at)
        check(e);
}

static void tick(void *ud) {
    ml_supervisor *f = ud;

    for (int32_t i = 0; i < f->opts.n && (f->starting || f->remote) && !f->failed; i++)
        look_after(&f->engine[i]);
}

/* --- from the owner's thread ---------------------------------------------------------- */

typedef struct errand {
    ml_supervisor *supervisor;
    ml_gen *remote;
    int32_t engine;
    bool done; /* under the supervisor's mutex */
} errand;

static void end_errand(errand *e) {
    ml_supervisor *f = e->supervisor;

    pthread_mutex_lock(&f->lock);
    e->done = true;
    pthread_cond_signal(&f->change);
    pthread_mutex_unlock(&f->lock);
}

/* Runs fn on the loop's thread and waits until it is done. */
static void run_errand(errand *e, ml_loop_fn *fn) {
    ml_supervisor *f = e->supervisor;

    ml_loop_post(f->loop, fn, e);
    pthread_mutex_lock(&f->lock);
    while (!e->done)
        pthread_cond_wait(&f->change, &f->lock);
    pthread_mutex_unlock(&f->lock);
}

static void set_remote(void *ud) {
    errand *e = ud;

    e->supervisor->remote = e->remote;
    end_errand(e);
}

void ml_supervisor_serve(ml_supervisor *f, ml_gen *remote) {
    run_errand(&(errand){ .supervisor = f, .remote = remote }, set_remote);
}

static void crash(void *ud) {
    errand *e = ud;
    const engine *victim = &e->supervisor->engine[e->engine];

    if (victim->child.pid > 0)
        kill(victim->child.pid, SIGKILL);
    ml_log(ML_LOG_WARN, "engine %d %s, as requested", (int)e->engine,
           victim->child.pid > 0 ? "is killed" : "cannot be killed: it is already dead");
    end_errand(e);
}

void ml_supervisor_crash(ml_supervisor *f, int32_t i) {
    run_errand(&(errand){ .supervisor = f, .engine = i }, crash);
}

const char *ml_supervisor_url(const ml_supervisor *f, int32_t i) {
    return f->engine[i].url;
}

/* --- opening and closing ------------------------------------------------------------ */

static void *watch(void *ud) {
    ml_supervisor *f = ud;

    ml_loop_run(f->loop);
    ml_timer_stop(f->tick);
    for (int32_t i = 0; i < f->opts.n; i++) {
        forget(&f->engine[i]);
        ml_child_kill(&f->engine[i].child);
    }
    return NULL;
}

static void free_supervisor(ml_supervisor *f) {
    for (int32_t i = 0; f->engine && i < f->opts.n; i++) {
        ml_text_release(&f->engine[i].said);
        free(f->engine[i].log);
    }
    if (f->client)
        ml_http_client_free(f->client);
    if (f->loop)
        ml_loop_free(f->loop);
    pthread_cond_destroy(&f->change);
    pthread_mutex_destroy(&f->lock);
    free(f->engine);
    free(f);
}

void ml_supervisor_close(ml_supervisor *f) {
    if (!f)
        return;
    ml_loop_stop(f->loop);
    pthread_join(f->thread, NULL);
    free_supervisor(f);
}

static ml_status name_engines(ml_supervisor *f, ml_err *err) {
    ml_text log = { 0 };

    f->engine = calloc((size_t)f->opts.n, sizeof *f->engine);
    if (!f->engine)
        return ml_fail(err, ML_ENOMEM, "out of memory for %d engines", (int)f->opts.n);
    for (int32_t i = 0; i < f->opts.n; i++) {
        f->engine[i].supervisor = f;
        f->engine[i].i = i;
        ml_text_printf(&log, "%s/engine_%d.log", f->opts.log_dir, (int)i);
        f->engine[i].log = log.ptr;
        log = (ml_text){ 0 };
    }
    return ML_OK;
}

static ml_status begin(ml_supervisor *f, ml_err *err) {
    ml_status st = name_engines(f, err);

    if (st == ML_OK)
        st = ml_loop_new(&f->loop, err);
    if (st != ML_OK)
        return st;
    f->client = ml_http_client_new(f->loop);
    f->tick = ml_timer_start(f->loop, TICK_S, true, tick, f);
    if (pthread_create(&f->thread, NULL, watch, f) == 0)
        return ML_OK;
    ml_timer_stop(f->tick);
    return ml_fail(err, ML_ENOMEM, "cannot create a thread to monitor engines");
}

static ml_status await(ml_supervisor *f, ml_err *err) {
    ml_status st = ML_OK;

    pthread_mutex_lock(&f->lock);
    while (f->n_ready < f->opts.n && !f->broken)
        pthread_cond_wait(&f->change, &f->lock);
    if (f->broken)
        st = ml_fail(err, ML_EPEER, "%s", f->why.msg);
    pthread_mutex_unlock(&f->lock);
    return st;
}

ml_status ml_supervisor_open(ml_supervisor **out, const ml_supervisor_opts *o,
                             ml_err *err) {
    ml_supervisor *f = calloc(1, sizeof *f);
    ml_status st;

    if (!f)
        return ml_fail(err, ML_ENOMEM, "out of memory for engines");
    f->opts = *o;
    f->starting = true;
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->change, NULL);
    st = begin(f, err);
    if (st != ML_OK) {
        free_supervisor(f);
        return st;
    }
    st = await(f, err);
    if (st != ML_OK)
        ml_supervisor_close(f);
    else
        *out = f;
    return st;
}
