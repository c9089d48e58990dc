/* memory.h - measures memory: of the process, or of the device that models run on.
 *
 * thread: any. */
#ifndef ML_TRAIN_MEMORY_H
#define ML_TRAIN_MEMORY_H

#include "backend/backend.h"

/* Free memory of the device; for the CPU see host_memory.h. */
size_t ml_memory_available(const ml_backend *be);

/* Resident memory of the process. */
size_t ml_memory_resident(void);

/* Of the memory that models run in: the amount in use before any model is loaded, and the
 * peak.  For a device, both include its own overhead. */
size_t ml_memory_base(const ml_backend *be);
size_t ml_memory_peak(const ml_backend *be);

#endif
