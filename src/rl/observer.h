/* observer.h - how a run reports what it does.
 *
 * The loop, the learner and the publisher emit events.  Every observer of the run receives
 * every event, in the order of the array, and ignores those it has no use for.  An
 * observer that fails ends the run.
 *
 * thread: the loop's. */
#ifndef ML_RL_OBSERVER_H
#define ML_RL_OBSERVER_H

#include "base/arena.h"
#include "base/err.h"
#include "miles/plugin.h"
#include "model/weights.h"
#include "rl/sample.h"

struct ml_eval_scores;
struct ml_loss_io;
struct ml_iteration;
struct ml_saver;

typedef enum ml_stage {
    ML_STAGE_ROLLOUT, /* generates samples, or waits for them */
    ML_STAGE_LEARN,
    ML_STAGE_SAVE,
    ML_STAGE_REST, /* waits until no rollout is generated in the background */
    ML_STAGE_PUBLISH,
    ML_STAGE_EVAL,
    ML_N_STAGE
} ml_stage;

typedef enum ml_loop_event_kind {
    /* Of the loop, with its position. */
    ML_ON_RUN_BEGIN, /* loaded, `rollout` is the first one; what: where it starts from, if
                        it continues a run or --load has no snapshot; else "" */
    ML_ON_ROLLOUT_BEGIN,
    ML_ON_STAGE,     /* a stage begins */
    ML_ON_BATCH,     /* the rollout batch is complete */
    ML_ON_LEARNED,   /* the train steps of the rollout are done */
    ML_ON_SAVED,     /* what: the snapshot's path; saver */
    ML_ON_PUBLISHED, /* weights */
    ML_ON_ROLLOUT_END,
    ML_ON_RUN_END,
    /* Of evaluations. */
    ML_ON_EVALUATED, /* the weights after `rollout`: scores, arena */
    /* Of the learner. */
    ML_ON_SCORE,       /* a forward pass for log-probs begins: what, the model's name */
    ML_ON_DATA_READY,  /* all columns are filled, training begins: sample, batch */
    ML_ON_STEP_BEGIN,  /* a train step of the actor: step, control */
    ML_ON_SAMPLE_LOSS, /* the loss of sample[io->sample] and its gradient: step, io */
    ML_ON_STEP_END,    /* the step's gradients are still valid: step, sample */
    /* Of the publisher. */
    ML_ON_WEIGHTS_WRITTEN, /* no engine has loaded them yet: what, the directory */
} ml_loop_event_kind;

typedef struct ml_loop_event {
    ml_loop_event_kind kind;
    int64_t rollout;
    /* The position of the loop. */
    int64_t n_rollout; /* of the whole run */
    int64_t last;      /* the run's last rollout, if a stop is requested now */
    ml_stage stage;
    bool ending;                          /* this rollout is the last */
    const struct ml_iteration *iteration; /* the current rollout, as far as it has come */
    const char *what;
    struct ml_saver *saver;    /* ml_saver_wait completes the snapshot */
    const ml_weights *weights; /* those that generate; NULL: they are in another process */
    const struct ml_eval_scores *scores;
    ml_arena *arena; /* of the scores; an observer that keeps them takes its contents, and
                        must not release them before the end of the rollout */
    int64_t step, first_step;       /* of the rollout, of the run: first_step + step */
    const ml_sample *const *sample; /* [n_sample] */
    int64_t n_sample;
    const miles_batch *batch;    /* the samples as extensions see them */
    const struct ml_loss_io *io; /* log-probs of the sample and their derivatives */
    miles_step *control;         /* what may be changed about the step */
} ml_loop_event;

typedef struct ml_observer {
    void *self;
    ml_status (*on)(void *self, const ml_loop_event *e, ml_err *err);
} ml_observer;

typedef struct ml_observers {
    const ml_observer *at; /* [n] */
    int32_t n;
} ml_observers;

/* Passes the event to all observers, up to the first that fails.  NULL is allowed. */
static inline ml_status ml_observe(const ml_observers *o, const ml_loop_event *e,
                                   ml_err *err) {
    ml_status st = ML_OK;

    for (int32_t i = 0; o && i < o->n && st == ML_OK; i++)
        st = o->at[i].on(o->at[i].self, e, err);
    return st;
}

#endif
