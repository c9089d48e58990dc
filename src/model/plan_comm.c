/* plan_comm.c - runs the collectives of a plan. */
#include "base/bug.h"
#include "model/plan_priv.h"

/* Elements of blocks of `width` columns, [m,width] each, for alltoallv. */
static void count_blocks(int64_t *n, const ml_op_attr *attr, int64_t m) {
    for (int32_t i = 0; i < attr->split.n_block; i++)
        n[i] = m * attr->split.width[i];
}

static ml_tensor flat(const ml_tensor *t) {
    return (ml_tensor){
        .data = t->data, .dtype = t->dtype, .n_dim = 1, .shape = { ml_tensor_count(t) }
    };
}

/* Every rank sends each other one the block of its columns, [m,W]; `back`: the other way. */
static void swap_rows(ml_plan *p, const ml_op_attr *attr, const ml_tensor *to,
                      const ml_tensor *from, bool back) {
    ml_comm *c = p->opts.group[ML_GROUP_CP];
    ml_tensor out = flat(to), in = flat(from);
    int64_t m = (back ? to : from)->shape[0], mine = m * attr->split.width[c->rank];
    int64_t *block = p->block_size, *own = block + c->size;

    count_blocks(block, attr, m);
    for (int32_t i = 0; i < c->size; i++)
        own[i] = mine;
    c->alltoallv(c, p->be->stream, &out, back ? block : own, &in, back ? own : block,
                 &p->failed);
}

/* Rows of a group. */
static ml_tensor rows_of(const ml_tensor *all, const ml_dp_rows *dp, int32_t group) {
    ml_tensor t = *all;
    size_t row = ml_tensor_bytes(all) / (size_t)(all->shape[0] ? all->shape[0] : 1);

    t.shape[0] = dp->start[group + 1] - dp->start[group];
    t.data = (unsigned char *)all->data + row * (size_t)dp->start[group];
    return t;
}

static bool is_even(const ml_dp_rows *dp) {
    for (int32_t g = 1; g < dp->n_group; g++)
        if (dp->start[g + 1] - dp->start[g] != dp->start[1] - dp->start[0])
            return false;
    return true;
}

/* Groups with different numbers of rows: each rank sends its rows to all others. */
static void exchange_groups(ml_plan *p, ml_stream *s, const ml_tensor *all,
                            const ml_dp_rows *dp) {
    ml_comm *c = p->opts.dp_rows;
    ml_message m[ML_MESSAGES];
    ml_tensor mine = rows_of(all, dp, dp->group);
    int32_t n = 0;

    /* Every rank calls exchange as often, with at most two messages for each k. */
    for (int32_t k = 1; k < dp->n_group; k++) {
        int32_t to = (dp->group + k) % dp->n_group;
        int32_t from = (dp->group + dp->n_group - k) % dp->n_group;
        ml_tensor theirs = rows_of(all, dp, from);
        if (mine.shape[0])
            m[n++] = (ml_message){ .t = mine, .peer = to, .send = true };
        if (theirs.shape[0])
            m[n++] = (ml_message){ .t = theirs, .peer = from };
        if (k % (ML_MESSAGES / 2) == 0 || k == dp->n_group - 1) {
            c->exchange(c, s, m, n, &p->failed);
            n = 0;
        }
    }
}

void ml_plan_gather_groups(ml_plan *p, ml_stream *s, const ml_tensor *all,
                           const ml_dp_rows *dp) {
    ml_comm *c = p->opts.dp_rows;
    ml_tensor mine = rows_of(all, dp, dp->group);

    if (p->failed.code != ML_OK)
        return;
    if (is_even(dp))
        c->allgather(c, s, all, &mine, &p->failed);
    else
        exchange_groups(p, s, all, dp);
}

/* out may have the memory of in, whose rows are then in their place. */
static void gather_rows(ml_plan *p, const ml_op_args *a) {
    const ml_dp_rows *dp = a->rows->dp;
    ml_tensor mine = rows_of(&a->out[0], dp, dp->group);

    if (mine.data != a->in[0].data && mine.shape[0])
        p->be->dev->copy(p->be->stream, mine.data, a->in[0].data, ml_tensor_bytes(&mine));
    ml_plan_gather_groups(p, p->be->stream, &a->out[0], dp);
}

static bool sends_rows(ml_op_id op) {
    return op == ML_OP_SEND_ROWS || op == ML_OP_RETURN_ROWS;
}

void ml_plan_comm_run(ml_plan *p, ml_op_id op, const ml_op_args *a) {
    ml_comm *c = op == ML_OP_GATHER_COLS && a->attr->dp
                     ? p->opts.dp_cols
                     : p->opts.group[op == ML_OP_GATHER_COLS ? ML_GROUP_TP : ML_GROUP_CP];

    if (sends_rows(op)) {
        ml_plan_experts_run(p, op, a);
        return;
    }
    if (op == ML_OP_GATHER_ROWS && a->attr->dp) {
        gather_rows(p, a);
        return;
    }
    ML_BUG_IF(!c);
    if (p->failed.code != ML_OK)
        return;
    if (op == ML_OP_SWAP_ROWS)
        swap_rows(p, a->attr, &a->out[0], &a->in[0], a->attr->split.back);
    else
        c->allgather(c, p->be->stream, &a->out[0], &a->in[0], &p->failed);
}

void ml_plan_comm_back(ml_plan *p, ml_op_id op, const ml_op_args *a) {
    ml_comm *c = p->opts.group[ML_GROUP_CP];
    const ml_reduce tree = { ML_REDUCE_SUM, ML_REDUCE_TREE };

    if (sends_rows(op)) {
        ml_plan_experts_back(p, op, a);
        return;
    }
    ML_BUG_IF(!c || a->din_add[0]);
    if (p->failed.code != ML_OK)
        return;
    if (op == ML_OP_SWAP_ROWS)
        swap_rows(p, a->attr, &a->din[0], &a->dout[0], !a->attr->split.back);
    else
        c->reduce_scatter(c, p->be->stream, &a->din[0], &a->dout[0], tree, &p->failed);
}

ml_status ml_plan_check(const ml_plan *p, ml_err *err) {
    return p->failed.code == ML_OK ? ML_OK
                                   : ml_fail(err, p->failed.code, "%s", p->failed.msg);
}
