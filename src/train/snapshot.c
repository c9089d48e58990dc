#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <sys/stat.h>

#include "base/checksum.h"
#include "base/dir.h"
#include "train/snapshot_priv.h"

/* PyTorch's names for the moments. */
const char *const ml_snapshot_prefix[ML_STATE_SETS] = { "master", "exp_avg", "exp_avg_sq",
                                                        "reference" };

const char *ml_snapshot_path(ml_arena *a, const char *dir, int64_t iteration) {
    return ml_arena_printf(a, "%s/iter_%07lld", dir, (long long)iteration);
}

const char *ml_snapshot_tensor(char *buf, size_t cap, int k, const ml_param *p, int32_t e) {
    char name[512];
    snprintf(buf, cap, "%s.%s", ml_snapshot_prefix[k],
             ml_param_name(p, e, name, sizeof name));
    return buf;
}

/* Piece by piece: the pages of a mapped file count as memory of the process. */
static uint64_t crc_of(const ml_file *f) {
    const size_t piece = (size_t)64 << 20;
    uint64_t crc = 0;

    for (size_t at = 0; at < f->bytes.len; at += piece) {
        size_t n = f->bytes.len - at < piece ? f->bytes.len - at : piece;
        crc = ml_crc64_join(crc, ml_crc64_of((ml_str){ f->bytes.ptr + at, n }), n);
        ml_file_forget(f, at, n);
    }
    return crc;
}

ml_status ml_snapshot_files(ml_names *out, const char *path, ml_arena *a, ml_err *err) {
    const char *dir = ml_arena_printf(a, "%s/" ML_SNAPSHOT_DRAFT, path);
    ml_names all, head = { 0 };
    ml_status st = ml_dir_list(&all, path, a, err);

    if (st == ML_OK && access(dir, F_OK) == 0)
        st = ml_dir_list(&head, dir, a, err);
    if (st != ML_OK)
        return st;
    *out = (ml_names){ .name = ML_NEW(a, const char *, all.n + head.n + 1) };
    for (int32_t i = 0; i < all.n; i++)
        if (strcmp(all.name[i], ML_SNAPSHOT_DRAFT) != 0)
            out->name[out->n++] = all.name[i];
    for (int32_t i = 0; i < head.n; i++)
        out->name[out->n++] = ml_arena_printf(a, ML_SNAPSHOT_DRAFT "/%s", head.name[i]);
    return ML_OK;
}

ml_status ml_snapshot_sum(ml_text *out, const char *path, const char *name, ml_err *err) {
    ml_text full = { 0 };
    ml_file f = { 0 };
    ml_status st;

    ml_text_printf(&full, "%s/%s", path, name);
    st = ml_file_map(&f, full.ptr, err);
    if (st == ML_OK)
        ml_text_printf(out, "%016llx %zu %s\n", (unsigned long long)crc_of(&f), f.bytes.len,
                       name);
    ml_file_unmap(&f);
    ml_text_release(&full);
    return st;
}

int64_t ml_snapshot_number(const char *name) {
    char *end;
    long long n;

    if (strncmp(name, "iter_", 5) != 0 || name[5] < '0' || name[5] > '9')
        return ML_NONE;
    n = strtoll(name + 5, &end, 10);
    return *end ? ML_NONE : n;
}

/* --- the tracker ------------------------------------------------------------ */

/* Without a tracker there must be no snapshot either: the newest complete one is not
 * guessed. */
static ml_status no_tracker(const char *dir, ml_err *err) {
    ml_names names = { 0 };
    ml_status st = ML_OK;
    struct stat sb;
    ml_arena a;

    if (stat(dir, &sb) != 0 && errno == ENOENT)
        return ML_OK;
    ml_arena_init(&a, "names of snapshots");
    st = ml_dir_list(&names, dir, &a, err);
    for (int32_t i = 0; i < names.n && st == ML_OK; i++)
        if (ml_snapshot_number(names.name[i]) != ML_NONE)
            st =
                ml_fail(err, ML_EFORMAT,
                        "%s has snapshots, such as %s, but no " ML_SNAPSHOT_TRACKER
                        " with the number of the newest complete one: select the snapshot "
                        "to resume from with --ckpt-step, or write its number to that file",
                        dir, names.name[i]);
    ml_arena_release(&a);
    return st;
}

static ml_status read_tracker(int64_t *out, const char *path, ml_err *err) {
    char digits[24] = "", *end = digits;
    ml_file f = { 0 };
    ml_status st = ml_file_map(&f, path, err);
    long long n = 0;

    if (st == ML_OK && f.bytes.len && f.bytes.len < sizeof digits) {
        memcpy(digits, f.bytes.ptr, f.bytes.len);
        n = strtoll(digits, &end, 10);
    }
    ml_file_unmap(&f);
    if (st == ML_OK && (end == digits || (*end && *end != '\n') || n < ML_NONE))
        st = ml_fail(err, ML_EFORMAT,
                     "%s: expected the number of an iteration: select the snapshot to "
                     "resume from with --ckpt-step, or write its number to that file",
                     path);
    if (st == ML_OK)
        *out = n;
    return st;
}

ml_status ml_snapshot_latest(int64_t *out, const char *dir, ml_err *err) {
    ml_text path = { 0 };
    ml_status st;
    struct stat sb;

    *out = ML_NONE;
    ml_text_printf(&path, "%s/%s", dir, ML_SNAPSHOT_TRACKER);
    if (stat(path.ptr, &sb) == 0)
        st = read_tracker(out, path.ptr, err);
    else if (errno == ENOENT)
        st = no_tracker(dir, err);
    else
        st = ml_fail(err, ML_EIO, "%s: cannot read: %s", path.ptr, strerror(errno));
    ml_text_release(&path);
    return st;
}

/* --- cleanup after a crash -------------------------------------------------- */

/* Matches "iter_" and digits; returns the rest. */
static const char *after_number(const char *name) {
    size_t n = strncmp(name, "iter_", 5) == 0 ? strspn(name + 5, "0123456789") : 0;
    return n ? name + 5 + n : "";
}

static bool is_temp(const char *rest) {
    size_t n = strlen(ML_SNAPSHOT_TEMP);

    if (strncmp(rest, ML_SNAPSHOT_TEMP, n) != 0)
        return false;
    rest += n;
    return strcmp(rest, "old") == 0 || (*rest && !rest[strspn(rest, "0123456789")]);
}

ml_status ml_snapshot_tidy(const char *dir, ml_err *err) {
    ml_names names = { 0 };
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "names of snapshots");
    st = ml_dir_list(&names, dir, &a, err);
    for (int32_t i = 0; i < names.n && st == ML_OK; i++) {
        const char *name = names.name[i], *rest = after_number(name);
        if (is_temp(rest))
            st = ml_dir_remove(ml_arena_printf(&a, "%s/%s", dir, name), err);
        else if (strcmp(rest, ML_DIR_REPLACED) == 0)
            st = ml_dir_recover(
                ml_arena_printf(&a, "%s/%.*s", dir, (int)(rest - name), name), err);
    }
    ml_arena_release(&a);
    return st;
}
