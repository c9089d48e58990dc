/* run_dash.h - the dashboard of a running run (--use-miles-dashboard), on a thread of its own.
 *
 * It reads the files of the run, as miles dashboard does, and shares nothing with the run but
 * its directory.
 *
 * thread: the loop's owner opens and closes it. */
#ifndef ML_RUN_RUN_DASH_H
#define ML_RUN_RUN_DASH_H

#include <stdbool.h>

#include "base/err.h"

typedef struct ml_run_dash ml_run_dash;

typedef struct ml_run_dash_opts {
    bool use;
    const char *host;
    int port;             /* another one is taken if it is in use */
    const char *key_file; /* of the key for requests to the run; NULL: read-only */
} ml_run_dash_opts;

/* dir: the run's; say: told the address. */
ml_status ml_run_dash_open(ml_run_dash **out, const ml_run_dash_opts *opts, const char *dir,
                           void (*say)(const char *line), ml_err *err);
void ml_run_dash_close(ml_run_dash *d); /* NULL is allowed */

#endif
