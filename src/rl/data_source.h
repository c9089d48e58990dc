/* data_source.h - which prompt comes next, and under which numbers.
 *
 * Prompts of a data set are handed out as groups of n samples each, with numbers
 * that go on over the whole run.  An epoch is one pass over the data set, shuffled
 * as CPython's random.Random(seed + epoch).shuffle would; groups that were given
 * back are handed out again first, the oldest first.  All of it is Miles'
 * behaviour, down to the request that comes back short: one that is larger than
 * the rest of an epoch and a whole epoch together.
 *
 * The position is saved as a line of JSON and restored from it; groups that were
 * given back are not part of it.
 *
 * thread: one owner. */
#ifndef ML_RL_DATA_SOURCE_H
#define ML_RL_DATA_SOURCE_H

#include "miles/plugin.h"
#include "rl/dataset.h"

typedef struct ml_data_source ml_data_source;

typedef struct ml_data_source_opts {
    bool shuffle;
    int64_t seed;                 /* of the shuffle; at most 2^61 in size */
    int32_t n_samples_per_prompt; /* at least 1 */
    const miles_source *pick;     /* which row a group gets; NULL: one after the other */
} ml_data_source_opts;

/* Samples first_index .. first_index + n_sample - 1, all of one prompt. */
typedef struct ml_group {
    int64_t row; /* of the data set; -1 without one */
    int64_t group_index, first_index;
    int32_t n_sample;
} ml_group;

/* ds, which must outlive the source, may be NULL: then groups have numbers but no prompt. */
ml_status ml_data_source_new(ml_data_source **out, const ml_dataset *ds,
                             const ml_data_source_opts *opts, ml_err *err);
void ml_data_source_free(ml_data_source *s); /* NULL is fine */

/* The next n groups, or fewer; gives their number. */
int64_t ml_data_source_get(ml_data_source *s, ml_group *out /* [n] */, int64_t n);

/* Takes groups back, to be handed out again. */
void ml_data_source_add(ml_data_source *s, const ml_group *group /* [n] */, int64_t n);
int64_t ml_data_source_n_buffered(const ml_data_source *s);

/* Appends {"sample_offset": ..., "epoch_id": ..., "sample_group_index": ...,
 * "sample_index": ..., "metadata": {...}, "rows": ...}. */
void ml_data_source_save(const ml_data_source *s, ml_text *out);
/* Goes where the saved state was; on failure stays where it is.  `name` (a path) opens
 * messages.  A data set that has another number of rows by now is worth a warning only. */
ml_status ml_data_source_load(ml_data_source *s, ml_str state, const char *name,
                              ml_err *err);

#endif
