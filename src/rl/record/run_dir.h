/* run_dir.h - the directory of a run: it belongs to one run, and to one process at a time.
 *
 *     DIR/run.lock  locked while a process writes to the directory; its pid and host
 *
 * If a directory has a run in it, only a continuation of that run may write there.
 * Starting from the beginning in such a directory first removes the files of the old run,
 * and only if the user requested that.
 *
 * thread: one owner. */
#ifndef ML_RL_RECORD_RUN_DIR_H
#define ML_RL_RECORD_RUN_DIR_H

#include <stdbool.h>

#include "base/err.h"

typedef struct ml_run_dir_opts {
    const char *dir;       /* where the run writes; the string must outlive the run */
    const char *load;      /* the directory from which it continues; NULL: none */
    const char *flag_save; /* the flags that set the two, for messages */
    const char *flag_load;
    const char *events; /* its TensorBoard file, if not in dir; NULL: in dir */
    bool restart;       /* start at the first rollout, regardless of `load` */
    bool overwrite;     /* remove the files of a run in dir */
} ml_run_dir_opts;

typedef struct ml_run_dir {
    const char *dir;
    int lock;  /* file descriptor + 1; 0: not open */
    bool made; /* this process created the directory */
} ml_run_dir;

/* ML_EUSAGE if dir has a run that this one would mix with or replace.  Changes nothing. */
ml_status ml_run_dir_check(const ml_run_dir_opts *o, ml_err *err);

/* Creates the directory, locks it, checks it, removes the old run if requested, and
 * removes temporary files of processes that died. */
ml_status ml_run_dir_open(ml_run_dir *out, const ml_run_dir_opts *o, ml_err *err);
/* Removes the directory if ml_run_dir_open created it and nothing was written to it.
 * Zeros are allowed. */
void ml_run_dir_close(ml_run_dir *d);

/* Whether a process writes to the directory now. */
bool ml_run_dir_is_live(const char *dir);

#endif
