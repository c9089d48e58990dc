/* Any bytes: graded without a fault, in bounded time, and the same every time.  The first
 * byte says which grader; the rest is cut at the first NUL into response and label. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/bug.h"
#include "base/json.h"
#include "rl/builtins.h"
#include "rl/reward/answer.h"
#include "rl/reward/grade.h"
#include "rl/reward/math/math_same.h"
#include "text/unicode.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static const char *const names[] = {
    "math",        "deepscaler", "gemma_math",       "dapo",
    "gpqa",        "f1",         "boxed_math",       "boxed_dapo",
    "exact_match", "boxed_gpqa", "boxed_exact_match"
};

static void check_grader(const char *name, ml_str response, ml_str label) {
    ml_text quoted = { 0 };
    miles_reward_in in = { .size = sizeof in,
                           .response = response.ptr,
                           .response_len = response.len };
    miles_reward_out a, b;
    miles_error why;
    ml_grader g;

    ML_BUG_IF(ml_grader_find(&g, name, NULL) != ML_OK);
    if (ml_utf8_valid(label) == label.len)
        ml_json_quote(&quoted, label);
    else
        ml_text_printf(&quoted, "12");
    in.label = quoted.ptr;
    in.label_len = quoted.len;
    ML_BUG_IF(ml_grader_run(&g, &in, &a, &why) != 0 && why.text[0] == 0);
    ml_grader_run(&g, &in, &b, &why);
    ML_BUG_IF(a.reward != b.reward || !(fabs(a.reward) <= 1.0));
    ml_text_release(&quoted);
}

static void check_equality(ml_str x, ml_str y) {
    ml_str box;

    ML_BUG_IF(!ml_math_same(x, x, true));
    ML_BUG_IF(ml_math_same(x, y, false) != ml_math_same(y, x, false));
    /* What the strict form accepts, the lenient one does too. */
    ML_BUG_IF(ml_math_same(x, y, true) && !ml_math_same(x, y, false));
    if (ml_answer_last_box(x, &box))
        ML_BUG_IF(box.ptr < x.ptr || box.ptr + box.len > x.ptr + x.len);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    ml_str all, x, y;
    const char *cut;

    if (size < 1)
        return 0;
    all = (ml_str){ (const char *)data + 1, size - 1 };
    cut = all.len ? memchr(all.ptr, 0, all.len) : NULL;
    x = (ml_str){ all.ptr, cut ? (size_t)(cut - all.ptr) : all.len };
    y = ml_str_from(all, cut ? x.len + 1 : all.len);
    check_equality(x, y);
    check_grader(names[data[0] % (sizeof names / sizeof *names)], x, y);
    return 0;
}
