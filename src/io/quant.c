#include "io/quant.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/json.h"
#include "tensor/codes.h"

/* How the codes of a matrix [rows, cols] (outputs, inputs) are packed. */
typedef enum packing {
    BYTES,       /* e4m3 or int8, a byte each */
    NIBBLES,     /* e2m1, two in a byte, the even column in the low half */
    WORDS,       /* unsigned integers, along the columns of a row in words of 32 bits */
    WORDS_DOWN,  /* the same, words [cols / n, rows]: along the inputs (GPTQ) */
    WORDS_MIXED, /* words [cols, rows / 8]: along the outputs, in AWQ's order */
} packing;

typedef struct codes {
    ml_quant base;
    packing how;
    int32_t bits; /* of an integer code */
    int64_t rows, cols;
    bool transposed; /* the weight is [..., cols, rows] */
    const unsigned char *code;
    const float *value; /* of a floating-point code */
    const ml_st_tensor *scale, *zero;
    const unsigned char *group;     /* NULL, or the group of each column, int32 */
    int64_t block_rows, block_cols; /* elements that share a scale */
    int64_t n_row_block, n_col_block;
    bool scale_by_group; /* scales and zeros are [groups, rows], not [rows, groups] */
    int32_t zero_add;    /* GPTQ stores the zero point minus one */
    int32_t zero_def;    /* the zero point without a tensor of them */
    float factor;        /* of the whole tensor */
    bool divide;         /* scales are divided by it, not elements multiplied */
} codes;

/* --- values --------------------------------------------------------------------- */

static float e4m3(int code) {
    return ml_e4m3_to_f32((uint8_t)code);
}

static float e2m1(int code) {
    return ml_code_value(ML_MXFP4, (uint8_t)code);
}

static float int8(int code) {
    return ml_code_value(ML_INT8, (uint8_t)code);
}

/* 2^(code - 127): exponents of 8 bits (E8M0). */
static float e8m0(int code) {
    return code == 255 ? NAN : ldexpf(1.0f, code - 127);
}

static const float *table_of(ml_arena *a, int n, float (*f)(int)) {
    float *t = ML_NEW(a, float, n);
    for (int i = 0; i < n; i++)
        t[i] = f(i);
    return t;
}

static uint32_t word_at(const void *base, int64_t i) {
    uint32_t w;
    memcpy(&w, (const unsigned char *)base + i * 4, sizeof w);
    return w;
}

static float float_at(const ml_st_tensor *t, int64_t i) {
    const unsigned char *p = t->data;
    uint16_t h;
    float f;

    switch (t->dtype) {
    case ML_ST_F32: memcpy(&f, p + i * 4, sizeof f); return f;
    case ML_ST_BF16: memcpy(&h, p + i * 2, sizeof h); return ml_bf16_to_f32(h);
    case ML_ST_F16: memcpy(&h, p + i * 2, sizeof h); return ml_f16_to_f32(h);
    case ML_ST_F8_E4M3: return e4m3(p[i]);
    default: return e8m0(p[i]);
    }
}

/* AWQ: nibble j of a word is column 0 2 4 6 1 3 5 7 [j] of its eight. */
static int awq_nibble(int64_t column) {
    return (int)(column % 8 / 2 + column % 2 * 4);
}

static int32_t field_of(uint32_t word, int32_t i, int32_t bits) {
    return (int32_t)(word >> (i * bits) & ((1u << bits) - 1));
}

/* The integer code of row r, column c of a matrix whose words begin at `code`. */
static int32_t integer_at(const codes *q, const unsigned char *code, int64_t r, int64_t c) {
    int64_t per = 32 / q->bits;

    switch (q->how) {
    case WORDS:
        return field_of(word_at(code, r * ((q->cols + per - 1) / per) + c / per),
                        (int32_t)(c % per), q->bits);
    case WORDS_DOWN:
        return field_of(word_at(code, c / per * q->rows + r), (int32_t)(c % per), q->bits);
    default: return field_of(word_at(code, c * (q->rows / 8) + r / 8), awq_nibble(r), 4);
    }
}

/* The zero point of row r in group g. */
static int32_t zero_at(const codes *q, int64_t r, int64_t g) {
    int64_t per = 32 / q->bits;

    if (!q->zero)
        return q->zero_def;
    if (q->how == WORDS) /* packed along the rows */
        return field_of(word_at(q->zero->data, r / per * q->n_col_block + g),
                        (int32_t)(r % per), q->bits);
    if (q->how == WORDS_DOWN)
        return (field_of(word_at(q->zero->data, g * (q->rows / per) + r / per),
                         (int32_t)(r % per), q->bits) +
                q->zero_add) &
               (int32_t)((1u << q->bits) - 1);
    return field_of(word_at(q->zero->data, g * (q->rows / 8) + r / 8), awq_nibble(r), 4);
}

static float scale_at(const codes *q, int64_t m, int64_t r, int64_t g) {
    if (q->scale_by_group)
        return float_at(q->scale, g * q->rows + r);
    return float_at(q->scale,
                    (m * q->n_row_block + r / q->block_rows) * q->n_col_block + g);
}

/* Elements [c, c + n) of a row of matrix m, all of one group. */
static void read_group(const codes *q, int64_t m, int64_t r, int64_t c, int64_t n,
                       int64_t g, float *out) {
    const float stored = scale_at(q, m, r, g);
    const float scale = q->divide ? stored / q->factor : stored;
    const int64_t at = (m * q->rows + r) * q->cols + c;

    if (q->how == BYTES)
        for (int64_t i = 0; i < n; i++)
            out[i] = q->value[q->code[at + i]] * scale;
    else if (q->how == NIBBLES)
        for (int64_t i = 0; i < n; i++)
            out[i] = q->value[q->code[(at + i) / 2] >> ((at + i) % 2 * 4) & 15] * scale;
    else {
        int32_t zero = zero_at(q, r, g);
        for (int64_t i = 0; i < n; i++)
            out[i] = (float)(integer_at(q, q->code, r, c + i) - zero) * scale;
    }
    if (!q->divide && q->factor != 1.0f)
        for (int64_t i = 0; i < n; i++)
            out[i] *= q->factor;
}

/* Elements [c, c + n) of row r of matrix m. */
static void read_row(const codes *q, int64_t m, int64_t r, int64_t c, int64_t n,
                     float *out) {
    while (n > 0) {
        int64_t left = q->group ? 1 : q->block_cols - c % q->block_cols;
        int64_t k = left < n ? left : n;
        int64_t g = q->group ? (int64_t)word_at(q->group, c) : c / q->block_cols;

        read_group(q, m, r, c, k, g, out);
        out += k;
        c += k;
        n -= k;
    }
}

static void read_codes(const ml_quant *base, int64_t at, int64_t step, int64_t n,
                       float *out) {
    const codes *q = (const codes *)base;
    const int64_t size = q->rows * q->cols, m = at / size, i = at % size;
    const int64_t along = q->transposed ? q->rows : 1;
    int64_t r = q->transposed ? i % q->rows : i / q->cols;
    int64_t c = q->transposed ? i / q->rows : i % q->cols;

    if (step == along && c + n <= q->cols) {
        read_row(q, m, r, c, n, out);
        return;
    }
    if (n == 1) {
        read_row(q, m, r, c, 1, out);
        return;
    }
    for (int64_t k = 0; k < n; k++)
        read_codes(base, at + k * step, along, 1, out + k);
}

/* --- codes as they are ------------------------------------------------------------ */

/* Whether each group of `size` inputs has one scale. */
static bool groups_of(const codes *q, int64_t size) {
    return q->block_cols >= q->cols || q->block_cols % size == 0;
}

static ml_dtype dtype_of(const codes *q) {
    bool plain = !q->group && !q->zero && q->factor == 1.0f;
    bool bf16 = q->scale->dtype == ML_ST_BF16;
    bool exponent = q->scale->dtype == ML_ST_U8 || q->scale->dtype == ML_ST_F8_E8M0;

    if (plain && q->how == BYTES && groups_of(q, 128))
        return q->value[1] == 1.0f ? ML_INT8 : ML_FP8;
    if (plain && q->how == WORDS && q->bits == 8 && groups_of(q, 128))
        return ML_INT8;
    if (plain && q->how == WORDS && q->bits == 4 && bf16 && groups_of(q, 32))
        return groups_of(q, 128) ? ML_INT4_G128 : ML_INT4;
    if (plain && q->how == NIBBLES && exponent && q->block_cols == 32)
        return ML_MXFP4;
    return ML_F32;
}

ml_dtype ml_quant_dtype(const ml_quant *base, ml_quant_rows rows) {
    const codes *q = (const codes *)base;
    int64_t size;

    if (base->read != read_codes || rows.cols != q->cols ||
        rows.col != (q->transposed ? q->rows : 1))
        return ML_F32;
    size = q->rows * q->cols;
    if (q->transposed ? rows.at % size >= q->rows || rows.row >= q->rows
                      : rows.at % q->cols || rows.row % q->cols)
        return ML_F32;
    return dtype_of(q);
}

/* The code of column c, as tensor/codes.h has it. */
static uint8_t code_at(const codes *q, int64_t m, int64_t r, int64_t c) {
    const int64_t at = (m * q->rows + r) * q->cols + c;

    if (q->how == BYTES)
        return q->code[at];
    if (q->how == NIBBLES)
        return q->code[at / 2] >> (at % 2 * 4) & 15;
    return (uint8_t)(integer_at(q, q->code, r, c) - (q->bits == 8 ? q->zero_def : 0));
}

void ml_quant_row(const ml_quant *base, ml_quant_rows rows, int64_t row, uint8_t *code,
                  float *scale) {
    const codes *q = (const codes *)base;
    const int64_t size = q->rows * q->cols, at = rows.at + row * rows.row;
    const int64_t m = at / size, r = q->transposed ? at % size : at % size / q->cols;
    const ml_dtype dtype = dtype_of(q);
    const int64_t group = ml_dtype_codes(dtype)->group;

    for (int64_t c = 0; c < q->cols; c++)
        code[c] = code_at(q, m, r, c);
    for (int64_t c = 0; c < q->cols; c += group)
        scale[c / group] = scale_at(q, m, r, c / q->block_cols);
    for (int64_t c = 0; c < q->cols && dtype == ML_FP8; c++)
        if ((code[c] & 127) == 127) /* NaN, which a group has as a whole */
            scale[c / group] = NAN;
}

/* --- config.json ------------------------------------------------------------------ */

static const char *const methods[] = { "fp8",         "fbgemm_fp8",         "mxfp8",
                                       "mxfp4",       "compressed-tensors", "gptq",
                                       "awq",         "modelopt",           "modelopt_fp8",
                                       "modelopt_fp4" };

bool ml_quant_method_known(const char *method, const char **known) {
    *known = "fp8, fbgemm_fp8, mxfp8, mxfp4, compressed-tensors, modelopt, gptq and awq";
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (!strcmp(method, methods[i]))
            return true;
    return false;
}

typedef struct resolver {
    ml_checkpoint *c;
    const char *path;                /* of config.json */
    const ml_json *config;           /* quantization_config, or NULL */
    ml_map by_name;                  /* of the tensors as stored */
    bool *used;                      /* [n_tensor] belongs to a weight */
    const float *e4m3, *e2m1, *int8; /* values of codes */
    int64_t block_rows, block_cols;  /* of FP8 */
    ml_err *err;
} resolver;

static const ml_json *find_quantization(const ml_json *root) {
    static const char *const inner[] = { "text_config", "llm_config", "language_config" };
    const ml_json *q = ml_json_get(root, "quantization_config");

    for (size_t i = 0; !q && i < sizeof inner / sizeof *inner; i++) {
        const ml_json *t = ml_json_get(root, inner[i]);
        q = t && t->type == ML_JSON_OBJECT ? ml_json_get(t, "quantization_config") : NULL;
    }
    return q && q->type == ML_JSON_OBJECT ? q : NULL;
}

static bool config_says(const resolver *r, const char *key, const char *value) {
    const ml_json *v = r->config ? ml_json_get(r->config, key) : NULL;
    return v && v->type == ML_JSON_STRING && ml_str_is(v->text, value);
}

static int64_t config_int(const resolver *r, const char *key, int64_t def) {
    const ml_json *v = r->config ? ml_json_get(r->config, key) : NULL;
    double x;
    return v && ml_json_f64(v, &x) && x >= 1 && x <= 1e6 ? (int64_t)x : def;
}

/* The first group of compressed-tensors has the parameters of weights. */
static const ml_json *weights_scheme(const resolver *r) {
    const ml_json *groups = r->config ? ml_json_get(r->config, "config_groups") : NULL;
    const ml_json *first = groups && groups->type == ML_JSON_OBJECT ? groups->child : NULL;
    const ml_json *w =
        first && first->type == ML_JSON_OBJECT ? ml_json_get(first, "weights") : NULL;
    return w && w->type == ML_JSON_OBJECT ? w : NULL;
}

static void read_block_size(resolver *r) {
    const ml_json *scheme = weights_scheme(r);
    const ml_json *b = r->config ? ml_json_get(r->config, "weight_block_size") : NULL;
    double rows, cols;

    if (!b && scheme)
        b = ml_json_get(scheme, "block_structure");
    r->block_rows = r->block_cols = 128;
    if (b && b->type == ML_JSON_ARRAY && b->n == 2 && ml_json_f64(b->child, &rows) &&
        ml_json_f64(b->child->next, &cols) && rows >= 1 && cols >= 1 && rows <= 1e6 &&
        cols <= 1e6) {
        r->block_rows = (int64_t)rows;
        r->block_cols = (int64_t)cols;
    }
}

/* --- tensors of a weight ---------------------------------------------------------- */

/* The index of the tensor named base + suffix; -1: none. */
static int64_t find(const resolver *r, ml_str base, const char *suffix) {
    char name[1024];
    int n = snprintf(name, sizeof name, "%.*s%s", (int)base.len, base.ptr, suffix);

    if (n < 0 || (size_t)n >= sizeof name)
        return -1;
    return ml_map_get(&r->by_name, (ml_str){ name, (size_t)n }, -1);
}

/* The tensor named base + suffix, which then belongs to the weight; NULL: none. */
static const ml_st_tensor *take(resolver *r, ml_str base, const char *suffix) {
    int64_t i = find(r, base, suffix);

    if (i < 0)
        return NULL;
    r->used[i] = true;
    return &r->c->tensor[i].t;
}

static ml_status fail_shape(const resolver *r, const ml_st_tensor *t, const char *want) {
    char found[128] = "";
    size_t n = 0;

    for (int32_t i = 0; i < t->n_dim && n < sizeof found; i++)
        n += (size_t)snprintf(found + n, sizeof found - n, "%s%" PRId64, i ? ", " : "",
                              t->shape[i]);
    return ml_fail(r->err, ML_EFORMAT, "%s: tensor %s is %s [%s]; %s was expected",
                   r->c->dir, t->name.ptr, ml_st_dtype_name(t->dtype), found, want);
}

static ml_status fail_missing(const resolver *r, ml_str base, const char *suffix) {
    return ml_fail(r->err, ML_EFORMAT,
                   "%s: tensor %.*s is quantized, but %.*s%s is missing", r->c->dir,
                   (int)base.len, base.ptr, (int)base.len, base.ptr, suffix);
}

static bool has_shape(const ml_st_tensor *t, int64_t rows, int64_t cols) {
    return t->n_dim == 2 && t->shape[0] == rows && t->shape[1] == cols;
}

static int64_t count_of(const ml_st_tensor *t) {
    int64_t n = 1;
    for (int32_t i = 0; i < t->n_dim; i++)
        n *= t->shape[i];
    return n;
}

static bool is_scale_dtype(ml_st_dtype t) {
    return t == ML_ST_F32 || t == ML_ST_BF16 || t == ML_ST_F16 || t == ML_ST_F8_E4M3 ||
           t == ML_ST_F8_E8M0 || t == ML_ST_U8;
}

static int64_t blocks(int64_t n, int64_t size) {
    return (n + size - 1) / size;
}

static void set_blocks(codes *q, int64_t rows, int64_t cols) {
    q->block_rows = rows;
    q->block_cols = cols;
    q->n_row_block = blocks(q->rows, rows);
    q->n_col_block = blocks(q->cols, cols);
}

/* The weight in place of its codes.  Its dtype is that of the scales where they have one
 * of the dtypes of weights with 16 bits, else bf16. */
static void put_weight(ml_st_tensor *t, const codes *q, const char *name) {
    t->name = ml_str_of(name);
    t->dtype = q->scale->dtype == ML_ST_F16 ? ML_ST_F16 : ML_ST_BF16;
    t->quant = &q->base;
    if (t->n_dim == 2) {
        t->shape[0] = q->rows;
        t->shape[1] = q->cols;
    }
}

static codes *new_quant(resolver *r, packing how, const ml_st_tensor *t) {
    codes *q = ML_NEW(&r->c->arena, codes, 1);
    *q = (codes){
        .base.read = read_codes, .how = how, .bits = 4, .code = t->data, .factor = 1.0f
    };
    return q;
}

/* --- formats ---------------------------------------------------------------------- */

/* One scale for all, one for each row, for 1x32 elements (MXFP8), or for each block; those
 * of a stack of matrices are stacked. */
static ml_status size_byte_blocks(const resolver *r, codes *q, bool stack) {
    ml_st_tensor s = *q->scale;
    bool exponent = s.dtype == ML_ST_U8 || s.dtype == ML_ST_F8_E8M0;

    if (stack && s.n_dim == 3) {
        s.n_dim = 2;
        memmove(s.shape, s.shape + 1, 2 * sizeof *s.shape);
    }
    if ((!stack && count_of(&s) == 1) || has_shape(&s, 1, 1))
        set_blocks(q, q->rows, q->cols);
    else if (exponent && has_shape(&s, q->rows, blocks(q->cols, 32)))
        set_blocks(q, 1, 32);
    else if (has_shape(&s, blocks(q->rows, r->block_rows), blocks(q->cols, r->block_cols)))
        set_blocks(q, r->block_rows, r->block_cols);
    else if (has_shape(&s, q->rows, 1) || (!stack && s.n_dim == 1 && s.shape[0] == q->rows))
        set_blocks(q, 1, q->cols);
    else {
        char want[160];
        snprintf(want, sizeof want,
                 "a scale for the tensor, for each of %" PRId64
                 " rows or for each block of %" PRId64 "x%" PRId64,
                 q->rows, r->block_rows, r->block_cols);
        return fail_shape(r, q->scale, want);
    }
    return ML_OK;
}

/* Codes of a byte, F8_E4M3 or I8, of a matrix or of a stack of them: x.weight, or x alone
 * with x_scale_inv. */
static ml_status resolve_bytes(resolver *r, ml_st_tensor *t, ml_str base, const char *part,
                               const char *name) {
    codes *q = new_quant(r, BYTES, t);
    bool stack = t->n_dim == 3;
    char inverse[40], scale[40];
    ml_status st;

    snprintf(inverse, sizeof inverse, "%s_scale_inv", part);
    snprintf(scale, sizeof scale, "%s_scale", part);
    q->value = t->dtype == ML_ST_I8 ? r->int8 : r->e4m3;
    q->scale = take(r, base, inverse);
    if (!q->scale)
        q->scale = take(r, base, scale);
    if (!q->scale && *part)
        q->scale = take(r, base, ".scale");
    if (!q->scale)
        return fail_missing(r, base,
                            *part ? ".weight_scale_inv (or .weight_scale, .scale)"
                                  : "_scale_inv (or _scale)");
    if ((t->n_dim != 2 && !stack) || !count_of(t))
        return fail_shape(r, t, "a matrix");
    if (!is_scale_dtype(q->scale->dtype) ||
        (stack && (q->scale->n_dim != 3 || q->scale->shape[0] != t->shape[0])))
        return fail_shape(r, q->scale,
                          stack ? "scales for each matrix of the stack"
                                : "a scale of F32, BF16, F16, F8_E8M0 or U8");
    q->rows = t->shape[stack];
    q->cols = t->shape[stack + 1];
    st = size_byte_blocks(r, q, stack);
    (void)take(r, base, ".input_scale");
    if (st == ML_OK)
        put_weight(t, q, name);
    return st;
}

/* compressed-tensors mxfp4-pack-quantized, experts of DeepSeek-V4: codes [rows, cols / 2],
 * an exponent for 32. */
static ml_status resolve_mxfp4_rows(resolver *r, ml_st_tensor *t, ml_str base,
                                    const char *scale, const char *name) {
    codes *q = new_quant(r, NIBBLES, t);

    q->value = r->e2m1;
    q->scale = take(r, base, scale);
    if (t->n_dim != 2 || !count_of(t) || t->shape[1] % 16)
        return fail_shape(r, t, "a matrix of two codes in a byte, in groups of 32");
    q->rows = t->shape[0];
    q->cols = t->shape[1] * 2;
    set_blocks(q, 1, 32);
    if (!has_shape(q->scale, q->rows, q->cols / 32))
        return fail_shape(r, q->scale, "an exponent for each 32 elements of a row");
    put_weight(t, q, name);
    return ML_OK;
}

/* Codes [rows, cols / 2], an e4m3 scale for 16 elements, and one for the tensor. */
static ml_status resolve_nvfp4(resolver *r, ml_st_tensor *t, ml_str base, const char *name,
                               const char *whole, bool divide) {
    codes *q = new_quant(r, NIBBLES, t);
    const ml_st_tensor *all = take(r, base, whole);

    q->value = r->e2m1;
    q->scale = take(r, base, ".weight_scale");
    (void)take(r, base, ".input_scale");
    (void)take(r, base, ".input_global_scale");
    if (!q->scale || !all)
        return fail_missing(r, base, q->scale ? whole : ".weight_scale");
    if (t->n_dim != 2 || !t->shape[0] || !t->shape[1] || t->shape[1] % 8)
        return fail_shape(r, t, "a matrix of two codes in a byte, in groups of 16");
    q->rows = t->shape[0];
    q->cols = t->shape[1] * 2;
    set_blocks(q, 1, 16);
    if (q->scale->dtype != ML_ST_F8_E4M3 || !has_shape(q->scale, q->rows, q->cols / 16))
        return fail_shape(r, q->scale, "an F8_E4M3 scale for each 16 elements of a row");
    if (all->dtype != ML_ST_F32 || count_of(all) != 1)
        return fail_shape(r, all, "one F32 number");
    q->factor = float_at(all, 0);
    q->divide = divide;
    put_weight(t, q, name);
    return ML_OK;
}

/* weight_shape: the number of rows and columns. */
static bool read_shape(const ml_st_tensor *t, int64_t *rows, int64_t *cols) {
    int64_t v[2];

    if (count_of(t) != 2 || (t->dtype != ML_ST_I64 && t->dtype != ML_ST_I32))
        return false;
    if (t->dtype == ML_ST_I64)
        memcpy(v, t->data, sizeof v);
    else
        for (int i = 0; i < 2; i++)
            v[i] = (int32_t)word_at(t->data, i);
    *rows = v[0];
    *cols = v[1];
    return v[0] > 0 && v[1] > 0 && v[0] < INT32_MAX && v[1] < INT32_MAX;
}

/* The group of each column; every one must exist. */
static ml_status take_groups(resolver *r, codes *q, const ml_st_tensor *g) {
    if (!g)
        return ML_OK;
    if (g->dtype != ML_ST_I32 || count_of(g) != q->cols)
        return fail_shape(r, g, "an I32 group for each input");
    for (int64_t i = 0; i < q->cols; i++)
        if (word_at(g->data, i) >= (uint32_t)q->n_col_block)
            return ml_fail(r->err, ML_EFORMAT,
                           "%s: tensor %s gives input %" PRId64 " the group %d; there are "
                           "%" PRId64 " groups",
                           r->c->dir, g->name.ptr, i, (int)word_at(g->data, i),
                           q->n_col_block);
    q->group = g->data;
    return ML_OK;
}

/* Columns of a group; where they do not divide a row, the last group is smaller. */
static int64_t group_size(const ml_json *scheme, int64_t cols, int64_t groups) {
    const ml_json *v = scheme ? ml_json_get(scheme, "group_size") : NULL;
    int64_t size;

    if (v && ml_json_i64(v, &size) && size > 0 && groups > 1)
        return size;
    return groups > 0 ? blocks(cols, groups) : cols;
}

/* compressed-tensors pack-quantized: offset codes, rows of words; a scale for each group of
 * columns. */
static ml_status resolve_packed(resolver *r, ml_st_tensor *t, ml_str base,
                                const char *name) {
    codes *q = new_quant(r, WORDS, t);
    const ml_st_tensor *shape = take(r, base, ".weight_shape");
    const ml_json *scheme = weights_scheme(r), *bits;
    double n_bits = 4;
    int64_t per, groups, size;

    q->scale = take(r, base, ".weight_scale");
    q->zero = take(r, base, ".weight_zero_point");
    if (!q->scale || !shape)
        return fail_missing(r, base, q->scale ? ".weight_shape" : ".weight_scale");
    bits = scheme ? ml_json_get(scheme, "num_bits") : NULL;
    if (bits && (!ml_json_f64(bits, &n_bits) || (n_bits != 4 && n_bits != 8)))
        return ml_fail(r->err, ML_EUNSUP,
                       "%s:%u: num_bits must be 4 or 8 for packed integer weights", r->path,
                       (unsigned)bits->line);
    q->bits = (int32_t)n_bits;
    q->zero_def = 1 << (q->bits - 1);
    per = 32 / q->bits;
    if (!read_shape(shape, &q->rows, &q->cols))
        return fail_shape(r, shape, "two positive integers");
    if (!has_shape(t, q->rows, blocks(q->cols, per)))
        return fail_shape(r, t, "rows of packed codes as weight_shape says");
    groups = q->scale->n_dim == 2 ? q->scale->shape[1] : 0;
    size = group_size(scheme, q->cols, groups);
    if (!is_scale_dtype(q->scale->dtype) || groups < 1 || blocks(q->cols, size) != groups ||
        q->scale->shape[0] != q->rows)
        return fail_shape(r, q->scale, "a scale for each group of a row");
    set_blocks(q, 1, size);
    if (q->zero &&
        (q->zero->dtype != ML_ST_I32 || !has_shape(q->zero, blocks(q->rows, per), groups)))
        return fail_shape(r, q->zero, "I32 zero points, packed over the rows");
    if (take_groups(r, q, take(r, base, ".weight_g_idx")) != ML_OK)
        return ML_EFORMAT;
    put_weight(t, q, name);
    return ML_OK;
}

/* gpt-oss: blocks [experts, rows, cols / 32, 16]; the weight is [experts, cols, rows]. */
static ml_status resolve_mxfp4(resolver *r, ml_st_tensor *t, ml_str base,
                               const char *name) {
    codes *q = new_quant(r, NIBBLES, t);

    q->value = r->e2m1;
    q->scale = take(r, base, "_scales");
    if (!q->scale)
        return fail_missing(r, base, "_scales");
    if (t->n_dim != 4 || t->shape[3] != 16 || !count_of(t))
        return fail_shape(r, t, "[experts, rows, columns / 32, 16]");
    if (q->scale->dtype != ML_ST_U8 || q->scale->n_dim != 3 ||
        memcmp(q->scale->shape, t->shape, 3 * sizeof *t->shape) != 0)
        return fail_shape(r, q->scale, "a U8 exponent for each block");
    q->rows = t->shape[1];
    q->cols = t->shape[2] * 32;
    q->transposed = true;
    set_blocks(q, 1, 32);
    t->n_dim = 3;
    t->shape[1] = q->cols;
    t->shape[2] = q->rows;
    put_weight(t, q, name);
    return ML_OK;
}

static ml_status check_gptq(const resolver *r, codes *q, const ml_st_tensor *t) {
    const ml_st_tensor *s = q->scale, *z = q->zero;
    int64_t groups = s->n_dim == 2 ? s->shape[0] : 0, per = 32 / q->bits;
    bool down = q->how == WORDS_DOWN;

    if (!has_shape(t, down ? blocks(q->cols, per) : q->cols,
                   down ? q->rows : q->rows / per) ||
        q->rows % per || q->cols % per || !q->rows || !q->cols)
        return fail_shape(r, t, "packed codes of whole words");
    if (!is_scale_dtype(s->dtype) || groups < 1 || s->shape[1] != q->rows)
        return fail_shape(r, s, "a scale for each group and output");
    if (z->dtype != ML_ST_I32 || !has_shape(z, groups, q->rows / per))
        return fail_shape(r, z, "I32 zero points for each group, packed over the outputs");
    set_blocks(q, 1, blocks(q->cols, groups));
    q->n_col_block = groups;
    return ML_OK;
}

static ml_status resolve_gptq(resolver *r, ml_st_tensor *t, ml_str base, const char *name) {
    bool awq = config_says(r, "quant_method", "awq");
    codes *q = new_quant(r, awq ? WORDS_MIXED : WORDS_DOWN, t);
    const ml_st_tensor *order = take(r, base, ".g_idx");
    ml_status st;

    q->bits = (int32_t)config_int(r, "bits", 4);
    q->scale = take(r, base, ".scales");
    q->zero = take(r, base, ".qzeros");
    if (!q->scale || !q->zero)
        return fail_missing(r, base, q->scale ? ".qzeros" : ".scales");
    if ((q->bits != 4 && q->bits != 8) || (awq && q->bits != 4))
        return ml_fail(r->err, ML_EUNSUP,
                       "%s: quantization_config.bits is %d; supported are %s", r->path,
                       (int)q->bits, awq ? "4 for AWQ" : "4 and 8 for GPTQ");
    if (t->n_dim != 2)
        return fail_shape(r, t, "a matrix of packed codes");
    q->cols = awq ? t->shape[0] : t->shape[0] * (32 / q->bits);
    q->rows = awq ? t->shape[1] * 8 : t->shape[1];
    q->scale_by_group = true;
    q->zero_add = config_says(r, "checkpoint_format", "gptq_v2") ? 0 : 1;
    st = check_gptq(r, q, t);
    if (st == ML_OK && !awq)
        st = take_groups(r, q, order);
    if (st == ML_OK)
        put_weight(t, q, name);
    return st;
}

/* --- all of a checkpoint ---------------------------------------------------------- */

static bool cut_suffix(ml_str name, const char *suffix, ml_str *base) {
    size_t n = strlen(suffix);

    if (name.len <= n || memcmp(name.ptr + name.len - n, suffix, n) != 0)
        return false;
    *base = (ml_str){ name.ptr, name.len - n };
    return true;
}

static const char *name_of(resolver *r, ml_str base, const char *suffix) {
    return ml_arena_printf(&r->c->arena, "%.*s%s", (int)base.len, base.ptr, suffix);
}

static bool has_exponents(const resolver *r, ml_str base, const char *scale) {
    int64_t i = find(r, base, scale);
    ml_st_dtype t = i < 0 ? ML_ST_F32 : r->c->tensor[i].t.dtype;

    return t == ML_ST_U8 || t == ML_ST_F8_E8M0;
}

/* Resolves the weight whose codes are t, if they are codes. */
static ml_status resolve(resolver *r, ml_st_tensor *t) {
    ml_str base;

    if (cut_suffix(t->name, ".weight", &base) && t->dtype == ML_ST_F8_E4M3)
        return resolve_bytes(r, t, base, ".weight", t->name.ptr);
    if (cut_suffix(t->name, ".weight", &base) && t->dtype == ML_ST_I8 &&
        has_exponents(r, base, ".scale"))
        return resolve_mxfp4_rows(r, t, base, ".scale", t->name.ptr);
    if (cut_suffix(t->name, ".weight", &base) && t->dtype == ML_ST_I8)
        return resolve_bytes(r, t, base, ".weight", t->name.ptr);
    if (t->dtype == ML_ST_F8_E4M3 && t->n_dim == 3)
        return resolve_bytes(r, t, t->name, "", t->name.ptr);
    if (cut_suffix(t->name, ".weight", &base) && t->dtype == ML_ST_U8)
        return resolve_nvfp4(r, t, base, t->name.ptr, ".weight_scale_2", false);
    if (cut_suffix(t->name, ".weight_packed", &base) && t->dtype == ML_ST_U8 &&
        has_exponents(r, base, ".weight_scale"))
        return resolve_mxfp4_rows(r, t, base, ".weight_scale", name_of(r, base, ".weight"));
    if (cut_suffix(t->name, ".weight_packed", &base) && t->dtype == ML_ST_U8)
        return resolve_nvfp4(r, t, base, name_of(r, base, ".weight"),
                             ".weight_global_scale", true);
    if (cut_suffix(t->name, ".weight_packed", &base) && t->dtype == ML_ST_I32)
        return resolve_packed(r, t, base, name_of(r, base, ".weight"));
    if (cut_suffix(t->name, "_blocks", &base) && t->dtype == ML_ST_U8)
        return resolve_mxfp4(r, t, base, name_of(r, base, ""));
    if (cut_suffix(t->name, ".qweight", &base) && t->dtype == ML_ST_I32)
        return resolve_gptq(r, t, base, name_of(r, base, ".weight"));
    return ML_OK;
}

/* Whether a tensor has codes, so that config.json has to be read. */
static bool has_codes(const ml_checkpoint *c) {
    ml_str base;

    for (int64_t i = 0; i < c->n_tensor; i++) {
        const ml_st_tensor *t = &c->tensor[i].t;
        if (t->dtype == ML_ST_F8_E4M3 || cut_suffix(t->name, ".qweight", &base) ||
            (t->dtype == ML_ST_I8 && cut_suffix(t->name, ".weight", &base)) ||
            cut_suffix(t->name, ".weight_packed", &base) ||
            (t->dtype == ML_ST_U8 && (cut_suffix(t->name, "_blocks", &base) ||
                                      cut_suffix(t->name, ".weight", &base))))
            return true;
    }
    return false;
}

/* The scale of a key or value cache in FP8; ours is not quantized. */
static bool is_cache_scale(ml_str name) {
    ml_str base;
    return cut_suffix(name, ".k_scale", &base) || cut_suffix(name, ".v_scale", &base);
}

static ml_status keep_weights(resolver *r) {
    ml_checkpoint *c = r->c;
    int64_t n = 0;

    ml_map_init(&c->by_name, &c->arena, c->n_tensor);
    for (int64_t i = 0; i < c->n_tensor; i++) {
        if (r->used[i] || is_cache_scale(c->tensor[i].t.name))
            continue;
        c->tensor[n] = c->tensor[i];
        c->tensor[n].stored = c->tensor[n].t.name;
        if (!ml_map_add(&c->by_name, c->tensor[n].t.name, n))
            return ml_fail(r->err, ML_EFORMAT,
                           "%s: tensor %s is stored both quantized and as it is", c->dir,
                           c->tensor[n].t.name.ptr);
        n++;
    }
    c->n_tensor = n;
    c->quantized = true;
    return ML_OK;
}

static ml_status resolve_all(resolver *r, ml_arena *scratch, ml_str text) {
    ml_checkpoint *c = r->c;
    const ml_json *root;
    ml_checkpoint_tensor *stored = ML_NEW(&c->arena, ml_checkpoint_tensor, c->n_tensor);
    ml_status st = ml_json_parse_python(&root, scratch, text, r->path, r->err);

    if (st != ML_OK)
        return st;
    r->config = find_quantization(root);
    read_block_size(r);
    r->used = ML_NEW(scratch, bool, c->n_tensor);
    r->e4m3 = table_of(&c->arena, 256, e4m3);
    r->e2m1 = table_of(&c->arena, 16, e2m1);
    r->int8 = table_of(&c->arena, 256, int8);
    /* Scales and zero points are read through c->tensor, so the weights replace it last. */
    memcpy(stored, c->tensor, (size_t)c->n_tensor * sizeof *stored);
    for (int64_t i = 0; i < c->n_tensor && st == ML_OK; i++)
        st = resolve(r, &stored[i].t);
    if (st != ML_OK)
        return st;
    c->tensor = stored;
    return keep_weights(r);
}

ml_status ml_quant_resolve(ml_checkpoint *c, ml_err *err) {
    resolver r = { .c = c, .by_name = c->by_name, .err = err };
    ml_file text = { 0 };
    ml_arena scratch;
    ml_status st;

    if (!has_codes(c))
        return ML_OK;
    ml_arena_init(&scratch, "quantized weights");
    r.path = ml_arena_printf(&c->arena, "%s/config.json", c->dir);
    st = ml_file_map(&text, r.path, err);
    if (st == ML_OK)
        st = resolve_all(&r, &scratch, text.bytes);
    ml_file_unmap(&text);
    ml_arena_release(&scratch);
    return st;
}
