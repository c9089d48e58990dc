/* Engines, routers, sessions and adapters: flags of SGLang and Miles. */
#include "cli/flags/flag_rows.h"

#define TRAIN (ML_CMD_SFT | ML_CMD_TRAIN)

static const char *const only_one[] = { "1", NULL };

#define GENERATES (ML_CMD_TRAIN | ML_CMD_EVAL)
#define NOTHING "supervised fine-tuning does not generate"
#define ONE_RANK "The engine has one rank."
#define EXPERTS "ranks of an engine divide experts like its other matrices"
#define LM_HEAD "ranks of an engine divide the LM head by vocabulary"

#define SIZE(word, target) ML_SAME(word, TEXT, "N", SGLANG, TRAIN, "compatibility", target)

const ml_flag ml_flags_sglang[] = {
    ML_SAME("sglang-tp-size", I64, "N", SGLANG, GENERATES, "ranks",
            "rollout-num-gpus-per-engine"),
    ML_SAME("sglang-tensor-parallel-size", I64, "N", SGLANG, GENERATES, "ranks",
            "rollout-num-gpus-per-engine"),
    ML_NOOP("sglang-tp-size", TEXT, SGLANG, ML_CMD_SFT, NOTHING),
    ML_NOOP("sglang-tensor-parallel-size", TEXT, SGLANG, ML_CMD_SFT, NOTHING),
    ML_NOOP("sglang-expert-parallel-size", TEXT, SGLANG, TRAIN, EXPERTS),
    ML_NOOP("sglang-ep", TEXT, SGLANG, TRAIN, EXPERTS),
    ML_SAME("sglang-data-parallel-size", I64, "N", SGLANG, GENERATES, "ranks",
            "sglang-dp-size"),
    ML_NOOP("sglang-data-parallel-size", TEXT, SGLANG, ML_CMD_SFT, NOTHING),
    SIZE("sglang-pipeline-parallel-size", "sglang-pp-size"),
    ML_SAME("sglang-context-length", I64, "N", SGLANG, GENERATES, "engine",
            "rollout-max-context-len"),
    ML_SAME("sglang-cuda-graph-max-bs-decode", I64, "N", SGLANG, GENERATES, "engine",
            "sglang-cuda-graph-max-bs"),
    ML_SAME("sglang-disable-decode-cuda-graph", BOOL, NULL, SGLANG, GENERATES, "engine",
            "sglang-disable-cuda-graph"),
    { .name = "sglang-max-total-tokens",
      .type = ML_FLAG_I64,
      ML_AT(run.rollout.max_total),
      .value = "N",
      .def_note = "limited by the memory",
      .min = 1,
      .max = 1e12,
      .group = "engine",
      .cmds = GENERATES,
      .from = ML_FROM_SGLANG,
      .help = "Maximum number of tokens in the KV cache of an engine; one request always "
              "fits." },
    ML_NOOP("sglang-context-length", TEXT, SGLANG, ML_CMD_SFT, NOTHING),
    ML_NOOP("sglang-max-total-tokens", TEXT, SGLANG, ML_CMD_SFT, NOTHING),
    ML_NOOP("sglang-ep-size", TEXT, SGLANG, TRAIN, EXPERTS),
    { .name = "sglang-dp-size",
      .type = ML_FLAG_I64,
      ML_AT(run.place.engine_dp),
      .value = "N",
      .def = "1",
      .min = 1,
      .max = 1e6,
      .group = "ranks",
      .cmds = GENERATES,
      .from = ML_FROM_SGLANG,
      .help =
          "With --sglang-enable-dp-attention: groups of an engine's ranks, a divisor of "
          "--rollout-num-gpus-per-engine." },
    { .name = "sglang-enable-dp-attention",
      .type = ML_FLAG_BOOL,
      ML_AT(run.place.dp_attention),
      .group = "ranks",
      .cmds = GENERATES,
      .from = ML_FROM_SGLANG,
      .help =
          "Data-parallel attention: --sglang-dp-size groups of an engine's ranks have "
          "requests of their own, whose keys and values no other group stores.  Samples "
          "and log-probs do not depend on it." },
    ML_NOOP("sglang-dp-size", TEXT, SGLANG, ML_CMD_SFT, NOTHING),
    ML_NOOP("sglang-enable-dp-attention", BOOL, SGLANG, ML_CMD_SFT, NOTHING),
    ML_FIXED("sglang-pp-size", SGLANG, TRAIN, only_one, ONE_RANK),
    ML_NOOP("sglang-moe-dense-tp-size", TEXT, SGLANG, TRAIN, EXPERTS),
    ML_NOOP("sglang-enable-dp-lm-head", BOOL, SGLANG, TRAIN, LM_HEAD),
    ML_REFUSED("sglang-config", TEXT, SGLANG, TRAIN,
               "only one group of engines is supported; remove the flag"),
    { 0 },
};
