/* Loads a tokenizer from its directory: which files are read, and how they are combined. */
#include <stdlib.h>

#include "base/file.h"
#include "text/tokenizer/tok_priv.h"

static const char *const role_keys[ML_TOKEN_ROLES] = { "bos_token", "eos_token",
                                                       "pad_token", "unk_token" };

/* --- tokenizer_config.json and special_tokens_map.json ---------------------- */

/* "<s>" or {"content": "<s>", ...}; an empty string if it is neither. */
static ml_str token_text(const ml_json *v) {
    if (v && v->type == ML_JSON_OBJECT)
        v = ml_json_get(v, "content");
    return v && v->type == ML_JSON_STRING ? v->text : (ml_str){ 0 };
}

static bool flag(const ml_json *obj, const char *key, bool absent) {
    const ml_json *v = ml_json_get(obj, key);
    return v ? v->type == ML_JSON_TRUE : absent;
}

static void add_token(ml_tokenizer *t, const ml_json *v, bool special) {
    ml_added a = { .content = token_text(v), .special = special };

    a.special = flag(v, "special", special);
    a.single_word = flag(v, "single_word", false);
    a.lstrip = flag(v, "lstrip", false);
    a.rstrip = flag(v, "rstrip", false);
    a.normalized = flag(v, "normalized", !a.special);
    ml_added_add(t, &a);
}

static void add_role(ml_tokenizer *t, const ml_json *config, ml_token_role role) {
    const ml_json *v = ml_json_get(config, role_keys[role]);
    ml_str text = token_text(v);
    ml_added a = { .content = text, .special = true };

    if (!text.len || t->role[role] >= 0)
        return;
    if (v->type == ML_JSON_OBJECT) {
        a.lstrip = flag(v, "lstrip", false);
        a.rstrip = flag(v, "rstrip", false);
        a.single_word = flag(v, "single_word", false);
    }
    t->role[role] = ml_added_add(t, &a);
}

typedef struct decoder_row {
    int64_t id;
    const ml_json *token;
} decoder_row;

static int64_t number_of(ml_str key) {
    int64_t n = 0;

    for (size_t i = 0; i < key.len && i < 9 && key.ptr[i] >= '0' && key.ptr[i] <= '9'; i++)
        n = n * 10 + (key.ptr[i] - '0');
    return n;
}

static int by_id(const void *x, const void *y) {
    const decoder_row *a = x, *b = y;
    return (a->id > b->id) - (a->id < b->id);
}

/* Rows {"id": {token}, ...} in ascending order of id: later tokens get later numbers. */
static void add_decoder_rows(ml_tokenizer *t, const ml_json *rows) {
    decoder_row *row;
    int32_t n = 0;

    if (!rows || rows->type != ML_JSON_OBJECT)
        return;
    row = ML_NEW(&t->arena, decoder_row, rows->n + 1);
    for (const ml_json *c = rows->child; c; c = c->next)
        row[n++] = (decoder_row){ number_of(c->key), c };
    qsort(row, (size_t)n, sizeof *row, by_id);
    for (int32_t i = 0; i < n; i++)
        add_token(t, row[i].token, false);
}

static void read_config(ml_tokenizer *t, const ml_json *config) {
    const ml_json *more = ml_json_get(config, "additional_special_tokens");

    add_decoder_rows(t, ml_json_get(config, "added_tokens_decoder"));
    for (int i = 0; i < ML_TOKEN_ROLES; i++)
        add_role(t, config, (ml_token_role)i);
    if (more && more->type == ML_JSON_ARRAY)
        for (const ml_json *c = more->child; c; c = c->next)
            add_token(t, c, true);
}

/* --- files ------------------------------------------------------------------ */

typedef struct folder {
    ml_arena arena; /* paths, and the documents while they are read */
    const char *dir;
    ml_file file[4];
    int n_file;
} folder;

static const char *path_of(folder *f, const char *name) {
    return ml_arena_printf(&f->arena, "%s/%s", f->dir, name);
}

static bool has(folder *f, const char *name) {
    return ml_file_there(path_of(f, name));
}

static ml_status map(folder *f, const char *name, ml_str *out, ml_err *err) {
    ml_status st = ml_file_map(&f->file[f->n_file], path_of(f, name), err);

    if (st == ML_OK)
        *out = f->file[f->n_file++].bytes;
    return st;
}

/* Reads an optional file; *out is NULL if it is missing. */
static ml_status read_json(folder *f, const char *name, const ml_json **out, ml_err *err) {
    ml_str text;
    ml_status st;

    *out = NULL;
    if (!has(f, name))
        return ML_OK;
    st = map(f, name, &text, err);
    return st == ML_OK ? ml_json_parse(out, &f->arena, text, path_of(f, name), err) : st;
}

static ml_status read_folder(ml_tokenizer **out, folder *f, ml_err *err) {
    bool is_json = has(f, "tokenizer.json");
    const char *name = is_json ? "tokenizer.json" : "tiktoken.model";
    const ml_json *config, *map_file;
    ml_tokenizer *t;
    ml_str text;
    ml_status st = read_json(f, "tokenizer_config.json", &config, err);

    if (!is_json && !has(f, name))
        return ml_fail(err, ML_EIO,
                       "%s has neither tokenizer.json nor tiktoken.model; expected the "
                       "directory of a checkpoint with its tokenizer",
                       f->dir);
    if (st == ML_OK)
        st = read_json(f, "special_tokens_map.json", &map_file, err);
    if (st == ML_OK)
        st = map(f, name, &text, err);
    if (st != ML_OK)
        return st;
    *out = t = ml_tokenizer_new(path_of(f, name));
    st = is_json ? ml_tokenizer_read_json(t, text, err)
                 : ml_tokenizer_read_tiktoken(t, text, config, err);
    if (st != ML_OK)
        return st;
    read_config(t, config);
    read_config(t, map_file);
    return ml_added_finish(t, err);
}

/* --- outside ---------------------------------------------------------------- */

ml_tokenizer *ml_tokenizer_new(const char *name) {
    ml_arena a;
    ml_tokenizer *t;

    ml_arena_init(&a, "tokenizer");
    t = ML_NEW(&a, ml_tokenizer, 1);
    t->arena = a;
    t->name = ml_arena_str(&t->arena, name, strlen(name));
    ml_unicode_init(&t->unicode);
    for (int i = 0; i < ML_TOKEN_ROLES; i++)
        t->role[i] = -1;
    t->max_added = -1;
    ml_map_init(&t->added_at, &t->arena, 64);
    return t;
}

void ml_tokenizer_close(ml_tokenizer *t) {
    ml_arena a;

    if (!t)
        return;
    a = t->arena; /* also holds t itself */
    for (int i = 0; i < ML_TOK_STAGES; i++) {
        ml_pattern_release(&t->norm[i].pattern);
        ml_pattern_release(&t->pre[i].pattern);
        ml_pattern_release(&t->dec[i].pattern);
    }
    ml_arena_release(&a);
}

ml_status ml_tokenizer_open(ml_tokenizer **out, const char *dir, ml_err *err) {
    folder f = { .dir = dir };
    ml_status st;

    *out = NULL;
    ml_arena_init(&f.arena, "tokenizer files");
    st = read_folder(out, &f, err);
    for (int i = 0; i < f.n_file; i++)
        ml_file_unmap(&f.file[i]);
    ml_arena_release(&f.arena);
    if (st != ML_OK) {
        ml_tokenizer_close(*out);
        *out = NULL;
    }
    return st;
}

ml_status ml_tokenizer_parse(ml_tokenizer **out, ml_str json, const char *name,
                             ml_err *err) {
    ml_tokenizer *t = ml_tokenizer_new(name);
    ml_status st = ml_tokenizer_read_json(t, json, err);

    if (st == ML_OK)
        st = ml_added_finish(t, err);
    if (st != ML_OK) {
        ml_tokenizer_close(t);
        t = NULL;
    }
    *out = t;
    return st;
}

int32_t ml_tokenizer_size(const ml_tokenizer *t) {
    return t->n_id;
}

int32_t ml_tokenizer_id(const ml_tokenizer *t, ml_str token) {
    int64_t added = ml_map_get(&t->added_at, token, -1);
    return added >= 0 ? t->added[added].id : ml_bpe_find(&t->bpe, token);
}

ml_str ml_tokenizer_token(const ml_tokenizer *t, int32_t id) {
    if (id < 0 || id >= t->n_id)
        return (ml_str){ 0 };
    if (t->added_token[id].ptr || id >= t->bpe.n_id)
        return t->added_token[id];
    return t->bpe.token[id];
}

bool ml_tokenizer_is_special(const ml_tokenizer *t, int32_t id) {
    return id >= 0 && id < t->n_id && t->special[id];
}

int32_t ml_tokenizer_role(const ml_tokenizer *t, ml_token_role role) {
    return t->role[role];
}
