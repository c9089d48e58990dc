/* exact_match and regex: tests of the whole response. */
#include "rl/builtins.h"
#include "rl/reward/answer.h"
#include "rl/reward/label.h"
#include "text/regex.h"

static int run_exact(const miles_reward_in *in, miles_reward_out *out, miles_error *err) {
    ml_str label;
    ml_label l;
    int status = 0;

    if (!ml_label_init(&l, in, err))
        status = 1;
    else if (!ml_label_text(l.label, &label))
        status = ml_reward_fail(err, "exact_match needs a text label; the label is %s",
                                l.label ? ml_json_what(l.label) : "missing");
    else
        out->reward =
            ml_str_eq(ml_str_trim(ml_response(in)), ml_str_trim(label)) ? 1.0 : 0.0;
    ml_label_release(&l);
    return status;
}

/* Compiling a pattern costs less than generating a response, so patterns are not cached. */
static ml_status search(ml_str pattern, ml_str text, ml_err *err) {
    ml_finder *finder = ml_finder_new();
    ml_regex *regex = NULL;
    size_t begin, end;
    ml_status st;

    st = ml_regex_new_bounded(&regex, pattern, err);
    if (st == ML_OK && ml_utf8_valid(text) < text.len)
        st = ml_fail(err, ML_EFORMAT, "the response is not valid UTF-8");
    if (st == ML_OK)
        st = ml_regex_find(regex, finder, text, 0, &begin, &end, err);
    ml_regex_free(regex);
    ml_finder_free(finder);
    return st;
}

static int run_regex(const miles_reward_in *in, miles_reward_out *out, miles_error *err) {
    ml_label l;
    int status = 0;
    ml_err e;

    if (!ml_label_init(&l, in, err))
        status = 1;
    else if (!l.label || l.label->type != ML_JSON_STRING)
        status = ml_reward_fail(err, "regex needs a pattern as the label; the label is %s",
                                l.label ? ml_json_what(l.label) : "missing");
    else {
        ml_status st = search(l.label->text, ml_response(in), &e);
        out->reward = st == ML_OK ? 1.0 : 0.0;
        if (st != ML_OK && st != ML_EAGAIN)
            status = ml_reward_fail(err, "%.400s", e.msg);
    }
    ml_label_release(&l);
    return status;
}

const miles_reward ml_reward_exact_match = {
    { sizeof ml_reward_exact_match, MILES_REWARD, "exact_match", "exact-match",
      "1 if the response equals the label, ignoring surrounding whitespace, otherwise 0" },
    run_exact,
};

const miles_reward ml_reward_regex = {
    { sizeof ml_reward_regex, MILES_REWARD, "regex", NULL,
      "1 if the label, a regular expression, matches anywhere in the response, otherwise "
      "0" },
    run_regex,
};
