/* index.c - INDEX: selects the keys a row attends to (lightning indexer of
 * DeepSeek-V3.2).
 *
 * The score of a key is the weighted sum over heads of relu(q . k); the top_k keys with
 * the highest scores are selected, ties to the earlier key.  Keys are visited in
 * ascending order; the best so far are kept in a list of 2 * top_k, which quickselect
 * cuts to top_k whenever it is full.  The memory does not depend on the length of a
 * sequence; the order is total, so the selection does not depend on when the list is cut.
 */
#include "backend/cpu/cpu_priv.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- keys in pages ---- */

int32_t ml_cpu_seq_of(const ml_rows *rows, int64_t row) {
    int32_t lo = 0, hi = rows->n_seq;
    while (hi - lo > 1) {
        int32_t mid = lo + (hi - lo) / 2;
        if (rows->seq_start[mid] <= row)
            lo = mid;
        else
            hi = mid;
    }
    return lo;
}

typedef struct key_writer {
    const ml_rows *rows;
    const float *k;
    float *page;
    int64_t width, step; /* step: columns of a row of k */
    int32_t ratio;       /* rows of a key */
} key_writer;

static void write_keys(void *ud, int64_t begin, int64_t end, int worker) {
    const key_writer *w = ud;

    (void)worker;
    for (int64_t row = begin; row < end; row++) {
        int32_t seq = ml_cpu_seq_of(w->rows, row), n_key = w->rows->pos[row] + 1;
        const int32_t *page = w->rows->page + w->rows->page_start[seq];
        if (n_key % w->ratio == 0)
            memcpy(w->page + ml_page_slot(page, n_key / w->ratio - 1, w->ratio) * w->width,
                   w->k + row * w->step, (size_t)w->width * sizeof(float));
    }
}

void ml_cpu_write_keys(const ml_stream *s, const ml_op_args *a, ml_cpu_keys k) {
    key_writer w = { .rows = ml_key_rows(a->rows),
                     .k = (const float *)a->in[1].data + k.at,
                     .page = k.page->data,
                     .width = k.width,
                     .step = a->in[1].shape[1],
                     .ratio = k.ratio };
    ml_pool_run(ml_cpu(s)->pool, w.rows->n_token, ml_cpu_grain(w.width), write_keys, &w);
}

/* ---- selection ---- */

typedef struct candidate {
    float worth;
    int32_t pos;
} candidate;

/* Whether a precedes b in the selection order. */
static bool is_before(candidate a, candidate b) {
    return a.worth > b.worth || (a.worth == b.worth && a.pos < b.pos);
}

static void swap(candidate *a, candidate *b) {
    candidate c = *a;
    *a = *b;
    *b = c;
}

/* Quickselect: moves the first k of n to the front, in any order. */
static void keep_first(candidate *c, int64_t n, int64_t k) {
    int64_t from = 0, to = n;

    while (to - from > 1) {
        int64_t at = from;
        swap(&c[from + (to - from) / 2], &c[to - 1]);
        for (int64_t i = from; i < to - 1; i++)
            if (is_before(c[i], c[to - 1]))
                swap(&c[i], &c[at++]);
        swap(&c[at], &c[to - 1]);
        if (at == k)
            return;
        if (at < k)
            from = at + 1;
        else
            to = at;
    }
}

static int by_position(const void *a, const void *b) {
    int32_t x = *(const int32_t *)a, y = *(const int32_t *)b;
    return x < y ? -1 : x > y;
}

/* ---- rows ---- */

/* Scratch of a thread: candidates, then a row of weights and a row of products. */
static int64_t padded(int64_t n) {
    return (n + ML_LANES - 1) / ML_LANES * ML_LANES;
}

static size_t index_thread_bytes(const ml_op_attr *attr) {
    return (size_t)padded(2 * (int64_t)attr->index.top_k) * sizeof(candidate) +
           (size_t)(2 * padded(attr->index.n_head)) * sizeof(float);
}

size_t ml_cpu_index_scratch(const ml_cpu_stream *s, const ml_op_args *a, bool backward) {
    return backward ? 0 : index_thread_bytes(a->attr) * (size_t)ml_pool_size(s->pool);
}

static int32_t rows_of_key(const ml_op_attr *attr) {
    return attr->index.ratio ? attr->index.ratio : 1;
}

static float worth_of(const ml_cpu_job *j, const float *q, const float *key,
                      const float *weight, float *product) {
    const ml_op_attr *attr = j->a->attr;
    int64_t d = attr->index.head_dim, n_head = attr->index.n_head;
    float worth;

    for (int64_t h = 0; h < n_head; h++) {
        float x = j->s->kern->row->dot(q + h * d, key, d) * attr->index.scale;
        product[h] = x > 0.0f ? x : 0.0f;
    }
    worth = j->s->kern->row->dot(weight, product, n_head);
    return worth == worth ? worth : -INFINITY; /* NaN counts as -inf */
}

static void choose_keys(const ml_cpu_job *j, int64_t row, int32_t *chosen, void *scratch) {
    const ml_op_args *a = j->a;
    int64_t n_head = a->attr->index.n_head, d = a->attr->index.head_dim, n = 0;
    int64_t top_k = a->attr->index.top_k;
    int32_t ratio = rows_of_key(a->attr), n_key = (a->rows->pos[row] + 1) / ratio;
    const int32_t *page = a->rows->page + a->rows->page_start[ml_cpu_seq_of(a->rows, row)];
    candidate *c = scratch;
    float *weight = (float *)(void *)(c + padded(2 * top_k));
    float *product = weight + padded(n_head);

    for (int64_t h = 0; h < n_head; h++)
        weight[h] =
            ((const float *)a->in[2].data)[row * n_head + h] * a->attr->index.weight_scale;
    for (int32_t pos = 0; pos < n_key; pos++) {
        int64_t slot = ml_page_slot(page, pos, ratio);
        c[n].worth = worth_of(j, (const float *)a->in[0].data + row * n_head * d,
                              (const float *)a->out[1].data + slot * d, weight, product);
        c[n++].pos = pos;
        if (n == 2 * top_k) {
            keep_first(c, n, top_k);
            n = top_k;
        }
    }
    if (n > top_k)
        keep_first(c, n, top_k);
    for (int64_t i = 0; i < top_k; i++)
        chosen[i] = c[i].pos;
}

/* Copies a given selection, in any order, terminated by -1. */
static int64_t take_given(int32_t *chosen, const int32_t *given, int64_t top_k) {
    int64_t n = 0;
    for (int64_t i = 0; i < top_k; i++)
        if (given[i] >= 0)
            chosen[n++] = given[i];
    return n;
}

static void index_rows(void *ud, int64_t begin, int64_t end, int worker) {
    const ml_cpu_job *j = ud;
    const ml_op_args *a = j->a;
    int64_t top_k = a->attr->index.top_k;
    char *scratch = (char *)a->scratch + (size_t)worker * index_thread_bytes(a->attr);

    for (int64_t row = begin; row < end; row++) {
        int32_t *chosen = (int32_t *)a->out[0].data + row * top_k;
        const int32_t *given = a->given.data;
        int64_t n = (a->rows->pos[row] + 1) / rows_of_key(a->attr);

        given = given && given[row * top_k] >= 0 ? given + row * top_k : NULL;
        if (given) {
            n = take_given(chosen, given, top_k);
        } else if (n <= top_k) { /* all keys */
            for (int64_t i = 0; i < n; i++)
                chosen[i] = (int32_t)i;
        } else {
            choose_keys(j, row, chosen, scratch);
            n = top_k;
        }
        qsort(chosen, (size_t)n, sizeof *chosen, by_position);
        for (int64_t i = n; i < top_k; i++)
            chosen[i] = -1;
    }
}

void ml_cpu_index_forward(ml_stream *s, const ml_op_args *a) {
    ml_cpu_write_keys(
        s, a,
        (ml_cpu_keys){ &a->out[1], 0, a->attr->index.head_dim, rows_of_key(a->attr) });
    ml_cpu_split(s, a, a->rows->n_token, 1 << 20, index_rows);
}

void ml_cpu_index_backward(ml_stream *s, const ml_op_args *a) {
    (void)s;
    (void)a;
}
