#include "run/reward_opts.h"

#include "run/reward_check.h"
#include "plugin/reward_path.h"

ml_status ml_reward_opts_init(ml_reward_opts *out, const ml_run_opts *c, ml_arena *a,
                              ml_err *err) {
    *out = (ml_reward_opts){ .rm_type = c->reward.rm_type,
                             .rm_url = c->reward.rm_url,
                             .reward_key = c->reward.reward_key,
                             .group = c->reward.group,
                             .n_thread = c->reward.n_worker,
                             .n_retry = c->reward.n_retry,
                             .memory_bytes = c->reward.memory_bytes,
                             .deadline_s = c->reward.timeout_s };
    if (!out->rm_type && !c->reward.custom_rm_path && ml_reward_from_environment(c))
        out->rm_type = "zero";
    return ml_reward_path_resolve(out, a, c->reward.custom_rm_path, err);
}
