/* Destinations of metrics in Miles, and their counterparts here. */
#include "cli/flags/flag_rows.h"

#define TRAIN (ML_CMD_SFT | ML_CMD_TRAIN)

static const char *const phases[] = { "train_overall", "train_actor", "train_log_probs",
                                      NULL };

static const char *const wandb_modes[] = { "offline", "disabled", NULL };

#define WANDB_TEXT(word, field, what)                                                      \
    {                                                                                      \
        .name = word, .type = ML_FLAG_TEXT, ML_AT(run.wandb.field), .value = "NAME",       \
        .group = "metrics", .cmds = TRAIN, .from = ML_FROM_MILES,                          \
        .help = what " of --use-wandb."                                                    \
    }

const ml_flag ml_flags_logging[] = {
    { .name = "tensorboard-dir",
      .type = ML_FLAG_PATH,
      ML_AT(run.log.tensorboard),
      .value = "DIR",
      .def_note = "tensorboard in the directory of --save",
      .env = "TENSORBOARD_DIR",
      .group = "metrics",
      .cmds = TRAIN,
      .from = ML_FROM_MEGATRON,
      .help = "Directory of the TensorBoard event files." },
    { .name = "tb-project-name",
      .type = ML_FLAG_TEXT,
      ML_AT(run.log.project),
      .value = "NAME",
      .group = "metrics",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help =
          "Write event files to tensorboard_log/NAME, unless --tensorboard-dir is given." },
    { .name = "tb-experiment-name",
      .type = ML_FLAG_TEXT,
      ML_AT(run.log.experiment),
      .value = "NAME",
      .group = "metrics",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Subdirectory of --tb-project-name." },
    { .name = "store",
      .type = ML_FLAG_BOOL,
      ML_AT(run.store),
      .def = "on",
      .group = "metrics",
      .cmds = TRAIN,
      .from = ML_FROM_OURS,
      .help = "Record samples, metrics and times in run.db in --save, for miles inspect." },
    { .name = "profile",
      .type = ML_FLAG_BOOL,
      ML_AT(run.log.profile),
      .group = "metrics",
      .cmds = TRAIN,
      .from = ML_FROM_MEGATRON,
      .help = "Write a trace of all phases and ops, with device times, to trace_N.json in "
              "--save, for Perfetto and Chrome." },
    { .name = "profile-target",
      .type = ML_FLAG_LIST,
      ML_AT(run.profile_targets),
      .value = "PHASE...",
      .words = phases,
      .def_note = "train_overall",
      .group = "metrics",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Phases recorded by --profile: train_actor, train_log_probs, or "
              "train_overall for all." },
    ML_NOOP("use-tensorboard", BOOL, MILES, TRAIN,
            "event files are always written to the directory of --save"),
    { .name = "use-miles-dashboard",
      .type = ML_FLAG_BOOL,
      ML_AT(run.dash.use),
      .group = "metrics",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Serve a page that shows the run in the browser while it runs; afterwards, "
              "miles dashboard does." },
    { .name = "dashboard-port",
      .type = ML_FLAG_I64,
      ML_AT(run.dash.port),
      .def = "7788",
      .min = 0,
      .max = 65535,
      .group = "metrics",
      .cmds = TRAIN,
      .from = ML_FROM_OURS,
      .help = "Port of --use-miles-dashboard; if it is in use, another one is taken." },
    { .name = "dashboard-host",
      .type = ML_FLAG_TEXT,
      ML_AT(run.dash.host),
      .def = "127.0.0.1",
      .value = "ADDRESS",
      .group = "metrics",
      .cmds = TRAIN,
      .from = ML_FROM_OURS,
      .help =
          "Address of --use-miles-dashboard.  Another address than a loopback one needs "
          "--dashboard-api-key-file." },
    { .name = "dashboard-api-key-file",
      .type = ML_FLAG_PATH,
      ML_AT(run.dash.key_file),
      .value = "FILE",
      .group = "metrics",
      .cmds = TRAIN,
      .from = ML_FROM_OURS,
      .help =
          "File with a key that the page asks for; with it, the page can pause, save and "
          "stop the run and change its learning rate." },
    { .name = "use-wandb",
      .type = ML_FLAG_BOOL,
      ML_AT(run.wandb.use),
      .group = "metrics",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "Print the command that uploads the metrics of the run to W&B, "
              "share/wandb_upload.py.  miles itself sends nothing." },
    { .name = "wandb-mode",
      .type = ML_FLAG_TEXT,
      ML_AT(run.wandb.mode),
      .words = wandb_modes,
      .def = "offline",
      .group = "metrics",
      .cmds = TRAIN,
      .from = ML_FROM_MILES,
      .help = "offline: the metrics are uploaded by share/wandb_upload.py.  disabled: same "
              "as --no-use-wandb." },
    WANDB_TEXT("wandb-project", project, "Project"),
    WANDB_TEXT("wandb-team", team, "Entity"),
    WANDB_TEXT("wandb-run-id", id, "Run"),
    { 0 },
};
