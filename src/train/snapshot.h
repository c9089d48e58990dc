/* snapshot.h - everything a run needs to go on as if it had never stopped, on disk.
 *
 *     DIR/iter_0000012/                      a Hugging Face checkpoint, and beside it
 *         trainer.safetensors                moments, masters where weights are rounded, and a
 *                                            reference that changes
 *         state.json                         counters, data position, configuration
 *         checksums.crc64                    one line per file: checksum, bytes, name
 *     DIR/latest_checkpointed_iteration.txt  the newest complete one
 *
 * Each tensor is stored once, under its global name and shape.  A snapshot is written
 * under a temporary name, synced, renamed, and only then named by the tracker: whenever
 * the process dies, the tracker names a whole snapshot, or -1 when there was none before.  A critic has a directory of its own
 * and is written first: what the actor's tracker names is there for both.
 *
 * thread: a saver has one owner; with `async` it writes on a thread of its own, from a
 * copy. */
#ifndef ML_TRAIN_SNAPSHOT_H
#define ML_TRAIN_SNAPSHOT_H

#include "train/trainer.h"

typedef struct ml_saver ml_saver;

typedef struct ml_saver_opts {
    const char *dir;           /* made when it is not there */
    const ml_checkpoint *from; /* names of files, dtypes on disk, what is not trained */
    const char *critic_dir;    /* the same of a critic; NULL: there is none */
    const ml_checkpoint *critic_from;
    const char *hf;          /* with each save, the weights alone go to this path, where
                                {rollout_id} is the iteration; NULL: nowhere */
    int32_t keep_last;       /* older snapshots are removed; 0: none is */
    int64_t retain_interval; /* but not those of its multiples; 0: there are none */
    bool async;              /* a save costs the step a copy, the rest happens meanwhile */
    bool no_optim;           /* without the optimizer's state */
} ml_saver_opts;

/* What is saved. */
typedef struct ml_save_models {
    ml_trainer *actor, *critic; /* critic: where the saver has a directory for it */
    const ml_weights *ref;      /* a reference that changes; NULL: none does */
} ml_save_models;

/* What the trainers do not know.  Both are JSON objects. */
typedef struct ml_save_state {
    int64_t iteration;
    ml_str data;   /* where the data source is */
    ml_str config; /* what must be the same when it is resumed */
} ml_save_state;

/* Removes what a dead process left unfinished. */
ml_status ml_saver_open(ml_saver **out, const ml_saver_opts *opts, ml_err *err);
/* Waits for the save before it, if that is still being written. */
ml_status ml_saver_save(ml_saver *s, const ml_save_models *models,
                        const ml_save_state *state, ml_err *err);
ml_status ml_saver_wait(ml_saver *s, ml_err *err);
void ml_saver_close(ml_saver *s); /* waits; NULL is fine */

/* The iteration that the tracker of dir names; ML_NONE when dir is not there, or has neither a
 * tracker nor snapshots.  Snapshots without a readable tracker are an error. */
ml_status ml_snapshot_latest(int64_t *out, const char *dir, ml_err *err);
/* DIR/iter_NNNNNNN, in the arena. */
const char *ml_snapshot_path(ml_arena *a, const char *dir, int64_t iteration);
/* The number of "iter_0000012", or ML_NONE for any other name. */
int64_t ml_snapshot_number(const char *name);

/* Checks that a snapshot has exactly the files that its checksums list, and each of them
 * against its checksum. */
ml_status ml_snapshot_check(const char *path, ml_err *err);

/* The name in a line of the checksums, "CHECKSUM BYTES NAME"; empty: it is no such line. */
ml_str ml_snapshot_listed(ml_str line);

/* Removes what dead processes left unfinished in a directory of snapshots, and finishes a
 * replacement that was interrupted.  The caller is the only process that writes there. */
ml_status ml_snapshot_tidy(const char *dir, ml_err *err);

/* What a snapshot is brought back into. */
typedef struct ml_snapshot_into {
    ml_trainer *trainer; /* its weights were loaded from the same path */
    ml_weights *ref;     /* a reference that changes; NULL: none does */
    bool no_optim;       /* the optimizer begins anew */
} ml_snapshot_into;

/* state gets what the trainer does not know, in the arena. */
ml_status ml_snapshot_load(const char *path, const ml_snapshot_into *into,
                           ml_save_state *state, ml_arena *a, ml_err *err);

#endif
