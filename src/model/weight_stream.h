/* weight_stream.h - publishes weights to remote engines as deltas to the previous version.
 *
 * Versions are numbered from 1, in their own directory (io/version_dir.h); 0 is the
 * checkpoint with which the run began and which engines have.  The stream keeps the bytes
 * of the newest version in memory and writes the next one as the difference.  It writes a
 * full version if there is no known base, if the caller requests one, or if all deltas
 * since the last full version would be larger than a full one.  Versions older than the
 * last full one are removed.
 *
 * thread: one owner. */
#ifndef ML_MODEL_WEIGHT_STREAM_H
#define ML_MODEL_WEIGHT_STREAM_H

#include "io/delta_writer.h"
#include "model/weights.h"

typedef struct ml_weight_stream ml_weight_stream;

typedef struct ml_weight_stream_opts {
    ml_delta_opts delta; /* versions in its source are removed at open */
    const ml_spec *spec;
    const ml_checkpoint *from; /* the checkpoint with which engines started */
} ml_weight_stream_opts;

ml_status ml_weight_stream_open(ml_weight_stream **out, const ml_weight_stream_opts *o,
                                ml_err *err);
void ml_weight_stream_close(ml_weight_stream *s); /* NULL is allowed */

/* The result of publishing a version. */
typedef struct ml_weight_update {
    int64_t version;
    const char *dir; /* NULL: nothing was written, engines have version 0 */
    bool is_whole;
    size_t n_changed, n_byte; /* of all bytes */
    size_t n_written;         /* bytes of a delta */
} ml_weight_update;

ml_status ml_weight_stream_publish(ml_weight_update *out, ml_weight_stream *s,
                                   const ml_weights *w, bool whole, ml_err *err);

#endif
