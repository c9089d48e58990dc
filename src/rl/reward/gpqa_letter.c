#include "rl/reward/gpqa_letter.h"

#include <string.h>

#include "base/bug.h"
#include "base/utf8.h"

#define REACH 8     /* words that may stand between a cue and its letter */
#define SENTENCE 60 /* words of a sentence that are looked at */

/* A word in lower case, a sign, or the macro \boxed.  Emphasis, fonts, tags, braces and quotes
 * are gone. */
typedef struct word {
    ml_str text;
    char letter; /* the capital of a single ASCII letter; 0: this is no letter */
    bool capital, sign, spaced,
        breaks; /* spaced, breaks: a blank, a line break before it */
    bool tied;  /* a letter that touches a hyphen, subscript or exponent: C-terminal, C_2 */
} word;

typedef struct words {
    const bool *valid;
    const word *w;
    int32_t n;
} words;

/* --- reading ------------------------------------------------------------------------------ */

typedef struct reader {
    word *w; /* [cap] */
    char *low;
    int32_t n, cap;
    bool spaced, breaks;
} reader;

/* What a character beyond ASCII is the same as: full width, bold, circled, look-alikes.  A
 * character that is not seen is a blank. */
static uint32_t folded(uint32_t c) {
    static const uint32_t rows[][2] = {
        { 0x17f, 's' },  { 0x2019, '\'' }, { 0x2018, '\'' }, { 0x201c, '"' },
        { 0x201d, '"' }, { 0x3002, '.' },  { 0x3001, ',' },  { 0x2192, ':' },
        { 0x2013, '-' }, { 0x2014, ',' },  { 0x2212, '-' },  { 0xa0, ' ' },
        { 0x200b, ' ' }, { 0x200c, ' ' },  { 0x200d, ' ' },  { 0x2060, ' ' },
        { 0xfeff, ' ' }, { 0x3000, ' ' },  { 0x202f, ' ' },  { 0x2009, ' ' },
        { 0x410, 'A' },  { 0x412, 'B' },   { 0x421, 'C' },   { 0x415, 'E' },
        { 0x41d, 'H' },  { 0x300c, '(' },  { 0x300d, ')' },  { 0x3010, '(' },
        { 0x3011, ')' },
    };

    if (c >= 0xff01 && c <= 0xff5e)
        return c - 0xfee0;
    if (c >= 0x24b6 && c <= 0x24cf)
        return 'A' + c - 0x24b6;
    if (c >= 0x1d400 && c <= 0x1d6a3)
        return (c - 0x1d400) % 52 < 26 ? 'A' + (c - 0x1d400) % 52
                                       : 'a' + (c - 0x1d400) % 52 - 26;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (rows[i][0] == c)
            return rows[i][1];
    return c;
}

static bool is_ascii_letter(uint32_t c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

/* Letters of alphabets whose words have blanks between them. */
static bool is_word_char(uint32_t c) {
    return is_ascii_letter(c) || (c >= '0' && c <= '9') ||
           (c >= 0xaa && c < 0x2000 && c != 0xb0 && c != 0xb7 && c != 0xd7 && c != 0xf7);
}

static word *push(reader *r) {
    word *w;

    ML_BUG_IF(r->n == r->cap); /* a word is at least a byte */
    w = &r->w[r->n++];
    *w = (word){ .spaced = r->spaced, .breaks = r->breaks };
    r->spaced = r->breaks = false;
    return w;
}

/* The next character; look-alikes only where the character before and after are no letters
 * of the same alphabet. */
static uint32_t next_char(const char **p, const char *end) {
    uint32_t raw = ml_utf8_next(p), c = folded(raw);
    const char *q = *p;

    if (raw >= 0x400 && raw < 0x500 && q < end && is_word_char(ml_utf8_next(&q)))
        return raw;
    return c;
}

static void read_word(reader *r, const char **p, const char *end) {
    const char *from = r->low;
    uint32_t first = 0;
    int count = 0;
    word *w;

    while (*p < end) {
        const char *q = *p, *after;
        uint32_t c = next_char(&q, end);
        after = q;
        if (c == '\'' && count > 0 && after < end && is_word_char(next_char(&after, end)))
            ; /* isn't */
        else if (!is_word_char(c))
            break;
        first = count++ ? first : c;
        if (c >= 'A' && c <= 'Z')
            *r->low++ = (char)(c + 'a' - 'A');
        else
            r->low += ml_utf8_put(r->low, c);
        *p = q;
    }
    w = push(r);
    w->text = (ml_str){ from, (size_t)(r->low - from) };
    w->capital = first >= 'A' && first <= 'Z';
    if (count == 1 && is_ascii_letter(first))
        w->letter = (char)(w->capital ? first : first - 'a' + 'A');
}

/* \boxed counts; other macros are fonts. */
static void read_macro(reader *r, const char **p, const char *end) {
    const char *from = ++*p;

    while (*p < end && is_ascii_letter((unsigned char)**p))
        ++*p;
    if (*p - from == 5 && memcmp(from, "boxed", 5) == 0)
        push(r)->text = ml_str_of("\\boxed");
    else if (*p == from && *p < end)
        r->spaced = true, ++*p;
}

/* How many bytes <b> or </b> has at p; 0: this is no tag. */
static size_t tag_at(const char *p, const char *end) {
    const char *q = p + 1;

    while (q < end && q - p < 12 && (is_ascii_letter((unsigned char)*q) || *q == '/'))
        q++;
    return q < end && *q == '>' && q > p + 1 ? (size_t)(q + 1 - p) : 0;
}

/* A sign that ties the letter before it to what follows. */
static void tie(reader *r, const char *after, const char *end) {
    word *last = r->n ? &r->w[r->n - 1] : NULL;

    if (last && last->letter && !r->spaced && after < end && *after != ' ' &&
        *after != '*' && *after != '\n')
        last->tied = true;
}

static void push_sign(reader *r, uint32_t c) {
    word *w = push(r);

    w->sign = c < 0x80 || c == 0xb0;
    w->text = (ml_str){ r->low, (size_t)ml_utf8_put(r->low, c) };
    r->low += w->text.len;
}

static void read_char(reader *r, const char **p, const char *end) {
    const char *from = *p;
    uint32_t c = next_char(p, end);

    if (c == '-' || c == '_' || c == '^')
        tie(r, *p, end);
    if (c == '\\' || is_word_char(c)) {
        *p = from;
        (c == '\\' ? read_macro : read_word)(r, p, end);
    } else if (c == '<' && tag_at(from, end) > 0)
        *p = from + tag_at(from, end);
    else if (c == '\n')
        r->breaks = r->spaced = true;
    else if (c < 0x80 && c && strchr(" \t\r_^", (int)c))
        r->spaced = true;
    else if (c >= 0x80 || !c || !strchr("*`${}\"'~#>", (int)c))
        push_sign(r, c);
}

static words read_words(ml_arena *a, const bool *valid, ml_str s) {
    reader r = { .cap = (int32_t)s.len + 1, .breaks = true };
    const char *p, *end;
    char *bytes = ml_arena_str(a, s.ptr, s.len);

    if (ml_utf8_valid(s) < s.len)
        for (size_t i = 0; i < s.len; i++)
            bytes[i] = (unsigned char)bytes[i] < 0x80 ? bytes[i] : ' ';
    r.w = ML_NEW(a, word, s.len + 1);
    r.low = ML_NEW(a, char, s.len + 4);
    for (p = bytes, end = p + s.len; p < end;)
        read_char(&r, &p, end);
    return (words){ valid, r.w, r.n };
}

/* --- words that decide ------------------------------------------------------------------------ */

static bool is_one_of(const word *w, const char *const *list) {
    for (; *list; list++)
        if (ml_str_is(w->text, *list))
            return true;
    return false;
}

static bool begins_with(const word *w, const char *const *list) {
    for (; *list; list++) {
        size_t n = strlen(*list);
        if (w->text.len >= n && memcmp(w->text.ptr, *list, n) == 0)
            return true;
    }
    return false;
}

static bool is_sign(const word *w, const char *signs) {
    return w->sign && w->text.len == 1 && strchr(signs, w->text.ptr[0]);
}

/* A sentence ends before w[i], as far as can be seen. */
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

/* --- is it a choice? ------------------------------------------------------------------------- */

/* What follows a letter in a sentence about it, and no noun after an article. */
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

/* "a" before a noun; a capital is an article only where a sentence begins. */
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

/* A letter that may name a choice, wherever it stands. */
static bool is_choice(words s, int32_t i) {
    const word *w = &s.w[i];

    return w->letter && s.valid[w->letter - 'A'] && !w->tied && !is_article(s, i) &&
           !is_pronoun(s, i) && !is_named(s, i);
}

/* In brackets, or before a sign, the end or a line break: no word. */
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

/* --- is it rejected? -------------------------------------------------------------------------- */

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
        if (!is_filler(w) && !joins(w) && !(w->letter && s.valid[w->letter - 'A']))
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
        if (!is_filler(w) && !joins(w) && !is_one_of(w, links) &&
            !(w->letter && s.valid[w->letter - 'A']))
            return false;
    }
    return false;
}

static bool is_chosen(words s, int32_t i) {
    return is_choice(s, i) && !rejected_before(s, i) && !rejected_after(s, i);
}

/* --- cues -------------------------------------------------------------------------------------- */

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

/* Between a cue and its letter. */
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

/* The letter right after the cue at k; -1: none.  *decisive: an "is" or colon between them. */
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

/* The first capital in what is left of the sentence. */
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

typedef enum strength { NONE, ANY, OPENS, MENTION, SAID, FINAL, N_STRENGTH } strength;

/* 答案: a cue of two characters. */
static bool ends_cjk_cue(words s, int32_t k) {
    static const char *const second[] = { "案", "え", 0 };
    return k > 0 && is_one_of(&s.w[k], second) && ml_str_is(s.w[k - 1].text, "答");
}

/* Which letter the word at k points to, and how strongly. */
static strength pointed(words s, int32_t k, int32_t *at) {
    static const char *const weak[] = { "so",     "therefore", "thus",  "hence", "it's",
                                        "that's", "go",        "going", "it",    0 };
    const word *w = &s.w[k];
    bool answer = is_answer_word(w) || ends_cjk_cue(s, k), decisive;

    if (w->letter) {
        *at = k;
        return is_chosen(s, k) && is_praised(s, k) ? SAID : NONE;
    }
    *at = letter_after(s, k, &decisive);
    if (*at >= 0 && w->text.ptr[0] == '\\')
        return FINAL;
    if (*at >= 0 && answer)
        return k > 0 && ml_str_is(s.w[k - 1].text, "final") ? FINAL : SAID;
    if (*at >= 0 && (is_choosing(w) || (is_option_word(w) && decisive)))
        return SAID;
    if (*at >= 0 && (is_option_word(w) || is_one_of(w, weak)))
        return MENTION;
    if (answer || is_option_word(w))
        *at = letter_in_sentence(s, k);
    return *at >= 0 && (answer || is_option_word(w)) ? MENTION : NONE;
}

/* "B because ...", "B. ...", or nothing but a letter. */
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
    words s = read_words(a, valid, response);
    int32_t found[N_STRENGTH], at;

    for (int i = 0; i < N_STRENGTH; i++)
        found[i] = -1;
    for (int32_t k = 0; k < s.n; k++) {
        strength how = pointed(s, k, &at);
        if (how != NONE && (how != MENTION || found[how] < 0))
            found[how] = at;
        if (s.w[k].capital && is_chosen(s, k) && !is_in_formula(s, k))
            found[ANY] = k;
    }
    if (opens(s, &at))
        found[OPENS] = at;
    for (int i = FINAL; i > NONE; i--)
        if (found[i] >= 0)
            return s.w[found[i]].letter;
    return 0;
}
