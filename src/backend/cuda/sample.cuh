/* sample.cuh - draws as the device sees them. */
#ifndef ML_BACKEND_CUDA_SAMPLE_CUH
#define ML_BACKEND_CUDA_SAMPLE_CUH

#include "backend/cuda/lmhead.cuh"

typedef struct ml_ask {
    const float *logits;
    double u;
    float temperature; /* drawn with; 0: the largest */
    float report;      /* temperature of the log-probability */
    int32_t given;     /* or -1: draw */
    bool filtered;     /* what follows leaves only a part of the tokens */
    uint32_t top_k;
    float top_p, near; /* near: distance from the largest scaled logit, by min-p */
} ml_ask;

/* filter.cu: what the filtered of n asks draw, -1 where nothing weighs anything. */
void ml_filter_draws(ml_cuda_stream *s, int32_t *chosen, const ml_ask *asks, int n,
                     int64_t n_vocab);

#endif
