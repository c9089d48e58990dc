#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "model/lora_priv.h"

#define NAME_CAP 600

/* --- reading -------------------------------------------------------------------- */

typedef struct reader {
    ml_lora *l;
    const ml_spec *base;
    ml_st_file *file;
    bool *used;        /* [tensors of the file] */
    ml_arena *scratch; /* of the read */
    ml_err *err;
} reader;

/* One side of a site. */
typedef struct side {
    ml_lora_form form;
    bool nested;
    const char *module;
    ml_param param;
} side;

static const ml_st_tensor *tensor_of(const reader *r, const ml_param *p, int32_t e) {
    char buf[NAME_CAP];
    return ml_st_find(r->file, ml_str_of(ml_lora_tensor_name(p, e, buf, sizeof buf)));
}

/* A STACK without base_layer is that of the only parameter that the file adapts. */
static bool stack_fits(const reader *r, const ml_lora_layer *l, const ml_param *p,
                       const char *module) {
    const ml_st_tensor *t = tensor_of(r, p, 0);
    int64_t shape[3];

    if (!t)
        return false;
    if (r->l->config.n_parameter)
        return ml_peft_is_parameter(&r->l->config, module);
    ml_lora_tensor_shape(p, shape);
    return t->n_dim == 2 && (t->shape[1] == l->n_in || t->shape[0] == shape[0]);
}

/* Gate and up are wrapped first, so that they are nested if down is adapted, too. */
static bool is_nested(const reader *r, const ml_lora_layer *l, ml_lora_side s) {
    ml_param p = ml_lora_param(r->scratch, r->base, l, ML_LORA_STACK, s, 1, true);
    const char *module = ml_lora_module(r->scratch, r->base, l, ML_LORA_STACK);
    const char *last = strrchr(module, '.');

    return tensor_of(r, &p, 0) && last && strcmp(last, ".down_proj") != 0;
}

static bool find_side(const reader *r, const ml_lora_layer *l, ml_lora_side s, side *out) {
    for (int f = 0; f < ML_LORA_FORMS; f++) {
        *out = (side){ .form = (ml_lora_form)f };
        out->module = ml_lora_module(&r->l->arena, r->base, l, out->form);
        if (!out->module)
            continue;
        out->nested = out->form == ML_LORA_STACK && is_nested(r, l, s);
        out->param = ml_lora_param(r->scratch, r->base, l, out->form, s, 1, out->nested);
        if (out->form == ML_LORA_STACK && !out->nested &&
            !stack_fits(r, l, &out->param, out->module))
            continue;
        if (tensor_of(r, &out->param, 0))
            return true;
    }
    return false;
}

static ml_status fail_shape(const reader *r, const ml_st_tensor *t, const int64_t *want,
                            int32_t n_dim, int32_t rank) {
    char text[2][96];

    for (int k = 0; k < 2; k++) {
        const int64_t *shape = k ? want : t->shape;
        int32_t n = k ? n_dim : t->n_dim;
        size_t at = (size_t)snprintf(text[k], sizeof text[k], "[");
        for (int32_t i = 0; i < n && at < sizeof text[k]; i++)
            at += (size_t)snprintf(text[k] + at, sizeof text[k] - at, "%s%lld",
                                   i ? ", " : "", (long long)shape[i]);
        if (at < sizeof text[k])
            snprintf(text[k] + at, sizeof text[k] - at, "]");
    }
    return ml_fail(r->err, ML_EFORMAT,
                   "%s: tensor %s has shape %s; the model and a rank of %d (%s) need %s",
                   r->file->path, t->name.ptr, text[0], rank, ML_LORA_CONFIG, text[1]);
}

static ml_status check_tensor(const reader *r, const ml_param *p, int32_t e, int32_t rank) {
    const ml_st_tensor *t = tensor_of(r, p, e);
    char name[NAME_CAP];
    int64_t shape[3];
    int32_t n_dim = ml_lora_tensor_shape(p, shape);
    bool same;

    if (!t)
        return ml_fail(r->err, ML_EFORMAT, "%s: tensor %s is missing", r->file->path,
                       ml_lora_tensor_name(p, e, name, sizeof name));
    same = t->n_dim == n_dim;
    for (int32_t i = 0; i < n_dim; i++)
        same = same && t->shape[i] == shape[i];
    if (!same)
        return fail_shape(r, t, shape, n_dim, rank);
    if (t->dtype != ML_ST_F32 && t->dtype != ML_ST_BF16 && t->dtype != ML_ST_F16)
        return ml_fail(r->err, ML_EUNSUP,
                       "%s: tensor %s has dtype %s; supported are F32, BF16, F16",
                       r->file->path, t->name.ptr, ml_st_dtype_name(t->dtype));
    r->used[t - r->file->tensor] = true;
    return ML_OK;
}

static ml_status check_target(const reader *r, const side *d) {
    char name[NAME_CAP];
    bool target = false;
    ml_status st = ml_peft_is_target(&r->l->config, d->module, &target, r->err);

    if (st != ML_OK || target || ml_peft_is_parameter(&r->l->config, d->module) ||
        ml_peft_is_parameter(&r->l->config,
                             ml_arena_printf(r->scratch, "%s.weight", d->module)))
        return st;
    return ml_fail(r->err, ML_EFORMAT,
                   "%s: tensor %s adapts the module %s, which %s does not name as a target",
                   r->file->path, ml_lora_tensor_name(&d->param, 0, name, sizeof name),
                   d->module, ML_LORA_CONFIG);
}

/* Gives a side its rank and checks its tensors. */
static ml_status check_side(const reader *r, const ml_lora_layer *l, ml_lora_side s,
                            int32_t rank, side *d) {
    ml_status st = check_target(r, d);

    d->param = ml_lora_param(&r->l->arena, r->base, l, d->form, s, rank, d->nested);
    for (int32_t e = 0; e < (d->param.part ? 1 : d->param.n_stack) && st == ML_OK; e++)
        st = check_tensor(r, &d->param, e, rank);
    return st;
}

/* Whether two parameters have the same bytes in the file. */
static bool are_equal(const reader *r, const ml_param *x, const ml_param *y) {
    int32_t n = x->part ? 1 : x->n_stack;

    if (x->n_stack != y->n_stack || x->shape[0] != y->shape[0] ||
        x->shape[1] != y->shape[1] || !x->part != !y->part)
        return false;
    for (int32_t e = 0; e < n; e++) {
        const ml_st_tensor *a = tensor_of(r, x, e), *b = tensor_of(r, y, e);
        if (a->dtype != b->dtype || memcmp(a->data, b->data, a->bytes) != 0)
            return false;
    }
    return true;
}

/* The parameter of an A: one that a layer with the same input has already, or its own. */
static int32_t share_a(const reader *r, int32_t site, const ml_param *p) {
    ml_lora *l = r->l;

    for (int32_t i = 0; ml_lora_find_param(l, p) == ML_NONE && i < site; i++) {
        int32_t a = l->link[i].a;
        if (a == ML_NONE || l->layer[i].input != l->layer[site].input ||
            !are_equal(r, &l->spec.param[a], p))
            continue;
        l->alias[l->n_alias++] = (ml_lora_alias){ *p, a };
        return a;
    }
    return ml_lora_add_param(l, p);
}

static ml_status read_site(const reader *r, int32_t site) {
    ml_lora *l = r->l;
    const ml_lora_layer *layer = &l->layer[site];
    side a, b;
    bool has_a = find_side(r, layer, ML_LORA_A, &a);
    bool has_b = find_side(r, layer, ML_LORA_B, &b);
    int32_t rank;
    ml_status st;

    l->link[site] = (ml_lora_link){ ML_NONE, ML_NONE, 0 };
    if (!has_a && !has_b)
        return ML_OK;
    if (!has_a)
        a = b;
    if (!has_b)
        b = a;
    st = ml_peft_rank_of(&l->config, a.module, &rank, r->err);
    if (st == ML_OK)
        st = ml_peft_scale_of(&l->config, a.module, rank, &l->link[site].scale, r->err);
    if (st == ML_OK)
        st = check_side(r, layer, ML_LORA_A, rank, &a);
    if (st == ML_OK)
        st = check_side(r, layer, ML_LORA_B, rank, &b);
    if (st != ML_OK)
        return st;
    l->link[site].a = share_a(r, site, &a.param);
    l->link[site].b = ml_lora_add_param(l, &b.param);
    l->max_rank = rank > l->max_rank ? rank : l->max_rank;
    return ML_OK;
}

static ml_status check_used(const reader *r) {
    for (int32_t i = 0; i < r->file->n; i++)
        if (!r->used[i])
            return ml_fail(r->err, ML_EFORMAT,
                           "%s: tensor %s adapts no linear layer of this %s model "
                           "(embeddings and the LM head are not adapted)",
                           r->file->path, r->file->tensor[i].name.ptr, r->base->family);
    if (r->l->spec.n_param == 0)
        return ml_fail(r->err, ML_EFORMAT, "%s: has no tensors", r->file->path);
    return ML_OK;
}

static float value_at(const ml_st_tensor *t, int64_t at) {
    const unsigned char *p = t->data;
    uint16_t h;
    float f;

    if (t->dtype == ML_ST_F32) {
        memcpy(&f, p + at * 4, sizeof f);
        return f;
    }
    memcpy(&h, p + at * 2, sizeof h);
    return t->dtype == ML_ST_BF16 ? ml_bf16_to_f32(h) : ml_f16_to_f32(h);
}

/* Rows [row, row+n) of a parameter's member. */
static void read_rows(const reader *r, const ml_param *p, int32_t e, int64_t row, int64_t n,
                      float *out) {
    const ml_st_tensor *t = tensor_of(r, p, e);
    int64_t at = p->part ? p->part->at + e * p->part->member : 0;

    for (int64_t i = row; i < row + n; i++)
        for (int64_t k = 0; k < p->shape[1]; k++)
            *out++ = value_at(t, p->part ? at + i * p->part->row + k * p->part->col
                                         : i * p->shape[1] + k);
}

/* Many rows at once: on a GPU each piece is a copy. */
static void read_values(const reader *r, int32_t param) {
    enum { ROWS = 1024 };
    const ml_param *p = &r->l->spec.param[param];
    int64_t most = p->shape[0] < ROWS ? p->shape[0] : ROWS;
    float *rows = ML_NEW(r->scratch, float, most * p->shape[1]);

    for (int32_t e = 0; e < p->n_stack; e++)
        for (int64_t i = 0, n; i < p->shape[0]; i += n) {
            n = p->shape[0] - i < most ? p->shape[0] - i : most;
            read_rows(r, p, e, i, n, rows);
            ml_weights_pack(&r->l->weights, param, e, i, n, rows);
        }
}

static ml_status read_all(const reader *r) {
    ml_lora *l = r->l;
    ml_status st = ML_OK;

    for (int32_t i = 0; i < l->n_site && st == ML_OK; i++)
        st = read_site(r, i);
    if (st == ML_OK && r->base->reward && l->config.saves_head)
        st = check_tensor(r, &l->spec.param[ml_lora_add_head(l, r->base)], 0,
                          l->config.rank);
    if (st == ML_OK)
        st = check_used(r);
    if (st != ML_OK)
        return st;
    ml_spec_index(&l->spec);
    st = ml_weights_zeros(&l->weights, &l->spec, l->be, &l->arena, r->err);
    for (int32_t i = 0; st == ML_OK && i < l->spec.n_param; i++)
        read_values(r, i);
    return st;
}

void ml_lora_begin(ml_lora *l, const ml_spec *base, ml_backend *be) {
    *l = (ml_lora){ .be = be };
    ml_arena_init(&l->arena, "adapter");
    ml_arena_init(&l->spec.arena, "adapter");
    l->spec.family = "LoRA";
    l->spec.adapter = true;
    l->layer = ml_spec_lora_layers(base, &l->arena, &l->n_site);
    l->link = ML_NEW(&l->arena, ml_lora_link, l->n_site);
    l->site = ML_NEW(&l->arena, ml_lora_site, l->n_site);
    l->alias = ML_NEW(&l->arena, ml_lora_alias, l->n_site);
    l->spec.param = ML_NEW(&l->arena, ml_param, 2 * l->n_site + 1);
    l->head = ML_NONE;
}

/* The configuration was read, with this status; file NULL: the tensors were not. */
static ml_status read_into(ml_lora *out, const ml_spec *base, ml_st_file *file,
                           ml_status st, ml_err *err) {
    ml_arena scratch;
    reader r = { .l = out, .base = base, .file = file, .scratch = &scratch, .err = err };

    ml_arena_init(&scratch, "reading an adapter");
    if (st == ML_OK) {
        r.used = ML_NEW(&scratch, bool, file->n);
        st = read_all(&r);
    }
    if (st == ML_OK && base->n_rank)
        st = ml_lora_cut(out, base, err);
    if (st == ML_OK)
        ml_lora_bind(out);
    else
        ml_lora_close(out);
    ml_arena_release(&scratch);
    return st;
}

ml_status ml_lora_load(ml_lora *out, const ml_spec *base, const char *dir, ml_backend *be,
                       ml_err *err) {
    ml_st_file *file = NULL;
    ml_text path = { 0 };
    ml_status st;

    ml_lora_begin(out, base, be);
    ml_text_printf(&path, "%s/%s", dir, ML_LORA_CONFIG);
    st = ml_peft_config_open(&out->config, &out->arena,
                             ml_arena_printf(&out->arena, "%s", path.ptr), err);
    path.len = 0;
    ml_text_printf(&path, "%s/%s", dir, ML_LORA_FILE);
    if (st == ML_OK)
        st = ml_st_open(&file, path.ptr, err);
    st = read_into(out, base, file, st, err);
    ml_st_close(file);
    ml_text_release(&path);
    return st;
}

ml_status ml_lora_load_tensors(ml_lora *out, const ml_spec *base, ml_str config,
                               ml_st_file *tensors, ml_backend *be, ml_err *err) {
    ml_lora_begin(out, base, be);
    return read_into(
        out, base, tensors,
        ml_peft_config_parse(&out->config, &out->arena, config, ML_LORA_CONFIG, err), err);
}

/* --- writing -------------------------------------------------------------------- */

/* No tensor has another place in a file than its parameter says. */
static const ml_checkpoint *no_checkpoint(ml_arena *a) {
    ml_checkpoint *c = ML_NEW(a, ml_checkpoint, 1);
    ml_map_init(&c->by_name, a, 1);
    return c;
}

const ml_named *ml_lora_named(const ml_lora *l, ml_arena *a, int32_t *n) {
    return ml_named_list(&l->spec, no_checkpoint(a), a, n);
}

const ml_named *ml_lora_tensors(const ml_lora *l, ml_arena *a, int32_t *n) {
    int32_t n_named, n_more = 0;
    const ml_named *named = ml_lora_named(l, a, &n_named);
    ml_named *list;
    char buf[NAME_CAP];

    for (int32_t i = 0; i < l->n_alias; i++)
        n_more += l->alias[i].name.n_stack;
    list = ML_NEW(a, ml_named, n_named + n_more);
    memcpy(list, named, (size_t)n_named * sizeof *list);
    *n = n_named;
    for (int32_t i = 0; i < l->n_alias; i++)
        for (int32_t e = 0; e < l->alias[i].name.n_stack; e++) {
            const ml_param *p = &l->alias[i].name;
            ml_named *t = &list[(*n)++];
            const char *name = ml_lora_tensor_name(p, e, buf, sizeof buf);
            *t = (ml_named){ .name = ml_arena_str(a, name, strlen(name)),
                             .param = l->alias[i].param,
                             .member = p->part ? ML_NONE : e };
            t->n_dim = ml_lora_tensor_shape(p, t->shape);
        }
    return list;
}

static ml_status write_tensors(const ml_lora *l, const ml_weights *from, const char *path,
                               ml_arena *a, ml_err *err) {
    int32_t n;
    const ml_named *named = ml_lora_tensors(l, a, &n);
    ml_st_tensor *t = ML_NEW(a, ml_st_tensor, n);
    ml_st_meta meta = { ml_str_of("format"), ml_str_of("pt") };
    ml_st_layout layout = { .n = n, .tensor = t, .n_meta = 1, .meta = &meta };
    ml_st_writer *w = NULL;
    ml_map by_name;
    ml_status st;

    ml_map_init(&by_name, a, n);
    for (int32_t i = 0; i < n; i++) {
        t[i] = (ml_st_tensor){ .name = ml_str_of(named[i].name),
                               .dtype = ML_ST_F32,
                               .n_dim = named[i].n_dim };
        memcpy(t[i].shape, named[i].shape, sizeof named[i].shape);
        ml_map_add(&by_name, t[i].name, i);
    }
    ml_st_sort_like_hf(t, n);
    st = ml_st_create(&w, path, &layout, err);
    for (int32_t i = 0; i < n && st == ML_OK; i++) {
        const ml_named *d = &named[ml_map_get(&by_name, t[i].name, 0)];
        ml_slices all = ml_named_slices(d);
        size_t count = (size_t)(all.n_slice * all.n_value);
        float *v = malloc(count * sizeof *v);
        if (!v) {
            st = ml_fail(err, ML_ENOMEM, "out of memory for %zu values", count);
            break;
        }
        ml_named_read(from, &l->spec, d, 0, all.n_slice, ML_F32, v);
        st = ml_st_write(w, i, 0, v, count * sizeof *v, err);
        free(v);
    }
    if (st == ML_OK)
        return ml_st_commit(w, err);
    ml_st_abort(w);
    return st;
}

ml_status ml_lora_save(const ml_lora *l, const ml_weights *w, const char *dir,
                       ml_err *err) {
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "writing an adapter");
    st = write_tensors(l, w, ml_arena_printf(&a, "%s/%s", dir, ML_LORA_FILE), &a, err);
    if (st == ML_OK)
        st = ml_file_replace(ml_arena_printf(&a, "%s/%s", dir, ML_LORA_CONFIG),
                             l->config.text, err);
    ml_arena_release(&a);
    return st;
}
