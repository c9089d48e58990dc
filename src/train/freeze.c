#include "train/freeze.h"

#include <fnmatch.h>
#include <string.h>

#define NAME_CAP 512

/* Copies the first pattern of a list; returns the rest, or NULL at the end. */
static const char *next_pattern(const char *list, char *out, size_t cap) {
    size_t n = strcspn(list, ",");

    if (n >= cap)
        n = cap - 1;
    memcpy(out, list, n);
    out[n] = 0;
    list += strcspn(list, ",");
    return *list ? list + 1 : NULL;
}

static bool pattern_fits(const char *pattern, const ml_param *p) {
    char name[NAME_CAP];
    return fnmatch(pattern, ml_param_name(p, 0, name, sizeof name), 0) == 0;
}

bool ml_freeze_fits(const char *list, const ml_param *p) {
    char pattern[NAME_CAP];

    if (p->frozen)
        return true;
    for (const char *at = list; at;) {
        at = next_pattern(at, pattern, sizeof pattern);
        if (pattern_fits(pattern, p))
            return true;
    }
    return false;
}

ml_status ml_freeze_check(const char *list, const ml_spec *s, ml_err *err) {
    char pattern[NAME_CAP];
    int32_t n_frozen = 0;

    for (const char *at = list; at;) {
        bool fits = false;
        at = next_pattern(at, pattern, sizeof pattern);
        for (int32_t i = 0; i < s->n_param && !fits; i++)
            fits = pattern_fits(pattern, &s->param[i]);
        if (!fits)
            return ml_fail(err, ML_EUSAGE,
                           "--freeze \"%s\" matches no parameter: names look like %s",
                           pattern, s->param[0].name);
    }
    for (int32_t i = 0; i < s->n_param; i++)
        n_frozen += ml_freeze_fits(list, &s->param[i]);
    if (n_frozen == s->n_param)
        return ml_fail(err, ML_EUSAGE, "--freeze \"%s\" leaves no parameter to train",
                       list);
    return ML_OK;
}
