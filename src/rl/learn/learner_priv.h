/* learner_priv.h - the state of one call of ml_learn, shared by its files. */
#ifndef ML_RL_LEARN_LEARNER_PRIV_H
#define ML_RL_LEARN_LEARNER_PRIV_H

#include "rl/learn/learner.h"
#include "rl/learn/train_rows.h"

typedef struct ml_learn_run {
    ml_learner *l;
    ml_arena *a;
    const ml_sample *const *in; /* [n] */
    int32_t n;
    int64_t rollout;
    int32_t step;           /* the actor's current train step */
    bool critic_only;       /* only the critic is trained in this rollout */
    ml_train_sample *train; /* [n] */
    miles_sample *row;      /* [n] the samples as extensions see them */
    const miles_sample **view;
    ml_learn_result *out;
} ml_learn_run;

/* Emits an event of this rollout; the samples are filled in. */
ml_status ml_learn_tell(const ml_learn_run *s, ml_loop_event e, ml_err *err);

/* Fills the columns of critic, reference, teacher and old policy. */
ml_status ml_learn_score(ml_learn_run *s, ml_err *err);

/* Runs the train steps of the critic and of the actor. */
ml_status ml_learn_train(ml_learn_run *s, ml_err *err);

/* Computes the metrics of the rollout batch, before training. */
void ml_learn_report(ml_learn_run *s);

#endif
