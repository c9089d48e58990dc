/* The trainer's edges: numbers that are not finite, micro-batches as Miles lays them out,
 * plans that grow, and memory that is planned before it is taken. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/support/cases.h"
#include "tests/support/test.h"
#include "run/memory_plan.h"
#include "tests/support/train_fixture.h"
#include "train/memory.h"

/* --- what is not finite ----------------------------------------------------- */

typedef struct fault {
    double loss;
    float dlogprob;
} fault;

/* The usual loss, but for one token of sample 1. */
static ml_status faulty(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    const fault *f = ud;
    ml_train_fixture_nll(NULL, io, n, err);
    for (int32_t i = 0; i < n; i++)
        if (io[i].sample == 1) {
            io[i].loss += f->loss;
            io[i].dlogprob[1] += f->dlogprob;
        }
    return ML_OK;
}

static void check_fault(fault f, bool stop, const char *says) {
    ml_train_fixture_opts o = { .dtype = ML_WEIGHT_F32,
                                .trainer = ml_train_fixture_defaults() };
    ml_train_fixture t;
    ml_bins bins;
    ml_step_result r;
    ml_err err = { 0 };
    ml_status st;
    unsigned char *before;

    o.trainer.stop_on_bad = stop;
    ml_train_fixture_open(&t, &o);
    bins = ml_train_fixture_bins(&t, 110);
    before = malloc(t.weights.buf.bytes);
    memcpy(before, t.weights.buf.ptr, t.weights.buf.bytes);
    st = ml_trainer_step(t.trainer,
                         &(ml_step){ .sample = t.sample,
                                     .micro = &bins,
                                     .n_rollout = 3,
                                     .denominator = 3,
                                     .loss = faulty,
                                     .ud = &f },
                         &r, &err);
    CHECK(st == (stop ? ML_EFORMAT : ML_OK));
    CHECK_HAS(stop ? err.msg : r.bad, says);
    CHECK(!r.applied && t.weights.version == 0 && ml_trainer_samples(t.trainer) == 0);
    CHECK(memcmp(before, t.weights.buf.ptr, t.weights.buf.bytes) == 0);
    free(before);
    /* And the next step is as good as any. */
    CHECK(ml_train_fixture_step(&t, 200).applied);
    ml_train_fixture_close(&t);
}

static void faults_are_named_and_not_applied(void) {
    check_fault((fault){ .loss = (double)NAN }, true, "the loss of sample 1 is");
    check_fault((fault){ .loss = (double)INFINITY }, false, "the loss of sample 1 is");
    check_fault((fault){ .dlogprob = NAN }, true, "sample 1, response token 1");
    check_fault((fault){ .dlogprob = 3e38f }, false, "not finite");
}

static void bad_weights_are_found_in_the_forward(void) {
    ml_train_fixture_opts o = { .dtype = ML_WEIGHT_F32,
                                .trainer = ml_train_fixture_defaults() };
    ml_train_fixture t;
    ml_bins bins;
    ml_step_result r;
    ml_err err = { 0 };

    ml_train_fixture_open(&t, &o);
    bins = ml_train_fixture_bins(&t, 110);
    ((float *)t.weights.t[3].data)[0] = NAN;
    CHECK(ml_trainer_step(t.trainer,
                          &(ml_step){ .sample = t.sample,
                                      .micro = &bins,
                                      .denominator = 1,
                                      .loss = ml_train_fixture_nll },
                          &r, &err) == ML_EFORMAT);
    CHECK_HAS(err.msg, "sample 0, response token");
    ml_train_fixture_close(&t);
}

/* --- samples without a gradient ---------------------------------------------- */

static bool is_idle(int32_t sample) {
    return sample % 2 == 1;
}

/* Every other sample teaches nothing. */
static ml_status half_flat(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    (void)ud;
    ml_train_fixture_nll(NULL, io, n, err);
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; is_idle(io[i].sample) && t < io[i].n_response; t++)
            io[i].dlogprob[t] *= t % 2 ? 0.0f : -0.0f;
    return ML_OK;
}

/* Two steps: the weights that they give are the same bytes whether samples without a gradient
 * go through the backward pass (in one micro-batch with all others) or not. */
static void step_twice(ml_train_fixture *t, const ml_train_fixture_opts *o, bool apart,
                       ml_step_result *out) {
    ml_schedule plan;
    ml_err err = { 0 };

    ml_train_fixture_open(t, o);
    for (int32_t i = t->n_sample; i < 8; i++) { /* the same, shorter */
        t->sample[i] = t->sample[i % t->n_sample];
        t->sample[i].n_token -= i / t->n_sample;
        t->sample[i].n_response -= i / t->n_sample;
    }
    t->n_sample = 8;
    for (int32_t i = 0; i < t->n_sample; i++) {
        t->sample[i].rollout = i;
        t->sample[i].idle = apart && is_idle(i);
    }
    CHECK(ml_trainer_schedule(&plan, t->trainer, &t->arena, t->sample, t->n_sample, &err) ==
          ML_OK);
    CHECK(plan.n_step == 1);
    for (int i = 0; i < 2; i++)
        CHECK(ml_trainer_step(t->trainer,
                              &(ml_step){ .sample = t->sample,
                                          .micro = &plan.step[0].rank[0],
                                          .n_rollout = t->n_sample,
                                          .denominator = 3,
                                          .loss = half_flat },
                              out, &err) == ML_OK);
}

static void check_idle(const char *dir, ml_weight_dtype dtype, ml_schedule_opts batch) {
    ml_train_fixture_opts o = { .dir = dir,
                                .dtype = dtype,
                                .trainer = ml_train_fixture_defaults() };
    ml_train_fixture with, without;
    ml_step_result a, b;

    o.trainer.batch = batch;
    o.trainer.batch.max_tokens = 1 << 20;
    o.trainer.batch.micro_batch_size = ML_TRAIN_FIXTURE_SAMPLES;
    step_twice(&with, &o, false, &a);
    CHECK(a.n_idle == 0);
    o.trainer.batch = batch;
    step_twice(&without, &o, true, &b);
    CHECK(b.n_idle == without.n_sample / 2);
    CHECK(a.loss == b.loss && a.grad_norm == b.grad_norm && a.n_token == b.n_token &&
          a.n_loss == b.n_loss);
    CHECK(memcmp(with.weights.buf.ptr, without.weights.buf.ptr, with.weights.buf.bytes) ==
          0);
    ml_train_fixture_close(&with);
    ml_train_fixture_close(&without);
}

static void samples_without_a_gradient_are_only_read(void) {
    static const char *const dirs[] = { NULL, "tests/golden/data/qwen3_moe",
                                        "tests/golden/data/nemotron_h",
                                        "tests/golden/data/llama_tied" };
    ml_schedule_opts by_count = { .one_step = true, .micro_batch_size = 2 },
                     by_tokens = { .one_step = true, .dynamic = true, .max_tokens = 60 };

    for (size_t i = 0; i < sizeof dirs / sizeof *dirs; i++) {
        check_idle(dirs[i], ML_WEIGHT_F32, by_count);
        check_idle(dirs[i], ML_WEIGHT_BF16, by_tokens);
    }
}

/* --- micro-batches ---------------------------------------------------------- */

static ml_train_sample *samples_of(ml_case *c, int32_t *n) {
    const ml_json *tokens = ml_json_get(c->args, "tokens")->child;
    const ml_json *masks = ml_json_get(c->args, "loss_masks")->child;
    ml_train_sample *s =
        ML_NEW(&c->arena, ml_train_sample, ml_json_get(c->args, "tokens")->n);

    for (*n = 0; tokens; tokens = tokens->next, masks = masks->next, (*n)++) {
        int64_t n_token, n_mask, *id = ml_case_i64s(c, tokens, &n_token);
        int64_t *mask = ml_case_i64s(c, masks, &n_mask);
        int32_t *own = ML_NEW(&c->arena, int32_t, n_token);
        uint8_t *bits = ML_NEW(&c->arena, uint8_t, n_mask + 1);
        for (int64_t i = 0; i < n_token; i++)
            own[i] = (int32_t)id[i];
        for (int64_t i = 0; i < n_mask; i++)
            bits[i] = mask[i] != 0;
        s[*n] = (ml_train_sample){ .token = own,
                                   .n_token = (int32_t)n_token,
                                   .n_response = (int32_t)n_mask,
                                   .mask = bits };
    }
    return s;
}

/* Tokens, positions and the places of the loss; the recorded padding has no counterpart. */
static void check_batch(ml_case *c) {
    const ml_json *rank = ml_json_get(c->out, "per_cp_rank");
    int32_t n, loss = 0, *item;
    ml_train_sample *s;
    int64_t n_id, n_pos, n_mask, *id, *pos, *mask;
    const ml_context_opts whole = { 0 };
    ml_bin bin;
    ml_micro m;

    if (!ml_str_is(ml_json_get(c->args, "layout")->text, "thd") || rank->n != 1)
        return;
    id = ml_case_i64s(c, ml_json_get(rank->child, "tokens")->child, &n_id);
    pos = ml_case_i64s(c, ml_json_get(rank->child, "position_ids")->child, &n_pos);
    mask = ml_case_i64s(c, ml_json_get(rank->child, "full_loss_masks")->child, &n_mask);
    s = samples_of(c, &n);
    item = ML_NEW(&c->arena, int32_t, n);
    for (int32_t i = 0; i < n; i++)
        item[i] = i;
    bin = (ml_bin){ .item = item, .n = n };
    ml_micro_init(&m, ml_micro_need(s, &bin, &whole), &whole, false);
    ml_micro_fill(&m, s, &bin, false, 1);
    for (int32_t i = 0; i < m.batch.rows.n_token; i++) {
        bool scored = loss < m.batch.rows.n_loss && m.batch.loss_row[loss] == i;
        if (m.batch.id[i] != id[i] || m.batch.pos[i] != pos[i])
            ml_case_fail(c, "a token or position differs");
        if (scored != (mask[i] != 0))
            ml_case_fail(c, "a loss stands elsewhere");
        if (scored && m.batch.loss_id[loss++] != id[i + 1])
            ml_case_fail(c, "another token is scored");
    }
    for (int64_t i = m.batch.rows.n_token; i < n_id; i++)
        if (mask[i])
            ml_case_fail(c, "a loss in the padding");
    ml_micro_release(&m);
}

static void batches_as_miles(void) {
    ml_test_cases("get_batch.jsonl", check_batch);
}

/* --- memory ----------------------------------------------------------------- */

static const char *const sets[] = { "actor weights", "reference weights", NULL };

static size_t row_bytes(const ml_memory *m, const char *what) {
    for (int i = 0; i < m->n; i++)
        if (strcmp(m->row[i].what, what) == 0)
            return m->row[i].bytes;
    return 0;
}

static void memory_is_planned(void) {
    ml_train_fixture_opts o = { .dtype = ML_WEIGHT_BF16,
                                .trainer = ml_train_fixture_defaults() };
    ml_train_fixture t;
    ml_memory m;
    ml_err err = { 0 };
    ml_memory_request req;
    ml_text text = { 0 };
    size_t total = 0, scratch;

    ml_train_fixture_open(&t, &o);
    req = (ml_memory_request){ .spec = &t.spec,
                               .be = &t.be,
                               .weight_bytes = t.weights.buf.bytes,
                               .bf16 = true,
                               .set = sets,
                               .opts = o.trainer,
                               .scores = true,
                               .async_save = true };
    CHECK(ml_memory_plan(&m, &req, &err) == ML_OK);
    for (int i = 0; i < m.n; i++)
        total += m.row[i].bytes;
    CHECK(total == m.total && m.n == 7);
    CHECK(row_bytes(&m, "optimizer state") == ml_trainer_optimizer(t.trainer)->bytes);
    CHECK(row_bytes(&m, "gradients") == ml_trainer_grads(t.trainer)->buf.bytes);
    CHECK(row_bytes(&m, "reference weights") == t.weights.buf.bytes);
    ml_memory_text(&text, &m);
    CHECK_HAS(text.ptr, "reference weights");
    ml_text_release(&text);

    CHECK(ml_memory_check(&req, m.total, &err) == ML_OK);
    CHECK(ml_memory_check(&req, m.total - 100000, &err) == ML_ENOMEM);
    CHECK_HAS(err.msg, "with --recompute-granularity full it needs");
    CHECK(ml_memory_check(&req, 1000, &err) == ML_ENOMEM);
    CHECK_HAS(err.msg, "still too much");
    scratch = row_bytes(&m, "scratch");
    /* forward-only passes take the memory of training, unless they need more */
    CHECK(row_bytes(&m, "forward-only activations") == 0);
    req.opts.score_max_tokens = 1 << 20;
    CHECK(ml_memory_plan(&m, &req, &err) == ML_OK);
    CHECK(row_bytes(&m, "forward-only activations") > 0);
    req.opts.score_max_tokens = 0;
    req.opts.loss_rows = 1;
    CHECK(ml_memory_plan(&m, &req, &err) == ML_OK);
    CHECK(row_bytes(&m, "scratch") < scratch);
    req.opts.optimizer.offload_dir = "x";
    CHECK(ml_memory_plan(&m, &req, &err) == ML_OK && m.on_disk > 0);
    CHECK(row_bytes(&m, "optimizer state") == 0);
    CHECK(ml_memory_available(req.be) > (size_t)1 << 20 && ml_memory_resident() > 1 << 20);
    ml_train_fixture_close(&t);
}

/* A trainer on a device with memory of its own. */
typedef struct elsewhere {
    ml_train_fixture t;
    ml_backend be;
    ml_device dev;
    ml_memory_request req;
    size_t state; /* bytes of the optimizer's */
} elsewhere;

static void open_elsewhere(elsewhere *e) {
    ml_train_fixture_opts o = { .dtype = ML_WEIGHT_BF16,
                                .trainer = ml_train_fixture_defaults() };

    ml_train_fixture_open(&e->t, &o);
    e->be = e->t.be;
    e->dev = *e->t.be.dev;
    e->dev.host = false;
    e->be.dev = &e->dev;
    e->state = ml_trainer_optimizer(e->t.trainer)->bytes;
    e->req = (ml_memory_request){ .spec = &e->t.spec,
                                  .be = &e->be,
                                  .weight_bytes = e->t.weights.buf.bytes,
                                  .bf16 = true,
                                  .set = sets,
                                  .opts = o.trainer };
}

/* What the device does not have is the host's, and that is looked at. */
static void memory_of_a_device(void) {
    elsewhere e;
    ml_memory m;
    ml_err err = { 0 };
    ml_memory_request req;
    size_t sum;

    open_elsewhere(&e);
    req = e.req;
    req.kv_bytes = 5000;
    CHECK(ml_memory_plan(&m, &req, &err) == ML_OK && m.on_host == 0 && m.in_turns == 0);
    sum = m.total;
    req.in_turns = true;
    CHECK(ml_memory_plan(&m, &req, &err) == ML_OK);
    CHECK(m.total == sum - 5000 && m.in_turns == 5000 && m.on_host == e.state);
    req.async_save = true;
    CHECK(ml_memory_plan(&m, &req, &err) == ML_OK && m.total == sum - 5000);
    CHECK(m.on_host == 2 * e.state + e.t.weights.buf.bytes);
    CHECK(ml_memory_check(&req, m.total, &err) == ML_OK);
    req.weight_bytes = (size_t)1 << 60;
    CHECK(ml_memory_check(&req, SIZE_MAX, &err) == ML_ENOMEM);
    CHECK_HAS(err.msg, "of host memory");
    ml_train_fixture_close(&e.t);
}

/* State that stays in the host's memory leaves a piece of it on the device. */
static void memory_of_state_elsewhere(void) {
    elsewhere e;
    ml_memory_request req;
    ml_memory m;
    ml_err err = { 0 };
    size_t left;

    open_elsewhere(&e);
    req = e.req;
    req.opts.recompute.granularity = ML_RECOMPUTE_FULL;
    req.opts.batch.max_tokens = 4;
    req.opts.optimizer.offload_piece = 16;
    CHECK(ml_memory_plan(&m, &req, &err) == ML_OK && m.on_host == 0);
    left = m.total - e.state + 3 * 16 * sizeof(float);
    CHECK(ml_memory_check(&req, left, &err) == ML_ENOMEM);
    CHECK_HAS(err.msg, "--optimizer-cpu-offload");
    req.opts.optimizer.offload_host = true;
    CHECK(ml_memory_plan(&m, &req, &err) == ML_OK && m.on_host == e.state);
    CHECK(m.total == left);
    ml_train_fixture_close(&e.t);
}

static const ml_test tests[] = {
    { "a loss or gradient that is not finite is named and not applied",
      faults_are_named_and_not_applied },
    { "weights that are not finite are found in the forward",
      bad_weights_are_found_in_the_forward },
    { "samples without a gradient change no gradient",
      samples_without_a_gradient_are_only_read },
    { "micro-batches are Miles'", batches_as_miles },
    { "the training plan counts all memory", memory_is_planned },
    { "memory that the device lacks is planned on the host", memory_of_a_device },
    { "offloaded state leaves one piece on the device", memory_of_state_elsewhere },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
