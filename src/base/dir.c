#include "base/dir.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/str.h"

static ml_status failed(const char *path, const char *what, ml_err *err) {
    return ml_fail(err, ML_EIO, "%s: cannot %s: %s", path, what, strerror(errno));
}

ml_status ml_dir_make(const char *path, ml_err *err) {
    ml_text t = { 0 };
    struct stat sb;
    bool ok = true;

    ml_text_printf(&t, "%s", path);
    for (size_t i = 1; ok && i <= t.len; i++)
        if (i == t.len || t.ptr[i] == '/') {
            char kept = t.ptr[i];
            t.ptr[i] = 0;
            ok = mkdir(t.ptr, 0777) == 0 || errno == EEXIST;
            t.ptr[i] = kept;
        }
    ml_text_release(&t);
    if (ok && (stat(path, &sb) != 0 || !S_ISDIR(sb.st_mode))) {
        errno = ENOTDIR;
        ok = false;
    }
    return ok ? ML_OK : failed(path, "create the directory", err);
}

static int by_bytes(const void *a, const void *b) {
    return strcmp(*(const char *const *)a, *(const char *const *)b);
}

ml_status ml_dir_list(ml_names *out, const char *path, ml_arena *a, ml_err *err) {
    DIR *d = opendir(path);
    struct dirent *e;
    int32_t cap = 0;

    *out = (ml_names){ 0 };
    if (!d)
        return failed(path, "list", err);
    while ((e = readdir(d))) {
        if (strcmp(e->d_name, ".") == 0 || strcmp(e->d_name, "..") == 0)
            continue;
        if (out->n == cap) {
            const char **grown = ML_NEW(a, const char *, cap ? 2 * cap : 16);
            if (cap)
                memcpy(grown, out->name, (size_t)cap * sizeof *grown);
            out->name = grown;
            cap = cap ? 2 * cap : 16;
        }
        out->name[out->n++] = ml_arena_str(a, e->d_name, strlen(e->d_name));
    }
    closedir(d);
    if (out->n)
        qsort(out->name, (size_t)out->n, sizeof *out->name, by_bytes);
    return ML_OK;
}

ml_status ml_dir_sync(const char *path, ml_err *err) {
    int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    bool ok = fd >= 0 && fsync(fd) == 0;

    if (fd >= 0)
        close(fd);
    return ok ? ML_OK : failed(path, "sync", err);
}

static int remove_one(const char *path, const struct stat *sb, int type, struct FTW *ftw) {
    (void)sb;
    (void)type;
    (void)ftw;
    return remove(path);
}

ml_status ml_dir_remove(const char *path, ml_err *err) {
    if (nftw(path, remove_one, 16, FTW_DEPTH | FTW_PHYS) != 0)
        return failed(path, "remove", err);
    return ML_OK;
}

/* --- replacing -------------------------------------------------------------- */

static bool exists(const char *path) {
    struct stat sb;
    return lstat(path, &sb) == 0;
}

static ml_status give_name(const char *from, const char *to, ml_err *err) {
    if (rename(from, to) == 0)
        return ML_OK;
    return ml_fail(err, ML_EIO, "%s: cannot rename to %s: %s", from, to, strerror(errno));
}

ml_status ml_dir_recover(const char *path, ml_err *err) {
    ml_text aside = { 0 };
    ml_status st = ML_OK;

    ml_text_printf(&aside, "%s" ML_DIR_REPLACED, path);
    if (exists(aside.ptr))
        st = exists(path) ? ml_dir_remove(aside.ptr, err) : give_name(aside.ptr, path, err);
    ml_text_release(&aside);
    return st;
}

/* For file systems that cannot exchange two names. */
static ml_status replace_in_steps(const char *temp, const char *path, ml_err *err) {
    ml_text aside = { 0 };
    ml_status st;

    ml_text_printf(&aside, "%s" ML_DIR_REPLACED, path);
    st = give_name(path, aside.ptr, err);
    if (st == ML_OK && (st = give_name(temp, path, err)) != ML_OK)
        rename(aside.ptr, path);
    ml_text_release(&aside);
    return st == ML_OK ? ml_dir_recover(path, err) : st;
}

ml_status ml_dir_replace(const char *temp, const char *path, ml_err *err) {
    ml_status st = ml_dir_recover(path, err);

    if (st != ML_OK)
        return st;
    if (!exists(path))
        return give_name(temp, path, err);
    if (renameat2(AT_FDCWD, temp, AT_FDCWD, path, RENAME_EXCHANGE) == 0)
        return ml_dir_remove(temp, err);
    return replace_in_steps(temp, path, err);
}

ml_status ml_dir_tidy(const char *path, bool (*is_old)(const char *name, int64_t than),
                      int64_t than, ml_err *err) {
    ml_arena a;
    ml_names names;
    ml_status st;

    ml_arena_init(&a, "names in a folder");
    st = ml_dir_list(&names, path, &a, err);
    for (int32_t i = 0; st == ML_OK && i < names.n; i++)
        if (is_old(names.name[i], than))
            st = ml_dir_remove(ml_arena_printf(&a, "%s/%s", path, names.name[i]), err);
    ml_arena_release(&a);
    return st;
}

ml_status ml_dir_make_whole(const char **out, ml_arena *a, const char *path, ml_err *err) {
    ml_status st = ml_dir_make(path, err);
    char *whole;

    if (st != ML_OK)
        return st;
    whole = realpath(path, NULL);
    if (!whole)
        return ml_fail(err, ML_EIO, "%s: %s", path, strerror(errno));
    *out = ml_arena_str(a, whole, strlen(whole));
    free(whole);
    return ML_OK;
}
