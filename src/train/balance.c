/* Partitions samples into sets of about equal weight with the largest differencing method
 * (Karmarkar and Karp, 1982).  A heap holds partial partitions, the most uneven first.
 * The two most uneven are merged so that heavy sets of one are combined with light sets
 * of the other, until one partition is left.  Ties are broken by sample number, as in
 * Miles, so that the result is deterministic. */
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "train/packing.h"

typedef struct set {
    double sum;
    int32_t n;
    int32_t *item; /* [n] in order of insertion */
} set;

/* A partition into k sets, the heaviest first. */
typedef struct division {
    set *set; /* [k] */
} division;

typedef struct balancer {
    ml_arena *arena;
    const double *weight;
    int32_t k;
    division *heap;
    int32_t n_heap;
} balancer;

/* Negative, zero or positive: compares by sum, count, then sample numbers. */
static int compare_sets(const set *x, const set *y) {
    if (x->sum != y->sum)
        return x->sum < y->sum ? -1 : 1;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    for (int32_t i = 0; i < x->n; i++)
        if (x->item[i] != y->item[i])
            return x->item[i] < y->item[i] ? -1 : 1;
    return 0;
}

static int heavier_first(const void *x, const void *y) {
    return -compare_sets(x, y);
}

static double spread(const balancer *b, const division *d) {
    return d->set[0].sum - d->set[b->k - 1].sum;
}

/* No two partitions compare equal: they hold different samples. */
static bool more_uneven(const balancer *b, const division *x, const division *y) {
    double sx = spread(b, x), sy = spread(b, y);
    return sx != sy ? sx > sy : compare_sets(&x->set[0], &y->set[0]) > 0;
}

static void swap(division *x, division *y) {
    division t = *x;
    *x = *y;
    *y = t;
}

static void push(balancer *b, division d) {
    int32_t i = b->n_heap++;

    b->heap[i] = d;
    for (; i > 0 && more_uneven(b, &b->heap[i], &b->heap[(i - 1) / 2]); i = (i - 1) / 2)
        swap(&b->heap[i], &b->heap[(i - 1) / 2]);
}

static division pop(balancer *b) {
    division top = b->heap[0];

    b->heap[0] = b->heap[--b->n_heap];
    for (int32_t i = 0, c; (c = 2 * i + 1) < b->n_heap; i = c) {
        if (c + 1 < b->n_heap && more_uneven(b, &b->heap[c + 1], &b->heap[c]))
            c++;
        if (!more_uneven(b, &b->heap[c], &b->heap[i]))
            break;
        swap(&b->heap[i], &b->heap[c]);
    }
    return top;
}

static void sort_sets(const balancer *b, division *d) {
    qsort(d->set, (size_t)b->k, sizeof *d->set, heavier_first);
}

/* Puts one sample into each of the first n sets. */
static division divide(const balancer *b, const int32_t *item, int32_t n) {
    division d = { .set = ML_NEW(b->arena, set, b->k) };

    for (int32_t i = 0; i < n; i++) {
        d.set[i] = (set){ .sum = b->weight[item[i]], .n = 1 };
        d.set[i].item = ML_NEW(b->arena, int32_t, 1);
        d.set[i].item[0] = item[i];
    }
    sort_sets(b, &d);
    return d;
}

static void merge(const balancer *b, division *x, const division *y) {
    for (int32_t i = 0; i < b->k; i++) {
        set *to = &x->set[i];
        const set *from = &y->set[b->k - 1 - i];
        int32_t *item;
        if (from->n == 0)
            continue;
        item = ML_NEW(b->arena, int32_t, to->n + from->n);
        if (to->n)
            memcpy(item, to->item, (size_t)to->n * sizeof *item);
        memcpy(item + to->n, from->item, (size_t)from->n * sizeof *item);
        to->item = item;
        to->n += from->n;
        for (int32_t k = 0; k < from->n; k++)
            to->sum += b->weight[from->item[k]];
    }
    sort_sets(b, x);
}

static int by_weight(const void *x, const void *y, void *ud) {
    const balancer *b = ud;
    int32_t i = *(const int32_t *)x, k = *(const int32_t *)y;
    if (b->weight[i] != b->weight[k])
        return b->weight[i] < b->weight[k] ? -1 : 1;
    return i < k ? -1 : i > k;
}

static int by_number(const void *x, const void *y) {
    int32_t i = *(const int32_t *)x, k = *(const int32_t *)y;
    return i < k ? -1 : i > k;
}

static bool divisible(int32_t n, int32_t k, bool equal_size) {
    return k >= 1 && n >= k && !(equal_size && n % k);
}

bool ml_pack_balance(ml_bins *out, ml_arena *a, const double *weight, int32_t n, int32_t k,
                     bool equal_size) {
    balancer b = { .arena = a, .weight = weight, .k = k };
    int32_t *order = ML_NEW(a, int32_t, n), step = equal_size ? k : 1;
    division d;

    if (!divisible(n, k, equal_size))
        return false;
    b.heap = ML_NEW(a, division, n);
    for (int32_t i = 0; i < n; i++)
        order[i] = i;
    qsort_r(order, (size_t)n, sizeof *order, by_weight, &b);
    for (int32_t i = 0; i < n; i += step)
        push(&b, divide(&b, order + i, step));
    while (b.n_heap > 1) {
        division x = pop(&b), y = pop(&b);
        merge(&b, &x, &y);
        push(&b, x);
    }
    d = b.heap[0];
    *out = (ml_bins){ .bin = ML_NEW(a, ml_bin, k), .n = k };
    for (int32_t i = 0; i < k; i++) {
        out->bin[i] = (ml_bin){ .item = d.set[i].item, .n = d.set[i].n };
        if (d.set[i].n == 0)
            return false;
        qsort(d.set[i].item, (size_t)d.set[i].n, sizeof(int32_t), by_number);
    }
    return true;
}

bool ml_pack_greedy(ml_bins *out, ml_arena *a, const double *weight, int32_t n, int32_t k,
                    bool equal_size) {
    double *sum = ML_NEW(a, double, k > 0 ? k : 1), bias = 0;

    if (!divisible(n, k, equal_size))
        return false;
    for (int32_t i = 0; equal_size && i < n; i++)
        bias += weight[i];
    bias += equal_size; /* each sample then outweighs the sum of all lengths, so that
                           counts stay equal */
    *out = (ml_bins){ .bin = ML_NEW(a, ml_bin, k), .n = k };
    for (int32_t i = 0; i < k; i++)
        out->bin[i].item = ML_NEW(a, int32_t, n);
    for (int32_t i = 0; i < n; i++) {
        int32_t least = 0;
        for (int32_t j = 1; j < k; j++)
            if (sum[j] < sum[least])
                least = j;
        out->bin[least].item[out->bin[least].n++] = i;
        sum[least] += weight[i] + bias;
    }
    return true;
}
