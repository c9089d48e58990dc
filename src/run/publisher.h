/* publisher.h - gives the trained weights to the engines that generate.
 *
 *     shared  engine and trainer read one set of weights: a publication is a new version
 *     copy    the engine has its own set in this process: a publication copies
 *     quantized  the engine has a quantized copy: a publication quantizes
 *     moves   the ranks of the engines have other rows than those that train, or are other
 *             ranks: rows are sent (model/moves.h), unless they lie in the memory of both
 *     tcp     engines of other processes get them over TCP (gen/weight_source.h)
 *     disk    engines of other processes read a directory that they see under the same
 *             path: full weights, or deltas between versions
 *
 * thread: the loop's. */
#ifndef ML_RUN_PUBLISHER_H
#define ML_RUN_PUBLISHER_H

#include "rl/rollout/async.h"
#include "run/generator.h"

typedef struct ml_publisher ml_publisher;
struct ml_publisher {
    /* Private to the implementation; callers use the functions below. */
    ml_status (*send)(ml_publisher *p, const ml_weights *w, ml_err *err);
    void (*close)(ml_publisher *p);
    ml_generator *generator;   /* whose engines get the weights */
    const ml_weights *weights; /* that generate in this process; NULL: in others */
    uint64_t version;          /* that generates */
    bool frozen;               /* the engines keep the weights that they have */
    bool moves;                /* `weights` are a rank's part */
    ml_async *async;           /* the rollout that counts versions; NULL: none */
    const ml_weights *adapter; /* the whole one, if this rank trains a part of it */
    size_t bytes;              /* of host memory besides the weights above */
    /* A multi-token prediction module that is trained, and the engine's copy of it, if the
     * engine runs while the trainer does; NULL, zeros: none. */
    const ml_weights *mtp;
    ml_weights mtp_copy;
    ml_arena mtp_arena;
};

/* The generator has started, on `weights` if it is in this process; engines of other
 * processes get the weights w now. */
ml_status ml_publisher_start(ml_publisher *p, ml_generator *g, const ml_weights *w,
                             ml_err *err);
/* Drafts of the engine in this process come from the module with the weights w: it reads
 * them, or with `own` a copy, which each publication renews.  out: what it reads. */
ml_status ml_publisher_take_mtp(ml_publisher *p, const ml_weights *w, bool own,
                                ml_backend *be, const ml_weights **out, ml_err *err);
/* Renews the copy, if there is one; between two steps of the engine. */
ml_status ml_publisher_copy_mtp(ml_publisher *p, ml_err *err);
/* Returns when all engines have these weights; those of other processes have confirmed
 * that they are bit-identical. */
ml_status ml_publisher_publish(ml_publisher *p, const ml_weights *w, ml_err *err);
void ml_publisher_close(ml_publisher *p); /* NULL is allowed */

ml_status ml_publisher_shared(ml_publisher **out, const ml_weights *w, ml_err *err);
/* The engine reads the weights w, and a copy of the adapter on top of them, which alone is
 * copied with each publication. */
ml_status ml_publisher_adapter(ml_publisher **out, const ml_weights *w, const ml_lora *l,
                               ml_backend *be, ml_err *err);
/* The engine reads the weights w without their adapter, as version 0, which is never one of
 * training: nothing is published. */
ml_status ml_publisher_base(ml_publisher **out, const ml_weights *w, ml_err *err);
/* The backend must outlive it. */
ml_status ml_publisher_copy(ml_publisher **out, const ml_weights *w, ml_backend *be,
                            ml_err *err);

/* The engine reads a quantized copy of the weights w, which each publication quantizes again.
 * own: the trainer changes w while the engine runs, so that what is not quantized is copied,
 * too. */
ml_status ml_publisher_quantized(ml_publisher **out, const ml_weights *w, const ml_spec *s,
                                 ml_weight_dtype dtype, bool own, ml_backend *be,
                                 ml_err *err);

/* Collective; sends the weights once.  check: the received rows are overwritten before each
 * publication, and compared with the senders' afterwards. */
ml_status ml_publisher_moves(ml_publisher **out, ml_generator *g, const ml_run_ranks *ranks,
                             bool check, ml_err *err);

/* Engines reach this process under `address`; timeout_s: of a wait for one of them. */
ml_status ml_publisher_tcp(ml_publisher **out, const char *address, int64_t bucket_bytes,
                           double timeout_s, ml_train_run *run, ml_err *err);

/* For ranks that have parts of the weights: rank 0 collects them, and `inner` gives them to
 * its engines; NULL on the other ranks.  Takes over inner.  Collective. */
ml_status ml_publisher_collect(ml_publisher **out, ml_publisher *inner, ml_train_run *run,
                               const ml_run_ranks *ranks, int64_t bucket_bytes,
                               ml_err *err);

/* The run trains an adapter: engines of other processes get it alone, and have the base, whose
 * checksum they check.  dir: where they read it, or NULL: over TCP, as above. */
ml_status ml_publisher_remote_adapter(ml_publisher **out, const char *dir,
                                      const char *address, double timeout_s,
                                      ml_train_run *run, ml_err *err);

/* Strings must outlive it. */
ml_status ml_publisher_disk(ml_publisher **out, const ml_publish_opts *o, ml_train_run *run,
                            ml_err *err);

#endif
