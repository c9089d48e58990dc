/* Choices of experts that samples bring: taken by the trainer's own weights, recorded by a pass
 * that scores, and refused when this model could not have made them. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/base64.h"
#include "rl/sample.h"
#include "tests/support/test.h"
#include "tests/support/train_fixture.h"

#define MODEL "tests/golden/data/qwen3_moe"

typedef struct scores {
    float *logprob[ML_TRAIN_FIXTURE_SAMPLES];
} scores;

static void open_trainee(ml_train_fixture *t, ml_granularity again) {
    ml_train_fixture_opts o = { .dir = MODEL,
                                .dtype = ML_WEIGHT_F32,
                                .n_thread = 2,
                                .trainer = ml_train_fixture_defaults() };
    o.trainer.replay[ML_ROUTING_EXPERTS] = true;
    o.trainer.recompute.granularity = again;
    ml_train_fixture_open(t, &o);
}

static int64_t width_of(const ml_train_fixture *t) {
    return ml_spec_routing_width(&t->spec, ML_ROUTING_EXPERTS);
}

static int32_t n_expert(const ml_train_fixture *t) {
    int32_t i = 0;
    while (t->spec.node[i].op != ML_OP_MOE_ROUTE)
        i++;
    return t->spec.node[i].attr.moe.n_expert;
}

static scores score(ml_train_fixture *t, const ml_weights *w) {
    scores s;
    ml_err err = { 0 };

    for (int32_t i = 0; i < t->n_sample; i++)
        s.logprob[i] = ML_NEW(&t->arena, float, t->sample[i].n_response + 1);
    if (ml_trainer_score(t->trainer, w, t->sample, t->n_sample, s.logprob, NULL, &err))
        ml_test_fail(__FILE__, __LINE__, "%s", err.msg);
    return s;
}

static bool same(const ml_train_fixture *t, const scores *a, const scores *b) {
    for (int32_t i = 0; i < t->n_sample; i++)
        if (memcmp(a->logprob[i], b->logprob[i],
                   (size_t)t->sample[i].n_response * sizeof(float)) != 0)
            return false;
    return true;
}

static void record_all(ml_train_fixture *t) {
    for (int32_t i = 0; i < t->n_sample; i++)
        t->sample[i].routed[ML_ROUTING_EXPERTS].record =
            ML_NEW(&t->arena, int32_t, t->sample[i].n_token * width_of(t));
}

/* What was recorded is given from now on; `turn` makes other experts of them. */
static void give_recorded(ml_train_fixture *t, int32_t turn) {
    for (int32_t i = 0; i < t->n_sample; i++) {
        ml_token_routing *c = &t->sample[i].routed[ML_ROUTING_EXPERTS];
        for (int64_t k = 0; k < t->sample[i].n_token * width_of(t); k++)
            c->record[k] = (c->record[k] + turn) % n_expert(t);
        *c = (ml_token_routing){ .given = c->record, .n_given = t->sample[i].n_token };
    }
}

/* Given back, they change nothing; others are taken, under the trainer's own weights only. */
static void given_choices_are_taken(void) {
    ml_train_fixture t;
    scores plain, replayed, other, elsewhere;
    ml_weights copy = { 0 };
    ml_err err = { 0 };

    open_trainee(&t, ML_RECOMPUTE_NONE);
    record_all(&t);
    plain = score(&t, NULL);
    give_recorded(&t, 0);
    replayed = score(&t, NULL);
    CHECK(same(&t, &plain, &replayed));
    for (int32_t i = 0; i < t.n_sample; i++) /* again, to be turned */
        t.sample[i].routed[0].record = (int32_t *)(uintptr_t)t.sample[i].routed[0].given;
    give_recorded(&t, 1);
    other = score(&t, NULL);
    CHECK(!same(&t, &plain, &other) && isfinite(other.logprob[0][0]));
    CHECK(ml_weights_clone(&copy, &t.weights, &t.be, &t.arena, &err) == ML_OK);
    elsewhere = score(&t, &copy); /* a reference chooses for itself */
    CHECK(same(&t, &plain, &elsewhere));
    ml_weights_close(&copy);
    ml_train_fixture_close(&t);
}

/* Cut into micro-batches, and computed again in backward: the same gradients. */
static void steps_replay_too(void) {
    static const int64_t sizes[] = { 0, 110, 1000 };
    unsigned char *first = NULL;

    for (int again = 0; again < 2; again++)
        for (size_t k = 0; k < sizeof sizes / sizeof *sizes; k++) {
            ml_train_fixture t;
            ml_bins bins;
            ml_step_result r;
            ml_err err = { 0 };
            const ml_weights *g;

            open_trainee(&t, again ? ML_RECOMPUTE_FULL : ML_RECOMPUTE_NONE);
            record_all(&t);
            score(&t, NULL);
            give_recorded(&t, 1);
            bins = ml_train_fixture_bins(&t, sizes[k]);
            CHECK(ml_trainer_accumulate(t.trainer,
                                        &(ml_step){ .sample = t.sample,
                                                    .micro = &bins,
                                                    .n_rollout = t.n_sample,
                                                    .denominator = t.n_sample,
                                                    .loss = ml_train_fixture_nll },
                                        &r, &err) == ML_OK);
            g = ml_trainer_grads(t.trainer);
            if (!first) {
                first = malloc(g->buf.bytes);
                memcpy(first, g->buf.ptr, g->buf.bytes);
            }
            CHECK(memcmp(first, g->buf.ptr, g->buf.bytes) == 0);
            ml_train_fixture_close(&t);
        }
    free(first);
}

static void refused(const ml_train_fixture *t, const int32_t *row, int64_t width,
                    const char *why) {
    ml_err err = { 0 };
    CHECK(ml_routing_replay_check(&t->spec, ML_ROUTING_EXPERTS, row, 1, width, &err) ==
          ML_EFORMAT);
    CHECK_HAS(err.msg, why);
}

static void what_cannot_be_is_refused(void) {
    ml_train_fixture t;
    int64_t width;
    int32_t *row;

    open_trainee(&t, ML_RECOMPUTE_NONE);
    width = width_of(&t);
    row = ML_NEW(&t.arena, int32_t, width);
    for (int64_t i = 0; i < width; i++)
        row[i] = (int32_t)i % t.spec.route[ML_ROUTING_EXPERTS].top_k;
    CHECK(ml_routing_replay_check(&t.spec, ML_ROUTING_EXPERTS, row, 1, width, NULL) ==
          ML_OK);
    refused(&t, row, width + 1, "were recorded per token");
    row[width - 1] = 10000;
    refused(&t, row, width, "the recorded experts of token 0 in layer");
    row[width - 1] = row[width - 2];
    refused(&t, row, width, "different ones");
    ml_train_fixture_close(&t);
}

/* As a line of JSON and back; a row that is missing comes back as not known. */
static void samples_keep_them(void) {
    static const int32_t token[] = { 1, 2, 3, 4 };
    static const int32_t row[] = { 5, 6, 7, 8 };
    ml_sample s = { .token = token, .n_token = 4, .n_response = 2 }, back, copy;
    ml_text line = { 0 };
    const ml_json *doc;
    ml_arena a;
    ml_err err = { 0 };
    ml_str text;

    s.routed[ML_ROUTING_EXPERTS] = (ml_routing){ .row = row, .n = 2, .width = 2 };
    ml_arena_init(&a, "test");
    ml_sample_write(&line, &s);
    text = (ml_str){ line.ptr, line.len };
    CHECK(ml_json_parse(&doc, &a, text, "line", &err) == ML_OK);
    CHECK(ml_sample_read(&back, &a, doc, text, "line", &err) == ML_OK);
    ml_sample_copy(&copy, &a, &back);
    CHECK(copy.routed[0].n == 3 && copy.routed[0].width == 2);
    CHECK(memcmp(copy.routed[0].row, row, sizeof row) == 0 && copy.routed[0].row[4] == -1);
    ml_text_release(&line);
    ml_arena_release(&a);
}

static void base64_is_its_own_inverse(void) {
    static const char *const words[] = { "", "f", "fo", "foo", "foob", "\xff\xfe" };
    static const char *const texts[] = { "", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "//4=" };

    for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
        ml_text t = { 0 };
        char back[16];
        ml_base64_write(&t, words[i], strlen(words[i]));
        CHECK(strcmp(t.ptr ? t.ptr : "", texts[i]) == 0);
        CHECK(ml_base64_read(back, ml_str_of(texts[i])) == (int64_t)strlen(words[i]));
        CHECK(memcmp(back, words[i], strlen(words[i])) == 0);
        ml_text_release(&t);
    }
    CHECK(ml_base64_read((char[8]){ 0 }, ml_str_of("a*b=")) == -1);
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "recorded expert choices are replayed when samples are scored",
          given_choices_are_taken },
        { "a train step replays expert choices for any micro-batch and recomputation",
          steps_replay_too },
        { "expert choices that the model cannot have made are refused",
          what_cannot_be_is_refused },
        { "a sample keeps its expert choices through JSON", samples_keep_them },
        { "base64 encodes and decodes the RFC's examples", base64_is_its_own_inverse },
        { 0 }
    };
    return ml_test_main(argc, argv, tests);
}
