#include "plugin/reward_path.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "plugin/extension.h"
#include "plugin/python.h"
#include "rl/reward/judge.h"

/* Without IFBench its workers stay unset, and opening the rewards reports the error. */
static void find_ifbench(ml_reward_opts *opts, ml_arena *a) {
    const ml_python_function fn = { "ifbench", "ifbench", NULL };
    ml_worker_pool_opts found;
    ml_err err;

    if (ml_python_workers(&found, a, &fn, 1, opts->args, true, &err) == ML_OK)
        opts->ifbench = found;
}

/* Resolves a single reward, not a list. */
static ml_status find_one(ml_reward_opts *opts, ml_arena *a, const char *path,
                          ml_err *err) {
    ml_python_function fn = { "custom-rm-path", path, "reward" };
    const miles_extension *ext = NULL;
    ml_status st;

    if (!path && opts->rm_type && strcmp(opts->rm_type, "ifbench") == 0)
        find_ifbench(opts, a);
    if (!path)
        return ML_OK;
    if (ml_worker_command_is(path) && !ml_python_is(path + 4)) {
        opts->command = (ml_worker_command){ .line = path + 4 };
        return ML_OK;
    }
    fn.path = ml_worker_command_is(path) ? path + 4 : path;
    if (ml_python_is(fn.path))
        return ml_python_workers(&opts->python, a, &fn, 1, opts->args, true, err);
    if (!strchr(path, ':'))
        return ml_fail(err, ML_EUSAGE,
                       "--custom-rm-path '%s': expected package.module.function or "
                       "./reward.py:function for a Python function, cmd:COMMAND for a "
                       "program that answers JSON lines, "
                       "or ./my.so:name for a shared object",
                       path);
    st = ml_extension_find(&ext, opts->group ? MILES_GROUP_REWARD : MILES_REWARD, path,
                           "custom-rm-path", err);
    /* miles_extension is the first member of its struct. */
    if (opts->group)
        opts->group_ext = (const void *)ext;
    else
        opts->ext = (const void *)ext;
    return st;
}

/* --- weighted sums ---------------------------------------------------------------- */

/* The weight at the end of "NAME=WEIGHT"; *name_len is the length of the name. */
static bool read_weight(const char *item, size_t len, size_t *name_len, double *weight) {
    const char *equal = memrchr(item, '=', len);
    char number[40], *end;
    size_t n;

    if (!equal || equal == item)
        return false;
    *name_len = (size_t)(equal - item);
    n = len - *name_len - 1;
    if (n == 0 || n >= sizeof number)
        return false;
    memcpy(number, equal + 1, n);
    number[n] = 0;
    *weight = strtod(number, &end);
    return *end == 0 && isfinite(*weight);
}

/* The short name of "./format.py:score" is score, of "./format.py" format, of "math"
 * math. */
static const char *short_name(ml_arena *a, const char *what) {
    const char *colon = strrchr(what, ':'), *slash = strrchr(what, '/');
    const char *begin = colon && (!slash || colon > slash) ? colon + 1
                        : slash                            ? slash + 1
                                                           : what;
    const char *dot = strstr(begin, ".py");
    char *name = ml_arena_str(a, begin, dot ? (size_t)(dot - begin) : strlen(begin));

    for (char *p = name; *p; p++)
        if (!strchr("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-.",
                    *p))
            *p = '_';
    return name;
}

static ml_status find_part(ml_reward_part *out, ml_arena *a, const ml_reward_opts *from,
                           ml_str item, const char *flag, ml_err *err) {
    size_t n = 0;
    char *what;

    if (!read_weight(item.ptr, item.len, &n, &out->weight))
        return ml_fail(err, ML_EUSAGE,
                       "--%s: '%.*s' has no weight: write a list of rewards as "
                       "NAME=WEIGHT,NAME=WEIGHT, such as math=0.8,./format.py=0.2",
                       flag, (int)item.len, item.ptr);
    what = ml_arena_str(a, item.ptr, n);
    out->name = short_name(a, what);
    out->opts = *from;
    out->opts.custom = true;
    out->opts.rm_type = NULL;
    if (ml_python_is(what) || strchr(what, ':'))
        return find_one(&out->opts, a, what, err);
    out->opts.rm_type = what;
    return find_one(&out->opts, a, NULL, err);
}

/* A list has a weight at the end of one of its items; commands may contain anything. */
static bool is_list(const char *text) {
    double weight;
    size_t n, len;

    if (!text || strncmp(text, "cmd:", 4) == 0)
        return false;
    for (;; text += len + 1) {
        len = strcspn(text, ",");
        if (read_weight(text, len, &n, &weight))
            return true;
        if (!text[len])
            return false;
    }
}

static ml_status find_list(ml_reward_opts *opts, ml_arena *a, const char *list,
                           const char *flag, ml_err *err) {
    ml_reward_part *part = ML_NEW(a, ml_reward_part, strlen(list) + 1);
    ml_reward_opts from = *opts;
    ml_status st = ML_OK;
    size_t len;

    for (;; list += len + 1) {
        ml_reward_part *own = &part[opts->n_part++];
        len = strcspn(list, ",");
        st = find_part(own, a, &from, (ml_str){ list, len }, flag, err);
        for (int i = 0; st == ML_OK && i + 1 < opts->n_part; i++)
            if (strcmp(part[i].name, own->name) == 0)
                st = ml_fail(err, ML_EUSAGE,
                             "--%s: two rewards are named '%s', and their metrics would "
                             "clash: rename one of the files or functions",
                             flag, own->name);
        if (st != ML_OK || !list[len])
            break;
    }
    opts->part = part;
    return st;
}

ml_status ml_reward_path_resolve(ml_reward_opts *opts, ml_arena *a, const char *path,
                                 ml_err *err) {
    opts->custom = path != NULL;
    if (is_list(path))
        return find_list(opts, a, path, "custom-rm-path", err);
    if (!path && is_list(opts->rm_type))
        return find_list(opts, a, opts->rm_type, "rm-type", err);
    return find_one(opts, a, path, err);
}
