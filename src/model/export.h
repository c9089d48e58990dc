/* export.h - writes a weight set as a Hugging Face checkpoint.
 *
 * The source checkpoint provides the data a weight set does not have: file names, dtypes
 * on disk, unused tensors, config and tokenizer files.  Tensors that did not change are
 * written byte for byte.
 *
 * The target directory is created, or must be empty.  Files get their final names only
 * when they are complete, config.json last, so that a directory with a config.json is a
 * complete checkpoint. */
#ifndef ML_MODEL_EXPORT_H
#define ML_MODEL_EXPORT_H

#include "io/quantize.h"
#include "model/tensors.h"
#include "model/weights.h"

typedef struct ml_export_opts {
    const char *dir; /* target directory */
    bool keep_dtype; /* each tensor keeps its dtype on disk */
    ml_dtype dtype;  /* else: f32, bf16 or f16 for all */
    /* 0: the files of the source; else new shards, split as transformers does */
    int64_t shard_bytes;
    /* Rounds the weights that the format applies to (model/export_quant.h); others keep
     * their dtype. */
    ml_quant_to quantize;
    /* Called before the values of a tensor are read, for weights that are not all in memory;
     * NULL: they are.  Not with quantize. */
    ml_status (*bring)(void *ud, const ml_named *t, ml_err *err);
    void *ud; /* of bring */
    /* NULL, or a second set, of tensors that the first has not: a multi-token prediction
     * module (model/mtp.h).  Not with quantize. */
    const ml_weights *also;
    const ml_spec *also_spec;
} ml_export_opts;

/* Called for each tensor of the checkpoint that would be written, in the order of the
 * source; its bytes are valid during the call. */
typedef ml_status ml_export_fn(void *ud, const ml_st_tensor *t, ml_err *err);
ml_status ml_export_each(const ml_weights *w, const ml_spec *s, const ml_checkpoint *from,
                         const ml_export_opts *o, ml_export_fn *fn, void *ud, ml_err *err);

ml_status ml_export_hf(const ml_weights *w, const ml_spec *s, const ml_checkpoint *from,
                       const ml_export_opts *o, ml_err *err);

#endif
