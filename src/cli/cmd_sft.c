/* miles sft: supervised fine-tuning on conversations. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/clock.h"
#include "base/dir.h"
#include "base/log.h"
#include "cli/cli.h"
#include "cli/train_opts.h"
#include "rl/data_source.h"
#include "rl/edges.h"
#include "rl/sft_sample.h"
#include "rl/step_run.h"
#include "train/memory.h"
#include "train/snapshot.h"

#define METRICS "metrics.jsonl"

typedef struct sft_job {
    const ml_config *config;
    ml_arena arena;
    ml_spec spec;
    ml_checkpoint *from; /* --hf-checkpoint */
    ml_backend be;
    ml_tokenizer *tokenizer;
    ml_chat_template *chat_template;
    ml_sft_text text;
    ml_dataset dataset;
    ml_data_source *source;
    ml_weights weights;
    ml_trainer_opts opts;
    ml_trainer *trainer;
    ml_saver *saver;
    FILE *metrics;
    ml_text config_text;
    int64_t rollout, num_rollout; /* the next one; how many there are */
    int64_t n_step;               /* so far, in this run and those it goes on from */
} sft_job;

/* --- opening ---------------------------------------------------------------- */

static ml_status open_text(sft_job *j, ml_err *err) {
    const ml_config *c = j->config;
    ml_status st = ml_tokenizer_open(&j->tokenizer, c->hf_checkpoint, err);

    if (st == ML_OK)
        st = ml_chat_template_open(&j->chat_template, c->hf_checkpoint,
                                   c->train.chat_template, err);
    if (st == ML_OK)
        st = ml_dataset_open(&j->dataset,
                             &(ml_dataset_opts){
                                 .path = c->train.prompt_data,
                                 .input_key = c->train.input_key,
                                 .tool_key = c->train.tool_key,
                                 .template_kwargs = c->train.template_kwargs,
                             },
                             err);
    if (st != ML_OK)
        return st;
    j->text = (ml_sft_text){ .chat_template = j->chat_template,
                             .encoder = ml_encoder_new(j->tokenizer),
                             .kwargs = j->dataset.template_kwargs,
                             .n_vocab = j->spec.n_vocab };
    return ml_data_source_new(&j->source, &j->dataset,
                              &(ml_data_source_opts){ .shuffle = c->train.shuffle,
                                                      .seed = c->train.rollout_seed,
                                                      .n_samples_per_prompt = 1 },
                              err);
}

static ml_status count_rollouts(sft_job *j, ml_err *err) {
    const ml_config *c = j->config;
    int64_t per_epoch = j->dataset.rows.n / c->train.rollout_batch_size;

    j->num_rollout =
        c->train.num_rollout ? c->train.num_rollout : per_epoch * c->train.num_epoch;
    if (j->num_rollout < 1)
        return ml_fail(err, ML_EUSAGE,
                       "%s has %lld rows, fewer than --rollout-batch-size %lld",
                       c->train.prompt_data, (long long)j->dataset.rows.n,
                       (long long)c->train.rollout_batch_size);
    return ML_OK;
}

static ml_status open_inputs(sft_job *j, ml_err *err) {
    const ml_config *c = j->config;
    ml_status st = ml_spec_open(&j->spec, c->hf_checkpoint, err);

    if (st == ML_OK)
        st = ml_checkpoint_open(&j->from, c->hf_checkpoint, err);
    if (st == ML_OK)
        st = ml_weights_check(&j->spec, j->from, err);
    if (st == ML_OK)
        st = open_text(j, err);
    if (st == ML_OK)
        st = count_rollouts(j, err);
    if (st == ML_OK)
        st = ml_train_opts(&j->opts, c, j->num_rollout, c->train.rollout_batch_size, err);
    if (st == ML_OK)
        st = ml_backend_cpu_open(&j->be, (int)c->run.n_thread, c->run.cpu_level, err);
    ml_train_opts_text(&j->config_text, &j->opts, c);
    return st;
}

/* --- memory ----------------------------------------------------------------- */

static ml_weight_dtype weight_dtype(const sft_job *j) {
    switch (j->config->dtype) {
    case ML_DTYPE_F32: return ML_WEIGHT_F32;
    case ML_DTYPE_BF16: return ML_WEIGHT_BF16;
    default: return ML_WEIGHT_AUTO;
    }
}

/* Sizes only; the longest conversation is not known before it is read. */
static ml_memory_ask ask_of(sft_job *j) {
    static const char *const sets[] = { "actor weights", NULL };
    size_t bytes = ml_weights_bytes(&j->spec, j->from, weight_dtype(j));

    return (ml_memory_ask){
        .spec = &j->spec,
        .be = &j->be,
        .weight_bytes = bytes,
        .bf16 = bytes < ml_weights_bytes(&j->spec, NULL, ML_WEIGHT_F32),
        .set = sets,
        .opts = j->opts,
        .longest = j->config->train.dynamic ? 0 : j->config->train.max_tokens,
        .async_save = j->config->train.async_save,
        .base_bytes = ml_memory_resident(),
    };
}

static ml_status print_memory(sft_job *j, ml_err *err) {
    ml_memory_ask ask = ask_of(j);
    ml_memory m;
    ml_text t = { 0 };
    ml_status st = ml_memory_plan(&m, &ask, err);

    if (st != ML_OK)
        return st;
    ml_memory_text(&t, &m);
    printf("memory plan of %s, %lld parameters:\n%s", j->spec.family,
           (long long)ml_spec_param_count(&j->spec), t.ptr);
    ml_text_release(&t);
    return ml_memory_check(&ask, ml_memory_available(), err);
}

static ml_status check_memory(sft_job *j, ml_err *err) {
    ml_memory_ask ask = ask_of(j);
    return ml_memory_check(&ask, ml_memory_available(), err);
}

/* --- starting and going on -------------------------------------------------- */

/* The snapshot to go on from, or NULL: there is none yet. */
static ml_status find_snapshot(sft_job *j, const char **out, ml_err *err) {
    const ml_config *c = j->config;
    int64_t iteration = c->train.ckpt_step;
    ml_status st = ML_OK;

    *out = NULL;
    if (!c->train.load)
        return ML_OK;
    if (iteration < 0)
        st = ml_snapshot_latest(&iteration, c->train.load, err);
    if (st == ML_OK && iteration >= 0) {
        *out = ml_snapshot_path(&j->arena, c->train.load, iteration);
        st = ml_snapshot_check(*out, err);
    }
    return st;
}

static ml_status load_weights(sft_job *j, const char *snapshot, ml_err *err) {
    ml_checkpoint *own = NULL;
    ml_status st = snapshot ? ml_checkpoint_open(&own, snapshot, err) : ML_OK;

    if (st == ML_OK)
        st = ml_weights_load(&j->weights, &j->spec, own ? own : j->from, weight_dtype(j),
                             &j->be, &j->arena, err);
    ml_checkpoint_close(own);
    return st;
}

static ml_status go_on_from(sft_job *j, const char *snapshot, ml_err *err) {
    ml_save_state state;
    ml_status st = ml_snapshot_load(snapshot, j->trainer, &state, &j->arena, err);

    if (st == ML_OK)
        st = ml_data_source_load(j->source, state.data, snapshot, err);
    if (st != ML_OK)
        return st;
    if (!ml_str_is(state.config, j->config_text.ptr))
        ml_log(ML_LOG_WARN, "%s was saved with other flags: %.*s; now they are %s",
               snapshot, (int)state.config.len, state.config.ptr, j->config_text.ptr);
    j->rollout = state.iteration + 1;
    j->n_step = ml_trainer_optimizer(j->trainer)->n_step;
    printf("going on from %s at rollout %lld\n", snapshot, (long long)j->rollout);
    return ML_OK;
}

static ml_status start(sft_job *j, ml_err *err) {
    const char *snapshot;
    ml_status st = find_snapshot(j, &snapshot, err);

    if (st == ML_OK)
        st = load_weights(j, snapshot, err);
    if (st == ML_OK)
        st = ml_trainer_open(&j->trainer, &j->spec, &j->weights, &j->be, &j->opts, err);
    if (st == ML_OK && snapshot)
        st = go_on_from(j, snapshot, err);
    return st;
}

/* --- metrics ---------------------------------------------------------------- */

/* Lines of rollouts that are trained again, and what was cut off by a crash, go. */
static void keep_lines(const sft_job *j, const ml_jsonl *f, ml_text *out) {
    ml_arena a;

    ml_arena_init(&a, "metrics");
    for (int64_t i = 0; i < f->n; i++) {
        const ml_json *row;
        int64_t rollout;
        ml_str line = ml_jsonl_row(f, i);
        if (ml_jsonl_parse(&row, f, i, &a, NULL) == ML_OK &&
            ml_json_i64(ml_json_get(row, "rollout"), &rollout) && rollout < j->rollout)
            ml_text_printf(out, "%.*s\n", (int)line.len, line.ptr);
    }
    ml_arena_release(&a);
}

static ml_status open_metrics(sft_job *j, ml_err *err) {
    const char *path = ml_arena_printf(&j->arena, "%s/%s", j->config->train.save, METRICS);
    ml_text kept = { 0 };
    ml_jsonl old = { 0 };
    ml_status st;

    if (j->rollout > 0 && ml_jsonl_open(&old, path, NULL) == ML_OK)
        keep_lines(j, &old, &kept);
    ml_jsonl_close(&old);
    st = ml_file_replace(path, (ml_str){ kept.ptr ? kept.ptr : "", kept.len }, err);
    ml_text_release(&kept);
    if (st != ML_OK)
        return st;
    j->metrics = fopen(path, "a");
    if (!j->metrics)
        return ml_fail(err, ML_EIO, "%s: cannot be opened: %s", path, strerror(errno));
    return ML_OK;
}

static ml_status open_output(sft_job *j, ml_err *err) {
    const ml_config *c = j->config;
    ml_status st;

    if (!c->train.save)
        return ML_OK;
    st = ml_saver_open(&j->saver,
                       &(ml_saver_opts){ .dir = c->train.save,
                                         .from = j->from,
                                         .keep_last = (int32_t)c->train.keep_last,
                                         .async = c->train.async_save },
                       err);
    return st == ML_OK ? open_metrics(j, err) : st;
}

static void report(sft_job *j, const ml_step_result *r, double seconds) {
    printf("rollout %lld, step %lld: loss %.6f, gradient norm %.4f, lr %.3g, %lld tokens, "
           "%.0f tokens/s%s%s\n",
           (long long)j->rollout, (long long)j->n_step, r->loss, r->grad_norm, r->lr,
           (long long)r->n_token, (double)r->n_token / seconds,
           r->applied ? "" : "; not applied: ", r->bad);
    fflush(stdout);
    if (!j->metrics)
        return;
    fprintf(j->metrics,
            "{\"rollout\": %lld, \"step\": %lld, \"loss\": %.17g, \"grad_norm\": %.17g, "
            "\"lr\": %.17g, \"weight_decay\": %.17g, \"tokens\": %lld, \"loss_tokens\": "
            "%lld, \"applied\": %s, \"seconds\": %.3f}\n",
            (long long)j->rollout, (long long)j->n_step, r->loss, r->grad_norm, r->lr,
            r->weight_decay, (long long)r->n_token, (long long)r->n_loss,
            r->applied ? "true" : "false", seconds);
    fflush(j->metrics);
}

/* --- training --------------------------------------------------------------- */

static ml_status read_samples(sft_job *j, ml_arena *a, ml_train_sample **out, int32_t *n,
                              ml_err *err) {
    int64_t want = j->config->train.rollout_batch_size;
    ml_group *group = ML_NEW(a, ml_group, want);
    ml_status st = ML_OK;

    *n = (int32_t)ml_data_source_get(j->source, group, want);
    *out = ML_NEW(a, ml_train_sample, *n);
    for (int32_t i = 0; i < *n && st == ML_OK; i++) {
        ml_prompt prompt;
        st = ml_dataset_prompt(&prompt, &j->dataset, group[i].row, a, err);
        if (st == ML_OK)
            st = ml_sft_sample(&(*out)[i], a, &j->text, &prompt, err);
        if (st != ML_OK)
            ml_err_prefix(err, "%s:%lld", j->dataset.rows.file.path,
                          (long long)ml_jsonl_line(&j->dataset.rows, group[i].row));
        (*out)[i].rollout = group[i].first_index;
    }
    return st;
}

static int by_number(const void *x, const void *y) {
    int32_t i = *(const int32_t *)x, k = *(const int32_t *)y;
    return i < k ? -1 : i > k;
}

/* The numbers of a step's samples, ascending. */
static int32_t *samples_of(ml_arena *a, const ml_bins *micro, int32_t *n) {
    int32_t *number, at = 0;

    for (int32_t k = 0; k < micro->n; k++)
        at += micro->bin[k].n;
    number = ML_NEW(a, int32_t, at + 1);
    *n = at;
    at = 0;
    for (int32_t k = 0; k < micro->n; k++)
        for (int32_t i = 0; i < micro->bin[k].n; i++)
            number[at++] = micro->bin[k].item[i];
    qsort(number, (size_t)at, sizeof *number, by_number);
    return number;
}

static ml_status make_loss(sft_job *j, ml_arena *a, ml_step_loss *loss,
                           const ml_train_sample *s, const int32_t *number, int32_t n,
                           ml_err *err) {
    ml_recipe recipe = { .num = { .size = sizeof(miles_algo),
                                  .calculate_per_token_loss = j->config->train.per_token },
                         .loss = &ml_loss_sft };
    miles_sample *sample = ML_NEW(a, miles_sample, n + 1);
    const miles_sample **list = ML_NEW(a, const miles_sample *, n + 1);

    for (int32_t i = 0; i < n; i++) {
        const ml_train_sample *x = &s[number[i]];
        sample[i] = (miles_sample){ .size = sizeof *sample,
                                    .n = x->n_response,
                                    .group = x->rollout,
                                    .rollout = x->rollout,
                                    .mask = x->mask };
        list[i] = &sample[i];
    }
    return ml_step_loss_init(
        loss, a, &recipe, recipe.loss,
        &(miles_batch){ .size = sizeof(miles_batch), .n = n, .sample = list }, err);
}

static ml_status train_step(sft_job *j, ml_arena *a, const ml_train_sample *s,
                            const ml_schedule_step *step, ml_err *err) {
    int32_t n, *number = samples_of(a, &step->rank[0], &n);
    double metric[ML_STEP_METRIC_MAX], began = ml_clock_s();
    ml_step_result r;
    ml_step_loss loss;
    ml_status st = make_loss(j, a, &loss, s, number, n, err);

    if (st == ML_OK)
        st = ml_step_run_on(
            j->trainer,
            &(ml_step_run){ .loss = &loss, .sample = number, .list = s, .step = step }, &r,
            metric, err);
    if (st != ML_OK)
        return st;
    report(j, &r, ml_clock_s() - began);
    j->n_step++;
    return ML_OK;
}

static ml_status train_rollout(sft_job *j, ml_err *err) {
    ml_train_sample *s;
    ml_schedule schedule;
    ml_arena a;
    int32_t n;
    ml_status st;

    ml_arena_init(&a, "a rollout");
    st = read_samples(j, &a, &s, &n, err);
    if (st == ML_OK)
        st = ml_trainer_schedule(&schedule, j->trainer, &a, s, n, err);
    for (int32_t k = 0; st == ML_OK && k < schedule.n_step; k++)
        st = train_step(j, &a, s, &schedule.step[k], err);
    ml_arena_release(&a);
    return st;
}

static bool save_now(const sft_job *j) {
    int64_t every = j->config->train.save_interval;
    return j->saver &&
           (j->rollout + 1 == j->num_rollout || (every && (j->rollout + 1) % every == 0));
}

static ml_status save(sft_job *j, ml_err *err) {
    ml_text data = { 0 };
    ml_status st;

    ml_data_source_save(j->source, &data);
    while (data.len && data.ptr[data.len - 1] == '\n')
        data.len--;
    st = ml_saver_save(j->saver, j->trainer,
                       &(ml_save_state){
                           .iteration = j->rollout,
                           .data = { data.ptr, data.len },
                           .config = { j->config_text.ptr, j->config_text.len },
                       },
                       err);
    ml_text_release(&data);
    return st;
}

static ml_status run_job(sft_job *j, ml_err *err) {
    ml_status st = open_inputs(j, err);

    if (st == ML_OK && j->config->train.dry_run)
        return print_memory(j, err);
    if (st == ML_OK)
        st = check_memory(j, err);
    if (st == ML_OK)
        st = start(j, err);
    if (st == ML_OK)
        st = open_output(j, err);
    for (; st == ML_OK && j->rollout < j->num_rollout; j->rollout++) {
        st = train_rollout(j, err);
        if (st == ML_OK && save_now(j))
            st = save(j, err);
    }
    if (st == ML_OK && j->saver)
        st = ml_saver_wait(j->saver, err);
    return st;
}

ml_status ml_cmd_sft(const ml_config *c, ml_err *err) {
    sft_job j = { .config = c };
    ml_status st;

    ml_arena_init(&j.arena, "sft");
    st = run_job(&j, err);
    if (j.metrics)
        fclose(j.metrics);
    ml_saver_close(j.saver);
    ml_trainer_close(j.trainer);
    ml_weights_close(&j.weights);
    ml_data_source_free(j.source);
    ml_dataset_close(&j.dataset);
    if (j.text.encoder)
        ml_encoder_free(j.text.encoder);
    ml_chat_template_close(j.chat_template);
    if (j.tokenizer)
        ml_tokenizer_close(j.tokenizer);
    if (j.be.name)
        ml_backend_close(&j.be);
    ml_checkpoint_close(j.from);
    ml_spec_close(&j.spec);
    ml_text_release(&j.config_text);
    ml_arena_release(&j.arena);
    return st;
}
