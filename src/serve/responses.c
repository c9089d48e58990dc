/* POST /v1/responses, OpenAI's Responses API; GET and DELETE /v1/responses/ID.
 *
 * The request is translated to a chat; the reply has items: reasoning, a message, function calls.
 * A stream has named, numbered events: response.created and .in_progress; for each item
 * response.output_item.added, its deltas, and .done; response.completed, .incomplete or .failed.
 * The conversation of a reply is stored, so that a request may continue it with
 * previous_response_id. */
#include <stdio.h>
#include <string.h>

#include "serve/openai.h"
#include "serve/response_store.h"
#include "serve/responses_items.h"

typedef enum item_kind { ITEM_NONE, ITEM_REASONING, ITEM_MESSAGE } item_kind;

/* The translated chat is the first member: the functions of a chat read it. */
typedef struct responses_body {
    ml_openai_body chat;
    const ml_json *input, *instructions, *tools, *tool_choice, *text, *metadata, *reasoning,
        *include;
    ml_str previous, truncation, user;
    int32_t max_output;
    bool store;
    ml_str echo;    /* members of the reply that repeat the request */
    ml_str history; /* messages of the conversation, without instructions */
    /* the reply */
    item_kind open;
    int32_t n_item;
    int64_t seq;   /* of the next event */
    ml_text item;  /* text of the open item */
    ml_text items; /* the complete ones, JSON objects with commas between them */
} responses_body;

#define AT(field) offsetof(responses_body, field)

static const ml_field rows[] = {
    { "input", ML_FIELD_JSON, AT(input) },
    { "instructions", ML_FIELD_JSON, AT(instructions) },
    { "previous_response_id", ML_FIELD_STR, AT(previous) },
    { "store", ML_FIELD_BOOL, AT(store) },
    { "max_output_tokens", ML_FIELD_I32, AT(max_output), 1, INT32_MAX },
    { "tools", ML_FIELD_JSON, AT(tools) },
    { "tool_choice", ML_FIELD_JSON, AT(tool_choice) },
    { "parallel_tool_calls", ML_FIELD_BOOL, AT(chat.parallel_calls) },
    { "text", ML_FIELD_JSON, AT(text) },
    { "metadata", ML_FIELD_JSON, AT(metadata) },
    { "reasoning", ML_FIELD_JSON, AT(reasoning) },
    { "include", ML_FIELD_JSON, AT(include) },
    { "truncation", ML_FIELD_STR, AT(truncation) },
    { "top_logprobs", ML_FIELD_I32, AT(chat.top_logprobs), 0, ML_MAX_TOP },
    { "chat_template_kwargs", ML_FIELD_JSON, AT(chat.template_kwargs) },
    { "separate_reasoning", ML_FIELD_BOOL, AT(chat.separate_reasoning) },
    { "max_tool_calls", ML_FIELD_IGNORE },
    { "stream_options", ML_FIELD_IGNORE },
    { "prompt_cache_retention", ML_FIELD_IGNORE },
    { "background", ML_FIELD_REFUSE, .why = "the reply is sent when it is complete" },
    { "conversation", ML_FIELD_REFUSE, .why = "use previous_response_id" },
    { "prompt", ML_FIELD_REFUSE, .why = "templates of prompts are on OpenAI's servers" },
    { "n", ML_FIELD_REFUSE, .why = "a response has one answer" },
    { "max_tokens", ML_FIELD_REFUSE, .why = "use max_output_tokens" },
    { "response_format", ML_FIELD_REFUSE, .why = "use text.format" },
    { "return_token_ids", ML_FIELD_REFUSE, .why = "use /v1/chat/completions" },
    { "return_prompt_token_ids", ML_FIELD_REFUSE, .why = "use /v1/chat/completions" },
    { "return_meta_info", ML_FIELD_REFUSE, .why = "use /v1/chat/completions" },
    { "", ML_FIELD_MORE, .more = ml_openai_rows },
    { 0 },
};

/* --- reading ---------------------------------------------------------------------- */

static void put_json(ml_json_out *o, const char *key, const ml_json *v, const char *none) {
    ml_json_key(o, key);
    if (v)
        ml_json_tree_write(o, v);
    else
        ml_json_raw(o, ml_str_of(none));
}

static void put_text(ml_json_out *o, const char *key, ml_str s) {
    ml_json_key(o, key);
    if (s.len)
        ml_json_str(o, s);
    else
        ml_json_null(o);
}

/* Of what the request said; the body does not live until the reply. */
static void write_echo(ml_job *j, responses_body *b) {
    ml_text t = { 0 };
    ml_json_out o = { .to = &t };

    put_json(&o, "instructions", b->instructions, "null");
    ml_json_key(&o, "max_output_tokens");
    if (b->max_output > 0)
        ml_json_int(&o, b->max_output);
    else
        ml_json_null(&o);
    ml_json_put_bool(&o, "parallel_tool_calls", b->chat.parallel_calls);
    put_text(&o, "previous_response_id", b->previous);
    put_json(&o, "reasoning", b->reasoning, "{\"effort\": null, \"summary\": null}");
    ml_json_put_bool(&o, "store", b->store);
    ml_json_put_float(&o, "temperature", b->chat.sampling.temperature);
    put_json(&o, "text", b->text, "{\"format\": {\"type\": \"text\"}}");
    put_json(&o, "tool_choice", b->tool_choice, "\"auto\"");
    put_json(&o, "tools", b->tools, "[]");
    ml_json_put_int(&o, "top_logprobs", b->chat.top_logprobs);
    ml_json_put_float(&o, "top_p", b->chat.sampling.top_p);
    ml_json_put_word(&o, "truncation", "disabled");
    put_json(&o, "metadata", b->metadata, "{}");
    b->echo = ml_str_keep(&j->arena, (ml_str){ t.ptr, t.len });
    ml_text_release(&t);
}

/* "message.output_text.logprobs" of "include"; others are of tools that run elsewhere. */
static void read_include(responses_body *b) {
    for (const ml_json *v = b->include ? b->include->child : NULL; v; v = v->next)
        if (v->type == ML_JSON_STRING && ml_str_is(v->text, "message.output_text.logprobs"))
            b->chat.logprobs = true;
    if (!b->chat.logprobs)
        b->chat.top_logprobs = 0;
}

/* The effort becomes the template's reasoning_effort. */
static void read_effort(ml_job *j, responses_body *b) {
    const ml_json *effort = ml_json_get(b->reasoning, "effort");
    ml_json *kwargs, *one;

    if (!effort || effort->type != ML_JSON_STRING || b->chat.template_kwargs)
        return;
    kwargs = ML_NEW(&j->scratch, ml_json, 1);
    one = ML_NEW(&j->scratch, ml_json, 1);
    *one = *effort;
    one->key = ml_str_of("reasoning_effort");
    one->next = NULL;
    *kwargs = (ml_json){ .type = ML_JSON_OBJECT, .n = 1, .child = one };
    b->chat.template_kwargs = kwargs;
}

static ml_status read_history(ml_job *j, responses_body *b, ml_text *out, ml_err *err) {
    ml_status st;

    if (b->previous.len &&
        !ml_response_store_messages(j->server->responses, b->previous, out))
        return ml_fail(err, ML_EUSAGE,
                       "Previous response with id '%.*s' not found: the server keeps the "
                       "latest %d, of this process.",
                       (int)(b->previous.len < 80 ? b->previous.len : 80), b->previous.ptr,
                       ML_RESPONSES_MAX);
    if (!b->input)
        return ml_fail(err, ML_EUSAGE, "expected \"input\", a string or a list of items");
    st = ml_responses_input_read(out, b->input, err);
    b->history = ml_str_keep(&j->arena, (ml_str){ out->ptr, out->len });
    return st;
}

/* Instructions come first, and are not part of the conversation that is stored. */
static ml_status read_messages(ml_job *j, responses_body *b, ml_err *err) {
    ml_text history = { 0 }, all = { 0 };
    ml_json_out o = { .to = &all };
    ml_status st = read_history(j, b, &history, err);
    ml_text system = { 0 };

    ml_json_begin(&o, '[');
    if (st == ML_OK && b->instructions) {
        st = ml_responses_text_read(&system, b->instructions, err);
        ml_json_begin(&o, '{');
        ml_json_put_word(&o, "role", "system");
        ml_json_put_str(&o, "content",
                        (ml_str){ system.ptr ? system.ptr : "", system.len });
        ml_json_end(&o, '}');
    }
    ml_json_raw(&o, (ml_str){ history.ptr ? history.ptr : "", history.len });
    ml_json_end(&o, ']');
    if (st == ML_OK)
        st = ml_json_parse(&b->chat.messages, &j->scratch,
                           ml_str_keep(&j->scratch, (ml_str){ all.ptr, all.len }),
                           "the conversation", err);
    ml_text_release(&history);
    ml_text_release(&system);
    ml_text_release(&all);
    return st;
}

static ml_status translate(ml_job *j, ml_err *err) {
    responses_body *b = j->ud;
    ml_status st = read_messages(j, b, err);

    if (!st)
        st = ml_responses_tools_read(&b->chat.tools, b->tools, &j->scratch, err);
    if (!st)
        st = ml_responses_tool_choice_read(&b->chat.tool_choice, b->tool_choice,
                                           &j->scratch, err);
    if (!st && b->text)
        st = ml_responses_format_read(&b->chat.format, b->text, &j->scratch, err);
    if (!st && b->truncation.len && !ml_str_is(b->truncation, "disabled"))
        st = ml_fail(err, ML_EUNSUP,
                     "\"truncation\": a conversation is never shortened; expected "
                     "\"disabled\"");
    read_include(b);
    read_effort(j, b);
    return st;
}

static ml_status read_request(ml_job *j, ml_err *err) {
    responses_body *b = ML_NEW(&j->arena, responses_body, 1);
    ml_status st;

    j->ud = b;
    b->store = true;
    b->max_output = -1;
    b->chat.keeps_text = true;
    st = ml_openai_read(j, rows, err);
    if (!st)
        st = translate(j, err);
    if (st)
        return st;
    b->chat.sampling.max_new = b->max_output;
    b->previous = ml_str_keep(&j->arena, b->previous);
    ml_server_new_id(j->server, "resp_", j->id, sizeof j->id);
    write_echo(j, b);
    return ml_chat_prepare(j, err);
}

static void release(ml_choice *c) {
    responses_body *b = c->job->ud;

    ml_text_release(&b->item);
    ml_text_release(&b->items);
    ml_chat_release(c);
}

/* --- items ------------------------------------------------------------------------- */

#define ITEM_ID 48

static void item_id(const ml_choice *c, const char *prefix, char out[ITEM_ID]) {
    const responses_body *b = c->job->ud;
    const ml_chat_choice *x = c->ud;

    snprintf(out, ITEM_ID, "%s_%016llx%08x", prefix, (unsigned long long)x->call_key,
             (unsigned)b->n_item);
}

static void write_part(const ml_choice *c, const char *type, ml_str text, bool done,
                       ml_json_out *o) {
    ml_json_begin(o, '{');
    ml_json_put_word(o, "type", type);
    ml_json_put_str(o, "text", text);
    if (strcmp(type, "output_text") == 0) {
        ml_json_key(o, "annotations");
        ml_json_raw(o, ml_str_of("[]"));
        ml_json_key(o, "logprobs");
        if (done)
            ml_chat_logprobs_write(c, 0, o);
        else
            ml_json_raw(o, ml_str_of("[]"));
    }
    ml_json_end(o, '}');
}

static const char *part_type(item_kind kind) {
    return kind == ITEM_REASONING ? "reasoning_text" : "output_text";
}

/* The open item; without its text when it begins. */
static void write_item(const ml_choice *c, item_kind kind, bool done, ml_json_out *o) {
    const responses_body *b = c->job->ud;
    bool cut = done && c->finish == ML_FINISH_LENGTH;
    char id[ITEM_ID];

    item_id(c, kind == ITEM_REASONING ? "rs" : "msg", id);
    ml_json_begin(o, '{');
    ml_json_put_word(o, "id", id);
    ml_json_put_word(o, "type", kind == ITEM_REASONING ? "reasoning" : "message");
    ml_json_put_word(o, "status", !done ? "in_progress" : cut ? "incomplete" : "completed");
    if (kind == ITEM_REASONING) {
        ml_json_key(o, "summary");
        ml_json_raw(o, ml_str_of("[]"));
    } else {
        ml_json_put_word(o, "role", "assistant");
    }
    ml_json_key(o, "content");
    ml_json_begin(o, '[');
    if (done)
        write_part(c, part_type(kind),
                   (ml_str){ b->item.ptr ? b->item.ptr : "", b->item.len }, true, o);
    ml_json_end(o, ']');
    ml_json_end(o, '}');
}

static void write_call(const ml_choice *c, int32_t i, bool done, ml_json_out *o) {
    const ml_tool_call *t = &((const ml_chat_choice *)c->ud)->reader.call[i];
    char id[ITEM_ID], call[ML_CALL_ID];

    item_id(c, "fc", id);
    ml_chat_call_id(c, i, call);
    ml_json_begin(o, '{');
    ml_json_put_word(o, "id", id);
    ml_json_put_word(o, "type", "function_call");
    ml_json_put_word(o, "status", done ? "completed" : "in_progress");
    ml_json_put_word(o, "call_id", call);
    ml_json_put_str(o, "name", t->name);
    ml_json_put_str(o, "arguments", done ? t->arguments : ml_str_of(""));
    ml_json_end(o, '}');
}

static ml_json_out more_items(responses_body *b) {
    return (ml_json_out){ .to = &b->items, .comma = b->items.len > 0 };
}

/* --- the response --------------------------------------------------------------------- */

static const char *status_of(const ml_choice *c) {
    switch (c->finish) {
    case ML_FINISH_NOT: return "in_progress";
    case ML_FINISH_LENGTH: return "incomplete";
    case ML_FINISH_ABORT: return "failed";
    case ML_FINISH_TOKEN:
    case ML_FINISH_STRING: break;
    }
    return "completed";
}

static void write_usage(const ml_choice *c, ml_json_out *o) {
    ml_json_key(o, "usage");
    if (c->finish == ML_FINISH_NOT) {
        ml_json_null(o);
        return;
    }
    ml_json_begin(o, '{');
    ml_json_put_int(o, "input_tokens", c->n_prompt);
    ml_json_key(o, "input_tokens_details");
    ml_json_begin(o, '{');
    ml_json_put_int(o, "cached_tokens", c->n_cached);
    ml_json_end(o, '}');
    ml_json_put_int(o, "output_tokens", c->answer.n);
    ml_json_key(o, "output_tokens_details");
    ml_json_raw(o, ml_str_of("{\"reasoning_tokens\": 0}"));
    ml_json_put_int(o, "total_tokens", c->n_prompt + c->answer.n);
    ml_json_end(o, '}');
}

static void write_end(const ml_choice *c, ml_json_out *o) {
    ml_json_key(o, "error");
    if (c->finish == ML_FINISH_ABORT) {
        ml_json_begin(o, '{');
        ml_json_put_word(o, "code", "server_error");
        ml_json_put_word(o, "message",
                         c->message[0] ? c->message : "the request was aborted");
        ml_json_end(o, '}');
    } else {
        ml_json_null(o);
    }
    ml_json_key(o, "incomplete_details");
    ml_json_raw(o, ml_str_of(c->finish == ML_FINISH_LENGTH
                                 ? "{\"reason\": \"max_output_tokens\"}"
                                 : "null"));
}

static void write_response(const ml_job *j, ml_json_out *o) {
    const responses_body *b = j->ud;
    const ml_choice *c = &j->choice[0];

    ml_json_begin(o, '{');
    ml_json_put_word(o, "id", j->id);
    ml_json_put_word(o, "object", "response");
    ml_json_put_int(o, "created_at", j->created);
    ml_json_put_word(o, "status", status_of(c));
    ml_json_key(o, "model");
    if (b->chat.model.len)
        ml_json_str(o, b->chat.model);
    else
        ml_json_word(o, j->server->opts.model_name);
    ml_json_key(o, "output");
    ml_json_begin(o, '[');
    ml_json_raw(o, (ml_str){ b->items.ptr ? b->items.ptr : "", b->items.len });
    ml_json_end(o, ']');
    write_end(c, o);
    ml_json_raw(o, b->echo);
    write_usage(c, o);
    ml_json_end(o, '}');
}

/* Stores a complete response with its conversation. */
static void keep(ml_job *j, ml_str reply) {
    responses_body *b = j->ud;
    ml_text *messages = &b->items; /* no longer needed */
    ml_json_out o = { .to = messages, .comma = true };

    if (!b->store || j->choice[0].finish == ML_FINISH_ABORT)
        return;
    messages->len = 0;
    ml_text_add(messages, b->history.ptr, b->history.len);
    ml_chat_answer_write(&j->choice[0], &o);
    ml_response_store_add(j->server->responses, j->id, reply,
                          (ml_str){ messages->ptr, messages->len });
}

/* --- whole replies ----------------------------------------------------------------------- */

static void take_item(ml_choice *c, item_kind kind, const ml_text *text) {
    responses_body *b = c->job->ud;
    ml_json_out o = more_items(b);

    if (!text->len)
        return;
    b->item.len = 0;
    ml_text_add(&b->item, text->ptr, text->len);
    write_item(c, kind, true, &o);
    b->n_item++;
}

static void write_whole(ml_job *j, ml_json_out *o) {
    ml_choice *c = &j->choice[0];
    responses_body *b = j->ud;
    ml_chat_choice *x = c->ud;
    size_t from = o->to->len;

    ml_chat_read_text(c);
    b->items.len = 0;
    b->n_item = 0;
    take_item(c, ITEM_REASONING, &x->reasoning);
    take_item(c, ITEM_MESSAGE, &x->content);
    for (int32_t i = 0; i < x->reader.n; i++) {
        ml_json_out list = more_items(b);
        write_call(c, i, true, &list);
        b->n_item++;
    }
    write_response(j, o);
    keep(j, (ml_str){ o->to->ptr + from, o->to->len - from });
}

/* --- streams ------------------------------------------------------------------------------ */

/* Begins an event: {"type": name, "sequence_number": n */
static ml_json_out begin_event(ml_job *j, const char *name) {
    responses_body *b = j->ud;
    ml_json_out o = { .to = &j->out };

    j->out.len = 0;
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "type", name);
    ml_json_put_int(&o, "sequence_number", b->seq++);
    return o;
}

static void end_event(ml_job *j, const char *name, ml_json_out *o) {
    ml_json_end(o, '}');
    ml_job_send_event(j, name, &j->out);
}

static void send_response(ml_job *j, const char *name) {
    ml_json_out o = begin_event(j, name);

    ml_json_key(&o, "response");
    write_response(j, &o);
    end_event(j, name, &o);
}

/* Begins an event of the open item. */
static ml_json_out begin_item_event(const ml_choice *c, const char *name) {
    const responses_body *b = c->job->ud;
    ml_json_out o = begin_event(c->job, name);
    char id[ITEM_ID];

    item_id(c, b->open == ITEM_REASONING ? "rs" : "msg", id);
    ml_json_put_word(&o, "item_id", id);
    ml_json_put_int(&o, "output_index", b->n_item);
    ml_json_put_int(&o, "content_index", 0);
    return o;
}

static void open_item(const ml_choice *c, item_kind kind) {
    responses_body *b = c->job->ud;
    ml_json_out o = begin_event(c->job, "response.output_item.added");

    ml_json_put_int(&o, "output_index", b->n_item);
    ml_json_key(&o, "item");
    write_item(c, kind, false, &o);
    end_event(c->job, "response.output_item.added", &o);
    b->open = kind;
    b->item.len = 0;
    o = begin_item_event(c, "response.content_part.added");
    ml_json_key(&o, "part");
    write_part(c, part_type(kind), ml_str_of(""), false, &o);
    end_event(c->job, "response.content_part.added", &o);
}

static void close_item(const ml_choice *c) {
    responses_body *b = c->job->ud;
    bool thinks = b->open == ITEM_REASONING;
    const char *name =
        thinks ? "response.reasoning_text.done" : "response.output_text.done";
    ml_str text = { b->item.ptr ? b->item.ptr : "", b->item.len };
    ml_json_out o, list = more_items(b);

    if (b->open == ITEM_NONE)
        return;
    o = begin_item_event(c, name);
    ml_json_put_str(&o, "text", text);
    if (!thinks) {
        ml_json_key(&o, "logprobs");
        ml_chat_logprobs_write(c, 0, &o);
    }
    end_event(c->job, name, &o);
    o = begin_item_event(c, "response.content_part.done");
    ml_json_key(&o, "part");
    write_part(c, part_type(b->open), text, true, &o);
    end_event(c->job, "response.content_part.done", &o);
    o = begin_event(c->job, "response.output_item.done");
    ml_json_put_int(&o, "output_index", b->n_item);
    ml_json_key(&o, "item");
    write_item(c, b->open, true, &o);
    end_event(c->job, "response.output_item.done", &o);
    write_item(c, b->open, true, &list);
    b->open = ITEM_NONE;
    b->n_item++;
}

static void send_text(ml_choice *c, item_kind kind, ml_text *text) {
    responses_body *b = c->job->ud;
    const char *name = kind == ITEM_REASONING ? "response.reasoning_text.delta"
                                              : "response.output_text.delta";
    ml_json_out o;

    if (!text->len)
        return;
    if (b->open != kind) {
        close_item(c);
        open_item(c, kind);
    }
    o = begin_item_event(c, name);
    ml_json_put_str(&o, "delta", (ml_str){ text->ptr, text->len });
    if (kind == ITEM_MESSAGE) {
        ml_json_key(&o, "logprobs");
        ml_chat_logprobs_write(c, c->sent_tokens, &o);
        c->sent_tokens = c->answer.n;
    }
    end_event(c->job, name, &o);
    ml_text_add(&b->item, text->ptr, text->len);
    text->len = 0;
}

static ml_json_out begin_call_event(const ml_choice *c, const char *name) {
    const responses_body *b = c->job->ud;
    ml_json_out o = begin_event(c->job, name);
    char id[ITEM_ID];

    item_id(c, "fc", id);
    ml_json_put_word(&o, "item_id", id);
    ml_json_put_int(&o, "output_index", b->n_item);
    return o;
}

static void send_call_item(const ml_choice *c, int32_t i, const char *name, bool done) {
    const responses_body *b = c->job->ud;
    ml_json_out o = begin_event(c->job, name);

    ml_json_put_int(&o, "output_index", b->n_item);
    ml_json_key(&o, "item");
    write_call(c, i, done, &o);
    end_event(c->job, name, &o);
}

static void send_call(const ml_choice *c, int32_t i) {
    static const char delta[] = "response.function_call_arguments.delta",
                      end[] = "response.function_call_arguments.done";
    const ml_tool_call *t = &((const ml_chat_choice *)c->ud)->reader.call[i];
    responses_body *b = c->job->ud;
    ml_json_out o, list = more_items(b);

    send_call_item(c, i, "response.output_item.added", false);
    o = begin_call_event(c, delta);
    ml_json_put_str(&o, "delta", t->arguments);
    end_event(c->job, delta, &o);
    o = begin_call_event(c, end);
    ml_json_put_str(&o, "name", t->name);
    ml_json_put_str(&o, "arguments", t->arguments);
    end_event(c->job, end, &o);
    send_call_item(c, i, "response.output_item.done", true);
    write_call(c, i, true, &list);
    b->n_item++;
}

static void write_piece(ml_job *j, ml_choice *c) {
    ml_chat_choice *x = c->ud;

    if (!c->begun) {
        ml_finish finish = c->finish;
        c->finish = ML_FINISH_NOT; /* as the first events say */
        send_response(j, "response.created");
        send_response(j, "response.in_progress");
        c->finish = finish;
    }
    c->begun = true;
    ml_chat_read_text(c);
    send_text(c, ITEM_REASONING, &x->reasoning);
    send_text(c, ITEM_MESSAGE, &x->content);
    if (x->sent_calls < x->reader.n)
        close_item(c);
    for (; x->sent_calls < x->reader.n; x->sent_calls++)
        send_call(c, x->sent_calls);
}

static void write_last(ml_job *j) {
    static const char *const name[] = { "response.completed", "response.incomplete",
                                        "response.failed" };
    ml_choice *c = &j->choice[0];
    int at = c->finish == ML_FINISH_LENGTH ? 1 : c->finish == ML_FINISH_ABORT ? 2 : 0;
    ml_text reply = { 0 };
    ml_json_out o = { .to = &reply };

    close_item(c);
    write_response(j, &o);
    send_response(j, name[at]);
    keep(j, (ml_str){ reply.ptr, reply.len });
    ml_text_release(&reply);
}

const ml_api ml_responses_api = { .path = "/v1/responses",
                                  .read = read_request,
                                  .whole = write_whole,
                                  .piece = write_piece,
                                  .last = write_last,
                                  .release = release,
                                  .named_events = true };

void ml_serve_responses(ml_server *s, ml_http_call *call) {
    ml_job_serve(s, call, &ml_responses_api);
}

/* --- stored responses ------------------------------------------------------------------------ */

typedef struct lookup {
    ml_server *server;
    ml_str id;
    ml_text out;
    bool found;
} lookup;

static void look(void *ud) {
    lookup *l = ud;
    l->found = ml_response_store_reply(l->server->responses, l->id, &l->out);
}

void ml_serve_stored_response(ml_server *s, ml_http_call *call) {
    static const char root[] = "/v1/responses/";
    ml_str path = ml_http_path(call), method = ml_http_method(call);
    lookup l = { .server = s,
                 .id = { path.ptr + sizeof root - 1, path.len - (sizeof root - 1) } };
    char message[200];

    if (ml_str_is(method, "GET") && !ml_memory_try(look, &l)) {
        ml_reply_error(call, 503, "out of memory for the response; try again later");
    } else if (l.found) {
        ml_reply_json(call, 200, &l.out);
    } else if (ml_str_is(method, "DELETE") &&
               ml_response_store_delete(s->responses, l.id)) {
        ml_text_printf(&l.out,
                       "{\"id\": \"%.*s\", \"object\": \"response\", \"deleted\": true}",
                       (int)l.id.len, l.id.ptr);
        ml_reply_json(call, 200, &l.out);
    } else if (!ml_str_is(method, "GET") && !ml_str_is(method, "DELETE")) {
        ml_reply_error(call, 405, "/v1/responses/ID accepts GET and DELETE only.");
    } else {
        snprintf(message, sizeof message, "Response with id '%.*s' not found.",
                 (int)(l.id.len < 80 ? l.id.len : 80), l.id.ptr);
        ml_reply_error(call, 404, message);
    }
    ml_text_release(&l.out);
}
