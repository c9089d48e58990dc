/* Verdicts of graders on our own tables of answers: what was reasoned, not recorded. */
#include <stdio.h>
#include <string.h>

#include "base/file.h"
#include "base/json.h"
#include "rl/reward/grade.h"
#include "rl/reward/math/math_same.h"
#include "tests/support/test.h"

#define FOLDER "tests/golden/answers/"

typedef bool line_fn(ml_str line);

/* Calls `check` for every line that is no comment; fails when one of them does. */
static void check_table(const char *path, int at_least, line_fn *check) {
    ml_file f = { 0 };
    ml_err err;
    int n = 0, bad = 0;

    if (ml_file_map(&f, path, &err) != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
        return;
    }
    for (const char *p = f.bytes.ptr, *end; p < f.bytes.ptr + f.bytes.len; p = end + 1) {
        ml_str line = { p, 0 };
        end = memchr(p, '\n', (size_t)(f.bytes.ptr + f.bytes.len - p));
        CHECK(end != NULL);
        line.len = (size_t)(end - p);
        if (line.len == 0 || line.ptr[0] == '#')
            continue;
        n++;
        bad += !check(line);
    }
    printf("%s: %d lines, %d wrong\n", path, n, bad);
    CHECK(n >= at_least && bad == 0);
    ml_file_unmap(&f);
}

/* The next field of a line, up to a tab. */
static ml_str field(ml_str *line) {
    const char *tab = memchr(line->ptr, '\t', line->len);
    ml_str out = { line->ptr, tab ? (size_t)(tab - line->ptr) : line->len };
    size_t skip = tab ? out.len + 1 : out.len;

    *line = (ml_str){ line->ptr + skip, line->len - skip };
    return out;
}

static double graded(const char *name, ml_str response, ml_str label, ml_str metadata) {
    miles_reward_in in = { .size = sizeof in,
                           .response = response.ptr,
                           .response_len = response.len,
                           .label = label.ptr,
                           .label_len = label.len,
                           .metadata = metadata.len ? metadata.ptr : NULL,
                           .metadata_len = metadata.len };
    miles_reward_out out;
    miles_error why;
    ml_grader g;
    ml_err err;

    if (ml_grader_find(&g, name, &err) != ML_OK)
        return -100;
    return ml_grader_run(&g, &in, &out, &why) == 0 ? out.reward : -200;
}

/* The text with line breaks where the table has their sign. */
static void with_breaks(ml_text *out, ml_str s) {
    static const char sign[] = "⏎";

    ml_text_add(out, "", 0);
    for (size_t i = 0; i < s.len;) {
        bool is = s.len - i >= 3 && memcmp(s.ptr + i, sign, 3) == 0;
        ml_text_add(out, is ? "\n" : s.ptr + i, 1);
        i += is ? 3 : 1;
    }
}

/* --- choices ---------------------------------------------------------------------------------- */

/* The letter that is named is right as a label, every other is wrong. */
static bool check_choice(ml_str line) {
    ml_str metadata = ml_str_of("{\"valid_letters\":[\"A\",\"B\",\"C\",\"D\"]}");
    ml_str letter = field(&line);
    ml_text response = { 0 };
    bool fine = true;

    with_breaks(&response, line);
    for (char c = 'A'; c <= 'D'; c++) {
        char label[] = { '"', c, '"', 0 };
        double want = letter.ptr[0] == c, got;
        got = graded("gpqa", (ml_str){ response.ptr, response.len }, ml_str_of(label),
                     metadata);
        if (got != want) {
            printf("%.*s: label %c scores %g: %s\n", (int)letter.len, letter.ptr, c, got,
                   response.ptr);
            fine = false;
        }
    }
    ml_text_release(&response);
    return fine;
}

static void choices(void) {
    check_table(FOLDER "choices.txt", 350, check_choice);
}

/* --- any grader -------------------------------------------------------------------------------- */

/* A grader, a score, the label and the metadata in JSON, the response. */
static bool check_score(ml_str line) {
    ml_str name = field(&line), score = field(&line), label = field(&line),
           metadata = field(&line);
    ml_text response = { 0 }, grader = { 0 };
    double want, got;

    with_breaks(&response, line);
    ml_text_add(&grader, name.ptr, name.len);
    want =
        score.ptr[0] == '-' ? -(double)(score.ptr[1] - '0') : (double)(score.ptr[0] - '0');
    got = graded(grader.ptr, (ml_str){ response.ptr, response.len }, label, metadata);
    if (got != want)
        printf("%s, label %.*s: %g, not %g: %s\n", grader.ptr, (int)label.len, label.ptr,
               got, want, response.ptr);
    ml_text_release(&response);
    ml_text_release(&grader);
    return got == want;
}

static void scores(void) {
    check_table(FOLDER "scores.txt", 200, check_score);
}

/* --- pairs --------------------------------------------------------------------------------------- */

static bool verdict(ml_str x, ml_str y, bool strict, bool want) {
    bool there = ml_math_same(x, y, strict), back = ml_math_same(y, x, strict);

    if (there == want && back == want)
        return true;
    printf("%s '%.*s' and '%.*s': %d, %d; %d expected\n", strict ? "strict" : "lenient",
           (int)x.len, x.ptr, (int)y.len, y.ptr, there, back, want);
    return false;
}

/* "=": the same, "~": the same but for the strict form, "!": different.  Either way round;
 * and every answer is the same as itself. */
static bool check_pair(ml_str line) {
    ml_str mark = field(&line), x = field(&line), y = line;
    bool lenient = mark.ptr[0] != '!', strict = mark.ptr[0] == '=';

    return verdict(x, x, true, true) && verdict(y, y, true, true) &&
           verdict(x, y, false, lenient) && verdict(x, y, true, strict);
}

static void pairs(void) {
    check_table(FOLDER "pairs.txt", 1000, check_pair);
}

static const ml_test tests[] = {
    { "letters of multiple-choice answers are found", choices, 0 },
    { "graders score answers as reasoned", scores, 0 },
    { "pairs of answers are equal or different as reasoned", pairs, 0 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
