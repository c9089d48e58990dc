#include "io/delta_writer.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/json_out.h"
#include "io/safetensors.h"

/* A tensor that changed. */
typedef struct entry {
    ml_str name, checksum;
    size_t offset, bytes; /* in the file's data */
    int32_t file;
} entry;

struct ml_delta_writer {
    ml_arena arena;
    ml_delta_opts opts;
    ml_version v;
    const char *temp;
    entry *entry; /* [n] */
    int32_t n, cap;
    int32_t n_file, first; /* files written; the first entry of the next one */
    ml_text data;          /* of the file being filled */
    size_t bytes;          /* of the files before it */
};

static ml_status remove_if_there(const char *path, ml_err *err) {
    return access(path, F_OK) == 0 ? ml_dir_remove(path, err) : ML_OK;
}

ml_status ml_delta_writer_open(ml_delta_writer **out, const ml_delta_opts *o,
                               int64_t version, int64_t base, ml_err *err) {
    ml_arena arena;
    ml_delta_writer *w;
    ml_status st;

    ml_arena_init(&arena, "a delta of weights");
    w = ML_NEW(&arena, ml_delta_writer, 1);
    w->arena = arena;
    w->opts = *o;
    w->v = (ml_version){ .dir = ml_version_dir(&w->arena, o->source, version),
                         .version = version,
                         .is_delta = true,
                         .base = base,
                         .encoding = o->encoding,
                         .checksum = o->checksum };
    w->temp = ml_arena_printf(&w->arena, "%s.new", w->v.dir);
    st = remove_if_there(w->temp, err);
    if (st == ML_OK)
        st = ml_dir_make(w->temp, err);
    if (st == ML_OK)
        *out = w;
    else
        ml_delta_writer_abort(w);
    return st;
}

void ml_delta_writer_abort(ml_delta_writer *w) {
    ml_arena arena;

    if (!w)
        return;
    remove_if_there(w->temp, NULL); /* otherwise the next writer removes it */
    ml_text_release(&w->data);
    arena = w->arena;
    ml_arena_release(&arena);
}

size_t ml_delta_writer_bytes(const ml_delta_writer *w) {
    return w->bytes + w->data.len;
}

const char *ml_delta_writer_dir(const ml_delta_writer *w) {
    return w->temp;
}

/* --- files -------------------------------------------------------------------------- */

/* The number of files is not known yet: they get their final names later. */
static const char *part_path(ml_delta_writer *w, int32_t i) {
    return ml_arena_printf(&w->arena, "%s/part-%05d", w->temp, (int)i);
}

static ml_status write_entries(ml_delta_writer *w, ml_st_writer *out, ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = w->first; st == ML_OK && i < w->n; i++)
        st = ml_st_write(out, i - w->first, 0, w->data.ptr + w->entry[i].offset,
                         w->entry[i].bytes, err);
    if (st == ML_OK)
        return ml_st_commit(out, err);
    ml_st_abort(out);
    return st;
}

static ml_status end_file(ml_delta_writer *w, ml_err *err) {
    int32_t n = w->n - w->first;
    ml_st_tensor *tensor = ML_NEW(&w->arena, ml_st_tensor, n);
    ml_st_meta *meta = ML_NEW(&w->arena, ml_st_meta, n);
    ml_st_writer *out;
    ml_status st;

    for (int32_t i = 0; i < n; i++) {
        entry *e = &w->entry[w->first + i];
        e->file = w->n_file;
        tensor[i] = (ml_st_tensor){
            .name = e->name, .dtype = ML_ST_U8, .n_dim = 1, .shape = { (int64_t)e->bytes }
        };
        meta[i] = (ml_st_meta){ e->name, e->checksum };
    }
    st = ml_st_create(&out, part_path(w, w->n_file), &(ml_st_layout){ n, tensor, n, meta },
                      err);
    if (st == ML_OK)
        st = write_entries(w, out, err);
    w->bytes += w->data.len;
    w->data.len = 0;
    w->first = w->n;
    w->n_file++;
    return st;
}

/* --- tensors ------------------------------------------------------------------------ */

static entry *new_entry(ml_delta_writer *w) {
    if (w->n == w->cap) {
        entry *grown = ML_NEW(&w->arena, entry, 2 * w->cap + 64);
        if (w->n)
            memcpy(grown, w->entry, (size_t)w->n * sizeof *grown);
        w->entry = grown;
        w->cap = 2 * w->cap + 64;
    }
    return &w->entry[w->n++];
}

ml_status ml_delta_writer_add(ml_delta_writer *w, ml_str name, const void *old,
                              const void *now, size_t n, size_t *n_changed, ml_err *err) {
    size_t offset = w->data.len;
    char sum[ML_CHECKSUM_TEXT];
    ml_status st = ml_delta_encode(&w->data, w->opts.encoding, old, now, n, n_changed, err);

    if (st != ML_OK || *n_changed == 0)
        return st;
    ml_checksum_write(sum, w->opts.checksum, now, n);
    *new_entry(w) = (entry){
        .name = ml_str_of(ml_arena_str(&w->arena, name.ptr, name.len)),
        .checksum = ml_str_of(ml_arena_str(&w->arena, sum, strlen(sum))),
        .offset = offset,
        .bytes = w->data.len - offset,
    };
    return w->opts.file_bytes && w->data.len >= w->opts.file_bytes ? end_file(w, err)
                                                                   : ML_OK;
}

/* --- commit and abort --------------------------------------------------------------- */

/* Numbered as in Miles: from 0. */
static const char *file_name(ml_delta_writer *w, int32_t i) {
    return ml_arena_printf(&w->arena, "model-%05d-of-%05d.safetensors", (int)i,
                           (int)w->n_file);
}

static ml_status name_files(ml_delta_writer *w, ml_err *err) {
    for (int32_t i = 0; i < w->n_file; i++) {
        const char *to = ml_arena_printf(&w->arena, "%s/%s", w->temp, file_name(w, i));
        if (rename(part_path(w, i), to) != 0)
            return ml_fail(err, ML_EIO, "%s: cannot rename: %s", to, strerror(errno));
    }
    return ML_OK;
}

static ml_status write_index(ml_delta_writer *w, ml_err *err) {
    ml_text map = { 0 };
    ml_json_out o = { .to = &map };
    ml_version in_temp = w->v;
    const char *file = NULL;
    ml_status st;

    in_temp.dir = w->temp;
    ml_json_begin(&o, '{');
    for (int32_t i = 0; i < w->n; i++) {
        if (i == 0 || w->entry[i].file != w->entry[i - 1].file)
            file = file_name(w, w->entry[i].file);
        ml_json_put_word(&o, w->entry[i].name.ptr, file);
    }
    ml_json_end(&o, '}');
    st = ml_version_write_index(&in_temp, (ml_str){ map.ptr, map.len }, err);
    ml_text_release(&map);
    return st;
}

static ml_status put_in_place(ml_delta_writer *w, ml_err *err) {
    ml_status st = remove_if_there(w->v.dir, err);

    if (st == ML_OK && rename(w->temp, w->v.dir) != 0)
        st = ml_fail(err, ML_EIO, "%s: cannot rename to %s: %s", w->temp, w->v.dir,
                     strerror(errno));
    return st == ML_OK ? ml_dir_sync(w->opts.source, err) : st;
}

ml_status ml_delta_writer_commit(ml_delta_writer *w, ml_err *err) {
    ml_status st = w->n > w->first ? end_file(w, err) : ML_OK;

    if (st == ML_OK)
        st = name_files(w, err);
    if (st == ML_OK)
        st = write_index(w, err);
    if (st == ML_OK)
        st = put_in_place(w, err);
    ml_delta_writer_abort(w);
    return st;
}
