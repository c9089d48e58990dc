/* POST /v1/chat/completions */
#include <stdio.h>

#include "serve/chat_messages.h"
#include "serve/openai.h"
#include "serve/output_form.h"

#define AT(field) offsetof(ml_openai_body, field)
#define WHOLE "chat.completion"
#define CHUNK "chat.completion.chunk"

static const ml_field rows[] = {
    { "messages", ML_FIELD_JSON, AT(messages) },
    { "input_ids", ML_FIELD_JSON, AT(input_ids) },
    { "tools", ML_FIELD_JSON, AT(tools) },
    { "tool_choice", ML_FIELD_JSON, AT(tool_choice) },
    { "parallel_tool_calls", ML_FIELD_BOOL, AT(parallel_calls) },
    { "chat_template_kwargs", ML_FIELD_JSON, AT(template_kwargs) },
    { "continue_final_message", ML_FIELD_BOOL, AT(continue_final) },
    { "logprobs", ML_FIELD_BOOL, AT(logprobs) },
    { "top_logprobs", ML_FIELD_I32, AT(top_logprobs), 0, ML_MAX_TOP },
    { "max_completion_tokens", ML_FIELD_I32, AT(max_completion_tokens), 1, INT32_MAX },
    { "separate_reasoning", ML_FIELD_BOOL, AT(separate_reasoning) },
    { "stream_reasoning", ML_FIELD_BOOL, AT(stream_reasoning) },
    { "reasoning_effort", ML_FIELD_REFUSE,
      .why = "use chat_template_kwargs with the template's own name" },
    { "functions", ML_FIELD_REFUSE, .why = "use tools" },
    { "function_call", ML_FIELD_REFUSE, .why = "use tool_choice" },
    { "audio", ML_FIELD_REFUSE, .why = "models are text-only" },
    { "modalities", ML_FIELD_REFUSE, .why = "models are text-only" },
    { "prediction", ML_FIELD_REFUSE, .why = "speculative decoding is not supported" },
    { "web_search_options", ML_FIELD_REFUSE, .why = "web search is not supported" },
    { "", ML_FIELD_MORE, .more = ml_openai_rows },
    { 0 },
};

/* --- reading ---------------------------------------------------------------- */

/* Rejects tools if the template ignores them: they would never reach the model. */
static ml_status check_rendered(ml_job *j, const ml_chat *chat, ml_str text, ml_err *err) {
    ml_chat without = *chat;
    ml_jinja_text plain;
    ml_err ignored;

    without.tools = NULL;
    if (!chat->tools ||
        ml_chat_render(&plain, &j->scratch, j->server->opts.chat, &without, NULL,
                       &ignored) != ML_OK ||
        !ml_str_eq(plain.text, text))
        return ML_OK;
    return ml_fail(err, ML_EUNSUP,
                   "the chat template ignores \"tools\": remove them, or start the server "
                   "with a --chat-template that has tools");
}

static ml_status render(ml_job *j, ml_openai_body *b, ml_choice *c, ml_err *err) {
    const ml_chat_template *t = j->server->opts.chat;
    ml_chat chat = { .tools = b->tools,
                     .add_generation_prompt = true,
                     .kwargs = b->template_kwargs };
    ml_text *prompt = &j->out;
    ml_jinja_text text = { 0 };
    ml_str begun = { 0 };
    ml_status st;

    if (!t || !j->encoder)
        return ml_fail(err, ML_EUSAGE,
                       "this server has no chat template: start it with --chat-template "
                       "FILE, or send \"input_ids\"");
    st = ml_chat_messages_read(&chat.messages, b->messages, &j->scratch, err);
    if (!st && j->session)
        st = ml_session_begin(j, &chat, b->messages, err);
    if (!st && j->turn.parent)
        return ml_session_prompt(j, &chat, c, err);
    if (!st && b->continue_final)
        st = ml_chat_messages_split(&chat.messages, &begun, &j->scratch, err);
    if (!st)
        st = ml_chat_render(&text, &j->scratch, t, &chat, NULL, err);
    if (!st)
        st = check_rendered(j, &chat, text.text, err);
    if (st)
        return st;
    prompt->len = 0;
    ml_text_add(prompt, text.text.ptr, text.text.len);
    ml_text_add(prompt, begun.ptr, begun.len);
    return ml_job_encode(j, (ml_str){ prompt->ptr, prompt->len }, false, &c->prompt,
                         &c->n_prompt, err);
}

static ml_status read_prompt(ml_job *j, ml_openai_body *b, ml_err *err) {
    ml_choice *c = &j->choice[0];

    c->n_top = b->logprobs ? b->top_logprobs : 0;
    if (b->input_ids)
        return ml_ids_read(&c->prompt, &c->n_prompt, b->input_ids, j->server->opts.n_vocab,
                           INT32_MAX - 1, "\"input_ids\"", &j->arena, err);
    return render(j, b, c, err);
}

static ml_status check_body(ml_job *j, ml_openai_body *b, ml_err *err) {
    ml_status st = ml_response_format_read(j, b, err);

    if (!st)
        st = ml_tool_choice_read(j, b, err);
    if (!st && b->template_kwargs && b->template_kwargs->type != ML_JSON_OBJECT)
        st = ml_fail(err, ML_EUSAGE, "\"chat_template_kwargs\" is %s; expected an object",
                     ml_json_what(b->template_kwargs));
    if (!st && b->top_logprobs && !b->logprobs)
        st = ml_fail(err, ML_EUSAGE, "\"top_logprobs\" needs \"logprobs\": true");
    if (!st && !j->server->opts.tokenizer)
        st = ml_fail(err, ML_EUSAGE,
                     "this endpoint returns text and needs a tokenizer, which this server "
                     "does not have: use /generate");
    return st;
}

/* Most grammars leave no room for reasoning. */
static bool has_free_text(const ml_openai_body *b) {
    ml_grammar_kind k = b->sampling.grammar.kind;
    return k == ML_GRAMMAR_NONE || (k == ML_GRAMMAR_STRUCTURAL_TAG && !b->calls_only);
}

static bool separates(const ml_job *j) {
    return j->server->opts.reasoning && ((const ml_openai_body *)j->ud)->separate_reasoning;
}

ml_status ml_chat_prepare(ml_job *j, ml_err *err) {
    ml_openai_body *b = j->ud;
    ml_tool_format format;
    ml_status st = check_body(j, b, err);

    if (st)
        return st;
    if (b->max_completion_tokens > 0)
        b->sampling.max_new = b->max_completion_tokens;
    format = b->calls_as_list ? ML_TOOLS_LIST : j->server->opts.tools;
    if ((b->tools && ml_tool_format_has_special(format)) ||
        (separates(j) && j->server->opts.reasoning->special))
        b->sampling.skip_special = false;
    st = ml_openai_choices(j, 1, err);
    if (!st)
        st = read_prompt(j, b, err);
    if (st)
        return st;
    ml_openai_copy_choices(j);
    for (int32_t i = 0; i < j->n_choice; i++) {
        ml_chat_choice *x = ML_NEW(&j->arena, ml_chat_choice, 1);
        j->keep_body |= b->tools != NULL; /* the reader looks up tool names in the body */
        ml_tool_reader_init(&x->reader, b->tools ? format : ML_TOOLS_NONE, b->tools,
                            &j->arena);
        if (separates(j) && has_free_text(b))
            x->reasoner.format = j->server->opts.reasoning;
        x->call_key = j->session && j->session->has_seed ? j->turn.seed
                                                         : ml_server_new_key(j->server);
        j->choice[i].ud = x;
    }
    return ML_OK;
}

static ml_status read_request(ml_job *j, ml_err *err) {
    ml_status st = ml_openai_read(j, rows, err);

    ml_server_new_id(j->server, "chatcmpl-", j->id, sizeof j->id);
    return st ? st : ml_chat_prepare(j, err);
}

void ml_chat_release(ml_choice *c) {
    ml_chat_choice *x = c->ud;

    ml_reasoning_release(&x->reasoner);
    ml_tool_reader_release(&x->reader);
    ml_text_release(&x->reasoning);
    ml_text_release(&x->content);
    ml_text_release(&x->rest);
    ml_text_release(&x->whole);
}

/* --- the content of a choice ------------------------------------------------ */

void ml_chat_read_text(ml_choice *c) {
    const ml_openai_body *b = c->job->ud;
    ml_chat_choice *x = c->ud;
    size_t old = x->content.len;
    bool ends = c->finish != ML_FINISH_NOT && !x->ended;

    x->rest.len = 0;
    if (c->text.len > x->n_read)
        ml_reasoning_push(&x->reasoner,
                          (ml_str){ c->text.ptr + x->n_read, c->text.len - x->n_read },
                          &x->reasoning, &x->rest);
    x->n_read = c->text.len;
    if (ends)
        ml_reasoning_finish(&x->reasoner, &x->reasoning, &x->rest);
    if (x->rest.len)
        ml_tool_reader_push(&x->reader, (ml_str){ x->rest.ptr, x->rest.len }, &x->content);
    if (ends) {
        ml_tool_reader_finish(&x->reader, &x->content);
        x->ended = true;
    }
    if ((c->job->session || b->keeps_text) && x->content.len > old)
        ml_text_add(&x->whole, x->content.ptr + old, x->content.len - old);
}

static const char *finish_word(const ml_choice *c) {
    const ml_chat_choice *x = c->ud;
    bool stopped = c->finish == ML_FINISH_TOKEN || c->finish == ML_FINISH_STRING;

    return stopped && x->reader.n ? "tool_calls" : ml_choice_finish_word(c);
}

void ml_chat_call_id(const ml_choice *c, int32_t index, char out[ML_CALL_ID]) {
    const ml_openai_body *b = c->job->ud;
    const ml_chat_choice *x = c->ud;

    snprintf(out, ML_CALL_ID, "%s%016llx%08x", b->call_prefix ? b->call_prefix : "call_",
             (unsigned long long)x->call_key, (unsigned)index);
}

static void write_call(const ml_choice *c, int32_t index, ml_json_out *o) {
    const ml_tool_call *t = &((const ml_chat_choice *)c->ud)->reader.call[index];
    char id[ML_CALL_ID];

    ml_chat_call_id(c, index, id);
    ml_json_begin(o, '{');
    ml_json_key(o, "index");
    ml_json_int(o, index);
    ml_json_key(o, "id");
    ml_json_word(o, id);
    ml_json_key(o, "type");
    ml_json_word(o, "function");
    ml_json_key(o, "function");
    ml_json_begin(o, '{');
    ml_json_key(o, "name");
    ml_json_str(o, t->name);
    ml_json_key(o, "arguments");
    ml_json_str(o, t->arguments);
    ml_json_end(o, '}');
    ml_json_end(o, '}');
}

static void write_calls(const ml_choice *c, ml_json_out *o) {
    const ml_chat_choice *x = c->ud;

    ml_json_key(o, "tool_calls");
    ml_json_begin(o, '[');
    for (int32_t i = x->sent_calls; i < x->reader.n; i++)
        write_call(c, i, o);
    ml_json_end(o, ']');
}

void ml_chat_answer_write(const ml_choice *c, ml_json_out *o) {
    const ml_chat_choice *x = c->ud;

    ml_json_begin(o, '{');
    ml_json_put_word(o, "role", "assistant");
    ml_json_put_str(o, "content",
                    (ml_str){ x->whole.ptr ? x->whole.ptr : "", x->whole.len });
    if (x->reader.n) {
        ml_json_key(o, "tool_calls");
        ml_json_begin(o, '[');
        for (int32_t i = 0; i < x->reader.n; i++)
            write_call(c, i, o);
        ml_json_end(o, ']');
    }
    ml_json_end(o, '}');
}

/* "token", "bytes", "logprob" of an open object */
static void write_token(const ml_server *s, int32_t id, float logprob, ml_json_out *o) {
    ml_text text = { 0 };

    ml_decode(s->opts.tokenizer, &text, &id, 1, false);
    ml_json_key(o, "token");
    ml_json_str(o, (ml_str){ text.ptr, text.len });
    ml_json_key(o, "bytes");
    ml_json_begin(o, '[');
    for (size_t i = 0; i < text.len; i++)
        ml_json_int(o, (unsigned char)text.ptr[i]);
    ml_json_end(o, ']');
    ml_json_key(o, "logprob");
    ml_json_float(o, logprob);
    ml_text_release(&text);
}

void ml_chat_logprobs_write(const ml_choice *c, int32_t from, ml_json_out *o) {
    const ml_openai_body *b = c->job->ud;
    const ml_server *s = c->job->server;
    ml_scored v = ml_logprob_buffer_view(&c->answer);

    ml_json_begin(o, '[');
    for (int32_t i = from; b->logprobs && i < v.n; i++) {
        ml_json_begin(o, '{');
        write_token(s, v.id[i], v.logprob[i], o);
        ml_json_key(o, "top_logprobs");
        ml_json_begin(o, '[');
        for (int32_t k = 0; k < c->n_top; k++) {
            int64_t at = (int64_t)i * c->n_top + k;
            ml_json_begin(o, '{');
            write_token(s, v.top_id[at], v.top_logprob[at], o);
            ml_json_end(o, '}');
        }
        ml_json_end(o, ']');
        ml_json_end(o, '}');
    }
    ml_json_end(o, ']');
}

static void write_logprobs(const ml_choice *c, ml_json_out *o) {
    const ml_openai_body *b = c->job->ud;

    ml_json_key(o, "logprobs");
    if (!b->logprobs) {
        ml_json_null(o);
        return;
    }
    ml_json_begin(o, '{');
    ml_json_key(o, "content");
    ml_chat_logprobs_write(c, c->sent_tokens, o);
    ml_json_end(o, '}');
}

static void write_extras(const ml_choice *c, bool first, ml_json_out *o) {
    const ml_openai_body *b = c->job->ud;
    ml_scored v = ml_logprob_buffer_view(&c->answer);

    if (b->token_ids) {
        ml_json_key(o, "response_token_ids");
        ml_json_ids(o, v.id ? v.id + c->sent_tokens : NULL, v.n - c->sent_tokens);
    }
    if (first && (b->token_ids || b->prompt_ids)) {
        ml_json_key(o, "prompt_token_ids");
        ml_json_ids(o, c->prompt, c->n_prompt);
    }
    if (b->meta_info && c->finish != ML_FINISH_NOT) {
        ml_json_key(o, "meta_info");
        ml_meta_info_write(c, (ml_meta_opts){ .logprobs = b->logprobs }, o);
    }
}

/* --- whole replies ---------------------------------------------------------- */

/* As in SGLang, null if there is none. */
static void write_reasoning(const ml_chat_choice *x, ml_json_out *o) {
    ml_json_key(o, "reasoning_content");
    if (x->reasoning.len)
        ml_json_str(o, (ml_str){ x->reasoning.ptr, x->reasoning.len });
    else
        ml_json_null(o);
}

/* As in OpenAI's API, content is null if the answer has tool calls and no text. */
static void write_message(const ml_choice *c, ml_json_out *o) {
    const ml_chat_choice *x = c->ud;

    ml_json_begin(o, '{');
    ml_json_key(o, "role");
    ml_json_word(o, "assistant");
    ml_json_key(o, "content");
    if (x->reader.n && !x->content.len)
        ml_json_null(o);
    else
        ml_json_str(o, (ml_str){ x->content.ptr, x->content.len });
    if (x->reasoner.format)
        write_reasoning(x, o);
    if (x->reader.n)
        write_calls(c, o);
    ml_json_end(o, '}');
}

static void write_whole(ml_job *j, ml_json_out *o) {
    ml_openai_begin(j, WHOLE, o);
    for (int32_t i = 0; i < j->n_choice; i++) {
        ml_choice *c = &j->choice[i];
        ml_chat_read_text(c);
        ml_json_begin(o, '{');
        ml_json_key(o, "index");
        ml_json_int(o, c->index);
        ml_json_key(o, "message");
        write_message(c, o);
        write_logprobs(c, o);
        ml_openai_finish(c, finish_word(c), o);
        write_extras(c, true, o);
        ml_json_end(o, '}');
    }
    ml_openai_end(j, true, o);
}

/* --- streams ---------------------------------------------------------------- */

/* With stream_reasoning false, reasoning is sent when it is complete. */
static bool sends_reasoning(const ml_choice *c) {
    const ml_chat_choice *x = c->ud;
    const ml_openai_body *b = c->job->ud;

    return x->reasoning.len && (b->stream_reasoning || c->finish != ML_FINISH_NOT ||
                                x->reasoner.state == ML_REASONING_AFTER);
}

static void write_delta(const ml_choice *c, ml_json_out *o) {
    const ml_chat_choice *x = c->ud;
    bool calls = x->reader.n > x->sent_calls;

    ml_json_begin(o, '{');
    if (!c->begun) {
        ml_json_key(o, "role");
        ml_json_word(o, "assistant");
    }
    if (sends_reasoning(c))
        write_reasoning(x, o);
    if (x->content.len || !c->begun) {
        ml_json_key(o, "content");
        ml_json_str(o, (ml_str){ x->content.ptr, x->content.len });
    }
    if (calls)
        write_calls(c, o);
    ml_json_end(o, '}');
}

static void write_piece(ml_job *j, ml_choice *c) {
    const ml_openai_body *b = j->ud;
    ml_chat_choice *x = c->ud;
    ml_json_out o = { .to = &j->out };
    bool tokens = (b->logprobs || b->token_ids) && c->answer.n > c->sent_tokens;

    ml_chat_read_text(c);
    if (c->begun && c->finish == ML_FINISH_NOT && !x->content.len && !sends_reasoning(c) &&
        x->reader.n == x->sent_calls && !tokens)
        return;
    j->out.len = 0;
    ml_openai_begin(j, CHUNK, &o);
    ml_json_begin(&o, '{');
    ml_json_key(&o, "index");
    ml_json_int(&o, c->index);
    ml_json_key(&o, "delta");
    write_delta(c, &o);
    write_logprobs(c, &o);
    ml_openai_finish(c, finish_word(c), &o);
    write_extras(c, !c->begun, &o);
    ml_json_end(&o, '}');
    ml_openai_end(j, b->usage_each, &o);
    c->begun = true;
    c->sent_tokens = c->answer.n;
    x->sent_calls = x->reader.n;
    if (sends_reasoning(c))
        x->reasoning.len = 0;
    x->content.len = 0;
    ml_job_send(j, &j->out);
}

static void write_last(ml_job *j) {
    ml_openai_last(j, CHUNK);
}

const ml_api ml_chat_api = { .path = "/v1/chat/completions",
                             .read = read_request,
                             .whole = write_whole,
                             .piece = write_piece,
                             .last = write_last,
                             .release = ml_chat_release };

void ml_serve_chat(ml_server *s, ml_http_call *call) {
    ml_job_serve(s, call, &ml_chat_api);
}
