/* grade.h - built-in rewards by name.
 *
 * thread: any. */
#ifndef ML_RL_REWARD_GRADE_H
#define ML_RL_REWARD_GRADE_H

#include "base/err.h"
#include "miles/plugin.h"

typedef struct ml_grader {
    const miles_reward *ext;
    bool boxed; /* the name had the prefix boxed_ */
} ml_grader;

/* `name` may begin with boxed_ and have spaces around it.  The error message lists the
 * names. */
ml_status ml_grader_find(ml_grader *out, const char *name, ml_err *err);

/* Runs the grader; with boxed, on the contents of the last box.  0: out has a number,
 * which may still be NaN; 1: err has a message. */
int ml_grader_run(const ml_grader *g, const miles_reward_in *in, miles_reward_out *out,
                  miles_error *err);

#endif
