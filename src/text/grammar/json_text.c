/* json_text.c - characters of JSON strings, and texts of known formats. */
#include <stdio.h>
#include <string.h>

#include "text/grammar/grammar_priv.h"

/* \uHHHH that is not a surrogate, or a pair of surrogates. */
static const char unicode_escape[] =
    "\\\\u(?:[0-9a-cA-CefEF][0-9a-fA-F]{3}|[dD][0-7][0-9a-fA-F]{2}|"
    "[dD][89abAB][0-9a-fA-F]{2}\\\\u[dD][c-fC-F][0-9a-fA-F]{2})";

ml_gnode *ml_json_char(ml_grules *g) {
    static const ml_grange special[] = { { 0, 0x1f }, { '"', '"' }, { '\\', '\\' } };
    ml_gnode *alt = ml_gnode_new(g, ML_GNODE_ALT), *escape;

    ml_gnode_add(alt, ml_gnode_class(g, special, 3, true));
    ml_regex_node(g, &escape, ml_str_of("\\\\[\"\\\\/bfnrt]"), (ml_regex_form){ 0 }, NULL);
    ml_gnode_add(alt, escape);
    ml_regex_node(g, &escape, ml_str_of(unicode_escape), (ml_regex_form){ 0 }, NULL);
    return ml_gnode_add(alt, escape);
}

/* The short escape of a character, or \u00HH. */
static ml_gnode *escaped(ml_grules *g, uint32_t code) {
    static const char from[] = "\"\\\b\f\n\r\t", to[] = "\"\\bfnrt";
    const char *at = code ? strchr(from, (int)code) : NULL;
    char text[8];

    if (at)
        snprintf(text, sizeof text, "\\%c", to[at - from]);
    else
        snprintf(text, sizeof text, "\\u%04x", (unsigned)code);
    return ml_gnode_text(g, text);
}

static bool must_escape(uint32_t code) {
    return code < 0x20 || code == '"' || code == '\\';
}

static bool contains(const ml_gnode *class, uint32_t code) {
    for (int32_t i = 0; i < class->n_range; i++)
        if (class->range[i].lo <= code && code <= class->range[i].hi)
            return true;
    return false;
}

ml_gnode *ml_json_class(ml_grules *g, const ml_gnode *class) {
    static const ml_grange special[] = { { 0, 0x1f }, { '"', '"' }, { '\\', '\\' } };
    ml_gnode *alt = ml_gnode_new(g, ML_GNODE_ALT), *plain;
    ml_grange *out = ML_NEW(g->arena, ml_grange, class->n_range + 4);
    int32_t n = 0;

    plain = ml_gnode_class(g, special, 3, true);
    for (int32_t i = 0; i < class->n_range; i++)
        for (int32_t k = 0; k < plain->n_range; k++) {
            ml_grange r = class->range[i], p = plain->range[k];
            r.lo = r.lo > p.lo ? r.lo : p.lo;
            r.hi = r.hi < p.hi ? r.hi : p.hi;
            if (r.lo <= r.hi)
                out[n++] = r;
        }
    ml_gnode_add(alt, ml_gnode_class(g, out, n, false));
    for (uint32_t c = 0; c <= '\\'; c++)
        if (must_escape(c) && contains(class, c))
            ml_gnode_add(alt, escaped(g, c));
    return alt;
}

/* --- formats ---------------------------------------------------------------- */

#define DATE                                                                               \
    "[1-9][0-9]{3}-(?:(?:0[1-9]|1[0-2])-(?:0[1-9]|1[0-9]|2[0-8])|(?:0[13-9]|1[0-2])-"      \
    "(?:29|30)|(?:0[13578]|1[02])-31)"
#define TIME                                                                               \
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?(?:Z|[+-](?:[01][0-9]|"   \
    "2[0-3]):[0-5][0-9])"
#define LABEL "[A-Za-z0-9](?:[A-Za-z0-9-]{0,20}[A-Za-z0-9])?"
#define OCTET "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

const char *ml_json_format(ml_str name) {
    static const struct {
        const char *name, *regex;
    } formats[] = {
        { "date", DATE },
        { "time", TIME },
        { "date-time", DATE "T" TIME },
        { "duration", "P(?:[0-9]{1,4}[YMWD]|T[0-9]{1,4}[HMS]|[0-9]{1,4}DT[0-9]{1,4}H)" },
        { "email", "[A-Za-z0-9_-]{1,20}(?:\\.[A-Za-z0-9_-]{1,20}){0,3}@" LABEL
                   "(?:\\." LABEL "){1,3}" },
        { "hostname", LABEL "(?:\\." LABEL "){0,3}" },
        { "ipv4", OCTET "(?:\\." OCTET "){3}" },
        { "ipv6", "[0-9a-f]{1,4}(?::[0-9a-f]{1,4}){7}" },
        { "uuid", "[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}" },
        { "uri",
          "https?://" LABEL "(?:\\." LABEL "){0,3}(?:/[A-Za-z0-9._~-]{1,40}){0,8}/?" },
    };

    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (ml_str_is(name, formats[i].name))
            return formats[i].regex;
    return NULL;
}
