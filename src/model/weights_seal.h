/* weights_seal.h - a checkpoint says which numbers it holds.
 *
 * weights.crc64 in a checkpoint's directory is a checksum of the values, as f32, row by row in
 * the order of the spec, of the set it was written from.  Whoever reads the checkpoint into
 * memory compares: so a file that was damaged on its way, or that is read as another dtype, is
 * found before anything is computed with it.  A directory without one is fine.
 *
 * thread: any. */
#ifndef ML_MODEL_WEIGHTS_SEAL_H
#define ML_MODEL_WEIGHTS_SEAL_H

#include "model/weights.h"

ml_status ml_weights_checksum(const ml_weights *w, const ml_spec *s, const char *dir,
                              ml_err *err);
ml_status ml_weights_check_checksum(const ml_weights *w, const ml_spec *s, const char *dir,
                                    ml_err *err);

#endif
