#include "tests/support/json_text.h"

#include "tests/support/test.h"

void ml_json_text(ml_text *t, const ml_json *v) {
    bool is_object = v->type == ML_JSON_OBJECT;

    if (v->type == ML_JSON_STRING) {
        ml_json_quote(t, v->text);
    } else if (v->type == ML_JSON_NUMBER) {
        ml_text_add(t, v->text.ptr, v->text.len);
    } else if (v->type < ML_JSON_NUMBER) {
        ml_text_printf(t, "%s", ml_json_what(v));
    } else {
        int32_t n = 0;
        ml_text_add(t, is_object ? "{" : "[", 1);
        for (const ml_json *c = v->child; c; c = c->next, n++) {
            if (is_object) {
                ml_json_quote(t, c->key);
                ml_text_add(t, ":", 1);
            }
            ml_json_text(t, c);
            if (c->next)
                ml_text_add(t, ",", 1);
        }
        CHECK(n == v->n);
        ml_text_add(t, is_object ? "}" : "]", 1);
    }
}
