/* sample.h - one response of the model to one prompt, with its reward.
 *
 * Samples move through the loop: the data source numbers a sample, the rollout adds tokens
 * with the log-probs and weight versions they were sampled with, a reward function grades
 * it, the learner trains on it.  As a line of JSON it has the field names of Miles'
 * Sample: in recorded rollouts, in the buffer of a checkpoint, in the run's store.
 *
 * Strings and arrays belong to the arena in which the sample was made.
 *
 * thread: one owner at a time. */
#ifndef ML_RL_SAMPLE_H
#define ML_RL_SAMPLE_H

#include <stdbool.h>
#include <stdint.h>

#include "base/json.h"
#include "gen/gen.h"
#include "rl/reward_parts.h"

typedef enum ml_sample_status {
    ML_SAMPLE_PENDING,
    ML_SAMPLE_COMPLETED,
    ML_SAMPLE_TRUNCATED,
    ML_SAMPLE_ABORTED,
    ML_SAMPLE_FAILED,
} ml_sample_status;

typedef struct ml_sample {
    int64_t index, group; /* global numbers */
    int64_t rollout; /* shared by the pieces of one conversation; otherwise the index */
    int64_t row;     /* of the data set; -1: none */
    ml_str prompt, response;     /* text */
    ml_str label, metadata;      /* JSON, as in the data set; empty: none */
    const int32_t *token;        /* [n_token] prompt, then response */
    int32_t n_token, n_response; /* the response includes the output of tools */
    const uint8_t *mask;         /* [n_response] 0: not trained; NULL: all are */
    float *logprob;              /* [n_response] as sampled; NULL: not known */
    uint64_t *version;           /* [n_response] of the weights; NULL: not known */
    float *teacher_logprob;      /* [n_response] or NULL */
    float *opd_reverse_kl;       /* the same: of student and teacher, over their top-k */
    /* The routing record of each token but the last, as reported by the last request for
     * this sample; n 0: not known. */
    ml_routing routed[ML_N_ROUTING];
    /* [n_response] records of the sampling supports (backend/support.h), over which logprob is
     * normalised; empty: the whole vocabulary. */
    ml_str supports;
    int32_t n_answer; /* of a preference: the last tokens, which are compared */
    double reward;
    bool has_reward;
    ml_reward_value part[ML_REWARD_PARTS]; /* [n_part] further numbers of the reward */
    int32_t n_part;
    double shaped;   /* replaces the normalised reward in training ... */
    bool has_shaped; /* ... if an extension set it; not recorded */
    bool remove;     /* its mask counts as 0 everywhere */
    ml_sample_status status;
    int32_t n_turn;
} ml_sample;

const char *ml_sample_status_name(ml_sample_status s);

/* Writes one line of JSON, without the newline. */
void ml_sample_write(ml_text *out, const ml_sample *s);
/* The sample has pointers into the document, its source or the arena.  Messages begin
 * with `name`; unknown fields are ignored, because records of other programs have more
 * of them. */
ml_status ml_sample_read(ml_sample *out, ml_arena *a, const ml_json *doc, ml_str source,
                         const char *name, ml_err *err);

/* Checks that a sample from elsewhere can be trained on: its token ids are below n_vocab,
 * and the log-probs of trained tokens are numbers.  `name` is the origin, for messages. */
ml_status ml_sample_check(const ml_sample *s, int64_t n_vocab, const char *name,
                          ml_err *err);

/* Copies the sample with its arrays and strings into the arena. */
void ml_sample_copy(ml_sample *out, ml_arena *a, const ml_sample *s);

/* Saves a recorded rollout: a line per sample, compressed with zstd.  Loads that, or a file
 * of torch.save (sample_torch.h). */
ml_status ml_samples_save(const char *path, const ml_sample *const *s, int64_t n,
                          ml_err *err);
ml_status ml_samples_load(ml_sample **out, int64_t *n, ml_arena *a, const char *path,
                          ml_err *err);

#endif
