#include "cli/commands/drain.h"

#include <signal.h>
#include <unistd.h>

#include "base/log.h"
#include "cli/cli.h"

static void on_signal(void *ud) {
    ml_drain *d = ud;

    if (d->n_signal++)
        _exit(ML_EXIT_FAILED);
    ml_log(ML_LOG_INFO, "draining: no new requests; waiting for requests in flight");
    d->begin(d->ud);
}

ml_status ml_drain_on_signals(ml_drain *d, ml_loop *loop, void (*begin)(void *ud), void *ud,
                              ml_err *err) {
    ml_status st;

    *d = (ml_drain){ .begin = begin, .ud = ud };
    st = ml_loop_on_signal(loop, SIGTERM, on_signal, d, err);
    if (!st) /* mpirun hands it on, and kills nobody afterwards */
        st = ml_loop_on_signal(loop, SIGUSR1, on_signal, d, err);
    return st ? st : ml_loop_on_signal(loop, SIGINT, on_signal, d, err);
}
