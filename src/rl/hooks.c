#include "rl/hooks.h"

#include "rl/answers.h"
#include "train/snapshot.h"

/* 1 + the miles_when of an event; 0: there is no hook for it. */
static const uint8_t hook_of[ML_ON_WEIGHTS_WRITTEN + 1] = {
    [ML_ON_RUN_BEGIN] = 1 + MILES_AFTER_INIT,
    [ML_ON_SCORE] = 1 + MILES_BEFORE_LOG_PROB,
    [ML_ON_DATA_READY] = 1 + MILES_DATA_READY,
    [ML_ON_STEP_BEGIN] = 1 + MILES_BEFORE_TRAIN_STEP,
    [ML_ON_SAVED] = 1 + MILES_AFTER_SAVE,
    [ML_ON_WEIGHTS_WRITTEN] = 1 + MILES_WEIGHTS_WRITTEN,
};

ml_status ml_hooks_on(void *hooks, const ml_loop_event *e, ml_err *err) {
    int32_t when = hook_of[e->kind] - 1;
    const miles_hook *hook = when < 0 ? NULL : ((const ml_hooks *)hooks)->at[when];
    miles_event event = { .size = sizeof event,
                          .when = when,
                          .rollout = e->rollout,
                          .step = e->kind == ML_ON_STEP_BEGIN ? e->step : -1,
                          .what = e->what && e->kind != ML_ON_RUN_BEGIN ? e->what : "",
                          .batch = e->batch,
                          .control = e->control };
    miles_error why = { "" };
    ml_status st = ML_OK;

    if (hook && e->kind == ML_ON_SAVED) /* the snapshot must be complete */
        st = ml_saver_wait(e->saver, err);
    if (!hook || st != ML_OK || hook->run(&event, &why) == 0)
        return st;
    return ml_extension_failed(&hook->base, &why, err);
}
