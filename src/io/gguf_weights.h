/* gguf_weights.h - the weights of a GGUF file under the names of the Hugging Face release.
 *
 * Tensors of F32, F16 and BF16 are read as they are; those of ggml's block formats are
 * dequantized element by element, in f32, with the results of gguf-py.  The rows of Llama's
 * q and k, which llama.cpp stores in the order of rotary pairs, and Gemma's norms, which it
 * stores as 1 + w, are read in the order and with the values of the release. */
#ifndef ML_IO_GGUF_WEIGHTS_H
#define ML_IO_GGUF_WEIGHTS_H

#include "io/safetensors.h"

/* The weights of file i of a model, which is 0 unless the model is split; `path` is that of
 * the first file. */
ml_status ml_gguf_weights_open(ml_st_file **out, const char *path, int32_t i, ml_err *err);

/* Dequantizes one block (base/gguf.h) to its elements. */
void ml_ggml_dequantize(uint32_t type, const unsigned char *block, float *out);

#endif
