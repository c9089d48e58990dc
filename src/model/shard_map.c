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

/* Divides rows [first, end) over n places, which own so much so far; in units of so many
 * rows. */
static void divide(ml_shard_range *out, int64_t cols, int64_t unit, int64_t first,
                   int64_t end, int32_t n, int64_t *owned, bool *mark) {
    int64_t row = first;
    int64_t n_unit = (end - first + unit - 1) / unit;

    mark_least(mark, owned, n, n_unit % n);
    for (int32_t r = 0; r < n; r++) {
        int64_t next = row + (n_unit / n + mark[r]) * unit;
        next = next < end ? next : end;
        out[r] = (ml_shard_range){ row * cols, (next - row) * cols };
        owned[r] += out[r].n;
        row = next;
    }
    ML_BUG_IF(row != end);
}

/* Each expert parallel rank has members of its own, which the ranks with the same ones
 * divide: those of etp have consecutive parts. */
static void divide_members(ml_shard_range *out, const row_shape *s, int32_t ep,
                           int32_t n_place, int64_t *owned, bool *mark) {
    int32_t n = n_place / ep;

    for (int32_t k = 0; k < ep; k++)
        divide(out + k * n, s->cols, unit_rows(s->cols), s->n_member * k / ep * s->stored,
               s->n_member * (k + 1) / ep * s->stored, n, owned + k * n, mark);
}

/* Which stages use each parameter; one that no node uses is in the first. */
static const bool *find_stages(ml_arena *a, const ml_spec *s, int32_t n_stage,
                               const int32_t *stage) {
    bool *has = ML_NEW(a, bool, (int64_t)s->n_param *n_stage + 1);
    bool *used = ML_NEW(a, bool, s->n_param + 1);

    for (int32_t i = 0; s->adapter && i < s->n_param; i++) {
        has[(int64_t)i * n_stage + (stage ? stage[i] : 0)] = true;
        used[i] = true;
    }
    for (int32_t i = 0; i < s->n_node; i++)
        for (int k = 0; k < ML_OP_W; k++) {
            int32_t p = s->node[i].w[k];
            if (p == ML_NONE)
                continue;
            has[(int64_t)p * n_stage + (stage ? stage[i] : 0)] = true;
            used[p] = true;
        }
    for (int32_t i = 0; i < s->n_param; i++)
        if (!used[i])
            has[(int64_t)i * n_stage] = true;
    return has;
}

void ml_shard_map_init(ml_shard_map *out, ml_arena *a, const ml_spec *s, ml_layout linear,
                       const ml_mesh_sizes *mesh, const int32_t *stage) {
    int32_t n_rank = ml_mesh_world(mesh), n_stage = mesh->size[ML_MESH_PP];
    int32_t n_place = n_rank / n_stage;
    ml_shard_range *range = ML_NEW(a, ml_shard_range, (int64_t)s->n_param * n_place + 1);
    bool *divided = ML_NEW(a, bool, s->n_param + 1), *mark = ML_NEW(a, bool, n_place);
    int64_t *owned = ML_NEW(a, int64_t, 2 * n_place); /* in the two orders of places */

    for (int32_t i = 0; i < s->n_param; i++) {
        row_shape shape = shape_of(&s->param[i], linear);
        int64_t rows = shape.n_member * shape.stored;
        divided[i] = mesh->ep * (s->adapter ? 1 : mesh->etp) > 1 &&
                     s->param[i].shard == ML_SHARD_EXPERT;
        if (divided[i])
            divide_members(range + (int64_t)i * n_place, &shape, mesh->ep, n_place,
                           owned + n_place, mark);
        else
            divide(range + (int64_t)i * n_place, shape.cols,
                   mesh->whole ? rows : unit_rows(shape.cols), 0, rows, n_place, owned,
                   mark);
    }
    *out = (ml_shard_map){ .mesh = *mesh,
                           .linear = linear,
                           .n_param = s->n_param,
                           .n_rank = n_rank,
                           .n_place = n_place,
                           .range = range,
                           .has = find_stages(a, s, n_stage, stage),
                           .divided = divided,
                           .adapter = s->adapter };
}

void ml_shard_map_one(ml_shard_map *out, ml_arena *a, const ml_spec *s, ml_layout linear) {
    ml_mesh_sizes one = { .size = { 1, 1, 1, 1 }, .ep = 1, .etp = 1, .gather = 1 };

    ml_shard_map_init(out, a, s, linear, &one, NULL);
}

/* --- places ----------------------------------------------------------------- */

/* The ranks of a stage in the order of their ranges: the ranks that have the same part are
 * neighbours.  A run of `same` places has it. */
typedef struct place {
    int32_t at, same;
} place;

static place place_of(const ml_shard_map *m, int32_t param, int32_t rank) {
    const ml_mesh_sizes *x = &m->mesh;
    int32_t in_stage = rank % m->n_place, data = ml_mesh_at_data(x, rank);
    int32_t cp = in_stage / x->size[ML_MESH_TP] % x->size[ML_MESH_CP], same;

    if (m->divided[param] && m->adapter) {
        same = m->n_place / x->ep;
        return (place){ ml_mesh_at_ep(x, rank) * same +
                            in_stage / (x->etp * x->ep) * x->etp + in_stage % x->etp,
                        same };
    }
    if (m->divided[param]) {
        int32_t parts = x->etp * x->ep, part;
        same = m->n_place / parts;
        part = in_stage / x->etp % x->ep * x->etp + in_stage % x->etp;
        return (place){ part * same + in_stage / parts, same };
    }
    if (m->adapter)
        return (place){ in_stage, m->n_place };
    same = m->n_place / x->gather;
    return (place){ data % x->gather * same + data / x->gather * x->size[ML_MESH_CP] + cp,
                    same };
}

int32_t ml_shard_place(const ml_shard_map *m, int32_t param, int32_t rank) {
    return place_of(m, param, rank).at;
}

static bool has_param(const ml_shard_map *m, int32_t param, int32_t stage) {
    return m->has[(int64_t)param * m->mesh.size[ML_MESH_PP] + stage];
}

/* The stage that owns a parameter. */
static int32_t home_of(const ml_shard_map *m, int32_t param) {
    int32_t stage = 0;

    while (!has_param(m, param, stage))
        stage++;
    return stage;
}

ml_shard_range ml_shard_owned(const ml_shard_map *m, int32_t param, int32_t rank) {
    if (rank / m->n_place != home_of(m, param))
        return (ml_shard_range){ 0 };
    return m->range[(int64_t)param * m->n_place + place_of(m, param, rank).at];
}

ml_shard_range ml_shard_resident(const ml_shard_map *m, int32_t param, int32_t rank) {
    const ml_shard_range *of = m->range + (int64_t)param * m->n_place, *first, *last;
    place p = place_of(m, param, rank);

    if (!has_param(m, param, rank / m->n_place))
        return (ml_shard_range){ 0 };
    first = of + p.at / p.same * p.same;
    last = first + p.same - 1;
    return (ml_shard_range){ first->begin, last->begin + last->n - first->begin };
}

const ml_shard_range *ml_shard_residents(const ml_shard_map *m, ml_arena *a, int32_t rank) {
    ml_shard_range *out = ML_NEW(a, ml_shard_range, m->n_param + 1);

    for (int32_t i = 0; i < m->n_param; i++)
        out[i] = ml_shard_resident(m, i, rank);
    return out;
}

ml_mesh_group ml_shard_sum_group(const ml_shard_map *m, bool divided) {
    if (m->adapter)
        return divided ? ML_GROUP_EXPERT_SAME : ML_GROUP_REDUCE;
    return divided ? ML_GROUP_EXPERT_DATA : ML_GROUP_REPLICA;
}

ml_mesh_group ml_shard_group(const ml_shard_map *m, int32_t param) {
    return ml_shard_sum_group(m, m->divided[param]);
}

bool ml_shard_is_gathered(const ml_shard_map *m, int32_t param) {
    return !m->adapter && (m->divided[param] ? m->mesh.etp : m->mesh.gather) > 1;
}

ml_mesh_group ml_shard_gather_group(const ml_shard_map *m, int32_t param) {
    return m->divided[param] ? ML_GROUP_EXPERT_GATHER : ML_GROUP_GATHER;
}

ml_shard_range ml_shard_gathered(const ml_shard_map *m, int32_t param, int32_t rank) {
    const ml_shard_range *of = m->range + (int64_t)param * m->n_place, *last;
    int32_t n = m->divided[param] ? m->n_place / m->mesh.ep : m->n_place;

    if (m->divided[param])
        of += n * ml_mesh_at_ep(&m->mesh, rank);
    last = of + n - 1;
    return (ml_shard_range){ of->begin, last->begin + last->n - of->begin };
}

/* --- ranges ------------------------------------------------------------------ */

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
