#include "rl/rollout/gen_task_priv.h"

#include <string.h>

#include "base/bug.h"

/* --- receiving tokens: the generator's thread --------------------------------- */

ml_str ml_gen_task_text(const ml_gen_task *x, int32_t from, int32_t n, bool skip_special) {
    const ml_sample *s = &x->sample;
    ml_text t = { 0 };
    ml_str out;

    ml_decode(x->group->set->ctx->tokenizer, &t,
              s->token + s->n_token - s->n_response + from, n, skip_special);
    out = (ml_str){ ml_arena_str(x->group->arena, t.ptr ? t.ptr : "", t.len), t.len };
    ml_text_release(&t);
    return out;
}

static void take_text(ml_gen_task *x) {
    x->sample.response =
        ml_gen_task_text(x, 0, x->sample.n_response, x->group->set->how->skip_special);
}

static ml_sample_status status_of(ml_finish finish) {
    switch (finish) {
    case ML_FINISH_LENGTH: return ML_SAMPLE_TRUNCATED;
    case ML_FINISH_ABORT: return ML_SAMPLE_ABORTED;
    default: return ML_SAMPLE_COMPLETED;
    }
}

void ml_gen_task_complete(ml_gen_task *x, ml_sample_status status) {
    x->sample.status = status;
    x->ended = true;
    ml_gen_task_grade(x);
}

/* Copies the routing record.  It covers all tokens, including those of earlier turns, with
 * the selection of the current weights. */
static void take_routing(ml_gen_task *x, const ml_gen_update *u) {
    for (int i = 0; i < ML_N_ROUTING; i++) {
        int64_t n = u->routed[i].n * u->routed[i].width;
        int32_t *row;
        if (!n)
            continue;
        row = ML_NEW(x->group->arena, int32_t, n);
        x->sample.routed[i] = u->routed[i];
        x->sample.routed[i].row = memcpy(row, u->routed[i].row, (size_t)n * sizeof *row);
    }
}

static void end_turn(ml_gen_task *x, const ml_gen_update *u) {
    ml_sample_status status = status_of(u->finish);

    if (u->finish == ML_FINISH_ABORT)
        ml_str_copy(x->why, sizeof x->why, u->message);
    take_text(x);
    take_routing(x, u);
    if (x->turn && status == ML_SAMPLE_COMPLETED)
        ml_gen_task_end_turn(x);
    else
        ml_gen_task_complete(x, status);
}

/* The memory doubles in the group's arena. */
void ml_gen_task_add_supports(ml_gen_task *x, ml_str records) {
    ml_str *s = &x->sample.supports;
    size_t need = s->len + records.len;

    if (need > x->support_cap) {
        char *more;
        x->support_cap = need > 2 * x->support_cap ? need : 2 * x->support_cap;
        more = ML_NEW(x->group->arena, char, x->support_cap);
        if (s->len)
            memcpy(more, s->ptr, s->len);
        s->ptr = x->support = more;
    }
    if (records.len)
        memcpy(x->support + s->len, records.ptr, records.len);
    s->len = need;
}

/* Tokens that were drawn from the whole vocabulary. */
static void add_empty_supports(ml_gen_task *x, int32_t n) {
    for (int32_t i = 0; i < n; i++)
        ml_gen_task_add_supports(x, (ml_str){ "", 1 }); /* an empty record: a length of 0 */
}

static void take_tokens(void *ud, const ml_gen_update *u) {
    ml_gen_task *x = ud;
    ml_sample *s = &x->sample;
    const ml_sampling *how = x->group->set->how;

    ML_BUG_IF(u->answer.n > how->max_new - s->n_response);
    for (int32_t i = 0; i < u->answer.n; i++) {
        x->token[s->n_token++] = u->answer.id[i];
        s->logprob[s->n_response] =
            (how->support ? u->answer.support_logprob : u->answer.logprob)[i];
        s->version[s->n_response++] = u->answer.version[i];
    }
    if (how->support)
        ml_gen_task_add_supports(x, u->answer.supports);
    else if (s->supports.len)
        add_empty_supports(x, u->answer.n);
    x->group->n_drawn += u->answer.n;
    if (u->finish != ML_FINISH_NOT)
        end_turn(x, u);
}

/* --- starting ----------------------------------------------------------------- */

/* A group's prompt, shared by all its samples. */
typedef struct shared_prompt {
    ml_tokens ids;
    ml_str text, messages, label, metadata; /* messages: JSON, of a prompt that is a list */
} shared_prompt;

static ml_status render(const ml_gen_group *g, shared_prompt *d, const ml_prompt *p,
                        ml_err *err) {
    ml_chat chat = { .messages = p->messages,
                     .tools = p->tools,
                     .add_generation_prompt = true,
                     .kwargs = g->set->dataset->template_kwargs };
    ml_jinja_text text;
    ml_status st;

    d->text = p->text;
    if (!p->messages)
        return ML_OK;
    if (!g->set->ctx->chat_template)
        return ml_fail(err, ML_EFORMAT,
                       "the prompt is a list of messages, but the checkpoint has no chat "
                       "template: set one with --chat-template-path");
    st = ml_chat_render(&text, g->arena, g->set->ctx->chat_template, &chat, NULL, err);
    if (st == ML_OK)
        d->text = text.text;
    return st;
}

/* The JSON source text of a value of the row. */
static ml_str source_of(ml_str row, const ml_json *v) {
    return v && v->type != ML_JSON_NULL ? (ml_str){ row.ptr + v->begin, v->end - v->begin }
                                        : (ml_str){ 0 };
}

/* Appends the data set's metadata_more: of members with the same name, the last counts. */
static ml_str with_more(const ml_gen_group *g, ml_str metadata, bool has_members) {
    const char *more = g->set->dataset->opts.metadata_more, *text;

    if (!more)
        return metadata;
    text =
        ml_arena_printf(g->arena, "{%.*s%s%s}", has_members ? (int)metadata.len - 2 : 0,
                        has_members ? metadata.ptr + 1 : "", has_members ? ", " : "", more);
    return ml_str_of(text);
}

static ml_status read_prompt(const ml_gen_group *g, shared_prompt *d, ml_err *err) {
    const ml_dataset *ds = g->set->dataset;
    ml_prompt prompt;
    ml_status st = ml_dataset_prompt(&prompt, ds, g->id.row, g->arena, err);

    if (st != ML_OK)
        return st;
    st = render(g, d, &prompt, err);
    if (st == ML_OK)
        st = ml_encode(g->set->encoder, &d->ids, d->text, (ml_encode_opts){ 0 }, err);
    if (st != ML_OK)
        ml_dataset_blame(ds, g->id.row, err);
    d->messages = source_of(prompt.source, prompt.messages);
    d->label = source_of(prompt.source, prompt.label);
    d->metadata = with_more(g, source_of(prompt.source, prompt.metadata),
                            prompt.metadata && prompt.metadata->child);
    return st;
}

/* A conversation needs a loss mask: the model does not generate all of its tokens. */
static void open_turns(ml_gen_task *x) {
    ml_arena *a = x->group->arena;

    if (!x->group->set->ctx->turns)
        return;
    x->turn = ML_NEW(a, ml_turn, 1);
    if (!x->mask) {
        x->mask = ML_NEW(a, uint8_t, x->group->set->how->max_new + 1);
        memset(x->mask, 1, (size_t)x->group->set->how->max_new);
        x->sample.mask = x->mask;
    }
}

static ml_gen_task *new_task(ml_gen_group *g, const shared_prompt *d, int32_t i) {
    ml_gen_task *x = ML_NEW(g->arena, ml_gen_task, 1);
    int32_t n = (int32_t)d->ids.n, max_new = g->set->how->max_new;

    x->group = g;
    x->messages = d->messages;
    x->token = ML_NEW(g->arena, int32_t, n + max_new);
    x->wide = ML_NEW(g->arena, int64_t, n + max_new);
    memcpy(x->token, d->ids.id, (size_t)n * sizeof *x->token);
    x->sample = (ml_sample){ .index = g->id.first_index + i,
                             .group = g->id.group_index,
                             .rollout = g->id.first_index + i,
                             .row = g->id.row,
                             .prompt = d->text,
                             .label = d->label,
                             .metadata = d->metadata,
                             .token = x->token,
                             .n_token = n,
                             .logprob = ML_NEW(g->arena, float, max_new + 1),
                             .version = ML_NEW(g->arena, uint64_t, max_new + 1),
                             .n_turn = 1 };
    open_turns(x);
    return x;
}

/* The number of tokens that may still be generated, limited by max_new and context. */
static int32_t room_of(const ml_gen_task *x) {
    int32_t left = x->group->set->how->max_new - x->sample.n_response;
    int32_t context = x->group->set->ctx->context - x->sample.n_token;
    return context > 0 && context < left ? context : left;
}

ml_status ml_gen_task_submit(ml_gen_task *x, ml_err *err) {
    ml_gen *gen = x->group->set->ctx->gen;
    const ml_sampling *how = x->group->set->how;
    ml_gen_request ask = { .prompt = x->token,
                           .n_prompt = x->sample.n_token,
                           .draw = { .temperature = how->temperature,
                                     .top_k = how->top_k,
                                     .top_p = how->top_p,
                                     .repetition = 1,
                                     .seed = how->seed,
                                     .sample = x->draw },
                           .min_new = how->min_new,
                           .max_new = room_of(x),
                           .stop = how->stop,
                           .n_stop = how->n_stop,
                           .stop_id = how->stop_id,
                           .n_stop_id = how->n_stop_id,
                           .support = how->support,
                           .score_from = -1 };
    uint64_t ticket;
    ml_status st;

    if (x->group->set->ctx->generate) {
        ml_gen_task_call(x);
        return ML_OK;
    }
    memcpy(ask.routed, how->routed, sizeof ask.routed);
    st = gen->submit(gen, &ask, take_tokens, x, &ticket, err);
    if (st == ML_OK)
        x->ticket = ticket;
    return st;
}

/* Opens the tasks of a group. */
static void open_group(ml_gen_group *g) {
    ml_group_set *s = g->set;
    int32_t n = g->id.n_sample;

    pthread_mutex_lock(&s->lock);
    g->state = ML_GROUP_GENERATING;
    s->n_open += n;
    pthread_mutex_unlock(&s->lock);
    ml_work_count_expect(s->ctx->work_count, n);
}

/* Submits the sample to the generator. */
static ml_status begin(ml_gen_task *x, uint64_t draw, ml_err *err) {
    ml_status st;

    x->draw = draw;
    x->begun = true;
    st = ml_gen_task_submit(x, err);
    if (st != ML_OK)
        x->begun = false;
    return st;
}

ml_status ml_gen_group_prepare(ml_gen_group *g, ml_err *err) {
    shared_prompt d = { 0 };
    ml_status st = read_prompt(g, &d, err);

    for (int32_t i = 0; i < g->id.n_sample && st == ML_OK; i++)
        g->task[i] = new_task(g, &d, i);
    ml_tokens_release(&d.ids);
    return st;
}

ml_status ml_gen_group_start(ml_gen_group *g, uint64_t draw, ml_err *err) {
    /* Allocates all before the first is submitted: from then on the generator's thread owns
     * the arena. */
    ml_status st = ml_gen_group_prepare(g, err);

    open_group(g);
    for (int32_t i = 0; i < g->id.n_sample && st == ML_OK; i++)
        st = begin(g->task[i], draw + (uint64_t)i, err);
    if (st != ML_OK)
        ml_gen_group_give_up(g);
    return st;
}

/* The loss mask of a continued sample: new tokens are trained on; existing tokens keep
 * their mask, or are masked if mask_old. */
static uint8_t *old_mask(const ml_gen_group *g, const ml_sample *s, bool mask_old) {
    uint8_t *mask = ML_NEW(g->arena, uint8_t, g->set->how->max_new + 1);

    memset(mask, 1, (size_t)g->set->how->max_new);
    for (int32_t t = 0; t < s->n_response; t++)
        mask[t] = !mask_old && (!s->mask || s->mask[t]);
    return mask;
}

/* Cuts a response to max_new tokens: it ends as truncated, without its reward, to be graded
 * again. */
static void cut(ml_sample *s, int32_t max_new) {
    s->n_token -= s->n_response - max_new;
    s->n_response = max_new;
    s->has_reward = false;
    s->reward = 0;
    s->status = ML_SAMPLE_TRUNCATED;
    s->supports = ml_support_first(s->supports, max_new);
    for (int i = 0; i < ML_N_ROUTING; i++)
        if (s->routed[i].n >= s->n_token)
            s->routed[i].n = s->n_token - 1;
}

static bool has_ended(const ml_sample *s) {
    return s->status == ML_SAMPLE_COMPLETED || s->status == ML_SAMPLE_TRUNCATED;
}

/* A task for an existing sample.  Arrays have full length and hold the tokens so far. */
static ml_gen_task *resumed_task(ml_gen_group *g, const ml_sample *partial, bool mask_old) {
    ml_gen_task *x = ML_NEW(g->arena, ml_gen_task, 1);
    int32_t max_new = g->set->how->max_new,
            n_prompt = partial->n_token - partial->n_response;
    ml_sample own = *partial, *s = &own;

    if (s->n_response > max_new || (s->n_response == max_new && !has_ended(s)))
        cut(s, max_new);
    x->group = g;
    x->token = ML_NEW(g->arena, int32_t, n_prompt + max_new);
    x->wide = ML_NEW(g->arena, int64_t, n_prompt + max_new);
    ml_sample_copy(&x->sample, g->arena, s);
    x->sample.token = memcpy(x->token, s->token, (size_t)s->n_token * sizeof *s->token);
    x->sample.logprob = ML_NEW(g->arena, float, max_new + 1);
    x->sample.version = ML_NEW(g->arena, uint64_t, max_new + 1);
    for (int32_t t = 0; t < s->n_response; t++) {
        x->sample.logprob[t] = s->logprob[t];
        x->sample.version[t] = s->version[t];
    }
    if (g->set->how->support && !s->supports.len)
        add_empty_supports(x, s->n_response);
    if (mask_old || s->mask)
        x->sample.mask = x->mask = old_mask(g, s, mask_old);
    open_turns(x);
    for (int32_t t = 0; s->mask && t < s->n_response; t++)
        x->turn_at = s->mask[t] ? x->turn_at : t + 1; /* after the last masked token */
    x->ended = has_ended(s);
    if (s->n_response < partial->n_response)
        take_text(x);
    return x;
}

ml_status ml_gen_group_resume(ml_gen_group *g, const ml_sample *s, bool mask_old,
                              ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0; i < g->id.n_sample; i++) {
        g->task[i] = resumed_task(g, &s[i], mask_old);
        g->task[i]->begun = g->task[i]->ended;
    }
    open_group(g);
    for (int32_t i = 0; i < g->id.n_sample; i++) /* allocates: before the first submit */
        if (g->task[i]->begun)
            ml_gen_task_grade(g->task[i]);
    for (int32_t i = 0; i < g->id.n_sample && st == ML_OK; i++)
        if (!g->task[i]->begun)
            st = begin(g->task[i], (uint64_t)s[i].index, err);
    if (st != ML_OK)
        ml_gen_group_give_up(g);
    return st;
}
