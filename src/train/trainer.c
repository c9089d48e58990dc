#include "train/trainer_priv.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/bug.h"
#include "base/clock.h"
#include "base/philox.h"
#include "tensor/codes.h"
#include "train/flops.h"
#include "train/prefix.h"

static float temperature_of(const ml_trainer *t) {
    return t->opts.temperature > 0 ? (float)t->opts.temperature : 1.0f;
}

/* --- gradients -------------------------------------------------------------- */

const ml_shard_range *ml_trainer_parts(ml_arena *a, const ml_spec *s, const ml_mesh *mesh,
                                       const int32_t *stage, ml_layout linear) {
    const ml_mesh_sizes *x = mesh ? &mesh->sizes : NULL;
    ml_shard_map map;

    if (!x || (x->gather == 1 && x->size[ML_MESH_PP] == 1 && x->ep * x->etp == 1))
        return NULL;
    ml_shard_map_init(&map, a, s, linear, x, stage);
    return ml_shard_residents(&map, a, mesh->rank);
}

/* Whether this rank embeds tokens. */
static bool has_embedding(const ml_trainer *t) {
    return !ml_trainer_is_pipeline(t) || t->train.first == 0;
}

/* What is trained: an adapter, or the weights. */
static const ml_spec *trained_spec(const ml_trainer *t) {
    return t->opts.lora ? &t->opts.lora->spec : t->spec;
}

static ml_status take_grads(ml_trainer *t, ml_err *err) {
    int32_t n = ml_trainer_waiting_sets(t->opts.grad_shards, t->opts.mesh);
    ml_status st;

    if (t->opts.use == ML_TRAINER_SCORES)
        return ML_OK;
    st = t->opts.lora ? ml_grads_open_lora(&t->grads, t->opts.lora, err)
                      : ml_grads_open(&t->grads, t->spec, t->weights->range,
                                      has_embedding(t), t->be, &t->arena, err);
    return st == ML_OK ? ml_grad_shards_open(&t->shards, n, trained_spec(t), &t->grads,
                                             t->be, &t->arena, err)
                       : st;
}

/* --- open and close --------------------------------------------------------- */

/* The pipeline stage of each node of the context-parallel spec. */
static void stage_context(ml_trainer *t, const int32_t *origin) {
    int32_t *stage = ML_NEW(&t->long_arena, int32_t, t->context_spec.n_node);

    for (int32_t i = 0; i < t->context_spec.n_node; i++)
        stage[i] = t->opts.stage[origin[i]];
    t->stage = stage;
}

/* Rows that travel to experts on other ranks take the random numbers of dropout with them, in
 * host memory. */
static ml_status check_dropout(const ml_trainer *t, ml_err *err) {
    if (!t->opts.dropout || t->be->dev->host || !t->opts.mesh ||
        t->opts.mesh->sizes.ep == 1)
        return ML_OK;
    return ml_fail(
        err, ML_EUNSUP,
        "--lora-dropout: the backend %s has no dropout for experts of other ranks "
        "yet; use --expert-model-parallel-size 1, --device cpu, or no dropout",
        t->be->name);
}

/* Rows of a prefix belong to several samples: whatever is recorded or drawn for a row of one sample
 * excludes them. */
static ml_status check_prefixes(const ml_trainer *t, ml_err *err) {
    const ml_trainer_opts *o = &t->opts;

    if (!o->share_prefixes)
        return ML_OK;
    if (o->mtp || o->dropout || o->replay[ML_ROUTING_EXPERTS] || o->replay[ML_ROUTING_KEYS])
        return ml_fail(
            err, ML_EUNSUP,
            "--use-prefix-sharing excludes MTP training, --lora-dropout and routing "
            "replay, which are of rows of single samples; remove one of them");
    if (o->mesh && o->mesh->sizes.size[ML_MESH_CP] > 1)
        return ml_fail(
            err, ML_EUNSUP,
            "--use-prefix-sharing excludes --context-parallel-size; remove one of "
            "them");
    return ml_prefix_supports(t->spec, err);
}

/* Context parallel: plans run another spec, on pieces of samples. */
static ml_status open_context(ml_trainer *t, ml_err *err) {
    const ml_mesh *m = t->opts.mesh;
    int32_t *origin;
    ml_status st;

    t->run_spec = t->spec;
    t->stage = t->opts.stage;
    t->context.share = t->opts.share_prefixes;
    if (!m || m->sizes.size[ML_MESH_CP] == 1)
        return ML_OK;
    t->context = (ml_context_opts){ .n_rank = m->sizes.size[ML_MESH_CP],
                                    .rank = m->at[ML_MESH_CP],
                                    .contiguous = t->opts.contiguous };
    t->opts.batch.n_context = t->context.n_rank;
    ml_ranks_open(&t->context_ranks, m->group[ML_GROUP_CP], t->be);
    st = ml_spec_context(&t->context_spec, t->spec, t->context.n_rank, t->context.rank,
                         &origin, err);
    if (st != ML_OK)
        return st;
    t->run_spec = &t->context_spec;
    if (t->opts.stage)
        stage_context(t, origin);
    return ML_OK;
}

static void open_map(ml_trainer *t) {
    const ml_mesh *m = t->opts.mesh;

    ml_arena_init(&t->long_arena, "trainer");
    if (!m)
        return;
    ml_shard_map_init(&t->map, &t->long_arena, t->spec, t->be->linear, &m->sizes,
                      t->opts.stage);
    t->stored = ML_NEW(&t->long_arena, ml_dtype, t->spec->n_param + 1);
    for (int32_t i = 0; i < t->spec->n_param; i++) {
        ml_shard_range want = ml_shard_resident(&t->map, i, m->rank);
        ml_shard_range has = ml_weights_range(t->weights, i);
        t->stored[i] = t->weights->t[i].dtype;
        /* Codes are whole; their ranges count bytes. */
        ML_BUG_IF(!ml_dtype_codes(t->stored[i]) &&
                  (want.n != has.n || (has.n && want.begin != has.begin)));
    }
}

ml_status ml_trainer_open(ml_trainer **out, const ml_spec *s, ml_weights *w, ml_backend *be,
                          const ml_trainer_opts *opts, ml_err *err) {
    ml_trainer *t = calloc(1, sizeof *t);
    ml_status st;

    if (!t)
        return ml_fail(err, ML_ENOMEM, "out of memory for a trainer");
    *t = (ml_trainer){ .spec = s, .weights = w, .be = be, .opts = *opts };
    t->train.memory = t->score.memory = calloc(1, sizeof(ml_plan_memory));
    t->opts.optimizer.mesh = opts->mesh;
    t->opts.optimizer.stage = opts->lora ? opts->lora->stage : opts->stage;
    t->opts.optimizer.no_state = opts->use != ML_TRAINER_STEPS;
    t->opts.batch.n_rank = ml_trainer_shards(t);
    ML_BUG_IF(ml_trainer_shards(t) % ml_trainer_data_size(t));
    ml_arena_init(&t->arena, "trainer");
    open_map(t);
    st = t->train.memory ? check_dropout(t, err)
                         : ml_fail(err, ML_ENOMEM, "out of memory for a trainer");
    if (st == ML_OK)
        st = check_prefixes(t, err);
    if (st == ML_OK)
        st = open_context(t, err);
    if (st == ML_OK)
        st = ml_trainer_open_pipeline(t, err);
    if (st == ML_OK)
        st = ml_lr_init(&t->lr, &opts->lr, err);
    if (st == ML_OK && opts->mtp)
        st = ml_mtp_trainer_divide(opts->mtp,
                                   ml_trainer_waiting_sets(opts->grad_shards, opts->mesh),
                                   &t->context, err);
    if (st == ML_OK)
        st = take_grads(t, err);
    if (st == ML_OK)
        st = ml_optimizer_open(&t->optimizer, trained_spec(t),
                               opts->lora      ? &opts->lora->weights
                               : opts->trained ? opts->trained
                                               : w,
                               be, &t->opts.optimizer, err);
    if (st == ML_OK)
        *out = t;
    else
        ml_trainer_close(t);
    return st;
}

static void close_runner(ml_runner *r) {
    ml_plan_free(r->plan);
    ml_micro_release(&r->micro);
    r->plan = NULL;
    r->expert_room = 0;
}

static void close_runners(ml_runner *r) {
    for (; r; r = r->next)
        close_runner(r);
}

static void close_plans(ml_trainer *t) {
    close_runners(&t->train);
    close_runners(&t->score);
    for (ml_runner *r = &t->train; r && r->memory; r = r->next)
        ml_plan_memory_free(r->memory);
}

static void free_grads(ml_trainer *t) {
    ml_grads_close(&t->grads);
    ml_grad_shards_close(&t->shards);
    ml_arena_release(&t->arena);
}

void ml_trainer_close(ml_trainer *t) {
    if (!t)
        return;
    close_plans(t);
    ml_optimizer_close(&t->optimizer);
    free_grads(t);
    ml_trainer_close_pipeline(t);
    ml_ranks_close(&t->context_ranks);
    ml_spec_close(&t->context_spec);
    ml_arena_release(&t->long_arena);
    free(t->train.memory);
    free(t);
}

void ml_trainer_rest(ml_trainer *t) {
    close_plans(t);
}

ml_status ml_trainer_release(ml_trainer *t, ml_err *err) {
    if (t->released)
        return ML_OK;
    close_plans(t);
    free_grads(t);
    t->released = true;
    if (t->opts.mtp) {
        ml_status st = ml_mtp_trainer_release(t->opts.mtp, err);
        if (st != ML_OK)
            return st;
    }
    return ml_optimizer_release(&t->optimizer, err);
}

ml_status ml_trainer_take(ml_trainer *t, ml_err *err) {
    ml_status st;

    if (!t->released)
        return ML_OK;
    t->released = false;
    st = ml_optimizer_take(&t->optimizer, err);
    if (st == ML_OK)
        st = take_grads(t, err);
    return st == ML_OK && t->opts.mtp ? ml_mtp_trainer_take(t->opts.mtp, err) : st;
}

static void swap_runners(ml_runner *a, ml_runner *b) {
    ml_plan *plan = a->plan;
    ml_plan_memory *memory = a->memory;
    int32_t room = a->expert_room;

    ML_BUG_IF(a->next || b->next);
    a->plan = b->plan;
    b->plan = plan;
    a->memory = b->memory;
    b->memory = memory;
    a->expert_room = b->expert_room;
    b->expert_room = room;
    ml_micro_swap(&a->micro, &b->micro);
}

/* A plan outlives the trainer that made it, and so does its memory. */
void ml_trainer_swap_plans(ml_trainer *a, ml_trainer *b) {
    ML_BUG_IF(a->spec != b->spec || a->be != b->be || a->opts.mesh || b->opts.mesh);
    swap_runners(&a->train, &b->train);
    swap_runners(&a->score, &b->score);
}

const ml_weights *ml_trainer_grads(const ml_trainer *t) {
    return &t->grads.sum;
}

const ml_plan_stats *ml_trainer_stats(const ml_trainer *t) {
    return t->train.plan ? ml_plan_stats_of(t->train.plan) : NULL;
}

void ml_trainer_set_lr(ml_trainer *t, double lr) {
    ml_lr_rescale(&t->lr, &t->opts.lr, lr);
}

void ml_trainer_set_work_count(ml_trainer *t, ml_work_count *work_count) {
    t->work_count = work_count;
}

const ml_spec *ml_trainer_spec(const ml_trainer *t) {
    return t->spec;
}

const ml_lora *ml_trainer_lora(const ml_trainer *t) {
    return t->opts.lora;
}

ml_mtp_trainer *ml_trainer_mtp(const ml_trainer *t) {
    return t->opts.mtp;
}

bool ml_trainer_drops(const ml_trainer *t) {
    return t->opts.dropout;
}

ml_optimizer *ml_trainer_optimizer(ml_trainer *t) {
    return &t->optimizer;
}

ml_ranks *ml_trainer_ranks(ml_trainer *t) {
    return &t->optimizer.ranks;
}

int32_t ml_trainer_data_size(const ml_trainer *t) {
    return t->opts.mesh ? ml_mesh_data_size(&t->opts.mesh->sizes) : 1;
}

int32_t ml_trainer_data_place(const ml_trainer *t) {
    const ml_mesh *m = t->opts.mesh;
    return m ? ml_mesh_at_data(&m->sizes, m->rank) : 0;
}

int32_t ml_trainer_shards(const ml_trainer *t) {
    return t->opts.grad_shards ? t->opts.grad_shards : ml_trainer_data_size(t);
}

int32_t ml_trainer_own_shards(const ml_trainer *t) {
    return ml_trainer_shards(t) / ml_trainer_data_size(t);
}

int32_t ml_trainer_first_shard(const ml_trainer *t) {
    return ml_trainer_data_place(t) * ml_trainer_own_shards(t);
}

int32_t ml_trainer_waiting_sets(int32_t grad_shards, const ml_mesh *mesh) {
    int32_t own = grad_shards / (mesh ? ml_mesh_data_size(&mesh->sizes) : 1), n = 0;

    while (own >> (n + 1))
        n++;
    return n;
}

bool ml_trainer_reports(const ml_trainer *t, int32_t rank) {
    const ml_mesh_sizes *m = t->opts.mesh ? &t->opts.mesh->sizes : NULL;
    return !m || rank == ml_mesh_reporter(m, ml_mesh_at_data(m, rank));
}

int64_t ml_trainer_samples(const ml_trainer *t) {
    return t->n_sample;
}

void ml_trainer_set_samples(ml_trainer *t, int64_t n) {
    t->n_sample = n;
}

void ml_trainer_set_version(ml_trainer *t, uint64_t version) {
    t->weights->version = t->optimizer.weights->version = version;
}

/* --- plans ------------------------------------------------------------------ */

static bool covers(ml_batch_caps a, ml_batch_caps b) {
    return a.n_token >= b.n_token && a.n_seq >= b.n_seq && a.n_loss >= b.n_loss &&
           a.n_page >= b.n_page && a.n_again >= b.n_again && a.n_share >= b.n_share;
}

static bool sends_rows(const ml_trainer *t) {
    return t->opts.mesh && t->opts.mesh->sizes.ep > 1;
}

/* Twice what a rank's experts get of even routing, from ranks with so many tokens. */
static int32_t rows_of_experts(const ml_trainer *t, int64_t n_token) {
    int64_t n = 2 * n_token * t->spec->route[ML_ROUTING_EXPERTS].top_k;

    return !sends_rows(t) ? 0 : (int32_t)(n < INT32_MAX / 4 ? n : INT32_MAX / 4);
}

/* A plan is built for a maximum batch; when a batch exceeds it, a larger plan replaces
 * it. */
ml_status ml_trainer_grow(ml_trainer *t, ml_runner *r, bool backward, ml_batch_caps need,
                          ml_err *err) {
    bool logits = backward ? t->opts.keep_logits : t->opts.score_logits;
    ml_plan_opts opts = { .backward = backward,
                          .frozen = t->opts.lora != NULL,
                          .recompute = t->opts.recompute,
                          .logits = logits && !t->spec->critic,
                          .loss_rows = t->opts.loss_rows,
                          .grad_format = t->opts.grad_format,
                          .first = r->first,
                          .end = r->end,
                          .n_set = r->n_set,
                          .memory = r->memory };
    ml_batch_caps planned = backward ? t->opts.train_caps : t->opts.score_caps;
    ml_status st;

    if (backward && t->opts.mtp)
        ml_mtp_keep(&opts, &t->opts.mtp->spec, t->run_spec);
    if (r->plan && covers(r->micro.caps, need) && r->expert_room >= r->expert_rows)
        return ML_OK;
    opts.caps = ml_micro_max(ml_micro_max(need, r->micro.caps), planned);
    opts.expert_rows = rows_of_experts(t, planned.n_token);
    if (opts.expert_rows < r->expert_rows)
        opts.expert_rows = r->expert_rows;
    if (opts.expert_rows < r->expert_room)
        opts.expert_rows = r->expert_room;
    memcpy(opts.given, t->opts.replay, sizeof opts.given);
    if (t->opts.mesh) {
        memcpy(opts.group, t->opts.mesh->group, sizeof opts.group);
        opts.group[ML_GROUP_TP] = NULL; /* of specs that are cut */
        opts.map = &t->map;
        opts.rank = t->opts.mesh->rank;
        opts.stored = t->stored;
    }
    close_runner(r);
    r->expert_room = opts.expert_rows;
    st = ml_plan_new(&r->plan, t->run_spec, t->be, opts, err);
    if (st == ML_OK)
        st = ml_plan_alloc(r->plan, err);
    if (st != ML_OK) {
        close_runner(r);
        return st;
    }
    ml_micro_init(&r->micro, opts.caps, &t->context, t->spec->critic);
    ml_routing_replay_init(&r->micro.routing_replay, &r->micro.arena, t->spec,
                           t->opts.replay, opts.caps.n_token);
    ml_plan_dump_to(r->plan, backward ? t->opts.dump_train : t->opts.dump_score);
    ml_plan_spans_to(r->plan, backward ? t->opts.spans_train : t->opts.spans_score,
                     ML_TRACK_TRAIN);
    return ML_OK;
}

bool ml_trainer_is_joint(const ml_trainer *t) {
    const ml_mesh_sizes *m = t->opts.mesh ? &t->opts.mesh->sizes : NULL;
    return sends_rows(t) || (m && (m->gather > 1 || m->etp > 1));
}

ml_status ml_trainer_rounds(ml_trainer *t, ml_runner *r, int32_t n, ml_batch_caps need,
                            int32_t *out, ml_err *err) {
    ml_ranks *ranks = ml_trainer_ranks(t);
    int32_t own[2] = { n, need.n_token }, *all;
    ml_status st = ML_OK;
    ml_arena a;

    *out = n;
    if (!ml_trainer_is_joint(t))
        return ML_OK;
    ml_arena_init(&a, "numbers of micro-batches");
    all = ML_NEW(&a, int32_t, 2 * ranks->comm->size);
    st = ml_ranks_collect(ranks, all, own, sizeof own, err);
    for (int32_t k = 0; k < ranks->comm->size && st == ML_OK; k++) {
        *out = all[2 * k] > *out ? all[2 * k] : *out;
        own[1] = all[2 * k + 1] > own[1] ? all[2 * k + 1] : own[1];
    }
    for (; r; r = r->next)
        r->expert_rows = rows_of_experts(t, own[1]);
    ml_arena_release(&a);
    return st;
}

/* Whether the runner's passes drop inputs of the adapter: those of train steps. */
static bool drops(const ml_trainer *t, const ml_runner *r) {
    const ml_runner *x = t->opts.dropout ? &t->train : NULL;

    while (x && x != r)
        x = x->next;
    return x != NULL;
}

void ml_trainer_join(ml_trainer *t, ml_runner *r, const ml_weights *w, int32_t set,
                     bool backward) {
    static const float none[1];
    ml_context_rows nothing = { .n_rank = t->context.n_rank };
    static const uint64_t no_key[1];
    ml_rows rows = { .temperature = 1,
                     .context = t->context.n_rank ? &nothing : NULL,
                     .dropout_key = drops(t, r) ? no_key : NULL };
    ml_run run = { .weights = w, .rows = &rows, .set = set, .expert_rows = r->expert_rows };

    ml_grads_bind(&t->grads, &run);
    if (backward)
        ml_plan_backward(r->plan, &run, none, NULL);
    else
        ml_plan_forward(r->plan, &run);
}

ml_batch_caps ml_trainer_need(const ml_trainer *t, const ml_train_sample *s,
                              const ml_bins *bins) {
    ml_batch_caps need = { .n_token = 1, .n_seq = 1, .n_loss = 1, .n_page = 1 };
    for (int32_t k = 0; k < bins->n; k++)
        need = ml_micro_max(need, ml_micro_need(s, &bins->bin[k], &t->context));
    return need;
}

/* A key is a function of the seed, the step, the sample and the position: neither packing nor
 * the number of ranks changes what is dropped. */
static void set_dropout(const ml_trainer *t, ml_micro *m, const ml_bin *bin) {
    ml_rows *r = &m->batch.rows;

    if (!m->dropout_key)
        m->dropout_key = ML_NEW(&m->arena, uint64_t, m->caps.n_token);
    for (int32_t q = 0; q < r->n_seq; q++) {
        uint64_t item = (uint64_t)bin->item[r->context ? r->context->seq[q] : q];
        for (int32_t i = r->seq_start[q]; i < r->seq_start[q + 1]; i++) {
            ml_philox x =
                ml_philox_at(t->opts.dropout_seed, (uint64_t)t->n_sample << 24 | item,
                             (uint64_t)r->pos[i]);
            m->dropout_key[i] = (uint64_t)x.word[0] << 32 | x.word[1];
        }
    }
    r->dropout_key = m->dropout_key;
}

ml_run ml_trainer_load(ml_trainer *t, ml_runner *r, const ml_weights *w,
                       const ml_train_sample *s, const ml_bin *bin, bool everywhere) {
    ml_micro *m = &r->micro;
    ml_run run = { .weights = w, .rows = &m->batch.rows, .expert_rows = r->expert_rows };

    ml_micro_fill(m, s, bin, everywhere, temperature_of(t));
    if (drops(t, r))
        set_dropout(t, m, bin);
    if (w == t->weights) {
        ml_routing_replay_load(m, &run, s, bin);
        ml_micro_take_supports(m, s, bin);
    }
    return run;
}

ml_status ml_trainer_read(ml_trainer *t, ml_runner *r, ml_err *err) {
    ml_micro *m = &r->micro;
    ml_status st;

    ml_plan_read(r->plan, &m->batch.rows, m->own_logprob, m->critic ? NULL : m->own_entropy,
                 NULL);
    st = t->be->dev->sync(t->be->stream, err);
    if (st == ML_OK)
        st = ml_plan_check(r->plan, err);
    if (st == ML_OK)
        st = ml_micro_exchange(m, &t->context_ranks, err);
    if (st == ML_OK)
        ml_micro_spread(m);
    return st;
}

/* Context parallel: every rank gets the routing that the others recorded. */
ml_status ml_trainer_record(ml_trainer *t, ml_runner *r, const ml_run *run,
                            const ml_train_sample *s, const ml_bin *bin, bool add,
                            ml_err *err) {
    ml_status st = ML_OK;

    ml_routing_replay_record(&r->micro, run, s, bin, add);
    for (int k = 0; k < ML_N_ROUTING && t->context.n_rank; k++) {
        int64_t width = ml_spec_routing_width(t->spec, (ml_routing_kind)k);
        for (int32_t i = 0; run->chosen[k] && i < bin->n && st == ML_OK; i++) {
            const ml_train_sample *x = &s[bin->item[i]];
            st = ml_ranks_merge(&t->context_ranks, x->routed[k].record,
                                (size_t)(width * x->n_token) * sizeof(int32_t), err);
        }
    }
    return st;
}

ml_status ml_trainer_forward(ml_trainer *t, ml_runner *r, const ml_weights *w,
                             const ml_train_sample *s, const ml_bin *bin, bool everywhere,
                             ml_err *err) {
    ml_micro *m = &r->micro;
    ml_run run = ml_trainer_load(t, r, w, s, bin, everywhere);
    ml_status st;

    if (w == t->weights)
        ml_routing_replay_bind(&m->routing_replay, &run, s, bin);
    ml_plan_forward(r->plan, &run);
    st = ml_trainer_record(t, r, &run, s, bin, false, err);
    return st == ML_OK ? ml_trainer_read(t, r, err) : st;
}

/* --- packing ---------------------------------------------------------------- */

int64_t *ml_trainer_lengths(ml_arena *a, const ml_train_sample *s, int32_t n) {
    int64_t *len = ML_NEW(a, int64_t, n);
    for (int32_t i = 0; i < n; i++)
        len[i] = s[i].n_token;
    return len;
}

static double *costs(const ml_trainer *t, ml_arena *a, const ml_train_sample *s,
                     int32_t n) {
    ml_flops_shape shape = ml_flops_shape_of(t->spec);
    double *cost = ML_NEW(a, double, n);
    for (int32_t i = 0; i < n; i++)
        cost[i] = ml_flops_forward(&shape, s[i].n_token);
    return cost;
}

static void group(const void *ud, int32_t *sample, int32_t n) {
    ml_prefix_group(ud, sample, n);
}

static int64_t common(const void *ud, int32_t first, int32_t second) {
    const ml_train_sample *s = ud;

    return ml_prefix_common(&s[first], &s[second]);
}

ml_status ml_trainer_schedule(ml_schedule *out, const ml_trainer *t, ml_arena *a,
                              const ml_train_sample *s, int32_t n, ml_err *err) {
    int64_t *rollout = ML_NEW(a, int64_t, n);
    uint8_t *idle = ML_NEW(a, uint8_t, n);
    ml_schedule_opts opts = t->opts.batch;

    for (int32_t i = 0; i < n; i++) {
        rollout[i] = s[i].rollout;
        idle[i] = s[i].idle;
    }
    opts.idle = idle;
    if (opts.by_flops)
        opts.cost = costs(t, a, s, n);
    if (t->context.share) {
        opts.group = group;
        opts.common = common;
        opts.ud = s;
    }
    return ml_schedule_build(out, a, ml_trainer_lengths(a, s, n), rollout, n, &opts, err);
}

/* --- a step ----------------------------------------------------------------- */

/* The loss terms of a step's samples, by sample number; they are summed in that order, so
 * that the result does not depend on packing. */
typedef struct loss_terms {
    double *term;
    double *mtp; /* of the multi-token prediction module */
    int32_t n;
    int64_t n_mtp; /* its rows that count */
} loss_terms;

static loss_terms no_terms(ml_arena *a, const ml_bins *micro, int32_t n_shard) {
    loss_terms x = { 0 };
    for (; n_shard > 0; n_shard--, micro++)
        for (int32_t k = 0; k < micro->n; k++)
            for (int32_t i = 0; i < micro->bin[k].n; i++)
                if (micro->bin[k].item[i] >= x.n)
                    x.n = micro->bin[k].item[i] + 1;
    x.term = ML_NEW(a, double, x.n);
    x.mtp = ML_NEW(a, double, x.n);
    return x;
}

/* The model's output for a token, and the derivative of the loss with respect to it. */
static float said(const ml_loss_io *io, int32_t t) {
    return io->value ? io->value[t] : io->logprob[t];
}

static float derivative(const ml_loss_io *io, int32_t t) {
    return io->value ? io->dvalue[t] : io->dlogprob[t];
}

static bool token_is_finite(const ml_loss_io *io, int32_t t) {
    return (io->mask && !io->mask[t]) ||
           (isfinite(said(io, t)) && isfinite(derivative(io, t)) &&
            (io->value || isfinite(io->dentropy[t])) &&
            (!io->dfull_logprob || isfinite(io->dfull_logprob[t])));
}

static void look_for_bad(const ml_loss_io *io, ml_step_result *out) {
    int32_t t = 0;

    while (t < io->n_response && token_is_finite(io, t))
        t++;
    if (t < io->n_response)
        snprintf(out->bad, sizeof out->bad,
                 "sample %d, response token %d: the %s is %g, the loss's derivative by it "
                 "%g and by the entropy %g",
                 io->sample, t, io->value ? "value" : "log-prob", (double)said(io, t),
                 (double)derivative(io, t), io->value ? 0.0 : (double)io->dentropy[t]);
    else if (!isfinite(io->loss))
        snprintf(out->bad, sizeof out->bad, "the loss of sample %d is %g", io->sample,
                 io->loss);
}

/* A step that is running. */
typedef struct step_run {
    ml_trainer *t;
    const ml_step *step;
    loss_terms *terms;
    ml_step_result *out;
} step_run;

/* The loss of a micro-batch whose forward pass has run; its derivatives are in its rows. */
static ml_status take_loss(step_run *x, ml_micro *m, bool *live, ml_err *err) {
    ml_status st = x->step->loss(x->step->ud, m->io, m->n_sample, err);

    if (st != ML_OK)
        return st;
    for (int32_t i = 0; i < m->n_sample; i++) {
        x->out->n_token += x->step->sample[m->io[i].sample].n_token;
        x->terms->term[m->io[i].sample] = m->io[i].loss;
        if (!x->out->bad[0])
            look_for_bad(&m->io[i], x->out);
    }
    x->out->n_loss += m->samples->n_loss;
    /* Derivatives that are all 0 would add 0 to every gradient.  Experts on other ranks wait
     * for those of all rows that they got. */
    *live = ml_micro_collect(m);
    if (!*live)
        x->out->n_idle += m->n_sample;
    *live = (*live && !x->out->bad[0]) || sends_rows(x->t);
    return ML_OK;
}

/* The multi-token prediction module learns from every sample, with an advantage or not. */
static ml_status run_mtp(step_run *x, const ml_runner *r, const ml_bin *bin, ml_err *err) {
    const ml_trainer *t = x->t;
    ml_trunk_rows trunk = { t->run_spec, r->plan, &r->micro.batch.rows };

    if (!t->opts.mtp)
        return ML_OK;
    for (int32_t i = 0; i < bin->n; i++)
        x->terms->n_mtp +=
            ml_mtp_rows(t->opts.mtp->runner.vocab, &x->step->sample[bin->item[i]]);
    return ml_mtp_trainer_add(t->opts.mtp, trunk, x->step->sample, bin, x->terms->mtp, err);
}

/* In the last stage of a pipeline. */
static ml_status take_pass(void *ud, ml_runner *r, const ml_bin *bin, bool *live,
                           ml_err *err) {
    ml_status st = take_loss(ud, &r->micro, live, err);

    return st == ML_OK ? run_mtp(ud, r, bin, err) : st;
}

static ml_status run_micro(step_run *x, const ml_bin *bin, ml_err *err) {
    ml_trainer *t = x->t;
    ml_micro *m = &t->train.micro;
    ml_run run = { .weights = t->weights, .rows = &m->batch.rows };
    bool live = false;
    ml_status st =
        ml_trainer_forward(t, &t->train, t->weights, x->step->sample, bin, false, err);

    if (st == ML_OK)
        st = take_loss(x, m, &live, err);
    if (st == ML_OK)
        st = run_mtp(x, &t->train, bin, err);
    if (st != ML_OK)
        return st;
    ml_grads_bind(&t->grads, &run);
    for (int i = 0; i < ML_N_ROUTING; i++)
        run.given[i] = m->routing_replay.of[i].given; /* recomputation replays them too */
    if (live)
        ml_plan_backward(t->train.plan, &run, m->own_dlogprob,
                         x->step->entropy && !m->critic ? m->own_dentropy : NULL);
    else if (ml_trainer_is_joint(t))
        ml_trainer_join(t, &t->train, t->weights, 0, true);
    return t->be->dev->sync(t->be->stream, err);
}

static ml_status run_micros(step_run *x, const ml_bins *micro, int32_t n_round,
                            ml_err *err) {
    ml_trainer *t = x->t;
    ml_status st = ML_OK;

    if (ml_trainer_is_pipeline(t))
        return ml_trainer_run_pipeline(t, &t->train,
                                       &(ml_pipe_work){ .weights = t->weights,
                                                        .sample = x->step->sample,
                                                        .micro = micro,
                                                        .n_round = n_round,
                                                        .step = x->step,
                                                        .scored = take_pass,
                                                        .ud = x },
                                       err);
    for (int32_t k = 0; k < n_round && st == ML_OK; k++) {
        if (k < micro->n) {
            st = run_micro(x, &micro->bin[k], err);
            ml_work_count_add(t->work_count);
        } else {
            ml_trainer_join(t, &t->train, t->weights, 0, false);
            ml_trainer_join(t, &t->train, t->weights, 0, true);
        }
    }
    return st;
}

/* What a rank contributes to the result of a step. */
typedef struct rank_result {
    int64_t n_term, n_token, n_loss, n_idle, n_mtp;
    char bad[sizeof((ml_step_result *)0)->bad];
} rank_result;

/* The terms of all ranks' samples. */
static ml_status merge_terms(ml_ranks *ranks, ml_arena *a, double **term, int64_t n_own,
                             int32_t n, ml_err *err) {
    double *all = ML_NEW(a, double, n);

    memcpy(all, *term, (size_t)n_own * sizeof *all);
    *term = all;
    return ml_ranks_merge(ranks, all, (size_t)n * sizeof *all, err);
}

/* Adds the results of the other ranks; of bad values, the first rank's is reported. */
static ml_status share_result(ml_trainer *t, ml_arena *a, loss_terms *terms,
                              ml_step_result *out, ml_err *err) {
    ml_ranks *ranks = ml_trainer_ranks(t);
    int32_t n_rank = ranks->comm->size, n = terms->n;
    rank_result own = { .n_term = terms->n,
                        .n_token = out->n_token,
                        .n_loss = out->n_loss,
                        .n_idle = out->n_idle,
                        .n_mtp = terms->n_mtp };
    rank_result *all = ML_NEW(a, rank_result, n_rank);
    ml_status st;

    memcpy(own.bad, out->bad, sizeof own.bad);
    st = ml_ranks_collect(ranks, all, &own, sizeof own, err);
    out->bad[0] = 0;
    out->n_token = out->n_loss = out->n_idle = terms->n_mtp = 0;
    for (int32_t k = 0; k < n_rank; k++) {
        bool reports = ml_trainer_reports(t, k);
        n = all[k].n_term > n ? (int32_t)all[k].n_term : n;
        out->n_token += reports ? all[k].n_token : 0;
        out->n_loss += reports ? all[k].n_loss : 0;
        out->n_idle += reports ? all[k].n_idle : 0;
        terms->n_mtp += reports ? all[k].n_mtp : 0;
        if (!out->bad[0])
            memcpy(out->bad, all[k].bad, sizeof out->bad);
    }
    if (st == ML_OK)
        st = merge_terms(ranks, a, &terms->term, own.n_term, n, err);
    if (st == ML_OK && t->opts.mtp)
        st = merge_terms(ranks, a, &terms->mtp, own.n_term, n, err);
    if (st == ML_OK)
        terms->n = n;
    return st;
}

/* Adds up what the ranks computed: all of them get the result, and each one its ranges of
 * the gradients. */
static ml_status join_ranks(ml_trainer *t, ml_arena *a, loss_terms *terms,
                            ml_step_result *out, ml_status st, ml_err *err) {
    ml_ranks *ranks = ml_trainer_ranks(t);

    st = ml_ranks_agree(ranks, st, err);
    if (st != ML_OK || ranks->comm->size == 1)
        return st;
    st = share_result(t, a, terms, out, err);
    if (st == ML_OK && !out->bad[0])
        st = ml_optimizer_reduce(&t->optimizer, &t->grads.sum, t->opts.whole_grads, err);
    return st;
}

/* The gradients of one list of micro-batches. */
static ml_status run_shard(step_run *x, const ml_bins *micro, ml_err *err) {
    ml_trainer *t = x->t;
    ml_batch_caps need = ml_trainer_need(t, x->step->sample, micro);
    int32_t n_round = 0;
    ml_status st = ml_trainer_rounds(t, &t->train, micro->n, need, &n_round, err);

    if (st == ML_OK && !ml_trainer_is_pipeline(t))
        st = ml_trainer_grow(t, &t->train, true, need, err);
    if (st == ML_OK) {
        ml_grads_zero(&t->grads);
        st = run_micros(x, micro, n_round, err);
        ml_grads_fill(&t->grads);
    }
    if (st == ML_OK)
        st = ml_trainer_send_tied(t, &t->grads.sum, false, err);
    ml_grads_join(&t->grads);
    return st;
}

void ml_trainer_schedule_at(const ml_trainer *t, double *lr, double *weight_decay) {
    *lr = ml_lr_at(&t->lr, t->n_sample);
    *weight_decay = ml_lr_weight_decay_at(&t->lr, t->n_sample);
}

double ml_trainer_clip_grad(const ml_trainer *t) {
    return t->opts.optimizer.clip_grad;
}

ml_status ml_trainer_accumulate(ml_trainer *t, const ml_step *step, ml_step_result *out,
                                ml_err *err) {
    int32_t n_shard = step->n_shard ? step->n_shard : 1;
    ml_status st = ML_OK;
    ml_arena a;
    loss_terms terms;

    *out = (ml_step_result){ 0 };
    ml_trainer_schedule_at(t, &out->lr, &out->weight_decay);
    if (step->changes) {
        out->lr = step->changes->lr;
        out->weight_decay = step->changes->weight_decay;
    }
    ML_BUG_IF(!(step->denominator > 0));
    ml_arena_init(&a, "a step");
    terms = no_terms(&a, step->micro, n_shard);
    if (t->opts.mtp)
        st = ml_mtp_trainer_begin(t->opts.mtp, err);
    for (int32_t k = 0; k < n_shard && st == ML_OK; k++) {
        st = run_shard(&(step_run){ t, step, &terms, out }, &step->micro[k], err);
        if (st == ML_OK)
            st = ml_grad_shards_add(&t->shards, &t->grads, k, k + 1 == n_shard, err);
        if (st == ML_OK && t->opts.mtp)
            st = ml_mtp_trainer_end_shard(t->opts.mtp, k, k + 1 == n_shard, err);
    }
    st = join_ranks(t, &a, &terms, out, st, err);
    for (int32_t i = 0; i < terms.n; i++)
        out->loss += terms.term[i];
    out->loss /= step->denominator;
    for (int32_t i = 0; t->opts.mtp && i < terms.n; i++)
        out->mtp_loss += terms.mtp[i];
    out->mtp_loss /= terms.n_mtp ? (double)terms.n_mtp : 1.0;
    out->n_mtp = terms.n_mtp;
    ml_arena_release(&a);
    return st;
}

/* The op that uses a parameter. */
static const char *op_of(const ml_spec *s, int32_t param) {
    for (int32_t i = 0; i < s->n_node; i++)
        for (int k = 0; k < ML_OP_W; k++)
            if (s->node[i].w[k] == param)
                return ml_op_infos[s->node[i].op].name;
    return "none";
}

static void say_bad_grad(const ml_trainer *t, const ml_update *u, ml_step_result *out) {
    char name[512];
    snprintf(out->bad, sizeof out->bad,
             "the gradient of %s (op %s) has %lld values that are not finite",
             ml_param_name(&trained_spec(t)->param[u->bad_param], 0, name, sizeof name),
             t->opts.lora ? ml_op_infos[ML_OP_LORA].name : op_of(t->spec, u->bad_param),
             (long long)u->n_bad);
}

static void tell_optimizer(const ml_trainer *t, double began) {
    if (t->opts.spans_train)
        ml_timeline_add(t->opts.spans_train,
                        &(ml_time_span){ .name = "optimizer",
                                         .track = ML_TRACK_TRAIN,
                                         .layer = -1,
                                         .begin_s = began,
                                         .end_s = ml_clock_s() },
                        1);
}

/* The multi-token prediction module's own update. */
static ml_status step_mtp(ml_trainer *t, ml_step_result *out, ml_err *err) {
    ml_update u;
    ml_status st;
    char name[512];

    if (!t->opts.mtp)
        return ML_OK;
    st = ml_mtp_trainer_end(t->opts.mtp, out->n_mtp, out->lr, out->weight_decay, &u, err);
    out->mtp_grad_norm = u.grad_norm;
    if (st == ML_OK && u.bad_param != ML_NONE && !out->bad[0])
        snprintf(
            out->bad, sizeof out->bad,
            "the gradient of %s, of the module that drafts, has %lld values that are not "
            "finite",
            ml_param_name(&t->opts.mtp->spec.param[u.bad_param], 0, name, sizeof name),
            (long long)u.n_bad);
    return st;
}

ml_status ml_trainer_step(ml_trainer *t, const ml_step *step, ml_step_result *out,
                          ml_err *err) {
    const ml_step_changes *c = step->changes;
    ml_status st = c ? ml_grad_rules_check(&c->rules, t->optimizer.spec, err) : ML_OK;
    double began;
    ml_update u = { 0 };

    if (st == ML_OK)
        st = ml_trainer_accumulate(t, step, out, err);
    began = ml_clock_s();
    if (st != ML_OK)
        return st;
    if (!out->bad[0]) {
        t->optimizer.rules = c ? &c->rules : NULL;
        st = ml_optimizer_step(&t->optimizer, &t->grads.sum, out->lr, out->weight_decay,
                               1.0 / step->denominator, &u, err);
        t->optimizer.rules = NULL;
        t->weights->version = t->optimizer.weights->version;
        if (st == ML_OK && u.applied)
            st = ml_trainer_send_tied(t, t->weights, true, err);
        if (st == ML_OK && t->opts.trained)
            st = ml_weights_requantize(t->weights, t->opts.trained, t->spec,
                                       t->be->n_thread, err);
        if (st == ML_OK)
            st = t->be->dev->sync(t->be->stream, err);
        if (st != ML_OK)
            return st;
        tell_optimizer(t, began);
        out->grad_norm = u.grad_norm;
        out->applied = u.applied;
        if (!u.applied)
            say_bad_grad(t, &u, out);
    }
    st = step_mtp(t, out, err);
    if (st != ML_OK)
        return st;
    if (out->applied)
        t->n_sample += step->n_rollout;
    if (out->bad[0] && t->opts.stop_on_bad)
        return ml_fail(err, ML_EFORMAT,
                       "%s; the step was not applied: lower --lr, or skip such steps with "
                       "--no-check-for-nan-in-loss-and-grad",
                       out->bad);
    return ML_OK;
}
