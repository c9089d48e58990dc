/* math, deepscaler, gemma_math: compare the boxed answer with the label. */
#include <string.h>

#include "rl/builtins.h"
#include "rl/reward/answer.h"
#include "rl/reward/label.h"
#include "rl/reward/math/math_same.h"

/* Selects the part of the response that a grader examines; false: none. */
typedef bool part_fn(ml_str *part);

static bool everything(ml_str *part) {
    (void)part;
    return true;
}

/* The part after the thinking, or after the last "###Response".  A second closing tag
 * after the answer does not hide the answer. */
static bool after_thinking(ml_str *part) {
    size_t last = ml_str_last(*part, "</think>"), first = ml_str_first(*part, "</think>");
    size_t marker = ml_str_last(*part, "###Response");
    ml_str box, after = ml_str_from(*part, last + 8);

    if (last < part->len) {
        *part = ml_answer_box(after, &box) ? after : ml_str_from(*part, first + 8);
        return true;
    }
    if (marker == part->len)
        return false;
    *part = ml_str_from(*part, marker + 11);
    return true;
}

static bool after_channel(ml_str *part) {
    size_t last = ml_str_last(*part, "<channel|>");

    if (last < part->len)
        *part = ml_str_from(*part, last + 10);
    return true;
}

/* The label without a box or GSM8K's mark; false: there is none. */
static bool clean_label(const ml_json *label, ml_str *out) {
    size_t mark;

    if (!ml_label_text(label, out) || out->len == 0)
        return false;
    if (ml_str_first(*out, "\\boxed") < out->len)
        return ml_answer_box(*out, out) && ml_str_trim(*out).len > 0;
    mark = ml_str_last(*out, "####");
    if (mark < out->len)
        *out = ml_str_trim(ml_str_from(*out, mark + 4));
    return true;
}

static int grade(const miles_reward_in *in, miles_reward_out *out, miles_error *err,
                 part_fn *part) {
    ml_str answer = ml_response(in), label;
    ml_label l;
    int status = 0;

    out->reward = 0.0;
    if (!ml_label_init(&l, in, err))
        status = 1;
    else if (l.label && (l.label->type == ML_JSON_ARRAY || l.label->type == ML_JSON_OBJECT))
        status = ml_reward_fail(err, "the label is %s; expected a string or a number",
                                ml_json_what(l.label));
    else if (clean_label(l.label, &label) &&
             (in->boxed || (part(&answer) && (ml_answer_box(answer, &answer) ||
                                              ml_answer_line(answer, &answer)))))
        out->reward = ml_math_same(answer, label, !in->boxed) ? 1.0 : 0.0;
    ml_label_release(&l);
    return status;
}

static int run_math(const miles_reward_in *in, miles_reward_out *out, miles_error *err) {
    return grade(in, out, err, everything);
}

static int run_deepscaler(const miles_reward_in *in, miles_reward_out *out,
                          miles_error *err) {
    return grade(in, out, err, after_thinking);
}

static int run_gemma(const miles_reward_in *in, miles_reward_out *out, miles_error *err) {
    return grade(in, out, err, after_channel);
}

const miles_reward ml_reward_math = {
    { sizeof ml_reward_math, MILES_REWARD, "math", NULL,
      "1 if the last \\boxed{} has the label's value, otherwise 0" },
    run_math,
};

const miles_reward ml_reward_deepscaler = {
    { sizeof ml_reward_deepscaler, MILES_REWARD, "deepscaler", NULL,
      "as math, in the text after </think> or ###Response" },
    run_deepscaler,
};

const miles_reward ml_reward_gemma_math = {
    { sizeof ml_reward_gemma_math, MILES_REWARD, "gemma_math", NULL,
      "as math, in the text after the last <channel|>" },
    run_gemma,
};
