/* flight_priv.h - what the files of flights share. */
#ifndef ML_RL_GEN_TASK_PRIV_H
#define ML_RL_GEN_TASK_PRIV_H

#include "rl/gen_task.h"

/* --- flight.c --- */

/* Asks the generator for the rest of the sample. */
ml_status ml_gen_task_submit(ml_gen_task *x, ml_err *err);
/* The text of n tokens of the response from the given one on, in the flights' arena. */
ml_str ml_flight_text(const ml_gen_task *x, int32_t from, int32_t n, bool skip_special);
/* The sample has ended; its text is there. */
void ml_gen_task_complete(ml_gen_task *x, ml_sample_status status);

/* --- flight_turns.c --- */

/* The model's turn has ended: the sample waits for ml_gen_tasks_continue_turns. */
void ml_gen_task_end_turn(ml_gen_task *x);

/* --- flight_reward.c --- */

/* Asks for the reward of a sample that has ended, where there is one to be had; after that it
 * belongs to who waits for it. */
void ml_gen_task_grade(ml_gen_task *x);

/* n samples that are graded together, where the run wants that. */
void ml_reward_group_open(ml_gen_tasks *f, ml_gen_task **mate /* [n] */, int32_t n);
/* Those that could not be begun will not end. */
void ml_reward_group_give_up(ml_gen_tasks *f, ml_gen_task *const *mate /* [n] */,
                             int32_t n);

#endif
