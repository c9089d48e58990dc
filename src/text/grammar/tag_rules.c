/* tag_rules.c - structural tags: free text in which a tag must have a given form.
 *
 *     {"type": "structural_tag", "triggers": ["<f="],
 *      "structures": [{"begin": "<f=get>", "schema": {...}, "end": "</f>"}]}
 *
 * Text is free until a trigger; then one of the structures that begin with the trigger
 * follows, and free text after it.  "at_least_one": the text is tags alone, with "separator"
 * between them.  "stop_after_first": the first tag ends the text.  The free text is the language of an Aho-Corasick
 * automaton over the triggers: each of its states is a rule. */
#include <string.h>

#include "text/grammar/grammar_priv.h"

enum { MAX_TRIGGERS = 256, MAX_STATES = 1024, MAX_STRUCTURES = 1024 };

typedef struct search {
    ml_grules *g;
    int32_t next[MAX_STATES][256];
    int32_t fail[MAX_STATES];
    int32_t hit[MAX_STATES]; /* 1 + the trigger that ends here */
    int32_t rule[MAX_STATES];
    int32_t n;
} search;

static ml_status add_trigger(search *s, ml_str text, int32_t index, ml_err *err) {
    int32_t at = 0;

    for (size_t i = 0; i < text.len; i++) {
        int32_t *next = &s->next[at][(unsigned char)text.ptr[i]];
        if (s->n == MAX_STATES)
            return ml_fail(err, ML_EUSAGE, "the triggers have more than %d bytes",
                           MAX_STATES);
        if (!*next)
            *next = s->n++;
        at = *next;
    }
    if (!s->hit[at])
        s->hit[at] = index + 1;
    return ML_OK;
}

/* Breadth first: missing transitions are those of the longest proper suffix. */
static void complete(search *s, ml_arena *a) {
    int32_t *queue = ML_NEW(a, int32_t, s->n + 1), first = 0, last = 0;

    queue[last++] = 0;
    while (first < last) {
        int32_t at = queue[first++];
        for (int c = 0; c < 256; c++) {
            int32_t to = s->next[at][c];
            int32_t other = at ? s->next[s->fail[at]][c] : 0;
            if (!to) {
                s->next[at][c] = other;
                continue;
            }
            s->fail[to] = other;
            if (!s->hit[to])
                s->hit[to] = s->hit[other];
            queue[last++] = to;
        }
    }
}

/* The bytes that lead from a state to `to`, and what follows. */
static void add_move(search *s, ml_gnode *alt, int32_t at, int32_t to, const int32_t *tag) {
    ml_gnode *seq = ml_gnode_new(s->g, ML_GNODE_SEQ);
    ml_grange r[256];
    int32_t n = 0;

    for (uint32_t c = 0; c < 256; c++)
        if (s->next[at][c] == to)
            r[n++] = (ml_grange){ c, c };
    ml_gnode_add(seq, ml_gnode_bytes_of(s->g, r, n));
    ml_gnode_add(seq, ml_gnode_ref(s->g, s->hit[to] ? tag[s->hit[to] - 1] : s->rule[to]));
    ml_gnode_add(alt, seq);
}

static void make_rule(search *s, int32_t at, const int32_t *tag) {
    ml_gnode *alt = ml_gnode_new(s->g, ML_GNODE_ALT);

    ml_gnode_add(alt, ml_gnode_new(s->g, ML_GNODE_EMPTY));
    for (int c = 0; c < 256; c++) {
        bool seen = false;
        for (int b = 0; b < c && !seen; b++)
            seen = s->next[at][b] == s->next[at][c];
        if (!seen)
            add_move(s, alt, at, s->next[at][c], tag);
    }
    ml_grule_set(s->g, s->rule[at], alt);
}

/* --- reading ---------------------------------------------------------------- */

static ml_status string_at(ml_str *out, const ml_json *v, const char *key, ml_err *err) {
    const ml_json *x = ml_json_get(v, key);

    *out = (ml_str){ "", 0 };
    if (!x || x->type != ML_JSON_STRING)
        return ml_fail(err, ML_EUSAGE, "a structure lacks \"%s\", a string", key);
    *out = x->text;
    return ML_OK;
}

static bool begins_with(ml_str s, ml_str head) {
    return s.len >= head.len && memcmp(s.ptr, head.ptr, head.len) == 0;
}

/* What may follow a trigger: the rest of each structure's begin, its schema and end. */
static ml_status tag_rule(ml_grules *g, int32_t rule, ml_str trigger,
                          const ml_json *structures, int32_t text, ml_err *err) {
    ml_gnode *alt = ml_gnode_new(g, ML_GNODE_ALT);

    for (const ml_json *c = structures->child; c; c = c->next) {
        const ml_json *schema = ml_json_get(c, "schema");
        ml_gnode *seq = ml_gnode_new(g, ML_GNODE_SEQ), *body;
        ml_str begin, end;
        if (string_at(&begin, c, "begin", err) || string_at(&end, c, "end", err))
            return ML_EUSAGE;
        if (!begins_with(begin, trigger))
            continue;
        if (!schema)
            return ml_fail(err, ML_EUSAGE, "a structure lacks \"schema\"");
        if (ml_schema_node(g, &body, schema, schema, err) != ML_OK)
            return ML_EUSAGE;
        begin.ptr += trigger.len;
        begin.len -= trigger.len;
        ml_gnode_add(ml_gnode_add(seq, ml_gnode_str(g, begin)), body);
        ml_gnode_add(ml_gnode_add(seq, ml_gnode_str(g, end)), ml_gnode_ref(g, text));
        ml_gnode_add(alt, seq);
    }
    ml_grule_set(g, rule, alt);
    return ML_OK;
}

static ml_status check(const ml_json *v, ml_err *err) {
    const ml_json *triggers = ml_json_get(v, "triggers"),
                  *structures = ml_json_get(v, "structures");

    if (!structures || structures->type != ML_JSON_ARRAY || !triggers ||
        triggers->type != ML_JSON_ARRAY || !triggers->n || triggers->n > MAX_TRIGGERS ||
        structures->n > MAX_STRUCTURES)
        return ml_fail(err, ML_EUSAGE,
                       "expected an object with the lists \"structures\" (at most %d) and "
                       "\"triggers\" (1 to %d)",
                       MAX_STRUCTURES, MAX_TRIGGERS);
    for (const ml_json *c = triggers->child; c; c = c->next)
        if (c->type != ML_JSON_STRING || !c->text.len)
            return ml_fail(err, ML_EUSAGE, "a trigger is not a string, or it is empty");
    return ML_OK;
}

static bool is_true(const ml_json *v, const char *key) {
    const ml_json *x = ml_json_get(v, key);
    return x && x->type == ML_JSON_TRUE;
}

/* Tags without free text: the rule `end` continues or ends them. */
static ml_status only_tags(ml_grules *g, const ml_json *v, ml_err *err) {
    const ml_json *separator = ml_json_get(v, "separator");
    int32_t tag = ml_grule_new(g, "tag"), end = ml_grule_new(g, "end");
    ml_gnode *more = ml_gnode_new(g, ML_GNODE_ALT), *next = ml_gnode_new(g, ML_GNODE_SEQ);

    ml_gnode_add(more, ml_gnode_new(g, ML_GNODE_EMPTY));
    if (separator && separator->type == ML_JSON_STRING)
        ml_gnode_add(next, ml_gnode_str(g, separator->text));
    if (!is_true(v, "stop_after_first"))
        ml_gnode_add(more, ml_gnode_add(next, ml_gnode_ref(g, tag)));
    ml_grule_set(g, end, more);
    ml_grule_set(g, 0, ml_gnode_ref(g, tag));
    return tag_rule(g, tag, (ml_str){ "", 0 }, ml_json_get(v, "structures"), end, err);
}

static ml_status read_tags(search *s, const ml_json *v, ml_err *err) {
    const ml_json *triggers = ml_json_get(v, "triggers");
    int32_t *tag = ML_NEW(s->g->arena, int32_t, triggers->n), n = 0, after;
    ml_status st = ML_OK;

    for (const ml_json *c = triggers->child; c && st == ML_OK; c = c->next, n++) {
        st = add_trigger(s, c->text, n, err);
        tag[n] = ml_grule_new(s->g, "tag");
    }
    if (st != ML_OK)
        return st;
    complete(s, s->g->arena);
    for (int32_t i = 0; i < s->n; i++)
        s->rule[i] = ml_grule_new(s->g, "text");
    for (int32_t i = 0; i < s->n; i++)
        make_rule(s, i, tag);
    n = 0;
    after = s->rule[0];
    if (is_true(v, "stop_after_first")) {
        after = ml_grule_new(s->g, "end");
        ml_grule_set(s->g, after, ml_gnode_new(s->g, ML_GNODE_EMPTY));
    }
    for (const ml_json *c = triggers->child; c && st == ML_OK; c = c->next, n++)
        st = tag_rule(s->g, tag[n], c->text, ml_json_get(v, "structures"), after, err);
    ml_grule_set(s->g, 0, ml_gnode_ref(s->g, s->rule[0]));
    return st;
}

ml_status ml_tag_rules(ml_grules *g, ml_str text, ml_err *err) {
    const ml_json *v;
    search *s;

    if (ml_json_parse(&v, g->arena, text, "the structural tag", err) != ML_OK ||
        check(v, err) != ML_OK)
        return ML_EUSAGE;
    if (is_true(v, "at_least_one"))
        return only_tags(g, v, err);
    s = ML_NEW(g->arena, search, 1);
    s->g = g;
    s->n = 1;
    return read_tags(s, v, err);
}
