#include "base/proc_tree.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads the beginning of a file as text; false: it cannot be read. */
static bool read_small(const char *path, char *out, size_t cap) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd >= 0 ? read(fd, out, cap - 1) : -1;

    if (fd >= 0)
        close(fd);
    out[n > 0 ? n : 0] = 0;
    return n > 0;
}

/* Adds the children of one thread; returns the new count. */
static int add_children(pid_t *out, int n, const char *path) {
    char text[4096], *p = text, *end;

    if (!read_small(path, text, sizeof text))
        return n;
    while (n < ML_PROC_TREE_MAX) {
        long pid = strtol(p, &end, 10);
        if (end == p)
            break;
        out[n++] = (pid_t)pid;
        p = end;
    }
    return n;
}

int ml_proc_tree(pid_t *out, pid_t root) {
    int n = 0;

    out[n++] = root;
    for (int i = 0; i < n; i++) {
        char path[340];
        struct dirent *e;
        DIR *tasks;
        snprintf(path, sizeof path, "/proc/%d/task", (int)out[i]);
        tasks = opendir(path);
        while (tasks && (e = readdir(tasks)) != NULL) {
            if (e->d_name[0] == '.')
                continue;
            snprintf(path, sizeof path, "/proc/%d/task/%s/children", (int)out[i],
                     e->d_name);
            n = add_children(out, n, path);
        }
        if (tasks)
            closedir(tasks);
    }
    return n;
}

static int64_t resident_of(pid_t pid) {
    char path[60], text[200], *end;

    snprintf(path, sizeof path, "/proc/%d/statm", (int)pid);
    if (!read_small(path, text, sizeof text))
        return 0;
    strtoll(text, &end, 10); /* the first number is the address space */
    return strtoll(end, NULL, 10) * sysconf(_SC_PAGESIZE);
}

/* Resident bytes with shared pages in proportion (Pss); -1: not available. */
static int64_t share_of(pid_t pid) {
    char path[60], text[2000];
    const char *line;

    snprintf(path, sizeof path, "/proc/%d/smaps_rollup", (int)pid);
    if (!read_small(path, text, sizeof text))
        return -1;
    line = strstr(text, "\nPss:");
    return line ? strtoll(line + 5, NULL, 10) * 1024 : -1;
}

bool ml_proc_over(const pid_t *pid, int n, int64_t limit) {
    int64_t sum = 0;

    for (int i = 0; i < n; i++)
        sum += resident_of(pid[i]);
    if (sum <= limit || n == 1)
        return sum > limit;
    sum = 0;
    for (int i = 0; i < n; i++) {
        int64_t share = share_of(pid[i]);
        sum += share >= 0 ? share : resident_of(pid[i]);
    }
    return sum > limit;
}
