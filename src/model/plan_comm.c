/* plan_comm.c - runs the collectives of a plan. */
#include "base/bug.h"
#include "model/plan_priv.h"

static void gather_cols(ml_plan *p, const ml_op_args *a) {
    ml_comm *c = p->opts.group[ML_GROUP_TP];

    ML_BUG_IF(!c);
    if (p->failed.code == ML_OK)
        c->allgather(c, p->be->stream, &a->out[0], &a->in[0], &p->failed);
}

void ml_plan_comm_run(ml_plan *p, ml_op_id op, const ml_op_args *a) {
    switch (op) {
    case ML_OP_GATHER_COLS: gather_cols(p, a); break;
    case ML_OP_SEND_ROWS:
    case ML_OP_RETURN_ROWS: ml_plan_experts_run(p, op, a); break;
    default: ML_BUG_IF(true);
    }
}

void ml_plan_comm_back(ml_plan *p, ml_op_id op, const ml_op_args *a) {
    switch (op) {
    case ML_OP_SEND_ROWS:
    case ML_OP_RETURN_ROWS: ml_plan_experts_back(p, op, a); break;
    default: ML_BUG_IF(true);
    }
}

ml_status ml_plan_check(const ml_plan *p, ml_err *err) {
    return p->failed.code == ML_OK ? ML_OK
                                   : ml_fail(err, p->failed.code, "%s", p->failed.msg);
}
