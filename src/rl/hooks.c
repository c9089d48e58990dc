#include "rl/hooks.h"

#include "rl/answers.h"

ml_status ml_hooks_tell(const ml_hooks *hooks, miles_when when, int64_t rollout,
                        int64_t step, const char *what, ml_err *err) {
    const miles_hook *hook = hooks ? hooks->at[when] : NULL;
    miles_event event = { sizeof event, (int32_t)when, rollout, step, what };
    miles_error why = { "" };

    if (!hook || hook->run(&event, &why) == 0)
        return ML_OK;
    return ml_row_failed(&hook->row, &why, err);
}
