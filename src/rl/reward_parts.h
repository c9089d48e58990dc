/* reward_parts.h - the secondary numbers of a reward.
 *
 * A reward may be an object: {"reward": 0.5, "format": 1, "length": 0}.  The numbers other
 * than the reward itself become metrics of the rollout.
 *
 * thread: any; no state. */
#ifndef ML_RL_REWARD_PARTS_H
#define ML_RL_REWARD_PARTS_H

#include "base/json.h"

#define ML_REWARD_PARTS 12 /* kept per reward, at most */

typedef struct ml_reward_value {
    char name[40]; /* letters, digits and "_-./"; other characters become '_' */
    double value;
} ml_reward_value;

/* The member of an answer that is the reward: the object's `key` (NULL: "reward", then
 * "score"), or the answer itself if it is not an object.  NULL: there is none. */
const ml_json *ml_reward_pick(const ml_json *v, const char *key);

/* A finite number, true or false. */
bool ml_reward_number(const ml_json *v, double *out);

/* The finite numbers of an object except the reward, as selected by ml_reward_pick;
 * returns how many. */
int ml_reward_parts(ml_reward_value *out /* [ML_REWARD_PARTS] */, ml_str json,
                    const char *key);
/* The same, for all members of an object except `without`. */
int ml_reward_parts_of(ml_reward_value *out, const ml_json *object, const ml_json *without);

#endif
