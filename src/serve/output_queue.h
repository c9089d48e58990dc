/* output_queue.h - passes outputs from the generator's thread to the event loop's.
 *
 * The generator makes its callbacks on its own thread, which must not block.  The callback
 * copies each update into the output queue of its request.  The first update since the last
 * delivery also posts one function to the loop, which empties all queues that have output.
 * So a step that advances hundreds of requests wakes the loop once.
 *
 * thread: the generator's for ml_output_queue_put (an ml_gen_fn), otherwise the loop's. */
#ifndef ML_SERVE_OUTPUT_QUEUE_H
#define ML_SERVE_OUTPUT_QUEUE_H

#include "base/arena.h"
#include "gen/gen.h"
#include "net/loop.h"

/* Scored tokens in growing arrays, laid out as in ml_scored. */
typedef struct ml_logprob_buffer {
    int32_t n;
    ml_text id, logprob, entropy, version, top_id, top_logprob, also_logprob;
    ml_text supports, support_logprob;
} ml_logprob_buffer;

void ml_logprob_buffer_add(ml_logprob_buffer *t, const ml_scored *s, int32_t n_top,
                           int32_t n_also);
ml_scored ml_logprob_buffer_view(const ml_logprob_buffer *t);
void ml_logprob_buffer_clear(ml_logprob_buffer *t); /* keeps the memory */
void ml_logprob_buffer_release(ml_logprob_buffer *t);

/* Output since the queue was last emptied. */
typedef struct ml_output {
    ml_logprob_buffer prompt, answer;
    ml_finish finish;
    int32_t matched, n_cached, n_preempt;
    uint64_t version;
    double queued_s;
    char message[200];
    ml_text routed[ML_N_ROUTING]; /* with the last update: rows as in ml_routing */
    bool lost;                    /* some output was dropped: out of memory */
} ml_output;

void ml_output_release(ml_output *n);

typedef struct ml_dispatcher ml_dispatcher;
typedef struct ml_output_queue ml_output_queue;
typedef void ml_output_queue_fn(void *ud, const ml_output *output);

struct ml_output_queue {
    ml_dispatcher *dispatcher;
    int32_t n_top, n_also;  /* of the request */
    ml_output_queue_fn *fn; /* called on the loop's thread; may free the queue after the
                              last update */
    void *ud;
    ml_output output, spare; /* double buffer: dispatcher->lock protects output; the loop
                              owns spare */
    ml_output_queue *next;   /* in the list of queues with output */
    bool listed;
};

/* Allocated in `a`. */
ml_dispatcher *ml_dispatcher_open(ml_loop *l, ml_arena *a);
/* No generator may still use one of its queues. */
void ml_dispatcher_close(ml_dispatcher *o); /* NULL is allowed */

void ml_output_queue_init(ml_output_queue *m, ml_dispatcher *o, int32_t n_top,
                          int32_t n_also, ml_output_queue_fn *fn, void *ud);
void ml_output_queue_release(ml_output_queue *m);

ml_gen_fn ml_output_queue_put; /* ud: the queue */

#endif
