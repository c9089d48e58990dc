/* attn_kern.h - attention of one unit of work: rows of one sequence, one KV head. */
#ifndef ML_BACKEND_CPU_ATTN_KERN_H
#define ML_BACKEND_CPU_ATTN_KERN_H

#include <stdint.h>

typedef struct ml_attn_kern {
    int32_t block_rows; /* query rows (positions x heads) of a unit */
} ml_attn_kern;

#endif
