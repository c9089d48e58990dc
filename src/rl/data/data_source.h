/* data_source.h - hands out prompts in order and numbers their groups and samples.
 *
 * Prompts of a data set are handed out as groups of n samples each, numbered
 * consecutively over the whole run.  An epoch is one pass over the data set, in the
 * order of CPython's random.Random(seed + epoch).shuffle.  Returned groups are handed
 * out again before new ones, oldest first.  All of this is Miles' behaviour, including
 * the request that gets fewer groups than it wants: one that is larger than the rest
 * of the epoch and a whole epoch together.
 *
 * With weights, the files of the data set are mixed: after any number of groups, each file has
 * had its share of them to within one.  Every file has an order and epochs of its own.
 *
 * A curriculum (curriculum.h) draws the rows instead, of the file whose turn it is if files are
 * mixed, or hands out failed prompts again among the others.
 *
 * The position is saved as a line of JSON and restored from it; returned groups are
 * not part of it.
 *
 * thread: one owner. */
#ifndef ML_RL_DATA_DATA_SOURCE_H
#define ML_RL_DATA_DATA_SOURCE_H

#include "miles/plugin.h"
#include "rl/data/curriculum.h"
#include "rl/data/dataset.h"

typedef struct ml_data_source ml_data_source;

typedef struct ml_data_source_opts {
    bool shuffle;
    int64_t seed;                 /* of the shuffle; at most 2^61 in size */
    int32_t n_samples_per_prompt; /* at least 1 */
    const miles_source *select;   /* selects the row of a group; NULL: in sequence */
    const double *weight;         /* [files of the data set], above 0; NULL: in sequence */
    int32_t n_weight;
    ml_curriculum_opts curriculum;
    /* Makes the next n rows of a data set that makes them, or fewer; returns their number.
     * NULL: rows are made when they are read. */
    int64_t (*pull)(int64_t n);
} ml_data_source_opts;

/* Samples first_index .. first_index + n_sample - 1, all of one prompt. */
typedef struct ml_group {
    int64_t row; /* of the data set; -1: there is no data set */
    int64_t group_index, first_index;
    int32_t n_sample;
} ml_group;

/* ds must outlive the source.  It may be NULL: then groups have numbers but no prompt. */
ml_status ml_data_source_new(ml_data_source **out, const ml_dataset *ds,
                             const ml_data_source_opts *opts, ml_err *err);
void ml_data_source_free(ml_data_source *s); /* NULL is allowed */

/* Hands out the next n groups, or fewer; returns their number. */
int64_t ml_data_source_get(ml_data_source *s, ml_group *out /* [n] */, int64_t n);

/* Returns groups to the source, which will hand them out again. */
void ml_data_source_add(ml_data_source *s, const ml_group *group /* [n] */, int64_t n);
int64_t ml_data_source_n_buffered(const ml_data_source *s);
int64_t
ml_data_source_next_group(const ml_data_source *s); /* the number of the next new one */

/* The results of earlier groups; NULL: prompts come without regard to them. */
ml_curriculum *ml_data_source_curriculum(ml_data_source *s); /* s may be NULL */

/* Appends {"sample_offset": ..., "epoch_id": ..., "sample_group_index": ...,
 * "sample_index": ..., "metadata": {...}, "rows": ...}; with weights also "mixed": [groups of each
 * file], with a curriculum its state, "curriculum". */
void ml_data_source_save(const ml_data_source *s, ml_text *out);
/* Restores a saved position; on failure the position does not change.  Messages begin with
 * `name` (a path).  A data set with a different number of rows only causes a warning. */
ml_status ml_data_source_load(ml_data_source *s, ml_str state, const char *name,
                              ml_err *err);

/* The prompts of a run, as rollouts take them. */
typedef struct ml_prompt_feed {
    ml_data_source *source;
    const ml_dataset *dataset;
    int64_t batch;        /* prompts of a rollout */
    int32_t n_per_prompt; /* samples of a prompt */
    int64_t n_vocab;      /* of the model that answers */
} ml_prompt_feed;

#endif
