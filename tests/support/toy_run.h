/* toy_run.h - starts and stops whole runs of `miles train` on a toy model. */
#ifndef ML_TESTS_SUPPORT_TOY_RUN_H
#define ML_TESTS_SUPPORT_TOY_RUN_H

#include <stddef.h>
#include <sys/types.h>

/* The model and data.jsonl, 12 prompts, in the test's directory. */
void ml_toy_run_inputs(void);

/* The command line of a run that saves to and resumes from `save`: per rollout, 4 prompts
 * with 4 answers of at most 12 tokens and 2 optimizer steps; evaluation every second
 * rollout; `more` overrides these.  command: "train" or "train-async". */
void ml_toy_run_args(char *args, size_t cap, const char *command, const char *save,
                     int rounds, const char *more);

/* Runs it to its end with its output in out; returns the exit status. */
int ml_toy_run(const char *command, const char *save, int rounds, const char *more,
               char *out, size_t cap);

/* Starts it, or any command line of the program; returns at once. */
pid_t ml_toy_run_start(const char *command, const char *save, int rounds, const char *more);
pid_t ml_toy_start(const char *args);
/* The same, with its output in a file. */
pid_t ml_toy_start_to(const char *log, const char *args);

/* Sends it a signal after this time, and returns its exit status. */
int ml_toy_run_stop(pid_t pid, int sig, unsigned after_us);

/* Checks that the snapshots of the last rollout and metrics.jsonl have equal bytes. */
void ml_toy_run_same(const char *a, const char *b, int rounds);

#endif
