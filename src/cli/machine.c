#include "cli/machine.h"

#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>
#include <sys/utsname.h>
#include <unistd.h>

#include "backend/backend.h"
#include "cli/cli.h"
#include "train/memory.h"

/* Prints the value of the first line in a /proc file that begins with `key`, after its
 * colon. */
static void print_line_of(const char *path, const char *key) {
    char line[500];
    FILE *f = fopen(path, "r");

    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, key, strlen(key)) == 0 && strchr(line, ':')) {
            const char *value = strchr(line, ':') + 1;
            value += strspn(value, " \t");
            printf(", %.*s", (int)strcspn(value, "\n"), value);
            break;
        }
    if (f)
        fclose(f);
}

static void print_machine(void) {
    struct utsname u;
    cpu_set_t set;

    CPU_ZERO(&set);
    uname(&u);
    printf("machine    %s %s, %s", u.sysname, u.release, u.machine);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        printf(", %d of %ld cores", CPU_COUNT(&set), sysconf(_SC_NPROCESSORS_ONLN));
    print_line_of("/proc/cpuinfo", "model name");
    printf("\n");
}

static void print_kernels(const ml_backend *be) {
    printf("kernels    ");
    for (const char *const *l = ml_backend_cpu_levels(); *l; l++)
        printf("%s ", *l);
    printf("(using %s)\n", be->level);
}

static void print_memory(const ml_backend *be) {
    double all = (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    printf("memory     %.1f GB available of %.1f GB\n",
           (double)ml_memory_available(be) / 1e9, all / 1e9);
}

static void print_disk(void) {
    struct statvfs fs;
    struct rlimit files;

    if (statvfs(".", &fs) == 0)
        printf("disk       %.1f GB free in the current directory\n",
               (double)fs.f_bavail * (double)fs.f_frsize / 1e9);
    if (getrlimit(RLIMIT_NOFILE, &files) == 0)
        printf("files      at most %llu open\n", (unsigned long long)files.rlim_cur);
}

void ml_machine_print_gpu(void) {
    ml_backend_opts o = { .device = "cuda", .n_thread = 1 };
    ml_backend be = { 0 };
    ml_err why = { 0 };

    if (ml_backend_open(&be, &o, &why) != ML_OK) {
        printf("gpu        none: %s\n", why.msg);
        return;
    }
    printf("gpu        %s, %.1f GB of memory available\n", be.level,
           (double)ml_memory_available(&be) / 1e9);
    ml_backend_close(&be);
}

/* The name of the shared object in a line of /proc/self/maps; empty: none. */
static ml_str library_of(const char *line) {
    const char *name = strrchr(line, '/');
    if (!name || !strstr(name, ".so"))
        return (ml_str){ 0 };
    return (ml_str){ name + 1, strcspn(name + 1, "\n") };
}

/* Mapped files: the libraries that this process really uses.  Parts of one are adjacent. */
static void print_libraries(void) {
    char line[1000], last[200] = "";
    FILE *f = fopen("/proc/self/maps", "r");

    printf("libraries ");
    while (f && fgets(line, sizeof line, f)) {
        ml_str name = library_of(line);
        if (!name.len || name.len >= sizeof last || ml_str_is(name, last))
            continue;
        snprintf(last, sizeof last, "%.*s", (int)name.len, name.ptr);
        printf(" %s", last);
    }
    printf("\n");
    if (f)
        fclose(f);
}

ml_status ml_machine_print(ml_err *err) {
    ml_backend be = { 0 };
    ml_status st = ml_backend_cpu_open(&be, 1, NULL, err);

    if (st != ML_OK)
        return st;
    printf("miles      " ML_VERSION "\n");
    print_machine();
    print_kernels(&be);
    print_memory(&be);
    print_disk();
    print_libraries();
    ml_backend_close(&be);
    return ML_OK;
}
