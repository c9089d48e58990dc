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

static bool sends_rows(ml_op_id op) {
    return op == ML_OP_SEND_ROWS || op == ML_OP_RETURN_ROWS;
}

void ml_plan_comm_run(ml_plan *p, ml_op_id op, const ml_op_args *a) {
    ml_comm *c = p->opts.group[op == ML_OP_GATHER_COLS ? ML_GROUP_TP : ML_GROUP_CP];

    if (sends_rows(op)) {
        ml_plan_experts_run(p, op, a);
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
