/* Parts of ranks: every element has one owner, and is resident where it is used; nothing
 * that must stay together is cut, and strips name the rows. */
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
    { "routed.", ".w", 12, 2, { 24, 128 }, ML_PANELS, ML_SHARD_EXPERT },
    { "routed.", ".bias", 12, 1, { 40 }, ML_ROWS, ML_SHARD_EXPERT },
};
enum { N_PARAM = sizeof params / sizeof *params };

/* One node per parameter, and a last one that uses the first parameter again. */
static ml_node nodes[N_PARAM + 1];
static ml_spec spec = {
    .param = params, .n_param = N_PARAM, .node = nodes, .n_node = N_PARAM + 1
};

static void make_nodes(void) {
    for (int32_t i = 0; i <= N_PARAM; i++) {
        for (int k = 0; k < ML_OP_W; k++)
            nodes[i].w[k] = ML_NONE;
        nodes[i].w[0] = i % N_PARAM;
    }
}

static ml_shard_map map_over(ml_arena *a, ml_layout layout, int32_t n_rank) {
    ml_mesh_sizes m = { .size = { 1, 1, n_rank, 1 }, .ep = 1, .etp = 1, .gather = 1 };
    ml_shard_map out;

    make_nodes();
    ml_shard_map_init(&out, a, &spec, layout, &m, NULL);
    return out;
}

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
            m = map_over(&a, (ml_layout)layout, n_rank);
            for (int32_t i = 0; i < N_PARAM; i++) {
                ml_tensor t = ml_weights_tensor(&params[i], ML_F32, (ml_layout)layout);
                int64_t at = 0;
                for (int32_t r = 0; r < n_rank; r++) {
                    ml_shard_range x = ml_shard_owned(&m, i, r);
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
        m = map_over(&a, ML_PANELS, n_rank);
        for (int32_t i = 0; i < N_PARAM; i++)
            for (int32_t r = 0; r < n_rank; r++)
                owned[r] += ml_shard_owned(&m, i, r).n;
        least = most = owned[0];
        for (int32_t r = 1; r < n_rank; r++) {
            least = owned[r] < least ? owned[r] : least;
            most = owned[r] > most ? owned[r] : most;
        }
        CHECK(most - least <= 2 * 896 * ML_LANES); /* the largest unit */
        ml_arena_release(&a);
    }
}

/* --- all meshes ------------------------------------------------------------------ */

static int64_t end(ml_shard_range x) {
    return x.begin + x.n;
}

/* Stages of equally many nodes. */
static void deal_stages(int32_t *stage, int32_t n_stage) {
    for (int32_t i = 0; i < spec.n_node; i++)
        stage[i] = i * n_stage / spec.n_node;
}

static bool stage_uses(const int32_t *stage, int32_t param, int32_t at) {
    return stage[param] == at || (param == 0 && stage[N_PARAM] == at);
}

/* Counts the owners and, in each stage, the holders of element x. */
static void check_element(const ml_shard_map *m, const int32_t *stage, int32_t i,
                          int64_t x) {
    int32_t owners = 0, per_stage = m->n_rank / m->mesh.size[ML_MESH_PP];
    int32_t parts = m->mesh.ep * (m->adapter ? 1 : m->mesh.etp);
    int32_t others = m->adapter ? 1 : m->mesh.gather; /* adapters are not divided */
    bool members = parts > 1 && params[i].shard == ML_SHARD_EXPERT;

    for (int32_t s = 0; s < m->mesh.size[ML_MESH_PP]; s++) {
        int32_t holders = 0;
        for (int32_t r = s * per_stage; r < (s + 1) * per_stage; r++) {
            ml_shard_range own = ml_shard_owned(m, i, r), has = ml_shard_resident(m, i, r);
            owners += own.begin <= x && x < end(own);
            holders += has.begin <= x && x < end(has);
        }
        CHECK(holders ==
              (stage_uses(stage, i, s) ? per_stage / (members ? parts : others) : 0));
    }
    CHECK(owners == 1);
}

/* Ranks of the group that shares a parameter have the same part, and divide it. */
static void check_group(const ml_shard_map *m, int32_t i, int32_t rank) {
    ml_shard_range has = ml_shard_resident(m, i, rank), own = ml_shard_owned(m, i, rank);
    int32_t member[8], n = ml_mesh_members(member, &m->mesh, rank, ml_shard_group(m, i));
    int64_t at = has.begin, sum = 0;

    CHECK(own.n == 0 || (own.begin >= has.begin && end(own) <= end(has)));
    for (int32_t k = 0; k < n; k++) {
        ml_shard_range x = ml_shard_resident(m, i, member[k]);
        ml_shard_range y = ml_shard_owned(m, i, member[k]);
        CHECK(x.n == has.n && (x.n == 0 || x.begin == has.begin));
        CHECK(y.n == 0 || y.begin == at);
        at += y.n;
        sum += y.n;
    }
    CHECK(sum == has.n || sum == 0); /* 0: another stage owns a tied parameter */
    n = ml_mesh_members(member, &m->mesh, rank, ml_shard_gather_group(m, i));
    at = ml_shard_gathered(m, i, rank).begin;
    for (int32_t k = 0; k < n && ml_shard_is_gathered(m, i); k++) {
        ml_shard_range x = ml_shard_resident(m, i, member[k]);
        CHECK(x.n == 0 || x.begin == at);
        at += x.n;
    }
    CHECK(!ml_shard_is_gathered(m, i) || has.n == 0 ||
          at == end(ml_shard_gathered(m, i, rank)));
}

/* adapter: the same parameters as those of one, with the stage of each. */
static void check_mesh(const ml_mesh_sizes *mesh, ml_layout layout, bool adapter) {
    int32_t stage[N_PARAM + 1];
    ml_spec s = spec;
    ml_shard_map m;
    ml_arena a;

    ml_arena_init(&a, "test");
    deal_stages(stage, mesh->size[ML_MESH_PP]);
    if (adapter) {
        s.adapter = true;
        s.n_node = 0;
        stage[N_PARAM] = stage[0]; /* no parameter has two stages */
    }
    ml_shard_map_init(&m, &a, &s, layout, mesh, stage);
    for (int32_t i = 0; i < N_PARAM; i++) {
        ml_tensor t = ml_weights_tensor(&params[i], ML_F32, layout);
        for (int64_t x = 0; x < elements(&t); x += 509) /* a prime: all offsets */
            check_element(&m, stage, i, x);
        check_element(&m, stage, i, elements(&t) - 1);
        for (int32_t r = 0; r < m.n_rank; r++)
            check_group(&m, i, r);
    }
    ml_arena_release(&a);
}

static int32_t check_sizes(int32_t world, ml_mesh_opts o) {
    ml_mesh_sizes m;

    if (ml_mesh_size(&m, world, o, NULL) != ML_OK)
        return 0;
    check_mesh(&m, ML_ROWS, false);
    check_mesh(&m, ML_PANELS, false);
    check_mesh(&m, ML_PANELS, true);
    return 1;
}

static void parts_of_all_meshes(void) {
    int32_t n = 0;

    make_nodes();
    for (int32_t world = 1; world <= 8; world++)
        for (int32_t tp = 1; tp <= world; tp++)
            for (int32_t cp = 1; tp * cp <= world; cp++)
                for (int32_t pp = 1; tp * cp * pp <= world; pp++) {
                    for (int32_t ep = 1; ep <= world; ep++)
                        n += check_sizes(world, (ml_mesh_opts){ tp, cp, pp, ep });
                    for (int32_t k = 0; k < 9; k++)
                        check_sizes(world, (ml_mesh_opts){ tp, cp, pp, .ep = 1 + k / 3,
                                                           .etp = 2 + k % 3 });
                    check_sizes(world,
                                (ml_mesh_opts){ tp, cp, pp, .fsdp = true, .replicate = 1 });
                    check_sizes(world,
                                (ml_mesh_opts){ tp, cp, pp, .fsdp = true, .replicate = 2 });
                }
    CHECK(n == 168);
}

/* --- strips ---------------------------------------------------------------------- */

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
        ml_tensor view = ml_shard_view(&t, ml_shard_owned(m, i, r));
        ml_weights part = { .t = &view, .n = 1 };
        ml_strip s = { 0 };
        while (ml_strip_next(&s, p, layout, ml_shard_owned(m, i, r)))
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
            m = map_over(&a, (ml_layout)layout, n_rank);
            for (int32_t i = 0; i < N_PARAM; i++)
                check_strips(&m, (ml_layout)layout, i, &a);
            ml_arena_release(&a);
        }
}

static const ml_test tests[] = {
    { "each element of a parameter has one owner", each_element_has_one_owner },
    { "ranks own about the same", ranks_own_about_the_same },
    { "in every mesh, parts are resident where they are used, and owned once",
      parts_of_all_meshes },
    { "the strips of all ranks are the rows of a parameter", strips_are_the_rows },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
