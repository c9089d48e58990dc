#include "rl/loop/iteration.h"

#include "base/clock.h"
#include "base/log.h"
#include "rl/eval/evals.h"
#include "train/memory.h"

void ml_iteration_begin(ml_iteration *r, int64_t rollout) {
    *r = (ml_iteration){ .rollout = rollout, .began_s = ml_clock_s() };
    ml_arena_init(&r->arena, "a rollout");
    ml_metrics_init(&r->batch.metrics, &r->arena);
    ml_metrics_init(&r->result.rollout, &r->arena);
}

void ml_stage_begin(ml_iteration *r, ml_stage stage) {
    r->stage[stage].begin_s = r->stage[stage].end_s = ml_clock_s();
}

void ml_stage_end(ml_iteration *r, ml_stage stage) {
    r->stage[stage].end_s = ml_clock_s();
}

int64_t ml_truncate(const ml_truncate_opts *o, int64_t n) {
    int64_t batch = o->global_batch_size;

    if (o->all || o->has_pieces)
        return n;
    if (o->one_step) {
        batch = n / o->n_rank * o->n_rank;
        batch = batch < o->n_rank ? o->n_rank : batch;
    }
    return n / batch * batch;
}

static bool has_pieces(const ml_rollout_batch *h) {
    for (int64_t i = 0; i < h->n; i++)
        if (h->sample[i]->rollout != h->sample[i]->index)
            return true;
    return false;
}

ml_status ml_iteration_truncate(ml_iteration *r, const ml_schedule_opts *o, bool all,
                                ml_err *err) {
    ml_rollout_batch *h = &r->batch;
    int64_t n = ml_truncate(&(ml_truncate_opts){ .global_batch_size = o->global_batch_size,
                                                 .n_rank = o->n_rank ? o->n_rank : 1,
                                                 .one_step = o->one_step,
                                                 .all = all || o->allow_partial,
                                                 .has_pieces = has_pieces(h) },
                            h->n);

    if (n == 0)
        return ml_fail(err, ML_EUSAGE,
                       "rollout %lld has %lld samples, fewer than --global-batch-size "
                       "%lld: lower --global-batch-size",
                       (long long)r->rollout, (long long)h->n,
                       (long long)o->global_batch_size);
    if (n < h->n)
        ml_log(ML_LOG_WARN,
               "rollout %lld: the last %lld samples do not fill a train step and are "
               "dropped",
               (long long)r->rollout, (long long)(h->n - n));
    h->n = n;
    return ML_OK;
}

/* --- times ------------------------------------------------------------------ */

static double seconds(const ml_iteration *r, ml_stage stage) {
    return r->stage[stage].end_s - r->stage[stage].begin_s;
}

double ml_iteration_seconds(const ml_iteration *r) {
    return r->batch.made_s > 0 ? r->batch.made_s : seconds(r, ML_STAGE_ROLLOUT);
}

int64_t ml_iteration_tokens(const ml_iteration *r) {
    int64_t n = 0;
    for (int32_t k = 0; k < r->result.n_step; k++)
        n += r->result.step[k].step.n_token + r->result.step[k].critic.n_token;
    return n;
}

static void log_times(const ml_iteration *r, ml_run_log *log, double end_s) {
    double rollout_s = ml_iteration_seconds(r),
           flops = log->flop_per_token * ml_rate(ml_iteration_tokens(r), r->result.train_s);
    const struct {
        const char *name;
        double value;
    } row[] = {
        { "rollout_time", rollout_s },
        { "train_wait_time", seconds(r, ML_STAGE_ROLLOUT) + seconds(r, ML_STAGE_REST) },
        { "engine_time", r->batch.engine_s },
        { "log_probs_time", r->result.score_s },
        { "actor_train_time", r->result.train_s },
        { "save_model_time", seconds(r, ML_STAGE_SAVE) },
        { "update_weights_time", seconds(r, ML_STAGE_PUBLISH) },
        { "eval_time", seconds(r, ML_STAGE_EVAL) },
        { "step_time", end_s - r->began_s },
        { "rollout_tok_per_s", ml_rate(r->batch.n_drawn, rollout_s) },
        { "actor_train_tok_per_s", ml_rate(ml_iteration_tokens(r), r->result.train_s) },
        { "resident_bytes", (double)ml_memory_resident() }
    };
    ml_metrics times;
    ml_arena a;

    ml_arena_init(&a, "times of a rollout"); /* the iteration's arena may be in use */
    ml_metrics_init(&times, &a);
    for (size_t i = 0; i < sizeof row / sizeof *row; i++)
        ml_metrics_add(&times, "perf/", row[i].name, row[i].value);
    if (log->flop_per_token > 0)
        ml_metrics_add(&times, "perf/", "actor_train_tflops", flops / 1e12);
    if (log->peak_flops > 0)
        ml_metrics_add(&times, "perf/", "actor_train_mfu", flops / log->peak_flops);
    ml_run_log_timing(log, r->rollout, &times);
    ml_arena_release(&a);
}

int32_t ml_iteration_spans(const ml_iteration *r, double end_s,
                           ml_time_span out[ML_ITERATION_SPANS]) {
    static const char *const names[ML_N_STAGE] = { "rollout", "learn",          "save",
                                                   "rest",    "update_weights", "eval" };
    ml_time_span span = { "iteration", ML_TRACK_LOOP, -1, r->began_s, end_s, NULL };
    int32_t n = 0;

    out[n++] = span;
    for (int i = 0; i < ML_N_STAGE; i++) {
        span.name = names[i];
        span.begin_s = r->stage[i].begin_s;
        span.end_s = r->stage[i].end_s;
        if (span.end_s > span.begin_s)
            out[n++] = span;
    }
    return n;
}

static void log_spans(const ml_iteration *r, ml_run_log *log, double end_s) {
    ml_time_span span[ML_ITERATION_SPANS];
    int32_t n = ml_iteration_spans(r, end_s, span);
    double learn_s = r->stage[ML_STAGE_LEARN].begin_s,
           score_s = learn_s + r->result.score_s;

    for (int32_t i = 0; i < n; i++)
        ml_run_log_span(log, r->rollout, ML_SPAN_OTHER, span[i].name, span[i].begin_s,
                        span[i].end_s);
    if (r->result.score_s > 0)
        ml_run_log_span(log, r->rollout, ML_SPAN_LOG_PROBS, "log_probs", learn_s, score_s);
    if (r->result.train_s > 0)
        ml_run_log_span(log, r->rollout, ML_SPAN_TRAIN, "actor_train", score_s,
                        score_s + r->result.train_s);
}

void ml_iteration_end(ml_iteration *r, ml_run_log *log) {
    double end_s = ml_clock_s();

    log_times(r, log, end_s);
    log_spans(r, log, end_s);
    ml_run_log_post(log, &r->arena);
}

/* --- the run log ------------------------------------------------------------ */

static void log_rollout(ml_run_log *log, const ml_iteration *r) {
    ml_metrics all = r->batch.metrics;

    if (!all.first)
        all = r->result.rollout;
    else
        *all.last = r->result.rollout.first;
    /* Samples without a reward come unchanged from the data set, so they are not logged. */
    ml_run_log_samples(log, r->rollout, r->batch.sample,
                       r->batch.n && r->batch.sample[0]->has_reward ? r->batch.n : 0);
    ml_run_log_metrics(log, r->rollout, -1, &all);
    if (r->batch.metrics.first)
        *r->batch.metrics.last = NULL;
    for (int32_t k = 0; k < r->result.n_step; k++)
        ml_run_log_metrics(log, r->rollout, r->result.first_step + k,
                           &r->result.step[k].metrics);
}

ml_status ml_iteration_log(void *run_log, const ml_loop_event *e, ml_err *err) {
    ml_run_log *log = run_log;

    (void)err;
    if (e->kind == ML_ON_RUN_BEGIN)
        ml_run_log_event(log, e->rollout, *e->what ? e->what : "started");
    if (e->kind == ML_ON_DATA_READY)
        ml_run_log_advantages(log, e->batch);
    if (e->kind == ML_ON_LEARNED)
        log_rollout(log, e->iteration);
    if (e->kind == ML_ON_SAVED)
        ml_run_log_event(log, e->rollout, e->ending ? "saved and ending" : "saved");
    if (e->kind == ML_ON_EVALUATED) {
        ml_run_log_metrics(log, e->rollout, -1, &e->scores->metrics);
        ml_run_log_answers(log, e->rollout, e->scores->answers, e->arena);
    }
    return ML_OK;
}
