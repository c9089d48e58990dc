/* gemm_fragments.cuh - A fragments of quantized weights for gemm_codes.cu: made by helper warps, or by the
 * chains with few instructions.
 *
 * Bits 4 to 7 of a bf16 alone are code times 2^-129: a subnormal number, or one of the least exponent.  So
 * the value of a 4-bit code is one FMA: (code 2^-129) times (scale 2^129) minus 8 scale.  The factors and the
 * addend are exact and the FMA rounds once: these are the bits of (code - 8) times scale.  A scale of 1/2 or
 * more overflows instead and makes all sums that it has part in infinite or NaN; the kernel computes such a
 * tile again from the values of `exact`. */
#ifndef ML_BACKEND_CUDA_GEMM_GEMM_FRAGMENTS_CUH
#define ML_BACKEND_CUDA_GEMM_GEMM_FRAGMENTS_CUH

#include "backend/cuda/gemm/gemm_tiles.cuh"

/* The scales of outputs 2 g and 2 g + 1. */
struct int4_factors {
    __nv_bfloat162 times, addend;

    __device__ int4_factors(uint32_t scales) {
        const __nv_bfloat162 s = *(const __nv_bfloat162 *)&scales;
        times = __hmul2(__hmul2(s, twice(0x1p64f)), twice(0x1p65f));
        addend = __hmul2(s, twice(-8.0f));
    }

    __device__ static __nv_bfloat162 twice(float x) {
        return __float2bfloat162_rn(x);
    }

    /* The codes in bits 4 to 7 of the halves of a word, of output 2 g (0) or 2 g + 1 (1). */
    template <int OUTPUT> __device__ uint32_t values(uint32_t codes) const {
        const uint32_t x = codes & 0x00f000f0;
        const __nv_bfloat162 v =
            __hfma2(*(const __nv_bfloat162 *)&x,
                    OUTPUT ? __high2bfloat162(times) : __low2bfloat162(times),
                    OUTPUT ? __high2bfloat162(addend) : __low2bfloat162(addend));
        return *(const uint32_t *)&v;
    }
};

/* ---- fragments made by the chains ---- */

/* A lane's inputs are not 4 q to 4 q + 3 of each 16 but those of two bytes of a word: 0, 4, 1, 5 or 2, 6, 3,
 * 7 of each 8.  So words need no PRMT; x lies in shared memory in the same order.  Stages have twice the
 * inputs: a wait for one takes as long as several mma steps. */
template <int GROUP> struct permuted_int4 : int4_weights<GROUP, 2 * STEP> {
    typedef int4_weights<GROUP, 2 * STEP> base;
    using base::base;
    using typename base::fetched;
    enum { PERMUTED = 1, OVERFLOWS = 1 };

    __device__ permuted_int4() {}

    __device__ static uint2 own_bytes(uint2 w) {
        const unsigned by = threadIdx.x % 2 * 8;
        return make_uint2(w.x >> by, w.y >> by);
    }

    __device__ static void fragment(uint32_t (&a)[4], const fetched &r, int i) {
        const int4_factors s(r.scale[i * 16 / base::PER]);
        const uint2 w = own_bytes(r.word[i]);

        a[0] = s.values<0>(w.x << 4);
        a[1] = s.values<1>(w.y << 4);
        a[2] = s.values<0>(w.x);
        a[3] = s.values<1>(w.y);
    }

    __device__ static void exact(uint32_t (&a)[4], const fetched &r, int i) {
        const __nv_bfloat162 s = *(const __nv_bfloat162 *)&r.scale[i * 16 / base::PER];
        const uint2 w = own_bytes(r.word[i]);

        a[0] = base::pair(w.x, __low2bfloat162(s));
        a[1] = base::pair(w.y, __high2bfloat162(s));
        a[2] = base::pair(w.x >> 4, __low2bfloat162(s));
        a[3] = base::pair(w.y >> 4, __high2bfloat162(s));
    }
};

/* ---- fragments made by helpers ---- */

/* A fragment of 16 inputs has a unit of 16 bytes for each lane, in this order: the stores of helpers, of
 * which eight lanes have different g, or four of the g / 2 and two q, and the chain's loads have no bank
 * conflicts. */
__device__ static inline int unit_of(int lane) {
    return lane ^ lane / 8 ^ lane / 8 * 2;
}

enum { FRAGMENT_BYTES = 32 * (int)sizeof(uint4) };

/* What a lane of a helper holds of a step of STEP inputs, in registers: `load` starts its loads, `make`
 * stores its part of the fragments.  A lane has other codes than it has in the mma: loads are whole
 * sectors, and no code is read twice.  STEPS_MADE: of a slot of fragments, at most. */
template <class W> struct maker;

/* Lane: words of outputs 2 g and 2 g + 1 of every fourth group of eight inputs. */
template <int GROUP> struct maker<int4_weights<GROUP>> {
    typedef int4_weights<GROUP> W;
    enum { STEPS_MADE = 2, OVERFLOWS = 1, PER_LOAD = 32, LOADS = STEP / PER_LOAD };

    uint2 word[LOADS];
    uint32_t scale[LOADS];

    __device__ static void exact(uint32_t (&a)[4], const typename W::fetched &r, int i) {
        W::fragment(a, r, i);
    }

    __device__ void load(const W &w, int step) {
        const int lane = (int)threadIdx.x % 32;
        const unsigned char *code = w.code + (int64_t)step * W::CODES + lane * 8;
        const unsigned char *scales = w.panel + (int64_t)step * W::SCALES + lane % 8 * 4;

#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            asm volatile("ld.global.nc.L1::no_allocate.v2.u32 {%0, %1}, [%2];"
                         : "=r"(word[i].x), "=r"(word[i].y)
                         : "l"(code + i * 32 * 8));
            if (i * PER_LOAD % GROUP == 0)
                asm volatile("ld.global.nc.u32 %0, [%1];"
                             : "=r"(scale[i * PER_LOAD / GROUP])
                             : "l"(scales + i * PER_LOAD / GROUP * TILE * 2));
        }
    }

    /* Of lane q: two bytes of both words. */
    __device__ static uint4 unit(uint2 w, const int4_factors &s, unsigned first,
                                 unsigned second) {
        const uint2 low = make_uint2(w.x << 4, w.y << 4);
        return make_uint4(s.values<0>(__byte_perm(low.x, w.x, first)),
                          s.values<1>(__byte_perm(low.y, w.y, first)),
                          s.values<0>(__byte_perm(low.x, w.x, second)),
                          s.values<1>(__byte_perm(low.y, w.y, second)));
    }

    __device__ void make(unsigned char *to) const {
        const int lane = (int)threadIdx.x % 32, g = lane % 8, q = lane / 8 % 2 * 2;
        unsigned char *at = to + lane / 16 * FRAGMENT_BYTES;

#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            const int4_factors s(scale[i * PER_LOAD / GROUP]);
            uint4 *fragment = (uint4 *)(at + 2 * i * FRAGMENT_BYTES);
            fragment[unit_of(4 * g + q)] = unit(word[i], s, 0x0400, 0x0501);
            fragment[unit_of(4 * g + q + 1)] = unit(word[i], s, 0x0602, 0x0703);
        }
    }
};

/* Lane: four outputs of four inputs of every second 16. */
template <bool INTEGER> struct maker<byte_weights<INTEGER>> {
    typedef byte_weights<INTEGER> W;
    enum { STEPS_MADE = 1, OVERFLOWS = 0, PER_LOAD = 32, LOADS = STEP / PER_LOAD };

    uint32_t code[LOADS][4]; /* of an input each */
    uint4 scale[STEP / 128];

    __device__ void load(const W &w, int step) {
        const int lane = (int)threadIdx.x % 32;
        const unsigned char *from =
            w.code + (int64_t)step * W::CODES + lane / 4 * 4 * TILE + lane % 4 * 4;
        const unsigned char *scales = w.panel + (int64_t)step * W::SCALES + lane % 4 * 16;

#pragma unroll
        for (int i = 0; i < LOADS; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                asm volatile("ld.global.nc.u32 %0, [%1];"
                             : "=r"(code[i][j])
                             : "l"(from + (i * PER_LOAD + j) * TILE));
#pragma unroll
        for (int i = 0; i < STEP / 128; i++)
            asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(scale[i].x), "=r"(scale[i].y), "=r"(scale[i].z),
                           "=r"(scale[i].w)
                         : "l"(scales + i * TILE * 4));
    }

    /* Of the first two outputs, or the others. */
    template <bool OTHERS> __device__ uint4 unit(int i) const {
        const uint4 s = scale[i * PER_LOAD / 128];
        uint32_t a[4];

#pragma unroll
        for (int j = 0; j < 2; j++) {
            uint32_t c =
                __byte_perm(code[i][2 * j], code[i][2 * j + 1], OTHERS ? 0x7362 : 0x5140);
            if (INTEGER)
                c ^= 0x80808080;
            a[2 * j] = W::template pair<false>(c, OTHERS ? s.z : s.x);
            a[2 * j + 1] = W::template pair<true>(c, OTHERS ? s.w : s.y);
        }
        return make_uint4(a[0], a[1], a[2], a[3]);
    }

    __device__ void make(unsigned char *to) const {
        const int lane = (int)threadIdx.x % 32, g = lane % 4 * 2, q = lane / 4 % 4;
        unsigned char *at = to + lane / 16 * FRAGMENT_BYTES;

#pragma unroll
        for (int i = 0; i < LOADS; i++) {
            uint4 *fragment = (uint4 *)(at + 2 * i * FRAGMENT_BYTES);
            fragment[unit_of(4 * g + q)] = unit<false>(i);
            fragment[unit_of(4 * g + 4 + q)] = unit<true>(i);
        }
    }
};

#endif
