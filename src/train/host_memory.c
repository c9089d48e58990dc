#include "train/host_memory.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/str.h"

enum { LINE_BYTES = 4096 };

size_t ml_host_memory_number(const char *path, const char *word) {
    FILE *f = fopen(path, "r");
    char line[256];
    size_t n = SIZE_MAX, len = strlen(word);

    while (f && n == SIZE_MAX && fgets(line, sizeof line, f))
        if (strncmp(line, word, len) == 0 && strpbrk(line, "0123456789"))
            n = strtoull(strpbrk(line, "0123456789"), NULL, 10);
    if (f)
        fclose(f);
    return n;
}

static size_t number_in(const char *dir, const char *name, const char *word) {
    ml_text path = { 0 };
    size_t n;

    ml_text_printf(&path, "%s/%s", dir, name);
    n = ml_host_memory_number(path.ptr, word);
    ml_text_release(&path);
    return n;
}

static size_t least(size_t a, size_t b) {
    return a < b ? a : b;
}

/* --- control groups ---------------------------------------------------------- */

/* A version of control groups: its mount type and the names of its files. */
typedef struct group_kind {
    const char *fstype, *controller; /* NULL: all controllers are in one hierarchy */
    const char *limit, *used, *cache;
} group_kind;

static const group_kind kinds[] = {
    { "cgroup2", NULL, "memory.max", "memory.current", "inactive_file " },
    { "cgroup", "memory", "memory.limit_in_bytes", "memory.usage_in_bytes",
      "total_inactive_file " },
};

/* Memory that one group may still allocate.  Inactive pages of the file cache count as
 * free: the kernel reclaims them. */
static size_t group_left(const group_kind *k, const char *dir) {
    size_t limit = number_in(dir, k->limit, ""), used = number_in(dir, k->used, "");
    size_t cache = number_in(dir, "memory.stat", k->cache);

    if (limit == SIZE_MAX || used == SIZE_MAX)
        return limit;
    used -= cache == SIZE_MAX ? 0 : least(cache, used);
    return limit > used ? limit - used : 0;
}

/* The minimum over a group and its ancestors, up to the mount point (the first `top`
 * characters of dir). */
static size_t groups_left(const group_kind *k, ml_text *dir, size_t top) {
    size_t left = SIZE_MAX;

    for (;;) {
        while (dir->len > top && dir->ptr[dir->len - 1] == '/')
            dir->len--;
        dir->ptr[dir->len] = 0;
        left = least(left, group_left(k, dir->ptr));
        if (dir->len <= top)
            return left;
        while (dir->len > top && dir->ptr[dir->len - 1] != '/')
            dir->len--;
    }
}

/* Whether a comma-separated list contains the word. */
static bool has_word(const char *list, const char *word) {
    size_t n = strlen(word);

    for (const char *at = list; at && *at; at = strchr(at, ','), at = at ? at + 1 : NULL)
        if (strncmp(at, word, n) == 0 && (!at[n] || at[n] == ',' || at[n] == '\n'))
            return true;
    return false;
}

/* The group of the process in a hierarchy, from /proc/self/cgroup: "4:memory:/a/b" or
 * "0::/a/b". */
static bool find_group(const group_kind *k, const char *root, char *out, size_t cap) {
    char line[LINE_BYTES];
    ml_text path = { 0 };
    bool found = false;
    FILE *f;

    ml_text_printf(&path, "%s/proc/self/cgroup", root);
    f = fopen(path.ptr, "r");
    while (f && !found && fgets(line, sizeof line, f)) {
        char *controllers = strchr(line, ':');
        char *group = controllers ? strchr(controllers + 1, ':') : NULL;
        if (!group)
            continue;
        *group++ = 0;
        found = k->controller ? has_word(controllers + 1, k->controller)
                              : strcmp(line, "0:") == 0;
        snprintf(out, cap, "%.*s", (int)strcspn(group, "\n"), group);
    }
    if (f)
        fclose(f);
    ml_text_release(&path);
    return found;
}

/* Parses a line of /proc/self/mountinfo: the mount point of the hierarchy and the group
 * mounted there. */
static bool is_mount(const group_kind *k, char *line, const char **from, const char **at) {
    char *dash = strstr(line, " - "), *rest = line, *field = NULL;
    const char *type, *options = "";

    if (!dash)
        return false;
    *dash = 0;
    for (int i = 0; i < 5 && (field = strtok_r(rest, " ", &rest)); i++) {
        *from = i == 3 ? field : *from;
        *at = i == 4 ? field : *at;
    }
    rest = dash + 3;
    type = strtok_r(rest, " ", &rest);
    for (char *word; (word = strtok_r(rest, " \n", &rest));)
        options = word; /* the last one */
    return field && type && strcmp(type, k->fstype) == 0 &&
           (!k->controller || has_word(options, k->controller));
}

/* A group outside the mounted subtree is not visible: the mounted group is used instead. */
static size_t mounted_left(const group_kind *k, const char *root, const char *group,
                           const char *from, const char *at) {
    size_t n = strcmp(from, "/") == 0 ? 0 : strlen(from), top, left;
    bool below = strncmp(group, from, n) == 0 && !strstr(group, "..");
    ml_text dir = { 0 };

    ml_text_printf(&dir, "%s%s", root, at);
    top = dir.len;
    ml_text_printf(&dir, "%s", below ? group + n : "");
    left = groups_left(k, &dir, top);
    ml_text_release(&dir);
    return left;
}

static size_t kind_left(const group_kind *k, const char *root) {
    char line[LINE_BYTES], group[LINE_BYTES];
    size_t left = SIZE_MAX;
    ml_text path = { 0 };
    FILE *f = NULL;

    ml_text_printf(&path, "%s/proc/self/mountinfo", root);
    if (find_group(k, root, group, sizeof group))
        f = fopen(path.ptr, "r");
    while (f && fgets(line, sizeof line, f)) {
        const char *from = "/", *at = "";
        if (is_mount(k, line, &from, &at))
            left = least(left, mounted_left(k, root, group, from, at));
    }
    if (f)
        fclose(f);
    ml_text_release(&path);
    return left;
}

/* --- all limits -------------------------------------------------------------- */

/* ulimit -v */
static size_t address_space_left(void) {
    struct rlimit limit;
    size_t kib = ml_host_memory_number("/proc/self/status", "VmSize:");
    size_t used = kib == SIZE_MAX ? 0 : kib * 1024;

    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return SIZE_MAX;
    return limit.rlim_cur > used ? (size_t)limit.rlim_cur - used : 0;
}

size_t ml_host_memory_left(const char *root) {
    ml_text path = { 0 };
    size_t kib, left;

    ml_text_printf(&path, "%s/proc/meminfo", root);
    kib = ml_host_memory_number(path.ptr, "MemAvailable:");
    ml_text_release(&path);
    left = least(kib == SIZE_MAX ? SIZE_MAX : kib * 1024, address_space_left());
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++)
        left = least(left, kind_left(&kinds[i], root));
    return left;
}
