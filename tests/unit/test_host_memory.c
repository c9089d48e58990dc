#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "base/dir.h"
#include "base/file.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "train/host_memory.h"

static ml_err err;

/* A file of the machine that the test makes up. */
static void put(const char *name, const char *text) {
    char path[1000];
    char *slash;

    snprintf(path, sizeof path, "%s/%s", ml_test_dir(), name);
    slash = strrchr(path, '/');
    *slash = 0;
    CHECK(ml_dir_make(path, &err) == ML_OK);
    *slash = '/';
    CHECK(ml_file_replace(path, ml_str_of(text), &err) == ML_OK);
}

#define V2_MOUNT "30 20 0:26 / /sys/fs/cgroup rw,nosuid - cgroup2 cgroup2 rw,nsdelegate\n"
#define V1_MOUNT                                                                           \
    "33 32 0:29 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu,cpuacct\n"                  \
    "36 32 0:31 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory\n"
#define G ((size_t)1 << 30)

static void machine(const char *groups, const char *mounts) {
    put("proc/meminfo", "MemTotal: 99999999 kB\nMemAvailable: 67108864 kB\n");
    put("proc/self/cgroup", groups);
    put("proc/self/mountinfo", mounts);
}

static void no_groups(void) {
    put("proc/meminfo", "MemAvailable: 1048576 kB\n");
    CHECK(ml_host_memory_left(ml_test_dir()) == G);
}

/* The least of a group and all around it, less what is used, but for the cache of files. */
static void nested_groups_v2(void) {
    machine("0::/user.slice/job.scope/step\n", V2_MOUNT);
    CHECK(ml_host_memory_left(ml_test_dir()) == 64 * G);
    put("sys/fs/cgroup/user.slice/memory.max", "8589934592\n");
    put("sys/fs/cgroup/user.slice/memory.current", "4294967296\n");
    CHECK(ml_host_memory_left(ml_test_dir()) == 4 * G); /* two levels above */
    put("sys/fs/cgroup/user.slice/memory.stat", "anon 1\ninactive_file 1073741824\n");
    CHECK(ml_host_memory_left(ml_test_dir()) == 5 * G);
    put("sys/fs/cgroup/user.slice/job.scope/memory.max", "max\n");
    put("sys/fs/cgroup/user.slice/job.scope/memory.current", "1\n");
    CHECK(ml_host_memory_left(ml_test_dir()) == 5 * G);
    put("sys/fs/cgroup/user.slice/job.scope/step/memory.max", "2147483648\n");
    put("sys/fs/cgroup/user.slice/job.scope/step/memory.current", "1073741824\n");
    CHECK(ml_host_memory_left(ml_test_dir()) == G);
    put("sys/fs/cgroup/user.slice/job.scope/step/memory.current", "4294967296\n");
    CHECK(ml_host_memory_left(ml_test_dir()) == 0);
}

static void nested_groups_v1(void) {
    machine("5:cpu,cpuacct:/other\n4:memory:/docker/abc\n0::/\n", V1_MOUNT);
    put("sys/fs/cgroup/memory/memory.limit_in_bytes", "9223372036854771712\n");
    put("sys/fs/cgroup/memory/memory.usage_in_bytes", "1\n");
    put("sys/fs/cgroup/memory/other/memory.limit_in_bytes", "1\n"); /* not ours */
    CHECK(ml_host_memory_left(ml_test_dir()) == 64 * G);
    put("sys/fs/cgroup/memory/docker/memory.limit_in_bytes", "6442450944\n");
    put("sys/fs/cgroup/memory/docker/memory.usage_in_bytes", "3221225472\n");
    put("sys/fs/cgroup/memory/docker/memory.stat", "total_inactive_file 1073741824\n");
    CHECK(ml_host_memory_left(ml_test_dir()) == 4 * G);
    put("sys/fs/cgroup/memory/docker/abc/memory.limit_in_bytes", "3221225472\n");
    put("sys/fs/cgroup/memory/docker/abc/memory.usage_in_bytes", "1073741824\n");
    CHECK(ml_host_memory_left(ml_test_dir()) == 2 * G);
}

/* In a container the mount shows one group of the hierarchy as its top. */
static void groups_of_a_container(void) {
    machine("0::/\n", V2_MOUNT);
    put("sys/fs/cgroup/memory.max", "3221225472\n");
    put("sys/fs/cgroup/memory.current", "1073741824\n");
    CHECK(ml_host_memory_left(ml_test_dir()) == 2 * G);
    machine("4:memory:/docker/abc/inner\n",
            "36 32 0:31 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n");
    put("sys/fs/cgroup/memory/inner/memory.limit_in_bytes", "1073741824\n");
    put("sys/fs/cgroup/memory/inner/memory.usage_in_bytes", "0\n");
    CHECK(ml_host_memory_left(ml_test_dir()) == G);
    machine("0::/../elsewhere\n", V2_MOUNT);
    CHECK(ml_host_memory_left(ml_test_dir()) == 2 * G);
}

#if !ML_TEST_SANITIZED /* a sanitizer reserves more address space than the limit */
static void address_space(void) {
    size_t used = ml_host_memory_number("/proc/self/status", "VmSize:") * 1024, left;
    struct rlimit limit = { used + G / 4, used + G / 4 };

    put("proc/meminfo", "MemAvailable: 67108864 kB\n");
    CHECK(setrlimit(RLIMIT_AS, &limit) == 0);
    left = ml_host_memory_left(ml_test_dir());
    CHECK(left <= G / 4 && left >= G / 8);
}
#endif

static const ml_test tests[] = {
    { "without cgroups the available memory is the machine's", no_groups },
    { "the tightest cgroup v2 around the process bounds memory", nested_groups_v2 },
    { "the tightest cgroup v1 around the process bounds memory", nested_groups_v1 },
    { "a container's cgroup bounds memory", groups_of_a_container },
#if !ML_TEST_SANITIZED
    { "a limit on address space bounds the memory that is left", address_space },
#endif
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
