/* checkpoint.h - a directory of Hugging Face weights.
 *
 * model.safetensors, or else the shards that model.safetensors.index.json names.  An
 * index is held against what its shards contain, both ways, so that a checkpoint that
 * opens is complete: every listed tensor is where the index says, and no shard has one
 * that is not listed.
 *
 * thread: immutable after open. */
#ifndef ML_IO_CHECKPOINT_H
#define ML_IO_CHECKPOINT_H

#include "io/safetensors.h"

typedef struct ml_checkpoint {
    const char *dir;
    int32_t n_file;
    ml_st_file **file;      /* [n_file], sorted by name; walk their tensors to see all */
    const char **file_name; /* [n_file], without the directory */
    int64_t n_tensor;       /* over all files */
    ml_map by_name;
    ml_arena arena;
} ml_checkpoint;

ml_status ml_checkpoint_open(ml_checkpoint **out, const char *dir, ml_err *err);
void ml_checkpoint_close(ml_checkpoint *c); /* NULL is fine */

/* NULL when there is none of that name; `file` (may be NULL) gets the file it lies in. */
const ml_st_tensor *ml_checkpoint_find(const ml_checkpoint *c, ml_str name,
                                       const ml_st_file **file);

#endif
