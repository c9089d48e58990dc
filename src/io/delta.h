/* delta.h - what turns the bytes of one tensor into those of its next version.
 *
 * xor: old bytes XOR new bytes.  overwrite: how many bytes changed, their positions, their new
 * values; numbers are little-endian u32.  Either is compressed with zstd, which makes little of
 * the zeros of the one and of the order of the other.
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

/* "xor", "overwrite"; NULL at the end. */
extern const char *const ml_delta_name[ML_N_DELTA + 1];
bool ml_delta_find(ml_delta_encoding *out, ml_str name);

/* Appends the delta of n bytes; *n_changed are different, and with none nothing is appended. */
ml_status ml_delta_encode(ml_text *out, ml_delta_encoding how, const void *old,
                          const void *now, size_t n, size_t *n_changed, ml_err *err);

/* The way there, in place.  `name` is the tensor's, for the sentence.  ML_EFORMAT: it is no
 * delta of n bytes; some may have changed. */
ml_status ml_delta_apply(void *bytes, size_t n, ml_delta_encoding how, ml_str delta,
                         const char *name, ml_err *err);

#endif
