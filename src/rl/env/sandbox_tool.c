/* Tools that run a model's Python and shell code in a sandbox (base/sandbox.h).  Each call has
 * a sandbox of its own. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/sandbox.h"
#include "rl/builtins.h"

typedef struct tool {
    const char *name, *argument;
    ml_sandbox_language language;
} tool;

/* Under the names that models know. */
static const tool tools[] = {
    { "python", "code", ML_SANDBOX_PYTHON },
    { "code_interpreter", "code", ML_SANDBOX_PYTHON },
    { "shell", "command", ML_SANDBOX_SHELL },
    { "bash", "command", ML_SANDBOX_SHELL },
    { NULL, NULL, 0 },
};

static const tool *find(const miles_call *call) {
    for (const tool *t = tools; t->name; t++)
        if (ml_str_is((ml_str){ call->name, call->name_len }, t->name))
            return t;
    return NULL;
}

/* Its output, its errors, and its exit status unless that is 0. */
static void describe(ml_text *out, const ml_sandbox_result *r) {
    ml_text_add(out, r->out.ptr, r->out.len);
    if (r->err.len) {
        ml_text_printf(out, "%s", out->len && out->ptr[out->len - 1] != '\n' ? "\n" : "");
        ml_text_add(out, r->err.ptr, r->err.len);
    }
    if (r->status)
        ml_text_printf(out, "%s[exit status %d]",
                       out->len && out->ptr[out->len - 1] != '\n' ? "\n" : "", r->status);
}

static int answer(ml_text *out, const miles_call *call, miles_error *err) {
    ml_str arguments = { call->arguments, call->arguments_len };
    const tool *t = find(call);
    const ml_json *doc, *code = NULL;
    ml_sandbox_result r = { 0 };
    ml_err why = { 0 };
    int failed = 0;
    ml_arena a;

    ml_arena_init(&a, "a call");
    if (!t)
        ml_text_printf(out, "error: the tools are python(code) and shell(command)");
    else if (ml_json_parse(&doc, &a, arguments, "arguments", NULL) != ML_OK ||
             !(code = ml_json_get(doc, t->argument)) || code->type != ML_JSON_STRING)
        ml_text_printf(out, "error: %s takes a string, %s", t->name, t->argument);
    else if (ml_sandbox_run(&r, &(ml_sandbox_opts){ .language = t->language }, code->text,
                            (ml_str){ "", 0 }, &why) == ML_OK)
        describe(out, &r);
    else {
        snprintf(err->text, sizeof err->text, "%.470s", why.msg);
        failed = 1;
    }
    ml_sandbox_result_release(&r);
    ml_arena_release(&a);
    return failed;
}

static int run(const miles_turn_in *in, miles_turn_out *out, miles_error *err) {
    int failed = 0;

    for (int64_t i = 0; i < in->n_call && !failed; i++) {
        ml_text text = { 0 };
        ml_text_add(&text, "", 0);
        failed = answer(&text, &in->call[i], err);
        if (!failed)
            out->append_message(out, "tool", text.ptr, text.len);
        ml_text_release(&text);
    }
    return failed;
}

const miles_generate ml_generate_sandbox = {
    { sizeof(miles_generate), MILES_GENERATE, "sandbox", NULL,
      "executes calls of the tools python(code) and shell(command) in a sandbox; a "
      "response "
      "without one ends it" },
    MILES_ROLE_TOOL,
    run
};
