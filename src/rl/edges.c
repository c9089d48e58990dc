#include "rl/edges.h"

const miles_row *const ml_edges[] = {
    &ml_advantage_grpo.row,
    &ml_advantage_gspo.row,
    &ml_advantage_reinforce_pp.row,
    &ml_advantage_reinforce_pp_baseline.row,
    &ml_advantage_ppo.row,
    &ml_correction_tis.row,
    &ml_correction_icepop.row,
    &ml_correction_mis.row,
    &ml_reducer_drgrpo.row,
    &ml_reducer_dapo.row,
    &ml_loss_policy.row,
    &ml_loss_cispo.row,
    &ml_loss_value.row,
    &ml_loss_sft.row,
    NULL,
};
