#include "serve/text_thread.h"

#include <pthread.h>
#include <string.h>

#include "base/bug.h"

struct ml_text_thread {
    ml_loop *loop;
    pthread_t thread;
    pthread_mutex_t lock; /* of the fields below */
    pthread_cond_t wake;
    ml_text_work *first, **last;
    bool stopping;
};

static ml_text_work *next_work(ml_text_thread *t) {
    ml_text_work *w;

    pthread_mutex_lock(&t->lock);
    while (!t->first && !t->stopping)
        pthread_cond_wait(&t->wake, &t->lock);
    w = t->stopping ? NULL : t->first;
    if (w) {
        t->first = w->next;
        if (!t->first)
            t->last = &t->first;
    }
    pthread_mutex_unlock(&t->lock);
    return w;
}

static void *run(void *ud) {
    ml_text_thread *t = ud;
    ml_text_work *w;

    while ((w = next_work(t))) {
        w->run(w->ud);
        ml_loop_post(t->loop, w->done, w->ud);
    }
    return NULL;
}

ml_status ml_text_thread_open(ml_text_thread **out, ml_loop *l, ml_arena *a, ml_err *err) {
    ml_text_thread *t = ML_NEW(a, ml_text_thread, 1);
    int code;

    t->loop = l;
    t->last = &t->first;
    ML_BUG_IF(pthread_mutex_init(&t->lock, NULL) || pthread_cond_init(&t->wake, NULL));
    code = pthread_create(&t->thread, NULL, run, t);
    if (code)
        return ml_fail(err, ML_EIO, "cannot create a text thread: %s", strerror(code));
    *out = t;
    return ML_OK;
}

void ml_text_thread_close(ml_text_thread *t) {
    if (!t)
        return;
    pthread_mutex_lock(&t->lock);
    t->stopping = true;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
    pthread_join(t->thread, NULL);
    pthread_mutex_destroy(&t->lock);
    pthread_cond_destroy(&t->wake);
}

void ml_text_thread_add(ml_text_thread *t, ml_text_work *w) {
    w->next = NULL;
    pthread_mutex_lock(&t->lock);
    *t->last = w;
    t->last = &w->next;
    pthread_cond_signal(&t->wake);
    pthread_mutex_unlock(&t->lock);
}
