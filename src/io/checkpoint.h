/* checkpoint.h - a directory of Hugging Face weights.
 *
 * model.safetensors, or else the shards listed in model.safetensors.index.json.  The
 * index is compared with the shards in both directions, so that a checkpoint that opens
 * is complete: every listed tensor is in the shard that the index names, and no shard has
 * a tensor that is not listed.
 *
 * thread: immutable after open. */
#ifndef ML_IO_CHECKPOINT_H
#define ML_IO_CHECKPOINT_H

#include "io/safetensors.h"

typedef struct ml_checkpoint {
    const char *dir;
    int32_t n_file;
    ml_st_file **file;      /* [n_file], sorted by name; iterate over their tensors to
                               see all */
    const char **file_name; /* [n_file], without the directory */
    int64_t n_tensor;       /* over all files */
    ml_map by_name;
    ml_arena arena;
} ml_checkpoint;

ml_status ml_checkpoint_open(ml_checkpoint **out, const char *dir, ml_err *err);
void ml_checkpoint_close(ml_checkpoint *c); /* NULL is allowed */

/* NULL if no tensor has that name; `file` (may be NULL) receives the file that contains
 * it. */
const ml_st_tensor *ml_checkpoint_find(const ml_checkpoint *c, ml_str name,
                                       const ml_st_file **file);

#endif
