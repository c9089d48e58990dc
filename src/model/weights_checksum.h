/* weights_checksum.h - a checksum of the values in a checkpoint.
 *
 * weights.crc64 in a checkpoint's directory is a CRC-64 of the values, as f32, row by row
 * in the order of the spec, of the set the checkpoint was written from.  Loading compares
 * it, so that a file damaged in transit, or read as another dtype, is detected before it
 * is used.  A directory without one is allowed.
 *
 * thread: any. */
#ifndef ML_MODEL_WEIGHTS_CHECKSUM_H
#define ML_MODEL_WEIGHTS_CHECKSUM_H

#include "model/weights.h"

/* The checksum itself. */
ml_status ml_weights_crc64(uint64_t *out, const ml_weights *w, const ml_spec *s,
                           ml_err *err);

ml_status ml_weights_checksum(const ml_weights *w, const ml_spec *s, const char *dir,
                              ml_err *err);
ml_status ml_weights_check_checksum(const ml_weights *w, const ml_spec *s, const char *dir,
                                    ml_err *err);

#endif
