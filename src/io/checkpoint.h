/* checkpoint.h - a directory of Hugging Face weights, or a GGUF file.
 *
 * model.safetensors, or else the shards listed in model.safetensors.index.json; or else
 * pytorch_model.bin or its shards (io/torch_weights.h).  Tensors of a GGUF file have the
 * names of the Hugging Face release (io/gguf_weights.h).  The index is compared with the shards in both directions, so that a checkpoint that opens
 * is complete: every listed tensor is in the shard that the index names, and no shard has
 * a tensor that is not listed.  Quantized weights appear as the matrices they stand for
 * (io/quant.h).  In a multimodal checkpoint, the tensors of the text model have the names
 * that they have in a checkpoint of the text model alone.
 *
 * thread: immutable after open. */
#ifndef ML_IO_CHECKPOINT_H
#define ML_IO_CHECKPOINT_H

#include "io/safetensors.h"

typedef struct ml_checkpoint_tensor {
    ml_st_tensor t; /* its name is that of the text model alone */
    ml_str stored;  /* the name in the checkpoint */
    int32_t file;   /* index */
} ml_checkpoint_tensor;

typedef struct ml_checkpoint {
    const char *dir;
    int32_t n_file;
    ml_st_file **file;      /* [n_file], sorted by name */
    const char **file_name; /* [n_file], without the directory */
    /* All tensors, file by file in the order of their bytes; a quantized weight is one
     * tensor, in the place of its codes. */
    ml_checkpoint_tensor *tensor; /* [n_tensor] */
    int64_t n_tensor;
    bool quantized; /* some tensor is */
    /* A torch distributed checkpoint (io/dcp.h); Megatron pads the vocabulary there. */
    bool distributed;
    ml_map by_name; /* index into tensor, by both names */
    ml_arena arena;
} ml_checkpoint;

ml_status ml_checkpoint_open(ml_checkpoint **out, const char *dir, ml_err *err);
void ml_checkpoint_close(ml_checkpoint *c); /* NULL is allowed */

/* NULL if no tensor has that name; `file` (may be NULL) receives the file that contains
 * it. */
const ml_st_tensor *ml_checkpoint_find(const ml_checkpoint *c, ml_str name,
                                       const ml_st_file **file);

/* The name that a tensor of a multimodal checkpoint's text model has in a checkpoint of that
 * model alone, in the arena; NULL: the same. */
const char *ml_checkpoint_text_name(ml_arena *a, ml_str stored);

#endif
