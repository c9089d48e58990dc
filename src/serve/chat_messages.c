#include "serve/chat_messages.h"

/* Changes a copy of a value in place. */
typedef ml_status rewrite_fn(ml_json *v, ml_arena *a, ml_err *err);

/* Replaces the children of v by copies, each changed by fn. */
static ml_status rewrite_children(ml_json *v, rewrite_fn *fn, ml_arena *a, ml_err *err) {
    const ml_json *from = v->child;
    const ml_json **at = &v->child;
    ml_status st = ML_OK;

    for (; from && !st; from = from->next) {
        ml_json *copy = ML_NEW(a, ml_json, 1);
        *copy = *from;
        copy->next = NULL;
        st = fn(copy, a, err);
        *at = copy;
        at = &copy->next;
    }
    return st;
}

static void become_string(ml_json *v, ml_str text) {
    v->type = ML_JSON_STRING;
    v->text = text;
    v->child = NULL;
    v->n = 0;
}

static ml_status part_text(ml_str *out, const ml_json *part, ml_err *err) {
    const ml_json *type = ml_json_get(part, "type"), *text = ml_json_get(part, "text");

    if (!type || type->type != ML_JSON_STRING)
        return ml_fail(err, ML_EUSAGE,
                       "request body:%u:%u: a part of a message has no \"type\"",
                       (unsigned)part->line, (unsigned)part->column);
    if (!ml_str_is(type->text, "text"))
        return ml_fail(
            err, ML_EUNSUP,
            "message parts of type \"%.*s\" are not supported: models are text-only",
            (int)(type->text.len < 40 ? type->text.len : 40), type->text.ptr);
    if (!text || text->type != ML_JSON_STRING)
        return ml_fail(err, ML_EUSAGE,
                       "request body:%u:%u: a part of type \"text\" has no string \"text\"",
                       (unsigned)part->line, (unsigned)part->column);
    *out = text->text;
    return ML_OK;
}

/* Joins the text parts with a space between them, as SGLang does. */
static ml_status join_parts(ml_json *v, ml_arena *a, ml_err *err) {
    ml_text all = { 0 };
    ml_status st = ML_OK;
    ml_str text = { 0 };

    for (const ml_json *p = v->child; p && !st; p = p->next) {
        st = part_text(&text, p, err);
        if (!st && p != v->child)
            ml_text_add(&all, " ", 1);
        if (!st)
            ml_text_add(&all, text.ptr, text.len);
    }
    if (!st)
        become_string(
            v, (ml_str){ ml_arena_str(a, all.len ? all.ptr : "", all.len), all.len });
    ml_text_release(&all);
    return st;
}

/* --- past tool calls -------------------------------------------------------- */

static ml_status rewrite_arguments(ml_json *v, ml_arena *a, ml_err *err) {
    const ml_json *parsed;
    ml_json old = *v;
    ml_status st;

    if (!ml_str_is(v->key, "arguments") || v->type != ML_JSON_STRING)
        return ML_OK;
    st = ml_json_parse(&parsed, a, v->text, "arguments of a tool call", err);
    if (st)
        return st;
    *v = *parsed;
    v->key = old.key;
    v->next = NULL;
    return ML_OK;
}

static ml_status rewrite_function(ml_json *v, ml_arena *a, ml_err *err) {
    bool function = ml_str_is(v->key, "function") && v->type == ML_JSON_OBJECT;
    return function ? rewrite_children(v, rewrite_arguments, a, err) : ML_OK;
}

static ml_status rewrite_call(ml_json *v, ml_arena *a, ml_err *err) {
    return rewrite_children(v, rewrite_function, a, err);
}

/* --- messages --------------------------------------------------------------- */

static ml_status rewrite_member(ml_json *v, ml_arena *a, ml_err *err) {
    if (ml_str_is(v->key, "tool_calls") && v->type == ML_JSON_ARRAY)
        return rewrite_children(v, rewrite_call, a, err);
    if (!ml_str_is(v->key, "content"))
        return ML_OK;
    if (v->type == ML_JSON_ARRAY)
        return join_parts(v, a, err);
    if (v->type == ML_JSON_NULL)
        become_string(v, ml_str_of(""));
    return ML_OK;
}

static ml_status rewrite_message(ml_json *v, ml_arena *a, ml_err *err) {
    const ml_json *role = ml_json_get(v, "role");

    if (!role || role->type != ML_JSON_STRING)
        return ml_fail(err, ML_EUSAGE,
                       "request body:%u:%u: expected a message, an object with a \"role\"",
                       (unsigned)v->line, (unsigned)v->column);
    return rewrite_children(v, rewrite_member, a, err);
}

ml_status ml_chat_messages_read(const ml_json **out, const ml_json *messages, ml_arena *a,
                                ml_err *err) {
    ml_json *copy = ML_NEW(a, ml_json, 1);

    if (!messages || messages->type != ML_JSON_ARRAY || messages->n == 0)
        return ml_fail(err, ML_EUSAGE, "expected \"messages\", a non-empty list");
    *copy = *messages;
    *out = copy;
    return rewrite_children(copy, rewrite_message, a, err);
}

ml_status ml_chat_messages_split(const ml_json **messages, ml_str *begun, ml_arena *a,
                                 ml_err *err) {
    ml_json *copy = ML_NEW(a, ml_json, 1);
    const ml_json *last = (*messages)->child, *content;
    const ml_json **at = &copy->child;

    while (last->next)
        last = last->next;
    content = ml_json_get(last, "content");
    if (!ml_str_is(ml_json_get(last, "role")->text, "assistant") || !content ||
        content->type != ML_JSON_STRING)
        return ml_fail(
            err, ML_EUSAGE,
            "\"continue_final_message\" needs a final assistant message with text");
    *begun = content->text;
    *copy = **messages;
    copy->n--;
    copy->child = NULL;
    for (const ml_json *m = (*messages)->child; m != last; m = m->next) {
        ml_json *c = ML_NEW(a, ml_json, 1);
        *c = *m;
        c->next = NULL;
        *at = c;
        at = &c->next;
    }
    *messages = copy;
    return ML_OK;
}
