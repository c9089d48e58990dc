#include "text/chat/tool_calls.h"

#include <string.h>

static const char open_tag[] = "<tool_call>", close_tag[] = "</tool_call>";
static const char python_tag[] = "<|python_tag|>";

const char *ml_tool_format_name(ml_tool_format f) {
    switch (f) {
    case ML_TOOLS_NONE: return NULL;
    case ML_TOOLS_QWEN: return "qwen25";
    case ML_TOOLS_LLAMA3: return "llama3";
    }
    return NULL;
}

void ml_tool_reader_init(ml_tool_reader *r, ml_tool_format f, const ml_json *tools,
                         ml_arena *a) {
    *r = (ml_tool_reader){ .format = f, .tools = tools, .arena = a };
}

void ml_tool_reader_release(ml_tool_reader *r) {
    ml_text_release(&r->held);
}

/* --- a call's JSON ---------------------------------------------------------- */

static bool offered(const ml_tool_reader *r, ml_str name) {
    if (!r->tools)
        return true;
    for (const ml_json *t = r->tools->child; t; t = t->next) {
        const ml_json *n = ml_json_get(ml_json_get(t, "function"), "name");
        if (n && n->type == ML_JSON_STRING && ml_str_eq(n->text, name))
            return true;
    }
    return false;
}

static void add_call(ml_tool_reader *r, ml_tool_call call) {
    if (r->n == r->cap) {
        int32_t cap = r->cap ? 2 * r->cap : 4;
        ml_tool_call *grown = ML_NEW(r->arena, ml_tool_call, cap);
        if (r->n)
            memcpy(grown, r->call, (size_t)r->n * sizeof *grown);
        r->call = grown;
        r->cap = cap;
    }
    r->call[r->n++] = call;
}

/* Returns false if this is not a call of an offered tool. */
static bool read_call(ml_tool_reader *r, ml_str json) {
    const ml_json *v, *name, *args;
    ml_str src = { ml_arena_str(r->arena, json.ptr, json.len), json.len };
    ml_tool_call call;

    if (ml_json_parse(&v, r->arena, src, "tool call", NULL))
        return false;
    name = ml_json_get(v, "name");
    args = ml_json_get(v, "arguments");
    if (!args)
        args = ml_json_get(v, "parameters");
    if (!name || name->type != ML_JSON_STRING || !offered(r, name->text))
        return false;
    call.name = name->text;
    call.arguments = ml_str_of("{}");
    if (args && args->type == ML_JSON_STRING)
        call.arguments = args->text;
    else if (args && args->type != ML_JSON_NULL)
        call.arguments = (ml_str){ src.ptr + args->begin, args->end - args->begin };
    add_call(r, call);
    return true;
}

/* --- held text -------------------------------------------------------------- */

static void drop_held(ml_tool_reader *r, size_t n) {
    if (!n)
        return;
    memmove(r->held.ptr, r->held.ptr + n, r->held.len - n);
    r->held.len -= n;
}

static void release_held(ml_tool_reader *r, size_t n, ml_text *text) {
    if (n)
        ml_text_add(text, r->held.ptr, n);
    drop_held(r, n);
}

static const char *find_tag(const ml_text *t, size_t from, const char *tag, size_t len) {
    return t->len > from ? memmem(t->ptr + from, t->len - from, tag, len) : NULL;
}

/* The number of bytes at the end of the held text that may begin the tag. */
static size_t tail_of(const ml_text *t, const char *tag, size_t len) {
    size_t n = len - 1 < t->len ? len - 1 : t->len;

    while (n && memcmp(t->ptr + t->len - n, tag, n) != 0)
        n--;
    return n;
}

static size_t blanks(const ml_text *t) {
    size_t n = 0;

    while (n < t->len && strchr(" \t\r\n", t->ptr[n]))
        n++;
    return n;
}

/* --- qwen ------------------------------------------------------------------- */

/* Outside of a call: releases text that cannot begin one.  True: a call has begun. */
static bool seek_call(ml_tool_reader *r, ml_text *text) {
    size_t open = sizeof open_tag - 1;
    const char *at;

    if (r->after) {
        drop_held(r, blanks(&r->held));
        r->after = r->held.len == 0;
    }
    at = find_tag(&r->held, 0, open_tag, open);
    release_held(r,
                 at ? (size_t)(at - r->held.ptr)
                    : r->held.len - tail_of(&r->held, open_tag, open),
                 text);
    r->inside = at != NULL;
    return r->inside;
}

/* Inside of a call.  True: it has ended, as a call or as text. */
static bool end_call(ml_tool_reader *r, ml_text *text) {
    size_t open = sizeof open_tag - 1, close = sizeof close_tag - 1, n;
    const char *at = find_tag(&r->held, open, close_tag, close);

    if (!at)
        return false;
    n = (size_t)(at - r->held.ptr);
    r->after = read_call(r, (ml_str){ r->held.ptr + open, n - open });
    if (r->after)
        drop_held(r, n + close);
    else
        release_held(r, n + close, text);
    r->inside = false;
    return true;
}

/* --- llama3 ----------------------------------------------------------------- */

/* Returns the end of the JSON object that begins at s, or 0. */
static size_t object_end(const char *s, size_t n) {
    int depth = 0;
    bool quoted = false;

    for (size_t i = 0; i < n; i++) {
        if (quoted) {
            if (s[i] == '\\')
                i++;
            else if (s[i] == '"')
                quoted = false;
        } else if (s[i] == '"') {
            quoted = true;
        } else if (s[i] == '{') {
            depth++;
        } else if (s[i] == '}' && --depth == 0) {
            return i + 1;
        }
    }
    return 0;
}

/* The whole answer is either calls or text; its beginning decides. */
static void begin_llama3(ml_tool_reader *r, ml_text *text) {
    size_t tag = sizeof python_tag - 1, n = r->held.len;
    size_t common = n < tag ? n : tag; /* bytes that can be compared with the tag */
    bool tagged = memcmp(r->held.ptr, python_tag, common) == 0;

    r->inside = (tagged && n >= tag) || (n && r->held.ptr[0] == '{');
    r->plain = !r->inside && !tagged && blanks(&r->held) < n;
    if (r->plain)
        release_held(r, n, text);
}

static void finish_llama3(ml_tool_reader *r, ml_text *text) {
    size_t tag = sizeof python_tag - 1, at = 0;
    int32_t before = r->n;
    bool ok = r->inside;

    if (ok && r->held.len >= tag && memcmp(r->held.ptr, python_tag, tag) == 0)
        at = tag;
    while (ok && at < r->held.len) {
        size_t n = object_end(r->held.ptr + at, r->held.len - at);
        ok = n && read_call(r, (ml_str){ r->held.ptr + at, n });
        at += n;
        while (ok && at < r->held.len && strchr("; \t\r\n", r->held.ptr[at]))
            at++;
    }
    if (!ok || r->n == before) {
        r->n = before;
        release_held(r, r->held.len, text);
    }
    r->held.len = 0;
}

/* --- pieces ----------------------------------------------------------------- */

void ml_tool_reader_push(ml_tool_reader *r, ml_str piece, ml_text *text) {
    if (r->format == ML_TOOLS_NONE || r->plain) {
        ml_text_add(text, piece.ptr, piece.len);
        return;
    }
    ml_text_add(&r->held, piece.ptr, piece.len);
    if (r->format == ML_TOOLS_LLAMA3) {
        if (!r->inside)
            begin_llama3(r, text);
        return;
    }
    while (r->inside ? end_call(r, text) : seek_call(r, text))
        continue;
}

void ml_tool_reader_finish(ml_tool_reader *r, ml_text *text) {
    if (r->format == ML_TOOLS_LLAMA3)
        finish_llama3(r, text);
    else
        release_held(r, r->held.len, text);
    r->held.len = 0;
}
