/* export_quant.h - quantized weights of an exported checkpoint.
 *
 * Which tensors a format applies to follows the converters of the field: the linear layers
 * of decoder layers, without routers; with INT4 and NVFP4 only the experts where the model
 * has experts; MXFP4 is gpt-oss' format of stacked experts. */
#ifndef ML_MODEL_EXPORT_QUANT_H
#define ML_MODEL_EXPORT_QUANT_H

#include "io/quantize.h"
#include "model/tensors.h"

/* A weight that is written as codes and scales. */
typedef struct ml_export_codes {
    ml_quant_to to;
    ml_named own;
    const ml_named
        *pair; /* NULL, or the weight with which it shares its largest magnitude */
    int64_t n, rows, cols; /* matrices, and their size as they are quantized */
    bool transposed;       /* stored as [n, cols, rows] */
    float amax;            /* of the whole weight; negative: not known yet */
} ml_export_codes;

/* Whether the format applies to a tensor; fills `out` then. */
bool ml_export_codes_of(ml_export_codes *out, ml_quant_to to, const ml_spec *s,
                        const ml_named *own, ml_str name);

/* Its tensors: named, with dtype and shape, in the arena. */
int32_t ml_export_codes_parts(const ml_export_codes *c, ml_str name,
                              ml_st_tensor out[ML_QUANT_PARTS], ml_arena *a);

/* Writes part i to tensor `at` of the file. */
ml_status ml_export_codes_write(ml_export_codes *c, int32_t i, const ml_weights *w,
                                const ml_spec *s, ml_st_writer *out, int32_t at,
                                ml_err *err);

/* quantization_config of config.json; `ignored`: modules that are not quantized. */
void ml_export_quant_config(ml_text *out, ml_quant_to to, const char *const *ignored,
                            int32_t n_ignored);
/* hf_quant_config.json, which modelopt's formats have as well; empty for others. */
void ml_export_quant_file(ml_text *out, ml_quant_to to, const char *const *ignored,
                          int32_t n_ignored);

#endif
