#include "run/assembly.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/dir.h"
#include "net/tcp.h"
#include "plugin/python_extensions.h"
#include "plugin/python_host.h"
#include "rl/reward/reward_model.h"
#include "run/python_rollout.h"
#include "run/session_server.h"

/* --- what will be requested ------------------------------------------------- */

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
static int64_t longest_of(const ml_dataset *d, const ml_sampling *how, bool turns,
                          int64_t (*tokens)(int64_t text_bytes)) {
    int64_t prompt;

    if (turns || d->longest_text < 0)
        return ML_NONE;
    prompt = tokens(d->longest_text);
    if (d->opts.max_prompt_len)
        prompt = least(prompt, d->opts.max_prompt_len);
    return prompt + how->max_new;
}

/* The maximum over the run and its evaluations. */
static int64_t longest(const ml_assembly *m, int64_t (*tokens)(int64_t text_bytes)) {
    const ml_dataset *prompts = &m->run->dataset;
    const ml_evals *evals = &m->evaluator.evals;
    int64_t n = m->rollouts.custom.ext ? ML_NONE : 0;

    if (n >= 0 && (prompts->opts.path || prompts->opts.make))
        n = longest_of(prompts, &m->rollouts.sync.how,
                       m->rollouts.turns || m->rollouts.generate, tokens);
    for (int32_t i = 0; i < evals->n && n >= 0; i++) {
        const ml_eval_set *set = &evals->set[i];
        int64_t own = longest_of(&set->dataset, &set->how,
                                 set->turns || set->generate || m->rollouts.turns ||
                                     m->rollouts.generate,
                                 tokens);
        n = own < 0 ? own : most(n, own);
    }
    return n > 0 && !evals->ext ? n : ML_NONE;
}

static ml_demand demand_of(const ml_assembly *m, const ml_run_opts *c) {
    const ml_evals *evals = &m->evaluator.evals;
    int64_t groups = most(c->rollout_batch_size, c->rollout.over_sampling);
    ml_demand d = { .longest = longest(m, most_tokens),
                    .usual = longest(m, usual_tokens),
                    .n_running = groups * c->source.n_samples_per_prompt,
                    .evaluates = evals->n > 0 };

    for (int32_t i = 0; i < evals->n; i++)
        d.n_running =
            most(d.n_running, evals->set[i].dataset.rows.n * evals->set[i].n_per_prompt);
    if (c->opd.context_key) /* the teacher's prompts are not known yet */
        d.longest = ML_NONE;
    d.n_running = most(d.n_running, most(c->mode.max_samples, 1));
    return d;
}

/* --- open and close --------------------------------------------------------- */

/* The absolute path, because engines may have another working directory or machine:
 * nothing is created here. */
static const char *whole_path(ml_arena *a, const char *path) {
    char here[4096];

    return *path == '/' || !getcwd(here, sizeof here)
               ? path
               : ml_arena_printf(a, "%s/%s", here, path);
}

/* Where engines of other processes find weights, and where those of the run write logs. */
static ml_status make_weight_dir(ml_assembly *m, const char **out, const ml_run_opts *c,
                                 ml_err *err) {
    const char *dir = c->publish.dir
                          ? c->publish.dir
                          : ml_arena_printf(&m->arena, "%s/rollout_weights", c->save);
    ml_status st = ml_dir_make_whole(out, &m->arena, dir, err);

    m->generator.weight_dir = *out;
    return st;
}

static ml_status open_disk(ml_assembly *m, const ml_run_opts *c, ml_err *err) {
    ml_publish_opts o = c->publish;
    ml_status st = make_weight_dir(m, &o.dir, c, err);

    if (st != ML_OK)
        return st;
    o.delta = c->mode.transfer == ML_TRANSFER_DISK_DELTA;
    o.copy = o.delta ? whole_path(&m->arena, o.copy) : NULL;
    o.write.source = o.dir;
    o.write.file_bytes = (size_t)o.shard_bytes;
    m->generator.copy_dir = o.copy;
    if (ml_run_has_lora(c))
        return ml_publisher_remote_adapter(&m->publisher, o.dir, NULL, 0, m->run, err);
    return ml_publisher_disk(&m->publisher, &o, m->run, err);
}

/* The address of this machine under which the first engine on another one reaches it. */
static ml_status find_address(char out[64], const ml_run_opts *c, ml_err *err) {
    int n = c->mode.router_ip ? 1 : c->mode.external ? c->mode.addrs.n : 0;
    ml_status st = ML_OK;

    snprintf(out, 64, "127.0.0.1");
    for (int i = 0; i < n && st == ML_OK; i++) {
        const char *word = c->mode.router_ip ? c->mode.router_ip : c->mode.addrs.word[i];
        const char *at = strstr(word, "://");
        size_t len = strcspn(at ? at + 3 : word, ":/");
        ml_text host = { 0 };
        ml_text_add(&host, at ? at + 3 : word, len);
        st = ml_tcp_address_towards(out, host.ptr, err);
        ml_text_release(&host);
        if (strncmp(out, "127.", 4) != 0)
            break;
    }
    if (st != ML_OK)
        ml_err_prefix(err, "--update-weight-address is needed");
    return st;
}

static ml_status open_tcp(ml_assembly *m, const ml_run_opts *c, ml_err *err) {
    char found[64] = "";
    const char *dir = NULL, *address = c->publish.address ? c->publish.address : found;
    ml_status st = c->publish.address ? ML_OK : find_address(found, c, err);

    if (st == ML_OK && c->mode.n_engine)
        st = make_weight_dir(m, &dir, c, err);
    if (st != ML_OK)
        return st;
    if (ml_run_has_lora(c))
        return ml_publisher_remote_adapter(&m->publisher, NULL, address,
                                           60 * c->place.timeout_min, m->run, err);
    return ml_publisher_tcp(&m->publisher, address, c->publish.shard_bytes,
                            60 * c->place.timeout_min, m->run, err);
}

/* What gives weights to engines in other processes; a dry run creates nothing. */
static ml_status open_sender(ml_assembly *m, const ml_run_opts *c, ml_err *err) {
    if (c->dry_run)
        return ML_OK;
    return c->mode.transfer == ML_TRANSFER_BROADCAST ? open_tcp(m, c, err)
                                                     : open_disk(m, c, err);
}

/* Rank 0 opens prompts, rewards and evaluations, and knows from them what will be
 * requested of all engines. */
static ml_status open_rollouts(ml_assembly *m, ml_demand *out, const ml_run_opts *c,
                               ml_err *err) {
    int64_t n_engine = ml_run_ranks_n_engine(&c->ranks);
    ml_status st = ML_OK;

    if (ml_run_ranks_first(&c->ranks)) {
        st = ml_rollouts_open(&m->rollouts, &m->arena, m->extensions, m->run, c, err);
        if (st == ML_OK)
            st = ml_evaluator_open(&m->evaluator, &m->arena, &m->rollouts, m->extensions,
                                   m->run, c, err);
        if (st == ML_OK)
            *out = demand_of(m, c);
    }
    if (st == ML_OK && !ml_run_elsewhere(c))
        st = ml_comm_share(c->ranks.world, out, sizeof *out, err);
    if (!ml_run_elsewhere(c))
        out->n_running = (out->n_running + n_engine - 1) / n_engine;
    return st;
}

ml_status ml_assembly_open(ml_assembly *m, const ml_run_opts *c,
                           const ml_loop_extensions *e, ml_train_run *run, ml_err *err) {
    ml_demand demand = { 0 };
    ml_status st;

    *m = (ml_assembly){ .run = run,
                        .extensions = e,
                        .publishes = e && !c->rollout.load_debug };
    ml_arena_init(&m->arena, "assembly");
    ml_python_host_set(
        &(ml_python_parts){ .tokenizer = run->tokenizer,
                            .chat_template = run->chat_template,
                            .model = c->hf_checkpoint,
                            .rows = run->rows.opts.path ? &run->rows : NULL });
    m->teaches = e && ml_run_ranks_first(&c->ranks);
    m->generates = m->publishes && (ml_run_ranks_first(&c->ranks) || !ml_run_elsewhere(c));
    st = m->generates ? open_rollouts(m, &demand, c, err) : ML_OK;
    if (st == ML_OK && m->generates)
        st = ml_generator_open(&m->generator, run, &demand, c, err);
    if (st == ML_OK)
        st = ml_train_run_measure(run, err);
    if (st == ML_OK && !m->generates && m->teaches)
        st = ml_run_teachers_open(&m->teachers, run, 0, err);
    if (st != ML_OK || !m->generates)
        return st;
    st = ml_generator_size(&m->generator, &demand, c, err);
    if (st == ML_OK && ml_run_elsewhere(c)) /* after the engines were found */
        st = open_sender(m, c, err);
    run->opts.engine_bytes = m->publisher ? m->publisher->bytes : 0;
    run->opts.reward_bytes = ml_reward_models_bytes(c);
    if (m->publisher && ml_run_ranks_divides(&c->ranks)) /* rank 0 collects them */
        run->opts.engine_bytes +=
            ml_run_has_lora(c) ? ml_weights_bytes(&run->lora.spec, NULL, ML_WEIGHT_F32)
                               : ml_weights_bytes(&run->spec, run->from, run->opts.dtype);
    if (st == ML_OK && m->teaches)
        st = ml_run_teachers_open(&m->teachers, run, m->generator.engine.context, err);
    return st == ML_OK ? ml_generator_measure(&m->generator, err) : st;
}

void ml_assembly_close(ml_assembly *m) {
    if (!m->run)
        return;
    ml_sft_rollout_release(&m->sft);
    ml_evaluator_close(&m->evaluator);
    ml_run_teachers_close(&m->teachers);
    ml_generator_stop(&m->generator);
    ml_publisher_close(m->publisher);
    ml_generator_close(&m->generator);
    ml_rollouts_close(&m->rollouts);
    ml_python_host_set(&(ml_python_parts){ 0 });
    ml_arena_release(&m->arena);
}

/* --- start ------------------------------------------------------------------ */

/* Engines of this process read the weights of the run, or a copy of them; others get them
 * from the disk. */
static ml_status open_publisher(ml_assembly *m, const ml_run_opts *c, ml_err *err) {
    const ml_weights *w = ml_train_run_read(m->run);
    bool own = ml_generator_own_set(c);

    if (m->publisher)
        return ML_OK;
    if (m->run->opts.rollout_dtype || (c->qat && own && !ml_run_ranks_moves(&c->ranks)))
        return ml_publisher_quantized(&m->publisher, &m->run->weights, &m->run->spec,
                                      c->qat ? c->qat : m->run->opts.rollout_dtype, own,
                                      &m->generator.be, err);
    if (ml_run_ranks_moves(&c->ranks))
        return ml_publisher_moves(&m->publisher, &m->generator, &c->ranks,
                                  c->debug.check_sync, err);
    if (w->lora && c->lora.train_only)
        return ml_publisher_base(&m->publisher, w, err);
    if (ml_generator_own_set(c) && w->lora)
        return ml_publisher_adapter(&m->publisher, w, &m->run->lora, &m->generator.be, err);
    return ml_generator_own_set(c)
               ? ml_publisher_copy(&m->publisher, w, &m->generator.be, err)
               : ml_publisher_shared(&m->publisher, w, err);
}

/* Whether the user's functions send requests to the engine. */
static bool is_served(const ml_assembly *m) {
    const miles_rollout *rollout = m->rollouts.custom.ext;
    bool any =
        m->rollouts.generate || ml_python_extension_is(rollout ? &rollout->base : NULL);

    for (int32_t i = 0; i < m->evaluator.evals.n; i++)
        any |= m->evaluator.evals.set[i].generate != NULL;
    return any;
}

/* Functions send requests to the engine of this process or to a router: that of the run, or
 * one that runs already. */
static ml_status tell_address(ml_assembly *m, const ml_run_opts *c, ml_err *err) {
    const ml_generator *g = &m->generator;
    ml_python_parts parts = ml_python_host_get();
    ml_secret *key = ML_NEW(&m->arena, ml_secret, 1);
    ml_status st = ML_OK;

    if (!g->serves)
        return ML_OK;
    if (g->router) {
        parts.host = c->router.host;
        parts.port = ml_run_router_port(g->router);
        parts.key = ml_run_router_key(g->router);
    } else if (g->served) {
        parts.host = "127.0.0.1";
        parts.port = ml_rank_engine_port(g->served);
        parts.key = ml_rank_engine_key(g->served);
    } else {
        st = ml_secret_find(key, c->mode.engine_key, c->mode.engine_key_file,
                            "--rollout-external-api-key", err);
        parts.host = c->mode.router_ip;
        parts.port = c->router.port;
        parts.key = st == ML_OK ? ml_secret_text(key) : NULL;
    }
    ml_python_host_set(&parts);
    return st;
}

static ml_status open_sessions(ml_generator *g, const ml_run_opts *c, ml_err *err) {
    ml_python_parts parts = ml_python_host_get();
    ml_status st;

    if (!c->sessions.kind || !g->gen)
        return ML_OK;
    st = ml_session_server_open(&g->sessions, g, c, err);
    if (st != ML_OK)
        return st;
    parts.session_host = ml_session_server_host(g->sessions);
    parts.session_port = ml_session_server_port(g->sessions);
    parts.session_key = ml_session_server_key(g->sessions);
    ml_python_host_set(&parts);
    return ML_OK;
}

static ml_status start_engines(ml_assembly *m, const ml_run_opts *c, ml_err *err) {
    const ml_weights *w = ml_train_run_read(m->run);
    ml_status st = open_publisher(m, c, err);

    m->generator.serves = is_served(m);
    if (st == ML_OK && m->run->mtp.be &&
        (m->generator.engine.draft.mtp || m->generator.engine.draft.eagle3))
        st = ml_publisher_take_mtp(m->publisher, &m->run->mtp.weights,
                                   ml_generator_own_set(c), &m->generator.be,
                                   &m->generator.engine.draft.mtp_weights, err);
    if (st == ML_OK)
        st = ml_generator_start(&m->generator, m->publisher->weights, c, err);
    if (st != ML_OK)
        return st;
    st = tell_address(m, c, err);
    if (st == ML_OK)
        st = open_sessions(&m->generator, c, err);
    if (st == ML_OK)
        st = ml_publisher_start(m->publisher, &m->generator, w, err);
    m->publisher->frozen = c->debug.skip_sync || c->lora.train_only;
    return st;
}

static ml_gen_ctx context_of(const ml_assembly *m) {
    return (ml_gen_ctx){ .gen = m->generator.gen,
                         .rewards = m->rollouts.rewards,
                         .tokenizer = m->run->tokenizer,
                         .chat_template = m->run->chat_template,
                         .turns = m->rollouts.turns,
                         .generate = m->rollouts.generate,
                         .n_vocab = m->run->spec.n_vocab,
                         .end = m->generator.eos.id,
                         .n_end = m->generator.eos.n,
                         .context = m->generator.engine.context };
}

/* Ranks that have parts of the weights all take part in giving them to engines elsewhere. */
static bool collects(const ml_assembly *m, const ml_run_opts *c) {
    return m->publishes && ml_run_elsewhere(c) && ml_run_ranks_divides(&c->ranks) &&
           ml_run_ranks_size(&c->ranks) > 1;
}

static ml_status start_publishing(ml_assembly *m, const ml_run_opts *c, ml_err *err) {
    ml_status st = ML_OK;

    if (collects(m, c))
        st = ml_publisher_collect(&m->publisher, m->publisher, m->run, &c->ranks,
                                  c->publish.shard_bytes, err);
    if (st != ML_OK || m->generates)
        return st == ML_OK ? start_engines(m, c, err) : st;
    return m->publisher ? ml_publisher_start(m->publisher, &m->generator,
                                             ml_train_run_read(m->run), err)
                        : ML_OK;
}

static ml_status start_evaluator(ml_assembly *m, const ml_run_opts *c, ml_err *err) {
    ml_gen_ctx ctx = context_of(m);

    return m->generates && ml_run_ranks_first(&c->ranks)
               ? ml_evaluator_start(&m->evaluator, &m->generator, &ctx, c, err)
               : ML_OK;
}

ml_status ml_assembly_start(ml_assembly *m, const ml_run_opts *c, ml_err *err) {
    ml_status st = m->teaches ? ml_run_teachers_start(&m->teachers, err) : ML_OK;

    if (st == ML_OK)
        st = ml_reward_models_start(&c->reward, err);
    if (st == ML_OK)
        st = start_publishing(m, c, err);
    return st == ML_OK ? start_evaluator(m, c, err) : st;
}

/* The engine is needed for evaluations: meanwhile no new generation is started. */
static ml_status evaluate(void *ud, int64_t rollout, ml_err *err) {
    ml_assembly *m = ud;
    ml_async *async = m->rollouts.async;
    ml_status st;

    if (async)
        ml_async_hold(async, true);
    st = ml_evals_observe(&m->evaluator.evals, rollout, &m->run->observers, err);
    if (async)
        ml_async_hold(async, false);
    return st;
}

static ml_eval_driver eval_driver_of(ml_assembly *m, const ml_run_opts *c) {
    ml_eval_queue *queue = m->evaluator.queue;

    if (!m->evaluator.evals.n || !c->rollout.eval_interval)
        return (ml_eval_driver){ 0 };
    return queue ? (ml_eval_driver){ queue, ml_eval_queue_run, ml_eval_queue_wait }
                 : (ml_eval_driver){ m, evaluate, NULL };
}

static ml_status join_generation(ml_assembly *m, ml_train_loop *loop,
                                 const ml_display *display, const ml_run_opts *c,
                                 ml_err *err) {
    ml_gen_ctx ctx = context_of(m);
    ml_status st;

    ctx.work_count = display->answers;
    if (!m->evaluator.queue) /* which has its own thread */
        m->evaluator.evals.gen_ctx.work_count = display->answers;
    loop->eval = eval_driver_of(m, c);
    loop->eval_interval = c->rollout.eval_interval;
    loop->skip_first_eval = c->rollout.skip_first_eval;
    loop->prefetch = c->mode.async;
    st =
        ml_rollouts_start(&m->rollouts, &loop->rollout, &ctx, m->run, c, display->say, err);
    m->publisher->async = m->rollouts.async;
    return st;
}

static ml_reward_shaping shaping_of(ml_assembly *m, const ml_run_opts *c) {
    const ml_string_list *keys = &c->shaping.keys, *weights = &c->shaping.weights;
    double *weight = ML_NEW(&m->arena, double, keys->n + 1);

    for (int i = 0; i < keys->n; i++)
        weight[i] = i < weights->n ? strtod(weights->word[i], NULL) : 1.0;
    return (ml_reward_shaping){ .max_response = c->rollout.max_response,
                                .overlong_buffer = c->shaping.overlong_buffer,
                                .overlong_factor = c->shaping.overlong_factor,
                                .length_coef = c->shaping.length_coef,
                                .key = keys->word,
                                .weight = weight,
                                .n_key = keys->n };
}

ml_rollout ml_assembly_hook(ml_assembly *m, ml_rollout inner, const ml_run_opts *c) {
    m->hooks = (ml_rollout_hooks){
        .inner = inner,
        .inject = { c->record.inject, c->record.inject_from, c->record.inject_least,
                    m->run->spec.n_vocab },
        .distill = ml_run_teachers_distill(&m->teachers, m->generator.gen),
        .shaping = shaping_of(m, c),
        .n_critic_only = m->run->critic.from ? m->run->opts.n_critic_only : 0,
        .rescore = { c->debug.prefill ? m->generator.gen : NULL, "the engine",
                     (float)c->rollout.temperature },
        .post = m->extensions->reward_post,
        .filter = m->extensions->sample_filter,
        .metrics = m->extensions->metrics,
        .hook = m->extensions->samples_hook,
        .convert = m->extensions->converts ? ml_python_convert : NULL,
    };
    return ml_rollout_with_hooks(&m->hooks);
}

/* The rollout of rank 0. */
static ml_status join_rollout(ml_assembly *m, ml_train_loop *loop,
                              const ml_display *display, const ml_run_opts *c,
                              ml_err *err) {
    ml_prompt_feed feed = ml_train_run_feed(m->run);
    ml_status st = ML_OK;

    if (!m->extensions) {
        ml_sft_rollout_init(&m->sft, &feed, m->run->tokenizer, m->run->chat_template);
        m->sft.preference = m->run->opts.recipe.preference;
        m->sft.reward = m->run->spec.reward;
        m->sft.pad_token = m->run->spec.pad_token;
        m->sft.end_token = ml_tokenizer_role(m->run->tokenizer, ML_TOKEN_EOS);
        loop->rollout = ml_rollout_sft(&m->sft);
        return ML_OK;
    }
    m->replay =
        (ml_replay_rollout){ .template = c->rollout.load_debug,
                             .keep = isnan(c->debug.subsample) ? 0 : c->debug.subsample,
                             .n_vocab = m->run->spec.n_vocab };
    if (m->generates)
        st = join_generation(m, loop, display, c, err);
    else
        loop->rollout = ml_rollout_replay(&m->replay);
    loop->rollout = ml_assembly_hook(m, loop->rollout, c);
    return st;
}

ml_status ml_assembly_join(ml_assembly *m, ml_train_loop *loop, const ml_display *display,
                           const ml_run_opts *c, ml_err *err) {
    ml_status st = ML_OK;

    loop->generator = m->generates ? &m->generator : NULL;
    loop->publisher = m->publisher;
    loop->publishes = m->publishes;
    loop->publish_interval = m->publishes ? c->mode.update_interval : 0;
    if (ml_run_ranks_first(&c->ranks))
        st = join_rollout(m, loop, display, c, err);
    if (ml_run_ranks_size(&c->ranks) == 1)
        return st;
    m->shared = (ml_shared_rollout){ c->ranks.actors, loop->rollout };
    loop->rollout = ml_rollout_shared(&m->shared);
    return st;
}
