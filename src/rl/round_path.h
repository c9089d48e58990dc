/* round_path.h - files of which each round has one: a path with {rollout_id} in it.
 *
 * {rank}, which paths of Miles may have too, is 0.
 *
 * thread: any. */
#ifndef ML_RL_ROUND_PATH_H
#define ML_RL_ROUND_PATH_H

#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

/* In the arena. */
char *ml_round_path(ml_arena *a, const char *template, int64_t rollout);

/* For writing: the directories above it are made. */
ml_status ml_round_path_make(char **out, ml_arena *a, const char *template, int64_t rollout,
                             ml_err *err);

#endif
