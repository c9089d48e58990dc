/* drain.h - how servers end: the first signal asks, the second insists. */
#ifndef ML_CLI_DRAIN_H
#define ML_CLI_DRAIN_H

#include "net/loop.h"

typedef struct ml_drain {
    void (*begin)(void *ud);
    void *ud;
    int n_signal;
} ml_drain;

/* At SIGTERM or SIGINT `begin` is called once, on the loop's thread; d must outlive the loop. */
ml_status ml_drain_on_signals(ml_drain *d, ml_loop *loop, void (*begin)(void *ud), void *ud,
                              ml_err *err);

#endif
