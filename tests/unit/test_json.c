/* The JSON reader: what it keeps, what it refuses, what it says then. */
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "base/json.h"
#include "tests/support/test.h"

static ml_arena arena = { .tag = "test" };

static const ml_json *parse(const char *text) {
    const ml_json *v = NULL;
    ml_err err = { 0 };

    if (ml_json_parse(&v, &arena, ml_str_of(text), "t.json", &err))
        ml_test_fail(__FILE__, __LINE__, "%s: %s", text, err.msg);
    return v;
}

static void values_keep_type_order_and_text(void) {
    const ml_json *v = parse(" {\"b\": [1, 1.0, -0, 1e5], \"a\" :null,\"c\":{},"
                             "\"d\":[],\"e\":true,\"f\":false,\"g\":\"x\"}\r\n");
    const ml_json *n;

    CHECK(v->type == ML_JSON_OBJECT && v->n == 7);
    CHECK(ml_str_is(v->child->key, "b") && ml_str_is(v->child->next->key, "a"));
    n = v->child->child;
    CHECK(v->child->n == 4 && ml_str_is(n->text, "1") && ml_str_is(n->next->text, "1.0"));
    CHECK(ml_str_is(n->next->next->text, "-0"));
    CHECK(ml_str_is(n->next->next->next->text, "1e5") && !n->next->next->next->next);
    CHECK(ml_json_get(v, "a")->type == ML_JSON_NULL);
    CHECK(ml_json_get(v, "c")->type == ML_JSON_OBJECT && ml_json_get(v, "c")->n == 0);
    CHECK(ml_json_get(v, "d")->type == ML_JSON_ARRAY && !ml_json_get(v, "d")->child);
    CHECK(ml_json_get(v, "e")->type == ML_JSON_TRUE);
    CHECK(ml_json_get(v, "f")->type == ML_JSON_FALSE);
    CHECK(ml_str_is(ml_json_get(v, "g")->text, "x"));
    CHECK(!ml_json_get(v, "h") && !ml_json_get(n, "b") && !ml_json_get(NULL, "b"));
    ml_arena_release(&arena);
}

static void values_know_their_place(void) {
    static const char text[] = "\xef\xbb\xbf{\n  \"k\": [10,\n\t\"s\"]\n}";
    const ml_json *v = parse(text), *list = v->child, *s = list->child->next;

    CHECK(v->line == 1 && v->column == 1 && v->begin == 3 && v->end == sizeof text - 1);
    CHECK(list->line == 2 && list->column == 8);
    CHECK(memcmp(text + list->begin, "[10,\n\t\"s\"]", list->end - list->begin) == 0);
    CHECK(s->line == 3 && s->column == 2 && s->end - s->begin == 3);
    ml_arena_release(&arena);
}

static void strings_are_decoded(void) {
    static const struct {
        const char *json, *bytes;
        size_t n;
    } rows[] = {
        { "\"\"", "", 0 },
        { "\"\\\"\\\\\\/\\b\\f\\n\\r\\t\"", "\"\\/\b\f\n\r\t", 8 },
        { "\"a\\u0000b\"", "a\0b", 3 },
        { "\"\\u00e9\\u20AC\\uFFFF\"", "\xc3\xa9\xe2\x82\xac\xef\xbf\xbf", 8 },
        { "\"\\ud83d\\ude00\"", "\xf0\x9f\x98\x80", 4 },
        { "\"\\uD800\\uDC00\\udbff\\udfff\"", "\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", 8 },
        { "\"\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf\"",
          "\xc2\x80\xdf\xbf\xe0\xa0\x80\xed\x9f\xbf\xf0\x90\x80\x80\xf4\x8f\xbf\xbf", 18 },
        { "\"\x7f\"", "\x7f", 1 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const ml_json *v = parse(rows[i].json);
        CHECK(v && ml_str_eq(v->text, (ml_str){ rows[i].bytes, rows[i].n }));
    }
    CHECK(ml_json_get(parse("{\"\\u006bey\": 1}"), "key"));
    ml_arena_release(&arena);
}

static void plain_strings_stay_in_the_source(void) {
    static const char text[] = "[\"plain\", \"escaped\\n\"]";
    const ml_json *v = parse(text);

    CHECK(v->child->text.ptr == text + 2);
    CHECK(v->child->next->text.ptr < text ||
          v->child->next->text.ptr >= text + sizeof text);
    ml_arena_release(&arena);
}

static void the_last_of_equal_keys_counts(void) {
    const ml_json *v = parse("{\"k\":1,\"k\":2}");

    CHECK(v->n == 2 && ml_str_is(ml_json_get(v, "k")->text, "2"));
    ml_arena_release(&arena);
}

static void integers_are_exact_or_refused(void) {
    static const struct {
        const char *text;
        bool ok;
        int64_t value;
    } rows[] = {
        { "0", true, 0 },
        { "-0", true, 0 },
        { "-17", true, -17 },
        { "9007199254740993", true, 9007199254740993 },
        { "9223372036854775807", true, INT64_MAX },
        { "-9223372036854775808", true, INT64_MIN },
        { "9223372036854775808", false, 0 },
        { "-9223372036854775809", false, 0 },
        { "99999999999999999999999", false, 0 },
        { "1.0", false, 0 },
        { "1e3", false, 0 },
        { "\"1\"", false, 0 },
        { "true", false, 0 },
    };
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        int64_t n = 42;
        bool ok = ml_json_i64(parse(rows[i].text), &n);
        if (ok != rows[i].ok || n != (ok ? rows[i].value : 42))
            ml_test_fail(__FILE__, __LINE__, "%s gives %d, %lld", rows[i].text, ok,
                         (long long)n);
    }
    CHECK(!ml_json_i64(NULL, &(int64_t){ 0 }));
    ml_arena_release(&arena);
}

static void reals_are_correctly_rounded(void) {
    double d = 42;

    CHECK(ml_json_f64(parse("0.1"), &d) && d == 0.1);
    CHECK(ml_json_f64(parse("1e-06"), &d) && d == 1e-6);
    CHECK(ml_json_f64(parse("-0"), &d) && d == 0 && signbit(d));
    CHECK(ml_json_f64(parse("9007199254740993"), &d) && d == 9007199254740992.0);
    CHECK(ml_json_f64(parse("1.7976931348623157E+308"), &d) && d == 0x1.fffffffffffffp1023);
    CHECK(ml_json_f64(parse("5e-324"), &d) && d == 0x1p-1074);
    CHECK(ml_json_f64(parse("1e-999"), &d) && d == 0);
    d = 42;
    CHECK(!ml_json_f64(parse("1e999"), &d) && d == 42);
    CHECK(!ml_json_f64(parse("\"1\""), &d) && !ml_json_f64(NULL, &d));
    ml_arena_release(&arena);
}

/* What RFC 8259 forbids, each with the place and the words of its message. */
static const struct {
    const char *text, *message;
} broken[] = {
    { "", "t.json:1:1: expected a value, but the text ends here" },
    { " \n ", "t.json:2:2: expected a value, but the text ends here" },
    { "{", "t.json:1:2: expected a member name in double quotes" },
    { "[", "t.json:1:2: expected a value" },
    { "[1", "t.json:1:3: expected ',' or ']', but the text ends here" },
    { "[1 2]", "t.json:1:4: expected ',' or ']', found '2'" },
    { "[1,]", "t.json:1:4: expected a value, found ']'" },
    { "[,1]", "t.json:1:2: expected a value, found ','" },
    { "{\"a\":1,}", "t.json:1:8: expected a member name in double quotes, found '}'" },
    { "{\"a\"}", "t.json:1:5: expected ':' after the member name, found '}'" },
    { "{\"a\":}", "t.json:1:6: expected a value" },
    { "{a:1}", "t.json:1:2: expected a member name in double quotes, found 'a'" },
    { "{'a':1}", "t.json:1:2: expected a member name in double quotes, found '''" },
    { "{\"a\":1]", "t.json:1:7: expected ',' or '}', found ']'" },
    { "1 2", "t.json:1:3: expected end of input, found '2'" },
    { "{}\n{}", "t.json:2:1: expected end of input" },
    { "NaN", "t.json:1:1: expected a value, found 'N'" },
    { "[1, Infinity]", "t.json:1:5: expected a value, found 'I'" },
    { "-Infinity", "t.json:1:2: expected a digit after the minus sign, found 'I'" },
    { "nul", "t.json:1:1: expected a value" },
    { "True", "t.json:1:1: expected a value, found 'T'" },
    { "truex", "t.json:1:5: expected end of input" },
    { "// x\n1", "t.json:1:1: expected a value, found '/'" },
    { "01", "t.json:1:1: a number must not begin with a zero" },
    { "-01", "must not begin with a zero" },
    { "+1", "expected a value, found '+'" },
    { ".5", "expected a value, found '.'" },
    { "1.", "t.json:1:3: expected a digit after the decimal point" },
    { "1.e3", "expected a digit after the decimal point, found 'e'" },
    { "1e", "expected a digit of the exponent" },
    { "1e+", "expected a digit of the exponent" },
    { "-", "expected a digit after the minus sign, but the text ends" },
    { "0x10", "expected end of input, found 'x'" },
    { "\"abc", "t.json:1:5: unterminated string" },
    { "\"abc\\", "unterminated string" },
    { "\"a\nb\"", "t.json:1:3: control byte 0x0a inside a string must be escaped" },
    { "\"\x01\"", "control byte 0x01 inside a string" },
    { "\"\\x41\"", "after the backslash, found 'x'" },
    { "\"\\u12g4\"", "four hexadecimal digits" },
    { "\"\\u12\"", "four hexadecimal digits" },
    { "\"\\ud800\"", "t.json:1:2: \\ud800 is an unpaired surrogate" },
    { "\"\\udc00\"", "\\udc00 is an unpaired surrogate" },
    { "\"\\ud800\\u0041\"", "\\ud800 is an unpaired surrogate" },
    { "\"\\ud800\\ud800\"", "\\ud800 is an unpaired surrogate" },
    { "\"\x80\"", "byte 0x80 is not valid UTF-8 here" },
    { "\"\xc0\xaf\"", "byte 0xc0 is not valid UTF-8 here" },
    { "\"\xc3\"", "byte 0xc3 is not valid UTF-8 here" },
    { "\"\xe0\x9f\xbf\"", "byte 0xe0 is not valid UTF-8 here" },
    { "\"\xed\xa0\x80\"", "byte 0xed is not valid UTF-8 here" },
    { "\"\xf0\x8f\xbf\xbf\"", "byte 0xf0 is not valid UTF-8 here" },
    { "\"\xf4\x90\x80\x80\"", "byte 0xf4 is not valid UTF-8 here" },
    { "\"\xf5\x80\x80\x80\"", "byte 0xf5 is not valid UTF-8 here" },
    { "\"\xe2\x82", "byte 0xe2 is not valid UTF-8 here" },
    { "\xef\xbb\xbf\xef\xbb\xbf{}", "t.json:1:1: expected a value, found byte 0xef" },
    { "{}\x0c", "expected end of input, found byte 0x0c" },
};

static void broken_texts_are_named(void) {
    for (size_t i = 0; i < sizeof broken / sizeof broken[0]; i++) {
        const ml_json *v = NULL;
        ml_err err = { 0 };
        ml_status st = ml_json_parse(&v, &arena, ml_str_of(broken[i].text), "t.json", &err);
        if (st != ML_EFORMAT || v)
            ml_test_fail(__FILE__, __LINE__, "accepted: %s", broken[i].text);
        else
            CHECK_HAS(err.msg, broken[i].message);
    }
    ml_arena_release(&arena);
}

static void pythons_numbers_are_taken_where_asked(void) {
    static const char text[] = "[Infinity, -Infinity, NaN, 1]";
    const ml_json *v = NULL;
    ml_err err = { 0 };
    double d;

    CHECK(ml_json_parse(&v, &arena, ml_str_of(text), "t.json", &err) == ML_EFORMAT);
    CHECK(ml_json_parse_python(&v, &arena, ml_str_of(text), "t.json", &err) == ML_OK);
    CHECK(v->n == 4 && v->child->type == ML_JSON_NUMBER && !ml_json_f64(v->child, &d));
    CHECK(ml_json_f64(v->child->next->next->next, &d) && d == 1.0);
    CHECK(ml_json_parse_python(&v, &arena, ml_str_of("[Inf]"), "t.json", &err) ==
          ML_EFORMAT);
    CHECK(ml_json_parse_python(&v, &arena, ml_str_of("Na"), "t.json", &err) == ML_EFORMAT);
    ml_arena_release(&arena);
}

static void a_nul_is_no_end(void) {
    const ml_json *v;
    ml_err err;

    CHECK(ml_json_parse(&v, &arena, (ml_str){ "1\0", 2 }, "t.json", &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "t.json:1:2: expected end of input, found byte 0x00");
    CHECK(ml_json_parse(&v, &arena, (ml_str){ "\"\\\0\"", 4 }, "t.json", &err));
    CHECK_HAS(err.msg, "after the backslash, found byte 0x00");
    CHECK(ml_json_parse(&v, &arena, (ml_str){ NULL, 0 }, "t.json", &err) == ML_EFORMAT);
    ml_arena_release(&arena);
}

static ml_status parse_nested(int depth, ml_err *err) {
    const ml_json *v;
    ml_text t = { 0 };
    ml_status st;

    for (int i = 0; i < depth; i++)
        ml_text_add(&t, "[", 1);
    for (int i = 0; i < depth; i++)
        ml_text_add(&t, "]", 1);
    st = ml_json_parse(&v, &arena, (ml_str){ t.ptr, t.len }, "t.json", err);
    ml_text_release(&t);
    ml_arena_release(&arena);
    return st;
}

static void depth_is_bounded(void) {
    ml_text flat = { 0 };
    ml_err err;

    ml_text_add(&flat, "[", 1);
    for (int i = 0; i < 2 * ML_JSON_DEPTH; i++) /* neighbours do not add up */
        ml_text_add(&flat, "{},", 3);
    ml_text_add(&flat, "1]", 2);
    CHECK(parse(flat.ptr));
    ml_text_release(&flat);
    CHECK(!parse_nested(ML_JSON_DEPTH, &err));
    CHECK(parse_nested(ML_JSON_DEPTH + 1, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "t.json:1:257: values are nested deeper than 256 levels");
    CHECK(parse_nested(1000000, &err) == ML_EFORMAT);
}

static void quoting_is_pythons(void) {
    char all[0x80 + 4];
    ml_text t = { 0 };
    const ml_json *v;

    for (int i = 0; i < 0x80; i++)
        all[i] = (char)i;
    memcpy(all + 0x80, "\xf0\x9f\x98\x80", 4);
    ml_json_quote(&t, (ml_str){ all, sizeof all });
    CHECK_HAS(t.ptr, "\"\\u0000\\u0001");
    CHECK_HAS(t.ptr, "\\u0007\\b\\t\\n\\u000b\\f\\r\\u000e");
    CHECK_HAS(t.ptr, "\\u001f !\\\"#");
    CHECK_HAS(t.ptr, "[\\\\]");
    CHECK_HAS(t.ptr, "./0");
    CHECK_HAS(t.ptr, "~\x7f\xf0\x9f\x98\x80\"");
    v = parse(t.ptr);
    CHECK(v && ml_str_eq(v->text, (ml_str){ all, sizeof all }));
    t.len = 0;
    ml_json_quote(&t, (ml_str){ NULL, 0 });
    CHECK(strcmp(t.ptr, "\"\"") == 0);
    ml_text_release(&t);
    ml_arena_release(&arena);
}

static void kinds_have_names(void) {
    CHECK(strcmp(ml_json_what(parse("[]")), "an array") == 0);
    CHECK(strcmp(ml_json_what(parse("false")), "false") == 0);
    CHECK(strcmp(ml_json_what(parse("1")), "a number") == 0);
    ml_arena_release(&arena);
}

/* A linear reader takes a tenth of a second for this; a quadratic one would take minutes. */
static void long_texts_take_linear_time(void) {
    const ml_json *v;
    ml_text t = { 0 };
    ml_err err;
    clock_t begin;

    ml_text_add(&t, "{", 1);
    for (int i = 0; i < 300000; i++)
        ml_text_printf(&t, "\"\xc4\xa0token\\u0041%d\": %d,\n", i, i);
    ml_text_add(&t, "\"end\": []}", 10);
    begin = clock();
    CHECK(!ml_json_parse(&v, &arena, (ml_str){ t.ptr, t.len }, "t.json", &err));
    CHECK((double)(clock() - begin) / CLOCKS_PER_SEC < 5);
    CHECK(v->n == 300001);
    ml_text_release(&t);
    ml_arena_release(&arena);
}

static void numbers_are_as_short_as_they_can_be(void) {
    static const struct {
        double x;
        const char *text;
    } row[] = { { 0.802, "0.802" },
                { 0.1 + 0.2, "0.30000000000000004" },
                { 1.0 / 3.0, "0.3333333333333333" },
                { -0.0, "-0" },
                { 1e300, "1e+300" },
                { 42.0, "42" } };
    ml_text t = { 0 };

    for (size_t i = 0; i < sizeof row / sizeof *row; i++) {
        t.len = 0;
        ml_json_number(&t, row[i].x);
        CHECK(strcmp(t.ptr, row[i].text) == 0);
    }
    ml_text_release(&t);
}

static const ml_test tests[] = {
    { "JSON values keep type, order and text", values_keep_type_order_and_text },
    { "JSON values know their line and column", values_know_their_place },
    { "JSON strings are decoded", strings_are_decoded },
    { "JSON strings without escapes stay in the source", plain_strings_stay_in_the_source },
    { "the last of equal JSON keys counts", the_last_of_equal_keys_counts },
    { "integers are exact or refused", integers_are_exact_or_refused },
    { "reals are correctly rounded", reals_are_correctly_rounded },
    { "broken JSON is refused with line, column and expectation", broken_texts_are_named },
    { "a NUL byte does not end JSON", a_nul_is_no_end },
    { "JSON nested too deeply is refused", depth_is_bounded },
    { "Infinity and NaN are taken where asked", pythons_numbers_are_taken_where_asked },
    { "JSON strings are quoted as Python quotes them", quoting_is_pythons },
    { "numbers are as short as they can be", numbers_are_as_short_as_they_can_be },
    { "kinds of JSON values have names", kinds_have_names },
    { "long JSON is read in linear time", long_texts_take_linear_time },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
