/* Supervised fine-tuning as a rollout: samples are conversations of a data set, preferences between
 * answers, or what a reward model is trained on. */
#include <string.h>

#include "rl/rollout/rollout.h"
#include "rl/data/preference_sample.h"

void ml_sft_rollout_init(ml_sft_rollout *s, const ml_prompt_feed *feed,
                         const ml_tokenizer *tokenizer,
                         const ml_chat_template *chat_template) {
    *s = (ml_sft_rollout){ .feed = *feed,
                           .chat_template = chat_template,
                           .encoder = ml_encoder_new(tokenizer) };
}

void ml_sft_rollout_release(ml_sft_rollout *s) {
    if (s->encoder)
        ml_encoder_free(s->encoder);
}

static ml_status read_sample(const ml_sft_rollout *s, const ml_group *group, ml_sample *out,
                             ml_arena *a, ml_err *err) {
    const ml_dataset *data = s->feed.dataset;
    ml_sft_text text = { .chat_template = s->chat_template,
                         .encoder = s->encoder,
                         .kwargs = data->template_kwargs,
                         .n_vocab = s->feed.n_vocab };
    ml_train_sample read = { 0 };
    ml_prompt prompt;
    ml_status st = ml_dataset_prompt(&prompt, data, group->row, a, err);

    if (st == ML_OK)
        st = ml_sft_sample(&read, a, &text, &prompt, err);
    if (st != ML_OK) {
        ml_dataset_blame(data, group->row, err);
        return st;
    }
    *out = (ml_sample){ .index = group->first_index,
                        .group = group->group_index,
                        .rollout = group->first_index,
                        .row = group->row,
                        .token = read.token,
                        .n_token = read.n_token,
                        .n_response = read.n_response,
                        .mask = read.mask,
                        .status = ML_SAMPLE_COMPLETED };
    return ML_OK;
}

/* --- preferences ----------------------------------------------------------------- */

static ml_status read_preference(const ml_sft_rollout *s, const ml_group *group,
                                 ml_preference *out, ml_arena *a, ml_err *err) {
    const ml_dataset *data = s->feed.dataset;
    ml_sft_text text = { .chat_template = s->chat_template,
                         .encoder = s->encoder,
                         .kwargs = data->template_kwargs,
                         .n_vocab = s->feed.n_vocab };
    bool single = s->preference.kind == ML_PREFERENCE_KTO;
    ml_prompt prompt;
    ml_status st = ml_dataset_prompt(&prompt, data, group->row, a, err);

    if (st == ML_OK)
        st = ml_preference_read(out, a, &text, &prompt, single, s->end_token, err);
    if (st != ML_OK)
        ml_dataset_blame(data, group->row, err);
    return st;
}

/* ORPO trains all tokens of a conversation, the others those of the answer. */
static ml_sample sample_of(const ml_sft_rollout *s, const ml_group *group, int which,
                           ml_preference_answer x, bool liked) {
    bool whole = s->preference.kind == ML_PREFERENCE_ORPO;

    return (ml_sample){ .index = group->first_index + which,
                        .group = group->group_index,
                        .rollout = group->first_index + which,
                        .row = group->row,
                        .token = x.token,
                        .n_token = x.n_token,
                        .n_response = x.n_token - (whole ? 1 : x.n_prompt),
                        .n_answer = x.n_token - x.n_prompt,
                        .reward = liked ? 1 : 0,
                        .has_reward = true,
                        .status = ML_SAMPLE_COMPLETED };
}

/* The prompt of one row with the answer of another. */
static ml_preference_answer mixed(ml_arena *a, ml_preference_answer prompt,
                                  ml_preference_answer answer) {
    int32_t n = answer.n_token - answer.n_prompt;
    int32_t *token = ML_NEW(a, int32_t, prompt.n_prompt + n + 1);

    memcpy(token, prompt.token, (size_t)prompt.n_prompt * sizeof *token);
    memcpy(token + prompt.n_prompt, answer.token + answer.n_prompt,
           (size_t)n * sizeof *token);
    return (ml_preference_answer){ token, prompt.n_prompt + n, prompt.n_prompt };
}

static ml_status collect_preferences(const ml_sft_rollout *s, ml_rollout_batch *out,
                                     const ml_group *group, int64_t n, ml_arena *a,
                                     ml_err *err) {
    ml_preference *row = ML_NEW(a, ml_preference, n + 1);
    ml_sample *sample = ML_NEW(a, ml_sample, 2 * n + 1);
    ml_status st = ML_OK;

    for (int64_t i = 0; i < n && st == ML_OK; i++)
        st = read_preference(s, &group[i], &row[i], a, err);
    for (int64_t i = 0; i < n && st == ML_OK; i++) {
        const ml_preference *x = &row[i];
        const ml_preference_answer *other = &row[(i + n - 1) % n].answer[0];
        sample[2 * i] = sample_of(s, &group[i], 0, x->answer[0], x->n == 2 || x->desirable);
        sample[2 * i + 1] =
            sample_of(s, &group[i], 1,
                      x->n == 2 ? x->answer[1] : mixed(a, x->answer[0], *other), false);
    }
    out->n = 2 * n;
    out->sample = ML_NEW(a, const ml_sample *, out->n + 1);
    for (int64_t i = 0; i < out->n; i++)
        out->sample[i] = &sample[i];
    return st;
}

/* --- reward models --------------------------------------------------------------- */

/* The reward is the value at the last token.  Values belong to the tokens that follow: one more
 * token, which has no influence, stands for it. */
static ml_sample reward_sample(ml_arena *a, const ml_group *group, int which,
                               const ml_scored_row *row) {
    ml_preference_answer x = row->answer[which];
    int32_t *token = ML_NEW(a, int32_t, x.n_token + 1);

    memcpy(token, x.token, (size_t)x.n_token * sizeof *token);
    token[x.n_token] = x.token[x.n_token - 1];
    return (ml_sample){ .index = group->first_index + which,
                        .group = group->group_index,
                        .rollout = group->first_index + which,
                        .row = group->row,
                        .token = token,
                        .n_token = x.n_token + 1,
                        .n_response = 1,
                        .reward = which ? 0 : row->number,
                        .has_reward = true,
                        .status = ML_SAMPLE_COMPLETED };
}

static ml_status read_reward_row(const ml_sft_rollout *s, const ml_group *group,
                                 ml_scored_row *out, ml_arena *a, ml_err *err) {
    const ml_dataset *data = s->feed.dataset;
    ml_sft_text text = { .chat_template = s->chat_template,
                         .encoder = s->encoder,
                         .kwargs = data->template_kwargs,
                         .n_vocab = s->feed.n_vocab };
    ml_scored_row_opts o = { !s->preference.on, s->end_token, s->pad_token };
    ml_prompt prompt;
    ml_status st = ml_dataset_prompt(&prompt, data, group->row, a, err);

    if (st == ML_OK)
        st = ml_scored_row_read(out, a, &text, &prompt, o, err);
    if (st != ML_OK)
        ml_dataset_blame(data, group->row, err);
    return st;
}

static ml_status collect_rewards(const ml_sft_rollout *s, ml_rollout_batch *out,
                                 const ml_group *group, int64_t n, ml_arena *a,
                                 ml_err *err) {
    ml_sample *sample = ML_NEW(a, ml_sample, 2 * n + 1);
    ml_status st = ML_OK;

    out->n = 0;
    out->sample = ML_NEW(a, const ml_sample *, 2 * n + 1);
    for (int64_t i = 0; i < n && st == ML_OK; i++) {
        ml_scored_row row;
        st = read_reward_row(s, &group[i], &row, a, err);
        for (int k = 0; st == ML_OK && k < row.n; k++) {
            sample[out->n] = reward_sample(a, &group[i], k, &row);
            out->sample[out->n] = &sample[out->n];
            out->n++;
        }
    }
    return st;
}

static ml_status collect(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err) {
    const ml_sft_rollout *s = ud;
    int64_t want = s->feed.batch;
    ml_group *group = ML_NEW(a, ml_group, want);
    ml_sample *sample = ML_NEW(a, ml_sample, want);
    ml_status st = ML_OK;

    (void)rollout;
    out->n = ml_data_source_get(s->feed.source, group, want);
    if (s->reward)
        return collect_rewards(s, out, group, out->n, a, err);
    if (s->preference.on)
        return collect_preferences(s, out, group, out->n, a, err);
    out->sample = ML_NEW(a, const ml_sample *, out->n + 1);
    for (int64_t i = 0; i < out->n && st == ML_OK; i++) {
        st = read_sample(s, &group[i], &sample[i], a, err);
        out->sample[i] = &sample[i];
    }
    return st;
}

ml_rollout ml_rollout_sft(ml_sft_rollout *s) {
    return (ml_rollout){ .collect = collect, .ud = s };
}
