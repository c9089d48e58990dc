#include "io/version_dir.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json_out.h"

#define PREFIX "weight_v"
#define INDEX "model.safetensors.index.json"

const char *ml_version_dir(ml_arena *a, const char *source, int64_t version) {
    return ml_arena_printf(a, "%s/" PREFIX "%06lld", source, (long long)version);
}

bool ml_version_of_name(const char *name, int64_t *version) {
    char *end;

    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0)
        return false;
    *version = strtoll(name + strlen(PREFIX), &end, 10);
    return end != name + strlen(PREFIX) && (*end == 0 || strcmp(end, ".new") == 0) &&
           *version >= 0;
}

/* --- reading ------------------------------------------------------------------------ */

/* Version numbers are strings of six digits. */
static bool number(const ml_json *meta, const char *key, int64_t *out) {
    const ml_json *v = ml_json_get(meta, key);
    char digits[24], *end;

    if (!v || v->text.len == 0 || v->text.len >= sizeof digits)
        return false;
    snprintf(digits, sizeof digits, "%.*s", (int)v->text.len, v->text.ptr);
    *out = strtoll(digits, &end, 10);
    return *end == 0 && *out >= 0;
}

static ml_str text_of(const ml_json *meta, const char *key) {
    const ml_json *v = ml_json_get(meta, key);
    return v && v->type == ML_JSON_STRING ? v->text : ml_str_of("");
}

/* The files of a delta are in the same directory as its index. */
static ml_status check_files(const ml_json *map, const char *path, ml_err *err) {
    for (const ml_json *v = map->child; v; v = v->next)
        if (v->type != ML_JSON_STRING || !v->text.len ||
            memchr(v->text.ptr, '/', v->text.len) || memchr(v->text.ptr, 0, v->text.len))
            return ml_fail(err, ML_EFORMAT,
                           "%s: \"weight_map\": expected a file name for %.*s", path,
                           (int)v->key.len, v->key.ptr);
    return ML_OK;
}

static ml_status read_delta(ml_version *v, const ml_json *root, const ml_json *meta,
                            const char *path, ml_err *err) {
    int64_t version;

    v->is_delta = true;
    v->weight_map = ml_json_get(root, "weight_map");
    if (!v->weight_map || v->weight_map->type != ML_JSON_OBJECT)
        return ml_fail(err, ML_EFORMAT, "%s: expected \"weight_map\", an object", path);
    if (!number(meta, "version", &version) || version != v->version)
        return ml_fail(err, ML_EFORMAT, "%s: expected \"version\": \"%06lld\"", path,
                       (long long)v->version);
    if (!number(meta, "base_version", &v->base) || v->base >= v->version)
        return ml_fail(err, ML_EFORMAT,
                       "%s: expected \"base_version\", a version before %lld", path,
                       (long long)v->version);
    if (!ml_delta_find(&v->encoding, text_of(meta, "delta_encoding")))
        return ml_fail(err, ML_EUNSUP,
                       "%s: \"delta_encoding\": expected \"xor\" or \"overwrite\"", path);
    if (!ml_checksum_find(&v->checksum, text_of(meta, "checksum_format")))
        return ml_fail(
            err, ML_EUNSUP,
            "%s: \"checksum_format\": expected \"xxh3-128\", \"blake3\" or \"adler32\"",
            path);
    if (!ml_str_is(text_of(meta, "compression_format"), "zstd"))
        return ml_fail(err, ML_EUNSUP, "%s: \"compression_format\": expected \"zstd\"",
                       path);
    return check_files(v->weight_map, path, err);
}

ml_status ml_version_read(ml_version *out, const char *source, int64_t version, ml_arena *a,
                          ml_err *err) {
    const char *path;
    const ml_json *root, *meta;
    ml_file f = { 0 };
    ml_status st;

    *out = (ml_version){ .dir = ml_version_dir(a, source, version), .version = version };
    if (access(out->dir, F_OK) != 0)
        return ml_fail(err, ML_EIO, "%s: weight version %lld does not exist", out->dir,
                       (long long)version);
    path = ml_arena_printf(a, "%s/" INDEX, out->dir);
    if (access(path, F_OK) != 0) /* a single file, not a delta: deltas have an index */
        return ML_OK;
    st = ml_file_map(&f, path, err);
    if (st != ML_OK)
        return st;
    st = ml_json_parse(&root, a, ml_str_of(ml_arena_str(a, f.bytes.ptr, f.bytes.len)), path,
                       err);
    ml_file_unmap(&f);
    if (st != ML_OK)
        return st;
    meta = ml_json_get(root, "metadata");
    return ml_json_get(meta, "delta_encoding") ? read_delta(out, root, meta, path, err)
                                               : ML_OK;
}

/* --- writing ------------------------------------------------------------------------ */

static void put_number(ml_json_out *o, const char *key, int64_t v) {
    char digits[24];

    snprintf(digits, sizeof digits, "%06lld", (long long)v);
    ml_json_put_word(o, key, digits);
}

ml_status ml_version_write_index(const ml_version *v, ml_str weight_map, ml_err *err) {
    ml_text text = { 0 }, path = { 0 };
    ml_json_out o = { .to = &text };
    ml_status st;

    ml_json_begin(&o, '{');
    ml_json_key(&o, "metadata");
    ml_json_begin(&o, '{');
    put_number(&o, "version", v->version);
    put_number(&o, "base_version", v->base);
    ml_json_put_word(&o, "delta_encoding", ml_delta_name[v->encoding]);
    ml_json_put_word(&o, "compression_format", "zstd");
    ml_json_put_word(&o, "checksum_format", ml_checksum_name[v->checksum]);
    ml_json_end(&o, '}');
    ml_json_key(&o, "weight_map");
    ml_json_raw(&o, weight_map);
    ml_json_end(&o, '}');
    ml_text_printf(&path, "%s/" INDEX, v->dir);
    st = ml_file_replace(path.ptr, (ml_str){ text.ptr, text.len }, err);
    ml_text_release(&path);
    ml_text_release(&text);
    return st;
}
