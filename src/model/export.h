/* export.h - a weight set written back as a Hugging Face checkpoint.
 *
 * The checkpoint it was loaded from gives what a weight set does not know: names of
 * files, dtypes on disk, tensors nobody computes with, config and tokenizer files.
 * What did not change comes out byte for byte.
 *
 * The target directory is made, or must be empty; files appear under their names only
 * when they are complete, config.json last, so that a directory with a config.json is
 * a whole checkpoint. */
#ifndef ML_MODEL_EXPORT_H
#define ML_MODEL_EXPORT_H

#include "model/weights.h"

typedef struct ml_export_opts {
    const char *dir; /* where to */
    bool keep_dtype; /* each tensor as it was on disk */
    ml_dtype dtype;  /* else: f32, bf16 or f16 for all */
    int64_t
        shard_bytes; /* 0: the files of the source; else a new split, as transformers does */
} ml_export_opts;

/* Called with each tensor of the checkpoint that would be written, in the order of its source;
 * its bytes are good during the call. */
typedef ml_status ml_export_fn(void *ud, const ml_st_tensor *t, ml_err *err);
ml_status ml_export_each(const ml_weights *w, const ml_spec *s, const ml_checkpoint *from,
                         const ml_export_opts *o, ml_export_fn *fn, void *ud, ml_err *err);

ml_status ml_export_hf(const ml_weights *w, const ml_spec *s, const ml_checkpoint *from,
                       const ml_export_opts *o, ml_err *err);

#endif
