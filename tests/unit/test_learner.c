/* What a batch of drawn samples teaches, and training on rounds that were recorded. */
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/local.h"
#include "run/extensions.h"
#include "rl/learn/learner.h"
#include "tests/support/scratch.h"
#include "tests/support/test.h"
#include "tests/support/train_fixture.h"

enum { GROUPS = 4, PER_GROUP = 4, SAMPLES = GROUPS * PER_GROUP, MAX_NEW = 24 };

static void must(ml_status st, const ml_err *err) {
    if (st != ML_OK) {
        ml_test_fail(__FILE__, __LINE__, "%s", err->msg);
        exit(1);
    }
}

/* --- samples drawn by an engine ---------------------------------------------- */

typedef struct rollout {
    ml_sample sample[SAMPLES];
    int32_t token[SAMPLES][8 + MAX_NEW];
    float logprob[SAMPLES][MAX_NEW];
    uint64_t version[SAMPLES][MAX_NEW];
    pthread_mutex_t lock;
    pthread_cond_t all;
    int n_done;
} rollout;

static rollout drawn;

static void on_tokens(void *ud, const ml_gen_update *u) {
    ml_sample *s = ud;
    int64_t i = s->index;

    for (int32_t t = 0; t < u->answer.n; t++) {
        drawn.token[i][s->n_token++] = u->answer.id[t];
        drawn.logprob[i][s->n_response] = u->answer.logprob[t];
        drawn.version[i][s->n_response++] = u->answer.version[t];
    }
    if (u->finish == ML_FINISH_NOT)
        return;
    s->status = u->finish == ML_FINISH_LENGTH ? ML_SAMPLE_TRUNCATED : ML_SAMPLE_COMPLETED;
    pthread_mutex_lock(&drawn.lock);
    drawn.n_done++;
    pthread_cond_signal(&drawn.all);
    pthread_mutex_unlock(&drawn.lock);
}

static void ask(ml_gen *gen, int64_t i, float temperature) {
    ml_sample *s = &drawn.sample[i];
    uint64_t ticket;
    ml_err err = { 0 };

    *s = (ml_sample){ .index = i,
                      .group = i / PER_GROUP,
                      .rollout = i,
                      .row = i / PER_GROUP,
                      .token = drawn.token[i],
                      .logprob = drawn.logprob[i],
                      .version = drawn.version[i],
                      .n_turn = 1 };
    for (int32_t t = 0; t < 5; t++)
        drawn.token[i][s->n_token++] = (int32_t)(7 * s->group + 3 * t + 4) % 83;
    must(gen->submit(gen,
                     &(ml_gen_request){ .prompt = drawn.token[i],
                                        .n_prompt = s->n_token,
                                        .draw = { .temperature = temperature,
                                                  .top_p = 1,
                                                  .repetition = 1,
                                                  .seed = 42,
                                                  .sample = (uint64_t)i },
                                        .max_new = MAX_NEW,
                                        .score_from = -1 },
                     on_tokens, s, &ticket, &err),
         &err);
}

/* A reward that is neither constant nor learnable at once. */
static void reward_all(void) {
    for (int i = 0; i < SAMPLES; i++) {
        ml_sample *s = &drawn.sample[i];
        for (int32_t t = 0; t < s->n_response; t++)
            s->reward += drawn.token[i][5 + t] % 3 == 0;
        s->reward /= s->n_response;
        s->has_reward = true;
    }
}

static void draw_all(ml_train_fixture *t, float temperature) {
    static const int32_t eos[] = { 2 };
    ml_backend be;
    ml_gen *gen;
    ml_err err = { 0 };

    pthread_mutex_init(&drawn.lock, NULL);
    pthread_cond_init(&drawn.all, NULL);
    drawn.n_done = 0;
    must(ml_backend_cpu_open(&be, 1, NULL, &err), &err);
    t->weights.version = 1; /* as those a run begins with */
    must(ml_local_open(&gen,
                       &(ml_local_opts){ .engine = { .context = 64,
                                                     .max_running = 5,
                                                     .max_waiting = SAMPLES,
                                                     .chunk = 16,
                                                     .eos = eos,
                                                     .n_eos = 1 },
                                         .spec = &t->spec,
                                         .be = &be,
                                         .weights = &t->weights },
                       &err),
         &err);
    for (int64_t i = 0; i < SAMPLES; i++)
        ask(gen, i, temperature);
    pthread_mutex_lock(&drawn.lock);
    while (drawn.n_done < SAMPLES)
        pthread_cond_wait(&drawn.all, &drawn.lock);
    pthread_mutex_unlock(&drawn.lock);
    gen->close(gen);
    ml_backend_close(&be);
    reward_all();
}

/* --- a learner over them ------------------------------------------------------ */

typedef struct learner_fixture {
    ml_train_fixture train;
    ml_recipe recipe;
    ml_learner learner;
    ml_learn_result result;
    ml_arena arena;
    ml_err err;
} learner_fixture;

static ml_algo_opts grpo(void) {
    return (ml_algo_opts){ .num = { .gamma = 1,
                                    .lambd = 1,
                                    .eps_clip = 0.2,
                                    .eps_clip_high = (double)NAN,
                                    .eps_clip_c = (double)NAN,
                                    .use_kl_loss = true,
                                    .kl_loss_coef = 0.01,
                                    .kl_loss_type = MILES_K3 },
                           .advantage_estimator = "grpo",
                           .loss_type = "policy_loss",
                           .observe_training_entropy = true };
}

static void open_trainee(learner_fixture *p, int64_t batch) {
    ml_trainer_opts o = ml_train_fixture_defaults();
    ml_algo_opts algo = grpo();

    *p = (learner_fixture){ 0 };
    o.batch.global_batch_size = batch;
    ml_train_fixture_open(&p->train, &(ml_train_fixture_opts){ .trainer = o });
    must(ml_recipe_resolve(&p->recipe, &algo, &p->err), &p->err);
    ml_arena_init(&p->arena, "learner");
    p->learner = (ml_learner){ .recipe = &p->recipe,
                               .trainer = p->train.trainer,
                               .weights = &p->train.weights,
                               .ref = &p->train.weights };
    draw_all(&p->train, 1);
}

static void close_trainee(learner_fixture *p) {
    ml_arena_release(&p->arena);
    ml_train_fixture_close(&p->train);
}

static ml_status learn(learner_fixture *p) {
    const ml_sample *list[SAMPLES];
    for (int i = 0; i < SAMPLES; i++)
        list[i] = &drawn.sample[i];
    return ml_learn(&p->learner, 0, &p->result, &p->arena, list, SAMPLES, &p->err);
}

static double figure(const ml_metrics *f, const char *name) {
    double x = ml_metrics_get(f, name, (double)NAN);
    if (isnan(x))
        ml_test_fail(__FILE__, __LINE__, "there is no %s", name);
    return x;
}

/* Everything on policy: old, new, rollout and reference log-probs are one and the same. */
static void the_first_step_is_on_policy(void) {
    learner_fixture p;
    const ml_metrics *f;

    open_trainee(&p, SAMPLES);
    must(learn(&p), &p.err);
    CHECK(p.result.n_step == 1 && p.result.n_stale == 0 && p.result.max_diff == 0);
    CHECK(p.result.n_token > 0);
    f = &p.result.step[0].metrics;
    CHECK(figure(f, "train/ppo_kl") == 0 && figure(f, "train/pg_clipfrac") == 0);
    CHECK(figure(f, "train/kl_loss") == 0);
    CHECK(figure(f, "train/train_rollout_logprob_abs_diff") == 0);
    CHECK(figure(f, "train/grad_norm") > 0 && figure(f, "train/applied") == 1);
    f = &p.result.rollout;
    CHECK(figure(f, "rollout/log_probs") == figure(f, "rollout/rollout_log_probs"));
    CHECK(figure(f, "rollout/log_probs") == figure(f, "rollout/ref_log_probs"));
    close_trainee(&p);
}

/* --- the gradient of a step, from its definition --------------------------------- */

/* d loss / d log-prob: minus the advantage, over the tokens of the answer and the samples. */
static ml_status by_hand(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    const double *advantage = ud;

    (void)err;
    for (int32_t i = 0; i < n; i++)
        for (int32_t t = 0; t < io[i].n_response; t++)
            io[i].dlogprob[t] =
                (float)(-advantage[io[i].sample] / io[i].n_response / SAMPLES);
    return ML_OK;
}

static void advantages_by_hand(double *out /* [SAMPLES] */) {
    for (int g = 0; g < GROUPS; g++) {
        const ml_sample *s = &drawn.sample[g * PER_GROUP];
        double mean = 0, square = 0;
        for (int i = 0; i < PER_GROUP; i++)
            mean += s[i].reward / PER_GROUP;
        for (int i = 0; i < PER_GROUP; i++)
            square += (s[i].reward - mean) * (s[i].reward - mean);
        for (int i = 0; i < PER_GROUP; i++)
            out[g * PER_GROUP + i] =
                (s[i].reward - mean) / (sqrt(square / (PER_GROUP - 1)) + 1e-6);
    }
}

static void grads_by_hand(ml_train_fixture *t, ml_arena *a) {
    double advantage[SAMPLES];
    ml_train_sample *s = ML_NEW(a, ml_train_sample, SAMPLES);
    ml_schedule plan;
    ml_step_result r;
    ml_err err = { 0 };

    advantages_by_hand(advantage);
    for (int i = 0; i < SAMPLES; i++)
        s[i] = (ml_train_sample){ .token = drawn.token[i],
                                  .n_token = drawn.sample[i].n_token,
                                  .n_response = drawn.sample[i].n_response,
                                  .rollout = i };
    must(ml_trainer_schedule(&plan, t->trainer, a, s, SAMPLES, &err), &err);
    must(ml_trainer_accumulate(t->trainer,
                               &(ml_step){ .sample = s,
                                           .micro = &plan.step[0].rank[0],
                                           .n_rollout = SAMPLES,
                                           .denominator = 1,
                                           .loss = by_hand,
                                           .ud = advantage },
                               &r, &err),
         &err);
}

/* The largest difference, in units of the largest gradient. */
static double apart(const ml_weights *x, const ml_weights *y) {
    double most = 0, size = 0;

    for (int32_t i = 0; i < x->n; i++) {
        const float *a = x->t[i].data, *b = y->t[i].data;
        for (size_t k = 0; k < ml_tensor_bytes(&x->t[i]) / sizeof *a; k++) {
            most = fmax(most, fabs((double)a[k] - (double)b[k]));
            size = fmax(size, fabs((double)b[k]));
        }
    }
    return most / size;
}

static void the_gradient_is_that_of_grpo(void) {
    ml_trainer_opts o = ml_train_fixture_defaults();
    ml_train_fixture other;
    learner_fixture p;

    open_trainee(&p, SAMPLES);
    must(learn(&p), &p.err);
    o.batch.global_batch_size = SAMPLES;
    ml_train_fixture_open(&other, &(ml_train_fixture_opts){ .trainer = o });
    grads_by_hand(&other, &p.arena);
    CHECK(apart(ml_trainer_grads(p.train.trainer), ml_trainer_grads(other.trainer)) < 1e-5);
    ml_train_fixture_close(&other);
    close_trainee(&p);
}

/* The second step of a round trains other weights than those that drew. */
static void later_steps_move_away(void) {
    learner_fixture p;

    open_trainee(&p, SAMPLES / 2);
    must(learn(&p), &p.err);
    CHECK(p.result.n_step == 2 && p.result.n_stale == 0);
    CHECK(figure(&p.result.step[0].metrics, "train/ppo_kl") == 0);
    CHECK(figure(&p.result.step[1].metrics, "train/ppo_kl") != 0);
    close_trainee(&p);
}

static void stale_tokens_are_counted_and_scored_anew(void) {
    learner_fixture p;

    open_trainee(&p, SAMPLES);
    must(learn(&p), &p.err);
    must(learn(&p), &p.err); /* the same samples: the weights have moved */
    CHECK(p.result.n_stale == p.result.n_token);
    CHECK(figure(&p.result.step[0].metrics, "train/ppo_kl") == 0);
    CHECK(figure(&p.result.step[0].metrics, "train/train_rollout_logprob_abs_diff") > 0);
    CHECK(figure(&p.result.rollout, "rollout/log_probs") !=
          figure(&p.result.rollout, "rollout/rollout_log_probs"));
    close_trainee(&p);
}

static void a_flipped_bit_fails_the_run(void) {
    learner_fixture p;
    uint32_t bits;

    open_trainee(&p, SAMPLES);
    memcpy(&bits, &drawn.logprob[9][3], sizeof bits);
    bits ^= 1;
    memcpy(&drawn.logprob[9][3], &bits, sizeof bits);
    CHECK(learn(&p) == ML_EFORMAT);
    CHECK_HAS(p.err.msg, "rollout and training disagree: token 3 of sample 9");
    close_trainee(&p);
}

static void a_sample_without_a_reward_is_refused(void) {
    learner_fixture p;

    open_trainee(&p, SAMPLES);
    drawn.sample[5].has_reward = false;
    CHECK(learn(&p) == ML_EFORMAT);
    CHECK_HAS(p.err.msg, "sample 5 has no reward");
    close_trainee(&p);
}

/* --- miles train on recordings ------------------------------------------------- */

enum { ROUNDS = 4 };

/* The same samples for every round: from the second on they are stale. */
static void record(float temperature) {
    const ml_sample *list[SAMPLES];
    ml_train_fixture t;
    ml_err err = { 0 };

    ml_train_fixture_open(
        &t, &(ml_train_fixture_opts){ .trainer = ml_train_fixture_defaults() });
    draw_all(&t, temperature);
    for (int i = 0; i < SAMPLES; i++)
        list[i] = &drawn.sample[i];
    for (int r = 0; r < ROUNDS; r++) {
        char name[40];
        snprintf(name, sizeof name, "round%d.jsonl.zst", r);
        must(ml_samples_save(ml_test_path(name), list, SAMPLES, &err), &err);
    }
    ml_train_fixture_close(&t);
}

static int train(const char *save, int rounds, const char *more, char *out, size_t cap) {
    char args[2000];
    snprintf(args, sizeof args,
             "train --hf-checkpoint tests/golden/data/qwen3 --debug-train-only "
             "--load-debug-rollout-data %s/round{rollout_id}.jsonl.zst --num-rollout %d "
             "--rollout-batch-size %d --n-samples-per-prompt %d --num-steps-per-rollout 2 "
             "--lr 1e-3 --lr-decay-style constant --use-kl-loss --kl-loss-coef 0.01 "
             "--save %s --load %s %s",
             ml_test_dir(), rounds, GROUPS, PER_GROUP, save, save, more);
    return ml_test_miles(out, cap, args);
}

static void same_end(const char *a, const char *b) {
    char command[1500];
    snprintf(command, sizeof command,
             "diff -r %s/iter_%07d %s/iter_%07d >&2 && cmp %s/metrics.jsonl "
             "%s/metrics.jsonl >&2",
             a, ROUNDS - 1, b, ROUNDS - 1, a, b);
    if (system(command) != 0)
        ml_test_fail(__FILE__, __LINE__, "%s and %s differ", a, b);
}

static void recordings_train_and_resume(void) {
    const char *whole = ml_test_path("whole"), *parts = ml_test_path("parts");
    char out[8000];

    record(1);
    CHECK(train(whole, ROUNDS, "--threads 1", out, sizeof out) == 0);
    CHECK_HAS(out, "rollout 0, step 0: loss ");
    CHECK_HAS(out, "forward_logp_max_diff 0,");
    CHECK_HAS(out, "rollout 3, step 7: loss ");
    CHECK_HAS(out, "stale tokens");
    CHECK(train(parts, 2, "--threads 2", out, sizeof out) == 0);
    CHECK(train(parts, ROUNDS, "--threads 2 --save-interval 1", out, sizeof out) == 0);
    CHECK_HAS(out, "Loaded checkpoint from ");
    CHECK_HAS(out, "resuming at rollout 2");
    same_end(whole, parts);
}

/* What was drawn at another temperature cannot be what the trainer computes. */
static void another_temperature_is_noticed(void) {
    char out[4000];

    record(0.7F);
    CHECK(train(ml_test_path("save"), 1, "--threads 1", out, sizeof out) == 1);
    CHECK_HAS(out, "rollout and training disagree");
    CHECK(train(ml_test_path("save"), 1, "--threads 1 --rollout-temperature 0.7", out,
                sizeof out) == 0);
}

static const ml_test tests[] = {
    { "the first step of a round is on policy to the bit", the_first_step_is_on_policy },
    { "the gradient is that of GRPO by hand", the_gradient_is_that_of_grpo },
    { "the second step of a round is off policy", later_steps_move_away },
    { "stale tokens are counted and scored again",
      stale_tokens_are_counted_and_scored_anew },
    { "one flipped bit of a log-prob fails the round", a_flipped_bit_fails_the_run },
    { "a sample without a reward is refused", a_sample_without_a_reward_is_refused },
    { "a recorded run trains and resumes to the same bytes", recordings_train_and_resume },
    { "samples drawn at another temperature are refused", another_temperature_is_noticed },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
