/* label.h - what a reward is compared with, and the JSON around it.
 *
 * thread: any. */
#ifndef ML_RL_REWARD_LABEL_H
#define ML_RL_REWARD_LABEL_H

#include "base/json.h"
#include "miles/plugin.h"

/* The parsed JSON of a sample.  The arena must be released. */
typedef struct ml_label {
    ml_arena arena;
    const ml_json *label, *metadata; /* NULL: none; never JSON null */
} ml_label;

/* On false err says what is no JSON; release all the same. */
bool ml_label_init(ml_label *l, const miles_reward_in *in, miles_error *err);
void ml_label_release(ml_label *l);

/* A label that is a text, number or constant, as text: True, False and numbers as Python
 * prints them.  False for lists, objects and no label. */
bool ml_label_text(const ml_json *label, ml_str *out);

/* The response as a view; the raw one ends in the token that ended it. */
ml_str ml_response(const miles_reward_in *in);
ml_str ml_raw_response(const miles_reward_in *in);

/* Leaves the sentence and returns 1, for `return`. */
__attribute__((format(printf, 2, 3))) int ml_reward_fail(miles_error *err, const char *fmt,
                                                         ...);

#endif
