#include "rl/hooks.h"

#include "rl/answers.h"

static ml_status call(const ml_hooks *hooks, const miles_event *event, ml_err *err) {
    const miles_hook *hook = hooks ? hooks->at[event->when] : NULL;
    miles_error why = { "" };

    if (!hook || hook->run(event, &why) == 0)
        return ML_OK;
    return ml_extension_failed(&hook->base, &why, err);
}

ml_status ml_hooks_call(const ml_hooks *hooks, miles_when when, int64_t rollout,
                        int64_t step, const char *what, ml_err *err) {
    miles_event event = { .size = sizeof event,
                          .when = (int32_t)when,
                          .rollout = rollout,
                          .step = step,
                          .what = what };
    return call(hooks, &event, err);
}

ml_status ml_hooks_call_batch(const ml_hooks *hooks, int64_t rollout,
                              const miles_batch *batch, ml_err *err) {
    miles_event event = { .size = sizeof event,
                          .when = MILES_DATA_READY,
                          .rollout = rollout,
                          .step = -1,
                          .what = "",
                          .batch = batch };
    return call(hooks, &event, err);
}
