#include <math.h>

#include "base/bug.h"
#include "run/job_cost.h"
#include "train/pipeline.h"

/* When each stage has computed each micro-batch, in a walk through the schedule. */
typedef struct walk {
    const ml_job_pipeline *o;
    double *end[2]; /* [forward, backward][stage of the model][micro]; < 0: not yet */
    double *free;   /* [rank] from when on */
    ml_pass **pass; /* [rank] its passes */
    int32_t *n, *next;
} walk;

/* The time from which a pass can run; < 0: what it needs is not computed yet. */
static double ready_at(const walk *w, const ml_pass *p, int32_t stage) {
    int32_t last = w->o->n_stage * w->o->n_chunk - 1,
            from = p->backward ? stage + 1 : stage - 1;
    double t;

    if (from < 0)
        return 0;
    if (from > last)
        return w->end[0][stage * w->o->n_micro + p->micro];
    t = w->end[p->backward][from * w->o->n_micro + p->micro];
    return t < 0 ? t : t + w->o->send_s;
}

static bool walk_pass(walk *w, int32_t rank) {
    const ml_pass *p = &w->pass[rank][w->next[rank]];
    int32_t stage = p->chunk * w->o->n_stage + rank;
    double t = ready_at(w, p, stage);

    if (t < 0)
        return false;
    t = fmax(t, w->free[rank]) + (p->backward ? w->o->backward : w->o->forward)[stage];
    w->end[p->backward][stage * w->o->n_micro + p->micro] = w->free[rank] = t;
    w->next[rank]++;
    return true;
}

static walk walk_of(ml_arena *a, const ml_job_pipeline *o) {
    ml_pipeline_opts list = { o->n_stage, o->n_chunk, o->n_micro, .backward = true };
    int64_t n = (int64_t)o->n_stage * o->n_chunk * o->n_micro;
    walk w = { .o = o,
               .end = { ML_NEW(a, double, n), ML_NEW(a, double, n) },
               .free = ML_NEW(a, double, o->n_stage),
               .pass = ML_NEW(a, ml_pass *, o->n_stage),
               .n = ML_NEW(a, int32_t, o->n_stage),
               .next = ML_NEW(a, int32_t, o->n_stage) };

    for (int64_t i = 0; i < n; i++)
        w.end[0][i] = w.end[1][i] = -1;
    for (int32_t r = 0; r < o->n_stage; r++)
        w.n[r] = ml_pipeline_passes(&w.pass[r], a, &list, r);
    return w;
}

double ml_job_pipeline_seconds(const ml_job_pipeline *o) {
    bool moved = true, left = true;
    double end = 0;
    ml_arena a;
    walk w;

    ml_arena_init(&a, "a pipeline");
    w = walk_of(&a, o);
    while (left && moved) {
        moved = left = false;
        for (int32_t r = 0; r < o->n_stage; r++) {
            while (w.next[r] < w.n[r] && walk_pass(&w, r))
                moved = true;
            left |= w.next[r] < w.n[r];
        }
    }
    ML_BUG_IF(left); /* the schedule has a cycle */
    for (int32_t r = 0; r < o->n_stage; r++)
        end = fmax(end, w.free[r]);
    ml_arena_release(&a);
    return end;
}
