#include "model/weight_dir.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/dir.h"
#include "model/weights_checksum.h"

#define PREFIX "version_"

/* Every complete version has a checksum; ".new" is the suffix of an incomplete one. */
static bool is_ours(const char *path) {
    ml_text checksum = { 0 };
    size_t n = strlen(path);
    bool ours = n > 4 && strcmp(path + n - 4, ".new") == 0;

    ml_text_printf(&checksum, "%s/weights.crc64", path);
    ours = ours || access(checksum.ptr, F_OK) == 0;
    ml_text_release(&checksum);
    return ours;
}

static ml_status remove_if_there(const char *path, ml_err *err) {
    if (access(path, F_OK) != 0)
        return ML_OK;
    if (!is_ours(path))
        return ml_fail(err, ML_EUSAGE,
                       "%s exists and was not written by miles (it has no weights.crc64): "
                       "move it away, or choose another directory for the weights",
                       path);
    return ml_dir_remove(path, err);
}

ml_status ml_weight_dir_tidy(const char *dir,
                             bool (*is_old)(const char *name, int64_t than), int64_t than,
                             ml_err *err) {
    ml_arena a;
    ml_names names;
    ml_status st;

    ml_arena_init(&a, "versions of weights");
    st = ml_dir_list(&names, dir, &a, err);
    for (int32_t i = 0; st == ML_OK && i < names.n; i++) {
        const char *path = ml_arena_printf(&a, "%s/%s", dir, names.name[i]);
        if (is_old(names.name[i], than) && is_ours(path))
            st = ml_dir_remove(path, err);
    }
    ml_arena_release(&a);
    return st;
}

static bool is_f32(const ml_weights *w) {
    for (int32_t i = 0; i < w->n; i++)
        if (w->t[i].n_dim > 1 && w->t[i].dtype == ML_F32)
            return true;
    return false;
}

ml_export_opts ml_weight_dir_how(const ml_weights *w) {
    return (ml_export_opts){ .keep_dtype = !is_f32(w), .dtype = ML_F32 };
}

/* Versions that engines no longer need, and incomplete ones of a process that died. */
static bool is_old(const char *name, int64_t version) {
    const char *digits = name + strlen(PREFIX);
    char *end;
    long long v;

    if (strncmp(name, PREFIX, strlen(PREFIX)) != 0 || *digits < '0' || *digits > '9')
        return false;
    v = strtoll(digits, &end, 10);
    return (*end == 0 || strcmp(end, ".new") == 0) && v + 1 < version;
}

static ml_status replace(const char *temp, const char *path, ml_err *err) {
    const char *slash = strrchr(path, '/');
    ml_text dir = { 0 };
    ml_status st = remove_if_there(path, err);

    if (st == ML_OK && rename(temp, path) != 0)
        st =
            ml_fail(err, ML_EIO, "cannot rename %s to %s: %s", temp, path, strerror(errno));
    ml_text_printf(&dir, "%.*s", slash ? (int)(slash - path) : 1, slash ? path : ".");
    if (st == ML_OK)
        st = ml_dir_sync(dir.ptr, err);
    ml_text_release(&dir);
    return st;
}

ml_status ml_weight_dir_put(const char *path, const ml_weights *w, const ml_spec *s,
                            const ml_checkpoint *from, int64_t shard_bytes, ml_err *err) {
    ml_export_opts how = ml_weight_dir_how(w);
    ml_text temp = { 0 };
    ml_status st;

    ml_text_printf(&temp, "%s.new", path);
    how.dir = temp.ptr;
    how.shard_bytes = shard_bytes;
    st = remove_if_there(temp.ptr, err);
    if (st == ML_OK)
        st = ml_export_hf(w, s, from, &how, err);
    if (st == ML_OK)
        st = ml_weights_checksum(w, s, temp.ptr, err);
    if (st == ML_OK)
        st = replace(temp.ptr, path, err);
    ml_text_release(&temp);
    return st;
}

ml_status ml_weight_dir_write(ml_text *out, const char *dir, const ml_weights *w,
                              const ml_spec *s, const ml_checkpoint *from,
                              int64_t shard_bytes, ml_err *err) {
    ml_status st = ml_dir_make(dir, err);

    ml_text_printf(out, "%s/" PREFIX "%llu", dir, (unsigned long long)w->version);
    if (st == ML_OK)
        st = ml_weight_dir_put(out->ptr, w, s, from, shard_bytes, err);
    return st == ML_OK ? ml_weight_dir_tidy(dir, is_old, (int64_t)w->version, err) : st;
}

ml_status ml_weight_dir_write_adapter(ml_text *out, const char *dir, const ml_lora *l,
                                      const ml_weights *w, uint64_t version, ml_err *err) {
    ml_text temp = { 0 };
    ml_status st = ml_dir_make(dir, err);

    ml_text_printf(out, "%s/" PREFIX "%llu", dir, (unsigned long long)version);
    ml_text_printf(&temp, "%s.new", out->ptr);
    if (st == ML_OK)
        st = remove_if_there(temp.ptr, err);
    if (st == ML_OK)
        st = ml_dir_make(temp.ptr, err);
    if (st == ML_OK)
        st = ml_lora_save(l, w, temp.ptr, err);
    if (st == ML_OK)
        st = ml_weights_checksum(w, &l->spec, temp.ptr, err);
    if (st == ML_OK)
        st = replace(temp.ptr, out->ptr, err);
    if (st == ML_OK)
        st = ml_weight_dir_tidy(dir, is_old, (int64_t)version, err);
    ml_text_release(&temp);
    return st;
}
