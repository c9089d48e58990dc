/* trackers.h - gives the metrics of a run to W&B, MLflow and Trackio, by a helper process.
 *
 * The helper, share/tracker.py, reads what the run writes (metrics.jsonl, timing.jsonl) and
 * remembers in trackers.json how far each tracker has come.  The run waits for it only at its
 * end, for a limited time: a tracker that cannot be reached neither slows nor stops a run, and
 * the rows that it lacks stay on disk.
 *
 * thread: the loop's owner opens and closes it. */
#ifndef ML_RUN_TRACKERS_H
#define ML_RUN_TRACKERS_H

#include <stdbool.h>

#include "base/err.h"

/* NULL: not given. */
typedef struct ml_tracker_opts {
    bool wandb, mlflow, trackio;
    const char *wandb_mode; /* online, offline, disabled; NULL: online */
    const char *wandb_project, *wandb_team, *wandb_group, *wandb_id, *wandb_name,
        *wandb_dir, *wandb_key, *wandb_host;
    const char *mlflow_uri, *mlflow_experiment, *mlflow_name, *mlflow_id;
    const char *trackio_project;
    double linger_s; /* how long the run's end waits for trackers */
} ml_tracker_opts;

typedef struct ml_trackers ml_trackers;

/* Whether a flag asks for a tracker that needs the helper. */
bool ml_trackers_wanted(const ml_tracker_opts *o);

/* dir: the run's.  Its messages are in DIR/logs/tracker.log. */
ml_status ml_trackers_open(ml_trackers **out, const ml_tracker_opts *o, const char *dir,
                           ml_err *err);
/* Waits until everything is sent, or for the time of the options; then warns.  NULL is
 * allowed. */
void ml_trackers_close(ml_trackers *t);

#endif
