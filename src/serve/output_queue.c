#include "serve/output_queue.h"

#include <pthread.h>
#include <string.h>

#include "base/bug.h"
#include "base/oom.h"

struct ml_dispatcher {
    ml_loop *loop;
    pthread_mutex_t lock;
    ml_output_queue *first, **last; /* FIFO list of queues with output */
    bool posted;                    /* deliver_all is posted to the loop */
};

/* --- growing arrays --------------------------------------------------------- */

static void append(ml_text *to, const void *from, int64_t n, size_t size) {
    if (n && from) /* a remote generator may have no entropies */
        ml_text_add(to, from, (size_t)n * size);
}

void ml_logprob_buffer_add(ml_logprob_buffer *t, const ml_scored *s, int32_t n_top,
                           int32_t n_also) {
    append(&t->id, s->id, s->n, sizeof *s->id);
    append(&t->logprob, s->logprob, s->n, sizeof *s->logprob);
    append(&t->entropy, s->entropy, s->n, sizeof *s->entropy);
    append(&t->version, s->version, s->n, sizeof *s->version);
    append(&t->top_id, s->top_id, (int64_t)s->n * n_top, sizeof *s->top_id);
    append(&t->top_logprob, s->top_logprob, (int64_t)s->n * n_top, sizeof *s->top_logprob);
    append(&t->also_logprob, s->also_logprob, (int64_t)s->n * n_also,
           sizeof *s->also_logprob);
    append(&t->supports, s->supports.ptr, (int64_t)s->supports.len, 1);
    append(&t->support_logprob, s->support_logprob, s->n, sizeof *s->support_logprob);
    t->n += s->n;
}

ml_scored ml_logprob_buffer_view(const ml_logprob_buffer *t) {
    return (ml_scored){ .n = t->n,
                        .id = (const void *)t->id.ptr,
                        .logprob = (const void *)t->logprob.ptr,
                        .entropy = (const void *)t->entropy.ptr,
                        .version = (const void *)t->version.ptr,
                        .top_id = (const void *)t->top_id.ptr,
                        .top_logprob = (const void *)t->top_logprob.ptr,
                        .also_logprob = (const void *)t->also_logprob.ptr,
                        .supports = { t->supports.ptr, t->supports.len },
                        .support_logprob = (const void *)t->support_logprob.ptr };
}

void ml_logprob_buffer_clear(ml_logprob_buffer *t) {
    t->n = 0;
    t->id.len = t->logprob.len = t->entropy.len = t->version.len = 0;
    t->top_id.len = t->top_logprob.len = t->also_logprob.len = 0;
    t->supports.len = t->support_logprob.len = 0;
}

void ml_logprob_buffer_release(ml_logprob_buffer *t) {
    ml_text_release(&t->id);
    ml_text_release(&t->logprob);
    ml_text_release(&t->entropy);
    ml_text_release(&t->version);
    ml_text_release(&t->top_id);
    ml_text_release(&t->top_logprob);
    ml_text_release(&t->also_logprob);
    ml_text_release(&t->supports);
    ml_text_release(&t->support_logprob);
    t->n = 0;
}

void ml_output_release(ml_output *n) {
    ml_logprob_buffer_release(&n->prompt);
    ml_logprob_buffer_release(&n->answer);
    for (int i = 0; i < ML_N_ROUTING; i++)
        ml_text_release(&n->routed[i]);
}

/* --- the dispatcher --------------------------------------------------------- */

ml_dispatcher *ml_dispatcher_open(ml_loop *l, ml_arena *a) {
    ml_dispatcher *o = ML_NEW(a, ml_dispatcher, 1);

    o->loop = l;
    o->last = &o->first;
    ML_BUG_IF(pthread_mutex_init(&o->lock, NULL) != 0);
    return o;
}

void ml_dispatcher_close(ml_dispatcher *o) {
    if (o)
        pthread_mutex_destroy(&o->lock);
}

void ml_output_queue_init(ml_output_queue *m, ml_dispatcher *o, int32_t n_top,
                          int32_t n_also, ml_output_queue_fn *fn, void *ud) {
    *m = (ml_output_queue){
        .dispatcher = o, .n_top = n_top, .n_also = n_also, .fn = fn, .ud = ud
    };
}

void ml_output_queue_release(ml_output_queue *m) {
    ml_output_release(&m->output);
    ml_output_release(&m->spare);
}

static void clear(ml_output *n) {
    ml_logprob_buffer_clear(&n->prompt);
    ml_logprob_buffer_clear(&n->answer);
    for (int i = 0; i < ML_N_ROUTING; i++) /* arrives once per request */
        ml_text_release(&n->routed[i]);
    *n = (ml_output){ .prompt = n->prompt, .answer = n->answer };
}

/* Removes the first queue with output from the list and moves its output to its spare.  NULL:
 * the list is empty, and the next update posts again. */
static ml_output_queue *take_next(ml_dispatcher *o) {
    ml_output_queue *m;

    pthread_mutex_lock(&o->lock);
    m = o->first;
    if (m) {
        ml_output output = m->output;
        o->first = m->next;
        if (!o->first)
            o->last = &o->first;
        m->listed = false;
        m->output = m->spare;
        clear(&m->output);
        m->spare = output;
    } else {
        o->posted = false;
    }
    pthread_mutex_unlock(&o->lock);
    return m;
}

static void deliver_all(void *ud) {
    ml_output_queue *m;

    while ((m = take_next(ud)))
        m->fn(m->ud, &m->spare);
}

typedef struct update {
    ml_output_queue *queue;
    const ml_gen_update *from;
} update;

static void copy_tokens(void *ud) {
    const ml_output_queue *m = ((update *)ud)->queue;
    const ml_gen_update *u = ((update *)ud)->from;
    ml_output *n = &((update *)ud)->queue->output;

    ml_logprob_buffer_add(&n->prompt, &u->prompt, m->n_top, m->n_also);
    ml_logprob_buffer_add(&n->answer, &u->answer, m->n_top, m->n_also);
    for (int i = 0; i < ML_N_ROUTING; i++)
        append(&n->routed[i], u->routed[i].row, u->routed[i].n * u->routed[i].width,
               sizeof(int32_t));
}

static void copy_update(ml_output_queue *m, const ml_gen_update *u) {
    ml_output *n = &m->output;
    size_t len = u->message.len;

    n->lost = !ml_memory_try(copy_tokens, &(update){ m, u }) || n->lost;
    n->finish = u->finish;
    n->matched = u->matched;
    n->n_cached = u->n_cached;
    n->n_preempt = u->n_preempt;
    n->version = u->version;
    n->queued_s = u->queued_s;
    len = len < sizeof n->message - 1 ? len : sizeof n->message - 1;
    if (len)
        memcpy(n->message, u->message.ptr, len);
    n->message[len] = 0;
}

void ml_output_queue_put(void *ud, const ml_gen_update *u) {
    ml_output_queue *m = ud;
    ml_dispatcher *o = m->dispatcher;
    bool post;

    pthread_mutex_lock(&o->lock);
    copy_update(m, u);
    if (!m->listed) {
        m->listed = true;
        m->next = NULL;
        *o->last = m;
        o->last = &m->next;
    }
    post = !o->posted;
    o->posted = true;
    pthread_mutex_unlock(&o->lock);
    if (post)
        ml_loop_post(o->loop, deliver_all, o);
}
