#include "serve/route_prompt.h"

#include <string.h>

typedef struct cursor {
    const char *p, *end;
} cursor;

static void skip_space(cursor *c) {
    while (c->p < c->end &&
           (*c->p == ' ' || *c->p == '\t' || *c->p == '\n' || *c->p == '\r'))
        c->p++;
}

/* Moves from a quote to just past its closing quote. */
static void skip_string(cursor *c) {
    for (c->p++; c->p < c->end && *c->p != '"'; c->p++)
        if (*c->p == '\\' && c->p + 1 < c->end)
            c->p++;
    if (c->p < c->end)
        c->p++;
}

/* Moves to the comma or bracket that ends the value, over nested values. */
static void skip_value(cursor *c) {
    int depth = 0;

    while (c->p < c->end) {
        char ch = *c->p;
        if (ch == '"') {
            skip_string(c);
            continue;
        }
        if (depth == 0 && (ch == ',' || ch == '}' || ch == ']'))
            return;
        depth += ch == '{' || ch == '[';
        depth -= ch == '}' || ch == ']';
        c->p++;
    }
}

static bool is_prompt(ml_str key) {
    static const char *const names[] = { "text", "input_ids", "prompt", "messages", NULL };

    for (int i = 0; names[i]; i++)
        if (ml_str_is(key, names[i]))
            return true;
    return false;
}

ml_str ml_route_prompt(ml_str body) {
    cursor c = { body.ptr, body.ptr + body.len };

    skip_space(&c);
    if (c.p == c.end || *c.p++ != '{')
        return (ml_str){ "", 0 };
    for (;;) {
        ml_str key, value;
        skip_space(&c);
        if (c.p == c.end || *c.p != '"')
            return (ml_str){ "", 0 };
        key.ptr = c.p + 1;
        skip_string(&c);
        key.len = (size_t)(c.p - key.ptr) - (c.p > key.ptr);
        skip_space(&c);
        if (c.p == c.end || *c.p++ != ':')
            return (ml_str){ "", 0 };
        skip_space(&c);
        value.ptr = c.p;
        skip_value(&c);
        value.len = (size_t)(c.p - value.ptr);
        if (is_prompt(key) && value.len)
            return value;
        if (c.p == c.end || *c.p++ != ',')
            return (ml_str){ "", 0 };
    }
}
