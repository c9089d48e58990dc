#include "text/chat/chat_template.h"

#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"

typedef struct named {
    const char *name;
    ml_jinja *jinja;
} named;

struct ml_chat_template {
    ml_arena arena;
    const char *dir;
    named *choice; /* [n] */
    int32_t n;
    ml_jinja_var *token; /* [n_token] special tokens */
    int32_t n_token;
};

static const ml_json json_null = { .type = ML_JSON_NULL };
static const ml_json json_true = { .type = ML_JSON_TRUE };
static const ml_json json_false = { .type = ML_JSON_FALSE };

/* --- files ---------------------------------------------------------------------------- */

/* Reads dir/name into the arena; out->ptr is NULL if the file does not exist. */
static ml_status read_file(ml_str *out, ml_arena *a, const char *path, ml_err *err) {
    ml_file f;
    ml_status st;

    *out = (ml_str){ 0 };
    if (!ml_file_there(path))
        return ML_OK;
    st = ml_file_map(&f, path, err);
    if (st)
        return st;
    *out = (ml_str){ ml_arena_str(a, f.bytes.ptr, f.bytes.len), f.bytes.len };
    ml_file_unmap(&f);
    return ML_OK;
}

static ml_status read_json(const ml_json **out, ml_arena *a, const char *path,
                           ml_err *err) {
    ml_str text;
    ml_status st = read_file(&text, a, path, err);

    *out = NULL;
    if (!st && text.ptr)
        st = ml_json_parse(out, a, text, path, err);
    if (!st && *out && (*out)->type != ML_JSON_OBJECT)
        st = ml_fail(err, ML_EFORMAT, "%s: expected an object, found %s", path,
                     ml_json_what(*out));
    return st;
}

/* --- templates ---------------------------------------------------------------------------- */

/* where: the name of the template in messages */
static ml_status add_template(ml_chat_template *t, ml_str name, ml_str source,
                              const char *where, ml_err *err) {
    named *choice = ML_NEW(&t->arena, named, t->n + 1);
    ml_status st;

    if (t->n)
        memcpy(choice, t->choice, (size_t)t->n * sizeof *choice);
    t->choice = choice;
    choice[t->n].name = ml_arena_str(&t->arena, name.ptr, name.len);
    st = ml_jinja_compile(&choice[t->n].jinja, source, NULL, err);
    if (st) {
        ml_err_prefix(err, "%s", where);
        return st;
    }
    t->n++;
    return ML_OK;
}

static ml_status add_file(ml_chat_template *t, const char *name, const char *path,
                          ml_err *err) {
    ml_str source;
    ml_status st = read_file(&source, &t->arena, path, err);

    if (st || !source.ptr)
        return st;
    return add_template(t, ml_str_of(name), source, path, err);
}

/* DIR/chat_template.jinja and DIR/additional_chat_templates/NAME.jinja */
static ml_status add_files(ml_chat_template *t, ml_err *err) {
    static const char ending[] = ".jinja";
    const char *dir = ml_arena_printf(&t->arena, "%s/additional_chat_templates", t->dir);
    ml_status st = add_file(
        t, "default", ml_arena_printf(&t->arena, "%s/chat_template.jinja", t->dir), err);
    DIR *d = st ? NULL : opendir(dir);
    const struct dirent *e;

    while (d && !st && (e = readdir(d)) != NULL) {
        size_t n = strlen(e->d_name), k = sizeof ending - 1;
        if (n <= k || strcmp(e->d_name + n - k, ending) != 0)
            continue;
        st = add_file(t, ml_arena_str(&t->arena, e->d_name, n - k),
                      ml_arena_printf(&t->arena, "%s/%s", dir, e->d_name), err);
    }
    if (d)
        closedir(d);
    return st;
}

/* chat_template of tokenizer_config.json: a string, or a list of {name, template}. */
static ml_status add_from_config(ml_chat_template *t, const ml_json *config,
                                 const char *path, ml_err *err) {
    const ml_json *v = ml_json_get(config, "chat_template");
    const char *where = ml_arena_printf(&t->arena, "%s: chat_template", path);
    ml_status st = ML_OK;

    if (!v || v->type == ML_JSON_NULL)
        return ML_OK;
    if (v->type == ML_JSON_STRING)
        return add_template(t, ml_str_of("default"), v->text, where, err);
    if (v->type != ML_JSON_ARRAY)
        return ml_fail(err, ML_EFORMAT,
                       "%s is %s; expected a string or a list of named templates", where,
                       ml_json_what(v));
    for (const ml_json *c = v->child; c && !st; c = c->next) {
        const ml_json *name = ml_json_get(c, "name"), *text = ml_json_get(c, "template");
        if (!name || name->type != ML_JSON_STRING || !text || text->type != ML_JSON_STRING)
            return ml_fail(err, ML_EFORMAT,
                           "%s: line %u: expected an object with the strings \"name\" and "
                           "\"template\"",
                           where, (unsigned)c->line);
        st = add_template(t, name->text, text->text, where, err);
    }
    return st;
}

/* --- special tokens --------------------------------------------------------------------------- */

/* A token is a string, or an object with the string under "content". */
static const ml_json *token_text(const ml_json *v) {
    if (v && v->type == ML_JSON_OBJECT)
        v = ml_json_get(v, "content");
    return v && v->type == ML_JSON_STRING ? v : NULL;
}

static bool is_token_name(ml_str key) {
    static const char ending[] = "_token";
    size_t n = sizeof ending - 1;
    return key.len > n && memcmp(key.ptr + key.len - n, ending, n) == 0;
}

static void add_token(ml_chat_template *t, ml_str name, const ml_json *v) {
    ml_jinja_var *token = ML_NEW(&t->arena, ml_jinja_var, t->n_token + 1);

    if (t->n_token)
        memcpy(token, t->token, (size_t)t->n_token * sizeof *token);
    token[t->n_token++] = (ml_jinja_var){ name, v };
    t->token = token;
}

static void add_tokens(ml_chat_template *t, const ml_json *object, bool any_name) {
    for (const ml_json *c = object ? object->child : NULL; c; c = c->next)
        if (token_text(c) && (any_name || is_token_name(c->key)))
            add_token(t, c->key, token_text(c));
}

/* special_tokens_map.json is used if tokenizer_config.json does not list added tokens. */
static ml_status read_tokens(ml_chat_template *t, const ml_json *config, ml_err *err) {
    const ml_json *extra = ml_json_get(config, "extra_special_tokens"), *map = NULL;
    const char *path = ml_arena_printf(&t->arena, "%s/special_tokens_map.json", t->dir);
    ml_status st = ML_OK;

    add_tokens(t, config, false);
    if (extra && extra->type == ML_JSON_OBJECT)
        add_tokens(t, extra, true);
    if (!ml_json_get(config, "added_tokens_decoder"))
        st = read_json(&map, &t->arena, path, err);
    if (!st)
        add_tokens(t, map, false);
    return st;
}

/* --- opening ------------------------------------------------------------------------------------- */

static named *find(const ml_chat_template *t, const char *name) {
    for (int32_t i = 0; i < t->n; i++)
        if (strcmp(t->choice[i].name, name) == 0)
            return &t->choice[i];
    return NULL;
}

/* Removes all templates but `keep`. */
static void narrow(ml_chat_template *t, const named *keep) {
    named only = *keep;

    for (int32_t i = 0; i < t->n; i++)
        if (t->choice[i].jinja != only.jinja)
            ml_jinja_free(t->choice[i].jinja);
    only.name = "default";
    t->choice[0] = only;
    t->n = 1;
}

static void names_of(const ml_chat_template *t, ml_text *out) {
    for (int32_t i = 0; i < t->n; i++)
        ml_text_printf(out, "%s%s", i ? ", " : "", t->choice[i].name);
}

static ml_status choose(ml_chat_template *t, const char *choice, ml_err *err) {
    named *found = choice ? find(t, choice) : NULL;
    ml_text names = { 0 };
    ml_status st = ML_OK;

    if (found) {
        narrow(t, found);
    } else if (choice) {
        int32_t own = t->n;
        st = access(choice, F_OK) == 0 ? add_file(t, "the file", choice, err) : ML_OK;
        if (!st && t->n > own) {
            narrow(t, &t->choice[own]);
        } else if (!st) {
            names_of(t, &names);
            st = ml_fail(err, ML_EIO,
                         "%s: no such file, and no chat template of %s has this name%s%s",
                         choice, t->dir, names.len ? "; it has " : "",
                         names.ptr ? names.ptr : "");
        }
    } else if (!t->n) {
        st =
            ml_fail(err, ML_EFORMAT,
                    "%s has no chat template (neither chat_template.jinja nor "
                    "chat_template in tokenizer_config.json); set one with --chat-template",
                    t->dir);
    } else if (!find(t, "default") && t->n > 1) {
        names_of(t, &names);
        st = ml_fail(err, ML_EFORMAT,
                     "%s has several chat templates (%s) and none named default; select "
                     "one with --chat-template",
                     t->dir, names.ptr);
    }
    ml_text_release(&names);
    return st;
}

ml_status ml_chat_template_open(ml_chat_template **out, const char *dir, const char *choice,
                                ml_err *err) {
    ml_arena a;
    ml_chat_template *t;
    const ml_json *config;
    const char *path;
    ml_status st;

    ml_arena_init(&a, "a chat template");
    t = ML_NEW(&a, ml_chat_template, 1);
    t->arena = a; /* the object is allocated in its own arena */
    t->dir = ml_arena_str(&t->arena, dir, strlen(dir));
    path = ml_arena_printf(&t->arena, "%s/tokenizer_config.json", dir);
    st = read_json(&config, &t->arena, path, err);
    if (!st)
        st = read_tokens(t, config, err);
    if (!st)
        st = add_files(t, err);
    if (!st && !t->n)
        st = add_from_config(t, config, path, err);
    if (!st)
        st = choose(t, choice, err);
    if (st) {
        ml_chat_template_close(t);
        t = NULL;
    }
    *out = t;
    return st;
}

void ml_chat_template_close(ml_chat_template *t) {
    ml_arena a;

    if (!t)
        return;
    for (int32_t i = 0; i < t->n; i++)
        ml_jinja_free(t->choice[i].jinja);
    a = t->arena;
    ml_arena_release(&a);
}

/* --- rendering ------------------------------------------------------------------------------------ */

static const ml_jinja *template_for(const ml_chat_template *t, const ml_chat *c) {
    bool has_tools = c->tools && c->tools->type != ML_JSON_NULL;
    const named *n = has_tools ? find(t, "tool_use") : NULL;

    if (!n)
        n = find(t, "default");
    return n ? n->jinja : t->choice[0].jinja;
}

static bool is_reserved(ml_str name) {
    return ml_str_is(name, "messages") || ml_str_is(name, "tools") ||
           ml_str_is(name, "documents") || ml_str_is(name, "add_generation_prompt");
}

ml_status ml_chat_render(ml_jinja_text *out, ml_arena *a, const ml_chat_template *t,
                         const ml_chat *chat, ml_jinja_fault *fault, ml_err *err) {
    int64_t n_kwarg = chat->kwargs ? chat->kwargs->n : 0;
    ml_jinja_var *var = ML_NEW(a, ml_jinja_var, t->n_token + n_kwarg + 4);
    ml_jinja_opts o = { .var = var, .now = chat->now };

    for (int32_t i = 0; i < t->n_token; i++)
        var[o.n_var++] = t->token[i];
    for (const ml_json *c = n_kwarg ? chat->kwargs->child : NULL; c; c = c->next)
        if (!is_reserved(c->key))
            var[o.n_var++] = (ml_jinja_var){ c->key, c };
    var[o.n_var++] = (ml_jinja_var){ ml_str_of("messages"),
                                     chat->messages ? chat->messages : &json_null };
    var[o.n_var++] =
        (ml_jinja_var){ ml_str_of("tools"), chat->tools ? chat->tools : &json_null };
    var[o.n_var++] = (ml_jinja_var){ ml_str_of("documents"),
                                     chat->documents ? chat->documents : &json_null };
    var[o.n_var++] =
        (ml_jinja_var){ ml_str_of("add_generation_prompt"),
                        chat->add_generation_prompt ? &json_true : &json_false };
    return ml_jinja_render(out, a, template_for(t, chat), &o, fault, err);
}

/* --- stability --------------------------------------------------------------------------------------- */

/* The first n messages. */
static const ml_json *first_messages(ml_arena *a, const ml_json *messages, int32_t n) {
    ml_json *list = ML_NEW(a, ml_json, 1), *copy = ML_NEW(a, ml_json, n);
    int32_t i = 0;

    *list = *messages;
    list->n = n;
    list->child = n ? copy : NULL;
    for (const ml_json *c = messages->child; i < n; c = c->next, i++) {
        copy[i] = *c;
        copy[i].next = i + 1 < n ? &copy[i + 1] : NULL;
    }
    return list;
}

static size_t first_difference(ml_str a, ml_str b) {
    size_t i = 0;

    while (i < a.len && i < b.len && a.ptr[i] == b.ptr[i])
        i++;
    while (i > 0 && i < a.len && ((unsigned char)a.ptr[i] & 0xc0) == 0x80)
        i--; /* moves to the start of the character */
    return i;
}

/* Up to 40 bytes from `at` on, without cutting a character. */
static ml_str excerpt(ml_str s, size_t at) {
    size_t end = at + 40 < s.len ? at + 40 : s.len;

    while (end < s.len && end > at && ((unsigned char)s.ptr[end] & 0xc0) == 0x80)
        end--;
    return (ml_str){ s.ptr + at, end - at };
}

typedef struct stages {
    ml_chat_check *out;
    ml_arena *a;
    const ml_chat_template *t;
    ml_chat chat;
    ml_str last; /* the previous text */
} stages;

/* Renders the first n messages and compares the text with the previous one. */
static ml_status stage(stages *s, const ml_json *messages, int32_t n, bool prompt,
                       ml_jinja_fault *fault, ml_err *err) {
    ml_jinja_text now;
    ml_status st;
    size_t at;

    s->chat.messages = first_messages(s->a, messages, n);
    s->chat.add_generation_prompt = prompt;
    st = ml_chat_render(&now, s->a, s->t, &s->chat, fault, err);
    if (st)
        return st;
    s->out->n_text++;
    at = first_difference(s->last, now.text);
    if (at < s->last.len) {
        s->out->stable = false;
        s->out->message = n + prompt;
        s->out->character = 0;
        for (size_t i = 0; i < at; i++)
            s->out->character += ((unsigned char)now.text.ptr[i] & 0xc0) != 0x80;
        s->out->before = excerpt(s->last, at);
        s->out->after = excerpt(now.text, at);
    }
    s->last = now.text;
    return ML_OK;
}

static ml_str role_of(const ml_json *message) {
    const ml_json *role = ml_json_get(message, "role");
    return role && role->type == ML_JSON_STRING ? role->text : (ml_str){ "", 0 };
}

/* Consecutive messages of one role, such as results of several tools, are one turn. */
static bool ends_turn(const ml_json *message) {
    return !message->next || !ml_str_eq(role_of(message), role_of(message->next));
}

ml_status ml_chat_check_stable(ml_chat_check *out, ml_arena *a, const ml_chat_template *t,
                               const ml_chat *chat, ml_jinja_fault *fault, ml_err *err) {
    stages s = { .out = out, .a = a, .t = t, .chat = *chat };
    const ml_json *m = chat->messages;
    int32_t i = 0, n = m && m->type == ML_JSON_ARRAY ? m->n : 0;
    ml_jinja_text whole;
    ml_status st = ml_chat_render(&whole, a, t, chat, fault, err);

    *out = (ml_chat_check){ .stable = true };
    if (st || !n)
        return st;
    for (const ml_json *c = m->child; c && out->stable; c = c->next, i++) {
        if (i > 0 && ml_str_is(role_of(c), "assistant"))
            stage(&s, m, i, true, NULL, NULL);
        if (out->stable && ends_turn(c))
            stage(&s, m, i + 1, false, NULL, NULL);
    }
    if (out->stable && chat->add_generation_prompt)
        st = stage(&s, m, n, true, fault, err);
    return st;
}
