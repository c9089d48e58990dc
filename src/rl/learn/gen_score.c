#include "rl/learn/gen_score.h"

#include <math.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

/* The state of one call of ml_gen_score. */
typedef struct scoring {
    pthread_mutex_t lock;
    pthread_cond_t done;
    int32_t n_open;
    ml_status st; /* of the first sample that failed */
    ml_err err;
} scoring;

typedef struct question {
    scoring *batch;
    ml_score_item *item;
    int32_t number;
    int32_t n; /* scored so far */
} question;

static void copy(void *to, int32_t at, const void *from, int32_t n, int32_t each,
                 size_t size) {
    if (n > 0 && each > 0)
        memcpy((char *)to + (size_t)at * (size_t)each * size, from,
               (size_t)n * (size_t)each * size);
}

static void take_scores(question *q, const ml_scored *scored) {
    ml_score_item *x = q->item;
    int32_t left = x->n_response - q->n, n = scored->n < left ? scored->n : left;

    copy(x->logprob, q->n, scored->logprob, n, 1, sizeof(float));
    copy(x->top_id, q->n, scored->top_id, n, x->n_top, sizeof(int32_t));
    copy(x->top_logprob, q->n, scored->top_logprob, n, x->n_top, sizeof(float));
    copy(x->also_logprob, q->n, scored->also_logprob, n, x->n_also, sizeof(float));
    q->n += n;
}

static bool all_finite(const question *q) {
    for (int32_t i = 0; i < q->n; i++)
        if (!isfinite(q->item->logprob[i]))
            return false;
    return true;
}

static void on_update(void *ud, const ml_gen_update *u) {
    question *q = ud;
    scoring *r = q->batch;
    const char *who = q->item->by.who;

    take_scores(q, &u->prompt);
    if (u->finish == ML_FINISH_NOT)
        return;
    pthread_mutex_lock(&r->lock);
    if (u->finish == ML_FINISH_ABORT && r->st == ML_OK)
        r->st = ml_fail(&r->err, ML_EIO, "%s did not score sample %d: %.*s", who, q->number,
                        (int)u->message.len, u->message.ptr);
    else if (q->n < q->item->n_response && r->st == ML_OK)
        r->st =
            ml_fail(&r->err, ML_EFORMAT, "%s scored %d of %d response tokens of sample %d",
                    who, q->n, q->item->n_response, q->number);
    else if (!all_finite(q) && r->st == ML_OK)
        r->st = ml_fail(&r->err, ML_EFORMAT,
                        "%s scored sample %d with a log-prob that is not a number", who,
                        q->number);
    if (--r->n_open == 0)
        pthread_cond_signal(&r->done);
    pthread_mutex_unlock(&r->lock);
}

static ml_status ask(question *q, ml_err *err) {
    const ml_score_item *x = q->item;
    uint64_t ticket;
    ml_status st;

    pthread_mutex_lock(&q->batch->lock);
    q->batch->n_open++;
    pthread_mutex_unlock(&q->batch->lock);
    st = x->by.gen->submit(
        x->by.gen,
        &(ml_gen_request){
            .prompt = x->token,
            .n_prompt = x->n_token,
            .draw = { .temperature = x->by.temperature, .top_p = 1, .repetition = 1 },
            .score_from = x->n_token - x->n_response,
            .n_top = x->n_top,
            .also = x->also,
            .n_also = x->n_also,
            .also_each = x->n_also > 0 },
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

ml_score_item ml_score_item_of(const ml_scorer *by, const ml_sample *s, float *logprob) {
    return (ml_score_item){ .by = *by,
                            .token = s->token,
                            .n_token = s->n_token,
                            .n_response = s->n_response,
                            .logprob = logprob };
}

ml_status ml_gen_score(ml_score_item *item, int32_t n, ml_err *err) {
    scoring batch = { .st = ML_OK };
    ml_arena a;
    question *q;
    ml_status st = ML_OK;

    pthread_mutex_init(&batch.lock, NULL);
    pthread_cond_init(&batch.done, NULL);
    ml_arena_init(&a, "scores");
    q = ML_NEW(&a, question, n + 1);
    for (int32_t i = 0; i < n && st == ML_OK; i++) {
        q[i] = (question){ &batch, &item[i], i, 0 };
        if (item[i].n_response)
            st = ask(&q[i], err);
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
