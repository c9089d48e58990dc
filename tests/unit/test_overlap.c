/* Steps that are begun before the draws of the one before are known: nobody can tell but by the
 * clock, whatever happens meanwhile.  The CPU does here what a device does whose work goes on. */
#include <string.h>

#include "engine/request.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/must.h"

enum { N = 6 };

static void open_ahead(ml_engine_fixture *b, bool ahead) {
    ml_engine_fixture_open(b, ML_FIXTURE_MODEL);
    b->be.async = ahead;
}

static int64_t n_overlapped(const ml_engine_fixture *b) {
    ml_gen_stats s;
    ml_engine_stats(b->e, &s);
    return s.n_overlapped;
}

/* All pages are back, or kept for their prefixes. */
static void check_pages(const ml_engine_fixture *b) {
    ml_gen_stats s;
    ml_engine_stats(b->e, &s);
    CHECK(s.n_running == 0 && s.n_page_free + s.n_page_cached == s.n_page);
}

static void submit(ml_engine_fixture *b, ml_received *h, int i, ml_gen_request r) {
    r.draw.sample = (uint64_t)i;
    MUST(ml_engine_submit(b->e, &r, ml_receive, h, (uint64_t)i + 1, &err));
}

static void submit_all(ml_engine_fixture *b, ml_received *h, const int32_t *stop,
                       int n_stop) {
    memset(h, 0, N * sizeof *h);
    for (int i = 0; i < N; i++) {
        ml_gen_request r = ml_fixture_request(5 + 9 * i, 10 + 7 * i);
        r.stop_id = stop;
        r.n_stop_id = n_stop;
        r.min_new = i % 2 ? 4 : 0;
        r.draw.top_p = i % 3 ? 1.0f : 0.9f;
        submit(b, &h[i], i, r);
    }
}

static void step_to_the_end(ml_engine_fixture *b) {
    while (ml_engine_step(b->e)) {
    }
}

static void check_same(const ml_received *a, const ml_received *b) {
    for (int i = 0; i < N; i++) {
        CHECK(a[i].n == b[i].n && a[i].finish == b[i].finish && b[i].n_end == 1);
        CHECK(a[i].matched == b[i].matched);
        CHECK(memcmp(a[i].id, b[i].id, sizeof a[i].id) == 0);
        CHECK(memcmp(a[i].logprob, b[i].logprob, sizeof a[i].logprob) == 0);
    }
}

/* Runs the requests with and without; how many steps ran ahead. */
static int64_t compare(int32_t max_running, int32_t pages, const int32_t *stop,
                       int n_stop) {
    ml_received h[2][N];
    int64_t ran = 0;

    for (int ahead = 0; ahead < 2; ahead++) {
        ml_engine_fixture b;
        open_ahead(&b, ahead);
        b.o.max_running = max_running;
        if (pages)
            b.o.kv_bytes = ml_kv_bytes(&b.spec, &b.be, pages);
        ml_engine_fixture_start(&b);
        submit_all(&b, h[ahead], stop, n_stop);
        step_to_the_end(&b);
        check_pages(&b);
        ran = n_overlapped(&b);
        CHECK(ahead || ran == 0);
        ml_engine_fixture_close(&b);
    }
    check_same(h[0], h[1]);
    return ran;
}

static void the_same_is_said(void) {
    CHECK(compare(N, 0, NULL, 0) > 30);
}

/* A request that ends by a token is detected one step late; the result of its extra row is
 * discarded. */
static void ends_that_nobody_foresees(void) {
    int32_t stop[24];

    for (int32_t i = 0; i < 24; i++)
        stop[i] = 3 * i + 1;
    CHECK(compare(N, 0, stop, 24) > 0);
}

static void those_who_wait_get_in(void) {
    CHECK(compare(2, 0, NULL, 0) > 10);
}

static void pages_run_short(void) {
    CHECK(compare(N, 9, NULL, 0) > 0);
}

/* A draw that looks at the tokens before it waits for them; so do results of one draw that the
 * next would overwrite. */
static void some_draws_wait(void) {
    ml_engine_fixture b;
    ml_received h = { 0 };
    ml_gen_request r = ml_fixture_request(10, 20);

    open_ahead(&b, true);
    ml_engine_fixture_start(&b);
    r.draw.repetition = 1.1f;
    submit(&b, &h, 0, r);
    step_to_the_end(&b);
    r = ml_fixture_request(10, 20);
    r.n_top = 2;
    submit(&b, &h, 0, r);
    step_to_the_end(&b);
    CHECK(h.n == 40 && n_overlapped(&b) == 0);
    ml_engine_fixture_close(&b);
}

/* The tokens of the run without draft tokens, some of them wrong. */
static int32_t guess(void *ud, const ml_request *r, int32_t chain, int32_t *out,
                     int32_t n) {
    const ml_received *h = (const ml_received *)ud + r->ticket - 1;
    int32_t at = r->n_token - r->params.n_prompt, k = 0;

    (void)chain;
    for (; k < n && at + k < h->n; k++)
        out[k] = (h->id[at + k] + (at % 3 == 2)) % ML_FIXTURE_VOCAB;
    return k;
}

/* Four requests have draft tokens in the step in which two others join, with whom there is no room
 * for more: the next step is not begun ahead, since nobody knows how many tokens they get. */
static void others_join_a_step_with_drafts(void) {
    ml_received h[2][N];

    for (int drafts = 0; drafts < 2; drafts++) {
        ml_engine_fixture b;
        open_ahead(&b, true);
        b.o.max_running = N;
        if (drafts)
            b.o.draft =
                (ml_draft_opts){ .n = 3, .fn = guess, .ud = h[0], .max_rows = 2 * N - 2 };
        ml_engine_fixture_start(&b);
        memset(h[drafts], 0, sizeof h[drafts]);
        for (int i = 0; i < N; i++) {
            if (i == N - 2)
                for (int k = 0; k < 3; k++)
                    CHECK(ml_engine_step(b.e));
            submit(&b, &h[drafts][i], i, ml_fixture_request(5 + i, 30));
        }
        step_to_the_end(&b);
        check_pages(&b);
        CHECK(n_overlapped(&b) > 0);
        ml_engine_fixture_close(&b);
    }
    check_same(h[0], h[1]);
}

static void told_to_wait(void) {
    ml_engine_fixture b;
    ml_received h = { 0 };

    open_ahead(&b, true);
    b.o.no_overlap = true;
    ml_engine_fixture_start(&b);
    submit(&b, &h, 0, ml_fixture_request(10, 20));
    step_to_the_end(&b);
    CHECK(h.n == 20 && n_overlapped(&b) == 0);
    ml_engine_fixture_close(&b);
}

static void aborted_on_the_way(void) {
    ml_engine_fixture b;
    ml_received h[N];
    int32_t n;

    open_ahead(&b, true);
    b.o.max_running = N;
    ml_engine_fixture_start(&b);
    submit_all(&b, h, NULL, 0);
    for (int i = 0; i < 8; i++)
        CHECK(ml_engine_step(b.e));
    CHECK(n_overlapped(&b) > 0);
    n = h[5].n;
    CHECK(ml_engine_abort(b.e, 6, "test"));
    CHECK(h[5].finish == ML_FINISH_ABORT && h[5].n == n);
    step_to_the_end(&b);
    CHECK(h[5].n == n && h[5].n_end == 1 && h[4].n == 38);
    submit_all(&b, h, NULL, 0);
    for (int i = 0; i < 8; i++)
        CHECK(ml_engine_step(b.e));
    ml_engine_abort_all(b.e, "test");
    step_to_the_end(&b);
    check_pages(&b);
    CHECK(ml_engine_flush(b.e));
    ml_engine_fixture_close(&b);
}

/* A weight switch first delivers the in-flight step, with the version that computed it. */
static void switched_on_the_way(ml_switch how) {
    ml_engine_fixture b;
    ml_received h = { 0 };
    int32_t n;

    open_ahead(&b, true);
    ml_engine_fixture_start(&b);
    submit(&b, &h, 0, ml_fixture_request(10, 30));
    for (int i = 0; i < 6; i++)
        CHECK(ml_engine_step(b.e));
    n = h.n;
    b.w.version = 2;
    MUST(ml_engine_switch(b.e, &b.w, how));
    CHECK(h.n == n + 1);
    step_to_the_end(&b);
    CHECK(h.n == 30);
    for (int32_t i = 0; i < h.n; i++)
        CHECK(h.version[i] == (i <= n ? 1u : 2u));
    ml_engine_fixture_close(&b);
}

static void put_back_for_new_weights(void) {
    switched_on_the_way(ML_SWITCH_RECOMPUTE);
}

static void going_on_with_old_keys(void) {
    switched_on_the_way(ML_SWITCH_INEXACT_KV);
}

static void keys_given_back_on_the_way(void) {
    ml_engine_fixture b;
    ml_received h = { 0 }, whole = { 0 };

    open_ahead(&b, true);
    ml_engine_fixture_start(&b);
    submit(&b, &whole, 0, ml_fixture_request(10, 30));
    step_to_the_end(&b);
    submit(&b, &h, 0, ml_fixture_request(10, 30));
    for (int i = 0; i < 6; i++)
        CHECK(ml_engine_step(b.e));
    ml_engine_release_kv(b.e);
    CHECK(!ml_engine_step(b.e));
    MUST(ml_engine_take_kv(b.e, &err));
    step_to_the_end(&b);
    CHECK(h.n == 30 && memcmp(h.id, whole.id, sizeof h.id) == 0);
    ml_engine_fixture_close(&b);
}

static void closed_on_the_way(void) {
    ml_engine_fixture b;
    ml_received h = { 0 };

    open_ahead(&b, true);
    ml_engine_fixture_start(&b);
    submit(&b, &h, 0, ml_fixture_request(10, 30));
    for (int i = 0; i < 6; i++)
        CHECK(ml_engine_step(b.e));
    CHECK(n_overlapped(&b) > 0);
    ml_engine_fixture_close(&b);
    CHECK(h.n_end == 0);
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "overlapped steps give the tokens of separate steps", the_same_is_said },
        { "overlapped steps discard the row of a request that ended",
          ends_that_nobody_foresees },
        { "overlapped steps admit waiting requests", those_who_wait_get_in },
        { "overlapped steps give the same tokens when pages run short", pages_run_short },
        { "draws with penalties wait for the tokens before them", some_draws_wait },
        { "no step overlaps one with draft tokens", others_join_a_step_with_drafts },
        { "--disable-overlap-schedule overlaps no step", told_to_wait },
        { "a request is aborted during an overlapped step", aborted_on_the_way },
        { "a weight switch with recomputation works during an overlapped step",
          put_back_for_new_weights },
        { "a weight switch with the old KV cache works during an overlapped step",
          going_on_with_old_keys },
        { "the KV cache is released during an overlapped step",
          keys_given_back_on_the_way },
        { "an engine closes during an overlapped step", closed_on_the_way },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
