#include "rl/reward/label.h"

#include <stdarg.h>
#include <stdio.h>

int ml_reward_fail(miles_error *err, const char *fmt, ...) {
    va_list ap;

    va_start(ap, fmt);
    vsnprintf(err->text, sizeof err->text, fmt, ap);
    va_end(ap);
    return 1;
}

static bool parse(ml_label *l, const ml_json **out, const char *text, size_t len,
                  const char *what, miles_error *err) {
    ml_err e;

    *out = NULL;
    if (!text)
        return true;
    if (ml_json_parse(out, &l->arena, (ml_str){ text, len }, what, &e) != ML_OK) {
        *out = NULL;
        ml_reward_fail(err, "%.400s", e.msg);
        return false;
    }
    if ((*out)->type == ML_JSON_NULL)
        *out = NULL;
    return true;
}

bool ml_label_init(ml_label *l, const miles_reward_in *in, miles_error *err) {
    ml_arena_init(&l->arena, "label");
    l->label = l->metadata = NULL;
    return parse(l, &l->label, in->label, in->label_len, "label", err) &&
           parse(l, &l->metadata, in->metadata, in->metadata_len, "metadata", err);
}

void ml_label_release(ml_label *l) {
    ml_arena_release(&l->arena);
}

bool ml_label_text(const ml_json *label, ml_str *out) {
    if (!label)
        return false;
    switch (label->type) {
    case ML_JSON_STRING:
    case ML_JSON_NUMBER: *out = label->text; return true;
    case ML_JSON_TRUE: *out = ml_str_of("True"); return true;
    case ML_JSON_FALSE: *out = ml_str_of("False"); return true;
    default: return false;
    }
}

ml_str ml_raw_response(const miles_reward_in *in) {
    return in->raw_response && !in->boxed
               ? (ml_str){ in->raw_response, in->raw_response_len }
               : ml_response(in);
}

ml_str ml_response(const miles_reward_in *in) {
    return (ml_str){ in->response ? in->response : "",
                     in->response ? in->response_len : 0 };
}
