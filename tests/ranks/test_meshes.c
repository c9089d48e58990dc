/* All meshes of up to 8 ranks, which are threads of this process: log-probs, entropies and
 * losses have the bits of one rank; gradients repeat, and differ from one rank's by rounding,
 * or not at all where only layers are divided.  MILES_LONG=1 runs all meshes instead of a
 * few. */
#include <stdlib.h>
#include <string.h>

#include "tests/support/deep_model.h"
#include "tests/support/job_rank.h"
#include "tests/support/must.h"

enum { SAMPLES = 12, MAX_RESPONSE = 32, LAYERS = 8 };

/* A job, and what one rank computes in it. */
typedef struct job {
    const char *model, *dir;
    ml_weight_dtype dtype;
    ml_mesh_opts sizes;
    float logprob[SAMPLES][MAX_RESPONSE], entropy[SAMPLES][MAX_RESPONSE];
    float trained[SAMPLES][MAX_RESPONSE];
    double loss;
    float *grads;
    const struct job *one; /* the same on one rank; NULL: this is it */
} job;

typedef struct rank {
    ml_job_rank r;
    job *j;
    const ml_comm *c;
    ml_train_sample sample[SAMPLES];
} rank;

static void differs(const rank *p, const char *what) {
    const ml_mesh_opts *m = &p->j->sizes;

    ml_test_fail(__FILE__, __LINE__,
                 "%s, %s: rank %d of %d (tp %d, cp %d, pp %d, ep %d, etp %d) has other %s",
                 p->j->model, p->j->dtype == ML_WEIGHT_F32 ? "f32" : "bf16", p->c->rank,
                 p->c->size, m->tp, m->cp, m->pp, m->ep, m->etp, what);
}

static void open_rank(rank *p, job *j, ml_comm *c) {
    ml_job_rank_opts o = { .dir = j->dir,
                           .dtype = j->dtype,
                           .sizes = j->sizes,
                           .trainer = ml_train_fixture_defaults() };

    o.trainer.whole_grads = true;
    o.trainer.batch.global_batch_size = SAMPLES;
    o.trainer.batch.max_tokens = 50;
    p->j = j;
    p->c = c;
    ml_job_rank_open(&p->r, &o, c);
    for (int32_t i = 0; i < SAMPLES; i++) {
        const ml_train_sample *x = &p->r.t.sample[i % p->r.t.n_sample];
        int32_t n = x->n_token < 12 + 2 * i ? x->n_token : 12 + 2 * i;
        uint8_t *mask = ML_NEW(&p->r.arena, uint8_t, n);
        for (int32_t k = 0; k < n; k++)
            mask[k] = (5 * k + i) % 4 != 0;
        p->sample[i] = (ml_train_sample){
            .token = x->token, .n_token = n, .n_response = n / 2, .mask = mask, .rollout = i
        };
    }
}

/* One rank keeps a value, several compare theirs with it. */
static void same(const rank *p, void *of_one, const void *here, size_t bytes,
                 const char *what) {
    if (!p->j->one)
        memcpy(of_one, here, bytes);
    else if (memcmp(of_one, here, bytes))
        differs(p, what);
}

static job *one_of(const rank *p) {
    return p->j->one ? (job *)(uintptr_t)p->j->one : p->j;
}

static void score(rank *p) {
    float *logprob[SAMPLES], *entropy[SAMPLES];
    job *one = one_of(p);

    for (int i = 0; i < SAMPLES; i++) {
        logprob[i] = ML_NEW(&p->r.arena, float, MAX_RESPONSE);
        entropy[i] = ML_NEW(&p->r.arena, float, MAX_RESPONSE);
    }
    MUST(
        ml_trainer_score(p->r.t.trainer, NULL, p->sample, SAMPLES, logprob, entropy, &err));
    for (int i = 0; i < SAMPLES; i++) {
        CHECK(logprob[i][0] != 0);
        same(p, one->logprob[i], logprob[i], sizeof *one->logprob, "log-probs");
        same(p, one->entropy[i], entropy[i], sizeof *one->entropy, "entropies");
    }
}

static ml_status loss_of(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    const rank *p = ud;

    for (int32_t i = 0; i < n; i++) {
        same(p, one_of(p)->trained[io[i].sample], io[i].logprob,
             (size_t)io[i].n_response * sizeof(float), "log-probs in training");
        for (int32_t t = 0; t < io[i].n_response; t++)
            io[i].dentropy[t] = 0.01f * (float)(t % 5 - 2);
    }
    return ml_train_fixture_nll(NULL, io, n, err);
}

static double accumulate(rank *p, const ml_bins *bins) {
    ml_step_result out;

    MUST(ml_trainer_accumulate(p->r.t.trainer,
                               &(ml_step){ .sample = p->sample,
                                           .micro = bins,
                                           .n_rollout = SAMPLES,
                                           .denominator = SAMPLES,
                                           .loss = loss_of,
                                           .ud = p,
                                           .entropy = true },
                               &out, &err));
    return out.loss;
}

/* Stages add in the order of one rank. */
static bool only_stages(const job *j, const ml_comm *c) {
    return c->size == (j->sizes.pp ? j->sizes.pp : 1);
}

static void compare_grads(rank *p) {
    const ml_weights *g = ml_job_rank_whole(&p->r, ml_trainer_grads(p->r.t.trainer));
    job *j = p->j;
    int32_t param = 0;
    double apart;

    if (!j->one) {
        j->grads = malloc(g->buf.bytes);
        memcpy(j->grads, g->buf.ptr, g->buf.bytes);
        return;
    }
    apart = ml_job_rank_apart(g, j->one->grads, &param);
    if (!(apart <= (only_stages(j, p->c) ? 0 : ML_GRADS_BOUND))) {
        ml_test_fail(__FILE__, __LINE__, "%s is %.3g of its largest gradient apart",
                     p->r.t.spec.param[param].name, apart);
        differs(p, "gradients");
    }
}

static void run(ml_comm *c, void *ud) {
    unsigned char *before;
    const ml_weights *g;
    double loss;
    ml_bins bins;
    rank p;

    open_rank(&p, ud, c);
    score(&p);
    g = ml_trainer_grads(p.r.t.trainer);
    bins = ml_job_rank_bins(&p.r, p.sample, SAMPLES);
    loss = accumulate(&p, &bins);
    before = ML_NEW(&p.r.arena, unsigned char, (int64_t)g->buf.bytes + 1);
    memcpy(before, g->buf.ptr, g->buf.bytes);
    CHECK(accumulate(&p, &bins) == loss);
    if (memcmp(before, g->buf.ptr, g->buf.bytes))
        differs(&p, "gradients in a repetition");
    same(&p, &one_of(&p)->loss, &loss, sizeof loss, "losses");
    compare_grads(&p);
    ml_job_rank_close(&p.r);
}

/* A model on n meshes; those with expert parallelism, if it has experts. */
static void compare(const char *model, const char *dir, ml_weight_dtype dtype,
                    const ml_mesh_case *mesh, int n) {
    static job one, many;
    bool experts = strcmp(model, "llama_tied") && strcmp(model, "gemma2");

    one = (job){ .model = model, .dir = dir, .dtype = dtype };
    ml_ranks_run(1, run, &one);
    for (int i = 0; i < n; i++) {
        if ((mesh[i].sizes.ep > 1 || mesh[i].sizes.etp > 1) && !experts)
            continue;
        many = (job){
            .model = model, .dir = dir, .dtype = dtype, .sizes = mesh[i].sizes, .one = &one
        };
        ml_ranks_run(mesh[i].n_rank, run, &many);
    }
    free(one.grads);
}

static void compare_model(const char *model) {
    static ml_mesh_case all[ML_MESH_CASES];
    const char *dir = ml_deep_model(model, LAYERS);
    bool few = !getenv("MILES_LONG");
    int n = few ? ML_MESH_FEW : ML_MESH_CASES;

    ml_mesh_cases(all);
    for (int bf16 = 0; bf16 < 2; bf16++) /* sanitizers: the last ones have all directions */
        compare(model, dir, bf16 ? ML_WEIGHT_BF16 : ML_WEIGHT_F32,
                (few ? ml_mesh_few : all) + (ML_TEST_SANITIZED ? n - 3 : 0),
                ML_TEST_SANITIZED ? 3 : n);
    for (int bf16 = 0; bf16 < 2; bf16++)
        compare(model, dir, bf16 ? ML_WEIGHT_BF16 : ML_WEIGHT_F32, ml_mesh_etp,
                ML_TEST_SANITIZED ? 0 : ML_MESH_ETP);
}

#define MODEL(name)                                                                        \
    static void meshes_of_##name(void) {                                                   \
        compare_model(#name);                                                              \
    }
MODEL(llama_tied)
MODEL(qwen3_moe)
MODEL(deepseek_v3)
MODEL(qwen3_next)
MODEL(gpt_oss)
MODEL(gemma2)

#define ROW(name)                                                                          \
    { #name ": meshes have the bits of one rank", meshes_of_##name, 3600 }

static const ml_test tests[] = {
    ROW(llama_tied), ROW(qwen3_moe), ROW(deepseek_v3), ROW(qwen3_next), ROW(gpt_oss),
    ROW(gemma2),     { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
