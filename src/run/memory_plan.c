#include "run/memory_plan.h"

#include <string.h>

#include "base/bug.h"
#include "model/spec_context.h"
#include "model/stage.h"
#include "train/grads.h"
#include "train/host_memory.h"
#include "train/pipeline.h"

static void add(ml_memory *m, const char *what, size_t bytes) {
    int i = 0;

    if (!bytes)
        return;
    while (i < m->n && m->row[i].what != what)
        i++;
    ML_BUG_IF(i == ML_MEMORY_ROWS);
    m->n += i == m->n;
    m->row[i].what = what;
    m->row[i].bytes += bytes;
    m->total += bytes;
}

/* Memory that is always the host's, never a device's. */
static void add_on_host(ml_memory *m, const ml_backend *be, const char *what,
                        size_t bytes) {
    if (be->dev->host)
        add(m, what, bytes);
    else
        m->on_host += bytes;
}

ml_batch_caps ml_memory_caps(int64_t tokens, int32_t n_context) {
    int64_t n_seq = tokens / 64 + 1, n_page = tokens / ML_PAGE + n_seq;
    ml_batch_caps c = { .n_page = (int32_t)n_page };

    if (n_context > 1) {
        tokens = tokens / n_context + 2 * n_seq;
        n_seq *= 2;
        c.n_context = n_context;
        c.n_share = (int32_t)tokens;
    }
    c.n_token = c.n_loss = (int32_t)tokens;
    c.n_seq = (int32_t)n_seq;
    return c;
}

static int32_t n_context_of(const ml_memory_request *req) {
    return req->opts.mesh ? req->opts.mesh->sizes.size[ML_MESH_CP] : 1;
}

/* Of a micro-batch, on all ranks that divide its sequences. */
static int64_t tokens_of(const ml_memory_request *req, bool score) {
    const ml_trainer_opts *o = &req->opts;
    int64_t n_context = n_context_of(req);
    int64_t n = o->batch.dynamic ? o->batch.max_tokens * n_context
                                 : o->batch.micro_batch_size * req->longest;

    if (score && o->score_max_tokens)
        n = o->score_max_tokens * n_context;
    n = n < req->longest ? req->longest : n;
    return n < 1 ? 1 : n;
}

/* The memory rows of a trained model; the tables below have the same order. */
enum {
    GRADS,
    STATE,
    COPY,
    ACT,
    SCRATCH,
    SCORE_ACT,
    SCORE_SCRATCH,
    CHOICES,
    RANKS,
    GATHERED,
    SCORE_GATHERED,
    N_ROW
};

static const char *const actor_rows[N_ROW] = {
    "gradients",     "optimizer state",          "save buffer",          "activations",
    "scratch",       "forward-only activations", "forward-only scratch", "routing replay",
    "rank exchange", "gathered weights",         "forward-only weights",
};
static const char *const critic_rows[N_ROW] = {
    "critic gradients",   "critic optimizer state", "critic save buffer",
    "critic activations", "critic scratch",         "value activations",
    "value scratch",      "critic routing replay",  "critic rank exchange",
    "critic gathered",    "value gathered",
};

/* Of weights that ranks divide. */
static void divide_plan(ml_plan_opts *o, ml_arena *a, const ml_memory_request *req,
                        const ml_spec *spec) {
    const ml_mesh *mesh = req->opts.mesh;
    ml_shard_map *map = ML_NEW(a, ml_shard_map, 1);
    ml_dtype *stored = ML_NEW(a, ml_dtype, spec->n_param);

    if (!mesh)
        return;
    for (int32_t i = 0; i < spec->n_param; i++)
        stored[i] = ml_weights_param_dtype(
            &spec->param[i], spec == req->critic ? req->critic_from : req->from,
            req->dtype);
    ml_shard_map_init(map, a, spec, req->be->linear, &mesh->sizes, req->opts.stage);
    o->map = map;
    o->rank = mesh->rank;
    o->stored = stored;
}

/* The nodes of one of a rank's pipeline stages, and its micro-batches in flight. */
typedef struct stage_chunk {
    int32_t first, end, n_set;
} stage_chunk;

static int32_t find_chunks(stage_chunk **out, ml_arena *a, const ml_memory_request *req,
                           const ml_spec *spec, const int32_t *stage, bool train) {
    const ml_mesh *mesh = req->opts.mesh;
    ml_pipeline_opts o = { .n_stage = mesh ? mesh->sizes.size[ML_MESH_PP] : 1,
                           .backward = train };
    ml_pipeline p;
    int32_t n = 0;

    *out = ML_NEW(a, stage_chunk, spec->n_layer + 2);
    if (o.n_stage == 1)
        return 1;
    while (ml_stage_chunk(stage, spec->n_node, mesh->at[ML_MESH_PP], n, &(*out)[n].first,
                          &(*out)[n].end))
        n++;
    o.n_chunk = n;
    o.n_micro = 4 * o.n_stage; /* more do not need more memory */
    ml_pipeline_schedule(&p, a, &o, mesh->at[ML_MESH_PP]);
    for (int32_t i = 0; i < n; i++)
        (*out)[i].n_set = p.n_set[i];
    return n;
}

/* The spec of a context-parallel rank, and the pipeline stages of its nodes. */
static ml_status divide_context(ml_spec *out, const int32_t **stage, ml_arena *a,
                                const ml_memory_request *req, const ml_spec *spec,
                                ml_err *err) {
    int32_t *origin, *own;
    ml_status st = ml_spec_context(out, spec, n_context_of(req),
                                   req->opts.mesh->at[ML_MESH_CP], &origin, err);

    if (st != ML_OK || !*stage)
        return st;
    own = ML_NEW(a, int32_t, out->n_node);
    for (int32_t i = 0; i < out->n_node; i++)
        own[i] = (*stage)[origin[i]];
    *stage = own;
    return ML_OK;
}

void ml_memory_plan_caps(const ml_memory_request *req, ml_batch_caps *train_caps,
                         ml_batch_caps *score_caps) {
    *train_caps = ml_memory_caps(tokens_of(req, false), n_context_of(req));
    *score_caps = ml_memory_caps(tokens_of(req, true), n_context_of(req));
}

/* Of the plans of a rank's pipeline stages. */
typedef struct plan_bytes {
    size_t act, scratch, gathered;
} plan_bytes;

static void add_bytes(plan_bytes *sum, const ml_plan *plan) {
    sum->gathered += ml_plan_gather_bytes(plan);
    sum->act += ml_plan_act_bytes(plan);
    sum->scratch += ml_plan_scratch_bytes(plan);
}

static ml_status add_plan(ml_memory *m, plan_bytes *sum, const ml_memory_request *req,
                          const ml_spec *spec, bool train, const char *const *row,
                          ml_err *err) {
    ml_plan_opts opts = { .caps = ml_memory_caps(tokens_of(req, !train), n_context_of(req)),
                          .backward = train,
                          .frozen = req->opts.lora && (!spec->critic || spec->reward),
                          .logits = train && req->opts.keep_logits && !spec->critic,
                          .loss_rows = req->opts.loss_rows,
                          .grad_format = req->opts.grad_format,
                          .recompute = req->opts.recompute };
    ml_spec pieces = { 0 };
    const int32_t *stage = req->opts.stage;
    const ml_spec *run;
    stage_chunk *chunk;
    int32_t n_chunk;
    ml_plan *plan;
    ml_status st = ML_OK;
    ml_arena a;

    ml_arena_init(&a, "a memory plan");
    memcpy(opts.given, req->opts.replay, sizeof opts.given);
    divide_plan(&opts, &a, req, spec);
    if (train && req->opts.mtp && !spec->critic)
        ml_mtp_keep(&opts, &req->opts.mtp->spec, spec);
    if (opts.caps.n_context)
        st = divide_context(&pieces, &stage, &a, req, spec, err);
    run = opts.caps.n_context ? &pieces : spec;
    n_chunk = st == ML_OK ? find_chunks(&chunk, &a, req, run, stage, train) : 0;
    for (int32_t i = 0; i < n_chunk && st == ML_OK; i++) {
        opts.first = chunk[i].first;
        opts.end = chunk[i].end;
        opts.n_set = chunk[i].n_set;
        plan = NULL;
        st = ml_plan_new(&plan, run, req->be, opts, err);
        if (st == ML_OK)
            add_bytes(sum, plan);
        ml_plan_free(plan);
        if (st == ML_OK)
            add_on_host(m, req->be, row[CHOICES],
                        ml_routing_replay_bytes(spec, req->opts.replay, opts.caps.n_token));
    }
    ml_spec_close(&pieces);
    ml_arena_release(&a);
    return st;
}

static size_t beyond(size_t bytes, size_t shared) {
    return bytes > shared ? bytes - shared : 0;
}

/* Training and forward-only passes have their activations, scratch memory and gathered weights in
 * turns (ml_plan_memory): a run that never scores takes as much as one that does. */
static ml_status add_plans(ml_memory *m, const ml_memory_request *req, const ml_spec *spec,
                           const char *const *row, ml_err *err) {
    plan_bytes train = { 0 }, score = { 0 };
    ml_status st = add_plan(m, &train, req, spec, true, row, err);

    if (st == ML_OK && req->scores)
        st = add_plan(m, &score, req, spec, false, row, err);
    add(m, row[GATHERED], train.gathered);
    add(m, row[ACT], train.act);
    add(m, row[SCRATCH], train.scratch);
    add(m, row[SCORE_GATHERED], beyond(score.gathered, train.gathered));
    add(m, row[SCORE_ACT], beyond(score.act, train.act));
    add(m, row[SCORE_SCRATCH], beyond(score.scratch, train.scratch));
    return st;
}

static ml_status add_mtp(ml_memory *m, const ml_memory_request *req, ml_err *err) {
    ml_optimizer_opts opt = req->opts.optimizer;
    size_t bytes = 0;
    ml_status st;

    opt.mesh = req->opts.mesh;
    st =
        ml_mtp_trainer_bytes(&bytes, req->opts.mtp, req->from, req->dtype, req->bf16, &opt,
                             ml_trainer_waiting_sets(req->opts.grad_shards, opt.mesh),
                             ml_memory_caps(tokens_of(req, false), n_context_of(req)), err);
    add(m, "multi-token prediction", bytes);
    return st;
}

static ml_status add_trainer(ml_memory *m, const ml_memory_request *req,
                             const ml_spec *spec, size_t saved_bytes,
                             const char *const *row, ml_err *err) {
    ml_optimizer_opts opt = req->opts.optimizer;
    const ml_lora *lora = spec->critic && !spec->reward ? NULL : req->opts.lora;
    const ml_spec *trained = lora ? &lora->spec : spec;
    size_t adapter = lora ? ml_weights_bytes(trained, NULL, ML_WEIGHT_F32) : 0;
    bool bf16 = req->bf16 && !lora;
    const ml_shard_range *part;
    ml_arena a;
    size_t whole = ml_optimizer_saved_bytes(trained, &opt, bf16), state, grads;

    opt.mesh = req->opts.mesh;
    opt.stage = lora ? lora->stage : req->opts.stage;
    state = ml_optimizer_bytes(trained, &opt, bf16);
    ml_arena_init(&a, "parts of gradients");
    part = lora ? lora->weights.range
                : ml_trainer_parts(&a, spec, opt.mesh, opt.stage, req->be->linear);
    grads = lora
                ? ml_lora_grad_bytes(lora)
                : ml_grads_bytes(spec, part, !opt.mesh || opt.mesh->at[ML_MESH_PP] == 0, 0);
    add(m, row[GRADS],
        grads + (size_t)ml_trainer_waiting_sets(req->opts.grad_shards, opt.mesh) *
                    ml_weights_part_bytes(trained, NULL, ML_WEIGHT_F32, part));
    if (opt.offload_dir)
        m->on_disk += state;
    else if (ml_optimizer_is_staged(&opt, req->be->dev))
        m->on_host += state;
    if (ml_optimizer_is_staged(&opt, req->be->dev))
        add(m, row[STATE], ml_optimizer_stage_bytes(&opt));
    else if (!opt.offload_dir)
        add(m, row[STATE], state);
    add(m, row[STATE], ml_optimizer_scratch_bytes(trained, &opt, req->be));
    add(m, row[RANKS], ml_optimizer_exchange_bytes(trained, &opt));
    if (req->async_save && (!opt.mesh || opt.mesh->rank == 0))
        add_on_host(m, req->be, row[COPY], (lora ? adapter : saved_bytes) + whole);
    else if (part && opt.mesh->rank == 0)
        add_on_host(m, req->be, row[COPY],
                    lora                  ? adapter
                    : spec == req->critic ? req->critic_bytes
                                          : req->whole_bytes);
    ml_arena_release(&a);
    return add_plans(m, req, spec, row, err);
}

static size_t row_bytes(const ml_memory *m, const char *what) {
    for (int i = 0; i < m->n; i++)
        if (m->row[i].what == what)
            return m->row[i].bytes;
    return 0;
}

static size_t act_bytes(const ml_memory *m) {
    static const int rows[] = { ACT, SCRATCH, SCORE_ACT, SCORE_SCRATCH };
    size_t bytes = 0;

    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        bytes += row_bytes(m, actor_rows[rows[i]]) + row_bytes(m, critic_rows[rows[i]]);
    return bytes;
}

/* The KV cache, with the models of rewards, and training use the same memory alternately: the larger of the two
 * counts, not the sum.  Optimizer state that the device releases is kept in host memory. */
static void take_turns(ml_memory *m, const ml_memory_request *req) {
    size_t turn = req->kv_bytes + (req->in_turns ? req->reward_bytes : 0);

    m->in_turns = m->returned < turn ? m->returned : turn;
    m->total -= m->in_turns;
    for (int i = 0; i < m->n && req->in_turns && !req->be->dev->host; i++)
        if (m->row[i].what == actor_rows[STATE] || m->row[i].what == critic_rows[STATE])
            m->on_host += m->row[i].bytes;
}

static size_t critic_part_bytes(const ml_memory_request *req) {
    const ml_trainer_opts *o = &req->opts;
    const ml_shard_range *part;
    size_t bytes;
    ml_arena a;

    ml_arena_init(&a, "parts of a critic");
    part = ml_trainer_parts(&a, req->critic, o->mesh, req->critic_stage, req->be->linear);
    bytes = part ? ml_weights_part_bytes(req->critic, req->critic_from, req->dtype, part)
                 : req->critic_bytes;
    ml_arena_release(&a);
    return bytes;
}

ml_status ml_memory_plan(ml_memory *out, const ml_memory_request *req, ml_err *err) {
    ml_memory_request critic = *req;
    size_t one = req->whole_bytes ? req->whole_bytes : req->weight_bytes, models;
    size_t saved = one * (req->saves_ref ? 2 : 1);
    ml_status st;

    *out = (ml_memory){ 0 };
    add(out, req->be->dev->host ? "program" : "device context", req->base_bytes);
    add(out, "generation", req->engine_bytes);
    add(out, "KV cache", req->kv_bytes);
    add(out, "reward models", req->reward_bytes);
    for (const char *const *name = req->set; *name; name++)
        add(out, *name, req->weight_bytes);
    if (req->quantized_bytes)
        add(out, "quantized weights", req->quantized_bytes);
    if (req->critic)
        add(out, "critic weights", critic_part_bytes(req));
    models = out->total;
    if (req->generates_only)
        return ML_OK;
    st = add_trainer(out, req, req->spec, saved, actor_rows, err);
    if (st == ML_OK && req->opts.mtp)
        st = add_mtp(out, req, err);
    critic.opts.optimizer.freeze = NULL;
    memset(critic.opts.replay, 0, sizeof critic.opts.replay);
    critic.opts.stage = req->critic_stage;
    if (st == ML_OK && req->critic)
        st = add_trainer(out, &critic, req->critic, req->critic_bytes, critic_rows, err);
    out->returned = req->in_turns       ? out->total - models
                    : req->act_in_turns ? act_bytes(out)
                                        : 0;
    take_turns(out, req);
    return st;
}

void ml_memory_text(ml_text *out, const ml_memory *m) {
    for (int i = 0; i < m->n; i++)
        ml_text_printf(out, "  %-24s %12.3f MiB\n", m->row[i].what,
                       (double)m->row[i].bytes / 0x1p20);
    if (m->in_turns)
        ml_text_printf(out, "  %-24s %12.3f MiB\n", "used in turns",
                       -(double)m->in_turns / 0x1p20);
    ml_text_printf(out, "  %-24s %12.3f MiB\n", "total", (double)m->total / 0x1p20);
    if (m->on_host)
        ml_text_printf(out, "  %-24s %12.3f MiB\n", "in host memory",
                       (double)m->on_host / 0x1p20);
    if (m->on_disk)
        ml_text_printf(out, "  %-24s %12.3f MiB\n", "optimizer state on disk",
                       (double)m->on_disk / 0x1p20);
}

/* --- advice ----------------------------------------------------------------- */

typedef struct remedy {
    const char *flags;
    void (*take)(ml_memory_request *req);
} remedy;

static void recompute(ml_memory_request *req) {
    req->opts.recompute = (ml_recompute){ .granularity = ML_RECOMPUTE_FULL };
}

static void recompute_loss(ml_memory_request *req) {
    req->opts.keep_logits = false;
}

static void save_at_once(ml_memory_request *req) {
    req->async_save = false;
}

static void offload(ml_memory_request *req) {
    req->opts.optimizer.offload_dir = ".";
}

static void offload_to_host(ml_memory_request *req) {
    req->opts.optimizer.offload_host = true;
}

static void shorten(ml_memory_request *req) {
    req->opts.batch.max_tokens /= 4;
    req->opts.batch.micro_batch_size = 1;
}

static const remedy remedies[] = {
    { "--recompute-loss-function", recompute_loss },
    { "--recompute-granularity full", recompute },
    { "no --async-save", save_at_once },
    { "a quarter of --max-tokens-per-gpu", shorten },
    { "--optimizer-cpu-offload", offload_to_host },
    { "--optimizer-offload-dir", offload },
};
enum { N_REMEDY = sizeof remedies / sizeof *remedies };

/* The total after a change; SIZE_MAX if it cannot be planned. */
static size_t total_with(const ml_memory_request *req) {
    ml_memory m;
    return ml_memory_plan(&m, req, NULL) == ML_OK ? m.total : SIZE_MAX;
}

/* Recommends one sufficient change, or several together, or reports that none suffices. */
static void advise(ml_text *out, const ml_memory_request *req, size_t available) {
    ml_memory_request all = *req;
    size_t total = total_with(req);

    for (int i = 0; i < N_REMEDY; i++) {
        ml_memory_request one = *req;
        remedies[i].take(&one);
        if (total_with(&one) <= available) {
            ml_text_printf(out, "with %s it needs %.2f GiB", remedies[i].flags,
                           (double)total_with(&one) / 0x1p30);
            return;
        }
    }
    for (int i = 0; i < N_REMEDY && total > available; i++) {
        ml_memory_request more = all;
        remedies[i].take(&more);
        if (total_with(&more) >= total)
            continue;
        ml_text_printf(out, "%s%s", total < total_with(req) ? ", " : "with ",
                       remedies[i].flags);
        all = more;
        total = total_with(&all);
    }
    ml_text_printf(out, " it needs %.2f GiB%s", (double)total / 0x1p30,
                   total <= available ? "" : ", still too much");
}

ml_status ml_memory_check(const ml_memory_request *req, size_t available, ml_err *err) {
    ml_memory m;
    ml_text advice = { 0 };
    ml_status st = ml_memory_plan(&m, req, err);

    if (st == ML_OK && m.on_host > ml_host_memory_left(""))
        return ml_fail(err, ML_ENOMEM,
                       "the run needs %.2f GiB of host memory, but %.2f GiB are free: "
                       "remove --offload or --async-save",
                       (double)m.on_host / 0x1p30,
                       (double)ml_host_memory_left("") / 0x1p30);
    if (st != ML_OK || m.total - req->base_bytes <= available)
        return st;
    advise(&advice, req, available + req->base_bytes);
    st = ml_fail(err, ML_ENOMEM,
                 "the run needs %.2f GiB of memory, but %.2f GiB are free: %s",
                 (double)m.total / 0x1p30, (double)available / 0x1p30, advice.ptr);
    ml_text_release(&advice);
    return st;
}
