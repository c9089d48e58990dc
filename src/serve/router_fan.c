/* What concerns every worker is asked of every worker: weights, pauses, caches, aborts.  The
 * client gets one answer: that of the first worker, or of the first that failed. */
#include <stdlib.h>

#include "serve/router_priv.h"

/* One worker's part. */
typedef struct part {
    ml_fan *fan;
    ml_worker *worker;
    ml_http_job *job; /* NULL: it has ended */
    int status;
    ml_text reply;
} part;

struct ml_fan {
    ml_router *router;
    ml_fan *prev, *next;
    ml_http_call *call;
    part *part; /* [n] */
    int n, n_left;
};

static const struct {
    const char *path;
    bool weights; /* a worker that did not hear of it would answer with other weights */
} paths[] = {
    { "/update_weights_from_disk", true },
    { "/update_weight_version", true },
    { "/pull_weights", false }, /* it goes on with what it has until it is told to load */
    { "/pause_generation", false },
    { "/continue_generation", false },
    { "/abort_request", false },
    { "/flush_cache", false },
    { "/release_memory_occupation", false },
    { "/resume_memory_occupation", false },
};

/* --- life --------------------------------------------------------------------- */

static void free_fan(ml_fan *f) {
    ml_router *r = f->router;

    for (int i = 0; i < f->n; i++) {
        if (f->part[i].job)
            ml_http_cancel(f->part[i].job);
        ml_worker_drop(f->part[i].worker);
        ml_text_release(&f->part[i].reply);
    }
    *(f->prev ? &f->prev->next : &r->fans) = f->next;
    if (f->next)
        f->next->prev = f->prev;
    r->n_active--;
    free(f->part);
    free(f);
}

static void client_gone(void *ud) {
    free_fan(ud);
}

void ml_fans_free(ml_router *r) {
    for (ml_fan *f = r->fans, *next; f; f = next) {
        next = f->next;
        ml_http_abort(f->call);
        free_fan(f);
    }
}

/* --- answers -------------------------------------------------------------------- */

/* All have answered. */
static void answer(ml_fan *f) {
    const part *p = f->part;

    for (int i = f->n - 1; i >= 0; i--)
        if (f->part[i].status >= 300)
            p = &f->part[i];
    if (p->status == 502)
        ml_router_refuse(f->call, 502, p->reply.ptr);
    else
        ml_http_reply(f->call, p->status, "application/json",
                      (ml_str){ p->reply.ptr ? p->reply.ptr : "", p->reply.len });
    free_fan(f);
}

static void on_head(void *ud, int status, ml_str headers) {
    part *p = ud;

    (void)headers;
    p->status = status;
}

static void on_data(void *ud, ml_str piece) {
    part *p = ud;
    ml_text_add(&p->reply, piece.ptr, piece.len);
}

static void on_done(void *ud, const ml_err *err) {
    part *p = ud;

    p->job = NULL;
    if (err) {
        ml_worker_ill(p->worker);
        p->status = 502;
        p->reply.len = 0;
        ml_text_printf(&p->reply, "%s", err->msg);
    }
    if (--p->fan->n_left == 0)
        answer(p->fan);
}

/* --- questions ------------------------------------------------------------------ */

static void ask(ml_fan *f, ml_worker *w) {
    part *p = &f->part[f->n++];
    ml_err err = { 0 };

    *p = (part){ .fan = f, .worker = w };
    ml_worker_take(w);
    f->n_left++;
    if (ml_router_hand_on(&p->job, f->router, f->call, w,
                          (ml_http_fns){ on_head, on_data, on_done, p }, &err) != ML_OK) {
        p->job = NULL;
        p->status = 502;
        ml_text_printf(&p->reply, "%s", err.msg);
        f->n_left--;
    }
}

static void start(ml_router *r, ml_http_call *c, bool dead_too) {
    ml_fan *f = calloc(1, sizeof *f);
    part *list = calloc((size_t)r->n_worker + 1, sizeof *list);

    if (!f || !list) {
        free(f);
        free(list);
        ml_router_refuse(c, 503, "the router is out of memory");
        return;
    }
    *f = (ml_fan){ .router = r, .next = r->fans, .call = c, .part = list };
    if (r->fans)
        r->fans->prev = f;
    r->fans = f;
    r->n_active++;
    r->n_request++;
    ml_http_on_gone(c, client_gone, f);
    for (ml_worker *w = r->first; w; w = w->next)
        if (w->alive || dead_too)
            ask(f, w);
    if (f->n_left)
        return;
    if (!f->n) {
        ml_router_refuse(c, 503,
                         "no worker is alive: add one with POST /add_worker?url=http://"
                         "host:port");
        free_fan(f);
    } else
        answer(f);
}

bool ml_fan_start(ml_router *r, ml_http_call *c) {
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (ml_str_is(ml_http_path(c), paths[i].path)) {
            start(r, c, paths[i].weights);
            return true;
        }
    return false;
}
