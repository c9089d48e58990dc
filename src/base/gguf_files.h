/* gguf_files.h - the files that a GGUF model would have as a Hugging Face checkpoint.
 *
 * config.json from the architecture's keys, tokenizer.json and tokenizer_config.json from
 * the tokenizer's, with the chat template.  ml_file_map gives them for paths such as
 * MODEL.gguf/config.json, so that a .gguf file is accepted where a directory is. */
#ifndef ML_BASE_GGUF_FILES_H
#define ML_BASE_GGUF_FILES_H

#include "base/gguf.h"

/* An architecture of llama.cpp and its name in transformers. */
typedef struct ml_gguf_arch {
    const char *name, *model_type, *class_name;
    bool pairs;         /* rows of q and k are in the order of rotary pairs */
    bool norm_plus_one; /* norms are stored as 1 + w */
    bool four_norms;    /* before and after attention and MLP (Gemma) */
} ml_gguf_arch;

ml_status ml_gguf_arch_of(const ml_gguf_arch **out, const ml_gguf *g, ml_err *err);
/* The architecture of a model_type; NULL: none. */
const ml_gguf_arch *ml_gguf_arch_named(const char *model_type);

/* Whether `path` is one of these files of a GGUF model; `n` receives the length of the
 * model's path. */
bool ml_gguf_is_file(const char *path, size_t *n);
/* Appends the file of that name. */
ml_status ml_gguf_file(ml_text *out, const ml_gguf *g, const char *name, ml_err *err);
/* Their names, NULL-terminated. */
extern const char *const ml_gguf_file_names[];

#endif
