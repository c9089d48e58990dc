#include "run/train_loop.h"

#include <time.h>
#include <unistd.h>

#include "base/log.h"
#include "comm/watch.h"
#include "run/rank_messages.h"
#include "run/rank_spans.h"

static ml_comm *world_of(const ml_train_loop *l) {
    return l->run->opts.ranks.world;
}

/* Other ranks generate only: they publish and end with the others. */
static bool trains(const ml_train_loop *l) {
    return ml_run_ranks_trains(&l->run->opts.ranks);
}

static ml_status tell(ml_train_loop *l, ml_loop_event_kind kind, const char *what,
                      ml_err *err) {
    l->now.kind = kind;
    l->now.what = what;
    l->now.rollout = l->run->rollout;
    return ml_observe(&l->run->observers, &l->now, err);
}

static bool publish_due(const ml_train_loop *l, int64_t rollout) {
    return l->publish_interval < 2 || (rollout + 1) % l->publish_interval == 0;
}

/* The last rollout of a run that is requested to stop during this one. */
static int64_t stop_point(const ml_train_loop *l, int64_t rollout) {
    while (rollout + 1 < l->run->num_rollout && !publish_due(l, rollout))
        rollout++;
    return rollout;
}

static bool stop_requested(const ml_train_loop *l) {
    return (l->stop && *l->stop) || l->orders.stop;
}

/* Every --save-interval rollouts, after the last one, before the loop ends, when it is
 * requested, and when the sentinel file exists. */
static bool save_due(const ml_train_loop *l, int64_t rollout) {
    int64_t every = l->run->opts.save_interval;
    return l->run->saver &&
           (rollout + 1 == l->run->num_rollout || (every && (rollout + 1) % every == 0) ||
            l->now.ending || (publish_due(l, rollout) && l->orders.save) ||
            (publish_due(l, rollout) && l->sentinel && unlink(l->sentinel) == 0));
}

static bool eval_due(const ml_train_loop *l, int64_t rollout) {
    bool last = l->prefetch && rollout + 1 == l->run->num_rollout;
    return l->eval.run && ((rollout + 1) % l->eval_interval == 0 || last);
}

/* --- requests ---------------------------------------------------------------- */

/* Rank 0 reads them and tells the other ranks. */
static ml_status read_requests(ml_train_loop *l, bool begins, ml_err *err) {
    ml_status st = ML_OK;

    if (l->control)
        st = ml_control_poll(l->control, l->run->rollout, begins, &l->orders, err);
    if (stop_requested(l))
        l->orders.paused = false;
    return st == ML_OK ? ml_comm_share(world_of(l), &l->orders, sizeof l->orders, err) : st;
}

/* Before a rollout: a paused run waits here, and the learning rate may change. */
static ml_status obey_requests(ml_train_loop *l, ml_err *err) {
    const struct timespec pause = { 0, 200 * 1000 * 1000 };
    ml_status st = read_requests(l, true, err);

    if (st == ML_OK && l->orders.paused)
        ml_log(ML_LOG_WARN, "paused by a request before rollout %lld",
               (long long)l->run->rollout);
    while (st == ML_OK && l->orders.paused) {
        nanosleep(&pause, NULL);
        st = read_requests(l, true, err);
    }
    if (st == ML_OK && l->orders.lr > 0 && l->run->trainer)
        ml_trainer_set_lr(l->run->trainer, l->orders.lr);
    return st;
}

/* --- stages ------------------------------------------------------------------ */

static void take_turn(const ml_train_loop *l) {
    if (l->turn)
        l->turn->take(l->turn->ud);
}

static void give_turn(const ml_train_loop *l) {
    if (l->turn)
        l->turn->give(l->turn->ud);
}

static ml_status collect(ml_train_loop *l, ml_err *err) {
    return l->rollout.collect(l->rollout.ud, l->run->rollout, &l->iteration.batch,
                              &l->iteration.arena, err);
}

static ml_status learn(ml_train_loop *l, ml_err *err) {
    const ml_run_opts *o = &l->run->opts;
    ml_schedule_opts batch = o->trainer.batch;
    ml_iteration *r = &l->iteration;
    ml_status st;

    ml_rank_messages_hold();
    batch.n_rank =
        o->trainer.grad_shards ? o->trainer.grad_shards : ml_run_ranks_data_size(&o->ranks);
    st = ml_iteration_truncate(r, &batch, o->no_trim, err);
    if (st != ML_OK)
        return st;
    take_turn(l);
    st = ml_learn(&l->run->learner, r->rollout, &r->result, &r->arena, r->batch.sample,
                  r->batch.n, err);
    give_turn(l);
    return st;
}

/* Waits for background generation: the weights must not change during it, and its results
 * are part of the snapshot. */
static ml_status rest(ml_train_loop *l, ml_err *err) {
    return l->rollout.rest ? l->rollout.rest(l->rollout.ud, err) : ML_OK;
}

/* Waits until evaluations have finished and all metrics are on disk. */
static ml_status settle(ml_train_loop *l, ml_err *err) {
    ml_status st = l->eval.wait ? l->eval.wait(l->eval.self, err) : ML_OK;
    return st == ML_OK ? ml_run_log_settle(&l->run->log, err) : st;
}

static ml_status save_now(ml_train_loop *l, ml_err *err) {
    ml_train_run *run = l->run;
    ml_text more = { 0 };
    ml_status st = settle(l, err);

    if (st == ML_OK)
        st = rest(l, err);
    if (st == ML_OK && l->rollout.save)
        l->rollout.save(l->rollout.ud, &more);
    if (st == ML_OK) {
        take_turn(l);
        st = ml_train_run_save(run, (ml_str){ more.ptr, more.len }, err);
        give_turn(l);
    }
    ml_text_release(&more);
    if (st != ML_OK)
        return st;
    l->saved = run->rollout;
    return tell(l, ML_ON_SAVED,
                ml_snapshot_path(&l->iteration.arena, run->opts.save, run->rollout), err);
}

static ml_status save(ml_train_loop *l, ml_err *err) {
    int64_t now = l->run->rollout;
    bool enough = l->exit_after && now - l->first + 1 >= l->exit_after, due;
    ml_status st = ml_rank_messages_meet(world_of(l), err);

    if (st == ML_OK)
        st = read_requests(l, false, err);
    /* Read once, so that a rollout that ends the run is also saved; rank 0 decides. */
    l->now.ending = (stop_requested(l) || enough) && publish_due(l, now);
    due = ml_comm_is_first(world_of(l)) && save_due(l, now);
    if (st == ML_OK)
        st = ml_comm_share(world_of(l), &l->now.ending, sizeof l->now.ending, err);
    if (st == ML_OK)
        st = ml_comm_share(world_of(l), &due, sizeof due, err);
    l->orders.save = l->orders.save && !due;
    if (st == ML_OK && due && trains(l))
        return save_now(l, err);
    l->now.last = l->run->saver ? stop_point(l, now + 1) : l->now.last;
    return st;
}

/* Rank 0 generates nothing while a rank publishes, and sends no request to an engine that
 * has the weights of the last rollout: ranks meet before and afterwards. */
static ml_status publish(ml_train_loop *l, ml_err *err) {
    ml_status st = ml_comm_meet(world_of(l), err);

    if (st == ML_OK && l->publisher) {
        take_turn(l);
        st = ml_publisher_publish(l->publisher, ml_train_run_read(l->run), err);
        give_turn(l);
    }
    return st == ML_OK ? ml_comm_meet(world_of(l), err) : st;
}

static ml_status evaluate(ml_train_loop *l, ml_err *err) {
    ml_status st = l->eval.wait ? ML_OK : rest(l, err);
    return st == ML_OK ? l->eval.run(l->eval.self, l->run->rollout, err) : st;
}

/* --- the loop ---------------------------------------------------------------- */

static ml_status in_stage(ml_train_loop *l, ml_stage stage,
                          ml_status (*work)(ml_train_loop *, ml_err *), ml_err *err) {
    static const char *const doing[ML_N_STAGE] = { "rollout", "learning",   "saving",
                                                   "resting", "publishing", "evaluating" };
    ml_status st;

    l->now.stage = stage;
    if (ml_run_ranks_size(&l->run->opts.ranks) > 1) {
        ml_comm_doing(world_of(l), doing[stage], -1);
        ml_watch_stage(ml_comm_watch(world_of(l)), doing[stage]);
    }
    ml_stage_begin(&l->iteration, stage);
    st = tell(l, ML_ON_STAGE, "", err);
    if (st == ML_OK)
        st = work(l, err);
    ml_stage_end(&l->iteration, stage);
    return st;
}

static ml_status iterate(ml_train_loop *l, ml_err *err) {
    bool publishes = l->publishes && publish_due(l, l->run->rollout);
    ml_status st = tell(l, ML_ON_ROLLOUT_BEGIN, "", err);

    if (st == ML_OK && trains(l))
        st = in_stage(l, ML_STAGE_ROLLOUT, collect, err);
    if (st == ML_OK && trains(l))
        st = tell(l, ML_ON_BATCH, "", err);
    if (st == ML_OK && l->generator)
        st = ml_generator_enter(l->generator, ML_PHASE_TRAIN, err);
    if (st == ML_OK && trains(l) && !l->run->opts.learns_nothing)
        st = in_stage(l, ML_STAGE_LEARN, learn, err);
    if (st == ML_OK && trains(l))
        st = tell(l, ML_ON_LEARNED, "", err);
    if (st == ML_OK && l->generator)
        st = ml_generator_enter(l->generator, ML_PHASE_SAVE, err);
    if (st == ML_OK)
        st = in_stage(l, ML_STAGE_SAVE, save, err);
    if (st == ML_OK && l->generator)
        st = ml_generator_enter(l->generator, ML_PHASE_ROLLOUT, err);
    if (st == ML_OK && publishes)
        st = in_stage(l, ML_STAGE_REST, rest, err);
    if (st == ML_OK && publishes)
        st = in_stage(l, ML_STAGE_PUBLISH, publish, err);
    if (st == ML_OK && publishes)
        st = tell(l, ML_ON_PUBLISHED, "", err);
    if (st == ML_OK && eval_due(l, l->run->rollout))
        st = in_stage(l, ML_STAGE_EVAL, evaluate, err);
    return st == ML_OK ? tell(l, ML_ON_ROLLOUT_END, "", err) : st;
}

/* Ends with the first evaluation; or with that of the previous rollout, since evaluation
 * comes after saving. */
static ml_status begin(ml_train_loop *l, ml_err *err) {
    ml_train_run *run = l->run;
    bool evaluates =
        run->snapshot ? eval_due(l, run->rollout - 1) : l->eval.run && !l->skip_first_eval;
    ml_status st = ML_OK;

    l->first = run->rollout;
    l->saved = -1;
    l->now = (ml_loop_event){ .n_rollout = run->num_rollout,
                              .last = stop_point(l, run->rollout),
                              .stage = evaluates ? ML_STAGE_EVAL : ML_STAGE_ROLLOUT,
                              .iteration = &l->iteration,
                              .saver = run->saver,
                              .weights = l->publisher && !l->publisher->moves
                                             ? l->publisher->weights
                                             : NULL };
    if (run->snapshot && l->rollout.load && trains(l))
        st = l->rollout.load(l->rollout.ud, run->saved, run->snapshot, err);
    if (st == ML_OK)
        st = tell(l, ML_ON_RUN_BEGIN, ml_train_run_origin(run), err);
    return st == ML_OK && evaluates ? l->eval.run(l->eval.self, run->rollout - 1, err) : st;
}

/* After the last rollout, or if a stop was requested and no unsaved work is left; rank 0
 * decides. */
static ml_status at_end(bool *out, const ml_train_loop *l, ml_err *err) {
    int64_t next = l->run->rollout;
    bool at_rest = !l->run->saver || next == l->first || l->saved == next - 1;

    *out = next >= l->run->num_rollout || l->now.ending || (stop_requested(l) && at_rest);
    return ml_comm_share(world_of(l), out, sizeof *out, err);
}

ml_status ml_train_loop_run(ml_train_loop *l, ml_err *err) {
    ml_train_run *run = l->run;
    bool end = false;
    ml_status st = begin(l, err);

    for (; st == ML_OK; run->rollout++) {
        st = at_end(&end, l, err);
        if (st == ML_OK && !end)
            st = obey_requests(l, err);
        if (st != ML_OK || end)
            break;
        ml_iteration_begin(&l->iteration, run->rollout);
        l->now.last = stop_point(l, run->rollout);
        st = iterate(l, err);
        if (st == ML_OK && run->opts.log.ops)
            st = ml_rank_spans_meet(world_of(l), run->opts.log.ops, l->clock_offset_s,
                                    &l->iteration, &run->log, err);
        ml_iteration_end(&l->iteration, &run->log);
        if (st == ML_OK)
            st = ml_run_log_check(&run->log, err);
    }
    if (st == ML_OK)
        st = settle(l, err);
    if (st == ML_OK && run->saver)
        st = ml_saver_wait(run->saver, err);
    return st == ML_OK ? tell(l, ML_ON_RUN_END, "", err) : st;
}
