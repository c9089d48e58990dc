/* inject.c - a shared object for LD_PRELOAD that lets the n-th call of one kind fail.
 *
 *     MILES_FAULT=write:17     the 17th write fails, with ENOSPC
 *     MILES_FAULT=write:17+    so does every later one
 *     MILES_FAULT=write:17@    calls are counted from the signal SIGUSR2 on
 *     MILES_FAULT_COUNT=FILE   at exit, the number of calls of each kind is written there
 *
 * Kinds: malloc, mmap, open, write, fsync, rename.  Calls before main are not counted, and child
 * processes are left alone.  tests/e2e/faults.py is the driver. */
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

#define EXPORT __attribute__((visibility("default")))

typedef enum kind { MALLOC, MMAP, OPEN, WRITE, FSYNC, RENAME, N_KIND } kind;

static const char *const kind_name[N_KIND] = { "malloc", "mmap",  "open",
                                               "write",  "fsync", "rename" };
static const int kind_errno[N_KIND] = { ENOMEM, ENOMEM, EMFILE, ENOSPC, EIO, EIO };

static atomic_long n_calls[N_KIND];
static kind faulty = N_KIND; /* the kind that fails */
static long faulty_from;     /* its first failing call, from 1 */
static bool persistent;
static atomic_bool counting;

static void start_counting(int sig) {
    (void)sig;
    atomic_store(&counting, true);
}

static void read_fault(const char *text) {
    for (int k = 0; k < N_KIND; k++) {
        size_t n = strlen(kind_name[k]);
        if (strncmp(text, kind_name[k], n) == 0 && text[n] == ':') {
            faulty_from = strtol(text + n + 1, NULL, 10);
            faulty = (kind)k;
        }
    }
    persistent = strchr(text, '+') != NULL;
    if (strchr(text, '@'))
        signal(SIGUSR2, start_counting);
    else
        atomic_store(&counting, true);
}

__attribute__((constructor)) static void begin(void) {
    const char *fault = getenv("MILES_FAULT");

    unsetenv("LD_PRELOAD");
    if (fault)
        read_fault(fault);
    else
        atomic_store(&counting, true);
}

__attribute__((destructor)) static void end(void) {
    const char *path = getenv("MILES_FAULT_COUNT");
    int fd = path ? openat(AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND, 0666) : -1;

    for (int k = 0; fd >= 0 && k < N_KIND; k++)
        dprintf(fd, "%s %ld\n", kind_name[k], atomic_load(&n_calls[k]));
}

/* Whether this call of kind k fails; errno is set then. */
static bool fails(kind k) {
    long n;

    if (!atomic_load_explicit(&counting, memory_order_relaxed))
        return false;
    n = atomic_fetch_add(&n_calls[k], 1) + 1;
    if (k != faulty || n < faulty_from || (n > faulty_from && !persistent))
        return false;
    errno = kind_errno[k];
    return true;
}

/* --- memory: glibc's own entry points, since dlsym itself allocates --------------------- */

extern void *__libc_malloc(size_t n);
extern void *__libc_calloc(size_t n, size_t size);
extern void *__libc_realloc(void *p, size_t n);
extern void *__libc_memalign(size_t align, size_t n);

EXPORT void *malloc(size_t n) {
    return fails(MALLOC) ? NULL : __libc_malloc(n);
}

EXPORT void *calloc(size_t n, size_t size) {
    return fails(MALLOC) ? NULL : __libc_calloc(n, size);
}

EXPORT void *realloc(void *p, size_t n) {
    return fails(MALLOC) ? NULL : __libc_realloc(p, n);
}

EXPORT void *reallocarray(void *p, size_t n, size_t size) {
    size_t bytes;

    if (__builtin_mul_overflow(n, size, &bytes)) {
        errno = ENOMEM;
        return NULL;
    }
    return fails(MALLOC) ? NULL : __libc_realloc(p, bytes);
}

EXPORT void *aligned_alloc(size_t align, size_t n) {
    return fails(MALLOC) ? NULL : __libc_memalign(align, n);
}

EXPORT int posix_memalign(void **p, size_t align, size_t n) {
    void *q = fails(MALLOC) ? NULL : __libc_memalign(align, n);

    if (!q)
        return ENOMEM;
    *p = q;
    return 0;
}

/* --- files ------------------------------------------------------------------------------ */

#define REAL(name)                                                                         \
    static __typeof__(name) *real;                                                         \
    if (!real)                                                                             \
    *(void **)&real = dlsym(RTLD_NEXT, #name)

EXPORT void *mmap(void *at, size_t n, int prot, int flags, int fd, off_t offset) {
    REAL(mmap);
    return fails(MMAP) ? MAP_FAILED : real(at, n, prot, flags, fd, offset);
}

EXPORT void *mmap64(void *at, size_t n, int prot, int flags, int fd, off64_t offset) {
    REAL(mmap64);
    return fails(MMAP) ? MAP_FAILED : real(at, n, prot, flags, fd, offset);
}

static mode_t mode_of(int flags, va_list ap) {
    return flags & (O_CREAT | O_TMPFILE) ? va_arg(ap, mode_t) : 0;
}

EXPORT int open(const char *path, int flags, ...) {
    va_list ap;
    mode_t mode;
    REAL(open);

    va_start(ap, flags);
    mode = mode_of(flags, ap);
    va_end(ap);
    return fails(OPEN) ? -1 : real(path, flags, mode);
}

EXPORT int open64(const char *path, int flags, ...) {
    va_list ap;
    mode_t mode;
    REAL(open64);

    va_start(ap, flags);
    mode = mode_of(flags, ap);
    va_end(ap);
    return fails(OPEN) ? -1 : real(path, flags, mode);
}

EXPORT int openat(int dir, const char *path, int flags, ...) {
    va_list ap;
    mode_t mode;
    REAL(openat);

    va_start(ap, flags);
    mode = mode_of(flags, ap);
    va_end(ap);
    return fails(OPEN) ? -1 : real(dir, path, flags, mode);
}

EXPORT FILE *fopen(const char *path, const char *mode) {
    REAL(fopen);
    return fails(OPEN) ? NULL : real(path, mode);
}

/* Only files run out of disk: what goes to sockets and pipes is not counted. */
static bool write_fails(int fd) {
    struct stat st;

    return fstat(fd, &st) == 0 && S_ISREG(st.st_mode) && fails(WRITE);
}

EXPORT ssize_t write(int fd, const void *bytes, size_t n) {
    REAL(write);
    return write_fails(fd) ? -1 : real(fd, bytes, n);
}

EXPORT ssize_t pwrite(int fd, const void *bytes, size_t n, off_t at) {
    REAL(pwrite);
    return write_fails(fd) ? -1 : real(fd, bytes, n, at);
}

EXPORT ssize_t pwrite64(int fd, const void *bytes, size_t n, off64_t at) {
    REAL(pwrite64);
    return write_fails(fd) ? -1 : real(fd, bytes, n, at);
}

EXPORT ssize_t writev(int fd, const struct iovec *v, int n) {
    REAL(writev);
    return write_fails(fd) ? -1 : real(fd, v, n);
}

enum { ERROR_SEEN = 0x20 }; /* glibc's _IO_ERR_SEEN: what ferror() reads */

EXPORT size_t fwrite(const void *bytes, size_t size, size_t n, FILE *f) {
    REAL(fwrite);
    if (!write_fails(fileno(f)))
        return real(bytes, size, n, f);
    f->_flags |= ERROR_SEEN;
    return 0;
}

EXPORT int fsync(int fd) {
    REAL(fsync);
    return fails(FSYNC) ? -1 : real(fd);
}

EXPORT int fdatasync(int fd) {
    REAL(fdatasync);
    return fails(FSYNC) ? -1 : real(fd);
}

EXPORT int rename(const char *from, const char *to) {
    REAL(rename);
    return fails(RENAME) ? -1 : real(from, to);
}

EXPORT int renameat(int from_dir, const char *from, int to_dir, const char *to) {
    REAL(renameat);
    return fails(RENAME) ? -1 : real(from_dir, from, to_dir, to);
}

EXPORT int renameat2(int from_dir, const char *from, int to_dir, const char *to,
                     unsigned flags) {
    REAL(renameat2);
    return fails(RENAME) ? -1 : real(from_dir, from, to_dir, to, flags);
}
