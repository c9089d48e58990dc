#include "cli/cli.h"

#include <string.h>

#include "cli/flags/flag_spelling.h"

/* The most needed flags, and a command line that works with a checkpoint and a data
 * file. */

/* The 25 flags of a first run; docs/cli.md begins with them. */
static const char train_flags[] =
    "hf-checkpoint prompt-data input-key label-key apply-chat-template rollout-shuffle "
    "rm-type custom-rm-path num-rollout rollout-batch-size n-samples-per-prompt "
    "rollout-max-response-len global-batch-size advantage-estimator lr "
    "max-tokens-per-gpu sglang-mem-fraction-static device save save-interval load "
    "eval-prompt-data eval-interval custom-config-path dry-run";

#define TRAIN_EXAMPLE                                                                      \
    " --hf-checkpoint ./Qwen3-0.6B \\\n"                                                   \
    "      --prompt-data train.jsonl --input-key prompt --label-key label \\\n"            \
    "      --apply-chat-template --rm-type math \\\n"                                      \
    "      --rollout-batch-size 16 --n-samples-per-prompt 8 \\\n"                          \
    "      --rollout-max-response-len 1024 --lr 1e-6 --num-rollout 100 \\\n"               \
    "      --save runs/first --save-interval 20"

static const char sft_flags[] =
    "hf-checkpoint prompt-data input-key rollout-batch-size "
    "max-tokens-per-gpu lr lr-decay-style num-epoch save save-interval load "
    "custom-config-path dry-run";

static const char dpo_flags[] =
    "hf-checkpoint prompt-data preference-loss beta ref-load rollout-batch-size "
    "max-tokens-per-gpu lr lr-decay-style num-epoch save save-interval load "
    "lora-rank custom-config-path dry-run";

static const char reward_model_flags[] =
    "hf-checkpoint prompt-data reward-model-loss center-rewards-coefficient "
    "rollout-batch-size max-tokens-per-gpu lr lr-decay-style num-epoch save save-interval "
    "load custom-config-path dry-run";

static const char eval_flags[] =
    "hf-checkpoint eval-prompt-data input-key label-key apply-chat-template "
    "rm-type custom-rm-path n-samples-per-eval-prompt eval-max-response-len "
    "eval-temperature eval-config";

static const char plan_flags[] =
    "hf-checkpoint nodes gpus-per-node device-kind tensor-model-parallel-size "
    "context-parallel-size pipeline-model-parallel-size expert-model-parallel-size "
    "global-batch-size max-tokens-per-gpu sample-tokens recompute-granularity "
    "search search-results json";

static const char serve_flags[] =
    "model-path host port api-key served-model-name context-length "
    "max-running-requests mem-fraction-static dtype chat-template "
    "tool-call-parser dry-run";

const ml_command ml_commands[] = {
    { "router", ML_CMD_ROUTER, ml_cmd_router, "one address in front of several servers" },
    { "score", ML_CMD_SCORE, ml_cmd_score, "log-probs of given token sequences" },
    { "serve", ML_CMD_SERVE, ml_cmd_serve, "HTTP server with the APIs of SGLang and OpenAI",
      serve_flags, "miles serve --model-path ./Qwen3-0.6B --port 30000" },
    { "tinker", ML_CMD_TINKER, ml_cmd_tinker,
      "training service for the Tinker SDK: LoRA adapters of many clients on one base",
      NULL, "miles tinker --model-path ./Qwen3-0.6B --served-model-name Qwen/Qwen3-0.6B" },
    { "convert", ML_CMD_CONVERT, ml_cmd_convert,
      "convert a checkpoint to another dtype or sharding" },
    { "sandbox", ML_CMD_SANDBOX, ml_cmd_sandbox,
      "run a program without access to files, network and other processes", NULL,
      "echo 'print(6 * 7)' | miles sandbox" },
    { "tokenize", ML_CMD_TOKENIZE, ml_cmd_tokenize, "convert text to token ids and back" },
    { "chat-template", ML_CMD_CHAT_TEMPLATE, ml_cmd_chat_template,
      "render conversations with the checkpoint's chat template" },
    { "bench engine", ML_CMD_BENCH_ENGINE, ml_cmd_bench_engine,
      "measure the generation speed of this machine" },
    { "bench serve", ML_CMD_BENCH_SERVE, ml_cmd_bench_serve,
      "measure latency and throughput of a running server" },
    { "train", ML_CMD_TRAIN, ml_cmd_train,
      "reinforcement learning: generate, score, train, publish", train_flags,
      "miles train" TRAIN_EXAMPLE },
    { "train-async", ML_CMD_TRAIN_ASYNC, ml_cmd_train,
      "reinforcement learning, generating the next rollout while training", train_flags,
      "miles train-async" TRAIN_EXAMPLE },
    { "eval", ML_CMD_EVAL, ml_cmd_eval, "generate responses to data sets and score them",
      eval_flags,
      "miles eval --hf-checkpoint ./Qwen3-0.6B \\\n"
      "      --eval-prompt-data gsm8k test.jsonl --input-key prompt --label-key label \\\n"
      "      --apply-chat-template --rm-type math --eval-max-response-len 1024" },
    { "sft", ML_CMD_SFT, ml_cmd_sft, "supervised fine-tuning on conversations", sft_flags,
      "miles sft --hf-checkpoint ./Qwen3-0.6B \\\n"
      "      --prompt-data chats.jsonl --input-key messages \\\n"
      "      --rollout-batch-size 32 --num-epoch 1 --lr 1e-5 \\\n"
      "      --save runs/sft --save-interval 100" },
    { "dpo", ML_CMD_DPO, ml_cmd_dpo, "training on preferences: DPO, IPO, SimPO, ORPO, KTO",
      dpo_flags,
      "miles dpo --hf-checkpoint ./Qwen3-0.6B --prompt-data pairs.jsonl \\\n"
      "      --rollout-batch-size 32 --num-epoch 1 --lr 1e-6 --beta 0.1 \\\n"
      "      --save runs/dpo --save-interval 100" },
    { "reward-model", ML_CMD_REWARD_MODEL, ml_cmd_reward_model,
      "training of a reward model, on preferences or labels", reward_model_flags,
      "miles reward-model --hf-checkpoint ./Qwen3-0.6B --prompt-data pairs.jsonl \\\n"
      "      --rollout-batch-size 32 --num-epoch 1 --lr 1e-5 \\\n"
      "      --save runs/rm --save-interval 100" },
    { "inspect", ML_CMD_INSPECT, ml_cmd_inspect, "show the samples of a run" },
    { "dashboard", ML_CMD_DASHBOARD, ml_cmd_dashboard, "show runs in the browser", NULL,
      "miles dashboard runs/first runs/second" },
    { "data show", ML_CMD_DATA_SHOW, ml_cmd_data_show,
      "print the rows of data files as JSON lines" },
    { "doctor", ML_CMD_DOCTOR, ml_cmd_doctor,
      "report the hardware; check a command line and its memory" },
    { "plan", ML_CMD_PLAN, ml_cmd_plan,
      "predict memory and speed of miles train on a cluster of GPUs", plan_flags,
      "miles plan --hf-checkpoint share/configs/Qwen3-32B --nodes 4 \\\n"
      "      --tensor-model-parallel-size 8 --max-tokens-per-gpu 16384 \\\n"
      "      --global-batch-size 512 --sample-tokens 8192" },
    { "reward", ML_CMD_REWARD, ml_cmd_reward, "score recorded samples" },
    { "list", ML_CMD_LIST, ml_cmd_list,
      "list the extensions of the training loop, by kind and name" },
    { "loss", ML_CMD_LOSS, ml_cmd_loss,
      "compute advantages, loss and derivatives of batches given as numbers" },
    { 0 },
};

const ml_command *ml_command_find(const char *name) {
    for (const ml_command *c = ml_commands; c->name; c++)
        if (strcmp(c->name, name) == 0)
            return c;
    return NULL;
}

const ml_command *ml_command_near(const char *name) {
    const ml_command *best = NULL;
    int least = 4;

    for (const ml_command *c = ml_commands; c->name; c++) {
        int d = ml_str_distance(ml_str_of(name), ml_str_of(c->name));
        if (d < least) {
            least = d;
            best = c;
        }
    }
    return best;
}

int ml_exit_code(ml_status st) {
    switch (st) {
    case ML_OK: return ML_EXIT_OK;
    case ML_EUSAGE: return ML_EXIT_USAGE;
    case ML_EPEER: return ML_EXIT_PEER;
    default: return ML_EXIT_FAILED;
    }
}

const ml_command *ml_command_of(const ml_command *cmd, int argc, char *const *argv) {
    ml_cmd bit = ml_flags_command(cmd->bit, argc, argv);

    for (const ml_command *c = ml_commands; c->name; c++)
        if (c->bit == bit)
            return c;
    return cmd;
}
