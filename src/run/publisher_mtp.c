/* publisher_mtp.c - a multi-token prediction module that is trained, for the engine's drafts. */
#include "run/publisher.h"

/* The module's own weights: those of the trunk are not part of the copy. */
static ml_weights own_tensors(const ml_weights *w, ml_arena *a) {
    ml_weights own = *w;

    own.t = ML_NEW(a, ml_tensor, w->n);
    for (int32_t i = 0; i < w->n; i++) {
        own.t[i] = w->t[i];
        own.t[i].data = w->range[i].n ? w->t[i].data : NULL;
    }
    return own;
}

ml_status ml_publisher_take_mtp(ml_publisher *p, const ml_weights *w, bool own,
                                ml_backend *be, const ml_weights **out, ml_err *err) {
    ml_weights from;

    *out = w;
    if (!own)
        return ML_OK;
    ml_arena_init(&p->mtp_arena, "the engine's multi-token prediction module");
    from = own_tensors(w, &p->mtp_arena);
    p->mtp = w;
    *out = &p->mtp_copy;
    return ml_weights_clone(&p->mtp_copy, &from, be, &p->mtp_arena, err);
}

ml_status ml_publisher_copy_mtp(ml_publisher *p, ml_err *err) {
    ml_gen *gen = p->generator->local;
    ml_status st;

    if (!p->mtp)
        return ML_OK;
    gen->pause(gen);
    st = ml_weights_copy(&p->mtp_copy, p->mtp, p->mtp_copy.be, err);
    gen->resume(gen);
    return st;
}
