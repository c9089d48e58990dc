/* gen_task_priv.h - shared by the files of generation tasks and groups. */
#ifndef ML_RL_ROLLOUT_GEN_TASK_PRIV_H
#define ML_RL_ROLLOUT_GEN_TASK_PRIV_H

#include "rl/rollout/group.h"

/* --- gen_task.c --- */

/* Submits the sample to the generator, which continues it. */
ml_status ml_gen_task_submit(ml_gen_task *x, ml_err *err);
/* The text of tokens [from, from + n) of the response, in the group's arena. */
ml_str ml_gen_task_text(const ml_gen_task *x, int32_t from, int32_t n, bool skip_special);
/* Appends records of sampling supports to those of the sample. */
void ml_gen_task_add_supports(ml_gen_task *x, ml_str records);
/* Ends the sample, whose text is complete, and submits it for grading. */
void ml_gen_task_complete(ml_gen_task *x, ml_sample_status status);

/* --- gen_task_turns.c --- */

/* The model's turn has ended: submits it to the environment. */
void ml_gen_task_end_turn(ml_gen_task *x);
/* Appends the environment's reply: the sample continues or ends. */
void ml_gen_task_take_reply(ml_gen_task *x);

/* --- gen_task_python.c --- */

#define ML_GENERATE_LIMIT_S 3600.0 /* of a call of the function */

/* Calls the function that generates the sample. */
void ml_gen_task_call(ml_gen_task *x);
/* Takes the sample that it has generated. */
void ml_gen_task_take_made(ml_gen_task *x);

/* --- gen_task_reward.c --- */

/* Submits an ended sample for grading, if it is to be graded, or closes the task.  The
 * task may be freed by the time this returns. */
void ml_gen_task_grade(ml_gen_task *x);
/* After a failed start: counts the samples that were not started as ended, so that the
 * group completes; it is not graded together. */
void ml_gen_group_give_up(ml_gen_group *g);

/* --- rollout/group.c --- */

/* The task waits for a reply of the environment; the reply is there. */
void ml_group_set_await_reply(ml_group_set *s, ml_gen_task *x);
void ml_group_set_replied(ml_group_set *s, ml_gen_task *x);

#endif
