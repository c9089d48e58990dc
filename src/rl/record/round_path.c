#include "rl/record/round_path.h"

#include <string.h>

#include "base/dir.h"
#include "base/str.h"

char *ml_round_path(ml_arena *a, const char *template, int64_t rollout) {
    ml_text round = { 0 }, path = { 0 };
    char *out;

    ml_text_fill(&round, template, "{rollout_id}", rollout);
    ml_text_fill(&path, round.ptr, "{rank}", 0);
    out = ml_arena_str(a, path.ptr, path.len);
    ml_text_release(&path);
    ml_text_release(&round);
    return out;
}

ml_status ml_round_path_make(char **out, ml_arena *a, const char *template, int64_t rollout,
                             ml_err *err) {
    const char *slash;

    *out = ml_round_path(a, template, rollout);
    slash = strrchr(*out, '/');
    return slash && slash > *out
               ? ml_dir_make(ml_arena_str(a, *out, (size_t)(slash - *out)), err)
               : ML_OK;
}
