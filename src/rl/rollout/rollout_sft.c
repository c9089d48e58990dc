/* Supervised fine-tuning as a rollout: samples are conversations of a data set. */
#include "rl/rollout/rollout.h"
#include "rl/data/sft_sample.h"

void ml_sft_rollout_init(ml_sft_rollout *s, ml_train_run *run) {
    *s = (ml_sft_rollout){ .run = run, .encoder = ml_encoder_new(run->tokenizer) };
}

void ml_sft_rollout_release(ml_sft_rollout *s) {
    if (s->encoder)
        ml_encoder_free(s->encoder);
}

static ml_status read_sample(const ml_sft_rollout *s, const ml_group *group, ml_sample *out,
                             ml_arena *a, ml_err *err) {
    const ml_train_run *r = s->run;
    ml_sft_text text = { .chat_template = r->chat_template,
                         .encoder = s->encoder,
                         .kwargs = r->dataset.template_kwargs,
                         .n_vocab = r->spec.n_vocab };
    ml_train_sample read = { 0 };
    ml_prompt prompt;
    ml_status st = ml_dataset_prompt(&prompt, &r->dataset, group->row, a, err);

    if (st == ML_OK)
        st = ml_sft_sample(&read, a, &text, &prompt, err);
    if (st != ML_OK) {
        ml_dataset_blame(&r->dataset, group->row, err);
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

static ml_status collect(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err) {
    const ml_sft_rollout *s = ud;
    int64_t want = s->run->opts.rollout_batch_size;
    ml_group *group = ML_NEW(a, ml_group, want);
    ml_sample *sample = ML_NEW(a, ml_sample, want);
    ml_status st = ML_OK;

    (void)rollout;
    out->n = ml_data_source_get(s->run->source, group, want);
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
