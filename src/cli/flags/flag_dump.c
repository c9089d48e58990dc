#include <math.h>
#include <string.h>

#include "base/json.h"
#include "cli/flags/flag.h"

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

static void write_value(ml_text *out, const ml_flag *f, const void *at) {
    union {
        bool b;
        int word;
        int64_t i;
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
    case ML_FLAG_BYTES:
        memcpy(&v.i, at, sizeof v.i);
        ml_text_printf(out, "%lld", (long long)v.i);
        break;
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
    case ML_FLAG_WORD:
        memcpy(&v.word, at, sizeof v.word);
        write_text(out, f->words[v.word]);
        break;
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
