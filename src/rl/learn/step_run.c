#include "rl/learn/step_run.h"

typedef struct bridge {
    const ml_step_run *run;
    int64_t *place; /* [largest index + 1] position of a sample in the step's loss */
    double *widened[6];
} bridge;

static int32_t longest(const ml_step_run *r, int32_t *largest) {
    int32_t most = 1;
    *largest = 0;
    for (int64_t i = 0; i < r->loss->n; i++) {
        int32_t n = r->list[r->sample[i]].n_response;
        most = n > most ? n : most;
        *largest = r->sample[i] > *largest ? r->sample[i] : *largest;
    }
    return most;
}

static void open_bridge(bridge *b, ml_arena *a, const ml_step_run *r) {
    int32_t largest, n = longest(r, &largest);

    b->run = r;
    b->place = ML_NEW(a, int64_t, largest + 1);
    for (int64_t i = 0; i < r->loss->n; i++)
        b->place[r->sample[i]] = i;
    for (int k = 0; k < 6; k++)
        b->widened[k] = ML_NEW(a, double, n);
}

static void widen(double *out, const float *in, int32_t n) {
    for (int32_t t = 0; t < n; t++)
        out[t] = (double)in[t];
}

static void narrow(float *out, const double *in, int32_t n) {
    for (int32_t t = 0; t < n; t++)
        out[t] = (float)in[t];
}

/* f32 to f64 is exact; derivatives are rounded once. */
static ml_status loss_of_values(bridge *b, ml_loss_io *io, ml_err *err) {
    double *value = b->widened[0], *dvalue = b->widened[1];
    ml_model_outputs outputs = { .value = value };
    ml_derivatives d = { .value = dvalue };
    ml_status st;

    widen(value, io->value, io->n_response);
    st = ml_step_loss_sample(b->run->loss, b->place[io->sample], outputs, d, err);
    if (st == ML_OK)
        narrow(io->dvalue, dvalue, io->n_response);
    return st;
}

static ml_status loss_of_logprobs(bridge *b, ml_loss_io *io, ml_err *err) {
    double *logprob = b->widened[0], *entropy = b->widened[1], *dlogprob = b->widened[2],
           *dentropy = b->widened[3];
    double *full = io->full_logprob ? b->widened[4] : NULL;
    double *dfull = io->full_logprob ? b->widened[5] : NULL;
    int64_t at = b->place[io->sample];
    ml_status st;

    if (full)
        widen(full, io->full_logprob, io->n_response);

    widen(logprob, io->logprob, io->n_response);
    widen(entropy, io->entropy, io->n_response);
    if (b->run->old_is_now)
        b->run->loss->sample[at].old_log_prob = logprob;
    st = ml_step_loss_sample(
        b->run->loss, at,
        (ml_model_outputs){
            .log_prob = logprob, .entropy = entropy, .full_log_prob = full },
        (ml_derivatives){
            .log_prob = dlogprob, .entropy = dentropy, .full_log_prob = dfull },
        err);
    if (st == ML_OK) {
        narrow(io->dlogprob, dlogprob, io->n_response);
        narrow(io->dentropy, dentropy, io->n_response);
        if (full)
            narrow(io->dfull_logprob, dfull, io->n_response);
    }
    return st;
}

static ml_status loss_of_sample(bridge *b, ml_loss_io *io, ml_err *err) {
    const ml_observer *o = &b->run->observer;
    ml_status st = io->value ? loss_of_values(b, io, err) : loss_of_logprobs(b, io, err);

    if (st != ML_OK || !o->on)
        return st;
    return o->on(o->self, &(ml_loop_event){ .kind = ML_ON_SAMPLE_LOSS, .io = io }, err);
}

static ml_status loss_of_micro(void *ud, ml_loss_io *io, int32_t n, ml_err *err) {
    ml_status st = ML_OK;
    for (int32_t i = 0; i < n && st == ML_OK; i++)
        st = loss_of_sample(ud, &io[i], err);
    return st;
}

/* Gets the sums of the samples of other ranks; this one's are 0 for them. */
static ml_status merge_sums(ml_ranks *r, ml_step_loss *l, ml_err *err) {
    size_t bytes = (size_t)l->n * sizeof(double);
    ml_status st = ml_ranks_merge(r, l->policy, bytes, err);

    if (st == ML_OK)
        st = ml_ranks_merge(r, l->other, bytes, err);
    if (st == ML_OK)
        st = ml_ranks_merge(r, l->loss_number, bytes * (size_t)l->n_loss_metric, err);
    return st;
}

ml_status ml_step_run_on(ml_trainer *t, const ml_step_run *r, ml_step_result *out,
                         double *metric, ml_err *err) {
    bridge b = { 0 };
    ml_arena a;
    ml_status st;

    ml_arena_init(&a, "a step's loss");
    open_bridge(&b, &a, r);
    st = ml_trainer_step(t,
                         &(ml_step){ .sample = r->list,
                                     .micro = &r->step->rank[r->rank],
                                     .n_shard = ml_trainer_own_shards(t),
                                     .n_rollout = r->step->n_rollout,
                                     .denominator = 1,
                                     .loss = loss_of_micro,
                                     .ud = &b,
                                     .changes = r->changes,
                                     .entropy = r->loss->num.entropy_coef != 0 },
                         out, err);
    if (st == ML_OK)
        st = merge_sums(ml_trainer_ranks(t), r->loss, err);
    ml_step_loss_totals(r->loss, &out->loss, metric);
    ml_arena_release(&a);
    return st;
}
