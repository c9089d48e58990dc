/* moe.cuh - limits of the mixture of experts. */
#ifndef ML_BACKEND_CUDA_MOE_CUH
#define ML_BACKEND_CUDA_MOE_CUH

#include "backend/cuda/common.cuh"

enum { ML_MOE_EXPERTS = 512, ML_MOE_GROUPS = 64, ML_MOE_TOP = 64 };

#endif
