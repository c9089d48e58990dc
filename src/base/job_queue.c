#include "base/job_queue.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

typedef struct job_thread {
    ml_job_queue *queue;
    int64_t index;
    pthread_t id;
} job_thread;

struct ml_job_queue {
    ml_job_fn *run;
    void *ud;
    job_thread *thread; /* [n_thread] running */
    int64_t n_thread;
    pthread_mutex_t lock; /* protects the following fields */
    pthread_cond_t more;
    ml_job *first, **last;
    bool closing;
};

/* Waits for the next job; NULL: the queue is closing and empty. */
static ml_job *take(ml_job_queue *q) {
    ml_job *j;

    pthread_mutex_lock(&q->lock);
    while (!q->first && !q->closing)
        pthread_cond_wait(&q->more, &q->lock);
    j = q->first;
    if (j)
        q->first = j->next;
    if (!q->first)
        q->last = &q->first;
    pthread_mutex_unlock(&q->lock);
    return j;
}

static void *work(void *ud) {
    const job_thread *t = ud;
    ml_job *j;

    while ((j = take(t->queue)) != NULL)
        t->queue->run(t->queue->ud, t->index, j);
    return NULL;
}

static ml_status start(ml_job_queue *q, int64_t n_thread, ml_err *err) {
    for (; q->n_thread < n_thread; q->n_thread++) {
        job_thread *t = &q->thread[q->n_thread];
        int e;
        *t = (job_thread){ .queue = q, .index = q->n_thread };
        e = pthread_create(&t->id, NULL, work, t);
        if (e != 0)
            return ml_fail(err, ML_EIO, "thread %lld of %lld cannot be created: %s",
                           (long long)q->n_thread + 1, (long long)n_thread, strerror(e));
    }
    return ML_OK;
}

ml_status ml_job_queue_open(ml_job_queue **out, int64_t n_thread, ml_job_fn *run, void *ud,
                            ml_err *err) {
    ml_job_queue *q = calloc(1, sizeof *q);
    job_thread *t = calloc((size_t)n_thread, sizeof *t);
    ml_status st;

    *out = NULL;
    if (!q || !t) {
        free(q);
        free(t);
        return ml_fail(err, ML_ENOMEM, "no memory for %lld threads", (long long)n_thread);
    }
    *q = (ml_job_queue){ .run = run, .ud = ud, .thread = t, .last = &q->first };
    pthread_mutex_init(&q->lock, NULL);
    pthread_cond_init(&q->more, NULL);
    st = start(q, n_thread, err);
    if (st == ML_OK)
        *out = q;
    else
        ml_job_queue_close(q);
    return st;
}

void ml_job_queue_close(ml_job_queue *q) {
    if (!q)
        return;
    pthread_mutex_lock(&q->lock);
    q->closing = true;
    pthread_cond_broadcast(&q->more);
    pthread_mutex_unlock(&q->lock);
    for (int64_t i = 0; i < q->n_thread; i++)
        pthread_join(q->thread[i].id, NULL);
    pthread_cond_destroy(&q->more);
    pthread_mutex_destroy(&q->lock);
    free(q->thread);
    free(q);
}

void ml_job_queue_post(ml_job_queue *q, ml_job *job) {
    job->next = NULL;
    pthread_mutex_lock(&q->lock);
    *q->last = job;
    q->last = &job->next;
    pthread_cond_signal(&q->more);
    pthread_mutex_unlock(&q->lock);
}
