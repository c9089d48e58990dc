#include "base/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/gguf_files.h"

static char *copy_of(const char *s, size_t n) {
    ml_text t = { 0 };
    ml_text_add(&t, s, n);
    return t.ptr;
}

/* --- reading ---------------------------------------------------------------- */

static ml_status map_fd(ml_file *out, int fd, const char *path, ml_err *err) {
    struct stat st;
    void *p;

    if (fstat(fd, &st))
        return ml_fail(err, ML_EIO, "%s: cannot get its size: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return ml_fail(err, ML_EIO, "%s is %s; expected a regular file", path,
                       S_ISDIR(st.st_mode) ? "a directory" : "a device or pipe");
    out->bytes = (ml_str){ "", 0 };
    if (st.st_size == 0)
        return ML_OK; /* empty: mmap refuses it */
    p = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE, fd, 0);
    if (p == MAP_FAILED)
        return ml_fail(err, ML_EIO, "%s: cannot map %lld bytes: %s", path,
                       (long long)st.st_size, strerror(errno));
    out->bytes = (ml_str){ p, (size_t)st.st_size };
    return ML_OK;
}

ml_status ml_file_map_fd(ml_file *out, int fd, const char *path, ml_err *err) {
    ml_status st;

    *out = (ml_file){ 0 };
    st = map_fd(out, fd, path, err);
    if (!st)
        out->path = copy_of(path, strlen(path));
    return st;
}

/* Text in memory of its own, released like a mapped file. */
static ml_status map_text(ml_file *out, const ml_text *t, const char *path, ml_err *err) {
    void *p =
        mmap(NULL, t->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (p == MAP_FAILED)
        return ml_fail(err, ML_ENOMEM, "%s: out of memory for %zu bytes", path, t->len);
    memcpy(p, t->ptr, t->len);
    *out = (ml_file){ .path = copy_of(path, strlen(path)), .bytes = { p, t->len } };
    return ML_OK;
}

/* A file that a GGUF model would have as a directory; n: the length of the model's path. */
static ml_status map_gguf_file(ml_file *out, const char *path, size_t n, ml_err *err) {
    char *model = copy_of(path, n);
    ml_gguf *g = NULL;
    ml_text text = { 0 };
    ml_status st = ml_gguf_open(&g, model, err);

    if (st == ML_OK)
        st = ml_gguf_file(&text, g, path + n + 1, err);
    if (st == ML_OK)
        st = map_text(out, &text, path, err);
    ml_text_release(&text);
    ml_gguf_free(g);
    free(model);
    return st;
}

bool ml_file_there(const char *path) {
    size_t n;
    return access(path, F_OK) == 0 || ml_gguf_is_file(path, &n);
}

ml_status ml_file_map(ml_file *out, const char *path, ml_err *err) {
    /* Without O_NONBLOCK, opening a FIFO would wait for a writer. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ml_status st;
    size_t n;

    *out = (ml_file){ 0 };
    if (fd < 0 && errno == ENOTDIR && ml_gguf_is_file(path, &n))
        return map_gguf_file(out, path, n, err);
    if (fd < 0)
        return ml_fail(err, ML_EIO, "%s: cannot open: %s", path, strerror(errno));
    st = ml_file_map_fd(out, fd, path, err);
    close(fd);
    return st;
}

void ml_file_unmap(ml_file *f) {
    if (f->bytes.len)
        munmap((void *)(uintptr_t)f->bytes.ptr, f->bytes.len);
    free(f->path);
    *f = (ml_file){ 0 };
}

void ml_file_forget(const ml_file *f, size_t offset, size_t n) {
    size_t page = (size_t)sysconf(_SC_PAGESIZE), mask = page - 1;
    size_t begin = (offset + mask) & ~mask, end = offset + n;

    /* The file's last page contains nothing else, so the range is rounded up. */
    end = end == f->bytes.len ? (end + mask) & ~mask : end & ~mask;
    if (begin < end)
        madvise((void *)((uintptr_t)f->bytes.ptr + begin), end - begin, MADV_DONTNEED);
}

/* --- writing ---------------------------------------------------------------- */

enum { N_TEMP = 100 }; /* names tried before giving up */

/* A file with a write of so many bytes is worth a thread. */
#define BEHIND_BYTES ((size_t)1 << 18)

/* Not mkstemp, because its files ignore the umask. */
static int open_temp(ml_text *name, const char *path) {
    for (int i = 0; i < N_TEMP; i++) {
        int fd;
        name->len = 0;
        ml_text_printf(name, "%s.tmp-%ld-%d", path, (long)getpid(), i);
        fd = open(name->ptr, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
        if (fd >= 0 || errno != EEXIST)
            return fd;
    }
    return -1;
}

/* The number of digits at the end of the first n characters. */
static size_t digits_before(const char *name, size_t n) {
    size_t k = 0;
    while (k < n && name[n - 1 - k] >= '0' && name[n - 1 - k] <= '9')
        k++;
    return k;
}

size_t ml_out_temp_base(const char *name) {
    size_t n = strlen(name), k = digits_before(name, n);

    if (!k || n - k < 1 || name[n - k - 1] != '-')
        return 0;
    n -= k + 1;
    k = digits_before(name, n);
    if (!k || n - k < 5 || strncmp(name + n - k - 5, ".tmp-", 5) != 0)
        return 0;
    return n - k - 5;
}

ml_status ml_out_open(ml_out *out, const char *path, ml_err *err) {
    ml_text temp = { 0 };
    int fd = open_temp(&temp, path);

    *out = (ml_out){ .fd = -1 };
    if (fd < 0) {
        ml_fail(err, ML_EIO, "%s: cannot create: %s", temp.ptr, strerror(errno));
        ml_text_release(&temp);
        return ML_EIO;
    }
    *out = (ml_out){ .path = copy_of(path, strlen(path)), .temp = temp.ptr, .fd = fd };
    return ML_OK;
}

static ml_status fail_write(const ml_out *o, ml_write_failure f, ml_err *err) {
    return f.why ? ml_fail(err, ML_EIO, "%s: cannot write %zu bytes at %zu: %s", o->temp,
                           f.bytes, f.offset, strerror(f.why))
                 : ML_OK;
}

ml_status ml_out_write(ml_out *o, size_t offset, ml_str bytes, ml_err *err) {
    if (!o->behind && bytes.len >= BEHIND_BYTES)
        o->behind = ml_write_behind_open(o->fd);
    return fail_write(o,
                      o->behind ? ml_write_behind_put(o->behind, offset, bytes)
                                : ml_write_at(o->fd, offset, bytes),
                      err);
}

static void forget_names(ml_out *o) {
    free(o->path);
    free(o->temp);
    *o = (ml_out){ .fd = -1 };
}

/* After the rename the new file is visible and nothing can be undone, so a file system
 * that cannot sync a directory is not an error. */
static void sync_directory_of(const char *path) {
    const char *slash = strrchr(path, '/');
    char *dir = slash ? copy_of(path, (size_t)(slash - path) + 1) : copy_of(".", 1);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    if (fd >= 0) {
        fsync(fd);
        close(fd);
    }
    free(dir);
}

ml_status ml_out_commit(ml_out *o, ml_err *err) {
    ml_status st = fail_write(o, ml_write_behind_close(o->behind), err);
    const char *failed = NULL;
    int why = 0;

    o->behind = NULL;
    if (st != ML_OK) {
        ml_out_abort(o);
        return st;
    }
    if (fsync(o->fd)) {
        failed = "cannot be synced to disk";
        why = errno;
    }
    if (close(o->fd) && !failed) {
        failed = "cannot be closed";
        why = errno;
    }
    o->fd = -1;
    if (!failed && rename(o->temp, o->path)) {
        failed = "cannot be renamed";
        why = errno;
    }
    if (failed) {
        ml_fail(err, ML_EIO, "%s: the new file %s: %s", o->path, failed, strerror(why));
        ml_out_abort(o);
        return ML_EIO;
    }
    sync_directory_of(o->path);
    forget_names(o);
    return ML_OK;
}

void ml_out_abort(ml_out *o) {
    if (!o->temp)
        return;
    ml_write_behind_close(o->behind);
    if (o->fd >= 0)
        close(o->fd);
    unlink(o->temp);
    forget_names(o);
}

ml_status ml_file_replace(const char *path, ml_str bytes, ml_err *err) {
    ml_out o;
    ml_status st = ml_out_open(&o, path, err);

    if (!st)
        st = ml_out_write(&o, 0, bytes, err);
    if (!st)
        return ml_out_commit(&o, err);
    ml_out_abort(&o);
    return st;
}
