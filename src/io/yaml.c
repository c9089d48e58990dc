#include "io/yaml.h"

#include <string.h>
#include <yaml.h>

#define MAX_NODES 100000 /* with aliases expanded */

typedef struct reader {
    ml_arena *a;
    yaml_document_t *doc;
    const char *name;
    int n_node, depth;
    ml_err *err;
} reader;

static const ml_json *read_node(reader *r, int id);

static ml_json *complain(reader *r, yaml_mark_t at, const char *what) {
    ml_fail(r->err, ML_EFORMAT, "%s:%zu:%zu: %s", r->name, at.line + 1, at.column + 1,
            what);
    return NULL;
}

/* Whether the scalar is valid JSON (null, true, a number); then *out is its value. */
static bool is_word(ml_json *out, ml_str s, ml_arena *a) {
    const ml_json *v;

    if (s.len == 0 || ml_str_is(s, "~")) {
        out->type = ML_JSON_NULL;
        return true;
    }
    if (ml_json_parse(&v, a, s, "", NULL) != ML_OK || v->type > ML_JSON_NUMBER)
        return false;
    out->type = v->type;
    out->text = v->text;
    return true;
}

static ml_json *read_scalar(reader *r, const yaml_node_t *node) {
    ml_json *v = ML_NEW(r->a, ml_json, 1);
    const char *text = (const char *)node->data.scalar.value;
    ml_str s = { ml_arena_str(r->a, text, node->data.scalar.length),
                 node->data.scalar.length };

    if (node->data.scalar.style != YAML_PLAIN_SCALAR_STYLE || !is_word(v, s, r->a))
        *v = (ml_json){ .type = ML_JSON_STRING, .text = s };
    return v;
}

static ml_json *read_list(reader *r, const yaml_node_t *node) {
    ml_json *v = ML_NEW(r->a, ml_json, 1);
    const ml_json **link = &v->child;

    v->type = ML_JSON_ARRAY;
    for (const yaml_node_item_t *i = node->data.sequence.items.start;
         i < node->data.sequence.items.top; i++) {
        ml_json *item = ML_NEW(r->a, ml_json, 1);
        const ml_json *value = read_node(r, *i);
        if (!value)
            return NULL;
        *item = *value;
        *link = item;
        link = &item->next;
        v->n++;
    }
    return v;
}

static ml_json *read_map(reader *r, const yaml_node_t *node) {
    ml_json *v = ML_NEW(r->a, ml_json, 1);
    const ml_json **link = &v->child;

    v->type = ML_JSON_OBJECT;
    for (const yaml_node_pair_t *p = node->data.mapping.pairs.start;
         p < node->data.mapping.pairs.top; p++) {
        const yaml_node_t *key = yaml_document_get_node(r->doc, p->key);
        const ml_json *value = read_node(r, p->value);
        ml_json *member = ML_NEW(r->a, ml_json, 1);
        if (key->type != YAML_SCALAR_NODE)
            return complain(r, key->start_mark, "a key is not a scalar");
        if (!value)
            return NULL;
        *member = *value;
        member->key = (ml_str){ ml_arena_str(r->a, (const char *)key->data.scalar.value,
                                             key->data.scalar.length),
                                key->data.scalar.length };
        *link = member;
        link = &member->next;
        v->n++;
    }
    return v;
}

static const ml_json *read_node(reader *r, int id) {
    const yaml_node_t *node = yaml_document_get_node(r->doc, id);
    ml_json *v = NULL;

    if (++r->n_node > MAX_NODES || r->depth >= ML_JSON_DEPTH)
        return complain(r, node->start_mark,
                        "the document is too large or too deeply nested");
    r->depth++;
    switch (node->type) {
    case YAML_SCALAR_NODE: v = read_scalar(r, node); break;
    case YAML_SEQUENCE_NODE: v = read_list(r, node); break;
    case YAML_MAPPING_NODE: v = read_map(r, node); break;
    case YAML_NO_NODE: v = complain(r, node->start_mark, "the document is empty"); break;
    }
    r->depth--;
    if (v) {
        v->line = (uint32_t)node->start_mark.line + 1;
        v->column = (uint32_t)node->start_mark.column + 1;
    }
    return v;
}

static ml_status read_document(const ml_json **out, reader *r) {
    const yaml_node_t *root = yaml_document_get_root_node(r->doc);

    if (!root)
        return ml_fail(r->err, ML_EFORMAT, "%s is empty", r->name);
    *out = read_node(r, 1);
    return *out ? ML_OK : ML_EFORMAT;
}

ml_status ml_yaml_parse(const ml_json **out, ml_arena *a, ml_str src, const char *name,
                        ml_err *err) {
    ml_err why = { 0 };
    yaml_document_t doc;
    reader r = { .a = a, .doc = &doc, .name = name, .err = err ? err : &why };
    yaml_parser_t parser;
    ml_status st;

    *out = NULL;
    if (!yaml_parser_initialize(&parser))
        return ml_fail(err, ML_ENOMEM, "out of memory for reading %s", name);
    yaml_parser_set_input_string(&parser, (const unsigned char *)src.ptr, src.len);
    if (!yaml_parser_load(&parser, &doc)) {
        st = ml_fail(err, ML_EFORMAT, "%s:%zu:%zu: %s", name, parser.problem_mark.line + 1,
                     parser.problem_mark.column + 1,
                     parser.problem ? parser.problem : "invalid YAML");
    } else {
        st = read_document(out, &r);
        yaml_document_delete(&doc);
    }
    yaml_parser_delete(&parser);
    return st;
}
