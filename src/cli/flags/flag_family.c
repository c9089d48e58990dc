#include "cli/flags/flag_family.h"

#include <string.h>

bool ml_family_next(const char **rest, ml_str *name) {
    const char *at = *rest + strspn(*rest, " ");

    *name = (ml_str){ at, strcspn(at, " ") };
    *rest = at + name->len;
    return name->len > 0;
}

static bool drop_prefix(ml_str *name, const char *prefix) {
    size_t n = strlen(prefix);

    if (name->len <= n || memcmp(name->ptr, prefix, n) != 0)
        return false;
    *name = (ml_str){ name->ptr + n, name->len - n };
    return true;
}

static bool lists(const ml_flag_family *f, ml_str name) {
    const char *rest = f->names;
    ml_str one;

    if (!drop_prefix(&name, f->prefix))
        return false;
    while (ml_family_next(&rest, &one))
        if (one.len == name.len && memcmp(one.ptr, name.ptr, one.len) == 0)
            return true;
    return false;
}

static const ml_flag_family *find(ml_str name) {
    ml_str negated = name;
    bool no = drop_prefix(&negated, "no-");

    for (const ml_flag_family *f = ml_flag_families; f->prefix; f++)
        if (lists(f, name) || (no && f->state == ML_FLAG_NOOP && lists(f, negated)))
            return f;
    return NULL;
}

const ml_flag_family *ml_family_find(unsigned cmds, ml_str name) {
    static const ml_flag_family row = {
        .state = ML_FLAG_REFUSED,
        .why =
            "evaluation engines have the settings of the rollout engines; remove the flag",
    };
    ml_flag_list l;
    int at;

    if (!(cmds & ML_CMD_FAMILIES))
        return NULL;
    if (name.len < 12 || memcmp(name.ptr, "eval-sglang-", 12) != 0)
        return find(name);
    name = (ml_str){ name.ptr + 5, name.len - 5 };
    ml_flag_list_init(&l, ML_CMD_TRAIN);
    at = ml_flag_list_find(&l, name);
    return at >= 0 ? &row : find(name);
}
