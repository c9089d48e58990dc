#include "run/generator.h"

#include <string.h>

#include "comm/device/device_comm.h"
#include "model/spec_shard.h"
#include "run/rollouts.h"
#include "run/session_server.h"
#include "train/memory.h"

#define MAX_WAITING (1 << 24) /* a whole rollout is queued at once */

/* --- sizes ------------------------------------------------------------------ */

static int64_t least(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t most(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t context_of(const ml_generator *g, const ml_demand *d, const ml_run_opts *c) {
    int64_t context = g->run->spec.max_position;

    if (c->rollout.max_context)
        context = least(context, most(c->rollout.max_context, c->rollout.eval_context));
    if (c->rollout.max_prompt && !d->evaluates && !c->sessions.kind)
        context = least(context, c->rollout.max_prompt + c->rollout.max_response);
    if (d->longest > 0 && !c->record.inject) /* injected rollouts may be longer */
        context = least(context, d->longest);
    return context;
}

static ml_engine_opts engine_opts(const ml_generator *g, const ml_demand *d,
                                  const ml_run_opts *c) {
    ml_engine_opts o = c->engine;

    o.context = (int32_t)context_of(g, d, c);
    o.max_waiting = MAX_WAITING;
    o.no_overlap = c->rollout.steps.no_overlap;
    o.record_rows = ml_record_rows(&c->rollout.steps);
    o.max_top = (int32_t)(2 * c->opd.top_k);
    o.eos = g->eos.id;
    o.n_eos = g->eos.n;
    o.tokenizer = g->run->tokenizer;
    memcpy(o.routed, g->run->opts.replay_rollout, sizeof o.routed);
    return o;
}

/* An engine's memory besides its KV pages; one in another process has its own weights. */
static size_t beside_pages(const ml_generator *g, const ml_engine_memory *m) {
    size_t weights = 0;

    if (g->n_engine)
        weights = ml_weights_bytes(&g->run->spec, g->run->from, g->run->opts.dtype);
    else if (g->moves.n_rank)
        weights = ml_moves_receiver_bytes(&g->moves) +
                  (g->adapter.n_rank ? ml_moves_receiver_bytes(&g->adapter) : 0);
    return weights + m->act + m->scratch + (g->be.dev->host ? m->routing_record : 0);
}

static int32_t count_engines(const ml_generator *g) {
    return g->n_engine ? g->n_engine : 1;
}

/* The memory left for the KV cache after everything else. */
static ml_status bytes_left(ml_generator *g, double *out, ml_err *err) {
    ml_memory_request req;
    ml_memory plan;
    ml_engine_memory m;
    ml_status st;

    g->run->opts.in_turns = g->offload_train && g->offload_rollout;
    g->run->opts.act_in_turns = g->turns;
    ml_train_run_memory(g->run, &req);
    st = ml_memory_plan(&plan, &req, err);
    if (st == ML_OK)
        st = ml_engine_measure(&m, g->spec, &g->be, &g->engine, err);
    if (st == ML_OK)
        *out = (double)ml_train_run_free_bytes(g->run, &g->be) -
               (double)g->run->opts.memory_margin -
               (double)(plan.total + plan.in_turns - req.base_bytes - plan.returned) -
               (double)count_engines(g) * (double)beside_pages(g, &m);
    return st;
}

/* Size of the KV cache: the need of all concurrent requests, or the share of the memory
 * that the plan leaves, divided among the engines.  One context always fits; if requests
 * are longer than expected, some of them wait. */
static ml_status size_engine(ml_generator *g, const ml_demand *d, const ml_run_opts *c,
                             ml_err *err) {
    int64_t page = (int64_t)ml_kv_bytes(g->spec, &g->be, 1);
    double left = 0, slots;
    int64_t one, each, groups, running, n;
    ml_status st;

    g->engine = engine_opts(g, d, c);
    st = ml_speculative_resolve(&g->engine.draft, &c->speculative,
                                g->run->opts.hf_checkpoint, g->run->opts.dtype,
                                g->part != NULL, err);
    if (st != ML_OK)
        return st;
    slots = (double)ml_engine_slot_bytes(g->spec, &g->be, &g->engine);
    one = ml_kv_pages_for(g->engine.context);
    g->engine.kv_bytes = (size_t)(one * page);
    st = bytes_left(g, &left, err);
    if (st != ML_OK || left <= 0)
        return st; /* with the minimum: the check of the plan reports what to change */
    left *= c->rollout.mem_fraction / count_engines(g);
    left = left > slots ? left - slots : 0;
    each = d->usual > 0 ? least(one, ml_kv_pages_for((int32_t)least(d->usual, INT32_MAX)))
                        : one;
    groups = g->spec->attn_dp > 1 ? g->spec->attn_dp : 1; /* a rank has the pages of one */
    running = least(d->n_running, c->engine.max_running);
    n = most(one, (running + groups - 1) / groups * each);
    n = least(n, (int64_t)(left / (double)page));
    if (c->rollout.max_total)
        n = least(n, most(one, c->rollout.max_total / groups / ML_PAGE));
    g->engine.kv_bytes = (size_t)(n * page);
    return ML_OK;
}

static ml_status find_ends(ml_generator *g, ml_err *err) {
    ml_status st = ml_end_tokens_read(&g->eos, g->run->opts.hf_checkpoint, err);
    if (st == ML_OK)
        ml_end_tokens_add(&g->eos, ml_tokenizer_role(g->run->tokenizer, ML_TOKEN_EOS));
    return st;
}

/* If both run at the same time, they share the cores. */
int ml_generator_threads(const ml_run_opts *c, bool generates) {
    int64_t all = c->backend.n_thread, rollout = c->mode.rollout_threads;

    if (!rollout)
        rollout = c->mode.async ? (all + 1) / 2 : all;
    if (generates)
        return (int)rollout;
    return (int)(c->mode.async && all > rollout ? all - rollout : c->mode.async ? 1 : all);
}

bool ml_generator_own_set(const ml_run_opts *c) {
    return !ml_run_elsewhere(c) && (c->mode.async || c->debug.skip_sync);
}

/* --- the rows of each rank ---------------------------------------------------- */

/* What the ranks that train have. */
static void list_senders(ml_generator *g, const ml_run_ranks *ranks) {
    const ml_shard_range **from =
        ML_NEW(&g->arena, const ml_shard_range *, g->moves.n_rank);
    ml_shard_map map;

    ml_shard_map_init(&map, &g->arena, &g->run->spec, g->run->be.linear, &ranks->sizes,
                      g->run->opts.trainer.stage);
    for (int32_t r = 0; r < ml_run_ranks_n_actor(ranks); r++)
        from[r] = ml_shard_residents(&map, &g->arena, r);
    g->moves.from = from;
}

static void list_receivers(ml_generator *g, const ml_run_ranks *ranks) {
    const ml_spec **to = ML_NEW(&g->arena, const ml_spec *, g->moves.n_rank);

    for (int32_t r = ranks->n_actor; r < g->moves.n_rank; r++)
        to[r] = &g->part[(r - ranks->n_actor) % ml_run_ranks_engine_size(ranks)];
    g->moves.to = to;
}

/* The same for the adapter.  Engines of several ranks have the rows of B that they need. */
static void plan_adapter(ml_generator *g, const ml_run_opts *c) {
    const ml_lora *l = &g->run->lora;
    int32_t n = g->moves.n_rank;
    const ml_shard_range **from = ML_NEW(&g->arena, const ml_shard_range *, n);
    const ml_spec **to = ML_NEW(&g->arena, const ml_spec *, n);
    ml_dtype *dtype = ML_NEW(&g->arena, ml_dtype, l->spec.n_param);
    ml_shard_map map;

    if (!l->n_site || c->lora.train_only)
        return;
    ml_lora_map(&map, &g->arena, l, &c->ranks.sizes);
    for (int32_t r = 0; r < n; r++) {
        ml_spec *mine = g->moves.to[r] ? ML_NEW(&g->arena, ml_spec, 1) : NULL;
        if (mine)
            *mine = ml_lora_cut_spec(&g->arena, l, g->moves.to[r]);
        to[r] = mine;
        if (r < ml_run_ranks_n_actor(&c->ranks))
            from[r] = ml_shard_residents(&map, &g->arena, r);
    }
    for (int32_t i = 0; i < l->spec.n_param; i++)
        dtype[i] = ML_F32;
    g->adapter = g->moves;
    g->adapter.whole = &l->spec;
    g->adapter.dtype = dtype;
    g->adapter.from = from;
    g->adapter.to = to;
    g->adapter.in_place = !ml_generator_own_set(c);
}

/* The specs of an engine's ranks. */
static ml_status cut_spec(ml_generator *g, int32_t n, int32_t dp, ml_err *err) {
    ml_spec whole = g->run->spec;
    ml_status st = ML_OK;

    whole.attn_dp = dp;
    g->part = ML_NEW(&g->arena, ml_spec, n);
    for (int32_t r = 0; r < n && st == ML_OK; r++)
        st = ml_spec_shard_copy(&g->part[r], &whole, n, r, err);
    if (st != ML_OK)
        ml_err_prefix(err, "--rollout-num-gpus-per-engine %d", n);
    return st;
}

/* miles eval does not have the flag. */
static size_t bucket_bytes(const ml_run_opts *c) {
    return c->publish.shard_bytes ? (size_t)c->publish.shard_bytes : (size_t)1 << 29;
}

static ml_status plan_moves(ml_generator *g, const ml_run_opts *c, ml_err *err) {
    const ml_run_ranks *ranks = &c->ranks;
    ml_weight_dtype want = ml_weights_dtype(&g->run->be, g->run->opts.dtype);
    const ml_spec *s = &g->run->spec;
    ml_dtype *dtype = ML_NEW(&g->arena, ml_dtype, s->n_param);
    ml_status st = cut_spec(g, ml_run_ranks_engine_size(ranks), ranks->engine_dp, err);

    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < s->n_param; i++)
        dtype[i] = ml_weights_param_dtype(&s->param[i], g->run->from, want);
    g->moves =
        (ml_moves_opts){ .whole = s,
                         .linear = g->run->be.linear,
                         .dtype = dtype,
                         .n_rank = ml_run_ranks_size(ranks),
                         .rank = ranks->world ? ranks->world->rank : 0,
                         .bucket_bytes = bucket_bytes(c),
                         .in_place = !ml_generator_own_set(c) || ml_run_has_lora(c) };
    list_senders(g, ranks);
    list_receivers(g, ranks);
    plan_adapter(g, c);
    if (ml_run_ranks_generates(ranks))
        g->spec = g->moves.to[g->moves.rank];
    return ML_OK;
}

/* --- open and close ---------------------------------------------------------- */

static ml_status open_engine(ml_generator *g, const ml_run_opts *c, ml_err *err) {
    ml_backend_opts opts = c->backend;
    ml_status st = ml_run_ranks_moves(&c->ranks) ? plan_moves(g, c, err) : ML_OK;

    if (st != ML_OK || !ml_run_ranks_generates(&c->ranks))
        return st;
    opts.n_thread = ml_generator_threads(c, true);
    st = ml_backend_open(&g->be, &opts, err);
    if (st == ML_OK && g->group)
        st = ml_comm_device_attach(g->group, g->be.stream, err);
    return st;
}

ml_status ml_generator_size(ml_generator *g, const ml_demand *demand, const ml_run_opts *c,
                            ml_err *err) {
    if (g->external)
        return ML_OK;
    if (ml_run_ranks_generates(&c->ranks))
        return size_engine(g, demand, c, err);
    g->engine = engine_opts(g, demand, c);
    return ML_OK;
}

ml_status ml_generator_open(ml_generator *g, ml_train_run *run, const ml_demand *demand,
                            const ml_run_opts *c, ml_err *err) {
    bool together = !ml_run_elsewhere(c) && !c->ranks.n_actor;
    bool turns = (c->mode.offload && !c->ranks.n_actor) || (c->mode.colocate && together);
    ml_status st;

    *g = (ml_generator){
        .run = run,
        .spec = &run->spec,
        .group = c->ranks.engine,
        .leads = ml_run_ranks_leads(&c->ranks),
        .offload_train = c->mode.offload_train || turns,
        .offload_rollout = (c->mode.offload_rollout && !c->ranks.n_actor) || turns,
        .pauses = ml_run_ranks_size(&c->ranks) > 1 && together && !ml_generator_own_set(c),
        .turns = run->be.dev->host && together && ml_run_ranks_size(&c->ranks) == 1 &&
                 !ml_generator_own_set(c) && !c->rollout.load_debug,
        .rewards = &c->reward,
        .external = ml_run_external(c),
        .n_engine = (int32_t)c->mode.n_engine
    };
    ml_arena_init(&g->arena, "generation");
    st = ml_faults_read(&g->faults, &g->arena, c->debug.faults, g->n_engine, err);
    if (st == ML_OK)
        st = find_ends(g, err);
    if (st != ML_OK)
        return st;
    if (g->external) {
        g->engine.context = (int32_t)context_of(g, demand, c);
        return ml_engines_connect(&g->gen, &g->arena, &run->spec, c, err);
    }
    return open_engine(g, c, err);
}

void ml_generator_stop(ml_generator *g) {
    if (g->supervisor)
        ml_supervisor_serve(g->supervisor, NULL);
    ml_run_router_close(g->router);
    g->router = NULL;
    ml_session_server_stop(g->sessions);
    if (g->gen && g->gen != g->local)
        g->gen->close(g->gen);
    ml_rank_engine_stop(g->served);
    if (g->local)
        g->local->close(g->local);
    if (g->steps)
        g->steps->close(g->steps);
    ml_rank_engine_close(g->served);
    ml_session_server_close(g->sessions);
    g->sessions = NULL;
    ml_supervisor_close(g->supervisor);
    g->gen = g->local = NULL;
    g->steps = NULL;
    g->served = NULL;
    g->supervisor = NULL;
}

void ml_generator_close(ml_generator *g) {
    if (!g->run)
        return;
    ml_grammar_cache_free(g->grammars);
    for (int32_t r = 0; g->part && r < g->run->opts.ranks.engine_size; r++)
        ml_spec_close(&g->part[r]);
    if (g->be.name && g->group)
        ml_comm_device_detach(g->group);
    if (g->be.name)
        ml_backend_close(&g->be);
    ml_arena_release(&g->arena);
}

ml_status ml_generator_measure(ml_generator *g, ml_err *err) {
    ml_engine_memory m;
    ml_status st;

    if (g->external || !ml_run_ranks_generates(&g->run->opts.ranks))
        return ML_OK;
    st = ml_engine_measure(&m, g->spec, &g->be, &g->engine, err);
    if (st != ML_OK)
        return st;
    g->run->opts.engine_bytes += (size_t)count_engines(g) * beside_pages(g, &m);
    g->run->opts.kv_bytes = (size_t)count_engines(g) * m.kv;
    return ML_OK;
}

/* --- running ----------------------------------------------------------------- */

static ml_status offload_trainer(const ml_generator *g, ml_trainer *t, ml_memory_phase next,
                                 ml_err *err) {
    if (t && g->turns && next == ML_PHASE_SAVE)
        ml_trainer_rest(t);
    if (!t || !g->offload_train || next == ML_PHASE_SAVE)
        return ML_OK;
    return next == ML_PHASE_TRAIN ? ml_trainer_take(t, err) : ml_trainer_release(t, err);
}

static ml_status offload_trainers(ml_generator *g, ml_memory_phase next, ml_err *err) {
    ml_status st = offload_trainer(g, g->run->trainer, next, err);

    return st == ML_OK ? offload_trainer(g, g->run->critic.trainer, next, err) : st;
}

/* The first rank of an engine speaks for all of them; they meet before the memory of one
 * phase is used in the other. */
ml_status ml_generator_enter(ml_generator *g, ml_memory_phase next, ml_err *err) {
    bool begins = next == ML_PHASE_ROLLOUT && g->leads;
    bool kv = g->offload_rollout || (g->turns && g->local);
    ml_status st = ML_OK;

    if (next == ML_PHASE_TRAIN && g->leads && g->pauses)
        g->local->pause(g->local);
    if (next == ML_PHASE_TRAIN && g->leads && kv)
        ml_local_release(g->local, true, false);
    if (next == ML_PHASE_TRAIN && g->leads && g->offload_rollout)
        ml_reward_models_stop(g->rewards);
    if (next == ML_PHASE_TRAIN)
        st = ml_comm_meet(g->group, err);
    if (st == ML_OK)
        st = offload_trainers(g, next, err);
    if (st == ML_OK && next == ML_PHASE_ROLLOUT)
        st = ml_comm_meet(g->group, err);
    if (st == ML_OK && begins && kv)
        st = ml_local_take(g->local, true, false, err);
    if (st == ML_OK && begins && g->offload_rollout)
        st = ml_reward_models_start(g->rewards, err);
    if (begins && g->pauses)
        g->local->resume(g->local);
    return st;
}

/* The engine of this rank, with the others of its group. */
static ml_status open_local(ml_generator *g, const ml_weights *w, const ml_run_opts *c,
                            ml_err *err) {
    ml_local_opts o = { .engine = g->engine, .spec = g->spec, .be = &g->be, .weights = w };
    ml_grammar_opts grammar = { .tokenizer = g->run->tokenizer,
                                .n_vocab = (int32_t)g->run->spec.n_vocab };
    ml_status st = ML_OK;

    if (!ml_run_ranks_generates(&c->ranks))
        return ML_OK;
    if (g->group) {
        st = g->group->split(g->group, &g->steps, 0, g->group->rank, err);
        if (st != ML_OK)
            return st;
        g->steps->group = "engine";
        g->steps->deadline_s = 60 * c->place.timeout_min;
        o.engine.comm = g->steps;
    }
    if (g->run->tokenizer)
        o.engine.grammars = g->grammars = ml_grammar_cache_new(&grammar);
    return ml_local_open(&g->local, &o, err);
}

ml_status ml_generator_start(ml_generator *g, const ml_weights *w, const ml_run_opts *c,
                             ml_err *err) {
    ml_status st = offload_trainers(g, ML_PHASE_ROLLOUT, err);

    g->faults.after = g->run->rollout - 1;
    if (st == ML_OK && g->n_engine)
        st = ml_engines_start(g, c, err);
    if (st != ML_OK || g->external || g->n_engine)
        return st == ML_OK ? ml_engines_route(g, c, err) : st;
    st = open_local(g, w, c, err);
    if (st == ML_OK && ml_run_ranks_size(&c->ranks) > 1)
        return ml_rank_engine_open(g, w, c, err);
    g->gen = g->local;
    return st == ML_OK && g->serves ? ml_rank_engine_serve(g, w, c, err) : st;
}

void ml_generator_published(ml_generator *g) {
    if (g->supervisor)
        ml_faults_happen(&g->faults, g->supervisor, g->run->rollout);
}
