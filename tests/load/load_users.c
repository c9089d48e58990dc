#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "net/sse.h"
#include "tests/load/load.h"

typedef enum action {
    WHOLE,
    STREAM,
    COMPLETION,
    COMPLETION_STREAM,
    ABORT,         /* aborts its own request with /abort_request */
    VANISH,        /* disconnects after a short time */
    VANISH_STREAM, /* disconnects in the middle of the answer */
    BAD_JSON,
} action;

typedef struct user {
    load *load;
    load_users *all;
    int index;
    uint64_t random;
    action action;
    const load_case *wanted;
    ml_http_job *job;
    ml_timer *moment; /* until it aborts or disconnects */
    bool stream, busy, finished;
    int status, n_piece, cut_at, n_request;
    ml_text request, body, text;
    ml_sse events;
    char rid[40];
} user;

struct load_users {
    load *load;
    user *user; /* [n] */
    int n;
};

static void next(user *u);

/* --- checking --------------------------------------------------------------- */

static bool begins(const load_case *c, const int32_t *id, int n) {
    return n <= c->n_answer && memcmp(id, c->answer, (size_t)n * sizeof *id) == 0;
}

/* Checks one answer of /generate; `last`: no further answer may follow. */
static void check_answer(user *u, ml_str json, bool last) {
    int32_t id[LOAD_ANSWER];
    bool aborted;
    int n;

    if (!load_read_answer(json, id, &n, &aborted))
        load_fail(u->load, "not an answer: %.*s", (int)json.len, json.ptr);
    else if (aborted && u->action != ABORT)
        load_fail(u->load, "an answer was aborted that nobody aborted");
    else if (!begins(u->wanted, id, n) || (last && !aborted && n != u->wanted->n_answer))
        load_fail(u->load, "an answer of %d tokens differs from the one alone, of %d", n,
                  u->wanted->n_answer);
    u->finished = u->finished || aborted || n == u->wanted->n_answer;
}

static void got_event(void *ud, ml_str data) {
    user *u = ud;

    if (ml_str_is(data, "[DONE]"))
        return;
    if (u->action == COMPLETION_STREAM) {
        if (!load_read_text(data, &u->text))
            load_fail(u->load, "not a piece of a completion: %.*s", (int)data.len,
                      data.ptr);
    } else
        check_answer(u, data, false);
}

static void check_completion(user *u) {
    if (u->action == COMPLETION &&
        !load_read_text((ml_str){ u->body.ptr, u->body.len }, &u->text))
        load_fail(u->load, "not a completion: %s", u->body.ptr);
    if (!ml_str_eq((ml_str){ u->text.ptr, u->text.len },
                   (ml_str){ u->wanted->text.ptr, u->wanted->text.len }))
        load_fail(u->load, "a completion, '%s', differs from the one alone, '%s'",
                  u->text.ptr, u->wanted->text.ptr);
    u->load->n_completion++;
}

static void check_end(user *u) {
    load *l = u->load;
    int want = u->action == BAD_JSON ? 400 : 200;

    if (u->status != want) {
        load_fail(l, "status %d instead of %d: %s", u->status, want, u->body.ptr);
        return;
    }
    switch (u->action) {
    case WHOLE:
    case VANISH:
    case ABORT:
        if (!u->stream)
            check_answer(u, (ml_str){ u->body.ptr, u->body.len }, true);
        break;
    case COMPLETION:
    case COMPLETION_STREAM: check_completion(u); return;
    case BAD_JSON: l->n_malformed++; return;
    case STREAM:
    case VANISH_STREAM: break;
    }
    if (u->stream && !u->finished)
        load_fail(l, "a stream ended before its answer did");
    l->n_aborted += u->action == ABORT;
    l->n_stream += u->stream;
    l->n_whole += !u->stream;
}

/* --- a request -------------------------------------------------------------- */

static void end_moment(user *u) {
    ml_timer_stop(u->moment);
    u->moment = NULL;
}

static void got_head(void *ud, int status, ml_str headers) {
    (void)headers;
    ((user *)ud)->status = status;
}

static void vanish(void *ud) {
    user *u = ud;

    end_moment(u);
    ml_http_cancel(u->job);
    u->job = NULL;
    u->load->n_vanished++;
    next(u);
}

static void got_data(void *ud, ml_str piece) {
    user *u = ud;

    if (u->stream && u->status == 200)
        ml_sse_push(&u->events, piece, got_event, u);
    else
        ml_text_add(&u->body, piece.ptr, piece.len);
    if (u->action == VANISH_STREAM && ++u->n_piece == u->cut_at)
        vanish(u);
}

static void got_done(void *ud, const ml_err *err) {
    user *u = ud;

    u->job = NULL;
    end_moment(u);
    if (err)
        load_fail(u->load, "%s", err->msg);
    else
        check_end(u);
    next(u);
}

static void start(user *u, const char *path, const ml_text *body, ml_http_fns fns,
                  ml_http_job **job) {
    char url[100];
    ml_http_request r = { .method = "POST",
                          .headers = "Content-Type: application/json\n",
                          .url = url,
                          .body = { body->ptr, body->len },
                          .connect_s = 60,
                          .idle_s = 300 };
    ml_err err;

    snprintf(url, sizeof url, "http://127.0.0.1:%d%s", u->load->port, path);
    if (ml_http_start(job, u->load->client, &r, fns, &err) != ML_OK)
        load_fail(u->load, "%s", err.msg);
}

static void abort_done(void *ud, const ml_err *err) {
    if (err)
        load_fail(ud, "%s", err->msg);
}

static void ask_abort(void *ud) {
    user *u = ud;
    ml_http_fns fns = { NULL, NULL, abort_done, u->load };
    ml_text body = { 0 };
    ml_http_job *job;

    end_moment(u);
    ml_text_printf(&body, "{\"rid\": \"%s\"}", u->rid);
    start(u, "/abort_request", &body, fns, &job);
    ml_text_release(&body);
}

static action choose(user *u) {
    static const struct {
        int percent;
        action action;
    } table[] = { { 34, WHOLE },        { 32, STREAM },
                  { 7, COMPLETION },    { 7, COMPLETION_STREAM },
                  { 6, ABORT },         { 4, VANISH },
                  { 6, VANISH_STREAM }, { 4, BAD_JSON } };
    int x = load_random(&u->random, 100);

    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        x -= table[i].percent;
        if (x < 0)
            return table[i].action;
    }
    return WHOLE;
}

static void write_request(user *u) {
    static const char *const bad[] = { "{\"input_ids\": [1,",
                                       "[]",
                                       "",
                                       "{\"input_ids\": 7}",
                                       "{\"text\": \"\xff\"}",
                                       "{\"input_ids\": [1], \"sampling_params\": 3}",
                                       "{\"input_ids\": [100000]}" };
    if (u->action == BAD_JSON) {
        u->request.len = 0;
        ml_text_printf(&u->request, "%s", bad[load_random(&u->random, 7)]);
    } else if (u->action == COMPLETION || u->action == COMPLETION_STREAM)
        load_case_completion(u->wanted, u->stream, &u->request);
    else
        load_case_generate(u->wanted, u->stream, u->action == ABORT ? u->rid : NULL,
                           &u->request);
}

static void clear(user *u) {
    ml_sse_release(&u->events);
    u->body.len = u->text.len = 0;
    ml_text_add(&u->body, "", 0);
    ml_text_add(&u->text, "", 0);
    u->status = u->n_piece = 0;
    u->finished = false;
}

/* Starts the user's next request, or ends the user. */
static void next(user *u) {
    ml_http_fns fns = { got_head, got_data, got_done, u };
    bool completion;

    u->busy = !atomic_load(&u->load->stopping);
    if (!u->busy) {
        if (load_users_busy(u->all) == 0)
            ml_loop_stop(u->load->loop);
        return;
    }
    clear(u);
    u->action = choose(u);
    u->wanted = &u->load->cases[load_random(&u->random, LOAD_CASES)];
    u->stream = u->action == STREAM || u->action == COMPLETION_STREAM ||
                u->action == VANISH_STREAM ||
                (u->action == ABORT && load_random(&u->random, 2));
    u->cut_at = 1 + load_random(&u->random, 20);
    snprintf(u->rid, sizeof u->rid, "user-%d-%d", u->index, u->n_request++);
    write_request(u);
    completion = u->action == COMPLETION || u->action == COMPLETION_STREAM;
    start(u, completion ? "/v1/completions" : "/generate", &u->request, fns, &u->job);
    if (u->action == ABORT || u->action == VANISH)
        u->moment = ml_timer_start(u->load->loop, 0.001 * load_random(&u->random, 200),
                                   false, u->action == ABORT ? ask_abort : vanish, u);
}

/* --- all users -------------------------------------------------------------- */

load_users *load_users_start(load *l, int n) {
    load_users *all = calloc(1, sizeof *all);

    all->load = l;
    all->n = n;
    all->user = calloc((size_t)n, sizeof *all->user);
    for (int i = 0; i < n; i++) {
        all->user[i] = (user){ .load = l, .all = all, .index = i };
        all->user[i].random = (uint64_t)l->seed * 7919 + (uint64_t)i * 104729 + 1;
        next(&all->user[i]);
    }
    return all;
}

int load_users_busy(const load_users *all) {
    int n = 0;

    for (int i = 0; i < all->n; i++)
        n += all->user[i].busy;
    return n;
}

void load_users_free(load_users *all) {
    for (int i = 0; i < all->n; i++) {
        user *u = &all->user[i];
        end_moment(u);
        ml_sse_release(&u->events);
        ml_text_release(&u->request);
        ml_text_release(&u->body);
        ml_text_release(&u->text);
    }
    free(all->user);
    free(all);
}
