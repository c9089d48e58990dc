/* sample_torch.h - recorded rollouts as Miles writes them: a file of torch.save with
 * {"rollout_id", "metadata", "samples": [fields of a Sample, ...]}.
 *
 * Arrays are lists of numbers, routing records arrays of numpy; fields that Miles does not
 * have (the row of the data set, tokens of each weight version) stand beside the others.
 *
 * thread: as sample.h. */
#ifndef ML_RL_SAMPLE_TORCH_H
#define ML_RL_SAMPLE_TORCH_H

#include "io/torch_file.h"
#include "rl/sample.h"

/* By the suffix: .pt. */
bool ml_samples_are_torch(const char *path);

ml_status ml_samples_save_torch(const char *path, int64_t rollout,
                                const ml_sample *const *s, int64_t n, ml_err *err);
ml_status ml_samples_load_torch(ml_sample **out, int64_t *n, ml_arena *a, const char *path,
                                ml_err *err);
/* The samples of an open file; `path` is for messages. */
ml_status ml_samples_of_torch(ml_sample **out, int64_t *n, ml_arena *a,
                              const ml_torch_file *f, const char *path, ml_err *err);

#endif
