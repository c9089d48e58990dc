#include "plugin/reward_path.h"

#include <string.h>

#include "plugin/edge.h"
#include "plugin/worker_command.h"
#include "rl/reward/judge.h"
#include "rl/worker.h"

#define CHECK_S 60.0 /* IFBench's libraries may take their time */

/* Without IFBench its command stays unset, and whoever opens the rewards refuses. */
static void find_ifbench(ml_reward_opts *opts, ml_arena *a) {
    ml_worker_command command = ml_python_command(a, "--ifbench", NULL);
    ml_worker *w = ml_worker_new(&command, 0);
    ml_text answer = { 0 };
    ml_verdict v = { 0 };
    ml_worker_end end = ml_worker_ask(w, &answer, ml_str_of("{\"check\": true}"), CHECK_S);

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
    if (ml_worker_command_is(path))
        return ml_worker_command_find(&opts->command, a, NULL, path, "custom-rm-path", err);
    if (!strchr(path, ':'))
        return ml_fail(err, ML_EUSAGE,
                       "--custom-rm-path '%s': write ./reward.py for a Python function "
                       "reward(sample), cmd:COMMAND for a program that answers JSON lines, "
                       "or ./my.so:name for a shared object",
                       path);
    st = ml_edge_find(&row, opts->group ? MILES_GROUP_REWARD : MILES_REWARD, path,
                      "custom-rm-path", err);
    /* A row is the first member of its struct. */
    if (opts->group)
        opts->group_row = (const void *)row;
    else
        opts->row = (const void *)row;
    return st;
}
