/* fleet_run.h - a run of `miles train` that starts engines itself, watched from outside. */
#ifndef ML_TESTS_SUPPORT_FLEET_RUN_H
#define ML_TESTS_SUPPORT_FLEET_RUN_H

#include <stdbool.h>
#include <sys/types.h>

#define ML_FLEET_TWO "--rollout-num-engines 2 --use-fault-tolerance "
enum { ML_SUPERVISOR_MOST = 16 }; /* engines of a run */

/* Starts a toy run (toy_run.h), which logs to a file, and is back at once. */
pid_t ml_supervisor_run_start(const char *log, const char *save, int rounds,
                              const char *more);

/* Its exit status, once it has ended; -1: a signal ended it. */
int ml_supervisor_run_wait(pid_t run);
bool ml_supervisor_run_ended(pid_t run); /* it still has to be waited for */

/* Until the run has n engines at a time, or has ended: how many it had at last. */
int ml_supervisor_run_engines(pid_t run, int n, pid_t out[ML_SUPERVISOR_MOST]);
bool ml_supervisor_run_alive(pid_t engine);

/* How often the text is in a file. */
int ml_supervisor_run_count(const char *path, const char *text);
/* Until it is there n times; false: the run has ended before. */
bool ml_supervisor_run_says(const char *path, const char *text, int n, pid_t run);

#endif
