/* sample.cuh - parameters of a draw on the device. */
#ifndef ML_BACKEND_CUDA_SAMPLE_SAMPLE_CUH
#define ML_BACKEND_CUDA_SAMPLE_SAMPLE_CUH

#include "backend/cuda/gemm/lmhead.cuh"

typedef struct ml_device_draw {
    const float *logits;
    double u;
    float temperature; /* of the draw; 0: greedy */
    float report;      /* temperature of the reported log-probability */
    int32_t given;     /* the token; -1: draw it */
    bool filtered;     /* the filters below apply */
    uint32_t top_k;
    float top_p, near; /* near: min-p as a distance from the largest scaled logit */
    uint32_t *bits;    /* of the tokens that could be drawn; NULL: not wanted */
} ml_device_draw;

/* filter.cu: draws for those of n draws that are filtered; -1 where all weights are 0.  Writes
 * their bits, where they are wanted. */
void ml_filter_draws(ml_cuda_stream *s, int32_t *chosen, const ml_device_draw *draws, int n,
                     int64_t n_vocab);

#endif
