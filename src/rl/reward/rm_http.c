#include "rl/reward/rm_http.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/arena.h"
#include "base/clock.h"
#include "net/http_client.h"

#define FIRST_WAIT_S 0.1 /* between the first two attempts; doubles */
#define BODY_MAX (4 << 20)

struct ml_rm_http {
    ml_arena arena; /* this struct is allocated in it */
    const char *url, *headers;
    ml_loop *loop;
    ml_http_client *client;
    /* The current request. */
    ml_http_job *job;
    ml_text *body;
    int status;
    bool late, failed;
};

ml_status ml_rm_http_open(ml_rm_http **out, const char *url, ml_err *err) {
    ml_arena arena;
    ml_rm_http *r;
    ml_status st;

    ml_arena_init(&arena, "reward server");
    r = ML_NEW(&arena, ml_rm_http, 1);
    r->url = ml_arena_str(&arena, url, strlen(url));
    r->headers = "Content-Type: application/json\n";
    r->arena = arena;
    st = ml_loop_new(&r->loop, err);
    if (st == ML_OK)
        r->client = ml_http_client_new(r->loop);
    else {
        ml_rm_http_close(r);
        r = NULL;
    }
    *out = r;
    return st;
}

void ml_rm_http_close(ml_rm_http *r) {
    ml_arena arena;

    if (!r)
        return;
    arena = r->arena;
    if (r->client)
        ml_http_client_free(r->client);
    if (r->loop)
        ml_loop_free(r->loop);
    ml_arena_release(&arena);
}

void ml_rm_http_authorize(ml_rm_http *r, const char *key) {
    r->headers = ml_arena_printf(
        &r->arena, "Content-Type: application/json\nAuthorization: Bearer %s\n", key);
}

static void on_head(void *ud, int status, ml_str headers) {
    ml_rm_http *r = ud;

    (void)headers;
    r->status = status;
}

static void on_data(void *ud, ml_str piece) {
    ml_rm_http *r = ud;

    if (r->body->len + piece.len <= BODY_MAX)
        ml_text_add(r->body, piece.ptr, piece.len);
}

static void on_done(void *ud, const ml_err *err) {
    ml_rm_http *r = ud;

    r->job = NULL;
    if (err) {
        r->failed = true;
        r->body->len = 0;
        ml_text_printf(r->body, "%s", err->msg);
    }
    ml_loop_stop(r->loop);
}

static void on_deadline(void *ud) {
    ml_rm_http *r = ud;

    r->late = true;
    if (r->job)
        ml_http_cancel(r->job);
    r->job = NULL;
    ml_loop_stop(r->loop);
}

static ml_rm_end say(ml_rm_http *r, ml_rm_end end, const char *what) {
    r->body->len = 0;
    ml_text_printf(r->body, "reward server %s %s", r->url, what);
    return end;
}

static ml_rm_end try_once(ml_rm_http *r, ml_str json, double left_s) {
    ml_http_request q = {
        .method = "POST", .url = r->url, .headers = r->headers, .body = json
    };
    ml_http_fns fns = { on_head, on_data, on_done, r };
    ml_timer *timer;
    ml_err err;
    char what[80];

    r->late = r->failed = false;
    r->status = 0;
    r->body->len = 0;
    if (ml_http_start(&r->job, r->client, &q, fns, &err) != ML_OK) {
        ml_text_printf(r->body, "%s", err.msg);
        return ML_RM_REFUSED;
    }
    timer = ml_timer_start(r->loop, left_s, false, on_deadline, r);
    ml_loop_run(r->loop);
    ml_timer_stop(timer);
    if (r->late)
        return say(r, ML_RM_LATE, "timed out");
    if (r->failed)
        return ML_RM_DOWN;
    if (r->status >= 200 && r->status < 300)
        return ML_RM_ANSWERED;
    snprintf(what, sizeof what, "returned status %d", r->status);
    return say(r, r->status >= 500 || r->status == 429 ? ML_RM_DOWN : ML_RM_REFUSED, what);
}

ml_rm_end ml_rm_http_ask(ml_rm_http *r, ml_text *out, ml_str json, double deadline_s,
                         int64_t n_retry) {
    double until = ml_clock_s() + deadline_s, wait = FIRST_WAIT_S;
    ml_rm_end end = ML_RM_DOWN;

    r->body = out;
    ml_text_add(out, "", 0);
    for (int64_t i = 0; i <= n_retry && end == ML_RM_DOWN; i++) {
        double left = until - ml_clock_s();
        if (i > 0 && left > wait) {
            usleep((useconds_t)(wait * 1e6));
            wait *= 2;
            left = until - ml_clock_s();
        }
        if (i > 0 && left <= 0)
            break; /* `out` keeps the last attempt's message */
        end = try_once(r, json, left > 0.001 ? left : 0.001);
    }
    return end;
}
