#include "rl/reward/request_json.h"

#include "base/json.h"
#include "base/utf8.h"

void ml_request_text(ml_text *t, const char *key, const char *s, size_t n) {
    ml_text plain = { 0 };
    bool valid = s && ml_utf8_valid((ml_str){ s, n }) == n;

    ml_text_printf(t, ", \"%s\": ", key);
    for (size_t i = 0; s && !valid && i < n; i++)
        ml_text_add(&plain, s[i] & 0x80 ? "?" : &s[i], 1);
    if (s)
        ml_json_quote(t, valid ? (ml_str){ s, n } : (ml_str){ plain.ptr, plain.len });
    else
        ml_text_printf(t, "null");
    ml_text_release(&plain);
}

void ml_request_json(ml_text *t, const char *key, const char *s, size_t n) {
    ml_text_printf(t, ", \"%s\": ", key);
    for (size_t i = 0; s && i < n; i++) /* a line break would end the request */
        ml_text_add(t, s[i] == '\n' || s[i] == '\r' ? " " : &s[i], 1);
    if (!s)
        ml_text_printf(t, "null");
}
