/* The engine's parts, and what it promises besides bits: who gets in, who is put back, how a
 * request ends, what another thread may ask for meanwhile. */
#include <malloc.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/local.h"
#include "engine/pages.h"
#include "tests/support/must.h"

#define MODEL "tests/golden/data/qwen3"
#define RECURRENT "tests/golden/data/qwen3_next"
#define VOCAB 83
#define CONTEXT 128

/* --- pages ------------------------------------------------------------------------ */

static void fill(int32_t *token, int32_t first) {
    for (int32_t i = 0; i < ML_PAGE; i++)
        token[i] = first + i;
}

static void pages_are_shared(void) {
    ml_arena a;
    ml_pages p;
    int32_t x[ML_PAGE], y[ML_PAGE], one, two;

    ml_arena_init(&a, "test");
    ml_pages_init(&p, &a, 3);
    fill(x, 0);
    fill(y, 100);
    one = ml_pages_take(&p);
    two = ml_pages_take(&p);
    ml_pages_publish(&p, one, ML_NO_PAGE, x);
    ml_pages_publish(&p, two, one, y);
    CHECK(ml_pages_find(&p, ML_NO_PAGE, x) == one);
    CHECK(ml_pages_find(&p, one, y) == two);
    CHECK(ml_pages_find(&p, ML_NO_PAGE, y) == ML_NO_PAGE); /* another prefix */
    ml_pages_use(&p, one);
    ml_pages_drop(&p, two);
    ml_pages_drop(&p, one);
    CHECK(p.n_unused == 1 && p.n_free == 1); /* `one` still has a user */
    ml_pages_drop(&p, one);
    CHECK(ml_pages_available(&p) == 3);
    ml_arena_release(&a);
}

static void the_longest_unused_page_goes_first(void) {
    ml_arena a;
    ml_pages p;
    int32_t token[ML_PAGE], page[3];

    ml_arena_init(&a, "test");
    ml_pages_init(&p, &a, 3);
    for (int32_t i = 0; i < 3; i++) { /* a chain */
        fill(token, i);
        page[i] = ml_pages_take(&p);
        ml_pages_publish(&p, page[i], i ? page[i - 1] : ML_NO_PAGE, token);
    }
    CHECK(ml_pages_take(&p) == ML_NO_PAGE);
    for (int32_t i = 2; i >= 0; i--)
        ml_pages_drop(&p, page[i]);
    CHECK(ml_pages_take(&p) == page[2]); /* the leaf */
    fill(token, 2);
    CHECK(ml_pages_find(&p, page[1], token) == ML_NO_PAGE);
    fill(token, 1);
    CHECK(ml_pages_find(&p, page[0], token) == page[1]);
    ml_pages_forget(&p);
    CHECK(p.n_free == 2 && p.n_unused == 0);
    ml_arena_release(&a);
}

/* --- an engine on a tiny model ------------------------------------------------------ */

typedef struct bench {
    ml_arena arena;
    ml_spec spec;
    ml_checkpoint *checkpoint;
    ml_backend be;
    ml_weights w;
    ml_engine *e;
    ml_engine_opts o;
    int32_t eos[1];
} bench;

static void open_bench_of(bench *b, const char *model) {
    *b = (bench){ .eos = { 2 } };
    ml_arena_init(&b->arena, "test");
    MUST(ml_spec_open(&b->spec, model, &err));
    MUST(ml_checkpoint_open(&b->checkpoint, model, &err));
    ml_spec_keep_kv(&b->spec, ml_weights_kv_dtype(&b->spec, b->checkpoint, ML_WEIGHT_AUTO));
    MUST(ml_backend_cpu_open(&b->be, 2, NULL, &err));
    MUST(ml_weights_load(&b->w, &b->spec, b->checkpoint, ML_WEIGHT_AUTO, &b->be, &b->arena,
                         &err));
    b->w.version = 1;
    b->o = (ml_engine_opts){ .context = CONTEXT,
                             .max_running = 4,
                             .max_waiting = 8,
                             .chunk = 32,
                             .max_top = 8,
                             .eos = b->eos,
                             .n_eos = 1 };
}

static void open_bench(bench *b) {
    open_bench_of(b, MODEL);
}

static void start(bench *b) {
    MUST(ml_engine_open(&b->e, &b->spec, &b->w, &b->be, &b->o, &err));
}

static void close_bench(bench *b) {
    ml_engine_close(b->e);
    ml_weights_close(&b->w);
    ml_backend_close(&b->be);
    ml_checkpoint_close(b->checkpoint);
    ml_spec_close(&b->spec);
    ml_arena_release(&b->arena);
}

typedef struct heard {
    int32_t id[CONTEXT];
    float logprob[CONTEXT];
    uint64_t version[CONTEXT];
    int32_t n, n_end, matched, n_retract, n_cached;
    ml_finish finish;
    char message[200];
} heard;

static void hear(void *ud, const ml_gen_update *u) {
    heard *h = ud;
    for (int32_t i = 0; i < u->answer.n; i++) {
        h->id[h->n] = u->answer.id[i];
        h->logprob[h->n] = u->answer.logprob[i];
        h->version[h->n++] = u->answer.version[i];
    }
    h->finish = u->finish;
    h->matched = u->matched;
    h->n_retract = u->n_retract;
    h->n_cached = u->n_cached;
    h->n_end += u->finish != ML_FINISH_NOT;
    snprintf(h->message, sizeof h->message, "%.*s", (int)u->message.len, u->message.ptr);
}

static int32_t numbers[CONTEXT];

static ml_gen_request ask(int32_t n_prompt, int32_t max_new) {
    for (int32_t i = 0; i < CONTEXT; i++)
        numbers[i] = (i * 7 + 5) % VOCAB;
    return (ml_gen_request){ .prompt = numbers,
                             .n_prompt = n_prompt,
                             .max_new = max_new,
                             .draw = { .temperature = 1, .top_p = 1, .repetition = 1 },
                             .ignore_eos = true,
                             .score_from = -1 };
}

static heard run(bench *b, ml_gen_request r) {
    heard h = { 0 };
    MUST(ml_engine_submit(b->e, &r, hear, &h, 1, &err));
    while (ml_engine_step(b->e)) {
    }
    CHECK(h.n_end == 1);
    return h;
}

static void refused(bench *b, ml_gen_request r, const char *why) {
    ml_err err = { 0 };
    heard h = { 0 };
    CHECK(ml_engine_submit(b->e, &r, hear, &h, 1, &err) == ML_EUSAGE);
    CHECK_HAS(err.msg, why);
}

static void bad_requests_are_named(void) {
    bench b;
    ml_gen_request r;
    int32_t bad[] = { 1, VOCAB };

    open_bench(&b);
    start(&b);
    refused(&b, ask(0, 1), "the prompt is empty");
    refused(&b, ask(CONTEXT, 1), "nothing is left");
    r = ask(2, 1);
    r.prompt = bad;
    refused(&b, r, "prompt 1 is token 83");
    r = ask(2, 1);
    r.draw.temperature = -1;
    refused(&b, r, "temperature is -1");
    r = ask(2, 1);
    r.draw.temperature = NAN;
    refused(&b, r, "temperature");
    r = ask(2, 1);
    r.draw.top_p = 0;
    refused(&b, r, "top_p is 0");
    r = ask(2, 3);
    r.min_new = 4;
    refused(&b, r, "min_new_tokens is 4");
    r = ask(2, 1);
    r.n_top = 9;
    refused(&b, r, "at most 8");
    r = ask(2, 1);
    r.stop = &(ml_str){ "x", 1 };
    r.n_stop = 1;
    refused(&b, r, "need a tokenizer");
    r = ask(2, 1);
    r.draw.bias = &(ml_bias){ -1, 1 };
    r.draw.n_bias = 1;
    refused(&b, r, "logit_bias 0 is token -1");
    close_bench(&b);
}

static void answers_end_as_asked(void) {
    bench b;
    ml_gen_request r = ask(10, 40);
    heard plain, h;

    open_bench(&b);
    start(&b);
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
    r = ask(100, 100);
    h = run(&b, r);
    CHECK(h.finish == ML_FINISH_LENGTH && h.n == CONTEXT - 100);
    h = run(&b, ask(10, 0));
    CHECK(h.finish == ML_FINISH_LENGTH && h.n == 0);
    close_bench(&b);
}

/* The model's own end token ends an answer unless told otherwise. */
static void end_of_text_ends(void) {
    bench b;
    ml_gen_request r = ask(10, 40);
    ml_bias always = { 2, 100 };
    heard h;

    open_bench(&b);
    start(&b);
    r.draw.bias = &always;
    r.draw.n_bias = 1;
    h = run(&b, r);
    CHECK(h.n == 40 && h.id[0] == 2);
    r.ignore_eos = false;
    h = run(&b, r);
    CHECK(h.n == 1 && h.finish == ML_FINISH_TOKEN && h.matched == 2);
    close_bench(&b);
}

static void prefixes_are_found_again(void) {
    bench b;
    heard h;

    open_bench(&b);
    start(&b);
    CHECK(run(&b, ask(50, 4)).n_cached == 0);
    CHECK(run(&b, ask(50, 4)).n_cached == 48);
    CHECK(run(&b, ask(49, 1)).n_cached == 48);
    CHECK(run(&b, ask(48, 1)).n_cached == 32); /* one token must be computed */
    CHECK(ml_engine_flush(b.e));
    h = run(&b, ask(50, 4));
    CHECK(h.n_cached == 0);
    close_bench(&b);
}

/* Samples of one prompt share it within the very step that computes it. */
static void a_group_computes_its_prompt_once(void) {
    bench b;
    heard h[4] = { 0 };
    ml_gen_request r = ask(32, 2);

    open_bench(&b);
    b.o.chunk = 100;
    start(&b);
    for (int i = 0; i < 4; i++) {
        r.draw.sample = (uint64_t)i;
        MUST(ml_engine_submit(b.e, &r, hear, &h[i], (uint64_t)i, &err));
    }
    CHECK(ml_engine_step(b.e));
    for (int i = 0; i < 4; i++)
        CHECK(h[i].n == 1 && h[i].n_cached == (i ? 16 : 0));
    while (ml_engine_step(b.e)) {
    }
    close_bench(&b);
}

/* A recurrent layer has no state of tokens in the middle: others go on from where a prompt's
 * last page is full, and wait for that. */
static void recurrent_state_is_found_again(void) {
    bench b;
    heard h[4] = { 0 };
    ml_gen_request r = ask(33, 2);

    open_bench_of(&b, RECURRENT);
    b.o.chunk = 100;
    start(&b);
    for (int i = 0; i < 4; i++) {
        r.draw.sample = (uint64_t)i;
        MUST(ml_engine_submit(b.e, &r, hear, &h[i], (uint64_t)i, &err));
    }
    CHECK(ml_engine_step(b.e)); /* one of them, up to token 32 */
    for (int i = 0; i < 4; i++)
        CHECK(h[i].n == 0);
    CHECK(ml_engine_step(b.e));
    for (int i = 0; i < 4; i++)
        CHECK(h[i].n == 1 && h[i].n_cached == (i ? 32 : 0));
    while (ml_engine_step(b.e)) {
    }
    CHECK(run(&b, ask(50, 4)).n_cached == 32);
    CHECK(run(&b, ask(60, 1)).n_cached == 48);
    CHECK(run(&b, ask(32, 1)).n_cached == 0); /* kept behind 32 tokens, one too many */
    CHECK(ml_engine_flush(b.e));
    CHECK(run(&b, ask(50, 4)).n_cached == 0);
    close_bench(&b);
}

static void pressure_puts_the_youngest_back(void) {
    bench b;
    heard h[3] = { 0 }, alone;
    ml_gen_request r = ask(40, 60);
    ml_gen_stats s;

    open_bench(&b);
    b.o.kv_bytes = ml_kv_bytes(&b.spec, &b.be, ml_pages_for(CONTEXT) + 2);
    b.o.no_prefix_cache = true;
    start(&b);
    for (int i = 0; i < 3; i++) {
        r.draw.sample = (uint64_t)i;
        MUST(ml_engine_submit(b.e, &r, hear, &h[i], (uint64_t)i, &err));
    }
    while (ml_engine_step(b.e)) {
    }
    ml_engine_stats(b.e, &s);
    CHECK(s.n_retract > 0 && h[0].n_retract == 0);
    for (int i = 0; i < 3; i++) {
        r.draw.sample = (uint64_t)i;
        alone = run(&b, r);
        CHECK(h[i].n == 60 && memcmp(h[i].id, alone.id, sizeof alone.id) == 0);
        CHECK(memcmp(h[i].logprob, alone.logprob, sizeof alone.logprob) == 0);
    }
    close_bench(&b);
}

static void too_little_memory_is_said_at_start(void) {
    bench b;
    ml_err err = { 0 };

    open_bench(&b);
    b.o.kv_bytes = ml_kv_bytes(&b.spec, &b.be, 3);
    CHECK(ml_engine_open(&b.e, &b.spec, &b.w, &b.be, &b.o, &err) == ML_ENOMEM);
    CHECK_HAS(err.msg, "hold 48 tokens, less than one context of 128");
    close_bench(&b);
}

static void a_full_queue_says_so(void) {
    bench b;
    heard h = { 0 };
    ml_gen_request r = ask(4, 1);
    ml_err why = { 0 };

    open_bench(&b);
    start(&b);
    for (uint64_t i = 0; i < 8; i++)
        MUST(ml_engine_submit(b.e, &r, hear, &h, i, &err));
    CHECK(ml_engine_submit(b.e, &r, hear, &h, 9, &why) == ML_EAGAIN);
    ml_engine_abort_all(b.e, "enough");
    CHECK(h.n_end == 8 && h.finish == ML_FINISH_ABORT);
    CHECK_HAS(h.message, "enough");
    close_bench(&b);
}

/* Broken weights end a request with a sentence, not with a token. */
static void numbers_that_are_none_are_said(void) {
    bench b;
    heard h;

    open_bench(&b);
    start(&b);
    for (int64_t i = 0; i < VOCAB * b.spec.n_hidden; i++)
        ((float *)b.w.t[0].data)[i] = NAN;
    h = run(&b, ask(10, 5));
    CHECK(h.finish == ML_FINISH_ABORT && h.n == 0);
    CHECK_HAS(h.message, "not numbers");
    close_bench(&b);
}

/* --- versions ----------------------------------------------------------------------- */

static void switches_record_versions(void) {
    static const ml_switch how[] = { ML_SWITCH_RETRACT, ML_SWITCH_INEXACT_KV,
                                     ML_SWITCH_FINISH, ML_SWITCH_ABORT };
    bench b;
    ml_weights w;

    open_bench(&b);
    MUST(ml_weights_load(&w, &b.spec, b.checkpoint, ML_WEIGHT_AUTO, &b.be, &b.arena, &err));
    w.version = 2;
    for (int i = 0; i < 4; i++) {
        heard h = { 0 }, later = { 0 };
        ml_gen_request r = ask(20, 20);
        bool switched = false;
        start(&b);
        MUST(ml_engine_submit(b.e, &r, hear, &h, 1, &err));
        for (int k = 0; k < 10; k++)
            ml_engine_step(b.e);
        CHECK(h.n == 10);
        MUST(ml_engine_submit(b.e, &r, hear, &later, 2, &err));
        do {
            if (!switched)
                switched = ml_engine_switch(b.e, &w, how[i]) == ML_OK;
        } while (ml_engine_step(b.e));
        CHECK(switched && h.n_end == 1);
        CHECK(h.n == (how[i] == ML_SWITCH_ABORT ? 10 : 20));
        CHECK(h.version[9] == 1);
        if (h.n == 20)
            CHECK(h.version[10] == (how[i] == ML_SWITCH_FINISH ? 1u : 2u));
        CHECK(h.n_retract == (how[i] == ML_SWITCH_RETRACT));
        CHECK(later.n == 20 && later.version[0] == 2);
        /* Only keys of the new weights may be found: those of the one put back. */
        CHECK(later.n_cached == (how[i] == ML_SWITCH_RETRACT ? 16 : 0));
        ml_engine_close(b.e);
        b.e = NULL;
    }
    ml_weights_close(&w);
    close_bench(&b);
}

/* --- memory ------------------------------------------------------------------------- */

static void steps_allocate_nothing(void) {
    bench b;
    heard h[4] = { 0 };
    ml_gen_request r = ask(40, 60);
    size_t before;

    open_bench(&b);
    b.o.kv_bytes =
        ml_kv_bytes(&b.spec, &b.be, ml_pages_for(CONTEXT) + 2); /* with retractions */
    start(&b);
    r.n_top = 3;
    for (int i = 0; i < 4; i++) {
        r.draw.sample = (uint64_t)i;
        MUST(ml_engine_submit(b.e, &r, hear, &h[i], (uint64_t)i, &err));
    }
    ml_engine_step(b.e);
    before = mallinfo2().uordblks;
    for (int i = 0; i < 50; i++) {
        ml_engine_step(b.e);
        CHECK(mallinfo2().uordblks == before);
    }
    while (ml_engine_step(b.e)) {
    }
    close_bench(&b);
}

static void memory_can_be_given_back(void) {
    bench b;
    heard h = { 0 }, plain;
    ml_gen_request r = ask(20, 30);

    open_bench(&b);
    start(&b);
    plain = run(&b, r);
    MUST(ml_engine_submit(b.e, &r, hear, &h, 1, &err));
    for (int i = 0; i < 10; i++)
        ml_engine_step(b.e);
    ml_engine_release_kv(b.e);
    CHECK(!ml_engine_step(b.e));
    MUST(ml_engine_take_kv(b.e, &err));
    while (ml_engine_step(b.e)) {
    }
    CHECK(h.n == 30 && memcmp(h.id, plain.id, sizeof h.id) == 0);
    close_bench(&b);
}

/* --- on a thread of its own ------------------------------------------------------------ */

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    heard h;
} waiter;

static void hear_locked(void *ud, const ml_gen_update *u) {
    waiter *w = ud;
    pthread_mutex_lock(&w->lock);
    hear(&w->h, u);
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->lock);
}

static void await_tokens(waiter *w, int32_t n) {
    pthread_mutex_lock(&w->lock);
    while (w->h.n < n && !w->h.n_end)
        pthread_cond_wait(&w->cond, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

static void await_end(waiter *w) {
    pthread_mutex_lock(&w->lock);
    while (!w->h.n_end)
        pthread_cond_wait(&w->cond, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

static void init_waiter(waiter *w) {
    *w = (waiter){ 0 };
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->cond, NULL);
}

static ml_gen *open_local(bench *b, bool own_weights) {
    ml_gen *g;
    ml_local_opts o = { .engine = b->o,
                        .spec = &b->spec,
                        .be = &b->be,
                        .weights = own_weights ? NULL : &b->w,
                        .dir = MODEL,
                        .version = 7 };
    MUST(ml_local_open(&g, &o, &err));
    return g;
}

static void threads_submit_and_hear(void) {
    bench b;
    ml_gen *g;
    waiter w[8];
    uint64_t ticket[8];
    ml_gen_request r = ask(30, 20);
    heard first;

    open_bench(&b);
    g = open_local(&b, false);
    for (int i = 0; i < 8; i++) {
        init_waiter(&w[i]);
        r.draw.sample = (uint64_t)i % 2;
        MUST(g->submit(g, &r, hear_locked, &w[i], &ticket[i], &err));
    }
    for (int i = 0; i < 8; i++) {
        await_end(&w[i]);
        first = w[i % 2].h;
        CHECK(w[i].h.n == 20 && memcmp(w[i].h.id, first.id, sizeof first.id) == 0);
    }
    CHECK(memcmp(w[0].h.id, w[1].h.id, sizeof first.id) != 0);
    g->close(g);
    close_bench(&b);
}

static void aborting_and_pausing(void) {
    bench b;
    ml_gen *g;
    waiter w;
    uint64_t ticket;
    ml_gen_stats s;
    ml_gen_request r = ask(10, 110);
    int32_t n;

    open_bench(&b);
    g = open_local(&b, false);
    init_waiter(&w);
    MUST(g->submit(g, &r, hear_locked, &w, &ticket, &err));
    await_tokens(&w, 3);
    g->pause(g);
    n = w.h.n; /* nobody writes now */
    g->stats(g, &s);
    CHECK(s.paused && s.n_running == 1 && w.h.n == n && !g->flush(g));
    g->abort(g, ticket);
    await_end(&w);
    CHECK(w.h.finish == ML_FINISH_ABORT && w.h.n == n);
    g->resume(g);
    CHECK(g->flush(g));
    g->abort(g, ticket); /* gone already: nothing happens */
    init_waiter(&w);
    MUST(g->submit(g, &r, hear_locked, &w, &ticket, &err));
    g->close(g); /* hears its end */
    CHECK(w.h.n_end == 1);
    close_bench(&b);
}

static void weights_are_loaded_and_let_go(void) {
    bench b;
    ml_gen *g;
    waiter w;
    uint64_t ticket;
    ml_gen_stats s;
    ml_gen_request r = ask(10, 110);
    ml_err why = { 0 };

    open_bench(&b);
    g = open_local(&b, true);
    init_waiter(&w);
    MUST(g->submit(g, &r, hear_locked, &w, &ticket, &err));
    await_tokens(&w, 2);
    CHECK(g->load(g, "tests/golden/data/llama", 0, ML_SWITCH_RETRACT, &why) != ML_OK);
    CHECK_HAS(why.msg, "tests/golden/data/llama");
    MUST(g->load(g, MODEL, 0, ML_SWITCH_FINISH, &err)); /* waits for the request */
    await_end(&w);
    CHECK(w.h.version[0] == 7 && w.h.version[w.h.n - 1] == 7);
    g->stats(g, &s);
    CHECK(s.version == 8);
    ml_local_release(g, true, true);
    init_waiter(&w);
    MUST(g->submit(g, &r, hear_locked, &w, &ticket, &err));
    MUST(ml_local_take(g, true, true, &err));
    await_end(&w);
    CHECK(w.h.n == 110 && w.h.version[0] == 8);
    g->pause(g);
    init_waiter(&w);
    g->resume(g);
    MUST(g->submit(g, &r, hear_locked, &w, &ticket, &err));
    await_tokens(&w, 2);
    g->pause(g);
    if (!w.h.n_end) {
        CHECK(g->load(g, MODEL, 0, ML_SWITCH_FINISH, &why) == ML_EUSAGE);
        CHECK_HAS(why.msg, "paused");
    }
    g->close(g);
    close_bench(&b);
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "pages are shared", pages_are_shared },
        { "the longest unused page goes first", the_longest_unused_page_goes_first },
        { "bad requests are named", bad_requests_are_named },
        { "answers end as asked", answers_end_as_asked },
        { "end of text ends", end_of_text_ends },
        { "prefixes are found again", prefixes_are_found_again },
        { "a group computes its prompt once", a_group_computes_its_prompt_once },
        { "recurrent state is found again", recurrent_state_is_found_again, 60 },
        { "pressure puts the youngest back", pressure_puts_the_youngest_back },
        { "too little memory is said at start", too_little_memory_is_said_at_start },
        { "a full queue says so", a_full_queue_says_so },
        { "numbers that are none are said", numbers_that_are_none_are_said },
        { "switches record versions", switches_record_versions },
        { "steps allocate nothing", steps_allocate_nothing },
        { "memory can be given back", memory_can_be_given_back },
        { "threads submit and hear", threads_submit_and_hear },
        { "aborting and pausing", aborting_and_pausing },
        { "weights are loaded and let go", weights_are_loaded_and_let_go },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
