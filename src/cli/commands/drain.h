/* drain.h - server shutdown: the first signal drains, the second ends the process. */
#ifndef ML_CLI_COMMANDS_DRAIN_H
#define ML_CLI_COMMANDS_DRAIN_H

#include "net/loop.h"

typedef struct ml_drain {
    void (*begin)(void *ud);
    void *ud;
    int n_signal;
} ml_drain;

/* SIGTERM or SIGINT calls `begin` once, on the event loop's thread; d must outlive the
 * loop. */
ml_status ml_drain_on_signals(ml_drain *d, ml_loop *loop, void (*begin)(void *ud), void *ud,
                              ml_err *err);

#endif
