#include "serve/responses_items.h"

#include "serve/json_tree.h"

typedef struct converter {
    ml_json_out o;
    /* the message of the assistant that is being put together */
    bool open;
    ml_text text, reasoning, calls;
    ml_json_out call;
} converter;

static ml_status wrong(const ml_json *at, const char *expected, ml_err *err) {
    return ml_fail(err, ML_EUSAGE, "request body:%u:%u: expected %s", (unsigned)at->line,
                   (unsigned)at->column, expected);
}

static ml_str string_of(const ml_json *object, const char *key) {
    const ml_json *v = ml_json_get(object, key);
    return v && v->type == ML_JSON_STRING ? v->text : (ml_str){ 0 };
}

static bool is(const ml_json *object, const char *key, const char *word) {
    return ml_str_is(string_of(object, key), word);
}

static ml_str seen(const ml_text *t) {
    return (ml_str){ t->ptr ? t->ptr : "", t->len };
}

/* --- content -------------------------------------------------------------------- */

static bool is_text_part(ml_str type) {
    return ml_str_is(type, "input_text") || ml_str_is(type, "output_text") ||
           ml_str_is(type, "text") || ml_str_is(type, "reasoning_text") ||
           ml_str_is(type, "summary_text");
}

/* The text of a string, or of a list of text parts. */
static ml_status add_text(ml_text *out, const ml_json *v, ml_err *err) {
    if (v->type == ML_JSON_STRING) {
        ml_text_add(out, v->text.ptr, v->text.len);
        return ML_OK;
    }
    if (v->type != ML_JSON_ARRAY)
        return wrong(v, "a string or a list of content parts", err);
    for (const ml_json *p = v->child; p; p = p->next) {
        ml_str type = string_of(p, "type"),
               text = string_of(p, ml_str_is(type, "refusal") ? "refusal" : "text");
        if (type.ptr && !is_text_part(type) && !ml_str_is(type, "refusal"))
            return ml_fail(
                err, ML_EUNSUP,
                "content of type \"%.*s\" is not supported: models are text-only",
                (int)(type.len < 40 ? type.len : 40), type.ptr);
        if (!text.ptr)
            return wrong(p, "a part with \"type\": \"input_text\" and \"text\"", err);
        ml_text_add(out, text.ptr, text.len);
    }
    return ML_OK;
}

ml_status ml_responses_text_read(ml_text *out, const ml_json *v, ml_err *err) {
    return add_text(out, v, err);
}

/* --- the assistant --------------------------------------------------------------- */

static void end_assistant(converter *c) {
    if (!c->open)
        return;
    ml_json_begin(&c->o, '{');
    ml_json_put_word(&c->o, "role", "assistant");
    ml_json_put_str(&c->o, "content", seen(&c->text));
    if (c->reasoning.len)
        ml_json_put_str(&c->o, "reasoning_content", seen(&c->reasoning));
    if (c->calls.len) {
        ml_json_key(&c->o, "tool_calls");
        ml_json_begin(&c->o, '[');
        ml_json_raw(&c->o, seen(&c->calls));
        ml_json_end(&c->o, ']');
    }
    ml_json_end(&c->o, '}');
    c->text.len = c->reasoning.len = c->calls.len = 0;
    c->open = false;
}

static void begin_assistant(converter *c) {
    if (!c->open)
        c->call = (ml_json_out){ .to = &c->calls };
    c->open = true;
}

static ml_status put_call(converter *c, const ml_json *item, ml_err *err) {
    ml_str id = string_of(item, "call_id"), name = string_of(item, "name"),
           arguments = string_of(item, "arguments");
    ml_json_out *o = &c->call;

    if (!id.ptr || !name.ptr || !arguments.ptr)
        return wrong(
            item, "a function_call with \"call_id\", \"name\" and \"arguments\", strings",
            err);
    begin_assistant(c);
    ml_json_begin(o, '{');
    ml_json_put_str(o, "id", id);
    ml_json_put_word(o, "type", "function");
    ml_json_key(o, "function");
    ml_json_begin(o, '{');
    ml_json_put_str(o, "name", name);
    ml_json_put_str(o, "arguments", arguments);
    ml_json_end(o, '}');
    ml_json_end(o, '}');
    return ML_OK;
}

/* A summary stands for the reasoning where the reasoning itself is not there. */
static ml_status put_reasoning(converter *c, const ml_json *item, ml_err *err) {
    const ml_json *content = ml_json_get(item, "content");

    if (!content || content->type == ML_JSON_NULL || !content->child)
        content = ml_json_get(item, "summary");
    begin_assistant(c);
    return content && content->type != ML_JSON_NULL ? add_text(&c->reasoning, content, err)
                                                    : ML_OK;
}

/* --- other items -------------------------------------------------------------------- */

static ml_status put_plain(converter *c, const char *role, const ml_json *content,
                           ml_str call_id, ml_err *err) {
    ml_text text = { 0 };
    ml_status st;

    end_assistant(c);
    st = add_text(&text, content, err);
    if (st == ML_OK) {
        ml_json_begin(&c->o, '{');
        ml_json_put_word(&c->o, "role", role);
        if (call_id.ptr)
            ml_json_put_str(&c->o, "tool_call_id", call_id);
        ml_json_put_str(&c->o, "content", seen(&text));
        ml_json_end(&c->o, '}');
    }
    ml_text_release(&text);
    return st;
}

static ml_status put_output(converter *c, const ml_json *item, ml_err *err) {
    const ml_json *output = ml_json_get(item, "output");
    ml_str id = string_of(item, "call_id");

    if (!id.ptr || !output)
        return wrong(item, "a function_call_output with \"call_id\" and \"output\"", err);
    return put_plain(c, "tool", output, id, err);
}

static ml_status put_message(converter *c, const ml_json *item, ml_err *err) {
    const ml_json *content = ml_json_get(item, "content");

    if (!content)
        return wrong(item, "a message with a \"role\" and \"content\"", err);
    if (is(item, "role", "assistant")) {
        begin_assistant(c);
        return add_text(&c->text, content, err);
    }
    if (is(item, "role", "user"))
        return put_plain(c, "user", content, (ml_str){ 0 }, err);
    if (is(item, "role", "system") || is(item, "role", "developer"))
        return put_plain(c, "system", content, (ml_str){ 0 }, err);
    return wrong(
        item, "a message of the role \"user\", \"assistant\", \"system\" or \"developer\"",
        err);
}

static ml_status put_item(converter *c, const ml_json *item, ml_err *err) {
    ml_str type = string_of(item, "type");

    if (item->type != ML_JSON_OBJECT)
        return wrong(item, "an item of \"input\", an object", err);
    if (!type.ptr || ml_str_is(type, "message"))
        return put_message(c, item, err);
    if (ml_str_is(type, "function_call"))
        return put_call(c, item, err);
    if (ml_str_is(type, "function_call_output"))
        return put_output(c, item, err);
    if (ml_str_is(type, "reasoning"))
        return put_reasoning(c, item, err);
    return ml_fail(err, ML_EUNSUP,
                   "items of type \"%.*s\" are not supported: expected message, "
                   "function_call, function_call_output or reasoning",
                   (int)(type.len < 40 ? type.len : 40), type.ptr);
}

ml_status ml_responses_input_read(ml_text *out, const ml_json *input, ml_err *err) {
    converter c = { .o = { .to = out, .comma = out->len > 0 } };
    ml_status st = ML_OK;

    if (input->type == ML_JSON_STRING)
        return put_plain(&c, "user", input, (ml_str){ 0 }, err);
    if (input->type != ML_JSON_ARRAY || !input->child)
        return ml_fail(err, ML_EUSAGE,
                       "\"input\" is %s; expected a string or a non-empty list of items",
                       ml_json_what(input));
    for (const ml_json *v = input->child; v && st == ML_OK; v = v->next)
        st = put_item(&c, v, err);
    end_assistant(&c);
    ml_text_release(&c.text);
    ml_text_release(&c.reasoning);
    ml_text_release(&c.calls);
    return st;
}

/* --- tools ---------------------------------------------------------------------------- */

/* Parses what was written and releases it. */
static ml_status finish(ml_text *t, const ml_json **out, ml_arena *a, ml_status st,
                        ml_err *err) {
    if (st == ML_OK)
        st = ml_json_parse(out, a, (ml_str){ ml_arena_str(a, t->ptr, t->len), t->len },
                           "request", err);
    ml_text_release(t);
    return st;
}

static void copy_member(ml_json_out *o, const ml_json *from, const char *key) {
    const ml_json *v = ml_json_get(from, key);

    if (!v || v->type == ML_JSON_NULL)
        return;
    ml_json_key(o, key);
    ml_json_tree_write(o, v);
}

static ml_status put_tool(ml_json_out *o, const ml_json *t, ml_err *err) {
    ml_str type = string_of(t, "type");

    if (!ml_str_is(type, "function"))
        return ml_fail(err, ML_EUNSUP,
                       "tools of type \"%.*s\" run on OpenAI's servers: use tools of type "
                       "\"function\"",
                       (int)(type.len < 40 ? type.len : 40), type.ptr ? type.ptr : "");
    if (!string_of(t, "name").ptr)
        return wrong(t, "a tool with a \"name\"", err);
    ml_json_begin(o, '{');
    ml_json_put_word(o, "type", "function");
    ml_json_key(o, "function");
    ml_json_begin(o, '{');
    copy_member(o, t, "name");
    copy_member(o, t, "description");
    copy_member(o, t, "parameters");
    copy_member(o, t, "strict");
    ml_json_end(o, '}');
    ml_json_end(o, '}');
    return ML_OK;
}

ml_status ml_responses_tools_read(const ml_json **out, const ml_json *tools, ml_arena *a,
                                  ml_err *err) {
    ml_text text = { 0 };
    ml_json_out o = { .to = &text };
    ml_status st = ML_OK;

    *out = NULL;
    if (!tools)
        return ML_OK;
    if (tools->type != ML_JSON_ARRAY)
        return wrong(tools, "\"tools\", a list", err);
    ml_json_begin(&o, '[');
    for (const ml_json *t = tools->child; t && st == ML_OK; t = t->next)
        st = put_tool(&o, t, err);
    ml_json_end(&o, ']');
    return finish(&text, out, a, st, err);
}

ml_status ml_responses_tool_choice_read(const ml_json **out, const ml_json *choice,
                                        ml_arena *a, ml_err *err) {
    ml_text text = { 0 };
    ml_json_out o = { .to = &text };

    *out = choice;
    if (!choice || choice->type == ML_JSON_STRING)
        return ML_OK;
    if (!is(choice, "type", "function") || !string_of(choice, "name").ptr)
        return wrong(choice,
                     "\"tool_choice\" \"auto\", \"none\", \"required\" or {\"type\": "
                     "\"function\", \"name\": ...}",
                     err);
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "type", "function");
    ml_json_key(&o, "function");
    ml_json_begin(&o, '{');
    copy_member(&o, choice, "name");
    ml_json_end(&o, '}');
    ml_json_end(&o, '}');
    return finish(&text, out, a, ML_OK, err);
}

ml_status ml_responses_format_read(const ml_json **out, const ml_json *text, ml_arena *a,
                                   ml_err *err) {
    const ml_json *format = ml_json_get(text, "format");
    ml_text t = { 0 };
    ml_json_out o = { .to = &t };

    *out = format && format->type == ML_JSON_OBJECT ? format : NULL;
    if (!*out || !is(format, "type", "json_schema"))
        return ML_OK;
    ml_json_begin(&o, '{');
    ml_json_put_word(&o, "type", "json_schema");
    ml_json_key(&o, "json_schema");
    ml_json_begin(&o, '{');
    copy_member(&o, format, "name");
    copy_member(&o, format, "strict");
    copy_member(&o, format, "schema");
    ml_json_end(&o, '}');
    ml_json_end(&o, '}');
    return finish(&t, out, a, ML_OK, err);
}
