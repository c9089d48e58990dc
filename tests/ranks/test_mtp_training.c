/* A multi-token prediction module, or an EAGLE-3 head, that is trained beside its trunk: the
 * trunk has the bits of training without it, and the module's gradients do not depend on micro-batches.  Ranks, which
 * are threads of this process, have its loss to the bit, and the same weights after a step. */
#include <math.h>
#include <stdio.h>
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

enum { MAX_RANK = 4, STEPS = 2, SAMPLES = 8 };

typedef struct job {
    model model;
    ml_mesh_opts mesh;
    double loss[STEPS], norm[STEPS];
    uint64_t sum[MAX_RANK]; /* of each rank's weights */
} job;

static uint64_t sum_of(const ml_weights *w) {
    const unsigned char *p = w->buf.ptr;
    uint64_t h = 14695981039346656037u;

    for (size_t i = 0; i < w->buf.bytes; i++)
        h = (h ^ p[i]) * 1099511628211u;
    return h;
}

static void train(ml_comm *c, void *ud) {
    job *j = ud;
    ml_job_rank_opts o = { .dir = j->model.dir,
                           .head = j->model.head,
                           .mtp = true,
                           .sizes = j->mesh,
                           .trainer = ml_train_fixture_defaults() };
    ml_train_sample sample[SAMPLES];
    ml_job_rank p;

    o.trainer.batch.global_batch_size = SAMPLES;
    o.trainer.batch.max_tokens = 64;
    ml_job_rank_open(&p, &o, c);
    for (int32_t i = 0; i < SAMPLES; i++) {
        sample[i] = p.t.sample[i % p.t.n_sample];
        sample[i].rollout = i;
    }
    for (int i = 0; i < STEPS; i++) {
        ml_bins bins = ml_job_rank_bins(&p, sample, SAMPLES);
        ml_step step = { .sample = sample,
                         .micro = &bins,
                         .n_rollout = SAMPLES,
                         .denominator = SAMPLES,
                         .loss = ml_train_fixture_nll };
        ml_step_result r;
        MUST(ml_trainer_step(p.t.trainer, &step, &r, &err));
        if (c->rank == 0) {
            j->loss[i] = r.mtp_loss;
            j->norm[i] = r.mtp_grad_norm;
        }
    }
    j->sum[c->rank] = sum_of(&p.t.mtp.weights);
    ml_job_rank_close(&p);
}

static void ranks_have_its_loss(void) {
    static const ml_mesh_case cases[] = {
        { 2, { 0 } }, { 3, { 0 } }, { 2, { .ep = 2 } }, { 4, { .ep = 2 } }
    };

    for (int i = 0; models[i].dir; i++) {
        job one = { .model = models[i] };
        ml_ranks_run(1, train, &one);
        for (size_t k = 0; k < sizeof cases / sizeof *cases; k++) {
            job several = { .model = models[i], .mesh = cases[k].sizes };
            if (models[i].head && cases[k].sizes.ep)
                continue; /* no experts */
            ml_ranks_run(cases[k].n_rank, train, &several);
            CHECK(several.loss[0] == one.loss[0]);
            CHECK(fabs(several.norm[0] - one.norm[0]) < 1e-6 * one.norm[0]);
            CHECK(fabs(several.loss[1] - one.loss[1]) < 1e-4 * one.loss[1]);
            for (int32_t r = 1; r < cases[k].n_rank; r++)
                CHECK(several.sum[r] == several.sum[0]);
        }
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
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
