#include "rl/env/turns.h"

/* State of a thread. */
typedef struct seat {
    ml_environment *environment;
    ml_encoder *encoder;
    ml_arena arena; /* of its current reply */
} seat;

struct ml_turns {
    ml_arena arena; /* this struct is allocated in it */
    ml_turns_opts opts;
    ml_job_queue *queue;
    seat *seat; /* [opts.n_thread] */
};

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

static void run(void *turns, int64_t thread, ml_job *job) {
    ml_turns *t = turns;
    seat *s = &t->seat[thread];
    ml_turn *x = (ml_turn *)job;

    x->reply.arena = &s->arena;
    answer(t, s, x);
    x->replied(x);
    ml_arena_release(&s->arena);
    ml_arena_init(&s->arena, "a reply");
}

void ml_turns_submit(ml_turns *t, ml_turn *turn) {
    ml_job_queue_post(t->queue, &turn->job);
}

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

static ml_status open_pool(ml_turns_opts *o, ml_err *err) {
    ml_worker_pool_opts pool = o->environment.python;

    pool.n = o->n_thread;
    pool.memory_bytes = o->environment.memory_bytes;
    return pool.line ? ml_worker_pool_open(&o->environment.pool, &pool, err) : ML_OK;
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
        ml_arena_init(&t->seat[i].arena, "a reply");
    }
    st = open_pool(&t->opts, err);
    if (st == ML_OK)
        st = ml_job_queue_open(&t->queue, opts->n_thread, run, t, err);
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
    ml_job_queue_close(t->queue);
    for (int64_t i = 0; i < t->opts.n_thread; i++) {
        ml_environment_free(t->seat[i].environment);
        ml_encoder_free(t->seat[i].encoder);
        ml_arena_release(&t->seat[i].arena);
    }
    ml_worker_pool_close(t->opts.environment.pool);
    arena = t->arena;
    ml_arena_release(&arena);
}

int32_t ml_turns_max(const ml_turns *t) {
    return t->opts.max_turn;
}
