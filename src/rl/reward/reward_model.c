#include "rl/reward/reward_model.h"

#include <pthread.h>
#include <string.h>

#include "base/json.h"
#include "rl/data/preference_sample.h"
#include "rl/reward/label.h"
#include "train/trainer.h"

/* A caller that waits for its score. */
typedef struct request {
    const miles_reward_in *in;
    float reward;
    ml_err err;
    ml_status st;
    bool done;
    struct request *next;
} request;

struct ml_reward_model {
    ml_arena arena; /* this struct is allocated in it */
    ml_reward_model_opts opts;
    ml_spec spec;
    ml_checkpoint *from;
    ml_backend be;
    ml_tokenizer *tokenizer;
    ml_chat_template *chat_template; /* NULL: none */
    ml_encoder *encoder;
    ml_arena loaded; /* with the weights */
    ml_weights weights;
    ml_trainer *trainer; /* NULL: not started */
    size_t bytes;
    pthread_mutex_t lock; /* protects the following fields */
    pthread_cond_t change;
    request *waiting, **last;
    bool busy; /* a caller scores; it alone uses encoder and trainer */
};

/* --- open and close -------------------------------------------------------------- */

static ml_status read_text(ml_reward_model *m, ml_err *err) {
    ml_err none;
    ml_status st = ml_tokenizer_open(&m->tokenizer, m->opts.dir, err);

    if (st != ML_OK)
        return st;
    m->encoder = ml_encoder_new(m->tokenizer);
    if (m->spec.pad_token == ML_NONE)
        m->spec.pad_token = ml_tokenizer_role(m->tokenizer, ML_TOKEN_PAD);
    if (ml_chat_template_open(&m->chat_template, m->opts.dir, NULL, &none) != ML_OK)
        m->chat_template = NULL;
    return ML_OK;
}

/* A language model has no score to give. */
static ml_status check_head(const ml_reward_model *m, ml_err *err) {
    if (ml_checkpoint_find(m->from, ml_str_of(ML_REWARD_HEAD ".weight"), NULL))
        return ML_OK;
    return ml_fail(err, ML_EFORMAT,
                   "%s has no tensor " ML_REWARD_HEAD ".weight: expected a reward model, a "
                   "sequence classification checkpoint with one label, such as miles "
                   "reward-model writes",
                   m->opts.dir);
}

static ml_status measure(ml_reward_model *m, ml_err *err) {
    int32_t n = (int32_t)m->opts.max_tokens, n_seq = n / 64 + 1;
    ml_plan_opts o = {
        .caps = { .n_token = n, .n_seq = n_seq, .n_loss = n, .n_page = n / ML_PAGE + n_seq }
    };
    ml_plan *plan = NULL;
    ml_status st = ml_plan_new(&plan, &m->spec, &m->be, o, err);

    if (st == ML_OK)
        m->bytes =
            ml_weights_bytes(&m->spec, m->from, ml_weights_dtype(&m->be, m->opts.dtype)) +
            ml_plan_act_bytes(plan) + ml_plan_scratch_bytes(plan);
    ml_plan_free(plan);
    return st;
}

static ml_status open_model(ml_reward_model *m, ml_err *err) {
    ml_status st =
        ml_spec_open_with(&m->spec, m->opts.dir, &(ml_spec_opts){ .reward = true }, err);

    if (st == ML_OK)
        st = ml_checkpoint_open(&m->from, m->opts.dir, err);
    if (st == ML_OK)
        st = ml_weights_check(&m->spec, m->from, err);
    if (st == ML_OK)
        st = check_head(m, err);
    if (st == ML_OK)
        st = ml_backend_open(&m->be, &m->opts.backend, err);
    if (st != ML_OK)
        return st;
    ml_spec_keep_kv(&m->spec, ml_weights_kv_dtype(&m->spec, m->from, m->opts.dtype));
    return measure(m, err);
}

ml_status ml_reward_model_open(ml_reward_model **out, const ml_reward_model_opts *o,
                               ml_err *err) {
    ml_reward_model *m;
    ml_arena arena;
    ml_status st;

    ml_arena_init(&arena, "reward model");
    m = ML_NEW(&arena, ml_reward_model, 1);
    m->arena = arena;
    m->opts = *o;
    m->last = &m->waiting;
    ml_arena_init(&m->loaded, "reward model");
    pthread_mutex_init(&m->lock, NULL);
    pthread_cond_init(&m->change, NULL);
    st = open_model(m, err);
    if (st == ML_OK)
        st = read_text(m, err);
    if (st != ML_OK) {
        ml_err_prefix(err, "--reward-model-path");
        ml_reward_model_close(m);
        m = NULL;
    }
    *out = m;
    return st;
}

size_t ml_reward_model_bytes(const ml_reward_model *m) {
    return m->bytes;
}

ml_status ml_reward_model_start(ml_reward_model *m, ml_err *err) {
    ml_trainer_opts o = { .use = ML_TRAINER_SCORES,
                          .lr = { .train_iters = 1, .global_batch_size = 1 },
                          .batch = { .dynamic = true, .max_tokens = m->opts.max_tokens } };
    ml_status st = ml_weights_load_part(&m->weights, &m->spec, m->from, m->opts.dtype, NULL,
                                        &m->be, &m->loaded, err);

    if (st == ML_OK)
        st = ml_trainer_open(&m->trainer, &m->spec, &m->weights, &m->be, &o, err);
    if (st != ML_OK)
        ml_err_prefix(err, "--reward-model-path");
    return st;
}

void ml_reward_model_stop(ml_reward_model *m) {
    ml_trainer_close(m->trainer);
    ml_weights_close(&m->weights);
    m->trainer = NULL;
    m->weights = (ml_weights){ 0 };
    ml_arena_release(&m->loaded);
    ml_arena_init(&m->loaded, "reward model");
}

void ml_reward_model_close(ml_reward_model *m) {
    ml_arena arena;

    if (!m)
        return;
    ml_reward_model_stop(m);
    ml_arena_release(&m->loaded);
    if (m->encoder)
        ml_encoder_free(m->encoder);
    ml_chat_template_close(m->chat_template);
    if (m->tokenizer)
        ml_tokenizer_close(m->tokenizer);
    if (m->be.name)
        ml_backend_close(&m->be);
    ml_checkpoint_close(m->from);
    ml_spec_close(&m->spec);
    pthread_cond_destroy(&m->change);
    pthread_mutex_destroy(&m->lock);
    arena = m->arena;
    ml_arena_release(&arena);
}

/* --- conversations ----------------------------------------------------------------- */

/* The row of training data that the sample would be. */
static ml_str row_of(ml_arena *a, const miles_reward_in *in) {
    ml_str response = ml_response(in), prompt = { in->prompt, in->prompt_len };
    ml_text t = { 0 };
    ml_str out;

    ml_text_printf(&t, "{\"prompt\": ");
    if (in->messages)
        ml_text_add(&t, in->messages, in->messages_len);
    else
        ml_json_quote(&t, in->prompt ? prompt : ml_str_of(""));
    ml_text_printf(&t, ", \"completion\": %s",
                   in->messages ? "[{\"role\": \"assistant\", \"content\": " : "");
    ml_json_quote(&t, response);
    ml_text_printf(&t, "%s, \"label\": 0}", in->messages ? "}]" : "");
    out = (ml_str){ ml_arena_str(a, t.ptr, t.len), t.len };
    ml_text_release(&t);
    return out;
}

static ml_status encode(ml_reward_model *m, ml_train_sample *out, const miles_reward_in *in,
                        ml_arena *a, ml_err *err) {
    ml_sft_text text = { .chat_template = m->chat_template,
                         .encoder = m->encoder,
                         .n_vocab = m->spec.n_vocab };
    ml_scored_row_opts o = { .single = true,
                             .end_token = ml_tokenizer_role(m->tokenizer, ML_TOKEN_EOS),
                             .pad_token = m->spec.pad_token };
    ml_prompt row = { .source = row_of(a, in) };
    ml_scored_row read;
    int32_t *token;
    ml_status st = ml_scored_row_read(&read, a, &text, &row, o, err);

    if (st != ML_OK)
        return st;
    /* The score is the value before one more token, which has no influence. */
    token = ML_NEW(a, int32_t, read.answer[0].n_token + 1);
    memcpy(token, read.answer[0].token, (size_t)read.answer[0].n_token * sizeof *token);
    token[read.answer[0].n_token] = token[read.answer[0].n_token - 1];
    *out = (ml_train_sample){ .token = token,
                              .n_token = read.answer[0].n_token + 1,
                              .n_response = 1 };
    return ML_OK;
}

/* Scores all requests of a list that can be encoded. */
static void score_list(ml_reward_model *m, request *list) {
    ml_train_sample *sample;
    float **reward;
    int32_t n = 0, at = 0;
    ml_err err = { 0 };
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "conversations");
    for (request *r = list; r; r = r->next)
        n++;
    sample = ML_NEW(&a, ml_train_sample, n);
    reward = ML_NEW(&a, float *, n);
    for (request *r = list; r; r = r->next) {
        r->st = encode(m, &sample[at], r->in, &a, &r->err);
        sample[at].rollout = at;
        reward[at] = &r->reward;
        at += r->st == ML_OK;
    }
    st = at ? ml_trainer_score(m->trainer, NULL, sample, at, reward, NULL, &err) : ML_OK;
    for (request *r = list; r; r = r->next)
        if (r->st == ML_OK && st != ML_OK) {
            r->st = st;
            r->err = err;
        }
    ml_arena_release(&a);
}

/* Scores all that wait; the lock is held before and after. */
static void score_waiting(ml_reward_model *m) {
    request *list = m->waiting, *next;

    m->waiting = NULL;
    m->last = &m->waiting;
    m->busy = true;
    pthread_mutex_unlock(&m->lock);
    score_list(m, list);
    pthread_mutex_lock(&m->lock);
    m->busy = false;
    for (request *r = list; r; r = next) {
        next = r->next;
        r->done = true; /* its caller may free it once the lock is released */
    }
    pthread_cond_broadcast(&m->change);
}

int ml_reward_model_grade(ml_reward_model *m, const miles_reward_in *in,
                          miles_reward_out *out, miles_error *err) {
    request r = { .in = in };

    pthread_mutex_lock(&m->lock);
    *m->last = &r;
    m->last = &r.next; /* cppcheck-suppress autoVariables ; until r.done */
    while (!r.done)
        if (m->busy)
            pthread_cond_wait(&m->change, &m->lock);
        else
            score_waiting(m);
    pthread_mutex_unlock(&m->lock);
    if (r.st != ML_OK)
        ml_str_copy(err->text, sizeof err->text, ml_str_of(r.err.msg));
    out->reward = (double)r.reward;
    return r.st != ML_OK;
}
