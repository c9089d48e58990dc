#include "rl/env/turns.h"

#include "base/pool.h"

/* State of a thread. */
typedef struct seat {
    ml_environment *environment;
    ml_encoder *encoder;
    ml_arena arena; /* of its replies */
} seat;

struct ml_turns {
    ml_arena arena; /* this struct is allocated in it */
    ml_turns_opts opts;
    ml_pool *pool;
    seat *seat; /* [opts.n_thread] */
};

/* --- open and close ----------------------------------------------------------- */

static ml_status try_template(const ml_turns_opts *o, ml_err *err) {
    uint32_t wants = o->environment.ext ? o->environment.ext->roles : MILES_ROLE_USER;
    ml_status st = ML_OK;

    if (wants && !o->text.chat_template)
        return ml_fail(err, ML_EUNSUP,
                       "the environment replies with messages, but the checkpoint has no "
                       "chat template: set one with --chat-template-path");
    if (wants & MILES_ROLE_USER)
        st = ml_turn_tokens_check(&o->text, "user", err);
    if (st == ML_OK && (wants & MILES_ROLE_TOOL))
        st = ml_turn_tokens_check(&o->text, "tool", err);
    return st;
}

ml_status ml_turns_open(ml_turns **out, const ml_turns_opts *opts, ml_err *err) {
    ml_status st = try_template(opts, err);
    ml_arena arena;
    ml_turns *t;

    *out = NULL;
    if (st != ML_OK)
        return st;
    ml_arena_init(&arena, "turns");
    t = ML_NEW(&arena, ml_turns, 1);
    t->opts = *opts;
    t->seat = ML_NEW(&arena, seat, opts->n_thread);
    t->arena = arena;
    for (int64_t i = 0; i < opts->n_thread; i++) {
        t->seat[i].environment = ml_environment_new(&t->opts.environment);
        t->seat[i].encoder = ml_encoder_new(opts->text.tokenizer);
        ml_arena_init(&t->seat[i].arena, "replies");
    }
    st = ml_pool_new(&t->pool, (int)opts->n_thread, err);
    if (st != ML_OK) {
        ml_turns_close(t);
        return st;
    }
    *out = t;
    return ML_OK;
}

void ml_turns_close(ml_turns *t) {
    ml_arena arena;

    if (!t)
        return;
    if (t->pool)
        ml_pool_free(t->pool);
    for (int64_t i = 0; i < t->opts.n_thread; i++) {
        ml_environment_free(t->seat[i].environment);
        ml_encoder_free(t->seat[i].encoder);
        ml_arena_release(&t->seat[i].arena);
    }
    arena = t->arena;
    ml_arena_release(&arena);
}

int32_t ml_turns_max(const ml_turns *t) {
    return t->opts.max_turn;
}

/* --- one conversation --------------------------------------------------------- */

static void find_calls(const ml_turns *t, ml_turn *x, ml_arena *a) {
    ml_tool_reader r;
    ml_text rest = { 0 };
    miles_call *call;

    ml_tool_reader_init(&r, t->opts.tools, NULL, a);
    ml_tool_reader_push(&r, (ml_str){ x->in.answer, x->in.answer_len }, &rest);
    ml_tool_reader_finish(&r, &rest);
    x->in.call = call = ML_NEW(a, miles_call, r.n + 1);
    x->in.n_call = r.n;
    for (int32_t i = 0; i < r.n; i++)
        call[i] = (miles_call){ r.call[i].name.ptr, r.call[i].arguments.ptr,
                                r.call[i].name.len, r.call[i].arguments.len };
    ml_tool_reader_release(&r);
    ml_text_release(&rest);
}

static ml_status encode(const ml_turns *t, const seat *s, ml_turn *x, ml_err *err) {
    ml_reply *r = &x->reply;

    if (r->messages && !t->opts.text.chat_template)
        return ml_fail(
            err, ML_EUNSUP,
            "the environment replied with a message, but there is no chat template");
    if (r->messages)
        return ml_turn_tokens_encode(&t->opts.text, s->encoder, &x->ids, r->arena,
                                     r->messages, x->last, err);
    return ml_encode(s->encoder, &x->ids, r->text, (ml_encode_opts){ 0 }, err);
}

static void answer(const ml_turns *t, const seat *s, ml_turn *x) {
    ml_err err = { 0 };

    find_calls(t, x, x->reply.arena);
    x->in.max_turn = t->opts.max_turn;
    x->ids.n = 0;
    ml_environment_reply(s->environment, &x->reply, &x->in);
    if (x->reply.outcome != ML_REWARD_OK || (!x->reply.messages && !x->reply.text.len))
        return;
    if (encode(t, s, x, &err) != ML_OK) {
        x->reply.outcome = ML_REWARD_INVALID;
        x->reply.why = ml_arena_printf(x->reply.arena, "%s", err.msg);
    }
}

typedef struct hearing {
    const ml_turns *turns;
    ml_turn *const *turn;
} hearing;

static void answer_some(void *ud, int64_t begin, int64_t end, int worker) {
    const hearing *h = ud;
    seat *s = &h->turns->seat[worker];

    for (int64_t i = begin; i < end; i++) {
        h->turn[i]->reply.arena = &s->arena;
        answer(h->turns, s, h->turn[i]);
    }
}

void ml_turns_run(ml_turns *t, ml_turn *const *turn, int64_t n) {
    hearing h = { t, turn };

    for (int64_t i = 0; i < t->opts.n_thread; i++) {
        ml_arena_release(&t->seat[i].arena);
        ml_arena_init(&t->seat[i].arena, "replies");
    }
    ml_pool_run(t->pool, n, 1, answer_some, &h);
}
