/* columns.h - gradients that are sums over rows.
 *
 * The rows of a sequence are added in f64, rows ascending from +0; the sum is rounded to f32 and
 * added to the gradient, sequences ascending.  So a gradient depends on neither the micro-batches nor
 * the threads, and rounds once per sequence at its own size. */
#ifndef ML_BACKEND_CPU_COLUMNS_H
#define ML_BACKEND_CPU_COLUMNS_H

#include "backend/cpu/cpu_priv.h"

/* Which rows of an op are of one sequence. */
typedef struct ml_row_runs {
    const ml_rows *rows; /* NULL: the op has rows of its own, which count as one sequence */
    const int32_t *choice; /* token * top_k + rank of each row; NULL: they are the tokens */
    int32_t top_k;
} ml_row_runs;

/* Of an op with a row per token, or n rows of its own. */
ml_row_runs ml_cpu_row_runs(const ml_op_args *a, int64_t n);
/* The end of the sequence of row i, one of n. */
int64_t ml_row_run_end(const ml_row_runs *r, int64_t i, int64_t n);

/* to[g mod n_to] += sum of dy[g] * (x[g] * scale[g]) over the groups g of columns. */
typedef struct ml_column_sum {
    float *to;           /* [n_to, width] */
    const float *dy, *x; /* [n * groups, width]; x NULL: 1 */
    const float *scale;  /* [n * groups]; NULL: 1 */
    int64_t n, groups;   /* rows, groups of a row: a multiple of n_to */
    int64_t width, n_to;
    ml_row_runs runs;
} ml_column_sum;

void ml_cpu_add_columns(const ml_cpu_stream *s, const ml_column_sum *c);

#endif
