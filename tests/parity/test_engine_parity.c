/* Rollout and training agree: the log-probs of drawn tokens equal those of a training
 * forward over the finished sequence, bit for bit, whatever else the engine computed.
 *
 * A mix is a set of requests, some with common prefixes, that arrive at random steps;
 * some are aborted, and the weights change meanwhile.  It runs through two engines with
 * random settings (batch, chunk, so little memory that requests are preempted, prefix
 * cache, threads).  Both must draw the same tokens, and each token's log-prob and entropy
 * must equal those of scoring with the weights of its version.  The routing record of a
 * finished sequence (experts) must equal the selection of that forward.  Requests may use
 * adapters of different rank, or none.  With several
 * ranks, the second engine is cut over a tensor-parallel group: the bits are the same, on
 * every rank, also with data-parallel attention.  With drafts, the second engine decodes speculatively: its draft tokens are
 * those that the first one drew, some of them wrong; or those of one of its own sources. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/philox.h"
#include "engine/engine.h"
#include "engine/request.h"
#include "model/lora.h"
#include "model/spec_shard.h"
#include "tests/support/must.h"
#include "tests/support/ranks.h"

#define DATA "tests/golden/data/"
/* Mixes in f32, and in bf16, whose kernels read weights, keys and values differently. */
enum { N_MIX = ML_TEST_SANITIZED ? 3 : 20, N_MIX_BF16 = ML_TEST_SANITIZED ? 1 : 5 };
#define MAX_REQ 12
#define CONTEXT 144
#define MAX_TOP 4
#define N_VERSION 2
#define MAX_RANK 8
#define MAX_ROUTE 64 /* routing record of a token, all layers */
#define N_ADAPTER 2

/* --- random numbers ------------------------------------------------------------- */

static uint64_t state;

static uint32_t rnd(uint32_t n) { /* 0 .. n-1 */
    state = state * 0x5851f42d4c957f2du + 0x14057b7ef767814fu;
    return (uint32_t)(state >> 33) % n;
}

static bool one_in(uint32_t n) {
    return rnd(n) == 0;
}

/* --- models --------------------------------------------------------------------- */

/* A model, or one rank's part of it. */
typedef struct model {
    ml_arena arena;
    ml_spec spec;
    ml_backend be;
    ml_weights weights[N_VERSION];
    ml_lora lora[N_ADAPTER]; /* zeros: none */
    const ml_lora_site *site[N_ADAPTER];
    ml_lora_table table;
} model;

/* Where the draft tokens of the second engine come from; TWIN: the model itself drafts, and
 * is right whenever its weights are those of the engine. */
typedef enum drafts {
    NO_DRAFTS,
    DRAWN_DRAFTS,
    NGRAM_DRAFTS,
    MTP_DRAFTS,
    TWIN_DRAFTS,
    EAGLE3_DRAFTS,
    DRAFTS_KIND = 7,
    TREES = 8 /* of drafts of that kind */
} drafts;

typedef struct fixture {
    const char *dir;
    ml_weight_dtype dtype;
    model whole;
    model *rank;      /* [n_rank], or NULL: one rank */
    int n_rank, n_dp; /* n_dp: groups of data-parallel attention */
    bool adapters;    /* requests may have one */
    ml_plan *plan;    /* like a trainer's, with a backward pass */
    ml_batch batch;
} fixture;

static const ml_batch_caps caps = {
    .n_token = CONTEXT, .n_seq = 1, .n_loss = CONTEXT, .n_page = 16
};

/* Gives four experts equal router rows, so that they tie at every token. */
static void tie_experts(const model *m) {
    for (int32_t i = 0; i < m->spec.n_param; i++) {
        const ml_tensor *t = &m->weights[0].t[i];
        float *panel = t->data;
        if (!strstr(m->spec.param[i].name, ".mlp.gate.weight"))
            continue;
        for (int64_t k = 0; k < t->shape[1]; k++)
            for (int e = 1; e < 4; e++)
                panel[k * 16 + e] = panel[k * 16];
    }
}

/* The second version differs in all tensors of f32, by a factor for each. */
static void change_weights(const model *m) {
    for (int32_t i = 0; i < m->spec.n_param; i++) {
        const ml_tensor *t = &m->weights[1].t[i];
        size_t by = strlen(m->spec.param[i].name) % 7 + 1;
        if (t->dtype == ML_F32)
            for (size_t k = 0; k < ml_tensor_bytes(t) / 4; k++)
                ((float *)t->data)[k] *= 1.0f + 0.01f * (float)by;
    }
}

/* Adapters of ranks 2 and 17 whose B is not zero; the spec is not cut yet. */
static void open_adapters(model *m) {
    for (int i = 0; i < N_ADAPTER; i++) {
        ml_lora *l = &m->lora[i];
        ml_lora_opts o = { .rank = i ? 17 : 2,
                           .alpha = 8,
                           .target = "all-linear",
                           .fused = i > 0,
                           .seed = (uint64_t)i };
        float *v;
        MUST(ml_lora_new(l, &m->spec, NULL, &o, &m->be, &err));
        for (int32_t p = 0; p < l->spec.n_param; p++) {
            const ml_tensor *t = &l->weights.t[p];
            v = t->data;
            for (size_t k = 0; t->shape[t->n_dim - 1] == o.rank && /* B */
                               k < ml_tensor_bytes(t) / 4;
                 k++)
                v[k] = (float)(0.1 * ml_philox_uniform(3, (uint64_t)p, k) - 0.05);
        }
    }
    ml_spec_lora_insert(&m->spec, NULL, 17);
}

static void use_adapters(model *m) {
    for (int i = 0; i < N_ADAPTER; i++) {
        if (m->spec.n_rank)
            MUST(ml_lora_cut(&m->lora[i], &m->spec, &err));
        m->site[i] = m->lora[i].site;
    }
    m->table = (ml_lora_table){ .adapter = m->site, .n_adapter = N_ADAPTER };
    for (int v = 0; v < N_VERSION; v++)
        m->weights[v].lora = &m->table;
}

static ml_dtype kv_dtype; /* of the KV cache; ML_F32: that of the weights */

static void open_model(model *m, const fixture *f, int n_rank, int rank) {
    ml_checkpoint *c;

    ml_arena_init(&m->arena, "parity");
    MUST(ml_spec_open(&m->spec, f->dir, &err));
    MUST(ml_checkpoint_open(&c, f->dir, &err));
    MUST(ml_weights_keep_kv(&m->spec, c, f->dtype, kv_dtype, &err));
    m->spec.attn_dp = n_rank > 1 ? f->n_dp : 1;
    MUST(ml_backend_cpu_open(&m->be, n_rank > 1 ? 1 : 2, NULL, &err));
    if (f->adapters)
        open_adapters(m);
    MUST(ml_spec_shard(&m->spec, n_rank, rank, &err));
    for (uint64_t v = 0; v < N_VERSION; v++) {
        ml_weights *w = &m->weights[v];
        MUST(ml_weights_load(w, &m->spec, c, f->dtype, &m->be, &m->arena, &err));
        w->version = v + 1;
    }
    if (f->dtype == ML_WEIGHT_F32)
        tie_experts(m);
    change_weights(m);
    if (f->adapters)
        use_adapters(m);
    ml_checkpoint_close(c);
}

static void close_model(model *m) {
    for (int i = 0; i < N_ADAPTER && m->table.n_adapter; i++)
        ml_lora_close(&m->lora[i]);
    for (int v = 0; v < N_VERSION; v++)
        ml_weights_close(&m->weights[v]);
    ml_backend_close(&m->be);
    ml_spec_close(&m->spec);
    ml_arena_release(&m->arena);
}

static void open_fixture(fixture *f, const char *dir, ml_weight_dtype dtype, int n_rank,
                         int n_dp, bool adapters) {
    *f = (fixture){
        .dir = dir, .dtype = dtype, .n_rank = n_rank, .n_dp = n_dp, .adapters = adapters
    };
    open_model(&f->whole, f, 1, 0);
    if (n_rank > 1)
        f->rank = calloc((size_t)n_rank, sizeof *f->rank);
    for (int r = 0; r < n_rank && n_rank > 1; r++)
        open_model(&f->rank[r], f, n_rank, r);
    MUST(ml_plan_new(&f->plan, &f->whole.spec, &f->whole.be,
                     (ml_plan_opts){ .caps = caps, .backward = true }, &err));
    MUST(ml_plan_alloc(f->plan, &err));
    ml_batch_init(&f->batch, &f->whole.arena, caps);
}

static void close_fixture(fixture *f) {
    ml_plan_free(f->plan);
    for (int r = 0; r < f->n_rank && f->rank; r++)
        close_model(&f->rank[r]);
    free(f->rank);
    close_model(&f->whole);
}

/* --- mixes ---------------------------------------------------------------------- */

typedef struct asked {
    ml_gen_request r;
    int32_t prompt[CONTEXT];
    int32_t at_step, abort_step; /* abort_step 0: never */
} asked;

/* Recorded outputs of a request. */
typedef struct received {
    int32_t token[CONTEXT]; /* prompt and answer */
    float logprob[CONTEXT], entropy[CONTEXT];
    uint64_t version[CONTEXT]; /* 0: not scored */
    int32_t n, n_prompt;
    ml_finish finish;
    int n_end, n_preempt, n_cached;
    int32_t routed[ML_N_ROUTING][CONTEXT * MAX_ROUTE];
    int32_t n_routed[ML_N_ROUTING];
    uint64_t end_version;
} received;

typedef struct mix {
    asked ask[MAX_REQ];
    int n;
    int32_t switch_step; /* 0: never */
    ml_switch how;
} mix;

static ml_draw_opts random_draw(int i) {
    static const float temperatures[] = { 1.0f, 1.0f, 0.7f, 1.3f, 0.0f };
    ml_draw_opts d = { .temperature = temperatures[rnd(5)],
                       .top_p = 1,
                       .repetition = 1,
                       .seed = rnd(3),
                       .sample = (uint64_t)i };
    if (one_in(4))
        d.top_k = (int32_t)rnd(20) + 1;
    if (one_in(4))
        d.top_p = 0.8f;
    if (one_in(6))
        d.repetition = 1.2f;
    return d;
}

/* plain: draws without penalties or top-n log-probs, so that steps may overlap. */
static void make_mix(mix *m, const fixture *f, bool plain) {
    int32_t base[3][CONTEXT];

    *m = (mix){ .n = 2 + (int)rnd(MAX_REQ - 1) };
    for (int b = 0; b < 3; b++)
        for (int k = 0; k < CONTEXT; k++)
            base[b][k] = (int32_t)rnd((uint32_t)f->whole.spec.n_vocab);
    for (int i = 0; i < m->n; i++) {
        asked *a = &m->ask[i];
        ml_gen_request *r = &a->r;
        r->n_prompt = 1 + (int32_t)rnd(one_in(2) ? 100 : 40);
        memcpy(a->prompt, base[rnd(3)], sizeof a->prompt);
        if (one_in(3)) /* a common prefix, then tokens of its own */
            for (int32_t k = (int32_t)rnd((uint32_t)r->n_prompt); k < r->n_prompt; k++)
                a->prompt[k] = (int32_t)rnd((uint32_t)f->whole.spec.n_vocab);
        r->prompt = a->prompt;
        r->draw = random_draw(i);
        r->max_new = one_in(8) ? 0 : 1 + (int32_t)rnd(40);
        r->score_from = one_in(3) ? (int32_t)rnd((uint32_t)r->n_prompt + 1) : -1;
        r->n_top = one_in(3) ? (int32_t)rnd(MAX_TOP + 1) : 0;
        if (plain) {
            r->draw.repetition = 1;
            r->n_top = 0;
        }
        a->at_step = one_in(2) ? 0 : (int32_t)rnd(40);
        a->abort_step = one_in(6) ? 1 + (int32_t)rnd(50) : 0;
        if (f->adapters)
            r->adapter = r->adapter_id = (int32_t)rnd(N_ADAPTER + 1);
    }
    if (one_in(2)) {
        m->switch_step = 1 + (int32_t)rnd(40);
        m->how = one_in(3) ? ML_SWITCH_FINISH : ML_SWITCH_RECOMPUTE;
    }
}

static void hear(void *ud, const ml_gen_update *u) {
    received *h = ud;
    CHECK(h->n_end == 0);
    for (int32_t i = 0; i < u->prompt.n; i++) {
        int32_t at = h->n_prompt - u->prompt.n + i;
        CHECK(h->token[at] == u->prompt.id[i]);
        h->logprob[at] = u->prompt.logprob[i];
        h->entropy[at] = u->prompt.entropy[i];
        h->version[at] = at ? u->prompt.version[i] : 0;
        CHECK(at > 0 || isnan(u->prompt.logprob[i]));
    }
    for (int32_t i = 0; i < u->answer.n; i++) {
        h->token[h->n] = u->answer.id[i];
        h->logprob[h->n] = u->answer.logprob[i];
        h->entropy[h->n] = u->answer.entropy[i];
        h->version[h->n++] = u->answer.version[i];
    }
    for (int i = 0; i < ML_N_ROUTING; i++) {
        const ml_routing *x = &u->routed[i];
        CHECK(x->width <= MAX_ROUTE);
        h->n_routed[i] = x->n;
        if (x->n)
            memcpy(h->routed[i], x->row, (size_t)(x->n * x->width) * sizeof(int32_t));
    }
    h->end_version = u->version;
    h->finish = u->finish;
    h->n_preempt = u->n_preempt;
    h->n_cached = u->n_cached;
    h->n_end += u->finish != ML_FINISH_NOT;
}

/* kv_bytes: the number of pages. */
static ml_engine_opts random_opts(const ml_spec *s) {
    ml_engine_opts o = { .context = CONTEXT,
                         .max_running = 1 + (int32_t)rnd(8),
                         .max_waiting = MAX_REQ,
                         .chunk = 1 + (int32_t)rnd(one_in(2) ? 20 : 150),
                         .max_top = MAX_TOP,
                         .no_prefix_cache = one_in(6) };

    o.kv_bytes = (size_t)ml_kv_pages_for(CONTEXT) + (size_t)rnd(one_in(2) ? 6 : 40);
    for (int i = 0; i < ML_N_ROUTING; i++)
        o.routed[i] = ml_spec_routing_width(s, (ml_routing_kind)i) > 0;
    return o;
}

/* A mix to run on each rank of a group. */
typedef struct mix_run {
    const model *m; /* [n_rank] */
    const mix *mix;
    ml_engine_opts o;
    drafts drafts;
    const received *drawn; /* [MAX_REQ] by another engine */
    const char *dir;       /* of the model */
    bool overlap;
    int n_thread;
    received (*h)[MAX_REQ]; /* [n_rank] */
    ml_gen_stats *stats;    /* [n_rank] */
} mix_run;

static void submit_at(ml_engine *e, const mix_run *r, int32_t step, received *h,
                      int *open) {
    for (int i = 0; i < r->mix->n; i++) {
        const asked *a = &r->mix->ask[i];
        if (a->at_step == step) {
            ml_gen_request q = a->r;
            h[i].n = h[i].n_prompt = q.n_prompt;
            memcpy(h[i].token, a->prompt, sizeof h[i].token);
            memcpy(q.routed, r->o.routed, sizeof q.routed);
            MUST(ml_engine_submit(e, &q, hear, &h[i], (uint64_t)i + 1, &err));
            --*open;
        }
        if (a->abort_step == step && step > a->at_step)
            ml_engine_abort(e, (uint64_t)i + 1, "test");
    }
}

/* What the other engine drew; one token in five is wrong, another one in each chain.  Depends
 * on the request alone. */
static int32_t draft(void *ud, const ml_request *r, int32_t chain, int32_t *out,
                     int32_t n) {
    const received *h = &((const received *)ud)[r->ticket - 1];
    int32_t k = 0;

    for (; k < n && r->n_token + k < h->n; k++) {
        int32_t at = r->n_token + k;
        bool wrong = (at * 7 + (int32_t)r->ticket * 3 + chain) % 5 == 0;
        out[k] = wrong ? h->token[at] ^ 1 : h->token[at];
    }
    return k;
}

static ml_draft_opts draft_opts(const mix_run *r) {
    drafts kind = r->drafts & DRAFTS_KIND;
    ml_draft_opts o = { .n = 1 + r->mix->n % 7,
                        .dtype = ML_WEIGHT_F32,
                        .fn = kind == DRAWN_DRAFTS ? draft : NULL,
                        .ud = (void *)(uintptr_t)r->drawn,
                        .ngram = kind == NGRAM_DRAFTS,
                        .mtp = kind == MTP_DRAFTS ? r->dir : NULL,
                        .eagle3 = kind == EAGLE3_DRAFTS ? "tests/golden/eagle3/own" : NULL,
                        .model = kind == TWIN_DRAFTS ? r->dir : NULL };

    if (r->drafts & TREES) {
        o.topk = 2 + r->mix->n % 3;
        o.rows = o.topk * (o.n + 1) - 1;
    }
    return o;
}

/* comm NULL: one rank. */
static void run_rank(ml_comm *comm, void *ud) {
    const mix_run *r = ud;
    int rank = comm ? comm->rank : 0, open = r->mix->n;
    const model *m = &r->m[rank];
    received *h = r->h[rank];
    bool switched = !r->mix->switch_step, busy = true;
    ml_engine_opts o = r->o;
    ml_engine *e;
    ml_backend be;

    MUST(ml_backend_cpu_open(&be, r->n_thread, NULL, &err));
    be.async = r->overlap; /* like a device that computes asynchronously */
    o.kv_bytes = ml_kv_bytes(&m->spec, &be, (int32_t)o.kv_bytes);
    o.comm = comm;
    if (r->drafts)
        o.draft = draft_opts(r);
    MUST(ml_engine_open(&e, &m->spec, &m->weights[0], &be, &o, &err));
    memset(h, 0, sizeof *h * MAX_REQ);
    for (int32_t step = 0; open || busy || !switched; step++) {
        submit_at(e, r, step, h, &open);
        if (!switched && step >= r->mix->switch_step)
            switched = ml_engine_switch(e, &m->weights[1], r->mix->how) == ML_OK;
        busy = ml_engine_step(e);
        CHECK(step < 5000);
        if (step >= 5000)
            exit(1);
    }
    ml_engine_stats(e, &r->stats[rank]);
    ml_engine_close(e);
    ml_backend_close(&be);
}

/* Every rank drew the same tokens with the same log-probs. */
static void check_ranks(const mix_run *r, int n_rank, int mix_no) {
    for (int k = 1; k < n_rank; k++)
        for (int i = 0; i < r->mix->n; i++) {
            const received *a = &r->h[0][i], *b = &r->h[k][i];
            size_t n = (size_t)a->n;
            if (a->n == b->n && !memcmp(a->token, b->token, n * sizeof *a->token) &&
                !memcmp(a->logprob, b->logprob, n * sizeof *a->logprob) &&
                a->n_preempt == b->n_preempt && a->n_cached == b->n_cached)
                continue;
            ml_test_fail(__FILE__, __LINE__, "mix %d, request %d: rank %d parted", mix_no,
                         i, k);
        }
}

/* Runs a mix through an engine of n_rank ranks; adds preemptions, cached tokens, overlaps
 * to `seen`. */
static void run_mix(const fixture *f, const mix *m, bool overlap, int n_rank, drafts how,
                    const received *drawn, received (*h)[MAX_REQ], int *seen, int mix_no) {
    static const int threads[] = { 1, 1, 2, 2, 3, 8 };
    ml_gen_stats stats[MAX_RANK];
    mix_run r = { .m = n_rank > 1 ? f->rank : &f->whole,
                  .mix = m,
                  .o = random_opts(&f->whole.spec),
                  .drafts = how,
                  .drawn = drawn,
                  .dir = f->dir,
                  .overlap = overlap,
                  .n_thread = f->n_rank > 1 ? 1 : threads[rnd(6)],
                  .h = h,
                  .stats = stats };

    if (n_rank > 1) {
        ml_ranks_run(n_rank, run_rank, &r);
        check_ranks(&r, n_rank, mix_no);
    } else {
        run_rank(NULL, &r);
    }
    CHECK(stats->n_page_free + stats->n_page_cached == stats->n_page);
    seen[0] += (int)stats->n_preempt;
    seen[1] += (int)stats->n_cached_token;
    seen[2] += (int)stats->n_overlapped;
    seen[3] += (int)stats->n_accepted;
    seen[4] += (int)(stats->n_draft - stats->n_accepted);
    seen[5] += (int)stats->n_branched;
}

/* --- checks ----------------------------------------------------------------------- */

/* The reported routing of tokens whose keys were cached at the end equals that of a forward
 * over the whole sequence. */
static void check_routes(const fixture *f, const received *h, int route,
                         const int32_t *chosen, int mix_no, int i) {
    int32_t k = f->whole.spec.route[route].top_k,
            n_layer = f->whole.spec.route[route].n_layer;

    CHECK(h->n_routed[route] == h->n - 1);
    for (int32_t t = 0; t < h->n - 1; t++)
        for (int32_t layer = 0; layer < n_layer; layer++) {
            const int32_t *told = h->routed[route] + (t * n_layer + layer) * k;
            bool none = h->finish == ML_FINISH_ABORT && told[0] == -1;
            if (none || memcmp(told, chosen + (layer * h->n + t) * k,
                               (size_t)k * sizeof *told) == 0)
                continue;
            ml_test_fail(
                __FILE__, __LINE__,
                "mix %d, request %d, token %d of %d, layer %d (put back %d times): "
                "the engine told of %d, training chooses %d",
                mix_no, i, t, h->n, layer, h->n_preempt, told[0],
                chosen[(layer * h->n + t) * k]);
            return;
        }
}

static void check_version(fixture *f, const asked *a, const received *h, int v, int mix_no,
                          int i) {
    int32_t target[CONTEXT];
    float logprob[CONTEXT], entropy[CONTEXT];
    static int32_t chosen[ML_N_ROUTING][CONTEXT * MAX_ROUTE];
    ml_run run = { .weights = &f->whole.weights[v], .rows = &f->batch.rows };

    for (int k = 0; k < ML_N_ROUTING; k++)
        run.chosen[k] = chosen[k];
    ml_batch_clear(&f->batch);
    memcpy(target, h->token + 1, (size_t)(h->n - 1) * sizeof *target);
    target[h->n - 1] = ML_TARGET_SKIP;
    f->batch.rows.temperature = a->r.draw.temperature > 0 ? a->r.draw.temperature : 1;
    ml_batch_add(&f->batch, h->token, target, h->n, 0, NULL);
    ml_batch_set_adapter(&f->batch, a->r.adapter - 1);
    memset(chosen, 0, sizeof chosen);
    ml_plan_forward(f->plan, &run);
    ml_plan_read(f->plan, &f->batch.rows, logprob, entropy, NULL);
    for (int k = 0; k < ML_N_ROUTING; k++)
        if (f->whole.spec.route[k].top_k && h->end_version == f->whole.weights[v].version)
            check_routes(f, h, k, chosen[k], mix_no, i);
    for (int32_t k = 1; k < h->n; k++)
        if (h->version[k] == f->whole.weights[v].version &&
            (memcmp(&h->logprob[k], &logprob[k - 1], sizeof *logprob) != 0 ||
             memcmp(&h->entropy[k], &entropy[k - 1], sizeof *entropy) != 0)) {
            ml_test_fail(
                __FILE__, __LINE__,
                "mix %d, request %d, token %d of %d (prompt %d, version %d, put back "
                "%d times): rollout %a, training %a",
                mix_no, i, k, h->n, h->n_prompt, v + 1, h->n_preempt, (double)h->logprob[k],
                (double)logprob[k - 1]);
            return;
        }
}

/* Tokens agree up to the first of a newer version, or the end of an aborted request. */
static void check_same(const received *a, const received *b, int mix_no, int i) {
    for (int32_t k = a->n_prompt; k < a->n && k < b->n; k++) {
        if (a->version[k] != 1 || b->version[k] != 1)
            return;
        if (a->token[k] != b->token[k]) {
            ml_test_fail(__FILE__, __LINE__,
                         "mix %d, request %d: token %d is %d in one engine, %d in another",
                         mix_no, i, k, a->token[k], b->token[k]);
            return;
        }
    }
}

/* n_rank: ranks of the second engine; n_dp: its groups of data-parallel attention. */
static void check_groups(const char *dir, ml_weight_dtype dtype, int n_mix, int n_rank,
                         int n_dp, bool adapters, drafts how) {
    static received h[2][MAX_RANK][MAX_REQ];
    static mix m;
    fixture f;
    bool recurrent, routed = false;
    int seen[6] = { 0 };
    drafts kind = how & DRAFTS_KIND;

    state = 20261114 + (uint64_t)n_rank;
    open_fixture(&f, dir, dtype, n_rank, n_dp, adapters);
    for (int k = 0; k < n_mix; k++) {
        make_mix(&m, &f, k % 2);
        run_mix(&f, &m, k % 4 < 2, 1, NO_DRAFTS, NULL, h[0], seen, k);
        run_mix(&f, &m, k % 4 >= 2, n_rank, how, h[0][0], h[1], seen, k);
        for (int i = 0; i < m.n; i++) {
            for (int run = 0; run < 2; run++) {
                const received *r = &h[run][0][i];
                CHECK(r->n_end == 1);
                if (r->finish != ML_FINISH_ABORT)
                    CHECK(r->n == m.ask[i].r.n_prompt + m.ask[i].r.max_new ||
                          r->n == CONTEXT);
                for (int v = 0; v < N_VERSION && r->n > 1; v++)
                    check_version(&f, &m.ask[i], r, v, k, i);
            }
            check_same(&h[0][0][i], &h[1][0][i], k, i);
        }
    }
    /* The mixes must exercise preemption and the prefix cache (less of it with recurrent
     * state, which is reusable only where it was copied, and with adapters, each of which
     * has its own prefixes), and overlap (less of it where states are copied), unless
     * routing records rule it out.  Drafts need fewer steps, right ones far fewer. */
    recurrent = ml_kv_slot_bytes(&f.whole.spec, &f.whole.be) > 0;
    for (int i = 0; i < ML_N_ROUTING; i++)
        routed = routed || ml_spec_routing_width(&f.whole.spec, (ml_routing_kind)i) > 0;
    if (n_mix >= 20 && kind <= DRAWN_DRAFTS)
        CHECK(seen[0] > (how ? n_mix / 4 : n_mix) &&
              seen[1] > (recurrent ? 30 : 50) / (adapters ? 3 : 1) * n_mix &&
              (routed || seen[2] > (recurrent ? 1 : 5) * n_mix));
    CHECK(kind != DRAWN_DRAFTS || (seen[3] > 3 * n_mix && seen[4] > 0));
    CHECK(how != (DRAWN_DRAFTS | TREES) || seen[5] > n_mix / 4);
    CHECK(kind != MTP_DRAFTS || seen[3] + seen[4] > 3 * n_mix);
    CHECK(kind != EAGLE3_DRAFTS || seen[3] > 3 * n_mix);
    CHECK(kind != TWIN_DRAFTS || seen[3] > 10 * n_mix);
    close_fixture(&f);
}

static void check_mixes(const char *dir, ml_weight_dtype dtype, int n_mix, int n_rank,
                        bool adapters, drafts how) {
    check_groups(dir, dtype, n_mix, n_rank, 1, adapters, how);
}

static void check_model(const char *dir, ml_weight_dtype dtype, int n_mix, int n_rank) {
    check_mixes(dir, dtype, n_mix, n_rank, false, NO_DRAFTS);
}

#define MODELS(X)                                                                          \
    X(llama)                                                                               \
    X(qwen3)                                                                               \
    X(qwen3_moe)                                                                           \
    X(gemma2)                                                                              \
    X(glm4)

/* Families similar to those above: fewer mixes, or all of them with MILES_LONG. */
#define MORE_MODELS(X)                                                                     \
    X(llama_tied)                                                                          \
    X(mistral)                                                                             \
    X(qwen2)                                                                               \
    X(qwen3_moe_raw)                                                                       \
    X(gemma3_text)                                                                         \
    X(phi3)                                                                                \
    X(smollm3)                                                                             \
    X(llama4_text)                                                                         \
    X(olmo2)                                                                               \
    X(mixtral)                                                                             \
    X(gemma4_text)                                                                         \
    X(gemma3n_text)                                                                        \
    X(gemma4_text_moe)                                                                     \
    X(glm4_moe)                                                                            \
    X(minimax_m2)                                                                          \
    X(gpt_oss)                                                                             \
    X(glm4_moe_lite)                                                                       \
    X(deepseek_v3)                                                                         \
    X(deepseek_v32)                                                                        \
    X(deepseek_v4)                                                                         \
    X(glm_moe_dsa)                                                                         \
    X(qwen3_5_text)                                                                        \
    X(qwen3_next)                                                                          \
    X(nemotron_h)                                                                          \
    X(nemotron_h_latent)

/* The short tier runs the first mixes. */
static int fewer(int n_mix, int few) {
    return getenv("MILES_LONG") || few > n_mix ? n_mix : few;
}

#define TESTS(name)                                                                        \
    static void f32_##name(void) {                                                         \
        check_model(DATA #name, ML_WEIGHT_F32, fewer(N_MIX, 5), 1);                        \
    }                                                                                      \
    static void bf16_##name(void) {                                                        \
        check_model(DATA #name, ML_WEIGHT_BF16, fewer(N_MIX_BF16, 2), 1);                  \
    }
MODELS(TESTS)

#define MORE_TESTS(name)                                                                   \
    static void f32_##name(void) {                                                         \
        check_model(DATA #name, ML_WEIGHT_F32, fewer(N_MIX, 2), 1);                        \
    }                                                                                      \
    static void bf16_##name(void) {                                                        \
        check_model(DATA #name, ML_WEIGHT_BF16, fewer(N_MIX_BF16, 1), 1);                  \
    }
MORE_MODELS(MORE_TESTS)

/* Engines of several ranks: 8 are more than the models have key heads, 3 divide nothing. */
static void check_ranks_of(const char *dir) {
    static const int ranks[] = { 2, 3, 4, 8 };
    static const int dp[][2] = {
        { 2, 2 }, { 4, 2 }, { 6, 3 }, { 8, 8 }
    }; /* ranks, groups */

    if (!getenv("MILES_LONG")) {
        check_model(dir, ML_WEIGHT_F32, 1, 3);
        return;
    }
    for (int i = 0; i < 4; i++) {
        check_model(dir, ML_WEIGHT_F32, 1, ranks[i]);
        check_model(dir, ML_WEIGHT_BF16, 1, ranks[i]);
    }
    for (int i = 0; i < 4; i++) {
        check_groups(dir, ML_WEIGHT_F32, 1, dp[i][0], dp[i][1], false, NO_DRAFTS);
        check_groups(dir, ML_WEIGHT_BF16, 1, dp[i][0], dp[i][1], false, NO_DRAFTS);
    }
    check_groups(dir, ML_WEIGHT_F32, 1, 4, 2, false, DRAWN_DRAFTS);
}

/* Groups of one rank, keys that the ranks of a group divide, recurrent state, adapters, trees of
 * drafts. */
static void dp_attention(void) {
    check_groups(DATA "llama", ML_WEIGHT_F32, 1, 4, 2, true, NO_DRAFTS);
    check_groups(DATA "deepseek_v3", ML_WEIGHT_F32, 1, 3, 3, false, NO_DRAFTS);
    check_groups(DATA "qwen3_next", ML_WEIGHT_F32, 1, 2, 2, false, NO_DRAFTS);
    check_groups(DATA "llama", ML_WEIGHT_F32, 1, 4, 2, true, DRAWN_DRAFTS | TREES);
}

/* One engine has one rank, the other several. */
static void check_adapters(const char *dir) {
    check_mixes(dir, ML_WEIGHT_F32, 1, 3, true, NO_DRAFTS);
    if (!getenv("MILES_LONG"))
        return;
    check_mixes(dir, ML_WEIGHT_F32, N_MIX, 1, true, NO_DRAFTS);
    check_mixes(dir, ML_WEIGHT_BF16, 1, 2, true, NO_DRAFTS);
    check_mixes(dir, ML_WEIGHT_F32, 1, 8, true, NO_DRAFTS);
    check_groups(dir, ML_WEIGHT_F32, 1, 4, 2, true, NO_DRAFTS);
}

#define ADAPTER_TESTS(name)                                                                \
    static void adapters_##name(void) {                                                    \
        check_adapters(DATA #name);                                                        \
    }
MODELS(ADAPTER_TESTS)
MORE_MODELS(ADAPTER_TESTS)

#define ADAPTER_ROWS(name)                                                                 \
    { #name ": requests for adapters have the bits of training", adapters_##name, 300 },

/* A quantized base, with requests for adapters: one format for each of the first families, or
 * all formats and families with MILES_LONG. */
static void check_quantized(const char *dir) {
    static const ml_weight_dtype dtypes[] = { ML_WEIGHT_INT4,
                                              ML_WEIGHT_FP8,
                                              ML_WEIGHT_NF4,
                                              ML_WEIGHT_INT8,
                                              ML_WEIGHT_MXFP8,
                                              ML_WEIGHT_INT4_G128,
                                              ML_WEIGHT_FP8_BLOCKWISE,
                                              ML_WEIGHT_QAT,
                                              ML_WEIGHT_QAT_G128,
                                              ML_WEIGHT_QAT_F32_SCALE,
                                              ML_WEIGHT_QAT_G128_F32_SCALE };
    const size_t n = sizeof dtypes / sizeof *dtypes, first = strlen(dir) % n;

    for (size_t i = 0; i < (getenv("MILES_LONG") ? n : 1); i++)
        check_mixes(dir, dtypes[(first + i) % n], 1, 1, true, NO_DRAFTS);
}

/* Keys and values in 8 bits: one format, or with MILES_LONG all of them, also over ranks. */
static void check_kv_codes(const char *dir) {
    const int n = getenv("MILES_LONG") ? 3 : 1, first = (int)strlen(dir);

    for (int i = 0; i < n; i++) {
        kv_dtype = (ml_dtype)(ML_KV_E4M3 + (first + i) % 3);
        check_mixes(dir, ML_WEIGHT_BF16, fewer(3, 1), 1, false, NO_DRAFTS);
        if (n > 1)
            check_mixes(dir, ML_WEIGHT_F32, 1, 2, true, DRAWN_DRAFTS);
    }
}

#define KV_TESTS(name)                                                                     \
    static void kv_##name(void) {                                                          \
        check_kv_codes(DATA #name);                                                        \
    }
MODELS(KV_TESTS)

#define KV_ROWS(name)                                                                      \
    { #name ": a KV cache in 8 bits has the bits of training", kv_##name, 300 },

/* Sparse attention keeps its keys elsewhere: such models are refused. */
static void check_kv_of(const char *dir) {
    ml_spec s;
    ml_status st;
    ml_err why = { 0 };

    MUST(ml_spec_open(&s, dir, &err));
    st = ml_spec_check_kv(&s, ML_KV_E4M3, &why);
    ml_spec_close(&s);
    if (st == ML_OK)
        check_kv_codes(dir);
    else
        CHECK(st == ML_EUNSUP && strstr(why.msg, "sparse attention") &&
              (strstr(dir, "v32") || strstr(dir, "v4") || strstr(dir, "dsa")));
}

#define QUANTIZED_TESTS(name)                                                              \
    static void quantized_##name(void) {                                                   \
        check_quantized(DATA #name);                                                       \
    }
MODELS(QUANTIZED_TESTS)

#define MORE_DIRS(name) DATA #name,
static void kv_others(void) {
    static const char *const dirs[] = { DATA "deepseek_v3", DATA "deepseek_v32",
                                        MORE_MODELS(MORE_DIRS) };

    for (size_t i = 0; i < (getenv("MILES_LONG") ? sizeof dirs / sizeof *dirs : 2); i++)
        check_kv_of(dirs[i]);
}

static void quantized_others(void) {
    static const char *const dirs[] = { DATA "deepseek_v3", MORE_MODELS(MORE_DIRS) };

    for (size_t i = 0; i < (getenv("MILES_LONG") ? sizeof dirs / sizeof *dirs : 1); i++)
        check_quantized(dirs[i]);
}

/* Quantized releases, kept as they are stored where that is possible (docs/models.md): MXFP4 and
 * NVFP4, or with MILES_LONG all. */
static void quantized_stored(void) {
    static const char *const names[] = {
        "mxfp4_gpt_oss",
        "nvfp4_glm4_moe",
        "fp8_qwen3",
        "fp8_ue8m0_deepseek_v3",
        "mxfp8_qwen3_moe",
        "int4_ct_qwen3",
        "int4_kimi_deepseek_v3",
        "fp4_deepseek_v4",
        "gptq_qwen3_act_order",
        "awq_llama",
    };
    char dir[256];

    for (size_t i = 0; i < (getenv("MILES_LONG") ? sizeof names / sizeof *names : 2); i++) {
        snprintf(dir, sizeof dir, "tests/golden/quant/%s", names[i]);
        check_mixes(dir, ML_WEIGHT_STORED, 1, 1, true, NO_DRAFTS);
    }
}

#define QUANTIZED_ROWS(name)                                                               \
    { #name ": a quantized base has the bits of training", quantized_##name, 300 },

/* A model with recurrent layers verifies chains only. */
static bool is_without_trees(const char *dir) {
    ml_engine_opts o = { .context = 64, .max_running = 2, .chunk = 16 };
    ml_engine_memory mem;
    ml_backend be;
    ml_spec s;
    ml_err why;
    bool recurrent;

    MUST(ml_backend_cpu_open(&be, 1, NULL, &err));
    MUST(ml_spec_open(&s, dir, &err));
    o.draft = (ml_draft_opts){ .n = 3, .topk = 2, .rows = 7, .ngram = true };
    recurrent = ml_kv_slot_bytes(&s, &be) > 0;
    CHECK((ml_engine_measure(&mem, &s, &be, &o, &why) == ML_EUNSUP) == recurrent);
    CHECK(!recurrent || strstr(why.msg, "use --speculative-eagle-topk 1"));
    ml_spec_close(&s);
    ml_backend_close(&be);
    return recurrent;
}

static void check_trees(const char *dir, int n_mix) {
    if (is_without_trees(dir))
        return;
    check_mixes(dir, ML_WEIGHT_F32, fewer(N_MIX, n_mix), 1, false, DRAWN_DRAFTS | TREES);
    if (!getenv("MILES_LONG"))
        return;
    check_mixes(dir, ML_WEIGHT_F32, 2, 1, true, DRAWN_DRAFTS | TREES);
    check_mixes(dir, ML_WEIGHT_F32, 1, 3, false, DRAWN_DRAFTS | TREES);
}

/* Speculative decoding: a mix of each family; with MILES_LONG all of them. */
static void check_drafts(const char *dir, int n_mix) {
    check_mixes(dir, ML_WEIGHT_F32, fewer(N_MIX, n_mix), 1, false, DRAWN_DRAFTS);
    check_trees(dir, n_mix);
    if (!getenv("MILES_LONG"))
        return;
    check_mixes(dir, ML_WEIGHT_BF16, N_MIX_BF16, 1, false, DRAWN_DRAFTS);
    check_mixes(dir, ML_WEIGHT_F32, 2, 1, true, DRAWN_DRAFTS);
    check_mixes(dir, ML_WEIGHT_F32, 1, 3, false, DRAWN_DRAFTS);
}

static void mtp_deepseek_v3(void) {
    check_mixes("tests/golden/mtp/deepseek_v3", ML_WEIGHT_F32, fewer(N_MIX, 2), 1, false,
                MTP_DRAFTS);
    check_mixes("tests/golden/mtp/deepseek_v3", ML_WEIGHT_F32, fewer(N_MIX, 2), 1, false,
                MTP_DRAFTS | TREES);
}

static void mtp_mimo(void) {
    check_mixes("tests/golden/mtp/mimo", ML_WEIGHT_F32, fewer(N_MIX, 2), 1, false,
                MTP_DRAFTS);
}

static void mtp_qwen3_next(void) {
    check_mixes("tests/golden/mtp/qwen3_next", ML_WEIGHT_F32, fewer(N_MIX, 2), 1, false,
                MTP_DRAFTS);
}

static void eagle3_llama(void) {
    check_mixes("tests/golden/eagle3/target", ML_WEIGHT_F32, fewer(N_MIX, 2), 1, false,
                EAGLE3_DRAFTS);
    check_mixes("tests/golden/eagle3/target", ML_WEIGHT_F32, fewer(N_MIX, 2), 1, false,
                EAGLE3_DRAFTS | TREES);
}

static void twin_llama(void) {
    check_mixes(DATA "llama", ML_WEIGHT_F32, fewer(N_MIX, 2), 1, false, TWIN_DRAFTS);
    check_mixes(DATA "llama", ML_WEIGHT_F32, fewer(N_MIX, 2), 1, false,
                TWIN_DRAFTS | TREES);
}

static void ngram_llama(void) {
    check_mixes(DATA "llama", ML_WEIGHT_F32, fewer(N_MIX, 2), 1, false, NGRAM_DRAFTS);
    check_mixes(DATA "llama", ML_WEIGHT_F32, fewer(2, 1), 3, false, NGRAM_DRAFTS);
    check_mixes(DATA "llama", ML_WEIGHT_F32, fewer(N_MIX, 2), 1, false,
                NGRAM_DRAFTS | TREES);
}

#define DRAFT_TESTS(name)                                                                  \
    static void drafts_##name(void) {                                                      \
        check_drafts(DATA #name, 3);                                                       \
    }
#define MORE_DRAFT_TESTS(name)                                                             \
    static void drafts_##name(void) {                                                      \
        check_drafts(DATA #name, 1);                                                       \
    }
MODELS(DRAFT_TESTS)
MORE_MODELS(MORE_DRAFT_TESTS)

#define DRAFT_ROWS(name)                                                                   \
    { #name ": speculative decoding has the bits of plain decoding", drafts_##name, 300 },

#define RANK_TESTS(name)                                                                   \
    static void ranks_##name(void) {                                                       \
        check_ranks_of(DATA #name);                                                        \
    }
MODELS(RANK_TESTS)
MORE_MODELS(RANK_TESTS)

#define RANK_ROWS(name)                                                                    \
    { #name ": engines of several ranks have the bits of one", ranks_##name, 300 },

#define ROWS(name)                                                                         \
    { "f32 " #name ": rollout and training log-probs have the same bits", f32_##name,      \
      300 },                                                                               \
        { "bf16 " #name ": rollout and training log-probs have the same bits",             \
          bf16_##name, 300 },

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        MODELS(ROWS) MORE_MODELS(ROWS) MODELS(RANK_ROWS) MORE_MODELS(RANK_ROWS)
            MODELS(ADAPTER_ROWS) MORE_MODELS(ADAPTER_ROWS) MODELS(QUANTIZED_ROWS)
                MODELS(KV_ROWS) MODELS(DRAFT_ROWS) MORE_MODELS(DRAFT_ROWS){
                    "drafts of DeepSeek-V3's multi-token prediction change no bit",
                    mtp_deepseek_v3, 300 },
        { "drafts of MiMo's multi-token prediction change no bit", mtp_mimo, 300 },
        { "drafts of Qwen3-Next's multi-token prediction change no bit", mtp_qwen3_next,
          300 },
        { "drafts of an EAGLE-3 head change no bit", eagle3_llama, 300 },
        { "drafts of a draft model change no bit", twin_llama, 300 },
        { "a quantized base of other families has the bits of training", quantized_others,
          1800 },
        { "a quantized base as stored has the bits of training", quantized_stored, 600 },
        { "a KV cache in 8 bits of other families has the bits of training", kv_others,
          1800 },
        { "drafts by prompt lookup change no bit", ngram_llama, 300 },
        { "engines of several ranks have the bits of one with data-parallel attention",
          dp_attention, 300 },
        { 0 }
    };
    return ml_test_main(argc, argv, tests);
}
