#include "rl/reward/graders/gpqa_letter.h"

#include <string.h>

#include "rl/reward/graders/gpqa_words.h"

#define REACH 8     /* maximum number of words between a cue and its letter */
#define SENTENCE 60 /* maximum number of words of a sentence that are examined */

typedef ml_gpqa_word word;

typedef struct words {
    const bool *valid;
    const word *w;  /* [n] */
    uint8_t *known; /* [n]: result of is_chosen() plus 1; 0: not computed yet */
    int32_t n;
} words;

/* --- decisive words ----------------------------------------------------------- */

static bool is_one_of(const word *w, const char *const *list) {
    for (; *list; list++)
        if ((*list)[0] == w->text.ptr[0] && ml_str_is(w->text, *list))
            return true;
    return false;
}

static bool begins_with(const word *w, const char *const *list) {
    for (; *list; list++) {
        size_t n = strlen(*list);
        if ((*list)[0] == w->text.ptr[0] && w->text.len >= n &&
            memcmp(w->text.ptr, *list, n) == 0)
            return true;
    }
    return false;
}

static bool is_sign(const word *w, const char *signs) {
    return w->sign && w->text.len == 1 && strchr(signs, w->text.ptr[0]);
}

/* True if a sentence seems to end before w[i]. */
static bool begins_sentence(words s, int32_t i) {
    return i == 0 || s.w[i].breaks || is_sign(&s.w[i - 1], ".!?:;") ||
           s.w[i - 1].text.ptr[0] == '\\';
}

static bool is_negation(const word *w) {
    static const char *const list[] = { "not",  "neither", "nor",    "never",   "cannot",
                                        "than", "unlike",  "except", "without", "nicht",
                                        "pas",  "non",     "不",     0 };
    size_t n = w->text.len;

    return is_one_of(w, list) || (n > 3 && memcmp(w->text.ptr + n - 3, "n't", 3) == 0);
}

/* --- is it a choice? ---------------------------------------------------------- */

/* A word that can follow a letter in a sentence about it, but is not a noun after an
 * article. */
static bool follows_letter(const word *w) {
    static const char *const list[] = {
        "because", "since",   "as",    "is",   "was",     "due",   "for",     "and",
        "or",      "which",   "given", "by",   "with",    "not",   "it",      "this",
        "that",    "in",      "so",    "but",  "though",  "if",    "when",    "would",
        "can",     "has",     "seems", "must", "should",  "looks", "fits",    "matches",
        "works",   "follows", "holds", "may",  "appears", "are",   "were",    "alone",
        "only",    "here",    "wins",  "to",   "from",    "based", "however", 0
    };
    return is_one_of(w, list);
}

/* "a" before a noun; a capital "A" is an article only at the start of a sentence. */
static bool is_article(words s, int32_t i) {
    const word *w = &s.w[i], *next = w + 1;

    if (w->letter != 'A' || i + 1 == s.n || next->sign || next->breaks || next->letter ||
        next->capital || follows_letter(next))
        return false;
    return !w->capital || begins_sentence(s, i);
}

static bool is_pronoun(words s, int32_t i) {
    return s.w[i].letter == 'I' && i + 1 < s.n && !s.w[i + 1].sign && !s.w[i + 1].breaks &&
           !s.w[i + 1].capital;
}

/* vitamin C, Figure A, 25 °C. */
static bool is_named(words s, int32_t i) {
    static const char *const nouns[] = { "vitamin", "vitamins", "figure",    "fig",
                                         "table",   "appendix", "hepatitis", "influenza",
                                         "chapter", "section",  "equation",  "°",
                                         0 };

    return i > 0 && (is_one_of(&s.w[i - 1], nouns) ||
                     (is_sign(&s.w[i - 1], ".") && i > 1 && is_one_of(&s.w[i - 2], nouns)));
}

static bool is_valid(words s, int32_t i) {
    return s.w[i].letter && s.valid[s.w[i].letter - 'A'];
}

/* A letter that may name a choice, at any position. */
static bool is_choice(words s, int32_t i) {
    const word *w = &s.w[i];

    return is_valid(s, i) && !w->tied && !is_article(s, i) && !is_pronoun(s, i) &&
           !is_named(s, i);
}

/* In brackets, or before a sign, the end or a line break: not a word of a sentence. */
static bool is_enclosed(words s, int32_t i) {
    return i + 1 == s.n || s.w[i + 1].sign || s.w[i + 1].breaks;
}

/* Part of a formula: E = mc, 5 C. */
static bool is_in_formula(words s, int32_t i) {
    bool number = i > 0 && s.w[i - 1].text.ptr[0] >= '0' && s.w[i - 1].text.ptr[0] <= '9' &&
                  !s.w[i].breaks;
    return number || (i > 0 && is_sign(&s.w[i - 1], "=+/|")) ||
           (i + 1 < s.n && is_sign(&s.w[i + 1], "=+/|"));
}

/* --- is it rejected? ---------------------------------------------------------- */

static bool is_filler(const word *w) {
    static const char *const list[] = { "option",  "options", "choice", "choices", "answer",
                                        "answers", "the",     "both",   "letter",  "just",
                                        "out",     "of",      0 };
    return is_sign(w, "()[]") || is_one_of(w, list);
}

static bool joins(const word *w) {
    static const char *const list[] = { "and", "or", "nor", 0 };
    return is_sign(w, ",&/") || is_one_of(w, list);
}

/* "not B", "rule out A and B", "instead of C"; a comma ends "unlike A, B ...". */
static bool rejected_before(words s, int32_t i) {
    static const char *const verbs[] = { "eliminat", "exclud", "reject",  "discard",
                                         "rule",     "ruling", "dismiss", 0 };
    static const char *const clause[] = { "unlike", "than", "except", "without", 0 };
    bool comma = false;

    for (int32_t k = i - 1; k >= 0 && i - k <= 2 * REACH; k--) {
        const word *w = &s.w[k];
        if (comma && is_one_of(w, clause))
            return false;
        if (is_negation(w) || begins_with(w, verbs) ||
            (ml_str_is(w->text, "instead") && ml_str_is(w[1].text, "of")))
            return true;
        if (w[1].breaks ||
            (!is_filler(w) && !joins(w) && !(is_valid(s, k) && joins(w + 1))))
            return false;
        comma = comma || is_sign(w, ",");
    }
    return false;
}

/* "B is wrong", "A and B are clearly too small". */
static bool rejected_after(words s, int32_t i) {
    static const char *const links[] = {
        "is",        "are",    "was",       "were",       "seems", "seem",    "looks",
        "look",      "can",    "be",        "would",      "could", "must",    "been",
        "has",       "have",   "which",     "clearly",    "also",  "all",     "both",
        "therefore", "simply", "obviously", "definitely", "that",  "appears", "ist",
        "sind",      "est",    "sont",      "es",         0
    };
    static const char *const bad[] = {
        "wrong",  "incorrect",  "false",    "eliminat",  "exclud",     "reject",
        "ruled",  "impossible", "unlikely", "inconsist", "invalid",    "irrelevant",
        "too",    "fails",      "fail",     "violate",   "contradict", "out",
        "falsch", "faux",       0
    };
    for (int32_t k = i + 1; k < s.n && k - i <= 2 * REACH; k++) {
        const word *w = &s.w[k];
        if (is_negation(w) && !ml_str_is(w->text, "than"))
            return k > i + 1 && !joins(w - 1);
        if (begins_with(w, bad))
            return true;
        if (w->breaks || (!is_filler(w) && !joins(w) && !is_one_of(w, links) &&
                          !(is_valid(s, k) && joins(w - 1))))
            return false;
    }
    return false;
}

static bool is_chosen(words s, int32_t i) {
    if (!s.known[i])
        s.known[i] =
            is_choice(s, i) && !rejected_before(s, i) && !rejected_after(s, i) ? 2 : 1;
    return s.known[i] == 2;
}

/* --- cues --------------------------------------------------------------------- */

static bool is_answer_word(const word *w) {
    static const char *const list[] = { "answer",    "antwort",  "réponse",  "reponse",
                                        "respuesta", "risposta", "resposta", "ответ",
                                        "svar",      "antwoord", 0 };
    return is_one_of(w, list);
}

static bool is_option_word(const word *w) {
    static const char *const list[] = { "option",  "choice", "opción", "opción",
                                        "auswahl", "letter", 0 };
    return is_one_of(w, list);
}

static bool is_choosing(const word *w) {
    static const char *const list[] = { "choose", "chose",     "choosing",
                                        "pick",   "picked",    "picking",
                                        "select", "selected",  "选",
                                        "選",     "selecting", "choosen",
                                        "wähle",  "choisis",   0 };
    return is_one_of(w, list);
}

/* A word that can be between a cue and its letter. */
static bool is_link(const word *w) {
    static const char *const list[] = {
        "is",        "was",    "be",     "are",    "would",     "should",   "must",
        "will",      "thus",   "hence",  "then",   "therefore", "clearly",  "definitely",
        "simply",    "most",   "likely", "indeed", "probably",  "option",   "choice",
        "letter",    "answer", "the",    "here",   "correct",   "right",    "best",
        "one",       "number", "final",  "ist",    "lautet",    "est",      "es",
        "é",         "è",      "sera",   "la",     "l'option",  "die",      "opción",
        "buchstabe", "lettre", "our",    "my",     "certainly", "actually", "obviously",
        "really",    "是",     "为",     "為",     "は",        "选",       "選",
        "项",        "項",     "with",   "går",    "är",        "really",   "to",
        "question",  0
    };
    return is_sign(w, ":=-()[],") || is_one_of(w, list);
}

static bool is_decisive_link(const word *w) {
    static const char *const list[] = { "is", "be", "was", "ist", "est", "es", "是", 0 };
    return is_sign(w, ":=") || is_one_of(w, list);
}

/* The letter directly after the cue at k; -1: none. *decisive: an "is" or colon between
 * them. */
static int32_t letter_after(words s, int32_t k, bool *decisive) {
    *decisive = false;
    for (int32_t i = k + 1; i < s.n && i - k <= REACH; i++) {
        if (is_chosen(s, i) &&
            (s.w[i].capital || is_enclosed(s, i) || follows_letter(&s.w[i + 1])))
            return i;
        if (!is_link(&s.w[i]))
            return -1;
        *decisive = *decisive || is_decisive_link(&s.w[i]);
    }
    return -1;
}

/* The first capital letter in the rest of the sentence. */
static int32_t letter_in_sentence(words s, int32_t k) {
    for (int32_t i = k + 1; i < s.n && i - k <= SENTENCE; i++) {
        if (s.w[i].breaks || (is_sign(&s.w[i - 1], ".!?") && s.w[i].spaced))
            return -1;
        if (s.w[i].capital && is_chosen(s, i) && !is_in_formula(s, i))
            return i;
    }
    return -1;
}

/* "B is correct", "(B) must be the right answer". */
static bool is_praised(words s, int32_t i) {
    static const char *const good[] = { "correct", "right", "best",    "answer",  "true",
                                        "valid",   "final", "closest", "richtig", 0 };
    static const char *const links[] = { "is",     "was",       "must", "be",     "the",
                                         "seems",  "my",        "our",  "only",   "most",
                                         "likely", "clearly",   "to",   "looks",  "ist",
                                         "thus",   "therefore", "a",    "indeed", 0 };

    for (int32_t k = i + 1; k < s.n && k - i <= REACH; k++) {
        if (is_one_of(&s.w[k], good))
            return k > i + 1;
        if (!is_one_of(&s.w[k], links) && !is_sign(&s.w[k], ")]"))
            return false;
    }
    return false;
}

typedef enum strength {
    NONE,
    ASKED,
    ANY,
    OPENS,
    MENTION,
    SAID,
    FINAL,
    N_STRENGTH
} strength;

/* "Is it B?" */
static bool is_asked(words s, int32_t i) {
    return i + 1 < s.n &&
           (is_sign(&s.w[i + 1], "?") ||
            (is_sign(&s.w[i + 1], ")") && i + 2 < s.n && is_sign(&s.w[i + 2], "?")));
}

/* 答案: a cue of two characters. */
static bool ends_cjk_cue(words s, int32_t k) {
    static const char *const second[] = { "案", "え", 0 };
    return k > 0 && is_one_of(&s.w[k], second) && ml_str_is(s.w[k - 1].text, "答");
}

/* The letter to which the word at k points, and how strongly. */
static strength pointed(words s, int32_t k, int32_t *at) {
    static const char *const weak[] = { "so",     "therefore", "thus",  "hence", "it's",
                                        "that's", "go",        "going", "it",    0 };
    const word *w = &s.w[k];
    bool answer = is_answer_word(w) || ends_cjk_cue(s, k), option = is_option_word(w);
    bool boxed = w->text.ptr[0] == '\\', choosing = is_choosing(w), decisive;

    if (w->letter) {
        *at = k;
        return is_chosen(s, k) && is_praised(s, k) ? SAID : NONE;
    }
    if (!answer && !option && !boxed && !choosing && !is_one_of(w, weak))
        return NONE;
    *at = letter_after(s, k, &decisive);
    if (*at < 0) {
        *at = answer || option ? letter_in_sentence(s, k) : -1;
        return *at >= 0 ? MENTION : NONE;
    }
    if (boxed || (answer && k > 0 && ml_str_is(s.w[k - 1].text, "final")))
        return FINAL;
    if (answer || choosing || (option && decisive))
        return SAID;
    return is_asked(s, *at) ? ASKED : MENTION;
}

/* "because C is too large": a letter in the reason for another. */
static bool is_reason(words s, int32_t i) {
    static const char *const list[] = { "because",  "since",  "while", "whereas",
                                        "although", "though", "if",    0 };

    while (i > 0 && is_filler(&s.w[i - 1]))
        i--;
    return i > 0 && is_one_of(&s.w[i - 1], list);
}

/* "B because ...", "B. ...", or only a letter. */
static bool opens(words s, int32_t *at) {
    int32_t i = 0;

    while (i < s.n && is_sign(&s.w[i], "(["))
        i++;
    *at = i;
    if (i == s.n || !is_chosen(s, i))
        return false;
    if (!s.w[i].capital)
        return is_enclosed(s, i) && s.n <= i + 3;
    return is_enclosed(s, i) || (!s.w[i + 1].capital && !s.w[i + 1].letter);
}

char ml_gpqa_letter(ml_arena *a, const bool valid[ML_GPQA_LETTERS], ml_str response) {
    int32_t found[N_STRENGTH], at;
    ml_gpqa_words all;
    words s;

    ml_gpqa_words_init(&all, a, response);
    s = (words){ valid, all.w, ML_NEW(a, uint8_t, all.n + 1), all.n };
    for (int i = 0; i < N_STRENGTH; i++)
        found[i] = -1;
    for (int32_t k = 0; k < s.n; k++) {
        strength how = pointed(s, k, &at);
        if (how != NONE && (how != MENTION || found[how] < 0))
            found[how] = at;
        if (s.w[k].capital && is_chosen(s, k) && !is_in_formula(s, k))
            found[is_asked(s, k) || is_reason(s, k) ? ASKED : ANY] = k;
    }
    if (opens(s, &at))
        found[OPENS] = at;
    for (int i = FINAL; i > NONE; i--)
        if (found[i] >= 0)
            return s.w[found[i]].letter;
    return 0;
}
