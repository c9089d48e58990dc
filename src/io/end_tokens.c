#include "io/end_tokens.h"

#include <stdio.h>

#include "base/file.h"
#include "base/json.h"

void ml_end_tokens_add(ml_end_tokens *t, int64_t id) {
    for (int32_t i = 0; i < t->n; i++)
        if (t->id[i] == id)
            return;
    if (id >= 0 && id <= INT32_MAX && t->n < ML_END_TOKENS)
        t->id[t->n++] = (int32_t)id;
}

static ml_status add_json(ml_end_tokens *t, const ml_json *v, const char *path,
                          ml_err *err) {
    int64_t id;

    if (!v || v->type == ML_JSON_NULL)
        return ML_OK;
    if (v->type == ML_JSON_ARRAY) {
        ml_status st = ML_OK;
        for (v = v->child; v && !st; v = v->next)
            st = add_json(t, v, path, err);
        return st;
    }
    if (!ml_json_i64(v, &id))
        return ml_fail(
            err, ML_EFORMAT,
            "%s:%u:%u: eos_token_id is %s; expected a token id or a list of them", path,
            (unsigned)v->line, (unsigned)v->column, ml_json_what(v));
    ml_end_tokens_add(t, id);
    return ML_OK;
}

static ml_status add_file(ml_end_tokens *t, const char *dir, const char *name,
                          ml_err *err) {
    ml_arena a;
    ml_file f = { 0 };
    const ml_json *root;
    char path[4096];
    ml_status st;

    snprintf(path, sizeof path, "%s/%s", dir, name);
    if (!ml_file_there(path))
        return ML_OK;
    ml_arena_init(&a, "end tokens");
    st = ml_file_map(&f, path, err);
    if (!st)
        st = ml_json_parse_python(&root, &a, f.bytes, path, err);
    if (!st)
        st = add_json(t, ml_json_get(root, "eos_token_id"), path, err);
    ml_file_unmap(&f);
    ml_arena_release(&a);
    return st;
}

ml_status ml_end_tokens_read(ml_end_tokens *out, const char *dir, ml_err *err) {
    ml_status st;

    out->n = 0;
    st = add_file(out, dir, "generation_config.json", err);
    return st ? st : add_file(out, dir, "config.json", err);
}
