#include "rl/learn/critic.h"

ml_status ml_critic_open(ml_critic *c, const char *dir, ml_spec_opts spec, uint64_t seed,
                         ml_weight_dtype dtype, ml_err *err) {
    ml_status st;

    spec.critic = true;
    st = ml_spec_open_with(&c->spec, dir, &spec, err);
    c->spec.head_seed = seed;
    if (st == ML_OK)
        st = ml_checkpoint_open(&c->from, dir, err);
    if (st == ML_OK)
        st = ml_weights_check(&c->spec, c->from, err);
    if (st == ML_OK)
        ml_spec_keep_kv(&c->spec, ml_weights_kv_dtype(&c->spec, c->from, dtype));
    return st;
}

void ml_critic_close(ml_critic *c) {
    ml_trainer_close(c->trainer);
    ml_weights_close(&c->weights);
    ml_checkpoint_close(c->from);
    ml_spec_close(&c->spec);
    *c = (ml_critic){ 0 };
}

ml_status ml_critic_start(ml_critic *c, const char *snapshot, ml_weight_dtype dtype,
                          ml_backend *be, const ml_trainer_opts *opts, ml_arena *a,
                          ml_err *err) {
    ml_checkpoint *own = NULL;
    ml_status st = snapshot ? ml_checkpoint_open(&own, snapshot, err) : ML_OK;

    if (st == ML_OK)
        st = ml_weights_load_part(
            &c->weights, &c->spec, own ? own : c->from, dtype,
            ml_trainer_parts(a, &c->spec, opts->mesh, opts->stage, be->linear), be, a, err);
    ml_checkpoint_close(own);
    if (st == ML_OK)
        st = ml_trainer_open(&c->trainer, &c->spec, &c->weights, be, opts, err);
    return st;
}
