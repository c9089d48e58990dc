/* miles plan: the cluster that is planned for.  All other flags are those of miles train. */
#include "cli/flags/flag_rows.h"

#define PLAN ML_CMD_PLAN_ONLY

const ml_flag ml_flags_plan[] = {
    ML_SAME("nodes", I64, "N", OURS, PLAN, "cluster", "actor-num-nodes"),
    ML_SAME("gpus-per-node", I64, "N", OURS, PLAN, "cluster", "actor-num-gpus-per-node"),
    { .name = "device-kind",
      .type = ML_FLAG_TEXT,
      ML_AT(plan.kind),
      .value = "KIND",
      .def = "h200",
      .group = "cluster",
      .help = "Kind of the GPUs: h200, or a JSON file with the speeds of another kind, as "
              "in share/speeds." },
    { .name = "sample-tokens",
      .type = ML_FLAG_I64,
      ML_AT(plan.sample_tokens),
      .def_note = "the longest prompt and answer, or --max-tokens-per-gpu",
      .min = 1,
      .max = 1e9,
      .group = "cluster",
      .help = "Tokens of a sample, prompt and answer, on the average." },
    { .name = "search",
      .type = ML_FLAG_BOOL,
      ML_AT(plan.search),
      .group = "cluster",
      .help = "Try all layouts of the cluster and print the fastest that fit, instead of "
              "the layout of the flags." },
    { .name = "search-results",
      .type = ML_FLAG_I64,
      ML_AT(plan.n_result),
      .def = "10",
      .min = 1,
      .max = 1e6,
      .group = "cluster",
      .help = "Layouts that --search prints." },
    { .name = "json",
      .type = ML_FLAG_BOOL,
      ML_AT(plan.json),
      .group = "cluster",
      .help = "Print JSON." },
    { 0 },
};
