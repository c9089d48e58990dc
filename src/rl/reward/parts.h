/* parts.h - the numbers of a reward besides the one that counts.
 *
 * A reward may be an object: {"reward": 0.5, "format": 1, "length": 0}.  Its other numbers
 * become metrics of the round.
 *
 * thread: any; nothing is kept. */
#ifndef ML_RL_REWARD_PARTS_H
#define ML_RL_REWARD_PARTS_H

#include "base/json.h"

#define ML_REWARD_PARTS 12 /* that are kept of one reward */

typedef struct ml_reward_value {
    char name[40]; /* letters, digits and "_-./"; what else a name has is written '_' */
    double value;
} ml_reward_value;

/* The member of an answer that counts: the object's `key` (NULL: "reward", then "score"), or
 * an answer that is no object itself.  NULL: there is none. */
const ml_json *ml_reward_pick(const ml_json *v, const char *key);

/* A finite number, true or false. */
bool ml_reward_number(const ml_json *v, double *out);

/* The finite numbers of an object but the one that counts, as pick has it; returns how many. */
int ml_reward_parts(ml_reward_value *out /* [ML_REWARD_PARTS] */, ml_str json,
                    const char *key);
/* The same, of all members of an object. */
int ml_reward_parts_of(ml_reward_value *out, const ml_json *object, const ml_json *without);

#endif
