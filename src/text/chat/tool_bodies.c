#include "text/chat/tool_bodies.h"

#include <string.h>

/* --- calls ------------------------------------------------------------------ */

static const ml_json *find_tool(const ml_tool_reader *r, ml_str name) {
    for (const ml_json *t = r->tools ? r->tools->child : NULL; t; t = t->next) {
        const ml_json *n = ml_json_get(ml_json_get(t, "function"), "name");
        if (n && n->type == ML_JSON_STRING && ml_str_eq(n->text, name))
            return t;
    }
    return NULL;
}

/* False: the tool was not offered. */
static bool add_call(ml_tool_reader *r, ml_str name, ml_str arguments) {
    if (!name.len || (r->tools && !find_tool(r, name)))
        return false;
    if (r->n == r->cap) {
        int32_t cap = r->cap ? 2 * r->cap : 4;
        ml_tool_call *grown = ML_NEW(r->arena, ml_tool_call, cap);
        if (r->n)
            memcpy(grown, r->call, (size_t)r->n * sizeof *grown);
        r->call = grown;
        r->cap = cap;
    }
    r->call[r->n++] = (ml_tool_call){ name, arguments };
    return true;
}

static ml_str kept(const ml_tool_reader *r, ml_str s) {
    return (ml_str){ ml_arena_str(r->arena, s.len ? s.ptr : "", s.len), s.len };
}

ml_str ml_tool_trimmed(ml_str s) {
    while (s.len && ml_is_blank(s.ptr[0])) {
        s.ptr++;
        s.len--;
    }
    while (s.len && ml_is_blank(s.ptr[s.len - 1]))
        s.len--;
    return s;
}

static bool begins_with(ml_str s, const char *head) {
    return s.len >= strlen(head) && memcmp(s.ptr, head, strlen(head)) == 0;
}

/* Splits s at a mark: returns what is before it and leaves in *s what is after. */
static bool split(ml_str *s, const char *mark, ml_str *before) {
    const char *at = s->len ? memmem(s->ptr, s->len, mark, strlen(mark)) : NULL;
    size_t n;

    if (!at)
        return false;
    n = (size_t)(at - s->ptr);
    *before = (ml_str){ s->ptr, n };
    n += strlen(mark);
    *s = (ml_str){ s->ptr + n, s->len - n };
    return true;
}

/* --- JSON ------------------------------------------------------------------- */

/* {"name": ..., "arguments" or "parameters": ...}, parsed from src. */
static bool add_object(ml_tool_reader *r, const ml_json *v, ml_str src) {
    const ml_json *name = ml_json_get(v, "name"), *args = ml_json_get(v, "arguments");
    ml_str text = ml_str_of("{}");

    if (!args)
        args = ml_json_get(v, "parameters");
    if (!name || name->type != ML_JSON_STRING)
        return false;
    if (args && args->type == ML_JSON_STRING)
        text = args->text;
    else if (args && args->type != ML_JSON_NULL)
        text = (ml_str){ src.ptr + args->begin, args->end - args->begin };
    return add_call(r, name->text, text);
}

bool ml_tool_body_json(ml_tool_reader *r, ml_str body) {
    ml_str src = kept(r, body);
    const ml_json *v;

    return ml_json_parse(&v, r->arena, src, "tool call", NULL) == ML_OK &&
           add_object(r, v, src);
}

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

bool ml_tool_body_objects(ml_tool_reader *r, ml_str body) {
    int32_t before = r->n;
    size_t at = 0;
    bool ok = true;

    while (ok && at < body.len) {
        size_t n = object_end(body.ptr + at, body.len - at);
        ok = n && ml_tool_body_json(r, (ml_str){ body.ptr + at, n });
        at += n;
        while (ok && at < body.len && (body.ptr[at] == ';' || ml_is_blank(body.ptr[at])))
            at++;
    }
    if (!ok)
        r->n = before;
    return r->n > before;
}

bool ml_tool_body_list(ml_tool_reader *r, ml_str body) {
    ml_str src = kept(r, body);
    int32_t before = r->n;
    const ml_json *v;
    bool ok = ml_json_parse(&v, r->arena, src, "tool calls", NULL) == ML_OK &&
              v->type == ML_JSON_ARRAY;

    for (const ml_json *c = ok ? v->child : NULL; c && ok; c = c->next)
        ok = add_object(r, c, src);
    if (!ok)
        r->n = before;
    return r->n > before;
}

/* A name, and arguments that must be JSON. */
static bool add_named(ml_tool_reader *r, ml_str name, ml_str arguments) {
    ml_str src = kept(r, ml_tool_trimmed(arguments));
    const ml_json *v;

    if (!src.len)
        src = ml_str_of("{}");
    return ml_json_parse(&v, r->arena, src, "tool call", NULL) == ML_OK &&
           add_call(r, kept(r, ml_tool_trimmed(name)), src);
}

bool ml_tool_body_mistral(ml_tool_reader *r, ml_str body) {
    ml_str name, rest;

    body = ml_tool_trimmed(body);
    rest = body;
    if (begins_with(body, "["))
        return ml_tool_body_list(r, body);
    if (split(&rest, "[ARGS]", &name))
        return add_named(r, name, rest);
    if (!split(&rest, "{", &name))
        return false;
    rest.ptr--; /* the brace belongs to the arguments */
    rest.len++;
    return add_named(r, name, rest);
}

bool ml_tool_body_deepseek(ml_tool_reader *r, ml_str body) {
    ml_str name;
    return split(&body, "<｜tool▁sep｜>", &name) && add_named(r, name, body);
}

bool ml_tool_body_deepseek_v3(ml_tool_reader *r, ml_str body) {
    ml_str kind, name, args;

    return split(&body, "<｜tool▁sep｜>", &kind) && split(&body, "```json", &name) &&
           split(&body, "```", &args) && add_named(r, name, args);
}

/* functions.NAME:0 */
bool ml_tool_body_kimi(ml_tool_reader *r, ml_str body) {
    ml_str id, name, ignored;

    if (!split(&body, "<|tool_call_argument_begin|>", &id))
        return false;
    id = ml_tool_trimmed(id);
    if (begins_with(id, "functions."))
        split(&id, "functions.", &ignored);
    return split(&id, ":", &name) && add_named(r, name, body);
}

bool ml_tool_body_harmony(ml_tool_reader *r, ml_str body) {
    ml_str head;
    size_t n = 0;

    if (!split(&body, "<|message|>", &head))
        return false;
    while (n < head.len && head.ptr[n] != ' ' && head.ptr[n] != '<')
        n++;
    return add_named(r, (ml_str){ head.ptr, n }, body);
}

/* --- parameters as text ----------------------------------------------------- */

/* The type of a parameter in the tool's schema. */
static ml_str type_of(const ml_tool_reader *r, ml_str name, ml_str key) {
    const ml_json *fn = ml_json_get(find_tool(r, name), "function");
    const ml_json *all = ml_json_get(ml_json_get(fn, "parameters"), "properties"), *type;

    for (const ml_json *p = all ? all->child : NULL; p; p = p->next)
        if (ml_str_eq(p->key, key)) {
            type = ml_json_get(p, "type");
            return type && type->type == ML_JSON_STRING ? type->text : (ml_str){ 0 };
        }
    return (ml_str){ 0 };
}

typedef enum value_kind { BY_TYPE, IS_STRING, IS_JSON } value_kind;

/* Writes "key": value.  A value that is no string by its type, and that is JSON, keeps its
 * spelling; any other is text. */
static void write_parameter(const ml_tool_reader *r, ml_text *out, ml_str name, ml_str key,
                            ml_str value, value_kind kind) {
    ml_str trimmed = ml_tool_trimmed(value), type = type_of(r, name, key);
    const ml_json *v;

    ml_text_add(out, ", ", out->len > 1 ? 2 : 0);
    ml_json_quote(out, key);
    ml_text_add(out, ": ", 2);
    if (kind == BY_TYPE && ml_str_is(type, "string"))
        kind = IS_STRING;
    if (kind != IS_STRING &&
        ml_json_parse(&v, r->arena, kept(r, trimmed), "value", NULL) == ML_OK)
        ml_text_add(out, trimmed.ptr, trimmed.len);
    else
        ml_json_quote(out, value);
}

/* How a format writes parameters. */
typedef struct parameters {
    const char *name_end;                /* after the function's name */
    const char *open, *key_end;          /* around a key */
    const char *value_begin, *value_end; /* value_begin NULL: the value follows */
    bool lines;                          /* a value stands on lines of its own */
} parameters;

static ml_str without_line_ends(ml_str s) {
    if (s.len && s.ptr[0] == '\n') {
        s.ptr++;
        s.len--;
    }
    s.len -= s.len && s.ptr[s.len - 1] == '\n';
    return s;
}

static bool read_parameters(ml_tool_reader *r, ml_str body, const parameters *p) {
    ml_text args = { 0 };
    ml_str name, ignored, key, value;
    bool ok = true;

    if (!split(&body, p->name_end, &name)) {
        name = body; /* a call without parameters */
        body.len = 0;
    } else if (ml_str_is(ml_str_of(p->name_end), p->open)) {
        body.ptr -= strlen(p->open); /* the first key ends the name */
        body.len += strlen(p->open);
    }
    name = kept(r, ml_tool_trimmed(name));
    ml_text_add(&args, "{", 1);
    while (ok && split(&body, p->open, &ignored)) {
        value_kind kind = BY_TYPE;
        ok = split(&body, p->key_end, &key) &&
             (!p->value_begin || split(&body, p->value_begin, &ignored)) &&
             split(&body, p->value_end, &value);
        if (!ok)
            break;
        if (strcmp(p->key_end, "\" string=\"") == 0) {
            kind = begins_with(value, "true\">") ? IS_STRING : IS_JSON;
            ok = split(&value, "\">", &ignored);
        }
        write_parameter(r, &args, name, ml_tool_trimmed(key),
                        p->lines ? without_line_ends(value) : value, kind);
    }
    ml_text_add(&args, "}", 1);
    ok = ok && add_call(r, name, kept(r, (ml_str){ args.ptr, args.len }));
    ml_text_release(&args);
    return ok;
}

bool ml_tool_body_glm(ml_tool_reader *r, ml_str body) {
    return read_parameters(r, body,
                           &(parameters){ "<arg_key>", "<arg_key>", "</arg_key>",
                                          "<arg_value>", "</arg_value>", false });
}

bool ml_tool_body_function(ml_tool_reader *r, ml_str body) {
    return read_parameters(
        r, body, &(parameters){ ">", "<parameter=", ">", NULL, "</parameter>", true });
}

bool ml_tool_body_invoke(ml_tool_reader *r, ml_str body) {
    return read_parameters(
        r, body,
        &(parameters){ "\">", "<parameter name=\"", "\">", NULL, "</parameter>", true });
}

bool ml_tool_body_dsml(ml_tool_reader *r, ml_str body) {
    return read_parameters(r, body,
                           &(parameters){ "\">", "<｜DSML｜parameter name=\"",
                                          "\" string=\"", NULL, "</｜DSML｜parameter>",
                                          false });
}

/* --- Python ----------------------------------------------------------------- */

typedef struct python {
    const char *p, *end;
    int depth;
} python;

static void skip_blanks(python *x) {
    while (x->p < x->end && ml_is_blank(*x->p))
        x->p++;
}

static bool take(python *x, char c) {
    skip_blanks(x);
    if (x->p == x->end || *x->p != c)
        return false;
    x->p++;
    return true;
}

static ml_str identifier(python *x) {
    const char *p;

    skip_blanks(x);
    for (p = x->p; x->p < x->end && (*x->p == '_' || *x->p == '.' || *x->p == '-' ||
                                     (*x->p >= '0' && *x->p <= '9') ||
                                     ((*x->p | 32) >= 'a' && (*x->p | 32) <= 'z'));)
        x->p++;
    return (ml_str){ p, (size_t)(x->p - p) };
}

static char unescaped(char c) {
    return c == 'n' ? '\n' : c == 't' ? '\t' : c == 'r' ? '\r' : c;
}

/* A string in either kind of quotes, with the escapes that Python and JSON share. */
static bool string_literal(python *x, ml_text *out) {
    char quote = *x->p++;
    ml_text s = { 0 };

    for (; x->p < x->end && *x->p != quote; x->p++) {
        char c = *x->p;
        if (c == '\\' && x->p + 1 < x->end)
            c = unescaped(*++x->p);
        ml_text_add(&s, &c, 1);
    }
    ml_json_quote(out, (ml_str){ s.ptr ? s.ptr : "", s.len });
    ml_text_release(&s);
    return take(x, quote);
}

static bool literal(python *x, ml_text *out);

/* Elements up to the closing bracket; a dict has keys. */
static bool elements(python *x, ml_text *out, char close, bool dict) {
    for (bool first = true; !take(x, close); first = false) {
        if (!first && !take(x, ','))
            return false;
        if (!first && take(x, close))
            break;
        ml_text_add(out, ", ", first ? 0 : 2);
        if (!literal(x, out))
            return false;
        if (dict) {
            ml_text_add(out, ": ", 2);
            if (!take(x, ':') || !literal(x, out))
                return false;
        }
    }
    ml_text_add(out, dict ? "}" : "]", 1);
    return true;
}

static bool word_or_number(python *x, ml_text *out) {
    static const char *const words[][2] = { { "True", "true" },   { "False", "false" },
                                            { "None", "null" },   { "true", "true" },
                                            { "false", "false" }, { "null", "null" } };
    ml_str s;

    if (x->p < x->end && *x->p == '-')
        ml_text_add(out, x->p++, 1);
    s = identifier(x);
    for (int i = 0; i < 6; i++)
        if (ml_str_is(s, words[i][0])) {
            ml_text_printf(out, "%s", words[i][1]);
            return true;
        }
    ml_text_add(out, s.ptr, s.len);
    return s.len > 0 && s.ptr[0] >= '0' && s.ptr[0] <= '9';
}

static bool literal(python *x, ml_text *out) {
    char open;
    bool ok;

    skip_blanks(x);
    if (x->p == x->end || x->depth > 50)
        return false;
    open = *x->p;
    if (open == '"' || open == '\'')
        return string_literal(x, out);
    if (open != '[' && open != '{' && open != '(')
        return word_or_number(x, out);
    x->p++;
    x->depth++;
    ml_text_add(out, open == '{' ? "{" : "[", 1);
    ok = elements(x, out, open == '{' ? '}' : open == '(' ? ')' : ']', open == '{');
    x->depth--;
    return ok;
}

/* f(a=1, b="x") */
static bool python_call(ml_tool_reader *r, python *x) {
    ml_str name = identifier(x);
    ml_text args = { 0 };
    bool ok = name.len && take(x, '(');
    const ml_json *v;

    ml_text_add(&args, "{", 1);
    for (bool first = true; ok && !take(x, ')'); first = false) {
        ml_str key;
        ok = first || take(x, ',');
        key = identifier(x);
        ml_text_add(&args, ", ", first ? 0 : 2);
        ml_json_quote(&args, key);
        ml_text_add(&args, ": ", 2);
        ok = ok && key.len && take(x, '=') && literal(x, &args);
    }
    ml_text_add(&args, "}", 1);
    if (ok) {
        ml_str src = kept(r, (ml_str){ args.ptr, args.len });
        ok = ml_json_parse(&v, r->arena, src, "tool call", NULL) == ML_OK &&
             add_call(r, kept(r, name), src);
    }
    ml_text_release(&args);
    return ok;
}

bool ml_tool_body_pythonic(ml_tool_reader *r, ml_str body) {
    python x = { .p = body.ptr, .end = body.ptr + body.len };
    int32_t before = r->n;
    bool ok = take(&x, '[');

    for (bool first = true; ok && !take(&x, ']'); first = false)
        ok = (first || take(&x, ',')) && python_call(r, &x);
    if (!ok)
        r->n = before;
    return r->n > before;
}
