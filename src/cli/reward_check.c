#include "cli/reward_check.h"

#include <string.h>

#include "plugin/worker_command.h"
#include "rl/reward/answer.h"
#include "rl/reward/grade.h"

bool ml_reward_from_environment(const ml_config *c) {
    const char *path = c->extensions.generate;

    return path && !c->extensions.execute_tool &&
           (ml_worker_command_is(path) || strstr(path, ".so:"));
}

/* Checks the grader named in a row's metadata. */
static ml_status check_type(const ml_json *type, const ml_config *c, ml_arena *a,
                            ml_err *err) {
    ml_grader g;

    if (!type || type->type != ML_JSON_STRING || !ml_str_trim(type->text).len)
        return ml_fail(err, ML_EUSAGE,
                       "no reward: give --rm-type NAME for a built-in reward, "
                       "--custom-rm-path ./reward.py for a custom one (--rm-type zero for "
                       "no reward), or set rm_type in each row's metadata");
    if (ml_str_is(type->text, "remote_rm") && !c->reward.rm_url)
        return ml_fail(err, ML_EUSAGE, "rm_type remote_rm needs --rm-url");
    if (ml_str_is(type->text, "remote_rm") || ml_str_is(type->text, "ifbench"))
        return ML_OK;
    return ml_grader_find(&g, ml_arena_str(a, type->text.ptr, type->text.len), err);
}

static ml_status check_row(const ml_dataset *ds, int64_t row, const ml_config *c,
                           ml_err *err) {
    ml_status st;
    ml_arena a;
    ml_prompt p;

    ml_arena_init(&a, "a row");
    st = ml_dataset_prompt(&p, ds, row, &a, err);
    if (st == ML_OK) {
        st = check_type(ml_json_get(p.metadata, "rm_type"), c, &a, err);
        if (st != ML_OK)
            ml_dataset_blame(ds, row, err);
    }
    ml_arena_release(&a);
    return st;
}

ml_status ml_reward_check(const ml_config *c, const ml_dataset *ds, ml_err *err) {
    int64_t n = ds->opts.make ? 1 : ds->rows.n; /* of generated prompts, only the first */
    ml_status st = ML_OK;

    if (c->reward.rm_type || c->reward.custom_rm_path || ml_reward_from_environment(c))
        return ML_OK;
    for (int64_t i = 0; i < n && st == ML_OK; i++)
        st = check_row(ds, i, c, err);
    return st;
}
