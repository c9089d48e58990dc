#include "train/master_weights.h"

/* A weight kept in f32 may equal its master exactly. */
static bool agrees(float weight, float master) {
    return weight == master || weight == ml_bf16_to_f32(ml_f32_to_bf16(master));
}

/* The elements that this rank has the masters of. */
static ml_status check_param(const ml_optimizer *o, int32_t i, float *weight, float *master,
                             ml_err *err) {
    const ml_param *p = &o->spec->param[i];
    ml_shard_range r = ml_optimizer_range(o, i, o->ranks.comm->rank);
    ml_tensor rows = ml_weights_view(o->weights, i, r);
    ml_weights weights = { .t = &rows, .be = o->be, .n = 1 };
    bool column = p->n_dim == 1 && !p->name_after; /* as which a vector is viewed */
    ml_strip s = { 0 };

    while (ml_strip_next(&s, p, o->be->linear, r))
        for (int64_t row = 0; row < s.n; row++) {
            ml_weights_unpack(&weights, 0, 0, s.at + row, 1, ML_F32, weight);
            ml_weights_unpack(&o->master, i, 0, s.at + row, 1, ML_F32, master);
            for (int64_t k = 0; k < rows.shape[1]; k++)
                if (!agrees(weight[k], master[k]))
                    return ml_fail(err, ML_EFORMAT,
                                   "--check-rematerialize-param-from-master-weight: "
                                   "%s[%lld, %lld] is %.9g, but its master weight is %.9g",
                                   p->name, (long long)(column ? 0 : s.row + row),
                                   (long long)(column ? s.row + row : k), (double)weight[k],
                                   (double)master[k]);
        }
    return ML_OK;
}

static int64_t widest(const ml_spec *s) {
    int64_t most = 1;

    for (int32_t i = 0; i < s->n_param; i++) {
        int64_t n = s->param[i].shape[s->param[i].n_dim - 1];
        most = n > most ? n : most;
    }
    return most;
}

ml_status ml_master_weights_check(const ml_optimizer *o, ml_err *err) {
    ml_status st = ML_OK;
    float *weight, *master;
    ml_arena a;

    if (!o->own_master)
        return ML_OK;
    ml_arena_init(&a, "rows of master weights");
    weight = ML_NEW(&a, float, widest(o->spec));
    master = ML_NEW(&a, float, widest(o->spec));
    for (int32_t i = 0; i < o->spec->n_param && st == ML_OK; i++)
        if (o->master.t[i].data)
            st = check_param(o, i, weight, master, err);
    ml_arena_release(&a);
    return st;
}
