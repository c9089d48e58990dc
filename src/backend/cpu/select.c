#include "backend/cpu/select.h"

#include <math.h>
#include <string.h>

/* A distance is not negative: 31 bits, taken as 11, 10 and 10. */
enum { SELECT_BINS = 2048, SELECT_BLOCK = 256 };
static const struct {
    uint32_t shift, bits;
} digits[] = { { 20, 11 }, { 10, 10 }, { 0, 10 } };

/* How many tokens have a digit, and what they weigh. */
typedef struct select_bins {
    int64_t count[SELECT_BINS];
    double mass[SELECT_BINS];
} select_bins;

/* Where keeping ends: the leading bits of the last token kept, as far as they are known, and
 * what comes before all tokens that begin with them. */
typedef struct select_edge {
    uint32_t key;
    int64_t count;
    double mass;
} select_edge;

/* What may come before a token that is kept. */
typedef struct select_limit {
    int64_t count; /* less than this */
    double mass;   /* at most this */
} select_limit;

static uint32_t key_of(float d) {
    uint32_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

void ml_select_all(ml_select *s, const float *z, int64_t n, float temperature, float m) {
    s->kern->sample->distance(s->d, z, n, temperature, m);
    for (int64_t i = 0; i < n; i++)
        s->id[i] = (int32_t)i;
    s->n = n;
}

/* Tokens that begin with `key`, by their next digit.  Weights are needed for p alone. */
static void select_count(const ml_select *s, select_bins *b, uint32_t key, int digit,
                         bool weigh) {
    const uint32_t shift = digits[digit].shift, bits = digits[digit].bits;
    const uint32_t mask = (1u << bits) - 1;
    float w[SELECT_BLOCK] = { 0 };

    memset(b, 0, sizeof *b);
    for (int64_t i = 0; i < s->n; i += SELECT_BLOCK) {
        int64_t n = s->n - i < SELECT_BLOCK ? s->n - i : SELECT_BLOCK;
        if (weigh)
            s->kern->sample->weigh(w, s->d + i, n);
        for (int64_t j = 0; j < n; j++) {
            uint32_t u = key_of(s->d[i + j]) >> shift;
            if (u >> bits != key)
                continue;
            b->count[u & mask]++;
            b->mass[u & mask] += (double)w[j];
        }
    }
}

/* One digit further: the first bin in which a limit is reached, else the last with tokens. */
static void select_descend(select_edge *e, const select_bins *b, int digit,
                           const select_limit *limit) {
    select_edge at = *e;
    uint32_t n = 1u << digits[digit].bits, found = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (b->count[i] == 0)
            continue;
        found = i;
        e->count = at.count;
        e->mass = at.mass;
        at.count += b->count[i];
        at.mass += b->mass[i];
        if (at.count >= limit->count || at.mass > limit->mass)
            break;
    }
    e->key = e->key << digits[digit].bits | found;
}

/* Drops tokens whose leading bits lie behind the edge. */
static void select_drop(ml_select *s, const select_edge *e, int digit) {
    int64_t n = 0;
    for (int64_t i = 0; i < s->n; i++) {
        s->id[n] = s->id[i];
        s->d[n] = s->d[i];
        n += key_of(s->d[i]) >> digits[digit].shift <= e->key;
    }
    s->n = n;
}

/* Of the tokens that equal the edge in all bits, keeps what the limits still allow. */
static void select_ties(ml_select *s, const select_edge *e, const select_limit *limit) {
    int64_t n = 0, count = e->count;
    double mass = e->mass;
    float w;

    for (int64_t i = 0; i < s->n; i++) {
        bool tie = key_of(s->d[i]) == e->key;
        if (tie && (count >= limit->count || mass > limit->mass))
            continue;
        if (tie) {
            count++;
            mass += (double)s->kern->sample->weigh(&w, s->d + i, 1);
        }
        s->id[n] = s->id[i];
        s->d[n++] = s->d[i];
    }
    s->n = n;
}

void ml_select_first(ml_select *s, int64_t k, float p) {
    select_edge e = { 0 };
    select_bins b;
    select_limit limit = { .count = k, .mass = INFINITY };
    bool weigh = p < 1.0f;

    if (k >= s->n && !weigh)
        return;
    for (int digit = 0; digit < 3; digit++) {
        select_count(s, &b, e.key, digit, weigh);
        if (digit == 0 && weigh) {
            double total = 0.0;
            for (int i = 0; i < SELECT_BINS; i++)
                total += b.mass[i];
            limit.mass = (double)p * total;
        }
        select_descend(&e, &b, digit, &limit);
        select_drop(s, &e, digit);
    }
    select_ties(s, &e, &limit);
}

void ml_select_near(ml_select *s, float d) {
    int64_t n = 0;
    for (int64_t i = 0; i < s->n; i++) {
        s->id[n] = s->id[i];
        s->d[n] = s->d[i];
        n += s->d[i] <= d;
    }
    s->n = n;
}

static bool select_before(const ml_select *s, int64_t a, int64_t b) {
    return s->d[a] < s->d[b] || (s->d[a] == s->d[b] && s->id[a] < s->id[b]);
}

static void select_swap(ml_select *s, int64_t a, int64_t b) {
    float d = s->d[a];
    int32_t id = s->id[a];
    s->d[a] = s->d[b];
    s->id[a] = s->id[b];
    s->d[b] = d;
    s->id[b] = id;
}

/* Sinks token i of a heap of n, whose root is the last in order. */
static void select_sink(ml_select *s, int64_t i, int64_t n) {
    for (int64_t child = 2 * i + 1; child < n; child = 2 * i + 1) {
        if (child + 1 < n && select_before(s, child, child + 1))
            child++;
        if (!select_before(s, i, child))
            return;
        select_swap(s, i, child);
        i = child;
    }
}

/* A heap sort: the C library's allocates. */
void ml_select_sort(ml_select *s) {
    for (int64_t i = s->n / 2 - 1; i >= 0; i--)
        select_sink(s, i, s->n);
    for (int64_t n = s->n - 1; n > 0; n--) {
        select_swap(s, 0, n);
        select_sink(s, 0, n);
    }
}
