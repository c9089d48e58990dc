/* Grammars: what they accept, masks of tokens, limits. */
#include "text/grammar/grammar.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/byte_tokenizer.h"
#include "tests/support/must.h"
#include "tests/support/test.h"
#include "text/tokenizer/detok.h"

typedef struct bench {
    ml_tokenizer *tokenizer;
    ml_grammar_cache *cache;
    int32_t n_vocab, n_end; /* n_end: the token that ends a text */
} bench;

static bench open_bench(bool compact) {
    bench b = { .tokenizer = ml_byte_tokenizer(ml_json_tokens, ml_n_json_tokens),
                .n_vocab = 256 + ml_n_json_tokens + 4,
                .n_end = 256 + ml_n_json_tokens };

    b.cache = ml_grammar_cache_new(&(ml_grammar_opts){
        .tokenizer = b.tokenizer, .n_vocab = b.n_vocab, .compact = compact });
    return b;
}

static void close_bench(bench *b) {
    ml_grammar_cache_free(b->cache);
    ml_tokenizer_close(b->tokenizer);
}

static ml_grammar *compiled(bench *b, ml_grammar_kind kind, const char *text) {
    ml_grammar *g = NULL;
    ml_err err = { 0 };

    if (ml_grammar_get(&g, b->cache, (ml_grammar_source){ kind, ml_str_of(text) }, &err))
        ml_test_fail(__FILE__, __LINE__, "%s: %s", text, err.msg);
    return g;
}

/* Texts that match, and after NULL those that do not. */
static void check_texts(bench *b, ml_grammar_kind kind, const char *source,
                        const char *const *text) {
    ml_grammar *g = compiled(b, kind, source);
    bool match = true;

    for (int ends = 0; g && ends < 2; text++) {
        bool complete;
        if (!*text) {
            ends++;
            match = false;
            continue;
        }
        ml_grammar_accepts(g, ml_str_of(*text), &complete);
        if (complete != match)
            ml_test_fail(__FILE__, __LINE__, "%s %s \"%s\"", source,
                         match ? "does not match" : "matches", *text);
    }
    ml_grammar_release(g);
}

#define TEXTS(...) ((const char *const[]){ __VA_ARGS__, NULL })

static void regular_expressions(void) {
    bench b = open_bench(false);
    ml_grammar_kind k = ML_GRAMMAR_REGEX;

    check_texts(&b, k, "a+b?c*", TEXTS("a", "aab", "abccc", NULL, "", "b", "abb", "ca"));
    check_texts(&b, k, "^(?:ab|c)$", TEXTS("ab", "c", NULL, "abc", "a"));
    check_texts(&b, k, "[^a-c]{2}", TEXTS("de", "é日", NULL, "ae", "d", "def"));
    check_texts(&b, k, "\\d{2,3}-\\w+\\s",
                TEXTS("12-x ", "123-a_9\t", NULL, "1-x ", "1234-x "));
    check_texts(&b, k, "x{0,70}", TEXTS("", "x", NULL, "y"));
    check_texts(&b, k, "(a|b)*?c+?", TEXTS("c", "abc", "bacc", NULL, "ab"));
    check_texts(&b, k, "\\u00e9\\x41[\\]\\-]", TEXTS("éA]", "éA-", NULL, "eA]"));
    check_texts(&b, k, "a{,2}b{3,}{", TEXTS("bbb{", "aabbbb{", NULL, "aaabbb{", "bb{"));
    check_texts(&b, k, "(?P<x>a)(?<y>b)", TEXTS("ab", NULL, "a"));
    close_bench(&b);
}

static void long_repetitions(void) {
    bench b = open_bench(false);
    ml_grammar *g = compiled(&b, ML_GRAMMAR_REGEX, "(?:xy){33,2100}z");
    static const int counts[] = { 0,    32,   33,   34,   64,   1000, 1024,
                                  1056, 2047, 2048, 2099, 2100, 2101 };
    ml_text text = { 0 };

    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++) {
        bool complete;
        text.len = 0;
        for (int k = 0; k < counts[i]; k++)
            ml_text_add(&text, "xy", 2);
        ml_text_add(&text, "z", 1);
        ml_grammar_accepts(g, (ml_str){ text.ptr, text.len }, &complete);
        if (complete != (counts[i] >= 33 && counts[i] <= 2100))
            ml_test_fail(__FILE__, __LINE__, "%d repetitions", counts[i]);
    }
    ml_text_release(&text);
    ml_grammar_release(g);
    close_bench(&b);
}

static void ebnf(void) {
    bench b = open_bench(false);
    ml_grammar_kind k = ML_GRAMMAR_EBNF;

    check_texts(&b, k,
                "root ::= expr # sum\n"
                "expr ::= term (\"+\" term)*\n\nterm ::= [0-9]+ | \"(\" expr \")\"\n",
                TEXTS("1", "12+(3+4)", "((7))", NULL, "", "(1", "1+"));
    check_texts(&b, k, "root ::= \"a\" x{2,3}\n  | \"\\n\\u00e9\"\nx ::= [^b-z]",
                TEXTS("aAA", "aaaa", "\né", NULL, "aA", "abb"));
    check_texts(&b, k, "root ::= \"<\" body \">\"\nbody ::= \"x\" body | \"\"",
                TEXTS("<>", "<xxx>", NULL, "<x"));
    close_bench(&b);
}

static void schemas(void) {
    bench b = open_bench(false);
    ml_grammar_kind k = ML_GRAMMAR_JSON_SCHEMA;

    check_texts(&b, k, "{\"type\":\"integer\",\"minimum\":-3,\"maximum\":120}",
                TEXTS("-3", "0", "7", "99", "120", NULL, "-4", "121", "01", "1000", "-0"));
    check_texts(
        &b, k, "{\"type\":\"number\",\"minimum\":0.5,\"exclusiveMaximum\":2}",
        TEXTS("0.5", "1", "1.99", "1.999999", "0.50", NULL, "2", "0.49", "2.0", "0"));
    check_texts(&b, k, "{\"type\":\"number\",\"exclusiveMinimum\":-1.5,\"maximum\":-0.25}",
                TEXTS("-1", "-1.4", "-0.25", "-0.3", NULL, "-1.5", "-0.24", "0", "1"));
    check_texts(
        &b, k,
        "{\"type\":\"object\",\"properties\":{\"a\":{\"type\":\"boolean\"},"
        "\"b\":{\"type\":\"null\"},\"c\":{\"enum\":[\"x\",3,[1]]}},\"required\":[\"b\"]}",
        TEXTS("{\"b\":null}", "{\"a\": true, \"b\": null}", "{\"b\":null,\"c\":\"x\"}",
              "{\n  \"b\": null,\n  \"c\": [1]\n}", NULL, "{}", "{\"a\":true}",
              "{\"b\":null,\"a\":true}", "{\"b\":null,}", "{\"b\":null,\"d\":1}"));
    check_texts(&b, k,
                "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"integer\"}},"
                "\"additionalProperties\":{\"type\":\"string\"}}",
                TEXTS("{}", "{\"name\":1}", "{\"nam\":\"\"}",
                      "{\"names\":\"\",\"z\":\"q\"}", "{\"name\":1,\"\":\"x\"}", NULL,
                      "{\"name\":\"x\"}", "{\"z\":\"\",\"name\":\"x\"}", "{\"z\":1}"));
    check_texts(&b, k,
                "{\"type\":\"array\",\"items\":{\"type\":\"integer\"},\"minItems\":2,"
                "\"maxItems\":3}",
                TEXTS("[1,2]", "[1, 2, 3]", NULL, "[]", "[1]", "[1,2,3,4]", "[1,]"));
    check_texts(
        &b, k,
        "{\"type\":\"array\",\"prefixItems\":[{\"type\":\"null\"},{\"const\":\"q\"}],"
        "\"items\":{\"type\":\"boolean\"},\"minItems\":1}",
        TEXTS("[null]", "[null,\"q\"]", "[null,\"q\",true,false]", NULL, "[]", "[\"q\"]",
              "[null,true]"));
    check_texts(&b, k, "{\"type\":\"string\",\"minLength\":1,\"maxLength\":2}",
                TEXTS("\"a\"", "\"é日\"", "\"\\n\\u00e9\"", "\"\\ud83d\\ude00a\"", NULL,
                      "\"\"", "\"abc\"", "\"\\ud83d\"", "\"a"));
    check_texts(&b, k, "{\"type\":\"string\",\"pattern\":\"^[a-c\\\"]+$\"}",
                TEXTS("\"abc\"", "\"a\\\"c\"", NULL, "\"\"", "\"d\""));
    check_texts(&b, k, "{\"type\":\"string\",\"pattern\":\"b\"}",
                TEXTS("\"b\"", "\"abc\"", NULL, "\"ac\""));
    check_texts(&b, k, "{\"type\":\"string\",\"format\":\"date\"}",
                TEXTS("\"2024-02-28\"", "\"2024-12-31\"", NULL, "\"2024-02-30\"", "\"x\""));
    check_texts(
        &b, k,
        "{\"$defs\":{\"t\":{\"type\":\"object\",\"properties\":{\"l\":{\"anyOf\":["
        "{\"$ref\":\"#/$defs/t\"},{\"type\":\"null\"}]}},\"required\":[\"l\"]}},"
        "\"$ref\":\"#/$defs/t\"}",
        TEXTS("{\"l\":null}", "{\"l\":{\"l\":{\"l\":null}}}", NULL, "{}", "{\"l\":{}}"));
    check_texts(
        &b, k,
        "{\"allOf\":[{\"properties\":{\"a\":{\"type\":\"integer\"}},\"required\":"
        "[\"a\"]},{\"properties\":{\"b\":{\"type\":\"null\"}},\"required\":[\"b\"]}]}",
        TEXTS("{\"a\":1,\"b\":null}", NULL, "{\"a\":1}"));
    check_texts(&b, k,
                "{\"type\":\"object\",\"properties\":{\"k\":{\"type\":\"string\"}},"
                "\"anyOf\":[{\"properties\":{\"k\":{\"const\":\"x\"}}},{\"properties\":"
                "{\"v\":{\"type\":\"null\"}},\"required\":[\"v\"]}]}",
                TEXTS("{\"k\":\"x\"}", "{\"k\":\"q\",\"v\":null}", NULL, "{\"k\":\"q\"}"));
    check_texts(&b, k, "$$ANY$$",
                TEXTS("null", "[1,{\"a\":[]}]", "-1.5e3", "\"\"", NULL, "", "{a:1}"));
    check_texts(&b, k, "{\"type\":\"object\"}",
                TEXTS("{}", "{\"a\":[1]}", NULL, "[]", "1"));
    check_texts(&b, k, "{\"type\":[\"integer\",\"null\"]}",
                TEXTS("1", "null", NULL, "1.5"));
    close_bench(&b);
}

static void compact_json(void) {
    bench b = open_bench(true);

    check_texts(&b, ML_GRAMMAR_JSON_SCHEMA, "{\"type\":\"object\"}",
                TEXTS("{\"a\": 1, \"b\": []}", NULL, "{\"a\":1}", "{ \"a\": 1}"));
    close_bench(&b);
}

static void structural_tags(void) {
    bench b = open_bench(false);

    check_texts(&b, ML_GRAMMAR_STRUCTURAL_TAG,
                "{\"type\":\"structural_tag\",\"triggers\":[\"<f=\"],\"structures\":["
                "{\"begin\":\"<f=a>\",\"schema\":{\"type\":\"integer\"},\"end\":\"</f>\"},"
                "{\"begin\":\"<f=b>\",\"schema\":{\"type\":\"null\"},\"end\":\"</f>\"}]}",
                TEXTS("", "text < f=", "<f=a>12</f>", "x <<f=b>null</f> y <f=a>1</f>", NULL,
                      "<f=", "<f=c>", "<f=a>null</f>", "<f=a>1", "<f=a>1</f><f=q"));
    close_bench(&b);
}

/* --- refusals --------------------------------------------------------------- */

static void check_refusal(bench *b, ml_grammar_kind kind, const char *text,
                          const char *why) {
    ml_grammar *g = NULL;
    ml_err err = { 0 };

    if (ml_grammar_get(&g, b->cache, (ml_grammar_source){ kind, ml_str_of(text) }, &err) ==
        ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "accepted: %.100s", text);
        ml_grammar_release(g);
        return;
    }
    CHECK_HAS(err.msg, why);
    CHECK_HAS(err.msg, ml_grammar_kind_name(kind));
}

static void refusals_name_the_place(void) {
    bench b = open_bench(false);

    check_refusal(&b, ML_GRAMMAR_REGEX, "a(?=b)", "lookaround");
    check_refusal(&b, ML_GRAMMAR_REGEX, "(a)\\1", "\\1");
    check_refusal(&b, ML_GRAMMAR_REGEX, "a**b(", "( without its )");
    check_refusal(&b, ML_GRAMMAR_REGEX, "[z-a]", "before its beginning");
    check_refusal(&b, ML_GRAMMAR_REGEX, "*a", "nothing to repeat");
    check_refusal(&b, ML_GRAMMAR_EBNF, "root ::= x", "\"x\" is not defined");
    check_refusal(&b, ML_GRAMMAR_EBNF, "x ::= \"a\"", "\"root\" is not defined");
    check_refusal(&b, ML_GRAMMAR_EBNF, "root ::= root \"a\" | \"b\"", "left recursion");
    check_refusal(&b, ML_GRAMMAR_EBNF,
                  "root ::= x? a\nx ::= \"x\"\na ::= x* root \"q\" | \"z\"",
                  "left recursion");
    check_refusal(&b, ML_GRAMMAR_EBNF, "root ::= \"a\" root", "no text matches");
    check_refusal(&b, ML_GRAMMAR_EBNF, "root ::= \"a\"\n\nb = 1", "line 3");
    check_refusal(&b, ML_GRAMMAR_JSON_SCHEMA, "{\"type\":\"strin\"}", "\"strin\"");
    check_refusal(&b, ML_GRAMMAR_JSON_SCHEMA,
                  "{\"properties\":{\"a\":{\"properties\":{\"b\":{\"multipleOf\":2}}}}}",
                  "#/properties/a/properties/b: \"multipleOf\" is not supported");
    check_refusal(&b, ML_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#/$defs/x\"}", "not found");
    check_refusal(&b, ML_GRAMMAR_JSON_SCHEMA, "{\"$ref\":\"#\"}", "no text matches");
    check_refusal(&b, ML_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"pattern\":\"(\"}",
                  "pattern");
    check_refusal(&b, ML_GRAMMAR_JSON_SCHEMA, "{", "schema");
    check_refusal(&b, ML_GRAMMAR_STRUCTURAL_TAG, "{}", "triggers");
    close_bench(&b);
}

static ml_text repeated(const char *head, const char *body, int n, const char *tail) {
    ml_text t = { 0 };

    ml_text_printf(&t, "%s", head);
    for (int i = 0; i < n; i++)
        ml_text_printf(&t, "%s", body);
    ml_text_printf(&t, "%s", tail);
    return t;
}

/* Each ends within the limits, with a grammar or a sentence. */
static void hostile_grammars_are_bounded(void) {
    bench b = open_bench(false);
    ml_text text;

    check_refusal(&b, ML_GRAMMAR_REGEX, "((((a{1,999}){1,999}){1,999}){1,999}){1,999}",
                  "states");
    check_refusal(&b, ML_GRAMMAR_REGEX, "a{1,99999999999}", "1000000 times");
    check_refusal(&b, ML_GRAMMAR_JSON_SCHEMA, "{\"type\":\"string\",\"maxLength\":1e300}",
                  "maxLength");
    text = repeated("", "(", 300, "");
    check_refusal(&b, ML_GRAMMAR_REGEX, text.ptr, "nested");
    ml_text_release(&text);
    text = repeated("", "{\"items\":", 150, "{}");
    ml_text_printf(&text, "%s", "");
    for (int i = 0; i < 150; i++)
        ml_text_printf(&text, "}");
    check_refusal(&b, ML_GRAMMAR_JSON_SCHEMA, text.ptr, "nested too deeply");
    ml_text_release(&text);
    text = repeated("root ::= ", "\"a\" ", 70000, "");
    check_refusal(&b, ML_GRAMMAR_EBNF, text.ptr, "bytes");
    ml_text_release(&text);
    /* 2^40 ways to begin */
    text = repeated("root ::= r0\n", "", 0, "");
    for (int i = 0; i < 40; i++)
        ml_text_printf(&text, "r%d ::= r%d \"x\" | r%d \"y\"\n", i, i + 1, i + 1);
    ml_text_printf(&text, "r40 ::= \"a\"\n");
    check_refusal(&b, ML_GRAMMAR_EBNF, text.ptr, "ambiguous");
    ml_text_release(&text);
    close_bench(&b);
}

/* --- masks ------------------------------------------------------------------ */

static uint64_t next_random(uint64_t *state) {
    *state = *state * 6364136223846793005u + 1442695040888963407u;
    return *state >> 33;
}

static bool allowed(const uint32_t *mask, int32_t id) {
    return mask[id / 32] >> (id % 32) & 1;
}

/* The mask must have exactly the tokens that the grammar accepts after the text. */
static void compare_mask(bench *b, ml_grammar *g, const ml_text *text,
                         const uint32_t *mask) {
    ml_text more = { 0 };

    for (int32_t id = 0; id < b->n_vocab; id++) {
        bool complete, expected;
        more.len = 0;
        ml_text_add(&more, text->ptr ? text->ptr : "", text->len);
        ml_token_bytes(b->tokenizer, id, &more);
        expected = more.len > text->len && id != b->n_end &&
                   ml_grammar_accepts(g, (ml_str){ more.ptr, more.len }, &complete);
        if (allowed(mask, id) != expected)
            ml_test_fail(__FILE__, __LINE__, "after \"%.*s\" token %d is %s",
                         (int)text->len, text->ptr ? text->ptr : "", id,
                         expected ? "missing" : "allowed");
    }
    ml_text_release(&more);
}

static int32_t draw(const uint32_t *mask, int32_t n_vocab, int32_t n, uint64_t *seed) {
    int32_t skip = (int32_t)(next_random(seed) % (uint64_t)n);

    for (int32_t id = 0; id < n_vocab; id++)
        if (allowed(mask, id) && skip-- == 0)
            return id;
    return -1;
}

static void walk_and_compare(bench *b, ml_grammar_kind kind, const char *source,
                             uint64_t seed) {
    ml_grammar *g = compiled(b, kind, source);
    ml_matcher *m = ml_matcher_new(g);
    uint32_t *mask = malloc((size_t)ml_mask_words(b->n_vocab) * sizeof *mask);
    int32_t answer[60], n = 0;
    ml_text text = { 0 };
    ml_matched got;

    for (; n < 60; n++) {
        MUST(ml_matcher_mask(m, answer, n, mask, &got, &err));
        compare_mask(b, g, &text, mask);
        if (!got.n)
            break;
        answer[n] = draw(mask, b->n_vocab, got.n, &seed);
        ml_token_bytes(b->tokenizer, answer[n], &text);
    }
    ml_text_release(&text);
    free(mask);
    ml_matcher_free(m);
    ml_grammar_release(g);
}

static const char person[] =
    "{\"type\":\"object\",\"properties\":{\"name\":{\"type\":\"string\",\"maxLength\":40},"
    "\"age\":{\"type\":\"integer\",\"minimum\":0,\"maximum\":150},\"tags\":{\"type\":"
    "\"array\",\"items\":{\"type\":\"string\"}},\"more\":{}},\"required\":[\"name\"],"
    "\"additionalProperties\":{\"type\":\"number\"}}";

static void masks_are_what_the_grammar_accepts(void) {
    bench b = open_bench(false);

    for (uint64_t seed = 1; seed <= 3; seed++) {
        walk_and_compare(&b, ML_GRAMMAR_JSON_SCHEMA, person, seed);
        walk_and_compare(&b, ML_GRAMMAR_JSON_SCHEMA, "$$ANY$$", seed);
        walk_and_compare(&b, ML_GRAMMAR_REGEX, "(?:[a-z]{0,70}|日本)+é", seed);
        walk_and_compare(&b, ML_GRAMMAR_EBNF,
                         "root ::= \"[\" root \"]\" | x\nx ::= \"true\" | [0-9.]+ x | \"\"",
                         seed);
        walk_and_compare(
            &b, ML_GRAMMAR_STRUCTURAL_TAG,
            "{\"triggers\":[\"<tool_call>\"],\"structures\":[{\"begin\":"
            "\"<tool_call>\",\"schema\":{\"type\":\"integer\"},\"end\":\"</t>\"}]}",
            seed);
    }
    close_bench(&b);
}

/* The states of a bounded repetition share sets of tokens; tokens may be longer than what the
 * states agree on. */
static void masks_of_bounded_repetitions(void) {
    static const char a70[] =
        "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    static char text[6][80];
    const char *extra[6];
    bench b;

    for (int i = 0; i < 6; i++) {
        static const int n[] = { 3, 20, 25, 30, 48, 70 };
        snprintf(text[i], sizeof text[i], "%.*s%s", n[i], a70, i % 2 ? "\"," : "");
        extra[i] = text[i];
    }
    b = (bench){ .tokenizer = ml_byte_tokenizer(extra, 6), .n_vocab = 256 + 6 + 1 };
    b.n_end = 256 + 6;
    b.cache = ml_grammar_cache_new(
        &(ml_grammar_opts){ .tokenizer = b.tokenizer, .n_vocab = b.n_vocab });
    for (uint64_t seed = 1; seed <= 4; seed++) {
        walk_and_compare(&b, ML_GRAMMAR_JSON_SCHEMA,
                         "{\"type\":\"array\",\"items\":{\"type\":\"string\","
                         "\"minLength\":3,\"maxLength\":120}}",
                         seed);
        walk_and_compare(&b, ML_GRAMMAR_REGEX, "(?:[a-c]{5,90}\",?)+(?:a|aa){0,40}", seed);
        walk_and_compare(&b, ML_GRAMMAR_EBNF,
                         "root ::= c{0,60} \"x\" root | c\nc ::= \"a\" | \"bb\" | \"\\\"\"",
                         seed);
    }
    close_bench(&b);
}

/* A second matcher fills the grammar's memory until it is released; the first one's masks
 * stay the same. */
static void released_memory_changes_no_mask(void) {
    bench b = open_bench(false);
    ml_grammar *g = compiled(&b, ML_GRAMMAR_JSON_SCHEMA, "$$ANY$$");
    ml_matcher *one = ml_matcher_new(g), *two;
    int32_t answer[8] = { '[', '{', '"', 'a', '"', ':', '[', '1' }, *deep;
    uint32_t before[32], after[32];
    ml_matched got;
    enum { N = 900 };

    CHECK(ml_mask_words(b.n_vocab) <= 32);
    MUST(ml_matcher_mask(one, answer, 8, before, &got, &err));
    deep = malloc(N * sizeof *deep);
    two = ml_matcher_new(g);
    for (int32_t n = 0; n < N; n++) {
        deep[n] = '[';
        if (ml_matcher_mask(two, deep, n + 1, after, &got, NULL))
            break;
    }
    MUST(ml_matcher_mask(one, answer, 8, after, &got, &err));
    CHECK(memcmp(before, after, (size_t)ml_mask_words(b.n_vocab) * 4) == 0);
    MUST(ml_matcher_mask(one, answer, 3, after, &got, &err)); /* an earlier place */
    CHECK(allowed(after, 'z') && !got.complete);
    ml_matcher_free(one);
    ml_matcher_free(two);
    ml_grammar_release(g);
    free(deep);
    close_bench(&b);
}

static void nesting_is_limited(void) {
    bench b = open_bench(false);
    ml_grammar *g = compiled(&b, ML_GRAMMAR_JSON_SCHEMA, "$$ANY$$");
    ml_matcher *m = ml_matcher_new(g);
    int32_t answer[4000], n = 0;
    uint32_t mask[32];
    ml_matched got = { 0 };
    ml_err err = { 0 };

    while (n < 4000 && ml_matcher_mask(m, answer, n, mask, &got, &err) == ML_OK &&
           allowed(mask, '['))
        answer[n++] = '[';
    CHECK(n > 100 && n < 2000);
    CHECK(!err.msg[0] && allowed(mask, '1') && allowed(mask, ']'));
    ml_matcher_free(m);
    ml_grammar_release(g);
    close_bench(&b);
}

static void the_cache_keeps_the_latest(void) {
    bench b = open_bench(false);
    ml_grammar *first = compiled(&b, ML_GRAMMAR_REGEX, "a"), *held, *again;

    held = compiled(&b, ML_GRAMMAR_REGEX, "a");
    CHECK(held == first);
    ml_grammar_release(held);
    for (int i = 0; i < 70; i++) {
        char text[20];
        snprintf(text, sizeof text, "b{%d}", i);
        ml_grammar_release(compiled(&b, ML_GRAMMAR_REGEX, text));
    }
    again = compiled(&b, ML_GRAMMAR_REGEX, "a");
    CHECK(again != first); /* it left the cache, and lives for its holder */
    CHECK(ml_str_is(ml_grammar_source_of(first).text, "a"));
    ml_grammar_release(first);
    ml_grammar_release(again);
    close_bench(&b);
}

static const ml_test tests[] = {
    { "a regular expression accepts its texts and no others", regular_expressions },
    { "long repetitions are counted", long_repetitions },
    { "an EBNF accepts its texts and no others", ebnf },
    { "a JSON schema accepts its values and no others", schemas },
    { "compact JSON has a space after commas and colons", compact_json },
    { "a structural tag leaves other text free", structural_tags },
    { "a refused grammar is answered with its place", refusals_name_the_place },
    { "hostile grammars are refused within limits", hostile_grammars_are_bounded },
    { "a mask has the tokens that the grammar accepts",
      masks_are_what_the_grammar_accepts },
    { "masks within bounded repetitions are exact for tokens of any length",
      masks_of_bounded_repetitions },
    { "releasing a grammar's memory changes no mask", released_memory_changes_no_mask },
    { "the nesting of an answer is limited", nesting_is_limited },
    { "a grammar in use outlives its place in the cache", the_cache_keeps_the_latest },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
