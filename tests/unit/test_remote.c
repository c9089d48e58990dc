/* A generator behind HTTP gives what the same engine gives in process, bit for bit. */
#include <math.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "gen/local.h"
#include "gen/remote.h"
#include "net/http_server.h"
#include "serve/server.h"
#include "tests/support/log_text.h"
#include "tests/support/must.h"

#define MODEL "tests/golden/data/qwen3"
#define MOE_MODEL "tests/golden/data/qwen3_moe"
#define VOCAB 83
#define CONTEXT 128
#define N 6

/* --- a server of this process ------------------------------------------------------- */

typedef struct host {
    ml_arena arena;
    ml_spec spec;
    ml_backend be;
    ml_gen *gen;
    ml_loop *loop;
    ml_server *server;
    pthread_t thread;
    char url[64];
    bool routed; /* a model with experts, whose choices are kept */
} host;

static void *serve(void *ud) {
    ml_loop_run(ud);
    return NULL;
}

static void open_engine(host *h) {
    ml_local_opts o = { .engine = { .context = CONTEXT,
                                    .max_running = 4,
                                    .max_waiting = 64,
                                    .chunk = 32,
                                    .max_top = 8 },
                        .spec = &h->spec,
                        .be = &h->be,
                        .dir = h->routed ? MOE_MODEL : MODEL,
                        .version = 3 };
    o.engine.routed[ML_ROUTING_EXPERTS] = h->routed;
    ml_arena_init(&h->arena, "test");
    MUST(ml_spec_open(&h->spec, o.dir, &err));
    MUST(ml_backend_cpu_open(&h->be, 1, NULL, &err));
    MUST(ml_local_open(&h->gen, &o, &err));
}

static void open_host_of(host *h, bool routed, const char *api_key) {
    *h = (host){ .routed = routed };
    open_engine(h);
    MUST(ml_loop_new(&h->loop, &err));
    MUST(ml_server_open(&h->server, h->loop,
                        &(ml_server_opts){ .host = "127.0.0.1",
                                           .gen = h->gen,
                                           .n_vocab = VOCAB,
                                           .context = CONTEXT,
                                           .model_path = MODEL,
                                           .model_name = "test",
                                           .model_type = "qwen3",
                                           .load_format = "auto",
                                           .weight_version = "3",
                                           .access.api_key = api_key,
                                           .version = "test",
                                           .max_body = 1 << 20,
                                           .max_connections = 100,
                                           .drain_s = 5 },
                        &err));
    snprintf(h->url, sizeof h->url, "http://127.0.0.1:%d", ml_server_port(h->server));
    pthread_create(&h->thread, NULL, serve, h->loop);
}

static void open_host(host *h, const char *api_key) {
    open_host_of(h, false, api_key);
}

static void close_engine(host *h) {
    h->gen->close(h->gen);
    ml_backend_close(&h->be);
    ml_spec_close(&h->spec);
    ml_arena_release(&h->arena);
}

static void close_host(host *h) {
    ml_loop_stop(h->loop);
    pthread_join(h->thread, NULL);
    close_engine(h);
    ml_server_close(h->server);
    ml_loop_free(h->loop);
}

static ml_gen *open_remote(const char *url, const char *api_key, int32_t n_attempt) {
    ml_gen *g;
    MUST(ml_remote_open(&g,
                        &(ml_remote_opts){ .url = &url,
                                           .n_url = 1,
                                           .api_key = api_key,
                                           .n_attempt = n_attempt,
                                           .retry_s = 0.05,
                                           .connect_s = 5,
                                           .idle_s = 30 },
                        &err));
    return g;
}

/* --- requests --------------------------------------------------------------------- */

typedef struct received {
    pthread_mutex_t lock;
    pthread_cond_t cond;
    int32_t id[2 * CONTEXT], top_id[2 * CONTEXT][2];
    float logprob[2 * CONTEXT], entropy[2 * CONTEXT], top[2 * CONTEXT][2];
    uint64_t version[2 * CONTEXT];
    int32_t n, n_prompt, matched, n_end;
    bool no_top; /* the request asks for no top log-probs */
    ml_finish finish;
    char message[400];
    int32_t routed[2 * CONTEXT * 16], n_routed;
    int64_t width;
} received;

static void take(received *h, const ml_scored *s) {
    for (int32_t i = 0; i < s->n; i++, h->n++) {
        h->id[h->n] = s->id[i];
        h->logprob[h->n] = s->logprob[i];
        h->version[h->n] = s->version[i];
        for (int k = 0; k < 2 && !h->no_top; k++) {
            h->top_id[h->n][k] = s->top_id[i * 2 + k];
            h->top[h->n][k] = s->top_logprob[i * 2 + k];
        }
    }
}

static void hear(void *ud, const ml_gen_update *u) {
    received *h = ud;
    pthread_mutex_lock(&h->lock);
    take(h, &u->prompt);
    h->n_prompt += u->prompt.n;
    for (int32_t i = 0; i < u->answer.n; i++)
        h->entropy[h->n + i] = u->answer.entropy[i];
    take(h, &u->answer);
    h->n_routed = u->routed[ML_ROUTING_EXPERTS].n;
    h->width = u->routed[ML_ROUTING_EXPERTS].width;
    if (h->n_routed)
        memcpy(h->routed, u->routed[ML_ROUTING_EXPERTS].row,
               (size_t)(h->n_routed * h->width) * sizeof *h->routed);
    h->finish = u->finish;
    h->matched = u->matched;
    h->n_end += u->finish != ML_FINISH_NOT;
    snprintf(h->message, sizeof h->message, "%.*s", (int)u->message.len, u->message.ptr);
    pthread_cond_broadcast(&h->cond);
    pthread_mutex_unlock(&h->lock);
}

static void await_end(received *h) {
    pthread_mutex_lock(&h->lock);
    while (!h->n_end)
        pthread_cond_wait(&h->cond, &h->lock);
    pthread_mutex_unlock(&h->lock);
}

static int32_t numbers[CONTEXT], stop_id[] = { 11 };

static ml_gen_request ask(int i) {
    for (int32_t k = 0; k < CONTEXT; k++)
        numbers[k] = (k * 7 + 5) % VOCAB;
    return (ml_gen_request){ .prompt = numbers,
                             .n_prompt = 5 + 9 * i,
                             .max_new = 30,
                             .draw = { .temperature = i % 2 ? 1 : 0.8f,
                                       .top_p = 1,
                                       .top_k = i % 3 ? 20 : 0,
                                       .repetition = 1,
                                       .seed = 42,
                                       .sample = (uint64_t)i },
                             .stop_id = stop_id,
                             .n_stop_id = 1,
                             .score_from = i % 2 ? 2 : -1,
                             .n_top = 2 };
}

static void init(received *h) {
    memset(h, 0, sizeof *h);
    pthread_mutex_init(&h->lock, NULL);
    pthread_cond_init(&h->cond, NULL);
}

static void run(ml_gen *g, received *h) {
    uint64_t ticket;
    for (int i = 0; i < N; i++) {
        ml_gen_request r = ask(i);
        init(&h[i]);
        MUST(g->submit(g, &r, hear, &h[i], &ticket, &err));
    }
    for (int i = 0; i < N; i++)
        await_end(&h[i]);
}

/* Everything from `id` on but the locks. */
static void check_equal(const received *a, const received *b) {
    CHECK(a->n == b->n && a->n_prompt == b->n_prompt && a->n > 0);
    CHECK(a->finish == b->finish && a->matched == b->matched);
    CHECK(memcmp(a->id, b->id, sizeof a->id) == 0);
    CHECK(memcmp(a->logprob, b->logprob, sizeof a->logprob) == 0);
    CHECK(memcmp(a->entropy, b->entropy, sizeof a->entropy) == 0);
    CHECK(memcmp(a->top_id, b->top_id, sizeof a->top_id) == 0);
    CHECK(memcmp(a->top, b->top, sizeof a->top) == 0);
    CHECK(memcmp(a->version, b->version, sizeof a->version) == 0);
}

/* --- tests ------------------------------------------------------------------------ */

static void ask_routed(ml_gen *g, received *h, int32_t from) {
    ml_gen_request r = ask(3);
    uint64_t ticket;

    r.routed[ML_ROUTING_EXPERTS] = true;
    r.routed_from = from;
    init(h);
    MUST(g->submit(g, &r, hear, h, &ticket, &err));
    await_end(h);
}

/* Which experts tokens went to, of all but the last, or from some token on. */
static void choices_come_along(void) {
    static received there, here, rest, refused;
    host h, own = { .routed = true };
    ml_gen *g;

    open_host_of(&h, true, NULL);
    open_engine(&own);
    g = open_remote(h.url, NULL, 3);
    ask_routed(g, &there, 0);
    ask_routed(own.gen, &here, 0);
    ask_routed(g, &rest, 7); /* its prompt is in the cache now */
    check_equal(&there, &here);
    CHECK(here.width == ml_spec_routing_width(&own.spec, ML_ROUTING_EXPERTS));
    CHECK(here.n_routed == ask(3).n_prompt + here.n - here.n_prompt - 1);
    CHECK(there.n_routed == here.n_routed && there.width == here.width);
    CHECK(memcmp(there.routed, here.routed, sizeof here.routed) == 0);
    CHECK(rest.n_routed == here.n_routed - 7);
    CHECK(memcmp(rest.routed, here.routed + 7 * here.width,
                 (size_t)(rest.n_routed * here.width) * sizeof(int32_t)) == 0);
    g->close(g);
    close_host(&h);
    close_engine(&own);

    open_host(&h, NULL);
    g = open_remote(h.url, NULL, 3);
    ask_routed(g, &refused, 0);
    CHECK(refused.finish == ML_FINISH_ABORT);
    CHECK_HAS(refused.message, "--enable-return-routed-experts");
    g->close(g);
    close_host(&h);
}

static void the_same_as_in_process(void) {
    static received there[N], here[N];
    host h, own = { 0 };
    ml_gen *g;

    open_host(&h, "secret");
    open_engine(&own);
    g = open_remote(h.url, "secret", 3);
    run(g, there);
    run(own.gen, here);
    for (int i = 0; i < N; i++)
        check_equal(&here[i], &there[i]);
    g->close(g);
    close_engine(&own);
    close_host(&h);
}

static void servers_are_controlled(void) {
    static received a;
    host h;
    ml_gen *g;
    ml_gen_stats s;
    ml_gen_request r = ask(0);
    uint64_t ticket;
    ml_err why = { 0 };

    open_host(&h, NULL);
    g = open_remote(h.url, NULL, 1);
    MUST(g->load(g, MODEL, 9, ML_SWITCH_RECOMPUTE, &err));
    CHECK(g->load(g, "no/such/place", 10, ML_SWITCH_RECOMPUTE, &why) == ML_EPEER);
    CHECK_HAS(why.msg, "no/such/place");
    h.gen->stats(h.gen, &s);
    CHECK(s.version == 9);
    g->pause(g);
    init(&a);
    r.ignore_eos = true;
    MUST(g->submit(g, &r, hear, &a, &ticket, &err));
    h.gen->stats(h.gen, &s);
    CHECK(s.paused);
    g->abort(g, ticket);
    await_end(&a);
    CHECK(a.finish == ML_FINISH_ABORT);
    g->resume(g);
    CHECK(g->flush(g));
    h.gen->stats(h.gen, &s);
    CHECK(!s.paused);
    g->close(g);
    close_host(&h);
}

static void what_fails_is_said(void) {
    static received a;
    ml_gen *g = open_remote("http://127.0.0.1:1", NULL, 2); /* nobody listens there */
    ml_gen_request r = ask(0);
    uint64_t ticket;

    init(&a);
    MUST(g->submit(g, &r, hear, &a, &ticket, &err));
    await_end(&a);
    CHECK(a.finish == ML_FINISH_ABORT);
    CHECK_HAS(a.message, "127.0.0.1:1");
    g->close(g);
}

typedef struct picks {
    int n;
    size_t longest; /* body */
} picks;

static int32_t pick_second(void *ud, const ml_remote_choice *server, int32_t n,
                           ml_str body) {
    picks *p = ud;

    CHECK(n == 2 && server[1].usable && server[1].n_call == 0 && server[1].n_sent == p->n);
    CHECK(body.len && body.ptr[0] == '{');
    p->n++;
    p->longest = body.len > p->longest ? body.len : p->longest;
    return 1;
}

static void close_picks(void *ud) {
    ((picks *)ud)->longest = 0;
}

/* Nobody listens at the first address, and there is one attempt. */
static void a_policy_selects_the_server(void) {
    const char *url[2] = { "http://127.0.0.1:1" };
    static received a;
    picks p = { 0 };
    host h;
    ml_gen *g;
    ml_gen_request r = ask(0);
    uint64_t ticket;

    open_host(&h, NULL);
    url[1] = h.url;
    MUST(ml_remote_open(&g,
                        &(ml_remote_opts){ .url = url,
                                           .n_url = 2,
                                           .n_attempt = 1,
                                           .connect_s = 5,
                                           .policy = { pick_second, close_picks, &p } },
                        &err));
    for (int i = 1; i <= 3; i++) {
        init(&a);
        MUST(g->submit(g, &r, hear, &a, &ticket, &err));
        await_end(&a);
        CHECK(a.finish != ML_FINISH_ABORT && p.n == i);
    }
    CHECK(p.longest > 0);
    g->close(g);
    CHECK(p.longest == 0);
    close_host(&h);
}

static void a_wrong_key_is_not_tried_for_ever(void) {
    static received a;
    host h;
    ml_gen *g;
    ml_gen_request r = ask(0);
    uint64_t ticket;

    open_host(&h, "secret");
    g = open_remote(h.url, "guess", 2);
    init(&a);
    MUST(g->submit(g, &r, hear, &a, &ticket, &err));
    await_end(&a);
    CHECK(a.finish == ML_FINISH_ABORT);
    CHECK_HAS(a.message, "401");
    g->close(g);
    close_host(&h);
}

/* --- servers that lie ----------------------------------------------------------- */

/* A server that answers what it is given, the last of it for ever. */
typedef struct liar {
    ml_loop *loop;
    ml_http_server *server;
    pthread_t thread;
    char url[64];
    const char *const *reply; /* a leading '!': with status 503; "": it never answers */
    int n_reply;
    atomic_int n_asked;
    atomic_int health; /* the status of its health; 0: it never answers */
    atomic_bool hangs; /* at everything else */
} liar;

static void answer(void *ud, ml_http_call *c) {
    liar *l = ud;
    const char *reply = l->reply[l->n_asked < l->n_reply ? l->n_asked : l->n_reply - 1];
    bool health = ml_str_is(ml_http_path(c), "/health_generate");

    if (!health && !ml_str_is(ml_http_path(c), "/generate")) {
        if (!l->hangs)
            ml_http_reply(c, 200, "application/json", ml_str_of("{}"));
        return;
    }
    if (health) {
        if (l->health)
            ml_http_reply(c, l->health, "text/plain", ml_str_of(""));
        return;
    }
    l->n_asked++;
    if (!*reply)
        return;
    ml_http_reply(c, *reply == '!' ? 503 : 200, "application/json",
                  ml_str_of(reply + (*reply == '!')));
}

static void open_liar(liar *l, const char *const *reply, int n_reply) {
    *l = (liar){ .reply = reply, .n_reply = n_reply, .health = 200 };
    MUST(ml_loop_new(&l->loop, &err));
    MUST(ml_http_server_open(&l->server, l->loop, "127.0.0.1", 0,
                             (ml_http_limits){ 65536, 1 << 20, 10, 30, 8 << 20 }, answer, l,
                             &err));
    snprintf(l->url, sizeof l->url, "http://127.0.0.1:%d/", ml_http_server_port(l->server));
    pthread_create(&l->thread, NULL, serve, l->loop);
}

static void close_liar(liar *l) {
    ml_loop_stop(l->loop);
    pthread_join(l->thread, NULL);
    ml_http_server_close(l->server);
    ml_loop_free(l->loop);
}

#define REPLY(rest)                                                                        \
    "{\"text\":\"x\",\"meta_info\":{\"finish_reason\":{\"type\":\"length\"},"              \
    "\"weight_version\":\"default\"," rest "}}"
#define TWO "\"output_token_logprobs\":[[-0.5,7,null],[-1.25,8,null]]"

static void failures_are_tried_again(void) {
    static const char *const reply[] = { "!busy", "{\"text\":", REPLY(TWO) };
    static received a;
    ml_gen *g;
    ml_gen_request r = ask(0);
    uint64_t ticket;
    liar l;

    open_liar(&l, reply, 3);
    g = open_remote(l.url, NULL, 5);
    init(&a);
    a.no_top = true;
    r.n_top = 0;
    MUST(g->submit(g, &r, hear, &a, &ticket, &err));
    await_end(&a);
    CHECK(l.n_asked == 3 && a.finish == ML_FINISH_LENGTH && a.n == 2);
    CHECK(a.id[1] == 8 && a.logprob[1] == -1.25f && isnan(a.entropy[1]));
    g->close(g);
    close_liar(&l);
}

/* Asks one question of a server that always answers this. */
static void ask_liar(received *h, const ml_gen_request *r, const char *reply,
                     int32_t n_attempt) {
    const char *url;
    uint64_t ticket;
    ml_spec spec;
    ml_gen *g;
    liar l;

    open_liar(&l, &reply, 1);
    url = l.url;
    MUST(ml_spec_open(&spec, MODEL, &err));
    MUST(ml_remote_open(&g,
                        &(ml_remote_opts){ .url = &url,
                                           .n_url = 1,
                                           .spec = &spec,
                                           .n_attempt = n_attempt,
                                           .retry_s = 0.01,
                                           .connect_s = 5 },
                        &err));
    init(h);
    h->no_top = r->n_top == 0;
    MUST(g->submit(g, r, hear, h, &ticket, &err));
    await_end(h);
    g->close(g);
    ml_spec_close(&spec);
    close_liar(&l);
}

/* What is not an answer to the question is not taken for one. */
static void lies_are_refused(void) {
    static const struct {
        const char *reply, *why;
        int32_t n_top, score_from;
        bool routed;
    } lie[] = {
        { REPLY("\"output_token_logprobs\":[[-1,1],[-1,2],[-1,3]]"),
          "has 3 tokens; expected at most 2", 0, -1, false },
        { REPLY("\"output_token_logprobs\":[[-1,83]]"),
          "token 83; the largest token id is 82", 0, -1, false },
        { REPLY("\"output_token_logprobs\":[[-1,4294967303]]"), "token 4294967303", 0, -1,
          false },
        { REPLY("\"output_token_logprobs\":[[-1,-1]]"), "expected a whole number >= 0", 0,
          -1, false },
        { REPLY("\"output_token_logprobs\":[[null,1]]"), "no log-prob for token 0", 0, -1,
          false },
        { REPLY("\"output_token_logprobs\":[[-1e39,1]]"), "expected a finite number", 0, -1,
          false },
        { REPLY("\"output_token_logprobs\":[[-1e999,1]]"), "expected a finite number", 0,
          -1, false },
        { REPLY("\"output_token_logprobs\":[7]"), "output_token_logprobs", 0, -1, false },
        { REPLY("\"output_token_logprobs\":{\"a\":1}"), "is missing", 0, -1, false },
        { REPLY("\"n\":1"), "output_token_logprobs of the reply is missing", 0, -1, false },
        { REPLY(TWO ",\"output_token_versions\":[1]"), "each of 2 tokens", 0, -1, false },
        { REPLY(TWO ",\"output_token_versions\":[1,-1]"), "output_token_versions", 0, -1,
          false },
        { REPLY(TWO ",\"output_token_entropy\":[1,1,1]"), "each of 2 tokens", 0, -1,
          false },
        { REPLY(TWO), "output_top_logprobs of the reply is missing", 2, -1, false },
        { REPLY(TWO ",\"output_top_logprobs\":[[[-1,1],[-1,2]]]"), "each of 2 tokens", 2,
          -1, false },
        { REPLY(TWO ",\"output_top_logprobs\":[[[-1,83],[-1,2]],[[-1,1],[-1,2]]]"),
          "token 83", 2, -1, false },
        { REPLY(TWO ",\"input_token_logprobs\":[[null,5],[-1,12]]"), "expected 4", 0, 2,
          false },
        { REPLY(TWO ",\"input_token_logprobs\":[[null,5],[-1,12],[-1,19],[-1,26],[-1,33],"
                    "[-1,40]]"),
          "expected at most 4", 0, 2, false },
        { REPLY(TWO ",\"input_token_logprobs\":[[null,5],[-1,12],[-1,19],[-1,26]]"),
          "has token 5, but the prompt has 12", 0, 2, false },
        { REPLY(TWO), "routed_experts", 0, -1, true },
        { REPLY(TWO ",\"routed_experts\":\"AAAA\""), "routed_experts", 0, -1, true },
        { "{\"meta_info\":{\"weight_version\":\"99999999999999999999\",\"finish_reason\":"
          "{\"type\":\"length\"}," TWO "}}",
          "more than 18 digits", 0, -1, false },
        { "{\"meta_info\":{\"finish_reason\":{\"type\":\"tired\"}," TWO "}}",
          "is not stop, length or abort", 0, -1, false },
        { "{\"meta_info\":{\"finish_reason\":{\"type\":\"stop\",\"matched\":83}," TWO "}}",
          "finish_reason.matched", 0, -1, false },
        { "[]", "no meta_info", 0, -1, false },
        { " ", "", 0, -1, false },
    };
    static received h;

    for (size_t i = 0; i < sizeof lie / sizeof *lie; i++) {
        ml_gen_request r = ask(0);
        r.max_new = 2;
        r.n_top = lie[i].n_top;
        r.score_from = lie[i].score_from;
        r.routed[ML_ROUTING_EXPERTS] = lie[i].routed;
        ask_liar(&h, &r, lie[i].reply, 1);
        CHECK(h.finish == ML_FINISH_ABORT && h.n == 0);
        CHECK_HAS(h.message, lie[i].why);
    }
}

/* Neither is a prompt of other tokens sent. */
static void prompts_are_checked(void) {
    static const char *const url[] = { "http://127.0.0.1:1" };
    static received h;
    ml_gen_request r = ask(0);
    ml_err why = { 0 };
    uint64_t ticket;
    ml_spec spec;
    ml_gen *g;

    MUST(ml_spec_open(&spec, MODEL, &err));
    MUST(ml_remote_open(&g, &(ml_remote_opts){ .url = url, .n_url = 1, .spec = &spec },
                        &err));
    numbers[2] = VOCAB;
    CHECK(g->submit(g, &r, hear, &h, &ticket, &why) == ML_EUSAGE);
    CHECK_HAS(why.msg, "prompt 2 is token 83; expected 0 to 82");
    g->close(g);
    ml_spec_close(&spec);
}

/* Where attempts have no end, those at a server that only lies do. */
static void a_liar_is_given_up(void) {
    static received h;
    ml_gen_request r = ask(0);

    r.max_new = 2;
    r.n_top = 0;
    ask_liar(&h, &r, REPLY("\"output_token_logprobs\":[[-1,83]]"), 0);
    CHECK(h.finish == ML_FINISH_ABORT);
    CHECK_HAS(h.message, "8 invalid replies in a row");
    CHECK_HAS(h.message, "token 83");
}

/* Those who tell the truth go on. */
static void a_liar_among_others(void) {
    static const char *const lie[] = { REPLY("\"output_token_logprobs\":[[-1,83]]") };
    static received there[N], here[N];
    const char *url[2];
    int n;
    ml_text log = { 0 };
    host h, own = { 0 };
    liar l;
    ml_gen *g;

    open_host(&h, NULL);
    open_engine(&own);
    open_liar(&l, lie, 1);
    url[0] = l.url;
    url[1] = h.url;
    ml_log_to_text(&log);
    MUST(ml_remote_open(
        &g,
        &(ml_remote_opts){
            .url = url, .n_url = 2, .spec = &own.spec, .retry_s = 0.01, .connect_s = 5 },
        &err));
    for (int i = 0; l.n_asked < 8 && i < 100; i++)
        run(g, there);
    n = l.n_asked;
    run(g, there);
    run(own.gen, here);
    for (int i = 0; i < N; i++)
        check_equal(&here[i], &there[i]);
    CHECK(n >= 8 && l.n_asked == n);
    g->close(g);
    CHECK_HAS(log.ptr, "is not used any more: 8 invalid replies in a row");
    close_liar(&l);
    close_engine(&own);
    close_host(&h);
    ml_text_release(&log);
}

/* The bytes of a reply are bounded by what was asked for. */
static void a_reply_has_an_end(void) {
    static received h;
    ml_gen_request r = ask(0);
    char *huge = calloc(1, (4 << 20) + 1);

    r.max_new = 2;
    r.n_top = 0;
    memset(huge, ' ', 4 << 20);
    ask_liar(&h, &r, huge, 1);
    CHECK(h.finish == ML_FINISH_ABORT);
    CHECK_HAS(h.message, "the reply exceeds the limit of ");
    free(huge);
}

/* --- servers that hang ----------------------------------------------------------- */

static ml_gen *open_watched(const char *const *url, int n_url, ml_remote_opts o) {
    ml_gen *g;

    o.url = url;
    o.n_url = n_url;
    o.retry_s = 0.02;
    o.connect_s = 5;
    MUST(ml_remote_open(&g, &o, &err));
    return g;
}

/* A hung server keeps connections and answers nothing: others are asked. */
static void what_a_hung_server_owes_goes_to_others(void) {
    static const char *const silence[] = { "" };
    static received there[N], here[N];
    const char *url[2];
    ml_text log = { 0 };
    host h, own = { 0 };
    liar l;
    ml_gen *g;

    open_host(&h, NULL);
    open_engine(&own);
    open_liar(&l, silence, 1);
    l.health = 0;
    url[0] = l.url;
    url[1] = h.url;
    ml_log_to_text(&log);
    g = open_watched(
        url, 2, (ml_remote_opts){ .check_s = 0.3, .check_timeout_s = 0.3, .warn_s = 0.05 });
    run(g, there);
    run(own.gen, here);
    for (int i = 0; i < N; i++)
        check_equal(&here[i], &there[i]);
    CHECK(l.n_asked > 0);
    g->close(g);
    CHECK_HAS(log.ptr, " has not replied for ");
    CHECK_HAS(log.ptr, " s: /generate, and ");
    close_liar(&l);
    close_engine(&own);
    close_host(&h);
    ml_text_release(&log);
}

static void ask_hung(liar *l, ml_remote_opts o, const char *why) {
    static received a;
    const char *url = l->url;
    ml_gen *g = open_watched(&url, 1, o);
    ml_gen_request r = ask(0);
    uint64_t ticket;

    init(&a);
    MUST(g->submit(g, &r, hear, &a, &ticket, &err));
    await_end(&a);
    CHECK(a.finish == ML_FINISH_ABORT);
    CHECK_HAS(a.message, why);
    g->close(g);
}

static void hung_servers_are_found_out(void) {
    static const char *const silence[] = { "" };
    liar l;

    open_liar(&l, silence, 1);
    /* It is well, and yet does not answer. */
    ask_hung(&l, (ml_remote_opts){ .n_attempt = 2, .request_s = 0.2 },
             "/generate: the reply was not complete within 0.2 s");
    /* It says that it is not well. */
    l.health = 503;
    ask_hung(&l, (ml_remote_opts){ .n_attempt = 1, .check_s = 0.05, .check_timeout_s = 5 },
             "/health_generate returned 3 times status 503");
    /* It does not say anything. */
    l.health = 0;
    ask_hung(&l,
             (ml_remote_opts){ .n_attempt = 1, .check_s = 0.05, .check_timeout_s = 0.1 },
             "/health_generate: the reply was not complete within 0.1 s");
    close_liar(&l);
}

/* It answers at once, and never what was asked for. */
static void a_server_that_is_always_busy(void) {
    static const char *const busy[] = { "!busy" };
    ml_text log = { 0 };
    liar l;

    open_liar(&l, busy, 1);
    ml_log_to_text(&log);
    ask_hung(&l, (ml_remote_opts){ .request_s = 0.4, .warn_s = 0.1 },
             "no engine has answered a request for 0.4 s: ");
    CHECK_HAS(log.ptr, "returned status 503: busy");
    close_liar(&l);
    ml_text_release(&log);
}

/* It says that it has loaded the weights, and has others. */
static void a_server_with_other_weights(void) {
    static const char *const old[] = { REPLY(TWO) };
    static received a;
    ml_gen_request r = ask(0);
    const char *url;
    uint64_t ticket;
    ml_gen *g;
    liar l;

    open_liar(&l, old, 1);
    url = l.url;
    g = open_watched(&url, 1, (ml_remote_opts){ 0 });
    MUST(g->load(g, MODEL, 9, ML_SWITCH_RECOMPUTE, &err));
    init(&a);
    a.no_top = true;
    r.n_top = 0;
    MUST(g->submit(g, &r, hear, &a, &ticket, &err));
    await_end(&a);
    CHECK(a.finish == ML_FINISH_ABORT);
    CHECK_HAS(a.message, "8 replies to one request had older weights; the last: ");
    CHECK_HAS(a.message, "has weights of version 0, not 9");
    g->close(g);
    close_liar(&l);
}

/* One that claims weights nobody has published would make all others look old. */
static void a_server_with_future_weights(void) {
    static const char *const future[] = {
        "{\"meta_info\":{\"finish_reason\":{\"type\":\"length\"},\"weight_version\":"
        "\"7\"," TWO "}}",
        "{\"meta_info\":{\"finish_reason\":{\"type\":\"length\"},\"weight_version\":"
        "\"9\"," TWO ",\"output_token_versions\":[9,10]}}",
        "{\"meta_info\":{\"finish_reason\":{\"type\":\"length\"},\"weight_version\":"
        "\"10\"," TWO "}}",
        "{\"meta_info\":{\"finish_reason\":{\"type\":\"length\"},\"weight_version\":"
        "\"9\"," TWO "}}",
    };
    static received a;
    ml_gen_request r = ask(0);
    ml_text log = { 0 };
    ml_gen_stats s;
    const char *url;
    uint64_t ticket;
    ml_gen *g;
    liar l;

    open_liar(&l, future, 4);
    url = l.url;
    ml_log_to_text(&log);
    g = open_watched(&url, 1, (ml_remote_opts){ 0 });
    MUST(g->load(g, MODEL, 9, ML_SWITCH_RECOMPUTE, &err));
    init(&a);
    a.no_top = true;
    r.n_top = 0;
    MUST(g->submit(g, &r, hear, &a, &ticket, &err));
    await_end(&a);
    CHECK(a.finish == ML_FINISH_LENGTH && l.n_asked == 4 && a.version[1] == 9);
    g->stats(g, &s);
    CHECK(s.version == 9);
    g->close(g);
    CHECK_HAS(log.ptr, "has weights of version 7, not 9");
    CHECK_HAS(log.ptr, "replied with weights of version 10; the newest version is 9");
    close_liar(&l);
    ml_text_release(&log);
}

/* Pausing, loading and closing come to an end, too. */
static void control_of_hung_servers_ends(void) {
    static const char *const silence[] = { "" };
    ml_text log = { 0 };
    const char *url;
    ml_err why = { 0 };
    ml_gen *g;
    liar l;

    open_liar(&l, silence, 1);
    l.hangs = true;
    l.health = 0;
    url = l.url;
    ml_log_to_text(&log);
    g = open_watched(
        &url, 1,
        (ml_remote_opts){
            .request_s = 0.5, .check_s = 0.1, .check_timeout_s = 0.1, .warn_s = 0.05 });
    g->pause(g);
    CHECK(g->load(g, MODEL, 9, ML_SWITCH_RECOMPUTE, &why) == ML_EPEER);
    CHECK_HAS(why.msg, "no successful reply to /update_weights_from_disk for 0.5 s: ");
    CHECK_HAS(why.msg, "127.0.0.1");
    g->resume(g);
    CHECK(ml_remote_check(g, &why) == ML_EPEER);
    CHECK_HAS(why.msg, "an engine is not reachable");
    g->close(g);
    CHECK_HAS(log.ptr, " s: /update_weights_from_disk, and ");
    close_liar(&l);
    ml_text_release(&log);
}

int main(int argc, char **argv) {
    static const ml_test tests[] = {
        { "a remote engine returns expert choices", choices_come_along },
        { "a remote engine gives the bits of one in process", the_same_as_in_process },
        { "a remote engine is paused, loaded and continued", servers_are_controlled },
        { "a remote engine that is down aborts requests with a reason",
          what_fails_is_said },
        { "a remote engine that refuses the key is not retried for ever",
          a_wrong_key_is_not_tried_for_ever },
        { "a policy selects the server of a request", a_policy_selects_the_server },
        { "busy and broken replies are retried", failures_are_tried_again },
        { "a reply that does not answer the request is refused", lies_are_refused },
        { "a prompt with unknown tokens is not sent", prompts_are_checked },
        { "a server whose every reply is wrong is given up", a_liar_is_given_up },
        { "requests go around a server with wrong replies", a_liar_among_others },
        { "a reply longer than the request allows is refused", a_reply_has_an_end },
        { "requests of a hung server go to others",
          what_a_hung_server_owes_goes_to_others },
        { "a server that never answers times out", hung_servers_are_found_out },
        { "a server that is always busy times out", a_server_that_is_always_busy },
        { "a server with other weights than it claims is refused",
          a_server_with_other_weights },
        { "a server with weights that were never published is refused",
          a_server_with_future_weights },
        { "pausing and loading a hung server time out", control_of_hung_servers_ends },
        { 0 },
    };
    return ml_test_main(argc, argv, tests);
}
