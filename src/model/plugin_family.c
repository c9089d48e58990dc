#include "model/plugin_family.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "model/specs/decoder.h"

enum { MAX_NAME = 180, MAX_WIDTH = 1 << 24, MAX_LAYER = 4096, MAX_ROPE = 4 };

typedef struct graph {
    miles_graph api; /* first: a miles_graph is a graph */
    ml_builder *b;
    const miles_family *family;
    const char *call; /* the function that runs, for messages */
    const ml_rope *rope[MAX_ROPE];
    int32_t n_rope, next_layer;
    bool sized, embedded, ended;
} graph;

static graph *of(miles_graph *g) {
    return (graph *)(void *)g;
}

static bool failed(const graph *h) {
    return h->b->config->first.code != ML_OK;
}

__attribute__((format(printf, 2, 3))) static bool wrong(graph *h, const char *fmt, ...) {
    char what[300];
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    ml_hf_config_fail(h->b->config, ML_EUSAGE,
                      "%s: the plug-in's family '%s' calls %s %s: correct its build "
                      "function",
                      h->b->config->path, h->family->name, h->call, what);
    return false;
}

/* --- arguments -------------------------------------------------------------------- */

static const ml_value *value(const graph *h, int32_t x) {
    return x >= 0 && x < h->b->spec->n_value ? &h->b->spec->value[x] : NULL;
}

/* The kinds of values that an op may read. */
typedef enum kind { ROWS, CHOSEN, DECAY } kind;

static bool is(graph *h, const char *arg, int32_t x, kind k) {
    static const char *const kinds[] = { "a value", "a result of index",
                                         "a result of decay" };
    const ml_value *v = value(h, x);

    if (v && v->axis == ML_PER_TOKEN && v->mul == 1 && v->exact == (k == DECAY) &&
        v->dtype == (k == CHOSEN ? ML_I32 : ML_F32))
        return true;
    return wrong(h, "with %s = %d, which is not %s", arg, x, kinds[k]);
}

static bool named(graph *h, const char *what, const char *name) {
    if (!name || !*name)
        return wrong(h, "without %s", what);
    if (strlen(name) > MAX_NAME)
        return wrong(h, "with %s longer than %d characters", what, MAX_NAME);
    return true;
}

static bool optional(graph *h, const char *what, const char *name) {
    return !name || named(h, what, name);
}

static bool within(graph *h, const char *what, int64_t n, int64_t min, int64_t max) {
    return (n >= min && n <= max) || wrong(h, "with %s = %lld; expected %lld to %lld", what,
                                           (long long)n, (long long)min, (long long)max);
}

static bool divides(graph *h, const char *what, int64_t part, int64_t whole) {
    return (part > 0 && whole % part == 0) ||
           wrong(h, "with %s = %lld, which does not divide the width %lld", what,
                 (long long)part, (long long)whole);
}

static bool same(graph *h, const char *what, int64_t found, int64_t expected) {
    return found == expected || wrong(h, "with a %s of width %lld; expected %lld", what,
                                      (long long)found, (long long)expected);
}

/* Copies an options struct; one that is smaller was compiled against an older header. */
static bool options(graph *h, void *to, size_t size, const void *from) {
    size_t given = 0;

    if (from)
        memcpy(&given, from, sizeof given);
    if (given < sizeof given || given > size)
        return wrong(h,
                     "with options of size %zu; expected at most %zu, the sizeof of their "
                     "struct",
                     given, size);
    memset(to, 0, size);
    memcpy(to, from, given);
    return true;
}
#define OPTIONS(h, to, from) options(h, &(to), sizeof(to), from)

/* Begins a call; false: an earlier one failed. */
static bool call(graph *h, const char *name) {
    h->call = name;
    return !failed(h);
}

/* Begins a call of an op after the embedding. */
static bool op(graph *h, const char *name) {
    if (!call(h, name))
        return false;
    if (h->ended)
        return wrong(h, "after head, which is the last op");
    return h->embedded || wrong(h, "before embed, which is the first op");
}

static int64_t width_of(const graph *h, int32_t x) {
    return ml_build_width(h->b, x);
}

/* --- configuration ---------------------------------------------------------------- */

static bool g_has(miles_graph *g, const char *key) {
    return ml_hf_config_get(of(g)->b->config, key) != NULL;
}

static int64_t g_integer(miles_graph *g, const char *key, int64_t def, int64_t min,
                         int64_t max) {
    return ml_hf_config_int(of(g)->b->config, key, def, min, max);
}

static double g_number(miles_graph *g, const char *key, double def, double min,
                       double max) {
    return ml_hf_config_num(of(g)->b->config, key, def, min, max);
}

static bool g_boolean(miles_graph *g, const char *key, bool def) {
    return ml_hf_config_bool(of(g)->b->config, key, def);
}

static const char *g_string(miles_graph *g, const char *key, const char *def) {
    return ml_hf_config_str(of(g)->b->config, key, def);
}

static const ml_json *list(ml_hf_config *c, const char *key) {
    const ml_json *v = ml_hf_config_get(c, key);

    if (v && v->type != ML_JSON_ARRAY) {
        ml_hf_config_fail(c, ML_EFORMAT, "%s:%u: \"%s\" is %s; expected an array", c->path,
                          v->line, key, ml_json_what(v));
        return NULL;
    }
    return v;
}

static int32_t g_list_len(miles_graph *g, const char *key) {
    const ml_json *v = list(of(g)->b->config, key);

    return v ? v->n : 0;
}

/* Entry i of an array, of which there must be so many. */
static const ml_json *entry(graph *h, const char *key, int32_t i) {
    const ml_json *v = list(h->b->config, key), *e = v ? v->child : NULL;

    if (failed(h))
        return NULL;
    for (int32_t k = 0; e && k < i; k++)
        e = e->next;
    if (!e || i < 0)
        wrong(h, "for entry %d of \"%s\", which has %d", i, key, v ? v->n : 0);
    return i < 0 ? NULL : e;
}

static int64_t g_list_integer(miles_graph *g, const char *key, int32_t i) {
    graph *h = of(g);
    const ml_json *e = call(h, "list_integer") ? entry(h, key, i) : NULL;
    int64_t n = 0;

    if (e && !ml_json_i64(e, &n))
        ml_hf_config_fail(h->b->config, ML_EFORMAT,
                          "%s:%u: entry %d of \"%s\" is %s; expected an integer",
                          h->b->config->path, e->line, i, key, ml_json_what(e));
    return n;
}

static const char *g_list_string(miles_graph *g, const char *key, int32_t i) {
    graph *h = of(g);
    const ml_json *e = call(h, "list_string") ? entry(h, key, i) : NULL;

    if (e && e->type == ML_JSON_STRING)
        return ml_arena_str(&h->b->spec->arena, e->text.ptr, e->text.len);
    if (e)
        ml_hf_config_fail(h->b->config, ML_EFORMAT,
                          "%s:%u: entry %d of \"%s\" is %s; expected a string",
                          h->b->config->path, e->line, i, key, ml_json_what(e));
    return "";
}

static void g_fail(miles_graph *g, const char *sentence) {
    ml_hf_config *c = of(g)->b->config;

    ml_hf_config_fail(c, ML_EFORMAT, "%s: %s", c->path, sentence ? sentence : "no reason");
}

static const char *const *copied(ml_arena *a, const char *const *words) {
    const char **to;
    size_t n = 0;

    while (words && words[n])
        n++;
    to = ML_NEW(a, const char *, n + 1);
    for (size_t i = 0; i < n; i++)
        to[i] = ml_arena_str(a, words[i], strlen(words[i]));
    return to;
}

static void g_sizes(miles_graph *g, const miles_model_sizes *from) {
    graph *h = of(g);
    ml_spec *s = h->b->spec;
    miles_model_sizes o = { 0 };

    if (!call(h, "sizes") || !OPTIONS(h, o, from))
        return;
    if (h->embedded) {
        wrong(h, "after embed, which needs the sizes");
        return;
    }
    if (!within(h, "n_vocab", o.n_vocab, 1, MAX_WIDTH) ||
        !within(h, "n_hidden", o.n_hidden, 1, MAX_WIDTH) ||
        !within(h, "n_layer", o.n_layer, 1, MAX_LAYER) ||
        !within(h, "n_nextn", o.n_nextn, 0, MAX_LAYER) ||
        !within(h, "max_position", o.max_position, 0, INT64_MAX))
        return;
    h->sized = true;
    s->n_vocab = o.n_vocab;
    s->n_hidden = o.n_hidden;
    s->n_layer = o.n_layer;
    s->n_nextn = o.n_nextn;
    s->max_position = o.max_position;
    s->tied = o.tied;
    if (o.carried)
        s->carried = copied(&s->arena, o.carried);
}

/* --- layers, embedding and head --------------------------------------------------- */

/* Layers are built in order: a pipeline cuts the rows between them. */
static void g_begin_layer(miles_graph *g, int32_t layer) {
    graph *h = of(g);

    if (!op(h, "begin_layer"))
        return;
    if (h->b->layer != ML_NONE)
        wrong(h, "before end_layer of layer %d", h->b->layer);
    else if (layer != h->next_layer || layer >= h->b->spec->n_layer)
        wrong(h, "with layer %d; expected %d of %d", layer, h->next_layer,
              h->b->spec->n_layer);
    else
        ml_build_begin_layer(h->b, h->next_layer++);
}

static void g_end_layer(miles_graph *g) {
    graph *h = of(g);

    if (!op(h, "end_layer"))
        return;
    if (h->b->layer == ML_NONE)
        wrong(h, "without begin_layer");
    ml_build_end_layer(h->b);
}

static int64_t g_width(miles_graph *g, int32_t x) {
    graph *h = of(g);

    return call(h, "width") && is(h, "x", x, ROWS) ? width_of(h, x) : 0;
}

static int32_t g_embed(miles_graph *g, const char *name, double scale) {
    graph *h = of(g);

    if (!call(h, "embed") || !named(h, "name", name))
        return MILES_NO_VALUE;
    if (!h->sized || h->embedded) {
        wrong(h, h->sized ? "twice" : "before sizes");
        return MILES_NO_VALUE;
    }
    h->embedded = true;
    return ml_build_embed(h->b, name, (float)scale);
}

static int32_t g_table(miles_graph *g, const char *name, int64_t n_row, int64_t width,
                       double scale) {
    graph *h = of(g);

    if (!op(h, "table") || !named(h, "name", name) ||
        !within(h, "n_row", n_row, h->b->spec->n_vocab, MAX_WIDTH) ||
        !within(h, "width", width, 1, MAX_WIDTH))
        return MILES_NO_VALUE;
    return ml_build_table(h->b, name, n_row, width, (float)scale);
}

static void g_head(miles_graph *g, int32_t x, const char *name, double softcap) {
    graph *h = of(g);
    const ml_spec *s = h->b->spec;

    if (!op(h, "head") || !is(h, "x", x, ROWS) ||
        !same(h, "x", width_of(h, x), s->n_hidden) || (!s->tied && !named(h, "name", name)))
        return;
    if (h->b->layer != ML_NONE || h->next_layer != s->n_layer) {
        wrong(h, "after %d of %d layers", h->next_layer - (h->b->layer != ML_NONE),
              s->n_layer);
        return;
    }
    h->ended = true;
    ml_build_head(h->b, x, name, s->tied, (float)softcap);
}

/* --- products and norms ----------------------------------------------------------- */

static int32_t g_linear(miles_graph *g, int32_t x, const miles_linear *from) {
    graph *h = of(g);
    miles_linear o = { 0 };

    if (!op(h, "linear") || !OPTIONS(h, o, from) || !is(h, "x", x, ROWS) ||
        !named(h, "name", o.name) || !optional(h, "whole", o.whole) ||
        !within(h, "n_out", o.n_out, 1, MAX_WIDTH) ||
        !within(h, "shard", o.shard, MILES_SHARD_NONE, MILES_SHARD_ROW) ||
        (o.whole && !within(h, "whole_out", o.whole_out, o.n_out, MAX_WIDTH)) ||
        (o.whole && !within(h, "first_out", o.first_out, 0, o.whole_out - o.n_out)))
        return MILES_NO_VALUE;
    return ml_build_linear(h->b, x,
                           (ml_linear_opts){ .name = o.name,
                                             .n_out = o.n_out,
                                             .bias = o.bias,
                                             .shard = (ml_shard)o.shard,
                                             .frozen = o.frozen,
                                             .keep_f32 = o.keep_f32,
                                             .whole = o.whole,
                                             .whole_out = o.whole_out,
                                             .first_out = o.first_out });
}

/* The elements of all matrices lie in the larger tensor. */
static bool check_part(graph *h, const miles_part *p, int32_t n_head, int64_t n_out,
                       int64_t n_in) {
    int64_t total = 1, last;

    if (!named(h, "part.name", p->name) || !within(h, "part.n_dim", p->n_dim, 1, 3) ||
        !within(h, "part.member", p->member, 0, INT32_MAX) ||
        !within(h, "part.row", p->row, 0, INT32_MAX) ||
        !within(h, "part.col", p->col, 0, INT32_MAX))
        return false;
    for (int32_t i = 0; i < p->n_dim; i++) {
        if (!within(h, "part.shape", p->shape[i], 1, 1 << 20))
            return false;
        total *= p->shape[i];
    }
    last = (n_head - 1) * p->member + (n_out - 1) * p->row + (n_in - 1) * p->col;
    return within(h, "part.at", p->at, 0, total - 1 - last);
}

static int32_t g_head_linear(miles_graph *g, int32_t x, const char *name, int32_t n_head,
                             int64_t n_out, const miles_part *from) {
    graph *h = of(g);
    miles_part o = { 0 };
    ml_part *part = NULL;

    if (!op(h, "head_linear") || !is(h, "x", x, ROWS) || !named(h, "name", name) ||
        !divides(h, "n_head", n_head, width_of(h, x)) ||
        !within(h, "n_out", n_out, 1, MAX_WIDTH))
        return MILES_NO_VALUE;
    if (from) {
        if (!OPTIONS(h, o, from) ||
            !check_part(h, &o, n_head, n_out, width_of(h, x) / n_head))
            return MILES_NO_VALUE;
        part = ML_NEW(&h->b->spec->arena, ml_part, 1);
        *part = (ml_part){ .name = ml_build_name(h->b, o.name, ""),
                           .n_dim = o.n_dim,
                           .shape = { o.shape[0], o.shape[1], o.shape[2] },
                           .at = o.at,
                           .member = o.member,
                           .row = o.row,
                           .col = o.col };
    }
    return ml_build_head_linear(h->b, x, name, n_head, n_out, part);
}

static int32_t g_norm(miles_graph *g, int32_t x, const miles_norm *from) {
    graph *h = of(g);
    miles_norm o = { 0 };

    if (!op(h, "norm") || !OPTIONS(h, o, from) || !is(h, "x", x, ROWS) ||
        !optional(h, "name", o.name))
        return MILES_NO_VALUE;
    o.width = o.width ? o.width : (int32_t)width_of(h, x);
    if (!divides(h, "width", o.width, width_of(h, x)) ||
        (o.weights_of_each && !named(h, "name", o.name)))
        return MILES_NO_VALUE;
    return o.weights_of_each
               ? ml_build_group_norm(h->b, x, o.name, (float)o.eps, o.width)
               : ml_build_norm(h->b, x, o.name, (float)o.eps, o.width, o.plus_one);
}

static int32_t g_layernorm(miles_graph *g, int32_t x, const char *name, double eps) {
    graph *h = of(g);

    if (!op(h, "layernorm") || !is(h, "x", x, ROWS) || !named(h, "name", name))
        return MILES_NO_VALUE;
    return ml_build_layernorm(h->b, x, name, (float)eps);
}

/* --- attention -------------------------------------------------------------------- */

static bool rope_options(graph *h, ml_rope_opts *out, int32_t *head_dim,
                         const miles_rope *from) {
    miles_rope o = { 0 };

    if (!OPTIONS(h, o, from) || !within(h, "head_dim", o.head_dim, 2, MAX_WIDTH))
        return false;
    *head_dim = o.head_dim;
    *out = (ml_rope_opts){ .part = o.layer_type,
                           .theta_key = o.theta_key,
                           .theta = o.theta,
                           .partial = o.partial == 0 ? 1 : o.partial,
                           .scaled = !o.unscaled };
    return true;
}

static int32_t g_read_rope(miles_graph *g, const miles_rope *from) {
    graph *h = of(g);
    ml_rope_opts o;
    int32_t head_dim;

    if (!call(h, "read_rope") || !rope_options(h, &o, &head_dim, from) ||
        !within(h, "sets before it", h->n_rope, 0, MAX_ROPE - 1))
        return MILES_NO_VALUE;
    h->rope[h->n_rope] = ml_rope_read(h->b, head_dim, o);
    return h->n_rope++;
}

static double g_rope_score_scale(miles_graph *g, const miles_rope *from) {
    graph *h = of(g);
    ml_rope_opts o;
    int32_t head_dim;

    return call(h, "rope_score_scale") && rope_options(h, &o, &head_dim, from)
               ? ml_rope_score_scale(h->b, o)
               : 1;
}

static int32_t g_rope(miles_graph *g, int32_t x, int32_t frequencies, int32_t head_dim,
                      bool interleaved) {
    graph *h = of(g);

    if (!op(h, "rope") || !is(h, "x", x, ROWS) ||
        !within(h, "frequencies", frequencies, 0, h->n_rope - 1) ||
        !divides(h, "head_dim", head_dim, width_of(h, x)) ||
        !within(h, "head_dim", head_dim, h->rope[frequencies]->dim, MAX_WIDTH))
        return MILES_NO_VALUE;
    return ml_build_rope(h->b, x, h->rope[frequencies], head_dim, interleaved);
}

/* The KV pages of an earlier attention. */
static bool pages_of(graph *h, ml_shared_kv *pages, int32_t result) {
    const ml_spec *s = h->b->spec;

    for (int32_t i = 0; i < s->n_node; i++)
        if (s->node[i].op == ML_OP_ATTN && s->node[i].out[0] == result) {
            *pages = (ml_shared_kv){ s->node[i].out[2], s->node[i].out[3] };
            return true;
        }
    return wrong(h, "with same_keys_as = %d, which is not a result of attn", result);
}

static bool check_attn(graph *h, miles_attn *o, int32_t q, int32_t k) {
    int64_t n_head, n_kv;

    o->value_dim = o->value_dim ? o->value_dim : o->head_dim;
    if (!divides(h, "head_dim", o->head_dim, width_of(h, q)) ||
        !divides(h, "head_dim", o->head_dim, width_of(h, k)) ||
        !within(h, "value_dim", o->value_dim, 1, MAX_WIDTH) ||
        !within(h, "window", o->window, 0, INT32_MAX) ||
        !within(h, "chunk", o->chunk, 0, o->window ? 0 : INT32_MAX) ||
        !optional(h, "sink", o->sink))
        return false;
    n_head = width_of(h, q) / o->head_dim;
    n_kv = width_of(h, k) / o->head_dim;
    if (n_head % n_kv != 0)
        return wrong(h, "with %lld query heads for %lld key heads", (long long)n_head,
                     (long long)n_kv);
    return o->chunk % ML_PAGE == 0 ||
           wrong(h, "with chunk = %d, which is not a multiple of %d", o->chunk, ML_PAGE);
}

static ml_attn_opts attn_opts(const miles_attn *o) {
    return (ml_attn_opts){ .head_dim = o->head_dim,
                           .value_dim = o->value_dim,
                           .value_in_key = o->value_in_key,
                           .window = o->window,
                           .chunk = o->chunk,
                           .scale = (float)o->scale,
                           .softcap = (float)o->softcap,
                           .sink = o->sink };
}

static int32_t g_attn(miles_graph *g, int32_t q, int32_t k, int32_t v,
                      const miles_attn *from) {
    graph *h = of(g);
    ml_shared_kv pages;
    ml_attn_opts a;
    miles_attn o = { 0 };

    if (!op(h, "attn") || !OPTIONS(h, o, from) || !is(h, "q", q, ROWS) ||
        !is(h, "k", k, ROWS) || !is(h, "v", v, ROWS) || !check_attn(h, &o, q, k) ||
        !same(h, "v", width_of(h, v), width_of(h, k) / o.head_dim * o.value_dim) ||
        (o.same_keys_as && !pages_of(h, &pages, o.same_keys_as)))
        return MILES_NO_VALUE;
    a = attn_opts(&o);
    a.pages = o.same_keys_as ? &pages : NULL;
    return ml_build_attn(h->b, q, k, v, a);
}

static int32_t g_attn_chosen(miles_graph *g, int32_t q, int32_t k, int32_t chosen,
                             const miles_attn *from) {
    graph *h = of(g);
    miles_attn o = { 0 };

    if (!op(h, "attn_chosen") || !OPTIONS(h, o, from) || !is(h, "q", q, ROWS) ||
        !is(h, "k", k, ROWS) || !is(h, "chosen", chosen, CHOSEN) ||
        !check_attn(h, &o, q, k) || !same(h, "k", width_of(h, k), o.head_dim) ||
        !within(h, "value_dim", o.value_dim, 1, o.head_dim))
        return MILES_NO_VALUE;
    return ml_build_attn_chosen(h->b, q, k, chosen, attn_opts(&o));
}

static int32_t g_index(miles_graph *g, int32_t q, int32_t k, int32_t weight,
                       const miles_index *from) {
    graph *h = of(g);
    miles_index o = { 0 };

    if (!op(h, "index") || !OPTIONS(h, o, from) || !is(h, "q", q, ROWS) ||
        !is(h, "k", k, ROWS) || !is(h, "weight", weight, ROWS) ||
        !within(h, "n_head", o.n_head, 1, MAX_WIDTH) ||
        !within(h, "top_k", o.top_k, 1, MAX_WIDTH) ||
        !same(h, "q", width_of(h, q), o.n_head * width_of(h, k)) ||
        !same(h, "weight", width_of(h, weight), o.n_head))
        return MILES_NO_VALUE;
    return ml_build_index(h->b, q, k, weight,
                          (ml_index_opts){ .n_head = o.n_head,
                                           .top_k = o.top_k,
                                           .scale = (float)o.scale,
                                           .weight_scale = (float)o.weight_scale });
}

/* --- element by element ----------------------------------------------------------- */

static int32_t g_add(miles_graph *g, int32_t x, int32_t y) {
    graph *h = of(g);

    if (!op(h, "add") || !is(h, "x", x, ROWS) || !is(h, "y", y, ROWS) ||
        !same(h, "y", width_of(h, y), width_of(h, x)))
        return MILES_NO_VALUE;
    return ml_build_add(h->b, x, y);
}

static int32_t g_scale(miles_graph *g, int32_t x, double by) {
    graph *h = of(g);

    if (!op(h, "scale") || !is(h, "x", x, ROWS))
        return MILES_NO_VALUE;
    return ml_build_scale(h->b, x, (float)by);
}

static int32_t g_scale_by(miles_graph *g, int32_t x, const char *name) {
    graph *h = of(g);

    if (!op(h, "scale_by") || !is(h, "x", x, ROWS) || !named(h, "name", name))
        return MILES_NO_VALUE;
    return ml_build_scale_param(h->b, x, name);
}

static int32_t g_glu(miles_graph *g, int32_t gate, int32_t up, int32_t act) {
    graph *h = of(g);

    if (!op(h, "glu") || !is(h, "gate", gate, ROWS) ||
        !within(h, "act", act, 0, ML_ACT_COUNT - 1) ||
        (up == MILES_NO_VALUE && !divides(h, "two halves", 2, width_of(h, gate))) ||
        (up != MILES_NO_VALUE &&
         (!is(h, "up", up, ROWS) || !same(h, "up", width_of(h, up), width_of(h, gate)))))
        return MILES_NO_VALUE;
    return ml_build_glu(h->b, gate, up, (ml_act)act);
}

static int32_t g_row_gate(miles_graph *g, int32_t gate, int32_t x) {
    graph *h = of(g);

    if (!op(h, "row_gate") || !is(h, "gate", gate, ROWS) || !is(h, "x", x, ROWS) ||
        !same(h, "gate", width_of(h, gate), 1))
        return MILES_NO_VALUE;
    return ml_build_row_gate(h->b, gate, x);
}

static int32_t g_slice(miles_graph *g, int32_t x, const miles_slice *from) {
    graph *h = of(g);
    miles_slice o = { 0 };
    ml_slice_opts to;
    int64_t group;

    if (!op(h, "slice") || !OPTIONS(h, o, from) || !is(h, "x", x, ROWS) ||
        !divides(h, "n_group", o.n_group ? o.n_group : 1, width_of(h, x)) ||
        !within(h, "part[0].width", o.part[0].width, 1, MAX_WIDTH))
        return MILES_NO_VALUE;
    to = (ml_slice_opts){ .n_group = o.n_group };
    group = width_of(h, x) / (o.n_group ? o.n_group : 1);
    for (int i = 0; i < ML_SLICE_PARTS; i++) {
        if (!within(h, "part.width", o.part[i].width, 0, group) ||
            !within(h, "part.at", o.part[i].at, 0, group - o.part[i].width))
            return MILES_NO_VALUE;
        to.part[i].at = o.part[i].at;
        to.part[i].width = o.part[i].width;
    }
    return ml_build_slice(h->b, x, to);
}

static int32_t g_concat(miles_graph *g, int32_t x, int32_t y, int32_t n_head) {
    graph *h = of(g);

    if (!op(h, "concat") || !is(h, "x", x, ROWS) || !is(h, "y", y, ROWS) ||
        !divides(h, "n_head", n_head, width_of(h, x)) ||
        !divides(h, "n_head", n_head, width_of(h, y)))
        return MILES_NO_VALUE;
    return ml_build_concat(h->b, x, y, n_head);
}

/* --- experts and recurrent layers ------------------------------------------------- */

static bool check_moe(graph *h, const miles_moe *o) {
    const ml_spec *s = h->b->spec;
    const char *name[] = { o->gate, o->up, o->down, o->bias, o->expert_scale };

    for (size_t i = 0; i < sizeof name / sizeof *name; i++)
        if (!optional(h, "a name", name[i]))
            return false;
    if (!named(h, "router", o->router) || !named(h, "experts", o->experts) ||
        !within(h, "n_expert", o->n_expert, 1, 65536) ||
        !within(h, "top_k", o->top_k, 1, o->n_expert) ||
        !within(h, "n_inner", o->n_inner, 1, MAX_WIDTH) ||
        !within(h, "act", o->act, 0, ML_ACT_COUNT - 1) ||
        (o->n_group && (!divides(h, "n_group", o->n_group, o->n_expert) ||
                        !within(h, "top_group", o->top_group, 1, o->n_group))))
        return false;
    if (h->b->layer == ML_NONE)
        return wrong(h, "outside a layer");
    return !s->route[ML_ROUTING_EXPERTS].top_k ||
           s->route[ML_ROUTING_EXPERTS].top_k == o->top_k ||
           wrong(h, "with top_k = %d, but %d in an earlier layer", o->top_k,
                 s->route[ML_ROUTING_EXPERTS].top_k);
}

static int32_t g_moe(miles_graph *g, int32_t x, int32_t by, const miles_moe *from) {
    graph *h = of(g);
    miles_moe o = { 0 };

    if (!op(h, "moe") || !OPTIONS(h, o, from) || !is(h, "x", x, ROWS) ||
        !is(h, "by", by, ROWS) || !check_moe(h, &o))
        return MILES_NO_VALUE;
    return ml_build_moe(h->b, x, by,
                        (ml_moe_opts){ .router = o.router,
                                       .experts = o.experts,
                                       .gate = o.gate,
                                       .up = o.up,
                                       .down = o.down,
                                       .bias = o.bias,
                                       .expert_scale = o.expert_scale,
                                       .router_bias = o.router_bias,
                                       .oss_experts = o.oss_experts,
                                       .transposed = o.transposed,
                                       .weigh_inputs = o.weigh_inputs,
                                       .n_expert = o.n_expert,
                                       .top_k = o.top_k,
                                       .n_group = o.n_group,
                                       .top_group = o.top_group,
                                       .n_inner = o.n_inner,
                                       .sigmoid = o.sigmoid,
                                       .renorm = o.renorm,
                                       .ungated = o.ungated,
                                       .scale = (float)o.scale,
                                       .act = (ml_act)o.act });
}

static int32_t g_conv(miles_graph *g, int32_t x, const char *name, int32_t taps,
                      bool bias) {
    graph *h = of(g);

    if (!op(h, "conv") || !is(h, "x", x, ROWS) || !named(h, "name", name) ||
        !within(h, "taps", taps, 2, 8))
        return MILES_NO_VALUE;
    return ml_build_conv(h->b, x, name, taps, bias);
}

static int32_t g_decay(miles_graph *g, int32_t a, int32_t gate, const miles_decay *from) {
    graph *h = of(g);
    miles_decay o = { 0 };

    if (!op(h, "decay") || !OPTIONS(h, o, from) || !is(h, "a", a, ROWS) ||
        !named(h, "log_speed", o.log_speed) || !named(h, "bias", o.bias) ||
        (gate != MILES_NO_VALUE && (!is(h, "gate", gate, ROWS) ||
                                    !same(h, "gate", width_of(h, gate), width_of(h, a)))))
        return MILES_NO_VALUE;
    return ml_build_decay(h->b, a, gate,
                          (ml_decay_opts){ .log_speed = o.log_speed,
                                           .bias = o.bias,
                                           .min_step = (float)o.min_step });
}

static int32_t g_linear_rnn(miles_graph *g, int32_t qkv, int32_t decay,
                            const miles_linear_rnn *from) {
    graph *h = of(g);
    miles_linear_rnn o = { 0 };

    if (!op(h, "linear_rnn") || !OPTIONS(h, o, from) || !is(h, "qkv", qkv, ROWS) ||
        !is(h, "decay", decay, DECAY) || !optional(h, "skip", o.skip) ||
        !within(h, "n_key", o.n_key, 1, 65536) ||
        !within(h, "n_head", o.n_head, 1, 65536) ||
        !within(h, "key_dim", o.key_dim, 1, 65536) ||
        !within(h, "value_dim", o.value_dim, 1, 65536) ||
        !divides(h, "n_key", o.n_key, o.n_head) ||
        !same(h, "decay", width_of(h, decay), 2 * (int64_t)o.n_head) ||
        !same(h, "qkv", width_of(h, qkv),
              2 * (int64_t)o.n_key * o.key_dim + (int64_t)o.n_head * o.value_dim))
        return MILES_NO_VALUE;
    return ml_build_linear_rnn(h->b, qkv, decay,
                               (ml_linear_rnn_opts){ .n_key = o.n_key,
                                                     .n_head = o.n_head,
                                                     .key_dim = o.key_dim,
                                                     .value_dim = o.value_dim,
                                                     .skip = o.skip });
}

/* --- the family ------------------------------------------------------------------- */

static const miles_graph functions = {
    .size = sizeof(miles_graph),
    .has = g_has,
    .integer = g_integer,
    .number = g_number,
    .boolean = g_boolean,
    .string = g_string,
    .list_len = g_list_len,
    .list_integer = g_list_integer,
    .list_string = g_list_string,
    .fail = g_fail,
    .sizes = g_sizes,
    .begin_layer = g_begin_layer,
    .end_layer = g_end_layer,
    .width = g_width,
    .embed = g_embed,
    .table = g_table,
    .linear = g_linear,
    .norm = g_norm,
    .layernorm = g_layernorm,
    .read_rope = g_read_rope,
    .rope_score_scale = g_rope_score_scale,
    .rope = g_rope,
    .attn = g_attn,
    .attn_chosen = g_attn_chosen,
    .index = g_index,
    .head_linear = g_head_linear,
    .add = g_add,
    .scale = g_scale,
    .scale_by = g_scale_by,
    .glu = g_glu,
    .moe = g_moe,
    .slice = g_slice,
    .concat = g_concat,
    .row_gate = g_row_gate,
    .conv = g_conv,
    .decay = g_decay,
    .linear_rnn = g_linear_rnn,
    .head = g_head,
};

static void check_names(graph *h) {
    const ml_spec *s = h->b->spec;
    char buf[512];
    ml_map seen;

    ml_map_init(&seen, &h->b->spec->arena, s->n_param);
    for (int32_t i = 0; i < s->n_param && !failed(h); i++) {
        const char *name = ml_param_name(&s->param[i], 0, buf, sizeof buf);
        name = ml_arena_str(&h->b->spec->arena, name, strlen(name));
        if (!ml_map_add(&seen, ml_str_of(name), i))
            wrong(h, "with two parameters named %s", name);
    }
}

void ml_plugin_family_build(ml_builder *b, const miles_family *family) {
    graph h = { .api = functions, .b = b, .family = family, .call = "build" };

    family->build(&h.api);
    h.call = "build";
    if (!failed(&h) && !h.ended)
        wrong(&h, "without head, which is the last op");
    if (!failed(&h))
        check_names(&h);
}
