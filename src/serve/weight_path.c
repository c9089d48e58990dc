#include "serve/weight_path.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

ml_status ml_weight_path_of(const char **out, ml_arena *a, ml_str text, const char *member,
                            ml_err *err) {
    if (memchr(text.ptr, 0, text.len))
        return ml_fail(err, ML_EUSAGE, "\"%s\" contains a NUL byte", member);
    *out = ml_arena_str(a, text.ptr, text.len);
    return ML_OK;
}

/* True if the part of a path that does not exist yet has no "..". */
static bool are_plain_names(const char *rest) {
    for (const char *p = rest; *p; p += strcspn(p, "/")) {
        p += strspn(p, "/");
        if (p[0] == '.' && p[1] == '.' && (p[2] == '/' || p[2] == 0))
            return false;
    }
    return true;
}

static const char *real_path(ml_arena *a, const char *path) {
    char *real = realpath(path, NULL);
    const char *own = real ? ml_arena_str(a, real, strlen(real)) : NULL;

    free(real);
    return own;
}

/* Resolves links and ".." as far as the path exists; NULL, with errno, on failure.  Servers
 * that are sent the same path at the same time create it while others resolve it. */
static const char *resolve(ml_arena *a, const char *path) {
    const char *real = real_path(a, path), *rest;
    char *head = ml_arena_str(a, path, strlen(path)), *slash;
    struct stat sb;

    if (real || errno != ENOENT)
        return real;
    while (!real && errno == ENOENT) {
        if (lstat(head, &sb) == 0 && S_ISLNK(sb.st_mode))
            return NULL; /* a dangling link */
        slash = strrchr(head, '/');
        if (slash)
            *slash = 0;
        real = real_path(a, !slash ? "." : *head ? head : "/");
        if (!slash)
            head = NULL;
        if (!head)
            break;
    }
    rest = head ? path + strlen(head) : path;
    if (!real)
        return NULL;
    if (!are_plain_names(rest)) {
        errno = ENOENT;
        return NULL;
    }
    rest += strspn(rest, "/");
    return ml_arena_printf(a, "%s/%s", strcmp(real, "/") == 0 ? "" : real, rest);
}

/* Both are resolved. */
static bool is_below(const char *path, const char *root) {
    size_t n = strlen(root);

    while (n && root[n - 1] == '/')
        n--;
    return strncmp(path, root, n) == 0 && (path[n] == '/' || path[n] == 0);
}

/* A model directly below / is its own root: / as the root would allow every path. */
static const char *default_root(ml_arena *a, const char *model_path) {
    const char *real = resolve(a, model_path);
    const char *slash = real ? strrchr(real, '/') : NULL;

    return !slash || slash == real ? real : ml_arena_str(a, real, (size_t)(slash - real));
}

ml_status ml_weight_path_check(const char **out, ml_arena *a, const ml_weight_roots *roots,
                               const char *path, const char *member, ml_err *err) {
    const char *real = resolve(a, path), *root = NULL;

    if (!real)
        return ml_fail(err, ML_EUSAGE, "\"%s\": %s: %s", member, path, strerror(errno));
    *out = real;
    if (!roots->n) {
        root = default_root(a, roots->model_path);
        if (root && is_below(real, root))
            return ML_OK;
    }
    for (int i = 0; i < roots->n; i++) {
        root = resolve(a, roots->dir[i]);
        if (root && is_below(real, root))
            return ML_OK;
    }
    return ml_fail(err, ML_EUSAGE,
                   "\"%s\" is %s, which is not below %s%s: start miles serve with "
                   "--weight-path-prefix DIR to allow it",
                   member, real, root ? root : "an existing directory",
                   roots->n > 1 ? " or another --weight-path-prefix" : "");
}
