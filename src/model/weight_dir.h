/* weight_dir.h - weights on disk, for engines in other processes.
 *
 *     DIR/version_7/    a Hugging Face checkpoint with its checksum (model/weights_checksum.h)
 *
 * A version is written under a temporary name, synced and renamed, so that a version with
 * its final name is always complete.  The previous version is kept for engines that lag
 * behind; older ones are removed.
 *
 * thread: one owner. */
#ifndef ML_MODEL_WEIGHT_DIR_H
#define ML_MODEL_WEIGHT_DIR_H

#include "model/export.h"
#include "model/lora.h"

/* Export options of the set: f32 matrices stay f32, whatever the checkpoint had; others
 * have the checkpoint's dtype. */
ml_export_opts ml_weight_dir_how(const ml_weights *w);

/* Writes the set atomically as a checkpoint at this path, in files of at most
 * shard_bytes. */
ml_status ml_weight_dir_put(const char *path, const ml_weights *w, const ml_spec *s,
                            const ml_checkpoint *from, int64_t shard_bytes, ml_err *err);

/* Writes the version of the set, in files of at most shard_bytes (at least one tensor
 * each; 0: the files of the source), and stores its path in `out`. */
ml_status ml_weight_dir_write(ml_text *out, const char *dir, const ml_weights *w,
                              const ml_spec *s, const ml_checkpoint *from,
                              int64_t shard_bytes, ml_err *err);

/* The same for the adapter alone, as PEFT writes it, with a checksum.  w: all of its
 * matrices. */
ml_status ml_weight_dir_write_adapter(ml_text *out, const char *dir, const ml_lora *l,
                                      const ml_weights *w, uint64_t version, ml_err *err);

/* Removes the versions for which is_old() returns true; `than` is passed to it.
 * Directories with such a name that were not written by this module are kept. */
ml_status ml_weight_dir_tidy(const char *dir,
                             bool (*is_old)(const char *name, int64_t than), int64_t than,
                             ml_err *err);

#endif
