#include "rl/learn/gen_score.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The state of one call of ml_gen_score. */
typedef struct scoring {
    const char *who; /* the scorer, for error messages */
    pthread_mutex_t lock;
    pthread_cond_t done;
    int32_t n_open;
    ml_status st; /* of the first sample that failed */
    ml_err err;
} scoring;

typedef struct question {
    scoring *batch;
    int32_t number, n_response;
    float *logprob;
    int32_t n; /* scored so far */
} question;

static void take_scores(question *q, const ml_scored *scored) {
    int32_t n = scored->n < q->n_response - q->n ? scored->n : q->n_response - q->n;

    if (n > 0)
        memcpy(q->logprob + q->n, scored->logprob, (size_t)n * sizeof *q->logprob);
    q->n += n;
}

static bool all_finite(const question *q) {
    for (int32_t i = 0; i < q->n; i++)
        if (!isfinite(q->logprob[i]))
            return false;
    return true;
}

static void on_update(void *ud, const ml_gen_update *u) {
    question *q = ud;
    scoring *r = q->batch;

    take_scores(q, &u->prompt);
    if (u->finish == ML_FINISH_NOT)
        return;
    pthread_mutex_lock(&r->lock);
    if (u->finish == ML_FINISH_ABORT && r->st == ML_OK)
        r->st = ml_fail(&r->err, ML_EIO, "%s did not score sample %d: %.*s", r->who,
                        q->number, (int)u->message.len, u->message.ptr);
    else if (q->n < q->n_response && r->st == ML_OK)
        r->st =
            ml_fail(&r->err, ML_EFORMAT, "%s scored %d of %d response tokens of sample %d",
                    r->who, q->n, q->n_response, q->number);
    else if (!all_finite(q) && r->st == ML_OK)
        r->st = ml_fail(&r->err, ML_EFORMAT,
                        "%s scored sample %d with a log-prob that is not a number", r->who,
                        q->number);
    if (--r->n_open == 0)
        pthread_cond_signal(&r->done);
    pthread_mutex_unlock(&r->lock);
}

static ml_status ask(const ml_scorer *by, question *q, const ml_train_sample *s,
                     ml_err *err) {
    uint64_t ticket;
    ml_status st;

    pthread_mutex_lock(&q->batch->lock);
    q->batch->n_open++;
    pthread_mutex_unlock(&q->batch->lock);
    st = by->gen->submit(
        by->gen,
        &(ml_gen_request){
            .prompt = s->token,
            .n_prompt = s->n_token,
            .draw = { .temperature = by->temperature, .top_p = 1, .repetition = 1 },
            .score_from = s->n_token - s->n_response },
        on_update, q, &ticket, err);
    if (st != ML_OK) {
        pthread_mutex_lock(&q->batch->lock);
        q->batch->n_open--;
        pthread_mutex_unlock(&q->batch->lock);
    }
    return st;
}

static void wait_for_all(scoring *r) {
    pthread_mutex_lock(&r->lock);
    while (r->n_open)
        pthread_cond_wait(&r->done, &r->lock);
    pthread_mutex_unlock(&r->lock);
}

ml_status ml_gen_score(const ml_scorer *by, const ml_train_sample *s, int32_t n,
                       float *const *logprob, ml_err *err) {
    scoring batch = { .who = by->who, .st = ML_OK };
    ml_arena a;
    question *q;
    ml_status st = ML_OK;

    pthread_mutex_init(&batch.lock, NULL);
    pthread_cond_init(&batch.done, NULL);
    ml_arena_init(&a, "scores");
    q = ML_NEW(&a, question, n + 1);
    for (int32_t i = 0; i < n && st == ML_OK; i++) {
        q[i] = (question){ &batch, i, s[i].n_response, logprob[i], 0 };
        if (s[i].n_response)
            st = ask(by, &q[i], &s[i], err);
    }
    wait_for_all(&batch);
    if (st == ML_OK && batch.st != ML_OK) {
        *err = batch.err;
        st = batch.st;
    }
    ml_arena_release(&a);
    pthread_cond_destroy(&batch.done);
    pthread_mutex_destroy(&batch.lock);
    return st;
}
