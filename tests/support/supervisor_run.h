/* supervisor_run.h - a run of `miles train` with a supervisor, observed from outside. */
#ifndef ML_TESTS_SUPPORT_SUPERVISOR_RUN_H
#define ML_TESTS_SUPPORT_SUPERVISOR_RUN_H

#include <stdbool.h>
#include <sys/types.h>

#define ML_FLEET_TWO "--rollout-num-engines 2 --use-fault-tolerance "
enum { ML_SUPERVISOR_MOST = 16 }; /* engines of a run */

/* Starts a toy run (toy_run.h) that logs to a file; returns at once. */
pid_t ml_supervisor_run_start(const char *log, const char *save, int rounds,
                              const char *more);

/* Waits for its end; returns the exit status, or -1 if a signal ended it. */
int ml_supervisor_run_wait(pid_t run);
bool ml_supervisor_run_ended(pid_t run); /* wait is still required */

/* Waits until the run has n engines at a time, or has ended; returns the last count. */
int ml_supervisor_run_engines(pid_t run, int n, pid_t out[ML_SUPERVISOR_MOST]);
bool ml_supervisor_run_alive(pid_t engine);

/* Number of occurrences of the text in a file. */
int ml_supervisor_run_count(const char *path, const char *text);
/* Waits until there are n occurrences; false: the run ended before. */
bool ml_supervisor_run_says(const char *path, const char *text, int n, pid_t run);

#endif
