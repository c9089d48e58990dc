#include "rl/loop/coverage.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "rl/loop/iteration.h"

#define KEEP 0.7 /* fraction of the rows that is kept when the table is full */

typedef struct row {
    int64_t sample, rollout, step;
    double weight;
} row;

struct ml_coverage {
    row *row;             /* [n_row] earlier rollouts', sorted by sample; then this one's */
    int64_t n_row;        /* capacity */
    int64_t n_old, n_new; /* n_new keeps counting when the table is full */
    ml_events *events;
};

ml_status ml_coverage_open(ml_coverage **out, int64_t n_row, ml_events *events,
                           ml_err *err) {
    ml_coverage *w = calloc(1, sizeof *w);

    if (w)
        w->row = calloc((size_t)n_row, sizeof *w->row);
    if (!w || !w->row) {
        ml_coverage_close(w);
        return ml_fail(err, ML_ENOMEM,
                       "--witness-buffer-size: no memory for a table of %lld samples",
                       (long long)n_row);
    }
    w->n_row = n_row;
    w->events = events;
    *out = w;
    return ML_OK;
}

void ml_coverage_close(ml_coverage *w) {
    if (w)
        free(w->row);
    free(w);
}

static int by_sample(const void *x, const void *y) {
    const row *a = x, *b = y;
    return a->sample < b->sample ? -1 : a->sample > b->sample;
}

static const row *find(const row *list, int64_t n, int64_t sample) {
    row key = { .sample = sample };
    return bsearch(&key, list, (size_t)n, sizeof key, by_sample);
}

/* Drops the oldest rows (lowest sample numbers), but none of this rollout. */
static void make_room(ml_coverage *w) {
    int64_t n = w->n_old + w->n_new, drop = n - (int64_t)(KEEP * (double)w->n_row);

    drop = drop < w->n_old ? drop : w->n_old;
    memmove(w->row, w->row + drop, (size_t)(n - drop) * sizeof *w->row);
    w->n_old -= drop;
}

/* Records that the current train step uses the gradient of this sample. */
static void record(ml_coverage *w, const ml_loop_event *e) {
    int64_t sample = e->sample[e->io->sample]->index;
    double weight = 0;

    for (int32_t t = 0; t < e->io->n_response; t++)
        weight += fabs((double)e->io->dlogprob[t]) + fabs((double)e->io->dentropy[t]);
    if (w->n_old && w->n_old + w->n_new == w->n_row)
        make_room(w);
    if (w->n_old + w->n_new < w->n_row)
        w->row[w->n_old + w->n_new] = (row){ sample, e->rollout, e->step, weight };
    w->n_new++;
    ml_events_coverage(w->events, e->rollout, e->step, sample, weight);
}

static ml_status check_sample(const ml_coverage *w, const row *seen, int64_t sample,
                              int64_t rollout, ml_err *err) {
    const row *now = find(seen, w->n_new, sample), *before;

    if (!now)
        return ml_fail(err, ML_EFORMAT,
                       "--enable-witness: no train step used the gradient of sample %lld "
                       "of rollout %lld",
                       (long long)sample, (long long)rollout);
    if ((now > seen && now[-1].sample == sample) ||
        (now + 1 < seen + w->n_new && now[1].sample == sample))
        return ml_fail(err, ML_EFORMAT,
                       "--enable-witness: rollout %lld trains on sample %lld twice",
                       (long long)rollout, (long long)sample);
    before = find(w->row, w->n_old, sample);
    if (before)
        return ml_fail(err, ML_EFORMAT,
                       "--enable-witness: rollout %lld trains on sample %lld, but rollout "
                       "%lld, step %lld, trained on it before",
                       (long long)rollout, (long long)sample, (long long)before->rollout,
                       (long long)before->step);
    return ML_OK;
}

static ml_status check_rollout(ml_coverage *w, const ml_iteration *r, ml_err *err) {
    row *seen = w->row + w->n_old;
    ml_status st = ML_OK;

    if (r->result.n_step == 0 || !r->result.step[0].has_step)
        return ML_OK; /* nothing, or only the critic, was trained */
    if (w->n_old + w->n_new > w->n_row)
        return ml_fail(err, ML_EUSAGE,
                       "--witness-buffer-size %lld is less than the %lld samples of a "
                       "rollout: raise it",
                       (long long)w->n_row, (long long)w->n_new);
    qsort(seen, (size_t)w->n_new, sizeof *seen, by_sample);
    for (int64_t i = 0; i < r->batch.n && st == ML_OK; i++)
        st = check_sample(w, seen, r->batch.sample[i]->index, r->rollout, err);
    w->n_old += w->n_new;
    w->n_new = 0;
    qsort(w->row, (size_t)w->n_old, sizeof *w->row, by_sample);
    return st;
}

ml_status ml_coverage_on(void *coverage, const ml_loop_event *e, ml_err *err) {
    if (e->kind == ML_ON_SAMPLE_LOSS)
        record(coverage, e);
    return e->kind == ML_ON_LEARNED ? check_rollout(coverage, e->iteration, err) : ML_OK;
}
