#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "io/dcp.h"
#include "io/quant.h"

/* --- views ------------------------------------------------------------------------ */

/* The rows of a fused tensor that belong to one weight. */
typedef struct row_map {
    int64_t first;            /* of the weight in the tensor */
    int64_t run, skip, count; /* groups of `run` rows, `skip` rows apart; run 0: all rows */
} row_map;

/* A weight in a larger tensor: fixed leading indices, then rows and columns. */
typedef struct view {
    ml_quant base;
    ml_dcp_tensor t; /* with those of its chunks that the weight is in */
    int64_t lead[2];
    int32_t n_lead;
    int64_t cols;
    row_map rows;
} view;

static int64_t stored_row(const row_map *m, int64_t r) {
    return m->run ? m->first + r / m->run * m->skip + r % m->run : m->first + r;
}

static void read_row(const view *v, int64_t r, int64_t c, int64_t n, float *out) {
    int64_t index[ML_ST_DIMS] = { 0 };
    uint16_t half[512];
    int32_t rank = v->t.n_dim - v->n_lead;

    for (int32_t i = 0; i < v->n_lead; i++)
        index[i] = v->lead[i];
    if (rank == 2)
        index[v->n_lead] = stored_row(&v->rows, r);
    index[v->t.n_dim - 1] = rank == 2 ? c : stored_row(&v->rows, c);
    if (v->t.dtype == ML_ST_F32) {
        ml_dcp_read(&v->t, index, n, out);
        return;
    }
    for (int64_t i = 0; i < n; i += 512) {
        int64_t k = n - i < 512 ? n - i : 512;
        ml_dcp_read(&v->t, index, k, half);
        for (int64_t j = 0; j < k; j++)
            out[i + j] =
                v->t.dtype == ML_ST_BF16 ? ml_bf16_to_f32(half[j]) : ml_f16_to_f32(half[j]);
        index[v->t.n_dim - 1] += k;
    }
}

static void read_view(const ml_quant *base, int64_t at, int64_t step, int64_t n,
                      float *out) {
    const view *v = (const view *)base;
    bool vector = v->t.n_dim - v->n_lead < 2;

    while (n > 0) {
        int64_t c = at % v->cols, k = step == 1 ? v->cols - c : 1;
        if (vector && v->rows.run) /* a bias of several parts */
            k = k < v->rows.run - c % v->rows.run ? k : v->rows.run - c % v->rows.run;
        k = k < n ? k : n;
        read_row(v, at / v->cols, c, k, out);
        out += k;
        at += k * step;
        n -= k;
    }
}

/* --- Megatron's names ------------------------------------------------------------- */

typedef struct sizes {
    int64_t heads, groups, head_dim;
} sizes;

typedef struct lister {
    ml_st_file *f;
    ml_st_tensor *t;
    const ml_dcp *d;
    sizes args;
    ml_err *err;
} lister;

typedef enum split { WHOLE, QKV, GATE_UP } split;

/* The indexer of sparse attention: by Miles' names, by Megatron-Core's. */
#define CORE "self_attention.core_attention.indexer."
#define INDEXER(part)                                                                      \
    { "self_attention." part, "self_attn.indexer." part, WHOLE, false }, {                 \
        CORE "linear_" part, "self_attn.indexer." part, WHOLE, false                       \
    }

static const struct {
    const char *stored, *name; /* after decoder.layers. and model.layers.N. */
    split how;
    bool experts; /* a dimension of experts before the rows */
} parts[] = {
    { "self_attention.linear_qkv.layer_norm_weight", "input_layernorm.weight", WHOLE,
      false },
    { "input_layernorm.weight", "input_layernorm.weight", WHOLE, false },
    { "self_attention.linear_qkv.weight", "self_attn.%s_proj.weight", QKV, false },
    { "self_attention.linear_qkv.bias", "self_attn.%s_proj.bias", QKV, false },
    { "self_attention.linear_proj.weight", "self_attn.o_proj.weight", WHOLE, false },
    { "self_attention.linear_proj.bias", "self_attn.o_proj.bias", WHOLE, false },
    { "self_attention.q_layernorm.weight", "self_attn.q_norm.weight", WHOLE, false },
    { "self_attention.k_layernorm.weight", "self_attn.k_norm.weight", WHOLE, false },
    { "self_attention.linear_q_proj.weight", "self_attn.q_proj.weight", WHOLE, false },
    { "self_attention.linear_q_down_proj.weight", "self_attn.q_a_proj.weight", WHOLE,
      false },
    { "self_attention.linear_q_up_proj.layer_norm_weight", "self_attn.q_a_layernorm.weight",
      WHOLE, false },
    { "self_attention.linear_q_up_proj.weight", "self_attn.q_b_proj.weight", WHOLE, false },
    { "self_attention.linear_kv_down_proj.weight", "self_attn.kv_a_proj_with_mqa.weight",
      WHOLE, false },
    { "self_attention.linear_kv_up_proj.layer_norm_weight",
      "self_attn.kv_a_layernorm.weight", WHOLE, false },
    { "self_attention.linear_kv_up_proj.weight", "self_attn.kv_b_proj.weight", WHOLE,
      false },
    INDEXER("wq_b.weight"),
    INDEXER("wk.weight"),
    INDEXER("weights_proj.weight"),
    { "self_attention.k_norm.weight", "self_attn.indexer.k_norm.weight", WHOLE, false },
    { "self_attention.k_norm.bias", "self_attn.indexer.k_norm.bias", WHOLE, false },
    { CORE "k_norm.weight", "self_attn.indexer.k_norm.weight", WHOLE, false },
    { CORE "k_norm.bias", "self_attn.indexer.k_norm.bias", WHOLE, false },
    { "mlp.linear_fc1.layer_norm_weight", "post_attention_layernorm.weight", WHOLE, false },
    { "pre_mlp_layernorm.weight", "post_attention_layernorm.weight", WHOLE, false },
    { "mlp.linear_fc1.weight", "mlp.%s_proj.weight", GATE_UP, false },
    { "mlp.linear_fc2.weight", "mlp.down_proj.weight", WHOLE, false },
    { "mlp.router.weight", "mlp.gate.weight", WHOLE, false },
    { "mlp.router.expert_bias", "mlp.gate.e_score_correction_bias", WHOLE, false },
    { "mlp.shared_experts.linear_fc1.weight", "mlp.shared_experts.%s_proj.weight", GATE_UP,
      false },
    { "mlp.shared_experts.linear_fc2.weight", "mlp.shared_experts.down_proj.weight", WHOLE,
      false },
    { "mlp.experts.experts.linear_fc1.weight", "mlp.experts.%d.%s_proj.weight", GATE_UP,
      true },
    { "mlp.experts.experts.linear_fc2.weight", "mlp.experts.%d.down_proj.weight", WHOLE,
      true },
};

static ml_status add(lister *l, const ml_dcp_tensor *t, const char *name,
                     const int64_t *lead, int32_t n_lead, row_map rows) {
    ml_st_tensor *out = &l->t[l->f->n];
    view *v = ML_NEW(&l->f->arena, view, 1);
    int32_t rank = t->n_dim - n_lead, n = 0;
    bool floats = t->dtype == ML_ST_F32 || t->dtype == ML_ST_BF16 || t->dtype == ML_ST_F16;

    if (!floats || rank < 1 || rank > 2)
        return ml_fail(l->err, ML_EUNSUP,
                       "%s: tensor %.200s has the dtype %s and %d dimensions; a matrix or "
                       "vector of F32, BF16 or F16 was expected for %s",
                       l->d->dir, t->name.ptr, ml_st_dtype_name(t->dtype), (int)t->n_dim,
                       name);
    *v = (view){ .base.read = read_view, .t = *t, .n_lead = n_lead, .rows = rows };
    v->t.chunk = ML_NEW(&l->f->arena, ml_dcp_chunk, t->n_chunk);
    for (int32_t i = 0; i < t->n_chunk; i++) {
        bool inside = true;
        for (int32_t k = 0; k < n_lead; k++)
            inside = inside && lead[k] >= t->chunk[i].at[k] &&
                     lead[k] < t->chunk[i].at[k] + t->chunk[i].size[k];
        if (inside)
            v->t.chunk[n++] = t->chunk[i];
    }
    v->t.n_chunk = n;
    *out = (ml_st_tensor){
        .name = ml_str_of(name), .dtype = t->dtype, .n_dim = rank, .quant = &v->base
    };
    for (int32_t i = 0; i < n_lead; i++)
        v->lead[i] = lead[i];
    memcpy(out->shape, t->shape + n_lead, sizeof *out->shape * (size_t)rank);
    out->shape[0] = rows.count ? rows.count : out->shape[0];
    v->cols = out->shape[rank - 1];
    if (!ml_map_add(&l->f->by_name, out->name, l->f->n))
        return ml_fail(l->err, ML_EFORMAT, "%s: tensor %s is stored twice", l->d->dir,
                       name);
    l->f->n++;
    return v->cols ? ML_OK
                   : ml_fail(l->err, ML_EFORMAT, "%s: tensor %.200s is empty", l->d->dir,
                             t->name.ptr);
}

/* The name of a part: %d is the expert, %s the part. */
static const char *fill(lister *l, const char *form, int64_t layer, int64_t expert,
                        const char *part) {
    char name[256];
    const char *d = strstr(form, "%d"), *s = strstr(form, "%s");
    int at = snprintf(name, sizeof name, "model.layers.%lld.", (long long)layer);

    if (d) {
        at += snprintf(name + at, sizeof name - (size_t)at, "%.*s%lld", (int)(d - form),
                       form, (long long)expert);
        form = d + 2;
    }
    if (s)
        snprintf(name + at, sizeof name - (size_t)at, "%.*s%s%s", (int)(s - form), form,
                 part, s + 2);
    else
        snprintf(name + at, sizeof name - (size_t)at, "%s", form);
    return ml_arena_str(&l->f->arena, name, strlen(name));
}

/* Rows of linear_qkv are, for each group: its queries' heads, a key, a value. */
static ml_status add_qkv(lister *l, const ml_dcp_tensor *t, const char *form, int64_t layer,
                         const int64_t *lead, int32_t n_lead) {
    int64_t d = l->args.head_dim, groups = l->args.groups;
    int64_t per = groups ? l->args.heads / groups : 0, skip = (per + 2) * d;
    ml_status st;

    if (!per || l->args.heads % groups || t->n_dim <= n_lead ||
        t->shape[n_lead] != groups * skip)
        return ml_fail(l->err, ML_EFORMAT,
                       "%s: the rows of %.200s do not fit num_attention_heads, "
                       "num_query_groups and kv_channels of common.pt",
                       l->d->dir, t->name.ptr);
    st = add(l, t, fill(l, form, layer, 0, "q"), lead, n_lead,
             (row_map){ 0, per * d, skip, groups * per * d });
    if (st == ML_OK)
        st = add(l, t, fill(l, form, layer, 0, "k"), lead, n_lead,
                 (row_map){ per * d, d, skip, groups * d });
    if (st == ML_OK)
        st = add(l, t, fill(l, form, layer, 0, "v"), lead, n_lead,
                 (row_map){ (per + 1) * d, d, skip, groups * d });
    return st;
}

static ml_status add_part(lister *l, const ml_dcp_tensor *t, size_t i, int64_t layer,
                          int64_t expert, const int64_t *lead, int32_t n_lead) {
    const char *form = parts[i].name;
    int64_t half;
    ml_status st;

    if (parts[i].how == QKV)
        return add_qkv(l, t, form, layer, lead, n_lead);
    if (parts[i].how == WHOLE)
        return add(l, t, fill(l, form, layer, expert, ""), lead, n_lead, (row_map){ 0 });
    half = t->n_dim > n_lead ? t->shape[n_lead] / 2 : 0;
    st = add(l, t, fill(l, form, layer, expert, "gate"), lead, n_lead,
             (row_map){ .count = half });
    return st == ML_OK ? add(l, t, fill(l, form, layer, expert, "up"), lead, n_lead,
                             (row_map){ .first = half, .count = half })
                       : st;
}

/* `rest`: after "decoder.layers.", possibly with the number of a layer. */
static ml_status add_layers(lister *l, const ml_dcp_tensor *t, const char *rest) {
    bool one = *rest >= '0' && *rest <= '9';
    char *end = NULL;
    int64_t layer = one ? strtol(rest, &end, 10) : 0, lead[2];
    int64_t n_layer = one || !t->n_dim ? 1 : t->shape[0], n_expert;
    int32_t stacked = !one;
    size_t i = 0, n = sizeof parts / sizeof *parts;
    ml_status st = ML_OK;

    rest = one && *end == '.' ? end + 1 : rest;
    while (i < n && strcmp(rest, parts[i].stored) != 0)
        i++;
    if (i == n)
        return ml_fail(
            l->err, ML_EUNSUP,
            "%s: tensor %.200s is not one of those that are read from Megatron's "
            "checkpoints",
            l->d->dir, t->name.ptr);
    if (t->n_dim <= stacked + parts[i].experts)
        return ml_fail(l->err, ML_EFORMAT, "%s: tensor %.200s has too few dimensions",
                       l->d->dir, t->name.ptr);
    n_expert = parts[i].experts ? t->shape[stacked] : 1;
    for (int64_t k = 0; k < n_layer && st == ML_OK; k++)
        for (int64_t e = 0; e < n_expert && st == ML_OK; e++) {
            lead[0] = stacked ? k : e;
            lead[1] = e;
            st = add_part(l, t, i, layer + k, e, lead, stacked + parts[i].experts);
        }
    return st;
}

/* --- other names ------------------------------------------------------------------ */

/* The name of the release behind a prefix such as "model_state."; NULL: no weight. */
static const char *release_name(const char *name) {
    static const char *const begin[] = { "model.layers.", "model.embed_tokens.",
                                         "model.norm.", "lm_head.",
                                         "model.language_model." };

    if (strncmp(name, "optim", 5) == 0)
        return NULL;
    for (; name; name = strchr(name, '.') ? strchr(name, '.') + 1 : NULL)
        for (size_t i = 0; i < sizeof begin / sizeof *begin; i++)
            if (strncmp(name, begin[i], strlen(begin[i])) == 0)
                return name;
    return NULL;
}

static bool starts(const char *s, const char *with) {
    return strncmp(s, with, strlen(with)) == 0;
}

static ml_status add_tensor(lister *l, const ml_dcp_tensor *t) {
    static const struct {
        const char *stored, *name;
    } whole[] = { { "embedding.word_embeddings.weight", "model.embed_tokens.weight" },
                  { "output_layer.weight", "lm_head.weight" },
                  { "decoder.final_layernorm.weight", "model.norm.weight" } };
    const char *name = t->name.ptr, *layers = "decoder.layers.";

    if (starts(name, "optimizer.") || strstr(name, "_extra_state") ||
        starts(name, "rng_state"))
        return ML_OK;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (strcmp(name, whole[i].stored) == 0)
            return add(l, t, whole[i].name, NULL, 0, (row_map){ 0 });
    if (starts(name, layers))
        return add_layers(l, t, name + strlen(layers));
    name = release_name(name);
    return name ? add(l, t, name, NULL, 0, (row_map){ 0 }) : ML_OK;
}

/* --- common.pt -------------------------------------------------------------------- */

static int64_t arg(const ml_pickle *args, const char *name, int64_t absent) {
    const ml_pickle *v = ml_pickle_attr(args, name);
    return v && v->type == ML_PICKLE_INT && v->i > 0 && v->i < INT32_MAX ? v->i : absent;
}

/* The sizes of attention, which the fused rows depend on. */
static ml_status read_args(lister *l) {
    ml_text path = { 0 };
    ml_torch_file *f = NULL;
    const ml_pickle *args;
    ml_status st = ML_OK;

    ml_text_printf(&path, "%s/common.pt", l->d->dir);
    if (ml_file_there(path.ptr)) {
        st = ml_torch_open(&f, path.ptr, l->err);
        args = st == ML_OK ? ml_pickle_get(f->root, "args") : NULL;
        l->args.heads = arg(args, "num_attention_heads", 0);
        l->args.groups = arg(args, "num_query_groups", l->args.heads);
        l->args.head_dim =
            arg(args, "kv_channels",
                l->args.heads ? arg(args, "hidden_size", 0) / l->args.heads : 0);
        ml_torch_close(f);
    }
    ml_text_release(&path);
    return st;
}

static void close_dcp(void *d) {
    ml_dcp_close(d);
}

/* Weights that the tensors can become; 0: more than a checkpoint has. */
static int64_t count(const ml_dcp *d) {
    int64_t n = 0;
    for (int32_t i = 0; i < d->n && n < 1 << 24; i++) {
        const ml_dcp_tensor *t = &d->tensor[i];
        int64_t a = t->n_dim > 1 ? t->shape[0] : 1, b = t->n_dim > 2 ? t->shape[1] : 1;
        bool stacked = starts(t->name.ptr, "decoder.layers.");
        bool experts = strstr(t->name.ptr, ".experts.") != NULL;
        if (stacked && (a > 1 << 20 || (experts && b > 1 << 20)))
            return 0;
        n += 3 * (stacked ? a : 1) * (stacked && experts ? b : 1);
    }
    return n < 1 << 24 ? n + 1 : 0;
}

ml_status ml_dcp_weights_open(ml_st_file **out, const char *dir, ml_err *err) {
    lister l = { .err = err };
    ml_dcp *d = NULL;
    ml_status st = ml_dcp_open(&d, dir, err);

    if (st == ML_OK && !count(d)) {
        ml_dcp_close(d);
        st = ml_fail(err, ML_EFORMAT, "%s: .metadata claims more than 16777216 weights",
                     dir);
    }
    if (st != ML_OK)
        return st;
    l.d = d;
    l.f = ml_st_new(dir, count(d), &l.t);
    l.f->held = d;
    l.f->release = close_dcp;
    st = read_args(&l);
    for (int32_t i = 0; i < d->n && st == ML_OK; i++)
        st = add_tensor(&l, &d->tensor[i]);
    if (st == ML_OK)
        *out = l.f;
    else
        ml_st_close(l.f);
    return st;
}
