/* What changes the server rather than asking it: pausing, weights, memory, aborts.
 *
 * The generator makes its caller wait for these, until a step has ended or a checkpoint was
 * read; so they run one after the other on a thread of their own, and the loop goes on
 * answering. */
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "serve/serve_priv.h"

typedef enum pause_mode {
    NOT_PAUSED,
    PAUSE_ABORT,
    PAUSE_RETRACT,
    PAUSE_IN_PLACE
} pause_mode;

typedef struct task task;

struct task {
    ml_arena arena;
    ml_server *server;
    ml_http_call *call; /* NULL: the client is gone; the loop's */
    task *next;
    void (*run)(ml_admin *a, task *t);       /* on the admin thread */
    void (*reply)(task *t, ml_http_call *c); /* on the loop's */
    ml_status st;
    ml_err err;
    /* arguments and results, of those that have any */
    pause_mode mode;
    const char *dir;
    ml_str label;
    uint64_t version;
    bool abort_all, kv, weights, flushed;
    int64_t n_paused;
};

struct ml_admin {
    ml_server *server;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t wake;
    task *first, **last;
    bool stopping;
    pause_mode mode; /* the thread's alone */
};

/* --- the thread ------------------------------------------------------------- */

static void free_task(task *t) {
    ml_arena arena = t->arena;
    ml_arena_release(&arena);
}

static void on_done(void *ud) {
    task *t = ud;

    if (t->call)
        t->reply(t, t->call);
    free_task(t);
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
        return ml_fail(err, ML_EIO, "no thread for the server: %s", strerror(code));
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
        free_task(t);
    }
    pthread_mutex_destroy(&a->lock);
    pthread_cond_destroy(&a->wake);
}

/* --- tasks ------------------------------------------------------------------ */

static void on_gone(void *ud) {
    ((task *)ud)->call = NULL;
}

static task *new_task(ml_server *s, ml_http_call *c) {
    ml_arena arena;
    task *t;

    ml_arena_init(&arena, "an admin request");
    t = ML_NEW(&arena, task, 1);
    t->arena = arena;
    t->server = s;
    t->call = c;
    return t;
}

static void hand_over(task *t) {
    ml_admin *a = t->server->admin;

    ml_http_on_gone(t->call, on_gone, t);
    pthread_mutex_lock(&a->lock);
    *a->last = t;
    a->last = &t->next;
    pthread_cond_signal(&a->wake);
    pthread_mutex_unlock(&a->lock);
}

static void refuse(task *t, const ml_err *err) {
    ml_reply_err(t->call, err);
    free_task(t);
}

/* {"success": ..., "message": ...} and what `more` adds. */
static void reply_outcome(task *t, ml_http_call *c, const char *message,
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
    ml_reply_json(c, t->st ? 400 : 200, &body);
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

static ml_status read_task(task *t, void *out, const ml_field *rows, bool optional,
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

/* The rid of a job stands for all its choices. */
static void abort_some(ml_server *s, const abort_body *b) {
    for (ml_job *j = s->jobs; j; j = j->next) {
        bool whole = b->abort_all || (j->rid.len && matches(b, j->rid));
        for (int32_t i = 0; i < j->n_choice; i++)
            if (j->choice[i].open && (whole || matches(b, j->choice[i].rid)))
                s->opts.gen->abort(s->opts.gen, j->choice[i].ticket);
    }
}

void ml_serve_abort(ml_server *s, ml_http_call *c) {
    task *t = new_task(s, c);
    abort_body b = { 0 };
    ml_err err = { 0 };
    ml_status st = read_task(t, &b, abort_rows, false, &err);

    if (!st && !b.abort_all && !b.rid.len)
        st = ml_fail(&err, ML_EUSAGE, "expected \"rid\" or \"abort_all\": true");
    if (st) {
        refuse(t, &err);
        return;
    }
    abort_some(s, &b);
    ml_http_reply(c, 200, "text/plain", ml_str_of(""));
    free_task(t);
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

    if (t->mode == PAUSE_ABORT)
        g->abort_all(g);
    g->pause(g);
    a->mode = t->mode;
}

static void reply_paused(task *t, ml_http_call *c) {
    (void)t;
    reply_ok(c, "Generation paused.");
}

void ml_serve_pause(ml_server *s, ml_http_call *c) {
    task *t = new_task(s, c);
    pause_body b = { .mode = ml_str_of("abort") };
    ml_err err = { 0 };
    ml_status st = read_task(t, &b, pause_rows, true, &err);

    t->mode = ml_str_is(b.mode, "abort")      ? PAUSE_ABORT
              : ml_str_is(b.mode, "retract")  ? PAUSE_RETRACT
              : ml_str_is(b.mode, "in_place") ? PAUSE_IN_PLACE
                                              : NOT_PAUSED;
    if (!st && t->mode == NOT_PAUSED)
        st = ml_fail(&err, ML_EUSAGE,
                     "\"mode\": expected \"abort\", \"retract\" or \"in_place\"");
    if (st) {
        refuse(t, &err);
        return;
    }
    t->run = run_pause;
    t->reply = reply_paused;
    hand_over(t);
}

static void run_continue(ml_admin *a, task *t) {
    (void)t;
    a->server->opts.gen->resume(a->server->opts.gen);
    a->mode = NOT_PAUSED;
}

static void reply_continued(task *t, ml_http_call *c) {
    (void)t;
    reply_ok(c, "Generation goes on.");
}

static const ml_field continue_rows[] = {
    { "torch_empty_cache", ML_FIELD_IGNORE },
    { 0 },
};

void ml_serve_continue(ml_server *s, ml_http_call *c) {
    task *t = new_task(s, c);
    ml_err err = { 0 };

    if (read_task(t, NULL, continue_rows, true, &err)) {
        refuse(t, &err);
        return;
    }
    t->run = run_continue;
    t->reply = reply_continued;
    hand_over(t);
}

/* --- the prefix cache ------------------------------------------------------- */

/* Requests paused to be retracted hold pages still; taking all pages away and back retracts
 * them, and with them goes the cache. */
static void run_flush(ml_admin *a, task *t) {
    const ml_server_opts *o = &a->server->opts;

    t->flushed = o->gen->flush(o->gen);
    if (t->flushed || a->mode != PAUSE_RETRACT || !o->memory.release)
        return;
    o->memory.release(o->gen, true, false);
    t->st = o->memory.take(o->gen, true, false, &t->err);
    t->flushed = t->st == ML_OK;
}

static void reply_flushed(task *t, ml_http_call *c) {
    if (t->flushed)
        ml_http_reply(c, 200, "text/plain", ml_str_of("Cache flushed.\n"));
    else
        ml_http_reply(c, 400, "text/plain",
                      ml_str_of(t->st ? t->err.msg
                                      : "Requests are in flight; nothing was flushed.\n"));
}

void ml_serve_flush(ml_server *s, ml_http_call *c) {
    task *t = new_task(s, c);

    t->run = run_flush;
    t->reply = reply_flushed;
    hand_over(t);
}

/* --- weights ---------------------------------------------------------------- */

typedef struct update_body {
    ml_str model_path, load_format, weight_version, new_version;
    bool abort_all, flush;
} update_body;

static const ml_field update_rows[] = {
    { "model_path", ML_FIELD_STR, offsetof(update_body, model_path) },
    { "load_format", ML_FIELD_STR, offsetof(update_body, load_format) },
    { "weight_version", ML_FIELD_STR, offsetof(update_body, weight_version) },
    { "abort_all_requests", ML_FIELD_BOOL, offsetof(update_body, abort_all) },
    { "flush_cache", ML_FIELD_BOOL, offsetof(update_body, flush) },
    { "torch_empty_cache", ML_FIELD_IGNORE },
    { "recapture_cuda_graph", ML_FIELD_IGNORE },
    { "keep_pause", ML_FIELD_IGNORE }, /* only /continue_generation ends a pause */
    { "token_step", ML_FIELD_IGNORE },
    { "is_async", ML_FIELD_REFUSE, .why = "the reply comes when the weights are in use" },
    { "manifest", ML_FIELD_REFUSE, .why = "checkpoints are checked against config.json" },
    { 0 },
};

/* A label that is a number becomes the version itself. */
static uint64_t number_of(ml_arena *a, ml_str label) {
    const char *digits = ml_arena_str(a, label.ptr ? label.ptr : "", label.len);
    char *end;
    unsigned long long v;

    if (digits[0] < '0' || digits[0] > '9')
        return 0;
    errno = 0;
    v = strtoull(digits, &end, 10);
    return *end || errno ? 0 : v;
}

static ml_switch switch_of(const ml_admin *a, const task *t) {
    switch (a->mode) {
    case NOT_PAUSED: return t->abort_all ? ML_SWITCH_ABORT : ML_SWITCH_FINISH;
    case PAUSE_ABORT: /* what has come since waits, and holds nothing */
    case PAUSE_RETRACT: return t->abort_all ? ML_SWITCH_ABORT : ML_SWITCH_RETRACT;
    case PAUSE_IN_PLACE: return t->abort_all ? ML_SWITCH_ABORT : ML_SWITCH_INEXACT_KV;
    }
    return ML_SWITCH_FINISH;
}

static void run_update(ml_admin *a, task *t) {
    ml_gen *g = a->server->opts.gen;
    ml_gen_stats stats;

    g->stats(g, &stats);
    t->n_paused = a->mode == NOT_PAUSED ? 0 : stats.n_running;
    t->st = g->load(g, t->dir, t->version, switch_of(a, t), &t->err);
    g->stats(g, &stats);
    t->version = stats.version;
}

static void add_paused(const task *t, ml_json_out *o) {
    ml_json_key(o, "num_paused_requests");
    ml_json_int(o, t->n_paused);
}

static void reply_updated(task *t, ml_http_call *c) {
    ml_server *s = t->server;
    char number[24];

    snprintf(number, sizeof number, "%llu", (unsigned long long)t->version);
    if (!t->st)
        ml_server_set_label(s, t->version, t->label.len ? t->label : ml_str_of(number));
    if (!t->st)
        snprintf(s->model_path, sizeof s->model_path, "%s", t->dir);
    reply_outcome(t, c, "The weights were updated.", add_paused);
}

void ml_serve_update_from_disk(ml_server *s, ml_http_call *c) {
    task *t = new_task(s, c);
    update_body b = { .flush = true };
    ml_err err = { 0 };
    ml_status st = read_task(t, &b, update_rows, false, &err);

    if (!st && !b.model_path.len)
        st = ml_fail(&err, ML_EUSAGE, "expected \"model_path\", a checkpoint's directory");
    if (!st && b.load_format.len && !ml_str_is(b.load_format, "auto") &&
        !ml_str_is(b.load_format, "safetensors"))
        st = ml_fail(&err, ML_EUSAGE,
                     "\"load_format\": expected \"auto\" or \"safetensors\"");
    if (!st && !b.flush)
        st = ml_fail(&err, ML_EUNSUP,
                     "\"flush_cache\" false is not offered: cached keys and values are of "
                     "the old weights");
    if (st) {
        refuse(t, &err);
        return;
    }
    t->dir = ml_arena_str(&t->arena, b.model_path.ptr, b.model_path.len);
    t->label = b.weight_version;
    t->version = number_of(&t->arena, b.weight_version);
    t->abort_all = b.abort_all;
    t->run = run_update;
    t->reply = reply_updated;
    hand_over(t);
}

static const ml_field version_rows[] = {
    { "new_version", ML_FIELD_STR, offsetof(update_body, new_version) },
    { "abort_all_requests", ML_FIELD_BOOL, offsetof(update_body, abort_all) },
    { 0 },
};

static void add_version(const task *t, ml_json_out *o) {
    ml_json_key(o, "new_version");
    ml_json_str(o, t->label);
}

/* A new name for the weights in use.  As in SGLang, requests in flight are aborted unless the
 * caller says otherwise. */
void ml_serve_update_version(ml_server *s, ml_http_call *c) {
    task *t = new_task(s, c);
    update_body b = { .abort_all = true };
    ml_gen_stats stats;
    ml_err err = { 0 };
    ml_status st = read_task(t, &b, version_rows, false, &err);

    if (!st && !b.new_version.len)
        st = ml_fail(&err, ML_EUSAGE, "expected \"new_version\", a string");
    if (st) {
        refuse(t, &err);
        return;
    }
    if (b.abort_all)
        abort_some(s, &(abort_body){ .abort_all = true });
    s->opts.gen->stats(s->opts.gen, &stats);
    ml_server_set_label(s, stats.version, b.new_version);
    t->label = b.new_version;
    reply_outcome(t, c, "The weight version was updated.", add_version);
    free_task(t);
}

/* --- memory ----------------------------------------------------------------- */

typedef struct memory_body {
    const ml_json *tags;
} memory_body;

static const ml_field memory_rows[] = {
    { "tags", ML_FIELD_JSON, offsetof(memory_body, tags) },
    { 0 },
};

/* No tags: all of it. */
static ml_status read_tags(task *t, const ml_json *tags, ml_err *err) {
    const ml_str *tag;
    int32_t n;
    ml_status st = ml_strings_read(&tag, &n, tags, "\"tags\"", &t->arena, err);

    t->kv = t->weights = !tags;
    for (int32_t i = 0; i < n && !st; i++) {
        if (ml_str_is(tag[i], "kv_cache"))
            t->kv = true;
        else if (ml_str_is(tag[i], "weights"))
            t->weights = true;
        else if (!ml_str_is(tag[i], "cuda_graph")) /* there are none to release */
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
    task *t = new_task(s, c);
    memory_body b = { 0 };
    ml_err err = { 0 };
    ml_status st = read_task(t, &b, memory_rows, true, &err);

    if (!st)
        st = read_tags(t, b.tags, &err);
    if (!st && !s->opts.memory.release)
        st = ml_fail(&err, ML_EUNSUP, "this generator cannot give its memory back");
    if (st) {
        refuse(t, &err);
        return;
    }
    t->run = how;
    t->reply = reply_memory;
    hand_over(t);
}

void ml_serve_release_memory(ml_server *s, ml_http_call *c) {
    serve_memory(s, c, run_release);
}

void ml_serve_resume_memory(ml_server *s, ml_http_call *c) {
    serve_memory(s, c, run_take);
}
