/* Ranks, machines and their supervision.  Ranks divide the samples (data parallelism). */
#include "cli/flags/flag_rows.h"

#define TRAIN (ML_CMD_SFT | ML_CMD_TRAIN)
#define RANKED (TRAIN | ML_CMD_SCORE) /* ranks divide the model */

static const char *const memory[] = { "cpu", NULL };
static const char *const f32[] = { "fp32", "float32", NULL };

#define RANK "ranks divide the samples and the optimizer state; nothing else is divided"
#define ALWAYS "this is always so"
#define PLACE "mpirun places the ranks; rank 0 sends the samples to the others"
#define NO_TRAINER                                                                         \
    "evaluation does not train; --rollout-num-gpus-per-engine divides the model"
#define NO_ENGINES "supervised fine-tuning does not generate"
#define TRANSFER "weights travel over TCP or as files; see --update-weight-transfer-mode"
#define CONTROL                                                                            \
    "ranks are not replaced one by one: a rank that fails ends the job with exit code 3, " \
    "and a launcher starts it again with --load (docs/SCALE.md)"

#define ML_SIZE(word, field, sentence)                                                     \
    {                                                                                      \
        .name = word, .type = ML_FLAG_I64, ML_AT(run.place.field), .def = "1", .min = 1,   \
        .max = 1e6, .group = "ranks", .cmds = RANKED, .from = ML_FROM_MEGATRON,            \
        .help = sentence                                                                   \
    }

#define ML_LAYERS(word, field, without, sentence)                                          \
    {                                                                                      \
        .name = word, .type = ML_FLAG_I64, ML_AT(run.place.field), .def_note = without,    \
        .min = 1, .max = 1e6, .group = "ranks", .cmds = RANKED, .from = ML_FROM_MEGATRON,  \
        .help = sentence                                                                   \
    }

const ml_flag ml_flags_parallel[] = {
    { .name = "actor-num-nodes",
      .type = ML_FLAG_I64,
      ML_AT(run.place.nodes),
      .def_note = "any",
      .min = 1,
      .max = 1e6,
      .group = "ranks",
      .cmds = RANKED,
      .from = ML_FROM_MILES,
      .help = "Hosts of the job.  mpirun -n places the ranks; a job of another size ends "
              "with a message." },
    { .name = "actor-num-gpus-per-node",
      .type = ML_FLAG_I64,
      ML_AT(run.place.gpus_per_node),
      .def_note = "any",
      .min = 1,
      .max = 1e6,
      .group = "ranks",
      .cmds = RANKED,
      .from = ML_FROM_MILES,
      .help = "Ranks of a host: the job must have --actor-num-nodes times as many.  A dry "
              "run without mpirun plans one of them." },
    { .name = "num-gpus-per-node",
      .type = ML_FLAG_I64,
      ML_AT(run.place.most_per_node),
      .def_note = "any",
      .min = 1,
      .max = 1e6,
      .group = "ranks",
      .cmds = RANKED,
      .from = ML_FROM_MILES,
      .help = "Ranks that a host may have at most." },
    { .name = "distributed-timeout-minutes",
      .type = ML_FLAG_F64,
      ML_AT(run.place.timeout_min),
      .def = "10",
      .min = 0,
      .max = 1e6,
      .group = "ranks",
      .cmds = RANKED | ML_CMD_EVAL,
      .from = ML_FROM_MEGATRON,
      .help = "The job ends if a rank waits longer than this for another one in training, "
              "or if a rank's heartbeats stop for as long at any time.  0: no limit." },
    { .name = "rank-stall-minutes",
      .type = ML_FLAG_F64,
      ML_AT(run.place.stall_min),
      .def = "0",
      .min = 0,
      .max = 1e6,
      .group = "ranks",
      .cmds = RANKED | ML_CMD_EVAL,
      .help = "The job ends if a rank takes part in no collective for this time while "
              "others wait for it, at any time: choose more than the start, a rollout, an "
              "update of the weights, an evaluation or a snapshot takes.  0: no limit, "
              "and the ranks that wait write that to their logs." },
    ML_SIZE(
        "tensor-model-parallel-size", tp,
        "Ranks that divide the weights, and gather those of a layer when they need them; "
        "they have different samples."),
    ML_SIZE("pipeline-model-parallel-size", pp,
            "Stages of a pipeline: each has a part of the layers.  Gradients are those of "
            "one rank, bit for bit."),
    ML_LAYERS("decoder-first-pipeline-num-layers", first_layers, "the first stage's share",
              "Layers of the first pipeline stage."),
    ML_LAYERS("decoder-last-pipeline-num-layers", last_layers, "the last stage's share",
              "Layers of the last pipeline stage."),
    ML_LAYERS("num-layers-per-virtual-pipeline-stage", chunk_layers, "not interleaved",
              "Interleaved schedule: layers of a stage, of which each rank has several."),
    ML_LAYERS("num-virtual-stages-per-pipeline-rank", chunks, "1",
              "Interleaved schedule: stages of a rank, instead of the layers of one."),
    { .name = "account-for-embedding-in-pipeline-split",
      .type = ML_FLAG_BOOL,
      ML_AT(run.place.count_embedding),
      .group = "ranks",
      .cmds = RANKED,
      .from = ML_FROM_MEGATRON,
      .help = "The embedding counts as a layer of the first pipeline stage." },
    { .name = "account-for-loss-in-pipeline-split",
      .type = ML_FLAG_BOOL,
      ML_AT(run.place.count_loss),
      .group = "ranks",
      .cmds = RANKED,
      .from = ML_FROM_MEGATRON,
      .help = "The LM head and the loss count as a layer of the last pipeline stage." },
    ML_REFUSED("pipeline-model-parallel-layout", TEXT, MEGATRON, TRAIN,
               "use --decoder-first-pipeline-num-layers and "
               "--decoder-last-pipeline-num-layers"),
    ML_NOOP("overlap-p2p-communication-warmup-flush", BOOL, MEGATRON, TRAIN,
            "stages exchange between passes"),
    ML_NOOP("no-overlap-p2p-communication", BOOL, MEGATRON, TRAIN, ALWAYS),
    ML_NOOP("microbatch-group-size-per-virtual-pipeline-stage", TEXT, MEGATRON, TRAIN,
            "groups have --pipeline-model-parallel-size micro-batches"),
    ML_SIZE(
        "context-parallel-size", cp,
        "Ranks that divide each sequence, in two pieces each: a micro-batch has as many "
        "times --max-tokens-per-gpu."),
    ML_SIZE(
        "expert-model-parallel-size", ep,
        "Consecutive ranks that divide the experts of each layer: the rows of tokens are "
        "sent to the ranks of their experts, and their results back."),
    ML_SIZE(
        "expert-tensor-parallel-size", etp,
        "Consecutive ranks that divide the weights of the same experts, and gather those "
        "of a layer when they need them."),
    { .name = "gradient-shards",
      .type = ML_FLAG_I64,
      ML_AT(run.trainer.grad_shards),
      .def_note = "as many as data parallel ranks",
      .min = 1,
      .max = 4096,
      .group = "ranks",
      .cmds = TRAIN,
      .help = "Gradients are summed over so many parts of a step, a power of two, in a "
              "fixed tree: runs on 1, 2, 4, ... data parallel ranks are then the same "
              "bytes.  Needs memory for more sets of gradients." },
    { .name = "dp-replicate-size",
      .type = ML_FLAG_I64,
      ML_AT(run.place.replicas),
      .def = "1",
      .min = 1,
      .max = 1e6,
      .group = "ranks",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "--train-backend fsdp: sets of weights; the ranks of each divide one." },
    ML_NOOP("num-distributed-optimizer-instances", TEXT, MEGATRON, TRAIN,
            "the optimizer state is divided over all ranks with the same weights"),
    ML_NOOP("sequence-parallel", BOOL, MEGATRON, TRAIN,
            "this is always so: tensor parallel ranks have different samples"),
    ML_NOOP("overlap-grad-reduce", BOOL, MEGATRON, TRAIN, RANK),
    ML_NOOP("overlap-param-gather", BOOL, MEGATRON, TRAIN, RANK),
    ML_NOOP(
        "cp-comm-type", LIST, MEGATRON, TRAIN,
        "keys and values are gathered (all_gather), and recurrent layers exchange heads "
        "(a2a), also where p2p is named"),
    ML_REFUSED("indep-dp", BOOL, MILES, TRAIN, CONTROL),
    ML_NOOP("delay-split-train-data-by-dp", BOOL, MILES, TRAIN, RANK),
    { .name = "allgather-cp",
      .type = ML_FLAG_BOOL,
      ML_AT(run.trainer.contiguous),
      .group = "ranks",
      .cmds = RANKED,
      .from = ML_FROM_MILES,
      .help = "With --context-parallel-size: a rank has one piece of a micro-batch instead "
              "of two of each sequence." },
    ML_NOOP(
        "distributed-backend", TEXT, MEGATRON, TRAIN,
        "each group of ranks uses the best transport that all of them have: CUDA IPC on a "
        "host, NCCL between GPUs of several hosts, otherwise MPI"),
    ML_NOOP("debug-deterministic-collective", BOOL, MILES, TRAIN, ALWAYS),
    { .name = "rollout-num-gpus",
      .type = ML_FLAG_I64,
      ML_AT(run.place.rollout),
      .def_note = "every rank trains and generates",
      .min = 1,
      .max = 1e6,
      .group = "ranks",
      .cmds = ML_CMD_TRAIN,
      .from = ML_FROM_MILES,
      .help = "Ranks that only generate, after those that train: the job has "
              "--actor-num-nodes times --actor-num-gpus-per-node ranks and these.  Ignored "
              "with --colocate and with engines in other processes." },
    { .name = "rollout-num-gpus-per-engine",
      .type = ML_FLAG_I64,
      ML_AT(run.place.engine_size),
      .def = "1",
      .min = 1,
      .max = 1e6,
      .group = "ranks",
      .cmds = ML_CMD_TRAIN | ML_CMD_EVAL,
      .from = ML_FROM_MILES,
      .help = "Ranks of an engine, which divide its matrices and its KV cache; samples and "
              "log-probs are those of one rank." },
    ML_NOOP("tensor-model-parallel-size", TEXT, MEGATRON, ML_CMD_EVAL, NO_TRAINER),
    ML_NOOP("pipeline-model-parallel-size", TEXT, MEGATRON, ML_CMD_EVAL, NO_TRAINER),
    ML_NOOP("context-parallel-size", TEXT, MEGATRON, ML_CMD_EVAL, NO_TRAINER),
    ML_NOOP("expert-model-parallel-size", TEXT, MEGATRON, ML_CMD_EVAL, NO_TRAINER),
    ML_NOOP("expert-tensor-parallel-size", TEXT, MEGATRON, ML_CMD_EVAL, NO_TRAINER),
    ML_NOOP("rollout-num-gpus", TEXT, MILES, ML_CMD_SFT, NO_ENGINES),
    ML_NOOP("rollout-num-gpus-per-engine", TEXT, MILES, ML_CMD_SFT, NO_ENGINES),
    ML_NOOP("pin-rollout-manager-to-head", BOOL, MILES, TRAIN, PLACE),
    ML_NOOP("use-distributed-post", BOOL, MILES, TRAIN, PLACE),
    ML_NOOP("object-store-backend", TEXT, MILES, TRAIN, PLACE),
    ML_NOOP("mooncake-store-init-kwargs", TEXT, MILES, TRAIN, PLACE),
    ML_NOOP("mooncake-replica-num", TEXT, MILES, TRAIN, PLACE),
    ML_REFUSED("prefill-num-servers", TEXT, MILES, TRAIN,
               "prefill and decode run on the same engine; remove the flag"),
    ML_REFUSED("stream-optimizer-state-to-disk", BOOL, MILES, TRAIN,
               "use --optimizer-offload-dir DIR to keep the optimizer state on disk"),
    ML_FIXED("stream-optimizer-state-moment-dtype", MILES, TRAIN, f32,
             "Adam's moments are f32."),
    ML_SAME("offload-train-disk-dir", PATH, "DIR", MILES, TRAIN, "optimizer",
            "optimizer-offload-dir"),
    ML_NOOP("offload-train-disk-chunk-mb", TEXT, MILES, TRAIN,
            "the optimizer state on disk is a memory-mapped file"),
    ML_NOOP("offload-rollout-level", LIST, MILES, TRAIN,
            "only the KV cache is released; engine and trainer share the weights"),
    ML_FIXED("offload-train-target", MILES, TRAIN, memory,
             "--offload-train moves the optimizer state to host memory."),
    ML_NOOP("p2p-transfer-num-workers", TEXT, MILES, TRAIN, TRANSFER),
    ML_NOOP("p2p-transfer-timeout", TEXT, MILES, TRAIN, TRANSFER),
    { .name = "ft-components",
      .type = ML_FLAG_LIST,
      ML_AT(ft_components),
      .value = "WORD",
      .group = "ranks",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help =
          "What --use-fault-tolerance restarts: rollout, the engines.  train is refused: "
          "a rank that fails ends the job with exit code 3, and a launcher starts it "
          "again (docs/SCALE.md)." },
    { .name = "trainer-heartbeat-checker-interval",
      .type = ML_FLAG_F64,
      ML_AT(run.place.beat_s),
      .value = "SECONDS",
      .def_note = "10 with another of these flags, else a quarter of "
                  "--distributed-timeout-minutes, 10 at most",
      .min = 0.01,
      .max = 1e6,
      .group = "ranks",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help =
          "Time between heartbeats of the ranks.  If one of the four flags is given, the "
          "job ends when a rank is silent for "
          "--trainer-heartbeat-checker-failure-threshold times this and "
          "--trainer-heartbeat-checker-timeout, instead of "
          "--distributed-timeout-minutes." },
    { .name = "trainer-heartbeat-checker-timeout",
      .type = ML_FLAG_F64,
      ML_AT(run.place.beat_timeout_s),
      .value = "SECONDS",
      .def_note = "10",
      .min = 0.01,
      .max = 1e6,
      .group = "ranks",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Time by which a heartbeat may be late." },
    { .name = "trainer-heartbeat-checker-first-wait",
      .type = ML_FLAG_F64,
      ML_AT(run.place.beat_first_s),
      .value = "SECONDS",
      .def_note = "300",
      .min = 0.01,
      .max = 1e6,
      .group = "ranks",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Time by which the first heartbeat may be later." },
    { .name = "trainer-heartbeat-checker-failure-threshold",
      .type = ML_FLAG_I64,
      ML_AT(run.place.beat_failures),
      .def_note = "3",
      .min = 1,
      .max = 1e6,
      .group = "ranks",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Heartbeats that may be missing one after the other." },
    ML_REFUSED("mini-ft-controller-enable", BOOL, MILES, TRAIN, CONTROL),
    ML_REFUSED("control-server-port", TEXT, MILES, TRAIN, CONTROL),
    ML_REFUSED("mini-ft-controller-poll-interval", TEXT, MILES, TRAIN, CONTROL),
    ML_REFUSED("mini-ft-controller-resume-delay", TEXT, MILES, TRAIN, CONTROL),
    { 0 },
};
