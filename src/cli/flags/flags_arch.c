/* Architecture flags of launch scripts: sizes are compared with config.json, the rest is
 * read from there. */
#include "cli/flags/flag_rows.h"

#define TRAIN (ML_CMD_SFT | ML_CMD_TRAIN)
#define MODEL                                                                              \
    (TRAIN | ML_CMD_EVAL | ML_CMD_SERVE | ML_CMD_SCORE | ML_CMD_CONVERT |                  \
     ML_CMD_BENCH_ENGINE | ML_CMD_DOCTOR)

/* A number that arch_check.c compares with config.json. */
#define CHECKED(word, kind, field, what)                                                   \
    {                                                                                      \
        .name = word, .type = ML_FLAG_##kind, ML_AT(run.arch.field),                       \
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
      ML_AT(run.arch.padded_vocab),
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
      ML_AT(run.arch.model_name),
      .value = "NAME",
      .def_note = "model_type of config.json",
      .group = "architecture",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Model family by Miles' name (qwen3, qwen3moe, glm4); model_type of "
              "config.json must match." },
    { .name = "spec",
      .type = ML_FLAG_LIST,
      ML_AT(run.arch.spec),
      .value = "FAMILY",
      .def_note = "model_type of config.json",
      .group = "architecture",
      .cmds = MODEL,
      .from = ML_FROM_MEGATRON,
      .help =
          "Model family of a shared object, ./family.so:NAME, or layers by Miles' name, "
          "such as miles_plugins.models.qwen3_5 get_qwen3_5_spec; model_type of "
          "config.json must match." },
    { .name = "moe-router-freeze-gate",
      .type = ML_FLAG_BOOL,
      ML_AT(freeze_gate),
      .group = "architecture",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Same as --freeze '*.gate.weight': routers are not trained." },
    ML_REFUSED(
        "custom-model-provider-path", TEXT, MILES, TRAIN,
        "a model family is a shared object: --spec ./family.so:NAME (docs/PLUGINS.md)"),
    { 0 },
};
