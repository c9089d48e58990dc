/* Architecture flags of launch scripts: sizes are compared with config.json, the rest is
 * read from there. */
#include "cli/flags/flag_rows.h"

#define TRAIN (ML_CMD_SFT | ML_CMD_TRAIN)

#define FROM_CONFIG "the architecture is read from config.json"
#define ROUTER                                                                             \
    "reinforcement learning adds no balancing loss and leaves the router's bias alone"

/* A number that arch_check.c compares with config.json. */
#define CHECKED(word, kind, field, what)                                                   \
    {                                                                                      \
        .name = word, .type = ML_FLAG_##kind, ML_AT(arch.field),                           \
        .unset = ML_FLAG_##kind == ML_FLAG_F64, .def_note = "as config.json says",         \
        .min = ML_FLAG_##kind == ML_FLAG_F64 ? 0 : 1, .max = 1e9, .group = "architecture", \
        .cmds = TRAIN, .from = ML_FROM_MEGATRON,                                           \
        .help = what ": config.json must say the same."                                    \
    }

const ml_flag ml_flags_arch[] = {
    CHECKED("num-layers", I64, n_layer, "Decoder layers"),
    CHECKED("hidden-size", I64, hidden, "Width of the model"),
    CHECKED("ffn-hidden-size", I64, ffn, "Width inside the MLP"),
    CHECKED("num-attention-heads", I64, n_head, "Heads of queries"),
    CHECKED("num-query-groups", I64, n_kv_head, "Heads of keys and values"),
    CHECKED("kv-channels", I64, head_dim, "Width of a head"),
    CHECKED("vocab-size", I64, vocab, "Tokens"),
    CHECKED("num-experts", I64, n_expert, "Experts of a layer"),
    CHECKED("moe-router-topk", I64, top_k, "Experts of a token"),
    CHECKED("moe-ffn-hidden-size", I64, moe_ffn, "Width inside an expert"),
    CHECKED("moe-router-num-groups", I64, n_group, "Groups of experts"),
    CHECKED("moe-router-group-topk", I64, top_group, "Groups of a token"),
    CHECKED("q-lora-rank", I64, q_rank, "Rank of latent queries"),
    CHECKED("kv-lora-rank", I64, kv_rank, "Rank of latent keys and values"),
    CHECKED("qk-head-dim", I64, qk_nope, "Width of a head without positions"),
    CHECKED("qk-pos-emb-head-dim", I64, qk_rope, "Width of a head with positions"),
    CHECKED("v-head-dim", I64, v_dim, "Width of a value head"),
    CHECKED("rotary-base", F64, rope_base, "Base of the rotary frequencies"),
    CHECKED("norm-epsilon", F64, norm_eps, "Epsilon of the norms"),
    { .name = "padded-vocab-size",
      .type = ML_FLAG_I64,
      ML_AT(arch.padded_vocab),
      .value = "N",
      .def_note = "nothing is padded",
      .min = 1,
      .max = 1e9,
      .group = "architecture",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help =
          "Rows of a padded embedding: must have room for the vocab_size of config.json, "
          "whose own rows are what is loaded and trained." },
    { .name = "model-name",
      .type = ML_FLAG_TEXT,
      ML_AT(arch.model_name),
      .value = "NAME",
      .def_note = "as config.json says",
      .group = "architecture",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "The family, as Miles calls it (qwen3, qwen3moe, glm4): config.json must "
              "have a model_type of that name." },
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
               "parameters are frozen by --freeze and a pattern of their names"),
    ML_REFUSED("freeze-e-score-correction-bias", BOOL, MILES, TRAIN,
               "parameters are frozen by --freeze and a pattern of their names"),
    ML_NOOP("freeze-indexer", BOOL, MILES, TRAIN,
            "no gradient reaches an indexer, and no step moves it"),
    ML_REFUSED("spec", LIST, MEGATRON, TRAIN,
               "layers are built from config.json; a family is a file of src/model/specs"),
    ML_REFUSED("custom-model-provider-path", TEXT, MILES, TRAIN,
               "layers are built from config.json; a family is a file of src/model/specs"),
    { 0 },
};
