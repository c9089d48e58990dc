#include "rl/eval/eval_table.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#define CUT "-truncated_ratio"
#define NONE "-none_reward_ratio"
#define LENGTH "/response_len/mean"

enum { WIDEST = 30, NAME = 200 }; /* characters of the set column; of a metric's name */

/* The set of a metric eval/SET-truncated_ratio; empty for other metrics. */
static ml_str set_of(const ml_metric *row) {
    size_t n = strlen(row->name), cut = strlen(CUT), from = strlen("eval/");

    if (strncmp(row->name, "eval/", from) != 0 || n <= from + cut ||
        strcmp(row->name + n - cut, CUT) != 0)
        return (ml_str){ 0 };
    return (ml_str){ row->name + from, n - from - cut };
}

static double get(const ml_metrics *f, ml_str set, const char *what) {
    char name[NAME];

    snprintf(name, sizeof name, "eval/%.*s%s", (int)set.len, set.ptr, what);
    return ml_metrics_get(f, name, (double)NAN);
}

/* Whether the table covers this metric of the set: as a column, or as a statistic that is
 * left out because it is of little use. */
static bool is_shown(const char *name, ml_str set) {
    static const char *const parts[] = { "", CUT, NONE, "/response_len/",
                                         "/truncated_ratio" };
    const char *rest = name + strlen("eval/") + set.len;

    if (strncmp(name, "eval/", strlen("eval/")) != 0 ||
        strncmp(name + strlen("eval/"), set.ptr, set.len) != 0)
        return false;
    for (size_t i = 0; i < sizeof parts / sizeof *parts; i++)
        if (strcmp(rest, parts[i]) == 0 ||
            (i == 3 && strncmp(rest, parts[i], strlen(parts[i])) == 0))
            return true;
    return false;
}

static bool is_in_table(const ml_metrics *f, const char *name) {
    for (const ml_metric *row = f->first; row; row = row->next) {
        ml_str set = set_of(row);
        if (set.len && strlen(name) >= strlen("eval/") + set.len && is_shown(name, set))
            return true;
    }
    return false;
}

static void say_text(ml_text *t, void (*say)(const char *line)) {
    say(t->ptr);
    ml_text_release(t);
}

static void say_set(const ml_metrics *f, ml_str set, int width,
                    void (*say)(const char *line)) {
    ml_text t = { 0 };

    ml_text_printf(&t, "  %-*.*s  %8.4f  %8.1f%%  %8.1f%%  %8.1f", width, (int)set.len,
                   set.ptr, get(f, set, ""), 100 * get(f, set, CUT),
                   100 * get(f, set, NONE), get(f, set, LENGTH));
    say_text(&t, say);
}

void ml_eval_table(const ml_metrics *f, void (*say)(const char *line)) {
    int width = (int)strlen("set");
    bool any = false;
    ml_text t = { 0 };

    for (const ml_metric *row = f->first; row; row = row->next) {
        int n = (int)set_of(row).len;
        any |= n > 0;
        width = n > width ? n : width;
    }
    width = width > WIDEST ? WIDEST : width;
    if (any) {
        ml_text_printf(&t, "  %-*s    reward  truncated  no reward    tokens", width,
                       "set");
        say_text(&t, say);
    }
    for (const ml_metric *row = f->first; row; row = row->next)
        if (set_of(row).len)
            say_set(f, set_of(row), width, say);
    for (const ml_metric *row = f->first; row; row = row->next)
        if (!is_in_table(f, row->name)) {
            ml_text_printf(&t, "  %-40s  %.6g", row->name, row->value);
            say_text(&t, say);
        }
}
