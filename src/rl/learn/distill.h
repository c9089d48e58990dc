/* distill.h - on-policy distillation: teachers behind generators score a rollout batch.
 *
 * Each sample has one teacher, by name.  Without top_k the teacher scores the tokens of the
 * answer (teacher_logprob of the sample).  With top_k, both models' most probable tokens of
 * each position are compared (opd.h), and the sample gets their reverse KL.  The student is
 * the engine of the run with the weights that it has after the rollout: for tokens that
 * these weights drew, its log-probs are those of the draw, bit for bit.
 *
 * thread: the caller's, which blocks until all scores have arrived. */
#ifndef ML_RL_LEARN_DISTILL_H
#define ML_RL_LEARN_DISTILL_H

#include "rl/learn/advantage/opd.h"
#include "rl/learn/gen_score.h"
#include "rl/learn/teacher_prompt.h"

#define ML_TEACHER_DEFAULT "default" /* of samples that name no teacher of the run */

typedef struct ml_teacher {
    const char *name;
    ml_scorer by;
} ml_teacher;

typedef struct ml_distill {
    const ml_teacher *teacher; /* [n_teacher] */
    int32_t n_teacher;         /* 0: no teacher to ask */
    const char *key;   /* the member of a sample's metadata with the teacher's name */
    ml_scorer student; /* gen NULL: there is no engine */
    int32_t top_k;     /* 0: the tokens of the answer */
    ml_opd_set set;
    ml_opd_weight weight;
    ml_teacher_prompt prompt; /* what the teachers see */
} ml_distill;

/* The teacher of a sample with this metadata: the one that it names; otherwise the default
 * one; if it names none, also the only one.  ML_EUSAGE: there is none. */
ml_status ml_teacher_of(const ml_teacher **out, const ml_distill *d, ml_str metadata,
                        ml_err *err);

/* Fills teacher_logprob or opd_reverse_kl of the samples that do not have it yet, as those
 * of a recording may. */
ml_status ml_distill_run(const ml_distill *d, ml_sample *const *s, int64_t n, ml_arena *a,
                         ml_err *err);

#endif
