#include "rl/train_run.h"

#include <string.h>

#include "base/log.h"

/* --- opening ---------------------------------------------------------------- */

/* A checkpoint without a template is fine until somebody needs one. */
static ml_status open_text(ml_train_run *r, ml_err *err) {
    const ml_train_run_opts *o = &r->opts;
    ml_err why = { 0 };
    ml_status st = ml_tokenizer_open(&r->tokenizer, o->hf_checkpoint, err);

    if (st != ML_OK)
        return st;
    st = ml_chat_template_open(&r->chat_template, o->hf_checkpoint, o->chat_template, &why);
    if (st != ML_OK && (o->chat_template || o->needs_template)) {
        *err = why;
        return st;
    }
    ml_prompter_init(&r->prompter, r->tokenizer, r->chat_template, 1);
    return ML_OK;
}

static ml_status open_data(ml_train_run *r, ml_err *err) {
    ml_dataset_opts data = r->opts.data;
    bool text = data.path || r->opts.needs_tokenizer;
    ml_status st = text ? open_text(r, err) : ML_OK;

    if (st != ML_OK || !data.path)
        return st;
    data.text = ml_prompter_text(&r->prompter);
    st = ml_dataset_open(&r->dataset, &data, err);
    return st == ML_OK ? ml_data_source_new(&r->source, &r->dataset, &r->opts.source, err)
                       : st;
}

/* Samples of a round. */
static int64_t samples_of_round(const ml_train_run_opts *o) {
    return o->rollout_batch_size * o->source.n_samples_per_prompt;
}

static ml_status count_rollouts(ml_train_run *r, ml_err *err) {
    ml_train_run_opts *o = &r->opts;
    int64_t rows = r->dataset.rows.n, batch = o->trainer.batch.global_batch_size;

    if (o->learns_nothing && !o->data.path)
        return ML_OK;
    if (o->num_rollout == 0 && o->data.path && rows < o->rollout_batch_size)
        return ml_fail(err, ML_EUSAGE,
                       "%s has %lld rows, fewer than --rollout-batch-size %lld",
                       o->data.path, (long long)rows, (long long)o->rollout_batch_size);
    r->num_rollout =
        o->num_rollout ? o->num_rollout : rows / o->rollout_batch_size * o->num_epoch;
    o->trainer.lr.train_iters = r->num_rollout * samples_of_round(o) / batch;
    return ML_OK;
}

ml_status ml_train_run_open(ml_train_run *r, const ml_train_run_opts *opts, ml_err *err) {
    ml_status st;

    *r = (ml_train_run){ .opts = *opts };
    ml_arena_init(&r->arena, "run");
    st = ml_spec_open(&r->spec, opts->hf_checkpoint, err);
    if (st == ML_OK)
        st = ml_checkpoint_open(&r->from, opts->hf_checkpoint, err);
    if (st == ML_OK)
        st = ml_weights_check(&r->spec, r->from, err);
    if (st == ML_OK)
        st = open_data(r, err);
    if (st == ML_OK)
        st = count_rollouts(r, err);
    if (st == ML_OK)
        st = ml_backend_open(&r->be, &opts->backend, err);
    return st;
}

void ml_train_run_close(ml_train_run *r) {
    ml_run_log_close(&r->log);
    ml_saver_close(r->saver);
    ml_trainer_close(r->trainer);
    ml_weights_close(&r->weights);
    ml_weights_close(&r->ref);
    ml_data_source_free(r->source);
    ml_dataset_close(&r->dataset);
    if (r->prompter.tokenizer)
        ml_prompter_release(&r->prompter);
    ml_chat_template_close(r->chat_template);
    if (r->tokenizer)
        ml_tokenizer_close(r->tokenizer);
    if (r->be.name)
        ml_backend_close(&r->be);
    ml_checkpoint_close(r->from);
    ml_spec_close(&r->spec);
    ml_arena_release(&r->arena);
}

/* --- memory ----------------------------------------------------------------- */

/* Sizes only; the longest sample is not known before it is there. */
void ml_train_run_memory(ml_train_run *r, ml_memory_ask *out) {
    const ml_train_run_opts *o = &r->opts;
    const char **set = ML_NEW(&r->arena, const char *, 4);
    int n = 0;
    size_t bytes = ml_weights_bytes(&r->spec, r->from, ml_weights_dtype(&r->be, o->dtype));

    set[n++] = "actor weights";
    if (o->ref_load)
        set[n++] = "reference weights";
    if (o->second_set)
        set[n] = "rollout weights";
    *out = (ml_memory_ask){
        .spec = &r->spec,
        .be = &r->be,
        .weight_bytes = bytes,
        .bf16 = bytes < ml_weights_bytes(&r->spec, NULL, ML_WEIGHT_F32),
        .set = set,
        .opts = o->trainer,
        .longest = o->trainer.batch.dynamic ? 0 : o->trainer.batch.max_tokens,
        .scores = o->recipe.compute_advantages,
        .async_save = o->async_save,
        .base_bytes = ml_memory_resident() + o->engine_bytes,
    };
}

/* --- starting and going on -------------------------------------------------- */

/* The snapshot to go on from, or NULL: there is none yet. */
static ml_status find_snapshot(ml_train_run *r, const char **out, ml_err *err) {
    int64_t iteration = r->opts.ckpt_step;
    ml_status st = ML_OK;

    *out = NULL;
    if (!r->opts.load)
        return ML_OK;
    if (iteration < 0)
        st = ml_snapshot_latest(&iteration, r->opts.load, err);
    if (st == ML_OK && iteration >= 0) {
        *out = ml_snapshot_path(&r->arena, r->opts.load, iteration);
        st = ml_snapshot_check(*out, err);
    }
    return st;
}

static ml_status load_weights(ml_train_run *r, ml_weights *out, const char *dir,
                              ml_err *err) {
    ml_checkpoint *own = NULL;
    ml_status st = dir ? ml_checkpoint_open(&own, dir, err) : ML_OK;

    if (st == ML_OK)
        st = ml_weights_load(out, &r->spec, own ? own : r->from, r->opts.dtype, &r->be,
                             &r->arena, err);
    ml_checkpoint_close(own);
    return st;
}

static ml_status go_on_from(ml_train_run *r, const char *snapshot, ml_err *err) {
    ml_save_state state;
    ml_str config = r->opts.config;
    ml_status st = ml_snapshot_load(snapshot, r->trainer, &state, &r->arena, err);

    if (st == ML_OK && r->source)
        st = ml_data_source_load(r->source, state.data, snapshot, err);
    if (st != ML_OK)
        return st;
    if (!ml_str_eq(state.config, config))
        ml_log(ML_LOG_WARN, "%s was saved with other flags: %.*s; now they are %.*s",
               snapshot, (int)state.config.len, state.config.ptr, (int)config.len,
               config.ptr);
    r->rollout = state.iteration + 1;
    r->snapshot = snapshot;
    r->saved = state.data;
    return ML_OK;
}

static ml_status open_output(ml_train_run *r, ml_err *err) {
    const ml_train_run_opts *o = &r->opts;
    ml_status st;

    if (!o->save)
        return ML_OK;
    st = ml_saver_open(&r->saver,
                       &(ml_saver_opts){ .dir = o->save,
                                         .from = r->from,
                                         .keep_last = (int32_t)o->keep_last,
                                         .async = o->async_save },
                       err);
    r->opts.log.dir = o->save;
    return st == ML_OK ? ml_run_log_open(&r->log, &r->opts.log, r->rollout, err) : st;
}

ml_status ml_train_run_start(ml_train_run *r, ml_err *err) {
    const ml_train_run_opts *o = &r->opts;
    const char *snapshot;
    ml_status st = find_snapshot(r, &snapshot, err);

    if (st == ML_OK)
        st = load_weights(r, &r->weights, snapshot, err);
    if (st != ML_OK || o->learns_nothing)
        return st;
    if (o->ref_load)
        st = load_weights(r, &r->ref, o->ref_load, err);
    if (st == ML_OK)
        st = ml_trainer_open(&r->trainer, &r->spec, &r->weights, &r->be, &o->trainer, err);
    r->learner = (ml_learner){ .recipe = &r->opts.recipe,
                               .trainer = r->trainer,
                               .weights = &r->weights,
                               .hooks = o->hooks,
                               .ref = o->ref_load ? &r->ref : NULL };
    if (st == ML_OK && snapshot)
        st = go_on_from(r, snapshot, err);
    return st == ML_OK ? open_output(r, err) : st;
}

/* --- saving ----------------------------------------------------------------- */

ml_status ml_train_run_save(ml_train_run *r, ml_str more, ml_err *err) {
    ml_text data = { 0 };
    ml_status st;

    if (r->source)
        ml_data_source_save(r->source, &data);
    else
        ml_text_printf(&data, "{}");
    while (data.len && data.ptr[data.len - 1] == '\n')
        data.len--;
    if (more.len) {
        data.len--; /* the closing brace */
        ml_text_printf(&data, ", %.*s}", (int)more.len, more.ptr);
    }
    st = ml_saver_save(r->saver, r->trainer,
                       &(ml_save_state){ .iteration = r->rollout,
                                         .data = { data.ptr, data.len },
                                         .config = r->opts.config },
                       err);
    ml_text_release(&data);
    return st;
}
