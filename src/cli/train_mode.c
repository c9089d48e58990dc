#include "cli/train_mode.h"

/* --- the loop --------------------------------------------------------------------- */

/* The engine is needed for evaluations: meanwhile no new generation is started. */
static ml_status evaluate(void *ud, ml_eval_scores *out, ml_err *err) {
    ml_train_gen *t = ud;
    ml_status st;

    if (t->flow)
        ml_async_hold(t->flow, true);
    st = ml_evals_run(&t->evals, out, err);
    if (t->flow)
        ml_async_hold(t->flow, false);
    return st;
}

static ml_status open_flow(ml_train_gen *t, const ml_config *c, void (*say)(const char *),
                           ml_err *err) {
    int64_t per_group = c->rollout.n_samples_per_prompt,
            batch = c->train.rollout_batch_size,
            capacity = (int64_t)(c->mode.capacity * (double)batch);
    ml_async_opts o = {
        .run = t->run,
        .asker = t->rollout.asker,
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

    return ml_async_open(&t->flow, &o, err);
}

ml_status ml_train_mode_enter(ml_train_gen *t, ml_train_loop *loop, const ml_config *c,
                              ml_err *err) {
    ml_work_count *tally = loop->watch.phase ? &loop->watch.phase->answers : NULL;
    ml_status st = ML_OK;

    t->rollout.asker.tally = t->custom_rollout.asker.tally = tally;
    t->evals.asker.tally = t->eval_queue ? NULL : tally; /* the queue has its own thread */
    loop->publish = ml_train_gen_publish;
    loop->publish_ud = t;
    loop->turn = t->offload_train || t->offload_rollout ? ml_train_gen_turn : NULL;
    loop->turn_ud = t;
    loop->publish_interval = c->mode.update_interval;
    loop->evaluate = t->evals.n ? evaluate : NULL;
    loop->evaluate_ud = t;
    loop->behind = t->eval_queue;
    loop->eval_interval = c->rollout.eval_interval;
    loop->skip_first_eval = c->rollout.skip_first_eval;
    loop->ahead = c->mode.async;
    loop->debug.generating = t->second.n ? &t->second : NULL;
    loop->rollout = t->custom_rollout.ext ? ml_rollout_custom(&t->custom_rollout)
                                          : ml_rollout_gen(&t->rollout);
    if (c->mode.fully) {
        st = open_flow(t, c, loop->watch.say, err);
        loop->rollout = st == ML_OK ? ml_rollout_async(t->flow) : loop->rollout;
        if (!loop->record && t->run->opts.save)
            loop->record = ml_arena_printf(
                &t->arena, "%s/rollout_data/{rollout_id}.jsonl.zst", t->run->opts.save);
    } else if (c->mode.async) {
        t->ahead = ML_NEW(&t->arena, ml_prefetch, 1);
        ml_prefetch_init(t->ahead, loop->rollout, t->run->num_rollout,
                         t->run->spec.n_vocab);
        loop->rollout = ml_rollout_prefetch(t->ahead);
    }
    return st;
}

void ml_train_mode_leave(ml_train_gen *t) {
    ml_async_close(t->flow);
    t->flow = NULL;
    if (t->ahead)
        ml_prefetch_release(t->ahead);
    t->ahead = NULL;
}
