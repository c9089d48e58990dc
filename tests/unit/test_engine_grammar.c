/* Requests with grammars in an engine: their answers follow them, in any batch. */
#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "tests/support/engine_fixture.h"
#include "tests/support/must.h"

enum { N_REQUEST = 10, EOS = 2 };

/* A character for each id of the model's vocabulary; 0 to 2 are special. */
static const char characters[] =
    "{}[]\":,.-+ 0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ_/()=<>";

static ml_tokenizer *make_tokenizer(void) {
    ml_text json = { 0 };
    ml_tokenizer *t;

    ml_text_printf(&json, "{\"model\":{\"type\":\"BPE\",\"merges\":[],\"vocab\":{");
    for (int id = 3; id < ML_FIXTURE_VOCAB; id++) {
        char c[2] = { characters[id - 3], 0 };
        ml_text_printf(&json, "%s", id > 3 ? "," : "");
        ml_json_quote(&json, ml_str_of(c[0] == ' ' ? "\xc4\xa0" : c));
        ml_text_printf(&json, ":%d", id);
    }
    ml_text_printf(&json, "}},\"decoder\":{\"type\":\"ByteLevel\"},\"added_tokens\":[");
    for (int id = 0; id < 3; id++)
        ml_text_printf(
            &json,
            "%s{\"id\":%d,\"content\":\"<|%d|>\",\"special\":true,\"single_word\":"
            "false,\"lstrip\":false,\"rstrip\":false,\"normalized\":false}",
            id ? "," : "", id, id);
    ml_text_printf(&json, "]}");
    MUST(ml_tokenizer_parse(&t, (ml_str){ json.ptr, json.len }, "test", &err));
    ml_text_release(&json);
    return t;
}

typedef struct setup {
    ml_tokenizer *tokenizer;
    ml_grammar_cache *cache;
    ml_engine_fixture f;
} setup;

static void begin(setup *s, int32_t max_running, int32_t n_page) {
    *s = (setup){ .tokenizer = make_tokenizer() };
    s->cache = ml_grammar_cache_new(
        &(ml_grammar_opts){ .tokenizer = s->tokenizer, .n_vocab = ML_FIXTURE_VOCAB });
    ml_engine_fixture_open(&s->f, ML_FIXTURE_MODEL);
    s->f.o.tokenizer = s->tokenizer;
    s->f.o.grammars = s->cache;
    s->f.o.max_running = max_running;
    s->f.o.max_waiting = N_REQUEST;
    if (n_page)
        s->f.o.kv_bytes = ml_kv_bytes(&s->f.spec, &s->f.be, n_page);
    ml_engine_fixture_start(&s->f);
}

static void end(setup *s) {
    ml_engine_fixture_close(&s->f);
    ml_grammar_cache_free(s->cache);
    ml_tokenizer_close(s->tokenizer);
}

static const ml_grammar_source sources[] = {
    { ML_GRAMMAR_NONE, { 0 } },
    { ML_GRAMMAR_REGEX, { "[a-c]{3,9}x", 11 } },
    { ML_GRAMMAR_JSON_SCHEMA, { "{\"type\":\"integer\",\"minimum\":100}", 32 } },
    { ML_GRAMMAR_EBNF, { "root ::= \"(\" root \")\" | \"<\" [0-9]{1,4} \">\"", 42 } },
};

static ml_gen_request request_of(int i) {
    ml_gen_request r = ml_fixture_request(20 + 3 * i, 60);

    r.grammar = sources[i % 4];
    r.draw.seed = 7;
    r.draw.sample = (uint64_t)i;
    r.draw.top_k = i % 3 == 2 ? 5 : 0;
    return r;
}

/* Requests first .. n - 1, together. */
static int32_t run(setup *s, ml_received *got, int first, int n) {
    int32_t n_preempt = 0;

    for (int i = first; i < n; i++) {
        ml_gen_request r = request_of(i);
        got[i] = (ml_received){ 0 };
        MUST(ml_engine_submit(s->f.e, &r, ml_receive, &got[i], (uint64_t)i + 1, &err));
    }
    while (ml_engine_step(s->f.e))
        continue;
    for (int i = first; i < n; i++)
        n_preempt += got[i].n_preempt;
    return n_preempt;
}

static void check_follows(setup *s, const ml_received *got, int i) {
    ml_text text = { 0 };
    ml_grammar *g;
    bool complete, accepted;

    MUST(ml_grammar_get(&g, s->cache, sources[i % 4], &err));
    ml_decode(s->tokenizer, &text, got->id, got->n, true);
    accepted = ml_grammar_accepts(g, (ml_str){ text.ptr, text.len }, &complete);
    if (got->finish == ML_FINISH_TOKEN ? !complete : !accepted)
        ml_test_fail(__FILE__, __LINE__, "request %d: %s", i, text.ptr);
    CHECK(got->finish != ML_FINISH_ABORT);
    ml_grammar_release(g);
    ml_text_release(&text);
}

static void answers_follow_grammars_in_any_batch(void) {
    static ml_received alone[N_REQUEST], batch[N_REQUEST];
    setup s;

    begin(&s, 1, 0);
    for (int i = 0; i < N_REQUEST; i++)
        run(&s, alone, i, i + 1);
    end(&s);
    begin(&s, 4, 9);
    CHECK(run(&s, batch, 0, N_REQUEST) > 0); /* so few pages that requests are preempted */
    for (int i = 0; i < N_REQUEST; i++) {
        CHECK(alone[i].n == batch[i].n && alone[i].finish == batch[i].finish);
        CHECK(memcmp(alone[i].id, batch[i].id, sizeof alone[i].id) == 0);
        CHECK(memcmp(alone[i].logprob, batch[i].logprob, sizeof alone[i].logprob) == 0);
        if (sources[i % 4].kind)
            check_follows(&s, &batch[i], i);
    }
    end(&s);
}

typedef struct scores {
    float logprob[ML_FIXTURE_CONTEXT];
    int32_t n;
} scores;

static void receive_scores(void *ud, const ml_gen_update *u) {
    scores *s = ud;
    for (int32_t i = 0; i < u->prompt.n; i++)
        s->logprob[s->n++] = u->prompt.logprob[i];
}

/* The reported log-probs are those of the model, so that training computes the same bits. */
static void log_probs_are_of_the_unmasked_distribution(void) {
    int32_t tokens[ML_FIXTURE_CONTEXT];
    ml_gen_request r = request_of(1);
    int32_t n_prompt = r.n_prompt;
    ml_received got = { 0 }, drawn = { 0 };
    scores scored = { 0 };
    setup s;

    begin(&s, 4, 0);
    MUST(ml_engine_submit(s.f.e, &r, ml_receive, &got, 1, &err));
    r.draw.dist = ML_DIST_DRAWN;
    MUST(ml_engine_submit(s.f.e, &r, ml_receive, &drawn, 2, &err));
    while (ml_engine_step(s.f.e))
        continue;
    memcpy(tokens, r.prompt, (size_t)n_prompt * sizeof *tokens);
    memcpy(tokens + n_prompt, got.id, (size_t)got.n * sizeof *tokens);
    r = ml_fixture_request(n_prompt + got.n, 0);
    r.prompt = tokens;
    r.score_from = n_prompt;
    MUST(ml_engine_submit(s.f.e, &r, receive_scores, &scored, 3, &err));
    while (ml_engine_step(s.f.e))
        continue;
    CHECK(scored.n == got.n && got.n > 3 && drawn.n == got.n);
    CHECK(memcmp(scored.logprob, got.logprob, (size_t)got.n * sizeof(float)) == 0);
    CHECK(memcmp(drawn.id, got.id, (size_t)got.n * sizeof *got.id) == 0);
    for (int32_t i = 0; i < got.n; i++) /* less mass is left, so each token has more */
        CHECK(drawn.logprob[i] > got.logprob[i]);
    CHECK(drawn.logprob[got.n - 1] == 0); /* the end token, alone */
    end(&s);
}

static void grammars_without_a_way_are_refused(void) {
    ml_gen_request r = request_of(1);
    ml_received got = { 0 };
    ml_err why = { 0 };
    setup s;

    begin(&s, 4, 0);
    r.grammar = (ml_grammar_source){ ML_GRAMMAR_REGEX, ml_str_of("a日") };
    MUST(ml_engine_submit(s.f.e, &r, ml_receive, &got, 1, &err));
    while (ml_engine_step(s.f.e))
        continue;
    CHECK(got.finish == ML_FINISH_ABORT && got.n == 1);
    CHECK_HAS(got.message, "no token of the vocabulary");
    r.grammar.text = ml_str_of("(");
    CHECK(ml_engine_submit(s.f.e, &r, ml_receive, &got, 2, &why) == ML_EUSAGE);
    CHECK_HAS(why.msg, "\"regex\"");
    /* A grammar that is complete ends before min_new. */
    r.grammar.text = ml_str_of("ab");
    r.min_new = 10;
    got = (ml_received){ 0 };
    MUST(ml_engine_submit(s.f.e, &r, ml_receive, &got, 3, &err));
    while (ml_engine_step(s.f.e))
        continue;
    CHECK(got.n == 3 && got.finish == ML_FINISH_TOKEN && got.matched == EOS);
    end(&s);
}

static const ml_test tests[] = {
    { "answers follow their grammars, the same alone and in any batch",
      answers_follow_grammars_in_any_batch },
    { "log-probs under a grammar are those of the model",
      log_probs_are_of_the_unmasked_distribution },
    { "a grammar that the vocabulary cannot continue ends the request",
      grammars_without_a_way_are_refused },
    { 0 },
};

int main(int argc, char **argv) {
    return ml_test_main(argc, argv, tests);
}
