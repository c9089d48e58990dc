#include "run/rollouts.h"

#include <stdlib.h>
#include <string.h>

#include "plugin/generate_path.h"
#include "plugin/reward_path.h"
#include "plugin/python.h"
#include "plugin/python_extensions.h"
#include "plugin/python_prompts.h"
#include "rl/reward/answer.h"
#include "rl/reward/grade.h"
#include "rl/reward/judge_model.h"
#include "rl/reward/reward_model.h"
#include "run/python_rollout.h"

/* --- sampling --------------------------------------------------------------- */

static int32_t top_k(int64_t k) {
    return k < 0 ? 0 : (int32_t)k;
}

static ml_sampling sampling_of(ml_arena *a, const ml_run_opts *c) {
    const ml_string_list *ids = &c->rollout.stop_ids;
    ml_str *stop = ML_NEW(a, ml_str, c->rollout.stop.n + 1);
    int32_t *id = ML_NEW(a, int32_t, ids->n + 1);

    for (int i = 0; i < c->rollout.stop.n; i++)
        stop[i] = ml_str_of(c->rollout.stop.word[i]);
    for (int i = 0; i < ids->n; i++)
        id[i] = (int32_t)strtol(ids->word[i], NULL, 10);
    return (ml_sampling){ .temperature = (float)c->rollout.temperature,
                          .top_p = (float)c->rollout.top_p,
                          .top_k = top_k(c->rollout.top_k),
                          .max_new = (int32_t)c->rollout.max_response,
                          .stop = stop,
                          .n_stop = c->rollout.stop.n,
                          .stop_id = id,
                          .n_stop_id = ids->n,
                          .seed = (uint64_t)c->source.seed,
                          .skip_special = c->rollout.skip_special,
                          .support = ml_run_draws_part(&c->rollout) };
}

/* --- rewards ---------------------------------------------------------------- */

bool ml_reward_from_environment(const ml_run_opts *c) {
    const char *path = c->extensions.generate;

    return path && !c->extensions.execute_tool &&
           (ml_worker_command_is(path) || ml_python_is(path) || strstr(path, ".so:"));
}

/* Checks the grader named in a row's metadata. */
static ml_status check_type(const ml_json *type, const ml_run_opts *c, ml_arena *a,
                            ml_err *err) {
    ml_grader g;

    if (!type || type->type != ML_JSON_STRING || !ml_str_trim(type->text).len)
        return ml_fail(err, ML_EUSAGE,
                       "no reward: give --rm-type NAME for a built-in reward, "
                       "--custom-rm-path ./reward.py for a custom one (--rm-type zero for "
                       "no reward), or set rm_type in each row's metadata");
    if (ml_str_is(type->text, "remote_rm") && !c->reward.rm_url)
        return ml_fail(err, ML_EUSAGE, "rm_type remote_rm needs --rm-url");
    if (ml_str_is(type->text, "reward_model") && !c->reward.model_path)
        return ml_fail(err, ML_EUSAGE, "rm_type reward_model needs --reward-model-path");
    if (ml_str_is(type->text, "judge") && !c->reward.judge.url &&
        !c->reward.judge.model_path)
        return ml_fail(err, ML_EUSAGE,
                       "rm_type judge needs --judge-model-path or --judge-url");
    if (ml_str_is(type->text, "remote_rm") || ml_str_is(type->text, "reward_model") ||
        ml_str_is(type->text, "judge") || ml_str_is(type->text, "ifbench"))
        return ML_OK;
    return ml_grader_find(&g, ml_arena_str(a, type->text.ptr, type->text.len), err);
}

static ml_status check_row(const ml_dataset *ds, int64_t row, const ml_run_opts *c,
                           ml_err *err) {
    ml_status st;
    ml_arena a;
    ml_prompt p;

    ml_arena_init(&a, "a row");
    st = ml_dataset_prompt(&p, ds, row, &a, err);
    if (st == ML_OK) {
        st = check_type(ml_json_get(p.metadata, "rm_type"), c, &a, err);
        if (st != ML_OK)
            ml_dataset_blame(ds, row, err);
    }
    ml_arena_release(&a);
    return st;
}

ml_status ml_reward_check(const ml_run_opts *c, const ml_dataset *ds, ml_err *err) {
    int64_t n = ds->opts.make ? 1 : ds->rows.n; /* of generated prompts, only the first */
    ml_status st = ML_OK;

    if (c->reward.rm_type || c->custom_rm_path || ml_reward_from_environment(c) ||
        ml_python_prompts_are(ds->opts.make))
        return ML_OK;
    for (int64_t i = 0; i < n && st == ML_OK; i++)
        st = check_row(ds, i, c, err);
    return st;
}

ml_status ml_reward_opts_resolve(ml_reward_opts *out, const ml_run_opts *c, ml_arena *a,
                                 ml_err *err) {
    *out = c->reward;
    if (!out->rm_type && !c->custom_rm_path && ml_reward_from_environment(c))
        out->rm_type = "zero";
    return ml_reward_path_resolve(out, a, c->custom_rm_path, err);
}

/* --- models of rewards ------------------------------------------------------ */

static ml_backend_opts backend_of(const ml_run_opts *c, const char *device) {
    ml_backend_opts o = c->backend;

    o.device = device ? device : o.device;
    return o;
}

static bool elsewhere(const ml_run_opts *c, const char *device) {
    return device && c->backend.device && strcmp(device, c->backend.device) != 0;
}

static ml_status open_model(ml_run_opts *c, ml_err *err) {
    enum { TOKENS = 4096 };
    ml_reward_model_opts o = { .dir = c->reward.model_path,
                               .dtype = c->dtype,
                               .backend = backend_of(c, c->reward.model_device),
                               .max_tokens = c->trainer.batch.max_tokens };

    if (o.max_tokens < 1)
        o.max_tokens = TOKENS;
    return ml_reward_model_open(&c->reward.model, &o, err);
}

static ml_status open_judge(ml_run_opts *c, ml_err *err) {
    enum { CHUNK = 2048 };
    ml_judge_model_opts o = {
        .dir = c->reward.judge.model_path,
        .dtype = c->dtype,
        .backend = backend_of(c, c->reward.judge.device),
        .context = c->reward.judge.context,
        .prefill_chunk = c->engine.chunk > 0 ? c->engine.chunk : CHUNK,
    };

    return ml_judge_model_open(&c->reward.judge.engine, &o, err);
}

ml_status ml_reward_models_open(ml_run_opts *c, ml_err *err) {
    bool here = ml_run_ranks_first(&c->ranks);
    ml_status st = here && c->reward.model_path ? open_model(c, err) : ML_OK;

    return st == ML_OK && here && c->reward.judge.model_path ? open_judge(c, err) : st;
}

ml_status ml_reward_models_start(const ml_reward_opts *o, ml_err *err) {
    ml_status st = o->model ? ml_reward_model_start(o->model, err) : ML_OK;

    return st == ML_OK && o->judge.engine ? ml_judge_model_start(o->judge.engine, err) : st;
}

void ml_reward_models_stop(const ml_reward_opts *o) {
    if (o->model)
        ml_reward_model_stop(o->model);
    if (o->judge.engine)
        ml_judge_model_stop(o->judge.engine);
}

void ml_reward_models_close(ml_reward_opts *o) {
    ml_reward_model_close(o->model);
    ml_judge_model_close(o->judge.engine);
}

size_t ml_reward_models_bytes(const ml_run_opts *c) {
    const ml_reward_opts *o = &c->reward;
    size_t bytes = 0;

    if (o->model && !elsewhere(c, o->model_device))
        bytes += ml_reward_model_bytes(o->model);
    if (o->judge.engine && !elsewhere(c, o->judge.device))
        bytes += ml_judge_model_bytes(o->judge.engine);
    return bytes;
}

ml_status ml_rewards_open_for(ml_rewards **out, ml_arena *a, const ml_run_opts *c,
                              ml_err *err) {
    ml_reward_opts o;
    ml_status st = ml_reward_opts_resolve(&o, c, a, err);
    return st == ML_OK ? ml_rewards_open(out, &o, err) : st;
}

/* --- the environment -------------------------------------------------------- */

static ml_status open_generate(ml_worker_pool **out, const ml_environment_opts *e,
                               const ml_run_opts *c, ml_err *err) {
    ml_worker_pool_opts o = e->python;

    if (c->mode.fully || c->rollout.partial)
        return ml_fail(err, ML_EUNSUP,
                       "--custom-generate-function-path: a Python function that generates "
                       "excludes %s",
                       c->mode.fully ? "--fully-async" : "--partial-rollout");
    o.n = c->reward.n_thread;
    o.memory_bytes = c->reward.memory_bytes;
    return ml_worker_pool_open(out, &o, err);
}

ml_status ml_turns_open_for(ml_turns **out, ml_worker_pool **generate,
                            const ml_train_run *run, ml_arena *a, const ml_run_opts *c,
                            ml_err *err) {
    ml_turns_opts o = c->turns;
    ml_status st;

    o.environment.args = c->reward.args;
    st = ml_generate_path_resolve(&o.environment, a, c->extensions.generate,
                                  c->extensions.execute_tool, err);
    o.environment.memory_bytes = c->reward.memory_bytes;
    o.environment.deadline_s = c->reward.deadline_s;
    o.text.tokenizer = run->tokenizer;
    o.text.chat_template = run->chat_template;
    o.n_thread = c->reward.n_thread;
    if (st == ML_OK && c->data.template_kwargs)
        st = ml_json_parse(&o.text.kwargs, a, ml_str_of(c->data.template_kwargs),
                           "--apply-chat-template-kwargs", err);
    if (st != ML_OK ||
        (!o.environment.ext && !o.environment.command.line && !o.environment.python.line))
        return st;
    if (o.environment.generates)
        return open_generate(generate, &o.environment, c, err);
    st = ml_turns_open(out, &o, err);
    if (st != ML_OK)
        ml_err_prefix(err, "--custom-generate-function-path");
    return st;
}

/* --- rollouts --------------------------------------------------------------- */

ml_status ml_rollouts_open(ml_rollouts *r, ml_arena *a, const ml_loop_extensions *e,
                           ml_train_run *run, const ml_run_opts *c, ml_err *err) {
    ml_prompt_feed feed = ml_train_run_feed(run);
    ml_status st;

    *r = (ml_rollouts){ .group_rewards = c->reward.group,
                        .buffer = e->buffer,
                        .sync = { .feed = feed,
                                  .over_sampling = c->rollout.over_sampling,
                                  .partial = c->rollout.partial,
                                  .mask_old = c->rollout.mask_old,
                                  .filter = e->group_filter,
                                  .buffer_filter = e->buffer_filter },
                        .custom = { .ext = e->rollout, .feed = feed } };
    ml_partial_buffer_init(&r->sync.partial_buffer, feed.n_per_prompt);
    r->sync.how = sampling_of(a, c);
    memcpy(r->sync.how.routed, run->opts.replay_rollout, sizeof run->opts.replay_rollout);
    st = ml_reward_check(c, &run->dataset, err);
    if (st == ML_OK)
        st = ml_rewards_open_for(&r->rewards, a, c, err);
    return st == ML_OK ? ml_turns_open_for(&r->turns, &r->generate, run, a, c, err) : st;
}

void ml_rollouts_close(ml_rollouts *r) {
    ml_turns_close(r->turns);
    ml_worker_pool_close(r->generate);
    ml_rewards_close(r->rewards);
    ml_partial_buffer_release(&r->sync.partial_buffer);
}

static ml_status open_async(ml_rollouts *r, const ml_run_opts *c, void (*say)(const char *),
                            ml_err *err) {
    int64_t per_group = c->source.n_samples_per_prompt, batch = c->rollout_batch_size,
            capacity = (int64_t)(c->mode.capacity * (double)batch);
    ml_async_opts o = {
        .feed = r->sync.feed,
        .gen_ctx = r->sync.gen_ctx,
        .how = r->sync.how,
        .filter = r->sync.filter,
        .buffer = r->buffer,
        .max_groups = c->mode.max_samples ? c->mode.max_samples / per_group : batch,
        .capacity = capacity < 1 ? 1 : capacity,
        .max_stale = c->mode.max_stale,
        .retry = c->mode.unused == 1,
        .mask_old = c->rollout.mask_old,
        .say = say,
    };

    return ml_async_open(&r->async, &o, err);
}

ml_status ml_rollouts_start(ml_rollouts *r, ml_rollout *out, const ml_gen_ctx *ctx,
                            ml_train_run *run, const ml_run_opts *c,
                            void (*say)(const char *), ml_err *err) {
    ml_status st = ML_OK;

    r->sync.gen_ctx = *ctx;
    r->sync.gen_ctx.group_rewards = r->group_rewards;
    r->custom.gen_ctx = r->sync.gen_ctx;
    r->custom.how = r->sync.how;
    r->custom.must_rest = !c->mode.async;
    *out = ml_python_extension_is(r->custom.ext ? &r->custom.ext->base : NULL)
               ? ml_rollout_python(&r->custom)
           : r->custom.ext ? ml_rollout_custom(&r->custom)
                           : ml_rollout_gen(&r->sync);
    if (c->mode.fully) {
        st = open_async(r, c, say, err);
        *out = st == ML_OK ? ml_rollout_async(r->async) : *out;
    } else if (c->mode.async) {
        r->prefetch = ML_NEW(&run->arena, ml_prefetch, 1);
        ml_prefetch_init(r->prefetch, *out, run->num_rollout, run->spec.n_vocab);
        *out = ml_rollout_prefetch(r->prefetch);
    }
    return st;
}

void ml_rollouts_stop(ml_rollouts *r) {
    ml_async_close(r->async);
    r->async = NULL;
    if (r->prefetch)
        ml_prefetch_release(r->prefetch);
    r->prefetch = NULL;
}
