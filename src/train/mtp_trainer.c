#include "train/mtp_trainer.h"

#include "model/spec_context.h"

static void begin(ml_mtp_trainer *out, ml_backend *be, double factor) {
    *out = (ml_mtp_trainer){ .factor = factor, .be = be };
    ml_arena_init(&out->arena, "multi-token prediction");
    ml_arena_init(&out->grad_arena, "multi-token prediction");
}

ml_status ml_mtp_trainer_open(ml_mtp_trainer *out, const char *dir, ml_backend *be,
                              double factor, ml_err *err) {
    begin(out, be, factor);
    return ml_mtp_open(&out->spec, dir, err);
}

ml_status ml_mtp_trainer_open_head(ml_mtp_trainer *out, const char *dir,
                                   const ml_spec *trunk, ml_backend *be, ml_err *err) {
    ml_status st;

    begin(out, be, 1);
    st = ml_eagle3_open(&out->spec, dir, trunk, err);
    if (st == ML_OK)
        st = ml_checkpoint_open(&out->head, dir, err);
    if (st == ML_OK)
        st = ml_weights_check(&out->spec, out->head, err);
    return st == ML_OK
               ? ml_eagle3_vocab(&out->vocab, &out->spec, out->head, &out->arena, err)
               : st;
}

/* Each rank has all of the module: to it, ranks that divide the trunk's weights are ranks with
 * other samples. */
static ml_optimizer_opts own_opts(ml_mtp_trainer *m, const ml_optimizer_opts *trunks,
                                  ml_arena *a) {
    int32_t *stage = ML_NEW(a, int32_t, m->spec.n_node);
    ml_optimizer_opts o = *trunks;

    if (o.mesh) {
        m->mesh = *o.mesh;
        m->mesh.sizes.ep = m->mesh.sizes.etp = m->mesh.sizes.gather = 1;
        m->mesh.group[ML_GROUP_REPLICA] = m->mesh.group[ML_GROUP_REDUCE];
        o.mesh = &m->mesh;
    }
    o.freeze = NULL; /* its patterns name the trunk's tensors */
    for (int32_t i = 0; i < m->spec.n_node && o.mesh; i++)
        stage[i] = o.mesh->sizes.size[ML_MESH_PP] - 1; /* which has the hidden states */
    o.stage = stage;
    o.no_state = false;
    return o;
}

static ml_status take_grads(ml_mtp_trainer *m, ml_err *err) {
    ml_status st =
        ml_mtp_runner_open(&m->runner, &m->spec, &m->weights, m->head ? &m->vocab : NULL,
                           true, false, m->be, &m->grad_arena, err);

    m->runner.context = m->context.opts.n_rank ? &m->context : NULL;
    if (st == ML_OK)
        st = ml_grad_shards_open(&m->shards, m->n_waiting, &m->spec, &m->runner.grads,
                                 m->be, &m->grad_arena, err);
    return st == ML_OK ? ml_mtp_trunk_take(&m->trunk, &m->weights, err) : st;
}

static void free_grads(ml_mtp_trainer *m) {
    ml_mtp_trunk_release(&m->trunk);
    ml_grad_shards_close(&m->shards);
    ml_mtp_runner_close(&m->runner);
    ml_arena_release(&m->grad_arena);
}

ml_status ml_mtp_trainer_start(ml_mtp_trainer *m, const ml_checkpoint *c,
                               ml_weight_dtype dtype, const ml_spec *trunk,
                               const ml_weights *of, const ml_optimizer_opts *opts,
                               ml_err *err) {
    ml_optimizer_opts own = own_opts(m, opts, &m->arena);
    ml_status st =
        ml_mtp_load(&m->weights, &m->spec, c, dtype, trunk, of, m->be, &m->arena, err);

    ml_mtp_trunk_open(&m->trunk, &m->spec, trunk, of, opts->mesh, opts->stage, m->be,
                      &m->arena);
    if (st == ML_OK)
        st = take_grads(m, err);
    return st == ML_OK
               ? ml_optimizer_open(&m->optimizer, &m->spec, &m->weights, m->be, &own, err)
               : st;
}

void ml_mtp_trainer_close(ml_mtp_trainer *m) {
    if (!m->be)
        return;
    free_grads(m);
    ml_mtp_trunk_close(&m->trunk);
    ml_mtp_context_close(&m->context);
    if (m->optimizer.spec)
        ml_optimizer_close(&m->optimizer);
    ml_weights_close(&m->weights);
    ml_checkpoint_close(m->head);
    ml_spec_close(&m->spec);
    ml_arena_release(&m->arena);
    *m = (ml_mtp_trainer){ 0 };
}

ml_status ml_mtp_trainer_divide(ml_mtp_trainer *m, int32_t n_waiting,
                                const ml_context_opts *context, ml_err *err) {
    ml_status st = ML_OK;

    ml_mtp_context_close(&m->context);
    if (context->n_rank > 1)
        st = ml_mtp_context_open(&m->context, &m->spec, context, m->mesh.group[ML_GROUP_CP],
                                 m->be, err);
    m->n_waiting = n_waiting;
    free_grads(m);
    return st == ML_OK ? take_grads(m, err) : st;
}

/* Of a plan of the module; caps.n_context: ranks that divide sequences. */
static ml_status plan_bytes(size_t *out, const ml_mtp_trainer *m, ml_batch_caps caps,
                            ml_err *err) {
    ml_spec pieces = { 0 };
    const ml_spec *s = caps.n_context ? &pieces : &m->spec;
    ml_plan *plan = NULL;
    ml_status st = caps.n_context
                       ? ml_spec_context(&pieces, &m->spec, caps.n_context, 0, NULL, err)
                       : ML_OK;

    if (st == ML_OK)
        st = ml_plan_new(&plan, s, m->be, ml_mtp_runner_plan(s, caps, true, false), err);
    *out = st == ML_OK ? ml_plan_act_bytes(plan) + ml_plan_scratch_bytes(plan) : 0;
    ml_plan_free(plan);
    ml_spec_close(&pieces);
    return st;
}

ml_status ml_mtp_trainer_bytes(size_t *out, const ml_mtp_trainer *m, const ml_checkpoint *c,
                               ml_weight_dtype dtype, bool bf16,
                               const ml_optimizer_opts *opts, int32_t n_waiting,
                               ml_batch_caps caps, ml_err *err) {
    ml_mtp_trainer copy = *m;
    ml_optimizer_opts own;
    const ml_shard_range *part;
    size_t rows = 0;
    ml_arena a;
    ml_status st = plan_bytes(&rows, m, caps, err);

    ml_arena_init(&a, "multi-token prediction");
    own = own_opts(&copy, opts, &a);
    part = ml_mtp_parts(&m->spec, m->be->linear, &a);
    *out = rows + ml_weights_part_bytes(&m->spec, m->head ? m->head : c, dtype, part) +
           ml_mtp_trunk_bytes(&m->spec, c, dtype, opts->mesh, m->be->linear) +
           (size_t)(1 + n_waiting) * ml_grads_bytes(&m->spec, part, true, 0) +
           ml_optimizer_bytes(&m->spec, &own, bf16) +
           ml_optimizer_scratch_bytes(&m->spec, &own, m->be);
    ml_arena_release(&a);
    return st;
}

ml_status ml_mtp_trainer_release(ml_mtp_trainer *m, ml_err *err) {
    if (m->released)
        return ML_OK;
    free_grads(m);
    m->released = true;
    return ml_optimizer_release(&m->optimizer, err);
}

ml_status ml_mtp_trainer_take(ml_mtp_trainer *m, ml_err *err) {
    ml_status st;

    if (!m->released)
        return ML_OK;
    m->released = false;
    st = ml_optimizer_take(&m->optimizer, err);
    return st == ML_OK ? take_grads(m, err) : st;
}

/* --- a step ----------------------------------------------------------------------- */

ml_status ml_mtp_trainer_begin(ml_mtp_trainer *m, ml_err *err) {
    ml_grads_zero(&m->runner.grads);
    return ml_mtp_trunk_gather(&m->trunk, &m->weights, err);
}

ml_status ml_mtp_trainer_end_shard(ml_mtp_trainer *m, int32_t k, bool last, ml_err *err) {
    ml_grads *g = &m->runner.grads;
    ml_status st;

    ml_grads_join(g);
    st = ml_grad_shards_add(&m->shards, g, k, last, err);
    if (st == ML_OK && !last)
        ml_grads_zero(g);
    return st;
}

ml_status ml_mtp_trainer_add(ml_mtp_trainer *m, ml_trunk_rows trunk,
                             const ml_train_sample *s, const ml_bin *bin, double *term,
                             ml_err *err) {
    ml_arena a;
    double *sum;
    ml_status st;

    ml_arena_init(&a, "multi-token prediction loss");
    sum = ML_NEW(&a, double, bin->n + 1);
    st = ml_mtp_runner_run(&m->runner, trunk, s, bin, 1.0f, sum, err);
    for (int32_t i = 0; i < bin->n; i++)
        term[bin->item[i]] = sum[i];
    ml_arena_release(&a);
    return st;
}

/* The last stage of a pipeline has updated the module: the others get its weights, for drafts and
 * snapshots. */
static ml_status share_weights(ml_mtp_trainer *m, ml_err *err) {
    ml_comm *c = m->optimizer.opts.mesh ? m->mesh.group[ML_GROUP_PP] : NULL;
    ml_tensor all = ml_comm_bytes(m->weights.buf.ptr, m->weights.buf.bytes);

    return c && c->size > 1 ? c->bcast(c, m->be->stream, &all, c->size - 1, err) : ML_OK;
}

ml_status ml_mtp_trainer_end(ml_mtp_trainer *m, int64_t n_row, double lr,
                             double weight_decay, ml_update *out, ml_err *err) {
    ml_grads *g = &m->runner.grads;
    ml_status st = ML_OK;

    *out = (ml_update){ .bad_param = ML_NONE };
    if (n_row == 0)
        return ML_OK;
    if (m->optimizer.ranks.comm->size > 1)
        st = ml_optimizer_reduce(&m->optimizer, &g->sum, false, err);
    if (st == ML_OK)
        st = ml_optimizer_step(&m->optimizer, &g->sum, lr, weight_decay,
                               m->factor / (double)n_row, out, err);
    if (st == ML_OK)
        st = share_weights(m, err);
    return st == ML_OK ? m->be->dev->sync(m->be->stream, err) : st;
}
