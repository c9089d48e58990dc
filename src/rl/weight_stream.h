/* weight_stream.h - weights for engines elsewhere as what changed since the version before.
 *
 * Versions are numbered from 1 on, in a directory of their own (io/version_dir.h); 0 is the
 * checkpoint the run began with, which engines have.  The bytes of the newest version are kept
 * in memory, and the next one is what differs from them.  A version is whole where nothing can
 * be said to be its base, where somebody wants it whole, and where all deltas since the last
 * whole one would be larger than it.  What is older than that one is removed.
 *
 * thread: one owner. */
#ifndef ML_RL_WEIGHT_STREAM_H
#define ML_RL_WEIGHT_STREAM_H

#include "io/delta_writer.h"
#include "model/weights.h"

typedef struct ml_weight_stream ml_weight_stream;

typedef struct ml_weight_stream_opts {
    ml_delta_opts delta; /* its source is emptied of versions at open */
    const ml_spec *spec;
    const ml_checkpoint *from; /* what engines began with */
} ml_weight_stream_opts;

ml_status ml_weight_stream_open(ml_weight_stream **out, const ml_weight_stream_opts *o,
                                ml_err *err);
void ml_weight_stream_close(ml_weight_stream *s); /* NULL is fine */

/* What was published. */
typedef struct ml_weight_update {
    int64_t version;
    const char *dir; /* NULL: nothing was written, engines have version 0 */
    bool is_whole;
    size_t n_changed, n_byte; /* of all bytes */
    size_t n_written;         /* a delta's */
} ml_weight_update;

ml_status ml_weight_stream_publish(ml_weight_update *out, ml_weight_stream *s,
                                   const ml_weights *w, bool whole, ml_err *err);

#endif
