/* snapshot.h - snapshots: everything a run needs to resume as if it had never stopped.
 *
 *     DIR/iter_0000012/                      a Hugging Face checkpoint, plus
 *         trainer.safetensors                moments, masters of rounded weights, and a
 *                                            reference that changes
 *         trainer_mtp.safetensors            the same of multi-token prediction layers that
 *                                            are trained
 *         draft/                             a checkpoint of the EAGLE-3 head that is trained
 *         state.json                         counters, data position, configuration
 *         checksums.crc64                    one line per file: checksum, bytes, name
 *     DIR/latest_checkpointed_iteration.txt  tracker: the newest complete one
 *
 * Each tensor is stored once, under its global name and shape.  A snapshot is written
 * under a temporary name, synced, renamed, and only then entered in the tracker.  So the
 * tracker always names a complete snapshot, whenever the process dies, or -1 if there was
 * none before.  A critic has its own directory and is written first: an iteration in the
 * actor's tracker exists for both.
 *
 * Ranks that train together save together: rank 0 writes, and gets from the others the
 * parts of the optimizer's state that it does not have.  The files are the same, byte for
 * byte, for any number of ranks, and any number can load them.
 *
 * thread: a saver has one owner; with `async` it writes from a copy on its own thread. */
#ifndef ML_TRAIN_SNAPSHOT_H
#define ML_TRAIN_SNAPSHOT_H

#include "train/trainer.h"

#define ML_SNAPSHOT_DRAFT "draft"

typedef struct ml_saver ml_saver;

typedef struct ml_saver_opts {
    const char *dir;           /* created if it does not exist */
    const ml_checkpoint *from; /* names of files, dtypes on disk, tensors that are not
                                  trained */
    const char *critic_dir;    /* the critic's directory; NULL: no critic */
    const ml_checkpoint *critic_from;
    const char *hf;          /* each save also writes the weights alone to this path,
                                where {rollout_id} is the iteration; NULL: no */
    int32_t keep_last;       /* older snapshots are removed; 0: none is removed */
    int64_t retain_interval; /* multiples of this iteration are never removed; 0: no
                                exception */
    bool async;              /* a save blocks the loop for a copy only; the rest runs in
                                the background */
    bool no_optim;           /* save without optimizer state */
    ml_comm *comm;           /* the trainers' ranks; NULL: one */
} ml_saver_opts;

/* The models to save. */
typedef struct ml_save_models {
    ml_trainer *actor, *critic; /* critic: if the saver has a directory for it */
    const ml_weights *ref;      /* a reference that changes; NULL: none does */
} ml_save_models;

/* State outside the trainers.  Both strings are JSON objects. */
typedef struct ml_save_state {
    int64_t iteration;
    ml_str data;   /* position of the data source */
    ml_str config; /* settings that must be equal on resume */
} ml_save_state;

/* Removes unfinished files of processes that died.  Collective, like save. */
ml_status ml_saver_open(ml_saver **out, const ml_saver_opts *opts, ml_err *err);
/* Waits for the previous save, if it is still being written. */
ml_status ml_saver_save(ml_saver *s, const ml_save_models *models,
                        const ml_save_state *state, ml_err *err);
ml_status ml_saver_wait(ml_saver *s, ml_err *err); /* for what this rank writes */
void ml_saver_close(ml_saver *s);                  /* waits; NULL is allowed */

/* The iteration in the tracker of dir; ML_NONE if dir does not exist, or has neither a
 * tracker nor snapshots.  Snapshots without a readable tracker are an error. */
ml_status ml_snapshot_latest(int64_t *out, const char *dir, ml_err *err);
/* DIR/iter_NNNNNNN, in the arena. */
const char *ml_snapshot_path(ml_arena *a, const char *dir, int64_t iteration);
/* The number of "iter_0000012", or ML_NONE for any other name. */
int64_t ml_snapshot_number(const char *name);

/* Checks that a snapshot has exactly the files listed in its checksums, and verifies each
 * checksum. */
ml_status ml_snapshot_check(const char *path, ml_err *err);

/* The name in a line of the checksum file, "CHECKSUM BYTES NAME"; empty: malformed line. */
ml_str ml_snapshot_listed(ml_str line);

/* Removes unfinished files of dead processes in a directory of snapshots, and completes a
 * replacement that was interrupted.  The caller is the only process that writes there. */
ml_status ml_snapshot_tidy(const char *dir, ml_err *err);

/* The destination of a load. */
typedef struct ml_snapshot_into {
    ml_trainer *trainer; /* its weights were loaded from the same path */
    ml_weights *ref;     /* a reference that changes; NULL: none does */
    bool no_optim;       /* do not load the optimizer state */
} ml_snapshot_into;

/* state receives the part outside the trainer, in the arena.  Each rank loads its ranges of
 * the optimizer's state; they need not be as many as those that saved. */
ml_status ml_snapshot_load(const char *path, const ml_snapshot_into *into,
                           ml_save_state *state, ml_arena *a, ml_err *err);

#endif
