/* The memory plan of a rank and what the rank allocates: weights, gradients, optimizer state,
 * activations, scratch memory, gathered weights and stages of exchanges. */
#include <stdio.h>
#include <string.h>

#include "run/memory_plan.h"
#include "tests/support/job_rank.h"
#include "tests/support/must.h"
#include "train/trainer_priv.h"

enum { TOKENS = 96, SAMPLES = 32 };

/* --- a device that counts ------------------------------------------------------- */

typedef struct counter {
    ml_device dev; /* first: a device of this kind is a counter */
    ml_device *real;
    size_t now, most;
} counter;

static ml_status count_alloc(ml_device *d, ml_buf *out, size_t bytes, ml_mem_kind kind,
                             ml_err *err) {
    counter *c = (counter *)(void *)d;
    ml_status st = c->real->alloc(c->real, out, bytes, kind, err);

    if (st != ML_OK)
        return st;
    out->dev = d;
    c->now += bytes;
    c->most = c->now > c->most ? c->now : c->most;
    return ML_OK;
}

static void count_free(ml_buf *b) {
    counter *c = (counter *)(void *)b->dev;

    if (!b->dev)
        return;
    c->now -= b->bytes;
    b->dev = c->real;
    c->real->free(b);
}

/* What was allocated before is given. */
static void count_from(counter *c, ml_backend *be, size_t bytes) {
    *c = (counter){ .dev = *be->dev, .real = be->dev, .now = bytes, .most = bytes };
    c->dev.alloc = count_alloc;
    c->dev.free = count_free;
    be->dev = &c->dev;
}

/* --- jobs ------------------------------------------------------------------------ */

typedef struct memory_case {
    const char *model;
    int32_t n_rank;
    ml_mesh_opts mesh;
    bool trains_only; /* the plan is for a run that may also score */
} memory_case;

static const memory_case cases[] = {
    { "qwen3", 1, { 0 } },
    { "qwen3", 2, { 0 } },
    { "qwen3", 2, { .tp = 2 } },
    { "llama_tied", 4, { .tp = 2 } },
    { "qwen3", 3, { .fsdp = true } },
    { "qwen3", 2, { .cp = 2 } },
    { "qwen3", 2, { .pp = 2 } },
    { "llama_tied", 2, { .pp = 2 } },
    { "qwen3", 4, { .tp = 2, .pp = 2 } },
    { "qwen3_moe", 2, { .tp = 2 } },
    { "qwen3", 1, { 0 }, .trains_only = true },
    { "qwen3", 2, { .tp = 2 }, .trains_only = true },
    { "qwen3", 3, { .fsdp = true }, .trains_only = true },
    { "qwen3", 2, { .pp = 2 }, .trains_only = true },
    { "qwen3", 4, { .tp = 2, .pp = 2 }, .trains_only = true },
    { "qwen3_moe", 2, { .tp = 2 }, .trains_only = true },
};
enum { N_CASE = sizeof cases / sizeof *cases };

/* Full micro-batches, and enough of them for a pipeline. */
static void make_samples(const ml_train_fixture *t, ml_train_sample *out) {
    for (int32_t i = 0; i < SAMPLES; i++) {
        out[i] = t->sample[i % t->n_sample];
        out[i].n_token = out[i].n_token < TOKENS / 4 ? out[i].n_token : TOKENS / 4;
        out[i].n_response = out[i].n_token / 2;
        out[i].mask = NULL;
        out[i].rollout = i;
    }
}

static void score(ml_job_rank *p, const ml_train_sample *s) {
    float *logprob[SAMPLES], *entropy[SAMPLES];

    for (int i = 0; i < SAMPLES; i++) {
        logprob[i] = ML_NEW(&p->t.arena, float, TOKENS);
        entropy[i] = ML_NEW(&p->t.arena, float, TOKENS);
    }
    MUST(ml_trainer_score(p->t.trainer, NULL, s, SAMPLES, logprob, entropy, &err));
}

static void train(ml_job_rank *p, const ml_train_sample *s) {
    ml_bins micro = ml_job_rank_bins(p, s, SAMPLES);
    ml_step_result result;

    MUST(ml_trainer_step(p->t.trainer,
                         &(ml_step){ .sample = s,
                                     .micro = &micro,
                                     .n_rollout = SAMPLES,
                                     .denominator = SAMPLES,
                                     .loss = ml_train_fixture_nll },
                         &result, &err));
}

/* Stages of exchanges are as large as the largest tensor, up to the size that is planned. */
static size_t stages(const ml_optimizer *o) {
    return o->same.stage.bytes + o->experts.stage.bytes;
}

static size_t grad_bytes(const ml_grads *g) {
    return g->sum.buf.bytes + g->embed_buf.bytes + g->again_buf.bytes;
}

/* Of stages of exchanges, and of gradients, which the total includes. */
typedef struct plan_rows {
    size_t exchange, grads;
} plan_rows;

static size_t planned(ml_job_rank *p, const ml_trainer_opts *o, plan_rows *row) {
    static const char *const set[] = { "weights", NULL };
    ml_memory_request req = { .spec = &p->t.spec,
                              .be = &p->t.be,
                              .weight_bytes = p->t.weights.buf.bytes,
                              .whole_bytes = p->t.weights.buf.bytes,
                              .from = p->t.checkpoint,
                              .dtype = p->dtype,
                              .bf16 = true,
                              .set = set,
                              .opts = *o,
                              .scores = true };
    ml_memory m;

    MUST(ml_memory_plan(&m, &req, &err));
    *row = (plan_rows){ 0 };
    for (int i = 0; i < m.n; i++) {
        if (strcmp(m.row[i].what, "save buffer") == 0) /* no snapshot is written */
            m.total -= m.row[i].bytes;
        if (strcmp(m.row[i].what, "rank exchange") == 0)
            row->exchange = m.row[i].bytes;
        if (strcmp(m.row[i].what, "gradients") == 0)
            row->grads = m.row[i].bytes;
    }
    return m.total - row->exchange;
}

static void compare(ml_comm *c, void *ud) {
    const memory_case *x = ud;
    ml_job_rank_opts o = { .dtype = ML_WEIGHT_BF16,
                           .sizes = x->mesh,
                           .trainer = ml_train_fixture_defaults() };
    int32_t cp = x->mesh.cp ? x->mesh.cp : 1;
    ml_train_sample sample[SAMPLES];
    char dir[256];
    counter count;
    ml_job_rank p;
    ml_trainer_opts made;
    size_t plan, taken;
    plan_rows row;

    snprintf(dir, sizeof dir, "tests/golden/data/%s", x->model);
    o.dir = dir;
    o.trainer.batch.dynamic = true;
    o.trainer.batch.global_batch_size = SAMPLES;
    o.trainer.batch.max_tokens = TOKENS;
    o.trainer.train_caps = o.trainer.score_caps = ml_memory_caps(TOKENS * cp, cp);
    ml_job_rank_open(&p, &o, c);
    made = o.trainer;
    made.mesh = &p.mesh;
    made.stage = ml_trainer_optimizer(p.t.trainer)->opts.stage;
    make_samples(&p.t, sample);
    plan = planned(&p, &made, &row);
    CHECK(grad_bytes(&p.t.trainer->grads) == row.grads);
    count_from(&count, &p.t.be,
               p.t.weights.buf.bytes + grad_bytes(&p.t.trainer->grads) +
                   ml_trainer_optimizer(p.t.trainer)->bytes +
                   ml_optimizer_scratch_bytes(&p.t.spec, &made.optimizer, &p.t.be));
    if (!x->trains_only)
        score(&p, sample);
    train(&p, sample);
    taken = count.most - stages(ml_trainer_optimizer(p.t.trainer));
    CHECK(stages(ml_trainer_optimizer(p.t.trainer)) <= row.exchange);
    if ((double)taken > 1.03 * (double)plan || (double)taken < 0.97 * (double)plan)
        ml_test_fail(
            __FILE__, __LINE__,
            "%s, rank %d of %d (tp %d, cp %d, pp %d%s%s): %zu bytes planned, %zu taken",
            x->model, c->rank, c->size, x->mesh.tp, x->mesh.cp, x->mesh.pp,
            x->mesh.fsdp ? ", fsdp" : "", x->trains_only ? ", without scores" : "", plan,
            taken);
    ml_job_rank_close(&p);
}

static void ranks_take_what_was_planned(void) {
    for (int i = 0; i < N_CASE; i++)
        ml_ranks_run(cases[i].n_rank, compare, (void *)(uintptr_t)&cases[i]);
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "a rank takes the memory that was planned for it, within 3 %",
          ranks_take_what_was_planned, 300 },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
