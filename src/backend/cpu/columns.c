#include "backend/cpu/columns.h"

#include <string.h>

#include "base/bug.h"

enum { COLUMNS = 64 }; /* of a task: their sums stay in the L1 cache */

typedef struct column_job {
    const ml_row_kern *k;
    const ml_column_sum *c;
} column_job;

ml_row_runs ml_cpu_row_runs(const ml_op_args *a, int64_t n) {
    const ml_rows *r = a->rows;

    if (r && r->context && r->n_token != n)
        r = &r->context->whole;
    if (!r || r->n_seq == 0 || r->seq_start[r->n_seq] != n)
        r = NULL;
    return (ml_row_runs){ .rows = r };
}

static int64_t token_of(const ml_row_runs *r, int64_t i) {
    return r->choice ? r->choice[i] / r->top_k : i;
}

int64_t ml_row_run_end(const ml_row_runs *r, int64_t i, int64_t n) {
    int64_t end;

    if (!r->rows)
        return n;
    end = r->rows->seq_start[ml_cpu_seq_of(r->rows, token_of(r, i)) + 1];
    if (!r->choice)
        return end;
    while (i < n && token_of(r, i) < end)
        i++;
    return i;
}

/* n columns from `at` on, of the groups that are added to row `to`. */
static void add_block(const column_job *j, int64_t to, int64_t at, int64_t n) {
    const ml_column_sum *c = j->c;
    float *out = c->to + to * c->width + at;

    for (int64_t i = 0, end; i < c->n; i = end) {
        double sum[COLUMNS];
        end = ml_row_run_end(&c->runs, i, c->n);
        memset(sum, 0, sizeof sum);
        for (int64_t g = i * c->groups + to; g < end * c->groups; g += c->n_to)
            j->k->columns(sum, c->dy + g * c->width + at,
                          c->x ? c->x + g * c->width + at : NULL,
                          c->scale ? c->scale[g] : 1.0f, n);
        for (int64_t k = 0; k < n; k++)
            out[k] += (float)sum[k];
    }
}

/* Index: row of the gradient * blocks of columns + block. */
static void add_blocks(void *ud, int64_t begin, int64_t end, int worker) {
    const column_job *j = ud;
    int64_t blocks = (j->c->width + COLUMNS - 1) / COLUMNS;

    (void)worker;
    for (int64_t i = begin; i < end; i++) {
        int64_t at = i % blocks * COLUMNS, left = j->c->width - at;
        add_block(j, i / blocks, at, left < COLUMNS ? left : COLUMNS);
    }
}

void ml_cpu_add_columns(const ml_cpu_stream *s, const ml_column_sum *c) {
    column_job j = { s->kern->row, c };
    int64_t blocks = (c->width + COLUMNS - 1) / COLUMNS;

    ML_BUG_IF(c->groups % c->n_to);
    ml_pool_run(s->pool, c->n_to * blocks,
                ml_cpu_grain(COLUMNS * c->n * c->groups / c->n_to), add_blocks, &j);
}
