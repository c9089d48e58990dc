#include "text/chat/conversation.h"

/* --- copies ------------------------------------------------------------------- */

static ml_json *copy(ml_arena *a, const ml_json *v) {
    ml_json *c = ML_NEW(a, ml_json, 1);
    *c = *v;
    c->next = NULL;
    return c;
}

static ml_json *copy_as(ml_arena *a, const char *key, const ml_json *v) {
    ml_json *c = copy(a, v);
    c->key = ml_str_of(key);
    return c;
}

static const ml_json *text_value(ml_arena *a, ml_str text) {
    ml_json *v = ML_NEW(a, ml_json, 1);
    *v = (ml_json){ .type = ML_JSON_STRING, .text = text };
    return v;
}

/* A container to which children are added one by one. */
typedef struct builder {
    ml_json *v;
    const ml_json **link;
} builder;

static builder begin(ml_arena *a, ml_json_type type) {
    ml_json *v = ML_NEW(a, ml_json, 1);
    v->type = type;
    return (builder){ v, &v->child };
}

static void add(builder *b, ml_json *child) {
    *b->link = child;
    b->link = &child->next;
    b->v->n++;
}

/* Returns an edited copy of v, or NULL after ml_fail. */
typedef ml_json *editor(ml_arena *a, const ml_json *v, ml_err *err);

static bool edit_into(builder *b, ml_arena *a, const ml_json *v, editor *edit,
                      ml_err *err) {
    b->v->key = v->key;
    for (const ml_json *c = v->child; c; c = c->next) {
        ml_json *edited = edit(a, c, err);
        if (!edited)
            return false;
        add(b, edited);
    }
    return true;
}

static ml_json *edit_children(ml_arena *a, const ml_json *v, editor *edit, ml_err *err) {
    builder b = begin(a, v->type);
    return edit_into(&b, a, v, edit, err) ? b.v : NULL;
}

/* --- messages ----------------------------------------------------------------- */

ml_messages ml_messages_begin(ml_arena *a) {
    builder b = begin(a, ML_JSON_ARRAY);
    return (ml_messages){ a, b.v, b.link };
}

static void add_message(ml_messages *m, ml_json *message) {
    builder b = { m->list, m->link };

    add(&b, message);
    m->link = b.link;
}

void ml_messages_append(ml_messages *m, ml_str role, ml_str content) {
    builder message = begin(m->arena, ML_JSON_OBJECT);

    add(&message, copy_as(m->arena, "role", text_value(m->arena, role)));
    add(&message, copy_as(m->arena, "content", text_value(m->arena, content)));
    add_message(m, message.v);
}

void ml_messages_join(ml_messages *m, const ml_json *list) {
    for (const ml_json *c = list->child; c; c = c->next)
        add_message(m, copy(m->arena, c));
}

const ml_json *ml_conversation_of_text(ml_arena *a, ml_str text) {
    ml_messages m = ml_messages_begin(a);

    ml_messages_append(&m, ml_str_of("user"), text);
    return m.list;
}

ml_status ml_conversation_check(const ml_json *messages, ml_err *err) {
    int32_t i = 0;

    if (messages->type != ML_JSON_ARRAY || !messages->child)
        return ml_fail(err, ML_EFORMAT, "is %s; expected a list of at least one message",
                       messages->child ? ml_json_what(messages) : "empty");
    for (const ml_json *m = messages->child; m; m = m->next, i++) {
        const ml_json *role = ml_json_get(m, "role");
        if (m->type != ML_JSON_OBJECT)
            return ml_fail(err, ML_EFORMAT,
                           "message %d is %s; expected an object with role and content", i,
                           ml_json_what(m));
        if (!role || role->type != ML_JSON_STRING)
            return ml_fail(err, ML_EFORMAT, "message %d: role is %s; expected a string", i,
                           role ? ml_json_what(role) : "missing");
    }
    return ML_OK;
}

static ml_json *edit_function_member(ml_arena *a, const ml_json *v, ml_err *err) {
    const ml_json *parsed;
    ml_json *out;

    if (!ml_str_is(v->key, "arguments") || v->type != ML_JSON_STRING)
        return copy(a, v);
    if (ml_json_parse(&parsed, a, v->text, "arguments of a tool call", err))
        return NULL;
    out = copy(a, parsed);
    out->key = v->key;
    return out;
}

static ml_json *edit_call_member(ml_arena *a, const ml_json *v, ml_err *err) {
    if (ml_str_is(v->key, "function") && v->type == ML_JSON_OBJECT)
        return edit_children(a, v, edit_function_member, err);
    return copy(a, v);
}

static ml_json *edit_call(ml_arena *a, const ml_json *v, ml_err *err) {
    if (v->type == ML_JSON_OBJECT)
        return edit_children(a, v, edit_call_member, err);
    return copy(a, v);
}

static ml_json *edit_message_member(ml_arena *a, const ml_json *v, ml_err *err) {
    if (ml_str_is(v->key, "content") && v->type == ML_JSON_NULL)
        return copy_as(a, "content", text_value(a, ml_str_of("")));
    if (ml_str_is(v->key, "tool_calls") && v->type == ML_JSON_ARRAY)
        return edit_children(a, v, edit_call, err);
    return copy(a, v);
}

static ml_json *edit_message(ml_arena *a, const ml_json *v, ml_err *err) {
    const ml_json *role = ml_json_get(v, "role"), *calls = ml_json_get(v, "tool_calls");
    builder b = begin(a, v->type);

    if (!role || !ml_str_is(role->text, "assistant"))
        return copy(a, v);
    if (!edit_into(&b, a, v, edit_message_member, err))
        return NULL;
    if (calls && calls->n > 0 && !ml_json_get(v, "content"))
        add(&b, copy_as(a, "content", text_value(a, ml_str_of(""))));
    return b.v;
}

ml_status ml_conversation_normal(const ml_json **out, ml_arena *a, const ml_json *messages,
                                 ml_err *err) {
    *out = edit_children(a, messages, edit_message, err);
    return *out ? ML_OK : ML_EFORMAT;
}

/* --- tools -------------------------------------------------------------------- */

static const ml_json null_value = { .type = ML_JSON_NULL };
static const ml_json false_value = { .type = ML_JSON_FALSE };

/* Does not change *out if the member is missing; returns false if it has neither type. */
static bool member(const ml_json **out, const ml_json *obj, const char *key,
                   ml_json_type one, ml_json_type other, ml_err *err) {
    const ml_json *v = ml_json_get(obj, key);

    if (v && v->type != one && v->type != other) {
        ml_fail(err, ML_EFORMAT, "the %s of a tool is %s", key, ml_json_what(v));
        return false;
    }
    if (v)
        *out = v;
    return true;
}

static ml_json *edit_function(ml_arena *a, const ml_json *v, ml_err *err) {
    const ml_json *description = &null_value, *name = NULL, *strict = &false_value;
    const ml_json *parameters = ml_json_get(v, "parameters");
    builder b = begin(a, ML_JSON_OBJECT);

    if (!member(&description, v, "description", ML_JSON_STRING, ML_JSON_NULL, err) ||
        !member(&name, v, "name", ML_JSON_STRING, ML_JSON_STRING, err) ||
        !member(&strict, v, "strict", ML_JSON_FALSE, ML_JSON_TRUE, err))
        return NULL;
    if (!name) {
        ml_fail(err, ML_EFORMAT, "a tool is %s without a function name", ml_json_what(v));
        return NULL;
    }
    add(&b, copy_as(a, "description", description));
    add(&b, copy_as(a, "name", name));
    add(&b, copy_as(a, "parameters", parameters ? parameters : &null_value));
    add(&b, copy_as(a, "strict", strict));
    return b.v;
}

static ml_json *edit_tool(ml_arena *a, const ml_json *v, ml_err *err) {
    const ml_json *inner = ml_json_get(v, "function");
    const ml_json *type = text_value(a, ml_str_of("function"));
    builder b = begin(a, ML_JSON_OBJECT);
    ml_json *function;

    if (inner && !member(&type, v, "type", ML_JSON_STRING, ML_JSON_STRING, err))
        return NULL;
    function = edit_function(a, inner ? inner : v, err);
    if (!function)
        return NULL;
    function->key = ml_str_of("function");
    add(&b, copy_as(a, "type", type));
    add(&b, function);
    return b.v;
}

ml_status ml_tools_normal(const ml_json **out, ml_arena *a, const ml_json *tools,
                          ml_err *err) {
    *out = NULL;
    if (!tools || !tools->child)
        return ML_OK;
    *out = edit_children(a, tools, edit_tool, err);
    return *out ? ML_OK : ML_EFORMAT;
}

static ml_json *edit_unwrap(ml_arena *a, const ml_json *v, ml_err *err) {
    ml_json *f = copy(a, ml_json_get(v, "function"));
    (void)err;
    f->key = (ml_str){ 0 };
    return f;
}

const ml_json *ml_tools_functions(ml_arena *a, const ml_json *tools) {
    return edit_children(a, tools, edit_unwrap, NULL);
}
