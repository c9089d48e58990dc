#include "model/spec_cut.h"

#include <string.h>

#include "base/bug.h"

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static ml_deal *new_deal(ml_arena *a, int32_t n_rank, int64_t n_group, int64_t count,
                         int32_t **first) {
    ml_deal *d = ML_NEW(a, ml_deal, 1);

    *first = ML_NEW(a, int32_t, n_rank);
    *d = (ml_deal){ (int32_t)n_group, (int32_t)count, *first };
    return d;
}

const ml_deal *ml_deal_even(ml_arena *a, int32_t n_rank, int64_t n, int64_t multiple) {
    int64_t each = (n + n_rank - 1) / n_rank;
    int64_t count = least(n, (each + multiple - 1) / multiple * multiple);
    int32_t *first;
    const ml_deal *d = new_deal(a, n_rank, n, count, &first);

    for (int32_t r = 0; r < n_rank; r++)
        first[r] = (int32_t)least(r * count, n - count);
    return d;
}

/* Several ranks share key k; they divide its heads. */
static ml_head_deal shared_keys(ml_arena *a, int32_t n_rank, int32_t n_head,
                                int32_t n_key) {
    int32_t group = n_head / n_key, sharers = n_rank / n_key;
    int32_t each = (group + sharers - 1) / sharers, *head, *key, nth = 0;
    ml_head_deal d = { .head = new_deal(a, n_rank, n_head, each, &head),
                       .key = new_deal(a, n_rank, n_key, 1, &key) };

    for (int32_t r = 0; r < n_rank; r++) {
        key[r] = (int32_t)((int64_t)r * n_key / n_rank);
        nth = r && key[r] == key[r - 1] ? nth + 1 : 0;
        head[r] = key[r] * group + (int32_t)least((int64_t)nth * each, group - each);
    }
    return d;
}

ml_head_deal ml_deal_heads(ml_arena *a, int32_t n_rank, int32_t n_head, int32_t n_key) {
    const ml_deal *both;

    if (n_rank > n_key)
        return shared_keys(a, n_rank, n_head, n_key);
    both = ml_deal_even(a, n_rank, n_key, 1);
    return (ml_head_deal){ both, both };
}

bool ml_cut_add(ml_cut *c, int64_t at, int64_t width, const ml_deal *deal) {
    int i = c->n;

    if (c->n == ML_CUT_PARTS)
        return false;
    ML_BUG_IF(width % deal->n_group != 0);
    for (; i > 0 && c->part[i - 1].at > at; i--)
        c->part[i] = c->part[i - 1];
    c->part[i].at = at;
    c->part[i].width = width;
    c->part[i].deal = deal;
    c->n++;
    return true;
}

const ml_cut *ml_cut_copy(ml_arena *a, const ml_cut *c) {
    ml_cut *copy;
    bool whole = true;

    for (int i = 0; i < c->n; i++)
        whole = whole && c->part[i].deal->count == c->part[i].deal->n_group;
    if (whole)
        return NULL;
    copy = ML_NEW(a, ml_cut, 1);
    *copy = *c;
    return copy;
}

const ml_cut *ml_cut_row(ml_arena *a, int64_t width, const ml_deal *deal) {
    ml_cut c = { 0 };

    ml_cut_add(&c, 0, width, deal);
    return ml_cut_copy(a, &c);
}

static bool same_deal(const ml_deal *a, const ml_deal *b, int32_t n_rank) {
    return a == b || (a->n_group == b->n_group && a->count == b->count &&
                      !memcmp(a->first, b->first, (size_t)n_rank * sizeof *a->first));
}

bool ml_cut_same(const ml_cut *a, const ml_cut *b, int32_t n_rank) {
    if (!a || !b || a->n != b->n)
        return a == b;
    for (int i = 0; i < a->n; i++)
        if (a->part[i].at != b->part[i].at || a->part[i].width != b->part[i].width ||
            !same_deal(a->part[i].deal, b->part[i].deal, n_rank))
            return false;
    return true;
}

int64_t ml_cut_unit(const ml_cut *c, int i) {
    return c->part[i].width / c->part[i].deal->n_group;
}

int64_t ml_cut_part_width(const ml_cut *c, int i) {
    return ml_cut_unit(c, i) * c->part[i].deal->count;
}

int64_t ml_cut_offset(const ml_cut *c, int i) {
    int64_t n = 0;

    while (i-- > 0)
        n += ml_cut_part_width(c, i);
    return n;
}

int64_t ml_cut_first(const ml_cut *c, int i, int32_t rank) {
    return c->part[i].at + ml_cut_unit(c, i) * c->part[i].deal->first[rank];
}

bool ml_cut_covers(const ml_cut *c, int64_t width) {
    int64_t at = 0;

    for (int i = 0; i < c->n; at += c->part[i++].width)
        if (c->part[i].at != at)
            return false;
    return at == width;
}

const ml_col_run *ml_cut_runs(ml_arena *a, const ml_cut *c, int32_t n_rank, int32_t *n) {
    ml_col_run *run = ML_NEW(a, ml_col_run, c->n * n_rank);

    *n = 0;
    for (int i = 0; i < c->n; i++) {
        const ml_deal *d = c->part[i].deal;
        int64_t unit = ml_cut_unit(c, i);
        int32_t owned = 0; /* groups of lower ranks */
        for (int32_t r = 0; r < n_rank; r++) {
            int32_t end = d->first[r] + d->count;
            ML_BUG_IF(d->first[r] > owned);
            if (end > owned)
                run[(*n)++] = (ml_col_run){ .rank = r,
                                            .from = ml_cut_offset(c, i) +
                                                    unit * (owned - d->first[r]),
                                            .to = c->part[i].at + unit * owned,
                                            .n = unit * (end - owned) };
            owned = end > owned ? end : owned;
        }
        ML_BUG_IF(owned != d->n_group);
    }
    return run;
}
