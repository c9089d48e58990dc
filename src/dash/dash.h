/* dash.h - the dashboard: a page in the browser over the directories of runs.
 *
 * One HTTP server with the page (page/), which is part of the program, and the JSON that it
 * shows: docs/DASHBOARD.md lists the paths, among them those of Miles' dashboard.  It reads
 * what runs write (metrics.jsonl, timing.jsonl, run.db) and works while they write.  The only
 * thing it writes are requests to a run (rl/record/control.h), if a key is set.
 *
 * thread: the event loop's. */
#ifndef ML_DASH_DASH_H
#define ML_DASH_DASH_H

#include "net/loop.h"
#include "serve/access.h"

typedef struct ml_dash ml_dash;

typedef struct ml_dash_opts {
    const char *host;
    int port;               /* 0: any free port */
    const char *const *dir; /* [n_dir] directories of runs */
    int n_dir;
    const char *tokenizer; /* a checkpoint, to show tokens as text; NULL: that of the run */
    ml_access_opts access; /* without a key, runs cannot be controlled */
} ml_dash_opts;

#define ML_DASH_PORT 7788

/* ML_EUSAGE: a directory has no run in it.  Copies *opts; the strings it points to must
 * outlive the dashboard. */
ml_status ml_dash_open(ml_dash **out, ml_loop *l, const ml_dash_opts *opts, ml_err *err);
int ml_dash_port(const ml_dash *d);
void ml_dash_close(ml_dash *d); /* NULL is allowed */

#endif
