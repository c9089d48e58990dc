/* opd.h - on-policy distillation with a teacher served over HTTP.
 *
 * The server returns one entry per input token, the first a placeholder; the last n belong
 * to the response.  Entries are [log-prob, id, ...] or, for several tokens at a position,
 * lists of those.
 *
 * thread: any. */
#ifndef ML_RL_LEARN_ADVANTAGE_OPD_H
#define ML_RL_LEARN_ADVANTAGE_OPD_H

#include "base/json.h"

/* The teacher's log-probs of the n response tokens, from input_token_logprobs. */
ml_status ml_opd_teacher(double *out, int64_t n, const ml_json *logprobs, ml_err *err);

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

typedef struct ml_opd_topk {
    ml_opd_set set;
    ml_opd_weight weight;
    const ml_json *student_top; /* [n] by position; not a server field */
    const ml_json *teacher_top; /* server fields; NULL if the set does not need them */
    const ml_json *teacher_on_student; /* the teacher's log-probs of the student's ids */
    const ml_json *student_on_teacher; /* and vice versa */
} ml_opd_topk;

/* out[t] = sum over the set of weight (student's log-prob - teacher's).  The weights of a
 * position sum to 1, except for xor, where they are the probabilities themselves.  An
 * empty set gives 0.  ML_EFORMAT: a required log-prob is missing. */
ml_status ml_opd_topk_reverse_kl(double *out, int64_t n, const ml_opd_topk *in,
                                 ml_err *err);

#endif
