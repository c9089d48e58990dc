/* families.h - the model families, one file each; families.c lists them. */
#ifndef ML_MODEL_SPECS_FAMILIES_H
#define ML_MODEL_SPECS_FAMILIES_H

#include "model/specs/decoder.h"

extern const ml_family ml_family_llama, ml_family_mistral, ml_family_phi3,
    ml_family_smollm3, ml_family_olmo2, ml_family_qwen2, ml_family_mimo, ml_family_qwen3,
    ml_family_qwen3_moe, ml_family_gemma2, ml_family_gemma3, ml_family_gemma4,
    ml_family_glm4, ml_family_glm4_moe, ml_family_mixtral, ml_family_minimax_m2,
    ml_family_gpt_oss, ml_family_deepseek_v3, ml_family_kimi_k2, ml_family_glm4_moe_lite,
    ml_family_qwen3_next, ml_family_qwen3_5, ml_family_qwen3_5_moe, ml_family_nemotron_h,
    ml_family_deepseek_v32, ml_family_glm_moe_dsa, ml_family_llama4, ml_family_gemma3n,
    ml_family_deepseek_v4;

#endif
