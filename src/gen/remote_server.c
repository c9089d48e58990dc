/* remote_server.c - the state of servers: load balancing, loss, recovery, replacement. */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "base/oom.h"
#include "gen/remote_priv.h"

static int32_t least_loaded(const ml_remote *r, int32_t from) {
    int32_t best = -1;

    for (int32_t k = 0; k < r->opts.n_url; k++) {
        int32_t i = (from + k) % r->opts.n_url;
        if (!r->server[i].lost && !r->server[i].banned &&
            (best < 0 || r->server[i].n_call < r->server[best].n_call))
            best = i;
    }
    return best;
}

static int32_t by_policy(const ml_remote *r, const ml_remote_call *c) {
    const ml_remote_policy *p = &r->opts.policy;
    int32_t n = r->opts.n_url, i;
    ml_remote_choice *load =
        ml_memory_grow(NULL, (size_t)n * sizeof *load, "the loads of servers");

    for (i = 0; i < n; i++) {
        const ml_remote_server *s = &r->server[i];
        load[i] =
            (ml_remote_choice){ s->url, !s->lost && !s->banned, s->n_call, s->n_sent };
    }
    i = p->pick(p->ud, load, n, (ml_str){ c->body.ptr, c->body.len });
    free(load);
    return i;
}

/* After a failure, another server is preferred among equally loaded ones. */
int32_t ml_remote_choose(const ml_remote *r, const ml_remote_call *c) {
    return r->opts.policy.pick && !c->n_failed
               ? by_policy(r, c)
               : least_loaded(r, (int32_t)(c->ticket % 1024) + c->n_failed);
}

/* --- recovery -------------------------------------------------------------------- */

static void query_again(void *ud);

static void tell(const ml_remote_server *s, bool usable) {
    const ml_remote *r = s->remote;

    if (r->watch)
        r->watch(r->watch_ud, s->url, s->key, usable);
}

static void set_lost(ml_remote_server *s, bool lost) {
    pthread_mutex_lock(&s->remote->lock);
    s->lost = lost;
    pthread_mutex_unlock(&s->remote->lock);
    tell(s, !lost && !s->banned);
}

static void rest(ml_remote_server *s) {
    ml_timer_stop(s->timer);
    s->timer =
        ml_timer_start(s->remote->loop, s->remote->opts.retry_s, false, query_again, s);
}

static void on_back(ml_remote_server *s) {
    set_lost(s, false);
    ml_log(ML_LOG_WARN, "%s is back, with the current weights", s->url);
}

static void on_continued(void *ud, const ml_err *err) {
    ml_remote_server *s = ud;

    if (err)
        rest(s);
    else
        on_back(s);
}

static void post(ml_remote_server *s, const char *path, const char *body,
                 void (*done)(void *ud, const ml_err *err)) {
    s->query.done = done;
    s->query.ud = s;
    ml_remote_query_start(s->remote, &s->query,
                          &(ml_http_request){ .method = "POST",
                                              .body = ml_str_of(body),
                                              .max_body = ML_REMOTE_CONTROL_BYTES },
                          s->url, path);
}

/* True: the server refused or did not answer; the recovery is retried after retry_s. */
static bool refused(ml_remote_server *s, const ml_err *err) {
    if (!err && s->query.status == 200)
        return false;
    if (!err && !s->refused)
        ml_log(ML_LOG_WARN, "%s did not load its weights; retrying: %.300s", s->url,
               s->query.reply.ptr ? s->query.reply.ptr : "");
    s->refused = !err;
    rest(s);
    return true;
}

/* A server that was not restarted may still be paused by us. */
static void on_loaded(ml_remote_server *s) {
    ml_remote *r = s->remote;
    bool paused;

    s->refused = false;
    pthread_mutex_lock(&r->lock);
    paused = r->stats.paused;
    pthread_mutex_unlock(&r->lock);
    if (paused)
        on_back(s);
    else
        post(s, "/continue_generation", "{}", on_continued);
}

static void take_step(ml_remote_server *s);

static void on_step(void *ud, const ml_err *err) {
    ml_remote_server *s = ud;

    if (!refused(s, err))
        take_step(s);
}

static void take_step(ml_remote_server *s) {
    const ml_remote_step *next = &s->reload.step[s->next_step];

    if (s->next_step++ < s->reload.n)
        post(s, next->path, next->body, on_step);
    else
        on_loaded(s);
}

static void query_again(void *ud) {
    ml_remote_server *s = ud;
    ml_remote *r = s->remote;

    ml_timer_stop(s->timer);
    s->timer = NULL;
    if (!s->lost || s->banned)
        return;
    pthread_mutex_lock(&r->lock);
    s->reload = r->weights.steps;
    pthread_mutex_unlock(&r->lock);
    s->next_step = 0;
    if (s->reload.n)
        take_step(s);
    else /* the first update failed: no weights are required */
        set_lost(s, false);
}

/* --- loss -------------------------------------------------------------------------- */

void ml_remote_mark_lost(ml_remote *r, int32_t server, const char *why) {
    ml_remote_server *s = &r->server[server];
    bool weights;

    pthread_mutex_lock(&r->lock);
    weights = r->weights.steps.n > 0;
    pthread_mutex_unlock(&r->lock);
    if (s->lost || !weights)
        return;
    set_lost(s, true);
    ml_log(ML_LOG_WARN,
           "%s; waiting for %s, which then gets its weights and its requests again", why,
           s->url);
    rest(s);
}

static bool all_banned(const ml_remote *r) {
    for (int32_t i = 0; i < r->opts.n_url; i++)
        if (!r->server[i].banned)
            return false;
    return true;
}

void ml_remote_bad_reply(ml_remote *r, int32_t server, const char *why) {
    ml_remote_server *s = &r->server[server];
    ml_text sentence = { 0 };

    if (++s->n_bad < ML_REMOTE_MOST_BAD || s->banned)
        return;
    pthread_mutex_lock(&r->lock);
    s->banned = true;
    pthread_mutex_unlock(&r->lock);
    tell(s, false);
    ml_text_printf(&sentence,
                   "%s is not used any more: %d invalid replies in a row; the last: %s",
                   s->url, s->n_bad, why);
    ml_log(ML_LOG_WARN, "%s", sentence.ptr);
    if (all_banned(r))
        ml_remote_give_up(&r->gen, sentence.ptr);
    ml_text_release(&sentence);
}

void ml_remote_stale_reply(ml_remote_call *c, const char *why) {
    ml_text sentence = { 0 };

    if (++c->n_stale < ML_REMOTE_MOST_BAD)
        return;
    ml_text_printf(&sentence, "%d replies to one request had older weights; the last: %s",
                   c->n_stale, why);
    ml_remote_give_up(&c->remote->gen, sentence.ptr);
    ml_text_release(&sentence);
}

void ml_remote_failing(ml_remote *r, const char *why) {
    const ml_remote_opts *o = &r->opts;
    double now = ml_clock_s(), waited;
    ml_text sentence = { 0 };

    if (r->failing_since == 0) {
        r->failing_since = now;
        r->failing_warn = o->warn_s;
    }
    waited = now - r->failing_since;
    if (o->warn_s > 0 && waited >= r->failing_warn) {
        ml_log(ML_LOG_WARN, "no engine has answered a request for %.0f s: %s", waited, why);
        r->failing_warn *= 2;
    }
    if (o->request_s > 0 && waited >= o->request_s) {
        ml_text_printf(&sentence, "no engine has answered a request for %g s: %s",
                       o->request_s, why);
        ml_remote_give_up(&r->gen, sentence.ptr);
    }
    ml_text_release(&sentence);
}

/* --- replacement ------------------------------------------------------------------ */

/* The new process has its initial weights, so it is lost even if the old one was not. */
static void moved(void *ud) {
    ml_remote_server *s = ud;
    ml_remote *r = s->remote;

    tell(s, false);
    pthread_mutex_lock(&r->lock);
    if (s->next_url) {
        free(s->url);
        s->url = s->next_url;
        s->next_url = NULL;
        s->lost = r->weights.steps.n > 0;
        s->banned = false;
        s->n_bad = 0;
    }
    pthread_mutex_unlock(&r->lock);
    ml_remote_query_cancel(&s->query);
    query_again(s);
}

void ml_remote_move(ml_gen *g, int32_t server, const char *url) {
    ml_remote *r = (ml_remote *)g;
    ml_remote_server *s = &r->server[server];
    ml_text own = { 0 };

    ml_text_printf(&own, "%s", url);
    pthread_mutex_lock(&r->lock);
    free(s->next_url);
    s->next_url = own.ptr;
    pthread_mutex_unlock(&r->lock);
    ml_loop_post(r->loop, moved, s);
}

/* --- servers that come and go ------------------------------------------------------ */

typedef struct change {
    ml_remote *remote;
    char *url, *key;
} change;

static void free_change(change *c) {
    free(c->url);
    free(c->key);
    free(c);
}

static ml_remote_server *find_server(ml_remote *r, const char *url) {
    for (int32_t i = 0; i < r->opts.n_url; i++)
        if (strcmp(r->server[i].url, url) == 0)
            return &r->server[i];
    return NULL;
}

/* One that was removed before has its place again. */
static ml_remote_server *take_place(ml_remote *r, const change *c) {
    ml_remote_server *s = find_server(r, c->url);

    if (s && s->banned) {
        s->banned = false;
        s->n_bad = 0;
        return s;
    }
    if (s)
        return NULL;
    if (r->opts.n_url == ML_REMOTE_MOST_SERVERS) {
        ml_log(ML_LOG_WARN, "%s is not added: there are %d engines already", c->url,
               (int)r->opts.n_url);
        return NULL;
    }
    s = &r->server[r->opts.n_url];
    ml_remote_server_init(r, s, c->url, c->key);
    r->opts.n_url++;
    return s;
}

static void add_server(void *ud) {
    change *c = ud;
    ml_remote *r = c->remote;
    ml_remote_server *s;

    pthread_mutex_lock(&r->lock);
    s = take_place(r, c);
    if (s)
        s->lost = r->weights.steps.n > 0;
    pthread_mutex_unlock(&r->lock);
    if (s)
        ml_log(ML_LOG_WARN, "%s is added%s", s->url,
               s->lost ? "; it gets the current weights, then requests" : "");
    if (s && s->lost)
        query_again(s);
    free_change(c);
}

static void remove_server(void *ud) {
    change *c = ud;
    ml_remote *r = c->remote;
    ml_remote_server *s = find_server(r, c->url);

    if (s && !s->banned) {
        pthread_mutex_lock(&r->lock);
        s->banned = true;
        pthread_mutex_unlock(&r->lock);
        ml_timer_stop(s->timer);
        s->timer = NULL;
        ml_remote_query_cancel(&s->query);
        tell(s, false);
        ml_log(ML_LOG_WARN, "%s is removed: it gets no more requests", s->url);
    }
    free_change(c);
}

static void post_change(ml_gen *g, const char *url, const char *key, ml_loop_fn *fn) {
    change *c = ml_memory_grow(NULL, sizeof *c, "a server");
    ml_text u = { 0 }, k = { 0 };

    ml_text_printf(&u, "%s", url);
    if (key)
        ml_text_printf(&k, "%s", key);
    *c = (change){ (ml_remote *)g, u.ptr, k.ptr };
    ml_loop_post(c->remote->loop, fn, c);
}

void ml_remote_add(ml_gen *g, const char *url, const char *key) {
    post_change(g, url, key, add_server);
}

void ml_remote_remove(ml_gen *g, const char *url) {
    post_change(g, url, NULL, remove_server);
}

typedef struct watcher {
    ml_remote *remote;
    ml_remote_watch_fn *fn;
    void *ud;
} watcher;

static void set_watch(void *ud) {
    const watcher *w = ud;

    w->remote->watch = w->fn;
    w->remote->watch_ud = w->ud;
}

void ml_remote_watch(ml_gen *g, ml_remote_watch_fn *fn, void *ud) {
    watcher w = { (ml_remote *)g, fn, ud };

    ml_remote_run_on_loop(w.remote, set_watch, &w);
}

void ml_remote_give_up(ml_gen *g, const char *why) {
    ml_remote *r = (ml_remote *)g;

    pthread_mutex_lock(&r->lock);
    r->given_up = true;
    ml_fail(&r->given_up_why, ML_EPEER, "%s", why);
    pthread_mutex_unlock(&r->lock);
    ml_loop_post(r->loop, ml_remote_drop_waiting, r);
}

ml_status ml_remote_check_given_up(ml_remote *r, ml_err *err) {
    ml_status st = ML_OK;

    pthread_mutex_lock(&r->lock);
    if (r->given_up)
        st = ml_fail(err, ML_EPEER, "%s", r->given_up_why.msg);
    pthread_mutex_unlock(&r->lock);
    return st;
}

void ml_remote_mark_all_loaded(void *remote) {
    ml_remote *r = remote;

    for (int32_t i = 0; i < r->opts.n_url; i++)
        if (!r->server[i].query.job)
            set_lost(&r->server[i], false);
}

void ml_remote_cancel_reloads(ml_remote *r) {
    for (int32_t i = 0; i < r->opts.n_url; i++) {
        ml_timer_stop(r->server[i].timer);
        ml_remote_query_release(&r->server[i].query);
    }
}
