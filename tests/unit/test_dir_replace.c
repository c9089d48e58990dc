/* Replacing a directory where the file system cannot exchange two names.  The program has its own
 * renameat2, which fails like that of NFS, and its own rename, which ends the process before a
 * chosen call. */
#include <errno.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fcntl.h>

#include "base/dir.h"
#include "base/file.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static int refusal, n_rename, die_at = -1;

int renameat2(int from_dir, const char *from, int to_dir, const char *to, unsigned flags) {
    if (!refusal)
        return (int)syscall(SYS_renameat2, from_dir, from, to_dir, to, flags);
    errno = refusal;
    return -1;
}

int rename(const char *from, const char *to) {
    if (n_rename++ == die_at)
        _exit(9);
    return (int)syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0);
}

static ml_err err;

static void put(const char *dir, const char *text) {
    char path[600];

    CHECK(ml_dir_make(dir, &err) == ML_OK);
    snprintf(path, sizeof path, "%s/file", dir);
    CHECK(ml_file_replace(path, ml_str_of(text), &err) == ML_OK);
}

static bool has(const char *dir, const char *text) {
    char path[600];
    ml_file f = { 0 };
    bool same;

    snprintf(path, sizeof path, "%s/file", dir);
    same = ml_file_map(&f, path, &err) == ML_OK && ml_str_is(f.bytes, text);
    ml_file_unmap(&f);
    return same;
}

static bool there(const char *path) {
    return access(path, F_OK) == 0;
}

static void all_file_systems(void) {
    static const int why[] = { 0, EINVAL, ENOSYS, ENOTSUP, EPERM };
    const char *path = ml_test_path("it"), *temp = ml_test_path("it.tmp");

    for (int i = 0; i < 5; i++) {
        refusal = 0;
        put(path, "old");
        put(temp, "new");
        refusal = why[i];
        CHECK(ml_dir_replace(temp, path, &err) == ML_OK);
        CHECK(has(path, "new") && !there(temp) && !there(ml_test_path("it.replaced")));
    }
    CHECK(ml_dir_remove(path, &err) == ML_OK);
    put(temp, "first");
    CHECK(ml_dir_replace(temp, path, &err) == ML_OK);
    CHECK(has(path, "first") && !there(temp));
}

/* Killed before any of the renames: the old one or the new one is there, whole, and the next
 * replacement goes through. */
static void killed_anywhere(void) {
    const char *path = ml_test_path("it"), *temp = ml_test_path("it.tmp");
    int status = 0, n_killed = 0;

    for (int at = 0; at < 3; at++) {
        pid_t pid;
        put(path, "old");
        put(temp, "new");
        fflush(stdout);
        pid = fork();
        if (pid == 0) {
            refusal = EINVAL;
            n_rename = 0;
            die_at = at;
            _exit(ml_dir_replace(temp, path, NULL) == ML_OK ? 0 : 1);
        }
        CHECK(waitpid(pid, &status, 0) == pid && WIFEXITED(status));
        n_killed += WEXITSTATUS(status) == 9;
        CHECK(WEXITSTATUS(status) != 1);
        CHECK(there(path) || has(ml_test_path("it.replaced"), "old"));
        CHECK(ml_dir_recover(path, &err) == ML_OK);
        CHECK(has(path, WEXITSTATUS(status) ? "old" : "new"));
        CHECK(!there(ml_test_path("it.replaced")));
        refusal = EINVAL;
        put(temp, "newer");
        CHECK(ml_dir_replace(temp, path, &err) == ML_OK && has(path, "newer"));
        refusal = 0;
    }
    CHECK(n_killed == 2);
}

/* Killed while the old one was being removed: what is left of it never takes the name. */
static void half_removed(void) {
    const char *path = ml_test_path("it");

    put(path, "new");
    CHECK(ml_dir_make(ml_test_path("it.replaced"), &err) == ML_OK);
    CHECK(ml_dir_recover(path, &err) == ML_OK);
    CHECK(has(path, "new") && !there(ml_test_path("it.replaced")));
}

static const ml_test tests[] = {
    { "a directory is replaced on file systems without RENAME_EXCHANGE", all_file_systems },
    { "a process killed during a replacement leaves a whole directory", killed_anywhere },
    { "what is left of a replaced directory is removed on recovery", half_removed },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
