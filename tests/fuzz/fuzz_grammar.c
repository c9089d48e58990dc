/* A letter (s: JSON schema, r: regular expression, e: EBNF, t: structural tag) and any bytes:
 * compiled or refused with a sentence.  A walk through the grammar has masks within the
 * limits, and the text of each allowed token is accepted. */
#include <stdint.h>
#include <string.h>

#include "base/bug.h"
#include "text/grammar/grammar.h"
#include "text/tokenizer/detok.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_VOCAB = 110 };

/* Printable characters, and tokens across the borders of JSON values. */
static ml_grammar_cache *make_cache(void) {
    static const char *const more[] = { "{\\\"", "\\\":", "\\\",", "}}", "[]",      "12",
                                        "ab",    "true",  "],",    "aa", "\xc3\x83" };
    ml_text json = { 0 };
    ml_tokenizer *t;
    int id = 0;

    ml_text_printf(&json,
                   "{\"decoder\":{\"type\":\"ByteLevel\"},\"model\":{\"type\":\"BPE\","
                   "\"merges\":[],\"vocab\":{");
    for (char c = '!'; c <= '~'; c++)
        ml_text_printf(&json, "%s\"%s%c\":%d", id ? "," : "",
                       c == '"' || c == '\\' ? "\\" : "", c, id),
            id++;
    for (size_t i = 0; i < sizeof more / sizeof *more; i++)
        ml_text_printf(&json, ",\"%s\":%d", more[i], id++);
    ml_text_printf(&json, "}}}");
    ML_BUG_IF(ml_tokenizer_parse(&t, (ml_str){ json.ptr, json.len }, "fuzz", NULL));
    ml_text_release(&json);
    return ml_grammar_cache_new(&(ml_grammar_opts){ .tokenizer = t, .n_vocab = N_VOCAB });
}

static void walk(ml_grammar *g) {
    ml_matcher *m = ml_matcher_new(g);
    uint32_t mask[ml_mask_words(N_VOCAB)];
    int32_t answer[24], n = 0;
    uint32_t seed = 12345;
    ml_matched got;
    ml_err err = { 0 };

    while (n < 24 && ml_matcher_mask(m, answer, n, mask, &got, &err) == ML_OK && got.n) {
        int32_t skip = (int32_t)((seed = seed * 1664525 + 1013904223) >> 16) % got.n,
                id = 0;
        while (!(mask[id / 32] >> (id % 32) & 1) || skip-- > 0)
            id++;
        answer[n++] = id;
    }
    ml_matcher_free(m);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const char kinds[] = "srets";
    static ml_grammar_cache *cache;
    const char *at = size ? memchr(kinds, data[0], 4) : NULL;
    ml_grammar_source s;
    ml_grammar *g;
    ml_err err = { 0 };

    if (!at)
        return 0;
    if (!cache)
        cache = make_cache();
    s = (ml_grammar_source){ (ml_grammar_kind)(ML_GRAMMAR_JSON_SCHEMA + (at - kinds)),
                             { (const char *)data + 1, size - 1 } };
    if (ml_grammar_get(&g, cache, s, &err) != ML_OK) {
        ML_BUG_IF(!err.msg[0]);
        return 0;
    }
    walk(g);
    ml_grammar_release(g);
    return 0;
}
