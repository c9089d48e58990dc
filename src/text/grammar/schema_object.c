/* schema_object.c - objects: properties in the schema's order, then further members. */
#include <stdlib.h>
#include <string.h>

#include "base/utf8.h"
#include "text/grammar/schema_priv.h"

enum { MAX_PROPERTIES = 5000 };

/* --- objects ---------------------------------------------------------------- */

typedef struct property {
    ml_str name;
    ml_schema_view schema;
    bool required;
    int32_t member; /* rule */
} property;

typedef struct object {
    property *p;
    int32_t n;
    const ml_json *additional; /* NULL: none */
    bool any_additional;       /* further members with any value */
    int32_t more;              /* rule of a further member, or -1 */
} object;

static property *find_property(object *o, ml_str name) {
    for (int32_t i = 0; i < o->n; i++)
        if (ml_str_eq(o->p[i].name, name))
            return &o->p[i];
    return NULL;
}

static property *add_property(ml_schema *s, object *o, ml_str name) {
    property *p = find_property(o, name);

    if (p)
        return p;
    if (o->n == MAX_PROPERTIES) {
        ml_schema_refuse(s, "the object has more than %d properties", MAX_PROPERTIES);
        return NULL;
    }
    o->p[o->n] = (property){ .name = name };
    return &o->p[o->n++];
}

static void read_properties(ml_schema *s, const ml_schema_view *v, object *o) {
    for (int i = 0; i < v->n && !s->failed; i++) {
        const ml_json *all = ml_json_get(v->layer[i], "properties");
        if (all && all->type != ML_JSON_OBJECT)
            ml_schema_refuse(s, "\"properties\" is %s; expected an object",
                             ml_json_what(all));
        for (const ml_json *c = all && !s->failed ? all->child : NULL; c && !s->failed;
             c = c->next) {
            property *p = add_property(s, o, c->key);
            if (p)
                ml_schema_add_layer(s, &p->schema, c);
        }
    }
}

static void read_required(ml_schema *s, const ml_schema_view *v, object *o) {
    for (int i = 0; i < v->n && !s->failed; i++) {
        const ml_json *all = ml_json_get(v->layer[i], "required");
        if (all && all->type != ML_JSON_ARRAY)
            ml_schema_refuse(s, "\"required\" is %s; expected a list", ml_json_what(all));
        for (const ml_json *c = all && !s->failed ? all->child : NULL; c && !s->failed;
             c = c->next) {
            property *p = c->type == ML_JSON_STRING ? add_property(s, o, c->text) : NULL;
            if (!p)
                ml_schema_refuse(s, "\"required\" has %s; expected strings",
                                 ml_json_what(c));
            else
                p->required = true;
        }
    }
}

/* --- names of further members --- */

/* Characters of a name without escapes, so that each name has one spelling. */
static ml_gnode *plain_char(ml_schema *s, const ml_grange * not, int32_t n) {
    ml_grange *r = ML_NEW(s->g->arena, ml_grange, n + 3);

    if (n)
        memcpy(r, not, (size_t)n * sizeof *r);
    r[n] = (ml_grange){ 0, 0x1f };
    r[n + 1] = (ml_grange){ '"', '"' };
    r[n + 2] = (ml_grange){ '\\', '\\' };
    return ml_gnode_class(s->g, r, n + 3, true);
}

static int by_name(const void *a, const void *b) {
    const ml_str *x = a, *y = b;
    size_t n = x->len < y->len ? x->len : y->len;
    int order = n ? memcmp(x->ptr, y->ptr, n) : 0;
    return order ? order : (x->len > y->len) - (x->len < y->len);
}

static uint32_t code_at(ml_str s, size_t at, size_t *next) {
    const char *p = s.ptr + at;
    uint32_t code = ml_utf8_next(&p);
    *next = (size_t)(p - s.ptr);
    return code;
}

/* The ends of names that are none of the n sorted ones, which agree up to byte `at`:
 * another character and anything after it, or a character of theirs and what follows. */
static ml_gnode *other_names(ml_schema *s, const ml_str *name, int32_t n, size_t at,
                             int depth) {
    ml_gnode *alt = ml_gnode_new(s->g, ML_GNODE_ALT);
    ml_grange *used = ML_NEW(s->g->arena, ml_grange, n + 1);
    int32_t n_used = 0, i = 0;

    if (depth > 200)
        return ml_schema_refuse(
            s, "a property's name is too long beside \"additionalProperties\"");
    if (n && name[0].len == at)
        i++;
    else
        ml_gnode_add(alt, ml_gnode_new(s->g, ML_GNODE_EMPTY));
    while (i < n && !s->failed) {
        size_t next, ignored;
        uint32_t code = code_at(name[i], at, &next);
        int32_t end = i + 1;
        ml_gnode *rest;
        while (end < n && code_at(name[end], at, &ignored) == code)
            end++;
        used[n_used++] = (ml_grange){ code, code };
        rest = other_names(s, name + i, end - i, next, depth + 1);
        if (rest)
            ml_gnode_add(
                alt,
                ml_schema_seq(s, ml_gnode_class(s->g, &used[n_used - 1], 1, false), rest));
        i = end;
    }
    return ml_gnode_add(
        alt, ml_schema_seq(s, plain_char(s, used, n_used),
                           ml_gnode_repeat(s->g, plain_char(s, NULL, 0), 0, -1)));
}

/* Names that are spelled with escapes cannot be written without them, so they need not be
 * excluded. */
static ml_gnode *other_name(ml_schema *s, const object *o) {
    ml_str *name = ML_NEW(s->g->arena, ml_str, o->n + 1);

    for (int32_t i = 0; i < o->n; i++)
        name[i] = o->p[i].name;
    if (o->n > 1)
        qsort(name, (size_t)o->n, sizeof *name, by_name);
    return other_names(s, name, o->n, 0, 0);
}

static int32_t further_member(ml_schema *s, const object *o) {
    ml_gnode *value, *key;

    if (!o->any_additional && !o->additional)
        return -1;
    value = o->additional ? ml_schema_value_at(s, o->additional, "additionalProperties",
                                               (ml_str){ 0 })
                          : ml_schema_any(s);
    key = o->n ? other_name(s, o) : NULL;
    if (!value || s->failed)
        return -1;
    key = o->n ? ml_schema_quoted(s, key) : ml_schema_any_string(s);
    return ml_schema_rule(s, "member", ml_schema_member(s, key, value));
}

/* --- members --- */

static void read_member(ml_schema *s, const object *o, property *p) {
    ml_text key = { 0 };
    size_t len = s->path.len;
    ml_gnode *value;

    if (!p->schema.n && o->additional)
        ml_schema_add_layer(s, &p->schema, o->additional);
    ml_text_printf(&s->path, "/properties/%.*s", (int)(p->name.len < 60 ? p->name.len : 60),
                   p->name.ptr);
    value = ml_schema_value_of(s, &p->schema);
    s->path.len = len;
    ml_json_quote(&key, p->name);
    if (value)
        p->member = ml_schema_rule(
            s, "member",
            ml_schema_member(s, ml_gnode_str(s->g, (ml_str){ key.ptr, key.len }), value));
    ml_text_release(&key);
}

static ml_gnode *optional(ml_schema *s, ml_gnode *n) {
    return ml_gnode_repeat(s->g, n, 0, 1);
}

/* Rule tail[i]: what follows the first member, from property i on. */
static int32_t *make_tails(ml_schema *s, const object *o) {
    int32_t *tail = ML_NEW(s->g->arena, int32_t, o->n + 1);
    ml_gnode *last = ml_gnode_new(s->g, ML_GNODE_EMPTY);

    if (o->more >= 0)
        last = ml_gnode_repeat(
            s->g, ml_schema_seq(s, ml_schema_comma(s), ml_gnode_ref(s->g, o->more)), 0, -1);
    tail[o->n] = ml_schema_rule(s, "members", last);
    for (int32_t i = o->n - 1; i >= 0; i--) {
        ml_gnode *one =
            ml_schema_seq(s, ml_schema_comma(s), ml_gnode_ref(s->g, o->p[i].member));
        tail[i] = ml_schema_rule(s, "members",
                                 ml_schema_seq(s, o->p[i].required ? one : optional(s, one),
                                               ml_gnode_ref(s->g, tail[i + 1])));
    }
    return tail;
}

/* The members: the first one is any before or at the first required property. */
static ml_gnode *members(ml_schema *s, const object *o) {
    int32_t *tail = make_tails(s, o), i;
    ml_gnode *alt = ml_gnode_new(s->g, ML_GNODE_ALT);

    for (i = 0; i < o->n; i++) {
        ml_gnode_add(alt, ml_schema_seq(s, ml_gnode_ref(s->g, o->p[i].member),
                                        ml_gnode_ref(s->g, tail[i + 1])));
        if (o->p[i].required)
            return alt;
    }
    if (o->more >= 0)
        ml_gnode_add(alt, ml_schema_seq(s, ml_gnode_ref(s->g, o->more),
                                        ml_gnode_ref(s->g, tail[o->n])));
    return ml_gnode_add(alt, ml_gnode_new(s->g, ML_GNODE_EMPTY));
}

static void read_additional(ml_schema *s, const ml_schema_view *v, object *o) {
    const ml_json *x = ml_schema_get(s, v, "additionalProperties");
    bool named = o->n > 0;

    if (!x)
        x = ml_schema_get(s, v, "unevaluatedProperties");
    if (x && x->type == ML_JSON_OBJECT)
        o->additional = x;
    else
        o->any_additional = x ? x->type == ML_JSON_TRUE : !named;
}

/* "minProperties" and "maxProperties" where the properties imply them. */
static void check_counts(ml_schema *s, const ml_schema_view *v, const object *o,
                         int32_t *max) {
    int32_t min = ml_schema_count(s, v, "minProperties", 0), n_required = 0;

    *max = ml_schema_count(s, v, "maxProperties", -1);
    for (int32_t i = 0; i < o->n; i++)
        n_required += o->p[i].required;
    if (min > n_required &&
        !(min == 1 && o->n == 0 && (o->any_additional || o->additional)))
        ml_schema_refuse(
            s, "\"minProperties\" is not supported beyond the required properties");
    if (*max >= 0 && (o->n || *max < min) &&
        (*max < o->n || o->any_additional || o->additional))
        ml_schema_refuse(s, "\"maxProperties\" is not supported beside \"properties\"");
}

/* At most this many. */
static int32_t count_properties(const ml_schema_view *v) {
    int32_t n = 1;

    for (int i = 0; i < v->n; i++) {
        const ml_json *p = ml_json_get(v->layer[i], "properties"),
                      *r = ml_json_get(v->layer[i], "required");
        n += (p ? p->n : 0) + (r ? r->n : 0);
    }
    return n;
}

ml_gnode *ml_schema_object(ml_schema *s, const ml_schema_view *v) {
    object o = { .more = -1 };
    int32_t max = -1, min;

    o.p = ML_NEW(s->g->arena, property, count_properties(v));
    read_properties(s, v, &o);
    read_required(s, v, &o);
    read_additional(s, v, &o);
    if (!s->failed)
        check_counts(s, v, &o, &max);
    for (int32_t i = 0; i < o.n && !s->failed; i++) {
        if (!o.p[i].schema.n && !o.any_additional && !o.additional &&
            ml_schema_get(s, v, "additionalProperties"))
            return ml_schema_refuse(
                s,
                "the required property \"%.*s\" is not among \"properties\", "
                "and there may be no others",
                (int)(o.p[i].name.len < 60 ? o.p[i].name.len : 60), o.p[i].name.ptr);
        read_member(s, &o, &o.p[i]);
    }
    if (!s->failed)
        o.more = further_member(s, &o);
    if (s->failed)
        return NULL;
    min = ml_schema_count(s, v, "minProperties", 0);
    if (o.n == 0 && o.more >= 0)
        return ml_schema_list(s, "{", ml_schema_separated(s, o.more, min, max), "}");
    return ml_schema_list(s, "{", members(s, &o), "}");
}
