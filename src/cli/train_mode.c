#include "cli/train_mode.h"

/* --- the loop --------------------------------------------------------------------- */

/* The engine is needed for evaluations: meanwhile no new generation is started. */
static ml_status evaluate(void *ud, int64_t rollout, ml_err *err) {
    ml_train_gen *t = ud;
    ml_status st;

    if (t->async_rollout)
        ml_async_hold(t->async_rollout, true);
    st = ml_evals_observe(&t->evals, rollout, &t->run->observers, err);
    if (t->async_rollout)
        ml_async_hold(t->async_rollout, false);
    return st;
}

static ml_eval_driver eval_driver_of(ml_train_gen *t, const ml_config *c) {
    if (!t->evals.n || !c->rollout.eval_interval)
        return (ml_eval_driver){ 0 };
    if (t->eval_queue)
        return (ml_eval_driver){ t->eval_queue, ml_eval_queue_run, ml_eval_queue_wait };
    return (ml_eval_driver){ t, evaluate, NULL };
}

static ml_status open_async_rollout(ml_train_gen *t, const ml_config *c,
                                    void (*say)(const char *), ml_err *err) {
    int64_t per_group = c->rollout.n_samples_per_prompt,
            batch = c->train.rollout_batch_size,
            capacity = (int64_t)(c->mode.capacity * (double)batch);
    ml_async_opts o = {
        .run = t->run,
        .gen_ctx = t->rollout.gen_ctx,
        .how = t->rollout.how,
        .filter = t->rollout.filter,
        .buffer = t->buffer,
        .max_groups = c->mode.max_samples ? c->mode.max_samples / per_group : batch,
        .capacity = capacity < 1 ? 1 : capacity,
        .max_stale = c->mode.max_stale,
        .retry = c->mode.unused == 1,
        .mask_old = c->rollout.mask_old,
        .say = say,
    };

    return ml_async_open(&t->async_rollout, &o, err);
}

ml_status ml_train_mode_enter(ml_train_gen *t, ml_train_loop *loop,
                              const ml_display *display, const ml_config *c, ml_err *err) {
    ml_work_count *work_count = display->answers;
    ml_status st = ML_OK;

    t->rollout.gen_ctx.work_count = t->custom_rollout.gen_ctx.work_count = work_count;
    t->evals.gen_ctx.work_count =
        t->eval_queue ? NULL : work_count; /* the queue has its own thread */
    loop->publish = ml_train_gen_publish;
    loop->publish_ud = t;
    loop->turn = t->offload_train || t->offload_rollout ? ml_train_gen_turn : NULL;
    loop->turn_ud = t;
    loop->publish_interval = c->mode.update_interval;
    loop->eval = eval_driver_of(t, c);
    loop->eval_interval = c->rollout.eval_interval;
    loop->skip_first_eval = c->rollout.skip_first_eval;
    loop->prefetch = c->mode.async;
    loop->generating = ml_config_elsewhere(c) ? NULL
                       : t->second.n          ? &t->second
                                              : &t->run->weights;
    loop->rollout = t->custom_rollout.ext ? ml_rollout_custom(&t->custom_rollout)
                                          : ml_rollout_gen(&t->rollout);
    if (c->mode.fully) {
        st = open_async_rollout(t, c, display->say, err);
        loop->rollout = st == ML_OK ? ml_rollout_async(t->async_rollout) : loop->rollout;
    } else if (c->mode.async) {
        t->prefetch = ML_NEW(&t->arena, ml_prefetch, 1);
        ml_prefetch_init(t->prefetch, loop->rollout, t->run->num_rollout,
                         t->run->spec.n_vocab);
        loop->rollout = ml_rollout_prefetch(t->prefetch);
    }
    return st;
}

void ml_train_mode_leave(ml_train_gen *t) {
    ml_async_close(t->async_rollout);
    t->async_rollout = NULL;
    if (t->prefetch)
        ml_prefetch_release(t->prefetch);
    t->prefetch = NULL;
}
