#include "rl/record/run_dir.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dir.h"
#include "base/file.h"
#include "base/log.h"
#include "train/snapshot.h"

#define LOCK_NAME "run.lock"
#define SUMS_NAME "checksums.crc64"

/* --- files of a run --------------------------------------------------------- */

/* The tracker is first: once it is removed, no snapshot is valid while the others are
 * removed. */
static const char *const run_files[] = { "latest_checkpointed_iteration.txt",
                                         "metrics.jsonl",
                                         "timing.jsonl",
                                         "determinism.jsonl",
                                         "control.jsonl",
                                         "control.requests",
                                         "run.db",
                                         "run.db-wal",
                                         "run.db-shm",
                                         "flags.json",
                                         "inputs.json",
                                         "tensorboard/events.out.tfevents.miles" };
enum { N_RUN_FILE = sizeof run_files / sizeof *run_files };

/* Matches `head`, digits and `tail`. */
static bool is_numbered(const char *name, const char *head, const char *tail) {
    size_t n = strlen(head), digits;

    if (strncmp(name, head, n) != 0)
        return false;
    digits = strspn(name + n, "0123456789");
    return digits && strcmp(name + n + digits, tail) == 0;
}

static bool is_run_file(const char *name) {
    for (int i = 0; i < N_RUN_FILE; i++)
        if (strcmp(name, run_files[i]) == 0)
            return true;
    return is_numbered(name, "trace_", ".json");
}

static bool exists(const char *path) {
    struct stat sb;
    return lstat(path, &sb) == 0;
}

/* A start that failed before its first row leaves an empty metrics.jsonl. */
static bool recorded_nothing(const char *dir, ml_arena *a) {
    struct stat sb;
    return stat(ml_arena_printf(a, "%s/metrics.jsonl", dir), &sb) == 0 && sb.st_size == 0;
}

/* Finds a file that shows that the directory has a run in it; allocated in the arena.
 * NULL: none. */
static ml_status find_run(const char **out, const char *dir, ml_arena *a, ml_err *err) {
    ml_names names = { 0 };
    ml_status st;
    bool empty;

    *out = NULL;
    if (!exists(dir))
        return ML_OK;
    st = ml_dir_list(&names, dir, a, err);
    empty = recorded_nothing(dir, a);
    for (int32_t i = 0; i < names.n && !*out; i++)
        if (ml_snapshot_number(names.name[i]) != ML_NONE ||
            strcmp(names.name[i], run_files[0]) == 0 ||
            (!empty && is_run_file(names.name[i])))
            *out = names.name[i];
    if (!*out && !empty &&
        exists(ml_arena_printf(a, "%s/%s", dir, run_files[N_RUN_FILE - 1])))
        *out = run_files[N_RUN_FILE - 1];
    return st;
}

/* --- checks ------------------------------------------------------------------- */

static bool same_dir(const char *a, const char *b) {
    struct stat x, y;
    return a && b && stat(a, &x) == 0 && stat(b, &y) == 0 && x.st_dev == y.st_dev &&
           x.st_ino == y.st_ino;
}

static ml_status check_run(const ml_run_dir_opts *o, const char *found, ml_err *err) {
    bool same = same_dir(o->dir, o->load);

    if (same && o->overwrite)
        return ml_fail(err, ML_EUSAGE,
                       "--overwrite would remove the run in %s that %s resumes: remove one "
                       "of the two flags",
                       o->dir, o->flag_load);
    if (o->overwrite)
        return ML_OK;
    if (same && o->restart)
        return ml_fail(err, ML_EUSAGE,
                       "%s contains a run (%s), which would be overwritten, because the "
                       "new one starts at rollout 0: choose another directory with %s",
                       o->dir, found, o->flag_save);
    if (same)
        return ML_OK;
    return ml_fail(err, ML_EUSAGE,
                   "%s already contains a run (%s): resume it with %s %s, remove it with "
                   "--overwrite, or choose another directory with %s",
                   o->dir, found, o->flag_load, o->dir, o->flag_save);
}

ml_status ml_run_dir_check(const ml_run_dir_opts *o, ml_err *err) {
    const char *found;
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "names in a run's directory");
    st = find_run(&found, o->dir, &a, err);
    if (st == ML_OK && found)
        st = check_run(o, found, err);
    else if (st == ML_OK && o->events && !o->overwrite && exists(o->events))
        st = ml_fail(err, ML_EUSAGE,
                     "%s exists and was not written by the run in %s: choose another "
                     "directory for TensorBoard, or replace it with --overwrite",
                     o->events, o->dir);
    ml_arena_release(&a);
    return st;
}

/* --- removing a run --------------------------------------------------------- */

static bool is_listed(ml_str sums, const char *name) {
    for (size_t at = 0, len; at < sums.len; at += len + 1) {
        const char *line = sums.ptr + at, *end = memchr(line, '\n', sums.len - at);
        len = end ? (size_t)(end - line) : sums.len - at;
        if (ml_str_is(ml_snapshot_listed((ml_str){ line, len }), name))
            return true;
    }
    return strcmp(name, SUMS_NAME) == 0;
}

/* A snapshot may be removed if it has only the files with which it was saved. */
static ml_status check_snapshot(const char *path, ml_arena *a, ml_err *err) {
    ml_names names = { 0 };
    ml_file f = { 0 };
    ml_status st = ml_dir_list(&names, path, a, err);

    if (st == ML_OK && names.n)
        st = ml_file_map(&f, ml_arena_printf(a, "%s/" SUMS_NAME, path), err);
    for (int32_t i = 0; i < names.n && st == ML_OK; i++)
        if (!is_listed(f.bytes, names.name[i]))
            st = ml_fail(
                err, ML_EUSAGE,
                "--overwrite: %s/%s does not belong to the snapshot: move it elsewhere",
                path, names.name[i]);
    ml_file_unmap(&f);
    return st;
}

static ml_status each_snapshot(const ml_run_dir_opts *o, const ml_names *names, bool remove,
                               ml_arena *a, ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0; i < names->n && st == ML_OK; i++) {
        const char *path = ml_arena_printf(a, "%s/%s", o->dir, names->name[i]);
        if (ml_snapshot_number(names->name[i]) != ML_NONE)
            st = remove ? ml_dir_remove(path, err) : check_snapshot(path, a, err);
    }
    return st;
}

static ml_status remove_file(const char *path, ml_err *err) {
    if (unlink(path) == 0 || errno == ENOENT || errno == ENOTDIR)
        return ML_OK;
    return ml_fail(err, ML_EIO, "%s: cannot remove: %s", path, strerror(errno));
}

static bool is_round(const char *name, int64_t unused) {
    (void)unused;
    return is_numbered(name, "", ".jsonl.zst");
}

/* Checks everything before removing anything. */
static ml_status remove_run(const ml_run_dir_opts *o, ml_arena *a, ml_err *err) {
    ml_names names = { 0 };
    const char *rounds;
    ml_status st = ml_dir_list(&names, o->dir, a, err);

    if (st == ML_OK)
        st = each_snapshot(o, &names, false, a, err);
    for (int i = 0; i < N_RUN_FILE && st == ML_OK; i++)
        st = remove_file(ml_arena_printf(a, "%s/%s", o->dir, run_files[i]), err);
    for (int32_t i = 0; i < names.n && st == ML_OK; i++)
        if (is_run_file(names.name[i]))
            st = remove_file(ml_arena_printf(a, "%s/%s", o->dir, names.name[i]), err);
    if (st == ML_OK && o->events)
        st = remove_file(o->events, err);
    rounds = ml_arena_printf(a, "%s/rollout_data", o->dir);
    if (st == ML_OK && exists(rounds))
        st = ml_dir_tidy(rounds, is_round, 0, err);
    return st == ML_OK ? each_snapshot(o, &names, true, a, err) : st;
}

/* --- temporary files -------------------------------------------------------- */

static bool is_leftover(const char *name, int64_t unused) {
    char base[256];
    size_t n = ml_out_temp_base(name);

    (void)unused;
    if (!n || n >= sizeof base)
        return false;
    memcpy(base, name, n);
    base[n] = 0;
    return is_run_file(base) || strcmp(base, LOCK_NAME) == 0 ||
           is_numbered(base, "", ".jsonl.zst");
}

/* The caller has the lock, so no living process is writing these files. */
static ml_status tidy(const char *dir, ml_arena *a, ml_err *err) {
    const char *rounds = ml_arena_printf(a, "%s/rollout_data", dir);
    ml_status st = ml_snapshot_tidy(dir, err);

    if (st == ML_OK)
        st = ml_dir_tidy(dir, is_leftover, 0, err);
    if (st == ML_OK && exists(rounds))
        st = ml_dir_tidy(rounds, is_leftover, 0, err);
    return st;
}

/* --- the lock --------------------------------------------------------------- */

static ml_status in_use(int fd, const char *path, const char *dir, ml_err *err) {
    char who[300] = "";
    ssize_t n = pread(fd, who, sizeof who - 1, 0);

    who[n > 0 ? strcspn(who, "\n") : 0] = 0;
    for (char *x = who; *x; x++)
        if (*x < ' ' || *x > '~') /* the contents are untrusted */
            *x = '?';
    return ml_fail(err, ML_EUSAGE,
                   "%s is in use by %s, which holds the lock %s: wait until it ends, or "
                   "choose another directory",
                   dir, *who ? who : "another process", path);
}

static void sign(int fd) {
    char host[256] = "", text[300];
    int n;

    gethostname(host, sizeof host - 1);
    n = snprintf(text, sizeof text, "process %ld on %s\n", (long)getpid(), host);
    if (ftruncate(fd, 0) != 0 || pwrite(fd, text, (size_t)n, 0) != n)
        ml_log(ML_LOG_WARN, "cannot write the run's lock: %s", strerror(errno));
}

/* True if the previous holder of the lock removed the file after we had opened it. */
static bool was_removed(int fd, const char *path) {
    struct stat ours, there;
    return fstat(fd, &ours) != 0 || stat(path, &there) != 0 ||
           ours.st_ino != there.st_ino || ours.st_dev != there.st_dev;
}

/* Locks the open file: the system releases the lock however the process ends, and it works
 * over NFS.  If the file system does not support locks, the run continues without one. */
static ml_status lock_file(int fd, const char *path, const char *dir, ml_err *err) {
    struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

    if (fcntl(fd, F_OFD_SETLK, &whole) == 0)
        return ML_OK;
    if (errno == EAGAIN || errno == EACCES)
        return in_use(fd, path, dir, err);
    ml_log(ML_LOG_WARN, "cannot lock %s (%s): make sure that no other run writes to it",
           path, strerror(errno));
    return ML_OK;
}

static ml_status take_lock(ml_run_dir *d, ml_arena *a, ml_err *err) {
    const char *path = ml_arena_printf(a, "%s/" LOCK_NAME, d->dir);
    ml_status st = ML_OK;

    while (!d->lock && st == ML_OK) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666);
        if (fd < 0)
            return ml_fail(err, ML_EIO, "%s: cannot open: %s", path, strerror(errno));
        st = lock_file(fd, path, d->dir, err);
        if (st == ML_OK && !was_removed(fd, path)) {
            sign(fd);
            d->lock = fd + 1;
        } else {
            close(fd);
        }
    }
    return st;
}

ml_status ml_run_dir_open(ml_run_dir *d, const ml_run_dir_opts *o, ml_err *err) {
    ml_status st;
    ml_arena a;

    *d = (ml_run_dir){ .dir = o->dir, .made = !exists(o->dir) };
    ml_arena_init(&a, "a run's directory");
    st = ml_dir_make(o->dir, err);
    if (st == ML_OK)
        st = take_lock(d, &a, err);
    if (st == ML_OK)
        st = ml_run_dir_check(o, err);
    if (st == ML_OK)
        st = tidy(o->dir, &a, err);
    if (st == ML_OK && o->overwrite)
        st = remove_run(o, &a, err);
    if (st != ML_OK)
        ml_run_dir_close(d);
    ml_arena_release(&a);
    return st;
}

void ml_run_dir_close(ml_run_dir *d) {
    ml_text path = { 0 };

    if (!d->lock)
        return;
    ml_text_printf(&path, "%s/" LOCK_NAME, d->dir);
    unlink(path.ptr); /* while it is locked: see was_removed() */
    if (d->made)
        rmdir(d->dir); /* fails if the directory is not empty */
    close(d->lock - 1);
    ml_text_release(&path);
    *d = (ml_run_dir){ 0 };
}

bool ml_run_dir_is_live(const char *dir) {
    struct flock whole = { .l_type = F_WRLCK, .l_whence = SEEK_SET };
    ml_text path = { 0 };
    bool live;
    int fd;

    ml_text_printf(&path, "%s/" LOCK_NAME, dir);
    fd = open(path.ptr, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    ml_text_release(&path);
    live = fd >= 0 && fcntl(fd, F_OFD_GETLK, &whole) == 0 && whole.l_type != F_UNLCK;
    if (fd >= 0)
        close(fd);
    return live;
}
