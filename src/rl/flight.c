#include "rl/flight.h"

#include <math.h>
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

static void open_one(ml_flights *f) {
    pthread_mutex_lock(&f->lock);
    f->n_open++;
    f->n_begun++;
    pthread_mutex_unlock(&f->lock);
}

/* From here on a flight belongs to who waits for it. */
static void close_one(ml_flight *x) {
    ml_flights *f = x->all;
    void (*landed)(void *ud, ml_flight *x) = f->landed;
    void *ud = f->landed_ud;

    pthread_mutex_lock(&f->lock);
    f->n_open--;
    pthread_cond_signal(&f->change);
    pthread_mutex_unlock(&f->lock);
    if (landed)
        landed(ud, x);
}

/* On a reward thread. */
static void take_reward(void *ud, const ml_reward_result *r) {
    ml_flight *x = ud;

    x->outcome = r->outcome;
    x->sample.has_reward = r->outcome == ML_REWARD_OK;
    x->sample.reward = x->sample.has_reward ? r->reward : 0.0;
    if (!x->sample.has_reward)
        snprintf(x->why, sizeof x->why, "%s", r->why);
    close_one(x);
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

/* The sample has ended; its text is there. */
static void land(ml_flight *x, ml_sample_status status) {
    ml_flights *f = x->all;

    x->sample.status = status;
    x->ended = true;
    if (f->at->rewards && !x->sample.has_reward && status != ML_SAMPLE_ABORTED &&
        status != ML_SAMPLE_FAILED)
        ask_for_reward(x);
    else
        close_one(x);
}

static void hear(ml_flight *x) {
    ml_flights *f = x->all;

    if (f->n_heard == f->cap_heard) {
        ml_flight **more = ML_NEW(f->arena, ml_flight *, 2 * f->cap_heard + 16);
        for (int64_t i = 0; i < f->n_heard; i++)
            more[i] = f->heard[i];
        f->heard = more;
        f->cap_heard = 2 * f->cap_heard + 16;
    }
    f->heard[f->n_heard++] = x;
}

static void end_turn(ml_flight *x, const ml_gen_update *u) {
    ml_sample_status status = status_of(u->finish);

    x->sample.n_cached += u->n_cached;
    if (u->finish == ML_FINISH_ABORT)
        snprintf(x->why, sizeof x->why, "%.*s", (int)u->message.len, u->message.ptr);
    take_text(x);
    if (x->turn && status == ML_SAMPLE_COMPLETED)
        hear(x);
    else
        land(x, status);
}

static void take_tokens(void *ud, const ml_gen_update *u) {
    ml_flight *x = ud;
    ml_sample *s = &x->sample;

    for (int32_t i = 0; i < u->answer.n; i++) {
        x->token[s->n_token++] = u->answer.id[i];
        s->logprob[s->n_response] = u->answer.logprob[i];
        s->version[s->n_response++] = u->answer.version[i];
    }
    x->all->n_drawn += u->answer.n;
    if (u->finish != ML_FINISH_NOT)
        end_turn(x, u);
}

/* --- between turns ------------------------------------------------------------ */

/* The model's words, less the token that ended them. */
static ml_str words_of_turn(const ml_flight *x) {
    const ml_sample *s = &x->sample;
    const ml_tokenizer *t = x->all->at->tokenizer;
    int32_t n = s->n_response - x->turn_at;
    ml_text text = { 0 };
    ml_str out;

    if (n > 0 && ml_tokenizer_is_special(t, s->token[s->n_token - 1]))
        n--;
    ml_decode(t, &text, s->token + s->n_token - s->n_response + x->turn_at, n, false);
    out = (ml_str){ ml_arena_str(x->all->arena, text.ptr ? text.ptr : "", text.len),
                    text.len };
    ml_text_release(&text);
    return out;
}

static void ask_environment(ml_flight *x) {
    const ml_sample *s = &x->sample;
    ml_str answer = words_of_turn(x);

    x->turn->last = s->token[s->n_token - 1];
    x->turn->in = (miles_turn_in){ .size = sizeof x->turn->in,
                                   .index = s->index,
                                   .seed = (int64_t)x->all->how->seed,
                                   .turn = s->n_turn,
                                   .prompt = s->prompt.ptr,
                                   .prompt_len = s->prompt.len,
                                   .response = s->response.ptr,
                                   .response_len = s->response.len,
                                   .answer = answer.ptr,
                                   .answer_len = answer.len,
                                   .label = s->label.len ? s->label.ptr : NULL,
                                   .label_len = s->label.len,
                                   .metadata = s->metadata.len ? s->metadata.ptr : NULL,
                                   .metadata_len = s->metadata.len };
}

/* Tokens that the model did not draw: they are read, never trained. */
static void append(ml_flight *x, const ml_tokens *ids) {
    ml_sample *s = &x->sample;

    for (int64_t i = 0; i < ids->n; i++) {
        x->token[s->n_token++] = ids->id[i];
        x->mask[s->n_response] = 0;
        s->logprob[s->n_response] = 0.0F;
        s->version[s->n_response] = s->version[s->n_response - 1];
        s->n_response++;
    }
    x->turn_at = s->n_response;
    s->n_turn++;
}

/* Is there room for what was said and one token more? */
static bool has_room(const ml_flight *x, int64_t n) {
    const ml_flights *f = x->all;

    return x->sample.n_turn < ml_turns_max(f->at->turns) &&
           x->sample.n_response + n < f->how->max_new &&
           x->sample.n_token + n < f->at->context;
}

static ml_status launch(ml_flight *x, ml_err *err);

static void fail(ml_flight *x, ml_reward_outcome outcome, const char *why) {
    x->outcome = outcome;
    snprintf(x->why, sizeof x->why, "%.*s", (int)sizeof x->why - 1, why);
    land(x, ML_SAMPLE_FAILED);
}

static void take_reply(ml_flight *x) {
    const ml_reply *r = &x->turn->reply;
    ml_err err = { 0 };

    if (r->outcome != ML_REWARD_OK) {
        fail(x, r->outcome, r->why);
    } else if (x->turn->ids.n == 0) {
        x->sample.has_reward = !isnan(r->reward);
        x->sample.reward = x->sample.has_reward ? r->reward : 0.0;
        land(x, ML_SAMPLE_COMPLETED);
    } else if (!has_room(x, x->turn->ids.n)) {
        land(x, ML_SAMPLE_TRUNCATED);
    } else {
        append(x, &x->turn->ids);
        if (launch(x, &err) != ML_OK)
            fail(x, ML_REWARD_INVALID, err.msg);
    }
}

void ml_flights_go_on(ml_flights *f) {
    ml_flight **heard = f->heard;
    int64_t n_heard = f->n_heard, n = 0;
    ml_turn **turn = n_heard ? ML_NEW(f->arena, ml_turn *, n_heard) : NULL;

    f->heard = NULL;
    f->n_heard = f->cap_heard = 0;
    for (int64_t i = 0; i < n_heard; i++) {
        if (heard[i]->aborted) {
            land(heard[i], ML_SAMPLE_ABORTED);
            continue;
        }
        ask_environment(heard[i]);
        turn[n] = heard[i]->turn;
        heard[n++] = heard[i];
    }
    if (n)
        ml_turns_ask(f->at->turns, turn, n);
    for (int64_t i = 0; i < n; i++) {
        take_reply(heard[i]);
        ml_tokens_release(&turn[i]->ids);
    }
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

/* A conversation has a mask, because not all of it will be the model's. */
static void open_turns(ml_flight *x) {
    ml_arena *a = x->all->arena;

    if (!x->all->at->turns)
        return;
    x->turn = ML_NEW(a, ml_turn, 1);
    if (!x->mask) {
        x->mask = ML_NEW(a, uint8_t, x->all->how->max_new + 1);
        memset(x->mask, 1, (size_t)x->all->how->max_new);
        x->sample.mask = x->mask;
    }
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
    open_turns(x);
    return x;
}

static ml_status launch(ml_flight *x, ml_err *err) {
    ml_flights *f = x->all;
    const ml_sampling *how = f->how;
    ml_gen_request ask = { .prompt = x->token,
                           .n_prompt = x->sample.n_token,
                           .draw = { .temperature = how->temperature,
                                     .top_k = how->top_k,
                                     .top_p = how->top_p,
                                     .repetition = 1,
                                     .seed = how->seed,
                                     .sample = x->draw },
                           .max_new = how->max_new - x->sample.n_response,
                           .stop = how->stop,
                           .n_stop = how->n_stop,
                           .stop_id = how->stop_id,
                           .n_stop_id = how->n_stop_id,
                           .score_from = -1 };

    return f->at->gen->submit(f->at->gen, &ask, take_tokens, x, &x->ticket, err);
}

/* From now on it is under way, until it lands. */
static ml_status take_off(ml_flight *x, uint64_t draw, ml_err *err) {
    ml_flights *f = x->all;
    ml_status st;

    x->draw = draw;
    open_one(f);
    st = launch(x, err);
    if (st == ML_OK)
        return ML_OK;
    pthread_mutex_lock(&f->lock);
    f->n_open--;
    f->n_begun--;
    pthread_mutex_unlock(&f->lock);
    return st;
}

ml_status ml_flights_start(ml_flights *f, ml_flight **out, const ml_group *group,
                           uint64_t draw, ml_err *err) {
    shared_prompt d = { 0 };
    ml_status st = read_prompt(f, &d, group, err);

    /* All are made before the first is under way: the arena is then the generator's. */
    for (int32_t i = 0; i < group->n_sample && st == ML_OK; i++)
        out[i] = new_flight(f, &d, group, i);
    for (int32_t i = 0; i < group->n_sample && st == ML_OK; i++)
        st = take_off(out[i], draw + (uint64_t)i, err);
    ml_tokens_release(&d.ids);
    return st;
}

/* What comes is trained; what is there as it was, or not. */
static uint8_t *old_mask(ml_flights *f, const ml_sample *s, bool mask_old) {
    uint8_t *mask = ML_NEW(f->arena, uint8_t, f->how->max_new + 1);

    memset(mask, 1, (size_t)f->how->max_new);
    for (int32_t t = 0; t < s->n_response; t++)
        mask[t] = !mask_old && (!s->mask || s->mask[t]);
    return mask;
}

/* With arrays of the full length, filled as far as the sample goes. */
static ml_flight *old_flight(ml_flights *f, const ml_sample *s, bool mask_old) {
    ml_flight *x = ML_NEW(f->arena, ml_flight, 1);
    int32_t max_new = f->how->max_new, n_prompt = s->n_token - s->n_response;

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
    if (mask_old || s->mask)
        x->sample.mask = x->mask = old_mask(f, s, mask_old);
    open_turns(x);
    for (int32_t t = 0; s->mask && t < s->n_response; t++)
        x->turn_at = s->mask[t] ? x->turn_at : t + 1; /* the model's turn goes on */
    x->ended = s->status == ML_SAMPLE_COMPLETED || s->status == ML_SAMPLE_TRUNCATED;
    return x;
}

/* One that had ended. */
static void take_up(ml_flight *x) {
    open_one(x->all);
    if (x->all->at->rewards && !x->sample.has_reward)
        ask_for_reward(x);
    else
        close_one(x);
}

ml_status ml_flights_resume(ml_flights *f, ml_flight **out, const ml_sample *s, int32_t n,
                            bool mask_old, ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0; i < n; i++)
        out[i] = old_flight(f, &s[i], mask_old);
    for (int32_t i = 0; i < n && st == ML_OK; i++) {
        if (out[i]->ended) {
            take_up(out[i]);
            continue;
        }
        st = take_off(out[i], (uint64_t)s[i].index, err);
    }
    return st;
}

void ml_flights_abort(ml_flights *f, ml_flight *const *flight, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (flight[i] && !flight[i]->ended) {
            flight[i]->aborted = true; /* between two turns it has no ticket */
            f->at->gen->abort(f->at->gen, flight[i]->ticket);
        }
}

void ml_flights_wait(ml_flights *f) {
    pthread_mutex_lock(&f->lock);
    while (f->n_open > 0 || !f->done)
        pthread_cond_wait(&f->change, &f->lock);
    pthread_mutex_unlock(&f->lock);
}

void ml_flights_done(ml_flights *f) {
    pthread_mutex_lock(&f->lock);
    f->done = true;
    pthread_cond_signal(&f->change);
    pthread_mutex_unlock(&f->lock);
}
