#include "rl/env/environment.h"

#include <math.h>
#include <string.h>

#include "text/chat/conversation.h"
#include "rl/reward/request_json.h"

struct ml_environment {
    ml_arena arena; /* contains this struct, too */
    const ml_environment_opts *opts;
    ml_line_process *worker; /* NULL: an extension */
};

ml_environment *ml_environment_new(const ml_environment_opts *opts) {
    ml_arena arena;
    ml_environment *e;

    ml_arena_init(&arena, "environment");
    e = ML_NEW(&arena, ml_environment, 1);
    e->arena = arena;
    e->opts = opts;
    if (opts->command.line)
        e->worker = ml_line_process_new(&opts->command, opts->memory_bytes);
    return e;
}

void ml_environment_free(ml_environment *e) {
    ml_arena arena;

    if (!e)
        return;
    ml_line_process_free(e->worker);
    arena = e->arena;
    ml_arena_release(&arena);
}

static void fail(ml_reply *r, ml_reward_outcome outcome, const char *why) {
    r->outcome = outcome;
    r->why = ml_arena_str(r->arena, why, strlen(why));
}

/* --- extensions --------------------------------------------------------------------- */

/* Collects the output of an extension while it runs. */
typedef struct speech {
    ml_arena *arena;
    ml_messages messages;
    ml_text text;
} speech;

static void say(miles_turn_out *out, const char *role, const char *text, size_t len) {
    speech *s = out->ctx;

    if (!role) {
        ml_text_add(&s->text, text, len);
        return;
    }
    ml_messages_append(&s->messages, ml_str_of(ml_arena_str(s->arena, role, strlen(role))),
                       (ml_str){ ml_arena_str(s->arena, text, len), len });
}

static void ask_extension(const ml_environment *e, ml_reply *r, const miles_turn_in *in) {
    speech s = { .arena = r->arena, .messages = ml_messages_begin(r->arena) };
    miles_turn_out out = {
        .size = sizeof out, .ctx = &s, .append_message = say, .reward = (double)NAN
    };
    miles_error why = { "" };

    if (e->opts->ext->run(in, &out, &why) != 0)
        fail(r, ML_REWARD_INVALID, why.text);
    else if (s.text.len && s.messages.list->n)
        fail(r, ML_REWARD_INVALID, "the environment's reply has both messages and text");
    else {
        r->messages = s.messages.list->n ? s.messages.list : NULL;
        if (s.text.len)
            r->text =
                (ml_str){ ml_arena_str(r->arena, s.text.ptr, s.text.len), s.text.len };
        r->reward = out.reward;
    }
    ml_text_release(&s.text);
}

/* --- worker processes --------------------------------------------------------------- */

static void write_calls(ml_text *t, const miles_turn_in *in) {
    ml_text_printf(t, ", \"calls\": [");
    for (int64_t i = 0; i < in->n_call; i++) {
        const miles_call *c = &in->call[i];
        ml_text_printf(t, "%s{\"name\": ", i ? ", " : "");
        ml_json_quote(t, (ml_str){ c->name, c->name_len });
        ml_request_json(t, "arguments", c->arguments, c->arguments_len);
        ml_text_printf(t, "}");
    }
    ml_text_printf(t, "]");
}

static void write_question(ml_text *t, const miles_turn_in *in) {
    ml_text_printf(t, "{\"index\": %lld, \"turn\": %d, \"max_turn\": %d",
                   (long long)in->index, in->turn, in->max_turn);
    ml_request_text(t, "prompt", in->prompt, in->prompt_len);
    ml_request_text(t, "response", in->response, in->response_len);
    ml_request_text(t, "answer", in->answer, in->answer_len);
    write_calls(t, in);
    ml_request_json(t, "label", in->label, in->label_len);
    ml_request_json(t, "metadata", in->metadata, in->metadata_len);
    ml_text_printf(t, "}");
}

static void read_end(ml_reply *r, const ml_json *reward) {
    if (reward && reward->type != ML_JSON_NULL &&
        (!ml_json_f64(reward, &r->reward) || !isfinite(r->reward)))
        fail(r, ML_REWARD_INVALID, "the environment's reward is not a finite number");
}

static void read_messages(ml_reply *r, const ml_json *messages) {
    ml_err err = { 0 };
    ml_status st = ml_conversation_check(messages, &err);

    if (st == ML_OK)
        st = ml_conversation_normal(&r->messages, r->arena, messages, &err);
    if (st != ML_OK)
        fail(r, ML_REWARD_INVALID,
             ml_arena_printf(r->arena, "the environment's \"messages\": %s", err.msg));
}

/* False: the line is not JSON, so the following lines cannot be trusted either. */
static bool read_answer(ml_reply *r, ml_str line) {
    ml_str src = { ml_arena_str(r->arena, line.ptr, line.len), line.len };
    const ml_json *doc = NULL, *messages, *text, *done, *error;
    ml_err err = { 0 };

    if (ml_json_parse(&doc, r->arena, src, "the environment's reply", &err) != ML_OK) {
        fail(r, ML_REWARD_INVALID, err.msg);
        return false;
    }
    messages = ml_json_get(doc, "messages");
    text = ml_json_get(doc, "text");
    done = ml_json_get(doc, "done");
    error = ml_json_get(doc, "error");
    if (error && error->type == ML_JSON_STRING)
        fail(r, ML_REWARD_INVALID,
             ml_arena_str(r->arena, error->text.ptr, error->text.len));
    else if (doc->type == ML_JSON_NULL || (done && done->type == ML_JSON_TRUE))
        read_end(r, ml_json_get(doc, "reward"));
    else if (messages)
        read_messages(r, messages);
    else if (text && text->type == ML_JSON_STRING)
        r->text = text->text;
    else
        fail(r, ML_REWARD_INVALID,
             "the environment's reply has none of \"messages\", \"text\" and \"done\"");
    return true;
}

static void ask_worker(ml_environment *e, ml_reply *r, const miles_turn_in *in) {
    ml_text question = { 0 }, answer = { 0 };

    write_question(&question, in);
    switch (ml_line_process_ask(e->worker, &answer, (ml_str){ question.ptr, question.len },
                                e->opts->deadline_s)) {
    case ML_LINE_PROCESS_ANSWERED:
        if (!read_answer(r, (ml_str){ answer.ptr, answer.len }))
            ml_line_process_restart(e->worker);
        break;
    case ML_LINE_PROCESS_LATE: fail(r, ML_REWARD_TIMEOUT, answer.ptr); break;
    case ML_LINE_PROCESS_DIED: fail(r, ML_REWARD_CRASH, answer.ptr); break;
    }
    ml_text_release(&question);
    ml_text_release(&answer);
}

static void ask_python(const ml_environment *e, ml_reply *r, const miles_turn_in *in) {
    ml_text call = { 0 }, answer = { 0 };

    ml_text_printf(&call, "{\"f\": \"%s\", \"turn\": ", e->opts->python_flag);
    write_question(&call, in);
    ml_text_printf(&call, "}");
    switch (ml_worker_pool_ask(e->opts->pool, &answer, (ml_str){ call.ptr, call.len },
                               e->opts->deadline_s)) {
    case ML_WORKER_ANSWERED: read_answer(r, (ml_str){ answer.ptr, answer.len }); break;
    case ML_WORKER_LATE: fail(r, ML_REWARD_TIMEOUT, answer.ptr); break;
    case ML_WORKER_DIED: fail(r, ML_REWARD_CRASH, answer.ptr); break;
    }
    ml_text_release(&call);
    ml_text_release(&answer);
}

void ml_environment_reply(ml_environment *e, ml_reply *r, const miles_turn_in *in) {
    *r = (ml_reply){ .arena = r->arena, .reward = (double)NAN, .why = "" };
    if (e->worker)
        ask_worker(e, r, in);
    else if (e->opts->pool)
        ask_python(e, r, in);
    else
        ask_extension(e, r, in);
}
