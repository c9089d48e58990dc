/* Ranks that train together, as threads of this process, and divide the samples (data
 * parallel) and the weights (tensor parallel, FSDP, experts): log-probs, entropies, losses
 * and metrics have the bits of one rank; gradients repeat and differ by rounding; with the same
 * gradients, norm, weights and snapshots have the bits of one rank, too. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/dir.h"
#include "rl/learn/learner.h"
#include "run/extensions.h"
#include "tests/support/job_rank.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "train/snapshot.h"

/* How a job divides samples and model. */
typedef struct layout {
    int32_t n_rank;
    ml_mesh_opts mesh;
} layout;

/* Sanitizers look at what ranks exchange, which is the same for all models. */
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
static const char *const models[] = { "qwen3_moe", NULL };
static const layout layouts[] = { { 3 }, { 4, { .tp = 2 } } };
#else
static const char *const models[] = { "llama_tied", "qwen3_moe", "deepseek_v3",
                                      "qwen3_next", "gpt_oss",   "gemma2",
                                      NULL };
static const layout layouts[] = {
    { 2 },
    { 3 },
    { 4 },
    { 8 },
    { 2, { .tp = 2 } },
    { 3, { .tp = 3 } },
    { 6, { .tp = 3 } },
    { 8, { .tp = 4 } },
    { 3, { .fsdp = true } },
    { 4, { .fsdp = true, .replicate = 2 } },
    { 4, { .ep = 2 } },
    { 4, { .tp = 2, .ep = 4 } },
    { 4, { .tp = 2, .ep = 2, .etp = 2 } },
    { 4, { .tp = 2, .cp = 2 } },
    { 4, { .tp = 2, .pp = 2 } },
    { 8, { .tp = 2, .cp = 2, .pp = 2 } },
};
#endif
enum { N_LAYOUT = sizeof layouts / sizeof *layouts };
enum { SAMPLES = 12, MAX_RESPONSE = 32, MAX_RANK = 8 };

/* A training job, and what its ranks compute. */
typedef struct job {
    const char *model;
    ml_weight_dtype dtype;
    ml_optimizer_kind optimizer;
    ml_moment_format moments;
    ml_mesh_opts mesh;
    bool critic;
    int32_t shards; /* of gradients; 0: one for each data place */
    float logprob[SAMPLES][MAX_RESPONSE], entropy[SAMPLES][MAX_RESPONSE];
    double loss, grad_norm;
    int64_t n_token, n_loss;
    unsigned char *bytes; /* gradients or weights of rank 0 */
    size_t n_byte;
    struct {
        int32_t item[SAMPLES], n;
    } share[MAX_RANK];     /* the samples of each rank, in the order of its gradient */
    const struct job *one; /* the same with one rank; NULL: this is it */
} job;

static void must(ml_status st, const ml_err *err) {
    if (st == ML_OK)
        return;
    ml_test_fail(__FILE__, __LINE__, "%s", err->msg);
    exit(1);
}

static void differs(const job *j, const ml_comm *c, const char *what) {
    ml_test_fail(__FILE__, __LINE__,
                 "%s, %s: rank %d of %d (tp %d, cp %d, pp %d, ep %d%s) has other %s",
                 j->model, j->dtype == ML_WEIGHT_F32 ? "f32" : "bf16", c->rank, c->size,
                 j->mesh.tp, j->mesh.cp, j->mesh.pp, j->mesh.ep,
                 j->mesh.fsdp ? ", fsdp" : "", what);
}

/* The same on every rank: prefixes of the fixture's sequences. */
static void make_samples(ml_train_fixture *t, ml_train_sample *out) {
    for (int32_t i = 0; i < SAMPLES; i++) {
        const ml_train_sample *x = &t->sample[i % t->n_sample];
        int32_t n = x->n_token < 12 + 2 * i ? x->n_token : 12 + 2 * i;
        uint8_t *mask = ML_NEW(&t->arena, uint8_t, n);
        for (int32_t k = 0; k < n; k++)
            mask[k] = (5 * k + i) % 4 != 0;
        out[i] = (ml_train_sample){
            .token = x->token, .n_token = n, .n_response = n / 2, .mask = mask, .rollout = i
        };
    }
}

typedef struct trainee {
    ml_job_rank r;
    ml_train_sample sample[SAMPLES];
    char dir[256];
} trainee;

static ml_optim_rule_opts rule_of(const job *j) {
    ml_optim_rule_opts o = ml_train_fixture_defaults().optimizer.rule;

    o.kind = j->optimizer;
    o.momentum = 0.9;
    o.format1 = o.format2 = j->moments;
    o.muon_momentum = 0.95;
    o.muon_nesterov = true;
    o.muon_iter = 5;
    o.muon_extra_scale = 0.2;
    o.factor_decay = 0.8;
    o.factor_clip = 1;
    o.factor_eps = 1e-30;
    return o;
}

static void open_trainee(trainee *p, const job *j, ml_comm *c) {
    ml_job_rank_opts o = { .dir = p->dir,
                           .dtype = j->dtype,
                           .sizes = j->mesh,
                           .critic = j->critic,
                           .trainer = ml_train_fixture_defaults() };

    snprintf(p->dir, sizeof p->dir, "tests/golden/data/%s", j->model);
    o.trainer.whole_grads = true;
    o.trainer.grad_shards = j->shards;
    o.trainer.replay[ML_ROUTING_EXPERTS] = strcmp(j->model, "qwen3_moe") == 0;
    o.trainer.optimizer.rule = rule_of(j);
    o.trainer.batch.global_batch_size = SAMPLES;
    o.trainer.batch.max_tokens = 50;
    ml_job_rank_open(&p->r, &o, c);
    make_samples(&p->r.t, p->sample);
}

static void keep_bytes(job *j, const ml_weights *w) {
    free(j->bytes);
    j->n_byte = w->buf.bytes;
    j->bytes = malloc(j->n_byte);
    memcpy(j->bytes, w->buf.ptr, j->n_byte);
}

static bool divides_weights(const layout *l) {
    return l->mesh.tp > 1 || l->mesh.fsdp || l->mesh.cp > 1 || l->mesh.pp > 1 ||
           l->mesh.ep > 1 || l->mesh.etp > 1;
}

/* Runs a job with one rank, then with several, which compare themselves with it; one rank
 * checks the result (NULL: it does not), unless ranks add gradients of micro-batches.
 * exact: gradients must be those of one rank, which pieces of a sample are not. */
static void compare(job *j, ml_rank_fn *fn, ml_rank_fn *check, bool exact) {
    static job one;

    one = *j;
    ml_ranks_run(1, fn, &one);
    for (int k = 0; k < N_LAYOUT; k++) {
        if (exact && layouts[k].mesh.cp > 1)
            continue;
        *j = (job){ .model = one.model,
                    .dtype = one.dtype,
                    .optimizer = one.optimizer,
                    .mesh = layouts[k].mesh,
                    .critic = one.critic,
                    .one = &one };
        ml_ranks_run(layouts[k].n_rank, fn, j);
        if (check && !divides_weights(&layouts[k]))
            ml_ranks_run(1, check, j);
        free(j->bytes);
    }
    free(one.bytes);
}

static void compare_models(ml_rank_fn *fn, ml_rank_fn *check, bool exact) {
    static job j;

    for (int m = 0; models[m]; m++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            j = (job){ .model = models[m], .dtype = bf16 ? ML_WEIGHT_BF16 : ML_WEIGHT_F32 };
            compare(&j, fn, check, exact);
        }
}

/* --- scores ------------------------------------------------------------------ */

static void score(ml_comm *c, void *ud) {
    job *j = ud;
    float *logprob[SAMPLES], *entropy[SAMPLES];
    static const float none[MAX_RESPONSE];
    ml_err err = { 0 };
    trainee p;

    open_trainee(&p, j, c);
    for (int i = 0; i < SAMPLES; i++) {
        logprob[i] = ML_NEW(&p.r.t.arena, float, MAX_RESPONSE);
        entropy[i] = ML_NEW(&p.r.t.arena, float, MAX_RESPONSE);
    }
    must(ml_trainer_score(p.r.t.trainer, NULL, p.sample, SAMPLES, logprob, entropy, &err),
         &err);
    for (int i = 0; i < SAMPLES; i++) {
        if (!j->one) {
            memcpy(j->logprob[i], logprob[i], sizeof none);
            memcpy(j->entropy[i], entropy[i], sizeof none);
            CHECK(memcmp(logprob[i], none, sizeof none) != 0);
        } else if (memcmp(j->one->logprob[i], logprob[i], sizeof none) ||
                   memcmp(j->one->entropy[i], entropy[i], sizeof none)) {
            differs(j, c, "scores");
        }
    }
    ml_job_rank_close(&p.r);
}

static void scores_are_those_of_one_rank(void) {
    compare_models(score, NULL, false);
}

/* --- gradients ---------------------------------------------------------------- */

/* A loss with derivatives for both inputs; each sample has one rank. */
static ml_status remember(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    job *j = ud;

    for (int32_t i = 0; i < n; i++) {
        size_t bytes = (size_t)io[i].n_response * sizeof(float);
        memcpy(j->logprob[io[i].sample], io[i].logprob, bytes);
        memcpy(j->entropy[io[i].sample], io[i].entropy, bytes);
        for (int32_t t = 0; t < io[i].n_response; t++)
            io[i].dentropy[t] = 0.01f * (float)(t % 5 - 2);
    }
    return ml_train_fixture_nll(NULL, io, n, err);
}

static void accumulate(trainee *p, job *j, const ml_bins *micro, ml_step_result *out) {
    ml_err err = { 0 };

    must(ml_trainer_accumulate(p->r.t.trainer,
                               &(ml_step){ .sample = p->sample,
                                           .micro = micro,
                                           .n_rollout = SAMPLES,
                                           .denominator = SAMPLES,
                                           .loss = remember,
                                           .ud = j,
                                           .entropy = true },
                               out, &err),
         &err);
}

static void compare_gradients(const trainee *p, const ml_weights *g, const job *j,
                              const ml_comm *c) {
    int32_t param = 0;
    double apart = ml_job_rank_apart(g, (const float *)(const void *)j->one->bytes, &param);

    if (apart <= ML_GRADS_BOUND)
        return;
    ml_test_fail(__FILE__, __LINE__, "%s is %.3g of its largest gradient apart",
                 p->r.t.spec.param[param].name, apart);
    differs(j, c, "gradients");
}

static void note_share(job *j, const ml_comm *c, const ml_bins *bins) {
    int32_t *n = &j->share[c->rank].n;

    *n = 0;
    for (int32_t k = 0; k < bins->n; k++)
        for (int32_t i = 0; i < bins->bin[k].n; i++)
            j->share[c->rank].item[(*n)++] = bins->bin[k].item[i];
}

static void find_gradients(ml_comm *c, void *ud) {
    job *j = ud;
    ml_step_result first, again;
    const ml_weights *g;
    unsigned char *before;
    ml_err err = { 0 };
    ml_bins bins;
    trainee p;

    open_trainee(&p, j, c);
    g = ml_trainer_grads(p.r.t.trainer);
    bins = ml_job_rank_bins(&p.r, p.sample, SAMPLES);
    note_share(j, c, &bins);
    accumulate(&p, j, &bins, &first);
    before = ML_NEW(&p.r.t.arena, unsigned char, g->buf.bytes + 1);
    memcpy(before, g->buf.ptr, g->buf.bytes);
    accumulate(&p, j, &bins, &again);
    if (memcmp(before, g->buf.ptr, g->buf.bytes) || first.loss != again.loss)
        differs(j, c, "gradients in a repetition");
    g = ml_job_rank_whole(&p.r, g);
    must(c->barrier(c, NULL, &err), &err); /* all have written their samples */
    if (!j->one) {
        keep_bytes(j, g);
        j->loss = first.loss;
        j->n_token = first.n_token;
        j->n_loss = first.n_loss;
    } else {
        if (c->rank == 0)
            keep_bytes(j, g);
        compare_gradients(&p, g, j, c);
        if (first.loss != j->one->loss || first.n_token != j->one->n_token ||
            first.n_loss != j->one->n_loss)
            differs(j, c, "losses");
        if (memcmp(j->logprob, j->one->logprob, sizeof j->logprob) ||
            memcmp(j->entropy, j->one->entropy, sizeof j->entropy))
            differs(j, c, "log-probs");
    }
    ml_job_rank_close(&p.r);
}

/* The definition of ML_REDUCE_TREE, over gradients that one rank computed. */
static void add_tree(float *out, float *const *in, int32_t n, size_t count, ml_arena *a) {
    int32_t half = 1;
    float *right;

    if (n == 1) {
        memcpy(out, in[0], count * sizeof *out);
        return;
    }
    while (2 * half < n)
        half *= 2;
    right = ML_NEW(a, float, count);
    add_tree(out, in, half, count, a);
    add_tree(right, in + half, n - half, count, a);
    for (size_t k = 0; k < count; k++)
        out[k] += right[k];
}

static void sum_as_defined(ml_comm *c, void *ud) {
    job *j = ud, seen = { 0 };
    float *grads[MAX_RANK], *sum;
    const ml_weights *g;
    int32_t n = 0;
    trainee p;

    (void)c;
    open_trainee(&p, j, NULL);
    g = ml_trainer_grads(p.r.t.trainer);
    for (; n < MAX_RANK && j->share[n].n; n++) {
        ml_bin bin = { j->share[n].item, j->share[n].n };
        ml_step_result out;
        accumulate(&p, &seen, &(ml_bins){ &bin, 1 }, &out);
        grads[n] = ML_NEW(&p.r.t.arena, float, g->buf.bytes / sizeof(float));
        memcpy(grads[n], g->buf.ptr, g->buf.bytes);
    }
    sum = ML_NEW(&p.r.t.arena, float, g->buf.bytes / sizeof(float));
    add_tree(sum, grads, n, g->buf.bytes / sizeof(float), &p.r.t.arena);
    if (memcmp(sum, j->bytes, g->buf.bytes))
        ml_test_fail(__FILE__, __LINE__, "%s: %d ranks add in another order", j->model, n);
    ml_job_rank_close(&p.r);
}

static void gradients_are_the_tree_of_the_ranks(void) {
    compare_models(find_gradients, sum_as_defined, false);
}

/* --- gradients in shards ---------------------------------------------------------- */

static void sum_shards(ml_comm *c, void *ud) {
    job *j = ud;
    const ml_weights *g;
    ml_step_result out;
    ml_schedule plan;
    ml_err err = { 0 };
    trainee p;

    open_trainee(&p, j, c);
    must(ml_trainer_release(p.r.t.trainer, &err), &err); /* all sets come back */
    must(ml_trainer_take(p.r.t.trainer, &err), &err);
    must(ml_trainer_schedule(&plan, p.r.t.trainer, &p.r.t.arena, p.sample, SAMPLES, &err),
         &err);
    CHECK(plan.n_rank == j->shards);
    for (int k = 0; k < 2; k++)
        must(ml_trainer_accumulate(
                 p.r.t.trainer,
                 &(ml_step){ .sample = p.sample,
                             .micro =
                                 &plan.step[0].rank[ml_trainer_first_shard(p.r.t.trainer)],
                             .n_shard = ml_trainer_own_shards(p.r.t.trainer),
                             .n_rollout = SAMPLES,
                             .denominator = SAMPLES,
                             .loss = ml_train_fixture_nll },
                 &out, &err),
             &err);
    g = ml_job_rank_whole(&p.r, ml_trainer_grads(p.r.t.trainer));
    if (!j->one)
        keep_bytes(j, g);
    else if (memcmp(g->buf.ptr, j->one->bytes, j->one->n_byte))
        differs(j, c, "gradients of shards");
    ml_job_rank_close(&p.r);
}

static void shards_do_not_know_the_ranks(void) {
    static const layout of[] = {
        { 2 }, { 4 }, { 8 }, { 2, { .pp = 2 } }, { 8, { .pp = 2 } }
    };
    static job one, j;

    for (int m = 0; models[m]; m++) {
        one = (job){ .model = models[m], .dtype = ML_WEIGHT_BF16, .shards = 8 };
        ml_ranks_run(1, sum_shards, &one);
        for (size_t k = 0; k < sizeof of / sizeof *of; k++) {
            j = one;
            j.mesh = of[k].mesh;
            j.one = &one;
            ml_ranks_run(of[k].n_rank, sum_shards, &j);
        }
        free(one.bytes);
    }
}

/* --- steps with the same gradients ---------------------------------------------- */

/* The first sample is trained by rank 0; the others have no derivatives, so that the sum
 * over ranks is exact. */
enum { TRAINED = 1 };

static ml_status mostly_idle(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    ml_status st = ml_train_fixture_nll(ud, io, n, err);

    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; io[i].sample >= TRAINED && t < io[i].n_response; t++)
            (io[i].value ? io[i].dvalue : io[i].dlogprob)[t] = 0;
    return st;
}

/* Squares of values, for a critic. */
static ml_status square(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    (void)ud, (void)err;
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; io[i].sample < TRAINED && t < io[i].n_response; t++) {
            io[i].loss += (double)io[i].value[t] * (double)io[i].value[t];
            io[i].dvalue[t] = 2 * io[i].value[t] - 1;
        }
    return ML_OK;
}

/* Samples TRAINED + r and so on go to data place r + 1; a single one has them all. */
static ml_bins bins_of(ml_arena *a, const ml_trainer *t) {
    int32_t n_place = ml_trainer_data_size(t);
    ml_bins b = { .bin = ML_NEW(a, ml_bin, SAMPLES) };

    for (int32_t i = 0; i < SAMPLES; i++) {
        int32_t rank =
            i < TRAINED ? 0 : 1 + (i - TRAINED) % (n_place > 1 ? n_place - 1 : 1);
        if (n_place > 1 && rank != ml_trainer_data_place(t))
            continue;
        b.bin[b.n].item = ML_NEW(a, int32_t, 1);
        b.bin[b.n].item[0] = i;
        b.bin[b.n++].n = 1;
    }
    return b;
}

static ml_step_result take_step(trainee *p, const job *j) {
    ml_bins bins = bins_of(&p->r.t.arena, p->r.t.trainer);
    ml_step_result out;
    ml_err err = { 0 };

    must(ml_trainer_step(p->r.t.trainer,
                         &(ml_step){ .sample = p->sample,
                                     .micro = &bins,
                                     .n_rollout = SAMPLES,
                                     .denominator = SAMPLES,
                                     .loss = j->critic ? square : mostly_idle },
                         &out, &err),
         &err);
    CHECK(out.applied);
    return out;
}

/* A rank holds its share of the optimizer's state, up to a unit of each tensor. */
static void check_share(const ml_optimizer *o, const ml_comm *c) {
    ml_optimizer_opts alone = o->opts;
    size_t whole;

    alone.mesh = NULL;
    whole = ml_optimizer_bytes(o->spec, &alone, o->own_master);
    CHECK(o->bytes == ml_optimizer_bytes(o->spec, &o->opts, o->own_master));
    if (o->map.mesh.whole) /* a tied or large table may be most of it */
        CHECK(c->size == 1 ? o->bytes == whole : o->bytes < whole);
    else
        CHECK(c->size == 1 ? o->bytes == whole : o->bytes < whole * 2 / (size_t)c->size);
}

/* The same bits.  With small experts on several ranks the blocks of the norm, which are f64,
 * begin elsewhere (shard_map.h). */
static bool is_norm(const job *j, double norm) {
    double one = j->one->grad_norm;
    return j->mesh.ep > 1 || j->mesh.etp > 1 ? fabs(norm - one) <= 1e-14 * one
                                             : norm == one;
}

static void train(ml_comm *c, void *ud) {
    job *j = ud;
    ml_step_result out = { 0 };
    trainee p;

    open_trainee(&p, j, c);
    check_share(ml_trainer_optimizer(p.r.t.trainer), c);
    for (int k = 0; k < 3; k++)
        out = take_step(&p, j);
    CHECK(p.r.t.weights.version == 3);
    if (!j->one) {
        keep_bytes(j, &p.r.t.weights);
        j->loss = out.loss;
        j->grad_norm = out.grad_norm;
    } else {
        if (out.loss != j->one->loss || !is_norm(j, out.grad_norm))
            differs(j, c, "losses or norms");
        if (memcmp(ml_job_rank_whole(&p.r, &p.r.t.weights)->buf.ptr, j->one->bytes,
                   j->one->n_byte))
            differs(j, c, "weights");
    }
    ml_job_rank_close(&p.r);
}

static void steps_are_those_of_one_rank(void) {
    static job j;

    compare_models(train, NULL, true);
    j = (job){ .model = "qwen3_moe",
               .dtype = ML_WEIGHT_BF16,
               .optimizer = ML_OPTIMIZER_SGD };
    compare(&j, train, NULL, true);
    j = (job){ .model = "qwen3_moe", .dtype = ML_WEIGHT_BF16, .critic = true };
    compare(&j, train, NULL, true);
}

/* --- values that are not finite --------------------------------------------------- */

/* Data place 1 has a derivative whose gradients overflow. */
static ml_status overflow(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    const ml_trainer *trainer = ud;
    ml_status st = ml_train_fixture_nll(NULL, io, n, err);

    for (int32_t i = 0; i < n && ml_trainer_data_place(trainer) == 1; i++)
        for (int32_t t = 0; t < io[i].n_response; t++)
            io[i].dlogprob[t] = 3e38f;
    return st;
}

static void skip_step(ml_comm *c, void *ud) {
    job *j = ud;
    ml_step_result out;
    ml_err err = { 0 };
    unsigned char *before;
    ml_bins bins;
    trainee p;

    open_trainee(&p, j, c);
    bins = bins_of(&p.r.t.arena, p.r.t.trainer);
    before = ML_NEW(&p.r.t.arena, unsigned char, p.r.t.weights.buf.bytes);
    memcpy(before, p.r.t.weights.buf.ptr, p.r.t.weights.buf.bytes);
    CHECK(ml_trainer_step(p.r.t.trainer,
                          &(ml_step){ .sample = p.sample,
                                      .micro = &bins,
                                      .n_rollout = SAMPLES,
                                      .denominator = SAMPLES,
                                      .loss = overflow,
                                      .ud = p.r.t.trainer },
                          &out, &err) == ML_EFORMAT);
    CHECK(!out.applied &&
          memcmp(before, p.r.t.weights.buf.ptr, p.r.t.weights.buf.bytes) == 0);
    CHECK_HAS(out.bad, "the gradient of lm_head.weight");
    ml_job_rank_close(&p.r);
}

static void a_bad_gradient_is_skipped_by_all(void) {
    static job j = { .model = "qwen3_moe", .dtype = ML_WEIGHT_BF16 };

    for (int k = 0; k < N_LAYOUT; k++) {
        j.mesh = layouts[k].mesh;
        ml_ranks_run(layouts[k].n_rank, skip_step, &j);
    }
}

/* --- a rank that fails -------------------------------------------------------------- */

static ml_status fail_on_last(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    const ml_comm *c = ud;

    if (c->rank == c->size - 1)
        return ml_fail(err, ML_EFORMAT, "the loss of sample %d is broken", io[0].sample);
    return ml_train_fixture_nll(NULL, io, n, err);
}

/* The last rank goes on when all others have come here: a barrier frees it before them. */
static void wait_for_others(ml_comm *c) {
    ml_tensor word = ml_comm_bytes("", 0);
    int32_t last = c->size - 1;

    for (int32_t r = 0; r < last && c->rank == last; r++)
        CHECK(c->recv(c, NULL, &word, r, NULL) == ML_OK);
    CHECK(c->rank == last || c->send(c, NULL, &word, last, NULL) == ML_OK);
}

static void fail_step(ml_comm *c, void *ud) {
    job *j = ud;
    ml_step_result out;
    ml_err err = { 0 };
    ml_status st;
    ml_bins bins;
    trainee p;

    open_trainee(&p, j, c);
    wait_for_others(c);
    bins = bins_of(&p.r.t.arena, p.r.t.trainer);
    st = ml_trainer_step(p.r.t.trainer,
                         &(ml_step){ .sample = p.sample,
                                     .micro = &bins,
                                     .n_rollout = SAMPLES,
                                     .denominator = SAMPLES,
                                     .loss = fail_on_last,
                                     .ud = c },
                         &out, &err);
    CHECK(st == (c->rank == c->size - 1 ? ML_EFORMAT : ML_EPEER));
    CHECK_HAS(err.msg, "is broken");
    ml_job_rank_close(&p.r);
}

static void a_rank_that_fails_ends_the_step(void) {
    static job j = { .model = "llama_tied", .dtype = ML_WEIGHT_F32 };

    ml_ranks_run(3, fail_step, &j);
}

/* --- snapshots ------------------------------------------------------------------------ */

typedef struct saving {
    job j;
    int32_t n_save; /* ranks that saved */
    char dir[512];
    bool async;
} saving;

static void save(ml_comm *c, void *ud) {
    saving *x = ud;
    const ml_weights *whole;
    ml_saver *s = NULL;
    ml_err err = { 0 };
    char hf[520];
    trainee p;

    open_trainee(&p, &x->j, c);
    for (int k = 0; k < 2; k++)
        take_step(&p, &x->j);
    snprintf(hf, sizeof hf, "%s/weights", x->dir);
    must(ml_saver_open(&s,
                       &(ml_saver_opts){ .dir = x->dir,
                                         .hf = hf,
                                         .from = p.r.t.checkpoint,
                                         .async = x->async,
                                         .comm = c },
                       &err),
         &err);
    must(ml_saver_save(
             s, &(ml_save_models){ .actor = p.r.t.trainer, .ref = &p.r.t.weights },
             &(ml_save_state){
                 .iteration = 1, .data = ml_str_of("{}"), .config = ml_str_of("{}") },
             &err),
         &err);
    take_step(&p, &x->j); /* does not reach an asynchronous save */
    must(ml_saver_wait(s, &err), &err);
    ml_saver_close(s);
    whole = ml_job_rank_whole(&p.r, &p.r.t.weights);
    if (c->rank == 0)
        keep_bytes(&x->j, whole);
    ml_job_rank_close(&p.r);
}

static void same_file(const char *a, const char *b, const char *name) {
    ml_file x = { 0 }, y = { 0 };
    ml_text path = { 0 };
    ml_err err = { 0 };

    ml_text_printf(&path, "%s/%s", a, name);
    must(ml_file_map(&x, path.ptr, &err), &err);
    path.len = 0;
    ml_text_printf(&path, "%s/%s", b, name);
    must(ml_file_map(&y, path.ptr, &err), &err);
    if (x.bytes.len != y.bytes.len || memcmp(x.bytes.ptr, y.bytes.ptr, x.bytes.len))
        ml_test_fail(__FILE__, __LINE__, "%s is not what one rank saved", path.ptr);
    ml_file_unmap(&x);
    ml_file_unmap(&y);
    ml_text_release(&path);
}

static void same_snapshot(const saving *x, const saving *y) {
    ml_names names;
    ml_err err = { 0 };
    const char *a, *b;
    ml_arena arena;

    ml_arena_init(&arena, "snapshots");
    a = ml_snapshot_path(&arena, x->dir, 1);
    b = ml_snapshot_path(&arena, y->dir, 1);
    must(ml_dir_list(&names, a, &arena, &err), &err);
    CHECK(names.n >= 4);
    for (int32_t i = 0; i < names.n; i++)
        same_file(a, b, names.name[i]);
    must(ml_snapshot_check(b, &err), &err);
    a = ml_arena_printf(&arena, "%s/weights", x->dir);
    b = ml_arena_printf(&arena, "%s/weights", y->dir);
    must(ml_dir_list(&names, a, &arena, &err), &err);
    CHECK(names.n >= 2);
    for (int32_t i = 0; i < names.n; i++)
        same_file(a, b, names.name[i]);
    ml_arena_release(&arena);
}

/* Loads what other ranks saved, and takes the step they took after it. */
static void resume(ml_comm *c, void *ud) {
    saving *x = ud;
    ml_checkpoint *saved = NULL;
    ml_save_state state = { 0 };
    ml_err err = { 0 };
    const char *path;
    trainee p;

    open_trainee(&p, &x->j, c);
    path = ml_snapshot_path(&p.r.t.arena, x->dir, 1);
    ml_trainer_close(p.r.t.trainer);
    ml_weights_close(&p.r.t.weights);
    must(ml_checkpoint_open(&saved, path, &err), &err);
    must(ml_weights_load_part(
             &p.r.t.weights, &p.r.t.spec, saved, x->j.dtype,
             ml_trainer_parts(&p.r.t.arena, &p.r.t.spec, &p.r.mesh, NULL, p.r.t.be.linear),
             &p.r.t.be, &p.r.t.arena, &err),
         &err);
    {
        ml_trainer_opts o = ml_train_fixture_defaults();
        o.mesh = &p.r.mesh;
        o.optimizer.rule = rule_of(&x->j);
        must(ml_trainer_open(&p.r.t.trainer, &p.r.t.spec, &p.r.t.weights, &p.r.t.be, &o,
                             &err),
             &err);
    }
    must(ml_snapshot_load(path, &(ml_snapshot_into){ .trainer = p.r.t.trainer }, &state,
                          &p.r.t.arena, &err),
         &err);
    take_step(&p, &x->j);
    if (memcmp(ml_job_rank_whole(&p.r, &p.r.t.weights)->buf.ptr, x->j.bytes, x->j.n_byte))
        differs(&x->j, c, "weights after resuming");
    ml_checkpoint_close(saved);
    ml_job_rank_close(&p.r);
}

static void snapshots_do_not_know_the_ranks(void) {
    static const char *const kinds[] = { "llama_tied", "qwen3_moe", NULL };
    static saving one, other;

    for (int m = 0; kinds[m]; m++)
        for (int bf16 = 0; bf16 < 2; bf16++) {
            one =
                (saving){ .j = { .model = kinds[m],
                                 .dtype = bf16 ? ML_WEIGHT_BF16 : ML_WEIGHT_F32,
                                 .optimizer = m ? ML_OPTIMIZER_ADAM : ML_OPTIMIZER_SGD } };
            snprintf(one.dir, sizeof one.dir, "%s/one-%d-%d", ml_test_dir(), m, bf16);
            ml_ranks_run(1, save, &one);
            for (int async = 0; async < 2; async++) {
                other = one;
                other.j.bytes = NULL;
                other.async = async;
                snprintf(other.dir, sizeof other.dir, "%s/several-%d-%d-%d", ml_test_dir(),
                         m, bf16, async);
                ml_ranks_run(async ? 3 : 4, save, &other);
                same_snapshot(&one, &other);
                for (int32_t n = 1; n <= 3; n++)
                    ml_ranks_run(n, resume, &other);
                other.j.mesh = (ml_mesh_opts){ .tp = async ? 3 : 2,
                                               .ep = async ? 3 : 2,
                                               .etp = async ? 2 : 3 };
                ml_ranks_run(6, resume, &other);
                free(other.j.bytes);
                other.j.bytes = NULL;
                other.j.mesh.etp = async ? 1 : 2;
                ml_ranks_run(async ? 3 : 4, save, &other); /* over the other snapshot */
                same_snapshot(&one, &other);
                other.j.mesh = (ml_mesh_opts){ 0 };
                ml_ranks_run(2, resume, &other);
                free(other.j.bytes);
            }
            free(one.j.bytes);
        }
}

/* Muon, Adafactor and FP8 moments: steps and snapshots.  Whole parameters have one owner. */
static void other_optimizers_are_those_of_one_rank(void) {
    static saving one, other;
    static job alone;

    for (int k = 0; k < 3; k++) {
        bool whole = k < 2;
        alone = (job){ .model = k == 1 ? "qwen3" : "qwen3_moe",
                       .dtype = k == 1 ? ML_WEIGHT_F32 : ML_WEIGHT_BF16,
                       .optimizer = k == 0   ? ML_OPTIMIZER_MUON
                                    : k == 1 ? ML_OPTIMIZER_ADAFACTOR
                                             : ML_OPTIMIZER_ADAM,
                       .moments = k == 2 ? ML_MOMENT_FP8 : ML_MOMENT_F32 };
        one = (saving){ .j = alone };
        snprintf(one.dir, sizeof one.dir, "%s/alone-%d", ml_test_dir(), k);
        ml_ranks_run(1, train, &alone);
        ml_ranks_run(1, save, &one);
        other = one;
        other.j.bytes = NULL;
        other.j.one = &alone;
        for (int32_t n = 2; n <= 4; n++) {
            other.async = n == 3;
            other.j.mesh = (ml_mesh_opts){ .whole = whole, .pp = n == 4 ? 2 : 1 };
            snprintf(other.dir, sizeof other.dir, "%s/ranks-%d-%d", ml_test_dir(), k, n);
            ml_ranks_run(n, train, &other.j);
            ml_ranks_run(n, save, &other);
            same_snapshot(&one, &other);
            other.j.mesh = (ml_mesh_opts){ .whole = whole };
            ml_ranks_run(n == 2 ? 1 : 2, resume, &other);
            free(other.j.bytes);
            other.j.bytes = NULL;
        }
        free(one.j.bytes);
        free(alone.bytes);
    }
}

/* --- the learner ------------------------------------------------------------------------ */

typedef struct learning {
    job j;
    const char *estimator;
    bool
        record; /* routing, for the train steps: by other ranks than those that replay it */
    ml_metrics rollout, step; /* of one rank */
    ml_arena arena;
    bool is_one;
} learning;

static void open_recipe(ml_recipe *out, const learning *x) {
    ml_algo_opts algo = { .num = { .gamma = 1,
                                   .lambd = 0.95,
                                   .eps_clip = 0.2,
                                   .eps_clip_high = (double)NAN,
                                   .eps_clip_c = (double)NAN,
                                   .value_clip = 0.2,
                                   .entropy_coef = 0.01,
                                   .use_kl_loss = true,
                                   .kl_loss_coef = 0.01,
                                   .kl_loss_type = MILES_K3 },
                          .advantage_estimator = x->estimator,
                          .loss_type = "policy_loss" };
    ml_err err = { 0 };

    must(ml_recipe_resolve(out, &algo, &err), &err);
}

static ml_sample *graded_samples(trainee *p) {
    ml_sample *s = ML_NEW(&p->r.t.arena, ml_sample, SAMPLES);

    for (int32_t i = 0; i < SAMPLES; i++)
        s[i] = (ml_sample){ .index = i,
                            .group = i / 4,
                            .rollout = i,
                            .token = p->sample[i].token,
                            .n_token = p->sample[i].n_token,
                            .n_response = p->sample[i].n_response,
                            .mask = p->sample[i].mask,
                            .reward = i % 3,
                            .has_reward = true,
                            .status = ML_SAMPLE_COMPLETED };
    return s;
}

/* All metrics but the gradient norm have the same bits. */
static void same_metrics(const ml_comm *c, const learning *x, const ml_metrics *got,
                         const ml_metrics *want) {
    const ml_metric *a = got->first, *b = want->first;
    int32_t n = 0;

    for (; a && b; a = a->next, b = b->next, n++) {
        bool rounds = strstr(b->name, "grad_norm") != NULL;
        if (strcmp(a->name, b->name) ||
            (rounds ? fabs(a->value - b->value) > 1e-6 * b->value
                    : memcmp(&a->value, &b->value, sizeof a->value) != 0))
            ml_test_fail(__FILE__, __LINE__, "%s: rank %d of %d: %s is %.17g, not %.17g",
                         x->estimator, c->rank, c->size, b->name, a->value, b->value);
    }
    CHECK(!a && !b && n > 4);
}

static void copy_metrics(ml_metrics *out, ml_arena *a, const ml_metrics *from) {
    ml_metrics_init(out, a);
    for (const ml_metric *m = from->first; m; m = m->next)
        ml_metrics_add(out, "", m->name, m->value);
}

static void learn(ml_comm *c, void *ud) {
    learning *x = ud;
    const ml_sample *list[SAMPLES];
    ml_learner l = { 0 };
    ml_learn_result result;
    ml_recipe recipe;
    ml_err err = { 0 };
    ml_sample *sample;
    trainee p, critic;
    job of_critic = x->j;

    of_critic.critic = true;
    open_trainee(&p, &x->j, c);
    open_trainee(&critic, &of_critic, c);
    open_recipe(&recipe, x);
    sample = graded_samples(&p);
    for (int32_t i = 0; i < SAMPLES; i++)
        list[i] = &sample[i];
    l = (ml_learner){ .recipe = &recipe,
                      .trainer = p.r.t.trainer,
                      .weights = &p.r.t.weights,
                      .ref = &p.r.t.weights,
                      .entropy = true,
                      .record = { [ML_ROUTING_EXPERTS] = x->record } };
    l.critic = recipe.critic_loss ? critic.r.t.trainer : NULL;
    must(ml_learn(&l, 0, &result, &p.r.t.arena, list, SAMPLES, &err), &err);
    CHECK(result.n_step == 1 && p.r.t.weights.version == 1);
    CHECK(critic.r.t.weights.version == (l.critic ? 1 : 0));
    if (x->is_one) {
        copy_metrics(&x->rollout, &x->arena, &result.rollout);
        copy_metrics(&x->step, &x->arena, &result.step[0].metrics);
    } else {
        same_metrics(c, x, &result.rollout, &x->rollout);
        same_metrics(c, x, &result.step[0].metrics, &x->step);
    }
    ml_job_rank_close(&critic.r);
    ml_job_rank_close(&p.r);
}

static void metrics_are_those_of_one_rank(void) {
    static learning kinds[] = {
        { .j = { .model = "qwen3", .dtype = ML_WEIGHT_BF16 }, .estimator = "grpo" },
        { .j = { .model = "qwen3", .dtype = ML_WEIGHT_F32 }, .estimator = "ppo" },
        { .j = { .model = "qwen3_moe", .dtype = ML_WEIGHT_BF16 },
          .estimator = "grpo",
          .record = true },
    };

    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        learning *x = &kinds[k];
        ml_arena_init(&x->arena, "metrics");
        x->is_one = true;
        ml_ranks_run(1, learn, x);
        x->is_one = false;
        for (int i = 0; i < N_LAYOUT; i++) {
            x->j.mesh = layouts[i].mesh;
            ml_ranks_run(layouts[i].n_rank, learn, x);
        }
        ml_arena_release(&x->arena);
    }
}

static const ml_test tests[] = {
    { "log-probs and entropies are those of one rank", scores_are_those_of_one_rank, 300 },
    { "gradients of ranks repeat, and are the tree of what each computes",
      gradients_are_the_tree_of_the_ranks, 300 },
    { "gradients in shards do not depend on the number of ranks",
      shards_do_not_know_the_ranks },
    { "steps with the same gradients are those of one rank", steps_are_those_of_one_rank,
      300 },
    { "a gradient that is not finite is skipped by all ranks",
      a_bad_gradient_is_skipped_by_all },
    { "a rank that fails ends the step of the others", a_rank_that_fails_ends_the_step },
    { "the learner's metrics are those of one rank", metrics_are_those_of_one_rank },
    { "snapshots do not depend on the number of ranks", snapshots_do_not_know_the_ranks },
    { "steps and snapshots of Muon, Adafactor and FP8 moments are those of one rank",
      other_optimizers_are_those_of_one_rank },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
