/* learner_priv.h - one call of ml_learn, shared by the files it is made of. */
#ifndef ML_RL_LEARNER_PRIV_H
#define ML_RL_LEARNER_PRIV_H

#include "rl/learner.h"
#include "rl/train_rows.h"

typedef struct ml_learn_run {
    ml_learner *l;
    ml_arena *a;
    const ml_sample *const *in; /* [n] */
    int32_t n;
    int64_t rollout;
    int32_t step;           /* of the actor, being trained */
    bool critic_only;       /* the actor does not learn in this round */
    ml_train_sample *train; /* [n] */
    miles_sample *row;      /* [n] what the edges see */
    const miles_sample **view;
    ml_learn_result *out;
} ml_learn_run;

/* Reference, teacher, old policy and critic fill their columns. */
ml_status ml_learn_score(ml_learn_run *s, ml_err *err);

/* The optimizer steps of the critic and of the actor. */
ml_status ml_learn_train(ml_learn_run *s, ml_err *err);

/* Writes down what is trained on, where somebody wants it. */
ml_status ml_learn_record(const ml_learn_run *s, ml_err *err);

/* The figures of the rollout, before training. */
void ml_learn_report(ml_learn_run *s);

#endif
