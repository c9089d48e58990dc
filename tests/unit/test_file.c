/* Mapped files and files that appear whole or not at all. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/file.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"

static int n_entries(void) {
    DIR *d = opendir(ml_test_dir());
    int n = 0;

    while (readdir(d))
        n++;
    closedir(d);
    return n - 2; /* . and .. */
}

static bool holds(const char *path, const char *text) {
    ml_file f;
    ml_err err;
    bool same;

    if (ml_file_map(&f, path, &err))
        return false;
    same = ml_str_is(f.bytes, text);
    ml_file_unmap(&f);
    return same;
}

static void a_written_file_reads_back(void) {
    const char *path = ml_test_path("x");
    ml_file f;
    ml_err err;

    CHECK(!ml_file_replace(path, ml_str_of("first"), &err));
    CHECK(holds(path, "first"));
    CHECK(!ml_file_replace(path, ml_str_of("second, longer"), &err));
    CHECK(!ml_file_map(&f, path, &err));
    CHECK(ml_str_is(f.bytes, "second, longer") && strcmp(f.path, path) == 0);
    CHECK(!ml_file_replace(path, (ml_str){ NULL, 0 }, &err));
    CHECK(ml_str_is(f.bytes, "second, longer")); /* who had it open keeps it */
    ml_file_unmap(&f);
    ml_file_unmap(&f);
    CHECK(holds(path, ""));
    CHECK(n_entries() == 1);
}

static void a_new_file_obeys_the_umask(void) {
    struct stat st;
    ml_err err;

    umask(027);
    CHECK(!ml_file_replace(ml_test_path("x"), ml_str_of("y"), &err));
    CHECK(!stat(ml_test_path("x"), &st) && (st.st_mode & 0777) == 0640);
}

static void pieces_come_in_any_order(void) {
    const char *path = ml_test_path("x");
    ml_err err;
    ml_out o;

    CHECK(!ml_out_open(&o, path, &err));
    CHECK(!ml_out_write(&o, 6, ml_str_of("world"), &err));
    CHECK(!ml_out_write(&o, 0, ml_str_of("hello "), &err));
    CHECK(access(path, F_OK) && errno == ENOENT);
    CHECK(!ml_out_commit(&o, &err));
    CHECK(holds(path, "hello world"));
    ml_out_abort(&o);
    CHECK(holds(path, "hello world") && n_entries() == 1);
}

static void abort_leaves_the_old_file(void) {
    const char *path = ml_test_path("x");
    ml_err err;
    ml_out o, other;

    CHECK(!ml_file_replace(path, ml_str_of("old"), &err));
    CHECK(!ml_out_open(&o, path, &err));
    CHECK(!ml_out_open(&other, path, &err)); /* two writers do not meet */
    CHECK(!ml_out_write(&o, 0, ml_str_of("new"), &err));
    CHECK(n_entries() == 3);
    ml_out_abort(&o);
    ml_out_abort(&other);
    CHECK(holds(path, "old") && n_entries() == 1);
    ml_out_abort(&(ml_out){ 0 });
}

static void failures_are_named(void) {
    ml_file f;
    ml_out o;
    ml_err err;

    CHECK(ml_file_map(&f, ml_test_path("none"), &err) == ML_EIO);
    CHECK_HAS(err.msg, "/none: cannot open: No such file or directory");
    CHECK(ml_file_map(&f, ml_test_dir(), &err) == ML_EIO);
    CHECK_HAS(err.msg, "is a directory; expected a regular file");
    CHECK(!mkfifo(ml_test_path("pipe"), 0600));
    CHECK(ml_file_map(&f, ml_test_path("pipe"), &err) == ML_EIO);
    CHECK_HAS(err.msg, "a device or pipe");
    ml_file_unmap(&f);
    CHECK(ml_out_open(&o, ml_test_path("no/such/dir"), &err) == ML_EIO);
    CHECK_HAS(err.msg, "cannot create: No such file or directory");
    ml_out_abort(&o);
    CHECK(ml_file_replace(ml_test_dir(), ml_str_of("x"), &err) == ML_EIO);
    CHECK_HAS(err.msg, "the new file cannot be renamed");
}

static void a_full_disk_leaves_no_trace(void) {
    ml_out o;
    ml_err err;
    int full = open("/dev/full", O_WRONLY);

    CHECK(!ml_out_open(&o, ml_test_path("x"), &err));
    CHECK(dup2(full, o.fd) == o.fd);
    CHECK(ml_out_write(&o, 7, ml_str_of("data"), &err) == ML_EIO);
    CHECK_HAS(err.msg, "cannot write 4 bytes at 7: No space left on device");
    ml_out_abort(&o);
    close(full);
    CHECK(n_entries() == 0);
}

/* Large pieces go through the thread that writes them. */
static void large_pieces_read_back(void) {
    enum { PIECE = (1 << 20) + 77, N = 12 };
    const char *path = ml_test_path("x");
    char *bytes = malloc((size_t)N * PIECE);
    ml_file f = { 0 };
    ml_out o;
    ml_err err;

    for (size_t i = 0; i < (size_t)N * PIECE; i++)
        bytes[i] = (char)(i * 31 >> 3);
    CHECK(!ml_out_open(&o, path, &err));
    for (size_t i = N; i-- > 0;)
        CHECK(!ml_out_write(&o, i * PIECE, (ml_str){ bytes + i * PIECE, PIECE }, &err));
    CHECK(!ml_out_write(&o, 5, (ml_str){ "small", 5 }, &err));
    memcpy(bytes + 5, "small", 5);
    CHECK(!ml_out_commit(&o, &err));
    CHECK(!ml_file_map(&f, path, &err));
    CHECK(f.bytes.len == (size_t)N * PIECE && !memcmp(f.bytes.ptr, bytes, f.bytes.len));
    ml_file_unmap(&f);
    free(bytes);
}

static void a_large_piece_that_fails_is_reported(void) {
    static char piece[1 << 20];
    ml_out o;
    ml_err err = { 0 };
    int full = open("/dev/full", O_WRONLY);
    ml_status st;

    CHECK(!ml_out_open(&o, ml_test_path("x"), &err));
    CHECK(dup2(full, o.fd) == o.fd);
    st = ml_out_write(&o, 7, (ml_str){ piece, sizeof piece }, &err);
    CHECK(st == ML_EIO || ml_out_commit(&o, &err) == ML_EIO); /* one of them reports it */
    ml_out_abort(&o);
    CHECK_HAS(err.msg, "cannot write 131072 bytes at 7: No space left on device");
    close(full);
    CHECK(n_entries() == 0);
}

/* Pages of files that this process has in its memory. */
static long n_mapped_pages(void) {
    FILE *f = fopen("/proc/self/statm", "r");
    long total = 0, resident = 0, shared = 0;

    CHECK(f && fscanf(f, "%ld %ld %ld", &total, &resident, &shared) == 3);
    if (f)
        fclose(f);
    return shared;
}

static unsigned sum_of(ml_str s) {
    unsigned sum = 0;
    for (size_t i = 0; i < s.len; i++)
        sum += (unsigned char)s.ptr[i];
    return sum;
}

static void forgotten_bytes_leave_memory_and_come_back(void) {
    enum { N = 16 << 20 };
    const char *path = ml_test_path("x");
    char *bytes = malloc(N);
    long before, page = sysconf(_SC_PAGESIZE);
    unsigned sum;
    ml_file f;
    ml_err err;

    memset(bytes, 7, N);
    CHECK(!ml_file_replace(path, (ml_str){ bytes, N }, &err));
    free(bytes);
    CHECK(!ml_file_map(&f, path, &err));
    before = n_mapped_pages();
    sum = sum_of(f.bytes);
    CHECK(n_mapped_pages() - before > N / page * 9 / 10);
    ml_file_forget(&f, 1, 10); /* inside one page: nothing to give back */
    CHECK(n_mapped_pages() - before > N / page * 9 / 10);
    ml_file_forget(&f, 100, N - 100);
    CHECK(n_mapped_pages() - before < N / page / 10);
    CHECK(sum_of(f.bytes) == sum && sum == 7u * N);
    ml_file_unmap(&f);
}

static const ml_test tests[] = {
    { "a written file reads back", a_written_file_reads_back },
    { "a new file obeys the umask", a_new_file_obeys_the_umask },
    { "pieces of a file are written in any order", pieces_come_in_any_order },
    { "an aborted write leaves the old file", abort_leaves_the_old_file },
    { "file errors name the file and the cause", failures_are_named },
    { "a write that fails on a full disk leaves no file", a_full_disk_leaves_no_trace },
    { "large pieces of a file read back", large_pieces_read_back },
    { "a large piece that cannot be written is reported",
      a_large_piece_that_fails_is_reported },
    { "a mapped file's forgotten pages leave resident memory",
      forgotten_bytes_leave_memory_and_come_back },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
