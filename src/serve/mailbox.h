/* mailbox.h - from the generator's thread to the loop's.
 *
 * Tokens come on the generator's thread, which must not wait.  There each update is copied
 * into the mailbox of its request; the first news since the last round also posts one
 * function to the loop, which empties all mailboxes that have any.  So a step that moves
 * hundreds of requests wakes the loop once.
 *
 * thread: ml_mailbox_put is the generator's (it is an ml_gen_fn); everything else the loop's. */
#ifndef ML_SERVE_MAILBOX_H
#define ML_SERVE_MAILBOX_H

#include "base/arena.h"
#include "engine/gen.h"
#include "net/loop.h"

/* Scored tokens that grow: arrays as ml_scored has them. */
typedef struct ml_tally {
    int32_t n;
    ml_text id, logprob, entropy, version, top_id, top_logprob, also_logprob;
} ml_tally;

void ml_tally_add(ml_tally *t, const ml_scored *s, int32_t n_top, int32_t n_also);
ml_scored ml_tally_view(const ml_tally *t);
void ml_tally_clear(ml_tally *t); /* keeps the memory */
void ml_tally_release(ml_tally *t);

/* What came since the mailbox was last emptied. */
typedef struct ml_news {
    ml_tally prompt, answer;
    ml_finish finish;
    int32_t matched, n_cached, n_retract;
    uint64_t version;
    double queued_s;
    char message[200];
    ml_text routed[ML_ROUTES]; /* with the end: rows as ml_routed has them */
    bool lost;                 /* there was no memory for some of it */
} ml_news;

void ml_news_release(ml_news *n);

typedef struct ml_post_office ml_post_office;
typedef struct ml_mailbox ml_mailbox;
typedef void ml_mailbox_fn(void *ud, const ml_news *news);

struct ml_mailbox {
    ml_post_office *office;
    int32_t n_top, n_also; /* of the request */
    ml_mailbox_fn *fn;     /* called on the loop's thread; may free the mailbox when the
                              news is the last */
    void *ud;
    ml_news news, spare; /* news is the office's lock's, spare the loop's */
    ml_mailbox *next;    /* in the list of those with news */
    bool listed;
};

/* In `a`. */
ml_post_office *ml_post_office_open(ml_loop *l, ml_arena *a);
/* No generator may hold one of its mailboxes any more. */
void ml_post_office_close(ml_post_office *o); /* NULL is fine */

void ml_mailbox_init(ml_mailbox *m, ml_post_office *o, int32_t n_top, int32_t n_also,
                     ml_mailbox_fn *fn, void *ud);
void ml_mailbox_release(ml_mailbox *m);

ml_gen_fn ml_mailbox_put; /* ud: the mailbox */

#endif
