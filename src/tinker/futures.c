#include <stdlib.h>
#include <string.h>

#include "base/oom.h"
#include "tinker/tinker_priv.h"

#define POLL_S 20.0                    /* clients give up after 45 s */
#define KEEP_BYTES ((size_t)256 << 20) /* of replies that were retrieved */
#define MAX_BYTES ((size_t)1 << 30)    /* of all */
#define PROTO_TYPE "application/x-protobuf"

/* A call that waits for a future. */
typedef struct ml_future_wait {
    struct ml_future_wait *next;
    ml_tinker *t;
    ml_future *future;
    ml_http_call *call;
    ml_timer *timer;
} wait_t;

static size_t bucket_of(const char *id) {
    uint64_t h = 14695981039346656037u; /* FNV-1a */

    for (; *id; id++)
        h = (h ^ (unsigned char)*id) * 1099511628211u;
    return (size_t)(h % ML_FUTURE_BUCKETS);
}

ml_future *ml_future_find(ml_tinker *t, const char *id) {
    ml_future *f = t->futures.bucket[bucket_of(id)];

    while (f && strcmp(f->id, id) != 0)
        f = f->next;
    return f;
}

ml_future *ml_future_new(ml_tinker *t, const char *id) {
    ml_future **at = &t->futures.bucket[bucket_of(id)];
    ml_future *f = ml_memory_grow(NULL, sizeof *f, "a request");
    size_t n = strlen(id) + 1;

    *f = (ml_future){ .next = *at, .id = ml_memory_grow(NULL, n, "a request") };
    memcpy(f->id, id, n);
    *at = f;
    return f;
}

static void free_future(ml_future *f) {
    ml_text_release(&f->body);
    free(f->id);
    free(f);
}

static size_t bytes_of(const ml_future *f) {
    return f->body.len + sizeof *f;
}

/* Forgets a complete future; `at` points to it in the list of these. */
static void forget(ml_tinker *t, ml_future **at) {
    ml_future *f = *at, **in = &t->futures.bucket[bucket_of(f->id)];

    *at = f->newer;
    while (*in != f)
        in = &(*in)->next;
    *in = f->next;
    t->futures.bytes -= bytes_of(f);
    free_future(f);
}

/* Forgets the oldest replies that clients have got, if there are too many bytes; then those
 * that nobody retrieves. */
static void limit_bytes(ml_tinker *t) {
    ml_futures *all = &t->futures;

    for (ml_future **at = &all->oldest; all->bytes > KEEP_BYTES && *at != all->newest;)
        if ((*at)->read)
            forget(t, at);
        else
            at = &(*at)->newer;
    while (all->bytes > MAX_BYTES && all->oldest != all->newest)
        forget(t, &all->oldest);
}

static void answer(ml_http_call *c, ml_future *f) {
    f->read = true;
    ml_http_reply(c, 200, f->proto ? PROTO_TYPE : "application/json",
                  (ml_str){ f->body.ptr, f->body.len });
}

static void end_wait(wait_t *w) {
    wait_t **at = (wait_t **)&w->future->waits;

    while (*at != w)
        at = &(*at)->next;
    *at = w->next;
    ml_timer_stop(w->timer);
    free(w);
}

void ml_future_finish(ml_tinker *t, ml_future *f, ml_text *body, bool proto) {
    ml_futures *all = &t->futures;

    f->done = true;
    f->proto = proto;
    f->body = *body;
    f->job = NULL;
    *body = (ml_text){ 0 };
    all->bytes += bytes_of(f);
    if (all->newest)
        all->newest->newer = f;
    else
        all->oldest = f;
    all->newest = f;
    while (f->waits) {
        ml_http_call *c = f->waits->call;
        end_wait(f->waits);
        answer(c, f);
    }
    limit_bytes(t);
}

void ml_future_fail(ml_tinker *t, ml_future *f, const char *why, bool user) {
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };

    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "error", why);
    ml_json_put_word(&o, "category", user ? "user" : "server");
    ml_json_end(&o, '}');
    f->failed = true;
    ml_future_finish(t, f, &body, false);
}

/* The client polls again. */
static void try_again(void *ud) {
    wait_t *w = ud;
    ml_http_call *c = w->call;
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };

    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "type", "try_again");
    ml_json_put_word(&o, "request_id", w->future->id);
    ml_json_put_word(&o, "queue_state", "active");
    ml_json_end(&o, '}');
    end_wait(w);
    ml_tinker_reply(c, 408, &body);
}

static void gone(void *ud) {
    end_wait(ud);
}

static void wait_for(ml_tinker *t, ml_future *f, ml_http_call *c) {
    wait_t *w = ml_memory_grow(NULL, sizeof *w, "a request");

    *w = (wait_t){ .next = f->waits, .t = t, .future = f, .call = c };
    f->waits = w;
    w->timer = ml_timer_start(t->loop, POLL_S, false, try_again, w);
    ml_http_on_gone(c, gone, w);
}

void ml_tinker_retrieve(ml_tinker *t, ml_http_call *c) {
    const ml_json *body;
    ml_future *f = NULL;
    ml_err err = { 0 };
    ml_arena a;

    ml_arena_init(&a, "a request");
    if (ml_json_parse(&body, &a, ml_http_body(c), "request", &err) == ML_OK) {
        ml_str id = ml_tinker_text(body, "request_id");
        f = ml_future_find(t, ml_arena_str(&a, id.ptr, id.len));
    }
    if (!f)
        ml_tinker_refuse(c, 410,
                         "The request is not known: its result was retrieved long ago, or "
                         "the server was started again.");
    else if (f->done)
        answer(c, f);
    else
        wait_for(t, f, c);
    ml_arena_release(&a);
}

void ml_futures_close(ml_tinker *t) {
    for (int i = 0; i < ML_FUTURE_BUCKETS; i++)
        while (t->futures.bucket[i]) {
            ml_future *f = t->futures.bucket[i];
            for (wait_t *w = f->waits, *next; w; w = next) {
                next = w->next;
                ml_timer_stop(w->timer);
                free(w);
            }
            t->futures.bucket[i] = f->next;
            free_future(f);
        }
}
