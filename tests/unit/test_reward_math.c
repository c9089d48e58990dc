/* Equality of answers: exact algebra, the strict form's refusals, and bounded work. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#include "base/json.h"
#include "rl/builtins.h"
#include "rl/reward/grade.h"
#include "rl/reward/math/math_same.h"
#include "base/sha256.h"
#include "tests/support/test.h"

typedef struct pair {
    const char *x, *y;
} pair;

static void check_pairs(const pair *p, bool strict, bool want) {
    for (; p->x; p++) {
        bool got = ml_math_same(ml_str_of(p->x), ml_str_of(p->y), strict);
        bool back = ml_math_same(ml_str_of(p->y), ml_str_of(p->x), strict);
        if (got != want || back != want)
            ml_test_fail(__FILE__, __LINE__, "'%s' and '%s': %d, %d", p->x, p->y, got,
                         back);
    }
}

static void equal_values(void) {
    static const pair same[] = {
        { "\\frac{1}{2}", "0.5" },
        { "(x+1)^2", "x^2+2x+1" },
        { "\\frac{x^2-1}{x-1}", "x+1" },
        { "\\sqrt{6}", "\\sqrt{2}\\sqrt{3}" },
        { "\\frac{1}{\\sqrt{2}}", "\\frac{\\sqrt{2}}{2}" },
        { "\\sqrt[3]{16}", "2\\sqrt[3]{2}" },
        { "\\sqrt{4x^2+4}", "2\\sqrt{x^2+1}" },
        { "4^{n+1}", "4\\cdot4^n" },
        { "0.1\\overline{6}", "1/6" },
        { "3 1/2", "7/2" },
        { "x^{\\frac{1}{2}}", "\\sqrt{x}" },
        { "\\{1,\\frac{4}{8}\\}", "\\{0.5,1\\}" },
        { "(1,\\infty)\\cup(-\\infty,0)", "(-\\infty,0)\\cup(1,\\infty)" },
        { "x\\ge 2", "[2,\\infty)" },
        { "\\pm 5", "5,-5" },
        { "45^\\circ", "\\frac{\\pi}{4}" },
        { "5 \\text{ feet}", "5 ft" },
        { 0 },
    };
    check_pairs(same, false, true);
}

static void different_values(void) {
    static const pair differ[] = {
        { "\\frac{1}{2x}", "x/2" },
        { "2^{n+1}", "2^n+1" },
        { "-2\\frac{1}{4}", "-1.75" },
        { "(1,2)", "[1,2]" },
        { "(1,2)", "(2,1)" },
        { "x", "y" },
        { "5 cm", "5 hours" },
        { "9007199254740993", "9007199254740992" },
        { "0.333333333333333", "1/3" },
        { "1/0", "2/0" },
        { "no", "on" },
        { "", "0" },
        { "\\sqrt{x^2}", "x" },
        { 0 },
    };
    check_pairs(differ, false, false);
}

/* What Miles refuses to work out; the lenient form does. */
static void strict_refusals(void) {
    static const pair refused[] = {
        { "2+2", "4" },
        { "\\frac{4}{2}", "2" },
        { "2/4", "\\frac{1}{2}" },
        { "zyx", "xyz" },
        { "x^{5+5}", "x^{10}" },
        { "(x+1)^(1/2)", "\\sqrt{x+1}" },
        { 0 },
    };
    check_pairs(refused, true, false);
    check_pairs(refused, false, true);
}

/* --- bounds --------------------------------------------------------------------------------- */

static char *repeat(const char *piece, int n, const char *tail) {
    size_t len = strlen(piece);
    char *s = malloc(len * (size_t)n + strlen(tail) + 1);

    for (int i = 0; i < n; i++)
        memcpy(s + (size_t)i * len, piece, len);
    strcpy(s + len * (size_t)n, tail);
    return s;
}

#define LIMIT_MS (ML_TEST_SANITIZED ? 1000 : 50)
#define MEMORY_KIB (ML_TEST_SANITIZED ? 1 << 20 : 64 << 10)

/* CPU milliseconds of one comparison. */
static double compare_ms(const char *x, const char *y) {
    double start = ml_test_own_s();

    ml_math_same(ml_str_of(x), ml_str_of(y), false);
    return 1e3 * (ml_test_own_s() - start);
}

/* The best of three: a busy virtual machine is charged time that it did not get. */
static void check_bounded(const char *x, const char *y) {
    struct rusage before, after;
    double took;

    getrusage(RUSAGE_SELF, &before);
    took = compare_ms(x, y);
    for (int i = 1; i < 3 && took > LIMIT_MS; i++)
        took = fmin(took, compare_ms(x, y));
    getrusage(RUSAGE_SELF, &after);
    if (took > LIMIT_MS || after.ru_maxrss - before.ru_maxrss > MEMORY_KIB)
        ml_test_fail(__FILE__, __LINE__, "%.40s... took %.1f ms and %ld KiB", x, took,
                     after.ru_maxrss - before.ru_maxrss);
}

static void hostile_answers(void) {
    static const struct {
        const char *piece;
        int n;
        const char *tail;
    } rows[] = {
        { "9**", 2, "9" },       { "9^", 50, "9" },           { "9999999!", 1, "" },
        { "(x+y)^", 1, "999" },  { "(a+b+c+d+e+f)", 40, "" }, { "(a+b+c)^9+", 100, "1" },
        { "sqrt(", 900, "x" },   { "\\sqrt{", 1500, "2" },    { "\\frac{1}{", 1000, "x" },
        { "(", 5000, "x" },      { "{", 5000, "x" },          { "\\foo{", 1900, "x" },
        { "\\tag{", 2300, "x" }, { "\\overline{", 1000, "" }, { "|", 10000, "x" },
        { "1,", 5000, "1" },     { "\\{1,\\{2,", 900, "3" },  { "x/", 5000, "y" },
        { "7", 11000, "" },      { "1e", 1, "999999999" },    { "\\sqrt[50]{", 300, "x" },
        { "x^", 3000, "2" },     { "-", 9000, "1" },          { "½", 900, "" },
        { "a+", 5000, "b" },     { "2^{n}+", 1200, "1" },     { "(x+1)/(x-1)+", 900, "1" },
    };

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        char *s = repeat(rows[i].piece, rows[i].n, rows[i].tail);
        char *t = repeat(rows[i].piece, rows[i].n, "+1");
        check_bounded(s, "x+1");
        check_bounded(s, t);
        free(s);
        free(t);
    }
}

/* --- other graders ----------------------------------------------------------------------------- */

static double graded(const char *name, const char *response, const char *label) {
    miles_reward_in in = { .size = sizeof in,
                           .response = response,
                           .response_len = strlen(response),
                           .label = label,
                           .label_len = label ? strlen(label) : 0 };
    miles_reward_out out;
    miles_error why;
    ml_grader g;
    ml_err err;

    if (ml_grader_find(&g, name, &err) != ML_OK)
        return -100;
    return ml_grader_run(&g, &in, &out, &why) == 0 ? out.reward : -200;
}

static void plain_graders(void) {
    CHECK(graded("exact_match", " yes\n", "\"yes\"") == 1);
    CHECK(graded("exact_match", "Yes", "\"yes\"") == 0);
    CHECK(graded("exact_match", "x", NULL) == -200);
    CHECK(graded("regex", "the year 1969.", "\"\\\\b19\\\\d\\\\d\\\\b\"") == 1);
    CHECK(graded("regex", "the year 2069.", "\"\\\\b19\\\\d\\\\d\\\\b\"") == 0);
    CHECK(graded("regex", "x", "\"(\"") == -200);
    CHECK(graded("regex", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "\"^(a+)+$\"") == 1);
    CHECK(graded("regex", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa!", "\"^(a+)+$\"") == -200);
    CHECK(graded("boxed_exact_match", "so \\boxed{a b}", "\"a b\"") == 1);
    CHECK(graded("boxed_boxed_f1", "\\boxed{a}", "\"a\"") == -100);
    CHECK(graded("math", "\\boxed{1}", "{") == -200);
    CHECK(graded("math", "\\boxed{1}", "[1]") == -200);
}

static void random_is_addressed(void) {
    miles_reward_in in = { .size = sizeof in, .seed = 7 };
    int ones = 0;

    for (in.index = 0; in.index < 1000; in.index++) {
        miles_reward_out a = { 0 }, b = { 0 };
        miles_error why;
        CHECK(ml_reward_random.run(&in, &a, &why) == 0);
        CHECK(ml_reward_random.run(&in, &b, &why) == 0);
        CHECK(a.reward == b.reward && (a.reward == 0 || a.reward == 1));
        ones += a.reward == 1;
    }
    CHECK(ones > 400 && ones < 600);
}

static void sha256_of_known_texts(void) {
    static const uint8_t abc[] = { 0xba, 0x78, 0x16, 0xbf }, empty[] = { 0xe3, 0xb0, 0xc4 };
    uint8_t digest[ML_SHA256_BYTES];
    char million[1000];

    ml_sha256(digest, ml_str_of("abc"));
    CHECK(memcmp(digest, abc, sizeof abc) == 0);
    ml_sha256(digest, ml_str_of(""));
    CHECK(memcmp(digest, empty, sizeof empty) == 0);
    memset(million, 'a', sizeof million);
    ml_sha256(digest,
              (ml_str){ million, 56 }); /* the length goes into a block of its own */
    CHECK(digest[0] == 0xb3 && digest[1] == 0x54 && digest[31] == 0x8a);
}

static const ml_test tests[] = {
    { "equal answers are found equal", equal_values, 0 },
    { "different answers are found different", different_values, 0 },
    { "the strict form refuses what Miles refuses", strict_refusals, 0 },
    { "hostile answers are graded in bounded time and memory", hostile_answers, 0 },
    { "exact_match, regex and other plain graders score", plain_graders, 0 },
    { "random rewards follow seed and index", random_is_addressed, 0 },
    { "SHA-256 gives the published digests", sha256_of_known_texts, 0 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
