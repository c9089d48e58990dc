/* export_files.h - the files of a checkpoint other than weights: config, tokenizer etc. */
#ifndef ML_MODEL_EXPORT_FILES_H
#define ML_MODEL_EXPORT_FILES_H

#include "model/export.h"

#define ML_EXPORT_INDEX "model.safetensors.index.json" /* maps tensors to files */

/* Reads the files that a GGUF model has inside, so that an export fails before it writes. */
ml_status ml_export_readable(const char *from, ml_err *err);

/* Creates the directory; an existing one must be empty. */
ml_status ml_export_dir(const char *dir, ml_err *err);

/* Copies them to o->dir: the index only if index_holds, config.json last and with the new
 * dtype and quantization_config (NULL: none); that of a reward model is one of transformers'
 * sequence classification with one label. */
ml_status ml_export_files(const char *from, const ml_spec *s, const ml_export_opts *o,
                          bool index_holds, const char *quantization, ml_err *err);

#endif
