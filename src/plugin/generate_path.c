#include "plugin/generate_path.h"

#include <string.h>

#include "base/sandbox.h"
#include "plugin/extension.h"
#include "plugin/python.h"
#include "rl/builtins.h"

#define FLAG "custom-generate-function-path"
#define HUB "miles.rollout.generate_hub."

static ml_status find_extension(ml_environment_opts *out, const char *path,
                                const char *flag, ml_err *err) {
    const miles_extension *ext = NULL;
    ml_status st = ml_extension_find(&ext, MILES_GENERATE, path, flag, err);

    out->ext = (const void *)ext; /* miles_extension is the first member of its struct */
    return st;
}

/* A program, a Python function or an extension. */
static ml_status find_function(ml_environment_opts *out, ml_arena *a, const char *path,
                               const char *flag, const char *fallback, ml_err *err) {
    bool command = ml_worker_command_is(path);
    const ml_python_function fn = { flag, command ? path + 4 : path, fallback };
    const char *about = "";
    ml_status st;

    if (ml_python_is(fn.path)) {
        out->python_flag = flag;
        st = ml_python_workers(&out->python, a, &fn, 1, out->args, err);
        if (st == ML_OK)
            st = ml_python_try(&out->python, a, &about, err);
        out->generates = strcmp(about, "generate") == 0;
        return st;
    }
    if (!command) {
        st = find_extension(out, path, flag, err);
        if (st == ML_OK && out->ext == &ml_generate_sandbox)
            st = ml_sandbox_check(err);
        return st;
    }
    out->command = (ml_worker_command){ .line = fn.path };
    return ML_OK;
}

/* Miles' tool-call loop: the function that runs the tools becomes the environment. */
static ml_status find_tools(ml_environment_opts *out, ml_arena *a, const char *tools,
                            ml_err *err) {
    const char *flag = "generate-execute-tool-function-path";

    if (!tools)
        return ml_fail(
            err, ML_EUSAGE,
            "--" FLAG " " HUB
            "multi_turn.generate needs --%s, the function that executes tool calls",
            flag);
    return find_function(out, a, tools, flag, "execute_tool", err);
}

ml_status ml_generate_path_resolve(ml_environment_opts *out, ml_arena *a, const char *path,
                                   const char *tools, ml_err *err) {
    bool loop = path && strcmp(path, HUB "multi_turn.generate") == 0;

    if (tools && !loop)
        return ml_fail(err, ML_EUSAGE,
                       "--generate-execute-tool-function-path needs --" FLAG " " HUB
                       "multi_turn.generate");
    if (!path || strcmp(path, HUB "single_turn.generate") == 0)
        return ML_OK;
    if (loop)
        return find_tools(out, a, tools, err);
    return find_function(out, a, path, FLAG, "turn", err);
}
