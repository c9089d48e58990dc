/* A multi-token prediction module, or an EAGLE-3 head, that is trained beside its trunk: the
 * trunk has the bits of training without it, and the module's gradients do not depend on micro-batches.  Ranks, which
 * are threads of this process, have its loss to the bit, and the same weights after a step. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/job_rank.h"
#include "tests/support/must.h"

/* Models with such a module, or with a head. */
typedef struct model {
    const char *dir, *head;
} model;

static const model models[] = { { "tests/golden/mtp/deepseek_v3", NULL },
                                { "tests/golden/mtp/qwen3_next", NULL },
                                { "tests/golden/eagle3/target",
                                  "tests/golden/eagle3/shared" },
                                { 0 } };

static ml_train_fixture_opts opts_of(model m, bool mtp) {
    return (ml_train_fixture_opts){
        .dir = m.dir, .mtp = mtp, .head = m.head, .trainer = ml_train_fixture_defaults()
    };
}

static bool same_bytes(const ml_weights *a, const ml_weights *b) {
    return a->buf.bytes == b->buf.bytes && !memcmp(a->buf.ptr, b->buf.ptr, a->buf.bytes);
}

static void check_trunk(model m) {
    ml_train_fixture_opts with = opts_of(m, true), without = opts_of(m, false);
    ml_train_fixture a, b;

    ml_train_fixture_open(&a, &with);
    ml_train_fixture_open(&b, &without);
    for (int i = 0; i < 3; i++) {
        ml_step_result x = ml_train_fixture_step(&a, 64), y = ml_train_fixture_step(&b, 64);
        CHECK(x.loss == y.loss && x.grad_norm == y.grad_norm);
        CHECK(x.n_mtp > 0 && x.mtp_loss > 0 && x.mtp_grad_norm > 0);
        CHECK(y.n_mtp == 0 && y.mtp_loss == 0);
        CHECK(same_bytes(&a.weights, &b.weights));
    }
    CHECK(ml_trainer_optimizer(a.trainer)->n_step == 3 && a.mtp.optimizer.n_step == 3);
    ml_train_fixture_close(&a);
    ml_train_fixture_close(&b);
}

static void trunk_is_unchanged(void) {
    for (int i = 0; models[i].dir; i++)
        check_trunk(models[i]);
}

static void check_learns(model m) {
    ml_train_fixture_opts o = opts_of(m, true);
    ml_train_fixture t;
    double first, last = 0;

    o.trainer.lr.lr = 5e-3;
    ml_train_fixture_open(&t, &o);
    first = ml_train_fixture_step(&t, 64).mtp_loss;
    for (int i = 0; i < 30; i++)
        last = ml_train_fixture_step(&t, 64).mtp_loss;
    CHECK(last < 0.7 * first);
    ml_train_fixture_close(&t);
}

static void layer_learns(void) {
    for (int i = 0; models[i].dir; i++)
        check_learns(models[i]);
}

/* The module's norm is clipped, whatever the trunk's is: with a limit that both exceed, a step
 * of SGD without momentum is as long as the limit times the learning rate. */
static void norms_are_clipped_apart(void) {
    ml_train_fixture_opts o = opts_of(models[0], true);
    ml_train_fixture t;
    ml_step_result r;
    ml_weights before = { 0 };
    double sum = 0, limit = 0.01;

    o.trainer.optimizer.rule = (ml_optim_rule_opts){ .kind = ML_OPTIMIZER_SGD };
    o.trainer.optimizer.clip_grad = limit;
    o.trainer.lr.start_weight_decay = o.trainer.lr.end_weight_decay = 0;
    o.trainer.lr.lr = 1;
    ml_train_fixture_open(&t, &o);
    before.buf.ptr = ml_arena_take(&t.arena, t.mtp.weights.buf.bytes, 1);
    memcpy(before.buf.ptr, t.mtp.weights.buf.ptr, t.mtp.weights.buf.bytes);
    r = ml_train_fixture_step(&t, 64);
    CHECK(r.grad_norm > limit && r.mtp_grad_norm > limit && r.grad_norm != r.mtp_grad_norm);
    for (size_t k = 0; k < t.mtp.weights.buf.bytes / sizeof(float); k++) {
        double d = (double)((float *)t.mtp.weights.buf.ptr)[k] -
                   (double)((float *)before.buf.ptr)[k];
        sum += d * d;
    }
    CHECK(fabs(sqrt(sum) - limit) < 1e-3 * limit);
    ml_train_fixture_close(&t);
}

static void micro_batches_do_not_matter(void) {
    for (int i = 0; models[i].dir; i++) {
        ml_train_fixture_opts o = opts_of(models[i], true);
        ml_train_fixture a, b;
        ml_step_result x, y;

        ml_train_fixture_open(&a, &o);
        ml_train_fixture_open(&b, &o);
        x = ml_train_fixture_step(&a, 1);
        y = ml_train_fixture_step(&b, 1000);
        CHECK(x.mtp_loss == y.mtp_loss && x.mtp_grad_norm == y.mtp_grad_norm);
        CHECK(same_bytes(&a.mtp.weights, &b.mtp.weights));
        ml_train_fixture_close(&a);
        ml_train_fixture_close(&b);
    }
}

/* --- ranks ----------------------------------------------------------------------- */

enum { MAX_RANK = 8, STEPS = 2, SAMPLES = 8 };

typedef struct job {
    model model;
    ml_mesh_opts mesh;
    int32_t shards;  /* 0: one for each rank */
    bool without;    /* the module is not trained */
    bool contiguous; /* context parallel: see context.h */
    double loss[STEPS], norm[STEPS];
    const struct job *one; /* of one rank, to compare with; NULL: this one */
    float *grad;           /* [n_grad] the module's, of the first step, of all ranks */
    double apart;          /* the largest difference of a tensor's gradients from one's */
    size_t n_grad;
    uint64_t sum[MAX_RANK], trunk[MAX_RANK]; /* of each rank's weights */
} job;

static uint64_t sum_of(const ml_weights *w) {
    const unsigned char *p = w->buf.ptr;
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < w->buf.bytes; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static ml_job_rank_opts rank_opts(const job *j) {
    ml_job_rank_opts o = { .dir = j->model.dir,
                           .head = j->without ? NULL : j->model.head,
                           .mtp = !j->without,
                           .sizes = j->mesh,
                           .trainer = ml_train_fixture_defaults() };

    o.trainer.grad_shards = j->shards;
    o.trainer.contiguous = j->contiguous;
    o.trainer.batch.global_batch_size = SAMPLES;
    o.trainer.batch.max_tokens = 64;
    return o;
}

static ml_step_result step(ml_job_rank *p, const ml_train_sample *sample) {
    ml_trainer *t = p->t.trainer;
    ml_schedule plan;
    ml_step_result r;

    MUST(ml_trainer_schedule(&plan, t, &p->arena, sample, SAMPLES, &err));
    MUST(ml_trainer_step(t,
                         &(ml_step){ .sample = sample,
                                     .micro = &plan.step[0].rank[ml_trainer_first_shard(t)],
                                     .n_shard = ml_trainer_own_shards(t),
                                     .n_rollout = SAMPLES,
                                     .denominator = SAMPLES,
                                     .loss = ml_train_fixture_nll },
                         &r, &err));
    return r;
}

/* The gradients of which every rank has summed its own ranges. */
static float *gather_grads(ml_job_rank *p, size_t *n) {
    ml_optimizer *o = &p->t.mtp.optimizer;
    const ml_weights *g = &p->t.mtp.runner.grads.sum;
    unsigned char *all = calloc(1, g->buf.bytes);

    *n = g->buf.bytes / sizeof(float);
    for (int32_t i = 0; i < g->n; i++) {
        ml_tensor own =
            ml_weights_view(g, i, ml_optimizer_range(o, i, o->ranks.comm->rank));
        if (own.data)
            memcpy(all + ((unsigned char *)own.data - (unsigned char *)g->buf.ptr),
                   own.data, ml_tensor_bytes(&own));
    }
    MUST(ml_ranks_merge(&o->ranks, all, g->buf.bytes, &err));
    return (float *)(void *)all;
}

static void keep_grads(job *j, ml_job_rank *p, const ml_comm *c) {
    size_t n;
    const ml_weights *g = &p->t.mtp.runner.grads.sum;
    float *grad = gather_grads(p, &n);

    if (c->rank > 0) {
        free(grad);
        return;
    }
    j->grad = grad;
    j->n_grad = n;
    for (int32_t i = 0; i < g->n && j->one; i++) {
        ptrdiff_t at = (float *)g->t[i].data - (float *)g->buf.ptr;
        if (g->t[i].data)
            j->apart =
                fmax(j->apart, ml_grads_apart(grad + at, j->one->grad + at,
                                              ml_tensor_bytes(&g->t[i]) / sizeof(float)));
    }
}

static void train(ml_comm *c, void *ud) {
    job *j = ud;
    ml_job_rank_opts o = rank_opts(j);
    ml_train_sample sample[SAMPLES];
    ml_job_rank p;

    ml_job_rank_open(&p, &o, c);
    for (int32_t i = 0; i < SAMPLES; i++) {
        sample[i] = p.t.sample[i % p.t.n_sample];
        sample[i].rollout = i;
    }
    for (int i = 0; i < STEPS; i++) {
        ml_step_result r = step(&p, sample);
        if (i == 0 && !j->without)
            keep_grads(j, &p, c);
        if (c->rank == 0) {
            j->loss[i] = r.mtp_loss;
            j->norm[i] = r.mtp_grad_norm;
        }
    }
    if (!j->without)
        j->sum[c->rank] = sum_of(&p.t.mtp.weights);
    j->trunk[c->rank] = sum_of(&p.t.weights);
    ml_job_rank_close(&p);
}

static void compare_with_one(const job *several, int32_t n_rank) {
    const job *one = several->one;

    CHECK(several->loss[0] == one->loss[0]);
    CHECK(fabs(several->norm[0] - one->norm[0]) < 1e-6 * one->norm[0]);
    CHECK(fabs(several->loss[1] - one->loss[1]) < 1e-4 * one->loss[1]);
    CHECK(several->n_grad == one->n_grad);
    CHECK(several->apart <= ML_GRADS_BOUND);
    for (int32_t r = 1; r < n_rank; r++)
        CHECK(several->sum[r] == several->sum[0]);
}

/* A rank's part of the trunk has the bits of the same ranks without the module. */
static void compare_trunk(const job *with, int32_t n_rank) {
    job without = { .model = with->model,
                    .mesh = with->mesh,
                    .contiguous = with->contiguous,
                    .without = true };

    ml_ranks_run(n_rank, train, &without);
    for (int32_t r = 0; r < n_rank; r++)
        CHECK(with->trunk[r] == without.trunk[r]);
}

/* A head has no experts, and reads layers of several stages of a pipeline. */
static bool suits(model m, ml_mesh_opts o) {
    return !m.head || (o.ep <= 1 && o.etp <= 1 && o.pp <= 1);
}

static const ml_mesh_case cases[] = {
    { 2, { 0 } },
    { 3, { 0 } },
    { 2, { .ep = 2 } },
    { 4, { .ep = 2 } },
    { 2, { .tp = 2 } },
    { 4, { .tp = 2 } },
    { 3, { .fsdp = true } },
    { 4, { .fsdp = true, .replicate = 2 } },
    { 4, { .tp = 2, .ep = 2, .etp = 2 } },
    { 2, { .cp = 2 } },
    { 8, { .tp = 2, .cp = 2, .ep = 8 } },
    { 2, { .pp = 2 } },
    { 8, { .tp = 2, .cp = 2, .pp = 2 } },
    { 8, { .pp = 2, .ep = 4, .fsdp = true } },
};

static void ranks_have_its_loss(void) {
    for (int i = 0; models[i].dir; i++) {
        job one = { .model = models[i] };
        ml_ranks_run(1, train, &one);
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            job several = { .model = models[i], .mesh = cases[k].sizes, .one = &one };
            if (!suits(models[i], cases[k].sizes))
                continue;
            ml_ranks_run(cases[k].n_rank, train, &several);
            compare_with_one(&several, cases[k].n_rank);
            compare_trunk(&several, cases[k].n_rank);
            free(several.grad);
        }
        free(one.grad);
    }
}

/* One piece of a micro-batch for each rank, twice. */
static void ranks_repeat(void) {
    for (int i = 0; models[i].dir; i++) {
        job one = { .model = models[i] }, first, again;
        ml_ranks_run(1, train, &one);
        first = again = (job){ .model = models[i],
                               .mesh = { .tp = 2, .cp = 2 },
                               .contiguous = true,
                               .one = &one };
        ml_ranks_run(4, train, &first);
        ml_ranks_run(4, train, &again);
        compare_with_one(&first, 4);
        CHECK(!memcmp(first.grad, again.grad, first.n_grad * sizeof(float)));
        CHECK(first.sum[0] == again.sum[0] && first.loss[1] == again.loss[1]);
        free(one.grad);
        free(first.grad);
        free(again.grad);
    }
}

/* As many shards on any number of ranks: the bits of one. */
static void shards_have_one_sum(void) {
    static const ml_mesh_case few[] = { { 2, { 0 } }, { 4, { 0 } }, { 4, { .pp = 2 } } };

    for (int i = 0; models[i].dir; i++) {
        job one = { .model = models[i], .shards = 4 };
        ml_ranks_run(1, train, &one);
        for (size_t k = 0; k < sizeof few / sizeof *few; k++) {
            job several = { .model = models[i], .mesh = few[k].sizes, .shards = 4 };
            if (!suits(models[i], few[k].sizes))
                continue;
            ml_ranks_run(few[k].n_rank, train, &several);
            CHECK(several.n_grad == one.n_grad &&
                  !memcmp(several.grad, one.grad, one.n_grad * sizeof(float)));
            CHECK(several.sum[0] == one.sum[0]);
            CHECK(several.norm[1] == one.norm[1] && several.loss[1] == one.loss[1]);
            free(several.grad);
        }
        free(one.grad);
    }
}

static const ml_test tests[] = {
    { "a trunk trains to the same bits with a multi-token prediction layer",
      trunk_is_unchanged, 60 },
    { "a multi-token prediction layer learns", layer_learns, 60 },
    { "gradients of a multi-token prediction layer are clipped by their own norm",
      norms_are_clipped_apart, 60 },
    { "micro-batches do not change a multi-token prediction layer's gradients",
      micro_batches_do_not_matter, 60 },
    { "ranks have the loss of a multi-token prediction layer to the bit",
      ranks_have_its_loss, 120 },
    { "ranks repeat the training of a multi-token prediction layer", ranks_repeat, 120 },
    { "gradient shards give a multi-token prediction layer the bits of one rank",
      shards_have_one_sum, 120 },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
