/* snapshot_priv.h - shared by writing and reading snapshots. */
#ifndef ML_TRAIN_SNAPSHOT_PRIV_H
#define ML_TRAIN_SNAPSHOT_PRIV_H

#include "base/dir.h"
#include "model/tensors.h"
#include "train/snapshot.h"

#define ML_SNAPSHOT_TRACKER "latest_checkpointed_iteration.txt"
#define ML_SNAPSHOT_TENSORS "trainer.safetensors"
#define ML_SNAPSHOT_MTP "trainer_mtp.safetensors"
#define ML_SNAPSHOT_STATE "state.json"
#define ML_SNAPSHOT_SUMS "checksums.crc64"
#define ML_SNAPSHOT_TEMP ".tmp-" /* suffix of an incomplete directory's name */

/* The weight sets in trainer.safetensors: "master.NAME" and so on; those of the optimizer
 * (update_rule.h), and */
enum {
    ML_STATE_REFERENCE = ML_STATE_KINDS, /* the weights of a reference that changes */
    ML_STATE_SETS
};
extern const char *const ml_snapshot_prefix[ML_STATE_SETS];

/* The name of the tensor of set k for member e of a parameter, in buf. */
const char *ml_snapshot_tensor(char *buf, size_t cap, int k, const ml_param *p, int32_t e);

/* The files of a snapshot, those of the head with its directory before their names. */
ml_status ml_snapshot_files(ml_names *out, const char *path, ml_arena *a, ml_err *err);
/* Appends "CHECKSUM BYTES NAME" of a file. */
ml_status ml_snapshot_sum(ml_text *out, const char *path, const char *name, ml_err *err);

/* A view of a trainer's state, or a copy of it.  With several ranks each one has its ranges
 * of the optimizer's state, and perhaps of the weights; rank 0 writes, and gets the others'
 * on the way. */
typedef struct ml_save_buffer {
    const ml_spec *spec;
    const ml_lora *lora; /* the adapter whose spec and weights these are; NULL: a model's */
    const ml_checkpoint *from;
    ml_optimizer *optim;
    const char *file; /* of the sets below */
    ml_weights weights;
    ml_weights set[ML_STATE_SETS]; /* matrices of rows (ml_shard_view); a set without
                                      tensors is not saved */
    bool divided[ML_STATE_SETS]; /* over the ranks, or stored in another format than f32 */
    bool own_master;
    int64_t n_step;
    void *stage; /* memory of the copy */
    size_t stage_bytes;
    /* Weights that ranks divide, and that are not copied: `weights` has addresses on rank 0,
     * but only the tensor that is being written has memory there. */
    bool streamed;
    ml_weights parts; /* this rank's */
    void *space;
    size_t space_bytes;
    ml_named last; /* the tensor that has memory; its name NULL: none */
} ml_save_buffer;

/* Takes a view of an optimizer's weights; `optim`: with its state.  lora, ref: the adapter
 * that the weights are, a reference, or NULL. */
void ml_save_buffer_take(ml_save_buffer *m, ml_optimizer *o, const ml_lora *lora,
                         const ml_checkpoint *from, const ml_weights *ref, bool optim,
                         ml_arena *a);
/* The same of a multi-token prediction module: its own weights, without the trunk's. */
void ml_save_buffer_take_mtp(ml_save_buffer *m, ml_mtp_trainer *t,
                             const ml_checkpoint *from, bool optim, ml_arena *a);
/* Copies the state to rank 0; the trainer may continue afterwards.  Collective. */
ml_status ml_save_buffer_copy(ml_save_buffer *m, ml_arena *a, ml_err *err);
/* Prepares weights that ranks divide for writing without a copy of all: between this and
 * ml_save_buffer_end, rank 0 calls ml_save_buffer_bring (ml_export_opts.bring, with m) before it
 * reads a tensor, and the others ml_save_buffer_serve, which returns at the end.  fetch may be
 * followed by several of these.  Collective. */
ml_status ml_save_buffer_fetch(ml_save_buffer *m, ml_arena *a, ml_err *err);
ml_status ml_save_buffer_bring(void *m, const ml_named *t, ml_err *err);
ml_status ml_save_buffer_end(ml_save_buffer *m, ml_err *err);
ml_status ml_save_buffer_serve(ml_save_buffer *m, ml_err *err);
/* Rank 0 writes everything but the weights as a file in dir; no file if there
 * is nothing.  Without a copy the other ranks send their ranges: then it is collective. */
ml_status ml_save_buffer_write(ml_save_buffer *m, const char *dir, ml_arena *a,
                               ml_err *err);
void ml_save_buffer_release(ml_save_buffer *m); /* zero-initialized is allowed */

#endif
