#!/usr/bin/env bash
# shapes.sh - sourced: config.json files of the shapes that are measured and checked.
#
#   shape DIR HIDDEN INNER LAYERS HEADS TIED [VOCABULARY]

shape() {
    mkdir -p "$1"
    cat > "$1/config.json" << JSON
{"model_type": "qwen3", "architectures": ["Qwen3ForCausalLM"], "vocab_size": ${7:-151936},
 "hidden_size": $2, "intermediate_size": $3, "num_hidden_layers": $4,
 "num_attention_heads": $5, "num_key_value_heads": 8, "head_dim": 128,
 "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
 "tie_word_embeddings": $6, "hidden_act": "silu", "attention_bias": false}
JSON
}

small_shape() { # small_shape DIR: SmolLM2-135M, whose widths are not multiples of 128
    mkdir -p "$1"
    cat > "$1/config.json" << JSON
{"model_type": "llama", "architectures": ["LlamaForCausalLM"], "vocab_size": 49152,
 "hidden_size": 576, "intermediate_size": 1536, "num_hidden_layers": 30,
 "num_attention_heads": 9, "num_key_value_heads": 3, "head_dim": 64,
 "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 100000,
 "tie_word_embeddings": true, "hidden_act": "silu", "attention_bias": false}
JSON
}

mtp_shape() { # mtp_shape DIR: 8B with a multi-token prediction layer, as MiMo has it
    mkdir -p "$1"
    cat > "$1/config.json" << JSON
{"model_type": "mimo", "architectures": ["MiMoForCausalLM"], "vocab_size": 151936,
 "hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36,
 "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128,
 "max_position_embeddings": 40960, "rms_norm_eps": 1e-6, "rope_theta": 1000000,
 "tie_word_embeddings": false, "hidden_act": "silu", "attention_bias": true,
 "num_nextn_predict_layers": 1}
JSON
}

moe_shape() { # moe_shape DIR LAYERS [VOCABULARY]: layers of Qwen3-30B-A3B
    mkdir -p "$1"
    cat > "$1/config.json" << JSON
{"model_type": "qwen3_moe", "architectures": ["Qwen3MoeForCausalLM"], "vocab_size": ${3:-151936},
 "hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": $2,
 "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_experts": 128,
 "num_experts_per_tok": 8, "moe_intermediate_size": 768, "norm_topk_prob": true,
 "decoder_sparse_step": 1, "mlp_only_layers": [], "max_position_embeddings": 40960,
 "rms_norm_eps": 1e-6, "rope_theta": 1000000, "tie_word_embeddings": false,
 "hidden_act": "silu", "attention_bias": false}
JSON
}

next_shape() { # next_shape DIR LAYERS EXPERTS [VOCABULARY]: layers of Qwen3-Next-80B-A3B
    mkdir -p "$1"
    cat > "$1/config.json" << JSON
{"model_type": "qwen3_next", "architectures": ["Qwen3NextForCausalLM"], "vocab_size": ${4:-151936},
 "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": $2,
 "num_attention_heads": 16, "num_key_value_heads": 2, "head_dim": 256, "num_experts": $3,
 "num_experts_per_tok": 10, "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512,
 "norm_topk_prob": true, "decoder_sparse_step": 1, "mlp_only_layers": [],
 "full_attention_interval": 4, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
 "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128,
 "partial_rotary_factor": 0.25, "max_position_embeddings": 262144, "rms_norm_eps": 1e-6,
 "rope_theta": 10000000, "tie_word_embeddings": false, "hidden_act": "silu"}
JSON
}

window_shape() { # window_shape DIR HEADS KV_HEADS HEAD_SIZE WINDOW: two layers with a sliding window
    mkdir -p "$1"
    cat > "$1/config.json" << JSON
{"model_type": "mistral", "architectures": ["MistralForCausalLM"], "vocab_size": 20000,
 "hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 2,
 "num_attention_heads": $2, "num_key_value_heads": $3, "head_dim": $4, "sliding_window": $5,
 "max_position_embeddings": 8192, "rms_norm_eps": 1e-5, "rope_theta": 10000,
 "tie_word_embeddings": false, "hidden_act": "silu"}
JSON
}

shapes() { # shapes DIR: the Qwen3 dense models, layers of one with experts; a few layers of each
    small_shape "$1/135M"
    shape "$1/0.6B" 1024 3072 28 16 true
    shape "$1/4B" 2560 9728 36 32 true
    shape "$1/8B" 4096 12288 36 32 false
    mtp_shape "$1/8B-mtp"
    shape "$1/8B-part" 4096 12288 8 32 false
    shape "$1/32B" 5120 25600 64 64 false
    moe_shape "$1/experts" 6
    moe_shape "$1/30B-A3B" 48
    next_shape "$1/recurrent" 8 64
    next_shape "$1/recurrent-512" 8 512
    next_shape "$1/four-recurrent" 4 16 20000
    shape "$1/two-layers" 1024 3072 2 16 true 20000
    window_shape "$1/window" 8 2 128 100
    window_shape "$1/window-64" 16 1 64 450
    moe_shape "$1/one-layer" 1 20000
}
