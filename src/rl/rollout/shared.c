#include "rl/rollout/shared.h"

#include "comm/share.h"
#include "rl/rollout/batch_bytes.h"

static ml_status collect(void *ud, int64_t rollout, ml_rollout_batch *out, ml_arena *a,
                         ml_err *err) {
    const ml_shared_rollout *s = ud;
    bool first = ml_comm_is_first(s->comm);
    ml_text bytes = { 0 };
    ml_status st = first ? s->inner.collect(s->inner.ud, rollout, out, a, err) : ML_OK;

    if (st == ML_OK && first)
        ml_rollout_batch_write(&bytes, out);
    ml_comm_doing(s->comm, "waiting for the rollout batch of rank 0", -1);
    if (st == ML_OK)
        st = ml_comm_share_text(s->comm, &bytes, err);
    ml_comm_doing(s->comm, NULL, -1);
    if (st == ML_OK && !first)
        st = ml_rollout_batch_read(out, a, (ml_str){ bytes.ptr, bytes.len }, err);
    ml_text_release(&bytes);
    return st;
}

static ml_status rest(void *ud, ml_err *err) {
    const ml_shared_rollout *s = ud;
    return s->inner.rest ? s->inner.rest(s->inner.ud, err) : ML_OK;
}

static void cancel(void *ud) {
    const ml_shared_rollout *s = ud;
    if (s->inner.cancel)
        s->inner.cancel(s->inner.ud);
}

static void save(void *ud, ml_text *out) {
    const ml_shared_rollout *s = ud;
    if (s->inner.save)
        s->inner.save(s->inner.ud, out);
}

static ml_status load(void *ud, ml_str state, const char *name, ml_err *err) {
    const ml_shared_rollout *s = ud;
    return s->inner.load ? s->inner.load(s->inner.ud, state, name, err) : ML_OK;
}

ml_rollout ml_rollout_shared(ml_shared_rollout *s) {
    return (ml_rollout){ .collect = collect,
                         .rest = rest,
                         .cancel = cancel,
                         .save = save,
                         .load = load,
                         .ud = s };
}
