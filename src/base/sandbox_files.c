/* The files that a program in a sandbox sees. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/sandbox_priv.h"

/* --- Python --------------------------------------------------------------------------- */

static bool is_elf(const char *path) {
    char head[4] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    bool elf = fd >= 0 && read(fd, head, 4) == 4 && memcmp(head, "\177ELF", 4) == 0;

    if (fd >= 0)
        close(fd);
    return elf;
}

static bool find_on_path(char *out, size_t cap, const char *name) {
    const char *path = getenv("PATH");

    for (const char *at = path ? path : "/usr/bin:/bin"; *at;) {
        size_t n = strcspn(at, ":");
        snprintf(out, cap, "%.*s/%s", (int)n, at, name);
        if (n && access(out, X_OK) == 0)
            return true;
        at += n + (at[n] == ':');
    }
    return false;
}

/* A script that stands for the interpreter, as those of pyenv, knows where it is. */
static bool ask_script(char *out, size_t cap) {
    FILE *f = popen("exec python3 -c 'import sys; print(sys.executable)'", "re");
    bool good = f && fgets(out, (int)cap, f);

    if (f)
        pclose(f);
    if (good)
        out[strcspn(out, "\n")] = 0;
    return good && out[0] == '/' && is_elf(out);
}

/* The directory above bin/, unless it is in /usr, which is there anyway. */
static void take_root(char *out, size_t cap, const char *program) {
    const char *slash = strstr(program, "/bin/");

    snprintf(out, cap, "%.*s", slash ? (int)(slash - program) : 0, program);
    if (strncmp(out, "/usr", 4) == 0 && (out[4] == 0 || out[4] == '/'))
        out[0] = 0;
}

bool ml_sandbox_look(ml_sandbox_view *out, const ml_sandbox_opts *o) {
    char real[4096];

    *out = (ml_sandbox_view){ .python = "" };
    if (o->language != ML_SANDBOX_PYTHON)
        return true;
    if (o->python)
        snprintf(out->python, sizeof out->python, "%s", o->python);
    if ((!o->python && !find_on_path(out->python, sizeof out->python, "python3")) ||
        (!is_elf(out->python) && !ask_script(out->python, sizeof out->python)) ||
        !realpath(out->python, real))
        return false;
    take_root(out->root[0], sizeof out->root[0],
              out->python); /* of a virtual environment */
    take_root(out->root[1], sizeof out->root[1], real);
    if (strcmp(out->root[0], out->root[1]) == 0)
        out->root[1][0] = 0;
    return true;
}

/* --- mounts --------------------------------------------------------------------------- */

/* Flags that the mount has must stay in a user namespace. */
static bool make_read_only(const char *path) {
    struct {
        uint64_t set, clear, propagation, fd;
    } attr = { 0x1 | 0x2 | 0x4, 0, 0, 0 }; /* RDONLY, NOSUID, NODEV */
    struct statvfs s;
    unsigned long keep = MS_NOSUID | MS_NODEV;

#ifdef SYS_mount_setattr
    if (syscall(SYS_mount_setattr, AT_FDCWD, path, 0x8000 /* AT_RECURSIVE */, &attr,
                sizeof attr) == 0)
        return true;
#endif
    if (statvfs(path, &s) != 0)
        return false;
    keep |= s.f_flag & ST_NOEXEC ? MS_NOEXEC : 0;
    return mount(NULL, path, NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | keep, NULL) == 0;
}

static void make_dirs(const char *path) {
    char part[2048];

    for (const char *at = path + 1; (at = strchr(at, '/')); at++) {
        snprintf(part, sizeof part, "%.*s", (int)(at - path), path);
        mkdir(part, 0755);
    }
    mkdir(path, 0755);
}

/* A path of the machine, at the same place; one that is missing is left out. */
static bool show(const char *path) {
    char from[2048], to[2048], link[1024];
    struct stat s;
    ssize_t n;

    snprintf(from, sizeof from, "/old%s", path);
    snprintf(to, sizeof to, "/new%s", path);
    if (lstat(from, &s) != 0)
        return true;
    if (S_ISLNK(s.st_mode)) {
        n = readlink(from, link, sizeof link - 1);
        link[n > 0 ? n : 0] = 0;
        return n > 0 && symlink(link, to) == 0;
    }
    if (S_ISDIR(s.st_mode)) {
        make_dirs(to);
    } else {
        int fd = open(to, O_WRONLY | O_CREAT | O_CLOEXEC, 0644);
        if (fd < 0)
            return false;
        close(fd);
    }
    if (mount(from, to, NULL, MS_BIND | MS_REC, NULL) != 0)
        return false;
    return S_ISCHR(s.st_mode) || make_read_only(to);
}

static bool write_file(const char *path, const char *text, size_t n) {
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    bool good = fd >= 0;

    for (size_t at = 0; good && at < n;) {
        ssize_t k = write(fd, text + at, n - at);
        good = k > 0;
        at += good ? (size_t)k : 0;
    }
    if (fd >= 0)
        close(fd);
    return good;
}

static bool fill(const ml_sandbox_view *v) {
    static const char *const shown[] = { "/usr",
                                         "/bin",
                                         "/sbin",
                                         "/lib",
                                         "/lib32",
                                         "/lib64",
                                         "/dev/null",
                                         "/dev/zero",
                                         "/dev/full",
                                         "/dev/random",
                                         "/dev/urandom",
                                         "/etc/ld.so.cache",
                                         "/etc/alternatives",
                                         "/etc/localtime",
                                         NULL };
    static const char passwd[] = "user:x:1000:1000::/tmp:/bin/sh\n";

    mkdir("/new/dev", 0755);
    mkdir("/new/etc", 0755);
    mkdir("/new/proc", 0755);
    mkdir("/new/tmp", 01777);
    for (int i = 0; shown[i]; i++)
        if (!show(shown[i]))
            return false;
    for (int i = 0; i < 2; i++)
        if (v->root[i][0] && !show(v->root[i]))
            return false;
    mount("proc", "/new/proc", "proc", MS_NOSUID | MS_NODEV | MS_NOEXEC, NULL);
    return write_file("/new/etc/passwd", passwd, sizeof passwd - 1);
}

/* The old root is first moved aside: what is shown may lie below /tmp. */
bool ml_sandbox_enter(const ml_sandbox_view *v, ml_str code, int64_t file_bytes) {
    unsigned long flags = MS_NOSUID | MS_NODEV;
    char size[80];

    snprintf(size, sizeof size, "mode=1777,size=%lld,nr_inodes=4096",
             (long long)file_bytes);
    if (mount(NULL, "/", NULL, MS_REC | MS_PRIVATE, NULL) != 0 ||
        mount("tmpfs", "/tmp", "tmpfs", flags, "mode=755,size=1m") != 0 ||
        chdir("/tmp") != 0 || mkdir("old", 0755) != 0 || mkdir("new", 0755) != 0 ||
        syscall(SYS_pivot_root, ".", "old") != 0 || chdir("/") != 0)
        return false;
    if (mount("/new", "/new", NULL, MS_BIND | MS_REC, NULL) != 0 || !fill(v) ||
        mount("tmpfs", "/new/tmp", "tmpfs", flags, size) != 0)
        return false;
    if (chdir("/new") != 0 || syscall(SYS_pivot_root, ".", ".") != 0 ||
        umount2(".", MNT_DETACH) != 0 || chdir("/tmp") != 0)
        return false;
    umask(022);
    return mount(NULL, "/", NULL, MS_REMOUNT | MS_BIND | MS_RDONLY | flags, NULL) == 0 &&
           write_file(ML_SANDBOX_MAIN, code.ptr, code.len);
}
