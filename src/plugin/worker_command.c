#include "plugin/worker_command.h"

#include <string.h>
#include <unistd.h>

#include "base/json.h"
#include "plugin/worker_script.h"

/* Runs the script that is the first line of standard input, a JSON string. */
#define BOOT "import json, sys; exec(json.loads(sys.stdin.readline()))"

/* `word` in single quotes, for the shell. */
static const char *quoted(ml_arena *a, const char *word) {
    ml_text t = { 0 };
    const char *out;

    ml_text_add(&t, "'", 1);
    for (; *word; word++) {
        bool quote = *word == '\'';
        ml_text_add(&t, quote ? "'\\''" : word, quote ? 4 : 1);
    }
    ml_text_add(&t, "'", 1);
    out = ml_arena_str(a, t.ptr, t.len);
    ml_text_release(&t);
    return out;
}

/* "env.py", "env.py:name". */
static bool is_python(const char *path) {
    const char *dot = strstr(path, ".py");

    return dot && (dot[3] == 0 || dot[3] == ':') && !strchr(path, ' ');
}

static const char *after_cmd(const char *path) {
    return strncmp(path, "cmd:", 4) == 0 ? path + 4 : path;
}

bool ml_worker_command_is(const char *path) {
    return strncmp(path, "cmd:", 4) == 0 || is_python(path);
}

ml_worker_command ml_python_command(ml_arena *a, const char *option, const char *path) {
    ml_worker_command c = { .name = path ? path : option };
    ml_text hello = { 0 };

    c.line = ml_arena_printf(a, "exec python3 -c '" BOOT "' %s%s%s", option ? option : "",
                             option && path ? " " : "", path ? quoted(a, path) : "");
    ml_json_quote(&hello, ml_worker_script());
    c.hello = ml_arena_str(a, hello.ptr, hello.len);
    ml_text_release(&hello);
    return c;
}

/* Starts the function's worker once and stops it. */
static ml_status try_python(const ml_worker_command *c, const char *flag, ml_err *err) {
    ml_line_process *w = ml_line_process_new(c, 0);
    ml_text why = { 0 };
    ml_status st = ML_OK;

    if (ml_line_process_start(w, &why) != ML_LINE_PROCESS_ANSWERED)
        st = ml_fail(err, ML_EFORMAT, "--%s: %s", flag, why.ptr);
    ml_line_process_free(w);
    ml_text_release(&why);
    return st;
}

ml_status ml_worker_command_find(ml_worker_command *out, ml_arena *a, const char *option,
                                 const char *path, const char *flag, ml_err *err) {
    const char *rest = after_cmd(path), *end, *file;

    if (!is_python(rest)) {
        *out = (ml_worker_command){ .line = rest, .name = rest };
        return ML_OK;
    }
    end = strstr(rest, ".py") + 3;
    file = ml_arena_str(a, rest, (size_t)(end - rest));
    if (access(file, R_OK) != 0)
        return ml_fail(err, ML_EIO, "--%s: cannot read %s", flag, file);
    *out = ml_python_command(a, option, rest);
    return try_python(out, flag, err);
}
