/* mailbox.h - from the generator's thread to the loop's.
 *
 * Tokens come on the generator's thread, which must not wait.  There each update is copied
 * into the mailbox of its request; the first news since the last round also posts one
 * function to the loop, which empties all mailboxes that have any.  So a step that moves
 * hundreds of requests wakes the loop once.
 *
 * thread: ml_output_queue_put is the generator's (it is an ml_gen_fn); everything else the loop's. */
#ifndef ML_SERVE_OUTPUT_QUEUE_H
#define ML_SERVE_OUTPUT_QUEUE_H

#include "base/arena.h"
#include "engine/gen.h"
#include "net/loop.h"

/* Scored tokens that grow: arrays as ml_scored has them. */
typedef struct ml_logprob_buffer {
    int32_t n;
    ml_text id, logprob, entropy, version, top_id, top_logprob, also_logprob;
} ml_logprob_buffer;

void ml_logprob_buffer_add(ml_logprob_buffer *t, const ml_scored *s, int32_t n_top,
                           int32_t n_also);
ml_scored ml_logprob_buffer_view(const ml_logprob_buffer *t);
void ml_logprob_buffer_clear(ml_logprob_buffer *t); /* keeps the memory */
void ml_logprob_buffer_release(ml_logprob_buffer *t);

/* What came since the mailbox was last emptied. */
typedef struct ml_output {
    ml_logprob_buffer prompt, answer;
    ml_finish finish;
    int32_t matched, n_cached, n_preempt;
    uint64_t version;
    double queued_s;
    char message[200];
    ml_text routed[ML_N_ROUTING]; /* with the end: rows as ml_routing has them */
    bool lost;                    /* there was no memory for some of it */
} ml_output;

void ml_output_release(ml_output *n);

typedef struct ml_dispatcher ml_dispatcher;
typedef struct ml_output_queue ml_output_queue;
typedef void ml_output_queue_fn(void *ud, const ml_output *news);

struct ml_output_queue {
    ml_dispatcher *office;
    int32_t n_top, n_also;  /* of the request */
    ml_output_queue_fn *fn; /* called on the loop's thread; may free the mailbox when the
                              news is the last */
    void *ud;
    ml_output news, spare; /* news is the office's lock's, spare the loop's */
    ml_output_queue *next; /* in the list of those with news */
    bool listed;
};

/* In `a`. */
ml_dispatcher *ml_dispatcher_open(ml_loop *l, ml_arena *a);
/* No generator may hold one of its mailboxes any more. */
void ml_dispatcher_close(ml_dispatcher *o); /* NULL is fine */

void ml_output_queue_init(ml_output_queue *m, ml_dispatcher *o, int32_t n_top,
                          int32_t n_also, ml_output_queue_fn *fn, void *ud);
void ml_output_queue_release(ml_output_queue *m);

ml_gen_fn ml_output_queue_put; /* ud: the mailbox */

#endif
