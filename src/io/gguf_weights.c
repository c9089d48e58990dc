#include "io/gguf_weights.h"

#include <stdio.h>
#include <string.h>

#include "base/gguf_files.h"
#include "io/quant.h"

/* --- blocks ----------------------------------------------------------------------- */

#define MAX_BLOCK 256
#define MAX_TENSOR (1 << 24)

static float f16_at(const unsigned char *p) {
    return ml_f16_to_f32((uint16_t)(p[0] | p[1] << 8));
}

static void read_q4(const unsigned char *b, float *y, bool has_min) {
    const unsigned char *q = b + (has_min ? 4 : 2);
    float d = f16_at(b), m = has_min ? f16_at(b + 2) : 0;

    for (int j = 0; j < 16; j++) {
        y[j] = has_min ? d * (float)(q[j] & 15) + m : d * (float)((q[j] & 15) - 8);
        y[j + 16] = has_min ? d * (float)(q[j] >> 4) + m : d * (float)((q[j] >> 4) - 8);
    }
}

static void read_q5(const unsigned char *b, float *y, bool has_min) {
    const unsigned char *h = b + (has_min ? 4 : 2), *q = h + 4;
    uint32_t high =
        h[0] | (uint32_t)h[1] << 8 | (uint32_t)h[2] << 16 | (uint32_t)h[3] << 24;
    float d = f16_at(b), m = has_min ? f16_at(b + 2) : 0;

    for (int j = 0; j < 32; j++) {
        int v = (j < 16 ? q[j] & 15 : q[j - 16] >> 4) | (int)(high >> j & 1) << 4;
        y[j] = has_min ? d * (float)v + m : d * (float)(v - 16);
    }
}

static void read_q8(const unsigned char *b, float *y) {
    float d = f16_at(b);
    for (int j = 0; j < 32; j++)
        y[j] = d * (float)(int8_t)b[2 + j];
}

/* 16 groups of 16 elements with scales and minima of 4 bits; two bits each. */
static void read_q2_k(const unsigned char *b, float *y) {
    const unsigned char *q = b + 16;
    float d = f16_at(b + 80), min = f16_at(b + 82);

    for (int i = 0; i < 256; i++) {
        int group = i / 16, half = i / 128, in = i % 128;
        int v = q[half * 32 + in % 32] >> (in / 32 * 2) & 3;
        y[i] = d * (float)(b[group] & 15) * (float)v - min * (float)(b[group] >> 4);
    }
}

/* The same with scales of 6 bits, and a third bit in a mask. */
static void read_q3_k(const unsigned char *b, float *y) {
    const unsigned char *mask = b, *q = b + 32, *s = b + 96;
    float d = f16_at(b + 108);

    for (int i = 0; i < 256; i++) {
        int g = i / 16, half = i / 128, in = i % 128;
        int low = g < 8 ? s[g] & 15 : s[g - 8] >> 4;
        int scale = low | (s[8 + g % 4] >> (g / 4 * 2) & 3) << 4;
        int v = q[half * 32 + in % 32] >> (in / 32 * 2) & 3;
        v -= mask[in % 32] >> (half * 4 + in / 32) & 1 ? 0 : 4;
        y[i] = d * (float)(scale - 32) * (float)v;
    }
}

/* Scale and minimum of 6 bits of group j of 8, in 12 bytes. */
static void scale_min(const unsigned char *s, int j, int *scale, int *min) {
    if (j < 4) {
        *scale = s[j] & 63;
        *min = s[j + 4] & 63;
    } else {
        *scale = (s[j + 4] & 15) | s[j - 4] >> 6 << 4;
        *min = s[j + 4] >> 4 | s[j] >> 6 << 4;
    }
}

/* 8 groups of 32 elements; of Q5_K the fifth bit is in `high`. */
static void read_q4_k(const unsigned char *b, float *y, const unsigned char *high,
                      const unsigned char *q) {
    float d = f16_at(b), m = f16_at(b + 2);

    for (int j = 0; j < 8; j++) {
        int scale, min;
        float dl, ml;
        scale_min(b + 4, j, &scale, &min);
        dl = d * (float)scale;
        ml = m * (float)min;
        for (int l = 0; l < 32; l++) {
            int v = q[j / 2 * 32 + l] >> (j % 2 * 4) & 15;
            v += high && high[l] >> j & 1 ? 16 : 0;
            y[j * 32 + l] = dl * (float)v - ml;
        }
    }
}

static void read_q6_k(const unsigned char *b, float *y) {
    const unsigned char *low = b, *high = b + 128, *s = b + 192;
    float d = f16_at(b + 208);

    for (int i = 0; i < 256; i++) {
        int half = i / 128, in = i % 128, k = in / 32, l = in % 32;
        int v = low[half * 64 + k % 2 * 32 + l] >> (k / 2 * 4) & 15;
        v |= (high[half * 32 + l] >> (k * 2) & 3) << 4;
        y[i] = d * (float)(int8_t)s[i / 16] * (float)(v - 32);
    }
}

void ml_ggml_dequantize(uint32_t type, const unsigned char *b, float *y) {
    switch (type) {
    case ML_GGML_F32: memcpy(y, b, sizeof *y); return;
    case ML_GGML_F16: *y = f16_at(b); return;
    case ML_GGML_BF16: *y = ml_bf16_to_f32((uint16_t)(b[0] | b[1] << 8)); return;
    case ML_GGML_Q4_0: read_q4(b, y, false); return;
    case ML_GGML_Q4_1: read_q4(b, y, true); return;
    case ML_GGML_Q5_0: read_q5(b, y, false); return;
    case ML_GGML_Q5_1: read_q5(b, y, true); return;
    case ML_GGML_Q8_0: read_q8(b, y); return;
    case ML_GGML_Q2_K: read_q2_k(b, y); return;
    case ML_GGML_Q3_K: read_q3_k(b, y); return;
    case ML_GGML_Q4_K: read_q4_k(b, y, NULL, b + 16); return;
    case ML_GGML_Q5_K: read_q4_k(b, y, b + 16, b + 48); return;
    default: read_q6_k(b, y);
    }
}

/* --- tensors ---------------------------------------------------------------------- */

typedef struct view {
    ml_quant base;
    uint32_t type;
    const unsigned char *data;
    int64_t cols, per; /* elements of a row, of a block */
    size_t block, row; /* bytes */
    int64_t head_dim;  /* 0, or rows are pairs inside heads of this size */
    float minus;       /* subtracted */
} view;

/* Row 2i + j of a head in the file is row j * d / 2 + i of the release. */
static int64_t stored_row(const view *v, int64_t r) {
    int64_t d = v->head_dim, in = d ? r % d : 0;
    return d ? r - in + in % (d / 2) * 2 + in / (d / 2) : r;
}

static void read_row(const view *v, int64_t r, int64_t c, int64_t n, float *out) {
    const unsigned char *row = v->data + (size_t)stored_row(v, r) * v->row;
    float y[MAX_BLOCK];

    while (n > 0) {
        int64_t from = c % v->per, k = v->per - from < n ? v->per - from : n;
        ml_ggml_dequantize(v->type, row + (size_t)(c / v->per) * v->block, y);
        for (int64_t i = 0; i < k; i++)
            out[i] = y[from + i] - v->minus;
        out += k;
        c += k;
        n -= k;
    }
}

static void read_view(const ml_quant *base, int64_t at, int64_t step, int64_t n,
                      float *out) {
    const view *v = (const view *)base;

    if (step != 1) {
        for (int64_t i = 0; i < n; i++, at += step)
            read_row(v, at / v->cols, at % v->cols, 1, out + i);
        return;
    }
    while (n > 0) {
        int64_t c = at % v->cols, k = v->cols - c < n ? v->cols - c : n;
        read_row(v, at / v->cols, c, k, out);
        out += k;
        at += k;
        n -= k;
    }
}

/* --- names ------------------------------------------------------------------------ */

typedef struct lister {
    ml_st_file *f;
    ml_st_tensor *t;
    const ml_gguf *g;
    const ml_gguf_arch *arch;
    int64_t heads, kv_heads;
    ml_err *err;
} lister;

/* Parts of layers; with four norms, those of Gemma. */
static const struct {
    const char *stored, *name, *gemma;
} parts[] = {
    { "attn_norm", "input_layernorm", "input_layernorm" },
    { "ffn_norm", "post_attention_layernorm", "pre_feedforward_layernorm" },
    { "post_attention_norm", NULL, "post_attention_layernorm" },
    { "post_ffw_norm", NULL, "post_feedforward_layernorm" },
    { "attn_q", "self_attn.q_proj", "self_attn.q_proj" },
    { "attn_k", "self_attn.k_proj", "self_attn.k_proj" },
    { "attn_v", "self_attn.v_proj", "self_attn.v_proj" },
    { "attn_output", "self_attn.o_proj", "self_attn.o_proj" },
    { "attn_q_norm", "self_attn.q_norm", "self_attn.q_norm" },
    { "attn_k_norm", "self_attn.k_norm", "self_attn.k_norm" },
    { "ffn_gate", "mlp.gate_proj", "mlp.gate_proj" },
    { "ffn_up", "mlp.up_proj", "mlp.up_proj" },
    { "ffn_down", "mlp.down_proj", "mlp.down_proj" },
    { "ffn_gate_inp", "mlp.gate", NULL },
    { "ffn_gate_exps", "mlp.experts.%d.gate_proj", NULL },
    { "ffn_up_exps", "mlp.experts.%d.up_proj", NULL },
    { "ffn_down_exps", "mlp.experts.%d.down_proj", NULL },
};

/* The name in the release, with %d for the number of an expert; NULL: not known. */
static const char *name_of(lister *l, ml_str stored, const char **part) {
    static const struct {
        const char *stored, *name;
    } whole[] = { { "token_embd.weight", "model.embed_tokens.weight" },
                  { "output_norm.weight", "model.norm.weight" },
                  { "output.weight", "lm_head.weight" } };
    char text[256], what[128], kind[16];
    int layer, n = 0;

    *part = "";
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (ml_str_is(stored, whole[i].stored))
            return whole[i].name;
    ml_str_copy(text, sizeof text, stored);
    if (sscanf(text, "blk.%d.%127[a-z_0-9].%15[a-z]%n", &layer, what, kind, &n) != 3 ||
        text[n])
        return NULL;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *name = l->arch->four_norms ? parts[i].gemma : parts[i].name;
        if (name && strcmp(what, parts[i].stored) == 0) {
            *part = parts[i].stored;
            return ml_arena_printf(&l->f->arena, "model.layers.%d.%s.%s", layer, name,
                                   kind);
        }
    }
    return NULL;
}

static ml_st_dtype dtype_of(uint32_t type) {
    return type == ML_GGML_F32 ? ML_ST_F32 : type == ML_GGML_F16 ? ML_ST_F16 : ML_ST_BF16;
}

static bool is_plain(uint32_t type) {
    return type == ML_GGML_F32 || type == ML_GGML_F16 || type == ML_GGML_BF16;
}

/* Heads of q and k, whose rows Llama's files have in the order of pairs; 0: other rows. */
static int64_t paired_rows(const lister *l, const ml_gguf_tensor *t, const char *part) {
    bool q = strcmp(part, "attn_q") == 0, k = strcmp(part, "attn_k") == 0;
    int64_t heads = k ? l->kv_heads : l->heads;

    if (!l->arch->pairs || !(q || k))
        return 0;
    return heads > 0 && t->shape[0] % (2 * heads) == 0 ? t->shape[0] / heads : -1;
}

static bool is_norm(ml_str name) {
    static const char tail[] = "norm.weight";
    size_t n = sizeof tail - 1;
    return name.len > n && memcmp(name.ptr + name.len - n, tail, n) == 0;
}

static ml_status add(lister *l, const ml_gguf_tensor *t, const char *name, int64_t skip,
                     int64_t head_dim) {
    ml_st_tensor *out = &l->t[l->f->n];
    bool minus = l->arch->norm_plus_one && is_norm(t->name);
    int32_t drop = skip >= 0; /* an expert of a stack */
    int64_t rows = 1, cols = t->shape[t->n_dim - 1];

    *out = (ml_st_tensor){ .name = ml_str_of(name),
                           .dtype = dtype_of(t->type),
                           .n_dim = t->n_dim - drop,
                           .offset = t->offset,
                           .bytes = t->bytes };
    memcpy(out->shape, t->shape + drop, (size_t)out->n_dim * sizeof *out->shape);
    if (drop) {
        out->bytes /= (size_t)t->shape[0];
        out->offset += (size_t)skip * out->bytes;
    }
    out->data = l->g->image.ptr + out->offset;
    for (int32_t i = 0; i + 1 < out->n_dim; i++)
        rows *= out->shape[i];
    if (head_dim && t->n_dim == 1) { /* a bias: an element for each row */
        rows = t->shape[0];
        cols = 1;
    }
    if (head_dim || minus || !is_plain(t->type)) {
        view *v = ML_NEW(&l->f->arena, view, 1);
        *v = (view){ .base.read = read_view,
                     .type = t->type,
                     .data = out->data,
                     .cols = cols,
                     .row = rows ? out->bytes / (size_t)rows : 0,
                     .head_dim = head_dim,
                     .minus = minus ? 1.0f : 0.0f };
        ml_ggml_block(t->type, &v->per, &v->block);
        out->quant = &v->base;
    }
    if (!ml_map_add(&l->f->by_name, out->name, l->f->n))
        return ml_fail(l->err, ML_EFORMAT, "%s: tensor %s is stored twice", l->g->path,
                       name);
    l->f->n++;
    return ML_OK;
}

static ml_status add_named(lister *l, const ml_gguf_tensor *t) {
    const char *part, *name = name_of(l, t->name, &part), *hole;
    int64_t head_dim = paired_rows(l, t, part);
    ml_status st = ML_OK;

    if (ml_str_is(t->name, "rope_freqs.weight")) /* in config.json */
        return ML_OK;
    if (!name || head_dim < 0 || (t->n_dim == 3) != (strstr(part, "_exps") != NULL) ||
        (head_dim && t->n_dim == 1 && !is_plain(t->type)))
        return ml_fail(l->err, ML_EUNSUP,
                       "%s: tensor %.*s is not one that a %s model has in a GGUF file",
                       l->g->path, (int)(t->name.len < 200 ? t->name.len : 200),
                       t->name.ptr, l->arch->name);
    hole = strstr(name, "%d");
    if (!hole)
        return add(l, t, name, -1, head_dim);
    for (int64_t e = 0; e < t->shape[0] && st == ML_OK; e++)
        st = add(l, t,
                 ml_arena_printf(&l->f->arena, "%.*s%lld%s", (int)(hole - name), name,
                                 (long long)e, hole + 2),
                 e, 0);
    return st;
}

static int64_t count(const ml_gguf *g) {
    int64_t n = 0;
    for (int64_t i = 0; i < g->n_tensor && n <= MAX_TENSOR; i++)
        n += g->tensor[i].n_dim == 3 ? g->tensor[i].shape[0] : 1;
    return n;
}

static void free_gguf(void *g) {
    ml_gguf_free(g);
}

/* Lists the tensors of l->g, which the list owns. */
static ml_status list(ml_st_file **out, lister *l, ml_gguf *g) {
    ml_status st = ML_OK;

    if (count(g) > MAX_TENSOR) {
        st = ml_fail(l->err, ML_EFORMAT, "%s: the file claims more than 16777216 experts",
                     g->path);
        ml_gguf_free(g);
        return st;
    }
    l->g = g;
    l->f = ml_st_new(g->path, count(g), &l->t);
    l->f->file = g->file; /* unmapped with the list */
    g->file = (ml_file){ 0 };
    l->f->held = g;
    l->f->release = free_gguf;
    for (int64_t i = 0; i < g->n_tensor && st == ML_OK; i++)
        st = add_named(l, &g->tensor[i]);
    if (st == ML_OK)
        *out = l->f;
    else
        ml_st_close(l->f);
    return st;
}

/* Takes file i out of the list of a model's files. */
static ml_gguf *taken(ml_gguf **first, int32_t i) {
    ml_gguf **at = first, *g;

    while (i-- > 0)
        at = &(*at)->next;
    g = *at;
    *at = g->next;
    g->next = NULL;
    return g;
}

ml_status ml_gguf_weights_open(ml_st_file **out, const char *path, int32_t i, ml_err *err) {
    lister l = { .err = err };
    ml_gguf *first = NULL, *g;
    ml_status st = ml_gguf_open(&first, path, err);

    if (st == ML_OK)
        st = ml_gguf_arch_of(&l.arch, first, err);
    if (st == ML_OK) {
        l.heads = ml_gguf_int(first, "%.attention.head_count", 0);
        l.kv_heads = ml_gguf_int(first, "%.attention.head_count_kv", l.heads);
        g = taken(&first, i);
        st = list(out, &l, g);
    }
    ml_gguf_free(first);
    return st;
}
