/* Architecture flags of launch scripts: sizes are compared with config.json, the rest is
 * read from there. */
#include "cli/flags/flag_rows.h"

#define TRAIN (ML_CMD_SFT | ML_CMD_TRAIN)

#define FROM_CONFIG "the architecture is read from config.json"
#define ROUTER                                                                             \
    "RL training adds no load-balancing loss and does not change the router's bias"

/* A number that arch_check.c compares with config.json. */
#define CHECKED(word, kind, field, what)                                                   \
    {                                                                                      \
        .name = word, .type = ML_FLAG_##kind, ML_AT(arch.field),                           \
        .unset = ML_FLAG_##kind == ML_FLAG_F64, .def_note = "the value in config.json",    \
        .min = ML_FLAG_##kind == ML_FLAG_F64 ? 0 : 1, .max = 1e9, .group = "architecture", \
        .cmds = TRAIN, .from = ML_FROM_MEGATRON,                                           \
        .help = what "; config.json must have the same value."                             \
    }

const ml_flag ml_flags_arch[] = {
    CHECKED("num-layers", I64, n_layer, "Number of decoder layers"),
    CHECKED("hidden-size", I64, hidden, "Hidden size"),
    CHECKED("ffn-hidden-size", I64, ffn, "Intermediate size of the MLP"),
    CHECKED("num-attention-heads", I64, n_head, "Number of attention (query) heads"),
    CHECKED("num-query-groups", I64, n_kv_head, "Number of key/value heads"),
    CHECKED("kv-channels", I64, head_dim, "Head dimension"),
    CHECKED("vocab-size", I64, vocab, "Vocabulary size"),
    CHECKED("num-experts", I64, n_expert, "Experts per layer"),
    CHECKED("moe-router-topk", I64, top_k, "Experts per token"),
    CHECKED("moe-ffn-hidden-size", I64, moe_ffn, "Intermediate size of an expert"),
    CHECKED("moe-router-num-groups", I64, n_group, "Number of expert groups"),
    CHECKED("moe-router-group-topk", I64, top_group, "Expert groups per token"),
    CHECKED("q-lora-rank", I64, q_rank, "Rank of the compressed queries"),
    CHECKED("kv-lora-rank", I64, kv_rank, "Rank of the compressed keys and values"),
    CHECKED("qk-head-dim", I64, qk_nope, "Head dimension without RoPE"),
    CHECKED("qk-pos-emb-head-dim", I64, qk_rope, "Head dimension with RoPE"),
    CHECKED("v-head-dim", I64, v_dim, "Head dimension of the values"),
    CHECKED("rotary-base", F64, rope_base, "RoPE base frequency"),
    CHECKED("norm-epsilon", F64, norm_eps, "Epsilon of the norm layers"),
    { .name = "padded-vocab-size",
      .type = ML_FLAG_I64,
      ML_AT(arch.padded_vocab),
      .value = "N",
      .def_note = "no padding",
      .min = 1,
      .max = 1e9,
      .group = "architecture",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Rows of the padded embedding: at least vocab_size of config.json; only the "
              "vocab_size rows are loaded and trained." },
    { .name = "model-name",
      .type = ML_FLAG_TEXT,
      ML_AT(arch.model_name),
      .value = "NAME",
      .def_note = "model_type of config.json",
      .group = "architecture",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Model family by Miles' name (qwen3, qwen3moe, glm4); model_type of "
              "config.json must match." },
    ML_NOOP("swiglu", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("disable-bias-linear", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("add-qkv-bias", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("qk-layernorm", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("group-query-attention", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("untie-embeddings-and-output-weights", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("apply-layernorm-1p", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("post-self-attn-layernorm", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("post-mlp-layernorm", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("use-rotary-position-embeddings", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("no-position-embedding", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("rotary-interleaved", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("use-rope-scaling", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("attention-output-gate", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("multi-latent-attention", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("moe-router-pre-softmax", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("moe-router-enable-expert-bias", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("moe-shared-expert-gate", BOOL, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("normalization", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("position-embedding-type", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("rotary-percent", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("rotary-scaling-factor", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("rope-type", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("original-max-position-embeddings", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("beta-fast", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("beta-slow", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("mscale", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("mscale-all-dim", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("activation-func-clamp-value", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("window-size", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("window-attn-skip-freq", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("softmax-type", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("experimental-attention-variant", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("dsa-indexer-topk", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("dsa-indexer-n-heads", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("dsa-indexer-head-dim", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("moe-router-score-function", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("moe-router-topk-scaling-factor", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("moe-layer-freq", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("moe-router-dtype", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("moe-shared-expert-intermediate-size", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("moe-latent-size", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("make-vocab-size-divisible-by", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("seq-length", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("max-position-embeddings", TEXT, MEGATRON, TRAIN, FROM_CONFIG),
    ML_NOOP("moe-router-load-balancing-type", TEXT, MEGATRON, TRAIN, ROUTER),
    ML_NOOP("moe-aux-loss-coeff", TEXT, MEGATRON, TRAIN, ROUTER),
    ML_NOOP("moe-router-bias-update-rate", TEXT, MEGATRON, TRAIN, ROUTER),
    ML_REFUSED("moe-router-freeze-gate", BOOL, MILES, TRAIN,
               "use --freeze with a pattern of parameter names"),
    ML_REFUSED("freeze-e-score-correction-bias", BOOL, MILES, TRAIN,
               "use --freeze with a pattern of parameter names"),
    ML_NOOP("freeze-indexer", BOOL, MILES, TRAIN,
            "indexers get no gradient and are never updated"),
    ML_REFUSED(
        "spec", LIST, MEGATRON, TRAIN,
        "layers are built from config.json; a model family is a file of src/model/specs"),
    ML_REFUSED(
        "custom-model-provider-path", TEXT, MILES, TRAIN,
        "layers are built from config.json; a model family is a file of src/model/specs"),
    { 0 },
};
