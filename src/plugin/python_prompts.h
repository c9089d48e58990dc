/* python_prompts.h - prompts from a data source in Python, a class with Miles' get_samples,
 * add_samples, save and load.
 *
 * Groups are numbered in the order in which get_samples returned them.  The rows of the
 * latest groups are kept, because a group that is continued later reads its row again.
 *
 * thread: load and save, the loop's; the others, any. */
#ifndef ML_PLUGIN_PYTHON_PROMPTS_H
#define ML_PLUGIN_PYTHON_PROMPTS_H

#include "base/err.h"
#include "base/str.h"
#include "miles/plugin.h"

miles_extension *ml_python_prompts_base(void);
/* Whether these are the run's prompts. */
bool ml_python_prompts_are(const miles_prompts *p);

/* Makes the object, and lets it continue after a rollout; -1: it is a new run.  `dir` is the
 * run's directory, `next` the number of the next group.  `state`, of ml_python_prompts_save,
 * may be empty. */
ml_status ml_python_prompts_load(int64_t rollout, const char *dir, int64_t next,
                                 ml_str state, ml_err *err);
/* Lets the object save itself; with `rows`, appends a member of a JSON object that has the rows
 * which unfinished groups may need. */
ml_status ml_python_prompts_save(int64_t rollout, bool rows, ml_text *state, ml_err *err);

/* Gets the next n groups, at most; returns their number.  When the object fails, the rows of
 * these groups have its message.  As ml_data_source_opts.pull. */
int64_t ml_python_prompts_pull(int64_t n);

void ml_python_prompts_clear(void);

#endif
