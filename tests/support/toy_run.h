/* toy_run.h - whole runs of `miles train` on a toy model, started and stopped from a test. */
#ifndef ML_TESTS_SUPPORT_TOY_RUN_H
#define ML_TESTS_SUPPORT_TOY_RUN_H

#include <stddef.h>
#include <sys/types.h>

/* The model and data.jsonl, 12 prompts, in the test's directory. */
void ml_toy_run_inputs(void);

/* The command line of a run that saves to and goes on from `save`: 4 prompts with 4 answers
 * of at most 12 tokens and 2 optimizer steps a round, evaluated every second round, unless
 * `more` says otherwise.
 * command: "train" or "train-async". */
void ml_toy_run_args(char *args, size_t cap, const char *command, const char *save,
                     int rounds, const char *more);

/* Runs it to its end; what it prints goes to out.  Its exit status. */
int ml_toy_run(const char *command, const char *save, int rounds, const char *more,
               char *out, size_t cap);

/* Starts it, or any command line of the program, and is back at once. */
pid_t ml_toy_run_start(const char *command, const char *save, int rounds, const char *more);
pid_t ml_toy_start(const char *args);
/* What it says goes to a file. */
pid_t ml_toy_start_to(const char *log, const char *args);

/* Sends it a signal after a while, and returns what it exited with. */
int ml_toy_run_stop(pid_t pid, int sig, unsigned after_us);

/* The snapshots of the last of `rounds` and metrics.jsonl are the same bytes. */
void ml_toy_run_same(const char *a, const char *b, int rounds);

#endif
