#include "serve/json_tree.h"

ml_json *ml_json_tree_copy(ml_arena *a, const ml_json *v) {
    ml_json *copy = ML_NEW(a, ml_json, 1);
    const ml_json **at = &copy->child;

    *copy = *v;
    copy->next = NULL;
    copy->child = NULL;
    copy->key.ptr = ml_arena_str(a, v->key.ptr ? v->key.ptr : "", v->key.len);
    copy->text.ptr = ml_arena_str(a, v->text.ptr ? v->text.ptr : "", v->text.len);
    for (const ml_json *c = v->child; c; c = c->next) {
        ml_json *child = ml_json_tree_copy(a, c);
        *at = child;
        at = &child->next;
    }
    return copy;
}

static void write_children(ml_json_out *o, const ml_json *v) {
    bool object = v->type == ML_JSON_OBJECT;

    ml_json_begin(o, object ? '{' : '[');
    for (const ml_json *c = v->child; c; c = c->next) {
        if (object) {
            ml_json_str(o, c->key);
            ml_text_add(o->to, ": ", 2);
            o->comma = false;
        }
        ml_json_tree_write(o, c);
    }
    ml_json_end(o, object ? '}' : ']');
}

void ml_json_tree_write(ml_json_out *o, const ml_json *v) {
    switch (v ? v->type : ML_JSON_NULL) {
    case ML_JSON_NULL: ml_json_null(o); break;
    case ML_JSON_FALSE:
    case ML_JSON_TRUE: ml_json_bool(o, v->type == ML_JSON_TRUE); break;
    case ML_JSON_NUMBER: ml_json_raw(o, v->text); break;
    case ML_JSON_STRING: ml_json_str(o, v->text); break;
    case ML_JSON_ARRAY:
    case ML_JSON_OBJECT: write_children(o, v); break;
    }
}

static const ml_json *member(const ml_json *object, ml_str key) {
    for (const ml_json *c = object->child; c; c = c->next)
        if (ml_str_eq(c->key, key))
            return c;
    return NULL;
}

static bool equal_children(const ml_json *a, const ml_json *b, bool any_order) {
    const ml_json *y = b->child;

    for (const ml_json *x = a->child; x; x = x->next, y = y->next) {
        const ml_json *other = y;
        if (a->type == ML_JSON_OBJECT && any_order)
            other = member(b, x->key);
        if (!other || !ml_str_eq(x->key, other->key) ||
            !ml_json_tree_equal(x, other, any_order))
            return false;
    }
    return true;
}

bool ml_json_tree_equal(const ml_json *a, const ml_json *b, bool any_order) {
    if (a->type != b->type || a->n != b->n)
        return false;
    if (a->type == ML_JSON_NUMBER || a->type == ML_JSON_STRING)
        return ml_str_eq(a->text, b->text);
    return equal_children(a, b, any_order);
}

ml_json_list ml_json_list_begin(ml_arena *a, ml_json_type type) {
    ml_json_list l = { .arena = a, .list = ML_NEW(a, ml_json, 1) };

    l.list->type = type;
    l.link = &l.list->child;
    return l;
}

void ml_json_list_add(ml_json_list *l, const ml_json *v) {
    ml_json *copy = ML_NEW(l->arena, ml_json, 1);

    *copy = *v;
    copy->next = NULL;
    *l->link = copy;
    l->link = &copy->next;
    l->list->n++;
}

void ml_json_list_join(ml_json_list *l, const ml_json *v) {
    for (const ml_json *c = v->child; c; c = c->next)
        ml_json_list_add(l, c);
}
