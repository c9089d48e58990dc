#include "plugin/generate_path.h"

#include <string.h>

#include "plugin/extension.h"
#include "plugin/worker_command.h"

#define FLAG "custom-generate-function-path"
#define HUB "miles.rollout.generate_hub."

static ml_status find_extension(ml_environment_opts *out, const char *path,
                                const char *flag, ml_err *err) {
    const miles_extension *ext = NULL;
    ml_status st = ml_extension_find(&ext, MILES_GENERATE, path, flag, err);

    out->ext = (const void *)ext; /* miles_extension is the first member of its struct */
    return st;
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
    return ml_worker_command_is(tools)
               ? ml_worker_command_find(&out->command, a, "--tools", tools, flag, err)
               : find_extension(out, tools, flag, err);
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
    if (strncmp(path, HUB, strlen(HUB)) == 0)
        return ml_fail(err, ML_EUNSUP,
                       "--" FLAG
                       " %s: agents behind a session server are not supported; use an "
                       "environment: ./env.py, cmd:COMMAND or ./my.so:name",
                       path);
    return ml_worker_command_is(path)
               ? ml_worker_command_find(&out->command, a, "--turn", path, FLAG, err)
               : find_extension(out, path, FLAG, err);
}
