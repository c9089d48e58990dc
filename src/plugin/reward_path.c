#include "plugin/reward_path.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "plugin/edge.h"
#include "rl/reward/judge.h"
#include "rl/worker.h"

#define SHIM "miles_reward.py"
#define CHECK_S 60.0 /* Python and IFBench's libraries may take their time to load */

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

/* "reward.py", "reward.py:name". */
static bool is_python(const char *path) {
    const char *dot = strstr(path, ".py");

    return dot && (dot[3] == 0 || dot[3] == ':') && !strchr(path, ' ');
}

static const char *python_command(ml_arena *a, const char *arguments) {
    return ml_arena_printf(a, "exec python3 %s %s", quoted(a, find_shim(a)), arguments);
}

/* Without IFBench its command stays unset, and whoever opens the rewards refuses. */
static void find_ifbench(ml_reward_opts *opts, ml_arena *a) {
    const char *command = python_command(a, "--ifbench");
    ml_worker *w = ml_worker_new(command, 0);
    ml_text answer = { 0 };
    ml_verdict v = { 0 };
    ml_worker_end end =
        ml_worker_ask(w, &answer, ml_str_of("{\"check\": true}"), CHECK_S, 0.0);

    if (end == ML_WORKER_ANSWERED)
        ml_verdict_read(&v, (ml_str){ answer.ptr, answer.len }, NULL);
    if (end == ML_WORKER_ANSWERED && v.outcome == ML_REWARD_OK)
        opts->ifbench_command = command;
    ml_worker_free(w);
    ml_text_release(&answer);
    ml_verdict_release(&v);
}

ml_status ml_reward_path_resolve(ml_reward_opts *opts, ml_arena *a, const char *path,
                                 ml_err *err) {
    const miles_row *row = NULL;
    ml_status st;

    if (!path && opts->rm_type && strcmp(opts->rm_type, "ifbench") == 0)
        find_ifbench(opts, a);
    if (!path)
        return ML_OK;
    if (strncmp(path, "cmd:", 4) == 0 && !is_python(path + 4)) {
        opts->command = path + 4;
        return ML_OK;
    }
    path += strncmp(path, "cmd:", 4) == 0 ? 4 : 0;
    if (is_python(path)) {
        const char *end = strstr(path, ".py") + 3;
        const char *file = ml_arena_str(a, path, (size_t)(end - path));
        if (access(file, R_OK) != 0)
            return ml_fail(err, ML_EIO, "--custom-rm-path: %s cannot be read", file);
        opts->command = python_command(a, quoted(a, path));
        return ML_OK;
    }
    if (!strchr(path, ':'))
        return ml_fail(err, ML_EUSAGE,
                       "--custom-rm-path '%s': write ./reward.py for a Python function "
                       "reward(sample), cmd:COMMAND for a program that answers JSON lines, "
                       "or ./my.so:name for a shared object",
                       path);
    st = ml_edge_find(&row, MILES_REWARD, path, "custom-rm-path", err);
    opts->row = (const void *)row; /* a row is the first member of its struct */
    return st;
}
