/* The cost model of miles plan: hand-computed cases, the measured steps of docs/CUDA.md, and
 * the memory plan of a run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "backend/sizes.h"
#include "model/shard_map.h"
#include "model/stage.h"
#include "run/job_cost.h"
#include "run/memory_plan.h"
#include "tests/support/must.h"
#include "tests/support/round_speeds.h"
#include "tests/support/test.h"

static bool near(double a, double b, double share) {
    return fabs(a - b) <= share * fabs(b);
}

/* --- links ------------------------------------------------------------------- */

static void collectives(void) {
    ml_speeds s = ml_round_speeds();
    ml_job_group node = ml_job_group_of(1, 8, 8), two = ml_job_group_of(1, 16, 8),
                 far = ml_job_group_of(8, 4, 8);
    double moved[ML_LINKS] = { 0 };

    CHECK(node.size == 8 && node.in_node == 8);
    CHECK(two.size == 16 && two.in_node == 8);
    CHECK(far.size == 4 && far.in_node == 1);
    CHECK(ml_job_group_of(2, 8, 8).in_node == 4);
    /* 8 GB in a node: 7 of them come from other ranks, at 100 GB/s. */
    CHECK(near(ml_job_gather_seconds(&s, node, 8e9, moved), 0.07 + 10e-6, 1e-9));
    CHECK(near(moved[ML_LINK_NODE], 7e9, 1e-12) && moved[ML_LINK_NETWORK] == 0);
    /* Two nodes: half of it crosses the network, 1/8 of that to each rank, at 10 GB/s. */
    CHECK(near(ml_job_gather_seconds(&s, two, 8e9, moved), 0.07 + 10e-6, 1e-9));
    CHECK(near(moved[ML_LINK_NETWORK], 0.5e9, 1e-12));
    CHECK(near(ml_job_gather_seconds(&s, far, 8e9, moved), 0.6 + 20e-6, 1e-9));
    /* Rows for 16 ranks: 7 parts go to the node, 8 over the network. */
    moved[ML_LINK_NODE] = moved[ML_LINK_NETWORK] = 0;
    CHECK(near(ml_job_swap_seconds(&s, two, 16e8, moved), 0.08 + 20e-6, 1e-9));
    CHECK(near(moved[ML_LINK_NODE], 7e8, 1e-12));
    /* A group of one rank moves nothing. */
    CHECK(ml_job_gather_seconds(&s, ml_job_group_of(1, 1, 8), 8e9, moved) == 0);
}

/* --- pipelines --------------------------------------------------------------- */

static void bubbles(void) {
    const double f[8] = { 1, 1, 1, 1, 1, 1, 1, 1 }, b[8] = { 2, 2, 2, 2, 2, 2, 2, 2 };
    const double half[8] = { .5, .5, .5, .5, .5, .5, .5, .5 }, slow[4] = { 1, 3, 1, 1 };
    ml_job_pipeline p = { 4, 1, 8, f, b, 0 };

    /* 1F1B: (stages - 1 + micro-batches) x (forward + backward). */
    CHECK(near(ml_job_pipeline_seconds(&p), 11 * 3, 1e-12));
    p.n_micro = 100;
    CHECK(near(ml_job_pipeline_seconds(&p), 103 * 3, 1e-12));
    /* Interleaved, two parts of half the time: half the bubble. */
    p = (ml_job_pipeline){ 4, 2, 8, half, f, 0 };
    CHECK(near(ml_job_pipeline_seconds(&p), 8 * 3 + 1.5 * 3, 1e-12));
    /* One stage has no bubble. */
    p = (ml_job_pipeline){ 1, 1, 8, f, b, 5 };
    CHECK(near(ml_job_pipeline_seconds(&p), 24, 1e-12));
    /* The slowest stage sets the pace. */
    p = (ml_job_pipeline){ 4, 1, 1000, slow, b, 0 };
    CHECK(near(ml_job_pipeline_seconds(&p), 5000, 0.01));
    /* One micro-batch: all stages in turn, and what is sent between them, there and back. */
    p = (ml_job_pipeline){ 4, 1, 1, f, b, 0.25 };
    CHECK(near(ml_job_pipeline_seconds(&p), 12 + 6 * 0.25, 1e-12));
}

/* --- whole steps --------------------------------------------------------------- */

typedef struct job {
    ml_spec spec;
    ml_speeds speeds;
    ml_backend be;
    ml_job_request req;
    ml_job_planner *planner;
} job;

/* As bench/bench_gpu.c trains: a loss at every position, AdamW, logits kept. */
static void open_job(job *j, const char *model, int64_t n_seq, int64_t len,
                     int64_t max_tokens) {
    MUST(ml_spec_open(&j->spec, model, &err));
    MUST(ml_speeds_open(&j->speeds, "h200", &err));
    MUST(ml_backend_sizes_open(&j->be,
                               &(ml_sizes_opts){ "h200", (size_t)j->speeds.memory_bytes,
                                                 (size_t)j->speeds.base_bytes, false },
                               &err));
    ml_spec_keep_kv(&j->spec, ML_BF16);
    j->req = (ml_job_request){
        .spec = &j->spec,
        .be = &j->be,
        .speeds = &j->speeds,
        .n_node = 1,
        .gpus_per_node = 1,
        .opts = { .optimizer = { .rule = { .beta1 = 0.9, .beta2 = 0.95, .eps = 1e-8 } },
                  .batch = { .global_batch_size = n_seq,
                             .dynamic = true,
                             .max_tokens = max_tokens },
                  .keep_logits = true },
        .sample_tokens = len,
        .weight_bytes = ml_weights_bytes(&j->spec, NULL, ML_WEIGHT_BF16),
        .bf16 = true,
        .n_set = 1,
        .mem_fraction = 1,
    };
    MUST(ml_job_planner_open(&j->planner, &j->req, &err));
}

static void close_job(job *j) {
    ml_job_planner_close(j->planner);
    ml_backend_close(&j->be);
    ml_spec_close(&j->spec);
}

static ml_job_cost cost_of(job *j, ml_job_layout layout) {
    ml_job_cost c;

    MUST(ml_job_cost_of(&c, j->planner, &layout, &err));
    return c;
}

static const ml_job_layout one = { .mesh = { 1, 1, 1, 1 } };

/* docs/CUDA.md: the middle of the measured range where there is one. */
static const struct {
    const char *model;
    int64_t n_seq, len, max_tokens;
    double step_s, gib; /* planned memory as measured; 0: not measured */
} measured[] = {
    { "share/configs/Qwen3-0.6B", 8, 2048, 16384, 8 * 2048 / 101900.0, 42.2 },
    { "share/configs/Qwen3-4B", 4, 4096, 8192, 0.843, 0 },
    { "tests/golden/plan/Qwen3-30B-A3B-6-layers", 4, 2048, 8192, 0.113, 0 },
};
enum { N_MEASURED = sizeof measured / sizeof *measured };

static void measured_steps(void) {
    for (int i = 0; i < N_MEASURED; i++) {
        job j = { 0 };
        ml_job_cost c;
        open_job(&j, measured[i].model, measured[i].n_seq, measured[i].len,
                 measured[i].max_tokens);
        c = cost_of(&j, one);
        if (!near(c.step_s, measured[i].step_s, 0.10))
            ml_test_fail(__FILE__, __LINE__, "%s: %.1f ms predicted, %.1f measured",
                         measured[i].model, 1e3 * c.step_s, 1e3 * measured[i].step_s);
        if (measured[i].gib > 0)
            CHECK(near(c.memory.total, measured[i].gib * 0x1p30, 0.03));
        close_job(&j);
    }
}

static double memory_row(const ml_memory *m, const char *what) {
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->row[i].what, what) == 0)
            return (double)m->row[i].bytes;
    return 0;
}

/* The same rows, to the byte. */
static void one_rank_is_the_memory_plan(void) {
    const char *const set[] = { "weights", NULL };

    for (int i = 0; i < N_MEASURED; i++) {
        job j = { 0 };
        ml_job_cost c;
        ml_memory m;
        open_job(&j, measured[i].model, measured[i].n_seq, measured[i].len,
                 measured[i].max_tokens);
        j.req.scores = i == 0;
        c = cost_of(&j, one);
        MUST(ml_memory_plan(
            &m,
            &(ml_memory_request){ .spec = &j.spec,
                                  .be = &j.be,
                                  .weight_bytes = j.req.weight_bytes,
                                  .bf16 = true,
                                  .set = set,
                                  .opts = j.req.opts,
                                  .scores = j.req.scores,
                                  .base_bytes = (size_t)j.speeds.base_bytes },
            &err));
        CHECK(c.memory.total == (double)m.total);
        for (int k = ML_JOB_WEIGHTS; k < ML_JOB_MEMORY_ROWS; k++)
            CHECK(c.memory.row[k] == memory_row(&m, ml_job_memory_names[k]));
        close_job(&j);
    }
}

/* --- ranks ------------------------------------------------------------------------ */

static const ml_job_layout layouts[] = {
    { .mesh = { .tp = 8 } },          { .mesh = { .tp = 2, .cp = 2 } },
    { .mesh = { .tp = 4, .ep = 8 } }, { .mesh = { .tp = 2, .pp = 4, .ep = 4 } },
    { .mesh = { .cp = 2, .pp = 8 } }, { .mesh = { .tp = 1, .fsdp = true } },
};
enum { N_LAYOUT = sizeof layouts / sizeof *layouts };

/* What the shard map gives a rank: elements of its weights, and of its optimizer state. */
static void shares(job *j, const ml_mesh_sizes *mesh, int32_t rank, double *resident,
                   double *own) {
    int32_t *stage;
    ml_shard_map map;
    ml_arena a;

    ml_arena_init(&a, "test");
    stage = ML_NEW(&a, int32_t, j->spec.n_node);
    MUST(ml_stage_of_nodes(stage, &j->spec,
                           &(ml_stage_opts){ .n_stage = mesh->size[ML_MESH_PP] }, &err));
    ml_shard_map_init(&map, &a, &j->spec, ML_ROWS, mesh, stage);
    *resident = *own = 0;
    for (int32_t i = 0; i < j->spec.n_param; i++) {
        *resident += (double)ml_shard_resident(&map, i, rank).n;
        *own += (double)ml_shard_owned(&map, i, rank).n;
    }
    ml_arena_release(&a);
}

/* The rank of the worst stage that has most; 1 % for ranges that do not divide. */
static void shares_of_ranks(void) {
    for (int i = 0; i < N_LAYOUT; i++) {
        job j = { 0 };
        ml_job_cost c;
        double all, resident, own;
        open_job(&j, "share/configs/Qwen3-30B-A3B", 64, 2048, 8192);
        j.req.n_node = 4;
        j.req.gpus_per_node = 8;
        c = cost_of(&j, layouts[i]);
        all = (double)ml_spec_param_count(&j.spec);
        shares(&j, &c.mesh, c.worst_stage * 32 / c.mesh.size[ML_MESH_PP], &resident, &own);
        CHECK(near(c.memory.row[ML_JOB_WEIGHTS],
                   (double)j.req.weight_bytes * resident / all, 0.01));
        CHECK(near(c.memory.row[ML_JOB_STATE],
                   (double)ml_optimizer_bytes(&j.spec, &j.req.opts.optimizer, true) * own /
                       all,
                   0.01));
        close_job(&j);
    }
}

/* What a run of this rank would plan, from its mesh without communicators. */
static double run_bytes(job *j, const ml_mesh_sizes *sizes, int32_t rank) {
    const char *const set[] = { "weights", NULL };
    ml_mesh mesh = { .sizes = *sizes, .rank = rank, .at_ep = ml_mesh_at_ep(sizes, rank) };
    int32_t *stage = malloc(sizeof *stage * (size_t)j->spec.n_node);
    ml_memory_request req = { .spec = &j->spec,
                              .be = &j->be,
                              .bf16 = true,
                              .dtype = ML_WEIGHT_BF16,
                              .set = set,
                              .opts = j->req.opts,
                              .base_bytes = (size_t)j->speeds.base_bytes };
    const ml_shard_range *part;
    ml_shard_map map;
    ml_memory m;
    ml_arena a;

    ml_arena_init(&a, "test");
    ml_mesh_at(mesh.at, sizes, rank);
    MUST(ml_stage_of_nodes(stage, &j->spec,
                           &(ml_stage_opts){ .n_stage = sizes->size[ML_MESH_PP] }, &err));
    ml_shard_map_init(&map, &a, &j->spec, ML_ROWS, sizes, stage);
    part = ml_shard_residents(&map, &a, rank);
    req.weight_bytes = ml_weights_part_bytes(&j->spec, NULL, ML_WEIGHT_BF16, part);
    req.opts.mesh = &mesh;
    req.opts.stage = stage;
    MUST(ml_memory_plan(&m, &req, &err));
    ml_arena_release(&a);
    free(stage);
    return (double)m.total;
}

/* Within 3 % of the memory plan of such a rank, communicators aside. */
static void memory_of_ranks(void) {
    static const ml_job_layout some[] = {
        { .mesh = { .tp = 8 } },
        { .mesh = { .tp = 4, .pp = 2 } },
        { .mesh = { .pp = 4 } },
        { .mesh = { .tp = 1, .fsdp = true } },
    };

    for (size_t i = 0; i < sizeof some / sizeof *some; i++) {
        job j = { 0 };
        ml_job_cost c;
        double run;
        open_job(&j, "share/configs/Qwen3-8B", 64, 2048, 8192);
        j.req.n_node = 2;
        j.req.gpus_per_node = 8;
        c = cost_of(&j, some[i]);
        run = run_bytes(&j, &c.mesh, c.worst_stage * 16 / c.mesh.size[ML_MESH_PP]);
        if (!near(c.memory.total - c.memory.row[ML_JOB_COMM], run, 0.03))
            ml_test_fail(__FILE__, __LINE__, "layout %d: %.2f GiB, a run plans %.2f",
                         (int)i, (c.memory.total - c.memory.row[ML_JOB_COMM]) / 0x1p30,
                         run / 0x1p30);
        close_job(&j);
    }
}

/* 8B over 8 GPUs: 6 bytes of each parameter, 7/8 of them from other ranks, over NVLink. */
static void data_parallel_bytes(void) {
    job j = { 0 };
    ml_job_cost c;
    double p;

    open_job(&j, "share/configs/Qwen3-8B", 64, 2048, 8192);
    j.req.gpus_per_node = 8;
    c = cost_of(&j, one);
    p = (double)ml_spec_param_count(&j.spec);
    CHECK(near(c.bytes[ML_TRAFFIC_STEP][ML_LINK_NODE], 6 * p * 7 / 8, 1e-6));
    CHECK(c.bytes[ML_TRAFFIC_STEP][ML_LINK_NETWORK] == 0);
    CHECK(near(c.reduce_s, 6 * p * 7 / 8 / j.speeds.link[ML_LINK_NODE].bytes, 0.01));
    CHECK(c.n_micro == 2 && c.exposed_s == 0 && c.bubble_s == 0);
    /* Weights gathered: 2 + 2 + 4 bytes of each parameter and micro-batch. */
    c = cost_of(&j, layouts[0]);
    CHECK(near(c.bytes[ML_TRAFFIC_GATHER][ML_LINK_NODE], 2 * 8 * p * 7 / 8, 1e-6));
    CHECK(c.bytes[ML_TRAFFIC_STEP][ML_LINK_NODE] == 0);
    CHECK(c.exposed_s > 0 && c.exposed_s < c.comm_s / 2);
    /* Without overlap all of it is exposed. */
    j.speeds.overlap = false;
    c = cost_of(&j, layouts[0]);
    CHECK(near(c.exposed_s, c.comm_s, 0.05));
    close_job(&j);
}

/* Work is conserved: any layout of a mesh computes as long, all ranks together. */
static void divided_work(void) {
    job j = { 0 };
    double gpu_s = 0;

    open_job(&j, "share/configs/Qwen3-30B-A3B", 256, 2048, 8192);
    j.req.n_node = 2;
    j.req.gpus_per_node = 8;
    for (int i = 0; i < N_LAYOUT; i++) {
        ml_job_cost c;
        if (layouts[i].mesh.pp > 1)
            continue; /* stages are not equal */
        c = cost_of(&j, layouts[i]);
        gpu_s = gpu_s > 0 ? gpu_s : c.compute_s;
        CHECK(
            near(c.compute_s, gpu_s, 0.25)); /* fewer experts of a rank: larger products */
    }
    close_job(&j);
}

static void ten_thousand(void) {
    job j = { 0 };
    ml_job_cost *found;
    int32_t n, n_tried;
    double start = ml_test_own_s();
    ml_arena a;

    open_job(&j, "share/configs/DeepSeek-V3", 16384, 4096, 8192);
    j.req.n_node = 1250;
    j.req.gpus_per_node = 8;
    ml_arena_init(&a, "test");
    MUST(ml_job_search(&found, &n, &n_tried, &a, j.planner, 10, &err));
    CHECK(n == 10 && n_tried > 100);
    CHECK(ML_TEST_SANITIZED || ml_test_own_s() - start < 10);
    ml_arena_release(&a);
    close_job(&j);
}

static const ml_test tests[] = {
    { "collectives take the slower link of their group", collectives },
    { "bubbles of 1F1B and interleaved pipelines are those of the formula", bubbles },
    { "predicted steps are within 10 % of the measured ones", measured_steps },
    { "one rank's memory is the memory plan of a run", one_rank_is_the_memory_plan },
    { "weights and optimizer state of a rank are those of the shard map", shares_of_ranks },
    { "memory of ranks is within 3 % of what a run of them plans", memory_of_ranks },
    { "data parallel and gathered weights move as many bytes as the formulas",
      data_parallel_bytes },
    { "layouts divide the same work", divided_work },
    { "all layouts of 10,000 GPUs are planned in less than 10 s", ten_thousand,
      .limit_s = 300 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
