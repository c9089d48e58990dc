/* Ranges of ranks: every element has one owner, nothing that must stay together is cut, and
 * strips name the rows. */
#include <string.h>

#include "model/shard_map.h"
#include "model/weights.h"
#include "tests/support/test.h"

enum { MAX_RANK = 9 };

/* Odd sizes among them: a vocabulary of 1,003, one head, one row, odd widths. */
static ml_param params[] = {
    { "embed", NULL, 1, 2, { 1003, 64 }, ML_ROWS },
    { "head", NULL, 1, 2, { 1003, 64 }, ML_PANELS },
    { "q", NULL, 1, 2, { 16, 1024 }, ML_PANELS },
    { "wide", NULL, 1, 2, { 640, 256 }, ML_PANELS },
    { "odd", NULL, 1, 2, { 77, 33 }, ML_PANELS },
    { "two", NULL, 1, 2, { 700, 896 }, ML_PANELS },
    { "value", NULL, 1, 2, { 1, 64 }, ML_PANELS },
    { "norm", NULL, 1, 1, { 64 }, ML_ROWS },
    { "long", NULL, 1, 1, { 10000 }, ML_ROWS },
    { "expert.", ".w", 5, 2, { 24, 128 }, ML_PANELS },
    { "expert.", ".rows", 7, 2, { 24, 128 }, ML_ROWS },
    { "expert.", ".bias", 6, 1, { 3000 }, ML_ROWS },
};
enum { N_PARAM = sizeof params / sizeof *params };

static const ml_spec spec = { .param = params, .n_param = N_PARAM };

static int64_t elements(const ml_tensor *t) {
    return (int64_t)(ml_tensor_bytes(t) / ml_dtype_bytes(t->dtype));
}

static int64_t width(const ml_tensor *t) {
    return t->n_dim == 1 ? 1 : t->shape[t->n_dim - 1];
}

static void each_element_has_one_owner(void) {
    for (int layout = ML_ROWS; layout <= ML_PANELS; layout++)
        for (int32_t n_rank = 1; n_rank <= MAX_RANK; n_rank++) {
            ml_shard_map m;
            ml_arena a;
            ml_arena_init(&a, "test");
            ml_shard_map_init(&m, &a, &spec, (ml_layout)layout, n_rank, NULL);
            for (int32_t i = 0; i < N_PARAM; i++) {
                ml_tensor t = ml_weights_tensor(&params[i], ML_F32, (ml_layout)layout);
                int64_t at = 0;
                for (int32_t r = 0; r < n_rank; r++) {
                    ml_shard_range x = ml_shard_range_of(&m, i, r);
                    CHECK(x.begin == at && x.n >= 0);
                    if (x.n)
                        CHECK(x.begin % ML_NORM_BLOCK == 0 &&
                              x.begin % (ML_LANES * width(&t)) == 0);
                    at += x.n;
                }
                CHECK(at == elements(&t));
            }
            ml_arena_release(&a);
        }
}

static void ranks_own_about_the_same(void) {
    for (int32_t n_rank = 2; n_rank <= MAX_RANK; n_rank++) {
        int64_t owned[MAX_RANK] = { 0 }, least, most;
        ml_shard_map m;
        ml_arena a;
        ml_arena_init(&a, "test");
        ml_shard_map_init(&m, &a, &spec, ML_PANELS, n_rank, NULL);
        for (int32_t i = 0; i < N_PARAM; i++)
            for (int32_t r = 0; r < n_rank; r++)
                owned[r] += ml_shard_range_of(&m, i, r).n;
        least = most = owned[0];
        for (int32_t r = 1; r < n_rank; r++) {
            least = owned[r] < least ? owned[r] : least;
            most = owned[r] > most ? owned[r] : most;
        }
        CHECK(most - least <= 2 * 896 * ML_LANES); /* the largest unit */
        ml_arena_release(&a);
    }
}

static void skipped_parameters_have_no_owner(void) {
    bool skip[N_PARAM] = { [1] = true, [9] = true };
    ml_shard_map m;
    ml_arena a;

    ml_arena_init(&a, "test");
    ml_shard_map_init(&m, &a, &spec, ML_PANELS, 3, skip);
    for (int32_t i = 0; i < N_PARAM; i++) {
        int64_t n = 0;
        for (int32_t r = 0; r < 3; r++)
            n += ml_shard_range_of(&m, i, r).n;
        CHECK((n == 0) == skip[i]);
    }
    ml_arena_release(&a);
}

/* Unpacks the strips of all ranks from their views: together they are the parameter. */
static void check_strips(const ml_shard_map *m, ml_layout layout, int32_t i, ml_arena *a) {
    const ml_param *p = &params[i];
    ml_tensor t = ml_weights_tensor(p, ML_BF16, layout);
    int64_t rows = p->n_dim == 2 ? p->shape[0] : 1;
    int64_t cols = p->n_dim == 2 ? p->shape[1] : p->shape[0], size = rows * cols;
    float *want = ML_NEW(a, float, size * p->n_stack),
          *got = ML_NEW(a, float, size * p->n_stack);
    ml_weights w = { .t = &t, .n = 1 };

    t.data = ml_arena_take(a, 1, ml_tensor_bytes(&t));
    for (int64_t k = 0; k < size * p->n_stack; k++)
        want[k] = (float)(k * 7 % 251);
    for (int32_t e = 0; e < p->n_stack; e++)
        ml_weights_pack(&w, 0, e, 0, rows, want + e * size);
    for (int32_t r = 0; r < m->n_rank; r++) {
        ml_tensor view = ml_shard_view(&t, ml_shard_range_of(m, i, r));
        ml_weights part = { .t = &view, .n = 1 };
        ml_strip s = { 0 };
        while (ml_strip_next(&s, p, layout, ml_shard_range_of(m, i, r)))
            ml_weights_unpack(&part, 0, 0, s.at, s.n, ML_F32,
                              got + s.member * size + s.row * view.shape[1]);
    }
    if (memcmp(want, got, (size_t)(size * p->n_stack) * sizeof *want))
        ml_test_fail(__FILE__, __LINE__, "%s%s: %d ranks have other rows", p->name,
                     p->name_after ? p->name_after : "", m->n_rank);
}

static void strips_are_the_rows(void) {
    for (int layout = ML_ROWS; layout <= ML_PANELS; layout++)
        for (int32_t n_rank = 1; n_rank <= MAX_RANK; n_rank++) {
            ml_shard_map m;
            ml_arena a;
            ml_arena_init(&a, "test");
            ml_shard_map_init(&m, &a, &spec, (ml_layout)layout, n_rank, NULL);
            for (int32_t i = 0; i < N_PARAM; i++)
                check_strips(&m, (ml_layout)layout, i, &a);
            ml_arena_release(&a);
        }
}

static const ml_test tests[] = {
    { "each element of a parameter has one owner", each_element_has_one_owner },
    { "ranks own about the same", ranks_own_about_the_same },
    { "parameters that are skipped have no owner", skipped_parameters_have_no_owner },
    { "the strips of all ranks are the rows of a parameter", strips_are_the_rows },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
