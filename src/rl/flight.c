#include "rl/flight.h"

#include <stdio.h>
#include <string.h>

void ml_flights_init(ml_flights *f, const ml_asker *at, const ml_sampling *how,
                     const ml_dataset *dataset, ml_arena *a) {
    *f = (ml_flights){ .at = at,
                       .how = how,
                       .dataset = dataset,
                       .arena = a,
                       .encoder = ml_encoder_new(at->tokenizer) };
    pthread_mutex_init(&f->lock, NULL);
    pthread_cond_init(&f->change, NULL);
}

void ml_flights_release(ml_flights *f) {
    ml_encoder_free(f->encoder);
    pthread_cond_destroy(&f->change);
    pthread_mutex_destroy(&f->lock);
}

/* --- landing: the generator's thread ------------------------------------------ */

/* On a reward thread. */
static void take_reward(void *ud, const ml_reward_result *r) {
    ml_flight *x = ud;

    x->outcome = r->outcome;
    x->sample.has_reward = r->outcome == ML_REWARD_OK;
    x->sample.reward = x->sample.has_reward ? r->reward : 0.0;
    if (!x->sample.has_reward)
        snprintf(x->why, sizeof x->why, "%s", r->why);
}

static void ask_for_reward(ml_flight *x) {
    const ml_sample *s = &x->sample;

    for (int32_t i = 0; i < s->n_token; i++)
        x->wide[i] = s->token[i];
    x->question = (miles_reward_in){ .size = sizeof x->question,
                                     .index = s->index,
                                     .seed = (int64_t)x->all->how->seed,
                                     .prompt = s->prompt.ptr,
                                     .prompt_len = s->prompt.len,
                                     .response = s->response.ptr,
                                     .response_len = s->response.len,
                                     .label = s->label.len ? s->label.ptr : NULL,
                                     .label_len = s->label.len,
                                     .metadata = s->metadata.len ? s->metadata.ptr : NULL,
                                     .metadata_len = s->metadata.len,
                                     .token = x->wide,
                                     .n_token = s->n_token };
    ml_rewards_submit(x->all->at->rewards, &x->question, take_reward, x);
}

static void take_text(ml_flight *x) {
    ml_sample *s = &x->sample;
    ml_text t = { 0 };

    ml_decode(x->all->at->tokenizer, &t, s->token + s->n_token - s->n_response,
              s->n_response, x->all->how->skip_special);
    s->response = (ml_str){ ml_arena_str(x->all->arena, t.ptr ? t.ptr : "", t.len), t.len };
    ml_text_release(&t);
}

static ml_sample_status status_of(ml_finish finish) {
    switch (finish) {
    case ML_FINISH_LENGTH: return ML_SAMPLE_TRUNCATED;
    case ML_FINISH_ABORT: return ML_SAMPLE_ABORTED;
    default: return ML_SAMPLE_COMPLETED;
    }
}

static void land(ml_flight *x, const ml_gen_update *u) {
    ml_flights *f = x->all;

    x->sample.status = status_of(u->finish);
    x->sample.n_cached = u->n_cached;
    x->ended = true;
    if (u->finish == ML_FINISH_ABORT)
        snprintf(x->why, sizeof x->why, "%.*s", (int)u->message.len, u->message.ptr);
    f->n_drawn += x->sample.n_response;
    take_text(x);
    if (f->at->rewards && u->finish != ML_FINISH_ABORT)
        ask_for_reward(x);
    pthread_mutex_lock(&f->lock);
    f->n_open--;
    pthread_cond_signal(&f->change);
    pthread_mutex_unlock(&f->lock);
}

static void take_tokens(void *ud, const ml_gen_update *u) {
    ml_flight *x = ud;
    ml_sample *s = &x->sample;

    for (int32_t i = 0; i < u->answer.n; i++) {
        x->token[s->n_token++] = u->answer.id[i];
        s->logprob[s->n_response] = u->answer.logprob[i];
        s->version[s->n_response++] = u->answer.version[i];
    }
    if (u->finish != ML_FINISH_NOT)
        land(x, u);
}

/* --- starting ----------------------------------------------------------------- */

/* A group's prompt, as all its samples share it. */
typedef struct shared_prompt {
    ml_tokens ids;
    ml_str text, label, metadata;
} shared_prompt;

static ml_status render(ml_flights *f, shared_prompt *d, const ml_prompt *p, ml_err *err) {
    ml_chat chat = { .messages = p->messages,
                     .tools = p->tools,
                     .add_generation_prompt = true,
                     .kwargs = f->dataset->template_kwargs };
    ml_jinja_text text;
    ml_status st;

    d->text = p->text;
    if (!p->messages)
        return ML_OK;
    if (!f->at->chat_template)
        return ml_fail(err, ML_EFORMAT,
                       "the prompt is a list of messages, and the checkpoint has no chat "
                       "template: name one with --chat-template-path");
    st = ml_chat_render(&text, f->arena, f->at->chat_template, &chat, NULL, err);
    if (st == ML_OK)
        d->text = text.text;
    return st;
}

/* As it is written in the row. */
static ml_str source_of(ml_str row, const ml_json *v) {
    return v && v->type != ML_JSON_NULL ? (ml_str){ row.ptr + v->begin, v->end - v->begin }
                                        : (ml_str){ 0 };
}

static ml_status read_prompt(ml_flights *f, shared_prompt *d, const ml_group *group,
                             ml_err *err) {
    ml_prompt prompt;
    ml_str row = ml_jsonl_row(&f->dataset->rows, group->row);
    ml_status st = ml_dataset_prompt(&prompt, f->dataset, group->row, f->arena, err);

    if (st != ML_OK)
        return st;
    st = render(f, d, &prompt, err);
    if (st == ML_OK)
        st = ml_encode(f->encoder, &d->ids, d->text, (ml_encode_opts){ 0 }, err);
    if (st != ML_OK)
        ml_err_prefix(err, "%s:%lld", f->dataset->rows.file.path,
                      (long long)ml_jsonl_line(&f->dataset->rows, group->row));
    d->label = source_of(row, prompt.label);
    d->metadata = source_of(row, prompt.metadata);
    return st;
}

static ml_flight *new_flight(ml_flights *f, const shared_prompt *d, const ml_group *group,
                             int32_t i) {
    ml_flight *x = ML_NEW(f->arena, ml_flight, 1);
    int32_t n = (int32_t)d->ids.n, max_new = f->how->max_new;

    x->all = f;
    x->token = ML_NEW(f->arena, int32_t, n + max_new);
    x->wide = ML_NEW(f->arena, int64_t, n + max_new);
    memcpy(x->token, d->ids.id, (size_t)n * sizeof *x->token);
    x->sample = (ml_sample){ .index = group->first_index + i,
                             .group = group->group_index,
                             .rollout = group->first_index + i,
                             .row = group->row,
                             .prompt = d->text,
                             .label = d->label,
                             .metadata = d->metadata,
                             .token = x->token,
                             .n_token = n,
                             .logprob = ML_NEW(f->arena, float, max_new + 1),
                             .version = ML_NEW(f->arena, uint64_t, max_new + 1),
                             .n_turn = 1 };
    return x;
}

static ml_status launch(ml_flight *x, uint64_t draw, ml_err *err) {
    ml_flights *f = x->all;
    const ml_sampling *how = f->how;
    ml_gen_request ask = { .prompt = x->token,
                           .n_prompt = x->sample.n_token,
                           .draw = { .temperature = how->temperature,
                                     .top_k = how->top_k,
                                     .top_p = how->top_p,
                                     .repetition = 1,
                                     .seed = how->seed,
                                     .sample = draw },
                           .max_new = how->max_new - x->sample.n_response,
                           .stop = how->stop,
                           .n_stop = how->n_stop,
                           .stop_id = how->stop_id,
                           .n_stop_id = how->n_stop_id,
                           .score_from = -1 };
    ml_status st;

    pthread_mutex_lock(&f->lock);
    f->n_open++;
    pthread_mutex_unlock(&f->lock);
    st = f->at->gen->submit(f->at->gen, &ask, take_tokens, x, &x->ticket, err);
    if (st == ML_OK)
        return ML_OK;
    pthread_mutex_lock(&f->lock);
    f->n_open--;
    pthread_mutex_unlock(&f->lock);
    return st;
}

ml_status ml_flights_start(ml_flights *f, ml_flight **out, const ml_group *group,
                           uint64_t draw, ml_err *err) {
    shared_prompt d = { 0 };
    ml_status st = read_prompt(f, &d, group, err);

    for (int32_t i = 0; i < group->n_sample && st == ML_OK; i++) {
        out[i] = new_flight(f, &d, group, i);
        st = launch(out[i], draw + (uint64_t)i, err);
    }
    ml_tokens_release(&d.ids);
    return st;
}

/* With arrays of the full length, filled as far as the sample goes. */
static ml_flight *old_flight(ml_flights *f, const ml_sample *s, bool mask_old) {
    ml_flight *x = ML_NEW(f->arena, ml_flight, 1);
    int32_t max_new = f->how->max_new, n_prompt = s->n_token - s->n_response;
    uint8_t *mask = mask_old ? ML_NEW(f->arena, uint8_t, max_new + 1) : NULL;

    x->all = f;
    x->token = ML_NEW(f->arena, int32_t, n_prompt + max_new);
    x->wide = ML_NEW(f->arena, int64_t, n_prompt + max_new);
    ml_sample_copy(&x->sample, f->arena, s);
    x->sample.token = memcpy(x->token, s->token, (size_t)s->n_token * sizeof *s->token);
    x->sample.logprob = ML_NEW(f->arena, float, max_new + 1);
    x->sample.version = ML_NEW(f->arena, uint64_t, max_new + 1);
    for (int32_t t = 0; t < s->n_response; t++) {
        x->sample.logprob[t] = s->logprob[t];
        x->sample.version[t] = s->version[t];
    }
    for (int32_t t = s->n_response; mask && t < max_new; t++)
        mask[t] = 1;
    x->ended = s->status == ML_SAMPLE_COMPLETED || s->status == ML_SAMPLE_TRUNCATED;
    if (mask)
        x->sample.mask = mask;
    if (x->ended && !s->has_reward)
        x->outcome = ML_REWARD_INVALID;
    return x;
}

ml_status ml_flights_resume(ml_flights *f, ml_flight **out, const ml_sample *s, int32_t n,
                            bool mask_old, ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0; i < n && st == ML_OK; i++) {
        out[i] = old_flight(f, &s[i], mask_old);
        if (out[i]->ended)
            continue;
        f->n_drawn -= s[i].n_response; /* landing counts all of them */
        st = launch(out[i], (uint64_t)s[i].index, err);
    }
    return st;
}

void ml_flights_abort(ml_flights *f, ml_flight *const *flight, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (flight[i] && !flight[i]->ended)
            f->at->gen->abort(f->at->gen, flight[i]->ticket);
}

void ml_flights_wait(ml_flights *f) {
    pthread_mutex_lock(&f->lock);
    while (f->n_open > 0 || !f->done)
        pthread_cond_wait(&f->change, &f->lock);
    pthread_mutex_unlock(&f->lock);
    if (f->at->rewards)
        ml_rewards_wait(f->at->rewards);
}

void ml_flights_done(ml_flights *f) {
    pthread_mutex_lock(&f->lock);
    f->done = true;
    pthread_cond_signal(&f->change);
    pthread_mutex_unlock(&f->lock);
}
