/* Requests that change the server's state: pausing, weights, memory, aborts.
 *
 * The generator blocks its caller for these, until a step has ended or a checkpoint is
 * loaded.  So they run one at a time on the admin thread, and the event loop keeps
 * answering. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "serve/admin_priv.h"

typedef ml_admin_task task;

/* --- the thread ------------------------------------------------------------- */

void ml_admin_free_task(task *t) {
    ml_arena arena = t->arena;
    ml_arena_release(&arena);
}

static void on_done(void *ud) {
    task *t = ud;

    if (t->done)
        t->done(t);
    else if (t->call)
        t->reply(t, t->call);
    ml_admin_free_task(t);
}

static void *run(void *ud) {
    ml_admin *a = ud;
    task *t;

    pthread_mutex_lock(&a->lock);
    while (!a->stopping) {
        t = a->first;
        if (!t) {
            pthread_cond_wait(&a->wake, &a->lock);
            continue;
        }
        a->first = t->next;
        if (!a->first)
            a->last = &a->first;
        pthread_mutex_unlock(&a->lock);
        t->run(a, t);
        ml_loop_post(a->server->loop, on_done, t);
        pthread_mutex_lock(&a->lock);
    }
    pthread_mutex_unlock(&a->lock);
    return NULL;
}

ml_status ml_admin_open(ml_admin **out, ml_server *s, ml_err *err) {
    ml_admin *a = ML_NEW(&s->arena, ml_admin, 1);
    int code;

    a->server = s;
    a->last = &a->first;
    ML_BUG_IF(pthread_mutex_init(&a->lock, NULL) || pthread_cond_init(&a->wake, NULL));
    code = pthread_create(&a->thread, NULL, run, a);
    if (code)
        return ml_fail(err, ML_EIO, "cannot create a thread for the server: %s",
                       strerror(code));
    *out = a;
    return ML_OK;
}

void ml_admin_close(ml_admin *a) {
    if (!a)
        return;
    pthread_mutex_lock(&a->lock);
    a->stopping = true;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
    pthread_join(a->thread, NULL);
    while (a->first) {
        task *t = a->first;
        a->first = t->next;
        ml_admin_free_task(t);
    }
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->wake);
}

/* --- tasks ------------------------------------------------------------------ */

static void on_gone(void *ud) {
    ((task *)ud)->call = NULL;
}

task *ml_admin_new_task(ml_server *s, ml_http_call *c) {
    ml_arena arena;
    task *t;

    ml_arena_init(&arena, "an admin request");
    t = ML_NEW(&arena, task, 1);
    t->arena = arena;
    t->server = s;
    t->call = c;
    return t;
}

void ml_admin_hand_over(task *t) {
    ml_admin *a = t->server->admin;

    if (t->call)
        ml_http_on_gone(t->call, on_gone, t);
    pthread_mutex_lock(&a->lock);
    *a->last = t;
    a->last = &t->next;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
}

void ml_admin_refuse(task *t, const ml_err *err) {
    ml_reply_err(t->call, err);
    ml_admin_free_task(t);
}

/* {"success": ..., "message": ...} and the members that `more` writes. */
void ml_admin_reply(task *t, ml_http_call *c, const char *message,
                    void (*more)(const task *t, ml_json_out *o)) {
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };

    ml_json_begin(&o, '{');
    ml_json_key(&o, "success");
    ml_json_bool(&o, t->st == ML_OK);
    ml_json_key(&o, "message");
    ml_json_word(&o, t->st ? t->err.msg : message);
    if (more)
        more(t, &o);
    ml_json_end(&o, '}');
    ml_reply_json(c, !t->st ? 200 : t->again ? 503 : 400, &body);
    ml_text_release(&body);
}

static void reply_ok(ml_http_call *c, const char *message) {
    ml_text body = { 0 };
    ml_json_out o = { .to = &body };

    ml_json_begin(&o, '{');
    ml_json_key(&o, "message");
    ml_json_word(&o, message);
    ml_json_key(&o, "status");
    ml_json_word(&o, "ok");
    ml_json_end(&o, '}');
    ml_reply_json(c, 200, &body);
    ml_text_release(&body);
}

ml_status ml_admin_read(task *t, void *out, const ml_field *rows, bool optional,
                        ml_err *err) {
    const ml_json *body;
    ml_status st = ml_read_body(&body, t->call, &t->arena, optional, err);
    return st ? st : ml_fields_read(out, rows, body, "request body", err);
}

/* --- aborts ----------------------------------------------------------------- */

typedef struct abort_body {
    ml_str rid;
    bool abort_all, prefix;
} abort_body;

static const ml_field abort_rows[] = {
    { "rid", ML_FIELD_STR, offsetof(abort_body, rid) },
    { "abort_all", ML_FIELD_BOOL, offsetof(abort_body, abort_all) },
    { "prefix", ML_FIELD_BOOL, offsetof(abort_body, prefix) },
    { "abort_message", ML_FIELD_IGNORE },
    { "finished_reason", ML_FIELD_IGNORE },
    { 0 },
};

static bool matches(const abort_body *b, ml_str rid) {
    if (b->prefix)
        return rid.len >= b->rid.len && memcmp(rid.ptr, b->rid.ptr, b->rid.len) == 0;
    return ml_str_eq(rid, b->rid);
}

/* The rid of a job matches all its choices. */
static void abort_some(ml_server *s, const abort_body *b) {
    for (ml_job *j = s->jobs; j; j = j->next) {
        bool whole;
        if (j->reading) {
            j->aborted = j->aborted || b->abort_all;
            continue;
        }
        whole = b->abort_all || (j->rid.len && matches(b, j->rid));
        j->aborted = j->aborted || (j->lora.queued && whole);
        for (int32_t i = 0; i < j->n_choice; i++)
            if (j->choice[i].open && (whole || matches(b, j->choice[i].rid)))
                s->opts.gen->abort(s->opts.gen, j->choice[i].ticket);
    }
}

void ml_admin_abort_all(ml_server *s) {
    abort_some(s, &(abort_body){ .abort_all = true });
}

static void abort_by_id(void *ud) {
    task *t = ud;

    if (t->label.len)
        abort_some(t->server, &(abort_body){ .rid = t->label, .prefix = t->prefix });
    if (t->call)
        ml_http_reply(t->call, 200, "text/plain", ml_str_of(""));
    ml_admin_free_task(t);
}

static void wait_for_readers(void *ud) {
    (void)ud;
}

/* Ids of requests that are being parsed are not known yet, so the abort queues behind them
 * on the text thread. */
static void abort_in_order(task *t) {
    t->work = (ml_text_work){ wait_for_readers, abort_by_id, t, NULL };
    if (t->server->n_reading == 0) {
        abort_by_id(t);
        return;
    }
    ml_http_on_gone(t->call, on_gone, t);
    ml_text_thread_add(t->server->text, &t->work);
}

void ml_serve_abort(ml_server *s, ml_http_call *c) {
    task *t = ml_admin_new_task(s, c);
    abort_body b = { 0 };
    ml_err err = { 0 };
    ml_status st = ml_admin_read(t, &b, abort_rows, false, &err);

    if (!st && !b.abort_all && !b.rid.len)
        st = ml_fail(&err, ML_EUSAGE, "expected \"rid\" or \"abort_all\": true");
    if (st) {
        ml_admin_refuse(t, &err);
        return;
    }
    if (b.abort_all)
        abort_some(s, &b);
    t->label = b.rid;
    t->prefix = b.prefix;
    abort_in_order(t);
}

/* --- pausing ---------------------------------------------------------------- */

typedef struct pause_body {
    ml_str mode;
} pause_body;

static const ml_field pause_rows[] = {
    { "mode", ML_FIELD_STR, offsetof(pause_body, mode) },
    { 0 },
};

static void run_pause(ml_admin *a, task *t) {
    ml_gen *g = a->server->opts.gen;

    if (t->mode == ML_PAUSE_ABORT)
        g->abort_all(g);
    g->pause(g);
    a->mode = t->mode;
}

static void reply_paused(task *t, ml_http_call *c) {
    (void)t;
    reply_ok(c, "Generation paused.");
}

void ml_serve_pause(ml_server *s, ml_http_call *c) {
    task *t = ml_admin_new_task(s, c);
    pause_body b = { .mode = ml_str_of("abort") };
    ml_err err = { 0 };
    ml_status st = ml_admin_read(t, &b, pause_rows, true, &err);

    t->mode = ml_str_is(b.mode, "abort")      ? ML_PAUSE_ABORT
              : ml_str_is(b.mode, "retract")  ? ML_PAUSE_RETRACT
              : ml_str_is(b.mode, "in_place") ? ML_PAUSE_IN_PLACE
                                              : ML_NOT_PAUSED;
    if (!st && t->mode == ML_NOT_PAUSED)
        st = ml_fail(&err, ML_EUSAGE,
                     "\"mode\": expected \"abort\", \"retract\" or \"in_place\"");
    if (st) {
        ml_admin_refuse(t, &err);
        return;
    }
    t->run = run_pause;
    t->reply = reply_paused;
    ml_admin_hand_over(t);
}

static void run_continue(ml_admin *a, task *t) {
    (void)t;
    a->server->opts.gen->resume(a->server->opts.gen);
    a->mode = ML_NOT_PAUSED;
}

static void reply_continued(task *t, ml_http_call *c) {
    (void)t;
    reply_ok(c, "Generation continued.");
}

static const ml_field continue_rows[] = {
    { "torch_empty_cache", ML_FIELD_IGNORE },
    { 0 },
};

void ml_serve_continue(ml_server *s, ml_http_call *c) {
    task *t = ml_admin_new_task(s, c);
    ml_err err = { 0 };

    if (ml_admin_read(t, NULL, continue_rows, true, &err)) {
        ml_admin_refuse(t, &err);
        return;
    }
    t->run = run_continue;
    t->reply = reply_continued;
    ml_admin_hand_over(t);
}

/* --- the prefix cache ------------------------------------------------------- */

/* Requests paused with ML_PAUSE_RETRACT still hold KV pages, which blocks a flush.
 * Releasing and reallocating all KV memory preempts them, and empties the prefix cache. */
static void run_flush(ml_admin *a, task *t) {
    const ml_server_opts *o = &a->server->opts;

    t->flushed = o->gen->flush(o->gen);
    if (t->flushed || a->mode != ML_PAUSE_RETRACT || !o->memory.release)
        return;
    o->memory.release(o->gen, true, false);
    t->st = o->memory.take(o->gen, true, false, &t->err);
    t->flushed = t->st == ML_OK;
}

static void reply_flushed(task *t, ml_http_call *c) {
    if (t->flushed)
        ml_http_reply(c, 200, "text/plain", ml_str_of("Cache flushed.\n"));
    else
        ml_http_reply(
            c, 400, "text/plain",
            ml_str_of(t->st ? t->err.msg
                            : "Requests are in flight; the cache was not flushed.\n"));
}

void ml_serve_flush(ml_server *s, ml_http_call *c) {
    task *t = ml_admin_new_task(s, c);

    t->run = run_flush;
    t->reply = reply_flushed;
    ml_admin_hand_over(t);
}

/* --- memory ----------------------------------------------------------------- */

typedef struct memory_body {
    const ml_json *tags;
} memory_body;

static const ml_field memory_rows[] = {
    { "tags", ML_FIELD_JSON, offsetof(memory_body, tags) },
    { 0 },
};

/* No tags: KV cache and weights. */
static ml_status read_tags(task *t, const ml_json *tags, ml_err *err) {
    const ml_str *tag;
    int32_t n;
    ml_status st =
        ml_strings_read(&tag, &n, tags, ML_MAX_STOPS, "\"tags\"", &t->arena, err);

    t->kv = t->weights = !tags;
    for (int32_t i = 0; i < n && !st; i++) {
        if (ml_str_is(tag[i], "kv_cache"))
            t->kv = true;
        else if (ml_str_is(tag[i], "weights"))
            t->weights = true;
        else if (!ml_str_is(tag[i], "cuda_graph")) /* accepted; releases nothing */
            st = ml_fail(err, ML_EUSAGE,
                         "\"tags\": expected \"kv_cache\", \"weights\" or \"cuda_graph\"");
    }
    return st;
}

static void run_release(ml_admin *a, task *t) {
    const ml_server_opts *o = &a->server->opts;
    o->memory.release(o->gen, t->kv, t->weights);
}

static void run_take(ml_admin *a, task *t) {
    const ml_server_opts *o = &a->server->opts;
    t->st = o->memory.take(o->gen, t->kv, t->weights, &t->err);
}

static void reply_memory(task *t, ml_http_call *c) {
    if (t->st)
        ml_reply_err(c, &t->err);
    else
        ml_http_reply(c, 200, "application/json", ml_str_of("null"));
}

static void serve_memory(ml_server *s, ml_http_call *c, void (*how)(ml_admin *a, task *t)) {
    task *t = ml_admin_new_task(s, c);
    memory_body b = { 0 };
    ml_err err = { 0 };
    ml_status st = ml_admin_read(t, &b, memory_rows, true, &err);

    if (!st)
        st = read_tags(t, b.tags, &err);
    if (!st && !s->opts.memory.release)
        st = ml_fail(&err, ML_EUNSUP, "this engine cannot release its memory");
    if (st) {
        ml_admin_refuse(t, &err);
        return;
    }
    t->run = how;
    t->reply = reply_memory;
    ml_admin_hand_over(t);
}

void ml_serve_release_memory(ml_server *s, ml_http_call *c) {
    serve_memory(s, c, run_release);
}

void ml_serve_resume_memory(ml_server *s, ml_http_call *c) {
    serve_memory(s, c, run_take);
}
