/* round_path.h - paths of files that exist once per rollout: a template with {rollout_id}.
 *
 * {rank}, which is also allowed in Miles' paths, is replaced by 0.
 *
 * thread: any. */
#ifndef ML_RL_RECORD_ROUND_PATH_H
#define ML_RL_RECORD_ROUND_PATH_H

#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

/* The path is allocated in the arena. */
char *ml_round_path(ml_arena *a, const char *template, int64_t rollout);

/* For writing: creates the parent directories. */
ml_status ml_round_path_make(char **out, ml_arena *a, const char *template, int64_t rollout,
                             ml_err *err);

#endif
