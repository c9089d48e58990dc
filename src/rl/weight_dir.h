/* weight_dir.h - weights on disk, for engines of other processes.
 *
 *     DIR/version_7/    a Hugging Face checkpoint with its seal (model/weights_seal.h)
 *
 * A version is written under another name, synced and renamed, so that what has the name is
 * whole.  The one before stays, for engines that are late; older ones are removed.
 *
 * thread: one owner. */
#ifndef ML_RL_WEIGHT_DIR_H
#define ML_RL_WEIGHT_DIR_H

#include "model/export.h"

/* How the set is written: f32 matrices stay f32, whatever the checkpoint had; others are on
 * disk as they were. */
ml_export_opts ml_weight_dir_how(const ml_weights *w);

/* Writes the set, in files of at most shard_bytes, as a checkpoint of this path: whole, or not
 * at all. */
ml_status ml_weight_dir_put(const char *path, const ml_weights *w, const ml_spec *s,
                            const ml_checkpoint *from, int64_t shard_bytes, ml_err *err);

/* Writes the version of the set, in files of at most shard_bytes (one tensor at least; 0: the
 * files of the source); its path is left in `out`. */
ml_status ml_weight_dir_write(ml_text *out, const char *dir, const ml_weights *w,
                              const ml_spec *s, const ml_checkpoint *from,
                              int64_t shard_bytes, ml_err *err);

/* Removes the versions that is_old() names; `than` is handed on.  What has such a name and was
 * not written here stays. */
ml_status ml_weight_dir_tidy(const char *dir,
                             bool (*is_old)(const char *name, int64_t than), int64_t than,
                             ml_err *err);

#endif
