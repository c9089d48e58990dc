/* run_dir.h - the directory of a run: one run's, and one process's at a time.
 *
 *     DIR/run.lock  locked while a process writes there; its pid and host
 *
 * A directory that holds a run is only written by a run that continues it.  Starting anew there
 * removes the files of the old run first, and only when that is asked for.
 *
 * thread: one owner. */
#ifndef ML_RL_RUN_DIR_H
#define ML_RL_RUN_DIR_H

#include <stdbool.h>

#include "base/err.h"

typedef struct ml_run_dir_opts {
    const char *dir;       /* where the run writes; the text must outlive the run */
    const char *load;      /* the directory that it continues from; NULL: none */
    const char *flag_save; /* the flags that name the two, for messages */
    const char *flag_load;
    const char *events; /* its TensorBoard file, where that is not in dir; NULL: it is */
    bool anew;          /* it starts at its first round, whatever `load` has */
    bool overwrite;     /* files of a run in dir are removed */
} ml_run_dir_opts;

typedef struct ml_run_dir {
    const char *dir;
    int lock;  /* file descriptor + 1; 0: not open */
    bool made; /* the directory was not there */
} ml_run_dir;

/* ML_EUSAGE when dir holds a run that this one would mix with or replace.  Changes nothing. */
ml_status ml_run_dir_check(const ml_run_dir_opts *o, ml_err *err);

/* Makes the directory, locks it, checks it, removes the old run when that was asked for, and
 * removes temporary files of processes that died. */
ml_status ml_run_dir_open(ml_run_dir *out, const ml_run_dir_opts *o, ml_err *err);
/* Removes the directory when it was made here and nothing was written to it.  Zeros are fine. */
void ml_run_dir_close(ml_run_dir *d);

#endif
