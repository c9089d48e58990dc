#include <math.h>
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/log.h"
#include "cli/flags/flag.h"
#include "run/inputs.h"

static void write_words(ml_text *out, const ml_string_list *w) {
    ml_text_printf(out, "[");
    for (int i = 0; i < w->n; i++) {
        ml_text_printf(out, "%s", i ? ", " : "");
        ml_json_quote(out, ml_str_of(w->word[i]));
    }
    ml_text_printf(out, "]");
}

static void write_text(ml_text *out, const char *text) {
    if (text)
        ml_json_quote(out, ml_str_of(text));
    else
        ml_text_printf(out, "null");
}

static int64_t read_int(const ml_flag *f, const void *at) {
    int64_t i;
    int32_t n;
    bool b;

    if (f->size == sizeof i)
        return memcpy(&i, at, sizeof i), i;
    if (f->size == sizeof n)
        return memcpy(&n, at, sizeof n), n;
    return memcpy(&b, at, sizeof b), b;
}

static void write_value(ml_text *out, const ml_flag *f, const void *at) {
    union {
        bool b;
        double d;
        const char *text;
        ml_string_list list;
    } v;

    switch (f->type) {
    case ML_FLAG_BOOL:
        memcpy(&v.b, at, sizeof v.b);
        ml_text_printf(out, v.b ? "true" : "false");
        break;
    case ML_FLAG_I64:
    case ML_FLAG_BYTES: ml_text_printf(out, "%lld", (long long)read_int(f, at)); break;
    case ML_FLAG_F64:
        memcpy(&v.d, at, sizeof v.d);
        if (isfinite(v.d))
            ml_json_number(out, v.d);
        else
            ml_text_printf(out, "null");
        break;
    case ML_FLAG_TEXT:
    case ML_FLAG_PATH:
        memcpy(&v.text, at, sizeof v.text);
        write_text(out, v.text);
        break;
    case ML_FLAG_WORD: write_text(out, f->words[read_int(f, at)]); break;
    case ML_FLAG_LIST:
        memcpy(&v.list, at, sizeof v.list);
        write_words(out, &v.list);
        break;
    }
}

void ml_flags_dump(ml_text *out, ml_cmd cmd, const ml_config *c) {
    ml_flag_list l;
    const char *before = "{\n  ";

    ml_flag_list_init(&l, cmd);
    for (int i = 0; i < l.n; i++) {
        const ml_flag *f = l.row[i];
        if (f->state != ML_FLAG_LIVE || f->secret || f->same_as)
            continue;
        ml_text_printf(out, "%s\"%s\": ", before, f->name);
        write_value(out, f, (const char *)c + f->at);
        before = ",\n  ";
    }
    ml_text_printf(out, "\n}\n");
}

/* A number that is 0 without a default, and an empty list, are None in Miles. */
static bool is_unset(const ml_flag *f, const void *at) {
    ml_string_list list;

    if (f->type == ML_FLAG_I64 || f->type == ML_FLAG_BYTES)
        return !f->def && read_int(f, at) == 0;
    if (f->type != ML_FLAG_LIST)
        return false;
    memcpy(&list, at, sizeof list);
    return list.n == 0;
}

void ml_flags_args(ml_text *out, ml_cmd cmd, const ml_config *c) {
    ml_flag_list l;

    ml_flag_list_init(&l, cmd);
    ml_text_printf(out, "{");
    for (int i = 0; i < l.n; i++) {
        const ml_flag *f = l.row[i];
        int same = f->same_as ? ml_flag_list_find(&l, ml_str_of(f->same_as)) : -1;
        const ml_flag *live = same >= 0 ? l.row[same] : f;
        const char *at = (const char *)c + live->at;
        ml_text_printf(out, "%s\"%s\": ", i ? ", " : "", f->name);
        if (live->state != ML_FLAG_LIVE || live->secret)
            ml_text_printf(out, live->type == ML_FLAG_BOOL ? "false" : "null");
        else if (is_unset(live, at))
            ml_text_printf(out, "null");
        else
            write_value(out, live, at);
    }
    ml_text_printf(out, "}");
}

/* --- flags of a run that is resumed ---------------------------------------------- */

/* Formats a value as a user would write it.  Numbers without a default are 0 if not
 * given. */
static void value_text(ml_text *out, const ml_flag *row, const ml_json *v, ml_str source) {
    char number[40], *e;
    double x;

    switch (v->type) {
    case ML_JSON_NULL: ml_text_printf(out, "not given"); break;
    case ML_JSON_TRUE: ml_text_printf(out, "on"); break;
    case ML_JSON_FALSE: ml_text_printf(out, "off"); break;
    case ML_JSON_NUMBER:
        ml_json_f64(v, &x);
        if (x == 0 && !row->def) {
            ml_text_printf(out, "not given");
            break;
        }
        snprintf(number, sizeof number, "%.15g", x);
        e = strchr(number, 'e');
        ml_text_printf(out, "%.*s", e ? (int)(e - number) : -1, number);
        if (e) /* 1e-5, not 1e-05 */
            ml_text_printf(out, "e%s%s", e[1] == '-' ? "-" : "",
                           e + 2 + strspn(e + 2, "0"));
        break;
    default:
        ml_text_printf(out, "%.*s", (int)(v->end - v->begin), source.ptr + v->begin);
        break;
    }
}

/* Flags that concern this start only, not the run. */
static bool is_of_this_start(ml_str flag) {
    return ml_str_is(flag, "load") || ml_str_is(flag, "overwrite");
}

static void compare_flags(ml_cmd cmd, ml_str old_text, const ml_json *old, ml_str new_text,
                          const ml_json *new) {
    ml_flag_list list;

    ml_flag_list_init(&list, cmd);
    for (const ml_json *v = new->child; v; v = v->next) {
        const ml_json *was = NULL;
        const ml_flag *row;
        ml_text before = { 0 }, now = { 0 };
        for (const ml_json *o = old->child; o && !was; o = o->next)
            was = ml_str_eq(o->key, v->key) ? o : NULL;
        if (!was || is_of_this_start(v->key))
            continue;
        row = list.row[ml_flag_list_find(&list, v->key)];
        value_text(&before, row, was, old_text);
        value_text(&now, row, v, new_text);
        if (before.len != now.len || memcmp(before.ptr, now.ptr, now.len) != 0)
            ml_log(ML_LOG_WARN, "--%.*s was %s and is %s", (int)v->key.len, v->key.ptr,
                   before.ptr, now.ptr);
        ml_text_release(&before);
        ml_text_release(&now);
    }
}

ml_status ml_flags_save(ml_cmd cmd, const ml_config *c, const char *save, const char *load,
                        ml_err *err) {
    const ml_json *now = NULL, *old = NULL;
    ml_text flags = { 0 };
    ml_status st = ML_OK;
    ml_str text, old_text;
    ml_arena a;

    ml_arena_init(&a, "flags.json");
    ml_flags_dump(&flags, cmd, c);
    text = (ml_str){ flags.ptr, flags.len };
    if (load)
        old = ml_run_previous(&a, load, "flags.json", &old_text);
    if (old && ml_json_parse(&now, &a, text, "flags", NULL) == ML_OK)
        compare_flags(cmd, old_text, old, text, now);
    if (save)
        st = ml_file_replace(ml_arena_printf(&a, "%s/flags.json", save), text, err);
    ml_text_release(&flags);
    ml_arena_release(&a);
    return st;
}
