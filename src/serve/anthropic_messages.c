#include "serve/anthropic_messages.h"

#include "base/json_out.h"

typedef struct converter {
    ml_str source;
    ml_text out;
    ml_json_out o;
    ml_text text, thinking; /* of the message that is being converted */
    bool has_text;
} converter;

static void release(converter *c) {
    ml_text_release(&c->out);
    ml_text_release(&c->text);
    ml_text_release(&c->thinking);
}

/* Parses what was written; `c` is released. */
static ml_status finish(converter *c, const ml_json **out, ml_arena *a, ml_status st,
                        ml_err *err) {
    ml_str json = { NULL, c->out.len };

    if (st == ML_OK) {
        json.ptr = ml_arena_str(a, c->out.ptr, c->out.len);
        st = ml_json_parse(out, a, json, "request", err);
    }
    release(c);
    return st;
}

static ml_status wrong(const ml_json *at, const char *expected, ml_err *err) {
    return ml_fail(err, ML_EUSAGE, "request body:%u:%u: expected %s", (unsigned)at->line,
                   (unsigned)at->column, expected);
}

static ml_str string_of(const ml_json *object, const char *key) {
    const ml_json *v = ml_json_get(object, key);
    return v && v->type == ML_JSON_STRING ? v->text : (ml_str){ 0 };
}

static void put_source(converter *c, const ml_json *v) {
    ml_json_raw(&c->o, (ml_str){ c->source.ptr + v->begin, v->end - v->begin });
}

/* --- blocks of content --------------------------------------------------------- */

static void add_line(ml_text *t, bool first, ml_str s) {
    if (!first)
        ml_text_add(t, "\n", 1);
    ml_text_add(t, s.ptr ? s.ptr : "", s.len);
}

static ml_status unsupported(ml_str type, ml_err *err) {
    return ml_fail(err, ML_EUNSUP,
                   "content blocks of type \"%.*s\" are not supported: models are "
                   "text-only",
                   (int)(type.len < 40 ? type.len : 40), type.ptr);
}

/* The text of a string, or of a list of text blocks. */
static ml_status add_text(ml_text *out, const ml_json *v, ml_err *err) {
    bool first = true;

    if (v->type == ML_JSON_STRING) {
        ml_text_add(out, v->text.ptr, v->text.len);
        return ML_OK;
    }
    if (v->type != ML_JSON_ARRAY)
        return wrong(v, "a string or a list of content blocks", err);
    for (const ml_json *p = v->child; p; p = p->next) {
        ml_str type = string_of(p, "type");
        if (!type.ptr || !string_of(p, "text").ptr)
            return type.ptr && !ml_str_is(type, "text")
                       ? unsupported(type, err)
                       : wrong(p, "a block with \"type\": \"text\" and \"text\"", err);
        add_line(out, first, string_of(p, "text"));
        first = false;
    }
    return ML_OK;
}

static void put_text(converter *c, const char *key) {
    ml_json_put_str(&c->o, key, (ml_str){ c->text.ptr ? c->text.ptr : "", c->text.len });
    c->text.len = 0;
    c->has_text = false;
}

/* --- messages of the user ------------------------------------------------------ */

static void end_user_text(converter *c) {
    if (!c->has_text)
        return;
    ml_json_begin(&c->o, '{');
    ml_json_put_word(&c->o, "role", "user");
    put_text(c, "content");
    ml_json_end(&c->o, '}');
}

static ml_status put_result(converter *c, const ml_json *block, ml_err *err) {
    const ml_json *content = ml_json_get(block, "content");
    ml_text text = { 0 };
    ml_status st = ML_OK;

    if (!string_of(block, "tool_use_id").ptr)
        return wrong(block, "a tool_result with a \"tool_use_id\"", err);
    if (content && content->type != ML_JSON_NULL)
        st = add_text(&text, content, err);
    if (st == ML_OK) {
        ml_json_begin(&c->o, '{');
        ml_json_put_word(&c->o, "role", "tool");
        ml_json_put_str(&c->o, "tool_call_id", string_of(block, "tool_use_id"));
        ml_json_put_str(&c->o, "content", (ml_str){ text.ptr ? text.ptr : "", text.len });
        ml_json_end(&c->o, '}');
    }
    ml_text_release(&text);
    return st;
}

static ml_status put_user_block(converter *c, const ml_json *block, ml_err *err) {
    ml_str type = string_of(block, "type");

    if (ml_str_is(type, "text") && string_of(block, "text").ptr) {
        add_line(&c->text, !c->has_text, string_of(block, "text"));
        c->has_text = true;
        return ML_OK;
    }
    if (ml_str_is(type, "tool_result")) {
        end_user_text(c);
        return put_result(c, block, err);
    }
    if (!type.ptr || ml_str_is(type, "text"))
        return wrong(block, "a content block with a \"type\" and its members", err);
    return unsupported(type, err);
}

static ml_status put_user(converter *c, const ml_json *content, ml_err *err) {
    ml_status st = ML_OK;

    if (content->type == ML_JSON_STRING) {
        ml_text_add(&c->text, content->text.ptr, content->text.len);
        c->has_text = true;
    }
    for (const ml_json *b = content->child; b && st == ML_OK; b = b->next)
        st = put_user_block(c, b, err);
    if (st == ML_OK)
        end_user_text(c);
    return st;
}

/* --- messages of the assistant ------------------------------------------------- */

static ml_status put_call(converter *c, const ml_json *block, ml_err *err) {
    const ml_json *input = ml_json_get(block, "input");

    if (!string_of(block, "id").ptr || !string_of(block, "name").ptr || !input ||
        input->type != ML_JSON_OBJECT)
        return wrong(block, "a tool_use with \"id\", \"name\" and an object \"input\"",
                     err);
    ml_json_begin(&c->o, '{');
    ml_json_put_str(&c->o, "id", string_of(block, "id"));
    ml_json_put_word(&c->o, "type", "function");
    ml_json_key(&c->o, "function");
    ml_json_begin(&c->o, '{');
    ml_json_put_str(&c->o, "name", string_of(block, "name"));
    ml_json_key(&c->o, "arguments");
    put_source(c, input);
    ml_json_end(&c->o, '}');
    ml_json_end(&c->o, '}');
    return ML_OK;
}

static ml_status read_assistant_block(converter *c, const ml_json *b, int *calls,
                                      ml_err *err) {
    ml_str type = string_of(b, "type");

    if (ml_str_is(type, "text") && string_of(b, "text").ptr) {
        add_line(&c->text, !c->has_text, string_of(b, "text"));
        c->has_text = true;
    } else if (ml_str_is(type, "thinking") && string_of(b, "thinking").ptr) {
        add_line(&c->thinking, c->thinking.len == 0, string_of(b, "thinking"));
    } else if (ml_str_is(type, "tool_use")) {
        ++*calls;
    } else if (!ml_str_is(type, "redacted_thinking")) {
        return type.ptr && !ml_str_is(type, "text") && !ml_str_is(type, "thinking")
                   ? unsupported(type, err)
                   : wrong(b, "a content block with a \"type\" and its members", err);
    }
    return ML_OK;
}

static ml_status put_calls(converter *c, const ml_json *content, ml_err *err) {
    ml_status st = ML_OK;

    ml_json_key(&c->o, "tool_calls");
    ml_json_begin(&c->o, '[');
    for (const ml_json *b = content->child; b && st == ML_OK; b = b->next)
        if (ml_str_is(string_of(b, "type"), "tool_use"))
            st = put_call(c, b, err);
    ml_json_end(&c->o, ']');
    return st;
}

static ml_status put_assistant(converter *c, const ml_json *content, ml_err *err) {
    int calls = 0;
    ml_status st = ML_OK;

    if (content->type == ML_JSON_STRING)
        ml_text_add(&c->text, content->text.ptr, content->text.len);
    for (const ml_json *b = content->child; b && st == ML_OK; b = b->next)
        st = read_assistant_block(c, b, &calls, err);
    if (st)
        return st;
    ml_json_begin(&c->o, '{');
    ml_json_put_word(&c->o, "role", "assistant");
    put_text(c, "content");
    if (c->thinking.len)
        ml_json_put_str(&c->o, "reasoning_content",
                        (ml_str){ c->thinking.ptr, c->thinking.len });
    c->thinking.len = 0;
    if (calls)
        st = put_calls(c, content, err);
    ml_json_end(&c->o, '}');
    return st;
}

/* --- the list ------------------------------------------------------------------ */

static ml_status put_message(converter *c, const ml_json *m, ml_err *err) {
    const ml_json *content = ml_json_get(m, "content");
    ml_str role = string_of(m, "role");
    bool text = content && content->type == ML_JSON_STRING;

    if (!text && (!content || content->type != ML_JSON_ARRAY))
        return wrong(m, "a message with a \"role\" and \"content\", a string or a list",
                     err);
    if (ml_str_is(role, "user"))
        return put_user(c, content, err);
    if (ml_str_is(role, "assistant"))
        return put_assistant(c, content, err);
    return wrong(m, "a message of the role \"user\" or \"assistant\"", err);
}

static ml_status put_system(converter *c, const ml_json *system, ml_err *err) {
    ml_status st = add_text(&c->text, system, err);

    if (st)
        return st;
    ml_json_begin(&c->o, '{');
    ml_json_put_word(&c->o, "role", "system");
    put_text(c, "content");
    ml_json_end(&c->o, '}');
    return ML_OK;
}

ml_status ml_anthropic_messages_read(const ml_json **out, const ml_json *system,
                                     const ml_json *messages, ml_str source, ml_arena *a,
                                     ml_err *err) {
    converter c = { .source = source };
    ml_status st = ML_OK;

    if (!messages || messages->type != ML_JSON_ARRAY || messages->n == 0)
        return ml_fail(err, ML_EUSAGE, "expected \"messages\", a non-empty list");
    c.o.to = &c.out;
    ml_json_begin(&c.o, '[');
    if (system)
        st = put_system(&c, system, err);
    for (const ml_json *m = messages->child; m && st == ML_OK; m = m->next)
        st = put_message(&c, m, err);
    ml_json_end(&c.o, ']');
    return finish(&c, out, a, st, err);
}

/* --- tools ---------------------------------------------------------------------- */

static ml_status put_tool(converter *c, const ml_json *t, ml_err *err) {
    const ml_json *schema = ml_json_get(t, "input_schema");
    const ml_json *strict = ml_json_get(t, "strict");
    ml_str type = string_of(t, "type");

    if (type.ptr && !ml_str_is(type, "custom"))
        return ml_fail(err, ML_EUNSUP,
                       "tools of type \"%.*s\" run on Anthropic's servers: use a tool with "
                       "an \"input_schema\"",
                       (int)(type.len < 40 ? type.len : 40), type.ptr);
    if (!string_of(t, "name").ptr || !schema || schema->type != ML_JSON_OBJECT)
        return wrong(t, "a tool with a \"name\" and an object \"input_schema\"", err);
    ml_json_begin(&c->o, '{');
    ml_json_put_word(&c->o, "type", "function");
    ml_json_key(&c->o, "function");
    ml_json_begin(&c->o, '{');
    ml_json_put_str(&c->o, "name", string_of(t, "name"));
    if (string_of(t, "description").ptr)
        ml_json_put_str(&c->o, "description", string_of(t, "description"));
    ml_json_key(&c->o, "parameters");
    put_source(c, schema);
    if (strict && strict->type == ML_JSON_TRUE)
        ml_json_put_bool(&c->o, "strict", true);
    ml_json_end(&c->o, '}');
    ml_json_end(&c->o, '}');
    return ML_OK;
}

ml_status ml_anthropic_tools_read(const ml_json **out, const ml_json *tools, ml_str source,
                                  ml_arena *a, ml_err *err) {
    converter c = { .source = source };
    ml_status st = ML_OK;

    *out = NULL;
    if (!tools)
        return ML_OK;
    if (tools->type != ML_JSON_ARRAY)
        return wrong(tools, "\"tools\", a list", err);
    c.o.to = &c.out;
    ml_json_begin(&c.o, '[');
    for (const ml_json *t = tools->child; t && st == ML_OK; t = t->next)
        st = put_tool(&c, t, err);
    ml_json_end(&c.o, ']');
    return finish(&c, out, a, st, err);
}

ml_status ml_anthropic_tool_choice_read(const ml_json **out, bool *parallel,
                                        const ml_json *choice, ml_arena *a, ml_err *err) {
    ml_str type = string_of(choice, "type"), name = string_of(choice, "name");
    const ml_json *single = ml_json_get(choice, "disable_parallel_tool_use");
    converter c = { 0 };

    *parallel = !single || single->type != ML_JSON_TRUE;
    c.o.to = &c.out;
    if (ml_str_is(type, "auto") || ml_str_is(type, "none")) {
        ml_json_str(&c.o, type);
    } else if (ml_str_is(type, "any")) {
        ml_json_word(&c.o, "required");
    } else if (ml_str_is(type, "tool") && name.ptr) {
        ml_json_begin(&c.o, '{');
        ml_json_put_word(&c.o, "type", "function");
        ml_json_key(&c.o, "function");
        ml_json_begin(&c.o, '{');
        ml_json_put_str(&c.o, "name", name);
        ml_json_end(&c.o, '}');
        ml_json_end(&c.o, '}');
    } else {
        return wrong(choice, "\"tool_choice\" of type auto, any, none, or tool with a name",
                     err);
    }
    return finish(&c, out, a, ML_OK, err);
}

ml_status ml_anthropic_format_read(const ml_json **out, const ml_json *config,
                                   ml_str source, ml_arena *a, ml_err *err) {
    const ml_json *format = ml_json_get(config, "format");
    const ml_json *schema = ml_json_get(format, "schema");
    converter c = { .source = source };

    *out = NULL;
    if (!format || format->type == ML_JSON_NULL)
        return ML_OK;
    if (!ml_str_is(string_of(format, "type"), "json_schema") || !schema)
        return wrong(format, "a format of type json_schema with a \"schema\"", err);
    c.o.to = &c.out;
    ml_json_begin(&c.o, '{');
    ml_json_put_word(&c.o, "type", "json_schema");
    ml_json_key(&c.o, "json_schema");
    ml_json_begin(&c.o, '{');
    ml_json_put_word(&c.o, "name", "output");
    ml_json_put_bool(&c.o, "strict", true);
    ml_json_key(&c.o, "schema");
    put_source(&c, schema);
    ml_json_end(&c.o, '}');
    ml_json_end(&c.o, '}');
    return finish(&c, out, a, ML_OK, err);
}
