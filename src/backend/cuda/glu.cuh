/* glu.cuh - the gate functions of GLU, and their derivatives. */
#ifndef ML_BACKEND_CUDA_GLU_CUH
#define ML_BACKEND_CUDA_GLU_CUH

#include "backend/cuda/common.cuh"

/* Of a pair (gate, up): y = act up.  Backward: dg = dy up slope, du = dy act keep. */
struct ml_gate {
    float act, slope; /* of the gate, and its derivative */
    float up, keep;   /* the other input as used; keep: 0 where it was clamped, else 1 */
};

__device__ static inline ml_gate ml_gelu_gate(float g, float u) {
    const float k = 0.7978845608028654f;
    float q = 0.044715f * (g * g), t = ml_tanh(k * fmaf(q, g, g));
    ml_gate r = { (0.5f * g) * (1.0f + t), 0.0f, u, 1.0f };

    r.slope = fmaf((0.5f * g) * ((1.0f - t) * (1.0f + t)), k * fmaf(3.0f, q, 1.0f),
                   0.5f * (1.0f + t));
    return r;
}

__device__ static inline ml_gate ml_clamped_gate(float g, float u) {
    float low = g > 7.0f ? 7.0f : g, cut = u > 7.0f ? 7.0f : u < -7.0f ? -7.0f : u;
    float sig = ml_sigmoid(1.702f * low), act = low * sig;
    ml_gate r = { act, fmaf(1.702f * act, 1.0f - sig, sig), cut + 1.0f,
                  u == cut ? 1.0f : 0.0f };

    if (g > 7.0f)
        r.slope = 0.0f;
    return r;
}

/* SwiGLU whose inputs are clamped: the gate above, the other one on both sides. */
__device__ static inline ml_gate ml_limited_gate(float g, float u, float limit) {
    float low = g > limit ? limit : g, cut = u > limit ? limit : u < -limit ? -limit : u;
    float sig = ml_sigmoid(low), act = low * sig;
    ml_gate r = { act, g > limit ? 0.0f : fmaf(act, 1.0f - sig, sig), cut,
                  u == cut ? 1.0f : 0.0f };

    return r;
}

/* limit: of SiLU; 0: none. */
__device__ static inline ml_gate ml_gate_of(float g, float u, ml_act act, float limit) {
    float sig = ml_sigmoid(g);
    ml_gate silu = { g * sig, fmaf(g * sig, 1.0f - sig, sig), u, 1.0f };
    ml_gate sigmoid = { sig, sig * (1.0f - sig), u, 1.0f };
    ml_gate relu = { g > 0.0f ? g : 0.0f, g > 0.0f ? 1.0f : 0.0f, u, 1.0f };

    switch (act) {
    case ML_ACT_GELU_TANH: return ml_gelu_gate(g, u);
    case ML_ACT_SIGMOID: return sigmoid;
    case ML_ACT_RELU: return relu;
    case ML_ACT_CLAMPED: return ml_clamped_gate(g, u);
    default: return limit > 0.0f ? ml_limited_gate(g, u, limit) : silu;
    }
}

#endif
