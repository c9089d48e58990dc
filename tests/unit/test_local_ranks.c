/* A generator whose engine is cut over several ranks: the first rank is asked, the others
 * follow it. */
#include <pthread.h>
#include <sched.h>
#include <string.h>

#include "comm/share.h"
#include "gen/local.h"
#include "model/spec_shard.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/must.h"
#include "tests/support/ranks.h"

enum { N_REQUEST = 6, N_PAGE = 9 };

/* --- requests ------------------------------------------------------------------ */

typedef struct waiter {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    ml_received h;
} waiter;

static void hear(void *ud, const ml_gen_update *u) {
    waiter *w = ud;
    pthread_mutex_lock(&w->lock);
    ml_receive(&w->h, u);
    pthread_cond_broadcast(&w->cond);
    pthread_mutex_unlock(&w->lock);
}

static void ask(ml_gen *g, const ml_gen_request *r, waiter *w) {
    uint64_t ticket;

    *w = (waiter){ 0 };
    pthread_mutex_init(&w->lock, NULL);
    pthread_cond_init(&w->cond, NULL);
    MUST(g->submit(g, r, hear, w, &ticket, &err));
}

static void await_tokens(waiter *w, int32_t n) {
    pthread_mutex_lock(&w->lock);
    while (w->h.n < n && !w->h.n_end)
        pthread_cond_wait(&w->cond, &w->lock);
    pthread_mutex_unlock(&w->lock);
}

static void await_end(waiter *w) {
    await_tokens(w, INT32_MAX);
}

/* Requests with every kind of parameter that changes tokens. */
static ml_gen_request request(int i) {
    static const int32_t also[] = { 5, 70 }, stop_id[] = { 11, 30, 47 };
    static const ml_bias bias[] = { { 3, 2.0f }, { 40, -1.5f } };
    ml_gen_request r = ml_fixture_request(10 + 15 * i, 30);

    r.draw.seed = 9;
    r.draw.sample = (uint64_t)i;
    if (i == 1) {
        r.draw.bias = bias;
        r.draw.n_bias = 2;
        r.draw.repetition = 1.3f;
    }
    if (i == 2) {
        r.also = also;
        r.n_also = 2;
        r.n_top = 1;
        r.score_from = 3;
    }
    if (i == 3) {
        r.stop_id = stop_id;
        r.n_stop_id = 3;
        r.min_new = 4;
    }
    if (i == 4)
        r.draw.top_p = 0.7f;
    return r;
}

static void generate(ml_gen *g, ml_received *out) {
    waiter w[N_REQUEST];

    g->pause(g); /* they begin together, so that the schedule is always the same */
    for (int i = 0; i < N_REQUEST; i++) {
        ml_gen_request r = request(i);
        ask(g, &r, &w[i]);
    }
    g->resume(g);
    for (int i = 0; i < N_REQUEST; i++) {
        await_end(&w[i]);
        out[i] = w[i].h;
    }
}

/* --- ranks --------------------------------------------------------------------- */

typedef struct job {
    void (*fn)(ml_gen *g, struct job *j);                  /* on the first rank */
    void (*follow)(const ml_local_opts *o, struct job *j); /* NULL: ml_local_follow */
    int32_t n_dp; /* groups of data-parallel attention; 0: 1 */
    ml_received got[N_REQUEST];
} job;

static void run_rank(ml_comm *comm, void *ud) {
    job *j = ud;
    ml_engine_fixture b;
    ml_spec spec;
    ml_gen *g;
    int32_t n_rank = comm ? comm->size : 1, rank = comm ? comm->rank : 0;
    ml_local_opts o;

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    MUST(ml_spec_open(&spec, ML_FIXTURE_MODEL, &err));
    spec.attn_dp = j->n_dp;
    MUST(ml_spec_shard(&spec, n_rank, rank, &err));
    o = (ml_local_opts){
        .engine = b.o, .spec = &spec, .be = &b.be, .dir = ML_FIXTURE_MODEL, .version = 7
    };
    o.engine.comm = comm;
    o.engine.max_running = 3;
    o.engine.chunk = 20;
    /* ranks have memory for different numbers of pages */
    o.engine.kv_bytes = ml_kv_bytes(&spec, &b.be, N_PAGE + 3 * rank);
    if (rank == 0) {
        MUST(ml_local_open(&g, &o, &err));
        j->fn(g, j);
        g->close(g);
    } else if (j->follow) {
        j->follow(&o, j);
    } else {
        MUST(ml_local_follow(&o, &err));
    }
    ml_spec_close(&spec);
    ml_engine_fixture_close(&b);
}

static void check_same(const ml_received *a, const ml_received *b) {
    for (int i = 0; i < N_REQUEST; i++) {
        CHECK(a[i].n > 0 && a[i].n == b[i].n && a[i].finish == b[i].finish &&
              a[i].matched == b[i].matched);
        CHECK(!memcmp(a[i].id, b[i].id, sizeof a[i].id));
        CHECK(!memcmp(a[i].logprob, b[i].logprob, sizeof a[i].logprob));
    }
}

/* --- tests --------------------------------------------------------------------- */

static void ask_all(ml_gen *g, job *j) {
    ml_gen_stats s;

    generate(g, j->got);
    g->stats(g, &s);
    if (j->n_dp)
        CHECK(s.n_page == N_PAGE * j->n_dp); /* each group has pages of its own */
    else
        CHECK(s.n_page == N_PAGE && s.n_preempt > 0 && s.n_cached_token > 0);
}

static void ranks_answer_like_one(void) {
    static job one, many;

    one.fn = many.fn = ask_all;
    run_rank(NULL, &one);
    for (int32_t n = 2; n <= 4; n++) {
        ml_ranks_run(n, run_rank, &many);
        check_same(one.got, many.got);
    }
}

static void groups_answer_like_one(void) {
    static job one, many;

    one.fn = many.fn = ask_all;
    run_rank(NULL, &one);
    for (many.n_dp = 2; many.n_dp <= 4; many.n_dp += 2) {
        ml_ranks_run(4, run_rank, &many);
        check_same(one.got, many.got);
    }
}

/* Everything that may be asked for between steps; the tokens do not change. */
static void interrupt(ml_gen *g, job *j) {
    ml_gen_request r = request(5);
    ml_gen_stats s;
    ml_err why = { 0 };
    waiter w, v;
    uint64_t ticket;

    ask(g, &r, &w);
    await_tokens(&w, 3);
    g->pause(g);
    g->stats(g, &s);
    CHECK(s.paused && !g->flush(g));
    ml_local_release(g, true, true);
    CHECK(ml_local_take(g, true, true, &why) == ML_OK);
    v = (waiter){ 0 };
    pthread_mutex_init(&v.lock, NULL);
    pthread_cond_init(&v.cond, NULL);
    MUST(g->submit(g, &r, hear, &v, &ticket, &err));
    g->abort(g, ticket);
    g->resume(g);
    await_end(&w);
    await_end(&v);
    CHECK(w.h.n == 30 && v.h.finish == ML_FINISH_ABORT);
    CHECK(g->load(g, "tests/golden/data/none", 0, ML_SWITCH_FINISH, &why) != ML_OK);
    CHECK_HAS(why.msg, "tests/golden/data/none");
    CHECK(ml_local_switch(g, NULL, ML_SWITCH_ABORT, &why) == ML_EUNSUP);
    CHECK_HAS(why.msg, "several ranks");
    CHECK(g->load(g, ML_FIXTURE_MODEL, 12, ML_SWITCH_RECOMPUTE, &why) == ML_OK);
    CHECK(g->flush(g));
    generate(g, j->got);
    CHECK(j->got[0].version[0] == 12);
}

static void commands_reach_all_ranks(void) {
    static job one, many;

    one.fn = ask_all;
    many.fn = interrupt;
    run_rank(NULL, &one);
    ml_ranks_run(3, run_rank, &many);
    check_same(one.got, many.got);
}

/* The other ranks have left, or part: the first rank's requests end. */
static void ask_in_vain(ml_gen *g, job *j) {
    static waiter w; /* requests that are refused later still end */
    ml_gen_request r = request(0);
    ml_err why = { 0 };
    uint64_t ticket;

    (void)j;
    r.ignore_eos = false;
    ask(g, &r, &w);
    await_end(&w);
    CHECK(w.h.finish == ML_FINISH_ABORT);
    CHECK_HAS(w.h.message, "rank");
    while (g->submit(g, &r, hear, &w, &ticket, &why) != ML_EPEER)
        sched_yield(); /* the message of the abort comes first */
    CHECK(why.code == ML_EPEER);
    CHECK_HAS(why.msg, "the engine has stopped: ");
    CHECK(g->load(g, ML_FIXTURE_MODEL, 0, ML_SWITCH_FINISH, &why) != ML_OK);
}

/* Opens the engine with the others, then closes it. */
static void leave(const ml_local_opts *o, job *j) {
    ml_comm *orders;
    ml_err me = { 0 }, all[2];
    ml_tensor in = ml_comm_bytes(&me, sizeof me), out = ml_comm_bytes(all, sizeof all);
    ml_comm *c = o->engine.comm;
    int64_t n = 100;

    (void)j;
    MUST(c->split(c, &orders, 0, c->rank, &err));
    MUST(orders->allgather(orders, NULL, &out, &in, &err)); /* weights are read */
    MUST(ml_engine_least(c, &n, &err));
    CHECK(n == N_PAGE);
    MUST(orders->allgather(orders, NULL, &out, &in, &err)); /* the engine is open */
    orders->close(orders);
}

static void a_rank_that_leaves(void) {
    static job j = { .fn = ask_in_vain, .follow = leave };
    ml_ranks_run(2, run_rank, &j);
}

/* Ends answers after their first token. */
static void part(const ml_local_opts *o, job *j) {
    ml_local_opts other = *o;
    int32_t eos[ML_FIXTURE_VOCAB];
    ml_err why = { 0 };

    (void)j;
    for (int32_t i = 0; i < ML_FIXTURE_VOCAB; i++)
        eos[i] = i;
    other.engine.eos = eos;
    other.engine.n_eos = ML_FIXTURE_VOCAB;
    CHECK(ml_local_follow(&other, &why) == ML_EPEER);
    CHECK_HAS(why.msg, "rank 1 of the engine has other requests, pages or tokens");
}

static void a_rank_that_parts(void) {
    static job j = { .fn = ask_in_vain, .follow = part };
    ml_ranks_run(2, run_rank, &j);
}

/* --- weights of the ranks' own ---------------------------------------------------- */

/* The ranks of an engine inside a run: each has its part of two versions of the weights. */
typedef struct publication {
    ml_received before[N_REQUEST], after[N_REQUEST]; /* by one rank */
    bool alone;
} publication;

static void publish_rank(ml_comm *comm, void *ud) {
    publication *p = ud;
    ml_received got[N_REQUEST];
    ml_engine_fixture b;
    ml_spec spec;
    ml_weights w;
    ml_gen *g;
    ml_comm *mains = NULL;
    bool first = !comm || comm->rank == 0;
    ml_local_opts o;

    ml_engine_fixture_open(&b, ML_FIXTURE_MODEL);
    MUST(ml_spec_open(&spec, ML_FIXTURE_MODEL, &err));
    MUST(ml_spec_shard(&spec, comm ? comm->size : 1, comm ? comm->rank : 0, &err));
    MUST(ml_weights_load(&w, &spec, b.checkpoint, ML_WEIGHT_F32, &b.be, &b.arena, &err));
    w.version = 3;
    o = (ml_local_opts){ .engine = b.o, .spec = &spec, .be = &b.be, .weights = &w };
    o.engine.comm = comm;
    if (comm)
        MUST(comm->split(comm, &mains, 0, comm->rank, &err));
    MUST(ml_local_open(&g, &o, &err)); /* on every rank */
    if (first) {
        generate(g, p->alone ? p->before : got);
        if (!p->alone)
            check_same(p->before, got);
        g->pause(g);
    }
    MUST(ml_comm_meet(mains, &err));  /* no rank runs a step */
    for (int32_t i = 0; i < w.n; i++) /* a head that gives the same to all tokens */
        if (strcmp(spec.param[i].name, "lm_head.weight") == 0)
            memset(w.t[i].data, 0, ml_tensor_bytes(&w.t[i]));
    w.version = 4;
    MUST(ml_comm_meet(mains, &err));
    if (first) {
        MUST(ml_local_switch(g, &w, ML_SWITCH_RECOMPUTE, &err));
        g->resume(g);
        generate(g, p->alone ? p->after : got);
        if (!p->alone)
            check_same(p->after, got);
        CHECK(p->after[0].version[0] == 4);
        CHECK(memcmp(p->before[0].logprob, p->after[0].logprob, 40) != 0);
    }
    g->close(g);
    if (mains)
        mains->close(mains);
    ml_weights_close(&w);
    ml_spec_close(&spec);
    ml_engine_fixture_close(&b);
}

static void ranks_switch_together(void) {
    static publication p = { .alone = true };

    publish_rank(NULL, &p);
    p.alone = false;
    ml_ranks_run(2, publish_rank, &p);
    ml_ranks_run(4, publish_rank, &p);
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "engines of several ranks answer like one", ranks_answer_like_one, 300 },
        { "groups of data-parallel attention answer like one rank", groups_answer_like_one,
          300 },
        { "commands reach all ranks, and errors leave them together",
          commands_reach_all_ranks },
        { "ranks switch together to weights of their own", ranks_switch_together, 300 },
        { "requests end when a rank of the engine leaves", a_rank_that_leaves },
        { "a rank that parts from the first is noticed", a_rank_that_parts },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
