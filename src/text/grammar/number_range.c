/* number_range.c - decimal numbers between two bounds, as rules. */
#include <string.h>

#include "text/grammar/grammar_priv.h"

enum { MAX_DIGITS = 20 };

/* Numbers of n digits, the last `point` of them decimals. */
typedef struct digits {
    ml_grules *g;
    int n, point;
    char lo[MAX_DIGITS], hi[MAX_DIGITS];
} digits;

/* Digit i is one of lo .. hi. */
static void add_digit(const digits *d, ml_gnode *seq, int i, char lo, char hi) {
    ml_grange r = { (uint32_t)lo, (uint32_t)hi };

    if (d->point && i == d->n - d->point)
        ml_gnode_add(seq, ml_gnode_text(d->g, "."));
    ml_gnode_add(seq, ml_gnode_class(d->g, &r, 1, false));
}

static ml_gnode *digits_from(const digits *d, int i, bool low, bool high);

/* Digit i is one of from .. to; the rest is bounded or not. */
static void add_branch(const digits *d, ml_gnode *alt, int i, char from, char to, bool low,
                       bool high) {
    ml_gnode *seq = ml_gnode_new(d->g, ML_GNODE_SEQ);

    if (from > to)
        return;
    add_digit(d, seq, i, from, to);
    ml_gnode_add(alt, ml_gnode_add(seq, digits_from(d, i + 1, low, high)));
}

/* Digits i .. n - 1 that are, as a number, at least those of lo (if `low`) and at most
 * those of hi (if `high`). */
static ml_gnode *digits_from(const digits *d, int i, bool low, bool high) {
    ml_gnode *alt = ml_gnode_new(d->g, ML_GNODE_ALT);
    char lo, hi;

    if (i == d->n)
        return ml_gnode_new(d->g, ML_GNODE_EMPTY);
    lo = low ? d->lo[i] : '0';
    hi = high ? d->hi[i] : '9';
    if (low && high && lo == hi) {
        add_branch(d, alt, i, lo, hi, true, true);
        return alt;
    }
    if (low)
        add_branch(d, alt, i, lo, lo, true, false);
    add_branch(d, alt, i, (char)(lo + low), (char)(hi - high), false, false);
    if (high)
        add_branch(d, alt, i, hi, hi, false, true);
    return alt;
}

static int count_digits(int64_t x) {
    int n = 1;
    while (x >= 10) {
        x /= 10;
        n++;
    }
    return n;
}

static void spell(char *out, int n, int64_t x) {
    for (int i = n - 1; i >= 0; i--, x /= 10)
        out[i] = (char)('0' + x % 10);
}

/* lo .. hi, not negative. */
static void add_positive(ml_grules *g, ml_gnode *alt, int64_t lo, int64_t hi, int point,
                         bool minus) {
    int64_t power = 1;

    for (int n = 1; n <= count_digits(hi) || n <= point + 1; n++, power *= 10) {
        digits d = { .g = g, .n = n, .point = point };
        int64_t least = n <= point + 1 ? 0 : power, most = 10 * power - 1;
        ml_gnode *seq;
        least = lo > least ? lo : least;
        most = hi < most ? hi : most;
        if (n < point + 1 || least > most)
            continue;
        spell(d.lo, n, least);
        spell(d.hi, n, most);
        seq = ml_gnode_new(g, ML_GNODE_SEQ);
        if (minus)
            ml_gnode_add(seq, ml_gnode_text(g, "-"));
        ml_gnode_add(alt, ml_gnode_add(seq, digits_from(&d, 0, true, true)));
    }
}

ml_gnode *ml_number_range(ml_grules *g, int64_t lo, int64_t hi, int32_t point) {
    ml_gnode *alt = ml_gnode_new(g, ML_GNODE_ALT);

    if (hi >= 0 && lo <= hi)
        add_positive(g, alt, lo > 0 ? lo : 0, hi, point, false);
    if (lo < 0 && lo <= hi)
        add_positive(g, alt, hi < 0 ? -hi : 1, -lo, point, true);
    return alt;
}
