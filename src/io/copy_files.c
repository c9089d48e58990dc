#include "io/copy_files.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "base/json.h"
#include "base/json_out.h"

#define MANIFEST ML_COPY_SYNC "/files.json"

static const char *in_dir(ml_arena *a, const char *dir, const char *name) {
    return ml_arena_printf(a, "%s/%s", dir, name);
}

/* --- the directory ------------------------------------------------------------------- */

static bool has_manifest(const char *dir, ml_arena *a) {
    struct stat sb;
    return lstat(in_dir(a, dir, MANIFEST), &sb) == 0 && S_ISREG(sb.st_mode);
}

/* The first name that is not ours, or NULL. */
static const char *other_name(const ml_names *names) {
    for (int32_t i = 0; i < names->n; i++)
        if (strcmp(names->name[i], ML_COPY_SYNC) != 0)
            return names->name[i];
    return NULL;
}

/* Another server may pull into the directory at the same time.  It writes the manifest
 * before any file, so the manifest is looked for after the files are listed. */
ml_status ml_copy_dir_check(const char *dir, ml_arena *a, ml_err *err) {
    struct stat sb;
    ml_names names;
    const char *other;
    ml_status st;

    if (lstat(in_dir(a, dir, ML_COPY_SYNC), &sb) == 0 && !S_ISDIR(sb.st_mode))
        return ml_fail(err, ML_EUSAGE, "%s/" ML_COPY_SYNC ": expected a directory", dir);
    if (stat(dir, &sb) != 0 && errno == ENOENT)
        return ML_OK;
    st = ml_dir_list(&names, dir, a, err);
    other = st == ML_OK ? other_name(&names) : NULL;
    if (other && !has_manifest(dir, a))
        return ml_fail(
            err, ML_EUSAGE,
            "%s contains %s, which miles did not write: a copy of the weights needs an "
            "empty directory, or one from an earlier pull (with " MANIFEST
            "); choose another directory",
            dir, other);
    return st;
}

/* --- the manifest -------------------------------------------------------------------- */

static bool is_plain_name(ml_str s) {
    return s.len && !memchr(s.ptr, '/', s.len) && !memchr(s.ptr, 0, s.len) &&
           !ml_str_is(s, ".") && !ml_str_is(s, "..") && !ml_str_is(s, ML_COPY_SYNC);
}

static ml_status take_names(ml_copy_files *out, const ml_json *doc, const char *path,
                            ml_arena *a, ml_err *err) {
    const ml_json *files = ml_json_get(doc, "files");
    const char *name;

    if (!files || files->type != ML_JSON_ARRAY)
        return ml_fail(err, ML_EFORMAT, "%s: expected \"files\", a list of names", path);
    ml_map_init(&out->index, a, files->n);
    out->list.name = ML_NEW(a, const char *, files->n + 1);
    for (const ml_json *f = files->child; f; f = f->next) {
        if (f->type != ML_JSON_STRING || !is_plain_name(f->text))
            return ml_fail(err, ML_EFORMAT,
                           "%s: \"files\" contains %.*s, which is not a file name", path,
                           (int)(f->text.len < 80 ? f->text.len : 80),
                           f->text.len ? f->text.ptr : "");
        name = ml_arena_str(a, f->text.ptr, f->text.len);
        if (ml_map_add(&out->index, ml_str_of(name), out->list.n))
            out->list.name[out->list.n++] = name;
    }
    return ML_OK;
}

ml_status ml_copy_files_read(ml_copy_files *out, const char *dir, ml_arena *a,
                             ml_err *err) {
    const char *path = in_dir(a, dir, MANIFEST);
    const ml_json *doc;
    ml_file f = { 0 };
    ml_status st;

    *out = (ml_copy_files){ 0 };
    ml_map_init(&out->index, a, 0);
    if (access(path, F_OK) != 0)
        return ML_OK;
    st = ml_file_map(&f, path, err);
    if (st == ML_OK)
        st = ml_json_parse(&doc, a, f.bytes, path, err);
    if (st == ML_OK)
        st = take_names(out, doc, path, a, err);
    ml_file_unmap(&f);
    return st;
}

bool ml_copy_files_has(const ml_copy_files *f, const char *name) {
    return ml_map_get(&f->index, ml_str_of(name), -1) >= 0;
}

static void index_names(ml_copy_files *out, const ml_names *names, ml_arena *a) {
    *out = (ml_copy_files){ .list = *names };
    ml_map_init(&out->index, a, names->n);
    for (int32_t i = 0; i < names->n; i++)
        ml_map_add(&out->index, ml_str_of(names->name[i]), i);
}

/* The names of `fresh`, and those of `old` (or NULL) that are not among them. */
static ml_status write_manifest(const ml_copy_files *old, const ml_names *fresh,
                                const char *dir, ml_arena *a, ml_err *err) {
    ml_copy_files now;
    ml_text text = { 0 };
    ml_json_out o = { .to = &text };
    ml_status st;

    index_names(&now, fresh, a);
    ml_json_begin(&o, '{');
    ml_json_key(&o, "files");
    ml_json_begin(&o, '[');
    for (int32_t i = 0; i < fresh->n; i++)
        ml_json_word(&o, fresh->name[i]);
    for (int32_t i = 0; old && i < old->list.n; i++)
        if (!ml_copy_files_has(&now, old->list.name[i]))
            ml_json_word(&o, old->list.name[i]);
    ml_json_end(&o, ']');
    ml_json_end(&o, '}');
    st = ml_file_replace(in_dir(a, dir, MANIFEST), (ml_str){ text.ptr, text.len }, err);
    ml_text_release(&text);
    return st;
}

ml_status ml_copy_files_claim(const ml_copy_files *old, const ml_names *fresh,
                              const char *dir, ml_arena *a, ml_err *err) {
    struct stat sb;

    for (int32_t i = 0; i < fresh->n; i++) {
        const char *path = in_dir(a, dir, fresh->name[i]);
        if (!ml_copy_files_has(old, fresh->name[i]) && lstat(path, &sb) == 0)
            return ml_fail(err, ML_EUSAGE,
                           "%s exists and was not written by miles: move it away, or "
                           "choose another directory for the copy of the weights",
                           path);
    }
    return write_manifest(old, fresh, dir, a, err);
}

/* --- cleaning up --------------------------------------------------------------------- */

static ml_status remove_one(const char *path, ml_err *err) {
    if (unlink(path) == 0 || errno == ENOENT)
        return ML_OK;
    return ml_fail(err, ML_EIO, "%s: cannot remove: %s", path, strerror(errno));
}

/* NAME.tmp-PID-N, as ml_out_open creates it, of a file that the manifest lists. */
static bool is_temp_of(const ml_copy_files *f, const char *name, ml_arena *a) {
    const char *at = strstr(name, ".tmp-");
    long pid;
    int n, end = 0;

    return at && sscanf(at, ".tmp-%ld-%d%n", &pid, &n, &end) == 2 && !at[end] &&
           ml_copy_files_has(f, ml_arena_str(a, name, (size_t)(at - name)));
}

static ml_status remove_temps(const ml_copy_files *f, const char *dir, ml_arena *a,
                              ml_err *err) {
    ml_names names;
    ml_status st = ml_dir_list(&names, dir, a, err);

    for (int32_t i = 0; st == ML_OK && i < names.n; i++)
        if (is_temp_of(f, names.name[i], a))
            st = remove_one(in_dir(a, dir, names.name[i]), err);
    return st;
}

ml_status ml_copy_files_settle(const ml_copy_files *old, const ml_names *fresh,
                               const char *dir, ml_arena *a, ml_err *err) {
    ml_copy_files now;
    ml_status st;

    index_names(&now, fresh, a);
    st = remove_temps(&now, dir, a, err);
    if (st == ML_OK)
        st = remove_temps(old, dir, a, err);
    for (int32_t i = 0; st == ML_OK && i < old->list.n; i++)
        if (!ml_copy_files_has(&now, old->list.name[i]))
            st = remove_one(in_dir(a, dir, old->list.name[i]), err);
    return st == ML_OK ? write_manifest(NULL, fresh, dir, a, err) : st;
}
