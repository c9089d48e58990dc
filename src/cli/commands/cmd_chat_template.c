/* miles chat-template: renders conversations from standard input as text. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/cli.h"
#include "text/chat/chat_template.h"

typedef struct job {
    const ml_chat_template *t;
    bool check;
    int64_t line, n_unstable, n_checked;
} job;

static ml_status bad_row(const job *j, const char *what, ml_err *err) {
    return ml_fail(err, ML_EFORMAT, "standard input, line %lld: %s", (long long)j->line,
                   what);
}

static const ml_json *not_null(const ml_json *v) {
    return v && v->type != ML_JSON_NULL ? v : NULL;
}

static ml_status read_row(const job *j, ml_chat *out, ml_arena *a, ml_str line,
                          ml_err *err) {
    const ml_json *row, *prompt;
    char name[60];
    ml_status st;

    snprintf(name, sizeof name, "standard input, line %lld", (long long)j->line);
    st = ml_json_parse(&row, a, line, name, err);
    if (st)
        return st;
    *out = (ml_chat){ .messages = ml_json_get(row, "messages"),
                      .tools = not_null(ml_json_get(row, "tools")),
                      .documents = not_null(ml_json_get(row, "documents")),
                      .kwargs = row };
    prompt = not_null(ml_json_get(row, "add_generation_prompt"));
    if (!out->messages || out->messages->type != ML_JSON_ARRAY)
        return bad_row(j, "expected an object with an array \"messages\"", err);
    if (prompt && prompt->type != ML_JSON_TRUE && prompt->type != ML_JSON_FALSE)
        return bad_row(j, "\"add_generation_prompt\" must be true or false", err);
    out->add_generation_prompt = prompt && prompt->type == ML_JSON_TRUE;
    return ML_OK;
}

static void write_member(ml_text *out, const char *key, ml_str value) {
    ml_text_printf(out, "%s\"%s\": ", out->len > 1 ? ", " : "", key);
    ml_json_quote(out, value);
}

static void write_text(ml_text *out, const ml_jinja_text *t) {
    write_member(out, "text", t->text);
    if (t->n_span)
        ml_text_printf(out, ", \"generation\": [");
    for (int64_t i = 0; i < t->n_span; i++)
        ml_text_printf(out, "%s[%lld, %lld]", i ? ", " : "", (long long)t->span[i].begin,
                       (long long)t->span[i].end);
    if (t->n_span)
        ml_text_printf(out, "]");
}

static void write_fault(ml_text *out, const ml_jinja_fault *f) {
    ml_text message = { 0 };

    ml_text_printf(&message, "%s: ", f->kind);
    ml_text_add(&message, f->message.ptr, f->message.len);
    write_member(out, "error", (ml_str){ message.ptr, message.len });
    ml_text_printf(out, ", \"line\": %u, \"column\": %u", (unsigned)f->line,
                   (unsigned)f->column);
    ml_text_release(&message);
}

static void write_check(ml_text *out, const ml_chat_check *c) {
    ml_text_printf(out, "\"stable\": %s, \"texts\": %lld", c->stable ? "true" : "false",
                   (long long)c->n_text);
    if (c->stable)
        return;
    ml_text_printf(out, ", \"message\": %lld, \"character\": %lld", (long long)c->message,
                   (long long)c->character);
    write_member(out, "before", c->before);
    write_member(out, "after", c->after);
}

/* An exception raised by the template is output like any other row. */
static void answer(job *j, ml_text *out, ml_arena *a, const ml_chat *chat) {
    ml_jinja_fault fault = { 0 };
    ml_jinja_text text;
    ml_chat_check check;
    ml_status st = j->check ? ml_chat_check_stable(&check, a, j->t, chat, &fault, NULL)
                            : ml_chat_render(&text, a, j->t, chat, &fault, NULL);

    ml_text_printf(out, "{");
    if (st) {
        write_fault(out, &fault);
    } else if (j->check) {
        write_check(out, &check);
        j->n_checked++;
        j->n_unstable += !check.stable;
    } else {
        write_text(out, &text);
    }
    ml_text_printf(out, "}\n");
    ml_jinja_fault_release(&fault);
}

static ml_status run_row(job *j, ml_str line, ml_err *err) {
    ml_arena a;
    ml_chat chat;
    ml_text out = { 0 };
    ml_status st;

    ml_arena_init(&a, "a conversation");
    st = read_row(j, &chat, &a, line, err);
    if (!st) {
        answer(j, &out, &a, &chat);
        fwrite(out.ptr, 1, out.len, stdout);
    }
    ml_text_release(&out);
    ml_arena_release(&a);
    return st;
}

static ml_status run_rows(job *j, ml_err *err) {
    char *line = NULL;
    size_t cap = 0;
    ssize_t n;
    ml_status st = ML_OK;

    while (!st && (n = getline(&line, &cap, stdin)) >= 0) {
        j->line++;
        if (strspn(line, " \t\r\n") < (size_t)n)
            st = run_row(j, (ml_str){ line, (size_t)n }, err);
    }
    if (!st && ferror(stdin))
        st = ml_fail(err, ML_EIO, "standard input: %s", strerror(errno));
    free(line);
    return st;
}

ml_status ml_cmd_chat_template(const ml_config *c, ml_err *err) {
    ml_chat_template *t;
    job j = { .check = c->chat.check };
    ml_status st = ml_chat_template_open(&t, c->hf_checkpoint, c->chat.chat_template, err);

    if (st)
        return st;
    j.t = t;
    st = run_rows(&j, err);
    if (!st && j.n_unstable)
        st = ml_fail(err, ML_EFORMAT,
                     "the template is not prefix-stable: later turns change earlier text "
                     "in %lld of %lld conversations",
                     (long long)j.n_unstable, (long long)j.n_checked);
    ml_chat_template_close(t);
    return st;
}
