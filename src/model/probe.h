/* probe.h - a short measurement of a backend: does it compute the bits that others of its
 * kind compute, and how fast.
 *
 * thread: the owner of the backend. */
#ifndef ML_MODEL_PROBE_H
#define ML_MODEL_PROBE_H

#include "backend/backend.h"
#include "base/checksum.h"

typedef struct ml_probe {
    /* Of the log-probs and entropies of one decoder layer with fixed weights and tokens:
     * equal for all machines whose backends have the same bits. */
    char hash[ML_CHECKSUM_TEXT];
    double flops; /* of that forward pass, per second */
    double bytes; /* that a copy in device memory reads and writes, per second */
} ml_probe;

ml_status ml_probe_run(ml_probe *out, ml_backend *be, ml_err *err);

#endif
