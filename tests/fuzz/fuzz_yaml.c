/* Any text as a YAML file: a JSON value or a sentence that names the place, never a crash. */
#include <stdint.h>
#include <string.h>

#include "base/bug.h"
#include "io/yaml.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void walk(const ml_json *v) {
    int64_t children = 0;

    for (const ml_json *c = v->child; c; c = c->next, children++) {
        ML_BUG_IF(v->type == ML_JSON_OBJECT && !c->key.ptr);
        walk(c);
    }
    ML_BUG_IF(children != v->n);
    ML_BUG_IF(v->child && v->type != ML_JSON_ARRAY && v->type != ML_JSON_OBJECT);
    if (v->type == ML_JSON_STRING)
        ML_BUG_IF(v->text.ptr[v->text.len] != 0);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    const ml_json *root;
    ml_err err = { 0 };
    ml_arena a;

    ml_arena_init(&a, "fuzz");
    if (ml_yaml_parse(&root, &a, (ml_str){ (const char *)data, size }, "f.yaml", &err) ==
        ML_OK)
        walk(root);
    else
        ML_BUG_IF(strncmp(err.msg, "f.yaml", 6) != 0);
    ml_arena_release(&a);
    return 0;
}
