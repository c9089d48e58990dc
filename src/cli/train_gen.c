#include "cli/train_gen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/log.h"
#include "cli/reward_check.h"
#include "cli/reward_opts.h"
#include "cli/train_evals.h"
#include "cli/train_fleet.h"
#include "cli/train_remote.h"
#include "plugin/generate_path.h"
#include "train/memory.h"

#define MAX_WAITING (1 << 24) /* a whole rollout is queued at once */

/* --- sampling --------------------------------------------------------------- */

static ml_status stop_ids(ml_sampling *out, ml_arena *a, const ml_string_list *words,
                          ml_err *err) {
    int32_t *id = ML_NEW(a, int32_t, words->n + 1);

    for (int i = 0; i < words->n; i++) {
        char *end;
        long x = strtol(words->word[i], &end, 10);
        if (*end || end == words->word[i] || x < 0 || x > INT32_MAX)
            return ml_fail(err, ML_EUSAGE,
                           "--rollout-stop-token-ids: \"%s\" is not the id of a token",
                           words->word[i]);
        id[i] = (int32_t)x;
    }
    out->stop_id = id;
    out->n_stop_id = words->n;
    return ML_OK;
}

static int32_t top_k(int64_t k) {
    return k < 0 ? 0 : (int32_t)k;
}

static ml_status sampling_of(ml_sampling *out, ml_arena *a, const ml_config *c,
                             ml_err *err) {
    ml_str *stop = ML_NEW(a, ml_str, c->rollout.stop.n + 1);

    for (int i = 0; i < c->rollout.stop.n; i++)
        stop[i] = ml_str_of(c->rollout.stop.word[i]);
    *out = (ml_sampling){ .temperature = (float)c->rollout.temperature,
                          .top_p = (float)c->rollout.top_p,
                          .top_k = top_k(c->rollout.top_k),
                          .max_new = (int32_t)c->rollout.max_response,
                          .stop = stop,
                          .n_stop = c->rollout.stop.n,
                          .seed = (uint64_t)c->train.rollout_seed,
                          .skip_special = c->rollout.skip_special };
    return stop_ids(out, a, &c->rollout.stop_ids, err);
}

/* --- rewards ---------------------------------------------------------------- */

ml_status ml_train_rewards_open(ml_rewards **out, ml_arena *a, const ml_config *c,
                                ml_err *err) {
    ml_reward_opts o;
    ml_status st = ml_reward_opts_init(&o, c, a, err);
    return st == ML_OK ? ml_rewards_open(out, &o, err) : st;
}

ml_status ml_train_turns_open(ml_turns **out, ml_train_gen *t, const ml_config *c,
                              ml_err *err) {
    ml_turns_opts o = { .environment = { .memory_bytes = c->reward.memory_bytes,
                                         .deadline_s = c->reward.timeout_s },
                        .text = { .tokenizer = t->run->tokenizer,
                                  .chat_template = t->run->chat_template },
                        .tools = (ml_tool_format)c->extensions.tool_parser,
                        .max_turn = (int32_t)c->extensions.max_turns,
                        .n_thread = c->reward.n_worker };
    ml_status st = ml_generate_path_resolve(
        &o.environment, &t->arena, c->extensions.generate, c->extensions.execute_tool, err);

    if (st == ML_OK && c->train.template_kwargs)
        st = ml_json_parse(&o.text.kwargs, &t->arena, ml_str_of(c->train.template_kwargs),
                           "--apply-chat-template-kwargs", err);
    if (st != ML_OK || (!o.environment.ext && !o.environment.command.line))
        return st;
    st = ml_turns_open(out, &o, err);
    if (st != ML_OK)
        ml_err_prefix(err, "--custom-generate-function-path");
    return st;
}

/* --- the engine -------------------------------------------------------------- */

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

/* Upper bound of the tokens of a text: one per byte, where normalisation turns one byte
 * into at most 11; plus some special tokens. */
static int64_t most_tokens(int64_t text_bytes) {
    return 12 * text_bytes + 64;
}

/* Typical number of tokens, in the languages that need most. */
static int64_t usual_tokens(int64_t text_bytes) {
    return text_bytes / 2 + 64;
}

/* The longest prompt plus answer of a data set.  ML_NONE: not known, because answers have
 * several turns, or prompts are not text yet. */
static int64_t longest_of(const ml_dataset *d, const ml_sampling *how,
                          const ml_turns *turns, int64_t (*tokens)(int64_t text_bytes)) {
    int64_t prompt;

    if (turns || d->longest_text < 0)
        return ML_NONE;
    prompt = tokens(d->longest_text);
    if (d->opts.max_prompt_len)
        prompt = least(prompt, d->opts.max_prompt_len);
    return prompt + how->max_new;
}

/* The maximum over the run and its evaluations. */
static int64_t longest(const ml_train_gen *t, int64_t (*tokens)(int64_t text_bytes)) {
    const ml_dataset *prompts = &t->run->dataset;
    int64_t n = t->custom_rollout.ext ? ML_NONE : 0;

    if (n >= 0 && (prompts->opts.path || prompts->opts.make))
        n = longest_of(prompts, &t->rollout.how, t->turns, tokens);
    for (int32_t i = 0; i < t->evals.n && n >= 0; i++) {
        const ml_eval_set *set = &t->evals.set[i];
        int64_t own = longest_of(&set->dataset, &set->how,
                                 set->turns ? set->turns : t->turns, tokens);
        n = own < 0 ? own : most(n, own);
    }
    return n > 0 && !t->evals.ext ? n : ML_NONE;
}

/* The maximum number of concurrent requests. */
static int64_t count_running(const ml_train_gen *t, const ml_config *c) {
    int64_t groups = most(c->train.rollout_batch_size, c->rollout.over_sampling);
    int64_t n = groups * c->rollout.n_samples_per_prompt;

    for (int32_t i = 0; i < t->evals.n; i++)
        n = most(n, t->evals.set[i].dataset.rows.n * t->evals.set[i].n_per_prompt);
    return least(most(n, most(c->mode.max_samples, 1)), c->rollout.max_running);
}

static int64_t context_of(const ml_train_gen *t, const ml_config *c) {
    int64_t context = t->run->spec.max_position, bound = longest(t, most_tokens);

    if (c->rollout.max_context)
        context = least(context, most(c->rollout.max_context, c->rollout.eval_context));
    if (c->rollout.max_prompt && t->evals.n == 0)
        context = least(context, c->rollout.max_prompt + c->rollout.max_response);
    if (bound > 0 && !c->record.inject) /* injected rollouts may be longer */
        context = least(context, bound);
    return context;
}

static ml_engine_opts engine_opts(const ml_train_gen *t, const ml_config *c) {
    ml_engine_opts o = { .context = (int32_t)context_of(t, c),
                         .max_running = (int32_t)c->rollout.max_running,
                         .max_waiting = MAX_WAITING,
                         .chunk = (int32_t)c->rollout.chunk,
                         .no_prefix_cache = c->rollout.no_prefix_cache,
                         .no_overlap = c->rollout.steps.no_overlap,
                         .record_rows = ml_record_rows(&c->rollout.steps),
                         .eos = t->eos.id,
                         .n_eos = t->eos.n,
                         .tokenizer = t->run->tokenizer };

    memcpy(o.routed, t->run->opts.replay_rollout, sizeof o.routed);
    return o;
}

/* An engine's memory besides its KV pages; one in another process has its own weights. */
static size_t beside_pages(const ml_train_gen *t, const ml_engine_memory *m) {
    size_t weights =
        t->n_engine ? ml_weights_bytes(&t->run->spec, t->run->from, t->run->opts.dtype) : 0;

    return weights + m->act + m->scratch + (t->be.dev->host ? m->routing_record : 0);
}

static int32_t count_engines(const ml_train_gen *t) {
    return t->n_engine ? t->n_engine : 1;
}

/* The memory left for the KV cache after everything else. */
static ml_status bytes_left(ml_train_gen *t, double *out, ml_err *err) {
    ml_memory_request req;
    ml_memory plan;
    ml_engine_memory m;
    ml_status st;

    t->run->opts.in_turns = t->offload_train && t->offload_rollout;
    ml_train_run_memory(t->run, &req);
    st = ml_memory_plan(&plan, &req, err);
    if (st == ML_OK)
        st = ml_engine_measure(&m, &t->run->spec, &t->be, &t->engine, err);
    if (st == ML_OK)
        *out = (double)ml_memory_available(&t->be) - (double)t->run->opts.memory_margin -
               (double)(plan.total - req.base_bytes - (req.in_turns ? plan.trainer : 0)) -
               (double)count_engines(t) * (double)beside_pages(t, &m);
    return st;
}

/* Size of the KV cache: the need of all concurrent requests, or the share of the memory
 * that the plan leaves, divided among the engines.  One context always fits; if requests
 * are longer than expected, some of them wait. */
static ml_status size_engine(ml_train_gen *t, const ml_config *c, ml_err *err) {
    int64_t page = (int64_t)ml_kv_bytes(&t->run->spec, &t->be, 1);
    double slots = (double)ml_engine_slot_bytes(
        &t->run->spec, &t->be, (int32_t)c->rollout.max_running, c->rollout.no_prefix_cache);
    int64_t usual = longest(t, usual_tokens);
    double left = 0;
    int64_t one, each, n;
    ml_status st;

    t->engine = engine_opts(t, c);
    one = ml_kv_pages_for(t->engine.context);
    t->engine.kv_bytes = (size_t)(one * page);
    st = bytes_left(t, &left, err);
    if (st != ML_OK || left <= 0)
        return st; /* with the minimum: the check of the plan reports what to change */
    left *= c->rollout.mem_fraction / count_engines(t);
    left = left > slots ? left - slots : 0;
    each = usual > 0 ? least(one, ml_kv_pages_for((int32_t)least(usual, INT32_MAX))) : one;
    n = most(one, count_running(t, c) * each);
    n = least(n, (int64_t)(left / (double)page));
    t->engine.kv_bytes = (size_t)(n * page);
    return ML_OK;
}

static ml_status find_ends(ml_train_gen *t, ml_err *err) {
    ml_status st = ml_end_tokens_read(&t->eos, t->run->opts.hf_checkpoint, err);
    if (st == ML_OK)
        ml_end_tokens_add(&t->eos, ml_tokenizer_role(t->run->tokenizer, ML_TOKEN_EOS));
    return st;
}

/* If both run at the same time, they share the cores. */
int ml_train_gen_threads(const ml_config *c, bool generates) {
    int64_t all = c->run.n_thread, rollout = c->mode.rollout_threads;

    if (!rollout)
        rollout = c->mode.async ? (all + 1) / 2 : all;
    if (generates)
        return (int)rollout;
    return (int)(c->mode.async && all > rollout ? all - rollout : c->mode.async ? 1 : all);
}

bool ml_train_gen_own_set(const ml_config *c) {
    return !ml_config_elsewhere(c) && (c->mode.async || c->debug.skip_sync);
}

ml_status ml_train_gen_open(ml_train_gen *t, const ml_config *c,
                            const ml_loop_extensions *extensions, ml_train_run *run,
                            ml_err *err) {
    ml_backend_opts opts = ml_config_backend(c);
    ml_status st;

    *t = (ml_train_gen){ .run = run,
                         .async = c->mode.async,
                         .own_set = ml_train_gen_own_set(c),
                         .offload_train = c->mode.offload_train || c->mode.offload,
                         .offload_rollout = c->mode.offload_rollout || c->mode.offload,
                         .keeps_weights = c->debug.skip_sync,
                         .shard_bytes = c->mode.shard_bytes,
                         .n_engine = (int32_t)c->mode.n_engine };
    opts.n_thread = ml_train_gen_threads(c, true);
    ml_arena_init(&t->arena, "generation");
    t->rollout.run = run;
    t->rollout.over_sampling = c->rollout.over_sampling;
    t->group_rewards = c->reward.group;
    t->rollout.partial = c->rollout.partial;
    t->rollout.filter = extensions->group_filter;
    t->buffer = extensions->buffer;
    t->custom_rollout = (ml_custom_rollout){ .ext = extensions->rollout, .run = run };
    t->rollout.buffer_filter = extensions->buffer_filter;
    t->evals.metrics = extensions->eval_metrics;
    t->evals.ext = extensions->eval;
    t->rollout.mask_old = c->rollout.mask_old;
    t->eval_context =
        c->rollout.eval_context ? c->rollout.eval_context : c->rollout.max_context;
    ml_partial_buffer_init(&t->rollout.partial_buffer,
                           run->opts.source.n_samples_per_prompt);
    st = sampling_of(&t->rollout.how, &t->arena, c, err);
    memcpy(t->rollout.how.routed, run->opts.replay_rollout,
           sizeof run->opts.replay_rollout);
    if (st == ML_OK)
        st = ml_faults_read(&t->faults, &t->arena, c->debug.faults, t->n_engine, err);
    if (st == ML_OK)
        st = find_ends(t, err);
    if (st == ML_OK)
        st = ml_train_evals_open(t, c, err);
    if (st == ML_OK)
        st = ml_reward_check(c, &run->dataset, err);
    if (st == ML_OK)
        st = ml_train_rewards_open(&t->rewards, &t->arena, c, err);
    if (st == ML_OK)
        st = ml_train_turns_open(&t->turns, t, c, err);
    if (st != ML_OK)
        return st;
    if (c->mode.external) {
        t->engine.context = (int32_t)context_of(t, c);
        st = ml_train_remote_open(t, c, err);
    }
    if (st == ML_OK && ml_config_elsewhere(c)) /* opened when the engines were found */
        st = ml_train_remote_dir(t, c, err);
    if (st != ML_OK || c->mode.external)
        return st;
    st = ml_backend_open(&t->be, &opts, err);
    return st == ML_OK ? size_engine(t, c, err) : st;
}

void ml_train_gen_close(ml_train_gen *t) {
    if (!t->run)
        return;
    ml_train_eval_engines_close(t);
    if (t->supervisor)
        ml_supervisor_serve(t->supervisor, NULL);
    if (t->gen)
        t->gen->close(t->gen);
    ml_supervisor_close(t->supervisor);
    ml_weight_stream_close(t->stream);
    ml_turns_close(t->turns);
    ml_rewards_close(t->rewards);
    ml_partial_buffer_release(&t->rollout.partial_buffer);
    ml_train_evals_close(t);
    ml_weights_close(&t->second);
    if (t->be.name)
        ml_backend_close(&t->be);
    ml_arena_release(&t->arena);
}

ml_status ml_train_gen_bytes(ml_train_gen *t, ml_err *err) {
    ml_engine_memory m;
    ml_status st;

    t->run->opts.engine_bytes = ml_train_remote_bytes(t);
    if (t->weight_dir && !t->n_engine)
        return ML_OK;
    st = ml_engine_measure(&m, &t->run->spec, &t->be, &t->engine, err);
    if (st != ML_OK)
        return st;
    t->run->opts.engine_bytes += (size_t)count_engines(t) * beside_pages(t, &m);
    t->run->opts.kv_bytes = (size_t)count_engines(t) * m.kv;
    return ML_OK;
}

static ml_status turn_trainers(ml_train_gen *t, bool trains, ml_err *err) {
    ml_trainer *const trainer[] = { t->run->trainer, t->run->critic.trainer };
    ml_status st = ML_OK;

    for (int i = 0; i < 2 && t->offload_train; i++)
        if (trainer[i] && st == ML_OK)
            st = trains ? ml_trainer_take(trainer[i], err)
                        : ml_trainer_release(trainer[i], err);
    return st;
}

/* One releases its memory before the other allocates. */
ml_status ml_train_gen_turn(void *ud, bool trains, ml_err *err) {
    ml_train_gen *t = ud;
    ml_status st;

    if (trains && t->offload_rollout)
        ml_local_release(t->gen, true, false);
    st = turn_trainers(t, trains, err);
    if (st == ML_OK && !trains && t->offload_rollout)
        st = ml_local_take(t->gen, true, false, err);
    return st;
}

static ml_status start_engine(ml_train_gen *t, const ml_config *c, ml_err *err) {
    ml_local_opts o = { .engine = t->engine,
                        .spec = &t->run->spec,
                        .be = &t->be,
                        .weights = &t->run->weights };
    ml_status st = ML_OK;

    if (t->n_engine)
        st = ml_train_supervisor_open(t, c, err);
    if (t->weight_dir)
        return st == ML_OK ? ml_train_remote_publish(t, &t->run->weights, err) : st;
    if (t->own_set) {
        st = ml_weights_clone(&t->second, &t->run->weights, &t->be, &t->arena, err);
        o.weights = &t->second;
    }
    return st == ML_OK ? ml_local_open(&t->gen, &o, err) : st;
}

ml_status ml_train_gen_start(ml_train_gen *t, const ml_config *c, ml_err *err) {
    ml_status st = turn_trainers(t, false, err);

    if (st == ML_OK)
        st = start_engine(t, c, err);
    t->faults.after = t->run->rollout - 1;
    t->rollout.gen_ctx = (ml_gen_ctx){ .gen = t->gen,
                                       .rewards = t->rewards,
                                       .tokenizer = t->run->tokenizer,
                                       .chat_template = t->run->chat_template,
                                       .turns = t->turns,
                                       .end = t->eos.id,
                                       .n_end = t->eos.n,
                                       .context = t->engine.context };
    t->evals.gen_ctx = t->rollout.gen_ctx;
    t->evals.keep_answers = t->run->log.store != NULL;
    if (t->eval_context)
        t->evals.gen_ctx.context = (int32_t)least(t->engine.context, t->eval_context);
    t->rollout.gen_ctx.group_rewards = t->group_rewards;
    t->custom_rollout.gen_ctx = t->rollout.gen_ctx;
    t->custom_rollout.how = t->rollout.how;
    if (st == ML_OK && c->async_eval.n_gpu && t->evals.n)
        st = ml_train_eval_engines_open(t, c, err);
    return st;
}

/* No step runs while the copy changes; the KV cache of requests in flight is then
 * recomputed. */
static ml_status publish_copy(ml_train_gen *t, const ml_weights *w, ml_err *err) {
    ml_status st;

    t->gen->pause(t->gen);
    st = ml_weights_copy(&t->second, w, &t->be, err);
    if (st == ML_OK)
        st = ml_local_switch(t->gen, &t->second, ML_SWITCH_RECOMPUTE, err);
    t->gen->resume(t->gen);
    return st;
}

/* If engine and trainer share the weights, only the version changes. */
static ml_status publish(ml_train_gen *t, const ml_weights *w, ml_err *err) {
    if (t->weight_dir)
        return ml_train_remote_publish(t, w, err);
    return t->own_set ? publish_copy(t, w, err)
                      : ml_local_switch(t->gen, w, ML_SWITCH_RECOMPUTE, err);
}

ml_status ml_train_gen_publish(void *ud, const ml_weights *w, ml_err *err) {
    ml_train_gen *t = ud;
    double began = ml_clock_s();
    ml_status st;

    if (t->keeps_weights) {
        ml_log(ML_LOG_INFO, "weight_sync: version %llu is not published",
               (unsigned long long)w->version);
        return ML_OK;
    }
    st = publish(t, w, err);
    if (st == ML_OK && t->async_rollout)
        st = ml_async_published(t->async_rollout, w->version, err);
    if (st == ML_OK && t->supervisor)
        ml_faults_happen(&t->faults, t->supervisor, t->run->rollout);
    ml_log(ML_LOG_INFO, "weight_sync: version %llu in %.6f s",
           (unsigned long long)w->version, ml_clock_s() - began);
    return st;
}
