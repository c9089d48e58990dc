#include <string.h>

#include "base/arena.h"
#include "base/file.h"
#include "base/json.h"
#include "comm/mesh.h"
#include "comm/self/self.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

/* Calls fn for every mesh of at most 8 ranks; returns how many there are. */
typedef void mesh_fn(const ml_mesh_sizes *m, ml_mesh_opts o);

static int each_mesh(bool experts, mesh_fn *fn) {
    int n = 0;

    for (int32_t world = 1; world <= 8; world++)
        for (int32_t tp = 1; tp <= world; tp++)
            for (int32_t cp = 1; tp * cp <= world; cp++)
                for (int32_t pp = 1; tp * cp * pp <= world; pp++)
                    for (int32_t ep = 1; ep <= (experts ? world : 1); ep++) {
                        ml_mesh_opts o = { tp, cp, pp, ep };
                        ml_mesh_sizes m;
                        if (world % (tp * cp * pp) || world / pp % ep)
                            continue;
                        CHECK(ml_mesh_size(&m, world, o, NULL) == ML_OK);
                        fn(&m, o);
                        n++;
                    }
    return n;
}

/* The definition, counted up: the last direction changes slowest. */
static void counts_up(const ml_mesh_sizes *m, ml_mesh_opts o) {
    int32_t rank = 0, at[ML_MESH_DIMS], dp = m->size[ML_MESH_DP];

    for (int32_t p = 0; p < o.pp; p++)
        for (int32_t d = 0; d < dp; d++)
            for (int32_t c = 0; c < o.cp; c++)
                for (int32_t t = 0; t < o.tp; t++, rank++) {
                    ml_mesh_at(at, m, rank);
                    CHECK(at[ML_MESH_TP] == t && at[ML_MESH_CP] == c &&
                          at[ML_MESH_DP] == d && at[ML_MESH_PP] == p);
                    CHECK(ml_mesh_rank(m, at) == rank);
                    CHECK(ml_mesh_at_ep(m, rank) == rank % (o.tp * o.cp * dp) % o.ep);
                }
    CHECK(rank == ml_mesh_world(m));
}

static void places(void) {
    CHECK(each_mesh(false, counts_up) == 63);
    CHECK(each_mesh(true, counts_up) == 168);
}

static int32_t group_size(const ml_mesh_sizes *m, ml_mesh_group g) {
    int32_t tp = m->size[ML_MESH_TP], cp = m->size[ML_MESH_CP], dp = m->size[ML_MESH_DP];

    switch (g) {
    case ML_GROUP_TP: return tp;
    case ML_GROUP_CP: return cp;
    case ML_GROUP_PP: return m->size[ML_MESH_PP];
    case ML_GROUP_DATA: return dp * tp;
    case ML_GROUP_REDUCE: return dp * tp * cp;
    case ML_GROUP_EXPERT: return m->ep;
    case ML_GROUP_EXPERT_DATA: return dp * tp * cp / (m->ep * m->etp);
    case ML_GROUP_EXPERT_GATHER: return m->etp;
    case ML_GROUP_GATHER: return m->gather;
    case ML_GROUP_EXPERT_SAME: return dp * tp * cp / m->ep;
    case ML_GROUP_REPLICA: return dp * tp * cp / m->gather;
    case ML_MESH_GROUPS: break;
    }
    return -1;
}

/* Groups of one kind have one size, and each rank is in exactly one of them. */
static void are_partitions(const ml_mesh_sizes *m, ml_mesh_opts o) {
    int32_t world = ml_mesh_world(m), mine[8], theirs[8];

    (void)o;
    for (int g = 0; g < ML_MESH_GROUPS; g++)
        for (int32_t r = 0; r < world; r++) {
            int32_t n = ml_mesh_members(mine, m, r, (ml_mesh_group)g), found = 0;

            CHECK(n == group_size(m, (ml_mesh_group)g));
            for (int32_t i = 0; i < n; i++) {
                CHECK(i == 0 || mine[i] > mine[i - 1]);
                CHECK(ml_mesh_members(theirs, m, mine[i], (ml_mesh_group)g) == n);
                CHECK(memcmp(mine, theirs, (size_t)n * sizeof *mine) == 0);
                found += mine[i] == r;
            }
            CHECK(found == 1);
        }
}

static void are_partitions_with_fsdp(const ml_mesh_sizes *m, ml_mesh_opts o) {
    ml_mesh_sizes wide;

    for (o.replicate = 1; o.replicate <= m->size[ML_MESH_DP]; o.replicate++) {
        o.fsdp = true;
        if (m->size[ML_MESH_DP] % o.replicate)
            continue;
        CHECK(ml_mesh_size(&wide, ml_mesh_world(m), o, NULL) == ML_OK);
        CHECK(wide.gather * o.replicate == ml_mesh_data_size(m));
        are_partitions(&wide, o);
    }
}

static void groups(void) {
    each_mesh(true, are_partitions);
    each_mesh(false, are_partitions_with_fsdp);
}

/* Megatron's groups of a kind: lists of ranks. */
static int compare_kind(const ml_mesh_sizes *m, ml_mesh_group g, const ml_json *lists) {
    int32_t member[64];
    int n = 0;

    for (const ml_json *list = lists->child; list; list = list->next, n++) {
        int64_t first = -1;
        int32_t k = 0;

        CHECK(ml_json_i64(list->child, &first));
        CHECK(ml_mesh_members(member, m, (int32_t)first, g) == list->n);
        for (const ml_json *v = list->child; v; v = v->next, k++) {
            int64_t rank = -1;
            CHECK(ml_json_i64(v, &rank) && rank == member[k]);
        }
    }
    CHECK(n > 0);
    return n;
}

static int32_t number(const ml_json *row, const char *key) {
    int64_t v = -1;

    CHECK(ml_json_i64(ml_json_get(row, key), &v));
    return (int32_t)v;
}

static bool compare_row(const ml_json *row) {
    const ml_json *dense = ml_json_get(row, "groups"),
                  *expert = ml_json_get(row, "expert_groups");
    ml_mesh_opts o = { number(row, "tp"), number(row, "cp"), number(row, "pp"),
                       number(row, "ep"), number(row, "etp") };
    ml_mesh_sizes m;

    if (!ml_str_is(ml_json_get(row, "order")->text, "tp-cp-ep-dp-pp"))
        return false;
    CHECK(ml_mesh_size(&m, number(row, "world"), o, NULL) == ML_OK);
    CHECK(m.size[ML_MESH_DP] == number(row, "dp"));
    compare_kind(&m, ML_GROUP_TP, ml_json_get(dense, "tp"));
    compare_kind(&m, ML_GROUP_CP, ml_json_get(dense, "cp"));
    compare_kind(&m, ML_GROUP_PP, ml_json_get(dense, "pp"));
    compare_kind(&m, ML_GROUP_REDUCE, ml_json_get(dense, "tp-dp-cp"));
    compare_kind(&m, ML_GROUP_EXPERT, ml_json_get(expert, "ep"));
    compare_kind(&m, ML_GROUP_EXPERT_DATA, ml_json_get(expert, "dp"));
    compare_kind(&m, ML_GROUP_EXPERT_GATHER, ml_json_get(expert, "tp"));
    return true;
}

static void megatron(void) {
    ml_arena a = { 0 };
    ml_file f = { 0 };
    ml_err err = { 0 };
    const ml_json *root = NULL;
    int n = 0;

    if (ml_file_map(&f, "tests/golden/parallel/rank_groups.json", &err) ||
        ml_json_parse(&root, &a, f.bytes, "rank_groups.json", &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    else
        for (const ml_json *row = root->child; row; row = row->next)
            n += compare_row(row);
    CHECK(n == 8);
    ml_arena_release(&a);
    ml_file_unmap(&f);
}

static void refuse(int32_t world, ml_mesh_opts o, const char *flag, const char *why) {
    ml_mesh_sizes m;
    ml_err err = { 0 };

    CHECK(ml_mesh_size(&m, world, o, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, flag);
    CHECK_HAS(err.msg, why);
}

static void bad_sizes(void) {
    refuse(8, (ml_mesh_opts){ .tp = 3 }, "--tensor-model-parallel-size 3", "8 ranks");
    refuse(8, (ml_mesh_opts){ .tp = 2, .cp = 3 }, "--context-parallel-size 3",
           "a multiple of 6 ranks");
    refuse(8, (ml_mesh_opts){ .tp = 4, .pp = 4 }, "--pipeline-model-parallel-size 4",
           "a multiple of 16 ranks");
    refuse(8, (ml_mesh_opts){ .pp = 4, .ep = 4 }, "--expert-model-parallel-size 4",
           "a divisor of 2");
    refuse(8, (ml_mesh_opts){ .ep = 4, .etp = 4 }, "--expert-tensor-parallel-size 4",
           "a divisor of 2");
    refuse(1, (ml_mesh_opts){ .tp = 2 }, "--tensor-model-parallel-size 2", "1 rank:");
    refuse(4, (ml_mesh_opts){ .cp = -2 }, "--context-parallel-size is -2", "at least 1");
    refuse(2, (ml_mesh_opts){ 1 << 30, 1 << 30, 1 << 30, 0 }, "--tensor", "2 ranks");
}

/* Each communicator of an open mesh has the members that the function names, in order. */
static void check_group(const ml_mesh *m, ml_mesh_group g) {
    int32_t member[8], rank[8] = { 0 }, n;
    ml_comm *c = m->group[g];
    ml_tensor in = ml_comm_bytes(&m->rank, 4), out = ml_comm_bytes(rank, 4);

    n = ml_mesh_members(member, &m->sizes, m->rank, g);
    CHECK(c && c->size == n && member[c->rank] == m->rank);
    out.shape[0] *= n;
    CHECK(c->allgather(c, NULL, &out, &in, NULL) == ML_OK);
    CHECK(memcmp(rank, member, (size_t)n * sizeof *rank) == 0);
}

static void open_one(ml_comm *c, void *ud) {
    ml_mesh m;
    ml_err err = { 0 };

    CHECK(ml_mesh_open(&m, c, NULL, *(ml_mesh_opts *)ud, &err) == ML_OK);
    CHECK(m.rank == c->rank && m.world == c);
    for (int g = 0; g < ML_MESH_GROUPS; g++)
        check_group(&m, (ml_mesh_group)g);
    ml_mesh_close(&m);
}

static void open_each(const ml_mesh_sizes *m, ml_mesh_opts o) {
    ml_ranks_run(ml_mesh_world(m), open_one, &o);
}

static void communicators(void) {
    each_mesh(true, open_each);
}

static void one_rank(void) {
    ml_mesh_opts o = { 0 };
    ml_mesh m;
    ml_err err = { 0 };

    open_one(ml_comm_self(), &o);
    o.tp = 2;
    CHECK(ml_mesh_open(&m, ml_comm_self(), NULL, o, &err) == ML_EUSAGE);
    ml_mesh_close(&m);
}

static const ml_test tests[] = {
    { "ranks count up in the order tp, cp, dp, pp in all meshes of up to 8 ranks", places },
    { "the groups of each kind are a partition of the ranks", groups },
    { "groups are those of Megatron's RankGenerator", megatron },
    { "sizes that do not divide the ranks are refused with the flag and the fix",
      bad_sizes },
    { "an open mesh has a communicator for each group", communicators },
    { "a mesh of one rank opens over the communicator of one rank", one_rank },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
