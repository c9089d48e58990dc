/* remote_control.c - requests that go to all servers at once. */
#include <string.h>

#include "base/json.h"
#include "gen/remote_priv.h"

/* The request to one of the servers. */
typedef struct question {
    struct broadcast *all;
    const char *url;
    int32_t step; /* the one that was sent last */
    ml_remote_query query;
} question;

typedef struct broadcast {
    ml_remote *remote;
    const char *method;
    ml_remote_steps steps;
    question *question;
    int32_t n, n_left;
    ml_text
        *listed; /* URLs that have succeeded, each between line ends; NULL: not listed */
    ml_status st;
    ml_err *err;
    pthread_mutex_t lock;
    pthread_cond_t done;
} broadcast;

/* Servers report "success": false with status 200 or 400. */
static bool is_refusal(const question *q) {
    const char *reply = q->query.reply.ptr;

    return reply && strstr(reply, "\"success\"") && strstr(reply, "false");
}

static void send_query(void *ud);

static void answered(void *ud, const ml_err *err) {
    question *q = ud;
    broadcast *b = q->all;
    int status = q->query.status;
    bool good = !err && status == 200 && !is_refusal(q);

    if (good && q->step + 1 < b->steps.n) {
        q->step++;
        send_query(q);
        return;
    }
    pthread_mutex_lock(&b->lock);
    if (good && b->listed)
        ml_text_printf(b->listed, "\n%s\n", q->url);
    if (b->st == ML_OK && err)
        b->st = ml_fail(b->err, ML_EAGAIN, "%s", err->msg);
    else if (b->st == ML_OK && !good)
        b->st =
            ml_fail(b->err, status >= 500 ? ML_EAGAIN : ML_EPEER,
                    "%s%s returned status %d: %.300s", q->url, b->steps.step[q->step].path,
                    status, q->query.reply.ptr ? q->query.reply.ptr : "");
    if (--b->n_left == 0)
        pthread_cond_signal(&b->done);
    pthread_mutex_unlock(&b->lock);
}

static void send_query(void *ud) {
    question *q = ud;
    broadcast *b = q->all;
    const ml_remote_step *step = &b->steps.step[q->step];
    ml_text reply = q->query.reply;

    q->query = (ml_remote_query){ .done = answered, .ud = q, .reply = reply };
    ml_remote_query_start(b->remote, &q->query,
                          &(ml_http_request){ .method = b->method,
                                              .body = ml_str_of(step->body),
                                              .max_body = ML_REMOTE_CONTROL_BYTES },
                          q->url, step->path);
}

/* Sends all requests and waits for the answers. */
static ml_status run(broadcast *b) {
    pthread_mutex_init(&b->lock, NULL);
    pthread_cond_init(&b->done, NULL);
    b->n_left = b->n;
    for (int32_t i = 0; i < b->n; i++) {
        b->question[i].all = b;
        ml_loop_post(b->remote->loop, send_query, &b->question[i]);
    }
    pthread_mutex_lock(&b->lock);
    while (b->n_left)
        pthread_cond_wait(&b->done, &b->lock);
    pthread_mutex_unlock(&b->lock);
    pthread_cond_destroy(&b->done);
    pthread_mutex_destroy(&b->lock);
    return b->st;
}

static void release(broadcast *b) {
    for (int32_t i = 0; i < b->n; i++)
        ml_text_release(&b->question[i].query.reply);
}

/* Our own routers forward such requests to their workers, with the workers' API keys. */
static bool fans_out(const ml_json *root) {
    const ml_json *v = ml_json_get(root, "fans_out");

    return v && v->type == ML_JSON_TRUE;
}

/* The workers behind a router.  For a plain server, the result is its own URL; likewise
 * for a router that forwards requests that need an API key. */
static int32_t workers_of(ml_remote *r, const char *url, const char **out, int32_t cap,
                          ml_arena *a) {
    question q = { .url = url };
    broadcast b = { .remote = r,
                    .method = "GET",
                    .steps = { &(ml_remote_step){ ML_REMOTE_WORKERS_PATH, "" }, 1 },
                    .question = &q,
                    .n = 1 };
    const ml_json *root, *urls;
    int32_t n = 0;

    if (run(&b) == ML_OK &&
        ml_json_parse(&root, a,
                      ml_str_of(ml_arena_str(a, q.query.reply.ptr ? q.query.reply.ptr : "",
                                             q.query.reply.len)),
                      url, NULL) == ML_OK &&
        !(r->opts.api_key && fans_out(root)) && (urls = ml_json_get(root, "urls")) != NULL)
        for (const ml_json *v = urls->child; v && n < cap; v = v->next)
            if (v->type == ML_JSON_STRING)
                out[n++] = ml_arena_str(a, v->text.ptr, v->text.len);
    if (n == 0)
        out[n++] = url;
    release(&b);
    return n;
}

/* A copy of the server's URL, which may change meanwhile.  NULL: skip this server. */
static const char *url_of(ml_remote *r, int32_t server, bool lost_too, ml_arena *a) {
    const ml_remote_server *s = &r->server[server];
    const char *url = NULL;

    pthread_mutex_lock(&r->lock);
    if (!s->banned && (!s->lost || lost_too))
        url = ml_arena_str(a, s->url, strlen(s->url));
    pthread_mutex_unlock(&r->lock);
    return url;
}

static bool is_done(const ml_text *done, const char *url) {
    ml_text line = { 0 };
    bool yes;

    ml_text_printf(&line, "\n%s\n", url);
    yes = done && done->ptr && strstr(done->ptr, line.ptr);
    ml_text_release(&line);
    return yes;
}

ml_status ml_remote_request_all(ml_remote *r, const char *method, ml_remote_steps steps,
                                ml_text *done, ml_err *err) {
    enum { MOST = ML_REMOTE_MOST_SERVERS };
    ml_arena a;
    const char **url;
    broadcast b = {
        .remote = r, .method = method, .steps = steps, .listed = done, .err = err
    };
    int32_t n = 0, n_server;
    ml_status st;

    pthread_mutex_lock(&r->lock);
    n_server = r->opts.n_url;
    pthread_mutex_unlock(&r->lock);
    ml_arena_init(&a, "remote servers");
    url = ML_NEW(&a, const char *, MOST);
    for (int32_t i = 0; i < n_server && n < MOST; i++) {
        const char *front = url_of(r, i, done != NULL, &a);
        n += front ? workers_of(r, front, url + n, MOST - n, &a) : 0;
    }
    b.question = ML_NEW(&a, question, n);
    for (int32_t i = 0; i < n; i++)
        if (!is_done(done, url[i]))
            b.question[b.n++].url = url[i];
    st = run(&b);
    release(&b);
    ml_arena_release(&a);
    return st;
}

ml_status ml_remote_post_all(ml_remote *r, const char *path, const char *body) {
    ml_remote_steps one = { &(ml_remote_step){ path, body }, 1 };

    return ml_remote_request_all(r, "POST", one, NULL, NULL);
}

/* --- on the loop's thread ------------------------------------------------------- */

typedef struct errand {
    ml_loop_fn *fn;
    void *ud;
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool done;
} errand;

static void run_errand(void *ud) {
    errand *e = ud;

    e->fn(e->ud);
    pthread_mutex_lock(&e->lock);
    e->done = true;
    pthread_cond_signal(&e->change);
    pthread_mutex_unlock(&e->lock);
}

void ml_remote_run_on_loop(ml_remote *r, ml_loop_fn *fn, void *ud) {
    errand e = { .fn = fn, .ud = ud };

    pthread_mutex_init(&e.lock, NULL);
    pthread_cond_init(&e.change, NULL);
    ml_loop_post(r->loop, run_errand, &e);
    pthread_mutex_lock(&e.lock);
    while (!e.done)
        pthread_cond_wait(&e.change, &e.lock);
    pthread_mutex_unlock(&e.lock);
    pthread_cond_destroy(&e.change);
    pthread_mutex_destroy(&e.lock);
}
