/* gpqa: checks the letter, or the text, of the right choice. */
#include <string.h>

#include "rl/builtins.h"
#include "rl/reward/answer.h"
#include "rl/reward/graders/gpqa_letter.h"
#include "rl/reward/label.h"
#include "rl/reward/graders/words.h"
#include "text/unicode.h"

#define LETTERS ML_GPQA_LETTERS

typedef struct question {
    ml_arena *arena;
    bool valid[LETTERS];
    char letter[LETTERS]; /* the valid letters, in the order listed */
    int n_letter;
    char correct;     /* 0: not known */
    ml_str target[8]; /* texts of the right answer, as given */
    int n_target;
    ml_str label;
} question;

/* --- text --------------------------------------------------------------------- */

static bool is_alnum(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static bool is_digit(char c) {
    return c >= '0' && c <= '9';
}

static char upper(char c) {
    return c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
}

static bool is_digit_at(ml_str s, size_t i) {
    return i < s.len && is_digit(s.ptr[i]);
}

/* The comma of 1,000. */
static bool is_separator(ml_str s, size_t i) {
    return s.ptr[i] == ',' && i > 0 && is_digit(s.ptr[i - 1]) && is_digit_at(s, i + 1) &&
           is_digit_at(s, i + 2) && is_digit_at(s, i + 3) && !is_digit_at(s, i + 4);
}

/* The point of 1.5 or the sign of -3. */
static bool is_of_number(ml_str s, size_t i) {
    bool after = i > 0 && is_alnum(s.ptr[i - 1]);

    return is_digit_at(s, i + 1) && ((s.ptr[i] == '.' && i > 0 && is_digit(s.ptr[i - 1])) ||
                                     (s.ptr[i] == '-' && !after));
}

/* Letters and digits of any script; non-ASCII ones by Unicode block. */
static bool is_text(uint32_t c) {
    if (c < 0x80)
        return is_alnum((char)c);
    return c >= 0xaa && c != 0xb0 && c != 0xb1 && c != 0xb7 && c != 0xbb && c != 0xbf &&
           c != 0xd7 && c != 0xf7 && !(c >= 0x2000 && c <= 0x206f) &&
           !(c >= 0x2190 && c <= 0x2bff) && !(c >= 0x3000 && c <= 0x3020) &&
           !(c >= 0xff00 && c <= 0xff0f) && !(c >= 0xff1a && c <= 0xff20);
}

static void blank(ml_text *out) {
    if (out->len && out->ptr[out->len - 1] != ' ')
        ml_text_add(out, " ", 1);
}

/* 42.0 becomes 42. */
static void drop_zeros(ml_text *out, size_t from) {
    size_t n = out->len;

    if (!memchr(out->ptr + from, '.', n - from))
        return;
    while (out->ptr[n - 1] == '0')
        n--;
    out->len = n - (out->ptr[n - 1] == '.');
}

static size_t add_number(ml_text *out, ml_str s, size_t i) {
    size_t from = out->len;

    for (; i < s.len && (is_digit(s.ptr[i]) || is_separator(s, i) || is_of_number(s, i));
         i++)
        if (s.ptr[i] != ',')
            ml_text_add(out, s.ptr + i, 1);
    drop_zeros(out, from);
    return i;
}

/* Lower case, words separated by one space, numbers without thousands separators and
 * trailing zeros.  Everything else is removed; a character of a script without spaces is a
 * word. */
static ml_str plain(ml_arena *a, ml_str given) {
    ml_text low = { 0 }, out = { 0 };
    size_t i = 0;
    ml_str s;

    ml_text_add(&out, "", 0);
    ml_text_lower(&low, given);
    s = (ml_str){ low.ptr, ml_utf8_valid((ml_str){ low.ptr, low.len }) };
    while (i < s.len) {
        const char *p = s.ptr + i;
        uint32_t c = ml_utf8_next(&p);
        size_t n = (size_t)(p - s.ptr) - i;
        if (is_digit(s.ptr[i]) || is_of_number(s, i)) {
            i = add_number(&out, s, i);
            continue;
        }
        if (!is_text(c) || c >= 0x2e80)
            blank(&out);
        if (is_text(c))
            ml_text_add(&out, s.ptr + i, n);
        if (c >= 0x2e80)
            blank(&out);
        i += n;
    }
    s = ml_str_trim((ml_str){ out.ptr, out.len });
    s.ptr = ml_arena_str(a, s.ptr, s.len);
    ml_text_release(&low);
    ml_text_release(&out);
    return s;
}

/* "A) Paris" and "(A) Paris": the letter, and the text without it. */
static char lettered(ml_str s, ml_str *rest) {
    size_t at = s.len && s.ptr[0] == '(';

    *rest = s;
    if (s.len < at + 2 || s.ptr[at] < 'A' || s.ptr[at] > 'Z' || s.ptr[at + 1] != ')')
        return 0;
    *rest = ml_str_trim(ml_str_from(s, at + 2));
    return s.ptr[at];
}

/* --- the question ------------------------------------------------------------- */

static void add_letter(question *q, char c) {
    c = upper(c);
    if (c < 'A' || c > 'Z' || q->valid[c - 'A'])
        return;
    q->valid[c - 'A'] = true;
    q->letter[q->n_letter++] = c;
}

/* A list of letters, or a string of them. */
static void add_listed(question *q, const ml_json *letters) {
    if (letters && letters->type == ML_JSON_STRING)
        for (size_t i = 0; i < letters->text.len; i++)
            add_letter(q, letters->text.ptr[i]);
    for (const ml_json *v = letters ? letters->child : NULL; v; v = v->next) {
        ml_str s = v->type == ML_JSON_STRING ? ml_str_trim(v->text) : (ml_str){ 0 };
        if (s.len == 1)
            add_letter(q, s.ptr[0]);
    }
}

/* The letters of valid_letters, or the keys of the choices, or as many as there are
 * choices. */
static void set_valid(question *q, const ml_json *metadata) {
    const ml_json *choices = ml_json_get(metadata, "choices");
    int n = choices && choices->n > 0 ? (choices->n < LETTERS ? choices->n : LETTERS) : 8;

    add_listed(q, ml_json_get(metadata, "valid_letters"));
    if (q->n_letter == 0)
        for (const ml_json *v = choices ? choices->child : NULL; v; v = v->next)
            if (v->key.len == 1)
                add_letter(q, v->key.ptr[0]);
    if (q->n_letter == 0)
        for (int i = 0; i < n; i++)
            add_letter(q, (char)('A' + i));
}

static bool is_valid(const question *q, char c) {
    c = upper(c);
    return c >= 'A' && c <= 'Z' && q->valid[c - 'A'];
}

/* The n-th valid letter; 0: there are fewer. */
static char nth_letter(const question *q, int64_t n) {
    return n < q->n_letter ? q->letter[n] : 0;
}

/* A mapping names its letters; the letters of a list are in order. */
static char letter_of(const question *q, const ml_json *choice, int64_t i) {
    return choice->key.len == 1 ? upper(choice->key.ptr[0]) : nth_letter(q, i);
}

static void add_target(question *q, ml_str text) {
    ml_str rest;

    lettered(text, &rest);
    if (rest.len && q->n_target < 8)
        q->target[q->n_target++] = rest;
}

static bool label_index(const ml_json *label, int64_t *out) {
    double f;

    if (!label)
        return false;
    *out = label->type == ML_JSON_TRUE;
    if (label->type == ML_JSON_TRUE || label->type == ML_JSON_FALSE)
        return true;
    if (label->type != ML_JSON_NUMBER || !ml_json_f64(label, &f) || f < 0 || f >= LETTERS)
        return false;
    *out = (int64_t)f;
    return true;
}

static void set_correct(question *q, const ml_json *label, const ml_json *metadata) {
    const ml_json *given = ml_json_get(metadata, "correct_letter");
    ml_str s = { 0 }, rest;
    int64_t index;

    if (given && given->type == ML_JSON_STRING)
        s = ml_str_trim(given->text);
    if (s.len == 1)
        q->correct = upper(s.ptr[0]);
    if (label && label->type == ML_JSON_STRING)
        q->label = ml_str_trim(label->text);
    if (!q->correct && q->label.len == 1 && is_valid(q, q->label.ptr[0]))
        q->correct = upper(q->label.ptr[0]);
    if (!q->correct && is_valid(q, lettered(q->label, &rest)))
        q->correct = lettered(q->label, &rest);
    if (label_index(label, &index) && nth_letter(q, index))
        q->correct = nth_letter(q, index);
}

/* True for "B.  London" if choice B is London. */
static bool names_choice(question *q, char letter, ml_str text) {
    ml_str s = q->label;
    ml_str rest = ml_str_from(s, 2);

    return s.len > 3 && upper(s.ptr[0]) == letter && strchr(".:-)", s.ptr[1]) &&
           ml_str_eq(plain(q->arena, rest), plain(q->arena, text));
}

/* The choice with the label's text determines the letter; the choice with the letter
 * determines the text. */
static void set_choice(question *q, const ml_json *choices) {
    ml_str want = plain(q->arena, q->label);
    int64_t i = 0;

    for (const ml_json *v = choices ? choices->child : NULL; v; v = v->next, i++) {
        char letter = letter_of(q, v, i);
        ml_str text = { 0 };
        ml_label_text(v, &text);
        if (!q->correct && want.len &&
            (ml_str_eq(plain(q->arena, text), want) || names_choice(q, letter, text)))
            q->correct = letter;
        if (q->correct && letter == q->correct)
            add_target(q, text);
    }
}

static void init_question(question *q, const ml_json *label, const ml_json *metadata) {
    static const char *const keys[] = { "correct_answer", "answer_text" };

    set_valid(q, metadata);
    set_correct(q, label, metadata);
    set_choice(q, ml_json_get(metadata, "choices"));
    for (size_t i = 0; i < sizeof keys / sizeof *keys; i++) {
        const ml_json *v = ml_json_get(metadata, keys[i]);
        ml_str text;
        double number;
        if (ml_label_text(v, &text))
            add_target(q, text);
        if (v && v->type == ML_JSON_NUMBER && ml_json_f64(v, &number)) /* 1e3 */
            add_target(q, ml_str_of(ml_arena_printf(q->arena, "%.15g", number)));
    }
    /* The letter of a choice is matched as a letter, not searched as text. */
    if (q->label.len > 1 || !q->correct)
        add_target(q, q->label);
}

/* --- the text of the choice --------------------------------------------------- */

/* The word that ends before `end`; it begins at *from. */
static ml_str word_before(ml_str all, size_t end, size_t *from) {
    while (end > 0 && all.ptr[end - 1] == ' ')
        end--;
    *from = end;
    while (*from > 0 && all.ptr[*from - 1] != ' ')
        --*from;
    return (ml_str){ all.ptr + *from, end - *from };
}

/* "not", "isn't" (its apostrophe was removed), optionally followed by an article. */
static bool is_negated(ml_str all, size_t at) {
    size_t from;
    ml_str w = word_before(all, at, &from), head;

    if (ml_str_is(w, "a") || ml_str_is(w, "an") || ml_str_is(w, "the"))
        w = word_before(all, from, &from);
    if (ml_str_is(w, "not") || ml_str_is(w, "never") || ml_str_is(w, "nor") ||
        ml_str_is(w, "neither"))
        return true;
    head = word_before(all, from, &from);
    return ml_str_is(w, "t") && head.len > 1 && head.ptr[head.len - 1] == 'n';
}

/* The words of `part` occur in `all` and are not negated. */
static bool has_words(ml_str all, ml_str part) {
    for (size_t i = 0; i + part.len <= all.len; i++)
        if (memcmp(all.ptr + i, part.ptr, part.len) == 0 &&
            (i == 0 || all.ptr[i - 1] == ' ') &&
            (i + part.len == all.len || all.ptr[i + part.len] == ' ') &&
            !is_negated(all, i))
            return true;
    return false;
}

static bool names_target(const question *q, ml_str response) {
    ml_str all = plain(q->arena, response);

    for (int i = 0; i < q->n_target; i++) {
        ml_str want = plain(q->arena, q->target[i]);
        if (want.len ? has_words(all, want)
                     : ml_str_eq(ml_str_trim(response), q->target[i]))
            return true;
    }
    return false;
}

/* --- the reward --------------------------------------------------------------- */

static double grade(question *q, ml_str response) {
    size_t think = ml_str_last(response, "</think>");
    char letter;

    if (think < response.len)
        response = ml_str_from(response, think + 8);
    letter = ml_gpqa_letter(q->arena, q->valid, response);
    if (letter && q->correct)
        return letter == q->correct ? 1.0 : 0.0;
    return names_target(q, response) ? 1.0 : 0.0;
}

static int run(const miles_reward_in *in, miles_reward_out *out, miles_error *err) {
    ml_label l;
    int status = 0;

    out->reward = 0.0;
    if (!ml_label_init(&l, in, err))
        status = 1;
    else if (in->response) {
        question q = { .arena = &l.arena };
        init_question(&q, l.label, l.metadata);
        out->reward = grade(&q, ml_response(in));
    }
    ml_label_release(&l);
    return status;
}

const miles_reward ml_reward_gpqa = {
    { sizeof ml_reward_gpqa, MILES_REWARD, "gpqa", NULL,
      "1 if the response gives the letter or text of the right choice, otherwise 0" },
    run,
};
