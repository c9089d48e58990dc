/* POST /v1/messages, Anthropic's Messages API, and /v1/messages/count_tokens.
 *
 * The request is translated to a chat; the reply is written in Anthropic's form.  A stream
 * has named events: message_start; for each content block content_block_start, _delta and
 * _stop; message_delta with the reason of the end; message_stop. */
#include <stdio.h>

#include "serve/anthropic_messages.h"
#include "serve/openai.h"

/* The translated chat is the first member: the functions of a chat read it. */
typedef struct anthropic_body {
    ml_openai_body chat;
    const ml_json *system, *tools, *tool_choice, *thinking, *stop, *output;
    bool counts; /* the tokens of the prompt, and generates nothing */
} anthropic_body;

#define AT(field) offsetof(anthropic_body, field)

static const ml_field rows[] = {
    { "messages", ML_FIELD_JSON, AT(chat.messages) },
    { "system", ML_FIELD_JSON, AT(system) },
    { "tools", ML_FIELD_JSON, AT(tools) },
    { "tool_choice", ML_FIELD_JSON, AT(tool_choice) },
    { "stop_sequences", ML_FIELD_JSON, AT(stop) },
    { "thinking", ML_FIELD_JSON, AT(thinking) },
    { "chat_template_kwargs", ML_FIELD_JSON, AT(chat.template_kwargs) },
    { "output_config", ML_FIELD_JSON, AT(output) },
    { "inference_geo", ML_FIELD_IGNORE },
    { "diagnostics", ML_FIELD_IGNORE },
    { "speed", ML_FIELD_IGNORE },
    { "user_profile_id", ML_FIELD_IGNORE },
    { "workspace_id", ML_FIELD_IGNORE },
    { "cache_control", ML_FIELD_IGNORE },
    { "betas", ML_FIELD_IGNORE },
    { "context_management", ML_FIELD_IGNORE },
    { "n", ML_FIELD_REFUSE, .why = "a message has one answer" },
    { "stop", ML_FIELD_REFUSE, .why = "use stop_sequences" },
    { "stream_options", ML_FIELD_REFUSE, .why = "events have the usage" },
    { "return_token_ids", ML_FIELD_REFUSE, .why = "use /v1/chat/completions" },
    { "return_prompt_token_ids", ML_FIELD_REFUSE, .why = "use /v1/chat/completions" },
    { "return_meta_info", ML_FIELD_REFUSE, .why = "use /v1/chat/completions" },
    { "container", ML_FIELD_REFUSE, .why = "containers run on Anthropic's servers" },
    { "mcp_servers", ML_FIELD_REFUSE, .why = "the client calls MCP servers" },
    { "", ML_FIELD_MORE, .more = ml_openai_rows },
    { 0 },
};

/* --- reading ---------------------------------------------------------------------- */

/* {"type": "enabled"} and {"type": "disabled"} become the template's enable_thinking. */
static ml_status read_thinking(ml_job *j, anthropic_body *b, ml_err *err) {
    const ml_json *type = ml_json_get(b->thinking, "type");
    ml_json *kwargs, *on;

    if (!type || type->type != ML_JSON_STRING)
        return ml_fail(err, ML_EUSAGE, "\"thinking\" needs a \"type\"");
    if (ml_str_is(type->text, "adaptive"))
        return ML_OK;
    kwargs = ML_NEW(&j->scratch, ml_json, 1);
    on = ML_NEW(&j->scratch, ml_json, 1);
    *on =
        (ml_json){ .type = ml_str_is(type->text, "enabled") ? ML_JSON_TRUE : ML_JSON_FALSE,
                   .key = ml_str_of("enable_thinking") };
    *kwargs = (ml_json){ .type = ML_JSON_OBJECT, .n = 1, .child = on };
    if (!b->chat.template_kwargs)
        b->chat.template_kwargs = kwargs;
    return ML_OK;
}

static ml_status read_tools(ml_job *j, anthropic_body *b, ml_err *err) {
    ml_str source = { j->raw.ptr, j->raw.len };
    ml_status st =
        ml_anthropic_tools_read(&b->chat.tools, b->tools, source, &j->scratch, err);

    if (!st && b->tool_choice)
        st = ml_anthropic_tool_choice_read(&b->chat.tool_choice, &b->chat.parallel_calls,
                                           b->tool_choice, &j->scratch, err);
    return st;
}

static ml_status translate(ml_job *j, ml_err *err) {
    anthropic_body *b = j->ud;
    ml_str source = { j->raw.ptr, j->raw.len };
    ml_status st = ml_anthropic_messages_read(&b->chat.messages, b->system,
                                              b->chat.messages, source, &j->scratch, err);

    if (!st)
        st = read_tools(j, b, err);
    if (!st && b->output)
        st = ml_anthropic_format_read(&b->chat.format, b->output, source, &j->scratch, err);
    if (!st && b->thinking)
        st = read_thinking(j, b, err);
    b->chat.sampling.stop_json = b->stop;
    b->chat.call_prefix = "toolu_";
    return st;
}

static ml_status read_body(ml_job *j, bool counts, ml_err *err) {
    anthropic_body *b = ML_NEW(&j->arena, anthropic_body, 1);
    ml_status st;

    j->ud = b;
    b->counts = counts;
    st = ml_openai_read(j, rows, err);
    if (!st && !counts && b->chat.max_tokens < 1)
        st = ml_fail(err, ML_EUSAGE, "\"max_tokens\": expected a number of at least 1");
    if (!st)
        st = translate(j, err);
    ml_server_new_id(j->server, "msg_", j->id, sizeof j->id);
    return st ? st : ml_chat_prepare(j, err);
}

static ml_status read_request(ml_job *j, ml_err *err) {
    return read_body(j, false, err);
}

static ml_status read_count(ml_job *j, ml_err *err) {
    ml_json_out o = { .to = &j->out };
    ml_status st = read_body(j, true, err);
    int64_t n = st ? 0 : j->choice[0].n_prompt;

    for (int32_t i = 0; i < j->n_choice; i++)
        ml_choice_release(&j->choice[i]);
    j->n_choice = 0;
    j->out.len = 0;
    ml_json_begin(&o, '{');
    ml_json_put_int(&o, "input_tokens", n);
    ml_json_end(&o, '}');
    return st;
}

/* --- writing ---------------------------------------------------------------------- */

static const char *stop_reason(const ml_choice *c) {
    const ml_chat_choice *x = c->ud;

    switch (c->finish) {
    case ML_FINISH_NOT: return NULL;
    case ML_FINISH_LENGTH: return "max_tokens";
    case ML_FINISH_ABORT: return "abort";
    case ML_FINISH_TOKEN:
    case ML_FINISH_STRING: break;
    }
    if (x->reader.n)
        return "tool_use";
    return c->finish == ML_FINISH_STRING ? "stop_sequence" : "end_turn";
}

static void write_stop(const ml_choice *c, ml_json_out *o) {
    const char *reason = stop_reason(c);

    ml_json_put_word(o, "stop_reason", reason);
    ml_json_key(o, "stop_sequence");
    if (c->finish == ML_FINISH_STRING)
        ml_choice_matched(c, o);
    else
        ml_json_null(o);
}

/* As Anthropic counts: input_tokens are those that were not read from the cache. */
static void write_usage(const ml_choice *c, ml_json_out *o) {
    ml_json_key(o, "usage");
    ml_json_begin(o, '{');
    ml_json_put_int(o, "input_tokens", c->n_prompt - c->n_cached);
    ml_json_put_int(o, "cache_creation_input_tokens", 0);
    ml_json_put_int(o, "cache_read_input_tokens", c->n_cached);
    ml_json_put_int(o, "output_tokens", c->answer.n);
    ml_json_end(o, '}');
}

/* The members before "content". */
static void write_head(const ml_job *j, ml_json_out *o) {
    const ml_openai_body *b = j->ud;

    ml_json_put_word(o, "id", j->id);
    ml_json_put_word(o, "type", "message");
    ml_json_put_word(o, "role", "assistant");
    ml_json_key(o, "model");
    if (b->model.len)
        ml_json_str(o, b->model);
    else
        ml_json_word(o, j->server->opts.model_name);
}

/* `input` NULL: an empty object, as at the beginning of a block of a stream. */
static void write_call(const ml_choice *c, int32_t i, const ml_str *input, ml_json_out *o) {
    const ml_chat_choice *x = c->ud;
    char id[ML_CALL_ID];

    ml_chat_call_id(c, i, id);
    ml_json_begin(o, '{');
    ml_json_put_word(o, "type", "tool_use");
    ml_json_put_word(o, "id", id);
    ml_json_put_str(o, "name", x->reader.call[i].name);
    ml_json_key(o, "input");
    ml_json_raw(o, input ? *input : ml_str_of("{}"));
    ml_json_end(o, '}');
}

static void write_text_block(ml_str text, ml_json_out *o) {
    ml_json_begin(o, '{');
    ml_json_put_word(o, "type", "text");
    ml_json_put_str(o, "text", text);
    ml_json_end(o, '}');
}

static void write_whole(ml_job *j, ml_json_out *o) {
    ml_choice *c = &j->choice[0];
    const ml_chat_choice *x = c->ud;

    ml_chat_read_text(c);
    ml_json_begin(o, '{');
    write_head(j, o);
    ml_json_key(o, "content");
    ml_json_begin(o, '[');
    if (x->content.len)
        write_text_block((ml_str){ x->content.ptr, x->content.len }, o);
    for (int32_t i = 0; i < x->reader.n; i++)
        write_call(c, i, &x->reader.call[i].arguments, o);
    ml_json_end(o, ']');
    write_stop(c, o);
    write_usage(c, o);
    ml_json_end(o, '}');
}

/* --- streams ---------------------------------------------------------------------- */

/* Begins an event: {"type": name */
static ml_json_out begin_event(ml_job *j, const char *name) {
    ml_json_out o = { .to = &j->out };

    j->out.len = 0;
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "type", name);
    return o;
}

static void end_event(ml_job *j, const char *name, ml_json_out *o) {
    ml_json_end(o, '}');
    ml_job_send_event(j, name, &j->out);
}

static void send_start(ml_job *j, const ml_choice *c) {
    static const char name[] = "message_start";
    ml_json_out o = begin_event(j, name);

    ml_json_key(&o, "message");
    ml_json_begin(&o, '{');
    write_head(j, &o);
    ml_json_key(&o, "content");
    ml_json_begin(&o, '[');
    ml_json_end(&o, ']');
    ml_json_put_word(&o, "stop_reason", NULL);
    ml_json_put_word(&o, "stop_sequence", NULL);
    write_usage(c, &o);
    ml_json_end(&o, '}');
    end_event(j, name, &o);
}

static void send_block_stop(ml_job *j, ml_chat_choice *x) {
    static const char name[] = "content_block_stop";
    ml_json_out o;

    if (!x->in_block)
        return;
    x->in_block = false;
    o = begin_event(j, name);
    ml_json_put_int(&o, "index", x->n_block++);
    end_event(j, name, &o);
}

static void send_delta(ml_job *j, const ml_chat_choice *x, const char *type,
                       const char *key, ml_str text) {
    static const char name[] = "content_block_delta";
    ml_json_out o = begin_event(j, name);

    ml_json_put_int(&o, "index", x->n_block);
    ml_json_key(&o, "delta");
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "type", type);
    ml_json_put_str(&o, key, text);
    ml_json_end(&o, '}');
    end_event(j, name, &o);
}

/* call < 0: a block of text. */
static void send_block_start(ml_job *j, const ml_choice *c, int32_t call) {
    static const char name[] = "content_block_start";
    const ml_chat_choice *x = c->ud;
    ml_json_out o = begin_event(j, name);

    ml_json_put_int(&o, "index", x->n_block);
    ml_json_key(&o, "content_block");
    if (call < 0)
        write_text_block(ml_str_of(""), &o);
    else
        write_call(c, call, NULL, &o);
    end_event(j, name, &o);
}

static void send_text(ml_job *j, const ml_choice *c) {
    ml_chat_choice *x = c->ud;

    if (!x->content.len)
        return;
    if (!x->in_block)
        send_block_start(j, c, -1);
    x->in_block = true;
    send_delta(j, x, "text_delta", "text", (ml_str){ x->content.ptr, x->content.len });
    x->content.len = 0;
}

static void send_calls(ml_job *j, const ml_choice *c) {
    ml_chat_choice *x = c->ud;

    for (; x->sent_calls < x->reader.n; x->sent_calls++) {
        send_block_stop(j, x);
        send_block_start(j, c, x->sent_calls);
        x->in_block = true;
        send_delta(j, x, "input_json_delta", "partial_json",
                   x->reader.call[x->sent_calls].arguments);
        send_block_stop(j, x);
    }
}

static void write_piece(ml_job *j, ml_choice *c) {
    if (!c->begun)
        send_start(j, c);
    c->begun = true;
    ml_chat_read_text(c);
    send_text(j, c);
    send_calls(j, c);
}

static void write_last(ml_job *j) {
    const ml_choice *c = &j->choice[0];
    ml_json_out o;

    send_block_stop(j, c->ud);
    o = begin_event(j, "message_delta");
    ml_json_key(&o, "delta");
    ml_json_begin(&o, '{');
    write_stop(c, &o);
    ml_json_end(&o, '}');
    write_usage(c, &o);
    end_event(j, "message_delta", &o);
    o = begin_event(j, "message_stop");
    end_event(j, "message_stop", &o);
}

const ml_api ml_messages_api = { .path = "/v1/messages",
                                 .read = read_request,
                                 .whole = write_whole,
                                 .piece = write_piece,
                                 .last = write_last,
                                 .release = ml_chat_release,
                                 .named_events = true };

static const ml_api count_api = { .path = "/v1/messages/count_tokens",
                                  .read = read_count,
                                  .release = ml_chat_release };

void ml_serve_messages(ml_server *s, ml_http_call *call) {
    ml_job_serve(s, call, &ml_messages_api);
}

void ml_serve_count_tokens(ml_server *s, ml_http_call *call) {
    ml_job_serve(s, call, &count_api);
}
