/* schema_rules.c - JSON schemas to rules.
 *
 * The texts are JSON values that the schema accepts; not every such value is among them:
 * objects have their properties in the schema's order, strings and numbers are bounded, and
 * an object with "properties" has others only if "additionalProperties" says so (as in
 * OpenAI's strict mode and in XGrammar).  A keyword that would be violated is refused. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "text/grammar/schema_priv.h"

enum {
    MAX_DEPTH = 100,
    MAX_COUNT = 10000000, /* of minLength and the like */
};

__attribute__((format(printf, 2, 3))) ml_gnode *ml_schema_refuse(ml_schema *s,
                                                                 const char *fmt, ...) {
    char what[500];
    va_list ap;

    if (s->failed)
        return NULL;
    va_start(ap, fmt);
    vsnprintf(what, sizeof what, fmt, ap);
    va_end(ap);
    s->failed = true;
    ml_fail(s->err, ML_EUSAGE, "#%.*s: %s", (int)(s->path.len < 300 ? s->path.len : 300),
            s->path.ptr ? s->path.ptr : "", what);
    return NULL;
}

/* A value below this place, for messages. */
ml_gnode *ml_schema_value_at(ml_schema *s, const ml_json *v, const char *key, ml_str name) {
    size_t len = s->path.len;
    ml_gnode *n;

    ml_text_printf(&s->path, "/%s", key);
    if (name.len)
        ml_text_printf(&s->path, "/%.*s", (int)(name.len < 60 ? name.len : 60), name.ptr);
    n = ml_schema_value(s, v);
    s->path.len = len;
    return n;
}

/* --- keywords --------------------------------------------------------------- */

static bool same_json(const ml_json *a, const ml_json *b) {
    const ml_json *x = a->child, *y = b->child;

    if (a->type != b->type || a->n != b->n || !ml_str_eq(a->text, b->text))
        return false;
    for (; x && y; x = x->next, y = y->next)
        if (!ml_str_eq(x->key, y->key) || !same_json(x, y))
            return false;
    return true;
}

/* The keyword's value; two layers may not disagree. */
const ml_json *ml_schema_get(ml_schema *s, const ml_schema_view *v, const char *key) {
    const ml_json *found = NULL;

    for (int i = 0; i < v->n; i++) {
        const ml_json *x = ml_json_get(v->layer[i], key);
        if (x && found && !same_json(x, found))
            ml_schema_refuse(s, "\"%s\" has two values, which are not combined", key);
        found = x ? x : found;
    }
    return found;
}

int32_t ml_schema_count(ml_schema *s, const ml_schema_view *v, const char *key,
                        int32_t absent) {
    const ml_json *x = ml_schema_get(s, v, key);
    double n;

    if (!x)
        return absent;
    if (!ml_json_f64(x, &n) || n < 0 || n > MAX_COUNT || n != floor(n)) {
        ml_schema_refuse(s, "\"%s\" is not a whole number from 0 to %d", key, MAX_COUNT);
        return absent;
    }
    return (int32_t)n;
}

/* Keywords that constrain a value and have no rules here. */
static void check_keywords(ml_schema *s, const ml_schema_view *v) {
    static const char *const refused[] = { "not",
                                           "if",
                                           "then",
                                           "else",
                                           "contains",
                                           "minContains",
                                           "maxContains",
                                           "multipleOf",
                                           "patternProperties",
                                           "propertyNames",
                                           "dependencies",
                                           "dependentRequired",
                                           "dependentSchemas" };

    for (int i = 0; i < v->n; i++)
        for (size_t k = 0; k < sizeof refused / sizeof *refused; k++) {
            const ml_json *x = ml_json_get(v->layer[i], refused[k]);
            if (x && !(x->type == ML_JSON_OBJECT && x->n == 0))
                ml_schema_refuse(s, "\"%s\" is not supported", refused[k]);
        }
}

void ml_schema_add_layer(ml_schema *s, ml_schema_view *v, const ml_json *layer) {
    if (v->n == ML_SCHEMA_MAX_LAYERS)
        ml_schema_refuse(s, "more than %d schemas are combined", ML_SCHEMA_MAX_LAYERS);
    else
        v->layer[v->n++] = layer;
}

static ml_gnode *value_of_layers(ml_schema *s, const ml_schema_view *v);
static bool is_too_large(ml_schema *s);

/* --- references and combinations --- */

/* One part of a JSON pointer, decoded into `out`. */
static ml_str pointer_part(ml_arena *a, ml_str *rest) {
    const char *slash = memchr(rest->ptr, '/', rest->len);
    size_t len = slash ? (size_t)(slash - rest->ptr) : rest->len, n = 0;
    char *out = ml_arena_str(a, rest->ptr, len);

    for (size_t i = 0; i < len; i++, n++) {
        out[n] = rest->ptr[i];
        if (rest->ptr[i] == '~' && i + 1 < len)
            out[n] = rest->ptr[++i] == '1' ? '/' : '~';
    }
    rest->ptr += len + (slash != NULL);
    rest->len -= len + (slash != NULL);
    return (ml_str){ out, n };
}

static const ml_json *child_of(const ml_json *v, ml_str key) {
    int64_t index = 0;

    for (const ml_json *c = v->type == ML_JSON_OBJECT ? v->child : NULL; c; c = c->next)
        if (ml_str_eq(c->key, key))
            return c;
    if (v->type != ML_JSON_ARRAY || !key.len || key.len > 8)
        return NULL;
    for (size_t i = 0; i < key.len; i++) {
        if (key.ptr[i] < '0' || key.ptr[i] > '9')
            return NULL;
        index = 10 * index + key.ptr[i] - '0';
    }
    v = v->child;
    while (v && index-- > 0)
        v = v->next;
    return v;
}

static const ml_json *find_ref(ml_schema *s, ml_str ref) {
    const ml_json *at = s->root;
    ml_str rest = { ref.ptr + 1, ref.len - 1 };

    if (!ref.len || ref.ptr[0] != '#' || (rest.len && rest.ptr[0] != '/'))
        return NULL;
    if (rest.len) {
        rest.ptr++;
        rest.len--;
        while (at && rest.len)
            at = child_of(at, pointer_part(s->g->arena, &rest));
    }
    return at;
}

static const ml_json *ref_target(ml_schema *s, const ml_json *ref) {
    const ml_json *at = ref->type == ML_JSON_STRING ? find_ref(s, ref->text) : NULL;

    if (!at)
        ml_schema_refuse(
            s, "\"$ref\" is \"%.*s\", which is not found; expected #/... in this schema",
            (int)(ref->text.len < 100 ? ref->text.len : 100),
            ref->text.ptr ? ref->text.ptr : "");
    return at;
}

/* A reference alone is a rule, so that schemas may be recursive. */
static ml_gnode *reference(ml_schema *s, const ml_json *ref) {
    const ml_json *target = ref_target(s, ref);
    int64_t rule;
    ml_gnode *body;

    if (!target)
        return NULL;
    rule = ml_map_get(&s->refs, ref->text, -1);
    if (rule < 0) {
        rule = ml_grule_new(s->g, "a $ref");
        s->g->rule[rule].name = ref->text;
        ml_map_add(&s->refs, ref->text, rule);
        body = ml_schema_value(s, target);
        ml_grule_set(s->g, (int32_t)rule, body);
    }
    return ml_gnode_ref(s->g, (int32_t)rule);
}

/* Annotations do not constrain values. */
static bool is_annotation(ml_str key) {
    static const char *const names[] = {
        "title", "description", "default",  "examples",     "example",  "$schema",
        "$id",   "id",          "$comment", "deprecated",   "readOnly", "writeOnly",
        "$defs", "definitions", "$anchor",  "discriminator"
    };

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (ml_str_is(key, names[i]))
            return true;
    return false;
}

static int constraints(const ml_json *v) {
    int n = 0;
    for (const ml_json *c = v->child; c; c = c->next)
        n += !is_annotation(c->key);
    return n;
}

/* Adds a schema with those that it refers to and its allOf. */
static void flatten(ml_schema *s, ml_schema_view *out, const ml_json *v, int depth) {
    const ml_json *ref = ml_json_get(v, "$ref"), *all = ml_json_get(v, "allOf");

    if (v->type == ML_JSON_TRUE || s->failed)
        return;
    if (v->type != ML_JSON_OBJECT || depth > ML_SCHEMA_MAX_LAYERS) {
        ml_schema_refuse(s, depth > ML_SCHEMA_MAX_LAYERS
                                ? "\"$ref\" or \"allOf\" refers to itself"
                                : "a schema in \"allOf\" is not an object");
        return;
    }
    ml_schema_add_layer(s, out, v);
    if (ref) {
        const ml_json *target = ref_target(s, ref);
        if (target)
            flatten(s, out, target, depth + 1);
    }
    if (all && all->type != ML_JSON_ARRAY)
        ml_schema_refuse(s, "\"allOf\" is %s; expected a list", ml_json_what(all));
    for (const ml_json *c = all ? all->child : NULL; c && !s->failed; c = c->next)
        flatten(s, out, c, depth + 1);
}

/* The members of a layer but one, and without those that flatten has followed. */
static const ml_json *without(ml_schema *s, const ml_json *layer, const ml_json *one) {
    ml_json *kept = ML_NEW(s->g->arena, ml_json, 1), *copy, *last = NULL;

    kept->type = ML_JSON_OBJECT;
    for (const ml_json *m = layer->child; m; m = m->next) {
        if (m == one || ml_str_is(m->key, "$ref") || ml_str_is(m->key, "allOf"))
            continue;
        copy = ML_NEW(s->g->arena, ml_json, 1);
        *copy = *m;
        copy->next = NULL;
        if (last)
            last->next = copy;
        else
            kept->child = copy;
        last = copy;
        kept->n++;
    }
    return kept;
}

/* The alternatives of anyOf or oneOf, each together with the other layers. */
static ml_gnode *alternatives(ml_schema *s, const ml_schema_view *v, int layer,
                              const char *key) {
    const ml_json *all = ml_json_get(v->layer[layer], key), *rest;
    ml_gnode *alt = ml_gnode_new(s->g, ML_GNODE_ALT), *n;
    bool alone = v->n == 1 && constraints(v->layer[layer]) == 1;

    if (all->type != ML_JSON_ARRAY || !all->n)
        return ml_schema_refuse(s, "\"%s\" is not a list of schemas", key);
    rest = without(s, v->layer[layer], all);
    for (const ml_json *c = all->child; c && !s->failed && !is_too_large(s); c = c->next) {
        ml_schema_view one = { 0 };
        for (int i = 0; i < v->n && !alone; i++)
            ml_schema_add_layer(s, &one, i == layer ? rest : v->layer[i]);
        if (!alone)
            flatten(s, &one, c, 0);
        s->depth++;
        n = alone       ? ml_schema_value_at(s, c, key, (ml_str){ 0 })
            : s->failed ? NULL
                        : value_of_layers(s, &one);
        s->depth--;
        if (n)
            ml_gnode_add(alt, n);
    }
    return alt;
}

/* A value of flattened layers. */
static ml_gnode *value_of_layers(ml_schema *s, const ml_schema_view *v) {
    static const char *const keys[] = { "anyOf", "oneOf" };

    check_keywords(s, v);
    for (int i = 0; i < v->n && !s->failed; i++)
        for (int k = 0; k < 2; k++)
            if (ml_json_get(v->layer[i], keys[k]))
                return alternatives(s, v, i, keys[k]);
    if (s->failed)
        return NULL;
    return ml_schema_get(s, v, "enum") || ml_schema_get(s, v, "const")
               ? ml_schema_literals(s, v)
               : ml_schema_typed(s, v);
}

static bool is_too_large(ml_schema *s) {
    if (s->depth <= MAX_DEPTH && s->g->n_node <= ML_GRULES_MAX_NODES)
        return false;
    ml_schema_refuse(s, "the schema is nested too deeply, or it has too many combinations");
    return true;
}

ml_gnode *ml_schema_value_of(ml_schema *s, const ml_schema_view *v) {
    ml_schema_view all = { 0 };
    ml_gnode *n;

    if (v->n == 0)
        return ml_schema_any(s);
    if (v->n == 1)
        return ml_schema_value(s, v->layer[0]);
    s->depth++;
    for (int i = 0; i < v->n && !is_too_large(s); i++)
        flatten(s, &all, v->layer[i], 0);
    n = s->failed ? NULL : value_of_layers(s, &all);
    s->depth--;
    return n;
}

ml_gnode *ml_schema_value(ml_schema *s, const ml_json *v) {
    ml_schema_view all = { 0 };
    const ml_json *ref = ml_json_get(v, "$ref");
    ml_gnode *n = NULL;

    if (v->type == ML_JSON_TRUE)
        return ml_schema_any(s);
    if (v->type == ML_JSON_FALSE)
        return ml_gnode_new(s->g, ML_GNODE_ALT); /* no value */
    if (v->type != ML_JSON_OBJECT)
        return ml_schema_refuse(s, "a schema is %s; expected an object", ml_json_what(v));
    s->depth++;
    if (s->failed || is_too_large(s))
        return NULL;
    if (ref && constraints(v) == 1) {
        n = reference(s, ref);
    } else {
        flatten(s, &all, v, 0);
        n = s->failed ? NULL : value_of_layers(s, &all);
    }
    s->depth--;
    return n;
}

ml_status ml_schema_node(ml_grules *g, ml_gnode **out, const ml_json *v,
                         const ml_json *root, ml_err *err) {
    ml_schema s = { .g = g, .root = root, .err = err };

    ml_map_init(&s.refs, g->arena, 16);
    *out = ml_schema_value(&s, v);
    ml_text_release(&s.path);
    return s.failed ? ML_EUSAGE : ML_OK;
}

ml_status ml_schema_rules(ml_grules *g, ml_str text, ml_err *err) {
    const ml_json any = { .type = ML_JSON_TRUE }, *v = &any;
    ml_gnode *body = NULL;
    ml_status st = ML_OK;

    if (!ml_str_is(text, "$$ANY$$"))
        st = ml_json_parse(&v, g->arena, text, "the schema", err);
    if (st == ML_OK)
        st = ml_schema_node(g, &body, v, v, err);
    ml_grule_set(g, 0, body);
    return st == ML_OK ? ML_OK : ML_EUSAGE;
}
