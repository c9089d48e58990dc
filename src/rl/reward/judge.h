/* judge.h - computes rewards on one thread, with a grader, a worker process or a server.
 *
 * thread: one at a time. */
#ifndef ML_RL_REWARD_JUDGE_H
#define ML_RL_REWARD_JUDGE_H

#include "rl/reward/rewards.h"

typedef struct ml_judge ml_judge;

/* The result for one sample, reused for the next. */
typedef struct ml_verdict {
    ml_reward_outcome outcome;
    double reward;
    ml_text json, why; /* always NUL-terminated */
} ml_verdict;

ml_status ml_judge_open(ml_judge **out, const ml_reward_opts *opts, ml_err *err);
void ml_judge_close(ml_judge *j); /* NULL is allowed */

void ml_judge_grade(ml_judge *j, ml_verdict *v, const miles_reward_in *in);
/* Grades the samples of a prompt together; the verdicts must be zeros. */
void ml_judge_grade_group(ml_judge *j, ml_verdict *v /* [n] */,
                          const miles_reward_in *const *in, int64_t n);
void ml_verdict_release(ml_verdict *v);

/* Reads a reward from JSON: a finite number, true or false, or an object with one under
 * `key` (NULL: "reward", then "score").  False if it is not JSON. */
bool ml_verdict_read(ml_verdict *v, ml_str json, const char *key);

/* A call of the Python function, of a single sample or of all samples of a prompt, and the
 * verdicts that its answer gives. */
void ml_judge_write_call(ml_text *out, const char *flag, const miles_reward_in *const *in,
                         int64_t n, bool group);
void ml_judge_read_answer(ml_verdict *v /* [n] */, int64_t n, bool group, ml_worker_end end,
                          ml_str text, const char *key);

#endif
