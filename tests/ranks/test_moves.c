/* Weights move from any layout over ranks to any other: an engine of every size gets the
 * bytes that it would have loaded from the checkpoint, and nothing else is touched. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "model/moves.h"
#include "model/spec_shard.h"
#include "tests/support/must.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static const char *const models[] = { "llama_tied", "gpt_oss", NULL };
static const int32_t sizes[] = { 1, 3, 4 };
#else
static const char *const models[] = { "llama_tied", "qwen3_moe", "deepseek_v3",
                                      "qwen3_next", "gpt_oss",   "gemma2",
                                      NULL };
static const int32_t sizes[] = { 1, 2, 3, 4, 6, 8 };
#endif
enum { MAX_RANK = 8, N_SIZE = sizeof sizes / sizeof *sizes };

/* A model, and what each rank of engines of each size has of it when it loads the
 * checkpoint. */
typedef struct model {
    ml_arena arena;
    ml_backend be;
    ml_checkpoint *from;
    ml_spec spec;
    ml_weights whole;
    ml_weight_dtype want_dtype;
    ml_dtype *dtype;
    ml_spec cut[MAX_RANK + 1][MAX_RANK];
    ml_weights want[MAX_RANK + 1][MAX_RANK];
} model;

static void open_model(model *m, const char *name, ml_weight_dtype dtype) {
    ml_backend_opts be = { .device = "cpu", .n_thread = 1 };
    char dir[256];

    *m = (model){ .want_dtype = dtype };
    ml_arena_init(&m->arena, "test");
    snprintf(dir, sizeof dir, "tests/golden/data/%s", name);
    MUST(ml_backend_open(&m->be, &be, &err));
    MUST(ml_checkpoint_open(&m->from, dir, &err));
    MUST(ml_spec_open(&m->spec, dir, &err));
    MUST(ml_weights_load(&m->whole, &m->spec, m->from, dtype, &m->be, &m->arena, &err));
    m->dtype = ML_NEW(&m->arena, ml_dtype, m->spec.n_param);
    for (int32_t i = 0; i < m->spec.n_param; i++)
        m->dtype[i] = m->whole.t[i].dtype;
    for (int32_t n = 1; n <= MAX_RANK; n++)
        for (int32_t r = 0; r < n; r++) {
            MUST(ml_spec_shard_copy(&m->cut[n][r], &m->spec, n, r, &err));
            MUST(ml_weights_load(&m->want[n][r], &m->cut[n][r], m->from, dtype, &m->be,
                                 &m->arena, &err));
        }
}

static void close_model(model *m) {
    for (int32_t n = 1; n <= MAX_RANK; n++)
        for (int32_t r = 0; r < n; r++) {
            ml_weights_close(&m->want[n][r]);
            ml_spec_close(&m->cut[n][r]);
        }
    ml_weights_close(&m->whole);
    ml_spec_close(&m->spec);
    ml_checkpoint_close(m->from);
    ml_backend_close(&m->be);
    ml_arena_release(&m->arena);
}

/* --- layouts ------------------------------------------------------------------------ */

/* Stages of about as many nodes. */
static const int32_t *stages_of(ml_arena *a, const model *m, int32_t n_stage) {
    int32_t *stage = ML_NEW(a, int32_t, m->spec.n_node);

    for (int32_t i = 0; i < m->spec.n_node; i++)
        stage[i] = (int32_t)((int64_t)i * n_stage / m->spec.n_node);
    return stage;
}

/* What each rank of a mesh over the first ranks has. */
static const ml_shard_range **ranges_of(ml_arena *a, const model *m,
                                        const ml_mesh_sizes *mesh, int32_t n_world) {
    const ml_shard_range **out = ML_NEW(a, const ml_shard_range *, n_world);
    ml_shard_map map;

    ml_shard_map_init(&map, a, &m->spec, m->be.linear, mesh,
                      stages_of(a, m, mesh->size[ML_MESH_PP]));
    for (int32_t r = 0; r < ml_mesh_world(mesh); r++)
        out[r] = ml_shard_residents(&map, a, r);
    return out;
}

typedef struct job {
    model *m;
    ml_mesh_sizes from;
    int32_t n_world, first, size; /* engines of `size` ranks, from rank `first` on */
    bool in_place, damage;
    size_t bucket;
} job;

static bool same_rows(const ml_weights *a, const ml_weights *b) {
    for (int32_t i = 0; i < a->n; i++)
        if (memcmp(a->t[i].data, b->t[i].data, ml_tensor_bytes(&a->t[i])) != 0)
            return false;
    return true;
}

/* Changes a bit of a row that was received. */
static void damage(const ml_moves *m, const ml_weights *got) {
    for (int64_t i = 0; i < m->n; i++)
        if (m->move[i].to == m->opts.rank) {
            ((unsigned char *)got->t[m->move[i].into].data)[0] ^= 1;
            return;
        }
}

static void publish(ml_comm *c, void *ud) {
    const job *j = ud;
    model *m = j->m;
    bool receives = c->rank >= j->first;
    int32_t place = (c->rank - j->first) % j->size;
    const ml_spec *to[MAX_RANK] = { 0 };
    ml_weights have = { 0 }, got = { 0 };
    ml_moves moves;
    ml_arena a;
    const ml_shard_range **from;
    ml_moves_opts o;
    ml_err why = { 0 };
    ml_status st;

    ml_arena_init(&a, "test rank");
    from = ranges_of(&a, m, &j->from, j->n_world);
    for (int32_t r = j->first; r < j->n_world; r++)
        to[r] = &m->cut[j->size][(r - j->first) % j->size];
    o = (ml_moves_opts){ .whole = &m->spec,
                         .linear = m->be.linear,
                         .dtype = m->dtype,
                         .n_rank = j->n_world,
                         .from = from,
                         .to = to,
                         .rank = c->rank,
                         .bucket_bytes = j->bucket,
                         .in_place = j->in_place };
    if (from[c->rank])
        MUST(ml_weights_load_part(&have, &m->spec, m->from, m->want_dtype, from[c->rank],
                                  &m->be, &a, &err));
    if (receives)
        MUST(ml_moves_receiver(&got, &o, &have, &m->be, &a, &err));
    ml_moves_plan(&moves, &o);
    if (receives)
        ml_moves_spoil(&moves, &got);
    MUST(ml_moves_run(&moves, c, &have, receives ? &got : NULL, &err));
    if (receives && !same_rows(&got, &m->want[j->size][place]))
        ml_test_fail(__FILE__, __LINE__,
                     "%s: %d ranks (gather %d, pp %d, ep %d) to engines of %d from rank "
                     "%d: rank %d has other weights",
                     m->spec.family, ml_mesh_world(&j->from), j->from.gather,
                     j->from.size[ML_MESH_PP], j->from.ep, j->size, j->first, c->rank);
    if (j->damage && c->rank == j->first)
        damage(&moves, &got);
    st = ml_moves_check(&moves, c, &have, receives ? &got : NULL, &why);
    CHECK((st == ML_OK) == !(j->damage && c->rank == j->first));
    if (st != ML_OK)
        CHECK_HAS(why.msg, "differ from the trained ones: model.embed_tokens.weight, rows");
    ml_moves_close(&moves);
    ml_weights_close(&got);
    ml_weights_close(&have);
    ml_arena_release(&a);
}

/* All of them with MILES_LONG, otherwise every 61st: each run starts threads. */
static void run_some(job *j) {
    static int64_t n;

    if (n++ % 61 == 0 || getenv("MILES_LONG"))
        ml_ranks_run(j->n_world, publish, j);
}

/* Engines on all ranks, or on those that do not train. */
static void to_every_engine(model *m, ml_mesh_sizes from) {
    int32_t n_rank = ml_mesh_world(&from);

    for (int k = 0; k < N_SIZE; k++) {
        int32_t size = sizes[k], apart = n_rank + size;
        if (n_rank % size == 0) {
            job j = { .m = m, .from = from, .n_world = n_rank, .size = size };
            j.bucket = 1 << 20;
            run_some(&j);
            j.in_place = true;
            run_some(&j);
        }
        if (apart <= MAX_RANK) {
            job j = { .m = m, .from = from, .n_world = apart, .first = n_rank };
            j.size = size;
            j.bucket = 3000; /* many buckets, and rows that fill one */
            run_some(&j);
        }
    }
}

static void from_every_mesh(model *m, int32_t n_rank) {
    bool experts = m->spec.route[ML_ROUTING_EXPERTS].top_k > 0;
    ml_mesh_sizes mesh;

    for (int32_t pp = 1; pp <= n_rank; pp++)
        for (int32_t tp = 1; tp <= n_rank; tp++)
            for (int32_t ep = 1; ep <= (experts ? n_rank : 1); ep++)
                for (int fsdp = 0; fsdp < 2; fsdp++) {
                    ml_mesh_opts o = { .tp = tp, .pp = pp, .ep = ep, .fsdp = fsdp };
                    if (ml_mesh_size(&mesh, n_rank, o, NULL) == ML_OK)
                        to_every_engine(m, mesh);
                }
}

static void every_layout_to_every_other(ml_weight_dtype dtype) {
    for (const char *const *name = models; *name; name++) {
        static model m;
        open_model(&m, *name, dtype);
        for (int k = 0; k < N_SIZE; k++)
            from_every_mesh(&m, sizes[k]);
        close_model(&m);
    }
}

static void in_f32(void) {
    every_layout_to_every_other(ML_WEIGHT_F32);
}

static void in_bf16(void) {
    every_layout_to_every_other(ML_WEIGHT_BF16);
}

/* A bit of one row is wrong: the check names the parameter and the ranks. */
static void a_wrong_bit_is_found(void) {
    static model m;
    job j = { .m = &m, .n_world = 4, .first = 2, .size = 2 };

    open_model(&m, models[0], ML_WEIGHT_F32);
    MUST(ml_mesh_size(&j.from, 2, (ml_mesh_opts){ .tp = 2 }, &err));
    j.bucket = 1 << 20;
    j.damage = true;
    ml_ranks_run(j.n_world, publish, &j);
    close_model(&m);
}

static const ml_test tests[] = {
    { "f32 weights move from every layout to every engine", in_f32, 600 },
    { "bf16 weights move from every layout to every engine", in_bf16, 600 },
    { "a wrong bit in published weights is found", a_wrong_bit_is_found },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
