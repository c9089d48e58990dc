#include "rl/loop/diagnostics.h"

#include "model/plan_dump.h"
#include "rl/record/hashes.h"
#include "train/master_weights.h"

ml_status ml_diagnostics_open(ml_diagnostics *a, const ml_diagnostics_opts *opts,
                              ml_err *err) {
    ml_status st = ML_OK;

    *a = (ml_diagnostics){ .opts = *opts };
    if (opts->events)
        st = ml_events_open(&a->events, opts->events, err);
    if (st == ML_OK && opts->n_coverage)
        st = ml_coverage_open(&a->coverage, opts->n_coverage, a->events, err);
    return st;
}

void ml_diagnostics_close(ml_diagnostics *a) {
    ml_coverage_close(a->coverage);
    ml_events_close(a->events);
    *a = (ml_diagnostics){ 0 };
}

void ml_diagnostics_begin(ml_diagnostics *a, ml_train_run *run) {
    run->learner.coverage = a->coverage;
}

static ml_status write_checksum(ml_diagnostics *a, const char *whose, int64_t rollout,
                                const ml_weights *w, ml_err *err) {
    uint64_t hash;
    ml_status st = ml_hash_weights(&hash, w, NULL, err);

    if (st == ML_OK)
        ml_events_checksum(a->events, whose, rollout, w->version, hash);
    return st;
}

ml_status ml_diagnostics_trained(ml_diagnostics *a, const ml_iteration *r, int64_t step,
                                 ml_train_run *run, ml_err *err) {
    const ml_learn_result *l = &r->result;
    ml_status st = ML_OK;

    if (l->n_step == 0)
        return ML_OK;
    if (a->n_learnt++ < a->opts.n_masters)
        st = ml_master_weights_check(ml_trainer_optimizer(run->trainer), err);
    if (st != ML_OK || !a->events)
        return st;
    ml_events_metrics(a->events, "train_advantage_computation", r->rollout, &l->rollout);
    for (int32_t k = 0; k < l->n_step; k++) {
        ml_events_step_end(a->events, r->rollout, step + k);
        ml_events_metrics(a->events, "metric", r->rollout, &l->step[k].metrics);
    }
    return write_checksum(a, "train_engine_local_weight_checksum", r->rollout,
                          &run->weights, err);
}

ml_status ml_diagnostics_published(ml_diagnostics *a, int64_t rollout,
                                   const ml_weights *generating, ml_err *err) {
    return a->events ? write_checksum(a, "inference_engine_weight_checksum", rollout,
                                      generating, err)
                     : ML_OK;
}

void ml_diagnostics_rollout_begin(ml_diagnostics *a, int64_t rollout) {
    for (int i = 0; i < 3; i++)
        if (a->opts.dump[i])
            ml_plan_dump_round(a->opts.dump[i], rollout);
}

ml_status ml_diagnostics_rollout(ml_diagnostics *a, ml_train_run *run, int64_t rollout,
                                 ml_err *err) {
    ml_status st = ml_memory_record_round(&a->opts.memory, run, rollout, err);

    for (int i = 0; i < 3 && st == ML_OK; i++)
        if (a->opts.dump[i])
            st = ml_plan_dump_check(a->opts.dump[i], err);
    return st == ML_OK ? ml_events_check(a->events, err) : st;
}

ml_status ml_diagnostics_end(ml_diagnostics *a, ml_err *err) {
    return a->opts.analyse ? ml_events_analyse(a->opts.events, err) : ML_OK;
}
