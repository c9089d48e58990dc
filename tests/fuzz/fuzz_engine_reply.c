/* Any bytes as an engine's answer to a request for a sample: refused with a sentence, or a sample
 * that training can take.  The first byte chooses what was asked for. */
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "base/bug.h"
#include "gen/remote_priv.h"
#include "rl/rollout/group.h"
#include "rl/learn/train_rows.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { N_VOCAB = 50, N_PROMPT = 3, N_HELD = 2, MAX_NEW = 6, TOP = 2, LAYERS = 2 };

/* A generator whose one server answers this. */
typedef struct engine {
    ml_gen gen;
    ml_str reply;
    bool scores, each, sglang; /* each: ids per position, of SGLang or of miles serve */
} engine;

static ml_spec spec = {
    .n_vocab = N_VOCAB,
    .route = { [ML_ROUTING_EXPERTS] = { LAYERS, TOP }, [ML_ROUTING_KEYS] = { LAYERS, TOP } }
};

static void check_scored(const ml_scored *s, const ml_gen_request *r) {
    for (int32_t i = 0; i < s->n; i++) {
        ML_BUG_IF(s->id[i] < 0 || s->id[i] >= N_VOCAB || isinf(s->logprob[i]));
        ML_BUG_IF(isinf(s->entropy[i]) || s->version[i] > INT64_MAX);
        for (int32_t k = 0; k < r->n_top; k++)
            ML_BUG_IF(s->top_id[i * r->n_top + k] < -1 ||
                      s->top_id[i * r->n_top + k] >= N_VOCAB);
        for (int32_t k = 0; k < r->n_also; k++)
            ML_BUG_IF(isinf(s->also_logprob[i * r->n_also + k]));
    }
}

static void check_update(const ml_gen_update *u, const ml_gen_request *r) {
    ML_BUG_IF(u->answer.n > r->max_new || u->finish == ML_FINISH_NOT);
    for (int32_t i = 0; i < u->answer.n; i++)
        ML_BUG_IF(!isfinite(u->answer.logprob[i]));
    check_scored(&u->answer, r);
    check_scored(&u->prompt, r);
    for (int i = 0; i < ML_N_ROUTING; i++)
        ML_BUG_IF(u->routed[i].n && u->routed[i].n != r->n_prompt + u->answer.n - 1);
}

/* The same bytes as an answer to a request that scores ids of each position. */
static void read_each(const engine *e, const ml_gen_request *asked, ml_arena *a) {
    static const int32_t also[][2] = { { 1, 2 }, { 3, -1 }, { -1, -1 }, { 4, 49 } };
    const ml_remote_opts opts = { .spec = &spec, .sglang = e->sglang };
    ml_gen_request r = { .prompt = asked->prompt,
                         .n_prompt = asked->n_prompt,
                         .score_from = asked->n_prompt - 4,
                         .n_top = TOP,
                         .also = also[0],
                         .n_also = 2,
                         .also_each = true };
    ml_gen_update u = { 0 };
    ml_err why = { 0 };

    ML_BUG_IF(asked->n_prompt < 5 || ml_remote_reply_bytes(&r, &opts) < 1000);
    if (ml_remote_read(&u, a, &r, &opts, e->reply, "engine", &why) == ML_OK)
        check_update(&u, &r);
}

static ml_status submit(ml_gen *g, const ml_gen_request *asked, ml_gen_fn *fn, void *ud,
                        uint64_t *ticket, ml_err *err) {
    const engine *e = (engine *)g;
    static const int32_t also[] = { 1, 2, 3 };
    const ml_remote_opts opts = { .spec = &spec };
    ml_gen_request r = *asked;
    ml_gen_update u = { 0 };
    ml_err why = { 0 };
    ml_arena a;

    (void)err;
    if (e->scores) {
        r.score_from = 1;
        r.n_top = TOP;
        r.also = also;
        r.n_also = 3;
    }
    ml_arena_init(&a, "reply");
    if (e->each)
        read_each(e, asked, &a);
    ML_BUG_IF(ml_remote_reply_bytes(&r, &opts) < 1000);
    if (ml_remote_read(&u, &a, &r, &opts, e->reply, "engine", &why) == ML_OK) {
        check_update(&u, &r);
    } else {
        ML_BUG_IF(!why.msg[0]);
        u = (ml_gen_update){ .finish = ML_FINISH_ABORT, .message = ml_str_of(why.msg) };
    }
    *ticket = 1;
    fn(ud, &u);
    ml_arena_release(&a);
    return ML_OK;
}

/* What comes of it can be written down, copied and made a row of a batch. */
static void use(ml_gen_task *x, ml_arena *a) {
    const ml_sample *s = &x->sample;
    ml_text line = { 0 };
    ml_sample copy;

    ML_BUG_IF(s->n_response > MAX_NEW || s->n_token != N_PROMPT + s->n_response);
    ML_BUG_IF(ml_sample_check(s, N_VOCAB, "sample", NULL) != ML_OK);
    ml_sample_copy(&copy, a, s);
    ml_sample_write(&line, &copy);
    (void)ml_train_rows_of(a, &s, 1);
    ml_text_release(&line);
}

static const ml_tokenizer *tokenizer(void) {
    static const char json[] =
        "{\"model\": {\"type\": \"BPE\", \"vocab\": {\"a\": 0, \"b\": 1, \"c\": 2}, "
        "\"merges\": []}}";
    static ml_tokenizer *t;

    ML_BUG_IF(!t && ml_tokenizer_parse(&t, ml_str_of(json), "tokenizer", NULL) != ML_OK);
    return t;
}

/* A sample that has some tokens already goes on. */
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size) {
    static const int32_t token[] = { 1, 2, 3, 4, 5 };
    float logprob[N_HELD] = { -1, -1 };
    uint64_t version[N_HELD] = { 1, 1 };
    ml_sample held = { .token = token,
                       .n_token = N_PROMPT + N_HELD,
                       .n_response = N_HELD,
                       .logprob = logprob,
                       .version = version,
                       .status = ML_SAMPLE_ABORTED };
    static engine e = { .gen = { .submit = submit } };
    static ml_gen_ctx gen_ctx = { .gen = &e.gen, .context = 100 };
    static ml_sampling how = { .max_new = MAX_NEW };
    static ml_group_set set; /* once: it has an encoder, which takes time to make */
    ml_gen_group *g;
    ml_arena a;

    if (size < 1)
        return 0;
    e.reply = (ml_str){ (const char *)data + 1, size - 1 };
    e.scores = data[0] & 1;
    e.each = data[0] & 8;
    e.sglang = data[0] & 16;
    how.routed[ML_ROUTING_EXPERTS] = data[0] & 2;
    how.routed[ML_ROUTING_KEYS] = data[0] & 4;
    how.support = data[0] & 32;
    ml_arena_init(&a, "sample");
    if (!gen_ctx.tokenizer) {
        gen_ctx.tokenizer = tokenizer();
        ml_group_set_init(&set, &gen_ctx, &how, NULL);
    }
    g = ml_group_set_add(&set, (ml_group){ .n_sample = 1 }, &a);
    ML_BUG_IF(ml_gen_group_resume(g, &held, false, NULL) != ML_OK);
    ml_group_list_remove(&set.groups, g);
    use(g->task[0], &a);
    ml_arena_release(&a);
    return 0;
}
