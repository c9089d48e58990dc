/* trainer_pipeline.c - runs micro-batches through the stages of a pipeline.
 *
 * A rank goes through the ticks of its schedule (pipeline.h): it exchanges with its
 * neighbours what the passes of the tick need, then runs its own. */
#include <stdlib.h>

#include "base/bug.h"
#include "model/stage.h"
#include "train/pipeline.h"
#include "train/trainer_priv.h"

/* --- stages of this rank ---------------------------------------------------- */

bool ml_trainer_is_pipeline(const ml_trainer *t) {
    return t->opts.mesh && t->opts.mesh->sizes.size[ML_MESH_PP] > 1;
}

static int32_t n_chunk_of(const ml_runner *r) {
    int32_t n = 0;
    for (; r; r = r->next)
        n++;
    return n;
}

static ml_runner *chunk_of(ml_runner *r, int32_t chunk) {
    while (chunk-- > 0)
        r = r->next;
    return r;
}

static void set_nodes(ml_runner *r, int32_t first, int32_t end) {
    r->first = first;
    r->end = end;
}

/* Two runners for each stage of this rank, in order: training and scoring have its memory in
 * turns. */
static ml_status find_chunks(ml_trainer *t, ml_err *err) {
    int32_t rank = t->opts.mesh->at[ML_MESH_PP], first, end, chunk = 0;
    ml_runner *train = &t->train, *score = &t->score;

    while (ml_stage_chunk(t->stage, t->run_spec->n_node, rank, chunk, &first, &end)) {
        if (chunk > 0) {
            train->next = calloc(1, sizeof *train);
            score->next = calloc(1, sizeof *score);
            if (!train->next || !score->next)
                return ml_fail(err, ML_ENOMEM, "out of memory for pipeline stages");
            train = train->next;
            score = score->next;
            train->memory = score->memory = calloc(1, sizeof *train->memory);
            if (!train->memory)
                return ml_fail(err, ML_ENOMEM, "out of memory for pipeline stages");
        }
        set_nodes(train, first, end);
        set_nodes(score, first, end);
        chunk++;
    }
    ML_BUG_IF(chunk == 0);
    return ML_OK;
}

ml_status ml_trainer_open_pipeline(ml_trainer *t, ml_err *err) {
    ml_ranks_open(&t->pipe, t->opts.mesh ? t->opts.mesh->group[ML_GROUP_PP] : NULL, t->be);
    if (!ml_trainer_is_pipeline(t))
        return ML_OK;
    ML_BUG_IF(!t->stage);
    return find_chunks(t, err);
}

static void free_chunks(ml_runner *r) {
    while (r) {
        ml_runner *next = r->next;
        free(r);
        r = next;
    }
}

void ml_trainer_close_pipeline(ml_trainer *t) {
    for (ml_runner *r = t->train.next; r; r = r->next)
        free(r->memory);
    free_chunks(t->train.next);
    free_chunks(t->score.next);
    if (t->pipe.comm)
        ml_ranks_close(&t->pipe);
}

/* --- a tick ----------------------------------------------------------------- */

typedef struct pipe_run {
    ml_trainer *t;
    ml_runner *runner;
    const ml_pipe_work *work;
    ml_pipeline plan;
    int32_t *live;  /* [n_micro] 1: its backward pass runs */
    int32_t loaded; /* the micro-batch that the last stage has the derivatives of */
} pipe_run;

static int32_t set_of(const pipe_run *x, const ml_pass *p) {
    return p->micro % x->plan.n_set[p->chunk];
}

/* Micro-batches after this pipeline's own have no samples. */
static bool is_empty(const pipe_run *x, int32_t micro) {
    return micro >= x->work->micro->n;
}

static ml_batch_caps need_of(const pipe_run *x, int32_t micro) {
    return is_empty(x, micro) ? (ml_batch_caps){ 0 }
                              : ml_micro_need(x->work->sample, &x->work->micro->bin[micro],
                                              &x->t->context);
}

/* The memory that a move sends from, or receives to.  Returns the number of messages. */
static int32_t add_messages(const pipe_run *x, const ml_pipeline_move *m, ml_message *out) {
    const ml_pass *p = &m->of;
    ml_batch_caps need = need_of(x, p->micro);
    ml_context_rows context = { .n_rank = need.n_context, .n_share = need.n_share };
    ml_rows rows = { .n_token = need.n_token,
                     .n_seq = need.n_seq,
                     .n_loss = need.n_loss,
                     .context = &context };
    ml_port_kind kind = p->backward ? (m->send ? ML_PORT_DIN : ML_PORT_DOUT)
                        : m->send   ? ML_PORT_OUT
                                    : ML_PORT_IN;
    ml_tensor t[ML_PORTS];
    int32_t n =
        ml_plan_port(chunk_of(x->runner, p->chunk)->plan, kind, &rows, set_of(x, p), t);

    for (int32_t i = 0; i < n; i++)
        out[i] = (ml_message){ t[i], m->peer, m->send };
    return n;
}

/* Whether the backward passes of micro-batches run, with their gradients. */
static ml_status exchange_live(pipe_run *x, const ml_pipeline_tick *tick, ml_err *err) {
    ml_message m[ML_PIPELINE_MOVES];
    ml_comm *c = x->t->pipe.comm;
    int32_t n = 0;

    for (int32_t i = 0; i < tick->n_move; i++)
        if (tick->move[i].of.backward) {
            int32_t *live = &x->live[tick->move[i].of.micro];
            m[n++] = (ml_message){ ml_comm_bytes(live, sizeof *live), tick->move[i].peer,
                                   tick->move[i].send };
        }
    return n ? c->exchange(c, NULL, m, n, err) : ML_OK;
}

static ml_status exchange_tick(pipe_run *x, const ml_pipeline_tick *tick, ml_err *err) {
    ml_message m[ML_PIPELINE_MOVES * ML_PORTS];
    ml_comm *c = x->t->pipe.comm;
    int32_t n = 0;
    ml_status st;

    for (int32_t i = 0; i < tick->n_move; i++)
        n += add_messages(x, &tick->move[i], m + n);
    st = n ? c->exchange(c, x->t->be->stream, m, n, err) : ML_OK;
    return st == ML_OK ? exchange_live(x, tick, err) : st;
}

static ml_status run_forward(pipe_run *x, const ml_pass *p, ml_err *err) {
    const ml_pipe_work *w = x->work;
    ml_trainer *t = x->t;
    ml_runner *r = chunk_of(x->runner, p->chunk);
    const ml_bin *bin = &w->micro->bin[p->micro];
    bool live = false;
    ml_run run;
    ml_status st;

    if (is_empty(x, p->micro)) {
        ml_trainer_join(t, r, w->weights, set_of(x, p), false);
        return ML_OK;
    }
    run = ml_trainer_load(t, r, w->weights, w->sample, bin, !w->step);
    run.set = set_of(x, p);
    if (w->weights == t->weights)
        ml_routing_replay_bind(&r->micro.routing_replay, &run, w->sample, bin);
    ml_plan_forward(r->plan, &run);
    st = ml_trainer_record(t, r, &run, w->sample, bin, p->chunk > 0, err);
    if (st == ML_OK && !ml_plan_has_head(r->plan))
        return t->be->dev->sync(t->be->stream, err);
    if (st == ML_OK)
        st = ml_trainer_read(t, r, err);
    if (st == ML_OK)
        st = w->scored(w->ud, r, bin, &live, err);
    x->live[p->micro] = live;
    x->loaded = p->micro;
    return st;
}

/* The last stage has the derivatives in its micro-batch: its passes go back at once. */
static ml_status run_backward(pipe_run *x, const ml_pass *p, ml_err *err) {
    const ml_pipe_work *w = x->work;
    ml_trainer *t = x->t;
    ml_runner *r = chunk_of(x->runner, p->chunk);
    ml_micro *m = &r->micro;
    bool head = ml_plan_has_head(r->plan);
    ml_run run = { .weights = t->weights, .rows = &m->batch.rows };

    if (!x->live[p->micro]) {
        if (ml_trainer_is_joint(t))
            ml_trainer_join(t, r, t->weights, set_of(x, p), true);
        return ML_OK;
    }
    ML_BUG_IF(head && x->loaded != p->micro);
    if (!head)
        run = ml_trainer_load(t, r, t->weights, w->sample, &w->micro->bin[p->micro], false);
    for (int i = 0; i < ML_N_ROUTING; i++)
        run.given[i] = m->routing_replay.of[i].given; /* recomputation replays them too */
    run.set = set_of(x, p);
    ml_grads_bind(&t->grads, &run);
    ml_plan_backward(r->plan, &run, head ? m->own_dlogprob : NULL,
                     head && w->step->entropy && !m->critic ? m->own_dentropy : NULL);
    return t->be->dev->sync(t->be->stream, err);
}

/* --- all ticks -------------------------------------------------------------- */

static ml_status grow_chunks(pipe_run *x, ml_err *err) {
    ml_batch_caps need = ml_trainer_need(x->t, x->work->sample, x->work->micro);
    ml_status st = ML_OK;
    int32_t chunk = 0;

    for (ml_runner *r = x->runner; r && st == ML_OK; r = r->next, chunk++) {
        if (r->plan && x->plan.n_set[chunk] > r->n_set) {
            ml_plan_free(r->plan);
            r->plan = NULL;
        }
        if (x->plan.n_set[chunk] > r->n_set)
            r->n_set = x->plan.n_set[chunk];
        st = ml_trainer_grow(x->t, r, x->work->step != NULL, need, err);
    }
    return st;
}

/* The last pass of a micro-batch on this rank. */
static bool is_last(const pipe_run *x, const ml_pass *p) {
    if (x->work->step)
        return p->backward && p->chunk == 0;
    return p->chunk == n_chunk_of(x->runner) - 1;
}

ml_status ml_trainer_run_pipeline(ml_trainer *t, ml_runner *r, const ml_pipe_work *w,
                                  ml_err *err) {
    ml_pipeline_opts o = { .n_stage = t->pipe.comm->size,
                           .n_chunk = n_chunk_of(r),
                           .n_micro = w->n_round,
                           .backward = w->step != NULL };
    pipe_run x = { .t = t, .runner = r, .work = w, .loaded = -1 };
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "a pipeline");
    ml_pipeline_schedule(&x.plan, &a, &o, t->pipe.comm->rank);
    x.live = ML_NEW(&a, int32_t, w->n_round + 1);
    st = w->n_round ? grow_chunks(&x, err) : ML_OK;
    for (int32_t k = 0; k < x.plan.n_tick && st == ML_OK; k++) {
        const ml_pipeline_tick *tick = &x.plan.tick[k];
        st = exchange_tick(&x, tick, err);
        if (st != ML_OK || !tick->runs)
            continue;
        st = (tick->pass.backward ? run_backward : run_forward)(&x, &tick->pass, err);
        if (is_last(&x, &tick->pass) && !is_empty(&x, tick->pass.micro))
            ml_work_count_add(t->work_count);
    }
    ml_arena_release(&a);
    return st;
}

/* --- a tied table ------------------------------------------------------------ */

ml_status ml_trainer_send_tied(ml_trainer *t, const ml_weights *w, bool to_last,
                               ml_err *err) {
    int32_t table = ml_grads_tied_table(t->spec);
    ml_comm *c = t->pipe.comm;
    int32_t from = to_last ? 0 : c->size - 1, to = c->size - 1 - from;
    ml_tensor x;

    if (t->opts.lora || table == ML_NONE || c->size == 1 ||
        (c->rank != from && c->rank != to))
        return ML_OK;
    x = ml_comm_bytes(w->t[table].data, ml_tensor_bytes(&w->t[table]));
    return c->rank == from ? c->send(c, t->be->stream, &x, to, err)
                           : c->recv(c, t->be->stream, &x, from, err);
}
