/* schema_values.c - values of each type of JSON but objects, as rules. */
#include <math.h>
#include <string.h>

#include "base/json_out.h"
#include "text/grammar/schema_priv.h"

enum {
    MAX_SPACE = 64,    /* characters of whitespace in a row */
    MAX_PREFIX = 1000, /* of prefixItems */
    DECIMALS = 6,
};

static const int64_t max_number = 100000000000, max_integer = 100000000000000000;

/* --- shared rules ----------------------------------------------------------- */

ml_gnode *ml_schema_seq(ml_schema *s, ml_gnode *a, ml_gnode *b) {
    ml_gnode *seq = ml_gnode_new(s->g, ML_GNODE_SEQ);
    return ml_gnode_add(ml_gnode_add(seq, a), b);
}

static ml_gnode *space(ml_schema *s) {
    static const ml_grange blank[] = { { '\t', '\n' }, { '\r', '\r' }, { ' ', ' ' } };

    if (s->g->compact)
        return ml_gnode_new(s->g, ML_GNODE_EMPTY);
    if (!s->space) {
        int32_t rule = s->space = ml_grule_new(s->g, "space");
        ml_grule_set(
            s->g, rule,
            ml_gnode_repeat(s->g, ml_gnode_class(s->g, blank, 3, false), 0, MAX_SPACE));
    }
    return ml_gnode_ref(s->g, s->space);
}

ml_gnode *ml_schema_comma(ml_schema *s) {
    if (s->g->compact)
        return ml_gnode_text(s->g, ", ");
    return ml_schema_seq(s, ml_gnode_text(s->g, ","), space(s));
}

static ml_gnode *character(ml_schema *s) {
    if (!s->character) {
        int32_t rule = s->character = ml_grule_new(s->g, "character");
        ml_grule_set(s->g, rule, ml_json_char(s->g));
    }
    return ml_gnode_ref(s->g, s->character);
}

ml_gnode *ml_schema_quoted(ml_schema *s, ml_gnode *body) {
    ml_gnode *seq = ml_gnode_new(s->g, ML_GNODE_SEQ);
    ml_gnode_add(seq, ml_gnode_text(s->g, "\""));
    return ml_gnode_add(ml_gnode_add(seq, body), ml_gnode_text(s->g, "\""));
}

ml_gnode *ml_schema_any_string(ml_schema *s) {
    if (!s->string) {
        int32_t rule = s->string = ml_grule_new(s->g, "string");
        ml_grule_set(s->g, rule,
                     ml_schema_quoted(s, ml_gnode_repeat(s->g, character(s), 0, -1)));
    }
    return ml_gnode_ref(s->g, s->string);
}

static ml_gnode *from_regex(ml_schema *s, const char *regex) {
    ml_gnode *n;
    ml_regex_node(s->g, &n, ml_str_of(regex), (ml_regex_form){ 0 }, NULL);
    return n;
}

static ml_gnode *any_number(ml_schema *s) {
    return from_regex(
        s, "-?(?:0|[1-9][0-9]{0,15})(?:\\.[0-9]{1,16})?(?:[eE][+-]?[0-9]{1,2})?");
}

static ml_gnode *any_integer(ml_schema *s) {
    return from_regex(s, "-?(?:0|[1-9][0-9]{0,16})");
}

ml_gnode *ml_schema_member(ml_schema *s, ml_gnode *key, ml_gnode *value) {
    ml_gnode *seq = ml_gnode_new(s->g, ML_GNODE_SEQ);

    ml_gnode_add(seq, key);
    ml_gnode_add(seq, ml_gnode_text(s->g, s->g->compact ? ": " : ":"));
    ml_gnode_add(seq, space(s));
    return value ? ml_gnode_add(seq, value) : NULL;
}

/* open, space, one to max of `item` (or none), space, close */
ml_gnode *ml_schema_list(ml_schema *s, const char *open, ml_gnode *body,
                         const char *close) {
    ml_gnode *seq = ml_gnode_new(s->g, ML_GNODE_SEQ);

    if (!body)
        return NULL;
    ml_gnode_add(seq, ml_gnode_text(s->g, open));
    ml_gnode_add(ml_gnode_add(seq, space(s)), body);
    return ml_gnode_add(ml_gnode_add(seq, space(s)), ml_gnode_text(s->g, close));
}

/* min to max items with commas between them; the item is a rule. */
ml_gnode *ml_schema_separated(ml_schema *s, int32_t item, int32_t min, int32_t max) {
    ml_gnode *more, *some, *alt;

    if (max == 0)
        return ml_gnode_new(s->g, ML_GNODE_EMPTY);
    more = ml_gnode_repeat(s->g,
                           ml_schema_seq(s, ml_schema_comma(s), ml_gnode_ref(s->g, item)),
                           min > 0 ? min - 1 : 0, max < 0 ? -1 : max - 1);
    some = ml_schema_seq(s, ml_gnode_ref(s->g, item), more);
    if (min > 0)
        return some;
    alt =
        ml_gnode_add(ml_gnode_new(s->g, ML_GNODE_ALT), ml_gnode_new(s->g, ML_GNODE_EMPTY));
    return ml_gnode_add(alt, some);
}

ml_gnode *ml_schema_any(ml_schema *s) {
    static const char *const words[] = { "true", "false", "null" };
    ml_gnode *alt = ml_gnode_new(s->g, ML_GNODE_ALT), *body;
    int32_t entry;

    if (s->any)
        return ml_gnode_ref(s->g, s->any);
    s->any = ml_grule_new(s->g, "value");
    for (int i = 0; i < 3; i++)
        ml_gnode_add(alt, ml_gnode_text(s->g, words[i]));
    ml_gnode_add(ml_gnode_add(alt, ml_schema_any_string(s)), any_number(s));
    body = ml_schema_separated(s, s->any, 0, -1);
    ml_gnode_add(alt, ml_schema_list(s, "[", body, "]"));
    entry = ml_schema_rule(
        s, "member",
        ml_schema_member(s, ml_schema_any_string(s), ml_gnode_ref(s->g, s->any)));
    body = ml_schema_separated(s, entry, 0, -1);
    ml_gnode_add(alt, ml_schema_list(s, "{", body, "}"));
    ml_grule_set(s->g, s->any, alt);
    return ml_gnode_ref(s->g, s->any);
}

/* --- strings ---------------------------------------------------------------- */

static ml_gnode *string_of(ml_schema *s, const ml_schema_view *v) {
    const ml_json *pattern = ml_schema_get(s, v, "pattern"),
                  *format = ml_schema_get(s, v, "format");
    int32_t min = ml_schema_count(s, v, "minLength", 0),
            max = ml_schema_count(s, v, "maxLength", -1);
    const char *known = NULL;
    ml_gnode *body;

    if (max >= 0 && max < min)
        return ml_schema_refuse(s, "\"maxLength\" is less than \"minLength\"");
    if (pattern && (min > 0 || max >= 0))
        return ml_schema_refuse(
            s, "\"pattern\" together with \"minLength\" or \"maxLength\" is not "
               "supported: write the length into the pattern");
    if (pattern && pattern->type != ML_JSON_STRING)
        return ml_schema_refuse(s, "\"pattern\" is %s; expected a string",
                                ml_json_what(pattern));
    if (format && format->type == ML_JSON_STRING && min == 0 && max < 0 && !pattern)
        known = ml_json_format(format->text);
    if (pattern || known) {
        ml_str regex = pattern ? pattern->text : ml_str_of(known);
        ml_regex_form form = { .json = true, .search = pattern != NULL };
        ml_err why;
        if (ml_regex_node(s->g, &body, regex, form, &why) != ML_OK)
            return ml_schema_refuse(s, "\"pattern\": %.300s", why.msg);
        return ml_schema_quoted(s, body);
    }
    if (min == 0 && max < 0)
        return ml_schema_any_string(s);
    return ml_schema_quoted(s, ml_gnode_repeat(s->g, character(s), min, max));
}

/* --- numbers ---------------------------------------------------------------- */

/* A bound of a number times 10^decimals, rounded inwards. */
static int64_t scaled(const ml_json *bound, int decimals, bool up, int64_t limit) {
    double x = 0, rounded, scale = pow(10, decimals);

    ml_json_f64(bound, &x);
    if (x > (double)limit || x < -(double)limit)
        return x > 0 ? limit * (int64_t)scale : -limit * (int64_t)scale;
    rounded = nearbyint(x * scale);
    if (rounded / scale == x) /* the bound has at most that many decimals */
        return (int64_t)rounded;
    return (int64_t)(up ? ceil(x * scale) : floor(x * scale));
}

typedef struct bounds {
    const ml_json *lo, *hi;
    bool lo_open, hi_open; /* the bound itself is excluded */
} bounds;

/* Draft 4 has a boolean "exclusiveMinimum" beside "minimum". */
static void read_bound(ml_schema *s, const ml_schema_view *v, const char *key,
                       const char *open_key, const ml_json **out, bool *open) {
    const ml_json *x = ml_schema_get(s, v, key), *o = ml_schema_get(s, v, open_key);
    double a = 0, b = 0;

    *out = x;
    *open = o && o->type == ML_JSON_TRUE;
    if ((x && !ml_json_f64(x, &a)) ||
        (o && o->type >= ML_JSON_NUMBER && !ml_json_f64(o, &b)))
        ml_schema_refuse(s, "\"%s\" or \"%s\" is not a number", key, open_key);
    if (s->failed || !o || o->type < ML_JSON_NUMBER)
        return;
    if (!x || (key[1] == 'i' ? b >= a : b <= a)) {
        *out = o;
        *open = true;
    }
}

/* The numbers with `decimals` decimals between the bounds. */
static ml_gnode *numbers_between(ml_schema *s, const bounds *b, int decimals) {
    int64_t limit = decimals ? max_number : max_integer, lo, hi, scale = 1;

    for (int i = 0; i < decimals; i++)
        scale *= 10;
    lo = b->lo ? scaled(b->lo, decimals, true, limit) : -limit * scale;
    hi = b->hi ? scaled(b->hi, decimals, false, limit) : limit * scale;
    if (b->lo_open) {
        double x = 0;
        ml_json_f64(b->lo, &x);
        lo += (double)lo / (double)scale <= x;
    }
    if (b->hi_open) {
        double x = 0;
        ml_json_f64(b->hi, &x);
        hi -= (double)hi / (double)scale >= x;
    }
    return ml_number_range(s->g, lo, hi, decimals);
}

static ml_gnode *number_of(ml_schema *s, const ml_schema_view *v, bool whole) {
    bounds b;
    ml_gnode *alt;

    read_bound(s, v, "minimum", "exclusiveMinimum", &b.lo, &b.lo_open);
    read_bound(s, v, "maximum", "exclusiveMaximum", &b.hi, &b.hi_open);
    if (s->failed)
        return NULL;
    if (!b.lo && !b.hi)
        return whole ? any_integer(s) : any_number(s);
    alt = ml_gnode_new(s->g, ML_GNODE_ALT);
    ml_gnode_add(alt, numbers_between(s, &b, 0));
    for (int decimals = 1; decimals <= DECIMALS && !whole; decimals++)
        ml_gnode_add(alt, numbers_between(s, &b, decimals));
    return alt;
}

/* --- arrays ----------------------------------------------------------------- */

int32_t ml_schema_rule(ml_schema *s, const char *name, ml_gnode *body) {
    int32_t rule = ml_grule_new(s->g, name);
    ml_grule_set(s->g, rule, body);
    return rule;
}

/* Elements i, i + 1, ... of a list that begins with n_prefix given ones. */
static ml_gnode *elements(ml_schema *s, const ml_json *prefix, int32_t i, int32_t min,
                          int32_t max, int32_t item) {
    ml_gnode *rest, *e, *alt;

    if (max >= 0 && i >= max)
        return ml_gnode_new(s->g, ML_GNODE_EMPTY);
    if (!prefix && item < 0)
        return ml_gnode_new(s->g, ML_GNODE_EMPTY);
    if (!prefix && i == 0)
        return ml_schema_separated(s, item, min, max);
    if (!prefix)
        return ml_gnode_repeat(
            s->g, ml_schema_seq(s, ml_schema_comma(s), ml_gnode_ref(s->g, item)),
            min > i ? min - i : 0, max < 0 ? -1 : max - i);
    if (i >= MAX_PREFIX)
        return ml_schema_refuse(s, "\"prefixItems\" has more than %d elements", MAX_PREFIX);
    e = ml_schema_value_at(s, prefix, "prefixItems", (ml_str){ 0 });
    rest = elements(s, prefix->next, i + 1, min, max, item);
    if (!e || !rest)
        return NULL;
    e = ml_schema_seq(s, e, rest);
    if (i > 0)
        e = ml_schema_seq(s, ml_schema_comma(s), e);
    if (i < min)
        return e;
    alt =
        ml_gnode_add(ml_gnode_new(s->g, ML_GNODE_ALT), ml_gnode_new(s->g, ML_GNODE_EMPTY));
    return ml_gnode_add(alt, e);
}

static ml_gnode *array_of(ml_schema *s, const ml_schema_view *v) {
    const ml_json *items = ml_schema_get(s, v, "items"),
                  *prefix = ml_schema_get(s, v, "prefixItems");
    const ml_json *unique = ml_schema_get(s, v, "uniqueItems");
    int32_t min = ml_schema_count(s, v, "minItems", 0),
            max = ml_schema_count(s, v, "maxItems", -1);
    int32_t item = -1, n_prefix;

    if (items && items->type == ML_JSON_ARRAY) { /* draft 4's form of prefixItems */
        prefix = items;
        items = ml_schema_get(s, v, "additionalItems");
    }
    if (max >= 0 && max < min)
        return ml_schema_refuse(s, "\"maxItems\" is less than \"minItems\"");
    if (unique && unique->type == ML_JSON_TRUE && (max < 0 || max > 1))
        return ml_schema_refuse(s, "\"uniqueItems\" is not supported");
    if (prefix && prefix->type != ML_JSON_ARRAY)
        return ml_schema_refuse(s, "\"prefixItems\" is %s; expected a list",
                                ml_json_what(prefix));
    n_prefix = prefix ? prefix->n : 0;
    if (items && items->type != ML_JSON_FALSE) {
        ml_gnode *body = ml_schema_value_at(s, items, "items", (ml_str){ 0 });
        if (!body)
            return NULL;
        item = ml_schema_rule(s, "item", body);
    } else if (!items && (!prefix || min > n_prefix)) {
        item = ml_schema_rule(s, "item", ml_schema_any(s));
    }
    if (item < 0 && min > n_prefix)
        return ml_schema_refuse(
            s, "\"minItems\" is more than the elements that \"prefixItems\" allows");
    return ml_schema_list(
        s, "[", elements(s, prefix ? prefix->child : NULL, 0, min, max, item), "]");
}

/* --- literals --------------------------------------------------------------- */

static bool has_type(const ml_json *v, ml_str type) {
    int64_t whole;

    switch (v->type) {
    case ML_JSON_NULL: return ml_str_is(type, "null");
    case ML_JSON_FALSE:
    case ML_JSON_TRUE: return ml_str_is(type, "boolean");
    case ML_JSON_NUMBER:
        return ml_str_is(type, "number") ||
               (ml_str_is(type, "integer") && ml_json_i64(v, &whole));
    case ML_JSON_STRING: return ml_str_is(type, "string");
    case ML_JSON_ARRAY: return ml_str_is(type, "array");
    case ML_JSON_OBJECT: return ml_str_is(type, "object");
    }
    return false;
}

static bool type_allows(const ml_json *type, const ml_json *v) {
    if (!type || (type->type == ML_JSON_STRING && has_type(v, type->text)))
        return true;
    for (const ml_json *t = type->child; t; t = t->next)
        if (t->type == ML_JSON_STRING && has_type(v, t->text))
            return true;
    return false;
}

static void add_literal(ml_schema *s, ml_gnode *alt, const ml_json *type,
                        const ml_json *v) {
    ml_text text = { 0 };

    if (!type_allows(type, v))
        return;
    ml_json_write(&text, v);
    ml_gnode_add(alt, ml_gnode_str(s->g, (ml_str){ text.ptr, text.len }));
    ml_text_release(&text);
}

ml_gnode *ml_schema_literals(ml_schema *s, const ml_schema_view *v) {
    const ml_json *values = ml_schema_get(s, v, "enum"),
                  *one = ml_schema_get(s, v, "const"), *type = ml_schema_get(s, v, "type");
    ml_gnode *alt = ml_gnode_new(s->g, ML_GNODE_ALT);

    if (!one && (values->type != ML_JSON_ARRAY || !values->n))
        return ml_schema_refuse(s, "\"enum\" is not a list of values");
    if (one)
        add_literal(s, alt, type, one);
    for (const ml_json *c = one ? NULL : values->child; c; c = c->next)
        add_literal(s, alt, type, c);
    if (!alt->child)
        return ml_schema_refuse(
            s, "no value of \"enum\" or \"const\" has the type of \"type\"");
    return alt;
}

/* --- types ------------------------------------------------------------- */

static bool has_any(const ml_schema_view *v, const char *const *keys) {
    for (; *keys; keys++)
        for (int i = 0; i < v->n; i++)
            if (ml_json_get(v->layer[i], *keys))
                return true;
    return false;
}

static ml_gnode *of_type(ml_schema *s, const ml_schema_view *v, ml_str type) {
    if (ml_str_is(type, "object"))
        return ml_schema_object(s, v);
    if (ml_str_is(type, "array"))
        return array_of(s, v);
    if (ml_str_is(type, "string"))
        return string_of(s, v);
    if (ml_str_is(type, "integer") || ml_str_is(type, "number"))
        return number_of(s, v, type.ptr[0] == 'i');
    if (ml_str_is(type, "null"))
        return ml_gnode_text(s->g, "null");
    if (ml_str_is(type, "boolean")) {
        ml_gnode *alt = ml_gnode_new(s->g, ML_GNODE_ALT);
        ml_gnode_add(alt, ml_gnode_text(s->g, "true"));
        return ml_gnode_add(alt, ml_gnode_text(s->g, "false"));
    }
    return ml_schema_refuse(s, "\"type\" is \"%.*s\", which is not a type of JSON",
                            (int)(type.len < 60 ? type.len : 60), type.ptr);
}

/* The type that the keywords speak of, if "type" is absent. */
static const char *implied_type(const ml_schema_view *v) {
    static const char *const of_object[] = { "properties", "required",
                                             "additionalProperties", NULL };
    static const char *const of_array[] = { "items", "prefixItems", "minItems", "maxItems",
                                            NULL };
    static const char *const of_string[] = { "pattern", "minLength", "maxLength", "format",
                                             NULL };
    static const char *const of_number[] = { "minimum", "maximum", "exclusiveMinimum",
                                             "exclusiveMaximum", NULL };

    return has_any(v, of_object)   ? "object"
           : has_any(v, of_array)  ? "array"
           : has_any(v, of_string) ? "string"
           : has_any(v, of_number) ? "number"
                                   : NULL;
}

ml_gnode *ml_schema_typed(ml_schema *s, const ml_schema_view *v) {
    const ml_json *type = ml_schema_get(s, v, "type");
    const char *implied = implied_type(v);
    ml_gnode *alt;

    if (!type && !implied)
        return ml_schema_any(s);
    if (!type || type->type == ML_JSON_STRING)
        return of_type(s, v, type ? type->text : ml_str_of(implied));
    if (type->type != ML_JSON_ARRAY || !type->n)
        return ml_schema_refuse(s, "\"type\" is %s; expected a string or a list of strings",
                                ml_json_what(type));
    alt = ml_gnode_new(s->g, ML_GNODE_ALT);
    for (const ml_json *t = type->child; t && !s->failed; t = t->next) {
        ml_gnode *n =
            t->type == ML_JSON_STRING
                ? of_type(s, v, t->text)
                : ml_schema_refuse(s, "\"type\" has %s; expected strings", ml_json_what(t));
        if (n)
            ml_gnode_add(alt, n);
    }
    return alt;
}
