/* python_matcher.h - a Python function that says whether two messages of a session are the same
 * (--session-message-matcher).
 *
 * The process has one, in a worker of its own: sessions never wait for other functions.
 *
 * thread: open and close before other threads start and after they ended; run, any. */
#ifndef ML_PLUGIN_PYTHON_MATCHER_H
#define ML_PLUGIN_PYTHON_MATCHER_H

#include "base/json.h"

/* args: the flags of the run as a JSON object. */
ml_status ml_python_matcher_open(const char *path, ml_str args, ml_err *err);
void ml_python_matcher_close(void); /* also if none is open */

/* As ml_match_fn of serve/session.h. */
ml_status ml_python_matcher_run(const ml_json *stored, const ml_json *sent, int32_t *n,
                                ml_err *err);

#endif
