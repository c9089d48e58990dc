#include "model/export_gguf.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ALIGN 32
#define BAND 64 /* rows that are written at a time */

/* A tensor of the file. */
typedef struct out_tensor {
    const char *name;
    int32_t param; /* ML_NONE: rotary factors */
    ml_ggml_type type;
    int64_t shape[3]; /* [members, rows, columns] */
    size_t offset, row_bytes;
    int64_t head_dim; /* 0, or rows are stored as rotary pairs inside heads */
    float plus;
} out_tensor;

typedef struct exporter {
    const ml_weights *w;
    const ml_spec *s;
    const ml_gguf_arch *arch;
    ml_ggml_type type;
    float *freqs;
    int64_t n_freq;
    out_tensor *t;
    int32_t n;
    size_t data; /* offset of the data section */
    ml_gguf_keys keys;
    ml_arena arena;
    ml_out out;
} exporter;

/* --- names ------------------------------------------------------------------------ */

static const struct {
    const char *name, *stored, *gemma; /* NULL: as stored */
} parts[] = {
    { "input_layernorm.", "attn_norm", NULL },
    { "post_attention_layernorm.", "ffn_norm", "post_attention_norm" },
    { "pre_feedforward_layernorm.", NULL, "ffn_norm" },
    { "post_feedforward_layernorm.", NULL, "post_ffw_norm" },
    { "self_attn.q_proj.", "attn_q", NULL },
    { "self_attn.k_proj.", "attn_k", NULL },
    { "self_attn.v_proj.", "attn_v", NULL },
    { "self_attn.o_proj.", "attn_output", NULL },
    { "self_attn.q_norm.", "attn_q_norm", NULL },
    { "self_attn.k_norm.", "attn_k_norm", NULL },
    { "mlp.gate_proj.", "ffn_gate", NULL },
    { "mlp.up_proj.", "ffn_up", NULL },
    { "mlp.down_proj.", "ffn_down", NULL },
    { "mlp.gate.", "ffn_gate_inp", NULL },
    { "mlp.experts.gate_proj.", "ffn_gate_exps", NULL },
    { "mlp.experts.up_proj.", "ffn_up_exps", NULL },
    { "mlp.experts.down_proj.", "ffn_down_exps", NULL },
};

/* The parameter's name without the number of an expert. */
static const char *plain_name(exporter *x, const ml_param *p) {
    if (!p->name_after)
        return p->name;
    return ml_arena_printf(&x->arena, "%s%s", p->name, p->name_after + 1);
}

static const char *stored_name(exporter *x, const char *name) {
    const char *layers = "model.layers.", *rest, *kind = strrchr(name, '.');
    long layer;
    char *end;

    if (strcmp(name, "model.embed_tokens.weight") == 0)
        return "token_embd.weight";
    if (strcmp(name, "model.norm.weight") == 0)
        return "output_norm.weight";
    if (strcmp(name, "lm_head.weight") == 0)
        return "output.weight";
    if (strncmp(name, layers, strlen(layers)) != 0 || !kind)
        return NULL;
    layer = strtol(name + strlen(layers), &end, 10);
    rest = end + 1;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++) {
        const char *stored =
            x->arch->four_norms && parts[i].gemma ? parts[i].gemma : parts[i].stored;
        if (stored && (size_t)(kind + 1 - rest) == strlen(parts[i].name) &&
            strncmp(rest, parts[i].name, strlen(parts[i].name)) == 0)
            return ml_arena_printf(&x->arena, "blk.%ld.%s%s", layer, stored, kind);
    }
    return NULL;
}

/* --- the list of tensors ---------------------------------------------------------- */

static bool ends_in(const char *name, const char *tail) {
    size_t n = strlen(name), k = strlen(tail);
    return n >= k && strcmp(name + n - k, tail) == 0;
}

/* Vectors and routers stay F32; a row that is not whole blocks is stored as F16. */
static ml_ggml_type type_of(const exporter *x, const ml_param *p, const char *stored) {
    int64_t per;
    size_t size;

    if (p->n_dim == 1 || strstr(stored, "ffn_gate_inp"))
        return ML_GGML_F32;
    ml_ggml_block(x->type, &per, &size);
    return p->shape[1] % per ? ML_GGML_F16 : x->type;
}

/* The size of a head: from the attention of the first layer. */
static int64_t head_dim_of(const ml_spec *s) {
    for (int32_t i = 0; i < s->n_node; i++)
        if (s->node[i].op == ML_OP_ATTN)
            return s->node[i].attr.attn.head_dim;
    return 0;
}

static void add_param(exporter *x, int32_t i, const char *stored) {
    const ml_param *p = &x->s->param[i];
    out_tensor *t = &x->t[x->n++];
    int64_t rows = p->n_dim == 2 ? p->shape[0] : 1, per = 1;
    int64_t cols = p->n_dim == 2 ? p->shape[1] : p->shape[0];
    size_t size = 0;

    *t = (out_tensor){ .name = stored,
                       .param = i,
                       .type = type_of(x, p, stored),
                       .shape = { p->n_stack, rows, cols } };
    ml_ggml_block(t->type, &per, &size);
    t->row_bytes = (size_t)(cols / per) * size;
    if (x->arch->norm_plus_one && ends_in(stored, "norm.weight"))
        t->plus = 1.0f;
    if (x->arch->pairs && (strstr(stored, "attn_q.") || strstr(stored, "attn_k.")))
        t->head_dim = head_dim_of(x->s);
}

static long layer_of(const ml_param *p) {
    const char *layers = strstr(p->name, ".layers.");
    if (layers)
        return 1 + strtol(layers + strlen(".layers."), NULL, 10);
    return strcmp(p->name, "model.norm.weight") == 0 ? 1L << 30 : 0;
}

/* llama.cpp's converter: layers in order, inside them by the names of the release. */
static int by_name(const void *a, const void *b, void *ud) {
    const exporter *x = ud;
    const ml_param *p = &x->s->param[*(const int32_t *)a];
    const ml_param *q = &x->s->param[*(const int32_t *)b];
    long l = layer_of(p), m = layer_of(q);

    if (l != m)
        return l < m ? -1 : 1;
    return strcmp(p->name, q->name);
}

static ml_status list_tensors(exporter *x, ml_err *err) {
    int32_t *order = ML_NEW(&x->arena, int32_t, x->s->n_param);

    x->t = ML_NEW(&x->arena, out_tensor, x->s->n_param + 1);
    for (int32_t i = 0; i < x->s->n_param; i++)
        order[i] = i;
    qsort_r(order, (size_t)x->s->n_param, sizeof *order, by_name, x);
    for (int32_t i = 0; i < x->s->n_param; i++) {
        const char *name = plain_name(x, &x->s->param[order[i]]);
        const char *stored = stored_name(x, name);
        if (!stored)
            return ml_fail(err, ML_EUNSUP,
                           "tensor %s of this %s model has no name in a GGUF file", name,
                           x->s->family);
        add_param(x, order[i], stored);
    }
    if (x->freqs)
        x->t[x->n++] = (out_tensor){ .name = "rope_freqs.weight",
                                     .param = ML_NONE,
                                     .type = ML_GGML_F32,
                                     .shape = { 1, 1, x->n_freq },
                                     .row_bytes = (size_t)x->n_freq * 4 };
    return ML_OK;
}

/* --- bytes ------------------------------------------------------------------------ */

static void put_uint(ml_text *t, uint64_t v, size_t n) {
    for (size_t i = 0; i < n; i++) {
        char c = (char)(v >> (8 * i));
        ml_text_add(t, &c, 1);
    }
}

static size_t aligned(size_t n) {
    return (n + ALIGN - 1) / ALIGN * ALIGN;
}

static int32_t dims_of(const exporter *x, const out_tensor *t) {
    if (t->param == ML_NONE || x->s->param[t->param].n_dim == 1)
        return 1;
    return x->s->param[t->param].name_after ? 3 : 2;
}

static void put_header(exporter *x, ml_text *h) {
    size_t at = 0;

    ml_text_add(h, "GGUF", 4);
    put_uint(h, 3, 4);
    put_uint(h, (uint64_t)x->n, 8);
    put_uint(h, x->keys.n, 8);
    ml_text_add(h, x->keys.bytes.ptr, x->keys.bytes.len);
    for (int32_t i = 0; i < x->n; i++) {
        out_tensor *t = &x->t[i];
        int32_t n_dim = dims_of(x, t);
        put_uint(h, strlen(t->name), 8);
        ml_text_add(h, t->name, strlen(t->name));
        put_uint(h, (uint64_t)n_dim, 4);
        for (int32_t d = 0; d < n_dim; d++)
            put_uint(h, (uint64_t)t->shape[2 - d], 8);
        put_uint(h, t->type, 4);
        put_uint(h, at, 8);
        t->offset = at;
        at += aligned((size_t)(t->shape[0] * t->shape[1]) * t->row_bytes);
    }
    x->data = aligned(h->len);
}

/* ggml's reference: a scale of 16 bits for 32 values, rounded half away from zero. */
static void put_q8_0(const float *v, int64_t n, unsigned char *out) {
    for (int64_t b = 0; b < n / 32; b++, out += 34) {
        float most = 0, d, by;
        uint16_t h;
        for (int i = 0; i < 32; i++)
            most = fmaxf(most, fabsf(v[b * 32 + i]));
        d = most / 127.0f;
        by = d != 0 ? 1.0f / d : 0.0f;
        h = ml_f32_to_f16(d);
        out[0] = (unsigned char)h;
        out[1] = (unsigned char)(h >> 8);
        for (int i = 0; i < 32; i++)
            out[2 + i] = (unsigned char)(int8_t)roundf(v[b * 32 + i] * by);
    }
}

static void put_row(ml_ggml_type type, const float *v, int64_t n, unsigned char *out) {
    if (type == ML_GGML_Q8_0) {
        put_q8_0(v, n, out);
        return;
    }
    if (type == ML_GGML_F32) {
        memcpy(out, v, (size_t)n * 4);
        return;
    }
    for (int64_t i = 0; i < n; i++) {
        uint16_t h = type == ML_GGML_F16 ? ml_f32_to_f16(v[i]) : ml_f32_to_bf16(v[i]);
        out[2 * i] = (unsigned char)h;
        out[2 * i + 1] = (unsigned char)(h >> 8);
    }
}

/* Row 2i + j of a head in the file is row j * d / 2 + i of the release. */
static int64_t release_row(const out_tensor *t, int64_t r) {
    int64_t d = t->head_dim, in = d ? r % d : 0;
    return d ? r - in + in % 2 * (d / 2) + in / 2 : r;
}

/* A row of the parameter in the file's order; a bias of q or k has an element for each row
 * of its matrix.  `row` has space for two. */
static void stored_values(const exporter *x, const out_tensor *t, int64_t e, int64_t r,
                          float *row) {
    int64_t cols = t->shape[2];
    bool bias = t->head_dim && x->s->param[t->param].n_dim == 1;
    float *to = bias ? row + cols : row;

    ml_weights_unpack(x->w, t->param, (int32_t)e, bias ? r : release_row(t, r), 1, ML_F32,
                      to);
    for (int64_t k = 0; k < cols && bias; k++)
        row[k] = to[release_row(t, k)];
    for (int64_t k = 0; k < cols && t->plus != 0; k++)
        row[k] += t->plus;
}

static ml_status write_band(exporter *x, const out_tensor *t, int64_t e, int64_t r,
                            int64_t n, float *row, unsigned char *bytes, ml_err *err) {
    int64_t cols = t->shape[2];

    for (int64_t i = 0; i < n; i++) {
        if (t->param == ML_NONE)
            memcpy(row, x->freqs, (size_t)cols * 4);
        else
            stored_values(x, t, e, r + i, row);
        put_row(t->type, row, cols, bytes + (size_t)i * t->row_bytes);
    }
    return ml_out_write(&x->out,
                        x->data + t->offset + (size_t)(e * t->shape[1] + r) * t->row_bytes,
                        (ml_str){ (const char *)bytes, (size_t)n * t->row_bytes }, err);
}

static ml_status write_tensor(exporter *x, const out_tensor *t, ml_err *err) {
    float *row = malloc((size_t)t->shape[2] * 2 * sizeof *row);
    unsigned char *bytes = malloc(BAND * t->row_bytes);
    ml_status st = ML_OK;

    if (!row || !bytes)
        st = ml_fail(err, ML_ENOMEM, "out of memory for rows of %s", t->name);
    for (int64_t e = 0; row && bytes && e < t->shape[0] && st == ML_OK; e++)
        for (int64_t r = 0; r < t->shape[1] && st == ML_OK; r += BAND)
            st = write_band(x, t, e, r, t->shape[1] - r < BAND ? t->shape[1] - r : BAND,
                            row, bytes, err);
    free(row);
    free(bytes);
    return st;
}

static ml_status write_file(exporter *x, const char *path, ml_err *err) {
    static const char zeros[ALIGN];
    ml_text header = { 0 };
    const out_tensor *last = &x->t[x->n - 1];
    size_t end, padded;
    ml_status st;

    put_header(x, &header);
    end = x->data + last->offset +
          (size_t)(last->shape[0] * last->shape[1]) * last->row_bytes;
    padded = aligned(end);
    st = ml_out_open(&x->out, path, err);
    if (st == ML_OK)
        st = ml_out_write(&x->out, 0, (ml_str){ header.ptr, header.len }, err);
    for (int32_t i = 0; i < x->n && st == ML_OK; i++)
        st = write_tensor(x, &x->t[i], err);
    if (st == ML_OK && padded > end) /* the file ends at a multiple of the alignment */
        st = ml_out_write(&x->out, end, (ml_str){ zeros, padded - end }, err);
    if (st == ML_OK)
        st = ml_out_commit(&x->out, err);
    ml_out_abort(&x->out);
    ml_text_release(&header);
    return st;
}

static ml_status find_arch(exporter *x, ml_err *err) {
    x->arch = ml_gguf_arch_named(x->s->family);
    if (x->arch)
        return ML_OK;
    return ml_fail(err, ML_EUNSUP,
                   "--save-gguf: %s models cannot be written as GGUF; llama, mistral, "
                   "qwen2, qwen3, qwen3_moe, gemma2 and gemma3_text can",
                   x->s->family);
}

/* The factors of rotary frequencies, which are a tensor of the source. */
static void copy_freqs(exporter *x, const ml_gguf *g) {
    const ml_gguf_tensor *t = ml_gguf_find(g, "rope_freqs.weight");

    if (!t)
        return;
    x->n_freq = t->shape[0];
    x->freqs = ML_NEW(&x->arena, float, x->n_freq);
    memcpy(x->freqs, ml_gguf_bytes(g, t).ptr, (size_t)x->n_freq * sizeof *x->freqs);
}

ml_status ml_export_gguf(const ml_weights *w, const ml_spec *s, const ml_checkpoint *from,
                         const char *path, ml_ggml_type type, ml_err *err) {
    exporter x = { .w = w, .s = s, .type = type };
    ml_gguf *g = NULL;
    char config[4096];
    size_t n;
    ml_status st = find_arch(&x, err);

    ml_arena_init(&x.arena, "a GGUF file");
    snprintf(config, sizeof config, "%s/config.json", from->dir);
    if (st == ML_OK && ml_gguf_is_file(config, &n)) {
        st = ml_gguf_open(&g, from->dir, err);
        if (st == ML_OK) {
            ml_gguf_keys_copy(&x.keys, g, type);
            copy_freqs(&x, g);
        }
    } else if (st == ML_OK) {
        st = ml_gguf_keys_of(&x.keys, from->dir, x.arch, s->n_vocab, type, &x.arena,
                             &x.freqs, &x.n_freq, err);
    }
    if (st == ML_OK)
        st = list_tensors(&x, err);
    if (st == ML_OK)
        st = write_file(&x, path, err);
    ml_gguf_free(g);
    ml_text_release(&x.keys.bytes);
    ml_arena_release(&x.arena);
    return st;
}
