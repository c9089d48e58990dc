/* Execution modes of miles train and train-async, and engines in other processes. */
#include "base/checksum.h"
#include "base/pool.h"
#include "cli/flags/flag_rows.h"
#include "io/delta.h"

#define TRAIN ML_CMD_TRAIN

static const char *const transfers[] = { "broadcast", "disk-delta", "p2p", "disk", NULL };
static const char *const unused[] = { "drop", "retry", NULL };
static const char *const pauses[] = { "retract", "in_place", NULL };
static const char *const granularity[] = { "group", "sample", NULL };

const ml_flag ml_flags_async[] = {
    { .name = "rollout-threads",
      .type = ML_FLAG_I64,
      ML_AT(run.mode.rollout_threads),
      .min = 1,
      .max = ML_POOL_MAX,
      .def_note =
          "half of --threads in train-async (the trainer uses the rest), otherwise all",
      .group = "modes",
      .from = ML_FROM_OURS,
      .help = "Threads of the rollout engine.  The results do not depend on it." },
    { .name = "update-weights-interval",
      .type = ML_FLAG_I64,
      ML_AT(run.mode.update_interval),
      .def = "1",
      .min = 1,
      .max = 1e6,
      .group = "modes",
      .help = "train-async: publish the weights every N rollouts." },
    { .name = "fully-async",
      .type = ML_FLAG_BOOL,
      ML_AT(run.mode.fully),
      .group = "modes",
      .help =
          "train-async: generate continuously into a queue of groups.  The composition of "
          "a rollout then depends on timing; rollouts are recorded in the snapshots." },
    { .name = "max-weight-staleness",
      .type = ML_FLAG_I64,
      ML_AT(run.mode.max_stale),
      .def = "-1",
      .min = -1,
      .max = 1e6,
      .group = "modes",
      .help = "--fully-async: drop groups whose oldest token is more than N weight "
              "publications old; -1: no limit." },
    { .name = "async-max-concurrent-samples",
      .type = ML_FLAG_I64,
      ML_AT(run.mode.max_samples),
      .min = 1,
      .max = 1e7,
      .def_note = "samples per rollout",
      .group = "modes",
      .help = "--fully-async: maximum number of samples in flight." },
    { .name = "async-data-buffer-capacity-factor",
      .type = ML_FLAG_F64,
      ML_AT(run.mode.capacity),
      .def = "2",
      .min = 0.001,
      .max = 1e6,
      .group = "modes",
      .help = "--fully-async: capacity of the queue in groups, as a multiple of "
              "--rollout-batch-size." },
    { .name = "async-unused-samples-handler",
      .type = ML_FLAG_WORD,
      ML_AT(run.mode.unused),
      .words = unused,
      .def = "drop",
      .group = "modes",
      .help = "--fully-async: what to do with prompts whose responses were aborted or are "
              "too old." },
    { .name = "pause-generation-mode",
      .type = ML_FLAG_TEXT,
      ML_AT(pause_mode),
      .words = pauses,
      .group = "modes",
      .help = "When weights change, requests in flight are recomputed from their tokens; "
              "keeping the KV cache of old weights would not be exact.  in_place is for "
              "--multi-lora-n-adapters, where an adapter has no requests in flight when it "
              "changes, and those of other adapters continue." },
    { .name = "rollout-submission-granularity",
      .type = ML_FLAG_TEXT,
      ML_AT(single),
      .words = granularity,
      .group = "modes",
      .help = "Both values behave the same: groups are started as a whole, and the engine "
              "receives single samples." },
    { .name = "colocate",
      .type = ML_FLAG_BOOL,
      ML_AT(run.mode.colocate),
      .group = "modes",
      .help = "Engine and trainer share one set of weights, which miles train always does, "
              "and use their memory in turn, as with --offload.  train-async needs two "
              "sets and rejects this flag." },
    { .name = "rollout-external",
      .type = ML_FLAG_BOOL,
      ML_AT(run.mode.external),
      .group = "remote engines",
      .help = "Generate with servers that are already running: miles serve, or miles "
              "router in front of several." },
    { .name = "rollout-external-engine-addrs",
      .type = ML_FLAG_LIST,
      ML_AT(run.mode.addrs),
      .value = "HOST:PORT",
      .group = "remote engines",
      .help = "Addresses of the engines of --rollout-external." },
    { .name = "update-weight-disk-dir",
      .type = ML_FLAG_PATH,
      ML_AT(run.publish.dir),
      .value = "DIR",
      .def_note = "rollout_weights in the directory of --save",
      .group = "remote engines",
      .help = "Directory to which weights for remote engines are written; the engines must "
              "see it under the same path." },
    { .name = "rollout-num-engines",
      .type = ML_FLAG_I64,
      ML_AT(run.mode.n_engine),
      .min = 1,
      .max = 1024,
      .def_note = "0: the training process generates",
      .group = "remote engines",
      .from = ML_FROM_OURS,
      .help =
          "Generate with N miles serve processes, which the run starts and stops on this "
          "machine.  They share --rollout-threads.  The results do not depend on it." },
    { .name = "rollout-external-api-key",
      .type = ML_FLAG_TEXT,
      ML_AT(run.mode.engine_key),
      .value = "KEY",
      .env = "MILES_ROLLOUT_API_KEY",
      .secret = true,
      .group = "remote engines",
      .from = ML_FROM_OURS,
      .help = "API key of the engines of --rollout-external; their --admin-api-key if they "
              "have one.  Other users can see command lines: prefer "
              "--rollout-external-api-key-file." },
    { .name = "rollout-external-api-key-file",
      .type = ML_FLAG_PATH,
      ML_AT(run.mode.engine_key_file),
      .value = "FILE",
      .group = "remote engines",
      .from = ML_FROM_OURS,
      .help = "File that contains the key, not readable by other users; overrides "
              "--rollout-external-api-key." },
    { .name = "use-fault-tolerance",
      .type = ML_FLAG_BOOL,
      ML_AT(run.supervisor.restart),
      .group = "remote engines",
      .help = "Restart an engine of --rollout-num-engines that dies or fails its health "
              "check, publish the weights to it, and resubmit its requests; without this "
              "flag the run ends.  The run always waits for engines of --rollout-external, "
              "up to --sglang-router-request-timeout-secs." },
    { .name = "rollout-health-check-interval",
      .type = ML_FLAG_F64,
      ML_AT(run.supervisor.check_s),
      .value = "SECONDS",
      .def = "30",
      .min = 0.01,
      .max = 1e9,
      .group = "remote engines",
      .help = "Time between health checks, which generate one token.  Engines of "
              "--rollout-external are checked only while requests are pending." },
    { .name = "rollout-health-check-timeout",
      .type = ML_FLAG_F64,
      ML_AT(run.supervisor.timeout_s),
      .value = "SECONDS",
      .def = "30",
      .min = 0.01,
      .max = 1e9,
      .group = "remote engines",
      .help = "Health check timeout.  An engine of --rollout-num-engines is then killed; "
              "the requests of an engine of --rollout-external go to other engines, or "
              "back to it when it recovers." },
    { .name = "sglang-router-request-timeout-secs",
      .type = ML_FLAG_F64,
      ML_AT(run.mode.request_s),
      .value = "SECONDS",
      .def = "14400",
      .min = 0,
      .max = 1e9,
      .group = "remote engines",
      .cmds = ML_CMD_SFT | TRAIN,
      .from = ML_FROM_SGLANG,
      .help = "Timeout of a request; it is then sent to another engine.  The run ends if "
              "no engine is reachable for this time, or if an engine cannot load new "
              "weights.  0: no limit." },
    { .name = "rollout-health-check-first-wait",
      .type = ML_FLAG_F64,
      ML_AT(run.supervisor.first_check_s),
      .value = "SECONDS",
      .def = "0",
      .min = 0,
      .max = 1e9,
      .group = "remote engines",
      .help = "Time after its start during which an engine is not checked." },
    { .name = "update-weight-buffer-size",
      .type = ML_FLAG_BYTES,
      ML_AT(run.publish.shard_bytes),
      .def = "536870912",
      .min = 1,
      .max = 1e15,
      .group = "remote engines",
      .help = "Maximum size of a file of published weights, or of the tensors that one "
              "request asks for over TCP." },
    { .name = "update-weight-transfer-mode",
      .type = ML_FLAG_WORD,
      ML_AT(run.mode.transfer),
      .words = transfers,
      .def = "broadcast",
      .group = "remote engines",
      .help =
          "How remote engines get weights.  broadcast: over TCP, in requests of "
          "--update-weight-buffer-size; a copy of the weights is kept in host memory.  "
          "disk: "
          "all weights as files, which engines read from --update-weight-disk-dir.  "
          "disk-delta: files with the difference to the last publication, which engines "
          "apply to their local copy; all weights if a delta cannot be applied or is not "
          "smaller.  The results do not depend on it.  p2p is accepted only for an engine "
          "in this process, which needs no transfer." },
    { .name = "update-weight-address",
      .type = ML_FLAG_TEXT,
      ML_AT(run.publish.address),
      .value = "HOST",
      .def_note = "that of the route to the first engine",
      .group = "remote engines",
      .from = ML_FROM_OURS,
      .help = "broadcast: name or address under which engines connect to this process, if "
              "they see another than it does." },
    { .name = "update-weight-local-checkpoint-dir",
      .type = ML_FLAG_PATH,
      ML_AT(run.publish.copy),
      .value = "DIR",
      .group = "remote engines",
      .help = "disk-delta: directory of the engines' local copy of the weights, on each "
              "engine's machine; engines on one machine share it." },
    { .name = "update-weight-delta-encoding",
      .type = ML_FLAG_WORD,
      ML_AT(run.publish.write.encoding),
      .words = ml_delta_name,
      .def = "xor",
      .group = "remote engines",
      .help = "disk-delta: encoding of a tensor before compression: old bytes XOR new "
              "bytes, or positions and values of the bytes that changed." },
    { .name = "update-weight-delta-checksum",
      .type = ML_FLAG_WORD,
      ML_AT(run.publish.write.checksum),
      .words = ml_checksum_name,
      .def = "xxh3-128",
      .group = "remote engines",
      .help =
          "disk-delta: checksum that each tensor must match after its delta is applied." },
    { .name = "offload-train",
      .type = ML_FLAG_BOOL,
      ML_AT(run.mode.offload_train),
      .group = "modes",
      .help = "Release the trainer's memory while generating; on a GPU, optimizer state "
              "moves to host memory." },
    { .name = "offload-rollout",
      .type = ML_FLAG_BOOL,
      ML_AT(run.mode.offload_rollout),
      .group = "modes",
      .help = "Release the memory of the KV cache while training." },
    { .name = "offload",
      .type = ML_FLAG_BOOL,
      ML_AT(run.mode.offload),
      .group = "modes",
      .help = "Same as --offload-train --offload-rollout: a run then needs the larger of "
              "the two memories instead of their sum." },
    { 0 },
};
