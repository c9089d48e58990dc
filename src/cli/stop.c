#include "cli/stop.h"

#include <stddef.h>
#include <unistd.h>

#include "cli/cli.h"

static volatile sig_atomic_t n_signal;

static void on_signal(int number) {
    static const char note[] = "miles: this round is finished and saved; once more to "
                               "stop at once\n";
    (void)number;
    if (n_signal)
        _exit(ML_EXIT_FAILED);
    n_signal = 1;
    if (write(STDERR_FILENO, note, sizeof note - 1) < 0)
        _exit(ML_EXIT_FAILED);
}

const volatile sig_atomic_t *ml_stop_on_signals(void) {
    struct sigaction action = { .sa_handler = on_signal, .sa_flags = SA_RESTART };

    sigemptyset(&action.sa_mask);
    sigaction(SIGINT, &action, NULL);
    sigaction(SIGTERM, &action, NULL);
    return &n_signal;
}
