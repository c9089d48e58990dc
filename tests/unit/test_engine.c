/* What the engine promises besides bits: who gets in, who is put back, how a request ends. */
#include <malloc.h>
#include <math.h>
#include <string.h>

#include "engine/engine.h"
#include "engine/prefix_cache.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/must.h"

#define RECURRENT "tests/golden/data/qwen3_next"

static ml_received run(ml_engine_fixture *b, ml_gen_request r) {
    ml_received h = { 0 };
    MUST(ml_engine_submit(b->e, &r, ml_receive, &h, 1, &err));
    while (ml_engine_step(b->e)) {
    }
    CHECK(h.n_end == 1);
    return h;
}

static void refused(ml_engine_fixture *b, ml_gen_request r, const char *why) {
    ml_err err = { 0 };
    ml_received h = { 0 };
    CHECK(ml_engine_submit(b->e, &r, ml_receive, &h, 1, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, why);
}

static void bad_requests_are_named(void) {
    ml_engine_fixture b;
    ml_gen_request r;
    int32_t bad[] = { 1, ML_FIXTURE_VOCAB };

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    ml_engine_fixture_start(&b);
    refused(&b, ml_fixture_request(0, 1), "the prompt is empty");
    refused(&b, ml_fixture_request(ML_FIXTURE_CONTEXT, 1), "no tokens are left");
    r = ml_fixture_request(2, 1);
    r.prompt = bad;
    refused(&b, r, "prompt 1 is token 83");
    r = ml_fixture_request(2, 1);
    r.draw.temperature = -1;
    refused(&b, r, "temperature is -1");
    r = ml_fixture_request(2, 1);
    r.draw.temperature = NAN;
    refused(&b, r, "temperature");
    r = ml_fixture_request(2, 1);
    r.draw.top_p = 0;
    refused(&b, r, "top_p is 0");
    r = ml_fixture_request(2, 3);
    r.min_new = 4;
    refused(&b, r, "min_new_tokens is 4");
    r = ml_fixture_request(2, 1);
    r.n_top = 9;
    refused(&b, r, "the maximum is 8");
    r = ml_fixture_request(2, 1);
    r.stop = &(ml_str){ "x", 1 };
    r.n_stop = 1;
    refused(&b, r, "need a tokenizer");
    r = ml_fixture_request(2, 1);
    r.draw.bias = &(ml_bias){ -1, 1 };
    r.draw.n_bias = 1;
    refused(&b, r, "logit_bias 0 is token -1");
    ml_engine_fixture_close(&b);
}

static void answers_end_as_asked(void) {
    ml_engine_fixture b;
    ml_gen_request r = ml_fixture_request(10, 40);
    ml_received plain, h;

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    ml_engine_fixture_start(&b);
    plain = run(&b, r);
    CHECK(plain.finish == ML_FINISH_LENGTH && plain.n == 40);
    r.stop_id = &plain.id[5];
    r.n_stop_id = 1;
    h = run(&b, r);
    CHECK(h.finish == ML_FINISH_TOKEN && h.matched == plain.id[5] && h.n <= 6);
    CHECK(memcmp(h.id, plain.id, (size_t)h.n * sizeof *h.id) == 0);
    r.min_new = 20; /* its end token is not drawn before */
    h = run(&b, r);
    CHECK(h.n >= 20);
    for (int32_t i = 0; i < 20; i++)
        CHECK(h.id[i] != plain.id[5]);
    r = ml_fixture_request(100, 100);
    h = run(&b, r);
    CHECK(h.finish == ML_FINISH_LENGTH && h.n == ML_FIXTURE_CONTEXT - 100);
    h = run(&b, ml_fixture_request(10, 0));
    CHECK(h.finish == ML_FINISH_LENGTH && h.n == 0);
    ml_engine_fixture_close(&b);
}

/* The model's own end token ends an answer unless told otherwise. */
static void end_of_text_ends(void) {
    ml_engine_fixture b;
    ml_gen_request r = ml_fixture_request(10, 40);
    ml_bias always = { 2, 100 };
    ml_received h;

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    ml_engine_fixture_start(&b);
    r.draw.bias = &always;
    r.draw.n_bias = 1;
    h = run(&b, r);
    CHECK(h.n == 40 && h.id[0] == 2);
    r.ignore_eos = false;
    h = run(&b, r);
    CHECK(h.n == 1 && h.finish == ML_FINISH_TOKEN && h.matched == 2);
    ml_engine_fixture_close(&b);
}

static void prefixes_are_found_again(void) {
    ml_engine_fixture b;
    ml_received h;

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    ml_engine_fixture_start(&b);
    CHECK(run(&b, ml_fixture_request(50, 4)).n_cached == 0);
    CHECK(run(&b, ml_fixture_request(50, 4)).n_cached == 48);
    CHECK(run(&b, ml_fixture_request(49, 1)).n_cached == 48);
    CHECK(run(&b, ml_fixture_request(48, 1)).n_cached ==
          32); /* one token must be computed */
    CHECK(ml_engine_flush(b.e));
    h = run(&b, ml_fixture_request(50, 4));
    CHECK(h.n_cached == 0);
    ml_engine_fixture_close(&b);
}

/* Samples of one prompt share it within the very step that computes it. */
static void a_group_computes_its_prompt_once(void) {
    ml_engine_fixture b;
    ml_received h[4] = { 0 };
    ml_gen_request r = ml_fixture_request(32, 2);

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    b.o.chunk = 100;
    ml_engine_fixture_start(&b);
    for (int i = 0; i < 4; i++) {
        r.draw.sample = (uint64_t)i;
        MUST(ml_engine_submit(b.e, &r, ml_receive, &h[i], (uint64_t)i, &err));
    }
    CHECK(ml_engine_step(b.e));
    for (int i = 0; i < 4; i++)
        CHECK(h[i].n == 1 && h[i].n_cached == (i ? 16 : 0));
    while (ml_engine_step(b.e)) {
    }
    ml_engine_fixture_close(&b);
}

/* A recurrent layer has no state of tokens in the middle: others go on from where a prompt's
 * last page is full, and wait for that. */
static void recurrent_state_is_found_again(void) {
    ml_engine_fixture b;
    ml_received h[4] = { 0 };
    ml_gen_request r = ml_fixture_request(33, 2);

    ml_engine_fixture_open(&b, RECURRENT);
    b.o.chunk = 100;
    ml_engine_fixture_start(&b);
    for (int i = 0; i < 4; i++) {
        r.draw.sample = (uint64_t)i;
        MUST(ml_engine_submit(b.e, &r, ml_receive, &h[i], (uint64_t)i, &err));
    }
    CHECK(ml_engine_step(b.e)); /* one of them, up to token 32 */
    for (int i = 0; i < 4; i++)
        CHECK(h[i].n == 0);
    CHECK(ml_engine_step(b.e));
    for (int i = 0; i < 4; i++)
        CHECK(h[i].n == 1 && h[i].n_cached == (i ? 32 : 0));
    while (ml_engine_step(b.e)) {
    }
    CHECK(run(&b, ml_fixture_request(50, 4)).n_cached == 32);
    CHECK(run(&b, ml_fixture_request(60, 1)).n_cached == 48);
    /* Kept behind 32 tokens, one too many. */
    CHECK(run(&b, ml_fixture_request(32, 1)).n_cached == 0);
    CHECK(ml_engine_flush(b.e));
    CHECK(run(&b, ml_fixture_request(50, 4)).n_cached == 0);
    ml_engine_fixture_close(&b);
}

static void pressure_puts_the_youngest_back(void) {
    ml_engine_fixture b;
    ml_received h[3] = { 0 }, alone;
    ml_gen_request r = ml_fixture_request(40, 60);
    ml_gen_stats s;

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    b.o.kv_bytes = ml_kv_bytes(&b.spec, &b.be, ml_kv_pages_for(ML_FIXTURE_CONTEXT) + 2);
    b.o.no_prefix_cache = true;
    ml_engine_fixture_start(&b);
    for (int i = 0; i < 3; i++) {
        r.draw.sample = (uint64_t)i;
        MUST(ml_engine_submit(b.e, &r, ml_receive, &h[i], (uint64_t)i, &err));
    }
    while (ml_engine_step(b.e)) {
    }
    ml_engine_stats(b.e, &s);
    CHECK(s.n_preempt > 0 && h[0].n_preempt == 0);
    for (int i = 0; i < 3; i++) {
        r.draw.sample = (uint64_t)i;
        alone = run(&b, r);
        CHECK(h[i].n == 60 && memcmp(h[i].id, alone.id, sizeof alone.id) == 0);
        CHECK(memcmp(h[i].logprob, alone.logprob, sizeof alone.logprob) == 0);
    }
    ml_engine_fixture_close(&b);
}

static void too_little_memory_is_said_at_start(void) {
    ml_engine_fixture b;
    ml_err err = { 0 };

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    b.o.kv_bytes = ml_kv_bytes(&b.spec, &b.be, 3);
    CHECK(ml_engine_open(&b.e, &b.spec, &b.w, &b.be, &b.o, &err) == ML_ENOMEM);
    CHECK_HAS(err.msg, "holds 48 tokens, less than one context of 128");
    ml_engine_fixture_close(&b);
}

static void a_full_queue_says_so(void) {
    ml_engine_fixture b;
    ml_received h = { 0 };
    ml_gen_request r = ml_fixture_request(4, 1);
    ml_err why = { 0 };

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    ml_engine_fixture_start(&b);
    for (uint64_t i = 0; i < 8; i++)
        MUST(ml_engine_submit(b.e, &r, ml_receive, &h, i, &err));
    CHECK(ml_engine_submit(b.e, &r, ml_receive, &h, 9, &why) == ML_EAGAIN);
    ml_engine_abort_all(b.e, "enough");
    CHECK(h.n_end == 8 && h.finish == ML_FINISH_ABORT);
    CHECK_HAS(h.message, "enough");
    ml_engine_fixture_close(&b);
}

/* Broken weights end a request with a sentence, not with a token. */
static void numbers_that_are_none_are_said(void) {
    ml_engine_fixture b;
    ml_received h;

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    ml_engine_fixture_start(&b);
    for (int64_t i = 0; i < ML_FIXTURE_VOCAB * b.spec.n_hidden; i++)
        ((float *)b.w.t[0].data)[i] = NAN;
    h = run(&b, ml_fixture_request(10, 5));
    CHECK(h.finish == ML_FINISH_ABORT && h.n == 0);
    CHECK_HAS(h.message, "logits are NaN");
    ml_engine_fixture_close(&b);
}

/* --- versions ----------------------------------------------------------------------- */

static void switches_record_versions(void) {
    static const ml_switch how[] = { ML_SWITCH_RECOMPUTE, ML_SWITCH_INEXACT_KV,
                                     ML_SWITCH_FINISH, ML_SWITCH_ABORT };
    ml_engine_fixture b;
    ml_weights w;

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    MUST(ml_weights_load(&w, &b.spec, b.checkpoint, ML_WEIGHT_AUTO, &b.be, &b.arena, &err));
    w.version = 2;
    for (int i = 0; i < 4; i++) {
        ml_received h = { 0 }, later = { 0 };
        ml_gen_request r = ml_fixture_request(20, 20);
        bool switched = false;
        ml_engine_fixture_start(&b);
        MUST(ml_engine_submit(b.e, &r, ml_receive, &h, 1, &err));
        for (int k = 0; k < 10; k++)
            ml_engine_step(b.e);
        CHECK(h.n == 10);
        MUST(ml_engine_submit(b.e, &r, ml_receive, &later, 2, &err));
        do {
            if (!switched)
                switched = ml_engine_switch(b.e, &w, how[i]) == ML_OK;
        } while (ml_engine_step(b.e));
        CHECK(switched && h.n_end == 1);
        CHECK(h.n == (how[i] == ML_SWITCH_ABORT ? 10 : 20));
        CHECK(h.version[9] == 1);
        if (h.n == 20)
            CHECK(h.version[10] == (how[i] == ML_SWITCH_FINISH ? 1u : 2u));
        CHECK(h.n_preempt == (how[i] == ML_SWITCH_RECOMPUTE));
        CHECK(later.n == 20 && later.version[0] == 2);
        /* Only keys of the new weights may be found: those of the one put back. */
        CHECK(later.n_cached == (how[i] == ML_SWITCH_RECOMPUTE ? 16 : 0));
        ml_engine_close(b.e);
        b.e = NULL;
    }
    ml_weights_close(&w);
    ml_engine_fixture_close(&b);
}

/* --- memory ------------------------------------------------------------------------- */

static void steps_allocate_nothing(void) {
    ml_engine_fixture b;
    ml_received h[4] = { 0 };
    ml_gen_request r = ml_fixture_request(40, 60);
    size_t before;

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    /* With retractions. */
    b.o.kv_bytes = ml_kv_bytes(&b.spec, &b.be, ml_kv_pages_for(ML_FIXTURE_CONTEXT) + 2);
    ml_engine_fixture_start(&b);
    r.n_top = 3;
    for (int i = 0; i < 4; i++) {
        r.draw.sample = (uint64_t)i;
        MUST(ml_engine_submit(b.e, &r, ml_receive, &h[i], (uint64_t)i, &err));
    }
    ml_engine_step(b.e);
    before = mallinfo2().uordblks;
    for (int i = 0; i < 50; i++) {
        ml_engine_step(b.e);
        CHECK(mallinfo2().uordblks == before);
    }
    while (ml_engine_step(b.e)) {
    }
    ml_engine_fixture_close(&b);
}

static void memory_can_be_given_back(void) {
    ml_engine_fixture b;
    ml_received h = { 0 }, plain;
    ml_gen_request r = ml_fixture_request(20, 30);

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    ml_engine_fixture_start(&b);
    plain = run(&b, r);
    MUST(ml_engine_submit(b.e, &r, ml_receive, &h, 1, &err));
    for (int i = 0; i < 10; i++)
        ml_engine_step(b.e);
    ml_engine_release_kv(b.e);
    CHECK(!ml_engine_step(b.e));
    MUST(ml_engine_take_kv(b.e, &err));
    while (ml_engine_step(b.e)) {
    }
    CHECK(h.n == 30 && memcmp(h.id, plain.id, sizeof h.id) == 0);
    ml_engine_fixture_close(&b);
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "the engine refuses bad requests with a reason", bad_requests_are_named },
        { "a request ends at its length, stop token or stop string", answers_end_as_asked },
        { "the model's end token ends an answer unless ignored", end_of_text_ends },
        { "the prefix cache is hit by a repeated prompt", prefixes_are_found_again },
        { "samples of one prompt share its prefill in one step",
          a_group_computes_its_prompt_once },
        { "the prefix cache restores recurrent state at a full page",
          recurrent_state_is_found_again, 60 },
        { "a full KV cache preempts the youngest request",
          pressure_puts_the_youngest_back },
        { "a KV cache smaller than one context is refused at start",
          too_little_memory_is_said_at_start },
        { "a full queue refuses a request with EAGAIN", a_full_queue_says_so },
        { "logits that are NaN abort the request with an error",
          numbers_that_are_none_are_said },
        { "each kind of weight switch records the versions of tokens",
          switches_record_versions },
        { "engine steps allocate no memory", steps_allocate_nothing },
        { "the KV cache can be released and the request continues",
          memory_can_be_given_back },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
