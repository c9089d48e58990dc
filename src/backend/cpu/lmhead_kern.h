/* lmhead_kern.h - softmax over a tile of the vocabulary, forward and backward. */
#ifndef ML_BACKEND_CPU_LMHEAD_KERN_H
#define ML_BACKEND_CPU_LMHEAD_KERN_H

#include <stdint.h>

typedef struct ml_lmhead_kern {
    int32_t vtile; /* columns of a tile */
} ml_lmhead_kern;

#endif
