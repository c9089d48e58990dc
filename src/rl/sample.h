/* sample.h - one answer of the model to one prompt, from its prompt to its reward.
 *
 * A sample is what moves through the loop: the data source numbers it, the rollout fills
 * in tokens with the log-probs and weight versions they were drawn with, a reward
 * grades it, the learner trains on it.  As a line of JSON it has the field names of
 * Miles' Sample: in recorded rollouts, in the buffer of a checkpoint, in the run's store.
 *
 * Strings and arrays belong to the arena the sample was made in.
 *
 * thread: one owner at a time. */
#ifndef ML_RL_SAMPLE_H
#define ML_RL_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "engine/gen.h"
#include "rl/reward/parts.h"

typedef enum ml_sample_status {
    ML_SAMPLE_PENDING,
    ML_SAMPLE_COMPLETED,
    ML_SAMPLE_TRUNCATED,
    ML_SAMPLE_ABORTED,
    ML_SAMPLE_FAILED,
} ml_sample_status;

typedef struct ml_sample {
    int64_t index, group;        /* global numbers */
    int64_t rollout;             /* pieces of one conversation share it; else the index */
    int64_t row;                 /* of the data set; -1: none */
    ml_str prompt, response;     /* text */
    ml_str label, metadata;      /* JSON, as in the data set; empty: none */
    const int32_t *token;        /* [n_token] prompt, then response */
    int32_t n_token, n_response; /* the response includes what tools said */
    const uint8_t *mask;         /* [n_response] 0: not trained; NULL: all are */
    float *logprob;              /* [n_response] as drawn; NULL: not known */
    uint64_t *version;           /* [n_response] of the weights; NULL: not known */
    float *teacher_logprob;      /* [n_response] or NULL */
    /* What the model chose for each token but the last, as the last request for this sample
     * told; n 0: not known. */
    ml_routing routed[ML_N_ROUTING];
    double reward;
    bool has_reward;
    ml_reward_value part[ML_REWARD_PARTS]; /* [n_part] further numbers of the reward */
    int32_t n_part;
    double shaped;   /* what is learned from in place of the normalised reward, ... */
    bool has_shaped; /* ... where an edge gave it; not recorded */
    bool remove;     /* its mask counts as 0 everywhere */
    ml_sample_status status;
    int32_t n_cached, n_turn;
} ml_sample;

const char *ml_sample_status_name(ml_sample_status s);

/* One line of JSON, without the line's end. */
void ml_sample_write(ml_text *out, const ml_sample *s);
/* Views go into the document, its source or the arena.  `name` opens messages; unknown fields
 * are passed over, as records of others have more of them. */
ml_status ml_sample_read(ml_sample *out, ml_arena *a, const ml_json *doc, ml_str source,
                         const char *name, ml_err *err);

/* A sample that was made elsewhere can be trained on: its tokens are the model's, which has
 * n_vocab, and the log-probabilities of tokens that are trained are numbers.  `name` says where
 * it comes from. */
ml_status ml_sample_check(const ml_sample *s, int64_t n_vocab, const char *name,
                          ml_err *err);

/* With arrays and texts of its own, in the arena. */
void ml_sample_copy(ml_sample *out, ml_arena *a, const ml_sample *s);

/* A recorded rollout: a line per sample, in zstd. */
ml_status ml_samples_save(const char *path, const ml_sample *const *s, int64_t n,
                          ml_err *err);
ml_status ml_samples_load(ml_sample **out, int64_t *n, ml_arena *a, const char *path,
                          ml_err *err);

#endif
