/* stored.cuh - V consecutive numbers in registers as they are in memory: packs of bf16 have half the
 * registers of f32, and are moved without conversion. */
#ifndef ML_BACKEND_CUDA_STORED_CUH
#define ML_BACKEND_CUDA_STORED_CUH

#include "backend/cuda/common.cuh"

template <class T, int V> struct ml_stored {
    ml_pack<T, V> p;

    __device__ void clear(void) {
#pragma unroll
        for (int k = 0; k < V; k++)
            p.v[k] = ml_as<T>(0.0f);
    }
    __device__ void load(const T *from) {
        p = *(const ml_pack<T, V> *)from;
    }
    __device__ void store(T *to) const {
        *(ml_pack<T, V> *)to = p;
    }
    __device__ void get(float (&to)[V]) const {
#pragma unroll
        for (int k = 0; k < V; k++)
            to[k] = ml_f32(p.v[k]);
    }
    /* Rounds. */
    __device__ void set(const float (&from)[V]) {
#pragma unroll
        for (int k = 0; k < V; k++)
            p.v[k] = ml_as<T>(from[k]);
    }
    __device__ void forget(void) {}
};

template <> struct ml_stored<bf16, 8> {
    uint32_t w[4];

    __device__ void clear(void) {
        w[0] = w[1] = w[2] = w[3] = 0;
    }
    __device__ void load(const bf16 *from) {
        uint4 p = *(const uint4 *)from;
        w[0] = p.x;
        w[1] = p.y;
        w[2] = p.z;
        w[3] = p.w;
    }
    __device__ void store(bf16 *to) const {
        *(uint4 *)to = make_uint4(w[0], w[1], w[2], w[3]);
    }
    __device__ void get(float (&to)[8]) const {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            to[2 * k] = __uint_as_float(w[k] << 16);
            to[2 * k + 1] = __uint_as_float(w[k] & 0xffff0000u);
        }
    }
    __device__ void set(const float (&from)[8]) {
#pragma unroll
        for (int k = 0; k < 4; k++) {
            __nv_bfloat162 p = __floats2bfloat162_rn(from[2 * k], from[2 * k + 1]);
            w[k] = *(uint32_t *)&p;
        }
    }
    /* The compiler must not keep the numbers that get() gave for its next call. */
    __device__ void forget(void) {
#pragma unroll
        for (int k = 0; k < 4; k++)
            asm volatile("" : "+r"(w[k]));
    }
};

#endif
