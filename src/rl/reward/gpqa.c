/* gpqa: the letter, or the text, of the right choice. */
#include <string.h>

#include "rl/edges.h"
#include "rl/reward/answer.h"
#include "rl/reward/label.h"

#define LETTERS 26

typedef struct question {
    ml_arena *arena;
    bool valid[LETTERS];
    char correct;     /* 0: not known */
    ml_str target[4]; /* texts of the right answer, as they were given */
    int n_target;
    ml_str label;
} question;

/* --- text -------------------------------------------------------------------------------- */

static bool is_alnum(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
}

static char upper(char c) {
    return c >= 'a' && c <= 'z' ? (char)(c - 32) : c;
}

/* Lower case; everything else than letters and digits is one blank. */
static ml_str plain(ml_arena *a, ml_str s) {
    char *out = ML_NEW(a, char, s.len + 1);
    size_t n = 0;

    for (size_t i = 0; i < s.len; i++) {
        char c = s.ptr[i];
        if (is_alnum(c))
            out[n++] = c >= 'A' && c <= 'Z' ? (char)(c + 32) : c;
        else if (n && out[n - 1] != ' ')
            out[n++] = ' ';
    }
    while (n && out[n - 1] == ' ')
        n--;
    return (ml_str){ out, n };
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

/* --- the question -------------------------------------------------------------------------- */

static void set_valid(question *q, const ml_json *metadata) {
    const ml_json *letters = ml_json_get(metadata, "valid_letters");
    const ml_json *choices = ml_json_get(metadata, "choices");
    int n = choices && choices->n > 0 ? (choices->n < LETTERS ? choices->n : LETTERS) : 8;
    bool any = false;

    for (const ml_json *v = letters ? letters->child : NULL; v; v = v->next) {
        ml_str s = v->type == ML_JSON_STRING ? ml_str_trim(v->text) : (ml_str){ 0 };
        char c = s.len == 1 ? upper(s.ptr[0]) : 0;
        if (c < 'A' || c > 'Z')
            continue;
        q->valid[c - 'A'] = true;
        any = true;
    }
    if (any)
        return;
    for (const ml_json *v = choices ? choices->child : NULL; v; v = v->next)
        if (v->key.len == 1 && upper(v->key.ptr[0]) >= 'A' && upper(v->key.ptr[0]) <= 'Z')
            any = q->valid[upper(v->key.ptr[0]) - 'A'] = true;
    for (int i = 0; !any && i < n; i++)
        q->valid[i] = true;
}

static bool is_valid(const question *q, char c) {
    c = upper(c);
    return c >= 'A' && c <= 'Z' && q->valid[c - 'A'];
}

/* The n-th valid letter; 0: there are fewer. */
static char nth_letter(const question *q, int64_t n) {
    for (int i = 0; i < LETTERS; i++)
        if (q->valid[i] && n-- == 0)
            return (char)('A' + i);
    return 0;
}

/* A mapping names its letters; a list has them in order. */
static char letter_of(const question *q, const ml_json *choice, int64_t i) {
    return choice->key.len == 1 ? upper(choice->key.ptr[0]) : nth_letter(q, i);
}

static void add_target(question *q, ml_str text) {
    ml_str rest;

    lettered(text, &rest);
    if (rest.len && q->n_target < 4)
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

/* The choice with the label's text gives the letter, the one with the letter the text. */
static void set_choice(question *q, const ml_json *choices) {
    ml_str want = plain(q->arena, q->label);
    int64_t i = 0;

    for (const ml_json *v = choices ? choices->child : NULL; v; v = v->next, i++) {
        ml_str text = v->type == ML_JSON_STRING || v->type == ML_JSON_NUMBER
                          ? v->text
                          : (ml_str){ 0 };
        if (!q->correct && want.len && ml_str_eq(plain(q->arena, text), want))
            q->correct = letter_of(q, v, i);
        if (q->correct && letter_of(q, v, i) == q->correct)
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
        if (v && v->type == ML_JSON_STRING)
            add_target(q, v->text);
    }
    /* A letter names the choice, not its text, where there is a text. */
    if (q->label.len > 1 || q->n_target == 0 || plain(q->arena, q->target[0]).len == 0)
        add_target(q, q->label);
}

/* --- the letter that was chosen --------------------------------------------------------------- */

static size_t skip_blanks(ml_str s, size_t i) {
    while (i < s.len && (s.ptr[i] == ' ' || (s.ptr[i] >= '\t' && s.ptr[i] <= '\r')))
        i++;
    return i;
}

static bool is_letter(char c) {
    return (upper(c) >= 'A' && upper(c) <= 'Z');
}

/* Nothing of a word on either side. */
static bool stands_alone(ml_str s, size_t i) {
    bool before = i > 0 && is_alnum(s.ptr[i - 1]);
    bool after = i + 1 < s.len && is_alnum(s.ptr[i + 1]);

    return is_letter(s.ptr[i]) && !before && !after;
}

/* A small letter, or a capital that is also a word, is a choice only where a sentence or
 * line could end. */
static bool may_be_word(ml_str s, size_t i) {
    size_t next = skip_blanks(s, i + 1);

    return next > i + 1 && next < s.len && s.ptr[next] >= 'a' && s.ptr[next] <= 'z';
}

static char choice_at(const question *q, ml_str s, size_t i) {
    while (i < s.len && strchr("([*\"'$", s.ptr[i]))
        i++;
    if (i >= s.len || !stands_alone(s, i) || !is_valid(q, s.ptr[i]))
        return 0;
    if (may_be_word(s, i) &&
        (s.ptr[i] == 'a' || s.ptr[i] == 'A' || s.ptr[i] == 'I' || s.ptr[i] == 'i'))
        return 0;
    return upper(s.ptr[i]);
}

/* What follows a keyword: blanks, "is" or a colon, blanks, a letter. */
static char choice_after(const question *q, ml_str s, size_t i) {
    size_t at = skip_blanks(s, i);
    ml_str rest;

    while (at < s.len && (s.ptr[at] == '_' || s.ptr[at] == '*'))
        at++;
    rest = ml_str_from(s, at);
    if (ml_str_begins_nocase(rest, "is") && rest.len > 2 && !is_alnum(rest.ptr[2]))
        at += 2;
    while (at < s.len && (s.ptr[at] == ':' || s.ptr[at] == '_' || s.ptr[at] == '*'))
        at++;
    at = skip_blanks(s, at);
    return choice_at(q, s, at);
}

static char last_after(const question *q, ml_str s, const char *word) {
    for (size_t i = s.len; i-- > 0;)
        if ((s.ptr[i] | 32) == word[0] && ml_str_begins_nocase(ml_str_from(s, i), word)) {
            char c = choice_after(q, s, i + strlen(word));
            if (c)
                return c;
        }
    return 0;
}

static char first_after(const question *q, ml_str s, const char *word) {
    for (size_t i = 0; i < s.len; i++)
        if ((s.ptr[i] | 32) == word[0] && ml_str_begins_nocase(ml_str_from(s, i), word)) {
            char c = choice_after(q, s, i + strlen(word));
            if (c)
                return c;
        }
    return 0;
}

/* "B is the correct ..." */
static char before_correct(const question *q, ml_str s) {
    for (size_t i = 0; i < s.len; i++) {
        ml_str rest;
        if (!stands_alone(s, i) || !is_valid(q, s.ptr[i]))
            continue;
        rest = ml_str_from(s, skip_blanks(s, i + 1));
        if (!ml_str_begins_nocase(rest, "is"))
            continue;
        rest = ml_str_from(rest, skip_blanks(rest, 2));
        if (ml_str_begins_nocase(rest, "the"))
            rest = ml_str_from(rest, skip_blanks(rest, 3));
        if (ml_str_begins_nocase(rest, "correct"))
            return upper(s.ptr[i]);
    }
    return 0;
}

/* The letter that opens the response, or the last capital on its own. */
static char lone_capital(const question *q, ml_str s) {
    bool opens = s.len > 1 && s.ptr[0] >= 'A' && s.ptr[0] <= 'Z' &&
                 (s.ptr[1] != ' ' || may_be_word(s, 0));
    char c = opens ? choice_at(q, s, 0) : 0;

    for (size_t i = s.len; !c && i-- > 0;)
        if (s.ptr[i] >= 'A' && s.ptr[i] <= 'Z')
            c = choice_at(q, s, i);
    return c;
}

static char chosen(const question *q, ml_str s) {
    char c = last_after(q, s, "answer");

    c = c ? c : first_after(q, s, "option");
    c = c ? c : first_after(q, s, "choice");
    c = c ? c : before_correct(q, s);
    return c ? c : lone_capital(q, ml_str_trim(s));
}

/* --- the text of the choice --------------------------------------------------------------------- */

/* The words of `part` stand in `all`, and not right after "not".  A single letter may stand
 * anywhere. */
static bool has_words(ml_str all, ml_str part) {
    if (part.len == 1 && is_letter(part.ptr[0]))
        return all.len && memchr(all.ptr, part.ptr[0], all.len);
    for (size_t i = 0; i + part.len <= all.len; i++) {
        ml_str before = { all.ptr, i };
        if (memcmp(all.ptr + i, part.ptr, part.len) != 0 ||
            (i > 0 && all.ptr[i - 1] != ' ') ||
            (i + part.len < all.len && all.ptr[i + part.len] != ' '))
            continue;
        before = ml_str_trim(before);
        if (before.len >= 3 && (memcmp(before.ptr + before.len - 2, " a", 2) == 0 ||
                                memcmp(before.ptr + before.len - 3, " an", 3) == 0))
            before = ml_str_trim((ml_str){ before.ptr, ml_str_last(before, " ") });
        if (before.len < 3 || memcmp(before.ptr + before.len - 3, "not", 3) != 0)
            return true;
    }
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

/* --- the reward ------------------------------------------------------------------------------------ */

static double grade(question *q, ml_str response) {
    size_t think = ml_str_last(response, "</think>");
    char letter;

    if (think < response.len)
        response = ml_str_from(response, think + 8);
    letter = chosen(q, response);
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
      "1 when the letter or text of the right choice is given, else 0" },
    run,
};
