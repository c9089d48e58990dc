#include "model/peft_config.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "model/spec.h"

enum { MAX_RANK = 4096 };

/* --- reading -------------------------------------------------------------------- */

typedef struct reader {
    ml_peft_config *c;
    ml_arena *arena;
    const ml_json *root;
    ml_err *err;
} reader;

static bool is_set(const ml_json *v) {
    return v && v->type != ML_JSON_NULL && v->type != ML_JSON_FALSE &&
           !((v->type == ML_JSON_ARRAY || v->type == ML_JSON_OBJECT) && v->n == 0);
}

/* What changes the computation in a way that is not supported. */
static ml_status check_unused(const reader *r) {
    static const char *const off[] = { "use_dora",
                                       "use_qalora",
                                       "use_bdlora",
                                       "fan_in_fan_out",
                                       "lora_bias",
                                       "layer_replication",
                                       "trainable_token_indices",
                                       "alora_invocation_tokens",
                                       "kasa_config",
                                       "monteclora_config",
                                       "velora_config" };
    const ml_json *bias = ml_json_get(r->root, "bias");
    const ml_json *type = ml_json_get(r->root, "peft_type");

    if (type && !(type->type == ML_JSON_STRING && ml_str_is(type->text, "LORA")))
        return ml_fail(r->err, ML_EUNSUP, "%s: \"peft_type\" must be \"LORA\"", r->c->path);
    if (is_set(bias) && !(bias->type == ML_JSON_STRING && ml_str_is(bias->text, "none")))
        return ml_fail(r->err, ML_EUNSUP,
                       "%s: \"bias\" must be \"none\": biases are not trained", r->c->path);
    for (size_t i = 0; i < sizeof off / sizeof *off; i++)
        if (is_set(ml_json_get(r->root, off[i])))
            return ml_fail(r->err, ML_EUNSUP,
                           "%s: \"%s\" is not supported; expected false, null or none",
                           r->c->path, off[i]);
    return ML_OK;
}

/* Modules that are saved whole: the head of a reward model alone, which PEFT lists with another
 * name that it may have. */
static ml_status check_saved(const reader *r) {
    const ml_json *v = ml_json_get(r->root, "modules_to_save");
    bool known = v && v->type == ML_JSON_ARRAY;

    if (!is_set(v))
        return ML_OK;
    for (const ml_json *e = known ? v->child : NULL; e; e = e->next) {
        bool head = e->type == ML_JSON_STRING && ml_str_is(e->text, ML_REWARD_HEAD);
        r->c->saves_head = r->c->saves_head || head;
        known = known &&
                (head || (e->type == ML_JSON_STRING && ml_str_is(e->text, "classifier")));
    }
    if (known && r->c->saves_head)
        return ML_OK;
    return ml_fail(r->err, ML_EUNSUP,
                   "%s: \"modules_to_save\" is not supported but for [\"" ML_REWARD_HEAD
                   "\"], the head of a reward model; expected null",
                   r->c->path);
}

static ml_status read_number(const reader *r, const char *key, double absent, double least,
                             double most, double *out) {
    const ml_json *v = ml_json_get(r->root, key);

    *out = absent;
    if (!v || v->type == ML_JSON_NULL)
        return ML_OK;
    if (!ml_json_f64(v, out) || *out < least || *out > most)
        return ml_fail(r->err, ML_EFORMAT, "%s: \"%s\" must be a number from %g to %g",
                       r->c->path, key, least, most);
    return ML_OK;
}

static ml_status read_list(const reader *r, const ml_json *v, const char *key,
                           const char ***out, int32_t *n) {
    *out = ML_NEW(r->arena, const char *, v->n);
    for (const ml_json *e = v->child; e; e = e->next) {
        if (e->type != ML_JSON_STRING)
            return ml_fail(r->err, ML_EFORMAT, "%s: \"%s\" must contain names, not %s",
                           r->c->path, key, ml_json_what(e));
        (*out)[(*n)++] = ml_arena_str(r->arena, e->text.ptr, e->text.len);
    }
    return ML_OK;
}

/* before: what may precede the pattern in a name. */
static ml_status compile(const reader *r, const char *key, const char *before, ml_str text,
                         ml_regex **out) {
    const char *pattern = ml_arena_printf(r->arena, "\\A%s(?:%s)\\z", before,
                                          ml_arena_str(r->arena, text.ptr, text.len));
    ml_err why;

    if (ml_regex_new_bounded(out, ml_str_of(pattern), &why) != ML_OK)
        return ml_fail(r->err, ML_EFORMAT,
                       "%s: \"%s\": \"%.*s\" is not a regular expression: %s", r->c->path,
                       key, (int)text.len, text.ptr, why.msg);
    return ML_OK;
}

static ml_status read_names(const reader *r, const char *key, ml_peft_names *out) {
    const ml_json *v = ml_json_get(r->root, key);

    if (!v || v->type == ML_JSON_NULL)
        return ML_OK;
    if (v->type == ML_JSON_ARRAY)
        return read_list(r, v, key, &out->suffix, &out->n);
    if (v->type != ML_JSON_STRING)
        return ml_fail(r->err, ML_EFORMAT, "%s: \"%s\" must be a list or text, not %s",
                       r->c->path, key, ml_json_what(v));
    out->all = ml_str_is(v->text, "all-linear");
    return out->all ? ML_OK : compile(r, key, "", v->text, &out->regex);
}

static ml_status read_pattern(const reader *r, const char *key, ml_peft_pattern **out,
                              int32_t *n) {
    const ml_json *v = ml_json_get(r->root, key);
    ml_status st = ML_OK;

    if (!v || v->type == ML_JSON_NULL)
        return ML_OK;
    *out = ML_NEW(r->arena, ml_peft_pattern, v->n);
    for (const ml_json *e = v->child; v->type == ML_JSON_OBJECT && e && st == ML_OK;
         e = e->next) {
        ml_peft_pattern *p = &(*out)[*n];
        if (!ml_json_f64(e, &p->value) || p->value <= 0 || p->value > 1e6)
            return ml_fail(r->err, ML_EFORMAT, "%s: \"%s\": \"%.*s\" must be a number",
                           r->c->path, key, (int)e->key.len, e->key.ptr);
        st = compile(r, key, "(?:.*\\.)?", e->key, &p->regex);
        *n += st == ML_OK;
    }
    return st;
}

static ml_status read_layers(const reader *r) {
    const ml_json *v = ml_json_get(r->root, "layers_to_transform");
    const ml_json *e = v && v->type == ML_JSON_ARRAY ? v->child : v;

    if (!is_set(v))
        return ML_OK;
    r->c->layer = ML_NEW(r->arena, int32_t, v->type == ML_JSON_ARRAY ? v->n : 1);
    for (; e; e = v->type == ML_JSON_ARRAY ? e->next : NULL) {
        int64_t n;
        if (!ml_json_i64(e, &n) || n < 0 || n > 1 << 20)
            return ml_fail(r->err, ML_EFORMAT,
                           "%s: \"layers_to_transform\" must contain layer numbers",
                           r->c->path);
        r->c->layer[r->c->n_layer++] = (int32_t)n;
    }
    return ML_OK;
}

static ml_status read_all(const reader *r) {
    ml_peft_config *c = r->c;
    const ml_json *rs = ml_json_get(r->root, "use_rslora");
    const ml_json *list = ml_json_get(r->root, "target_parameters");
    double rank = 0;
    ml_status st = check_unused(r);

    if (st == ML_OK)
        st = check_saved(r);

    if (st == ML_OK)
        st = read_number(r, "r", 8, 1, MAX_RANK, &rank);
    if (st == ML_OK)
        st = read_number(r, "lora_alpha", 8, 0, 1e6, &c->alpha);
    if (st == ML_OK)
        st = read_number(r, "lora_dropout", 0, 0, 0.999, &c->dropout);
    if (st == ML_OK && rank != floor(rank))
        st = ml_fail(r->err, ML_EFORMAT, "%s: \"r\" must be a whole number", c->path);
    if (st == ML_OK) /* within 1 .. MAX_RANK */
        c->rank = (int32_t)rank;
    c->rslora = rs && rs->type == ML_JSON_TRUE;
    if (st == ML_OK)
        st = read_names(r, "target_modules", &c->target);
    if (st == ML_OK)
        st = read_names(r, "exclude_modules", &c->exclude);
    if (st == ML_OK && list && list->type == ML_JSON_ARRAY)
        st = read_list(r, list, "target_parameters", &c->parameter, &c->n_parameter);
    if (st == ML_OK)
        st = read_pattern(r, "rank_pattern", &c->rank_pattern, &c->n_rank_pattern);
    if (st == ML_OK)
        st = read_pattern(r, "alpha_pattern", &c->alpha_pattern, &c->n_alpha_pattern);
    return st == ML_OK ? read_layers(r) : st;
}

ml_status ml_peft_config_parse(ml_peft_config *out, ml_arena *a, ml_str text,
                               const char *path, ml_err *err) {
    reader r = { out, a, NULL, err };
    ml_status st;

    *out = (ml_peft_config){ .path = ml_arena_printf(a, "%s", path),
                             .text = { ml_arena_str(a, text.ptr, text.len), text.len } };
    st = ml_json_parse_python(&r.root, a, out->text, out->path, err);
    if (st == ML_OK && r.root->type != ML_JSON_OBJECT)
        st = ml_fail(err, ML_EFORMAT, "%s: must be an object, not %s", path,
                     ml_json_what(r.root));
    if (st == ML_OK)
        out->finder = ml_finder_new();
    if (st == ML_OK)
        st = read_all(&r);
    if (st != ML_OK)
        ml_peft_config_close(out);
    return st;
}

ml_status ml_peft_config_open(ml_peft_config *out, ml_arena *a, const char *path,
                              ml_err *err) {
    ml_file file = { 0 };
    ml_status st = ml_file_map(&file, path, err);

    *out = (ml_peft_config){ 0 };
    if (st == ML_OK)
        st = ml_peft_config_parse(out, a, file.bytes, path, err);
    ml_file_unmap(&file);
    return st;
}

void ml_peft_config_close(ml_peft_config *c) {
    for (int32_t i = 0; i < c->n_rank_pattern; i++)
        ml_regex_free(c->rank_pattern[i].regex);
    for (int32_t i = 0; i < c->n_alpha_pattern; i++)
        ml_regex_free(c->alpha_pattern[i].regex);
    ml_regex_free(c->target.regex);
    ml_regex_free(c->exclude.regex);
    ml_finder_free(c->finder);
    *c = (ml_peft_config){ 0 };
}

/* --- questions ------------------------------------------------------------------ */

static ml_status fits(const ml_peft_config *c, const ml_regex *r, const char *module,
                      bool *out, ml_err *err) {
    size_t begin, end;
    ml_status st = ml_regex_find(r, c->finder, ml_str_of(module), 0, &begin, &end, err);

    *out = st == ML_OK;
    return st == ML_EAGAIN ? ML_OK : st;
}

static ml_status first_fit(const ml_peft_config *c, const ml_peft_pattern *p, int32_t n,
                           const char *module, double *value, ml_err *err) {
    ml_status st = ML_OK;
    bool found = false;

    for (int32_t i = 0; i < n && st == ML_OK && !found; i++) {
        st = fits(c, p[i].regex, module, &found, err);
        if (found)
            *value = p[i].value;
    }
    return st;
}

ml_status ml_peft_rank_of(const ml_peft_config *c, const char *module, int32_t *out,
                          ml_err *err) {
    double rank = c->rank;
    ml_status st = first_fit(c, c->rank_pattern, c->n_rank_pattern, module, &rank, err);

    *out = (int32_t)rank;
    if (st == ML_OK && (rank < 1 || rank > MAX_RANK || rank != floor(rank)))
        return ml_fail(err, ML_EFORMAT,
                       "%s: \"rank_pattern\" gives %s the rank %g; expected a whole number "
                       "from 1 to %d",
                       c->path, module, rank, MAX_RANK);
    return st;
}

ml_status ml_peft_scale_of(const ml_peft_config *c, const char *module, int32_t rank,
                           float *out, ml_err *err) {
    double alpha = c->alpha;
    ml_status st = first_fit(c, c->alpha_pattern, c->n_alpha_pattern, module, &alpha, err);

    *out = (float)(alpha / (c->rslora ? sqrt((double)rank) : (double)rank));
    return st;
}

static bool ends_like(const char *name, const char *suffix) {
    size_t n = strlen(name), k = strlen(suffix);

    if (n < k || strcmp(name + n - k, suffix) != 0)
        return false;
    return n == k || name[n - k - 1] == '.';
}

static ml_status names_fit(const ml_peft_config *c, const ml_peft_names *l,
                           const char *module, bool *out, ml_err *err) {
    *out = l->all;
    for (int32_t i = 0; i < l->n; i++)
        *out = *out || ends_like(module, l->suffix[i]);
    return l->regex ? fits(c, l->regex, module, out, err) : ML_OK;
}

/* The first number between two dots, which is that of the layer; -1: none. */
static int32_t layer_of(const char *module) {
    for (const char *p = strchr(module, '.'); p; p = strchr(p + 1, '.')) {
        char *end;
        long n = strtol(p + 1, &end, 10);
        if (end > p + 1 && (*end == '.' || !*end))
            return (int32_t)n;
    }
    return -1;
}

ml_status ml_peft_is_target(const ml_peft_config *c, const char *module, bool *out,
                            ml_err *err) {
    bool excluded = false, layer = c->n_layer == 0;
    ml_status st = names_fit(c, &c->target, module, out, err);

    if (st == ML_OK)
        st = names_fit(c, &c->exclude, module, &excluded, err);
    for (int32_t i = 0; i < c->n_layer; i++)
        layer = layer || c->layer[i] == layer_of(module);
    *out = *out && !excluded && layer;
    return st;
}

bool ml_peft_is_parameter(const ml_peft_config *c, const char *name) {
    for (int32_t i = 0; i < c->n_parameter; i++)
        if (ends_like(name, c->parameter[i]))
            return true;
    return false;
}
