#include "rl/builtins.h"

const miles_extension *const ml_builtins[] = {
    &ml_advantage_grpo.base,
    &ml_advantage_gspo.base,
    &ml_advantage_reinforce_pp.base,
    &ml_advantage_reinforce_pp_baseline.base,
    &ml_advantage_ppo.base,
    &ml_advantage_rloo.base,
    &ml_advantage_pass_at_k.base,
    &ml_correction_tis.base,
    &ml_correction_icepop.base,
    &ml_correction_mis.base,
    &ml_reducer_drgrpo.base,
    &ml_reducer_dapo.base,
    &ml_reducer_luspo.base,
    &ml_loss_policy.base,
    &ml_loss_cispo.base,
    &ml_loss_sapo.base,
    &ml_loss_gmpo.base,
    &ml_loss_vespo.base,
    &ml_loss_clip_cov.base,
    &ml_loss_kl_cov.base,
    &ml_loss_value.base,
    &ml_loss_sft.base,
    &ml_reward_math.base,
    &ml_reward_deepscaler.base,
    &ml_reward_gemma_math.base,
    &ml_reward_dapo.base,
    &ml_reward_f1.base,
    &ml_reward_gpqa.base,
    &ml_reward_exact_match.base,
    &ml_reward_regex.base,
    &ml_reward_random.base,
    &ml_reward_zero.base,
    &ml_reward_deterministic_random.base,
    &ml_reward_code.base,
    &ml_reward_code_partial.base,
    &ml_generate_calculator.base,
    &ml_generate_sandbox.base,
    &ml_filter_nonzero_std.base,
    &ml_filter_no_aborted.base,
    &ml_filter_truncated.base,
    NULL,
};

bool ml_loss_is_flat(const miles_loss *loss) {
    static const miles_loss *const flat[] = { &ml_loss_policy, &ml_loss_cispo,
                                              &ml_loss_sapo,   &ml_loss_gmpo,
                                              &ml_loss_vespo,  &ml_loss_clip_cov };

    for (size_t i = 0; i < sizeof flat / sizeof *flat; i++)
        if (loss == flat[i])
            return true;
    return false;
}
