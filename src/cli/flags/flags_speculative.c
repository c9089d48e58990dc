/* Speculative decoding: SGLang's flags; and the training of the layers that draft. */
#include "cli/flags/flag_rows.h"

#define GENERATES (ML_CMD_TRAIN | ML_CMD_EVAL)
#define DECODES (GENERATES | ML_CMD_SERVE | ML_CMD_BENCH_ENGINE)
#define GROUP "speculative decoding"
#define TRAINS (ML_CMD_TRAIN | ML_CMD_SFT)
#define NOTHING "supervised fine-tuning does not generate"
#define ALSO(word, kind, form)                                                             \
    ML_SAME("sglang-" word, kind, form, SGLANG, GENERATES | ML_CMD_SERVE, GROUP, word),    \
        ML_NOOP("sglang-" word, TEXT, SGLANG, ML_CMD_SFT, NOTHING)

const ml_flag ml_flags_speculative[] = {
    { .name = "speculative-algorithm",
      .type = ML_FLAG_TEXT,
      ML_AT(run.speculative.algorithm),
      .value = "NAME",
      .group = GROUP,
      .cmds = DECODES,
      .from = ML_FROM_SGLANG,
      .help =
          "Draft tokens that are verified several at a time: NGRAM, what followed the "
          "same tokens earlier in the request, in the other samples of its prompt and "
          "in earlier answers to it; EAGLE or NEXTN, the model's multi-token prediction "
          "layer; EAGLE3, an EAGLE-3 head; STANDALONE, a small model.  Tokens and "
          "log-probs "
          "have the bits of plain decoding." },
    { .name = "speculative-num-steps",
      .type = ML_FLAG_I64,
      ML_AT(run.speculative.n_step),
      .value = "N",
      .def_note = "3",
      .min = 1,
      .max = 31,
      .group = GROUP,
      .cmds = DECODES,
      .from = ML_FROM_SGLANG,
      .help = "Most draft tokens of a chain; fewer where drafts fail, and none in large "
              "batches." },
    { .name = "speculative-eagle-topk",
      .type = ML_FLAG_I64,
      ML_AT(run.speculative.topk),
      .value = "N",
      .def_note = "1",
      .min = 1,
      .max = 16,
      .group = GROUP,
      .cmds = DECODES,
      .from = ML_FROM_SGLANG,
      .help = "Chains of draft tokens of a request in a step, which begin with different "
              "tokens: a tree.  Models with recurrent layers verify one chain only." },
    { .name = "speculative-num-draft-tokens",
      .type = ML_FLAG_I64,
      ML_AT(run.speculative.n_token),
      .value = "N",
      .def_note = "(the number of steps + 1) * chains; 12 with NGRAM",
      .min = 2,
      .max = 32,
      .group = GROUP,
      .cmds = DECODES,
      .from = ML_FROM_SGLANG,
      .help = "Rows that verify the drafts of a request in a step: those of draft tokens, "
              "and one for each chain." },
    { .name = "speculative-draft-model-path",
      .type = ML_FLAG_PATH,
      ML_AT(run.speculative.draft_path),
      .value = "DIR",
      .group = GROUP,
      .cmds = DECODES | ML_CMD_SFT,
      .from = ML_FROM_SGLANG,
      .help = "The small model of STANDALONE, with the same tokenizer, or the head of "
              "EAGLE3." },
    { .name = "mtp-num-layers",
      .type = ML_FLAG_I64,
      ML_AT(run.mtp.n_layer),
      .value = "N",
      .min = 0,
      .max = 1,
      .group = GROUP,
      .cmds = TRAINS,
      .from = ML_FROM_MILES,
      .help = "Multi-token prediction layers of the model: 1, or 0 for none.  Without "
              "--enable-mtp-training saved checkpoints have them unchanged." },
    { .name = "enable-mtp-training",
      .type = ML_FLAG_BOOL,
      ML_AT(run.mtp.train),
      .group = GROUP,
      .cmds = TRAINS,
      .from = ML_FROM_MILES,
      .help =
          "Train the multi-token prediction layer on the samples of each step, with "
          "gradients, clipping and optimizer state of its own.  Model, embedding and LM "
          "head get no gradient of its loss." },
    { .name = "mtp-loss-scaling-factor",
      .type = ML_FLAG_F64,
      ML_AT(run.mtp.factor),
      .def = "0.2",
      .min = 0,
      .max = 1e6,
      .group = GROUP,
      .cmds = TRAINS | ML_CMD_SCORE,
      .from = ML_FROM_MILES,
      .help = "Factor of the multi-token prediction loss, its mean cross entropy, in its "
              "gradients." },
    { .name = "train-draft",
      .type = ML_FLAG_BOOL,
      ML_AT(run.mtp.head),
      .group = GROUP,
      .cmds = TRAINS,
      .from = ML_FROM_OURS,
      .help =
          "Train the EAGLE-3 head of --speculative-draft-model-path on the samples of each "
          "step, with gradients, clipping and optimizer state of its own.  The model gets "
          "no "
          "gradient of its loss.  Snapshots have it in the folder draft." },
    ALSO("speculative-algorithm", TEXT, "NAME"),
    ALSO("speculative-num-steps", I64, "N"),
    ALSO("speculative-eagle-topk", I64, "N"),
    ALSO("speculative-num-draft-tokens", I64, "N"),
    ALSO("speculative-draft-model-path", PATH, "DIR"),
    { 0 },
};
