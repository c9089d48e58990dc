/* delta.h - encodes the difference between two versions of a tensor.
 *
 * xor: old bytes XOR new bytes.  overwrite: the number of changed bytes, their positions,
 * their new values; numbers are little-endian u32.  Both are compressed with zstd, which
 * compresses the zeros of the former and the sorted positions of the latter well.
 *
 * thread: any. */
#ifndef ML_IO_DELTA_H
#define ML_IO_DELTA_H

#include <stdbool.h>
#include <stdint.h>

#include "base/err.h"
#include "base/str.h"

typedef enum ml_delta_encoding {
    ML_DELTA_XOR,
    ML_DELTA_OVERWRITE,
    ML_N_DELTA
} ml_delta_encoding;

/* "xor", "overwrite"; NULL-terminated. */
extern const char *const ml_delta_name[ML_N_DELTA + 1];
bool ml_delta_find(ml_delta_encoding *out, ml_str name);

/* Appends the delta of n bytes; *n_changed of them differ; if none does, nothing is
 * appended. */
ml_status ml_delta_encode(ml_text *out, ml_delta_encoding how, const void *old,
                          const void *now, size_t n, size_t *n_changed, ml_err *err);

/* Applies a delta in place.  `name` is the tensor's, for messages.  ML_EFORMAT: not a
 * delta of n bytes; some bytes may have changed. */
ml_status ml_delta_apply(void *bytes, size_t n, ml_delta_encoding how, ml_str delta,
                         const char *name, ml_err *err);

#endif
