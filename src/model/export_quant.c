#include "model/export_quant.h"

#include <stdlib.h>
#include <string.h>

#include "base/json.h"

/* --- which weights ---------------------------------------------------------------- */

static bool has_experts(const ml_spec *s) {
    for (int32_t i = 0; i < s->n_param; i++)
        if (strstr(s->param[i].name, ".experts."))
            return true;
    return false;
}

static bool ends_in(ml_str name, const char *tail) {
    size_t n = strlen(tail);
    return name.len >= n && memcmp(name.ptr + name.len - n, tail, n) == 0;
}

/* A linear layer of a decoder layer that computes on many features. */
static bool is_linear(const ml_param *p, const ml_named *own, ml_str name) {
    static const char *const others[] = { ".mlp.gate.weight", "router.weight",
                                          "expert_gate.weight", "conv1d.weight",
                                          "norm.weight" };
    if (own->n_dim != 2 || p->keep_f32 || p->frozen || !strstr(name.ptr, "layers.") ||
        !ends_in(name, ".weight"))
        return false;
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (ends_in(name, others[i]))
            return false;
    return true;
}

static bool applies(ml_quant_to to, const ml_spec *s, const ml_named *own, ml_str name) {
    bool linear = is_linear(&s->param[own->param], own, name);
    bool shared = strstr(name.ptr, "shared_expert") != NULL;
    bool routed = strstr(name.ptr, ".experts.") != NULL;

    if (to == ML_TO_MXFP4)
        return own->n_dim == 3 && (ends_in(name, ".experts.gate_up_proj") ||
                                   ends_in(name, ".experts.down_proj"));
    if (to == ML_TO_INT4 || to == ML_TO_INT4_G128)
        return linear && (routed || !has_experts(s));
    if (to == ML_TO_NVFP4)
        return linear && (routed || shared || !has_experts(s));
    return linear;
}

bool ml_export_codes_of(ml_export_codes *out, ml_quant_to to, const ml_spec *s,
                        const ml_named *own, ml_str name) {
    ml_quant_part part[ML_QUANT_PARTS];
    bool stacked = to == ML_TO_MXFP4;

    if (own->param == ML_NONE || !applies(to, s, own, name))
        return false;
    *out = (ml_export_codes){ .to = to,
                              .own = *own,
                              .n = stacked ? own->shape[0] : 1,
                              .rows = own->shape[stacked ? 2 : 0],
                              .cols = own->shape[1],
                              .transposed = stacked,
                              .amax = -1 };
    return ml_quant_parts(part, to, out->rows, out->cols) > 0;
}

/* --- tensors ---------------------------------------------------------------------- */

/* gpt-oss stores blocks [experts, rows, columns / 32, 16] and scales without the last. */
static void stack_shape(const ml_export_codes *c, int32_t i, ml_st_tensor *t) {
    t->n_dim = i == 0 ? 4 : 3;
    t->shape[0] = c->n;
    t->shape[1] = c->rows;
    t->shape[2] = c->cols / 32;
    t->shape[3] = 16;
}

int32_t ml_export_codes_parts(const ml_export_codes *c, ml_str name,
                              ml_st_tensor out[ML_QUANT_PARTS], ml_arena *a) {
    ml_quant_part part[ML_QUANT_PARTS];
    int32_t n = ml_quant_parts(part, c->to, c->rows, c->cols);
    size_t base = name.len - (ends_in(name, ".weight") ? strlen(".weight") : 0);

    for (int32_t i = 0; i < n; i++) {
        out[i] = (ml_st_tensor){ .name = ml_str_of(ml_arena_printf(
                                     a, "%.*s%s", (int)base, name.ptr, part[i].suffix)),
                                 .dtype = part[i].dtype,
                                 .n_dim = part[i].n_dim };
        memcpy(out[i].shape, part[i].shape, sizeof part[i].shape);
        if (c->transposed)
            stack_shape(c, i, &out[i]);
    }
    return n;
}

/* --- bytes ------------------------------------------------------------------------ */

/* Rows [first, first + n) of matrix m as f32; `whole` holds a matrix that is not read row by
 * row. */
static const float *read_rows(const ml_export_codes *c, const ml_weights *w,
                              const ml_spec *s, int64_t m, int64_t first, int64_t n,
                              float *whole, float *band) {
    bool by_row = c->own.member != ML_NONE;

    if (by_row) {
        ml_named_read(w, s, &c->own, first, n, ML_F32, band);
        return band;
    }
    if (first == 0)
        ml_named_read(w, s, &c->own, m, 1, ML_F32, whole);
    if (!c->transposed)
        return whole + first * c->cols;
    for (int64_t r = 0; r < n; r++)
        for (int64_t k = 0; k < c->cols; k++)
            band[r * c->cols + k] = whole[k * c->rows + first + r];
    return band;
}

static float amax_of(const ml_named *own, const ml_weights *w, const ml_spec *s, float *buf,
                     float most) {
    ml_slices all = ml_named_slices(own);

    for (int64_t r = 0; r < all.n_slice; r++) {
        ml_named_read(w, s, own, r, 1, ML_F32, buf);
        most = ml_quant_amax(buf, all.n_value, most);
    }
    return most;
}

static ml_status write_matrix(const ml_export_codes *c, int32_t i, const ml_quant_part *p,
                              const ml_weights *w, const ml_spec *s, int64_t m,
                              float *whole, float *band, unsigned char *bytes,
                              ml_st_writer *out, int32_t at, ml_err *err) {
    size_t size = 0, begin;
    ml_status st = ML_OK;

    ml_st_size(p->dtype, p->shape, p->n_dim, &size);
    begin = (size_t)m * size;
    for (int64_t r = 0; r < c->rows && st == ML_OK; r += ML_QUANT_BAND) {
        int64_t n = c->rows - r < ML_QUANT_BAND ? c->rows - r : ML_QUANT_BAND;
        size_t n_byte = (size_t)((n + p->rows - 1) / p->rows) * p->row_bytes;
        ml_quantize(c->to, i, read_rows(c, w, s, m, r, n, whole, band), n, c->cols, c->amax,
                    bytes);
        st = ml_st_write(out, at, begin + (size_t)(r / p->rows) * p->row_bytes, bytes,
                         n_byte, err);
    }
    return st;
}

ml_status ml_export_codes_write(ml_export_codes *c, int32_t i, const ml_weights *w,
                                const ml_spec *s, ml_st_writer *out, int32_t at,
                                ml_err *err) {
    ml_quant_part part[ML_QUANT_PARTS];
    size_t matrix = (size_t)(c->rows * c->cols), band = (size_t)(ML_QUANT_BAND * c->cols);
    bool by_row = c->own.member != ML_NONE;
    float *whole = by_row ? NULL : malloc(matrix * sizeof *whole);
    float *rows = malloc(band * sizeof *rows);
    unsigned char *bytes = malloc(band);
    ml_status st = ML_OK;

    (void)ml_quant_parts(part, c->to, c->rows, c->cols);
    if (!rows || !bytes || (!by_row && !whole))
        st = ml_fail(err, ML_ENOMEM, "out of memory for quantizing %s", c->own.name);
    if (st == ML_OK && c->amax < 0 && ml_quant_needs_amax(c->to)) {
        c->amax = amax_of(&c->own, w, s, by_row ? rows : whole, 0);
        if (c->pair)
            c->amax = amax_of(c->pair, w, s, by_row ? rows : whole, c->amax);
    }
    if (st == ML_OK && !part[i].row_bytes) {
        size_t size = 0;
        ml_st_size(part[i].dtype, part[i].shape, part[i].n_dim, &size);
        ml_quantize(c->to, i, NULL, c->rows, c->cols, c->amax, bytes);
        st = ml_st_write(out, at, 0, bytes, size, err);
    }
    for (int64_t m = 0; m < c->n && st == ML_OK && part[i].row_bytes; m++)
        st = write_matrix(c, i, &part[i], w, s, m, whole, rows, bytes, out, at, err);
    free(whole);
    free(rows);
    free(bytes);
    return st;
}

/* --- config.json ------------------------------------------------------------------ */

static void put_list(ml_text *out, const char *key, const char *const *name, int32_t n) {
    ml_text_printf(out, "\"%s\": [", key);
    for (int32_t i = 0; i < n; i++) {
        ml_text_printf(out, "%s", i ? ", " : "");
        ml_json_quote(out, ml_str_of(name[i]));
    }
    ml_text_printf(out, "]");
}

/* compressed-tensors: `activations` and the strategy of weights. */
static void put_compressed(ml_text *out, const char *format, const char *activations,
                           const char *weights, const char *const *ignored, int32_t n) {
    ml_text_printf(
        out,
        "{\"config_groups\": {\"group_0\": {\"input_activations\": %s, "
        "\"output_activations\": null, \"targets\": [\"Linear\"], \"weights\": "
        "{\"actorder\": null, \"block_structure\": null, \"dynamic\": false, "
        "\"observer\": \"minmax\", \"observer_kwargs\": {}, \"symmetric\": true, "
        "%s}}}, \"format\": \"%s\", ",
        activations, weights, format);
    put_list(out, "ignore", ignored, n);
    ml_text_printf(out, ", \"kv_cache_scheme\": null, \"quant_method\": "
                        "\"compressed-tensors\", \"quantization_status\": \"compressed\"}");
}

static void put_fp8(ml_text *out, const char *method, const char *more, const char *size,
                    const char *const *ignored, int32_t n) {
    ml_text_printf(out, "{\"activation_scheme\": \"dynamic\", \"fmt\": \"e4m3\", ");
    put_list(out, "modules_to_not_convert", ignored, n);
    ml_text_printf(out, ", \"quant_method\": \"%s\"%s, \"weight_block_size\": %s}", method,
                   more, size);
}

#define UE8M0 ", \"scale_fmt\": \"ue8m0\""
#define PER_TOKEN                                                                          \
    "{\"dynamic\": true, \"num_bits\": 8, \"observer\": null, \"strategy\": \"token\", "   \
    "\"symmetric\": true, \"type\": \"float\"}"
#define PER_TENSOR                                                                         \
    "{\"dynamic\": true, \"num_bits\": 8, \"observer\": null, \"strategy\": \"tensor\", "  \
    "\"symmetric\": true, \"type\": \"float\"}"

void ml_export_quant_config(ml_text *out, ml_quant_to to, const char *const *ignored,
                            int32_t n) {
    switch (to) {
    case ML_TO_FP8: put_fp8(out, "fp8", "", "[128, 128]", ignored, n); return;
    case ML_TO_FP8_UE8M0: put_fp8(out, "fp8", UE8M0, "[128, 128]", ignored, n); return;
    case ML_TO_MXFP8: put_fp8(out, "mxfp8", UE8M0, "[1, 32]", ignored, n); return;
    case ML_TO_FP8_ROW:
        put_compressed(out, "float-quantized", PER_TOKEN,
                       "\"group_size\": null, \"num_bits\": 8, \"strategy\": \"channel\", "
                       "\"type\": \"float\"",
                       ignored, n);
        return;
    case ML_TO_FP8_TENSOR:
        put_compressed(out, "float-quantized", PER_TENSOR,
                       "\"group_size\": null, \"num_bits\": 8, \"strategy\": \"tensor\", "
                       "\"type\": \"float\"",
                       ignored, n);
        return;
    case ML_TO_INT4:
    case ML_TO_INT4_G128:
        put_compressed(out, "pack-quantized", "null",
                       to == ML_TO_INT4 ? "\"group_size\": 32, \"num_bits\": 4, "
                                          "\"strategy\": \"group\", \"type\": \"int\""
                                        : "\"group_size\": 128, \"num_bits\": 4, "
                                          "\"strategy\": \"group\", \"type\": \"int\"",
                       ignored, n);
        return;
    case ML_TO_MXFP4:
        ml_text_printf(out, "{");
        put_list(out, "modules_to_not_convert", ignored, n);
        ml_text_printf(out, ", \"quant_method\": \"mxfp4\"}");
        return;
    default:
        ml_text_printf(out, "{\"group_size\": 16, ");
        put_list(out, "ignore", ignored, n);
        ml_text_printf(out, ", \"quant_algo\": \"NVFP4\", \"quant_method\": \"modelopt\"}");
    }
}

void ml_export_quant_file(ml_text *out, ml_quant_to to, const char *const *ignored,
                          int32_t n) {
    if (to != ML_TO_NVFP4)
        return;
    ml_text_printf(out, "{\"producer\": {\"name\": \"modelopt\"}, \"quantization\": {");
    put_list(out, "exclude_modules", ignored, n);
    ml_text_printf(out, ", \"group_size\": 16, \"kv_cache_quant_algo\": null, "
                        "\"quant_algo\": \"NVFP4\"}}\n");
}
