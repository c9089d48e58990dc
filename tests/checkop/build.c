/* build.c - builds the contents of cases. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "tests/checkop/checkop.h"

#include "tensor/codes.h"

void ck_name(ck_case *c, const char *fmt, ...) {
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(c->name, sizeof c->name, fmt, ap);
    va_end(ap);
}

/* A 64-bit Weyl sequence, mixed by two multiply-xorshift rounds (similar to SplitMix64). */
uint32_t ck_random(ck_case *c) {
    uint64_t z;
    c->random += 0x9e3779b97f4a7c15u;
    z = c->random;
    z = (z ^ z >> 32) * 0xd6e8feb86659fd93u;
    z = (z ^ z >> 32) * 0xd6e8feb86659fd93u;
    return (uint32_t)(z >> 32);
}

int32_t ck_below(ck_case *c, int32_t n) {
    return (int32_t)(ck_random(c) % (uint32_t)n);
}

float ck_uniform(ck_case *c, float amp) {
    int32_t i = (int32_t)(ck_random(c) >> 8) - (1 << 23);
    return (float)i * 0x1p-23f * amp;
}

void ck_page_rows(ck_case *c, const int32_t *len, int32_t n_max) {
    int32_t *seq_start = ML_NEW(c->arena, int32_t, n_max + 1);
    int32_t *page_start = ML_NEW(c->arena, int32_t, n_max + 1), *pos, n = 0;

    for (; n < n_max && len[n]; n++) {
        seq_start[n + 1] = seq_start[n] + len[n];
        page_start[n + 1] = page_start[n] + (len[n] + ML_PAGE - 1) / ML_PAGE;
    }
    pos = ML_NEW(c->arena, int32_t, seq_start[n] + 1);
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < len[i]; t++)
            pos[seq_start[i] + t] = t;
    c->rows = (ml_rows){ .n_token = seq_start[n],
                         .n_seq = n,
                         .pos = pos,
                         .seq_start = seq_start,
                         .page_start = page_start };
}

int32_t ck_scatter_pages(ck_case *c, int32_t spare) {
    int32_t n = c->rows.page_start[c->rows.n_seq] + spare;
    int32_t *page = ML_NEW(c->arena, int32_t, n);

    for (int32_t i = 0; i < n; i++) {
        int32_t j = ck_below(c, i + 1);
        page[i] = page[j];
        page[j] = i;
    }
    c->rows.page = page;
    return n;
}

ml_tensor ck_vec(int64_t n) {
    return (ml_tensor){ .n_dim = 1, .shape = { n } };
}

ml_tensor ck_mat(int64_t n, int64_t m) {
    return (ml_tensor){ .n_dim = 2, .shape = { n, m } };
}

ml_tensor ck_cube(int64_t e, int64_t n, int64_t m) {
    return (ml_tensor){ .n_dim = 3, .shape = { e, n, m } };
}

int64_t ck_offset(const ml_tensor *t, int64_t e, int64_t i, int64_t j) {
    int64_t rows = t->n_dim > 1 ? t->shape[t->n_dim - 2] : 1;
    int64_t cols = t->shape[t->n_dim - 1], panel;
    if (t->layout == ML_ROWS)
        return (e * rows + i) * cols + j;
    panel = (e * ((rows + ML_LANES - 1) / ML_LANES) + i / ML_LANES) * ML_LANES * cols;
    if (t->dtype == ML_BF16 && cols % 2 == 0)
        return panel + (j / 2 * ML_LANES + i % ML_LANES) * 2 + j % 2;
    return panel + j * ML_LANES + i % ML_LANES;
}

/* Offset of the i-th element in row-major order. */
static int64_t offset_of(const ml_tensor *t, int64_t i) {
    int64_t rows, cols;
    if (t->layout == ML_ROWS)
        return i;
    rows = t->shape[t->n_dim - 2];
    cols = t->shape[t->n_dim - 1];
    return ck_offset(t, i / (rows * cols), i / cols % rows, i % cols);
}

static void put(const ml_tensor *t, int64_t i, float f) {
    int64_t at = offset_of(t, i);
    if (t->dtype == ML_BF16)
        ((uint16_t *)t->data)[at] = ml_f32_to_bf16(f);
    else
        ((float *)t->data)[at] = f;
}

static void give_memory(ck_case *c, ml_tensor *t) {
    size_t bytes = ml_tensor_bytes(t);
    t->data = ml_arena_take(c->arena, bytes ? bytes : 1, 1);
}

/* A matrix of quantized stack t. */
static ml_tensor coded_member(const ml_tensor *t, int64_t e) {
    ml_tensor m = { .dtype = t->dtype, .layout = t->layout, .n_dim = 2 };
    m.shape[0] = t->shape[t->n_dim - 2];
    m.shape[1] = t->shape[t->n_dim - 1];
    m.data = (char *)t->data + (size_t)e * ml_tensor_bytes(&m);
    return m;
}

static int64_t n_member(const ml_tensor *t) {
    return t->n_dim == 3 ? t->shape[0] : 1;
}

/* All codes but NaN; scales that bring them to at most `amp`.  Blocks of ML_FP8_BLOCKWISE share them. */
static void fill_codes(ck_case *c, ml_tensor *t, float amp) {
    const ml_codes *f = ml_dtype_codes(t->dtype);
    const bool fp8 = f->bits == 8 && t->dtype != ML_INT8;
    const float top = fp8 ? 448.0f : f->bits == 8 ? 128.0f : 8.0f;
    const int64_t rows = t->shape[t->n_dim - 2], cols = t->shape[t->n_dim - 1];
    uint8_t *code = ML_NEW(c->arena, uint8_t, cols);
    float *scale = ML_NEW(c->arena, float, cols);

    for (int64_t i = 0; i < n_member(t) * rows; i++) {
        const ml_tensor m = coded_member(t, i / rows);
        for (int64_t k = 0; k < cols; k++) {
            code[k] = (uint8_t)ck_below(c, 1 << f->bits);
            code[k] ^= fp8 && (code[k] & 127) == 127;
            if (t->dtype != ML_FP8_BLOCKWISE || rows % 128 || i % 128 == 0)
                scale[k] = amp / top * (1.0f - 0.3f * (1.0f + ck_uniform(c, 1.0f)));
        }
        ml_codes_put(&m, i % rows, 0, cols, code);
        ml_codes_put_scales(&m, i % rows, scale);
    }
}

void ck_fill(ck_case *c, ml_tensor *t, float amp) {
    int64_t n = ml_tensor_count(t);
    give_memory(c, t);
    if (ml_dtype_codes(t->dtype)) {
        fill_codes(c, t, amp);
        return;
    }
    for (int64_t i = 0; i < n; i++)
        put(t, i, ck_uniform(c, amp));
}

int32_t *ck_ints(ck_case *c, int64_t n, int32_t below) {
    int32_t *v = ML_NEW(c->arena, int32_t, n ? n : 1);
    for (int64_t i = 0; i < n; i++)
        v[i] = ck_below(c, below);
    return v;
}

static void coded_values(ml_arena *a, const ml_tensor *t, double *out) {
    const int64_t rows = t->shape[t->n_dim - 2], cols = t->shape[t->n_dim - 1];
    float *row = ML_NEW(a, float, cols);

    for (int64_t i = 0; i < n_member(t) * rows; i++) {
        const ml_tensor m = coded_member(t, i / rows);
        ml_codes_read(&m, i % rows, 0, cols, row);
        for (int64_t k = 0; k < cols; k++)
            out[i * cols + k] = (double)row[k];
    }
}

double *ck_values(ml_arena *a, const ml_tensor *t) {
    int64_t n = ml_tensor_count(t);
    double *v = ML_NEW(a, double, n ? n : 1);
    if (ml_dtype_codes(t->dtype)) {
        coded_values(a, t, v);
        return v;
    }
    for (int64_t i = 0; i < n; i++) {
        int64_t at = offset_of(t, i);
        if (t->dtype == ML_BF16)
            v[i] = (double)ml_bf16_to_f32(((const uint16_t *)t->data)[at]);
        else if (t->dtype == ML_I32)
            v[i] = ((const int32_t *)t->data)[at];
        else
            v[i] = (double)((const float *)t->data)[at];
    }
    return v;
}

ml_tensor ck_widened(ck_case *c, const ml_tensor *t) {
    const double *v = ck_values(c->arena, t);
    ml_tensor w = *t;

    w.dtype = ML_F32;
    give_memory(c, &w);
    for (int64_t i = 0; i < ml_tensor_count(&w); i++)
        put(&w, i, (float)v[i]);
    return w;
}

void ck_round_tensor(const ml_tensor *t) {
    float *v = t->data;
    int64_t n = v && t->dtype == ML_F32 ? (int64_t)(ml_tensor_bytes(t) / sizeof *v) : 0;
    for (int64_t i = 0; i < n; i++)
        v[i] = ml_bf16_to_f32(ml_f32_to_bf16(v[i]));
}

void ck_round(ck_case *c) {
    for (int i = 0; i < ML_OP_IN; i++) {
        ck_round_tensor(&c->in[i]);
        ck_round_tensor(&c->din[i]);
    }
    for (int i = 0; i < ML_OP_W; i++)
        ck_round_tensor(&c->w[i]);
    for (int i = 0; i < ML_OP_OUT; i++)
        ck_round_tensor(&c->dout[i]);
}

/* Rows cycle through: tiny numbers and zeros; huge numbers; infinities; all of these and
 * NaN.  NaN in every row would make every sum a NaN and hide the rest. */
static float special_value(ck_case *c, int64_t row) {
    static const float tiny[] = { 0.0f, -0.0f, 0x1p-149f, -0x1.8p-127f };
    static const float huge[] = { 0x1.fffffep127f, -0x1.fffffep127f, 1e30f, -1e25f };
    static const float inf[] = { INFINITY, -INFINITY, 0.0f, 1e-30f };
    static const float nan[] = { NAN, INFINITY, 0x1p-149f, -1e30f };
    static const float *const sets[] = { tiny, huge, inf, nan };
    uint32_t pick = ck_random(c);
    return pick % 8 < 4 ? sets[row % 4][pick % 4] : ck_uniform(c, 2.0f);
}

static void fill_special(ck_case *c, ml_tensor *t) {
    int64_t n = ml_tensor_count(t), cols = t->n_dim ? t->shape[t->n_dim - 1] : 1;
    if (!t->data || t->dtype == ML_I32 || ml_dtype_codes(t->dtype))
        return;
    give_memory(c, t);
    for (int64_t i = 0; i < n; i++)
        put(t, i, special_value(c, i / cols));
}

ck_case ck_special(const ck_case *c) {
    ck_case s = *c;
    ck_name(&s, "%.60s (special values)", c->name);
    for (int i = 0; i < ML_OP_IN; i++)
        fill_special(&s, &s.in[i]);
    for (int i = 0; i < ML_OP_W; i++)
        fill_special(&s, &s.w[i]);
    return s;
}

static void take_row(ml_tensor *t, int64_t row) {
    int64_t n = t->shape[0];
    if (t->data)
        t->data = (char *)t->data + (size_t)row * (ml_tensor_bytes(t) / (size_t)n);
    t->shape[0] = 1;
}

ck_case ck_row(const ck_case *c, int32_t t) {
    ck_case s = *c;
    ck_name(&s, "%.60s (row %d alone)", c->name, t);
    s.rows.n_token = 1;
    s.rows.id = c->rows.id ? c->rows.id + t : NULL;
    s.rows.pos = c->rows.pos ? c->rows.pos + t : NULL;
    s.rows.adapter = c->rows.adapter ? c->rows.adapter + t : NULL;
    s.rows.dropout_key = c->rows.dropout_key ? c->rows.dropout_key + t : NULL;
    for (int i = 0; i < ML_OP_IN; i++)
        if (s.in[i].data)
            take_row(&s.in[i], t);
    if (s.given.data)
        take_row(&s.given, t);
    for (int i = 0; i < ML_OP_OUT; i++)
        if (c->suite->row_out & 1u << i)
            take_row(&s.out[i], t);
    return s;
}
