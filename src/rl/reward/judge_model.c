#include "rl/reward/judge_model.h"

#include <pthread.h>

#include "base/json.h"
#include "gen/local.h"
#include "io/end_tokens.h"
#include "text/chat/chat_template.h"

struct ml_judge_model {
    ml_arena arena; /* this struct is allocated in it */
    ml_judge_model_opts opts;
    ml_spec spec;
    ml_backend be;
    ml_tokenizer *tokenizer;
    ml_chat_template *chat_template;
    ml_end_tokens eos;
    ml_engine_opts engine;
    size_t bytes;
    ml_gen *gen; /* NULL: not started */
};

/* --- open and close -------------------------------------------------------------- */

static ml_status read_text(ml_judge_model *m, ml_err *err) {
    ml_status st = ml_tokenizer_open(&m->tokenizer, m->opts.dir, err);

    if (st == ML_OK)
        st = ml_chat_template_open(&m->chat_template, m->opts.dir, NULL, err);
    if (st == ML_OK)
        st = ml_end_tokens_read(&m->eos, m->opts.dir, err);
    if (st == ML_OK)
        ml_end_tokens_add(&m->eos, ml_tokenizer_role(m->tokenizer, ML_TOKEN_EOS));
    return st;
}

static void size_engine(ml_judge_model *m) {
    enum { CONTEXTS = 4, RUNNING = 64, WAITING = 1 << 24 };
    int64_t most = m->spec.max_position;

    m->engine =
        (ml_engine_opts){ .context =
                              (int32_t)(m->opts.context < most ? m->opts.context : most),
                          .max_running = RUNNING,
                          .max_waiting = WAITING,
                          .chunk = m->opts.prefill_chunk,
                          .eos = m->eos.id,
                          .n_eos = m->eos.n,
                          .tokenizer = m->tokenizer };
    m->engine.kv_bytes = CONTEXTS * (size_t)ml_kv_pages_for(m->engine.context) *
                         ml_kv_bytes(&m->spec, &m->be, 1);
}

static ml_status open_model(ml_judge_model *m, ml_err *err) {
    ml_checkpoint *from = NULL;
    ml_engine_memory need;
    ml_status st = ml_spec_open(&m->spec, m->opts.dir, err);

    if (st == ML_OK)
        st = ml_checkpoint_open(&from, m->opts.dir, err);
    if (st == ML_OK)
        st = ml_weights_check(&m->spec, from, err);
    if (st == ML_OK)
        st = ml_backend_open(&m->be, &m->opts.backend, err);
    if (st == ML_OK) {
        ml_spec_keep_kv(&m->spec, ml_weights_kv_dtype(&m->spec, from, m->opts.dtype));
        size_engine(m);
        st = ml_engine_measure(&need, &m->spec, &m->be, &m->engine, err);
    }
    if (st == ML_OK)
        m->bytes =
            ml_weights_bytes(&m->spec, from, ml_weights_dtype(&m->be, m->opts.dtype)) +
            need.kv + need.act + need.scratch;
    ml_checkpoint_close(from);
    return st;
}

ml_status ml_judge_model_open(ml_judge_model **out, const ml_judge_model_opts *o,
                              ml_err *err) {
    ml_judge_model *m;
    ml_arena arena;
    ml_status st;

    ml_arena_init(&arena, "judge model");
    m = ML_NEW(&arena, ml_judge_model, 1);
    m->arena = arena;
    m->opts = *o;
    st = read_text(m, err);
    if (st == ML_OK)
        st = open_model(m, err);
    if (st != ML_OK) {
        ml_err_prefix(err, "--judge-model-path");
        ml_judge_model_close(m);
        m = NULL;
    }
    *out = m;
    return st;
}

size_t ml_judge_model_bytes(const ml_judge_model *m) {
    return m->bytes;
}

ml_status ml_judge_model_start(ml_judge_model *m, ml_err *err) {
    ml_local_opts o = { .engine = m->engine,
                        .spec = &m->spec,
                        .be = &m->be,
                        .dir = m->opts.dir,
                        .dtype = m->opts.dtype,
                        .version = 1 };
    ml_status st = ml_local_open(&m->gen, &o, err);

    if (st != ML_OK)
        ml_err_prefix(err, "--judge-model-path");
    return st;
}

void ml_judge_model_stop(ml_judge_model *m) {
    if (m->gen)
        m->gen->close(m->gen);
    m->gen = NULL;
}

void ml_judge_model_close(ml_judge_model *m) {
    ml_arena arena;

    if (!m)
        return;
    ml_judge_model_stop(m);
    ml_chat_template_close(m->chat_template);
    if (m->tokenizer)
        ml_tokenizer_close(m->tokenizer);
    if (m->be.name)
        ml_backend_close(&m->be);
    ml_spec_close(&m->spec);
    arena = m->arena;
    ml_arena_release(&arena);
}

/* --- questions -------------------------------------------------------------------- */

/* A question whose reply is being generated. */
typedef struct asking {
    const ml_tokenizer *tokenizer;
    ml_text *reply;
    ml_text token; /* array of the reply's tokens (int32_t) */
    ml_status st;
    ml_err err;
    pthread_mutex_t lock;
    pthread_cond_t change;
    bool done;
} asking;

static void on_update(void *ud, const ml_gen_update *u) {
    asking *q = ud;
    bool stopped = u->finish == ML_FINISH_TOKEN;

    ml_text_add(&q->token, (const char *)u->answer.id,
                (size_t)u->answer.n * sizeof *u->answer.id);
    if (u->finish == ML_FINISH_NOT)
        return;
    pthread_mutex_lock(&q->lock);
    if (u->finish == ML_FINISH_ABORT)
        q->st = ml_fail(&q->err, ML_EIO, "the judge did not reply: %.*s",
                        (int)u->message.len, u->message.ptr);
    else
        ml_decode(q->tokenizer, q->reply, (const int32_t *)(const void *)q->token.ptr,
                  (int64_t)(q->token.len / sizeof(int32_t)) - stopped, true);
    q->done = true;
    pthread_cond_signal(&q->change);
    pthread_mutex_unlock(&q->lock);
}

static ml_status generate(ml_judge_model *m, ml_text *reply, const ml_gen_request *r,
                          ml_err *err) {
    asking q = { .tokenizer = m->tokenizer, .reply = reply };
    uint64_t ticket;
    ml_status st;

    pthread_mutex_init(&q.lock, NULL);
    pthread_cond_init(&q.change, NULL);
    st = m->gen->submit(m->gen, r, on_update, &q, &ticket, err);
    pthread_mutex_lock(&q.lock);
    while (st == ML_OK && !q.done)
        pthread_cond_wait(&q.change, &q.lock);
    pthread_mutex_unlock(&q.lock);
    if (st == ML_OK && q.st != ML_OK) {
        *err = q.err;
        st = q.st;
    }
    ml_text_release(&q.token);
    pthread_cond_destroy(&q.change);
    pthread_mutex_destroy(&q.lock);
    return st;
}

/* The question as the message of a user, with the generation prompt. */
static ml_status encode(const ml_judge_model *m, ml_tokens *out, ml_str question,
                        ml_arena *a, ml_err *err) {
    ml_chat chat = { .add_generation_prompt = true };
    ml_encoder *encoder;
    ml_jinja_text text;
    ml_text json = { 0 };
    ml_str source;
    ml_status st;

    ml_text_printf(&json, "[{\"role\": \"user\", \"content\": ");
    ml_json_quote(&json, question);
    ml_text_printf(&json, "}]");
    source = (ml_str){ ml_arena_str(a, json.ptr, json.len), json.len };
    ml_text_release(&json);
    st = ml_json_parse(&chat.messages, a, source, "the judge's question", err);
    if (st == ML_OK)
        st = ml_chat_render(&text, a, m->chat_template, &chat, NULL, err);
    if (st != ML_OK)
        return st;
    encoder = ml_encoder_new(m->tokenizer);
    st = ml_encode(encoder, out, text.text, (ml_encode_opts){ 0 }, err);
    ml_encoder_free(encoder);
    return st;
}

ml_status ml_judge_model_ask(ml_judge_model *m, ml_text *reply, ml_str question,
                             const ml_llm_judge_opts *how, uint64_t seed, ml_err *err) {
    ml_tokens token = { 0 };
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "a judge's question");
    st = encode(m, &token, question, &a, err);
    if (st == ML_OK && token.n >= m->engine.context)
        st = ml_fail(err, ML_EUSAGE,
                     "the judge's question has %lld tokens, but --judge-context-length "
                     "allows %d with the reply: raise it, or shorten the responses",
                     (long long)token.n, m->engine.context);
    if (st == ML_OK) {
        int64_t left = m->engine.context - token.n;
        st = generate(
            m, reply,
            &(ml_gen_request){
                .prompt = token.id,
                .n_prompt = (int32_t)token.n,
                .draw = { .temperature = (float)how->temperature,
                          .top_p = 1,
                          .repetition = 1,
                          .seed = seed },
                .max_new = (int32_t)(how->max_tokens < left ? how->max_tokens : left),
                .score_from = -1 },
            err);
    }
    ml_tokens_release(&token);
    ml_arena_release(&a);
    return st;
}
