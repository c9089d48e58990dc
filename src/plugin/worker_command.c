#include "plugin/worker_command.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/str.h"

#define SHIM "miles_worker.py"

/* The Python shim: beside the program as built, or where it is installed. */
static const char *find_shim(ml_arena *a) {
    static const char *const places[] = { "share", "../share/miles", "../share",
                                          "../../share" };
    const char *share = getenv("MILES_SHARE");
    char exe[4096], *slash;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof exe - 1);

    if (share)
        return ml_arena_printf(a, "%s/" SHIM, share);
    if (n <= 0)
        return "share/" SHIM;
    exe[n] = 0;
    slash = strrchr(exe, '/');
    if (slash)
        *slash = 0;
    for (size_t i = 0; i < sizeof places / sizeof *places; i++) {
        const char *path = ml_arena_printf(a, "%s/%s/" SHIM, exe, places[i]);
        if (access(path, R_OK) == 0)
            return path;
    }
    return "share/" SHIM;
}

/* `word` between single quotes, for the shell. */
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

const char *ml_python_command(ml_arena *a, const char *option, const char *path) {
    return ml_arena_printf(a, "exec python3 %s %s%s%s", quoted(a, find_shim(a)),
                           option ? option : "", option && path ? " " : "",
                           path ? quoted(a, path) : "");
}

ml_status ml_worker_command(const char **out, ml_arena *a, const char *option,
                            const char *path, const char *flag, ml_err *err) {
    const char *rest = after_cmd(path);

    if (is_python(rest)) {
        const char *end = strstr(rest, ".py") + 3;
        const char *file = ml_arena_str(a, rest, (size_t)(end - rest));
        if (access(file, R_OK) != 0)
            return ml_fail(err, ML_EIO, "--%s: %s cannot be read", flag, file);
        *out = ml_python_command(a, option, rest);
    } else {
        *out = rest;
    }
    return ML_OK;
}
