/* Fan-out: sends requests that concern all workers (weights, pauses, caches, aborts) to all
 * of them.  The client gets one reply: the first worker's, or that of the first failed. */
#include <stdlib.h>

#include "serve/router_priv.h"

/* The request to one worker, and its reply. */
typedef struct part {
    ml_fan *fan;
    ml_worker *worker;
    ml_http_job *job; /* NULL: ended */
    bool failed;      /* the worker did not reply; `reply` has the error */
    int status;
    ml_text reply;
} part;

/* Timeout of requests that workers complete quickly; a pause waits for a step to end. */
#define CONTROL_S 120.0

enum { MOST_REPLY = 1 << 20 }; /* bytes of a worker's reply */

struct ml_fan {
    ml_router *router;
    ml_fan *prev, *next;
    ml_http_call *call;
    part *part; /* [n] */
    int n, n_left;
    ml_timer *deadline;
    double limit_s; /* of deadline; 0: none */
};

static const struct {
    const char *path;
    bool weights; /* a worker that missed it would generate with other weights */
    bool reads;   /* it loads a checkpoint: its timeout is that of any request */
} paths[] = {
    { "/update_weights_from_disk", true, true },
    { "/update_weight_version", true, false },
    { "/init_weights_update_group", true, true },
    { "/destroy_weights_update_group", false, false },
    { "/begin_weight_update", true, true },
    { "/update_weights_from_distributed", true, true },
    { "/end_weight_update", true, true },
    { "/load_lora_adapter", false, true },
    { "/load_lora_adapter_from_distributed", true, true },
    { "/unload_lora_adapter", false, true },
    /* A worker that missed it keeps its weights until a load request. */
    { "/pull_weights", false, true },
    { "/pause_generation", false, false },
    { "/continue_generation", false, false },
    { "/abort_request", false, false },
    { "/flush_cache", false, false },
    { "/release_memory_occupation", false, false },
    { "/resume_memory_occupation", false, true },
};

/* --- freeing ------------------------------------------------------------------ */

static void free_fan(ml_fan *f) {
    ml_router *r = f->router;

    for (int i = 0; i < f->n; i++) {
        if (f->part[i].job)
            ml_http_cancel(f->part[i].job);
        ml_worker_drop(f->part[i].worker);
        ml_text_release(&f->part[i].reply);
    }
    ml_timer_stop(f->deadline);
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

void ml_fan_free_all(ml_router *r) {
    for (ml_fan *f = r->fans, *next; f; f = next) {
        next = f->next;
        ml_http_abort(f->call);
        free_fan(f);
    }
}

/* --- replies -------------------------------------------------------------------- */

/* All workers have replied. */
static void answer(ml_fan *f) {
    const part *p = f->part;

    for (int i = f->n - 1; i >= 0; i--)
        if (f->part[i].status >= 300)
            p = &f->part[i];
    if (p->failed)
        ml_router_refuse(f->call, p->status, p->reply.ptr);
    else
        ml_http_reply(f->call, p->status, "application/json",
                      (ml_str){ p->reply.ptr ? p->reply.ptr : "", p->reply.len });
    free_fan(f);
}

static void fail(part *p, int status, const char *why) {
    p->failed = true;
    p->status = status;
    p->reply.len = 0;
    ml_text_printf(&p->reply, "%s", why);
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
        fail(p, 502, err->msg);
    }
    if (--p->fan->n_left == 0)
        answer(p->fan);
}

/* The timeout: fails the workers that have not replied. */
static void too_late(void *ud) {
    ml_fan *f = ud;
    ml_text why = { 0 };

    for (int i = 0; i < f->n; i++) {
        part *p = &f->part[i];
        if (!p->job)
            continue;
        ml_http_cancel(p->job);
        p->job = NULL;
        ml_worker_ill(p->worker);
        why.len = 0;
        ml_text_printf(&why, "worker %s did not reply within %g s", p->worker->url,
                       f->limit_s);
        fail(p, 504, why.ptr);
    }
    ml_text_release(&why);
    f->n_left = 0;
    answer(f);
}

/* --- requests ------------------------------------------------------------------- */

static void send_request(ml_fan *f, ml_worker *w) {
    part *p = &f->part[f->n++];
    ml_err err = { 0 };

    *p = (part){ .fan = f, .worker = w };
    ml_worker_take(w);
    f->n_left++;
    if (ml_router_hand_on(&p->job, f->router, f->call, w, MOST_REPLY,
                          (ml_http_fns){ on_head, on_data, on_done, p }, &err) != ML_OK) {
        p->job = NULL;
        fail(p, 502, err.msg);
        f->n_left--;
    }
}

/* The request timeout; at most CONTROL_S if no checkpoint is loaded. */
static double limit_of(const ml_router *r, bool reads) {
    double most = r->opts.request_timeout_s;

    return reads || (most > 0 && most < CONTROL_S) ? most : CONTROL_S;
}

static void start(ml_router *r, ml_http_call *c, bool dead_too, bool reads) {
    ml_fan *f = calloc(1, sizeof *f);
    part *list = calloc((size_t)r->n_worker + 1, sizeof *list);

    if (!f || !list) {
        free(f);
        free(list);
        ml_router_refuse(c, 503, "the router is out of memory");
        return;
    }
    *f = (ml_fan){
        .router = r, .next = r->fans, .call = c, .part = list, .limit_s = limit_of(r, reads)
    };
    if (r->fans)
        r->fans->prev = f;
    r->fans = f;
    r->n_active++;
    r->n_request++;
    ml_http_on_gone(c, client_gone, f);
    for (ml_worker *w = r->first; w; w = w->next)
        if (w->alive || dead_too)
            send_request(f, w);
    if (f->n_left) {
        if (f->limit_s > 0)
            f->deadline = ml_timer_start(r->loop, f->limit_s, false, too_late, f);
        return;
    }
    if (!f->n) {
        ml_router_refuse(
            c, 503,
            "no healthy worker: add one with POST /add_worker?url=http://host:port");
        free_fan(f);
    } else
        answer(f);
}

bool ml_fan_start(ml_router *r, ml_http_call *c) {
    for (size_t i = 0; i < sizeof paths / sizeof *paths; i++)
        if (ml_str_is(ml_http_path(c), paths[i].path)) {
            start(r, c, paths[i].weights, paths[i].reads);
            return true;
        }
    return false;
}
