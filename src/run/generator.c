#include "run/generator.h"

#include <string.h>

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
    if (c->rollout.max_prompt && !d->evaluates)
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
    o.eos = g->eos.id;
    o.n_eos = g->eos.n;
    o.tokenizer = g->run->tokenizer;
    memcpy(o.routed, g->run->opts.replay_rollout, sizeof o.routed);
    return o;
}

/* An engine's memory besides its KV pages; one in another process has its own weights. */
static size_t beside_pages(const ml_generator *g, const ml_engine_memory *m) {
    size_t weights =
        g->n_engine ? ml_weights_bytes(&g->run->spec, g->run->from, g->run->opts.dtype) : 0;

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
    ml_train_run_memory(g->run, &req);
    st = ml_memory_plan(&plan, &req, err);
    if (st == ML_OK)
        st = ml_engine_measure(&m, &g->run->spec, &g->be, &g->engine, err);
    if (st == ML_OK)
        *out = (double)ml_train_run_free_bytes(g->run, &g->be) -
               (double)g->run->opts.memory_margin -
               (double)(plan.total - req.base_bytes - (req.in_turns ? plan.trainer : 0)) -
               (double)count_engines(g) * (double)beside_pages(g, &m);
    return st;
}

/* Size of the KV cache: the need of all concurrent requests, or the share of the memory
 * that the plan leaves, divided among the engines.  One context always fits; if requests
 * are longer than expected, some of them wait. */
static ml_status size_engine(ml_generator *g, const ml_demand *d, const ml_run_opts *c,
                             ml_err *err) {
    int64_t page = (int64_t)ml_kv_bytes(&g->run->spec, &g->be, 1);
    double slots = (double)ml_engine_slot_bytes(
        &g->run->spec, &g->be, c->engine.max_running, c->engine.no_prefix_cache);
    double left = 0;
    int64_t one, each, n;
    ml_status st;

    g->engine = engine_opts(g, d, c);
    one = ml_kv_pages_for(g->engine.context);
    g->engine.kv_bytes = (size_t)(one * page);
    st = bytes_left(g, &left, err);
    if (st != ML_OK || left <= 0)
        return st; /* with the minimum: the check of the plan reports what to change */
    left *= c->rollout.mem_fraction / count_engines(g);
    left = left > slots ? left - slots : 0;
    each = d->usual > 0 ? least(one, ml_kv_pages_for((int32_t)least(d->usual, INT32_MAX)))
                        : one;
    n = most(one, least(d->n_running, c->engine.max_running) * each);
    n = least(n, (int64_t)(left / (double)page));
    if (c->rollout.max_total)
        n = least(n, most(one, c->rollout.max_total / ML_PAGE));
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

/* --- open and close ---------------------------------------------------------- */

ml_status ml_generator_open(ml_generator *g, ml_train_run *run, const ml_demand *demand,
                            const ml_run_opts *c, ml_err *err) {
    ml_backend_opts opts = c->backend;
    bool turns = c->mode.offload || (c->mode.colocate && !ml_run_elsewhere(c));
    ml_status st;

    *g = (ml_generator){ .run = run,
                         .offload_train = c->mode.offload_train || turns,
                         .offload_rollout = c->mode.offload_rollout || turns,
                         .pauses = ml_run_ranks_size(&c->ranks) > 1 &&
                                   !ml_run_elsewhere(c) && !ml_generator_own_set(c),
                         .external = c->mode.external,
                         .n_engine = (int32_t)c->mode.n_engine };
    opts.n_thread = ml_generator_threads(c, true);
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
    st = ml_backend_open(&g->be, &opts, err);
    return st == ML_OK ? size_engine(g, demand, c, err) : st;
}

void ml_generator_stop(ml_generator *g) {
    if (g->supervisor)
        ml_supervisor_serve(g->supervisor, NULL);
    if (g->gen && g->gen != g->local)
        g->gen->close(g->gen);
    ml_rank_engine_stop(g->served);
    if (g->local)
        g->local->close(g->local);
    ml_rank_engine_close(g->served);
    ml_supervisor_close(g->supervisor);
    g->gen = g->local = NULL;
    g->served = NULL;
    g->supervisor = NULL;
}

void ml_generator_close(ml_generator *g) {
    if (!g->run)
        return;
    if (g->be.name)
        ml_backend_close(&g->be);
    ml_arena_release(&g->arena);
}

ml_status ml_generator_measure(ml_generator *g, ml_err *err) {
    ml_engine_memory m;
    ml_status st;

    if (g->external)
        return ML_OK;
    st = ml_engine_measure(&m, &g->run->spec, &g->be, &g->engine, err);
    if (st != ML_OK)
        return st;
    g->run->opts.engine_bytes += (size_t)count_engines(g) * beside_pages(g, &m);
    g->run->opts.kv_bytes = (size_t)count_engines(g) * m.kv;
    return ML_OK;
}

/* --- running ----------------------------------------------------------------- */

static ml_status offload_trainers(ml_generator *g, ml_memory_phase next, ml_err *err) {
    ml_trainer *const trainer[] = { g->run->trainer, g->run->critic.trainer };
    ml_status st = ML_OK;

    for (int i = 0; i < 2 && g->offload_train; i++)
        if (trainer[i] && st == ML_OK)
            st = next == ML_PHASE_TRAIN ? ml_trainer_take(trainer[i], err)
                                        : ml_trainer_release(trainer[i], err);
    return st;
}

ml_status ml_generator_enter(ml_generator *g, ml_memory_phase next, ml_err *err) {
    ml_status st;

    if (next == ML_PHASE_TRAIN && g->pauses)
        g->local->pause(g->local);
    if (next == ML_PHASE_TRAIN && g->offload_rollout)
        ml_local_release(g->local, true, false);
    st = offload_trainers(g, next, err);
    if (st == ML_OK && next == ML_PHASE_ROLLOUT && g->offload_rollout)
        st = ml_local_take(g->local, true, false, err);
    if (next == ML_PHASE_ROLLOUT && g->pauses)
        g->local->resume(g->local);
    return st;
}

ml_status ml_generator_start(ml_generator *g, const ml_weights *w, const ml_run_opts *c,
                             ml_err *err) {
    ml_local_opts o = {
        .engine = g->engine, .spec = &g->run->spec, .be = &g->be, .weights = w
    };
    ml_status st = offload_trainers(g, ML_PHASE_ROLLOUT, err);

    g->faults.after = g->run->rollout - 1;
    if (st != ML_OK || g->external)
        return st;
    if (g->n_engine)
        return ml_engines_start(g, c, err);
    st = ml_local_open(&g->local, &o, err);
    if (st == ML_OK && ml_run_ranks_size(&c->ranks) > 1)
        return ml_rank_engine_open(g, c, err);
    g->gen = g->local;
    return st;
}

void ml_generator_published(ml_generator *g) {
    if (g->supervisor)
        ml_faults_happen(&g->faults, g->supervisor, g->run->rollout);
}
