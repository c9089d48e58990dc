/* label.h - a sample's label and metadata, parsed from JSON.
 *
 * thread: any. */
#ifndef ML_RL_REWARD_LABEL_H
#define ML_RL_REWARD_LABEL_H

#include "base/json.h"
#include "miles/plugin.h"

/* The parsed JSON of a sample.  The caller must release the arena. */
typedef struct ml_label {
    ml_arena arena;
    const ml_json *label, *metadata; /* NULL: none; never JSON null */
} ml_label;

/* On false, err has the message; release is still required. */
bool ml_label_init(ml_label *l, const miles_reward_in *in, miles_error *err);
void ml_label_release(ml_label *l);

/* Converts a label that is a string, number or constant to text: True, False and numbers
 * as Python prints them.  False for lists, objects and no label. */
bool ml_label_text(const ml_json *label, ml_str *out);

/* The response; the raw one includes the stop token's text. */
ml_str ml_response(const miles_reward_in *in);
ml_str ml_raw_response(const miles_reward_in *in);

/* Stores the message and returns 1, for `return`. */
__attribute__((format(printf, 2, 3))) int ml_reward_fail(miles_error *err, const char *fmt,
                                                         ...);

#endif
