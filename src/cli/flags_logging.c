/* Where Miles sends figures, and where they are here. */
#include "cli/flag_rows.h"

#define TRAIN (ML_CMD_SFT | ML_CMD_TRAIN)

#define WANDB                                                                              \
    "figures go to metrics.jsonl, event files for TensorBoard and the store of --save, "   \
    "and "                                                                                 \
    "nowhere else"

const ml_flag ml_flags_logging[] = {
    ML_NOOP("use-wandb", BOOL, MILES, TRAIN, WANDB),
    ML_NOOP("disable-wandb-random-suffix", BOOL, MILES, TRAIN, WANDB),
    ML_NOOP("wandb-always-use-train-step", BOOL, MILES, TRAIN, WANDB),
    ML_NOOP("wandb-project", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("wandb-group", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("wandb-key", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("wandb-mode", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("wandb-dir", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("wandb-host", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("wandb-team", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("wandb-run-id", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("wandb-run-name", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("use-mlflow", BOOL, MILES, TRAIN, WANDB),
    ML_NOOP("mlflow-tracking-uri", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("mlflow-experiment-name", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("mlflow-run-name", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("mlflow-run-id", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("use-prometheus", BOOL, MILES, TRAIN, WANDB),
    ML_NOOP("prometheus-port", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("prometheus-run-name", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("use-miles-dashboard", BOOL, MILES, TRAIN, WANDB),
    ML_NOOP("dashboard-forward-prometheus", BOOL, MILES, TRAIN, WANDB),
    ML_NOOP("dashboard-flush-interval", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("dashboard-gpu-sample-interval", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("dashboard-sglang-scrape-interval", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("dashboard-sglang-scrape-mode", TEXT, MILES, TRAIN, WANDB),
    ML_NOOP("dashboard-sglang-metrics", TEXT, MILES, TRAIN, WANDB),
    ML_REFUSED("log-reward-category", TEXT, MILES, TRAIN,
               "rewards have no categories here; miles inspect shows each sample's"),
    ML_REFUSED("log-correct-samples", BOOL, MILES, TRAIN,
               "use miles inspect RUN --min-reward 1"),
    ML_NOOP("rollout-buffer-url", TEXT, MILES, TRAIN, "Miles reads it nowhere either"),
    ML_NOOP("fetch-trajectory-retry-times", TEXT, MILES, TRAIN,
            "Miles reads it nowhere either"),
    ML_NOOP("min-batch-collection-ratio", TEXT, MILES, TRAIN,
            "Miles reads it nowhere either"),
    ML_NOOP("rollout-task-type", TEXT, MILES, TRAIN, "Miles reads it nowhere either"),
    ML_NOOP("http-proxy", TEXT, MILES, TRAIN, "Miles reads it nowhere either"),
    { 0 },
};
