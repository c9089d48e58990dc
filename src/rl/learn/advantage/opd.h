/* opd.h - on-policy distillation over the top-k tokens of student and teacher.
 *
 * thread: any. */
#ifndef ML_RL_LEARN_ADVANTAGE_OPD_H
#define ML_RL_LEARN_ADVANTAGE_OPD_H

#include <stdbool.h>
#include <stdint.h>

#include "base/arena.h"
#include "base/err.h"

/* Which of the top-k tokens of student and teacher are compared. */
typedef enum ml_opd_set {
    ML_OPD_ONLY_STUDENT,
    ML_OPD_ONLY_TEACHER,
    ML_OPD_INTERSECTION,
    ML_OPD_UNION,
    ML_OPD_XOR
} ml_opd_set;

/* How they are weighted. */
typedef enum ml_opd_weight {
    ML_OPD_STUDENT_P,
    ML_OPD_TEACHER_P,
    ML_OPD_NO_WEIGHT
} ml_opd_weight;

/* What a set needs: the top-k tokens of each model, and its log-probs of the other's. */
typedef struct ml_opd_needs {
    bool student_top, teacher_top, teacher_on_student, student_on_teacher;
} ml_opd_needs;

ml_opd_needs ml_opd_needs_of(ml_opd_set set);

/* Tokens of one position with their log-probs; entries with an id below 0 are skipped. */
typedef struct ml_opd_tokens {
    const int32_t *id;
    const float *logprob;
    int32_t n;
} ml_opd_tokens;

typedef struct ml_opd_position {
    ml_opd_tokens student, teacher;   /* the top-k tokens of each */
    ml_opd_tokens teacher_on_student; /* the teacher's log-probs of the student's ids */
    ml_opd_tokens student_on_teacher; /* and vice versa */
} ml_opd_position;

/* *out = sum over the set of weight (student's log-prob - teacher's).  The weights of a
 * position sum to 1, except for xor, where they are the probabilities themselves.  An
 * empty set gives 0.  ML_EFORMAT: a required log-prob is missing.  Scratch memory is taken
 * from the arena. */
ml_status ml_opd_reverse_kl(double *out, ml_opd_set set, ml_opd_weight weight,
                            const ml_opd_position *p, ml_arena *a, ml_err *err);

#endif
