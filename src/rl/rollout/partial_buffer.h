/* partial_buffer.h - unfinished groups of one rollout, which the next rollout continues.
 *
 * The buffer has whole groups of samples, ordered by group number, with the tokens
 * generated so far.  Snapshots include it.
 *
 * thread: one owner. */
#ifndef ML_RL_ROLLOUT_PARTIAL_BUFFER_H
#define ML_RL_ROLLOUT_PARTIAL_BUFFER_H

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

/* Returns the samples of the next group, or NULL.  They are valid until the next
 * ml_partial_buffer_put. */
const ml_sample *ml_partial_buffer_take(ml_partial_buffer *h);

/* The filter selects the groups that are taken next, at most *n; *n becomes their
 * number. */
ml_status ml_partial_buffer_select(ml_partial_buffer *h, const miles_buffer_filter *filter,
                                   int64_t *n, ml_err *err);

/* Stores copies of these groups and keeps the groups not yet taken; frees the others. */
void ml_partial_buffer_put(ml_partial_buffer *h,
                           const ml_sample *const *sample /* [n * n_per_group] */,
                           int64_t n);

/* Limits against which the buffered samples of a snapshot are checked. */
typedef struct ml_partial_buffer_bounds {
    int64_t n_vocab;
    int64_t n_row;   /* rows of the data set; a sample from elsewhere has row -1 */
    int32_t max_new; /* response tokens; longer responses cause a warning */
} ml_partial_buffer_bounds;

ml_partial_buffer_bounds ml_partial_buffer_bounds_of(const ml_train_run *run,
                                                     int32_t max_new);

/* Writes the buffer as a JSON array, after `more` samples that are stored elsewhere; reads
 * it back from the member "held" of a saved state. */
void ml_partial_buffer_save(const ml_partial_buffer *h, const ml_sample *const *more,
                            int64_t n_more, ml_text *out);
ml_status ml_partial_buffer_load(ml_partial_buffer *h, ml_str state,
                                 const ml_partial_buffer_bounds *b, const char *name,
                                 ml_err *err);

#endif
