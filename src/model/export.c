#include "model/export.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/json.h"
#include "io/quant.h"
#include "model/export_files.h"
#include "model/export_quant.h"
#include "model/source.h"
#include "model/tensors.h"

#define PIECE_BYTES ((size_t)1 << 20)

/* One tensor of the target checkpoint. */
typedef struct item {
    const ml_st_tensor *src;
    const ml_st_file *file;
    ml_named own;        /* param ML_NONE: copied from the source */
    const ml_weights *w; /* the set that it is of */
    const ml_spec *s;
    ml_st_dtype dtype;
    int32_t shard;
    ml_export_codes *codes; /* NULL, or this is part `part` of a quantized weight */
    int32_t part;
} item;

typedef struct shard {
    const char *name;
    const ml_st_file *same; /* the source file with exactly this layout, or NULL */
} shard;

typedef struct exporter {
    const ml_weights *w;
    const ml_spec *s;
    const ml_checkpoint *from;
    const ml_export_opts *o;
    ml_arena arena;
    item *it;
    int32_t n;
    ml_map by_name; /* index into items */
    shard *shard;
    int32_t n_shard;
    bool changed; /* the tensors differ from the source's: a critic has another head */
    void *piece;
} exporter;

static const char *in_dir(exporter *x, const char *name) {
    return ml_arena_printf(&x->arena, "%s/%s", x->o->dir, name);
}

/* --- the list of tensors ---------------------------------------------------- */

static bool is_float(ml_st_dtype t) {
    return t == ML_ST_F32 || t == ML_ST_BF16 || t == ML_ST_F16;
}

static item item_of(const exporter *x, const ml_st_file *file, const ml_st_tensor *t) {
    item i = { .src = t, .file = file, .dtype = t->dtype, .w = x->w, .s = x->s };

    /* Tables of whole numbers are not trained: they are copied. */
    if (!ml_named_find(&i.own, x->s, x->from, t->name) || x->s->param[i.own.param].below)
        i.own.param = ML_NONE;
    if (i.own.param == ML_NONE && x->o->also) {
        i.w = x->o->also;
        i.s = x->o->also_spec;
        if (!ml_named_find(&i.own, i.s, x->from, t->name))
            i.own.param = ML_NONE;
    }
    /* A stored copy of a tied head must follow the embedding it copies. */
    if (i.own.param == ML_NONE && x->s->tied && ml_is_lm_head(t->name)) {
        i.w = x->w;
        i.s = x->s;
        i.own.param = x->s->node[x->s->n_node - 1].w[0];
        i.own.n_dim = 2;
        i.own.shape[0] = x->s->n_vocab;
        i.own.shape[1] = x->s->n_hidden;
    }
    if (!x->o->keep_dtype && is_float(t->dtype) && i.own.param != ML_NONE &&
        !i.s->param[i.own.param].keep_f32)
        i.dtype = ml_st_from_dtype(x->o->dtype);
    if (i.own.param != ML_NONE && ml_param_is_value_head(&i.s->param[i.own.param]))
        i.dtype = ML_ST_F32;
    return i;
}

/* A critic made from a language model drops the LM head. */
static bool left_out(const exporter *x, ml_str name) {
    return x->s->critic && ml_is_lm_head(name);
}

/* Adds a tensor that the source does not have: the head of a critic. */
static void add_new_item(exporter *x, int32_t param) {
    const ml_param *p = &x->s->param[param];
    ml_st_tensor *t = ML_NEW(&x->arena, ml_st_tensor, 1);

    if (ml_checkpoint_find(x->from, ml_str_of(p->name), NULL))
        return;
    *t = (ml_st_tensor){ .name = ml_str_of(p->name),
                         .dtype = ML_ST_F32,
                         .n_dim = p->n_dim,
                         .shape = { p->shape[0], p->n_dim == 2 ? p->shape[1] : 0 } };
    x->it[x->n++] = (item){ .src = t,
                            .own = { .name = p->name,
                                     .param = param,
                                     .n_dim = p->n_dim,
                                     .shape = { p->shape[0], p->shape[1] } },
                            .w = x->w,
                            .s = x->s,
                            .dtype = ML_ST_F32,
                            .shard = x->from->n_file - 1 };
    x->changed = true;
}

/* The target has the names of the source's files. */
static const ml_st_tensor *as_stored(exporter *x, const ml_checkpoint_tensor *t) {
    ml_st_tensor *own;

    if (t->stored.ptr == t->t.name.ptr)
        return &t->t;
    own = ML_NEW(&x->arena, ml_st_tensor, 1);
    *own = t->t;
    own->name = t->stored;
    return own;
}

static void list_items(exporter *x) {
    x->it = ML_NEW(&x->arena, item, x->from->n_tensor + x->s->n_param);
    for (int64_t i = 0; i < x->from->n_tensor; i++) {
        const ml_checkpoint_tensor *t = &x->from->tensor[i];
        if (left_out(x, t->t.name)) {
            x->changed = true;
            continue;
        }
        x->it[x->n] = item_of(x, x->from->file[t->file], &t->t);
        x->it[x->n].src = as_stored(x, t);
        x->it[x->n++].shard = t->file;
    }
    for (int32_t i = 0; i < x->s->n_param && x->s->critic; i++)
        if (ml_param_is_value_head(&x->s->param[i]))
            add_new_item(x, i);
}

/* --- quantized weights ------------------------------------------------------- */

/* The gate of a gated MLP and its up projection have one scale: kernels compute them as one
 * matrix. */
static void link_pairs(exporter *x, const ml_map *weights) {
    static const char gate[] = "gate_proj.weight", up[] = "up_proj.weight";

    for (int32_t i = 0; i < x->n; i++) {
        const char *name = x->it[i].codes ? x->it[i].codes->own.name : NULL;
        size_t n = name ? strlen(name) : 0;
        bool is_gate = n > sizeof gate && !strcmp(name + n - (sizeof gate - 1), gate);
        bool is_up = !is_gate && n > sizeof up && !strcmp(name + n - (sizeof up - 1), up);
        size_t base = n - (is_gate ? sizeof gate : sizeof up) + 1;
        int64_t at;

        if (!is_gate && !is_up)
            continue;
        at = ml_map_get(weights,
                        ml_str_of(ml_arena_printf(&x->arena, "%.*s%s", (int)base, name,
                                                  is_gate ? up : gate)),
                        -1);
        if (at >= 0)
            x->it[i].codes->pair = &x->it[at].codes->own;
    }
}

/* Replaces the items of weights that are quantized by those of their parts. */
static void quantize_items(exporter *x) {
    item *all = ML_NEW(&x->arena, item, (size_t)x->n * ML_QUANT_PARTS);
    ml_map weights;
    int32_t n = 0;

    ml_map_init(&weights, &x->arena, x->n);
    for (int32_t i = 0; i < x->n; i++) {
        ml_export_codes *c = ML_NEW(&x->arena, ml_export_codes, 1);
        ml_st_tensor *t = ML_NEW(&x->arena, ml_st_tensor, ML_QUANT_PARTS);
        ml_str name = x->it[i].src->name;
        int32_t parts;

        if (!ml_export_codes_of(c, x->o->quantize, x->s, &x->it[i].own, name)) {
            all[n++] = x->it[i];
            continue;
        }
        parts = ml_export_codes_parts(c, name, t, &x->arena);
        c->own.name = name.ptr;
        ml_map_add(&weights, name, n);
        for (int32_t k = 0; k < parts; k++) {
            all[n] = x->it[i];
            all[n].src = &t[k];
            all[n].dtype = t[k].dtype;
            all[n].codes = c;
            all[n++].part = k;
        }
        x->changed = true;
    }
    x->it = all;
    x->n = n;
    link_pairs(x, &weights);
}

/* Names of modules with a matrix that is not quantized. */
static int32_t list_ignored(exporter *x, const char **out) {
    int32_t n = 0;

    for (int32_t i = 0; i < x->n; i++) {
        const item *it = &x->it[i];
        const char *dot = strrchr(it->src->name.ptr, '.');
        if (!it->codes && it->src->n_dim == 2 && dot && !strcmp(dot, ".weight"))
            out[n++] = ml_arena_str(&x->arena, it->src->name.ptr,
                                    (size_t)(dot - it->src->name.ptr));
    }
    return n;
}

static ml_status describe_quantization(exporter *x, ml_text *config, ml_err *err) {
    const char **ignored = ML_NEW(&x->arena, const char *, x->n);
    int32_t n = list_ignored(x, ignored);
    ml_text file = { 0 };
    ml_status st = ML_OK;

    if (x->o->quantize == ML_TO_NONE)
        return ML_OK;
    ml_export_quant_config(config, x->o->quantize, ignored, n);
    ml_export_quant_file(&file, x->o->quantize, ignored, n);
    if (file.len)
        st = ml_file_replace(in_dir(x, "hf_quant_config.json"),
                             (ml_str){ file.ptr, file.len }, err);
    ml_text_release(&file);
    return st;
}

static ml_status check_quantized(const exporter *x, ml_err *err) {
    for (int32_t i = 0; i < x->n; i++)
        if (x->it[i].codes)
            return ML_OK;
    return ml_fail(err, ML_EUSAGE,
                   "%s: --dtype has a format that applies to no weight of this %s model: "
                   "mxfp4 is for gpt-oss, other formats need rows of whole blocks",
                   x->from->dir, x->s->family);
}

/* Files of other formats are lists of tensors without a header (io/checkpoint.h). */
static bool is_safetensors(const ml_st_file *f) {
    return f->header.len > 0;
}

/* Whether the source's index is still valid for the target. */
static bool index_holds(const exporter *x) {
    return x->o->shard_bytes == 0 && x->o->keep_dtype && !x->changed &&
           !x->from->quantized && is_safetensors(x->from->file[0]);
}

static size_t item_bytes(const item *i) {
    size_t bytes = 0;
    ml_st_size(i->dtype, i->src->shape, i->src->n_dim, &bytes);
    return bytes;
}

/* --- assignment to files ---------------------------------------------------- */

static bool layout_kept(const exporter *x, int32_t f) {
    int32_t n = 0;
    for (int32_t i = 0; i < x->n; i++) {
        if (x->it[i].shard != f)
            continue;
        if (!x->it[i].file || x->it[i].dtype != x->it[i].src->dtype ||
            x->it[i].src->quant || x->it[i].codes)
            return false;
        n++;
    }
    return n == x->from->file[f]->n && is_safetensors(x->from->file[f]);
}

static const char *shard_name(exporter *x, int32_t f) {
    return x->n_shard == 1 ? "model.safetensors"
                           : ml_arena_printf(&x->arena, "model-%05d-of-%05d.safetensors",
                                             f + 1, x->n_shard);
}

static void keep_shards(exporter *x) {
    x->n_shard = x->from->n_file;
    x->shard = ML_NEW(&x->arena, shard, x->n_shard);
    for (int32_t f = 0; f < x->n_shard; f++)
        x->shard[f] =
            (shard){ .name = is_safetensors(x->from->file[f]) ? x->from->file_name[f]
                                                              : shard_name(x, f),
                     .same = layout_kept(x, f) ? x->from->file[f] : NULL };
}

/* The order of modules inside a decoder layer in transformers; parameters follow it. */
static int module_rank(const char *name) {
    const char *attn = strstr(name, ".self_attn.");
    if (attn)
        return strstr(attn, "_norm.") ? 1 : 0;
    return strstr(name, ".mlp.") ? 2 : 3;
}

/* Layers in order, between the embedding and the modules after the last layer. */
static int64_t layer_rank(const exporter *x, const item *i) {
    const ml_param *p = &i->s->param[i->own.param];
    const char *layers = strstr(p->name, ".layers.");
    if (layers)
        return 1 + strtol(layers + strlen(".layers."), NULL, 10);
    return i->s == x->s && i->own.param == 0 ? 0 : INT64_MAX;
}

/* The order of parameters in transformers; other tensors come last, in file order. */
static int by_module(const void *a, const void *b, void *ud) {
    const exporter *x = ud;
    const item *i = a, *k = b;
    int64_t li, lk;
    int mi, mk;

    if (i->own.param == ML_NONE || k->own.param == ML_NONE) {
        if ((i->own.param == ML_NONE) != (k->own.param == ML_NONE))
            return i->own.param == ML_NONE ? 1 : -1;
        return i->src < k->src ? -1 : 1;
    }
    li = layer_rank(x, i);
    lk = layer_rank(x, k);
    if (li != lk)
        return li < lk ? -1 : 1;
    mi = module_rank(i->s->param[i->own.param].name);
    mk = module_rank(k->s->param[k->own.param].name);
    if (mi != mk)
        return mi - mk;
    if (i->own.param != k->own.param)
        return i->own.param - k->own.param;
    return i->own.member - k->own.member;
}

/* Fills a file until the next tensor would exceed the limit; a larger tensor gets its own
 * file. */
static void split_shards(exporter *x) {
    size_t limit = (size_t)x->o->shard_bytes, size = 0;
    int32_t at = 0;

    qsort_r(x->it, (size_t)x->n, sizeof *x->it, by_module, x);
    for (int32_t i = 0; i < x->n; i++) {
        size_t bytes = item_bytes(&x->it[i]);
        if (size > 0 && size + bytes > limit) {
            at++;
            size = 0;
        }
        x->it[i].shard = at;
        size += bytes;
    }
    x->n_shard = at + 1;
    x->shard = ML_NEW(&x->arena, shard, x->n_shard);
    for (int32_t f = 0; f < x->n_shard; f++)
        x->shard[f].name = shard_name(x, f);
}

/* --- bytes ------------------------------------------------------------------ */

static ml_status write_param(exporter *x, ml_st_writer *out, int32_t at, const item *i,
                             ml_err *err) {
    ml_slices all = ml_named_slices(&i->own);
    size_t slice_bytes = item_bytes(i) / (size_t)all.n_slice;
    int64_t step = (int64_t)(PIECE_BYTES / slice_bytes);
    ml_dtype to = ML_F32;
    ml_status st = ML_OK;

    ml_st_to_dtype(i->dtype, &to);
    if (step < 1)
        step = 1;
    x->piece = realloc(x->piece, (size_t)step * slice_bytes);
    if (!x->piece)
        return ml_fail(err, ML_ENOMEM, "out of memory for %zu bytes of %s",
                       (size_t)step * slice_bytes, i->src->name.ptr);
    if (x->o->bring && i->s == x->s)
        st = x->o->bring(x->o->ud, &i->own, err);
    for (int64_t r = 0; r < all.n_slice && st == ML_OK; r += step) {
        int64_t n = all.n_slice - r < step ? all.n_slice - r : step;
        ml_named_read(i->w, i->s, &i->own, r, n, to, x->piece);
        st = ml_st_write(out, at, (size_t)r * slice_bytes, x->piece,
                         (size_t)n * slice_bytes, err);
    }
    return st;
}

/* n elements of a quantized tensor that is not a parameter, as its dtype. */
static void dequantize(const ml_st_tensor *t, int64_t at, int64_t n, void *out) {
    float piece[1024];
    const int64_t cap = (int64_t)(sizeof piece / sizeof *piece);
    uint16_t *o = out;

    if (t->dtype == ML_ST_F32) {
        ml_quant_read(t->quant, at, 1, n, out);
        return;
    }
    for (int64_t i = 0; i < n; i += cap) {
        int64_t k = n - i < cap ? n - i : cap;
        ml_quant_read(t->quant, at + i, 1, k, piece);
        for (int64_t j = 0; j < k; j++)
            o[i + j] =
                t->dtype == ML_ST_F16 ? ml_f32_to_f16(piece[j]) : ml_f32_to_bf16(piece[j]);
    }
}

/* Copies a tensor that is not a parameter. */
static ml_status write_other(ml_st_writer *out, int32_t at, const item *i, ml_err *err) {
    const ml_st_tensor *t = i->src;
    float piece[4096];
    const size_t size = t->dtype == ML_ST_F32 ? 4 : 2;
    const int64_t n = (int64_t)(item_bytes(i) / size), cap = 4096;
    ml_status st = ML_OK;

    if (!t->quant)
        return ml_st_write(out, at, 0, t->data, t->bytes, err);
    for (int64_t k = 0; k < n && st == ML_OK; k += cap) {
        int64_t part = n - k < cap ? n - k : cap;
        dequantize(t, k, part, piece);
        st = ml_st_write(out, at, (size_t)k * size, piece, (size_t)part * size, err);
    }
    return st;
}

static int32_t declare_shard(exporter *x, int32_t f, ml_st_tensor *t) {
    int32_t n = 0;
    for (int32_t i = 0; i < x->n; i++)
        if (x->it[i].shard == f) {
            t[n] = *x->it[i].src;
            t[n++].dtype = x->it[i].dtype;
        }
    return n;
}

static const item *item_named(const exporter *x, ml_str name) {
    return &x->it[ml_map_get(&x->by_name, name, ML_NONE)];
}

/* Opens file f of the target; t and n receive its tensors in order. */
static ml_status create_shard(exporter *x, int32_t f, ml_st_writer **out,
                              const ml_st_tensor **t, int32_t *n, ml_err *err) {
    static const ml_st_meta format = { { "format", 6 }, { "pt", 2 } };
    const char *path = in_dir(x, x->shard[f].name);
    const ml_st_file *same = x->shard[f].same;
    ml_st_tensor *own;

    if (same) {
        *t = same->tensor;
        *n = same->n;
        return ml_st_create_like(out, path, same, err);
    }
    own = ML_NEW(&x->arena, ml_st_tensor, x->n);
    *t = own;
    *n = declare_shard(x, f, own);
    ml_st_sort_like_hf(own, *n);
    return ml_st_create(
        out, path, &(ml_st_layout){ .n = *n, .tensor = own, .n_meta = 1, .meta = &format },
        err);
}

static ml_status write_shard(exporter *x, int32_t f, ml_err *err) {
    const ml_st_tensor *t;
    ml_st_writer *out;
    int32_t n;
    ml_status st = create_shard(x, f, &out, &t, &n, err);

    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < n && st == ML_OK; i++) {
        const item *it = item_named(x, t[i].name);
        st = it->codes ? ml_export_codes_write(it->codes, it->part, x->w, x->s, out, i, err)
             : it->own.param == ML_NONE ? write_other(out, i, it, err)
                                        : write_param(x, out, i, it, err);
    }
    if (st == ML_OK)
        return ml_st_commit(out, err);
    ml_st_abort(out);
    return st;
}

static int by_name(const void *a, const void *b, void *ud) {
    const item *i = *(const item *const *)a, *k = *(const item *const *)b;
    (void)ud;
    return strcmp(i->src->name.ptr, k->src->name.ptr);
}

/* In the format of transformers: json.dumps(indent=2, sort_keys=True) and a newline. */
static ml_status write_index(exporter *x, ml_err *err) {
    const item **sorted = ML_NEW(&x->arena, const item *, x->n);
    size_t bytes = 0;
    int64_t count = 0;
    ml_text t = { 0 };
    ml_status st;

    for (int32_t i = 0; i < x->n; i++) {
        int64_t n = 1;
        for (int32_t k = 0; k < x->it[i].src->n_dim; k++)
            n *= x->it[i].src->shape[k];
        sorted[i] = &x->it[i];
        bytes += item_bytes(&x->it[i]);
        count += n;
    }
    qsort_r(sorted, (size_t)x->n, sizeof *sorted, by_name, NULL);
    ml_text_printf(
        &t,
        "{\n  \"metadata\": {\n    \"total_parameters\": %lld,\n    \"total_size\": "
        "%zu\n  },\n  \"weight_map\": {\n",
        (long long)count, bytes);
    for (int32_t i = 0; i < x->n; i++) {
        ml_text_printf(&t, "    ");
        ml_json_quote(&t, sorted[i]->src->name);
        ml_text_printf(&t, ": \"%s\"%s\n", x->shard[sorted[i]->shard].name,
                       i + 1 < x->n ? "," : "");
    }
    ml_text_printf(&t, "  }\n}\n");
    st = ml_file_replace(in_dir(x, ML_EXPORT_INDEX), (ml_str){ t.ptr, t.len }, err);
    ml_text_release(&t);
    return st;
}

static ml_status write_weights(exporter *x, ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t f = 0; f < x->n_shard && st == ML_OK; f++)
        st = write_shard(x, f, err);
    /* A valid index is copied with the other files. */
    if (st == ML_OK && x->n_shard > 1 && !index_holds(x))
        st = write_index(x, err);
    return st;
}

/* --- tensor by tensor --------------------------------------------------------- */

static ml_status give_item(exporter *x, const item *i, ml_export_fn *fn, void *ud,
                           ml_err *err) {
    ml_st_tensor t = *i->src;
    ml_dtype to = ML_F32;

    if (i->own.param == ML_NONE && !t.quant)
        return fn(ud, &t, err);
    t.dtype = i->dtype;
    t.bytes = item_bytes(i);
    t.quant = NULL;
    ml_st_to_dtype(i->dtype, &to);
    x->piece = realloc(x->piece, t.bytes + 1);
    if (!x->piece)
        return ml_fail(err, ML_ENOMEM, "out of memory for %zu bytes of %s", t.bytes,
                       t.name.ptr);
    if (i->own.param == ML_NONE)
        dequantize(i->src, 0, (int64_t)(t.bytes / (i->dtype == ML_ST_F32 ? 4 : 2)),
                   x->piece);
    else
        ml_named_read(i->w, i->s, &i->own, 0, ml_named_slices(&i->own).n_slice, to,
                      x->piece);
    t.data = x->piece;
    return fn(ud, &t, err);
}

ml_status ml_export_each(const ml_weights *w, const ml_spec *s, const ml_checkpoint *from,
                         const ml_export_opts *o, ml_export_fn *fn, void *ud, ml_err *err) {
    exporter x = { .w = w, .s = s, .from = from, .o = o };
    ml_status st = ML_OK;

    ml_arena_init(&x.arena, "export");
    list_items(&x);
    for (int32_t i = 0; st == ML_OK && i < x.n; i++)
        st = give_item(&x, &x.it[i], fn, ud, err);
    free(x.piece);
    ml_arena_release(&x.arena);
    return st;
}

static ml_status plan_files(exporter *x, ml_err *err) {
    list_items(x);
    if (x->o->quantize != ML_TO_NONE) {
        ml_status st;
        quantize_items(x);
        st = check_quantized(x, err);
        if (st != ML_OK)
            return st;
    }
    if (x->o->shard_bytes)
        split_shards(x);
    else
        keep_shards(x);
    ml_map_init(&x->by_name, &x->arena, x->n);
    for (int32_t i = 0; i < x->n; i++)
        ml_map_add(&x->by_name, x->it[i].src->name, i);
    return ML_OK;
}

ml_status ml_export_hf(const ml_weights *w, const ml_spec *s, const ml_checkpoint *from,
                       const ml_export_opts *o, ml_err *err) {
    exporter x = { .w = w, .s = s, .from = from, .o = o };
    ml_text quantization = { 0 };
    ml_status st = ml_export_readable(from->dir, err);

    ml_arena_init(&x.arena, "export");
    if (st == ML_OK)
        st = ml_export_dir(o->dir, err);
    if (st == ML_OK)
        st = plan_files(&x, err);
    if (st == ML_OK)
        st = write_weights(&x, err);
    if (st == ML_OK)
        st = describe_quantization(&x, &quantization, err);
    if (st == ML_OK)
        st = ml_export_files(from->dir, s, o, index_holds(&x), quantization.ptr, err);
    ml_text_release(&quantization);
    free(x.piece);
    ml_arena_release(&x.arena);
    return st;
}
