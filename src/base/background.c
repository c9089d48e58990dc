#include "base/background.h"

#include <string.h>

#include "base/bug.h"

static void *run(void *ud) {
    ml_background *j = ud;
    j->st = j->fn(j->ud, &j->err);
    return NULL;
}

ml_status ml_background_start(ml_background *j, ml_background_fn *fn, void *ud,
                              ml_err *err) {
    int e;

    ML_BUG_IF(j->running);
    *j = (ml_background){ .fn = fn, .ud = ud };
    e = pthread_create(&j->thread, NULL, run, j);
    if (e)
        return ml_fail(err, ML_EIO, "cannot create a thread: %s", strerror(e));
    j->running = true;
    return ML_OK;
}

ml_status ml_background_wait(ml_background *j, ml_err *err) {
    if (!j->running)
        return ML_OK;
    pthread_join(j->thread, NULL);
    j->running = false;
    if (j->st != ML_OK && err)
        *err = j->err;
    return j->st;
}
