/* curriculum.h - which prompt comes next, by the results of earlier groups.
 *
 * Every row of a data set has a pass rate: the share of its group's samples whose reward is above
 * a bound, averaged exponentially over its groups.  It selects prompts in one of these ways:
 *
 *   HARD        drawn with probability proportional to 1 - p (prioritized sampling, Kimi k1.5)
 *   LEARNABLE   to p (1 - p) (Foster et al., "Learning to Reason at the Frontier of
 *               Learnability", 2025)
 *   DIFFICULTY  those whose difficulty is closest to a target, which rises while the model
 *               passes and falls while it does not (AdaRFT, Shi et al., 2025)
 *
 * and, with any order of prompts, a share of the groups may be prompts that were failed, oldest
 * first.  A prompt is not drawn twice within the last groups of a rollout's number.
 *
 * Everything is a function of the seed, of the groups' numbers and of the results in the order
 * in which they were recorded, and is saved with the data source.
 *
 * thread: that of the data source. */
#ifndef ML_RL_DATA_CURRICULUM_H
#define ML_RL_DATA_CURRICULUM_H

#include "rl/data/dataset.h"

typedef enum ml_prompt_order {
    ML_PROMPTS_IN_SEQUENCE, /* by epochs: data_source.h */
    ML_PROMPTS_HARD,
    ML_PROMPTS_LEARNABLE,
    ML_PROMPTS_DIFFICULTY,
} ml_prompt_order;

typedef struct ml_curriculum_opts {
    ml_prompt_order order;
    double floor;              /* of a prompt's weight, above 0 */
    double newest;             /* weight of the newest group in a pass rate */
    double pass_reward;        /* a sample with a reward above it passes */
    const char *pass_rate_key; /* field with a row's initial pass rate; NULL: 0.5 */
    /* The difficulty of a row; NULL: 1 - its pass rate. */
    const char *difficulty_key;
    /* The target moves by step (largest - least difficulty) tanh(sensitivity (p - goal)) after
     * each rollout's number of groups with the mean pass rate p. */
    double difficulty_step, difficulty_sensitivity, difficulty_goal;
    double replay_share;     /* of the groups; 0: failed prompts are not replayed */
    double replay_pass_rate; /* prompts up to this pass rate of a group are replayed ... */
    int64_t replay_times;    /* ... until that many replays in a row were failed, too */
    int64_t batch;           /* groups of a rollout */
} ml_curriculum_opts;

/* Whether the options need a curriculum. */
bool ml_curriculum_wanted(const ml_curriculum_opts *o);

typedef struct ml_curriculum ml_curriculum;

/* by_file: rows are drawn of one file at a time.  ds must outlive it. */
ml_status ml_curriculum_new(ml_curriculum **out, const ml_dataset *ds, bool by_file,
                            const ml_curriculum_opts *o, int64_t seed, ml_err *err);
void ml_curriculum_free(ml_curriculum *c); /* NULL is allowed */

/* Whether rows are drawn, not taken in sequence. */
bool ml_curriculum_draws(const ml_curriculum *c); /* NULL: no */
/* Draws a row of a file (0 unless by_file) for the group of that number. */
int64_t ml_curriculum_draw(ml_curriculum *c, int32_t file, int64_t group);
/* How many of the n groups from number `group` on replay a failed row. */
int64_t ml_curriculum_replays(const ml_curriculum *c, int64_t group, int64_t n);
/* The failed row that waits longest; there is one. */
int64_t ml_curriculum_replay(ml_curriculum *c);

bool ml_curriculum_passes(const ml_curriculum *c, double reward);
/* Records that `passed` of the n samples of a group of this row passed. */
void ml_curriculum_record(ml_curriculum *c, int64_t row, int32_t passed, int32_t n);

typedef struct ml_curriculum_stats {
    int64_t n_seen;    /* rows with a result */
    double pass_rate;  /* the mean of these rows' */
    int64_t n_failed;  /* rows that wait to be replayed */
    int64_t n_replays; /* replayed groups of the whole run */
    double target;     /* difficulty; NaN unless it selects */
} ml_curriculum_stats;

ml_curriculum_stats ml_curriculum_stats_of(const ml_curriculum *c);

/* Appends {"target": ..., ...}; reads it.  Rows that the data does not have any more are left
 * out.  On failure nothing changes. */
void ml_curriculum_save(const ml_curriculum *c, ml_text *out);
ml_status ml_curriculum_load(ml_curriculum *c, const ml_json *state, const char *name,
                             ml_err *err);

#endif
