/* held.h - groups that a round left unfinished, for the next one to go on with.
 *
 * Whole groups of samples, in the order of their numbers, with the tokens they have so
 * far; they are part of a snapshot.
 *
 * thread: one owner. */
#ifndef ML_RL_PARTIAL_BUFFER_H
#define ML_RL_PARTIAL_BUFFER_H

#include "miles/plugin.h"
#include "rl/sample.h"
#include "rl/train_run.h"

typedef struct ml_partial_buffer {
    ml_arena arena;
    ml_sample *sample; /* [n_group * n_per_group] */
    int64_t n_group, next;
    int32_t n_per_group;
} ml_partial_buffer;

void ml_partial_buffer_init(ml_partial_buffer *h, int32_t n_per_group);
void ml_partial_buffer_release(ml_partial_buffer *h);

/* The samples of the next group, or NULL; they stay until the next ml_partial_buffer_put. */
const ml_sample *ml_partial_buffer_take(ml_partial_buffer *h);

/* Lets the filter say which groups are taken next, at most *n; *n gets their number. */
ml_status ml_partial_buffer_pick(ml_partial_buffer *h, const miles_buffer_filter *filter,
                                 int64_t *n, ml_err *err);

/* Holds copies of these groups, and of those that were not taken; the rest is let go. */
void ml_partial_buffer_put(ml_partial_buffer *h,
                           const ml_sample *const *sample /* [n * n_per_group] */,
                           int64_t n);

/* What held samples of a snapshot are checked against. */
typedef struct ml_partial_buffer_bounds {
    int64_t n_vocab;
    int64_t n_row;   /* of the data set; a sample of none of these has row -1 */
    int32_t max_new; /* tokens of a response; longer ones are said in a warning */
} ml_partial_buffer_bounds;

ml_partial_buffer_bounds ml_partial_buffer_bounds_of(const ml_train_run *run,
                                                     int32_t max_new);

/* As a JSON array, after `more` samples that are held elsewhere; and back, from the member
 * "held" of a saved state. */
void ml_partial_buffer_save(const ml_partial_buffer *h, const ml_sample *const *more,
                            int64_t n_more, ml_text *out);
ml_status ml_partial_buffer_load(ml_partial_buffer *h, ml_str state,
                                 const ml_partial_buffer_bounds *b, const char *name,
                                 ml_err *err);

#endif
