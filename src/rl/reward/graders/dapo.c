/* dapo: compares the line "Answer: ..." with the label. */
#include <string.h>

#include "rl/builtins.h"
#include "rl/reward/answer.h"
#include "rl/reward/graders/dapo_text.h"
#include "rl/reward/label.h"
#include "rl/reward/math/math_plain.h"
#include "rl/reward/math/math_same.h"

/* --- finding the answer ------------------------------------------------------- */

/* The line after "answer" and one of the marks at `at`; white space may include line
 * breaks. */
static bool line_after(ml_str s, size_t at, const char *const *mark, ml_str *out) {
    ml_str rest = ml_str_from(s, at + 6);
    size_t n;

    while ((n = ml_str_blank(rest)) > 0)
        rest = ml_str_from(rest, n);
    for (; *mark; mark++)
        if (ml_str_begins_nocase(rest, *mark))
            break;
    if (!*mark)
        return false;
    rest = ml_str_trim(ml_str_from(rest, strlen(*mark)));
    *out = (ml_str){ rest.ptr, ml_str_first(rest, "\n") };
    return out->len > 0;
}

static bool last_line_after(ml_str s, const char *const *mark, ml_str *out) {
    for (size_t i = s.len; i-- > 0;)
        if ((s.ptr[i] | 32) == 'a' && ml_str_begins_nocase(ml_str_from(s, i), "answer") &&
            line_after(s, i, mark, out))
            return true;
    return false;
}

/* "#### 7" at the start of a line. */
static bool gsm_line(ml_str s, ml_str *out) {
    size_t at = ml_str_last(s, "####");

    if (at == s.len || (at > 0 && s.ptr[at - 1] != '\n'))
        return false;
    *out = ml_str_trim(ml_str_from(s, at + 4));
    out->len = ml_str_first(*out, "\n");
    return out->len > 0;
}

static bool find_answer(const miles_reward_in *in, ml_str *out) {
    static const char *const colon[] = { ":", "：", NULL };
    static const char *const other[] = { "is:", "is", "- ", NULL };
    ml_str s = ml_response(in);

    if (last_line_after(s, colon, out))
        return true;
    if (in->boxed) {
        *out = s;
        return s.len > 0;
    }
    return ml_answer_box(s, out) || gsm_line(s, out) || last_line_after(s, other, out);
}

/* --- interpreting it ---------------------------------------------------------- */

static bool drop_front(ml_str *s, const char *word) {
    if (!ml_str_begins_nocase(*s, word))
        return false;
    *s = ml_str_trim(ml_str_from(*s, strlen(word)));
    return true;
}

static bool drop_back(ml_str *s, const char *word) {
    size_t n = strlen(word);

    if (s->len <= n || memcmp(s->ptr + s->len - n, word, n) != 0)
        return false;
    s->len -= n;
    *s = ml_str_trim(*s);
    return true;
}

/* Removes everything that is not part of an answer: emphasis, quotes, end marks,
 * "about". */
static ml_str clean(ml_str s) {
    static const char *const front[] = {
        "**", "`",   "'",    "\"", "answer:", "about ", "approximately ",
        "a ", "an ", "the ", NULL
    };
    static const char *const back[] = {
        "**", "`",        "'",       "\"",     "</s>", "<|im_end|>", "<|endoftext|>",
        "=",  "(approx)", "\\ldots", "\\dots", "...",  NULL
    };
    bool again = true;

    s = ml_str_trim(s);
    while (again) {
        again = false;
        for (int i = 0; front[i]; i++)
            again = drop_front(&s, front[i]) || again;
        for (int i = 0; back[i]; i++)
            again = drop_back(&s, back[i]) || again;
    }
    return s;
}

/* "the total is $7$, not $8$": the first formula among words. */
static ml_str formula(ml_str s) {
    const char *a = s.len ? memchr(s.ptr, '$', s.len) : NULL, *b;

    if (!a || a == s.ptr || a[-1] != ' ')
        return s;
    b = memchr(a + 1, '$', (size_t)(s.ptr + s.len - a - 1));
    return b ? (ml_str){ a + 1, (size_t)(b - a - 1) } : s;
}

static bool is_letter(char c) {
    return (c | 32) >= 'a' && (c | 32) <= 'z';
}

/* Removes several words before the answer: "a total of 42". */
static ml_str without_talk(ml_str s) {
    size_t i = 0, from = 0;
    int words = 0;

    while (i < s.len && is_letter(s.ptr[i])) {
        while (i < s.len && is_letter(s.ptr[i]))
            i++;
        if (i == s.len || s.ptr[i] != ' ')
            break;
        while (i < s.len && s.ptr[i] == ' ')
            i++;
        words++;
        from = i;
    }
    return words > 1 ? ml_str_from(s, from) : s;
}

/* A number written in digits of any script. */
static bool is_number(ml_str s) {
    ml_text plain = { 0 };
    bool digit = false, other = false;

    ml_math_plain(&plain, s);
    for (size_t i = 0; i < plain.len; i++) {
        char c = plain.ptr[i];
        digit = digit || (c >= '0' && c <= '9');
        other = other || (!(c >= '0' && c <= '9') && (!c || !strchr("+-.,eE", c)));
    }
    ml_text_release(&plain);
    return digit && !other;
}

static bool is_digit_at(ml_str s, size_t i) {
    return i < s.len && s.ptr[i] >= '0' && s.ptr[i] <= '9';
}

/* The comma of 1,000. */
static bool is_separator(ml_str s, size_t i) {
    return s.ptr[i] == ',' && i > 0 && is_digit_at(s, i - 1) && is_digit_at(s, i + 1) &&
           is_digit_at(s, i + 2) && is_digit_at(s, i + 3) && !is_digit_at(s, i + 4);
}

/* The normal form is a number that occurs literally in the text, thousands separators
 * aside, and the text has no other digit and nothing that would change the number. */
static bool is_intact(ml_str text, ml_str norm) {
    ml_text bare = { 0 }, want = { 0 };
    bool intact;
    size_t at;
    ml_str s;

    ml_text_add(&bare, "", 0);
    for (size_t i = 0; i < text.len; i++)
        ml_text_add(&bare, text.ptr + i, !is_separator(text, i));
    ml_text_add(&want, norm.ptr, norm.len);
    s = (ml_str){ bare.ptr, bare.len };
    at = ml_str_first(s, want.ptr);
    intact = norm.len > 0 && at < s.len && ml_str_first(s, "^") == s.len &&
             ml_str_first(s, "\\overline") == s.len;
    for (size_t i = 0; intact && i < s.len; i++)
        intact = (i >= at && i < at + norm.len) || !is_digit_at(s, i);
    ml_text_release(&bare);
    ml_text_release(&want);
    return intact;
}

/* A numeric label is compared by value, any other by Miles' normal form.  A number that
 * Miles extracts from words (Answer: a 7) counts as well. */
static bool is_right(ml_str answer, const ml_json *label, ml_str pred) {
    ml_text norm = { 0 };
    ml_str text, n;
    bool right;

    if (!ml_label_text(label, &text))
        return false;
    ml_text_add(&norm, "", 0);
    ml_dapo_normalize(&norm, text);
    n = (ml_str){ norm.ptr, norm.len };
    right = n.len > 0 && ml_str_eq(n, pred);
    if (is_number(n))
        right = (right && is_intact(answer, n) && is_intact(text, n)) ||
                ml_math_same(without_talk(formula(clean(answer))), text, false);
    ml_text_release(&norm);
    return right;
}

/* --- the reward --------------------------------------------------------------- */

/* Miles' report: {"score": 1.0, "acc": true, "pred": "7"}. */
static void describe(miles_reward_out *out, bool right, ml_str pred) {
    ml_text t = { 0 };

    if (pred.len > 300)
        pred.len = 0;
    ml_text_printf(&t, "{\"score\": %s, \"acc\": %s, \"pred\": ", right ? "1.0" : "-1.0",
                   right ? "true" : "false");
    ml_json_quote(&t, pred);
    ml_text_printf(&t, "}");
    if (t.len < sizeof out->detail)
        memcpy(out->detail, t.ptr, t.len + 1);
    ml_text_release(&t);
}

static int run(const miles_reward_in *in, miles_reward_out *out, miles_error *err) {
    ml_str answer, pred;
    ml_text norm = { 0 };
    ml_label l;
    bool right;

    if (!ml_label_init(&l, in, err)) {
        ml_label_release(&l);
        return 1;
    }
    pred = ml_dapo_pred(&norm, ml_response(in));
    right = find_answer(in, &answer) && is_right(answer, l.label, pred);
    if (right && ml_str_is(pred, "[INVALID]"))
        pred = clean(answer);
    out->reward = right ? 1.0 : -1.0;
    describe(out, right, pred);
    ml_text_release(&norm);
    ml_label_release(&l);
    return 0;
}

const miles_reward ml_reward_dapo = {
    { sizeof ml_reward_dapo, MILES_REWARD, "dapo", NULL,
      "1 if the line \"Answer: ...\" has the label's number, otherwise -1" },
    run,
};
