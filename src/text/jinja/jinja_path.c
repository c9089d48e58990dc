/* Keys of items for filters: an attribute by its dotted name, a string without case. */
#include "text/jinja/jinja_priv.h"

static bool all_digits(ml_str s) {
    for (size_t i = 0; i < s.len; i++)
        if (s.ptr[i] < '0' || s.ptr[i] > '9')
            return false;
    return s.len > 0 && s.len < 18;
}

static ml_jval part_key(ml_jrun *r, ml_str part) {
    int64_t i = 0;

    if (!all_digits(part))
        return ml_jstr_view(r, part);
    for (size_t k = 0; k < part.len; k++)
        i = i * 10 + (part.ptr[k] - '0');
    return ml_jint(i);
}

ml_jval ml_jval_path(ml_jrun *r, ml_jval item, ml_jval path, ml_jval dflt) {
    ml_str rest;

    if (path.kind == ML_J_MISSING || path.kind == ML_J_NONE)
        return item;
    if (path.kind != ML_J_STR) {
        item = ml_jval_item(r, item, path);
        return item.kind == ML_J_UNDEFINED && dflt.kind != ML_J_MISSING ? dflt : item;
    }
    rest = ml_jstr_get(path);
    for (;;) {
        size_t dot = ml_jstr_find(rest, ml_str_of("."), 0),
               n = dot == SIZE_MAX ? rest.len : dot;
        item = ml_jval_item(r, item, part_key(r, (ml_str){ rest.ptr, n }));
        if (item.kind == ML_J_UNDEFINED && dflt.kind != ML_J_MISSING)
            item = dflt;
        if (dot == SIZE_MAX)
            return item;
        rest = (ml_str){ rest.ptr + n + 1, rest.len - n - 1 };
    }
}

ml_jval ml_jval_fold(ml_jrun *r, ml_jval v, bool case_sensitive) {
    ml_jbuf b = { 0 };

    if (case_sensitive || v.kind != ML_J_STR)
        return v;
    ml_jbuf_case(r, &b, ml_jstr_get(v), ML_J_LOWER);
    return ml_jbuf_value(r, &b);
}
