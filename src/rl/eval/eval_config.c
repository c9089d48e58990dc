#include "rl/eval/eval_config.h"

#include <math.h>
#include <stddef.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "io/yaml.h"

typedef enum field_type { TEXT, WHOLE, NUMBER, TEXTS, WHOLES, OBJECT } field_type;

#define AT(member) offsetof(ml_eval_spec, member)

static const struct {
    const char *key;
    field_type type;
    size_t at;
} fields[] = {
    { "name", TEXT, AT(name) },
    { "path", TEXT, AT(path) },
    { "rm_type", TEXT, AT(rm_type) },
    { "custom_rm_path", TEXT, AT(custom_rm_path) },
    { "custom_generate_function_path", TEXT, AT(custom_generate_path) },
    { "input_key", TEXT, AT(input_key) },
    { "label_key", TEXT, AT(label_key) },
    { "tool_key", TEXT, AT(tool_key) },
    { "metadata_key", TEXT, AT(metadata_key) },
    { "n_samples_per_eval_prompt", WHOLE, AT(n_samples) },
    { "top_k", WHOLE, AT(top_k) },
    { "max_response_len", WHOLE, AT(max_response) },
    { "min_new_tokens", WHOLE, AT(min_new) },
    { "temperature", NUMBER, AT(temperature) },
    { "top_p", NUMBER, AT(top_p) },
    { "stop", TEXTS, AT(stop) },
    { "stop_token_ids", WHOLES, AT(stop_ids) },
    { "metadata_overrides", OBJECT, AT(metadata) },
};
#define N_FIELD (sizeof fields / sizeof *fields)

static const char *const wanted[] = { "a string",
                                      "a whole number above 0 (top_k: or -1 for all)",
                                      "a number",
                                      "a list of strings",
                                      "a list of whole numbers",
                                      "an object" };

typedef struct reader {
    ml_arena *a;
    const char *name;
    ml_err *err;
} reader;

ml_eval_spec ml_eval_spec_empty(void) {
    return (ml_eval_spec){ .temperature = (double)NAN, .top_p = (double)NAN };
}

/* --- one member -------------------------------------------------------------------- */

/* Wraps a single value in a list, if it is not a list. */
static const ml_json *as_list(reader *r, const ml_json *v) {
    ml_json *list, *item;

    if (v->type == ML_JSON_ARRAY)
        return v;
    list = ML_NEW(r->a, ml_json, 1);
    item = ML_NEW(r->a, ml_json, 1);
    *item = *v;
    item->next = NULL;
    *list = (ml_json){ .type = ML_JSON_ARRAY, .n = 1, .child = item };
    return list;
}

static bool is_list_of(const ml_json *list, ml_json_type type) {
    int64_t x;

    for (const ml_json *e = list->child; e; e = e->next)
        if (e->type != type || (type == ML_JSON_NUMBER && !ml_json_i64(e, &x)))
            return false;
    return true;
}

/* False: the value is not of this type. */
static bool take(reader *r, void *to, field_type type, const ml_json *v) {
    const ml_json *list = v;
    int64_t whole = 0;

    switch (type) {
    case TEXT:
        if (v->type == ML_JSON_STRING)
            *(const char **)to = ml_arena_str(r->a, v->text.ptr, v->text.len);
        return v->type == ML_JSON_STRING;
    case WHOLE:
        if (!ml_json_i64(v, &whole) || whole == 0 || whole < -1)
            return false;
        *(int64_t *)to = whole;
        return true;
    case NUMBER: return ml_json_f64(v, to);
    case TEXTS:
    case WHOLES:
        list = as_list(r, v);
        *(const ml_json **)to = list;
        return is_list_of(list, type == TEXTS ? ML_JSON_STRING : ML_JSON_NUMBER);
    case OBJECT: *(const ml_json **)to = v; return v->type == ML_JSON_OBJECT;
    }
    return false;
}

static ml_status read_member(reader *r, ml_eval_spec *s, const ml_json *v) {
    for (size_t i = 0; i < N_FIELD; i++) {
        if (!ml_str_is(v->key, fields[i].key))
            continue;
        if (v->type == ML_JSON_NULL || take(r, (char *)s + fields[i].at, fields[i].type, v))
            return ML_OK;
        return ml_fail(r->err, ML_EFORMAT, "%s:%u: %s is %s; expected %s", r->name, v->line,
                       fields[i].key, ml_json_what(v), wanted[fields[i].type]);
    }
    return ml_fail(r->err, ML_EFORMAT, "%s:%u: unknown key \"%.*s\" of a data set", r->name,
                   v->line, (int)v->key.len, v->key.ptr);
}

static ml_status read_members(reader *r, ml_eval_spec *s, const ml_json *object) {
    ml_status st = ML_OK;

    if (object->type != ML_JSON_OBJECT)
        return ml_fail(r->err, ML_EFORMAT, "%s:%u: expected keys of a data set, found %s",
                       r->name, object->line, ml_json_what(object));
    for (const ml_json *v = object->child; v && st == ML_OK; v = v->next)
        st = read_member(r, s, v);
    return st;
}

/* --- metadata ---------------------------------------------------------------------- */

static void write_value(ml_text *t, const ml_json *v) {
    switch (v->type) {
    case ML_JSON_NULL: ml_text_printf(t, "null"); return;
    case ML_JSON_FALSE: ml_text_printf(t, "false"); return;
    case ML_JSON_TRUE: ml_text_printf(t, "true"); return;
    case ML_JSON_NUMBER: ml_text_add(t, v->text.ptr, v->text.len); return;
    case ML_JSON_STRING: ml_json_quote(t, v->text); return;
    case ML_JSON_ARRAY:
    case ML_JSON_OBJECT: break;
    }
    ml_text_printf(t, v->type == ML_JSON_ARRAY ? "[" : "{");
    for (const ml_json *c = v->child; c; c = c->next) {
        if (c != v->child)
            ml_text_printf(t, ", ");
        if (v->type == ML_JSON_OBJECT) {
            ml_json_quote(t, c->key);
            ml_text_printf(t, ": ");
        }
        write_value(t, c);
    }
    ml_text_printf(t, v->type == ML_JSON_ARRAY ? "]" : "}");
}

static void write_metadata(reader *r, ml_eval_spec *s) {
    ml_text t = { 0 };

    if (s->rm_type) {
        ml_text_printf(&t, "\"rm_type\": ");
        ml_json_quote(&t, ml_str_of(s->rm_type));
    }
    for (const ml_json *v = s->metadata ? s->metadata->child : NULL; v; v = v->next) {
        ml_text_printf(&t, "%s", t.len ? ", " : "");
        ml_json_quote(&t, v->key);
        ml_text_printf(&t, ": ");
        write_value(&t, v);
    }
    if (t.len)
        s->metadata_more = ml_arena_str(r->a, t.ptr, t.len);
    ml_text_release(&t);
}

/* --- the document ------------------------------------------------------------------ */

static ml_status read_set(reader *r, ml_eval_spec *s, const ml_json *set,
                          const ml_json *defaults) {
    ml_status st = defaults ? read_members(r, s, defaults) : ML_OK;

    if (st == ML_OK)
        st = read_members(r, s, set);
    if (st == ML_OK && set->key.len && !s->name)
        s->name = ml_arena_str(r->a, set->key.ptr, set->key.len);
    if (st == ML_OK && (!s->name || !s->path))
        st = ml_fail(r->err, ML_EFORMAT, "%s:%u: a data set needs a name and a path",
                     r->name, set->line);
    write_metadata(r, s);
    return st;
}

static ml_status read_document(reader *r, const ml_json *doc, ml_eval_spec **out,
                               int32_t *n) {
    const ml_json *inner = ml_json_get(doc, "eval");
    const ml_json *top = inner && inner->type == ML_JSON_OBJECT ? inner : doc;
    const ml_json *sets = ml_json_get(top, "datasets"),
                  *defaults = ml_json_get(top, "defaults");
    ml_status st = ML_OK;

    *n = 0;
    if (!sets || !sets->n || (sets->type != ML_JSON_ARRAY && sets->type != ML_JSON_OBJECT))
        return ml_fail(r->err, ML_EFORMAT,
                       "%s: expected \"datasets\", a list of data sets or a mapping of "
                       "names to data sets",
                       r->name);
    for (const ml_json *v = top->child; v; v = v->next)
        if (v != sets && v != defaults)
            return ml_fail(r->err, ML_EFORMAT,
                           "%s:%u: expected \"defaults\" and \"datasets\" only, found "
                           "\"%.*s\"",
                           r->name, v->line, (int)v->key.len, v->key.ptr);
    if (defaults && defaults->type == ML_JSON_NULL)
        defaults = NULL;
    *out = ML_NEW(r->a, ml_eval_spec, sets->n);
    for (const ml_json *set = sets->child; set && st == ML_OK; set = set->next) {
        (*out)[*n] = ml_eval_spec_empty();
        st = read_set(r, &(*out)[(*n)++], set, defaults);
    }
    return st;
}

ml_status ml_eval_config_read(ml_eval_spec **out, int32_t *n, ml_arena *a,
                              const char *config, ml_err *err) {
    bool is_file = access(config, R_OK) == 0;
    reader r = { a, is_file ? config : "--eval-config", err };
    ml_str text = ml_str_of(config);
    const ml_json *doc = NULL;
    ml_file file = { 0 };
    ml_status st = ML_OK;

    if (!is_file && !strchr(config, ':'))
        return ml_fail(err, ML_EIO, "--eval-config: %s is neither a readable file nor YAML",
                       config);
    if (is_file)
        st = ml_file_map(&file, config, err);
    if (st == ML_OK && is_file)
        text = file.bytes;
    if (st == ML_OK)
        st = ml_yaml_parse(&doc, a, text, r.name, err);
    if (st == ML_OK)
        st = read_document(&r, doc, out, n);
    if (is_file)
        ml_file_unmap(&file);
    return st;
}
