/* miles convert: loads a checkpoint as for training and writes it back. */
#include "cli/cli.h"
#include "model/export.h"
#include "model/export_gguf.h"
#include "model/lora.h"
#include "plugin/model_family.h"

static ml_export_opts how(const ml_config *c) {
    static const ml_dtype dtypes[] = {
        [ML_DTYPE_F32] = ML_F32, [ML_DTYPE_BF16] = ML_BF16, [ML_DTYPE_F16] = ML_F16
    };
    int dtype = c->convert.dtype;
    bool quantize = dtype >= ML_DTYPE_QUANTIZED && dtype != ML_DTYPE_Q8_0;

    return (ml_export_opts){ .dir = c->convert.save_hf,
                             .keep_dtype = quantize || dtype == ML_DTYPE_AUTO,
                             .dtype = dtype > ML_DTYPE_F16 ? ML_F32 : dtypes[dtype],
                             .shard_bytes = c->convert.max_shard_bytes,
                             .quantize =
                                 quantize
                                     ? (ml_quant_to)(dtype - ML_DTYPE_QUANTIZED + ML_TO_FP8)
                                     : ML_TO_NONE };
}

/* auto: that of the source's first matrix. */
static ml_ggml_type gguf_type(const ml_config *c, const ml_checkpoint *from) {
    static const ml_ggml_type types[] = { [ML_DTYPE_F32] = ML_GGML_F32,
                                          [ML_DTYPE_BF16] = ML_GGML_BF16,
                                          [ML_DTYPE_F16] = ML_GGML_F16 };
    ml_st_dtype stored = ML_ST_BF16;

    if (c->convert.dtype == ML_DTYPE_Q8_0)
        return ML_GGML_Q8_0;
    if (c->convert.dtype != ML_DTYPE_AUTO)
        return types[c->convert.dtype];
    for (int64_t i = from->n_tensor - 1; i >= 0; i--)
        stored = from->tensor[i].t.n_dim == 2 ? from->tensor[i].t.dtype : stored;
    return stored == ML_ST_F32   ? ML_GGML_F32
           : stored == ML_ST_F16 ? ML_GGML_F16
                                 : ML_GGML_BF16;
}

/* The adapter of a reward model is merged into one. */
static ml_status is_reward(const ml_config *c, bool *out, ml_err *err) {
    const char *dir = c->convert.lora_adapter_path;
    ml_peft_config config = { 0 };
    ml_status st = ML_OK;
    ml_arena a;

    ml_arena_init(&a, "adapter");
    if (dir)
        st = ml_peft_config_open(&config, &a,
                                 ml_arena_printf(&a, "%s/" ML_LORA_CONFIG, dir), err);
    *out = st == ML_OK && config.saves_head;
    ml_peft_config_close(&config);
    ml_arena_release(&a);
    return st;
}

static ml_status open_spec(ml_spec *s, const ml_config *c, ml_err *err) {
    ml_spec_opts o;
    bool reward;
    ml_status st = is_reward(c, &reward, err);

    if (st == ML_OK)
        st = ml_model_family_find(&o, c->run.arch.spec.word, c->run.arch.spec.n, err);
    if (st != ML_OK)
        return st;
    o.reward = reward;
    return ml_spec_open_with(s, c->run.hf_checkpoint, &o, err);
}

static ml_status merge(const ml_config *c, const ml_spec *s, ml_weights *w, ml_backend *be,
                       ml_err *err) {
    ml_lora l;
    ml_status st;

    if (!c->convert.lora_adapter_path)
        return ML_OK;
    st = ml_lora_load(&l, s, c->convert.lora_adapter_path, be, err);
    if (st == ML_OK) {
        ml_lora_merge(&l, s, w);
        ml_lora_close(&l);
    }
    return st;
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
        st = merge(c, s, &w, be, err);
    if (st == ML_OK)
        st = c->convert.save_gguf ? ml_export_gguf(&w, s, from, c->convert.save_gguf,
                                                   gguf_type(c, from), err)
                                  : ml_export_hf(&w, s, from, &o, err);
    ml_weights_close(&w);
    return st;
}

ml_status ml_cmd_convert(const ml_config *c, ml_err *err) {
    ml_spec s = { 0 };
    ml_checkpoint *from = NULL;
    ml_backend be = { 0 };
    ml_arena a;
    ml_status st = open_spec(&s, c, err);

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
