/* llm_judge.h - a language model as a reward: asked for a score by a prompt, in this process
 * (judge_model.h) or over an OpenAI-compatible API (miles serve, SGLang, vLLM, OpenAI).
 *
 * The prompt is a template file, in which {prompt}, {response} and {label} are replaced by the
 * sample's; it is the message of a user, sent with the run's seed, to a server to
 * /chat/completions.  The score is the last match of a regular expression in the reply; a reply without one is invalid.
 *
 * thread: one at a time. */
#ifndef ML_RL_REWARD_LLM_JUDGE_H
#define ML_RL_REWARD_LLM_JUDGE_H

#include "rl/reward/rewards.h"

typedef struct ml_llm_judge ml_llm_judge;

ml_status ml_llm_judge_open(ml_llm_judge **out, const ml_llm_judge_opts *o, ml_err *err);
void ml_llm_judge_close(ml_llm_judge *j); /* NULL is allowed */

/* `why` is set unless the outcome is ok. */
ml_reward_outcome ml_llm_judge_grade(ml_llm_judge *j, double *reward, ml_text *why,
                                     const miles_reward_in *in, double deadline_s,
                                     int64_t n_retry);

#endif
