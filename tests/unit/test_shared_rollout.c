/* A rollout batch that rank 0 collects and all ranks train on. */
#include <string.h>

#include "comm/share.h"
#include "rl/rollout/batch_bytes.h"
#include "rl/rollout/shared.h"
#include "tests/support/ranks.h"
#include "tests/support/test.h"

enum { RANKS = 3, N = 5 };

/* --- samples ----------------------------------------------------------------------- */

/* Samples with different arrays: every field that training reads occurs, and is absent. */
static void make_sample(ml_sample *s, ml_arena *a, int32_t i) {
    int32_t n = 4 + i, answer = 2 + i, *token = ML_NEW(a, int32_t, n), *row;
    uint8_t *mask = ML_NEW(a, uint8_t, answer);

    *s = (ml_sample){ .index = 10 + i,
                      .group = i / 2,
                      .rollout = 10 + i,
                      .row = i,
                      .prompt = ml_str_of("a prompt"),
                      .n_token = n,
                      .n_response = answer,
                      .reward = 0.5 * i,
                      .has_reward = true,
                      .shaped = -i,
                      .has_shaped = i == 3,
                      .remove = i == 4,
                      .status = i == 1 ? ML_SAMPLE_TRUNCATED : ML_SAMPLE_COMPLETED,
                      .n_turn = 1 + i };
    s->logprob = i == 2 ? NULL : ML_NEW(a, float, answer);
    s->version = ML_NEW(a, uint64_t, answer);
    s->teacher_logprob = i == 0 ? ML_NEW(a, float, answer) : NULL;
    s->opd_reverse_kl = i == 0 ? ML_NEW(a, float, answer) : NULL;
    for (int32_t t = 0; t < n; t++)
        token[t] = 100 * i + t;
    for (int32_t t = 0; t < answer; t++) {
        mask[t] = t % 2 == 0;
        s->version[t] = (uint64_t)(7 + t);
        if (s->logprob)
            s->logprob[t] = -0.125f * (float)(t + i);
        if (s->teacher_logprob)
            s->teacher_logprob[t] = -1.5f * (float)t;
        if (s->opd_reverse_kl)
            s->opd_reverse_kl[t] = 0.25f * (float)t;
    }
    s->token = token;
    s->mask = i % 2 ? mask : NULL;
    row = ML_NEW(a, int32_t, 3 * (n - 1));
    for (int32_t t = 0; t < 3 * (n - 1); t++)
        row[t] = t;
    if (i == 3)
        s->routed[ML_ROUTING_EXPERTS] = (ml_routing){ row, n - 1, 3 };
}

static void make_batch(ml_rollout_batch *out, ml_arena *a) {
    ml_sample *s = ML_NEW(a, ml_sample, N);

    out->sample = ML_NEW(a, const ml_sample *, N);
    out->n_drawn = 77;
    for (out->n = 0; out->n < N; out->n++) {
        make_sample(&s[out->n], a, (int32_t)out->n);
        out->sample[out->n] = &s[out->n];
    }
}

/* The bytes of a batch have everything that is compared. */
static bool is_batch(const ml_rollout_batch *h) {
    ml_rollout_batch expected = { 0 };
    ml_text is = { 0 }, want = { 0 };
    ml_arena a;
    bool same;

    ml_arena_init(&a, "expected");
    make_batch(&expected, &a);
    ml_rollout_batch_write(&want, &expected);
    ml_rollout_batch_write(&is, h);
    same = is.len == want.len && memcmp(is.ptr, want.ptr, is.len) == 0;
    ml_text_release(&is);
    ml_text_release(&want);
    ml_arena_release(&a);
    return same;
}

/* --- bytes ------------------------------------------------------------------------- */

static void bytes_come_back(void) {
    ml_rollout_batch h = { 0 }, back = { 0 };
    const ml_sample *s;
    ml_text bytes = { 0 };
    ml_err err = { 0 };
    ml_arena a;

    ml_arena_init(&a, "batch");
    make_batch(&h, &a);
    ml_rollout_batch_write(&bytes, &h);
    CHECK(ml_rollout_batch_read(&back, &a, (ml_str){ bytes.ptr, bytes.len }, &err) ==
          ML_OK);
    CHECK(is_batch(&back) && back.n == N && back.n_drawn == 77);
    s = back.sample[3];
    CHECK(s->index == 13 && s->group == 1 && s->has_shaped && s->shaped == -3.0);
    CHECK(s->n_token == 7 && s->token[6] == 306 && s->mask[1] == 0 && s->version[4] == 11);
    CHECK(s->logprob[2] == -0.625f && !s->teacher_logprob && s->n_turn == 4);
    CHECK(s->routed[0].n == 6 && s->routed[0].width == 3 && s->routed[0].row[17] == 17);
    CHECK(!back.sample[2]->logprob && !back.sample[2]->mask && back.sample[4]->remove);
    CHECK(back.sample[1]->status == ML_SAMPLE_TRUNCATED && !s->prompt.len);
    CHECK(back.sample[0]->teacher_logprob[3 - 2] == -1.5f);
    CHECK(back.sample[0]->opd_reverse_kl[3 - 2] == 0.25f && !s->opd_reverse_kl);
    ml_text_release(&bytes);
    ml_arena_release(&a);
}

static void short_bytes_are_refused(void) {
    ml_rollout_batch h = { 0 };
    ml_text bytes = { 0 };
    ml_arena a;

    ml_arena_init(&a, "batch");
    make_batch(&h, &a);
    ml_rollout_batch_write(&bytes, &h);
    ml_text_add(&bytes, "x", 1);
    for (size_t n = 0; n <= bytes.len; n++) {
        ml_rollout_batch back = { 0 };
        ml_err err = { 0 };
        ml_status st = ml_rollout_batch_read(&back, &a, (ml_str){ bytes.ptr, n }, &err);
        CHECK((st == ML_OK) == (n == bytes.len - 1));
        CHECK(st == ML_OK || (st == ML_EFORMAT && err.msg[0]));
    }
    ml_text_release(&bytes);
    ml_arena_release(&a);
}

/* --- ranks ------------------------------------------------------------------------- */

static int n_rest, n_save;

static ml_status collect(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err) {
    (void)ud;
    if (rollout == 9)
        return ml_fail(err, ML_EIO, "the prompts are gone");
    make_batch(out, a);
    return ML_OK;
}

static ml_status rest(void *ud, ml_err *err) {
    (void)ud, (void)err;
    n_rest++;
    return ML_OK;
}

static void save(void *ud, ml_text *out) {
    (void)ud;
    n_save++;
    ml_text_printf(out, "\"state\": 1");
}

static ml_rollout rollout_of(ml_shared_rollout *s, ml_comm *c) {
    *s = (ml_shared_rollout){ .comm = c };
    if (c->rank == 0)
        s->inner = (ml_rollout){ .collect = collect, .rest = rest, .save = save };
    return ml_rollout_shared(s);
}

static void share_batch(ml_comm *c, void *ud) {
    ml_shared_rollout s;
    ml_rollout r = rollout_of(&s, c);
    ml_rollout_batch h = { 0 };
    ml_text state = { 0 };
    ml_err err = { 0 };
    ml_arena a;

    (void)ud;
    ml_arena_init(&a, "rank");
    CHECK(r.collect(r.ud, 3, &h, &a, &err) == ML_OK);
    CHECK(is_batch(&h));
    CHECK(r.rest(r.ud, &err) == ML_OK);
    r.save(r.ud, &state);
    CHECK((state.len > 0) == (c->rank == 0));
    CHECK(r.load(r.ud, (ml_str){ 0 }, "state", &err) == ML_OK);
    ml_text_release(&state);
    ml_arena_release(&a);
}

static void all_ranks_get_the_batch(void) {
    n_rest = n_save = 0;
    ml_ranks_run(RANKS, share_batch, NULL);
    CHECK(n_rest == 1 && n_save == 1);
}

/* As the run does: a rank that failed leaves the loop and says so. */
static void fail_to_share(ml_comm *c, void *ud) {
    ml_shared_rollout s;
    ml_rollout r = rollout_of(&s, c);
    ml_rollout_batch h = { 0 };
    ml_err err = { 0 };
    ml_status st;
    ml_arena a;

    (void)ud;
    ml_arena_init(&a, "rank");
    st = r.collect(r.ud, 9, &h, &a, &err);
    st = ml_comm_agree(c, st, &err);
    CHECK(st == (c->rank == 0 ? ML_EIO : ML_EPEER));
    CHECK(strstr(err.msg, "the prompts are gone"));
    CHECK(c->rank == 0 || strstr(err.msg, "rank 0"));
    ml_arena_release(&a);
}

static void a_failed_rollout_ends_all_ranks(void) {
    ml_ranks_run(RANKS, fail_to_share, NULL);
}

static void share_texts(ml_comm *c, void *ud) {
    int32_t number = c->rank == 0 ? 42 : -1, all[RANKS];
    ml_text t = { 0 };
    ml_err err = { 0 };

    (void)ud;
    for (size_t n = 0; n < 10000; n = 3 * n + 1) {
        t.len = 0;
        for (size_t i = 0; i < (c->rank == 0 ? n : 7); i++)
            ml_text_add(&t, &"abc"[i % 3], 1);
        CHECK(ml_comm_share_text(c, &t, &err) == ML_OK && t.len == n);
        CHECK(n == 0 || (t.ptr[0] == 'a' && t.ptr[n - 1] == "abc"[(n - 1) % 3]));
    }
    CHECK(ml_comm_share(c, &number, sizeof number, &err) == ML_OK && number == 42);
    CHECK(ml_comm_gather(c, all, &c->rank, sizeof c->rank, &err) == ML_OK);
    for (int32_t i = 0; i < RANKS; i++)
        CHECK(all[i] == i);
    ml_text_release(&t);
}

static void texts_of_rank_0_reach_all(void) {
    ml_ranks_run(RANKS, share_texts, NULL);
}

static const ml_test tests[] = {
    { "a batch survives its encoding", bytes_come_back },
    { "truncated batches are refused", short_bytes_are_refused },
    { "all ranks get the batch of rank 0", all_ranks_get_the_batch },
    { "a rollout that fails ends all ranks", a_failed_rollout_ends_all_ranks },
    { "texts and numbers of rank 0 reach all ranks", texts_of_rank_0_reach_all },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
