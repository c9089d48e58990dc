/* mtp_trunk.h - the trunk's parameters that a module uses (model/mtp.h), where ranks divide
 * them, or the stages of a pipeline: each rank of the last stage, which runs the module, has a
 * whole copy, which is gathered once for each step.
 *
 * thread: the backend's stream. */
#ifndef ML_TRAIN_MTP_TRUNK_H
#define ML_TRAIN_MTP_TRUNK_H

#include "model/ranks.h"

typedef struct ml_mtp_trunk {
    const ml_spec *spec;  /* of the trunk */
    const ml_weights *of; /* this rank's part of the trunk's weights */
    ml_shard_map map;     /* of the trunk */
    int32_t rank;
    int32_t *param;  /* [n] of the module's set, in the arena */
    int32_t *theirs; /* [n] the same parameters of the trunk */
    int32_t *from;   /* [n] the stage whose part this one takes */
    int32_t *member; /* [ranks->size] the ranks of this stage that divide them */
    int32_t stage, last;
    ml_comm *pipe; /* the ranks of this one's pipeline */
    int32_t n;     /* 0: the module refers to the trunk's own tensors */
    ml_ranks ranks;
    ml_buf buf;
} ml_mtp_trunk;

/* m: the module's spec; specs, weights and mesh must outlive it; mesh NULL: one rank; stage:
 * of the trunk's nodes, as in shard_map.h. */
void ml_mtp_trunk_open(ml_mtp_trunk *out, const ml_spec *m, const ml_spec *trunk,
                       const ml_weights *of, const ml_mesh *mesh, const int32_t *stage,
                       ml_backend *be, ml_arena *a);
void ml_mtp_trunk_close(ml_mtp_trunk *x); /* zero-initialized is allowed */

/* Takes the memory of the copies, to which the module's set refers from then on; frees it. */
ml_status ml_mtp_trunk_take(ml_mtp_trunk *x, ml_weights *module, ml_err *err);
void ml_mtp_trunk_release(ml_mtp_trunk *x);
/* The trunk's present values.  Collective. */
ml_status ml_mtp_trunk_gather(ml_mtp_trunk *x, const ml_weights *module, ml_err *err);

/* Bytes of the copies; c: the trunk's checkpoint. */
size_t ml_mtp_trunk_bytes(const ml_spec *m, const ml_checkpoint *c, ml_weight_dtype dtype,
                          const ml_mesh *mesh, ml_layout linear);

#endif
