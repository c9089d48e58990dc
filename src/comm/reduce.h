/* reduce.h - the tree of ML_REDUCE_TREE (comm.h) over arrays in host memory. */
#ifndef ML_COMM_REDUCE_H
#define ML_COMM_REDUCE_H

#include "comm/comm.h"

/* out = tree of in[0], ..., in[n - 1], `count` elements each; out may be one of them.  u8 is
 * not a number: a bug. */
void ml_reduce_tree(void *out, const void *const *in, int32_t n, int64_t count,
                    ml_dtype dtype, ml_reduce_op op);

#endif
