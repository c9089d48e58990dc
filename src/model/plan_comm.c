/* plan_comm.c - runs the collectives of a plan. */
#include "base/bug.h"
#include "model/plan_priv.h"

void ml_plan_comm_run(ml_plan *p, ml_op_id op, const ml_op_args *a) {
    ml_comm *c = p->opts.group[ML_GROUP_TP];

    ML_BUG_IF(op != ML_OP_GATHER_COLS || !c);
    if (p->failed.code == ML_OK)
        c->allgather(c, p->be->stream, &a->out[0], &a->in[0], &p->failed);
}

ml_status ml_plan_check(const ml_plan *p, ml_err *err) {
    return p->failed.code == ML_OK ? ML_OK
                                   : ml_fail(err, p->failed.code, "%s", p->failed.msg);
}
