#include "model/shard_map.h"

#include "base/bug.h"
#include "model/weights.h"

/* A packed tensor as rows: n_member times `stored` rows, of which `rows` are used. */
typedef struct row_shape {
    int64_t rows, stored, cols, n_member;
} row_shape;

static row_shape shape_of(const ml_param *p, ml_layout linear) {
    row_shape s = { .rows = p->shape[0], .cols = 1, .n_member = p->n_stack };

    if (p->n_dim == 2)
        s.cols = p->shape[1];
    else if (p->name_after) /* a stack of vectors: a row for each */
        s = (row_shape){ .rows = 1, .cols = p->shape[0], .n_member = p->n_stack };
    s.stored = s.rows;
    if (p->n_dim == 2 && p->layout != ML_ROWS && linear == ML_PANELS)
        s.stored = (s.rows + ML_LANES - 1) / ML_LANES * ML_LANES;
    return s;
}

/* Rows that stay together: the fewest panels that fill whole blocks of the norm. */
static int64_t unit_rows(int64_t cols) {
    const int64_t block = ML_NORM_BLOCK / ML_LANES;
    int64_t a = cols, b = block;

    while (b) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return ML_LANES * (block / a);
}

/* Marks the n ranks that own the least; of equal ones, the first. */
static void mark_least(bool *mark, const int64_t *owned, int32_t n_rank, int64_t n) {
    for (int32_t r = 0; r < n_rank; r++)
        mark[r] = false;
    for (; n > 0; n--) {
        int32_t least = ML_NONE;
        for (int32_t r = 0; r < n_rank; r++)
            if (!mark[r] && (least == ML_NONE || owned[r] < owned[least]))
                least = r;
        mark[least] = true;
    }
}

static void divide(ml_shard_range *out, const row_shape *s, int32_t n_rank, int64_t *owned,
                   bool *mark) {
    int64_t unit = unit_rows(s->cols), rows = s->n_member * s->stored, row = 0;
    int64_t n_unit = (rows + unit - 1) / unit;

    mark_least(mark, owned, n_rank, n_unit % n_rank);
    for (int32_t r = 0; r < n_rank; r++) {
        int64_t end = row + (n_unit / n_rank + mark[r]) * unit;
        end = end < rows ? end : rows;
        out[r] = (ml_shard_range){ row * s->cols, (end - row) * s->cols };
        owned[r] += out[r].n;
        row = end;
    }
    ML_BUG_IF(row != rows);
}

void ml_shard_map_init(ml_shard_map *out, ml_arena *a, const ml_spec *s, ml_layout linear,
                       int32_t n_rank, const bool *skip) {
    ml_shard_range *range = ML_NEW(a, ml_shard_range, (int64_t)s->n_param * n_rank + 1);
    int64_t *owned = ML_NEW(a, int64_t, n_rank);
    bool *mark = ML_NEW(a, bool, n_rank);

    for (int32_t i = 0; i < s->n_param; i++) {
        row_shape shape = shape_of(&s->param[i], linear);
        if (!skip || !skip[i])
            divide(range + (int64_t)i * n_rank, &shape, n_rank, owned, mark);
    }
    *out = (ml_shard_map){ .n_param = s->n_param, .n_rank = n_rank, .range = range };
}

ml_shard_range ml_shard_range_whole(const ml_tensor *t) {
    return (ml_shard_range){ 0, (int64_t)(ml_tensor_bytes(t) / ml_dtype_bytes(t->dtype)) };
}

ml_tensor ml_shard_view(const ml_tensor *whole, ml_shard_range r) {
    size_t size = ml_dtype_bytes(whole->dtype);
    int64_t cols = whole->n_dim == 1 ? 1 : whole->shape[whole->n_dim - 1];

    return (ml_tensor){
        .dtype = whole->dtype,
        .layout = whole->layout,
        .n_dim = 2,
        .shape = { r.n / cols, cols },
        .data = whole->data && r.n ? (char *)whole->data + (size_t)r.begin * size : NULL,
    };
}

bool ml_strip_next(ml_strip *s, const ml_param *p, ml_layout linear, ml_shard_range r) {
    row_shape shape = shape_of(p, linear);
    int64_t first = r.begin / shape.cols, end = first + r.n / shape.cols, at, left;

    at = s->n ? s->member * shape.stored + s->row + s->n : first;
    if (at % shape.stored >= shape.rows) /* padding */
        at += shape.stored - at % shape.stored;
    if (at >= end)
        return false;
    s->member = (int32_t)(at / shape.stored);
    s->row = at % shape.stored;
    left = shape.rows - s->row;
    s->n = left < end - at ? left : end - at;
    s->at = at - first;
    return true;
}
