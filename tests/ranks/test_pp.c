/* Ranks of a pipeline, as threads of this process: log-probs, losses, gradients, norms and
 * weights have the bits of a job whose ranks have all layers. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "model/stage.h"
#include "tests/support/deep_model.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"
#include "tests/support/train_fixture.h"

enum { SAMPLES = 12, MAX_RESPONSE = 32, LAYERS = 8, STEPS = 2, MAX_RANK = 8 };

/* How a job divides the model. */
typedef struct shape {
    int32_t dp; /* pipelines; with tp, groups of as many */
    ml_stage_opts stages;
    ml_granularity recompute;
    int64_t max_tokens;
    int32_t tp; /* 0: 1 */
} shape;

static const shape quick[] = {
    { 1, { .n_stage = 2 }, ML_RECOMPUTE_NONE, 50 },
    { 1, { .n_stage = 3 }, ML_RECOMPUTE_FULL, 100 },
    { 1, { .n_stage = 8 }, ML_RECOMPUTE_NONE, 20 },
    { 1, { .n_stage = 2, .n_chunk = 2 }, ML_RECOMPUTE_NONE, 50 },
    { 1, { .n_stage = 2, .n_first = 1 }, ML_RECOMPUTE_SELECTIVE, 1000 },
    { 2, { .n_stage = 2 }, ML_RECOMPUTE_NONE, 50 },
    { 1, { .n_stage = 2 }, ML_RECOMPUTE_NONE, 50, .tp = 2 },
};
static const shape all[] = {
    { 1, { .n_stage = 4 }, ML_RECOMPUTE_NONE, 50 },
    { 1, { .n_stage = 5 }, ML_RECOMPUTE_FULL, 20 },
    { 1, { .n_stage = 6, .n_first = 1, .n_last = 2 }, ML_RECOMPUTE_NONE, 30 },
    { 1, { .n_stage = 7 }, ML_RECOMPUTE_NONE, 40 },
    { 1, { .n_stage = 2, .n_chunk = 4 }, ML_RECOMPUTE_NONE, 20 },
    { 1, { .n_stage = 4, .n_chunk = 2 }, ML_RECOMPUTE_FULL, 30 },
    { 1, { .n_stage = 3, .count_embedding = true }, ML_RECOMPUTE_NONE, 50 },
    { 1,
      { .n_stage = 3, .count_embedding = true, .count_loss = true },
      ML_RECOMPUTE_NONE,
      50 },
    { 2, { .n_stage = 4 }, ML_RECOMPUTE_NONE, 50 },
    { 2, { .n_stage = 2, .n_chunk = 2 }, ML_RECOMPUTE_NONE, 50 },
    { 3, { .n_stage = 2 }, ML_RECOMPUTE_NONE, 50 },
    { 4, { .n_stage = 2 }, ML_RECOMPUTE_NONE, 50 },
    { 1, { .n_stage = 4 }, ML_RECOMPUTE_FULL, 50, .tp = 2 },
    { 2, { .n_stage = 2 }, ML_RECOMPUTE_NONE, 50, .tp = 2 },
    { 1, { .n_stage = 2, .n_chunk = 2 }, ML_RECOMPUTE_NONE, 30, .tp = 3 },
};

/* A training job and what its ranks compute. */
typedef struct job {
    const char *model, *dir;
    ml_weight_dtype dtype;
    bool critic, records;
    shape of;
    float score[SAMPLES][MAX_RESPONSE], entropy[SAMPLES][MAX_RESPONSE];
    int32_t *routed[SAMPLES]; /* recorded routing */
    double loss[STEPS], norm[STEPS];
    int64_t n_token, n_idle;
    ml_weights grads[MAX_RANK], weights[MAX_RANK]; /* of each rank, after the steps */
    pthread_mutex_t *lock;                         /* of the arena */
    ml_arena arena;
    struct job *whole; /* the same with all layers on each rank; NULL: this is it */
} job;

/* Ranks of a stage. */
static int32_t places_of(const shape *x) {
    return x->dp * (x->tp ? x->tp : 1);
}

static void must(ml_status st, const ml_err *err) {
    if (st == ML_OK)
        return;
    ml_test_fail(__FILE__, __LINE__, "%s", err->msg);
    exit(1);
}

static void differs(const job *j, const ml_comm *c, const char *what) {
    ml_test_fail(__FILE__, __LINE__, "%s, %s: rank %d of %d (%d stages x %d) has other %s",
                 j->model, j->dtype == ML_WEIGHT_F32 ? "f32" : "bf16", c->rank, c->size,
                 (int)j->of.stages.n_stage,
                 (int)(j->of.stages.n_chunk ? j->of.stages.n_chunk : 1), what);
}

typedef struct trainee {
    ml_train_fixture t;
    ml_mesh mesh;
    ml_arena arena;
    ml_train_sample sample[SAMPLES];
} trainee;

/* The stage of each node, from a spec of its own. */
static int32_t *stages_of(trainee *p, const job *j) {
    ml_err err = { 0 };
    int32_t *stage;
    ml_spec s;

    must(ml_spec_open_with(&s, j->dir, &(ml_spec_opts){ .critic = j->critic }, &err), &err);
    stage = ML_NEW(&p->arena, int32_t, s.n_node);
    must(ml_stage_of_nodes(stage, &s, &j->of.stages, &err), &err);
    ml_spec_close(&s);
    return stage;
}

static void make_samples(trainee *p, const job *j) {
    for (int32_t i = 0; i < SAMPLES; i++) {
        const ml_train_sample *x = &p->t.sample[i % p->t.n_sample];
        int32_t n = x->n_token < 12 + 2 * i ? x->n_token : 12 + 2 * i;
        int64_t width = ml_spec_routing_width(&p->t.spec, ML_ROUTING_EXPERTS);
        uint8_t *mask = ML_NEW(&p->arena, uint8_t, n);
        for (int32_t k = 0; k < n; k++)
            mask[k] = (5 * k + i) % 4 != 0;
        p->sample[i] = (ml_train_sample){
            .token = x->token, .n_token = n, .n_response = n / 2, .mask = mask, .rollout = i
        };
        if (j->records)
            p->sample[i].routed[ML_ROUTING_EXPERTS].record =
                ML_NEW(&p->arena, int32_t, n * width);
    }
}

static void open_trainee(trainee *p, const job *j, ml_comm *c) {
    ml_train_fixture_opts o = { .dir = j->dir,
                                .dtype = j->dtype,
                                .critic = j->critic,
                                .trainer = ml_train_fixture_defaults() };
    ml_err err = { 0 };

    ml_arena_init(&p->arena, "trainee");
    must(ml_mesh_open(&p->mesh, c, NULL,
                      (ml_mesh_opts){ .tp = j->of.tp, .pp = j->of.stages.n_stage }, &err),
         &err);
    o.trainer.mesh = &p->mesh;
    o.trainer.stage = j->whole ? stages_of(p, j) : NULL;
    o.trainer.whole_grads = true;
    o.trainer.replay[ML_ROUTING_EXPERTS] = j->records;
    o.trainer.recompute = (ml_recompute){ .granularity = j->of.recompute,
                                          .modules = ML_MODULE_CORE_ATTN | ML_MODULE_MOE };
    o.trainer.batch.global_batch_size = SAMPLES;
    o.trainer.batch.max_tokens = j->of.max_tokens;
    ml_train_fixture_open(&p->t, &o);
    make_samples(p, j);
}

static void close_trainee(trainee *p) {
    ml_train_fixture_close(&p->t);
    ml_mesh_close(&p->mesh);
    ml_arena_release(&p->arena);
}

/* --- scores ------------------------------------------------------------------- */

static void score(trainee *p, job *j, const ml_comm *c) {
    float *logprob[SAMPLES], *entropy[SAMPLES];
    size_t width = (size_t)ml_spec_routing_width(&p->t.spec, ML_ROUTING_EXPERTS);
    ml_err err = { 0 };

    for (int i = 0; i < SAMPLES; i++) {
        logprob[i] = ML_NEW(&p->arena, float, MAX_RESPONSE);
        entropy[i] = ML_NEW(&p->arena, float, MAX_RESPONSE);
    }
    must(ml_trainer_score(p->t.trainer, NULL, p->sample, SAMPLES, logprob,
                          j->critic ? NULL : entropy, &err),
         &err);
    for (int i = 0; i < SAMPLES; i++) {
        const int32_t *record = p->sample[i].routed[ML_ROUTING_EXPERTS].record;
        size_t bytes = (size_t)p->sample[i].n_token * width * sizeof *record;
        if (!j->whole && c->rank == 0) {
            memcpy(j->score[i], logprob[i], sizeof j->score[i]);
            memcpy(j->entropy[i], entropy[i], sizeof j->entropy[i]);
            j->routed[i] = ml_arena_take(&j->arena, bytes + 1, 1);
            if (record)
                memcpy(j->routed[i], record, bytes);
            CHECK(logprob[i][0] != 0);
        } else if (j->whole &&
                   (memcmp(j->whole->score[i], logprob[i], sizeof *j->score) ||
                    memcmp(j->whole->entropy[i], entropy[i], sizeof *j->entropy))) {
            differs(j, c, "scores");
        } else if (j->whole && record && memcmp(j->whole->routed[i], record, bytes)) {
            differs(j, c, "routing");
        }
    }
}

/* --- steps -------------------------------------------------------------------- */

/* Samples 3 and 4 have no derivatives. */
static ml_status loss_of(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    ml_status st = ML_OK;

    (void)ud;
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < io[i].n_response; t++)
            if (io[i].value) {
                io[i].loss += (double)io[i].value[t] * (double)io[i].value[t];
                io[i].dvalue[t] = 2 * io[i].value[t] - 1;
            } else {
                io[i].dentropy[t] = 0.01f * (float)(t % 5 - 2);
            }
    if (n && !io->value)
        st = ml_train_fixture_nll(NULL, io, n, err);
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; io[i].sample / 2 == 2 && t < io[i].n_response; t++) {
            (io[i].value ? io[i].dvalue : io[i].dlogprob)[t] = 0;
            if (!io[i].value)
                io[i].dentropy[t] = 0;
        }
    return st;
}

static void step(trainee *p, job *j, int k, ml_step_result *out) {
    int32_t place = ml_trainer_data_place(p->t.trainer);
    ml_schedule plan;
    ml_err err = { 0 };

    for (int32_t i = 0; i < SAMPLES; i++)
        p->sample[i].idle = i / 2 == 2;
    must(ml_trainer_schedule(&plan, p->t.trainer, &p->arena, p->sample, SAMPLES, &err),
         &err);
    CHECK(plan.n_step == 1 && plan.n_rank == places_of(&j->of));
    must(ml_trainer_step(p->t.trainer,
                         &(ml_step){ .sample = p->sample,
                                     .micro = &plan.step[0].rank[place],
                                     .n_rollout = SAMPLES,
                                     .denominator = SAMPLES,
                                     .loss = loss_of,
                                     .entropy = true },
                         out, &err),
         &err);
    CHECK(out->applied && out->n_idle == 2);
    if (!j->whole && place == 0) {
        j->loss[k] = out->loss;
        j->norm[k] = out->grad_norm;
        j->n_token = out->n_token;
        j->n_idle = out->n_idle;
    }
}

/* Tensors that this rank has; those that another stage owns have a part of the gradient. */
static void same_tensors(const job *j, const ml_comm *c, const trainee *p,
                         const ml_weights *got, const ml_weights *want, bool grads) {
    const ml_optimizer *o = ml_trainer_optimizer(p->t.trainer);
    int32_t n = 0, n_place = places_of(&j->of);

    for (int32_t i = 0; i < got->n; i++) {
        bool mine = false;
        for (int32_t r = 0; r < n_place; r++) /* the ranks of this stage */
            mine |= ml_optimizer_range(o, i, c->rank / n_place * n_place + r).n > 0;
        if (!got->t[i].data || (grads && !mine))
            continue;
        CHECK(ml_tensor_bytes(&got->t[i]) == ml_tensor_bytes(&want->t[i]));
        if (memcmp(got->t[i].data, want->t[i].data, ml_tensor_bytes(&want->t[i])))
            differs(j, c, grads ? "gradients" : "weights");
        n++;
    }
    CHECK(n > 0 && (!j->whole || n < got->n));
}

static ml_weights keep(job *j, const ml_weights *w) {
    ml_weights out = { .n = w->n, .t = ML_NEW(&j->arena, ml_tensor, w->n) };

    for (int32_t i = 0; i < w->n; i++) {
        out.t[i] = w->t[i];
        out.t[i].data = ml_arena_take(&j->arena, ml_tensor_bytes(&w->t[i]) + 1, 1);
        if (w->t[i].data)
            memcpy(out.t[i].data, w->t[i].data, ml_tensor_bytes(&w->t[i]));
    }
    return out;
}

static void train(ml_comm *c, void *ud) {
    job *j = ud, *whole = j->whole;
    ml_step_result out;
    ml_trainer *t;
    trainee p;

    open_trainee(&p, j, c);
    t = p.t.trainer;
    score(&p, j, c);
    for (int k = 0; k < STEPS; k++) {
        ml_step_result mine;
        step(&p, j, k, &mine);
        out = mine;
        if (whole && (out.loss != whole->loss[k] || out.grad_norm != whole->norm[k] ||
                      out.n_token != whole->n_token || out.n_idle != whole->n_idle))
            differs(j, c, "loss or norm");
    }
    if (!whole) {
        pthread_mutex_lock(j->lock);
        j->grads[c->rank] = keep(j, ml_trainer_grads(t));
        j->weights[c->rank] = keep(j, &p.t.weights);
        pthread_mutex_unlock(j->lock);
    } else {
        int32_t place = c->rank % places_of(&j->of);
        same_tensors(j, c, &p, ml_trainer_grads(t), &whole->grads[place], true);
        same_tensors(j, c, &p, &p.t.weights, &whole->weights[place], false);
    }
    close_trainee(&p);
}

/* A job whose ranks have all layers, then the same as a pipeline. */
static void compare(const char *dir, const char *model, ml_weight_dtype dtype, bool critic,
                    const shape *of) {
    static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
    static job whole, j;

    whole = (job){
        .model = model,
        .dir = dir,
        .dtype = dtype,
        .critic = critic,
        .records = strstr(model, "moe") != NULL,
        .of = { of->dp, { .n_stage = 1 }, ML_RECOMPUTE_NONE, of->max_tokens, of->tp },
        .lock = &lock
    };
    ml_arena_init(&whole.arena, "job");
    ml_ranks_run(places_of(of), train, &whole);
    j = (job){ .model = model,
               .dir = dir,
               .dtype = dtype,
               .critic = critic,
               .records = whole.records,
               .of = *of,
               .whole = &whole };
    ml_ranks_run(places_of(of) * of->stages.n_stage, train, &j);
    ml_arena_release(&whole.arena);
}

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static const char *const models[] = { "qwen3_moe", NULL };
enum { N_QUICK = 2 };
#else
static const char *const models[] = { "llama_tied", "qwen3_moe", "deepseek_v3",
                                      "qwen3_next", "gpt_oss",   "gemma2",
                                      NULL };
enum { N_QUICK = sizeof quick / sizeof *quick };
#endif

static void pipelines_do_not_show(void) {
    for (int m = 0; models[m]; m++) {
        const char *dir = ml_deep_model(models[m], LAYERS);
        for (int i = 0; i < N_QUICK; i++)
            compare(dir, models[m], (m + i) % 2 ? ML_WEIGHT_F32 : ML_WEIGHT_BF16, false,
                    &quick[i]);
        for (size_t i = 0; getenv("MILES_LONG") && i < 2 * (sizeof all / sizeof *all); i++)
            compare(dir, models[m], i % 2 ? ML_WEIGHT_F32 : ML_WEIGHT_BF16, false,
                    &all[i / 2]);
    }
}

static void a_critic_in_stages(void) {
    const char *dir = ml_deep_model("llama_tied", LAYERS);

    compare(dir, "llama_tied", ML_WEIGHT_F32, true, &quick[0]);
    compare(dir, "llama_tied", ML_WEIGHT_BF16, true, &quick[3]);
}

/* --- memory ----------------------------------------------------------------- */

static size_t act_bytes(const ml_spec *s, ml_backend *be, ml_granularity recompute,
                        int32_t n_set, size_t *set) {
    ml_plan_opts o = { .caps = { 512, 4, 512, 64 },
                       .backward = true,
                       .recompute = { .granularity = recompute },
                       .end = s->n_node / 2,
                       .n_set = n_set };
    ml_err err = { 0 };
    ml_plan *p;
    size_t bytes;

    must(ml_plan_new(&p, s, be, o, &err), &err);
    bytes = ml_plan_act_bytes(p);
    *set = ml_plan_set_bytes(p);
    ml_plan_free(p);
    return bytes;
}

/* Memory that a pass works in is there once. */
static void a_micro_batch_in_flight_keeps_what_backward_needs(void) {
    ml_train_fixture t;
    size_t set, none;

    ml_train_fixture_open(
        &t, &(ml_train_fixture_opts){ .dir = ml_deep_model("qwen3_moe", LAYERS),
                                      .trainer = ml_train_fixture_defaults() });
    for (int full = 0; full < 2; full++) {
        ml_granularity g = full ? ML_RECOMPUTE_FULL : ML_RECOMPUTE_NONE;
        size_t one = act_bytes(&t.spec, &t.be, g, 1, &set);
        CHECK(set == one);
        for (int32_t n = 2; n <= 8; n *= 2) {
            size_t bytes = act_bytes(&t.spec, &t.be, g, n, &set), apart = (size_t)n * one;
            CHECK(bytes <= apart && bytes >= (size_t)n * set);
            CHECK(!full || bytes < apart * 9 / 10);
        }
    }
    CHECK(2 * set < act_bytes(&t.spec, &t.be, ML_RECOMPUTE_FULL, 1, &none));
    ml_train_fixture_close(&t);
}

/* --- failures ----------------------------------------------------------------- */

static ml_status fails(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    (void)ud, (void)io, (void)n;
    return ml_fail(err, ML_EFORMAT, "this loss fails");
}

static void fail_a_step(ml_comm *c, void *ud) {
    job *j = ud;
    ml_bin bin[2] = { { (int32_t[]){ 0 }, 1 }, { (int32_t[]){ 1 }, 1 } };
    ml_step_result out;
    ml_err err = { 0 };
    ml_status st;
    trainee p;

    open_trainee(&p, j, c);
    st = ml_trainer_step(p.t.trainer,
                         &(ml_step){ .sample = p.sample,
                                     .micro = &(ml_bins){ bin, 2 },
                                     .n_rollout = 2,
                                     .denominator = 2,
                                     .loss = fails },
                         &out, &err);
    CHECK(st == (c->rank == c->size - 1 ? ML_EFORMAT : ML_EPEER));
    CHECK(strstr(err.msg, "this loss fails") != NULL);
    close_trainee(&p);
}

static void a_loss_that_fails_ends_the_step(void) {
    static job whole, j;

    j = (job){ .model = "llama_tied",
               .dir = ml_deep_model("llama_tied", LAYERS),
               .dtype = ML_WEIGHT_F32,
               .of = { 1, { .n_stage = 4 }, ML_RECOMPUTE_NONE, 50 },
               .whole = &whole };
    ml_ranks_run(4, fail_a_step, &j);
}

static const ml_test tests[] = {
    { "stages of a pipeline have the bits of ranks with all layers", pipelines_do_not_show,
      .limit_s = 600 },
    { "a micro-batch in flight keeps what backward needs",
      a_micro_batch_in_flight_keeps_what_backward_needs },
    { "a critic in stages has the bits of a whole one", a_critic_in_stages },
    { "a loss that fails ends the step of all stages", a_loss_that_fails_ends_the_step },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
