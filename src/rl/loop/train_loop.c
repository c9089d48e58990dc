#include "rl/loop/train_loop.h"

#include <string.h>
#include <unistd.h>

#include "base/log.h"
#include "rl/loop/startup_summary.h"
#include "rl/learn/truncate.h"

/* Stages of an iteration. */
static ml_status collect(ml_train_loop *l, ml_iteration *r, ml_err *err);
static ml_status learn(ml_train_loop *l, ml_iteration *r, ml_err *err);
static ml_status save(ml_train_loop *l, ml_iteration *r, ml_err *err);
static ml_status publish(ml_train_loop *l, ml_iteration *r, ml_err *err);
static ml_status evaluate(ml_train_loop *l, ml_iteration *r, ml_err *err);
static ml_status turn(ml_train_loop *l, bool trains, ml_err *err);
static ml_status begin(ml_train_loop *l, ml_err *err);
static ml_status await_scores(ml_train_loop *l, ml_err *err);

/* A stop was requested and no work is pending: everything is saved, or the run does not
 * save. */
static bool at_rest(const ml_train_loop *l) {
    return l->stop && *l->stop && (!l->unsaved || !l->run->saver);
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

static void show_round(ml_train_loop *l, int64_t rollout) {
    if (!l->watch.phase)
        return;
    atomic_store(&l->watch.phase->rollout, rollout);
    atomic_store(&l->watch.phase->ends, stop_point(l, rollout));
}

/* From here on, a stop request takes effect only in the next rollout. */
static void show_saved(ml_train_loop *l, int64_t rollout) {
    if (!l->watch.phase || !l->run->saver)
        return;
    if (!l->unsaved)
        atomic_store(&l->watch.phase->saved, rollout);
    else
        atomic_store(&l->watch.phase->ends, stop_point(l, rollout + 1));
}

static void enter(ml_train_loop *l, ml_iteration *r, ml_stage stage) {
    ml_stage_begin(r, stage);
    if (l->watch.phase)
        atomic_store(&l->watch.phase->stage, stage);
}

ml_status ml_train_loop_run(ml_train_loop *l, ml_err *err) {
    ml_train_run *run = l->run;
    ml_status st = begin(l, err);

    for (; st == ML_OK && run->rollout < run->num_rollout && !l->ending && !at_rest(l);
         run->rollout++) {
        ml_iteration r;
        ml_iteration_begin(&r, run->rollout);
        show_round(l, run->rollout);
        if (l->debug.diagnostics)
            ml_diagnostics_rollout_begin(l->debug.diagnostics, r.rollout);
        st = collect(l, &r, err);
        if (st == ML_OK)
            st = turn(l, true, err);
        if (st == ML_OK)
            st = learn(l, &r, err);
        if (st == ML_OK)
            st = save(l, &r, err);
        if (st == ML_OK)
            st = turn(l, false, err);
        if (st == ML_OK)
            st = publish(l, &r, err);
        if (st == ML_OK)
            st = evaluate(l, &r, err);
        if (st == ML_OK && l->debug.diagnostics)
            st = ml_diagnostics_rollout(l->debug.diagnostics, run, r.rollout, err);
        ml_iteration_end(&r, &run->log);
        if (st == ML_OK)
            st = ml_run_log_check(&run->log, err);
        if (st == ML_OK && l->watch.progress)
            l->watch.progress(run->rollout + 1, run->num_rollout);
    }
    if (st == ML_OK)
        st = await_scores(l, err);
    if (st == ML_OK)
        st = ml_run_log_settle(&run->log, err);
    if (st == ML_OK && run->saver)
        st = ml_saver_wait(run->saver, err);
    if (st == ML_OK && l->debug.checks)
        st = ml_invariants_end(l->debug.checks, err);
    if (st == ML_OK && l->debug.diagnostics)
        st = ml_diagnostics_end(l->debug.diagnostics, err);
    return st;
}

/* --- stages ----------------------------------------------------------------- */

static bool has_pieces(const ml_rollout_batch *h) {
    for (int64_t i = 0; i < h->n; i++)
        if (h->sample[i]->rollout != h->sample[i]->index)
            return true;
    return false;
}

/* Drops the samples that do not fill an optimizer step, and logs it. */
static ml_status trim(const ml_train_run *run, ml_iteration *r, ml_err *err) {
    const ml_schedule_opts *o = &run->opts.trainer.batch;
    ml_rollout_batch *h = &r->batch;
    int64_t n =
        ml_truncate(&(ml_truncate_opts){ .global_batch_size = o->global_batch_size,
                                         .n_rank = 1,
                                         .one_step = o->one_step,
                                         .all = o->allow_partial || run->opts.no_trim,
                                         .has_pieces = has_pieces(h) },
                    h->n);

    if (n == 0)
        return ml_fail(err, ML_EUSAGE,
                       "a round has %lld samples, fewer than --global-batch-size %lld: "
                       "lower it",
                       (long long)h->n, (long long)o->global_batch_size);
    if (n < h->n)
        ml_log(ML_LOG_WARN,
               "rollout %lld: %lld samples do not fill an optimizer step and are left out",
               (long long)r->rollout, (long long)(h->n - n));
    h->n = n;
    return ML_OK;
}

static ml_status collect(ml_train_loop *l, ml_iteration *r, ml_err *err) {
    ml_status st;

    enter(l, r, ML_STAGE_ROLLOUT);
    st = l->rollout.collect(l->rollout.ud, r->rollout, &r->batch, &r->arena, err);
    ml_stage_end(r, ML_STAGE_ROLLOUT);
    if (st == ML_OK && r->batch.n_drawn && r->batch.n && !l->looked) {
        ml_startup_summary(&r->batch,
                           ml_recipe_compares_rewards(&l->run->opts.recipe) &&
                               !r->batch.sample[0]->has_shaped,
                           l->watch.say);
        l->looked = true;
    } else if (st == ML_OK && l->debug.print_every && r->batch.n &&
               r->rollout % l->debug.print_every == 0) {
        char when[40];
        snprintf(when, sizeof when, "rollout %lld", (long long)r->rollout);
        ml_show_sample(when, r->batch.sample[0], l->watch.say);
    }
    if (st == ML_OK && l->record)
        st = ml_rollout_record(l->record, r->rollout, &r->batch, err);
    if (st == ML_OK && l->debug.trajectory)
        st = ml_rollout_record_text(l->debug.trajectory, r->rollout, &r->batch, err);
    return st;
}

static ml_status turn(ml_train_loop *l, bool trains, ml_err *err) {
    return l->turn ? l->turn(l->turn_ud, trains, err) : ML_OK;
}

static ml_status learn(ml_train_loop *l, ml_iteration *r, ml_err *err) {
    ml_train_run *run = l->run;
    int64_t per_rollout = run->opts.rollout_batch_size *
                          run->opts.source.n_samples_per_prompt /
                          run->opts.trainer.batch.global_batch_size;
    ml_status st = ML_OK;

    enter(l, r, ML_STAGE_LEARN);
    ml_work_count_clear(run->learner.work_count);
    l->unsaved = true;
    if (!run->opts.learns_nothing) {
        st = trim(run, r, err);
        if (st == ML_OK)
            st = ml_learn(&run->learner, r->rollout, &r->result, &r->arena, r->batch.sample,
                          r->batch.n, err);
    }
    ml_stage_end(r, ML_STAGE_LEARN);
    if (st != ML_OK)
        return st;
    ml_iteration_report(r, &run->log, r->rollout * per_rollout, &l->watch);
    if (l->debug.diagnostics)
        st = ml_diagnostics_trained(l->debug.diagnostics, r, r->rollout * per_rollout, run,
                                    err);
    if (st != ML_OK)
        return st;
    return l->debug.checks ? ml_invariants_round(l->debug.checks, r,
                                                 r->rollout * per_rollout, &run->log, err)
                           : ML_OK;
}

/* Waits for background generation: the weights must not change during it, and its results
 * are part of the snapshot. */
static ml_status rest(ml_train_loop *l, ml_err *err) {
    return l->rollout.rest ? l->rollout.rest(l->rollout.ud, err) : ML_OK;
}

/* A file whose existence requests a save. */
static bool asked_to_save(const ml_train_loop *l) {
    return l->debug.sentinel && unlink(l->debug.sentinel) == 0;
}

/* Every --save-interval rollouts, after the last one, and before the loop ends. */
static bool save_due(const ml_train_loop *l, int64_t rollout) {
    int64_t every = l->run->opts.save_interval;
    return l->run->saver &&
           (rollout + 1 == l->run->num_rollout || (every && (rollout + 1) % every == 0) ||
            l->ending || (publish_due(l, rollout) && asked_to_save(l)));
}

/* Waits until the snapshot is complete before the hook runs. */
static ml_status call_after_save(ml_train_run *run, ml_err *err) {
    const ml_hooks *hooks = run->opts.hooks;
    ml_arena a;
    ml_status st;

    if (!hooks || !hooks->at[MILES_AFTER_SAVE])
        return ML_OK;
    ml_arena_init(&a, "a snapshot's path");
    st = ml_saver_wait(run->saver, err);
    if (st == ML_OK)
        st = ml_hooks_call(hooks, MILES_AFTER_SAVE, run->rollout, -1,
                           ml_snapshot_path(&a, run->opts.save, run->rollout), err);
    ml_arena_release(&a);
    return st;
}

static ml_status save_all(ml_train_loop *l, ml_err *err) {
    ml_text more = { 0 };
    ml_status st = await_scores(l, err);

    if (st == ML_OK)
        /* Rows must be on disk before the save. */
        st = ml_run_log_settle(&l->run->log, err);

    if (st == ML_OK)
        st = rest(l, err);
    if (st == ML_OK && l->rollout.save)
        l->rollout.save(l->rollout.ud, &more);
    if (st == ML_OK)
        st = ml_train_run_save(l->run, (ml_str){ more.ptr, more.len }, err);
    ml_text_release(&more);
    return st == ML_OK ? call_after_save(l->run, err) : st;
}

static ml_status save(ml_train_loop *l, ml_iteration *r, ml_err *err) {
    ml_status st = ML_OK;
    bool enough = l->debug.exit_after && ++l->debug.n_done >= l->debug.exit_after;

    /* Read once, so that a rollout that ends the run is also saved. */
    l->ending = ((l->stop && *l->stop) || enough) && publish_due(l, r->rollout);
    enter(l, r, ML_STAGE_SAVE);
    if (save_due(l, r->rollout)) {
        st = save_all(l, err);
        l->unsaved = st != ML_OK;
        ml_run_log_event(&l->run->log, r->rollout,
                         l->ending ? "saved and ending" : "saved");
    }
    show_saved(l, r->rollout);
    ml_stage_end(r, ML_STAGE_SAVE);
    return st;
}

/* Checks that the generating weights equal the trained ones bitwise. */
static ml_status look_at_sync(const ml_train_loop *l, ml_err *err) {
    const ml_weights *trained = &l->run->weights;
    uint64_t is, generates;
    ml_status st = ml_hash_weights(&is, trained, &l->debug.sync_skip, err);

    generates = is;
    if (st == ML_OK && l->debug.check_sync && l->debug.generating)
        st = ml_hash_weights(&generates, l->debug.generating, &l->debug.sync_skip, err);
    if (st == ML_OK && generates != is)
        st = ml_fail(
            err, ML_EFORMAT,
            "weight_sync: version %llu has the hash %016llx where it is trained and "
            "%016llx where it generates",
            (unsigned long long)trained->version, (unsigned long long)is,
            (unsigned long long)generates);
    if (st == ML_OK && l->debug.tell_sync) {
        ml_text t = { 0 };
        ml_text_printf(&t, "weight_sync: version %llu, hash %016llx",
                       (unsigned long long)trained->version, (unsigned long long)is);
        l->watch.say(t.ptr);
        ml_text_release(&t);
    }
    return st;
}

static ml_status publish(ml_train_loop *l, ml_iteration *r, ml_err *err) {
    ml_status st = ML_OK;

    if (!l->publish || !publish_due(l, r->rollout))
        return ML_OK;
    enter(l, r, ML_STAGE_REST);
    st = rest(l, err);
    ml_stage_end(r, ML_STAGE_REST);
    enter(l, r, ML_STAGE_PUBLISH);
    if (st == ML_OK)
        st = l->publish(l->publish_ud, &l->run->weights, err);
    ml_stage_end(r, ML_STAGE_PUBLISH);
    if (st == ML_OK && (l->debug.tell_sync || l->debug.check_sync))
        st = look_at_sync(l, err);
    if (st == ML_OK && l->debug.diagnostics && !l->debug.elsewhere)
        st = ml_diagnostics_published(
            l->debug.diagnostics, r->rollout,
            l->debug.generating ? l->debug.generating : &l->run->weights, err);
    return st;
}

static bool eval_due(const ml_train_loop *l, int64_t rollout) {
    bool last = l->prefetch && rollout + 1 == l->run->num_rollout;
    return l->evaluate && l->eval_interval &&
           ((rollout + 1) % l->eval_interval == 0 || last);
}

static void report_scores(ml_train_loop *l, int64_t rollout, const ml_metrics *metrics) {
    ml_iteration_report_eval(metrics, &l->run->log, rollout, &l->watch);
    if (l->debug.checks)
        ml_invariants_metrics(l->debug.checks, metrics);
}

/* Takes the result of a queued evaluation; false: there is none, or none is ready and
 * `wait` is false. */
static bool take_scores(ml_train_loop *l, bool wait, ml_status *st, ml_err *err) {
    ml_eval_result found;

    if (!ml_eval_queue_take(l->async_eval, &found, wait))
        return false;
    *st = found.st;
    if (found.st == ML_OK) {
        report_scores(l, found.rollout, &found.scores.metrics);
        ml_run_log_answers(&l->run->log, found.rollout, found.scores.answers, &found.arena);
    }
    if (found.st != ML_OK && err)
        *err = found.err;
    ml_arena_release(&found.arena);
    return found.st == ML_OK;
}

/* Waits for all queued evaluations, so that a snapshot, or the end of the run, includes
 * their metrics. */
static ml_status await_scores(ml_train_loop *l, ml_err *err) {
    ml_status st = ML_OK;

    while (l->async_eval && take_scores(l, true, &st, err))
        ;
    return st;
}

/* If the queue skips instead of waiting for space, takes the finished results first, and
 * reports an evaluation that was skipped. */
static ml_status submit_eval(ml_train_loop *l, int64_t rollout, ml_err *err) {
    bool skips = ml_eval_queue_skips(l->async_eval);
    ml_status st = ML_OK;
    ml_metrics metrics;
    ml_arena a;

    while ((skips || !ml_eval_queue_has_room(l->async_eval)) &&
           take_scores(l, !skips, &st, err))
        ;
    if (st != ML_OK)
        return st;
    if (ml_eval_queue_has_room(l->async_eval))
        return ml_eval_queue_submit(l->async_eval, rollout, &l->run->weights, err);
    ml_arena_init(&a, "an evaluation");
    ml_metrics_init(&metrics, &a);
    ml_metrics_add(&metrics, "eval/", "skipped_busy", 1);
    report_scores(l, rollout, &metrics);
    ml_arena_release(&a);
    return ML_OK;
}

static ml_status score(ml_train_loop *l, int64_t rollout, ml_err *err) {
    ml_eval_scores scores = { 0 };
    ml_arena a;
    ml_status st;

    if (l->async_eval)
        return submit_eval(l, rollout, err);
    ml_arena_init(&a, "an evaluation");
    ml_metrics_init(&scores.metrics, &a);
    st = l->evaluate(l->evaluate_ud, &scores, err);
    if (st == ML_OK) {
        report_scores(l, rollout, &scores.metrics);
        ml_run_log_answers(&l->run->log, rollout, scores.answers, &a);
    }
    ml_arena_release(&a);
    return st;
}

static ml_status evaluate(ml_train_loop *l, ml_iteration *r, ml_err *err) {
    ml_status st;

    if (eval_due(l, r->rollout))
        enter(l, r, ML_STAGE_EVAL);
    else
        ml_stage_begin(r, ML_STAGE_EVAL);
    st = eval_due(l, r->rollout) && !l->async_eval ? rest(l, err) : ML_OK;
    if (st == ML_OK && eval_due(l, r->rollout))
        st = score(l, r->rollout, err);
    ml_stage_end(r, ML_STAGE_EVAL);
    return st;
}

/* Lets workers of the loop count in the watcher's counters. */
static void share_tally(ml_train_loop *l) {
    ml_train_run *run = l->run;

    if (!l->watch.phase)
        return;
    run->learner.work_count = &l->watch.phase->micro;
    if (run->trainer)
        ml_trainer_set_work_count(run->trainer, run->learner.work_count);
    if (run->critic.trainer)
        ml_trainer_set_work_count(run->critic.trainer, run->learner.work_count);
}

/* If --load has no snapshot, the run starts from another checkpoint, as in Miles. */
static void call_after_init(const ml_train_loop *l) {
    const ml_train_run *run = l->run;
    ml_text t = { 0 };

    if (!run->opts.load ||
        strncmp(run->started, run->opts.load, strlen(run->opts.load)) == 0)
        return; /* or the weights of a snapshot start a new run */
    ml_text_printf(&t,
                   "--load %s has no snapshot: the run starts from %s %s at rollout %lld",
                   run->opts.load, run->opts.ref_load ? "--ref-load" : "--hf-checkpoint",
                   run->started, (long long)run->rollout);
    l->watch.say(t.ptr);
    ml_text_release(&t);
}

/* The first evaluation; or that of the previous rollout, since evaluation comes after
 * saving. */
static ml_status begin(ml_train_loop *l, ml_err *err) {
    ml_train_run *run = l->run;
    ml_status st = ML_OK;
    bool first = run->snapshot ? eval_due(l, run->rollout - 1)
                               : l->evaluate && l->eval_interval && !l->skip_first_eval;

    l->debug.sync_skip.spec = &run->spec;
    share_tally(l);
    show_round(l, run->rollout);
    if (l->debug.diagnostics)
        ml_diagnostics_begin(l->debug.diagnostics, run);
    if (l->debug.checks) {
        l->debug.checks->weights = &run->weights;
        l->debug.checks->trainer = run->trainer;
        run->learner.stepped = ml_invariants_step;
        run->learner.stepped_ud = l->debug.checks;
    }
    if (run->snapshot) {
        ml_text t = { 0 };
        ml_text_printf(&t, "Loaded checkpoint from %s; going on at rollout %lld",
                       run->snapshot, (long long)run->rollout);
        l->watch.say(t.ptr);
        ml_run_log_event(&run->log, run->rollout, t.ptr);
        ml_text_release(&t);
    } else {
        call_after_init(l);
        ml_run_log_event(&run->log, run->rollout, "started");
    }
    if (l->watch.progress)
        l->watch.progress(run->rollout, run->num_rollout);
    if (run->snapshot && l->rollout.load)
        st = l->rollout.load(l->rollout.ud, run->saved, run->snapshot, err);
    if (st == ML_OK)
        st = ml_hooks_call(run->opts.hooks, MILES_AFTER_INIT, run->rollout, -1, "", err);
    if (st != ML_OK)
        return st;
    if (first && l->watch.phase)
        atomic_store(&l->watch.phase->stage, ML_STAGE_EVAL);
    return first ? score(l, run->rollout - 1, err) : ML_OK;
}
