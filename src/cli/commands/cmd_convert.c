/* miles convert: loads a checkpoint as for training and writes it back. */
#include "cli/cli.h"
#include "model/export.h"

static ml_export_opts how(const ml_config *c) {
    static const ml_dtype dtypes[] = {
        [ML_DTYPE_F32] = ML_F32, [ML_DTYPE_BF16] = ML_BF16, [ML_DTYPE_F16] = ML_F16
    };
    int dtype = c->convert.dtype;
    bool quantize = dtype >= ML_DTYPE_QUANTIZED;

    return (ml_export_opts){ .dir = c->convert.save_hf,
                             .keep_dtype = quantize || dtype == ML_DTYPE_AUTO,
                             .dtype = quantize ? ML_F32 : dtypes[dtype],
                             .shard_bytes = c->convert.max_shard_bytes,
                             .quantize =
                                 quantize
                                     ? (ml_quant_to)(dtype - ML_DTYPE_QUANTIZED + ML_TO_FP8)
                                     : ML_TO_NONE };
}

static ml_status convert(const ml_config *c, const ml_spec *s, const ml_checkpoint *from,
                         ml_backend *be, ml_arena *a, ml_err *err) {
    ml_export_opts o = how(c);
    /* A dequantized weight is rounded once, to the dtype that is written. */
    bool exact = from->quantized && c->convert.dtype != ML_DTYPE_AUTO &&
                 c->convert.dtype != ML_DTYPE_BF16;
    ml_weights w;
    ml_status st =
        ml_weights_load(&w, s, from, exact ? ML_WEIGHT_F32 : ML_WEIGHT_AUTO, be, a, err);

    if (st == ML_OK)
        st = ml_export_hf(&w, s, from, &o, err);
    ml_weights_close(&w);
    return st;
}

ml_status ml_cmd_convert(const ml_config *c, ml_err *err) {
    ml_spec s = { 0 };
    ml_checkpoint *from = NULL;
    ml_backend be = { 0 };
    ml_arena a;
    ml_status st = ml_spec_open(&s, c->run.hf_checkpoint, err);

    ml_arena_init(&a, "convert");
    if (st == ML_OK)
        st = ml_checkpoint_open(&from, c->run.hf_checkpoint, err);
    if (st == ML_OK)
        st = ml_backend_cpu_open(&be, 1, NULL, err);
    if (st == ML_OK)
        st = convert(c, &s, from, &be, &a, err);
    if (be.name)
        ml_backend_close(&be);
    ml_checkpoint_close(from);
    ml_spec_close(&s);
    ml_arena_release(&a);
    return st;
}
