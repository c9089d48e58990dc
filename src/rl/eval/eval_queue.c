#include "rl/eval/eval_queue.h"

#include <pthread.h>
#include <stdlib.h>

#include "base/dir.h"
#include "model/weight_dir.h"

typedef struct eval_job {
    struct eval_job *next;
    int64_t rollout;
    char *path; /* of the weights */
    uint64_t version;
    bool done;
    ml_arena arena; /* of the scores */
    ml_eval_scores scores;
    ml_status st;
    ml_err err;
} eval_job;

struct ml_eval_queue {
    ml_eval_queue_opts opts;
    pthread_t worker;
    bool started;

    pthread_mutex_t lock; /* protects the fields below */
    pthread_cond_t change;
    bool stopping;
    eval_job *first; /* list in order of submission, oldest first */
    int32_t n;
    char **kept; /* [opts.keep + 1] paths of evaluated snapshots, oldest first */
    int32_t n_kept;
};

/* --- the worker ------------------------------------------------------------------ */

static eval_job *next_job(const ml_eval_queue *q) {
    eval_job *j = q->first;

    while (j && j->done)
        j = j->next;
    return j;
}

static ml_status evaluate(ml_eval_queue *q, eval_job *j, ml_err *err) {
    ml_evals evals = *q->opts.evals;
    ml_gen *gen = evals.gen_ctx.gen;
    ml_status st = gen->load(gen, j->path, j->version, ML_SWITCH_RECOMPUTE, err);

    evals.rollout = j->rollout;
    return st == ML_OK ? ml_evals_run(&evals, &j->scores, err) : st;
}

static void *work(void *ud) {
    ml_eval_queue *q = ud;
    eval_job *j;

    pthread_mutex_lock(&q->lock);
    while (!q->stopping)
        if ((j = next_job(q))) {
            pthread_mutex_unlock(&q->lock);
            j->st = evaluate(q, j, &j->err);
            pthread_mutex_lock(&q->lock);
            j->done = true;
            pthread_cond_broadcast(&q->change);
        } else {
            pthread_cond_wait(&q->change, &q->lock);
        }
    pthread_mutex_unlock(&q->lock);
    return NULL;
}

/* --- open and close --------------------------------------------------------------- */

ml_status ml_eval_queue_open(ml_eval_queue **out, const ml_eval_queue_opts *o,
                             ml_err *err) {
    ml_eval_queue *q = calloc(1, sizeof *q);
    ml_status st = ml_dir_make(o->dir, err);

    if (q)
        q->kept = calloc((size_t)o->keep + 1, sizeof *q->kept);
    if (!q || !q->kept || st != ML_OK) {
        free(q ? q->kept : NULL);
        free(q);
        return st != ML_OK ? st : ml_fail(err, ML_ENOMEM, "out of memory for evaluations");
    }
    q->opts = *o;
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->change, NULL);
    *out = q;
    if (pthread_create(&q->worker, NULL, work, q) != 0)
        return ml_fail(err, ML_EIO, "cannot create a thread for evaluations");
    q->started = true;
    return ML_OK;
}

static void free_job(eval_job *j) {
    ml_arena_release(&j->arena);
    free(j->path);
    free(j);
}

void ml_eval_queue_close(ml_eval_queue *q) {
    eval_job *j;

    if (!q)
        return;
    pthread_mutex_lock(&q->lock);
    q->stopping = true;
    pthread_cond_broadcast(&q->change);
    pthread_mutex_unlock(&q->lock);
    if (q->started)
        pthread_join(q->worker, NULL);
    while ((j = q->first)) {
        q->first = j->next;
        free_job(j);
    }
    for (int32_t i = 0; i < q->n_kept; i++)
        free(q->kept[i]);
    free(q->kept);
    pthread_cond_destroy(&q->change);
    pthread_mutex_destroy(&q->lock);
    free(q);
}

/* --- results ---------------------------------------------------------------------- */

/* Adds an evaluated snapshot; removes the oldest one if there are more than opts.keep. */
static ml_status keep_some(ml_eval_queue *q, char *path, ml_err *err) {
    ml_status st = ML_OK;

    q->kept[q->n_kept++] = path;
    if (q->n_kept > q->opts.keep) {
        st = ml_dir_remove(q->kept[0], err);
        free(q->kept[0]);
        q->n_kept--;
        for (int32_t i = 0; i < q->n_kept; i++)
            q->kept[i] = q->kept[i + 1];
    }
    return st;
}

/* Removes the oldest evaluation from the queue if it is finished; NULL: it is not. */
static eval_job *pop(ml_eval_queue *q, bool wait) {
    eval_job *j;

    pthread_mutex_lock(&q->lock);
    while (wait && q->first && !q->first->done)
        pthread_cond_wait(&q->change, &q->lock);
    j = q->first && q->first->done ? q->first : NULL;
    if (j) {
        q->first = j->next;
        q->n--;
    }
    pthread_mutex_unlock(&q->lock);
    return j;
}

/* Reports the oldest evaluation; false: it is not finished, there is none, or it failed. */
static bool take(ml_eval_queue *q, bool wait, ml_status *st, ml_err *err) {
    eval_job *j = pop(q, wait);

    if (!j)
        return false;
    *st = j->st;
    if (j->st != ML_OK && err)
        *err = j->err;
    if (*st == ML_OK) {
        *st = keep_some(q, j->path, err);
        j->path = NULL;
    }
    if (*st == ML_OK)
        *st = ml_evals_report(&j->scores, j->rollout, &j->arena, q->opts.observers, err);
    free_job(j);
    return *st == ML_OK;
}

ml_status ml_eval_queue_wait(void *queue, ml_err *err) {
    ml_status st = ML_OK;

    while (take(queue, true, &st, err))
        ;
    return st;
}

/* --- submission ------------------------------------------------------------------- */

static bool has_room(ml_eval_queue *q) {
    bool room;

    pthread_mutex_lock(&q->lock);
    room = q->n < q->opts.max_in_flight;
    pthread_mutex_unlock(&q->lock);
    return room;
}

static void push(ml_eval_queue *q, eval_job *j) {
    eval_job **at = &q->first;

    pthread_mutex_lock(&q->lock);
    while (*at)
        at = &(*at)->next;
    *at = j;
    q->n++;
    pthread_cond_broadcast(&q->change);
    pthread_mutex_unlock(&q->lock);
}

static ml_status submit(ml_eval_queue *q, int64_t rollout, ml_err *err) {
    const ml_weights *w = q->opts.weights;
    eval_job *j = calloc(1, sizeof *j);
    ml_text path = { 0 };
    ml_status st;

    if (!j)
        return ml_fail(err, ML_ENOMEM, "out of memory for an evaluation");
    ml_text_printf(&path, "%s/step_%lld", q->opts.dir, (long long)rollout);
    st = ml_weight_dir_put(path.ptr, w, q->opts.spec, q->opts.from, 0, err);
    j->path = path.ptr;
    j->version = w->version;
    j->rollout = rollout;
    ml_arena_init(&j->arena, "an evaluation");
    ml_metrics_init(&j->scores.metrics, &j->arena);
    if (st == ML_OK)
        push(q, j);
    else
        free_job(j);
    return st;
}

static ml_status report_skipped(ml_eval_queue *q, int64_t rollout, ml_err *err) {
    ml_eval_scores scores = { 0 };
    ml_status st;
    ml_arena a;

    ml_arena_init(&a, "an evaluation");
    ml_metrics_init(&scores.metrics, &a);
    ml_metrics_add(&scores.metrics, "eval/", "skipped_busy", 1);
    st = ml_evals_report(&scores, rollout, &a, q->opts.observers, err);
    ml_arena_release(&a);
    return st;
}

ml_status ml_eval_queue_run(void *queue, int64_t rollout, ml_err *err) {
    ml_eval_queue *q = queue;
    bool skips = q->opts.skip;
    ml_status st = ML_OK;

    while ((skips || !has_room(q)) && take(q, !skips, &st, err))
        ;
    if (st != ML_OK)
        return st;
    return has_room(q) ? submit(q, rollout, err) : report_skipped(q, rollout, err);
}
