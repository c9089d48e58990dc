/* Experts on several ranks, which are threads of this process: log-probs and entropies have
 * the bits of one rank; gradients differ by rounding. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/expert_rounds.h"
#include "model/stage.h"
#include "tests/support/job_rank.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"
#include "tests/support/train_fixture.h"

/* --- rounds ---------------------------------------------------------------------- */

enum { MAX_RANK = 8, MAX_EXPERT = 24, MAX_ROWS = 2048 };

static uint32_t draw(uint32_t *seed) {
    *seed = *seed * 1664525u + 1013904223u;
    return *seed >> 16;
}

/* Every row goes to the rank of its expert once, in the order of (expert, rank, token). */
static void check_rank(const ml_expert_rows *x, int32_t to) {
    int32_t first = ml_expert_first(x->n_expert, x->n_rank, to);
    int32_t end = ml_expert_first(x->n_expert, x->n_rank, to + 1), e = first, r = 0,
            done = 0;
    int32_t table[2][MAX_EXPERT + 1 + 2 * MAX_ROWS], n_mine = end - first;
    int64_t next[MAX_RANK], sent[MAX_RANK] = { 0 };

    for (int32_t round = 0; round < ml_expert_rounds(x); round++) {
        int64_t n = ml_expert_received(x, to, round), rows = 0;
        int64_t from[MAX_RANK];
        for (int32_t k = 0; k < x->n_rank; k++) {
            ml_slot_run run = ml_expert_run(x, k, to, round);
            int64_t slot = 0;
            for (int32_t i = 0; i < first; i++)
                slot += x->row[k * (1 + x->n_expert) + 1 + i];
            CHECK(run.n == 0 || run.at == slot + sent[k]);
            from[k] = rows;
            rows += run.n;
            sent[k] += run.n;
        }
        CHECK(rows == n && n <= x->row[to * (1 + x->n_expert)]);
        ml_expert_tables(table[0], table[1], next, x, to, round);
        for (int32_t i = 0; i < n; i++) {
            while (e < end && done == x->row[r * (1 + x->n_expert) + 1 + e]) {
                done = 0;
                r = (r + 1) % x->n_rank;
                e += r == 0;
            }
            CHECK(e < end && table[0][e - first] <= i && i < table[0][e - first + 1]);
            CHECK(table[0][n_mine + 1 + i] == from[r]++);
            CHECK(table[0][n_mine + 1 + n + table[0][n_mine + 1 + i]] == i);
            CHECK(table[1][n_mine + 1 + table[0][n_mine + 1 + i]] == i);
            CHECK(table[1][n_mine + 1 + n + i] == table[0][n_mine + 1 + i]);
            done++;
        }
    }
    for (int32_t k = 0; k < x->n_rank; k++)
        for (int32_t i = first; i < end; i++)
            sent[k] -= x->row[k * (1 + x->n_expert) + 1 + i];
    for (int32_t k = 0; k < x->n_rank; k++)
        CHECK(sent[k] == 0);
}

static void rounds_lose_no_row(void) {
    int32_t row[MAX_RANK * (1 + MAX_EXPERT)];
    uint32_t seed = 1;

    for (int k = 0; k < 2000; k++) {
        ml_expert_rows x = { 1 + (int32_t)draw(&seed) % MAX_RANK,
                             1 + (int32_t)draw(&seed) % MAX_EXPERT, row };
        int32_t most = (int32_t)draw(&seed) % 9;
        for (int32_t r = 0; r < x.n_rank; r++) {
            int32_t *mine = row + r * (1 + x.n_expert);
            mine[0] = 1 + (int32_t)draw(&seed) % 40;
            for (int32_t e = 0; e < x.n_expert; e++)
                mine[1 + e] =
                    draw(&seed) % 3 ? (int32_t)(draw(&seed) % (1 + (uint32_t)most)) : 0;
        }
        for (int32_t r = 0; r < x.n_rank; r++)
            check_rank(&x, r);
    }
}

/* --- plans ----------------------------------------------------------------------- */

enum { SAMPLES = 6, MAX_LOSS = 64 };

typedef enum routes { BY_ROUTER, TO_ONE_EXPERT, GIVEN } routes;

typedef struct job {
    const char *model;
    ml_weight_dtype dtype;
    routes routes;
    ml_recompute recompute;
    int32_t room; /* rows of a round; 0: default */
    bool backward;
    float logprob[SAMPLES][MAX_LOSS], entropy[SAMPLES][MAX_LOSS];
    float *grad[MAX_RANK]; /* of each rank */
    ml_weights like;       /* where tensors are */
} job;

static void must(ml_status st, const ml_err *err) {
    if (st == ML_OK)
        return;
    ml_test_fail(__FILE__, __LINE__, "%s", err->msg);
    exit(1);
}

/* A plan and a batch of some samples. */
typedef struct runner {
    ml_train_fixture t;
    ml_plan *plan;
    ml_batch batch;
    ml_weights grads;
    int32_t *given;
    int32_t item[SAMPLES], n;
    char dir[128];
} runner;

static int32_t length_of(const runner *p, int32_t i) {
    int32_t n = p->t.sample[i % p->t.n_sample].n_token;
    return n < 12 + 5 * i ? n : 12 + 5 * i;
}

static int32_t n_loss_of(const runner *p, int32_t i) {
    return length_of(p, i) / 2;
}

static void open_runner(runner *p, const job *j, ml_comm *c) {
    ml_train_fixture_opts o = { .dir = p->dir,
                                .dtype = j->dtype,
                                .trainer = ml_train_fixture_defaults() };
    ml_plan_opts opts = { .caps = { 192, SAMPLES, SAMPLES * MAX_LOSS, 64 },
                          .backward = j->backward,
                          .recompute = j->recompute,
                          .given = { [ML_ROUTING_EXPERTS] = j->routes != BY_ROUTER },
                          .group = { [ML_GROUP_EXPERT] = c },
                          .expert_rows = j->room };
    ml_err err = { 0 };

    snprintf(p->dir, sizeof p->dir, "tests/golden/data/%s", j->model);
    ml_train_fixture_open(&p->t, &o);
    must(ml_plan_new(&p->plan, &p->t.spec, &p->t.be, opts, &err), &err);
    must(ml_plan_alloc(p->plan, &err), &err);
    ml_batch_init(&p->batch, &p->t.arena, opts.caps);
    must(ml_weights_zeros(&p->grads, &p->t.spec, &p->t.be, &p->t.arena, &err), &err);
}

static void close_runner(runner *p) {
    ml_plan_free(p->plan);
    ml_weights_close(&p->grads);
    ml_train_fixture_close(&p->t);
}

static void add_sample(runner *p, int32_t i) {
    const int32_t *token = p->t.sample[i % p->t.n_sample].token;
    int32_t n = length_of(p, i), *target = ML_NEW(&p->t.arena, int32_t, n);

    for (int32_t k = 0; k < n; k++)
        target[k] = k < n_loss_of(p, i) ? token[k + 1] : ML_TARGET_SKIP;
    ml_batch_add(&p->batch, token, target, n, 0, NULL);
    p->item[p->n++] = i;
}

static int32_t n_expert_of(const ml_spec *s) {
    for (int32_t i = 0; i < s->n_node; i++)
        if (s->node[i].op == ML_OP_MOE_ROUTE)
            return s->node[i].attr.moe.n_expert;
    return 0;
}

/* Recorded experts of the batch: a function of layer, sample and position. */
static void give_routes(runner *p, const job *j) {
    int32_t n_layer = p->t.spec.route[ML_ROUTING_EXPERTS].n_layer;
    int32_t k = p->t.spec.route[ML_ROUTING_EXPERTS].top_k, n = p->batch.rows.n_token;
    int32_t n_expert = n_expert_of(&p->t.spec);

    p->given = ML_NEW(&p->t.arena, int32_t, (int64_t)n_layer * n * k + 1);
    for (int32_t l = 0; l < n_layer; l++)
        for (int32_t t = 0; t < n; t++)
            for (int32_t r = 0; r < k; r++)
                p->given[((int64_t)l * n + t) * k + r] =
                    j->routes == TO_ONE_EXPERT
                        ? r
                        : (l + p->batch.id[t] + 3 * p->batch.pos[t] + r) % n_expert;
}

static void run_batch(runner *p, job *j) {
    float logprob[SAMPLES * MAX_LOSS], entropy[SAMPLES * MAX_LOSS];
    float dlogprob[SAMPLES * MAX_LOSS], dentropy[SAMPLES * MAX_LOSS];
    ml_run run = { .weights = &p->t.weights, .grads = &p->grads, .rows = &p->batch.rows };
    ml_err err = { 0 };
    int32_t at = 0;

    p->batch.rows.temperature = 1;
    if (j->routes != BY_ROUTER) {
        give_routes(p, j);
        run.given[ML_ROUTING_EXPERTS] = p->given;
    }
    ml_plan_forward(p->plan, &run);
    ml_plan_read(p->plan, &p->batch.rows, logprob, entropy, NULL);
    for (int32_t i = 0; i < p->n; i++) {
        int32_t n = n_loss_of(p, p->item[i]);
        CHECK(n > 0 && n <= MAX_LOSS);
        for (int32_t t = 0; t < n; t++) {
            dlogprob[at + t] = -1.0f / (float)n;
            dentropy[at + t] = 0.01f * (float)(t % 5 - 2);
        }
        memcpy(j->logprob[p->item[i]], logprob + at, (size_t)n * sizeof(float));
        memcpy(j->entropy[p->item[i]], entropy + at, (size_t)n * sizeof(float));
        at += n;
    }
    if (j->backward)
        ml_plan_backward(p->plan, &run, dlogprob, dentropy);
    must(ml_plan_check(p->plan, &err), &err);
}

static void keep_grads(job *j, const runner *p, int32_t rank) {
    j->grad[rank] = malloc(p->grads.buf.bytes);
    memcpy(j->grad[rank], p->grads.buf.ptr, p->grads.buf.bytes);
}

/* One rank: all samples in one batch. */
static void run_alone(ml_comm *c, void *ud) {
    job *j = ud;
    runner p = { 0 };

    (void)c;
    open_runner(&p, j, NULL);
    for (int32_t i = 0; i < SAMPLES; i++)
        add_sample(&p, i);
    run_batch(&p, j);
    keep_grads(j, &p, 0);
    close_runner(&p);
}

/* Sample i belongs to rank i % n; of 8 ranks, two have none. */
static void run_together(ml_comm *c, void *ud) {
    job *j = ud;
    runner p = { 0 };

    open_runner(&p, j, c);
    for (int32_t i = c->rank; i < SAMPLES; i += c->size)
        add_sample(&p, i);
    run_batch(&p, j);
    keep_grads(j, &p, c->rank);
    close_runner(&p);
}

static void compare_grads(const job *j, const job *one, int32_t n_rank) {
    ml_train_fixture t;
    char dir[128];
    ml_train_fixture_opts o = { .dir = dir, .trainer = ml_train_fixture_defaults() };
    ml_weights grads;
    ml_err err = { 0 };
    float *sum;

    snprintf(dir, sizeof dir, "tests/golden/data/%s", j->model);
    ml_train_fixture_open(&t, &o);
    must(ml_weights_zeros(&grads, &t.spec, &t.be, &t.arena, &err), &err);
    sum = ML_NEW(&t.arena, float, (int64_t)(grads.buf.bytes / sizeof *sum));
    for (int32_t r = 0; r < n_rank; r++)
        for (size_t k = 0; k < grads.buf.bytes / sizeof *sum; k++)
            sum[k] += j->grad[r][k];
    for (int32_t i = 0; i < grads.n; i++) {
        ptrdiff_t at = (const float *)grads.t[i].data - (const float *)grads.buf.ptr;
        double apart = ml_grads_apart(sum + at, one->grad[0] + at,
                                      ml_tensor_bytes(&grads.t[i]) / sizeof *sum);
        if (!(apart <= ML_GRADS_BOUND))
            ml_test_fail(__FILE__, __LINE__,
                         "%s, %d ranks: the gradient of %s is %.3g of its largest apart",
                         j->model, n_rank, t.spec.param[i].name, apart);
    }
    ml_weights_close(&grads);
    ml_train_fixture_close(&t);
}

static void free_grads(job *j) {
    for (int32_t r = 0; r < MAX_RANK; r++)
        free(j->grad[r]);
}

static void compare(const job *like, const int32_t *sizes, const int32_t *rooms) {
    static job one, several;

    one = *like;
    ml_ranks_run(1, run_alone, &one);
    for (int s = 0; sizes[s]; s++)
        for (int k = 0; rooms[k] >= 0; k++) {
            several = *like;
            several.room = rooms[k];
            ml_ranks_run(sizes[s], run_together, &several);
            if (memcmp(one.logprob, several.logprob, sizeof one.logprob) ||
                memcmp(one.entropy, several.entropy, sizeof one.entropy))
                ml_test_fail(__FILE__, __LINE__,
                             "%s, %s, %d ranks, rounds of %d: other log-probs", like->model,
                             like->dtype == ML_WEIGHT_F32 ? "f32" : "bf16", sizes[s],
                             rooms[k]);
            if (like->backward)
                compare_grads(&several, &one, sizes[s]);
            free_grads(&several);
        }
    free_grads(&one);
}

static const char *const models[] = { "qwen3_moe",       "deepseek_v3", "gpt_oss",
                                      "glm4_moe",        "llama4_text", "nemotron_h_latent",
                                      "qwen3_next",      "mixtral",     "minimax_m2",
                                      "gemma4_text_moe", "deepseek_v4", NULL };

/* Sanitizers look at what ranks exchange, which is the same for all models. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static const int32_t sizes[] = { 3, 0 };
enum { N_MODEL = 2 };
#else
static const int32_t sizes[] = { 2, 4, 8, 0 };
enum { N_MODEL = sizeof models / sizeof *models };
#endif

static void families_have_the_bits_of_one_rank(void) {
    static const int32_t rooms[] = { 0, 25, -1 };

    for (int m = 0; m < N_MODEL && models[m]; m++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            compare(&(job){ .model = models[m],
                            .dtype = bf16 ? ML_WEIGHT_BF16 : ML_WEIGHT_F32,
                            .backward = true },
                    sizes, rooms);
}

/* Also without backward, where values share memory within a round. */
static void routes_may_go_to_one_rank(void) {
    static const int32_t rooms[] = { 0, 7, 1000, -1 };

    for (int backward = 0; backward < 2; backward++) {
        compare(
            &(job){ .model = "qwen3_moe", .routes = TO_ONE_EXPERT, .backward = backward },
            sizes, rooms);
        compare(&(job){ .model = "deepseek_v3", .routes = GIVEN, .backward = backward },
                sizes, rooms);
        compare(&(job){ .model = "llama4_text", .routes = GIVEN, .backward = backward },
                sizes, rooms);
    }
}

static void recomputation_has_the_bits_of_one_rank(void) {
    static const int32_t some[] = { 3, 0 }, rooms[] = { 0, 25, -1 };
    static const ml_recompute kinds[] = {
        { .granularity = ML_RECOMPUTE_FULL },
        { .granularity = ML_RECOMPUTE_FULL, .n_layer = 2 },
        { .granularity = ML_RECOMPUTE_SELECTIVE, .modules = ML_MODULE_MOE },
        { .granularity = ML_RECOMPUTE_SELECTIVE,
          .modules = ML_MODULE_MOE_ACT | ML_MODULE_LAYERNORM | ML_MODULE_CORE_ATTN },
    };
    static const char *const few[] = { "qwen3_moe", "llama4_text", "gemma4_text_moe" };

    for (size_t m = 0; m < sizeof few / sizeof *few; m++)
        for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++)
            compare(&(job){ .model = few[m], .recompute = kinds[k], .backward = true },
                    some, rooms);
}

/* --- trainers -------------------------------------------------------------------- */

enum { TRAINED = 12, MAX_RESPONSE = 32, MAX_PARAM = 256 };

/* What the ranks of a mesh compute together. */
typedef struct training {
    const char *model;
    ml_weight_dtype dtype;
    ml_mesh_opts mesh;
    bool record, full; /* routing is recorded and replayed; layers are recomputed */
    float logprob[TRAINED][MAX_RESPONSE], entropy[TRAINED][MAX_RESPONSE];
    float scored[TRAINED][MAX_RESPONSE];
    double loss;
    float *grad;                /* of one rank */
    ptrdiff_t at[MAX_PARAM];    /* where its tensors begin */
    const struct training *one; /* the same with one rank; NULL: this is it */
} training;

typedef struct trainee {
    ml_train_fixture t;
    ml_mesh mesh;
    int32_t *stage; /* of each node; NULL: one stage */
    training *j;
    ml_train_sample sample[TRAINED];
    char dir[128];
} trainee;

static void differs(const training *j, const ml_comm *c, const char *what) {
    ml_test_fail(__FILE__, __LINE__,
                 "%s, %s, ep %d, tp %d, cp %d, pp %d: rank %d of %d has other %s", j->model,
                 j->dtype == ML_WEIGHT_F32 ? "f32" : "bf16", j->mesh.ep, j->mesh.tp,
                 j->mesh.cp, j->mesh.pp, c->rank, c->size, what);
}

/* From a spec of its own. */
static int32_t *stages_of(const trainee *p, int32_t n_stage) {
    ml_spec s;
    ml_err err = { 0 };
    int32_t *stage;

    if (n_stage < 2)
        return NULL;
    must(ml_spec_open(&s, p->dir, &err), &err);
    stage = calloc((size_t)s.n_node, sizeof *stage);
    must(ml_stage_of_nodes(stage, &s, &(ml_stage_opts){ .n_stage = n_stage }, &err), &err);
    ml_spec_close(&s);
    return stage;
}

static void open_trainee(trainee *p, training *j, ml_comm *c) {
    ml_train_fixture_opts o = { .dir = p->dir,
                                .dtype = j->dtype,
                                .trainer = ml_train_fixture_defaults() };
    ml_err err = { 0 };

    snprintf(p->dir, sizeof p->dir, "tests/golden/data/%s", j->model);
    must(ml_mesh_open(&p->mesh, c, NULL, j->mesh, &err), &err);
    p->j = j;
    o.trainer.mesh = &p->mesh;
    o.trainer.stage = p->stage = stages_of(p, j->mesh.pp);
    o.trainer.whole_grads = true;
    o.trainer.replay[ML_ROUTING_EXPERTS] = j->record;
    o.trainer.recompute.granularity = j->full ? ML_RECOMPUTE_FULL : ML_RECOMPUTE_NONE;
    o.trainer.batch.global_batch_size = TRAINED;
    o.trainer.batch.max_tokens = 50;
    ml_train_fixture_open(&p->t, &o);
    for (int32_t i = 0; i < TRAINED; i++) {
        const ml_train_sample *x = &p->t.sample[i % p->t.n_sample];
        int32_t n = x->n_token < 12 + 2 * i ? x->n_token : 12 + 2 * i;
        p->sample[i] = (ml_train_sample){
            .token = x->token, .n_token = n, .n_response = n / 2, .rollout = i
        };
    }
}

static void close_trainee(trainee *p) {
    ml_train_fixture_close(&p->t);
    ml_mesh_close(&p->mesh);
    free(p->stage);
}

/* Ranks write the samples that are theirs; of a context group, the first one does. */
static ml_status remember(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    const trainee *p = ud;

    for (int32_t i = 0; i < n; i++) {
        size_t bytes = (size_t)io[i].n_response * sizeof(float);
        if (p->mesh.at[ML_MESH_CP] == 0) {
            memcpy(p->j->logprob[io[i].sample], io[i].logprob, bytes);
            memcpy(p->j->entropy[io[i].sample], io[i].entropy, bytes);
        }
        for (int32_t t = 0; t < io[i].n_response; t++)
            io[i].dentropy[t] = 0.01f * (float)(t % 5 - 2);
    }
    return ml_train_fixture_nll(NULL, io, n, err);
}

/* Samples are dealt out unevenly: the last data place has none. */
static ml_bins bins_of(trainee *p) {
    ml_bins b = { .bin = ML_NEW(&p->t.arena, ml_bin, TRAINED) };
    int32_t n = ml_trainer_data_size(p->t.trainer);

    for (int32_t i = 0; i < TRAINED; i++) {
        if (i * i % (n > 1 ? n - 1 : 1) != ml_trainer_data_place(p->t.trainer))
            continue;
        b.bin[b.n].item = ML_NEW(&p->t.arena, int32_t, 1);
        b.bin[b.n].item[0] = i;
        b.bin[b.n++].n = 1;
    }
    return b;
}

static ml_step_result accumulate(trainee *p, const ml_bins *bins) {
    ml_step step = { .sample = p->sample,
                     .micro = bins,
                     .n_rollout = TRAINED,
                     .denominator = TRAINED,
                     .loss = remember,
                     .ud = p,
                     .entropy = true };
    ml_step_result out;
    ml_err err = { 0 };

    must(ml_trainer_accumulate(p->t.trainer, &step, &out, &err), &err);
    return out;
}

static void score(trainee *p, training *j, const ml_comm *c) {
    float *logprob[TRAINED];
    static const float none[MAX_RESPONSE];
    ml_err err = { 0 };

    for (int32_t i = 0; i < TRAINED; i++) {
        size_t n = (size_t)ml_spec_routing_width(&p->t.spec, ML_ROUTING_EXPERTS) *
                   (size_t)p->sample[i].n_token;
        logprob[i] = ML_NEW(&p->t.arena, float, MAX_RESPONSE);
        if (j->record)
            p->sample[i].routed[ML_ROUTING_EXPERTS].record =
                ML_NEW(&p->t.arena, int32_t, (int64_t)n);
    }
    must(ml_trainer_score(p->t.trainer, NULL, p->sample, TRAINED, logprob, NULL, &err),
         &err);
    for (int32_t i = 0; i < TRAINED; i++) {
        ml_token_routing *r = &p->sample[i].routed[ML_ROUTING_EXPERTS];
        if (j->record)
            *r = (ml_token_routing){ .given = r->record, .n_given = p->sample[i].n_token };
        if (!j->one)
            memcpy(j->scored[i], logprob[i], sizeof none);
        else if (memcmp(j->one->scored[i], logprob[i], sizeof none))
            differs(j, c, "scores");
        CHECK(memcmp(logprob[i], none, sizeof none) != 0);
    }
}

static float *copy_floats(const void *from, size_t bytes) {
    float *x = malloc(bytes);

    memcpy(x, from, bytes);
    return x;
}

static void keep_one(trainee *p, training *j) {
    const ml_weights *g = ml_trainer_grads(p->t.trainer);

    CHECK(g->n <= MAX_PARAM);
    for (int32_t i = 0; i < g->n; i++)
        j->at[i] = (const float *)g->t[i].data - (const float *)g->buf.ptr;
    j->grad = copy_floats(g->buf.ptr, g->buf.bytes);
}

/* Of each parameter, what the rank has: its experts, or all. */
static void compare_with_one(trainee *p, const training *j, const ml_comm *c) {
    const ml_weights *g = ml_trainer_grads(p->t.trainer);

    for (int32_t i = 0; i < g->n; i++) {
        ml_shard_range r = ml_weights_range(g, i);
        const float *one = j->one->grad + j->one->at[i] + r.begin;
        double apart = ml_grads_apart(g->t[i].data, one, (size_t)r.n);
        if (!(apart <= ML_GRADS_BOUND))
            differs(j, c, "gradients");
    }
}

static void train(ml_comm *c, void *ud) {
    training *j = ud;
    ml_step_result first, again;
    unsigned char *before;
    const ml_weights *g;
    ml_err err = { 0 };
    ml_bins bins;
    trainee p;

    open_trainee(&p, j, c);
    g = ml_trainer_grads(p.t.trainer);
    bins = bins_of(&p);
    score(&p, j, c);
    first = accumulate(&p, &bins);
    before = ML_NEW(&p.t.arena, unsigned char, (int64_t)g->buf.bytes);
    memcpy(before, g->buf.ptr, g->buf.bytes);
    again = accumulate(&p, &bins);
    if (memcmp(before, g->buf.ptr, g->buf.bytes) || first.loss != again.loss)
        differs(j, c, "gradients in a repetition");
    must(c->barrier(c, NULL, &err), &err); /* all have written their samples */
    if (!j->one) {
        j->loss = first.loss;
        keep_one(&p, j);
    } else {
        compare_with_one(&p, j, c);
        if (first.loss != j->one->loss)
            differs(j, c, "losses");
        if (memcmp(j->logprob, j->one->logprob, sizeof j->logprob) ||
            memcmp(j->entropy, j->one->entropy, sizeof j->entropy))
            differs(j, c, "log-probs");
    }
    close_trainee(&p);
}

typedef struct mesh {
    int32_t world;
    ml_mesh_opts sizes;
} mesh;

static void train_on(const training *like, const mesh *meshes) {
    static training one, several;

    one = *like;
    ml_ranks_run(1, train, &one);
    for (; meshes->world; meshes++) {
        several = *like;
        several.mesh = meshes->sizes;
        several.one = &one;
        ml_ranks_run(meshes->world, train, &several);
    }
    free(one.grad);
}

static void trainers_have_the_bits_of_one_rank(void) {
    static const mesh meshes[] = { { 2, { .ep = 2 } }, { 4, { .ep = 2 } },
                                   { 4, { .ep = 4 } }, { 6, { .ep = 3 } },
                                   { 8, { .ep = 8 } }, { 0 } };
    static const mesh few[] = { { 4, { .ep = 2 } }, { 0 } };
    static const char *const main_models[] = { "qwen3_moe", "deepseek_v3", "gpt_oss" };
    const bool brief = N_MODEL == 2; /* under a sanitizer */

    for (size_t m = 0; m < sizeof main_models / sizeof *main_models; m++)
        for (int bf16 = 0; bf16 < 2; bf16++)
            train_on(&(training){ .model = main_models[m],
                                  .dtype = bf16 ? ML_WEIGHT_BF16 : ML_WEIGHT_F32,
                                  .record = m == 0,
                                  .full = m == 1 },
                     brief ? few : meshes);
    train_on(&(training){ .model = "qwen3_next", .dtype = ML_WEIGHT_BF16 }, few);
    train_on(&(training){ .model = "llama4_text", .dtype = ML_WEIGHT_BF16 }, few);
    train_on(&(training){ .model = "gemma2", .dtype = ML_WEIGHT_BF16 },
             few); /* no experts */
}

static void experts_with_other_directions(void) {
    static const mesh meshes[] = {
        { 4, { .ep = 4, .tp = 2 } },          { 4, { .ep = 2, .cp = 2 } },
        { 4, { .ep = 2, .pp = 2 } },          { 8, { .ep = 4, .tp = 2, .pp = 2 } },
        { 8, { .ep = 4, .cp = 2, .pp = 2 } }, { 8, { .ep = 2, .tp = 2, .cp = 2, .pp = 2 } },
        { 8, { .ep = 8, .tp = 2, .cp = 2 } }, { 0 }
    };
    static const mesh few[] = { { 4, { .ep = 2, .pp = 2 } }, { 0 } };
    const bool brief = N_MODEL == 2;

    train_on(&(training){ .model = "qwen3_moe", .record = true }, brief ? few : meshes);
    train_on(&(training){ .model = "deepseek_v3", .dtype = ML_WEIGHT_BF16, .full = true },
             brief ? few : meshes);
}

static const ml_test tests[] = {
    { "rounds move every row once, in order", rounds_lose_no_row },
    { "experts on several ranks have the bits of one rank",
      families_have_the_bits_of_one_rank, 300 },
    { "all rows may go to one rank, in rounds", routes_may_go_to_one_rank, 300 },
    { "experts that are recomputed have the bits of one rank",
      recomputation_has_the_bits_of_one_rank, 300 },
    { "trainers whose ranks divide the experts have the bits of one rank",
      trainers_have_the_bits_of_one_rank, 300 },
    { "experts on ranks go together with tensor, context and pipeline parallelism",
      experts_with_other_directions, 300 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
