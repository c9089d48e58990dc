/* dcp.h - torch distributed checkpoints: `.metadata` and `.distcp` files.
 *
 * .metadata is a pickle of torch.distributed.checkpoint.metadata.Metadata: the shapes of all
 * tensors, their chunks, and where each chunk is.  An item of a .distcp file is a chunk written
 * by torch.save.  Files are mapped; nothing is executed (io/pickle.h).
 *
 * As weights (ml_dcp_weights_open), tensors of Megatron's torch_dist layout have the names of
 * the Hugging Face release: layers are unstacked, the rows of linear_qkv and linear_fc1
 * separated.  Other checkpoints have the release's names behind a prefix.  Optimizer state is
 * left out.
 *
 * thread: immutable after open. */
#ifndef ML_IO_DCP_H
#define ML_IO_DCP_H

#include "io/torch_file.h"

typedef struct ml_dcp_chunk {
    int64_t at[ML_ST_DIMS], size[ML_ST_DIMS];
    ml_torch_tensor t;
} ml_dcp_chunk;

typedef struct ml_dcp_tensor {
    ml_str name; /* NUL-terminated */
    ml_st_dtype dtype;
    int32_t n_dim;
    int64_t shape[ML_ST_DIMS];
    ml_dcp_chunk *chunk; /* [n_chunk]; together they cover the tensor */
    int32_t n_chunk;
} ml_dcp_tensor;

typedef struct ml_dcp {
    const char *dir;
    ml_dcp_tensor *tensor; /* [n], in the order of .metadata */
    int32_t n;
    struct ml_dcp_file *file;
    int32_t n_file;
    ml_arena arena;
} ml_dcp;

/* The directory with .metadata: `dir`, or its iteration that latest_checkpointed_iteration.txt
 * names.  False: it is no such checkpoint. */
bool ml_dcp_find(ml_text *out, const char *dir);

ml_status ml_dcp_open(ml_dcp **out, const char *dir, ml_err *err);
void ml_dcp_close(ml_dcp *d); /* NULL is allowed */

/* n elements along the last dimension from the one at `index`, as they are stored. */
void ml_dcp_read(const ml_dcp_tensor *t, const int64_t *index, int64_t n, void *out);

ml_status ml_dcp_weights_open(ml_st_file **out, const char *dir, ml_err *err);

#endif
