#include "backend/cpu/select.h"

#include <math.h>
#include <string.h>

/* Radix select on the bits of the distance.  It is not negative, so 31 bits remain, as
 * digits of 14, 9 and 8.  The first digit is long so that consecutive tokens rarely hit
 * the same bin, where one update would wait for the other. */
enum { SELECT_DIGITS = 3, SELECT_BINS = 1 << 14 };
static const struct {
    uint32_t shift, bits;
} digits[SELECT_DIGITS] = { { 17, 14 }, { 8, 9 }, { 0, 8 } };

/* Histogram bin: the tokens with one value of the current digit. */
typedef struct select_bin {
    int64_t count;
    double mass;
} select_bin;

/* The selection boundary: the leading bits of the last token kept, as far as known, and
 * count and mass of all tokens before that prefix. */
typedef struct select_edge {
    uint32_t key;
    int64_t count;
    double mass;
} select_edge;

/* Limits on the tokens that precede a kept token. */
typedef struct select_limit {
    int64_t count; /* less than this */
    double mass;   /* at most this */
} select_limit;

static uint32_t key_of(float d) {
    uint32_t u;
    memcpy(&u, &d, sizeof u);
    return u;
}

size_t ml_select_bins_bytes(void) {
    return SELECT_BINS * sizeof(select_bin);
}

void ml_select_all(ml_select *s, const float *z, int64_t n, float temperature, float m) {
    s->kern->sample->distance(s->d, z, n, temperature, m);
    for (int64_t i = 0; i < n; i++)
        s->id[i] = (int32_t)i;
    s->n = n;
}

void ml_select_weigh(ml_select *s) {
    s->kern->sample->weigh(s->w, s->d, s->n);
}

/* Moves token `from` to index `to` <= from.  s is passed by value: a pointer would be
 * reloaded after every store. */
static inline void select_move(ml_select s, int64_t to, int64_t from) {
    s.id[to] = s.id[from];
    s.d[to] = s.d[from];
    s.w[to] = s.w[from];
}

/* Builds the histogram of the next digit over tokens whose bits begin with `key`. */
static void select_count(const ml_select *s, uint32_t key, int digit, bool weighed) {
    const uint32_t shift = digits[digit].shift, bits = digits[digit].bits;
    const uint32_t mask = (1u << bits) - 1;
    const float *d = s->d, *w = s->w;
    const int64_t n = s->n;
    select_bin *bin = s->bins;

    memset(bin, 0, sizeof *bin << bits);
    for (int64_t i = 0; i < n; i++) {
        uint32_t u = key_of(d[i]) >> shift;
        if (u >> bits != key)
            continue;
        bin[u & mask].count++;
        if (weighed)
            bin[u & mask].mass += (double)w[i];
    }
}

/* Fixes one digit of the boundary: the first bin that reaches a limit, else the last
 * nonempty one. */
static void select_descend(select_edge *e, const select_bin *bin, int digit,
                           const select_limit *limit) {
    select_edge at = *e;
    uint32_t n = 1u << digits[digit].bits, found = 0;

    for (uint32_t i = 0; i < n; i++) {
        if (bin[i].count == 0)
            continue;
        found = i;
        e->count = at.count;
        e->mass = at.mass;
        at.count += bin[i].count;
        at.mass += bin[i].mass;
        if (at.count >= limit->count || at.mass > limit->mass)
            break;
    }
    e->key = e->key << digits[digit].bits | found;
}

/* Drops tokens whose first digit is beyond the boundary. */
static void select_drop(ml_select *s, const select_edge *e) {
    const ml_select all = *s;
    const uint32_t last = e->key;
    int64_t n = 0;

    for (int64_t i = 0; i < all.n; i++) {
        uint32_t key = key_of(all.d[i]) >> digits[0].shift;
        select_move(all, n, i);
        n += key <= last;
    }
    s->n = n;
}

/* Keeps all tokens before the boundary and, of those on it, as many as the limits allow. */
static void select_keep(ml_select *s, const select_edge *e, const select_limit *limit) {
    const ml_select all = *s;
    const uint32_t last = e->key;
    int64_t n = 0, count = e->count;
    double mass = e->mass;

    for (int64_t i = 0; i < all.n; i++) {
        uint32_t key = key_of(all.d[i]);
        bool keep = key < last;
        if (key == last && count < limit->count && mass <= limit->mass) {
            keep = true;
            count++;
            mass += isfinite(limit->mass) ? (double)all.w[i] : 0.0;
        }
        select_move(all, n, i);
        n += keep;
    }
    s->n = n;
}

static double select_mass(const select_bin *bin) {
    double mass = 0.0;
    for (int i = 0; i < SELECT_BINS; i++)
        mass += bin[i].mass;
    return mass;
}

void ml_select_first(ml_select *s, int64_t k, float p) {
    select_limit limit = { .count = k, .mass = (double)INFINITY };
    select_edge e = { 0 };
    bool weighed = p < 1.0f;

    if (k >= s->n && !weighed)
        return;
    for (int digit = 0; digit < SELECT_DIGITS; digit++) {
        select_count(s, e.key, digit, weighed);
        if (digit == 0 && weighed)
            limit.mass = (double)p * select_mass(s->bins);
        select_descend(&e, s->bins, digit, &limit);
        if (digit == 0)
            select_drop(s, &e);
    }
    select_keep(s, &e, &limit);
}

void ml_select_near(ml_select *s, float d) {
    const ml_select all = *s;
    int64_t n = 0;

    for (int64_t i = 0; i < all.n; i++) {
        bool near = all.d[i] <= d;
        select_move(all, n, i);
        n += near;
    }
    s->n = n;
}

static bool select_before(const ml_select *s, int64_t a, int64_t b) {
    return s->d[a] < s->d[b] || (s->d[a] == s->d[b] && s->id[a] < s->id[b]);
}

static void select_swap(ml_select *s, int64_t a, int64_t b) {
    float d = s->d[a], w = s->w[a];
    int32_t id = s->id[a];
    s->d[a] = s->d[b];
    s->w[a] = s->w[b];
    s->id[a] = s->id[b];
    s->d[b] = d;
    s->w[b] = w;
    s->id[b] = id;
}

/* Sift-down of token i in a max-heap of n (the root is last in order). */
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

/* Heapsort, because the C library's qsort may allocate. */
void ml_select_sort(ml_select *s) {
    for (int64_t i = s->n / 2 - 1; i >= 0; i--)
        select_sink(s, i, s->n);
    for (int64_t n = s->n - 1; n > 0; n--) {
        select_swap(s, 0, n);
        select_sink(s, 0, n);
    }
}
