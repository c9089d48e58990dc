/* builtins.h - the built-in extensions (miles/plugin.h).
 *
 * thread: any; immutable. */
#ifndef ML_RL_BUILTINS_H
#define ML_RL_BUILTINS_H

#include "miles/plugin.h"

extern const miles_advantage ml_advantage_grpo, ml_advantage_gspo; /* learn/advantage/ */
extern const miles_advantage ml_advantage_reinforce_pp, ml_advantage_reinforce_pp_baseline;
extern const miles_advantage ml_advantage_ppo, ml_advantage_rloo, ml_advantage_pass_at_k;
extern const miles_correction ml_correction_tis, ml_correction_icepop;
extern const miles_correction ml_correction_mis; /* learn/correction/ */
extern const miles_reducer ml_reducer_drgrpo, ml_reducer_dapo,
    ml_reducer_luspo; /* learn/reduce/ */
extern const miles_loss ml_loss_policy, ml_loss_cispo, ml_loss_sapo, ml_loss_gmpo,
    ml_loss_vespo, ml_loss_clip_cov, ml_loss_kl_cov; /* learn/loss/ */
extern const miles_loss ml_loss_value, ml_loss_sft;
extern const miles_loss ml_loss_preference;  /* learn/preference.c: of miles dpo, */
extern const miles_reducer ml_reducer_pairs; /* not to be chosen by name */
extern const miles_loss ml_loss_reward_pairs,
    ml_loss_reward_labels; /* learn/reward_loss.c */

extern const miles_reward ml_reward_math, ml_reward_deepscaler; /* reward/graders/ */
extern const miles_reward ml_reward_gemma_math, ml_reward_dapo, ml_reward_f1,
    ml_reward_gpqa;
extern const miles_reward ml_reward_exact_match, ml_reward_regex, ml_reward_random;
extern const miles_reward ml_reward_deterministic_random, ml_reward_zero;
extern const miles_reward ml_reward_code, ml_reward_code_partial;
extern const miles_generate ml_generate_calculator, ml_generate_sandbox; /* env/ */
extern const miles_group_filter ml_filter_nonzero_std, ml_filter_no_aborted;
extern const miles_sample_filter ml_filter_truncated; /* rollout/ */

/* Whether a sample whose advantages are all 0 has no gradient by this loss; NULL: no. */
bool ml_loss_is_flat(const miles_loss *loss);

/* All of them, terminated by NULL. */
extern const miles_extension *const ml_builtins[];

#endif
