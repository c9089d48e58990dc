/* gen_task_priv.h - shared by the files of generation tasks. */
#ifndef ML_RL_ROLLOUT_GEN_TASK_PRIV_H
#define ML_RL_ROLLOUT_GEN_TASK_PRIV_H

#include "rl/rollout/gen_task.h"

/* --- gen_task.c --- */

/* Submits the sample to the generator, which continues it. */
ml_status ml_gen_task_submit(ml_gen_task *x, ml_err *err);
/* The text of tokens [from, from + n) of the response, in the tasks' arena. */
ml_str ml_gen_task_text(const ml_gen_task *x, int32_t from, int32_t n, bool skip_special);
/* Ends the sample, whose text is complete, and submits it for grading. */
void ml_gen_task_complete(ml_gen_task *x, ml_sample_status status);

/* --- gen_task_turns.c --- */

/* The model's turn has ended; the task waits for ml_gen_tasks_continue_turns. */
void ml_gen_task_end_turn(ml_gen_task *x);

/* --- gen_task_reward.c --- */

/* Submits an ended sample for grading, if it is to be graded, or closes the task.  The
 * task may be freed by the time this returns. */
void ml_gen_task_grade(ml_gen_task *x);

/* Makes n samples a reward group, if the run grades groups together. */
void ml_reward_group_open(ml_gen_tasks *f, ml_gen_task **member /* [n] */, int32_t n);
/* After a failed start: counts the samples that were not started as ended, so that the
 * group completes; it is not graded. */
void ml_reward_group_give_up(ml_gen_tasks *f, ml_gen_task *const *member /* [n] */,
                             int32_t n);

#endif
