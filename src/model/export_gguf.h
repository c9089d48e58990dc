/* export_gguf.h - writes a weight set as a GGUF file for llama.cpp.
 *
 * Matrices are stored as F32, F16, BF16 or Q8_0 (with ggml's rounding), vectors as F32.  The
 * keys come from config.json and tokenizer.json of the source, or are copied where the source
 * is a GGUF file.  The architectures are those that are read (base/gguf_files.h). */
#ifndef ML_MODEL_EXPORT_GGUF_H
#define ML_MODEL_EXPORT_GGUF_H

#include "base/gguf_files.h"
#include "model/weights.h"

ml_status ml_export_gguf(const ml_weights *w, const ml_spec *s, const ml_checkpoint *from,
                         const char *path, ml_ggml_type type, ml_err *err);

/* --- the keys (gguf_keys.c) --- */

typedef struct ml_gguf_keys {
    ml_text bytes;
    uint64_t n;
} ml_gguf_keys;

/* Appends the keys of a model in `dir`, with the factors of scaled rotary frequencies in
 * `freqs` (or NULL), which is [*n_freq] in the arena. */
ml_status ml_gguf_keys_of(ml_gguf_keys *out, const char *dir, const ml_gguf_arch *arch,
                          int64_t n_vocab, ml_ggml_type type, ml_arena *a, float **freqs,
                          int64_t *n_freq, ml_err *err);
/* The keys of a GGUF file, for another type of matrices. */
void ml_gguf_keys_copy(ml_gguf_keys *out, const ml_gguf *g, ml_ggml_type type);

#endif
